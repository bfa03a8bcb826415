//! Tables against pandas and scikit-learn (`reference/tables.py` makes the file), and tables that are broken.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use gradus_cpu::CpuBackend;
use gradus_data::{CsvOptions, Impute, Kind, MissingCategory, PreprocessOptions, Preprocessor, Table, UnknownCategory};
use gradus_tensor::{Device, ErrorKind};
use serde_json::Value;

fn device() -> Device {
    Device::from_backend(Arc::new(CpuBackend::new().unwrap()))
}

fn parse(text: &str) -> Table {
    Table::from_csv(text.as_bytes(), "t.csv", &CsvOptions::default()).unwrap()
}

fn penguins() -> Table {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/penguins.csv");
    Table::read_csv(path, &CsvOptions::default()).unwrap()
}

fn reference() -> Value {
    serde_json::from_str(include_str!("reference/tables.json")).unwrap()
}

#[test]
fn penguins_have_the_kinds_and_missing_values_of_pandas() {
    let table = penguins();
    assert_eq!(table.len(), 344);
    let missing: Vec<(String, Kind, usize)> =
        table.columns().iter().map(|c| (c.name().to_owned(), c.kind(), c.missing())).collect();
    let expected = reference()["missing"].clone();
    for (name, kind, missing) in missing {
        assert_eq!(expected[&name], missing, "{name}");
        let texts = ["species", "island", "sex"].contains(&&*name);
        assert_eq!(kind, if texts { Kind::Category } else { Kind::Number }, "{name}");
    }
    let (_, species) = table.split_target("species").unwrap();
    let labels = species.labels(&species.classes()).unwrap();
    let expected: Vec<i64> = serde_json::from_value(reference()["labels"].clone()).unwrap();
    assert!(labels.into_iter().step_by(8).eq(expected));
}

#[test]
fn features_are_those_of_scikit_learn() {
    let d = device();
    let table = penguins().without(&["species"]).unwrap();
    let part = |from: usize| table.rows(&(from..344).step_by(2).collect::<Vec<_>>()).unwrap();
    let (train, test) = (part(0), part(1));
    let check = |name: &str, options: PreprocessOptions| {
        let p = Preprocessor::fit(&train, options).unwrap();
        let p = Preprocessor::from_json(&p.to_json().unwrap()).unwrap();
        let x = p.transform(&test, &d).unwrap();
        let names = p.feature_names();
        // The reference has the numbers first.
        let order: Vec<usize> = (0..names.len()).filter(|&i| !names[i].contains('=')).collect();
        let order = [order.clone(), (0..names.len()).filter(|i| !order.contains(i)).collect()].concat();
        let x: Vec<f32> = x.to_vec().unwrap();
        let indices: Vec<i64> = p.indices(&test, &d).unwrap().to_vec().unwrap();
        let expected: Vec<Vec<f64>> = serde_json::from_value(reference()[name].clone()).unwrap();
        for (i, expected) in expected.iter().enumerate() {
            let row = i * 8;
            let mut found: Vec<f32> = order.iter().map(|&c| x[row * names.len() + c]).collect();
            if !options.one_hot {
                found.extend(indices[2 * row..2 * row + 2].iter().map(|&i| i as f32));
            }
            assert_eq!(found.len(), expected.len());
            for (a, b) in found.iter().zip(expected) {
                assert!((f64::from(*a) - b).abs() <= 2e-7 * b.abs(), "{name}, row {row}: {a} for {b}");
            }
        }
    };
    let unknown_category = UnknownCategory::None;
    check("mean_scaled", PreprocessOptions { unknown_category, ..Default::default() });
    let (impute, standardize) = (Impute::Median, false);
    check("median_plain", PreprocessOptions { impute, standardize, ..Default::default() });
    check("ordinal", PreprocessOptions { one_hot: false, ..Default::default() });
}

#[test]
fn quotes_line_ends_and_kinds_are_read() {
    let text = "\u{feff}id,\"a \"\"b\"\"\",flag,code,empty\r\n1,\"x,\r\ny\",TRUE,007,\r\n\r\n2,\"\",false,1e3,NA\r\n-3,\"z\",NA,-inf,null";
    let table = parse(text);
    let kinds: Vec<Kind> = table.columns().iter().map(|c| c.kind()).collect();
    assert_eq!(kinds, [Kind::Number, Kind::Category, Kind::Bool, Kind::Number, Kind::Number]);
    let texts = |name: &str| (0..3).map(|row| table.column(name).unwrap().text(row)).collect::<Vec<_>>();
    let some = |text: &str| Some(text.to_owned());
    assert_eq!(texts("id"), [some("1"), some("2"), some("-3")]);
    assert_eq!(texts("a \"b\""), [some("x,\r\ny"), None, some("z")]);
    assert_eq!(texts("flag"), [some("true"), some("false"), None]);
    assert_eq!(texts("code"), [some("7"), some("1000"), some("-inf")]);
    assert_eq!(texts("empty"), [None, None, None]);
    let options = CsvOptions {
        delimiter: b';',
        header: false,
        missing: vec!["-".into()],
        kinds: vec![("column_1".into(), Kind::Text), ("column_2".into(), Kind::Category)],
    };
    let table = Table::from_csv(b"1;2;-\n-;3;4\n", "t.csv", &options).unwrap();
    assert_eq!(
        format!("{table:?}"),
        "t.csv: 2 rows\n  \"column_1\": text, 1 missing\n  \"column_2\": category, 0 missing\n  \"column_3\": number, 1 missing\n"
    );
}

#[test]
fn a_kind_that_holds_for_the_first_rows_only_is_given_up() {
    for (early, late, kind) in [("1", "x", Kind::Category), ("true", "1", Kind::Category), ("NA", "true", Kind::Bool)] {
        let table = parse(&format!("a\n{}{late}\n", format!("{early}\n").repeat(500)));
        let column = table.column("a").unwrap();
        assert_eq!((column.kind(), column.len()), (kind, 501));
        assert_eq!(column.text(500).unwrap(), late);
        assert_eq!(column.text(3), Some(early.to_owned()).filter(|t| t != "NA"));
    }
    let text: String = (0..40_000).map(|i| format!("name {i}\n")).collect();
    let table = parse(&format!("a\n{text}"));
    let column = table.column("a").unwrap();
    assert_eq!((column.kind(), column.text(39_999).unwrap()), (Kind::Text, "name 39999".to_owned()));
    let small: String = (0..30).map(|i| format!("name {i}\n")).collect();
    assert_eq!(parse(&format!("a\n{small}")).column("a").unwrap().kind(), Kind::Text);
    assert_eq!(parse(&format!("a\n{small}{small}")).column("a").unwrap().kind(), Kind::Category);
}

#[test]
fn broken_files_say_where() {
    let wide = ",".repeat(1 << 16);
    for (text, want) in [
        (&b""[..], "t.csv: there are no rows"),
        (b"\n\r\n", "t.csv: there are no rows"),
        (b"a,b\n", "t.csv: there are names of columns and no rows"),
        (b"a,b\n1,2\n3\n", "t.csv: line 3 has 1 values; the first row has 2"),
        (b"a,b\n\n1,2,3,4\n", "t.csv: line 3 has 4 values; the first row has 2"),
        (b"a,b\n1,\"2\n3\n4,5\n", "t.csv: line 2: the file ends before a quote that opens there is closed"),
        (b"a,b\n1,\"2\n\"x\n", "t.csv: line 3: text follows a closing quote"),
        (b"a,a\n1,2\n", "t.csv: line 1: two columns have the name \"a\""),
        (b"a,b\n1,caf\xe9\n", "t.csv is not UTF-8: byte 9, on line 2, is 0xe9"),
        (b"\xef\xbb\xbfa,b\n1,\xff\n", "t.csv is not UTF-8: byte 9, on line 2, is 0xff"),
        (b"\xff\xfea\0", "t.csv is UTF-16"),
        (b"a\0,\0b\0", "t.csv is not text: byte 1, on line 1, is 0x00"),
        (b"\x89PNG\r\n\x1a\n", "t.csv is not UTF-8: byte 0, on line 1, is 0x89"),
        (b"\x1f\x8b\x08", "t.csv is compressed with gzip"),
        (wide.as_bytes(), "t.csv: line 1 has more than 65536 columns"),
    ] {
        let e = Table::from_csv(text, "t.csv", &CsvOptions::default()).unwrap_err();
        assert!(e.to_string().contains(want), "{want}: {e}");
        assert_eq!(e.kind(), &ErrorKind::Format);
    }
    let fixed = |kind| CsvOptions { kinds: vec![("b".into(), kind)], ..Default::default() };
    for (kind, want) in [(Kind::Number, "\"x\" is no number"), (Kind::Bool, "\"x\" is no bool")] {
        let e = Table::from_csv(b"a,b\n1,\n2,\"x\"\n", "t.csv", &fixed(kind)).unwrap_err().to_string();
        assert!(e.contains(&format!("t.csv: line 3, column \"b\": {want}")), "{e}");
    }
    assert!(
        Table::from_csv(b"a\n1\n", "t.csv", &fixed(Kind::Bool)).unwrap_err().to_string().contains("no column \"b\"")
    );
    let quote = CsvOptions { delimiter: b'"', ..Default::default() };
    assert!(Table::from_csv(b"a\n1\n", "t.csv", &quote).unwrap_err().to_string().contains("delimiter"));
}

#[cfg(unix)]
#[test]
fn a_pipe_is_refused_and_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("pipe.csv");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let error = |path: &std::path::Path| Table::read_csv(path, &CsvOptions::default()).unwrap_err().to_string();
    assert!(error(&pipe).contains("pipe.csv is not a regular file"));
    assert!(error(dir.path()).contains("a folder"));
    assert!(error(&dir.path().join("none.csv")).contains("none.csv"));
}

#[test]
fn selections_keep_the_lines_of_their_rows() {
    let d = device();
    let table = parse("a,b\n1,2\n3,\n5,6\n");
    assert_eq!(table.rows(&[2, 0]).unwrap().to_tensor(&d).unwrap().to_vec::<f32>().unwrap(), [5.0, 6.0, 1.0, 2.0]);
    let e = table.rows(&[2, 1]).unwrap().to_tensor(&d).unwrap_err().to_string();
    assert!(e.contains("t.csv: line 3 (row 2), column \"b\": the value is missing"), "{e}");
    assert!(table.rows(&[3]).is_err());
    assert_eq!(table.select(&["b", "a"]).unwrap().columns()[0].name(), "b");
    let e = table.select(&["c"]).unwrap_err().to_string();
    assert!(e.contains("t.csv has no column \"c\"") && e.contains("it has: a, b"), "{e}");
    assert!(table.without(&["c"]).is_err() && table.clone().split_target("c").is_err());
}

#[test]
fn labels_need_two_classes_and_no_gaps() {
    let table = parse("one,gap,n\nx,p,2\nx,,10\nx,q,2\n");
    let error = |name: &str| {
        let column = table.column(name).unwrap();
        column.labels(&column.classes()).unwrap_err().to_string()
    };
    assert!(error("one").contains("t.csv: column \"one\" has only the value \"x\""));
    assert!(error("gap").contains("t.csv: line 3 (row 2), column \"gap\": the label is missing"));
    let numbers = table.column("n").unwrap();
    assert_eq!(numbers.classes(), ["2", "10"]);
    assert_eq!(numbers.labels(&numbers.classes()).unwrap(), [0, 1, 0]);
    let e = numbers.labels(&["2".into(), "3".into()]).unwrap_err().to_string();
    assert!(e.contains("line 3 (row 2), column \"n\": \"10\" is none of the 2 classes"), "{e}");
}

#[test]
fn a_table_that_changed_since_training_is_an_error() {
    let d = device();
    let train = parse("a,b,c\n1,x,true\n3,y,false\n,x,\n");
    let fit = |options| Preprocessor::fit(&train, options).unwrap();
    let p = fit(PreprocessOptions::default());
    let error = |text: &str| p.transform(&parse(text), &d).unwrap_err().to_string();
    let e = error("a,b,d\nz,x,1\n");
    assert!(e.contains("\"a\" was number and is category, \"c\" is gone, \"d\" is new"), "{e}");
    assert!(error("a,b,c\n1,z,true\n").contains("line 2 (row 1), column \"b\": the category \"z\" is none of the 2"));
    assert!(error("a,b,c\ninf,x,true\n").contains("line 2 (row 1), column \"a\": the number inf"));
    // The order of the columns does not matter. A missing number is 2, the mean, and a missing category is `x`.
    let x = p.transform(&parse("c,b,a\ntrue,,NA\nfalse,y,2\n"), &d).unwrap();
    assert_eq!(p.feature_names(), ["a", "b=x", "b=y", "c=false", "c=true"]);
    assert_eq!(x.to_vec::<f32>().unwrap(), [0.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 1.0, 1.0, 0.0]);
}

#[test]
fn unknown_and_missing_categories_are_as_told() {
    let d = device();
    let train = parse("b\nx\ny\ny\n");
    let test = parse("b\ny\nz\nNA\n");
    let (missing_category, unknown_category) = (MissingCategory::Unknown, UnknownCategory::None);
    let p = Preprocessor::fit(&train, PreprocessOptions { missing_category, unknown_category, ..Default::default() });
    let p = p.unwrap();
    assert_eq!(p.transform(&test, &d).unwrap().to_vec::<f32>().unwrap(), [0.0, 1.0, 0.0, 0.0, 0.0, 0.0]);
    assert_eq!(p.indices(&test, &d).unwrap().to_vec::<i64>().unwrap(), [1, 2, 2]);
    assert_eq!(p.cardinalities(), [("b".to_owned(), 3)]);
    let refuse =
        |o: PreprocessOptions| Preprocessor::fit(&train, o).unwrap().indices(&test, &d).unwrap_err().to_string();
    let missing_category = MissingCategory::Refuse;
    let e = refuse(PreprocessOptions { missing_category, unknown_category, ..Default::default() });
    assert!(e.contains("line 4 (row 3), column \"b\": the category is missing"), "{e}");
    let numbers = parse("a\n1\n\n2\n").rows(&[0, 1]).unwrap();
    let impute = Impute::Refuse;
    let p = Preprocessor::fit(&numbers, PreprocessOptions { impute, ..Default::default() }).unwrap();
    let e = p.transform(&parse("a\n1\nNA\n"), &d).unwrap_err().to_string();
    assert!(e.contains("line 3 (row 2), column \"a\": the number is missing"), "{e}");
    // A constant column is only centred.
    let p = Preprocessor::fit(&parse("a\n0.1\n0.1\n0.1\n"), PreprocessOptions::default()).unwrap();
    assert_eq!(p.transform(&parse("a\n0.1\n1.1\n"), &d).unwrap().to_vec::<f32>().unwrap(), [0.0, 1.0]);
}

#[test]
fn what_cannot_be_learned_from_is_an_error() {
    let fit = |text: &str| Preprocessor::fit(&parse(text), PreprocessOptions::default()).unwrap_err().to_string();
    let names: String = (0..30).map(|i| format!("1,name {i}\n")).collect();
    assert!(fit(&format!("n,text\n{names}")).contains("column \"text\" is text with 30 different values"));
    assert!(fit("a,b\n1,\n2,\n").contains("column \"b\" has no value"));
    assert!(fit("a\n1e999\n2\n").contains("line 2 (row 1), column \"a\": the number is inf"));
    assert!(fit("a\n1e308\n-1e308\n").contains("column \"a\" has numbers whose squares overflow"));
    for text in ["", "{}", "[1]", "{\"options\":{}}"] {
        assert!(Preprocessor::from_json(text).unwrap_err().to_string().contains("this is no preprocessor"), "{text}");
    }
    let p = Preprocessor::fit(&parse("a,b\n1,x\n2,y\n"), PreprocessOptions::default()).unwrap();
    for (good, bad) in [("\"scale\":0.5", "\"scale\":0.0"), ("[\"x\",\"y\"]", "[\"y\",\"x\"]"), ("[\"x\",\"y\"]", "[]")]
    {
        let text = p.to_json().unwrap();
        assert!(text.contains(good), "{text}");
        assert!(Preprocessor::from_json(&text.replace(good, bad)).is_err());
    }
}
