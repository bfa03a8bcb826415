//! Parquet and Arrow files against pandas (`reference/columnar.py` makes them), and files that are refused.
#![cfg(feature = "parquet")]
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use gradus_cpu::CpuBackend;
use gradus_data::{CsvOptions, Kind, PreprocessOptions, Preprocessor, Table};
use gradus_tensor::{Device, ErrorKind};
use serde_json::Value;

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference/columnar").join(name)
}

fn read(name: &str) -> Table {
    Table::read(file(name), &CsvOptions::default()).unwrap()
}

#[test]
fn columns_have_the_values_of_pandas() {
    let expected: Value = serde_json::from_str(include_str!("reference/columnar.json")).unwrap();
    let names = ["snappy.parquet", "gzip.parquet", "lz4.parquet", "plain.parquet", "lz4.feather", "plain.arrow"];
    for name in names {
        let table = read(name);
        assert_eq!((table.len(), table.columns().len()), (30, expected.as_object().unwrap().len()));
        for column in table.columns() {
            let want = expected[column.name()].as_array().unwrap();
            let kind = match column.name() {
                "bool" => Kind::Bool,
                "few" | "view" | "dictionary" => Kind::Category,
                "many" => Kind::Text,
                _ => Kind::Number,
            };
            assert_eq!(column.kind(), kind, "{name}: {}", column.name());
            for (row, want) in want.iter().enumerate() {
                let got = column.text(row);
                let same = match want {
                    Value::Null => got.is_none(),
                    Value::Number(_) => column.numbers().unwrap()[row] == want.as_f64().unwrap(),
                    Value::Bool(b) => got == Some(b.to_string()),
                    _ => got.as_deref() == want.as_str(),
                };
                assert!(same, "{name}, {}, row {row}: {got:?} is not {want}", column.name());
            }
        }
    }
}

#[test]
fn a_table_is_that_of_its_csv_file_and_becomes_the_same_features() {
    let device = Device::from_backend(Arc::new(CpuBackend::new().unwrap()));
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/penguins.csv");
    let csv = Table::read(path, &CsvOptions::default()).unwrap();
    let table = read("penguins.parquet");
    assert!(
        table.columns().iter().map(|c| (c.name(), c.kind())).eq(csv.columns().iter().map(|c| (c.name(), c.kind())))
    );
    let features = |table: &Table| {
        let (rest, species) = table.clone().split_target("species").unwrap();
        let x = Preprocessor::fit(&rest, PreprocessOptions::default()).unwrap().transform(&rest, &device).unwrap();
        (x.to_bytes().unwrap(), species.labels(&species.classes()).unwrap())
    };
    assert_eq!(features(&table), features(&csv));
}

#[test]
fn kinds_can_be_set_as_for_csv_files() {
    let kinds = |list: &[(&str, Kind)]| CsvOptions {
        kinds: list.iter().map(|&(name, kind)| (name.to_owned(), kind)).collect(),
        ..Default::default()
    };
    let path = file("plain.parquet");
    let wanted = kinds(&[("int8", Kind::Category), ("bool", Kind::Text), ("many", Kind::Category)]);
    let table = Table::read_parquet(&path, &wanted).unwrap();
    assert_eq!(table.column("int8").unwrap().classes().first().unwrap(), "-100");
    assert_eq!(table.column("bool").unwrap().text(0).as_deref(), Some("true"));
    assert_eq!(table.column("many").unwrap().kind(), Kind::Category);
    let error = Table::read_parquet(&path, &kinds(&[("few", Kind::Number)])).unwrap_err().to_string();
    assert!(error.contains("row 1 of the file, column \"few\"") && error.contains("\"cat\" is no number"), "{error}");
    let error = Table::read_arrow(file("plain.arrow"), &kinds(&[("x", Kind::Number)])).unwrap_err().to_string();
    assert!(error.contains("no column \"x\""), "{error}");
}

#[test]
fn what_a_table_does_not_hold_is_an_error_that_says_so() {
    for (name, texts) in [
        ("refused_list.parquet", &["column \"x\"", "List", "cast it"][..]),
        ("refused_twice.parquet", &["two columns have the name \"x\""]),
        ("refused_empty.parquet", &["there are no rows"]),
        ("refused_zstd.parquet", &["zstd"]),
        ("refused_stream.ipc", &["stream"]),
    ] {
        let error = Table::read(file(name), &CsvOptions::default()).unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Format, "{error}");
        let text = error.to_string();
        assert!(text.contains(name) && texts.iter().all(|t| text.contains(t)), "{text}");
    }
    // A column that is not asked for does no harm.
    let table = read("refused_date.parquet");
    assert_eq!(table.column("x").unwrap().numbers().unwrap(), [1.0, 2.0]);
    let error = table.split_target("when").unwrap_err().to_string();
    assert!(error.contains("column \"when\" has the type Timestamp"), "{error}");
    for name in ["absent.parquet", "absent.arrow"] {
        assert_eq!(*Table::read(file(name), &CsvOptions::default()).unwrap_err().kind(), ErrorKind::Io);
    }
    let dir = tempfile::tempdir().unwrap();
    for (name, bytes) in
        [("a.parquet", &b""[..]), ("b.parquet", b"x,y\n1,2\n"), ("a.arrow", b""), ("b.arrow", b"ARROW1")]
    {
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        let error = Table::read(&path, &CsvOptions::default()).unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Format, "{error}");
    }
}

/// Cut off anywhere, or with any byte changed, a file is read or an error, and no call panics.
#[test]
fn a_damaged_file_is_an_error_or_a_table() {
    let dir = tempfile::tempdir().unwrap();
    let mut refused = 0;
    for name in ["snappy.parquet", "gzip.parquet", "lz4.feather", "plain.arrow"] {
        let (whole, path) = (std::fs::read(file(name)).unwrap(), dir.path().join(name));
        for i in 0..400 {
            let mut bytes = whole.clone();
            let at = i * 7919 % bytes.len();
            if i % 4 == 0 {
                bytes.truncate(at);
            } else {
                bytes[at] ^= [1, 0x80, 0xff][i % 3];
            }
            std::fs::write(&path, &bytes).unwrap();
            refused += usize::from(Table::read(&path, &CsvOptions::default()).is_err());
        }
    }
    assert!(refused > 400, "{refused}");
}

/// The metadata of a Parquet file, with a schema of these numbers of children.
fn parquet_of(children: &[i32]) -> Vec<u8> {
    let number = |n: i32| {
        let mut n = (n << 1) ^ (n >> 31);
        let mut bytes = vec![];
        while n as u32 >= 0x80 {
            bytes.push(n as u8 | 0x80);
            n = (n as u32 >> 7) as i32;
        }
        bytes.push(n as u8);
        bytes
    };
    // The version, then a list of structs: names, and numbers of children.
    let mut footer = vec![0x15, 2, 0x19, 0xfc];
    let mut length = children.len();
    while length >= 0x80 {
        footer.push(length as u8 | 0x80);
        length >>= 7;
    }
    footer.push(length as u8);
    for &count in children {
        footer.extend([0x48, 1, b'a', 0x15]);
        footer.extend(number(count));
        footer.push(0);
    }
    footer.extend([0x16, 0, 0x19, 0x0c, 0]);
    let length = (footer.len() as u32).to_le_bytes();
    [b"PAR1", &footer[..], &length, b"PAR1"].concat()
}

/// What the crate `parquet` would overflow its stack or memory with.
#[test]
fn absurd_metadata_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.parquet");
    for (children, text) in [(vec![1; 100_000], "nested too deep"), (vec![i32::MAX], "more columns than the schema")] {
        std::fs::write(&path, parquet_of(&children)).unwrap();
        let error = Table::read(&path, &CsvOptions::default()).unwrap_err();
        assert!(*error.kind() == ErrorKind::Format && error.to_string().contains(text), "{error}");
    }
}

#[test]
fn texts_that_become_numbers_may_be_missing() {
    let options = CsvOptions { kinds: vec![("many".into(), Kind::Number)], ..Default::default() };
    let words = read("plain.parquet").column("many").unwrap().classes();
    let options = CsvOptions { missing: words, ..options };
    let table = Table::read_parquet(file("plain.parquet"), &options).unwrap();
    assert_eq!(table.column("many").unwrap().missing(), table.len());
}
