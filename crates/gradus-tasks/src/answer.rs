//! [`Answer`]: what a model predicts for one input.

use std::fmt;

use gradus_tensor::{DType, Error, Result, Tensor};
use serde::Serialize;

/// What a model predicts for one input. It is displayed as the name of the class with its probability, or as the number with
/// seven digits.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
#[non_exhaustive]
pub enum Answer {
    /// A class.
    Class {
        /// The index of the class with the largest probability.
        class: usize,
        /// The name of this class.
        name: String,
        /// The probability of this class.
        probability: f32,
        /// The probabilities of all classes; they sum to 1.
        probabilities: Vec<f32>,
    },
    /// A number.
    Number {
        /// The number.
        value: f64,
    },
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Answer::Class { name, probability, .. } => write!(f, "{name}  ({:.2} %)", probability * 100.0),
            // Networks compute in f32, which has about seven digits.
            Answer::Number { value } => match format!("{value:.6e}").parse::<f64>() {
                Ok(rounded) => write!(f, "{rounded}"),
                Err(_) => write!(f, "{value}"),
            },
        }
    }
}

impl Answer {
    /// The answers of a classifier whose logits are `[n, classes]`: the softmax of each row. `names` are those of the
    /// classes.
    ///
    /// # Errors
    /// Fails if there is not one name for each class, or if a probability is not finite.
    #[track_caller]
    pub fn of_logits(logits: &Tensor, names: &[String]) -> Result<Vec<Answer>> {
        let classes = logits.size(-1)?;
        if classes != names.len() || classes == 0 {
            let m = format!("{classes} logits a row and {} names of classes", names.len());
            return Err(Error::argument("predict", m).help("give one name for each class"));
        }
        let probabilities = logits.softmax(-1)?.to_dtype(DType::F32)?.to_vec::<f32>()?;
        if probabilities.iter().any(|p| !p.is_finite()) {
            return Err(not_finite("the model's probabilities are not finite"));
        }
        let answer = |row: &[f32]| {
            let best = row.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1).then(b.0.cmp(&a.0)));
            let (class, &probability) = best?;
            Some(Answer::Class { class, name: names[class].clone(), probability, probabilities: row.to_vec() })
        };
        Ok(probabilities.chunks_exact(classes).filter_map(answer).collect())
    }

    /// The answers of a regression. Errors if a number is not finite.
    #[track_caller]
    pub fn of_numbers(numbers: &[f64]) -> Result<Vec<Answer>> {
        if numbers.iter().any(|x| !x.is_finite()) {
            return Err(not_finite("the model's predictions are not finite"));
        }
        Ok(numbers.iter().map(|&value| Answer::Number { value }).collect())
    }
}

/// The error for weights that lead to NaN or infinity.
#[track_caller]
pub(crate) fn not_finite(what: &str) -> Error {
    Error::argument("predict", what)
        .help("its weights hold NaN or infinity, or an input is far out of range; train it anew")
}
