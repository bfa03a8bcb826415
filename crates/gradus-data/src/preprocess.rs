//! [`Preprocessor`]: turns the columns of tables into the inputs of a model, with statistics learned from a training
//! table.

use std::fmt;

use gradus_tensor::backend::HostVec;
use gradus_tensor::{Device, Error, ErrorKind, Here, Result, Tensor};
use serde::{Deserialize, Serialize};

use crate::table::Values;
use crate::{Column, Kind, Table};

const OP: &str = "preprocess";

/// What takes the place of a missing number.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Impute {
    /// The mean of the column in the training table.
    #[default]
    Mean,
    /// The median of the column in the training table.
    Median,
    /// This number.
    Value(f64),
    /// Nothing: a missing number is an error.
    Refuse,
}

/// What a missing category counts as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MissingCategory {
    /// The category that most rows of the training table have; the first in sorted order, if several are as frequent.
    #[default]
    MostFrequent,
    /// A category that the training table did not have: see [`UnknownCategory`].
    Unknown,
    /// Nothing: a missing category is an error.
    Refuse,
}

/// What happens to a category that the training table did not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnknownCategory {
    /// It is an error, which states the file, line and column.
    #[default]
    Refuse,
    /// It counts as none of the categories: all of its one-hot features are 0, and its index is one above those of the
    /// known categories.
    None,
}

/// How a [`Preprocessor`] treats columns. The defaults are one-hot categories and numbers of mean 0 and standard
/// deviation 1.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PreprocessOptions {
    /// Whether numbers become `(x - mean) / std`, with the mean and the standard deviation (over `n`, not `n - 1`) of
    /// the training table after missing numbers were filled in. A constant column is only centred.
    pub standardize: bool,
    /// What takes the place of a missing number.
    pub impute: Impute,
    /// Whether each category becomes a feature of 0 or 1. If false, categories are available only from
    /// [`indices`](Preprocessor::indices), for an embedding.
    pub one_hot: bool,
    /// What a missing category counts as.
    pub missing_category: MissingCategory,
    /// What happens to a category that the training table did not have.
    pub unknown_category: UnknownCategory,
}

impl Default for PreprocessOptions {
    fn default() -> Self {
        PreprocessOptions {
            standardize: true,
            impute: Impute::default(),
            one_hot: true,
            missing_category: MissingCategory::default(),
            unknown_category: UnknownCategory::default(),
        }
    }
}

/// What was learned about a column of the training table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
enum Fitted {
    /// A feature is `(x - shift) / scale`.
    Number { name: String, fill: Option<f64>, shift: f64, scale: f64 },
    /// The categories are sorted.
    Bool { name: String, categories: Vec<String>, most_frequent: usize },
    /// The categories are sorted.
    Category { name: String, categories: Vec<String>, most_frequent: usize },
}

/// Turns the columns of tables into the inputs of a model. It learns the columns, the categories, and the means and
/// standard deviations of the numbers from the training table. Save it with the model, so that other tables are
/// processed in the same way:
///
/// ```
/// # use gradus_cpu::CpuBackend; use gradus_tensor::{Device, Error}; use std::sync::Arc;
/// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
/// use gradus_data::{CsvOptions, PreprocessOptions, Preprocessor, Table};
/// let read = |text: &[u8], name| Table::from_csv(text, name, &CsvOptions::default());
/// let train = read(b"mass,sex\n1,f\n3,m\n,f\n", "train.csv")?;
/// let preprocessor = Preprocessor::fit(&train, PreprocessOptions::default())?;
/// assert_eq!(preprocessor.feature_names(), ["mass", "sex=f", "sex=m"]);
/// let text = preprocessor.to_json()?; // for example in the metadata of a safetensors file
///
/// let again = Preprocessor::from_json(&text)?;
/// let x = again.transform(&read(b"mass,sex\n2,m\n", "new.csv")?, &device)?;
/// assert_eq!(x.to_vec::<f32>()?, [0.0, 0.0, 1.0]);
/// let e = again.transform(&read(b"mass,sex\n2,x\n", "new.csv")?, &device).unwrap_err();
/// assert!(e.to_string().contains("new.csv: line 2 (row 1), column \"sex\": the category \"x\""));
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Unchecked")]
pub struct Preprocessor {
    options: PreprocessOptions,
    columns: Vec<Fitted>,
}

/// A preprocessor as a file has it.
#[derive(Deserialize)]
struct Unchecked {
    options: PreprocessOptions,
    columns: Vec<Fitted>,
}

impl TryFrom<Unchecked> for Preprocessor {
    type Error = String;

    fn try_from(Unchecked { options, columns }: Unchecked) -> Result<Self, String> {
        for column in &columns {
            let name = column.name();
            match column {
                Fitted::Number { fill, shift, scale, .. } => {
                    if !(fill.is_none_or(f64::is_finite) && shift.is_finite() && scale.is_normal() && *scale > 0.0) {
                        return Err(format!("the numbers of column {name:?} are out of range"));
                    }
                }
                Fitted::Bool { categories, most_frequent, .. } | Fitted::Category { categories, most_frequent, .. } => {
                    if *most_frequent >= categories.len() || !categories.is_sorted_by(|a, b| a < b) {
                        return Err(format!("the categories of column {name:?} are not in order"));
                    }
                }
            }
        }
        Ok(Preprocessor { options, columns })
    }
}

impl Fitted {
    fn name(&self) -> &str {
        match self {
            Fitted::Number { name, .. } | Fitted::Bool { name, .. } | Fitted::Category { name, .. } => name,
        }
    }

    fn kind(&self) -> Kind {
        match self {
            Fitted::Number { .. } => Kind::Number,
            Fitted::Bool { .. } => Kind::Bool,
            Fitted::Category { .. } => Kind::Category,
        }
    }

    /// The categories, and the index of the most frequent one.
    fn categories(&self) -> Option<(&[String], usize)> {
        match self {
            Fitted::Number { .. } => None,
            Fitted::Bool { categories, most_frequent, .. } | Fitted::Category { categories, most_frequent, .. } => {
                Some((categories, *most_frequent))
            }
        }
    }

    #[track_caller]
    fn of(column: &Column, options: &PreprocessOptions) -> Result<Self> {
        let name = column.name().to_owned();
        if let Values::Number(values) = &column.values {
            return Self::number(column, values, options);
        }
        let categories = column.classes();
        if column.kind() == Kind::Text {
            let e = column.fails(format!("is text with {} different values, no category", categories.len()));
            return Err(e.help("leave it out with `without`, or read it as a category: CsvOptions::kinds"));
        }
        if categories.is_empty() {
            return Err(column.fails("has no value".into()).help("leave it out with `without`"));
        }
        let mut counts: Vec<usize> = categories.iter().map(|_| 0).collect();
        for row in 0..column.len() {
            if let Some(at) = column.text(row).and_then(|text| categories.binary_search(&text).ok()) {
                counts[at] += 1;
            }
        }
        let most_frequent = (0..counts.len()).rev().max_by_key(|&at| counts[at]).unwrap_or(0);
        Ok(match column.kind() {
            Kind::Bool => Fitted::Bool { name, categories, most_frequent },
            _ => Fitted::Category { name, categories, most_frequent },
        })
    }

    #[track_caller]
    fn number(column: &Column, values: &[f64], options: &PreprocessOptions) -> Result<Self> {
        if let Some(row) = values.iter().position(|v| v.is_infinite()) {
            return Err(column.fails_at(row, format!("the number is {}", values[row])).help("numbers are finite"));
        }
        let mut present = Vec::new();
        crate::memory::reserve(&mut present, values.len(), OP, &column.source.file)?;
        present.extend(values.iter().copied().filter(|v| !v.is_nan()));
        if present.is_empty() {
            return Err(column.fails("has no value".into()).help("leave it out with `without`"));
        }
        let mean = mean(&present);
        let fill = match options.impute {
            Impute::Mean => Some(mean),
            Impute::Median => {
                present.sort_by(f64::total_cmp);
                let half = present.len() / 2;
                let lower = if present.len() % 2 == 0 { present[half - 1] } else { present[half] };
                Some(lower / 2.0 + present[half] / 2.0)
            }
            Impute::Value(value) if value.is_finite() => Some(value),
            Impute::Value(value) => {
                let m = format!("missing numbers would become {value}");
                return Err(Error::argument(OP, m).help("give a finite value"));
            }
            Impute::Refuse => None,
        };
        let (mut shift, mut scale) = (0.0, 1.0);
        if options.standardize {
            present.extend(fill.iter().cycle().take(values.len() - present.len()));
            shift = self::mean(&present);
            let variance = present.iter().map(|v| (v - shift) * (v - shift)).sum::<f64>() / present.len() as f64;
            // For a constant column, the variance consists only of rounding errors of the mean.
            let constant = variance.sqrt() <= 10.0 * f64::EPSILON * shift.abs();
            scale = if constant { 1.0 } else { variance.sqrt() };
        }
        if !(shift.is_finite() && scale.is_finite()) {
            return Err(column.fails("has numbers whose squares overflow".into()).help("scale them down first"));
        }
        Ok(Fitted::Number { name: column.name().to_owned(), fill, shift, scale })
    }
}

fn mean(values: &[f64]) -> f64 {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    // The second sum removes the rounding error of the first.
    mean + values.iter().map(|v| v - mean).sum::<f64>() / n
}

impl Preprocessor {
    /// Learns from the columns of a training table. Split off the target first, with [`Table::split_target`].
    ///
    /// # Errors
    /// Fails if the table has no columns, or if a column holds texts, has no values, or contains an infinite number.
    #[track_caller]
    pub fn fit(table: &Table, options: PreprocessOptions) -> Result<Self> {
        if table.columns().is_empty() {
            return Err(Error::argument(OP, "the table has no columns").help("give at least one"));
        }
        let columns = table.columns().iter().map(|c| Fitted::of(c, &options)).collect::<Result<_>>().here()?;
        Ok(Preprocessor { options, columns })
    }

    /// The names and kinds of the columns. Pass them as [`kinds`](crate::CsvOptions::kinds) when reading a table that
    /// is too small for inferring them.
    pub fn kinds(&self) -> Vec<(String, Kind)> {
        self.columns.iter().map(|c| (c.name().to_owned(), c.kind())).collect()
    }

    /// The names of the features that [`transform`](Self::transform) returns: the name of a column of numbers, or
    /// `column=category`.
    pub fn feature_names(&self) -> Vec<String> {
        let names = |column: &Fitted| match column.categories() {
            Some((categories, _)) if self.options.one_hot => {
                categories.iter().map(|c| format!("{}={c}", column.name())).collect()
            }
            Some(_) => Vec::new(),
            None => vec![column.name().to_owned()],
        };
        self.columns.iter().flat_map(names).collect()
    }

    /// For every column of [`indices`](Self::indices), its name and the number of its indices, which is the size of an
    /// embedding: one for each category, and one more for unknown categories if the options allow them.
    pub fn cardinalities(&self) -> Vec<(String, usize)> {
        let PreprocessOptions { missing_category, unknown_category, .. } = self.options;
        let unknown =
            usize::from(unknown_category == UnknownCategory::None || missing_category == MissingCategory::Unknown);
        let sized = |c: &Fitted| c.categories().map(|(all, _)| (c.name().to_owned(), all.len() + unknown));
        self.columns.iter().filter_map(sized).collect()
    }

    /// The features of a table, f32 `[rows, features]`, in the order of [`feature_names`](Self::feature_names).
    ///
    /// # Errors
    /// Fails if the columns are not those of the training table (in any order); the error lists the differences. Also
    /// fails if a value is infinite, or is missing or unknown and the options refuse that; the error states the file,
    /// the line and the column.
    #[track_caller]
    pub fn transform(&self, table: &Table, device: &Device) -> Result<Tensor> {
        let columns = self.matched(table)?;
        let features = self.feature_names().len();
        let (backend, rows) = (device.backend(), table.len());
        let mut values = HostVec::filled(backend, OP, 0f32, rows.saturating_mul(features))?;
        let mut at = 0;
        for (fitted, column) in self.columns.iter().zip(columns) {
            match (fitted, &column.values) {
                (Fitted::Number { fill, shift, scale, .. }, Values::Number(numbers)) => {
                    for (row, &number) in numbers.iter().enumerate() {
                        let number = if number.is_nan() { fill.unwrap_or(number) } else { number };
                        let feature = ((number - shift) / scale) as f32;
                        if !feature.is_finite() {
                            return Err(not_finite(column, row, number));
                        }
                        values[row * features + at] = feature;
                    }
                    at += 1;
                }
                (fitted, _) if self.options.one_hot => {
                    let Some((categories, most_frequent)) = fitted.categories() else { continue };
                    self.places(column, categories, most_frequent, |row, place| {
                        if place < categories.len() {
                            values[row * features + at + place] = 1.0;
                        }
                    })?;
                    at += categories.len();
                }
                _ => {}
            }
        }
        Tensor::from_vec(values, [rows, features], device)
    }

    /// The categories of a table as indices, i64 `[rows, columns of categories]`, in the order of
    /// [`cardinalities`](Self::cardinalities). The errors are those of [`transform`](Self::transform).
    #[track_caller]
    pub fn indices(&self, table: &Table, device: &Device) -> Result<Tensor> {
        let columns = self.matched(table)?;
        let count = self.cardinalities().len();
        let mut values = HostVec::filled(device.backend(), OP, 0i64, table.len().saturating_mul(count))?;
        let with = self.columns.iter().zip(columns).filter_map(|(f, column)| Some((f.categories()?, column)));
        for (at, ((categories, most_frequent), column)) in with.enumerate() {
            let put = |row: usize, place: usize| values[row * count + at] = place as i64;
            self.places(column, categories, most_frequent, put)?;
        }
        Tensor::from_vec(values, [table.len(), count], device)
    }

    /// Calls `put` with each row and the index of its category; for an unknown category, the index is one above the
    /// last.
    #[track_caller]
    fn places(
        &self,
        column: &Column,
        categories: &[String],
        most_frequent: usize,
        mut put: impl FnMut(usize, usize),
    ) -> Result<()> {
        let find = |text: &str| categories.binary_search_by(|c| c.as_str().cmp(text)).ok();
        let known: Vec<Option<usize>> = match &column.values {
            Values::Category { names, .. } => names.iter().map(|name| find(name)).collect(),
            _ => Vec::new(),
        };
        for row in 0..column.len() {
            let (place, missing) = match &column.values {
                Values::Category { codes, .. } => {
                    let code = codes[row] as usize;
                    (known.get(code).copied().flatten(), code >= known.len())
                }
                _ => {
                    let text = column.text(row);
                    (text.as_deref().and_then(find), text.is_none())
                }
            };
            let place = match (place, missing) {
                (Some(place), _) => place,
                (None, true) if self.options.missing_category == MissingCategory::MostFrequent => most_frequent,
                (None, true) if self.options.missing_category == MissingCategory::Refuse => {
                    let e = column.fails_at(row, "the category is missing");
                    return Err(
                        e.help("give a value, or choose what it counts as: PreprocessOptions::missing_category")
                    );
                }
                (None, missing) if !missing && self.options.unknown_category == UnknownCategory::Refuse => {
                    let text = column.text(row).unwrap_or_default();
                    let some: Vec<String> = categories.iter().take(10).map(|c| format!("{c:?}")).collect();
                    let m = format!("the category {text:?} is none of the {} of training", categories.len());
                    return Err(column.fails_at(row, m).help(format!(
                        "training had {}; to allow others, train with PreprocessOptions::unknown_category, or with \
                         `gradus train tabular --unknown-category none`",
                        some.join(", ")
                    )));
                }
                (None, _) => categories.len(),
            };
            put(row, place);
        }
        Ok(())
    }

    /// The columns of a table in the order of training.
    #[track_caller]
    fn matched<'a>(&self, table: &'a Table) -> Result<Vec<&'a Column>> {
        let find = |name: &str| table.columns().iter().find(|c| c.name() == name);
        // A table with few rows may have categories that look like texts.
        let fits = |fitted: &Fitted, column: &Column| {
            fitted.kind() == column.kind() || (fitted.kind(), column.kind()) == (Kind::Category, Kind::Text)
        };
        let (mut columns, mut changed) = (Vec::with_capacity(self.columns.len()), Vec::new());
        for fitted in &self.columns {
            match find(fitted.name()) {
                Some(column) if fits(fitted, column) => columns.push(column),
                Some(column) => {
                    changed.push(format!("{:?} was {} and is {}", fitted.name(), fitted.kind(), column.kind()));
                }
                None => changed.push(format!("{:?} is gone", fitted.name())),
            }
        }
        let known = |c: &&Column| self.columns.iter().any(|f| f.name() == c.name());
        changed.extend(table.columns().iter().filter(|c| !known(c)).map(|c| format!("{:?} is new", c.name())));
        if changed.is_empty() {
            return Ok(columns);
        }
        changed.truncate(20);
        let m = format!("{}: the columns changed since training: {}", table.source.file, changed.join(", "));
        Err(Error::new(ErrorKind::Format, OP, m)
            .help("select the columns of training; read them as the kinds that `Preprocessor::kinds` gives"))
    }

    /// The preprocessor as JSON, for [`from_json`](Self::from_json).
    #[track_caller]
    pub fn to_json(&self) -> Result<String> {
        serde_json::to_string(self).map_err(|e| Error::new(ErrorKind::Format, OP, e.to_string())).here()
    }

    /// The preprocessor that [`to_json`](Self::to_json) wrote. Errors if the text is anything else.
    #[track_caller]
    pub fn from_json(text: &str) -> Result<Self> {
        let bad = |e: serde_json::Error| Error::new(ErrorKind::Format, OP, format!("this is no preprocessor: {e}"));
        serde_json::from_str(text).map_err(bad).here()
    }
}

#[track_caller]
fn not_finite(column: &Column, row: usize, number: f64) -> Error {
    if number.is_nan() {
        let e = column.fails_at(row, "the number is missing");
        return e.help("give a value, or choose what takes its place: PreprocessOptions::impute");
    }
    column.fails_at(row, format!("the number {number} gives a feature that is not finite in f32")).help("correct it")
}

impl fmt::Debug for Preprocessor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Preprocessor({} columns, {} features)", self.columns.len(), self.feature_names().len())
    }
}
