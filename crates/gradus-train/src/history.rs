//! [`History`]: the metrics of a run over its steps.

use std::collections::BTreeMap;

use gradus_tensor::{Error, ErrorKind, Here, Result};
use serde_json::{Map, Value};

/// Named series of numbers, each number with the step or epoch to which it belongs.
///
/// ```
/// let mut history = gradus_train::History::default();
/// history.push("loss", 1, 0.5);
/// history.push("loss", 2, 0.25);
/// assert_eq!(history.get("loss"), [(1, 0.5), (2, 0.25)]);
/// assert_eq!(history.names().collect::<Vec<_>>(), ["loss"]);
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
pub struct History(BTreeMap<String, Vec<(u64, f64)>>);

impl History {
    /// Appends a number to a series, which is created if it does not exist.
    pub fn push(&mut self, name: &str, at: u64, value: f64) {
        match self.0.get_mut(name) {
            Some(series) => series.push((at, value)),
            None => drop(self.0.insert(name.to_owned(), vec![(at, value)])),
        }
    }

    /// The numbers of a series; empty if there is no such series.
    pub fn get(&self, name: &str) -> &[(u64, f64)] {
        self.0.get(name).map_or(&[], Vec::as_slice)
    }

    /// The names of the series, in alphabetical order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Whether there are no series.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The history as JSON: an object of lists of pairs. [`from_json`](History::from_json) restores exactly the same
    /// numbers. Numbers that are not finite are written as strings, because JSON cannot represent them.
    pub fn to_json(&self) -> String {
        let pair = |&(at, value): &(u64, f64)| Value::Array(vec![at.into(), float(value)]);
        let series = self.0.iter().map(|(name, all)| (name.clone(), Value::Array(all.iter().map(pair).collect())));
        Value::Object(series.collect::<Map<_, _>>()).to_string()
    }

    /// Reads what [`to_json`](History::to_json) wrote. Errors if the text is something else.
    #[track_caller]
    pub fn from_json(text: &str) -> Result<History> {
        let wrong = || Error::new(ErrorKind::Format, "history", "the text is no history of a run");
        let pair = |pair: &Value| match pair.as_array()?.as_slice() {
            [at, value] => Some((at.as_u64()?, number(value)?)),
            _ => None,
        };
        let all: Map<String, Value> = serde_json::from_str(text).map_err(|e| wrong().with_source(e)).here()?;
        let mut history = History::default();
        for (name, series) in all {
            let series: Option<Vec<_>> = series.as_array().and_then(|all| all.iter().map(pair).collect());
            history.0.insert(name, series.ok_or_else(wrong).here()?);
        }
        Ok(history)
    }
}

/// A number as JSON.
pub(crate) fn float(value: f64) -> Value {
    serde_json::Number::from_f64(value).map_or_else(|| Value::String(value.to_string()), Value::Number)
}

fn number(value: &Value) -> Option<f64> {
    match value {
        Value::String(text) => text.parse().ok(),
        value => value.as_f64(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_comes_back_with_its_bits() {
        let mut history = History::default();
        for (i, value) in
            [0.1, -0.0, 1.0 / 3.0, f64::MIN_POSITIVE / 3.0, f64::MAX, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 1e16]
                .into_iter()
                .enumerate()
        {
            history.push("a", i as u64, value);
            history.push("b \"c\"", u64::MAX, value);
        }
        let again = History::from_json(&history.to_json()).unwrap();
        let bits =
            |h: &History| h.0.iter().map(|(n, s)| (n.clone(), s.iter().map(|p| p.1.to_bits()).collect())).collect();
        let (a, b): (Vec<(String, Vec<u64>)>, Vec<_>) = (bits(&history), bits(&again));
        assert_eq!(a, b);
        assert_eq!(again.get("b \"c\"")[0].0, u64::MAX);
        for text in ["", "[]", "{\"a\": 1}", "{\"a\": [[1]]}", "{\"a\": [[-1, 2]]}", "{\"a\": [[1, \"x\"]]}"] {
            assert!(History::from_json(text).is_err(), "{text}");
        }
    }
}
