//! Tensors for tests, with any dtype, values from a function, several memory layouts and canaries between elements.

use gradus_backend::{Backend, Buffer, DType, Element, Layout, Scalar, Shape, View, ViewMut};

use crate::CpuBackend;
use crate::access::match_dtype;

/// Evaluates the expression with `$t` as the element type of a dtype.
macro_rules! with_element {
    ($dtype:expr, $t:ident => $body:expr) => {
        match_dtype!(
            $dtype, $t => $body;
            F64: f64, F32: f32, F16: gradus_backend::f16, BF16: gradus_backend::bf16,
            I64: i64, I32: i32, I16: i16, I8: i8, U64: u64, U32: u32, U16: u16, U8: u8, Bool: bool
        )
    };
}

/// The memory layout of a test tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lie {
    Contiguous,
    /// The axes lie in memory in reverse order.
    Transposed,
    /// The elements are every second element of a longer last axis, starting after a gap.
    Spaced,
    /// Every axis runs backwards.
    Flipped,
}

impl Lie {
    pub(crate) const ALL: [Lie; 4] = [Lie::Contiguous, Lie::Transposed, Lie::Spaced, Lie::Flipped];
}

/// A byte value that is used for nothing else, so that it marks memory that has not been written.
pub(crate) const CANARY: u8 = 0x5b;

/// A tensor with its own buffer.
pub(crate) struct Tensor {
    pub(crate) buffer: Buffer,
    pub(crate) dtype: DType,
    pub(crate) layout: Layout,
}

impl Tensor {
    /// Creates a tensor whose element `i` in row-major order is `f(i)`, rounded to the dtype.
    pub(crate) fn new(cpu: &CpuBackend, dtype: DType, dims: &[usize], lie: Lie, f: impl FnMut(usize) -> f64) -> Tensor {
        let mut t = Tensor::canary(cpu, dtype, dims, lie);
        let bytes: Vec<u8> = (0..t.layout.numel())
            .map(f)
            .flat_map(|v| with_element!(dtype, E => E::as_bytes(&[E::from_f64(v)]).to_vec()))
            .collect();
        t.set_bytes(cpu, &bytes);
        t
    }

    /// Creates a tensor full of canary bytes or, for bool, which cannot hold them, full of `true`.
    pub(crate) fn canary(cpu: &CpuBackend, dtype: DType, dims: &[usize], lie: Lie) -> Tensor {
        let shape = Shape::new(dims).unwrap();
        let rank = shape.rank();
        let (elements, layout) = match lie {
            Lie::Contiguous => (shape.numel(), Layout::contiguous(shape)),
            Lie::Transposed => {
                let reversed: Vec<_> = dims.iter().rev().copied().collect();
                let axes: Vec<isize> = (0..rank as isize).rev().collect();
                (shape.numel(), Layout::contiguous(Shape::new(&reversed).unwrap()).permute(&axes).unwrap())
            }
            Lie::Spaced if rank > 0 => {
                let mut wide = dims.to_vec();
                wide[rank - 1] = dims[rank - 1] * 2 + 3;
                let all = Layout::contiguous(Shape::new(&wide).unwrap());
                let end = 1 + (dims[rank - 1] * 2).saturating_sub(1);
                (all.numel(), all.slice(rank - 1, 1, end.max(1), 2).unwrap())
            }
            Lie::Spaced => (1, Layout::contiguous(shape)),
            Lie::Flipped => (shape.numel(), (0..rank).fold(Layout::contiguous(shape), |l, a| l.flip(a))),
        };
        assert_eq!(layout.dims(), dims);
        let bytes = elements * dtype.size();
        let mut buffer = cpu.alloc(bytes).unwrap();
        raw(cpu, &mut buffer).fill(if dtype == DType::Bool { 1 } else { CANARY });
        Tensor { buffer, dtype, layout }
    }

    pub(crate) fn view(&self) -> View<'_> {
        View { buffer: &self.buffer, dtype: self.dtype, layout: &self.layout }
    }

    pub(crate) fn view_mut(&mut self) -> ViewMut<'_> {
        ViewMut { buffer: &mut self.buffer, dtype: self.dtype, layout: &self.layout }
    }

    fn set_bytes(&mut self, cpu: &CpuBackend, bytes: &[u8]) {
        let size = self.dtype.size();
        let all = raw(cpu, &mut self.buffer);
        for (at, b) in self.layout.positions().zip(bytes.chunks_exact(size)) {
            all[at * size..(at + 1) * size].copy_from_slice(b);
        }
    }

    fn memory(&self, cpu: &CpuBackend) -> Vec<u8> {
        let layout = Layout::contiguous(Shape::new(&[self.buffer.bytes()]).unwrap());
        cpu.slice::<u8>("test", View { buffer: &self.buffer, dtype: DType::U8, layout: &layout }).unwrap().to_vec()
    }

    /// Returns the elements in row-major order as bytes, for comparing results bit by bit.
    pub(crate) fn bytes(&self, cpu: &CpuBackend) -> Vec<u8> {
        let size = self.dtype.size();
        let all = self.memory(cpu);
        self.layout.positions().flat_map(|at| all[at * size..(at + 1) * size].to_vec()).collect()
    }

    /// Returns the elements in row-major order.
    pub(crate) fn values(&self, cpu: &CpuBackend) -> Vec<f64> {
        let bytes = self.bytes(cpu);
        with_element!(self.dtype, E => E::from_bytes(&bytes).into_iter().map(E::to_f64).collect())
    }

    /// Asserts that the memory between the elements is unchanged.
    pub(crate) fn assert_gaps_untouched(&self, cpu: &CpuBackend) {
        let size = self.dtype.size();
        let mut all = self.memory(cpu);
        for at in self.layout.positions() {
            all[at * size..(at + 1) * size].fill(if self.dtype == DType::Bool { 1 } else { CANARY });
        }
        let want = if self.dtype == DType::Bool { 1 } else { CANARY };
        assert!(all.iter().all(|&b| b == want), "bytes between elements were written");
    }
}

fn raw<'a>(cpu: &CpuBackend, buffer: &'a mut Buffer) -> &'a mut [u8] {
    let all = Layout::contiguous(Shape::new(&[buffer.bytes()]).unwrap());
    let mut view = ViewMut { buffer, dtype: DType::U8, layout: &all };
    let bytes = cpu.slice_mut::<u8>("test", &mut view).unwrap();
    // SAFETY: this is the memory of `buffer`, which stays mutably borrowed for as long as the result lives.
    unsafe { std::slice::from_raw_parts_mut(bytes.as_mut_ptr(), bytes.len()) }
}

/// Generates numbers in [-1, 1) that look random but are the same every time.
pub(crate) fn noise(seed: u64) -> impl FnMut(usize) -> f64 {
    move |i| f64::from(gradus_backend::philox::word(seed, i as u64)) / 2f64.powi(31) - 1.0
}

/// Generates integers in `-range..=range` that look random but are the same every time.
pub(crate) fn integers(seed: u64, range: u32) -> impl FnMut(usize) -> f64 {
    move |i| f64::from(gradus_backend::philox::word(seed, i as u64) % (2 * range + 1)) - f64::from(range)
}

/// Asserts that two sequences are equal to within `tolerance * (1 + |want|)`; NaN equals NaN.
#[track_caller]
pub(crate) fn assert_close(got: &[f64], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len());
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        let close = g == w || (g.is_nan() && w.is_nan()) || (g - w).abs() <= tolerance * (1.0 + w.abs());
        assert!(close, "element {i}: {g} instead of {w}");
    }
}

/// Returns backends whose results must all have the same bits: with one, two and three threads, and with every
/// instruction set.
pub(crate) fn backends() -> Vec<CpuBackend> {
    let mut all: Vec<_> = [1, 2, 3].map(|n| CpuBackend::with_threads(n).unwrap()).into();
    for isa in crate::isa::Isa::available() {
        all.push(CpuBackend::with_threads(1).unwrap().with_isa(isa.level().name()).unwrap());
    }
    all
}

/// Runs `f` on every backend and asserts that all results have the same bits.
#[track_caller]
pub(crate) fn assert_same_bits(f: impl Fn(&CpuBackend) -> Vec<u8>) {
    let all: Vec<_> = backends().iter().map(f).collect();
    assert!(all.iter().all(|r| *r == all[0]), "the bits depend on threads or on the instruction set");
}

/// Creates a float scalar.
pub(crate) fn float(v: f64) -> Scalar {
    Scalar::Float(v)
}
