//! [`Table::read`]: a table from a file of a kind that its name tells.

use std::path::Path;

use gradus_tensor::{Here, Result};

use crate::csv::CsvOptions;
use crate::table::Table;

impl Table {
    /// Reads a table from a Parquet file (`.parquet`, `.pq`), an Arrow file (`.arrow`, `.feather`, `.ipc`) or, with any
    /// other name, a CSV file. The options say how to read CSV files; `kinds` and `missing` count for all.
    ///
    /// # Errors
    /// The errors of [`read_csv`](Table::read_csv) and, in a build with the feature `parquet`, `read_parquet` and
    /// `read_arrow`. In a build without it, a file with such a name is an error of the kind
    /// [`Unsupported`](gradus_tensor::ErrorKind::Unsupported).
    #[track_caller]
    pub fn read(path: impl AsRef<Path>, options: &CsvOptions) -> Result<Table> {
        let path = path.as_ref();
        let extension = path.extension().map(|e| e.to_string_lossy().to_ascii_lowercase());
        match extension.as_deref() {
            Some("parquet" | "pq") => parquet(path, options).here(),
            Some("arrow" | "feather" | "ipc") => arrow(path, options).here(),
            _ => Table::read_csv(path, options),
        }
    }
}

#[cfg(feature = "parquet")]
fn parquet(path: &Path, options: &CsvOptions) -> Result<Table> {
    Table::read_parquet(path, options)
}

#[cfg(feature = "parquet")]
fn arrow(path: &Path, options: &CsvOptions) -> Result<Table> {
    Table::read_arrow(path, options)
}

#[cfg(not(feature = "parquet"))]
use without as arrow;
#[cfg(not(feature = "parquet"))]
use without as parquet;

#[cfg(not(feature = "parquet"))]
#[track_caller]
fn without(path: &Path, _options: &CsvOptions) -> Result<Table> {
    let m = format!("{} is no CSV file by its name, and this build reads only these", path.display());
    let e = gradus_tensor::Error::new(gradus_tensor::ErrorKind::Unsupported, "table", m);
    Err(e.help("build with the feature `parquet` (cargo build --features parquet), or write the table as CSV"))
}
