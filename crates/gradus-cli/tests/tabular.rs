//! `gradus train tabular` from end to end, with its predictions, and what it refuses.
#![allow(clippy::unwrap_used)]

mod support;

use std::fs;
use std::path::Path;

use gradus::prelude::*;
use support::{gradus, kill_after_a_state, last_json, snapshot, succeed, text};

/// A table whose class follows from its columns: numbers, a category, a boolean, and missing values in all of them.
fn animals(rows: usize) -> String {
    let mut text = String::from("name_of_farm,mass,legs,wild,born,kind\n");
    for row in 0..rows {
        let (kind, legs, base) = [("cat", 4, 4.0), ("wolf", 4, 40.0), ("hen", 2, 3.0)][row % 3];
        let mass = if row % 11 == 5 { String::new() } else { format!("{:.2}", base + (row % 7) as f64 * 0.1) };
        let wild = if row % 13 == 7 { "" } else { ["false", "true", "false"][row % 3] };
        let farm = if row % 17 == 3 { "NA" } else { ["\"north, upper\"", "south"][row / 3 % 2] };
        text += &format!("{farm},{mass},{legs},{wild},{},{kind}\n", 2000 + row % 5);
    }
    text
}

fn command(dir: &Path, line: &str) -> std::process::Command {
    let mut command = gradus();
    command.current_dir(dir).args(line.split(' '));
    command
}

#[test]
fn classes_are_learnt_and_predicted_from_the_model_file_alone() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("animals.csv"), animals(120)).unwrap();
    let out = succeed(&mut command(dir.path(), "train tabular animals.csv --target kind --epochs 30 --json"));
    assert!(out.contains("classes: 0 cat, 1 hen, 2 wolf") && out.contains("predict --model"), "{out}");
    let json = last_json(&out);
    assert_eq!((json["test_accuracy"].as_f64(), json["task"].as_str()), (Some(1.0), Some("tabular")));
    assert!(json["test_f1"].as_f64() == Some(1.0) && json["test_auc"].as_f64() == Some(1.0), "{json}");
    let run = dir.path().join("out/animals");
    let names: Vec<_> = snapshot(&run).into_keys().map(|p| p.file_name().unwrap().to_owned()).collect();
    assert_eq!(names, ["config.toml", "metrics.csv", "model.safetensors", "report.html"]);
    let page = fs::read_to_string(run.join("report.html")).unwrap();
    assert!(page.contains("kind from animals.csv") && page.contains("wolf") && page.contains("name_of_farm"));

    // Columns may be in another order, the target absent, and values missing.
    fs::copy(run.join("model.safetensors"), dir.path().join("m.safetensors")).unwrap();
    fs::create_dir(dir.path().join("new")).unwrap();
    let rows = "born,mass,wild,legs,name_of_farm\n2001,4.2,false,4,south\n2002,,true,4,NA\n2003,2.9,false,2,south\n";
    fs::write(dir.path().join("new/b.csv"), rows).unwrap();
    fs::write(dir.path().join("new/a.CSV"), animals(6)).unwrap();
    let out = succeed(&mut command(dir.path(), "predict --model m.safetensors new --out p.csv --json"));
    let json = last_json(&out);
    assert_eq!(json["predictions"].as_array().unwrap().len(), 9);
    assert_eq!(
        (json["predictions"][8]["name"].as_str(), json["predictions"][8]["row"].as_i64()),
        (Some("hen"), Some(3))
    );
    let written = Table::read_csv(dir.path().join("p.csv"), &CsvOptions::default()).unwrap();
    let names: Vec<&str> = written.columns().iter().map(|c| c.name()).collect();
    assert_eq!(names, ["file", "row", "prediction", "probability", "p_cat", "p_hen", "p_wolf"]);
    let predicted: Vec<String> = (0..9).map(|row| written.column("prediction").unwrap().text(row).unwrap()).collect();
    assert_eq!(predicted, ["cat", "wolf", "hen", "cat", "wolf", "hen", "cat", "wolf", "hen"]);
    // The file of an earlier call is no input of the next, and the folder of a run stands for its model.
    fs::copy(dir.path().join("p.csv"), dir.path().join("new/p.csv")).unwrap();
    succeed(&mut command(dir.path(), "predict --model out/animals new --out new/p.csv"));
    assert_eq!(fs::read(dir.path().join("p.csv")).unwrap(), fs::read(dir.path().join("new/p.csv")).unwrap());
    let out = succeed(&mut command(dir.path(), "evaluate --model out/animals animals.csv --json"));
    assert_eq!(last_json(&out)["accuracy"].as_f64(), Some(1.0));

    // Three lines of Rust do the same.
    let device = Device::cpu().unwrap();
    let model = gradus::tasks::load(dir.path().join("m.safetensors"), &device).unwrap();
    let answers = model.predict(&*dir.path().join("new/b.csv")).unwrap();
    assert!(answers[2].to_string().starts_with("hen  ("), "{}", answers[2]);
    let e = model.predict(&Image::new(1, 2, 2, vec![0.0; 4]).unwrap()).unwrap_err();
    assert!(e.to_string().contains("does not take a picture"), "{e}");
}

#[test]
fn numbers_are_learnt_by_both_networks_and_cross_validated() {
    let dir = tempfile::tempdir().unwrap();
    let mut text = String::from("x;y;sort;z\n");
    for i in 0..90 {
        let (x, y, sort) = (i % 10, (i * 7) % 9, i % 2);
        text += &format!("{x};{y};{};{}\n", ["low", "high"][sort], 100 + 3 * x + 5 * sort - 2 * y);
    }
    fs::write(dir.path().join("t.csv"), text).unwrap();
    for (model, epochs) in [("mlp", 40), ("ft-transformer", 25)] {
        let line =
            format!("train tabular t.csv --target z --delimiter ; --cv 3 --epochs {epochs} --json --model {model}");
        let json = last_json(&succeed(&mut command(dir.path(), &format!("{line} --lr 0.01 --out {model}"))));
        let r2 = json["cv_r2"].as_f64().unwrap();
        assert!(r2 > 0.9 && json["cv_mae_std"].as_f64().unwrap() >= 0.0, "{model}: {json}");
        fs::write(dir.path().join("new.csv"), "x;y;sort\n9;0;high\n").unwrap();
        let predict = format!("predict --model {model}/model.safetensors new.csv --json");
        let value = last_json(&succeed(&mut command(dir.path(), &predict)))["predictions"][0]["value"].as_f64();
        assert!((value.unwrap() - 132.0).abs() < 8.0, "{model}: {value:?}");
    }
    // A transformer of categories alone has no numbers to scale.
    let words: String =
        (0..60).map(|i| format!("{},{}\n", ["a", "b", "c"][i % 3], ["no", "yes", "yes"][i % 3])).collect();
    fs::write(dir.path().join("w.csv"), format!("word,answer\n{words}")).unwrap();
    let line = "train tabular w.csv --target answer --model ft-transformer --epochs 10 --json";
    let json = last_json(&succeed(&mut command(dir.path(), line)));
    assert_eq!(json["test_accuracy"].as_f64(), Some(1.0));
}

#[test]
fn the_config_of_a_run_repeats_it_to_the_bit() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a.csv"), animals(60)).unwrap();
    let line = "train tabular a.csv --target kind --drop born --drop legs --epochs 3 --lr 0.01 --seed 7 --out first";
    succeed(&mut command(dir.path(), line));
    succeed(&mut command(dir.path(), "train tabular --config first/config.toml --out second --threads 1"));
    let model = |run: &str| fs::read(dir.path().join(run).join("model.safetensors")).unwrap();
    assert_eq!(model("first"), model("second"));
    // The command line takes precedence, and what it does not give is still required.
    succeed(&mut command(dir.path(), "train tabular --config first/config.toml --out third --seed 8"));
    assert_ne!(model("first"), model("third"));
    let output = command(dir.path(), "train tabular --epochs 3").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output).1.contains("--target"), "{output:?}");
}

#[test]
fn trials_save_nothing() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a.csv"), animals(60)).unwrap();
    let before = snapshot(dir.path());
    let run = |option: &str| {
        let line = format!("train tabular a.csv --target kind --json {option}");
        let out = succeed(&mut command(dir.path(), &line));
        assert!(snapshot(dir.path()) == before, "{option} left files");
        last_json(&out)
    };
    assert!(run("--fast-dev-run")["test_accuracy"].is_number());
    assert_eq!(run("--overfit-batch")["learns"].as_bool(), Some(true));
    assert!(run("--find-lr")["suggested_lr"].as_f64().unwrap() > 1e-6);
}

#[cfg(unix)]
#[test]
fn a_run_that_is_killed_goes_on_to_the_same_bits_and_only_with_the_same_options() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a.csv"), animals(90)).unwrap();
    let line = |out: &str| format!("train tabular a.csv --target kind --batch-size 4 --epochs 80 --out {out}");
    succeed(&mut command(dir.path(), &line("whole")));
    let resume = format!("{} --resume", line("killed"));
    kill_after_a_state(&mut command(dir.path(), &resume), &dir.path().join("killed"));

    let refused = |line: &str, says: &[&str]| {
        let before = snapshot(&dir.path().join("killed"));
        let output = command(dir.path(), line).output().unwrap();
        let (_, err) = text(&output);
        assert_eq!(output.status.code(), Some(1), "{line}: {err}");
        assert!(says.iter().all(|word| err.contains(word)), "{line}: {err}");
        let after = snapshot(&dir.path().join("killed"));
        assert!(before.keys().all(|path| path.to_string_lossy().contains(".gradus-run") || after.contains_key(path)));
    };
    refused(&format!("{resume} --lr 0.5"), &["lr was 0.002 and is 0.5 now"]);
    refused(&format!("{resume} --seed 9"), &["seed was", "9"]);
    refused(&format!("{resume} --model ft-transformer"), &["model was"]);
    refused(&line("killed"), &["not empty", "--resume"]);
    // The same columns, rows and classes, with another number.
    fs::write(dir.path().join("a.csv"), animals(90).replacen(",4.10,", ",4.20,", 1)).unwrap();
    refused(&resume, &["fingerprint of the data was"]);
    fs::write(dir.path().join("a.csv"), animals(90)).unwrap();
    refused(&format!("{} --resume", line("whole")), &["not empty", "no state of an unfinished run"]);
    let output = command(dir.path(), &resume).output().unwrap();
    assert!(output.status.success() && text(&output).1.contains("going on from step"), "{output:?}");
    let model = |run: &str| fs::read(dir.path().join(run).join("model.safetensors")).unwrap();
    assert!(model("whole") == model("killed"), "other bits after a kill");
    assert!(!dir.path().join("killed/checkpoints").exists());
}

#[test]
fn tables_that_cannot_be_learnt_from() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &[u8]| fs::write(dir.path().join(name), text).unwrap();
    write("good.csv", animals(60).as_bytes());
    write("empty.csv", b"");
    write("header.csv", b"a,b\n");
    write("cut.csv", b"a,kind\n1,x\n2,y\n3\n");
    write("quote.csv", b"a,kind\n1,x\n\"2,y\n");
    write("latin.csv", b"a,kind\n1,caf\xe9\n2,y\n");
    write("utf16.csv", b"\xff\xfea\0,\0b\0");
    write("gzip.csv", b"\x1f\x8b\x08\x00");
    write("picture.csv", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR");
    write("twice.csv", b"a,a\n1,2\n");
    write("one-class.csv", b"a,kind\n1,x\n2,x\n3,x\n");
    write("no-target-value.csv", b"a,kind\n1,x\n2,\n3,y\n");
    write("all-missing.csv", b"a,kind\n1,\n2,\n");
    write(
        "texts.csv",
        (0..60).map(|i| format!("n{i},{}\n", i % 2)).fold("a,kind\n".to_owned(), |t, l| t + &l).as_bytes(),
    );
    write("hollow.csv", b"a,b,kind\n1,,x\n2,,y\n3,,x\n4,,y\n5,,x\n6,,y\n");
    write("alone.csv", b"kind\nx\ny\nx\ny\n");
    write("few.csv", b"a,kind\n1,x\n2,y\n");
    write("rare.csv", b"a,kind\n1,x\n2,y\n3,x\n4,x\n5,x\n6,x\n");
    write("infinite.csv", b"a,kind\n1,x\ninf,y\n3,x\n4,y\n5,x\n6,y\n7,x\n");
    write("huge.csv", b"a,kind\n1,1.5\n1,1e308\n1,-1e308\n2,1\n");
    let before = snapshot(dir.path());
    for (line, says) in [
        ("missing.csv --target kind", &["missing.csv"][..]),
        ("empty.csv --target kind", &["empty.csv", "no rows"]),
        ("header.csv --target b", &["header.csv", "no rows"]),
        ("cut.csv --target kind", &["cut.csv", "line 4"]),
        ("quote.csv --target kind", &["quote.csv", "line 3"]),
        ("latin.csv --target kind", &["latin.csv", "UTF-8", "line 2"]),
        ("utf16.csv --target kind", &["utf16.csv", "UTF-16"]),
        ("gzip.csv --target kind", &["gzip.csv", "gzip"]),
        ("picture.csv --target kind", &["picture.csv", "line 1"]),
        ("twice.csv --target a", &["twice.csv", "\"a\""]),
        ("good.csv --target sort", &["good.csv", "\"sort\"", "it has: name_of_farm, mass"]),
        ("good.csv --target kind --drop sort", &["\"sort\"", "it has"]),
        ("good.csv --target kind --drop kind", &["\"kind\"", "leave out"]),
        ("good.csv --target kind --goal regression", &["good.csv", "\"kind\"", "not numbers"]),
        ("one-class.csv --target kind --delimiter ;", &["one-class.csv", "\"kind\"", "it has: a,kind"]),
        ("good.csv --target kind --cv 30", &["good.csv", "\"cat\"", "20 rows for 30 folds"]),
        ("one-class.csv --target kind", &["one-class.csv", "\"kind\"", "only the value \"x\""]),
        ("no-target-value.csv --target kind", &["no-target-value.csv", "line 3 (row 2)", "\"kind\"", "missing"]),
        ("all-missing.csv --target kind", &["all-missing.csv", "\"kind\"", "no value"]),
        ("texts.csv --target kind", &["texts.csv", "texts", ": a", "--drop"]),
        ("texts.csv --target a", &["texts.csv", "\"a\"", "60 different values"]),
        ("hollow.csv --target kind", &["hollow.csv", "no value: b", "--drop"]),
        ("alone.csv --target kind", &["alone.csv", "no column beside"]),
        ("few.csv --target kind", &["few.csv", "2 rows are too few"]),
        ("rare.csv --target kind --cv 2", &["rare.csv", "\"y\"", "1 rows for 2 folds"]),
        ("infinite.csv --target kind", &["infinite.csv", "line 3 (row 2)", "\"a\"", "inf"]),
        ("huge.csv --target kind", &["huge.csv", "\"kind\"", "overflow"]),
        ("good.csv --target kind --resume", &["--resume", "--out"]),
        ("good.csv --target kind --config good.csv", &["good.csv: line 1"]),
        (". --target kind", &["."]),
    ] {
        let output = command(dir.path(), &format!("train tabular {line}")).output().unwrap();
        let (out, err) = text(&output);
        assert_eq!(output.status.code(), Some(1), "{line}: {out}{err}");
        assert!(err.starts_with("error: ") && !err.contains("panicked"), "{line}: {err}");
        for word in says {
            assert!(err.contains(word), "{line}: no `{word}` in\n{err}");
        }
        assert!(snapshot(dir.path()) == before, "{line} left files");
    }
    for (line, says) in [
        ("train tabular good.csv", "--target"),
        ("train tabular --target kind", "<FILE>"),
        ("train tabular good.csv --target kind --cv 1", "from 2 to 100"),
        ("train tabular good.csv --target kind --cv 3 --resume --out x", "--resume"),
        ("train tabular good.csv --target kind --force --resume --out x", "--resume"),
        ("train tabular good.csv --target kind --delimiter ab", "one ASCII character"),
        ("train tabular good.csv --target kind --model forest", "ft-transformer"),
    ] {
        let output = command(dir.path(), line).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{line}");
        assert!(text(&output).1.contains(says), "{line}: {output:?}");
    }
}

#[test]
fn tables_that_changed_since_the_training() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
    write("a.csv", &animals(60));
    succeed(&mut command(dir.path(), "train tabular a.csv --target kind --drop born --epochs 1 --out run"));
    let header = "name_of_farm,mass,legs,wild";
    write("gone.csv", "name_of_farm,mass,wild\nsouth,1,true\n");
    write("new.csv", &format!("{header},colour\nsouth,1,4,true,red\n"));
    write("renamed.csv", "name_of_farm,weight,legs,wild\nsouth,1,4,true\n");
    write("word.csv", &format!("{header}\nsouth,1,4,true\nsouth,heavy,4,true\n"));
    write("category.csv", &format!("{header}\nsouth,1,4,true\nwest,1,4,true\n"));
    write("bool.csv", &format!("{header}\nsouth,1,4,perhaps\n"));
    write("number.csv", &format!("{header}\n7,1,4,true\n"));
    write("class.csv", &format!("{header},kind\nsouth,1,4,true,cow\n"));
    write("no-class.csv", &format!("{header},kind\nsouth,1,4,true,\n"));
    write("binary.csv", "\u{0}\u{1}");
    fs::create_dir(dir.path().join("bare")).unwrap();
    let before = snapshot(dir.path());
    for (command_and_file, says) in [
        ("predict gone.csv", &["gone.csv", "\"legs\" is gone", "name_of_farm, mass, legs, wild"][..]),
        ("predict new.csv", &["new.csv", "\"colour\" is new"]),
        ("predict renamed.csv", &["renamed.csv", "\"mass\" is gone", "\"weight\" is new"]),
        ("predict word.csv", &["word.csv", "line 3", "\"mass\"", "\"heavy\""]),
        ("predict category.csv", &["category.csv", "line 3 (row 2)", "\"name_of_farm\"", "\"west\""]),
        ("predict bool.csv", &["bool.csv", "line 2", "\"wild\"", "\"perhaps\""]),
        ("predict number.csv", &["number.csv", "line 2", "\"name_of_farm\"", "\"7\""]),
        ("predict binary.csv", &["binary.csv"]),
        ("predict bare", &["bare", ".csv"]),
        ("predict absent.csv", &["absent.csv"]),
        ("predict --invert a.csv", &["--invert", "tabular"]),
        ("predict --out a.csv a.csv", &["a.csv is an input"]),
        ("predict --max-memory 1MiB a.csv", &["--max-memory", "tabular"]),
        ("predict --out bare a.csv", &["bare"]),
        ("predict --out none/p.csv a.csv", &["none/p.csv"]),
        ("predict --out p.csv a.csv gone.csv", &["gone.csv"]),
        ("evaluate gone.csv", &["gone.csv", "\"kind\""]),
        ("evaluate class.csv", &["class.csv", "line 2", "\"cow\""]),
        ("evaluate no-class.csv", &["no-class.csv", "line 2", "missing"]),
    ] {
        let line = format!("{command_and_file} --model run/model.safetensors");
        let output = command(dir.path(), &line).output().unwrap();
        let (out, err) = text(&output);
        assert_eq!(output.status.code(), Some(1), "{line}: {out}{err}");
        assert!(err.starts_with("error: ") && out.is_empty() && !err.contains("panicked"), "{line}: {out}{err}");
        for word in says {
            assert!(err.contains(word), "{line}: no `{word}` in\n{err}");
        }
        assert!(snapshot(dir.path()) == before, "{line} left files");
    }
}

#[test]
fn categories_that_training_did_not_have_are_refused_or_count_as_none_of_the_known() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
    // One farm has a single row, and the only value of the column `sparse`.
    let mut rows = String::new();
    for line in animals(60).lines() {
        rows += &format!("{line},{}\n", if rows.is_empty() { "sparse" } else { "" });
    }
    write("a.csv", &format!("{rows}far,4.1,4,false,2001,cat,7\n"));
    write("new.csv", "name_of_farm,mass,legs,wild,born,kind,sparse\nwest,40.2,4,true,2001,?,\n");
    let line = "train tabular a.csv --target kind --epochs 20";
    let output = command(dir.path(), &format!("{line} --cv 3 --out strict")).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(text(&output).1.contains("1 rows are tested in no fold"), "{output:?}");
    let output = command(dir.path(), "predict --model strict/model.safetensors new.csv").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let (_, err) = text(&output);
    assert!(err.contains("\"west\"") && err.contains("--unknown-category none"), "{err}");

    succeed(&mut command(dir.path(), &format!("{line} --unknown-category none --out free")));
    let config = fs::read_to_string(dir.path().join("free/config.toml")).unwrap();
    assert!(config.contains("unknown-category = \"none\"\n"), "{config}");
    // The target is to be predicted, so that its `?` is no class to look for.
    let json = last_json(&succeed(&mut command(dir.path(), "predict --model free/model.safetensors new.csv --json")));
    assert_eq!(json["predictions"][0]["name"].as_str(), Some("wolf"), "{json}");
    // Whatever the seed, no row to test has a value that training could not know.
    for seed in 0..6 {
        succeed(&mut command(dir.path(), &format!("{line} --fast-dev-run --seed {seed}")));
    }
    // Numbers are predicted whatever the target column holds, and evaluated only with numbers.
    let numbers: String = (0..40).map(|i| format!("{i},{}.5\n", 2 * i)).collect();
    write("n.csv", &format!("x,price\n{numbers}"));
    succeed(&mut command(dir.path(), "train tabular n.csv --target price --epochs 2 --out n"));
    write("asked.csv", "x,price\n3,?\n4,unknown\n");
    succeed(&mut command(dir.path(), "predict --model n/model.safetensors asked.csv"));
    let output = command(dir.path(), "evaluate --model n/model.safetensors asked.csv").output().unwrap();
    assert!(text(&output).1.contains("\"price\""), "{output:?}");
}

#[cfg(not(feature = "parquet"))]
#[test]
fn a_parquet_file_needs_a_build_that_reads_it() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("animals.parquet"), animals(12)).unwrap();
    let out = command(dir.path(), "train tabular animals.parquet --target kind").output().unwrap();
    let (_, error) = text(&out);
    assert!(error.contains("animals.parquet") && error.contains("the feature `parquet`"), "{error}");
    assert!(!dir.path().join("out").exists());
}

#[cfg(feature = "parquet")]
#[test]
fn a_parquet_file_trains_and_is_predicted_as_its_csv_file() {
    let dir = tempfile::tempdir().unwrap();
    let data = concat!(env!("CARGO_MANIFEST_DIR"), "/../gradus-data/tests");
    fs::copy(format!("{data}/reference/columnar/penguins.parquet"), dir.path().join("p.parquet")).unwrap();
    fs::copy(format!("{data}/data/penguins.csv"), dir.path().join("p.csv")).unwrap();
    let trained = |file: &str, out: &str| {
        let line = format!("train tabular {file} --target species --epochs 3 --out {out} --json");
        last_json(&succeed(&mut command(dir.path(), &line)))["test_accuracy"].as_f64().unwrap()
    };
    assert_eq!(trained("p.parquet", "a"), trained("p.csv", "b"));
    let predicted = |model: &str, file: &str| {
        let line = format!("predict --model {model} {file} --json");
        let json = last_json(&succeed(&mut command(dir.path(), &line)));
        let list = json["predictions"].as_array().unwrap().iter();
        list.map(|p| p["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(predicted("a", "p.parquet"), predicted("b", "p.csv"));
}
