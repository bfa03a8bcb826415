//! `gradus predict`: predicts what is in pictures and tables.

use std::borrow::Cow;
use std::path::PathBuf;

use gradus::prelude::*;
use gradus::tasks::digits::{Digits, PictureOptions, has_bright_border};
use gradus::tasks::{self, Answer, Model};
use gradus::train::{check_file, write_file};

use super::inputs::{PICTURES, TABLES, files, files_without};
use crate::args::PredictArgs;
use crate::output::{complain, say, thousands};

/// The number of rows of tables that are printed.
const SHOWN_ROWS: usize = 20;

/// The largest number of classes whose probabilities are drawn below a picture.
const SHOWN_CLASSES: usize = 10;

/// An answer, and where its input comes from.
struct Prediction {
    file: PathBuf,
    /// The number of the row, from 1, if the file is a table.
    row: Option<usize>,
    answer: Answer,
}

/// Prints and writes the predictions. Nothing is printed or written if an input cannot be read.
pub(crate) fn run(args: &PredictArgs) -> Result<()> {
    let device = super::open(&args.common.device, args.common.threads)?;
    if let Some(out) = &args.out {
        check_file(out)?;
    }
    let model = tasks::load(super::model_file(&args.model), &device)?;
    if args.invert && !matches!(model, Model::Digits(_)) {
        let e = Error::argument("predict", format!("--invert with a model of the task {:?}", model.task()));
        return Err(e.help("only models of `train digits` read pictures in this way; leave --invert out"));
    }
    if args.max_memory.is_some() && matches!(model, Model::Tabular(_) | Model::Text(_)) {
        let e = Error::argument("predict", format!("--max-memory with a model of the task {:?}", model.task()));
        return Err(e.help("it limits the memory for reading a picture; leave --max-memory out"));
    }
    let (predictions, classes): (Vec<Prediction>, Vec<String>) = match &model {
        Model::Digits(digits) => (pictures(digits, args)?, digits.classes().to_vec()),
        Model::Tabular(tabular) => {
            let mut all = Vec::new();
            for file in files_without(&args.inputs, TABLES, args.out.as_deref())? {
                let answers = tabular.predict(&tabular.read(&file)?)?;
                let numbered = answers.into_iter().enumerate();
                all.extend(numbered.map(|(row, answer)| Prediction { file: file.clone(), row: Some(row + 1), answer }));
            }
            (all, tabular.spec().classes().to_vec())
        }
        Model::Images(images) => {
            let files = files(&args.inputs, PICTURES)?;
            let answers = images.predict_files(files.clone(), args.max_memory)?;
            let all = files.into_iter().zip(answers).map(|(file, answer)| Prediction { file, row: None, answer });
            (all.collect(), images.spec().classes.clone())
        }
        _ => return Err(super::unsupported(&args.model, &model)),
    };
    if let Some(out) = &args.out {
        write_file(out, table(&predictions, &classes).as_bytes())?;
    }
    print(&predictions, &classes)?;
    if let Some(out) = &args.out {
        say(&format!("{} predictions in {}", thousands(predictions.len()), out.display()))?;
    }
    if args.common.json {
        let model = args.model.display().to_string();
        let predictions: Vec<_> = predictions.iter().map(json).collect();
        say(&serde_json::json!({ "model": model, "predictions": predictions }).to_string())?;
    }
    Ok(())
}

/// The predictions of a model for grey pictures. Notes which pictures seem to be inverted.
fn pictures(digits: &Digits, args: &PredictArgs) -> Result<Vec<Prediction>> {
    let options = PictureOptions { invert: args.invert, max_memory: args.max_memory };
    let files = files(&args.inputs, PICTURES)?;
    let images = files.iter().map(|path| digits.read(path, options)).collect::<Result<Vec<_>>>()?;
    let mut predictions = Vec::with_capacity(images.len());
    for (file, image) in files.into_iter().zip(images) {
        if has_bright_border(&image) {
            let (path, advice) = (file.display(), if args.invert { "leave out --invert" } else { "see --invert" });
            let how = if args.invert { "inverted, " } else { "" };
            complain(&format!(
                "note: {how}{path} is bright at its border; the network expects bright on dark ({advice})"
            ));
        }
        let answers = digits.predict(vec![image]).map_err(|e| e.note(format!("for the picture {}", file.display())))?;
        predictions.extend(answers.into_iter().map(|answer| Prediction { file: file.clone(), row: None, answer }));
    }
    Ok(predictions)
}

fn print(predictions: &[Prediction], classes: &[String]) -> Result<()> {
    let (rows, pictures): (Vec<_>, Vec<_>) = predictions.iter().partition(|p| p.row.is_some());
    for Prediction { file, answer, .. } in pictures {
        say(&format!("{}: {answer}", file.display()))?;
        if let Answer::Class { probabilities, .. } = answer
            && classes.len() <= SHOWN_CLASSES
        {
            let width = classes.iter().map(|name| name.chars().count()).max().unwrap_or(0).max(3);
            for (name, &probability) in classes.iter().zip(probabilities) {
                let bar = "#".repeat((probability * 40.0).round() as usize);
                say(format!("  {name:>width$}  {:6.2} %  {bar}", probability * 100.0).trim_end())?;
            }
        }
    }
    for Prediction { file, row, answer } in rows.iter().take(SHOWN_ROWS) {
        say(&format!("{} row {}: {answer}", file.display(), row.unwrap_or(0)))?;
    }
    match rows.len().saturating_sub(SHOWN_ROWS) {
        0 => Ok(()),
        more => say(&format!(".. and {} rows more (--out writes all)", thousands(more))),
    }
}

fn json(prediction: &Prediction) -> serde_json::Value {
    let mut object = serde_json::json!(prediction.answer);
    object["file"] = prediction.file.display().to_string().into();
    if let Some(row) = prediction.row {
        object["row"] = row.into();
    }
    object
}

/// The predictions as a CSV file.
fn table(predictions: &[Prediction], classes: &[String]) -> String {
    let has_rows = predictions.iter().any(|p| p.row.is_some());
    let mut header: Vec<Cow<'_, str>> = vec!["file".into()];
    header.extend(has_rows.then_some("row".into()));
    header.push("prediction".into());
    if !classes.is_empty() {
        header.push("probability".into());
        header.extend(classes.iter().map(|name| quoted(&format!("p_{name}")).into_owned().into()));
    }
    let mut text = header.join(",") + "\n";
    for Prediction { file, row, answer } in predictions {
        let mut fields = vec![quoted(&file.display().to_string()).into_owned()];
        fields.extend(row.map(|row| row.to_string()));
        match answer {
            Answer::Class { name, probability, probabilities, .. } => {
                fields.push(quoted(name).into_owned());
                fields.push(probability.to_string());
                fields.extend(probabilities.iter().map(f32::to_string));
            }
            other => fields.push(other.to_string()),
        }
        text.push_str(&fields.join(","));
        text.push('\n');
    }
    text
}

/// A value of a CSV file, in quotes if it needs them.
fn quoted(text: &str) -> Cow<'_, str> {
    if !text.contains([',', '"', '\n', '\r']) {
        return text.into();
    }
    format!("\"{}\"", text.replace('"', "\"\"")).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_of_predictions_can_be_read_back() {
        let classes = ["a,b".to_owned(), "c \"d\"".to_owned()];
        let answer = |class: usize| Answer::Class {
            class,
            name: classes[class].clone(),
            probability: 0.75,
            probabilities: vec![0.25, 0.75],
        };
        let predictions = [(1, 1), (2, 0)].map(|(row, class)| Prediction {
            file: "x.csv".into(),
            row: Some(row),
            answer: answer(class),
        });
        let text = table(&predictions, &classes);
        let read = Table::from_csv(text.as_bytes(), "p.csv", &CsvOptions::default()).unwrap();
        assert_eq!(read.column("prediction").unwrap().text(0).as_deref(), Some("c \"d\""));
        assert_eq!(read.column("p_a,b").unwrap().numbers().unwrap(), [0.25, 0.25]);
        let numbers = [Prediction { file: "y".into(), row: None, answer: Answer::Number { value: 1.5 } }];
        assert_eq!(table(&numbers, &[]), "file,prediction\ny,1.5\n");
    }
}
