//! [`Building`]: a column while its file is read.

use std::borrow::Cow;
use std::collections::HashMap;

use gradus_tensor::Result;

use crate::memory::{reserve, room};
use crate::table::{Kind, NO_CODE, Values};

const OP: &str = "csv";

/// A column with up to this many different texts holds categories.
const FEW: usize = 20;

/// From this many different texts on, a column is not kept as categories if most of its texts differ.
const MANY: usize = 1 << 14;

/// A column while its file is read as one kind.
pub(crate) enum Building<'a> {
    Number(Vec<f64>),
    Bool(Vec<Option<bool>>),
    /// `kept` tells whether the column holds categories no matter how many there are.
    Category {
        codes: Vec<u32>,
        places: HashMap<Cow<'a, str>, u32>,
        kept: bool,
    },
    Text(Vec<Option<String>>),
    /// A value was not of the kind. `booleans` tells whether all values may still be booleans.
    Failed {
        kind: Kind,
        booleans: bool,
    },
}

/// `true` and `false`, in lower, upper or title case.
fn boolean(text: &str) -> Option<bool> {
    match text {
        "true" | "True" | "TRUE" => Some(true),
        "false" | "False" | "FALSE" => Some(false),
        _ => None,
    }
}

impl<'a> Building<'a> {
    /// Creates an empty column. `fixed` tells whether the kind is given rather than guessed.
    pub(crate) fn new(kind: Kind, fixed: bool) -> Self {
        match kind {
            Kind::Number => Building::Number(Vec::new()),
            Kind::Bool => Building::Bool(Vec::new()),
            Kind::Category => Building::Category { codes: Vec::new(), places: HashMap::new(), kept: fixed },
            Kind::Text => Building::Text(Vec::new()),
        }
    }

    pub(crate) fn kind(&self) -> Kind {
        match self {
            Building::Number(_) => Kind::Number,
            Building::Bool(_) => Kind::Bool,
            Building::Category { .. } => Kind::Category,
            Building::Text(_) => Kind::Text,
            Building::Failed { kind, .. } => *kind,
        }
    }

    pub(crate) fn failed(&self) -> bool {
        matches!(self, Building::Failed { .. })
    }

    /// The kind as which to read the column next time.
    pub(crate) fn guess(&self) -> Kind {
        match self {
            Building::Failed { kind: Kind::Number, booleans: true } => Kind::Bool,
            Building::Failed { kind: Kind::Category, .. } => Kind::Text,
            Building::Failed { .. } => Kind::Category,
            other => other.kind(),
        }
    }

    /// Reserves memory for a value.
    pub(crate) fn make_room(&mut self, name: &str) -> Result<()> {
        match self {
            Building::Number(values) => room(values, OP, name),
            Building::Bool(values) => room(values, OP, name),
            Building::Category { codes, .. } => room(codes, OP, name),
            Building::Text(values) => room(values, OP, name),
            Building::Failed { .. } => Ok(()),
        }
    }

    /// Adds a value, or `None` if it is missing. Returns false if the value is not of the kind of the column.
    pub(crate) fn push(&mut self, text: Option<&Cow<'a, str>>) -> bool {
        match self {
            Building::Number(values) => {
                let Some(text) = text else {
                    values.push(f64::NAN);
                    return true;
                };
                if let Ok(value) = text.trim().parse::<f64>()
                    && !value.is_nan()
                {
                    values.push(value);
                    return true;
                }
                // The column may hold booleans if only missing values came before; a number rules that out.
                let booleans = boolean(text).is_some() && values.iter().all(|v| v.is_nan());
                *self = Building::Failed { kind: Kind::Number, booleans };
                false
            }
            Building::Bool(values) => match text.map(|t| boolean(t)) {
                Some(None) => {
                    *self = Building::Failed { kind: Kind::Bool, booleans: false };
                    false
                }
                value => {
                    values.push(value.flatten());
                    true
                }
            },
            Building::Category { codes, places, kept } => {
                let Some(text) = text else {
                    codes.push(NO_CODE);
                    return true;
                };
                let next = places.len() as u32;
                let code = match places.get(text) {
                    Some(code) => *code,
                    None => {
                        places.insert(text.clone(), next);
                        next
                    }
                };
                codes.push(code);
                let fits = *kept || places.len() <= MANY || 2 * places.len() <= codes.len();
                if !fits {
                    *self = Building::Failed { kind: Kind::Category, booleans: false };
                }
                fits
            }
            Building::Text(values) => {
                values.push(text.map(|t| t.to_string()));
                true
            }
            Building::Failed { kind, booleans } => {
                if let (Kind::Number, true, Some(text)) = (*kind, *booleans, text) {
                    *booleans = boolean(text).is_some();
                }
                false
            }
        }
    }

    /// [`push`](Building::push) for a column that is read once: categories that become too many go on as texts.
    #[cfg(feature = "parquet")]
    #[track_caller]
    pub(crate) fn push_or_widen(&mut self, text: Option<&Cow<'a, str>>, name: &str) -> Result<()> {
        if let Building::Category { codes, places, kept: false } = self
            && places.len() >= MANY
        {
            let count = places.len() + usize::from(text.is_some_and(|text| !places.contains_key(text)));
            if count > MANY && 2 * count > codes.len() + 1 {
                let names = in_order(std::mem::take(places), name)?;
                *self = Building::Text(spelled(codes, &names, name)?);
            }
        }
        self.push(text);
        Ok(())
    }

    /// The values of a column, which must not have failed.
    #[track_caller]
    pub(crate) fn finish(self, name: &str) -> Result<Values> {
        Ok(match self {
            Building::Number(mut values) => {
                values.shrink_to_fit();
                Values::Number(values)
            }
            Building::Bool(values) => Values::Bool(values),
            Building::Text(values) => Values::Text(values),
            Building::Category { codes, places, kept } => {
                let names = in_order(places, name)?;
                let present = codes.iter().filter(|&&c| c != NO_CODE).count();
                if kept || names.len() <= FEW || 2 * names.len() <= present {
                    return Ok(Values::Category { codes, names });
                }
                Values::Text(spelled(&codes, &names, name)?)
            }
            Building::Failed { .. } => Values::Text(Vec::new()),
        })
    }
}

/// The categories in the order of their codes.
#[track_caller]
fn in_order(places: HashMap<Cow<'_, str>, u32>, name: &str) -> Result<Vec<String>> {
    let mut names = Vec::new();
    reserve(&mut names, places.len(), OP, name)?;
    names.extend(places.into_iter().map(|(text, code)| (code, text.into_owned())));
    names.sort_unstable_by_key(|(code, _)| *code);
    Ok(names.into_iter().map(|(_, text)| text).collect())
}

/// The texts that codes stand for.
#[track_caller]
fn spelled(codes: &[u32], names: &[String], name: &str) -> Result<Vec<Option<String>>> {
    let mut texts = Vec::new();
    reserve(&mut texts, codes.len(), OP, name)?;
    texts.extend(codes.iter().map(|&code| names.get(code as usize).cloned()));
    Ok(texts)
}
