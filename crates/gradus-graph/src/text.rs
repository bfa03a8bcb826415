//! [`Text`]: a graph as text that is read back.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;

use gradus_tensor::{DType, Error, Layout, Result};

use crate::graph::{Graph, Place};

/// What the printed form of a [`Graph`] says. The printed form is read back by `text.parse::<Text>()`, for tools that
/// compare or search the graphs of programs; [`check`](Text::check) tells whether it is well-formed. A text holds neither
/// tensors nor kernels and cannot run.
///
/// ```text
/// step on cpu
///   %2: f32[2, 2] = matmul(%0: f32[2, 3], %1: f32[2, 3]{1, 3 at 0})  // src/main.rs:7:20
///   %2.1: f32[2, 2] <- exp()  // src/main.rs:7:33
///   return %2.1: f32[2, 2]
///   %0 is input 0, 24 bytes
///   %1 is held, 24 bytes
/// ```
///
/// `%2.1` is memory 2 after one write in place, and `<-` marks operations that write in place. Strides and offset are
/// shown where the elements do not lie one after the other from the start of the memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Text {
    /// The name of the device.
    pub device: String,
    /// The operations.
    pub lines: Vec<Line>,
    /// The values that the step returns.
    pub results: Vec<Value>,
    /// The values that it assigns to states.
    pub kept: Vec<Value>,
    /// The memories that are not temporary: number, origin and bytes.
    pub memories: Vec<(usize, String, usize)>,
}

/// An operation of a [`Text`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// What it writes.
    pub outputs: Vec<Value>,
    /// Whether it writes in place.
    pub in_place: bool,
    /// The operation with its parameters.
    pub op: String,
    /// What it reads, apart from what it updates.
    pub inputs: Vec<Value>,
    /// The earlier operation whose random numbers it draws again.
    pub repeats: Option<usize>,
    /// The line of the call that ran it.
    pub location: String,
}

/// A value of a [`Text`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Value {
    /// The number of the memory.
    pub memory: usize,
    /// The number of earlier writes to the memory.
    pub version: u32,
    /// The dtype of the elements.
    pub dtype: DType,
    /// The shape.
    pub shape: Vec<usize>,
    /// The strides and the offset, in elements, unless the elements lie one after the other from the start.
    pub lies: Option<(Vec<isize>, usize)>,
}

impl Graph {
    /// What the printed form of the graph says.
    pub fn text(&self) -> Text {
        let values = |places: &[Place]| places.iter().map(Value::from).collect::<Vec<_>>();
        let lines = self.nodes.iter().map(|node| Line {
            outputs: values(&node.outputs),
            in_place: node.in_place,
            op: format!("{:?}", node.op),
            inputs: values(&node.inputs),
            repeats: node.repeats,
            location: node.location.to_string(),
        });
        let outside = self.memories.iter().enumerate().filter(|(i, _)| !self.is_temporary(*i));
        Text {
            device: self.device.to_string(),
            lines: lines.collect(),
            results: values(&self.results),
            kept: self.replaced.iter().map(|(_, place)| place.into()).collect(),
            memories: outside.map(|(i, m)| (i, format!("{:?}", m.origin), m.bytes)).collect(),
        }
    }
}

impl Text {
    /// Checks that each value was computed before it is read, at the version at which it is read, that no version of a
    /// memory is computed twice, and that values lie in memories whose sizes the text gives. Unlike
    /// [`Graph::check`], it does not know what operations infer.
    ///
    /// # Errors
    /// Names the first line that is wrong.
    ///
    /// ```
    /// use gradus_graph::Text;
    ///
    /// let text: Text = "step on cpu\n  %1: f32[3] = exp(%0: f32[3])  // a.rs:1:1\n  return %1: f32[3]\n".parse()?;
    /// assert!(text.check().unwrap_err().message().contains("%0: f32[3] is read before it is computed"));
    /// # Ok::<(), gradus_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn check(&self) -> Result<()> {
        let outside = |m: usize| self.memories.iter().find(|(number, ..)| *number == m);
        let mut versions: HashMap<usize, u32> = HashMap::new();
        for (m, origin, _) in &self.memories {
            if origin != "computed" && versions.insert(*m, 0).is_some() {
                return Err(Error::argument("graph", format!("%{m} is listed twice")));
            }
        }
        let lies = |value: &Value| match outside(value.memory) {
            Some((_, _, bytes)) if value.end().is_none_or(|end| end > *bytes) => {
                Err(format!("{value} is not inside its memory of {bytes} bytes"))
            }
            _ => Ok(()),
        };
        let read = |versions: &HashMap<usize, u32>, value: &Value| match versions.get(&value.memory) {
            _ if value.shape.contains(&0) => Ok(()),
            None => Err(format!("{value} is read before it is computed")),
            Some(now) if *now != value.version => Err(format!("{value} is read when its memory is at version {now}")),
            Some(_) => lies(value),
        };
        for (i, line) in self.lines.iter().enumerate() {
            let wrong = |what: String| Error::argument("graph", format!("operation {i}, {}: {what}", line.op));
            line.inputs.iter().try_for_each(|value| read(&versions, value)).map_err(wrong)?;
            if let Some(earlier) = line.repeats.filter(|&earlier| earlier >= i) {
                return Err(wrong(format!("it repeats operation {earlier}, which is not before it")));
            }
            for value in &line.outputs {
                lies(value).map_err(wrong)?;
                let before = versions.get(&value.memory).copied();
                if line.in_place && before.is_none() && !value.shape.contains(&0) {
                    return Err(wrong(format!("{value} is written in place before it is computed")));
                }
                if before.is_some_and(|before| before >= value.version) && !value.shape.contains(&0) {
                    return Err(wrong(format!("{value} was computed before")));
                }
            }
            versions.extend(line.outputs.iter().map(|value| (value.memory, value.version)));
        }
        let wrong = |what: String| Error::argument("graph", format!("a result: {what}"));
        self.results.iter().chain(&self.kept).try_for_each(|value| match versions.get(&value.memory) {
            _ if value.shape.contains(&0) => Ok(()),
            None => Err(wrong(format!("{value} is never computed"))),
            Some(last) if *last != value.version => {
                Err(wrong(format!("{value} is returned when its memory is at version {last}")))
            }
            Some(_) => lies(value).map_err(wrong),
        })
    }
}

impl Value {
    /// The byte after the last one, counted from the start of the memory; `None` if the elements lie nowhere.
    fn end(&self) -> Option<usize> {
        if self.shape.contains(&0) {
            return Some(0);
        }
        let last = match &self.lies {
            None => self.shape.iter().try_fold(1usize, |n, &size| n.checked_mul(size))? - 1,
            Some((strides, _)) if strides.len() != self.shape.len() => return None,
            Some((strides, offset)) => {
                let steps = || self.shape.iter().zip(strides);
                let most = |(&size, &stride): (&usize, &isize)| stride.unsigned_abs().checked_mul(size - 1);
                let mut below = steps().filter(|(_, stride)| **stride < 0).map(most);
                below.try_fold(*offset, |at, step| at.checked_sub(step?))?;
                let mut above = steps().filter(|(_, stride)| **stride > 0).map(most);
                above.try_fold(*offset, |at, step| at.checked_add(step?))?
            }
        };
        last.checked_add(1)?.checked_mul(self.dtype.size())
    }
}

impl From<&Place> for Value {
    fn from(place: &Place) -> Value {
        let Place { memory, version, layout, dtype } = *place;
        let plain = layout == Layout::contiguous(*layout.shape());
        let lies = (!plain).then(|| (layout.strides().to_vec(), layout.offset()));
        Value { memory, version, dtype, shape: layout.dims().to_vec(), lies }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "%{}", self.memory)?;
        if self.version > 0 {
            write!(f, ".{}", self.version)?;
        }
        write!(f, ": {}{:?}", self.dtype, self.shape)?;
        match &self.lies {
            Some((strides, offset)) => {
                let strides: Vec<String> = strides.iter().map(isize::to_string).collect();
                write!(f, "{{{} at {offset}}}", strides.join(", "))
            }
            None => Ok(()),
        }
    }
}

fn list(values: &[Value]) -> String {
    values.iter().map(Value::to_string).collect::<Vec<_>>().join(", ")
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "step on {}", self.device)?;
        for line in &self.lines {
            let sign = if line.in_place { "<-" } else { "=" };
            write!(f, "  {} {sign} {}({})", list(&line.outputs), line.op, list(&line.inputs))?;
            if let Some(earlier) = line.repeats {
                write!(f, " repeats {earlier}")?;
            }
            writeln!(f, "  // {}", line.location)?;
        }
        writeln!(f, "  return {}", list(&self.results))?;
        self.kept.iter().try_for_each(|value| writeln!(f, "  keep {value}"))?;
        self.memories.iter().try_for_each(|(i, origin, bytes)| writeln!(f, "  %{i} is {origin}, {bytes} bytes"))
    }
}

impl FromStr for Text {
    type Err = Error;

    /// Reads what [`Display`](fmt::Display) prints. The error names the line that is no line of a graph.
    #[track_caller]
    fn from_str(text: &str) -> Result<Text> {
        let mut lines = text.lines();
        let device = lines.next().and_then(|line| line.strip_prefix("step on "));
        let Some(device) = device else { return Err(Error::argument("graph", "line 1 is not `step on DEVICE`")) };
        let mut read =
            Text { device: device.to_owned(), lines: vec![], results: vec![], kept: vec![], memories: vec![] };
        for (i, line) in lines.enumerate() {
            if read.add(line).is_none() {
                return Err(Error::argument("graph", format!("line {} is no line of a graph: {line}", i + 2)));
            }
        }
        Ok(read)
    }
}

impl Text {
    fn add(&mut self, line: &str) -> Option<()> {
        let line = line.strip_prefix("  ")?;
        if let Some(results) = line.strip_prefix("return ") {
            let (results, "") = values(results)? else { return None };
            self.results = results;
        } else if let Some(value) = line.strip_prefix("keep ") {
            let (value, "") = Value::read(value)? else { return None };
            self.kept.push(value);
        } else if let Some((memory, rest)) = line.split_once(" is ").filter(|(memory, _)| !memory.contains(' ')) {
            let (origin, bytes) = rest.strip_suffix(" bytes")?.rsplit_once(", ")?;
            self.memories.push((memory.strip_prefix('%')?.parse().ok()?, origin.to_owned(), bytes.parse().ok()?));
        } else {
            self.lines.push(Line::read(line)?);
        }
        Some(())
    }
}

impl Line {
    fn read(line: &str) -> Option<Line> {
        let (outputs, rest) = values(line)?;
        let in_place = rest.starts_with(" <- ");
        let rest = rest.strip_prefix(if in_place { " <- " } else { " = " })?;
        let (call, location) = rest.rsplit_once("  // ")?;
        let (call, repeats) = match call.rsplit_once(") repeats ") {
            Some((call, earlier)) => (call, Some(earlier.parse().ok()?)),
            None => (call.strip_suffix(')')?, None),
        };
        let (op, inputs) = call.rsplit_once('(')?;
        let (inputs, "") = values(inputs)? else { return None };
        Some(Line { outputs, in_place, op: op.to_owned(), inputs, repeats, location: location.to_owned() })
    }
}

/// The values at the beginning of a text, and the rest.
fn values(mut text: &str) -> Option<(Vec<Value>, &str)> {
    let mut found = vec![];
    while text.starts_with('%') {
        let (value, rest) = Value::read(text)?;
        found.push(value);
        match rest.strip_prefix(", ") {
            Some(rest) => text = rest,
            None => return Some((found, rest)),
        }
    }
    found.is_empty().then_some((found, text))
}

impl Value {
    /// The value at the beginning of a text, and the rest.
    fn read(text: &str) -> Option<(Value, &str)> {
        let (name, rest) = text.strip_prefix('%')?.split_once(": ")?;
        let (memory, version) = name.split_once('.').unwrap_or((name, "0"));
        let (dtype, rest) = rest.split_once('[')?;
        let (shape, mut rest) = rest.split_once(']')?;
        let mut lies = None;
        if let Some(inner) = rest.strip_prefix('{') {
            let (inner, after) = inner.split_once('}')?;
            let (strides, offset) = inner.rsplit_once(" at ").or_else(|| Some(("", inner.strip_prefix("at ")?)))?;
            lies = Some((numbers(strides)?, offset.parse().ok()?));
            rest = after;
        }
        let (memory, version) = (memory.parse().ok()?, version.parse().ok()?);
        Some((Value { memory, version, dtype: dtype.parse().ok()?, shape: numbers(shape)?, lies }, rest))
    }
}

fn numbers<T: FromStr>(text: &str) -> Option<Vec<T>> {
    if text.is_empty() { Some(vec![]) } else { text.split(", ").map(|n| n.parse().ok()).collect() }
}
