//! [`Table`]: columns of numbers, categories, booleans and texts, with missing values.

use std::fmt;

use gradus_tensor::backend::HostVec;
use gradus_tensor::{Device, Error, ErrorKind, Here, Result, Tensor};
use serde::{Deserialize, Serialize};

/// The kind of values in a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Numbers, as f64.
    Number,
    /// `true` and `false`, in lower, upper or title case.
    Bool,
    /// Texts that take few different values.
    Category,
    /// Texts.
    Text,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Number => "number",
            Kind::Bool => "bool",
            Kind::Category => "category",
            Kind::Text => "text",
        })
    }
}

/// The code of a missing category.
pub(crate) const NO_CODE: u32 = u32::MAX;

/// The values of a column.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Values {
    /// NaN is missing.
    Number(Vec<f64>),
    Bool(Vec<Option<bool>>),
    /// The index of each value in `names`; [`NO_CODE`] means missing.
    Category {
        codes: Vec<u32>,
        names: Vec<String>,
    },
    Text(Vec<Option<String>>),
}

/// A column of a [`Table`].
#[derive(Debug, Clone, PartialEq)]
pub struct Column {
    pub(crate) name: String,
    pub(crate) values: Values,
    /// The file, and the place of each row in it.
    pub(crate) source: Source,
}

/// Where rows come from, for errors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Source {
    pub(crate) file: std::sync::Arc<str>,
    /// The line on which each row begins, or its number in a file that has no lines.
    pub(crate) lines: std::sync::Arc<Vec<u32>>,
    /// Whether the file has lines.
    pub(crate) has_lines: bool,
    /// The columns of the file that a table does not hold, each with its type.
    pub(crate) not_held: std::sync::Arc<Vec<(String, String)>>,
}

impl Source {
    /// The place of a row for people.
    pub(crate) fn place(&self, row: usize) -> String {
        let line = self.lines.get(row).copied().unwrap_or(0);
        if self.has_lines { format!("line {line} (row {})", row + 1) } else { format!("row {line} of the file") }
    }

    /// The error for a column of the file that a table does not hold.
    #[track_caller]
    pub(crate) fn not_held(&self, column: &str, kind: &str) -> Error {
        let m = format!("{}: column {column:?} has the type {kind}, which a table does not hold", self.file);
        let e = Error::new(ErrorKind::Format, "table", m);
        e.help("cast it to numbers, booleans or texts where the file is written")
    }
}

impl Column {
    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The kind of values in the column.
    pub fn kind(&self) -> Kind {
        match &self.values {
            Values::Number(_) => Kind::Number,
            Values::Bool(_) => Kind::Bool,
            Values::Category { .. } => Kind::Category,
            Values::Text(_) => Kind::Text,
        }
    }

    /// The number of rows.
    pub fn len(&self) -> usize {
        self.source.lines.len()
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of missing values.
    pub fn missing(&self) -> usize {
        match &self.values {
            Values::Number(v) => v.iter().filter(|v| v.is_nan()).count(),
            Values::Bool(v) => v.iter().filter(|v| v.is_none()).count(),
            Values::Category { codes, .. } => codes.iter().filter(|&&c| c == NO_CODE).count(),
            Values::Text(v) => v.iter().filter(|v| v.is_none()).count(),
        }
    }

    /// The value of row `row` as text; `None` if it is missing or there is no such row.
    pub fn text(&self, row: usize) -> Option<String> {
        match &self.values {
            Values::Number(v) => v.get(row).filter(|v| !v.is_nan()).map(f64::to_string),
            Values::Bool(v) => (*v.get(row)?).map(|b| b.to_string()),
            Values::Category { codes, names } => names.get(*codes.get(row)? as usize).cloned(),
            Values::Text(v) => v.get(row)?.clone(),
        }
    }

    /// The numbers of the column; a missing one is NaN. Errors unless it is a column of numbers.
    #[track_caller]
    pub fn numbers(&self) -> Result<&[f64]> {
        match &self.values {
            Values::Number(values) => Ok(values),
            _ => Err(self.fails(format!("is {}, not number", self.kind()))),
        }
    }

    /// The distinct values as text, sorted, without missing ones. They are the classes of [`labels`](Self::labels).
    pub fn classes(&self) -> Vec<String> {
        if let Values::Number(values) = &self.values {
            let mut values: Vec<f64> = values.iter().copied().filter(|v| !v.is_nan()).collect();
            values.sort_by(f64::total_cmp);
            values.dedup();
            return values.iter().map(f64::to_string).collect();
        }
        let mut texts: Vec<String> = match &self.values {
            // After rows have been selected, some names may have no rows left.
            Values::Category { codes, names } => {
                let mut used: Vec<bool> = names.iter().map(|_| false).collect();
                codes.iter().filter(|&&c| c != NO_CODE).for_each(|&c| used[c as usize] = true);
                names.iter().zip(used).filter(|(_, used)| *used).map(|(name, _)| name.clone()).collect()
            }
            _ => (0..self.len()).filter_map(|row| self.text(row)).collect(),
        };
        texts.sort();
        texts.dedup();
        texts
    }

    /// The index of each value in `classes`, as labels for a classifier. Save the classes of the training file with the
    /// model, to encode other files with them.
    ///
    /// ```
    /// use gradus_data::{CsvOptions, Table};
    /// let table = Table::from_csv(b"size,kind\n3,wolf\n1,cat\n4,wolf\n", "pets.csv", &CsvOptions::default())?;
    /// let kind = table.column("kind")?;
    /// let classes = kind.classes();
    /// assert_eq!(classes, ["cat", "wolf"]);
    /// assert_eq!(kind.labels(&classes)?, [1, 0, 1]);
    /// # Ok::<(), gradus_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails if a value is missing or is not among the classes; the error states its file, line and column. Also fails
    /// if there are fewer than two classes.
    #[track_caller]
    pub fn labels(&self, classes: &[String]) -> Result<Vec<i64>> {
        if classes.len() < 2 {
            let only = classes.first().map_or("no value".to_owned(), |c| format!("only the value {c:?}"));
            return Err(self.fails(format!("has {only}")).help("a classifier needs at least two classes"));
        }
        let place = |text: &str| classes.iter().position(|c| c == text).map(|at| at as i64);
        let unknown = |row: usize, text: &str| {
            let known: Vec<String> = classes.iter().take(10).map(|c| format!("{c:?}")).collect();
            self.fails_at(row, format!("{text:?} is none of the {} classes", classes.len()))
                .help(format!("the classes are {}", known.join(", ")))
        };
        let missing = |row| self.fails_at(row, "the label is missing").help("leave out rows without a label");
        let mut labels = gradus_tensor::backend::host_vec::vec_of("labels", self.len())?;
        if let Values::Category { codes, names } = &self.values {
            let places: Vec<Option<i64>> = names.iter().map(|name| place(name)).collect();
            for (row, &code) in codes.iter().enumerate() {
                let name = names.get(code as usize).ok_or_else(|| missing(row)).here()?;
                labels.push(places[code as usize].ok_or_else(|| unknown(row, name)).here()?);
            }
            return Ok(labels);
        }
        for row in 0..self.len() {
            let text = self.text(row).ok_or_else(|| missing(row)).here()?;
            labels.push(place(&text).ok_or_else(|| unknown(row, &text)).here()?);
        }
        Ok(labels)
    }

    /// An error about the column that names the file and the column: `what` continues "column .. ".
    #[track_caller]
    pub fn fails(&self, what: String) -> Error {
        let m = format!("{}: column {:?} {what}", self.source.file, self.name);
        Error::new(ErrorKind::Format, "table", m)
    }

    /// An error about the value of row `row` that names the file, the line and the column.
    #[track_caller]
    pub fn fails_at(&self, row: usize, what: impl fmt::Display) -> Error {
        let m = format!("{}: {}, column {:?}: {what}", self.source.file, self.source.place(row), self.name);
        Error::new(ErrorKind::Format, "table", m)
    }

    /// The values at `rows`, which are in range.
    fn at(&self, rows: &[usize], source: &Source) -> Column {
        let values = match &self.values {
            Values::Number(v) => Values::Number(rows.iter().map(|&row| v[row]).collect()),
            Values::Bool(v) => Values::Bool(rows.iter().map(|&row| v[row]).collect()),
            Values::Category { codes, names } => {
                Values::Category { codes: rows.iter().map(|&row| codes[row]).collect(), names: names.clone() }
            }
            Values::Text(v) => Values::Text(rows.iter().map(|&row| v[row].clone()).collect()),
        };
        Column { name: self.name.clone(), values, source: source.clone() }
    }
}

/// Columns of equal length, each with a name and a [`Kind`], as in a CSV file.
///
/// ```
/// use gradus_data::{CsvOptions, Kind, Table};
/// let text = b"species,mass,sex\nAdelie,3750,male\n\"Chinstrap, or so\",,female\n";
/// let table = Table::from_csv(text, "penguins.csv", &CsvOptions::default())?;
/// assert_eq!((table.len(), table.columns().len()), (2, 3));
/// assert_eq!((table.column("mass")?.kind(), table.column("mass")?.missing()), (Kind::Number, 1));
/// let (features, species) = table.split_target("species")?;
/// assert_eq!(species.text(1).as_deref(), Some("Chinstrap, or so"));
/// assert_eq!(features.without(&["sex"])?.columns().len(), 1);
/// # Ok::<(), gradus_tensor::Error>(())
/// ```
#[derive(Clone, PartialEq)]
pub struct Table {
    pub(crate) columns: Vec<Column>,
    pub(crate) source: Source,
}

impl Table {
    /// The number of rows.
    pub fn len(&self) -> usize {
        self.source.lines.len()
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The name of the file that the table was read from.
    pub fn file(&self) -> &str {
        &self.source.file
    }

    /// The columns from left to right.
    pub fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// The column `name`. Errors if there is none.
    #[track_caller]
    pub fn column(&self, name: &str) -> Result<&Column> {
        self.columns.iter().find(|c| c.name == name).ok_or_else(|| self.lacks(name)).here()
    }

    #[track_caller]
    fn lacks(&self, name: &str) -> Error {
        if let Some((_, kind)) = self.source.not_held.iter().find(|(column, _)| column == name) {
            return self.source.not_held(name, kind);
        }
        let known: Vec<&str> = self.columns.iter().take(50).map(Column::name).collect();
        let m = format!("{} has no column {name:?}", self.source.file);
        Error::argument("table", m).help(format!("it has: {}", known.join(", ")))
    }

    /// A table of these columns, in this order. Errors if one does not exist.
    #[track_caller]
    pub fn select(&self, names: &[&str]) -> Result<Table> {
        let columns = names.iter().map(|name| self.column(name).cloned()).collect::<Result<_>>().here()?;
        Ok(Table { columns, source: self.source.clone() })
    }

    /// A table of all columns except `names`. Errors if one of these does not exist.
    #[track_caller]
    pub fn without(&self, names: &[&str]) -> Result<Table> {
        names.iter().try_for_each(|name| self.column(name).map(|_| ())).here()?;
        let columns = self.columns.iter().filter(|c| !names.contains(&c.name())).cloned().collect();
        Ok(Table { columns, source: self.source.clone() })
    }

    /// Splits off the column `name`, and returns the other columns and this one. Errors if it does not exist.
    #[track_caller]
    pub fn split_target(mut self, name: &str) -> Result<(Table, Column)> {
        let at = self.columns.iter().position(|c| c.name == name).ok_or_else(|| self.lacks(name)).here()?;
        let target = self.columns.remove(at);
        Ok((self, target))
    }

    /// A table of the rows at `indices`, in that order, for example those of a [split](crate::split). Errors if one is
    /// out of range.
    #[track_caller]
    pub fn rows(&self, indices: &[usize]) -> Result<Table> {
        indices.iter().try_for_each(|&row| crate::dataset::check_index("table", row, self.len())).here()?;
        let lines = indices.iter().map(|&row| self.source.lines[row]).collect();
        let source = Source { lines: std::sync::Arc::new(lines), ..self.source.clone() };
        Ok(Table { columns: self.columns.iter().map(|c| c.at(indices, &source)).collect(), source })
    }

    /// The values of a table of numbers, f32 `[rows, columns]`. For other kinds, and to fill in missing values, use a
    /// [`Preprocessor`](crate::Preprocessor).
    ///
    /// # Errors
    /// Fails if a column does not hold numbers, or if a value is missing; the error states the file, the line and the
    /// column.
    #[track_caller]
    pub fn to_tensor(&self, device: &Device) -> Result<Tensor> {
        let columns = self.columns.iter().map(Column::numbers).collect::<Result<Vec<_>>>().here()?;
        for (column, values) in self.columns.iter().zip(&columns) {
            if let Some(row) = values.iter().position(|v| v.is_nan()) {
                let e = column.fails_at(row, "the value is missing");
                return Err(e.help("fill it in with a Preprocessor, or leave the row out"));
            }
        }
        let count = self.len().saturating_mul(columns.len());
        let mut values = HostVec::with_capacity(device.backend(), "table", count)?;
        for row in 0..self.len() {
            values.extend("table", columns.iter().map(|column| column[row] as f32))?;
        }
        Tensor::from_vec(values, [self.len(), columns.len()], device)
    }
}

/// The columns with their kinds and numbers of missing values.
impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {} rows", self.source.file, self.len())?;
        self.columns.iter().try_for_each(|c| writeln!(f, "  {:?}: {}, {} missing", c.name, c.kind(), c.missing()))
    }
}
