//! Reads tables from Parquet and Arrow files, by the crates of the Arrow project.

mod footer;
mod ipc;

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{
    Decimal32Type, Decimal64Type, Decimal128Type, Decimal256Type, Float16Type, Float32Type, Float64Type, Int8Type,
    Int16Type, Int32Type, Int64Type, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{Array, RecordBatch};
use arrow_schema::{ArrowError, DataType, SchemaRef};
use bytes::Bytes;
use gradus_tensor::{Error, ErrorKind, Here, Result};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

use self::ipc::ArrowFile;
use crate::csv::{Building, CsvOptions, Missing};
use crate::memory::{read_file, reserve, reserve_exact};
use crate::table::{Column, Kind, Source, Table, Values};

/// The number of rows that are decoded at a time.
const ROWS: usize = 1 << 13;

const OP: &str = "table";

/// The most bytes of values, and the most values for each byte of the file. One of both may be exceeded, since equal
/// values take no space in a file.
const MOST_BYTES: usize = 1 << 30;
const MOST_PER_BYTE: usize = 1000;

/// The groups of rows of a file, each with the columns that are read.
type Batches<'a> = &'a mut dyn Iterator<Item = Result<RecordBatch>>;

impl Table {
    /// Reads a Parquet file. All integers, floats and decimals become numbers, booleans and texts what they are called
    /// or, by the rule of [`read_csv`](Table::read_csv), categories; dictionaries of texts become categories. Null and
    /// NaN are missing values. The index that pandas adds as `__index_level_0__` is left out.
    ///
    /// Columns of other types, such as dates and lists, are left out; asking for one is an error that names its type.
    ///
    /// Two of the options count: `kinds` are the kinds of columns that are to be others, by name, whose values are then
    /// read as their texts would be in a CSV file, and `missing` are the texts that mean a missing value in these.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if the file cannot be read. [`ErrorKind::Format`] if it is cut off, damaged or compressed with
    /// something else than Snappy, gzip or LZ4; if it has no rows or two columns of one name; if it has over a thousand
    /// times as many values as bytes, and they would take over 1 GiB; or if a value is not of the kind that `kinds` sets.
    #[track_caller]
    pub fn read_parquet(path: impl AsRef<Path>, options: &CsvOptions) -> Result<Table> {
        let path = path.as_ref();
        let (bytes, name) = (read_file(path, OP, "a Parquet file")?, path.display().to_string());
        guarded(&name, "a Parquet file", || {
            let failed = |e: &dyn Display| failed(&name, "Parquet", e);
            footer::check(&bytes).map_err(|e| failed(&e)).here()?;
            let length = bytes.len();
            let reader = ParquetRecordBatchReaderBuilder::try_new(Bytes::from(bytes)).map_err(|e| failed(&e)).here()?;
            let begun = Begun::new(&name, reader.schema(), options)?;
            let mask = ProjectionMask::roots(reader.parquet_schema(), begun.places.iter().copied());
            let reader = reader.with_projection(mask).with_batch_size(ROWS).build().map_err(|e| failed(&e)).here()?;
            begun.read(&mut reader.map(|batch| batch.map_err(|e| failed(&e))), length, options)
        })
        .here()
    }

    /// Reads an Arrow file, also called IPC file or Feather 2; see [`read_parquet`](Table::read_parquet). It may be
    /// compressed with LZ4.
    ///
    /// # Errors
    /// Those of [`read_parquet`](Table::read_parquet); a stream of Arrow messages, which has no footer, is one.
    #[track_caller]
    pub fn read_arrow(path: impl AsRef<Path>, options: &CsvOptions) -> Result<Table> {
        let path = path.as_ref();
        let (bytes, name) = (read_file(path, OP, "an Arrow file")?, path.display().to_string());
        guarded(&name, "an Arrow file", || {
            let failed = |e: ArrowError| failed(&name, "Arrow", &e);
            let length = bytes.len();
            let file = ArrowFile::new(bytes).map_err(failed).here()?;
            let begun = Begun::new(&name, &file.schema, options)?;
            let places = begun.places.clone();
            let mut batches = file.map(|batch| batch.and_then(|batch| batch.project(&places)).map_err(failed));
            begun.read(&mut batches, length, options)
        })
        .here()
    }
}

/// Runs a reader. The Arrow crates may panic on a damaged file, which becomes an error.
#[track_caller]
fn guarded(name: &str, what: &str, read: impl FnOnce() -> Result<Table>) -> Result<Table> {
    catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|_| {
        let e = Error::new(ErrorKind::Format, OP, format!("{name}: the file is damaged, or not {what}"));
        Err(e.help("is the file whole? Copy it again"))
    })
}

#[track_caller]
fn failed(name: &str, what: &str, e: &dyn Display) -> Error {
    let e = Error::new(ErrorKind::Format, OP, format!("{name}: {e}"));
    let what = if what == "Arrow" { "an Arrow" } else { "a Parquet" };
    e.help(format!("is it {what} file, and whole? zstd and brotli are not read: write it with Snappy or LZ4"))
}

#[track_caller]
fn bad(name: &str, what: String) -> Error {
    Error::new(ErrorKind::Format, OP, format!("{name}: {what}"))
}

/// A column while its file is read.
enum Read {
    Numbers(Vec<f64>),
    Bools(Vec<Option<bool>>),
    Texts(Building<'static>),
}

/// A table while its file is read.
struct Begun {
    /// The columns that are read, where they are in the file, and their names.
    columns: Vec<Read>,
    places: Vec<usize>,
    names: Vec<String>,
    /// The file, with the columns that tables do not hold. Its lines are found while it is read.
    source: Source,
}

impl Begun {
    #[track_caller]
    fn new(name: &str, schema: &SchemaRef, options: &CsvOptions) -> Result<Self> {
        let is_index = |name: &str| name.starts_with("__index_level_") && name.ends_with("__");
        // At most one entry of each list for each column of the file.
        let (mut columns, mut places, mut names, mut not_held) = (vec![], vec![], vec![], vec![]);
        let mut seen = HashSet::new();
        for (i, field) in schema.fields().iter().enumerate().filter(|(_, field)| !is_index(field.name())) {
            if !seen.insert(field.name().as_str()) {
                let e = bad(name, format!("two columns have the name {:?}", field.name()));
                return Err(e.help("rename one of them"));
            }
            match begun(field.data_type()) {
                Some(column) => {
                    columns.push(column);
                    places.push(i);
                    names.push(field.name().clone());
                }
                None => not_held.push((field.name().clone(), field.data_type().to_string())),
            }
        }
        let not_held = Arc::new(not_held);
        let source = Source { file: name.into(), lines: Arc::default(), has_lines: false, not_held };
        if let Some((wanted, _)) = options.kinds.iter().find(|(wanted, _)| !names.contains(wanted)) {
            if let Some((_, kind)) = source.not_held.iter().find(|(name, _)| name == wanted) {
                return Err(source.not_held(wanted, kind));
            }
            let m = format!("{name}: there is no column {wanted:?}, for which a kind is given");
            return Err(Error::argument(OP, m).help("give kinds for columns that are in the file"));
        }
        match &source.not_held[..] {
            [(column, kind), ..] if names.is_empty() => Err(source.not_held(column, kind)),
            _ => Ok(Begun { columns, places, names, source }),
        }
    }

    /// Puts the batches of a file of `length` bytes together as a table.
    #[track_caller]
    fn read(self, batches: Batches<'_>, length: usize, options: &CsvOptions) -> Result<Table> {
        let Begun { mut columns, names, source, .. } = self;
        let name = &*source.file;
        let most = (MOST_BYTES / size_of::<f64>()).max(length.saturating_mul(MOST_PER_BYTE));
        let mut rows = 0usize;
        for batch in batches {
            let batch = batch.here()?;
            rows = rows.saturating_add(batch.num_rows());
            if rows.saturating_mul(columns.len()) > most {
                let m = format!("over {rows} rows of {} columns in {length} bytes", columns.len());
                return Err(bad(name, m).help("is the file whole? If it is, write it in several files"));
            }
            for (i, column) in columns.iter_mut().enumerate() {
                let Some(array) = batch.columns().get(i) else {
                    return Err(bad(name, format!("a group of rows lacks the column {:?}", names[i])));
                };
                add(column, array.as_ref(), name).here()?;
            }
        }
        if rows == 0 {
            return Err(bad(name, "there are no rows".into()).help("give a file with rows"));
        }
        let mut lines = Vec::new();
        reserve_exact(&mut lines, rows, OP, name)?;
        lines.extend((1..=rows).map(|row| u32::try_from(row).unwrap_or(u32::MAX)));
        let source = Source { lines: Arc::new(lines), ..source.clone() };
        let missing = Missing::new(&options.missing);
        let mut made = Vec::new();
        reserve_exact(&mut made, columns.len(), OP, name)?;
        for (column, column_name) in columns.into_iter().zip(names) {
            let values = match column {
                Read::Numbers(values) => Values::Number(values),
                Read::Bools(values) => Values::Bool(values),
                Read::Texts(building) => building.finish(name)?,
            };
            let column = Column { name: column_name, values, source: source.clone() };
            let kind = options.kinds.iter().find(|(name, _)| *name == column.name).map(|&(_, kind)| kind);
            made.push(as_kind(column, kind, &missing).here()?);
        }
        Ok(Table { columns: made, source })
    }
}

/// An empty column for this type, if tables hold it.
fn begun(kind: &DataType) -> Option<Read> {
    use DataType::*;
    Some(match kind {
        Null | Int8 | Int16 | Int32 | Int64 | UInt8 | UInt16 | UInt32 | UInt64 | Float16 | Float32 | Float64 => {
            Read::Numbers(Vec::new())
        }
        Decimal32(..) | Decimal64(..) | Decimal128(..) | Decimal256(..) => Read::Numbers(Vec::new()),
        Boolean => Read::Bools(Vec::new()),
        Utf8 | LargeUtf8 | Utf8View => Read::Texts(Building::new(Kind::Category, false)),
        Dictionary(_, values) if matches!(**values, Utf8 | LargeUtf8 | Utf8View) => {
            Read::Texts(Building::new(Kind::Category, true))
        }
        _ => return None,
    })
}

/// Adds the values of an array to a column that was begun for its type.
#[track_caller]
fn add(column: &mut Read, array: &dyn Array, name: &str) -> Result<()> {
    use DataType::*;
    match column {
        Read::Numbers(values) => {
            reserve(values, array.len(), OP, name)?;
            macro_rules! numbers {
                ($type:ty, |$x:ident| $value:expr) => {
                    values.extend(array.as_primitive::<$type>().iter().map(|x| x.map_or(f64::NAN, |$x| $value)))
                };
            }
            // A decimal is rounded once, from its digits.
            macro_rules! decimals {
                ($type:ty) => {{
                    let array = array.as_primitive::<$type>();
                    let value = |i| array.value_as_string(i).parse().unwrap_or(f64::NAN);
                    values.extend((0..array.len()).map(|i| if array.is_null(i) { f64::NAN } else { value(i) }));
                }};
            }
            match array.data_type() {
                Int8 => numbers!(Int8Type, |x| f64::from(x)),
                Int16 => numbers!(Int16Type, |x| f64::from(x)),
                Int32 => numbers!(Int32Type, |x| f64::from(x)),
                Int64 => numbers!(Int64Type, |x| x as f64),
                UInt8 => numbers!(UInt8Type, |x| f64::from(x)),
                UInt16 => numbers!(UInt16Type, |x| f64::from(x)),
                UInt32 => numbers!(UInt32Type, |x| f64::from(x)),
                UInt64 => numbers!(UInt64Type, |x| x as f64),
                Float16 => numbers!(Float16Type, |x| x.to_f64()),
                Float32 => numbers!(Float32Type, |x| f64::from(x)),
                Float64 => numbers!(Float64Type, |x| x),
                Decimal32(..) => decimals!(Decimal32Type),
                Decimal64(..) => decimals!(Decimal64Type),
                Decimal128(..) => decimals!(Decimal128Type),
                Decimal256(..) => decimals!(Decimal256Type),
                Null => values.extend(std::iter::repeat_n(f64::NAN, array.len())),
                other => return Err(bad(name, format!("a group of rows has the type {other}, and not numbers"))),
            }
        }
        Read::Bools(values) => {
            let Some(array) = array.as_boolean_opt() else {
                return Err(bad(name, format!("a group of rows has the type {}, not booleans", array.data_type())));
            };
            reserve(values, array.len(), OP, name)?;
            values.extend(array.iter());
        }
        Read::Texts(building) => texts(array, name, &mut |text| push(building, text, name)).here()?,
    }
    Ok(())
}

/// Calls a function with each text of an array.
#[track_caller]
fn texts(array: &dyn Array, name: &str, each: &mut dyn FnMut(Option<&str>) -> Result<()>) -> Result<()> {
    match array.data_type() {
        DataType::Utf8 => array.as_string::<i32>().iter().try_for_each(each),
        DataType::LargeUtf8 => array.as_string::<i64>().iter().try_for_each(each),
        DataType::Utf8View => array.as_string_view().iter().try_for_each(each),
        DataType::Dictionary(..) => {
            let array = array.as_any_dictionary();
            let entries = array.values();
            // A null key has any number, if there are no entries.
            let keys = if entries.is_empty() { Vec::new() } else { array.normalized_keys() };
            (0..array.len()).try_for_each(|i| {
                let key = if array.is_null(i) { None } else { keys.get(i).copied() };
                each(key.filter(|&key| key < entries.len() && !entries.is_null(key)).and_then(|key| text(entries, key)))
            })
        }
        other => Err(bad(name, format!("a group of rows has the type {other}, not texts"))),
    }
}

/// The text at a place that is not null.
fn text(array: &dyn Array, at: usize) -> Option<&str> {
    Some(match array.data_type() {
        DataType::Utf8 => array.as_string::<i32>().value(at),
        DataType::LargeUtf8 => array.as_string::<i64>().value(at),
        DataType::Utf8View => array.as_string_view().value(at),
        _ => return None,
    })
}

/// Adds a text to a column. One with too many categories is continued as texts.
#[track_caller]
fn push(building: &mut Building<'static>, text: Option<&str>, name: &str) -> Result<()> {
    building.make_room(name)?;
    let text = text.map(|text| Cow::Owned(text.to_owned()));
    building.push_or_widen(text.as_ref(), name)
}

/// The column as another kind, as which its texts are read.
#[track_caller]
fn as_kind(column: Column, kind: Option<Kind>, missing: &Missing<'_>) -> Result<Column> {
    let Some(kind) = kind.filter(|&kind| kind != column.kind()) else { return Ok(column) };
    let mut building = Building::new(kind, true);
    let file = column.source.file.clone();
    for row in 0..column.len() {
        building.make_room(&file)?;
        let text = column.text(row).filter(|text| !missing.is(text)).map(Cow::Owned);
        if !building.push(text.as_ref()) {
            let shown: String = text.as_deref().unwrap_or_default().chars().take(40).collect();
            let e = column.fails_at(row, format!("{shown:?} is no {kind}"));
            return Err(e.help("correct the value, or leave the kind to the file"));
        }
    }
    Ok(Column { values: building.finish(&file)?, ..column })
}
