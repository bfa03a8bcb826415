//! [`Spec`]: how the columns of a table become the inputs and targets of a network.

use gradus_data::{Column, Kind, PreprocessOptions, Preprocessor, Table, UnknownCategory};
use gradus_tensor::{DType, Device, Error, ErrorKind, Here, Result, Tensor};
use serde::{Deserialize, Serialize};

use super::design::Design;

const OP: &str = "tabular";

/// A column of whole numbers with up to this many different values holds classes, unless the user says otherwise.
const FEW: usize = 20;

/// The largest number of classes.
const MOST_CLASSES: usize = 1000;

/// What is predicted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Goal {
    /// The class of a row.
    Classification {
        /// The names of the classes, sorted; numbers in the order of their size.
        classes: Vec<String>,
    },
    /// A number. The network predicts `(number - mean) / std`.
    Regression {
        /// The mean of the target in training.
        mean: f64,
        /// The standard deviation of the target in training.
        std: f64,
    },
}

/// How a [`Spec`] is made.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// Whether the target is a class (`Some(true)`) or a number (`Some(false)`). `None`, the default, decides by the
    /// column: a number if it holds numbers that are not all whole or take more than 20 values, and a class otherwise.
    pub classify: Option<bool>,
    /// Columns that are left out.
    pub drop: Vec<String>,
    /// The network; by default an MLP.
    pub design: Design,
    /// What happens to categories that the training table did not have; by default they are refused.
    pub unknown_category: UnknownCategory,
    /// The character between two values of the training file; `,` by default. Files to predict are read with it.
    pub delimiter: u8,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            classify: None,
            drop: Vec::new(),
            design: Design::mlp(),
            unknown_category: UnknownCategory::default(),
            delimiter: b',',
        }
    }
}

/// What is predicted, from which columns, and by which network.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// The column to predict.
    pub target: String,
    /// What is predicted.
    pub goal: Goal,
    /// The kind of values in the target column.
    target_kind: Kind,
    /// Columns of the training file that are ignored.
    pub dropped: Vec<String>,
    /// How the other columns become features.
    pub preprocessor: Preprocessor,
    /// The network.
    pub design: Design,
    /// The character between two values of a file.
    pub(super) delimiter: u8,
}

impl Spec {
    /// Learns from a training table.
    ///
    /// # Errors
    /// Fails if the target column does not exist, is missing in a row, is constant, or does not fit the goal; if no other
    /// column is left; and if a column holds texts or no values. The errors name the file and the column, and the line
    /// where there is one.
    #[track_caller]
    pub fn fit(table: &Table, target: &str, options: Options) -> Result<Spec> {
        options.design.check()?;
        let drop: Vec<&str> = options.drop.iter().map(String::as_str).collect();
        if drop.contains(&target) {
            let e = Error::argument(OP, format!("the target {target:?} is among the columns to leave out"));
            return Err(e.help("leave out other columns"));
        }
        let (features, column) = table.without(&drop)?.split_target(target)?;
        let goal = goal(&column, options.classify).here()?;
        let texts: Vec<&str> = features.columns().iter().filter(|c| c.kind() == Kind::Text).map(Column::name).collect();
        if !texts.is_empty() {
            let m = format!("{}: these columns hold texts that nearly all differ: {}", table.file(), texts.join(", "));
            return Err(Error::new(ErrorKind::Format, OP, m)
                .help("leave them out (--drop NAME), such as names and numbers of rows"));
        }
        let empty: Vec<&str> = features.columns().iter().filter(|c| c.missing() == c.len()).map(Column::name).collect();
        if !empty.is_empty() {
            let m = format!("{}: these columns have no value: {}", table.file(), empty.join(", "));
            return Err(Error::new(ErrorKind::Format, OP, m).help("leave them out (--drop NAME)"));
        }
        if features.columns().is_empty() {
            let m = format!("{}: there is no column beside the target {target:?}", table.file());
            return Err(
                Error::new(ErrorKind::Format, OP, m).help("a prediction needs at least one column to start from")
            );
        }
        let preprocess = PreprocessOptions {
            one_hot: options.design.is_one_hot(),
            unknown_category: options.unknown_category,
            ..PreprocessOptions::default()
        };
        Ok(Spec {
            target: target.to_owned(),
            goal,
            target_kind: column.kind(),
            dropped: options.drop,
            preprocessor: Preprocessor::fit(&features, preprocess)?,
            design: options.design,
            delimiter: options.delimiter,
        })
    }

    /// Errors if no network can be built for this specification, which may come from a file.
    #[track_caller]
    pub(super) fn check(&self) -> Result<()> {
        let fits = match &self.goal {
            Goal::Classification { classes } => (2..=MOST_CLASSES).contains(&classes.len()),
            Goal::Regression { mean, std } => mean.is_finite() && std.is_normal(),
        };
        if !fits {
            let m = format!("the goal {:?} cannot be predicted", self.goal);
            return Err(
                Error::argument(OP, m).help(format!("2 to {MOST_CLASSES} classes, or a finite mean and spread"))
            );
        }
        self.design.check()
    }

    /// The names of the classes; empty for a regression.
    pub fn classes(&self) -> &[String] {
        match &self.goal {
            Goal::Classification { classes } => classes,
            Goal::Regression { .. } => &[],
        }
    }

    /// The inputs of the network for a table, f32 `[rows, features]`: the features, and for a transformer behind them the
    /// index of each category. The target and the columns that were left out may be absent.
    ///
    /// # Errors
    /// Fails if the other columns are not those of the training table, or if a category is new. The error names the
    /// file, and the line and column where there is one.
    #[track_caller]
    pub fn inputs(&self, table: &Table, device: &Device) -> Result<Tensor> {
        let ignored = |name: &str| name == self.target || self.dropped.iter().any(|dropped| dropped == name);
        let names: Vec<&str> = table.columns().iter().map(Column::name).filter(|name| ignored(name)).collect();
        let features = table.without(&names)?;
        let trained: Vec<String> = self.preprocessor.kinds().into_iter().map(|(name, _)| name).collect();
        let has_same = trained.len() == features.columns().len()
            && features.columns().iter().all(|c| trained.iter().any(|name| name == c.name()));
        let help = |e: Error| {
            if has_same {
                e
            } else {
                e.help(format!("give a table with the columns of training: {}", trained.join(", ")))
            }
        };
        let numbers = self.preprocessor.transform(&features, device).map_err(help)?;
        if self.design.is_one_hot() || self.preprocessor.cardinalities().is_empty() {
            return Ok(numbers);
        }
        let indices = self.preprocessor.indices(&features, device)?.to_dtype(DType::F32)?;
        Tensor::cat(&[&numbers, &indices], 1)
    }

    /// The targets of a table: labels, i64 `[rows]`, or standardised numbers, f32 `[rows, 1]`.
    ///
    /// # Errors
    /// Fails if the target column does not exist, is missing in a row, or holds a class that training did not have. The
    /// error names the file, line and column.
    #[track_caller]
    pub fn targets(&self, table: &Table, device: &Device) -> Result<Tensor> {
        match &self.goal {
            Goal::Classification { classes } => {
                let labels = table.column(&self.target)?.labels(classes)?;
                Tensor::from_vec(labels, [table.len()], device)
            }
            Goal::Regression { mean, std } => {
                let numbers = self.numbers(table)?;
                let scaled: Vec<f32> = numbers.iter().map(|x| ((x - mean) / std) as f32).collect();
                Tensor::from_vec(scaled, [table.len(), 1], device)
            }
        }
    }

    /// The numbers in the target column of a table. Errors if the column does not exist, is missing in a row or holds
    /// something else than finite numbers.
    #[track_caller]
    pub(super) fn numbers<'a>(&self, table: &'a Table) -> Result<&'a [f64]> {
        let column = table.column(&self.target)?;
        let numbers = column.numbers()?;
        if let Some(row) = numbers.iter().position(|x| !x.is_finite()) {
            let what = if numbers[row].is_nan() { "missing" } else { "infinite" };
            return Err(column.fails_at(row, format!("the target is {what}")).help("leave out such rows"));
        }
        Ok(numbers)
    }

    /// The number of outputs of the network.
    pub(super) fn outputs(&self) -> usize {
        self.classes().len().max(1)
    }

    /// The number of features, and for each column of categories that is no feature, the number of its indices.
    pub(super) fn widths(&self) -> (usize, Vec<usize>) {
        let categories = self.preprocessor.cardinalities().into_iter().map(|(_, count)| count);
        let features = self.preprocessor.feature_names().len();
        (features, if self.design.is_one_hot() { Vec::new() } else { categories.collect() })
    }

    /// The names and kinds of the columns, with that of the target.
    pub(super) fn kinds(&self) -> Vec<(String, Kind)> {
        let mut kinds = self.preprocessor.kinds();
        kinds.push((self.target.clone(), self.target_kind));
        kinds
    }
}

/// Decides what to predict, and checks that the column has it.
#[track_caller]
fn goal(column: &Column, classify: Option<bool>) -> Result<Goal> {
    let named = |what: String| column.fails(format!("(the target) {what}"));
    let classes = column.classes();
    let numbers = column.numbers().ok();
    let is_number = numbers.is_some_and(|all| classes.len() > FEW || all.iter().any(|x| x.fract() != 0.0));
    if let [] | [_] = &classes[..] {
        let only = classes.first().map_or("has no value".to_owned(), |only| format!("has only the value {only:?}"));
        return Err(named(only).help("there is nothing to learn; give rows with at least two different values"));
    }
    if let Some(row) = (0..column.len()).find(|&row| column.text(row).is_none()) {
        return Err(column.fails_at(row, "the target is missing").help("leave out rows without a target"));
    }
    if classify.unwrap_or(!is_number) {
        if column.kind() == Kind::Text || classes.len() > MOST_CLASSES {
            let e = named(format!("has {} different values in {} rows", classes.len(), column.len()));
            return Err(
                e.help(format!("classes are few: at most {MOST_CLASSES}, each in many rows; is it the right column?"))
            );
        }
        return Ok(Goal::Classification { classes });
    }
    let Some(numbers) = numbers else {
        return Err(
            named(format!("holds values of the kind {}, not numbers", column.kind())).help("predict classes instead")
        );
    };
    if let Some(row) = numbers.iter().position(|x| x.is_infinite()) {
        return Err(column.fails_at(row, format!("the target is {}", numbers[row])).help("targets are finite numbers"));
    }
    let n = numbers.len() as f64;
    let mean = numbers.iter().map(|x| x / n).sum::<f64>();
    let std = numbers.iter().map(|x| (x - mean).powi(2) / n).sum::<f64>().sqrt();
    if !std.is_normal() || !mean.is_finite() {
        return Err(named("has numbers whose squares overflow, or that hardly differ".into()).help("scale them first"));
    }
    Ok(Goal::Regression { mean, std })
}
