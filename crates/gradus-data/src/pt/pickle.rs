//! [`run`]: reads a pickle, without executing anything.
//!
//! A pickle is a program for a stack machine, whose instructions can name any Python function and call it. This machine
//! has the instructions that build numbers, texts, lists and dicts. It knows only the names of the few functions with
//! which PyTorch saves tensors ([`Global`]). Any other name is an error when it occurs, before it could be called.
//!
//! All objects lie in one list, and values refer to them by number. So objects that contain themselves, and lists that
//! are nested a million levels deep, are read and dropped like any other.

use std::collections::HashMap;

use super::global::{Global, Storage};
use super::value::{MOST_VALUES, NO_ROOM, Object, Pickled, Value, add, too_many};

/// Runs the pickle with which `bytes` begin. The error describes the problem and states the offset of the byte.
pub(super) fn run(bytes: &[u8]) -> Result<Pickled, String> {
    let (stack, marks, memo, objects) = (Vec::new(), Vec::new(), HashMap::new(), Vec::new());
    let mut machine = Machine { bytes, at: 0, stack, marks, memo, objects, copied: 0 };
    loop {
        let start = machine.at;
        match machine.step() {
            Ok(None) => {}
            Ok(Some(result)) => return Ok(Pickled { objects: machine.objects, result, length: machine.at }),
            Err(what) => return Err(format!("at byte {start} of its pickle: {what}")),
        }
    }
}

struct Machine<'a> {
    bytes: &'a [u8],
    at: usize,
    stack: Vec<Value>,
    /// The stack heights at which marks were set.
    marks: Vec<usize>,
    memo: HashMap<u64, Value>,
    objects: Vec<Object>,
    /// The number of values that calls have copied.
    copied: usize,
}

/// The greatest number of axes that a tensor may have.
const MOST_AXES: usize = 8;

/// The greatest length of the key of a storage and of the name of a device. It is limited because a short instruction
/// can copy them.
const MOST_KEY: usize = 64;

type Done<T = ()> = Result<T, String>;

const EMPTY: &str = "an instruction finds too few values";

impl<'a> Machine<'a> {
    fn take(&mut self, count: usize) -> Done<&'a [u8]> {
        let end = self.at.checked_add(count).filter(|&end| end <= self.bytes.len());
        let end = end.ok_or("the pickle ends too early")?;
        let bytes = &self.bytes[self.at..end];
        self.at = end;
        Ok(bytes)
    }

    fn number(&mut self, size: usize) -> Done<u64> {
        Ok(self.take(size)?.iter().rev().fold(0, |n, &b| n << 8 | u64::from(b)))
    }

    /// A length, followed by that many bytes.
    fn counted(&mut self, size: usize) -> Done<&'a [u8]> {
        let count = self.number(size)?;
        self.take(usize::try_from(count).unwrap_or(usize::MAX))
    }

    fn line(&mut self) -> Done<&'a str> {
        let rest = &self.bytes[self.at..];
        let end = rest.iter().position(|&b| b == b'\n').ok_or("the pickle ends too early")?;
        self.at += end + 1;
        std::str::from_utf8(&rest[..end]).map_err(|_| "a line is not text".into())
    }

    fn pop(&mut self) -> Done<Value> {
        if self.marks.last().is_some_and(|&mark| mark >= self.stack.len()) {
            return Err(EMPTY.into());
        }
        self.stack.pop().ok_or(EMPTY.into())
    }

    fn top(&self) -> Done<Value> {
        self.stack.last().copied().ok_or(EMPTY.into())
    }

    /// The values above the last mark.
    fn marked(&mut self) -> Done<Vec<Value>> {
        let mark = self.marks.pop().filter(|&mark| mark <= self.stack.len()).ok_or(EMPTY)?;
        Ok(self.stack.split_off(mark))
    }

    fn push(&mut self, value: Value) -> Done {
        add(&mut self.stack, value)
    }

    fn put(&mut self, object: Object) -> Done {
        add(&mut self.objects, object)?;
        self.push(Value::Object(self.objects.len() - 1))
    }

    fn keep(&mut self, key: u64) -> Done {
        let value = self.top()?;
        if self.memo.len() >= MOST_VALUES {
            return Err(too_many());
        }
        self.memo.try_reserve(1).map_err(|_| NO_ROOM)?;
        self.memo.insert(key, value);
        Ok(())
    }

    fn text(&mut self, bytes: &[u8]) -> Done {
        let text = std::str::from_utf8(bytes).map_err(|_| "a text is not UTF-8")?.to_owned();
        self.put(Object::Text(text))
    }

    fn object(&self, value: Value) -> Option<&Object> {
        match value {
            Value::Object(at) => self.objects.get(at),
            _ => None,
        }
    }

    fn as_text(&self, value: Value) -> Done<&str> {
        match self.object(value) {
            Some(Object::Text(text)) => Ok(text),
            _ => Err("a text is expected".into()),
        }
    }

    /// A text that is short.
    fn as_key(&self, value: Value) -> Done<&str> {
        let text = self.as_text(value)?;
        if text.len() <= MOST_KEY { Ok(text) } else { Err(format!("a key of {} bytes", text.len())) }
    }

    /// Counts the values that short instructions copy. Without this limit, a small pickle could allocate far more
    /// memory than its own size by copying a list again and again.
    fn copies(&mut self, count: usize) -> Done {
        self.copied = self.copied.saturating_add(count);
        if self.copied <= self.bytes.len() { Ok(()) } else { Err("the same values are copied again and again".into()) }
    }

    fn as_tuple(&self, value: Value) -> Done<&[Value]> {
        match self.object(value) {
            Some(Object::Tuple(values)) => Ok(values),
            _ => Err("a tuple is expected".into()),
        }
    }

    fn as_count(&self, value: Value) -> Done<usize> {
        match value {
            Value::Int(n) => usize::try_from(n).map_err(|_| "a negative size".into()),
            _ => Err("a number is expected".into()),
        }
    }

    fn as_counts(&self, value: Value) -> Done<Vec<usize>> {
        let values = self.as_tuple(value)?;
        if values.len() > MOST_AXES {
            return Err(format!("a tensor of {} axes; at most {MOST_AXES} are read", values.len()));
        }
        values.iter().map(|&v| self.as_count(v)).collect()
    }

    /// Pushes a whole number, given as signed little-endian bytes.
    fn long(&mut self, bytes: &[u8]) -> Done {
        let fill = if bytes.last().is_some_and(|b| b & 0x80 != 0) { 0xff } else { 0 };
        let mut wide = [fill; 8];
        if bytes.len() <= 8 {
            wide[..bytes.len()].copy_from_slice(bytes);
            self.push(Value::Int(i64::from_le_bytes(wide)))
        } else {
            self.put(Object::Big)
        }
    }

    fn tuple(&mut self, count: usize) -> Done {
        let mut values = Vec::with_capacity(count); // At most 3.
        for _ in 0..count {
            values.push(self.pop()?);
        }
        values.reverse();
        self.put(Object::Tuple(values))
    }

    fn append(&mut self, new: Vec<Value>) -> Done {
        match self.top()? {
            Value::Object(at) => match self.objects.get_mut(at) {
                Some(Object::List(values)) => {
                    values.try_reserve(new.len()).map_err(|_| NO_ROOM)?;
                    values.extend(new);
                }
                _ => return Err("values are added to what is no list".into()),
            },
            _ => return Err("values are added to what is no list".into()),
        }
        Ok(())
    }

    fn set(&mut self, new: Vec<Value>) -> Done {
        if !new.len().is_multiple_of(2) {
            return Err("a key without a value".into());
        }
        let pairs = new.chunks_exact(2).map(|pair| (pair[0], pair[1]));
        match self.top()? {
            Value::Object(at) => match self.objects.get_mut(at) {
                Some(Object::Dict(values)) => {
                    values.try_reserve(pairs.len()).map_err(|_| NO_ROOM)?;
                    values.extend(pairs);
                }
                _ => return Err("keys are set in what is no dict".into()),
            },
            _ => return Err("keys are set in what is no dict".into()),
        }
        Ok(())
    }

    fn global(&mut self, module: &str, name: &str) -> Done {
        let known = Global::find(module, name);
        let short = |text: &str| text.chars().take(100).collect::<String>();
        let refused = || format!("it names {}.{}, which is not called nor read", short(module), short(name));
        self.put(Object::Global(known.ok_or_else(refused)?))
    }

    /// Does what PyTorch's function would do with these arguments.
    fn reduce(&mut self, function: Value, arguments: Value) -> Done {
        let Some(&Object::Global(global)) = self.object(function) else {
            return Err("it calls what is no function".into());
        };
        let arguments = self.as_tuple(arguments)?;
        if arguments.len() > 16 {
            return Err(format!("it calls {} with {} arguments", global.name(), arguments.len()));
        }
        let arguments = arguments.to_vec();
        match (global, &arguments[..]) {
            (Global::Dict, []) => self.put(Object::Dict(Vec::new()))?,
            (Global::Dict, [Value::Object(at)]) => {
                let pairs = match &self.objects[*at] {
                    Object::Dict(pairs) => pairs.clone(),
                    Object::List(items) => items
                        .iter()
                        .map(|&item| match self.as_tuple(item).ok().or(self.as_list(item)) {
                            Some(&[key, value]) => Ok((key, value)),
                            _ => Err("a dict is made of what are no pairs".to_owned()),
                        })
                        .collect::<Result<_, _>>()?,
                    _ => return Err("a dict is made of what is no list".into()),
                };
                self.copies(pairs.len())?;
                self.put(Object::Dict(pairs))?;
            }
            (Global::Size, [sizes]) => {
                let sizes = self.as_tuple(*sizes).ok().or(self.as_list(*sizes)).ok_or("a size is no tuple")?.to_vec();
                self.copies(sizes.len())?;
                self.put(Object::Tuple(sizes))?;
            }
            (Global::Device, [kind]) => {
                let text = self.as_key(*kind)?.to_owned();
                self.put(Object::Text(text))?;
            }
            (Global::Device, [kind, Value::Int(index)]) => {
                let text = format!("{}:{index}", self.as_key(*kind)?);
                self.put(Object::Text(text))?;
            }
            (Global::Parameter, [tensor, ..]) => match self.object(*tensor) {
                Some(Object::Tensor { .. }) => self.stack.push(*tensor),
                _ => return Err("a parameter is made of what is no tensor".into()),
            },
            (Global::Tensor, [storage @ Value::Object(at), offset, shape, strides, rest @ ..]) => {
                self.plain_view(rest.get(2))?;
                let Some(Object::Storage(_)) = self.object(*storage) else {
                    return Err("a tensor is made of what is no storage".into());
                };
                self.tensor(*at, *offset, *shape, *strides)?;
            }
            // torch._utils._rebuild_tensor_v3 names the dtype, because the storage has none.
            (Global::Tensor3, [storage, offset, shape, strides, _, _, Value::Object(dtype), rest @ ..]) => {
                self.plain_view(rest.first())?;
                let Some(&Object::Global(Global::DType(_, dtype))) = self.objects.get(*dtype) else {
                    return Err("a tensor has what is no dtype".into());
                };
                let Some(Object::Storage(storage)) = self.object(*storage) else {
                    return Err("a tensor is made of what is no storage".into());
                };
                let storage = storage.seen_as(dtype)?;
                add(&mut self.objects, Object::Storage(storage))?;
                self.tensor(self.objects.len() - 1, *offset, *shape, *strides)?;
            }
            _ => return Err(format!("it calls {} with unusual arguments", global.name())),
        }
        Ok(())
    }

    fn as_list(&self, value: Value) -> Option<&[Value]> {
        match self.object(value) {
            Some(Object::List(values)) => Some(values),
            _ => None,
        }
    }

    /// Errors if a tensor has metadata: `{"neg": True}` and `{"conj": True}` say that its elements are not those of its
    /// storage.
    fn plain_view(&self, metadata: Option<&Value>) -> Done {
        match metadata.map(|&value| (value, self.object(value))) {
            None | Some((Value::None, _)) => Ok(()),
            Some((_, Some(Object::Dict(pairs)))) if pairs.is_empty() => Ok(()),
            _ => Err("a tensor is a negative or conjugate view, which is not read: call `.resolve_neg()` or \
                      `.resolve_conj()` on it first, then save it"
                .into()),
        }
    }

    fn tensor(&mut self, storage: usize, offset: Value, shape: Value, strides: Value) -> Done {
        let (offset, shape, strides) = (self.as_count(offset)?, self.as_counts(shape)?, self.as_counts(strides)?);
        if shape.len() != strides.len() {
            return Err(format!("a tensor of {} sizes and {} strides", shape.len(), strides.len()));
        }
        self.put(Object::Tensor { storage, offset, shape, strides })
    }

    /// The storage that a persistent ID `("storage", type, key, device, size)` stands for.
    fn storage(&mut self, id: Value) -> Done {
        let id = self.as_tuple(id)?;
        let id = id.get(..id.len().min(8)).unwrap_or(id).to_vec();
        let [tag, kind, key, _, size, rest @ ..] = &id[..] else {
            return Err("a persistent object that is no storage".into());
        };
        if self.as_text(*tag) != Ok("storage") {
            return Err("a persistent object that is no storage".into());
        }
        let Some(&Object::Global(Global::Storage(_, dtype))) = self.object(*kind) else {
            return Err("a storage of what is no dtype".into());
        };
        // In the older format, a storage may be a part of another one: (key, offset, size).
        if rest.first().is_some_and(|view| *view != Value::None) {
            return Err("a storage that is a part of another one is not read: save with a newer PyTorch".into());
        }
        let key = self.as_key(*key)?.to_owned();
        let size = self.as_count(*size)?;
        self.put(Object::Storage(Storage { key, dtype, size }))
    }

    /// Executes one instruction. The last one returns the result.
    fn step(&mut self) -> Done<Option<Value>> {
        let op = self.number(1)? as u8;
        match op {
            // PROTO, FRAME
            0x80 => drop(self.take(1)?),
            0x95 => drop(self.take(8)?),
            b'.' => return self.pop().map(Some),
            b'(' => add(&mut self.marks, self.stack.len())?,
            b'0' => drop(self.pop()?),
            b'1' => drop(self.marked()?),
            b'2' => self.push(self.top()?)?,
            b'N' => self.push(Value::None)?,
            0x88 => self.push(Value::Bool(true))?,
            0x89 => self.push(Value::Bool(false))?,
            b'J' => {
                let number = self.number(4)? as u32;
                self.push(Value::Int(i64::from(number.cast_signed())))?;
            }
            b'K' => {
                let number = self.number(1)?;
                self.push(Value::Int(number as i64))?;
            }
            b'M' => {
                let number = self.number(2)?;
                self.push(Value::Int(number as i64))?;
            }
            0x8a => {
                let bytes = self.counted(1)?;
                self.long(bytes)?;
            }
            0x8b => {
                let bytes = self.counted(4)?;
                self.long(bytes)?;
            }
            b'G' => {
                let bits = self.number(8)?.swap_bytes();
                self.push(Value::Float(f64::from_bits(bits)))?;
            }
            // BINUNICODE and BINSTRING, in their short, normal and long forms.
            b'X' | b'T' => {
                let bytes = self.counted(4)?;
                self.text(bytes)?;
            }
            0x8c | b'U' => {
                let bytes = self.counted(1)?;
                self.text(bytes)?;
            }
            0x8d => {
                let bytes = self.counted(8)?;
                self.text(bytes)?;
            }
            b'B' | b'C' | 0x8e => {
                let size = match op {
                    b'B' => 4,
                    b'C' => 1,
                    _ => 8,
                };
                let length = self.counted(size)?.len();
                self.put(Object::Bytes(length))?;
            }
            b')' => self.put(Object::Tuple(Vec::new()))?,
            0x85..=0x87 => self.tuple(usize::from(op - 0x84))?,
            b't' => {
                let values = self.marked()?;
                self.put(Object::Tuple(values))?;
            }
            b']' => self.put(Object::List(Vec::new()))?,
            b'l' => {
                let values = self.marked()?;
                self.put(Object::List(values))?;
            }
            b'a' => {
                let value = self.pop()?;
                self.append(vec![value])?;
            }
            b'e' => {
                let values = self.marked()?;
                self.append(values)?;
            }
            b'}' => self.put(Object::Dict(Vec::new()))?,
            b'd' => {
                let values = self.marked()?;
                self.put(Object::Dict(Vec::new()))?;
                self.set(values)?;
            }
            b's' => {
                let (value, key) = (self.pop()?, self.pop()?);
                self.set(vec![key, value])?;
            }
            b'u' => {
                let values = self.marked()?;
                self.set(values)?;
            }
            // Memoizing and recalling
            b'q' | b'r' => {
                let key = self.number(if op == b'q' { 1 } else { 4 })?;
                self.keep(key)?;
            }
            0x94 => self.keep(self.memo.len() as u64)?,
            b'h' | b'j' => {
                let key = self.number(if op == b'h' { 1 } else { 4 })?;
                let value = *self.memo.get(&key).ok_or("a value is recalled that was not kept")?;
                self.push(value)?;
            }
            b'c' => {
                let (module, name) = (self.line()?, self.line()?);
                self.global(module, name)?;
            }
            0x93 => {
                let (name, module) = (self.pop()?, self.pop()?);
                let (name, module) = (self.as_text(name)?.to_owned(), self.as_text(module)?.to_owned());
                self.global(&module, &name)?;
            }
            b'R' => {
                let (arguments, function) = (self.pop()?, self.pop()?);
                self.reduce(function, arguments)?;
            }
            // BUILD sets attributes of an object. PyTorch's dicts have attributes that hold versions.
            b'b' => {
                self.pop()?;
                if !matches!(self.object(self.top()?), Some(Object::Dict(_))) {
                    return Err("attributes are set of what is no dict".into());
                }
            }
            b'Q' => {
                let id = self.pop()?;
                self.storage(id)?;
            }
            // INST and NEWOBJ call classes too; INST states the module and the name here.
            b'i' => {
                let (module, name) = (self.line()?, self.line()?);
                return Err(format!("it makes an object of {module}.{name}, which is not read"));
            }
            other => return Err(format!("the instruction 0x{other:02x} is not read")),
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pickle_makes_no_more_values_than_fit() {
        for start in ["N", "(", "]"] {
            let bytes = start.repeat(MOST_VALUES + 1);
            let e = run(bytes.as_bytes()).unwrap_err();
            assert!(e.ends_with("it makes more than 4194304 values at once"), "{start}: {e}");
        }
    }
}
