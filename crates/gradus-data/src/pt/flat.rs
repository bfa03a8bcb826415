//! [`flatten`]: the tensors and values of a pickle by name.

use std::collections::BTreeMap;

use gradus_tensor::{Error, ErrorKind, Here, Result, Tensor};

use super::contents::{Plain, TorchFile};

use super::storages::{HELP, OP};
use super::value::{Object, Pickled, Value};
use super::view::View;

/// The greatest nesting depth of dicts and lists.
const MOST_DEPTH: usize = 64;

/// The contents of a pickle of `length` bytes. `storages` holds the elements of each storage by its key.
#[track_caller]
pub(super) fn flatten(pickled: &Pickled, storages: &BTreeMap<String, Tensor>, length: usize) -> Result<TorchFile> {
    let elements = storages.values().map(Tensor::numel).fold(0, usize::saturating_add);
    let (file, tensors) = (TorchFile::default(), BTreeMap::new());
    // A value that is referred to in many places gets many names. Their total size is limited to a small multiple of
    // the file.
    let (names, copies) = (length.saturating_mul(16).saturating_add(1 << 16), elements.saturating_mul(4));
    let mut walk = Walk { pickled, storages, names, copies, tensors, file };
    walk.visit(pickled.result, String::new(), 0).here()?;
    Ok(walk.file)
}

struct Walk<'a> {
    pickled: &'a Pickled,
    storages: &'a BTreeMap<String, Tensor>,
    /// The number of bytes that names may still take up.
    names: usize,
    /// The number of elements that may still be copied, for tensors that cannot be views.
    copies: usize,
    /// The tensors created so far, by the number of their object.
    tensors: BTreeMap<usize, Tensor>,
    file: TorchFile,
}

#[track_caller]
fn bad(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::Format, OP, what).help(HELP)
}

impl Walk<'_> {
    #[track_caller]
    fn visit(&mut self, value: Value, name: String, depth: usize) -> Result<()> {
        let shown = |name: &str| name.chars().take(80).collect::<String>();
        let Some(left) = self.names.checked_sub(name.len() + 16) else {
            return Err(bad("its values are named again and again: it would become far larger than it is"));
        };
        self.names = left;
        if depth > MOST_DEPTH {
            return Err(bad(format!("{:?} is nested more than {MOST_DEPTH} deep", shown(&name))));
        }
        let join = |key: &str| if name.is_empty() { key.to_owned() } else { format!("{name}.{key}") };
        let at = match value {
            Value::Object(at) => at,
            Value::None => return self.put(name, Plain::None),
            Value::Bool(b) => return self.put(name, Plain::Bool(b)),
            Value::Int(n) => return self.put(name, Plain::Int(n)),
            Value::Float(x) => return self.put(name, Plain::Float(x)),
        };
        let pickled = self.pickled;
        match &pickled.objects[at] {
            Object::Tensor { storage, offset, shape, strides } => {
                let tensor = match self.tensors.get(&at) {
                    Some(tensor) => tensor.clone(),
                    None => {
                        let Some(Object::Storage(of)) = pickled.objects.get(*storage) else {
                            return Err(bad("a tensor has no storage"));
                        };
                        let Some(elements) = self.storages.get(&of.key) else {
                            return Err(bad(format!("the storage {:?} is not there", of.key)));
                        };
                        let view = View { offset: *offset, shape, strides };
                        view.of(elements, &mut self.copies).map_err(|e| e.note(format!("tensor: {}", shown(&name))))?
                    }
                };
                self.tensors.insert(at, tensor.clone());
                let twice = format!("two values have the name {:?}", shown(&name));
                if self.file.values.contains_key(&name) || self.file.tensors.insert(name, tensor).is_some() {
                    return Err(bad(twice));
                }
                Ok(())
            }
            Object::Text(text) => {
                self.names =
                    self.names.checked_sub(text.len()).ok_or_else(|| bad("its texts are far too long")).here()?;
                self.put(name, Plain::Text(text.clone()))
            }
            Object::Global(global) => self.put(name, Plain::Text(format!("torch.{}", global.name()))),
            Object::Tuple(values) | Object::List(values) => values
                .iter()
                .enumerate()
                .try_for_each(|(i, &value)| self.visit(value, join(&i.to_string()), depth + 1))
                .here(),
            Object::Dict(pairs) => {
                // If a key was set twice, the last value counts.
                let mut last: BTreeMap<String, Value> = BTreeMap::new();
                for &(key, value) in pairs {
                    let text = match key {
                        Value::Object(at) => pickled.objects.get(at),
                        _ => None,
                    };
                    let key = match (key, text) {
                        (Value::Int(n), _) => n.to_string(),
                        (_, Some(Object::Text(text))) => text.clone(),
                        _ => return Err(bad(format!("{:?} is a dict whose keys are no texts", shown(&name)))),
                    };
                    self.names = self
                        .names
                        .checked_sub(key.len() + 16)
                        .ok_or_else(|| bad("its keys are far too many or too long"))
                        .here()?;
                    last.insert(key, value);
                }
                last.into_iter().try_for_each(|(key, value)| self.visit(value, join(&key), depth + 1)).here()
            }
            Object::Bytes(length) => Err(bad(format!("{:?} holds {length} bytes", shown(&name)))),
            Object::Big => Err(bad(format!("{:?} is a number beyond 64 bits", shown(&name)))),
            Object::Storage(_) => Err(bad(format!("{:?} is a storage without a tensor", shown(&name)))),
        }
    }

    #[track_caller]
    fn put(&mut self, name: String, value: Plain) -> Result<()> {
        if self.file.tensors.contains_key(&name) || self.file.values.contains_key(&name) {
            return Err(bad(format!("two values have the name {:?}", name.chars().take(80).collect::<String>())));
        }
        self.file.values.insert(name, value);
        Ok(())
    }
}
