//! Converts the types of the contract to those that cross the plug-in boundary, and back. Values from the other side
//! are checked.

use super::hash::{number, text};
use super::table::*;
use crate::kernel::{Inst, ScalarOp};
use crate::{
    ArgReduceOp, Axes, BackendInfo, BackendKind, DType, Distribution, Error, ErrorKind, Kernel, Layout, MAX_RANK,
    MapArg, MemoryStats, ReduceOp, Result, Scalar, ScanOp, ScatterOp, Shape, View, Window,
};

/// The error for a code that has no meaning.
fn unknown(what: &str, code: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Backend, "plugin", format!("there is no {what} {code}"))
}

fn listed<T: Copy>(what: &str, list: &[T], code: u32) -> Result<T> {
    list.get(code as usize).copied().ok_or_else(|| unknown(what, code))
}

/// The dtype with this code.
pub fn dtype(code: u32) -> Result<DType> {
    listed("dtype", &DType::ALL, code)
}

/// Converts enums that cross the boundary as numbers, and hashes them. Every variant of each enum must be listed.
macro_rules! codes {
    ($hash:ident: $($function:ident $what:literal $type:ident: $($variant:ident)*;)*) => {
        pub(super) const fn $hash(mut hash: u64) -> u64 {
            $(
                hash = text(hash, stringify!($type));
                $(hash = text(hash, stringify!($variant));)*
            )*
            hash
        }
    $(
        #[doc = concat!("The ", $what, " of a number, which `as u32` gives.")]
        pub fn $function(code: u32) -> Result<$type> {
            const ALL: &[$type] = &[$($type::$variant),*];
            // Does not compile if a variant is missing from the list.
            let _ = |all: $type| match all {
                $($type::$variant => (),)*
            };
            const {
                let mut i = 0;
                while i < ALL.len() {
                    assert!(ALL[i] as usize == i);
                    i += 1;
                }
            }
            listed($what, ALL, code)
        }
    )*};
}
codes! { lists:
    reduce_op "reduction" ReduceOp: Sum Prod Max Min Any All;
    arg_reduce_op "arg-reduction" ArgReduceOp: Max Min;
    scan_op "scan" ScanOp: Sum Prod Max Min LogSumExp;
    scatter_op "scatter" ScatterOp: Set Add;
    backend_kind "kind of backend" BackendKind: Cpu Wgpu Cuda Other;
}

/// Maps the kinds of errors to codes, and hashes the mapping. Two kinds also carry numbers of their own.
macro_rules! error_kinds {
    ($hash:ident: $($code:literal $kind:ident)*; $index:literal IndexOutOfBounds $memory:literal OutOfMemory) => {
        pub(super) const fn $hash(mut hash: u64) -> u64 {
            $(hash = number(text(hash, stringify!($kind)), $code);)*
            hash = number(text(hash, "IndexOutOfBounds pos index size"), $index);
            number(text(hash, "OutOfMemory requested"), $memory)
        }

        fn error_code(kind: &ErrorKind) -> (u32, [i64; 3]) {
            match *kind {
                $(ErrorKind::$kind => ($code, [0; 3]),)*
                ErrorKind::IndexOutOfBounds { pos, index, size } => ($index, [pos as i64, index, size as i64]),
                ErrorKind::OutOfMemory { requested } => ($memory, [requested as i64, 0, 0]),
            }
        }

        fn error_kind(code: u32, [a, b, c]: [i64; 3]) -> ErrorKind {
            match code {
                $($code => ErrorKind::$kind,)*
                $index => ErrorKind::IndexOutOfBounds { pos: a as usize, index: b, size: c as usize },
                $memory => ErrorKind::OutOfMemory { requested: a as usize },
                _ => ErrorKind::Backend,
            }
        }
    };
}
error_kinds! { errors:
    0 ShapeMismatch 1 Broadcast 2 InvalidAxis 3 InvalidArgument 4 DTypeMismatch 5 UnsupportedDType 6 DeviceMismatch
    8 Overflow 10 NotContiguous 11 Unsupported 12 Backend 13 Autograd 14 Io 15 Format 16 Peer;
    7 IndexOutOfBounds 9 OutOfMemory
}

/// The meaning of the codes that this file and [`Scalar::bits`] write by hand. If the meaning of a code changes, its
/// line here must change as well.
const FORMS: [&str; 4] = [
    "RawScalar.kind: 0 Bool, 1 Int, 2 Float",
    "RawArg.form: 0 View, 1 Output, 2 Scalar",
    "RawInst.op: 0 Arg(value), 1 Const(value), 2 + i ScalarOp::ALL[i]",
    "RawDistribution.form: 0 Uniform(lo, hi), 1 Normal(mean, std), 2 Bernoulli(p), 3 Int(lo, hi)",
];

/// A hash of the meaning of every code that crosses the boundary, except those of dtypes and instructions.
pub(super) const fn meanings(hash: u64) -> u64 {
    let mut hash = errors(lists(hash));
    let mut i = 0;
    while i < FORMS.len() {
        hash = text(hash, FORMS[i]);
        i += 1;
    }
    hash
}

/// Converts axes to a bit set.
pub fn axes_to_bits(axes: Axes) -> u32 {
    axes.iter().fold(0, |bits, axis| bits | 1 << axis)
}

/// Converts a bit set to axes; a bit beyond the highest rank is an error.
pub fn axes_from_bits(bits: u32) -> Result<Axes> {
    if bits >> MAX_RANK != 0 {
        return Err(unknown("set of axes", bits));
    }
    Ok((0..MAX_RANK).filter(|axis| bits >> axis & 1 == 1).fold(Axes::NONE, Axes::with))
}

impl Text {
    /// An empty text.
    pub const EMPTY: Text = Text { len: 0, bytes: [0; 1024] };

    /// Stores a text, cut off if it is too long.
    pub fn new(s: &str) -> Self {
        let mut text = Text::EMPTY;
        let len = s.floor_char_boundary(text.bytes.len());
        text.bytes[..len].copy_from_slice(&s.as_bytes()[..len]);
        text.len = len as u32;
        text
    }

    /// The stored text; bytes that are not UTF-8 are replaced.
    pub fn to_text(&self) -> String {
        String::from_utf8_lossy(&self.bytes[..self.bytes.len().min(self.len as usize)]).into_owned()
    }
}

impl RawError {
    /// A placeholder without an error.
    pub const NONE: RawError = RawError { kind: 0, numbers: [0; 3], op: Text::EMPTY, message: Text::EMPTY };

    /// Converts an error to the form that crosses the boundary.
    pub fn new(e: &Error) -> Self {
        let (kind, numbers) = error_code(e.kind());
        // A line in the plug-in's source would mean nothing to the caller.
        let rendered = e.clone().without_line().to_string();
        let message = rendered.strip_prefix(e.op()).and_then(|m| m.strip_prefix(": ")).unwrap_or(&rendered);
        RawError { kind, numbers, op: Text::new(e.op()), message: Text::new(message) }
    }

    /// Converts back to an [`Error`].
    pub fn to_error(&self) -> Error {
        let kind = error_kind(self.kind, self.numbers);
        Error::new(kind, self.op.to_text(), self.message.to_text())
    }
}

impl RawInfo {
    /// A placeholder without any information.
    pub const NONE: RawInfo = RawInfo {
        kind: 0,
        dtypes: 0,
        has_memory: 0,
        memory: 0,
        name: Text::EMPTY,
        hardware: Text::EMPTY,
        features: Text::EMPTY,
    };

    /// Converts a backend's description of itself to the form that crosses the boundary.
    pub fn new(info: &BackendInfo, supports: impl Fn(DType) -> bool) -> Self {
        let dtypes = DType::ALL.into_iter().filter(|&d| supports(d)).fold(0, |bits, d| bits | 1 << d as u32);
        RawInfo {
            kind: info.kind as u32,
            dtypes,
            has_memory: u32::from(info.memory.is_some()),
            memory: info.memory.unwrap_or(0),
            name: Text::new(&info.name),
            hardware: Text::new(&info.hardware),
            features: Text::new(&info.features.join("\n")),
        }
    }

    /// Converts back to a [`BackendInfo`].
    pub fn to_info(&self) -> Result<BackendInfo> {
        Ok(BackendInfo {
            name: self.name.to_text(),
            kind: backend_kind(self.kind)?,
            hardware: self.hardware.to_text(),
            memory: (self.has_memory != 0).then_some(self.memory),
            features: self.features.to_text().lines().map(str::to_owned).collect(),
            f32_panel: None,
        })
    }

    /// Whether the backend supports a dtype.
    pub fn supports(&self, dtype: DType) -> bool {
        self.dtypes >> dtype as u32 & 1 == 1
    }
}

impl From<MemoryStats> for RawStats {
    fn from(s: MemoryStats) -> Self {
        let MemoryStats { in_use, peak, cached, buffers, system_allocations } = s;
        RawStats { in_use, peak, cached, buffers, system_allocations }
    }
}

impl From<RawStats> for MemoryStats {
    fn from(s: RawStats) -> Self {
        let RawStats { in_use, peak, cached, buffers, system_allocations } = s;
        MemoryStats { in_use, peak, cached, buffers, system_allocations }
    }
}

impl From<Scalar> for RawScalar {
    fn from(s: Scalar) -> Self {
        let (kind, bits) = s.bits();
        RawScalar { kind: kind.into(), bits }
    }
}

impl RawScalar {
    /// Converts back to a [`Scalar`].
    pub fn to_scalar(self) -> Result<Scalar> {
        let kind = u8::try_from(self.kind).unwrap_or(u8::MAX);
        Scalar::from_bits(kind, self.bits).ok_or_else(|| unknown("kind of scalar", self.kind))
    }
}

impl RawView {
    /// A placeholder without a view.
    const NONE: RawView = RawView {
        buffer: std::ptr::null_mut(),
        dtype: 0,
        rank: 0,
        dims: [0; MAX_RANK],
        strides: [0; MAX_RANK],
        offset: 0,
    };

    /// Converts a view. The other side identifies its buffer by the pointer.
    pub fn new(x: View<'_>) -> Self {
        let mut raw = RawView {
            buffer: x.buffer.as_ptr().as_ptr().cast(),
            dtype: x.dtype as u32,
            rank: x.layout.rank() as u32,
            offset: x.layout.offset(),
            ..RawView::NONE
        };
        raw.dims[..x.layout.rank()].copy_from_slice(x.layout.dims());
        raw.strides[..x.layout.rank()].copy_from_slice(x.layout.strides());
        raw
    }

    /// The dtype and the layout; an error if an element lies outside a buffer of `bytes` bytes.
    pub fn parts(&self, bytes: usize) -> Result<(DType, Layout)> {
        let (dtype, rank) = (dtype(self.dtype)?, self.rank as usize);
        let (Some(dims), Some(strides)) = (self.dims.get(..rank), self.strides.get(..rank)) else {
            return Err(unknown("tensor of rank", rank));
        };
        Ok((dtype, Layout::from_parts(Shape::new(dims)?, strides, self.offset, bytes / dtype.size())?))
    }
}

impl RawArg {
    /// Converts an argument.
    pub fn new(arg: MapArg<'_>) -> Self {
        let none = RawArg { form: 0, output: 0, scalar: Scalar::Int(0).into(), view: RawView::NONE };
        match arg {
            MapArg::View(x) => RawArg { view: RawView::new(x), ..none },
            MapArg::Output(output) => RawArg { form: 1, output, ..none },
            MapArg::Scalar(s) => RawArg { form: 2, scalar: s.into(), ..none },
        }
    }
}

impl RawInst {
    /// Converts an instruction.
    pub fn new(inst: &Inst) -> Self {
        let place = |op| ScalarOp::ALL.iter().position(|o| *o == op).map_or(u16::MAX, |i| i as u16 + 2);
        let (op, value) = match inst.op {
            ScalarOp::Arg(i) => (0, Scalar::Int(i.into())),
            ScalarOp::Const(c) => (1, c),
            op => (place(op), Scalar::Int(0)),
        };
        RawInst { op, dtype: inst.dtype as u16, operands: inst.operands, value: value.into() }
    }

    /// Converts back to an [`Inst`].
    pub fn to_inst(&self) -> Result<Inst> {
        let value = self.value.to_scalar()?;
        let op = match self.op {
            0 => ScalarOp::Arg(u8::try_from(value.to_i64()).map_err(|_| unknown("argument", value))?),
            1 => ScalarOp::Const(value),
            code => listed("instruction", ScalarOp::ALL, u32::from(code) - 2)?,
        };
        Ok(Inst { op, dtype: dtype(self.dtype.into())?, operands: self.operands })
    }
}

/// The parts of a kernel that crosses the boundary; a [`RawKernel`] points to them.
#[derive(Debug)]
pub struct KernelParts {
    args: Vec<u16>,
    insts: Vec<RawInst>,
    outputs: Vec<RawOutput>,
}

impl KernelParts {
    /// Converts the parts of a kernel.
    pub fn new(kernel: &Kernel) -> Self {
        KernelParts {
            args: kernel.args().iter().map(|&d| d as u16).collect(),
            insts: kernel.insts().iter().map(RawInst::new).collect(),
            outputs: kernel.outputs().iter().map(|&(value, d)| RawOutput { value, dtype: d as u16 }).collect(),
        }
    }

    /// Pointers to these parts and to `name`, which are valid while both live.
    pub fn raw(&self, name: &str) -> RawKernel {
        RawKernel {
            name: name.as_ptr(),
            name_len: name.len(),
            args: self.args.as_ptr(),
            args_len: self.args.len(),
            insts: self.insts.as_ptr(),
            insts_len: self.insts.len(),
            outputs: self.outputs.as_ptr(),
            outputs_len: self.outputs.len(),
        }
    }
}

impl From<&Window> for RawWindow {
    fn from(w: &Window) -> Self {
        let Window { rank, kernel, stride, dilation, pad_before, pad_after } = *w;
        RawWindow { rank, kernel, stride, dilation, pad_before, pad_after }
    }
}

impl From<RawWindow> for Window {
    fn from(w: RawWindow) -> Self {
        let RawWindow { rank, kernel, stride, dilation, pad_before, pad_after } = w;
        Window { rank, kernel, stride, dilation, pad_before, pad_after }
    }
}

impl From<Distribution> for RawDistribution {
    fn from(d: Distribution) -> Self {
        let (form, a, b) = match d {
            Distribution::Uniform { lo, hi } => (0, lo.to_bits(), hi.to_bits()),
            Distribution::Normal { mean, std } => (1, mean.to_bits(), std.to_bits()),
            Distribution::Bernoulli { p } => (2, p.to_bits(), 0),
            Distribution::Int { lo, hi } => (3, lo as u64, hi as u64),
        };
        RawDistribution { form, a, b }
    }
}

impl RawDistribution {
    /// Converts back to a [`Distribution`].
    pub fn to_distribution(self) -> Result<Distribution> {
        let (a, b) = (f64::from_bits(self.a), f64::from_bits(self.b));
        Ok(match self.form {
            0 => Distribution::Uniform { lo: a, hi: b },
            1 => Distribution::Normal { mean: a, std: b },
            2 => Distribution::Bernoulli { p: a },
            3 => Distribution::Int { lo: self.a as i64, hi: self.b as i64 },
            other => return Err(unknown("distribution", other)),
        })
    }
}

#[cfg(test)]
#[allow(unreachable_pub)] // for the items that the macros generate
mod tests {
    use super::*;

    #[derive(Debug, Clone, Copy)]
    pub enum Toy {
        Up,
        Down,
    }
    mod as_declared {
        use super::super::*;
        use super::Toy;
        codes! { hash: toy "toy" Toy: Up Down; }
    }

    #[test]
    fn errors_cross_with_kind_numbers_and_words() {
        let at = ErrorKind::IndexOutOfBounds { pos: 4, index: -1, size: 3 };
        let e = Error::new(at.clone(), "gather", "out").operand("x", &[2], DType::F32, "tiny").help("look");
        let back = RawError::new(&e).to_error();
        assert_eq!((back.kind(), back.op(), back.to_string()), (&at, "gather", e.without_line().to_string()));
        for code in 0..17 {
            let raw = RawError { kind: code, ..RawError::NONE };
            assert_eq!(RawError::new(&raw.to_error()).kind, code);
        }
        let long = "é".repeat(2000);
        assert_eq!(Text::new(&long).to_text(), "é".repeat(512));
    }

    #[test]
    fn the_fingerprint_covers_what_codes_mean() {
        // The hashes of the same list, once with a variant renamed and once with two variants swapped. The list of
        // `codes!` itself is complete and in order, or it would not compile.
        let renamed = text(text(text(1, "Toy"), "Up"), "Left");
        let swapped = text(text(text(1, "Toy"), "Down"), "Up");
        let hash = as_declared::hash(1);
        assert!(matches!((as_declared::toy(0), as_declared::toy(1)), (Ok(Toy::Up), Ok(Toy::Down))));
        assert!(as_declared::toy(2).is_err());
        assert!(hash != renamed && hash != swapped);
        assert_eq!(hash, text(text(text(1, "Toy"), "Up"), "Down"));
        // Every part affects the hash.
        assert!(lists(1) != 1 && errors(1) != 1 && meanings(1) != errors(lists(1)));
    }

    #[test]
    fn every_instruction_crosses() {
        let all = ScalarOp::ALL.iter().copied().chain([ScalarOp::Arg(3), ScalarOp::Const(Scalar::Float(0.5))]);
        for op in all {
            let inst = Inst { op, dtype: DType::F32, operands: [1, 2, 3] };
            assert_eq!(RawInst::new(&inst).to_inst().unwrap(), inst);
        }
        let bad =
            RawInst { op: 2 + ScalarOp::ALL.len() as u16, dtype: 0, operands: [0; 3], value: Scalar::Int(0).into() };
        assert!(bad.to_inst().is_err());
    }

    #[test]
    fn axes_and_distributions_cross() {
        let axes = Axes::one(0).with(7);
        assert_eq!(axes_from_bits(axes_to_bits(axes)).unwrap(), axes);
        assert!(axes_from_bits(1 << 8).is_err());
        for d in [
            Distribution::Uniform { lo: -1.0, hi: 2.0 },
            Distribution::Normal { mean: 0.5, std: 2.0 },
            Distribution::Bernoulli { p: 0.25 },
            Distribution::Int { lo: -3, hi: i64::MAX },
        ] {
            assert_eq!(RawDistribution::from(d).to_distribution().unwrap(), d);
        }
        assert!(RawDistribution { form: 4, a: 0, b: 0 }.to_distribution().is_err());
    }
}
