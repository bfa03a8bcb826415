//! Samples: one row per operation with everything that the tests need to cover it.
//!
//! The entries of the table of elementwise operations are samples, and so is each row of the macro `others!`. Each
//! sample yields a case of `values.safetensors` (`make.py` draws its inputs and evaluates its `torch`), its rows on the
//! pages, and the checks of all its derivatives. Operations with special inputs are not samples: their cases are in
//! `make.py`, and their calls in the other files of this folder.

use gradus::ops::Class;
use gradus::ops::table::{Entry, Kink, TABLE};
use gradus::prelude::*;

/// A function that calls an operation with the inputs of a case.
pub(crate) type Call = fn(&[Tensor]) -> Result<Vec<Tensor>>;

/// How an input is drawn.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Input {
    /// Floats between two numbers, in a tensor of this shape.
    Floats(f64, f64, &'static [usize]),
    /// Booleans in a tensor of this shape.
    Bools(&'static [usize]),
}

/// An operation, and how to call it.
pub(crate) struct Sample {
    pub(crate) name: &'static str,
    pub(crate) inputs: Vec<Input>,
    pub(crate) call: Call,
    /// A Python expression of the inputs `a`, `b`, `c` and of the scalars. Empty if PyTorch has no such operation.
    pub(crate) torch: &'static str,
    pub(crate) scalars: &'static [(&'static str, f64)],
    /// Points where the operation has no slope, or an infinite one.
    pub(crate) kinks: &'static [Kink],
}

macro_rules! others {
    ($($name:ident { inputs: [$($input:expr),*], torch: $torch:literal, kinks: $kinks:expr, call: $call:expr $(,)? })*) => {
        /// Operations that are not in the table of elementwise operations.
        pub(crate) fn others() -> Vec<Sample> {
            vec![$(Sample {
                name: stringify!($name),
                inputs: vec![$($input),*],
                call: |x| Ok(vec![($call as fn(&[Tensor]) -> Result<Tensor>)(x)?]),
                torch: $torch,
                scalars: &[],
                kinks: $kinks,
            }),*]
        }
    };
}

others! {}

/// Every sample.
pub(crate) fn all() -> Vec<Sample> {
    TABLE.iter().map(of_entry).chain(others()).collect()
}

/// The sample of a table entry. Its floats lie in the range where the operation is smooth, and its shapes broadcast.
pub(crate) fn of_entry(entry: &'static Entry) -> Sample {
    let shapes: &[&[usize]] = match entry.tensors {
        1 => &[&[3, 5]],
        2 => &[&[3, 1, 4], &[5, 1]],
        _ => &[&[3, 4], &[3, 4], &[4]],
    };
    let points = if entry.smooth.is_empty() { &[-2.3, 1.9] } else { entry.smooth };
    let ends = points.iter().fold((f64::INFINITY, -f64::INFINITY), |(low, high), &p| (p.min(low), p.max(high)));
    let is_bool = |i| entry.class == Class::Bool || entry.condition && i == 0;
    let input = |(i, &shape): (usize, &&'static [usize])| match is_bool(i) {
        true => Input::Bools(shape),
        false => Input::Floats(ends.0, ends.1, shape),
    };
    let inputs = shapes.iter().enumerate().map(input).collect();
    let Entry { op, call, torch, scalars, kinks, .. } = *entry;
    Sample { name: op.name(), inputs, call, torch, scalars, kinks }
}

impl Sample {
    /// Draws the inputs of a sample that has no case in the file.
    pub(crate) fn draw(&self, device: &Device) -> Result<Vec<Tensor>> {
        let mut generator = Generator::new(self.name.len() as u64);
        let one = |input: &Input| match *input {
            Input::Floats(low, high, shape) => {
                Tensor::rand(shape, DType::F64, device, &mut generator)?.mul(high - low)?.add(low)
            }
            Input::Bools(shape) => Tensor::rand(shape, DType::F64, device, &mut generator)?.gt(0.5),
        };
        self.inputs.iter().map(one).collect()
    }

    /// The sample as JSON for `make.py`, which stores it with the case.
    pub(crate) fn json(&self) -> String {
        let input = |input: &Input| match input {
            Input::Floats(low, high, shape) => format!("[\"floats\", {shape:?}, {low:?}, {high:?}]"),
            Input::Bools(shape) => format!("[\"bools\", {shape:?}]"),
        };
        json(self.torch, self.inputs.iter().map(input), self.scalars)
    }
}

/// The JSON of a PyTorch expression with its inputs and scalars.
pub(crate) fn json(torch: &str, inputs: impl Iterator<Item = String>, scalars: &[(&str, f64)]) -> String {
    let inputs = inputs.collect::<Vec<_>>().join(", ");
    let scalars = scalars.iter().map(|(name, value)| format!("{name:?}: {value:?}")).collect::<Vec<_>>().join(", ");
    format!("{{\"torch\": {torch:?}, \"inputs\": [{inputs}], \"scalars\": {{{scalars}}}}}")
}
