//! Reads tables from Parquet and Arrow files, by the crates of the Arrow project.

mod ipc;

use std::borrow::Cow;
use std::collections::HashMap;
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
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

use self::ipc::ArrowFile;
use crate::csv::Building;
use crate::memory::{read_file, reserve, reserve_exact, room};
use crate::table::{Column, Kind, Source, Table, Values};

/// The number of rows that are decoded at a time.
const ROWS: usize = 1 << 13;

const OP: &str = "table";

/// The groups of rows of a file.
type Batches<'a> = &'a mut dyn Iterator<Item = std::result::Result<RecordBatch, ArrowError>>;

impl Table {
    /// Reads a Parquet file. All integers, floats and decimals become numbers, booleans and texts what they are called
    /// or, by the rule of [`read_csv`](Table::read_csv), categories; dictionaries of texts become categories. Null and
    /// NaN are missing values. The index that pandas adds as `__index_level_0__` is left out.
    ///
    /// `kinds` are the kinds of columns that are to be others, by name: the values are then read as their texts would be
    /// in a CSV file.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if the file cannot be read. [`ErrorKind::Format`] if it is cut off, damaged or compressed with
    /// something else than Snappy, gzip or LZ4; if it has no rows or two columns of one name; if a column has another
    /// type, such as a date or a list; or if a value is not of the kind that `kinds` sets.
    #[track_caller]
    pub fn read_parquet(path: impl AsRef<Path>, kinds: &[(String, Kind)]) -> Result<Table> {
        let path = path.as_ref();
        let (bytes, name) = (read_file(path, OP, "a Parquet file")?, path.display().to_string());
        guarded(&name, "a Parquet file", || {
            let failed = |e| failed(&name, "Parquet", e);
            let reader = ParquetRecordBatchReaderBuilder::try_new(Bytes::from(bytes)).map_err(failed).here()?;
            let schema = reader.schema().clone();
            let mut reader = reader.with_batch_size(ROWS).build().map_err(failed).here()?;
            assembled(&name, "Parquet", &schema, &mut reader, kinds)
        })
        .here()
    }

    /// Reads an Arrow file, also called IPC file or Feather 2; see [`read_parquet`](Table::read_parquet). It may be
    /// compressed with LZ4.
    ///
    /// # Errors
    /// Those of [`read_parquet`](Table::read_parquet); a stream of Arrow messages, which has no footer, is one.
    #[track_caller]
    pub fn read_arrow(path: impl AsRef<Path>, kinds: &[(String, Kind)]) -> Result<Table> {
        let path = path.as_ref();
        let (bytes, name) = (read_file(path, OP, "an Arrow file")?, path.display().to_string());
        guarded(&name, "an Arrow file", || {
            let mut file = ArrowFile::new(bytes).map_err(|e| failed(&name, "Arrow", e)).here()?;
            let schema = file.schema.clone();
            assembled(&name, "Arrow", &schema, &mut file, kinds)
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
fn failed(name: &str, what: &str, e: impl Display) -> Error {
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
    /// Texts; `true` if they are categories however many there are.
    Texts(Building<'static>),
}

/// Puts the batches together as a table.
#[track_caller]
fn assembled(
    name: &str,
    what: &str,
    schema: &SchemaRef,
    batches: Batches<'_>,
    kinds: &[(String, Kind)],
) -> Result<Table> {
    let is_index = |name: &str| name.starts_with("__index_level_") && name.ends_with("__");
    // At most one entry for each column of the file.
    let kept: Vec<usize> = (0..schema.fields().len()).filter(|&i| !is_index(schema.field(i).name())).collect();
    let mut seen = HashMap::new();
    let mut columns = Vec::new();
    reserve_exact(&mut columns, kept.len(), OP, name)?;
    for &i in &kept {
        let field = schema.field(i);
        if seen.insert(field.name().as_str(), i).is_some() {
            let e = bad(name, format!("two columns have the name {:?}", field.name()));
            return Err(e.help("rename one of them"));
        }
        columns.push(begun(field.data_type()).ok_or_else(|| {
            let m =
                format!("column {:?} has the type {}, which a table does not hold", field.name(), field.data_type());
            bad(name, m).help("cast it to numbers, booleans or texts, or leave it out, where the file is written")
        })?);
    }
    if let Some((unknown, _)) = kinds.iter().find(|(name, _)| !seen.contains_key(name.as_str())) {
        let m = format!("{name}: there is no column {unknown:?}, for which a kind is given");
        return Err(Error::argument(OP, m).help("give kinds for columns that are in the file"));
    }
    let mut rows = 0usize;
    for batch in batches {
        let batch = batch.map_err(|e| failed(name, what, e)).here()?;
        rows += batch.num_rows();
        for (column, &i) in columns.iter_mut().zip(&kept) {
            let field = schema.field(i);
            let Some(array) = batch.columns().get(i) else {
                return Err(bad(name, format!("a group of rows lacks the column {:?}", field.name())));
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
    let source = Source { file: name.into(), lines: Arc::new(lines), has_lines: false };
    let mut made = Vec::new();
    reserve_exact(&mut made, columns.len(), OP, name)?;
    for (column, &i) in columns.into_iter().zip(&kept) {
        let values = match column {
            Read::Numbers(values) => Values::Number(values),
            Read::Bools(values) => Values::Bool(values),
            Read::Texts(building) => building.finish(name)?,
        };
        let column = Column { name: schema.field(i).name().clone(), values, source: source.clone() };
        let kind = kinds.iter().find(|(name, _)| *name == column.name).map(|&(_, kind)| kind);
        made.push(as_kind(column, kind).here()?);
    }
    Ok(Table { columns: made, source })
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
            // At most one for each entry of the dictionary.
            let mut entries: Vec<Option<String>> = Vec::new();
            texts(array.values().as_ref(), name, &mut |text| {
                room(&mut entries, OP, name)?;
                entries.push(text.map(str::to_owned));
                Ok(())
            })?;
            // A null key has any number, if there are no entries.
            let keys = if entries.is_empty() { Vec::new() } else { array.normalized_keys() };
            (0..array.len()).try_for_each(|i| {
                let at = if array.is_null(i) { None } else { keys.get(i) };
                each(at.and_then(|&at| entries.get(at)?.as_deref()))
            })
        }
        other => Err(bad(name, format!("a group of rows has the type {other}, not texts"))),
    }
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
fn as_kind(column: Column, kind: Option<Kind>) -> Result<Column> {
    let Some(kind) = kind.filter(|&kind| kind != column.kind()) else { return Ok(column) };
    let mut building = Building::new(kind, true);
    let file = column.source.file.clone();
    for row in 0..column.len() {
        building.make_room(&file)?;
        let text = column.text(row).map(Cow::Owned);
        if !building.push(text.as_ref()) {
            let shown: String = text.as_deref().unwrap_or_default().chars().take(40).collect();
            let e = column.fails_at(row, format!("{shown:?} is no {kind}"));
            return Err(e.help("correct the value, or leave the kind to the file"));
        }
    }
    Ok(Column { values: building.finish(&file)?, ..column })
}
