//! The file of a model: weights, and everything else that a prediction needs in its metadata.

use std::io::Write;
use std::path::Path;

use gradus_data::{Image, Table};
use gradus_nn::{Module, StateDict};
use gradus_tensor::{Device, Error, ErrorKind, Here, Result};
use serde::{Deserialize, Serialize};

use crate::Answer;
use crate::digits::{self, Digits, PictureOptions};
use crate::images::{self, Images};
use crate::tabular::{self, Tabular};
use crate::text::{self, Text};

/// The key of the specification in the metadata of a model file.
const KEY: &str = "gradus.task";

/// What a model file says of its model beside the weights. It is JSON in the metadata, under `gradus.task`; its field
/// `task` is the name of the task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "task", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Spec {
    /// Grey pictures of one symbol each.
    Digits(digits::Spec),
    /// Tables.
    Tabular(tabular::Spec),
    /// A language model.
    Text(text::Spec),
    /// Pictures of classes.
    Images(images::Spec),
}

/// A trained model, ready to predict.
#[non_exhaustive]
pub enum Model {
    /// Recognises grey pictures of one symbol each.
    Digits(Box<Digits>),
    /// Predicts a column of a table from the others.
    Tabular(Box<Tabular>),
    /// Writes on from a text.
    Text(Box<Text>),
    /// Recognises what is in pictures.
    Images(Box<Images>),
}

/// What a model can be asked about.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Input<'a> {
    /// A file of the kind that the task takes: a picture, which has one answer, or a CSV file, which has one for each
    /// row.
    File(&'a Path),
    /// A picture in memory: for `digits` of the size that the model takes, for `images` of any size.
    Image(&'a Image),
    /// A table, which has one answer for each row.
    Table(&'a Table),
}

impl Input<'_> {
    fn kind(&self) -> &'static str {
        match self {
            Input::File(_) => "a file",
            Input::Image(_) => "a picture",
            Input::Table(_) => "a table",
        }
    }
}

impl<'a> From<&'a Image> for Input<'a> {
    fn from(image: &'a Image) -> Self {
        Input::Image(image)
    }
}

impl<'a> From<&'a Table> for Input<'a> {
    fn from(table: &'a Table) -> Self {
        Input::Table(table)
    }
}

impl<'a> From<&'a Path> for Input<'a> {
    fn from(path: &'a Path) -> Self {
        Input::File(path)
    }
}

impl<'a> From<&'a str> for Input<'a> {
    fn from(path: &'a str) -> Self {
        Input::File(Path::new(path))
    }
}

impl Model {
    /// The name of the task: that of the command `gradus train NAME`.
    pub fn task(&self) -> &'static str {
        match self {
            Model::Digits(_) => "digits",
            Model::Tabular(_) => "tabular",
            Model::Text(_) => "text",
            Model::Images(_) => "images",
        }
    }

    /// The answers to an input, in its order. A path is read as a file.
    ///
    /// # Errors
    /// Fails if the file cannot be read, if the input is not of the kind or shape that the model takes, or if a
    /// prediction is not finite. A language model predicts no answers: it [writes](Text::write_on).
    #[track_caller]
    pub fn predict<'a>(&self, input: impl Into<Input<'a>>) -> Result<Vec<Answer>> {
        match (self, input.into()) {
            (Model::Digits(digits), Input::File(path)) => {
                digits.predict(vec![digits.read(path, PictureOptions::default())?])
            }
            (Model::Digits(digits), Input::Image(image)) => digits.predict(vec![image.clone()]),
            (Model::Tabular(tabular), Input::File(path)) => tabular.predict(&tabular.read(path)?),
            (Model::Tabular(tabular), Input::Table(table)) => tabular.predict(table),
            (Model::Text(_), _) => {
                let e = Error::new(
                    ErrorKind::Unsupported,
                    "predict",
                    "a language model predicts no answers, it writes text",
                );
                Err(e.help("call Text::write_on, or `gradus generate`"))
            }
            (Model::Images(images), Input::File(path)) => images.predict(vec![images.read(path, None)?]),
            (Model::Images(images), Input::Image(image)) => images.predict(vec![images.prepare(image)?]),
            (_, input) => {
                let m = format!("a model of the task {:?} does not take {}", self.task(), input.kind());
                Err(Error::argument("predict", m).help("give what the model was trained on"))
            }
        }
    }
}

/// Writes a model file. [`load`] needs nothing else.
#[track_caller]
pub fn write<M: Module + ?Sized>(spec: &Spec, model: &M, out: &mut dyn Write) -> Result<()> {
    let mut state = model.state_dict()?;
    let spec = serde_json::to_string(spec);
    let spec = spec.map_err(|e| Error::new(ErrorKind::Format, "save", "the specification is no JSON").with_source(e));
    state.set_metadata(KEY, spec.here()?);
    state.write_safetensors(out)
}

/// Reads the `model.safetensors` that `gradus train` saved.
///
/// # Errors
/// Fails if the file cannot be read or is damaged, or if it is not the file of a trained model: the error names the file
/// and what is missing or does not fit.
#[track_caller]
pub fn load(path: impl AsRef<Path>, device: &Device) -> Result<Model> {
    let path = path.as_ref();
    let state = StateDict::load_safetensors(path, device)?;
    let spec = spec_of(&state, path).here()?;
    let in_file = |e: Error| e.note(format!("in the file {}", path.display()));
    match spec {
        Spec::Digits(spec) => Digits::from_state(spec, &state, device).map(|model| Model::Digits(Box::new(model))),
        Spec::Tabular(spec) => Tabular::from_state(spec, &state, device).map(|model| Model::Tabular(Box::new(model))),
        Spec::Text(spec) => Text::from_state(spec, &state, device).map(|model| Model::Text(Box::new(model))),
        Spec::Images(spec) => Images::from_state(spec, &state, device).map(|model| Model::Images(Box::new(model))),
    }
    .map_err(in_file)
    .here()
}

#[track_caller]
fn spec_of(state: &StateDict, path: &Path) -> Result<Spec> {
    let foreign = |what: &str| {
        Error::new(ErrorKind::Format, "load", format!("{}: {what}", path.display()))
            .help("give the model.safetensors that `gradus train` saved")
    };
    let Some(text) = state.metadata(KEY) else {
        return Err(foreign(&format!("its metadata has no `{KEY}`")));
    };
    serde_json::from_str(text).map_err(|e| {
        let m = format!("its `{KEY}` is not that of a model this version can load: {e}");
        foreign(&m).with_source(e)
    })
}
