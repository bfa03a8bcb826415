//! The text of kernels: types, coordinates, instructions, and the functions that CUDA C lacks.

/// Declares the functions that kernels call, each with its name and its text.
macro_rules! library {
    ($($name:ident: $body:literal)*) => {
        /// The functions of this module, each with its name and its text.
        pub(super) const LIBRARY: &[(&str, &str)] = &[$((stringify!($name), $body),)*];
    };
}

mod functions;
mod functions64;
mod library;
mod pairs;
mod scalar;

use std::fmt::Write;

use gradus_backend::{DType, MergedAxes};

pub(crate) use scalar::{binary, cast, constant, instruction};

/// The number of threads in a block, unless a kernel has a reason for another one.
pub(crate) const THREADS: u32 = 256;

/// The types and functions that every kernel can use.
const PRELUDE: &str = include_str!("prelude.cu");

/// The type of an element in memory.
pub(crate) fn element(dtype: DType) -> &'static str {
    match dtype {
        DType::F16 => "f16",
        DType::BF16 => "bf16",
        DType::Bool => "b8",
        d => compute(d),
    }
}

/// The type that a dtype computes in.
pub(crate) fn compute(dtype: DType) -> &'static str {
    match dtype {
        DType::F16 | DType::BF16 => "f32",
        DType::Bool => "bool",
        d => d.name(),
    }
}

/// The text of a kernel under construction.
#[derive(Debug, Default)]
pub(crate) struct Text {
    head: String,
    parameters: Vec<String>,
    body: String,
}

impl Text {
    pub(crate) fn new() -> Text {
        Text::default()
    }

    /// Adds a line outside the kernel.
    pub(crate) fn declare(&mut self, line: impl std::fmt::Display) {
        let _ = writeln!(self.head, "{line}");
    }

    /// Adds a parameter.
    pub(crate) fn parameter(&mut self, declaration: impl std::fmt::Display) {
        self.parameters.push(declaration.to_string());
    }

    /// Adds a parameter NAME that is a struct of `count` numbers of type `long long`, `NAME.v[i]`; see
    /// [`Arguments::longs`](crate::arguments::Arguments::longs).
    pub(crate) fn longs(&mut self, name: &str, count: usize) {
        self.declare(format_args!("struct {name}_longs {{ i64 v[{count}]; }};"));
        self.parameter(format_args!("const {name}_longs {name}"));
    }

    /// Adds a line to the kernel.
    pub(crate) fn line(&mut self, line: impl std::fmt::Display) {
        let _ = writeln!(self.body, "  {line}");
    }

    /// The whole text, whose kernel is called `entry` and runs in blocks of at most `threads` threads.
    pub(crate) fn finish(self, entry: &str, threads: u32) -> String {
        let parameters = self.parameters.join(", ");
        let kernel = format!(
            "{}extern \"C\" __global__ void __launch_bounds__({threads}) {entry}({parameters}) {{\n{}}}\n",
            self.head, self.body
        );
        whole(&kernel)
    }
}

/// A text of kernels, preceded by the prelude and the library functions that it calls.
pub(crate) fn whole(kernels: &str) -> String {
    format!("{PRELUDE}{}{kernels}", library::used_by(kernels))
}

/// The name of the kernel of an operation. CUDA C has functions called `exp` and `max` already.
pub(crate) fn name_in_c(op: &str) -> String {
    let plain = op.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' });
    "gradus_".chars().chain(plain).collect()
}

/// Whether positions along these axes, and their numbers, fit 32 bits.
pub(crate) fn is_small(axes: &MergedAxes) -> bool {
    let reach = |steps: &Vec<isize>| {
        axes.dims.iter().zip(steps).map(|(&d, &s)| (d as i128 - 1) * (s as i128).abs()).sum::<i128>()
    };
    let most = i128::from(i32::MAX);
    axes.dims.iter().map(|&d| d as i128).product::<i128>() <= most && axes.steps.iter().all(|s| reach(s) <= most)
}

/// The parameters for [`coordinates`] and [`position`]: the sizes of the axes, then the steps of each operand.
pub(crate) fn axes_longs(axes: &MergedAxes) -> Vec<i64> {
    let steps = axes.steps.iter().flatten().map(|&s| s as i64);
    axes.dims.iter().map(|&d| d as i64).chain(steps).collect()
}

/// Adds code that splits the number `of`, of type `ty`, into coordinates `NAME0, NAME1, ..` along axes whose sizes are
/// the first numbers of the parameter `axes`.
pub(crate) fn coordinates(text: &mut Text, ty: &str, name: &str, of: &str, rank: usize, axes: &str) {
    if rank == 1 {
        text.line(format_args!("const {ty} {name}0 = {of};"));
    } else if rank > 1 {
        text.line(format_args!("{ty} {name}_rest = {of};"));
        for axis in (1..rank).rev() {
            text.line(format_args!(
                "const {ty} {name}{axis} = {name}_rest % ({ty}){axes}.v[{axis}]; {name}_rest /= ({ty}){axes}.v[{axis}];"
            ));
        }
        text.line(format_args!("const {ty} {name}0 = {name}_rest;"));
    }
}

/// The position `sum(NAMEi * stride i)` of operand number `operand`, as a signed number.
pub(crate) fn position(small: bool, name: &str, rank: usize, axes: &str, operand: usize) -> String {
    let ty = if small { "i32" } else { "i64" };
    let term = |axis| format!("({ty}){name}{axis} * ({ty}){axes}.v[{}]", (operand + 1) * rank + axis);
    match rank {
        0 => "0".to_owned(),
        _ => (0..rank).map(term).collect::<Vec<_>>().join(" + "),
    }
}
