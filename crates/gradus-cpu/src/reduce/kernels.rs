//! What a reduction does to elements: one [`Reducer`] for each operation and type, behind a table of functions.
//!
//! Every reduction is the same fixed tree over the reduced elements in row-major order. A *block* of [`BLOCK`] elements
//! is accumulated in [`LANES`] lanes, element `i` into lane `i % LANES`; the lanes are combined by halving. Blocks are
//! combined pairwise, a power of two with its like (`Cascade`). So a row that is contiguous, one that is strided and a
//! column all give the same bits, whatever lies around them and however the work is cut.

use gradus_backend::{DType, ReduceOp, bf16, f16};

use crate::access::{Float, Plain};
use crate::extreme::Extreme;
use crate::isa::{Isa, per_isa};

/// Lanes that a block is accumulated in.
pub(super) const LANES: usize = 64;
/// Elements of a block.
pub(super) const BLOCK: usize = 4096;

/// An operation on a type: `finish(combine(.. combine(IDENTITY, lift(x)) ..))`.
trait Reducer: 'static {
    type In: Plain;
    type Acc: Plain;
    type Out: Plain;
    const IDENTITY: Self::Acc;
    fn lift(x: Self::In) -> Self::Acc;
    fn combine(a: Self::Acc, b: Self::Acc) -> Self::Acc;
    fn finish(a: Self::Acc) -> Self::Out;
    /// [`block`] on an instruction set.
    fn block(isa: Isa, x: &[Self::In]) -> Self::Acc;
    /// [`row`] on an instruction set.
    fn row(isa: Isa, x: &[Self::In], acc: &mut [Self::Acc], first: bool);
    /// [`quad`] on an instruction set.
    fn quad(isa: Isa, x: [&[Self::In]; 4], acc: &mut [Self::Acc], first: bool);
    /// [`merge`] on an instruction set.
    fn merge(isa: Isa, a: &mut [Self::Acc], b: &[Self::Acc]);
}

/// The functions of a [`Reducer`], on bytes: what the driver, which is compiled once, works with.
#[derive(Clone, Copy)]
pub(super) struct Kernels {
    /// Bytes of an accumulator and of an element of the output.
    pub(super) acc_size: usize,
    pub(super) out_size: usize,
    /// Reduces up to [`BLOCK`] contiguous elements: `(isa, x, n, acc)`.
    ///
    /// # Safety
    /// `x` is readable for `n` elements, `acc` writable for one accumulator; both aligned.
    pub(super) block: unsafe fn(Isa, *const u8, usize, *mut u8),
    /// Combines a row of `n` elements into as many accumulators, which start fresh if `first`: `(isa, x, n, acc, first)`.
    ///
    /// # Safety
    /// `x` is readable for `n` elements, `acc` valid for `n` accumulators; both aligned, no overlap.
    pub(super) row: unsafe fn(Isa, *const u8, usize, *mut u8, bool),
    /// Combines four rows, one after the other: `(isa, x, n, acc, first)`.
    ///
    /// # Safety
    /// As for `row`, each of the four.
    pub(super) quad: unsafe fn(Isa, [*const u8; 4], usize, *mut u8, bool),
    /// Combines `n` accumulators at `b` into those at `a`: `(isa, a, b, n)`.
    ///
    /// # Safety
    /// Both are valid for `n` accumulators, aligned, and do not overlap.
    pub(super) merge: unsafe fn(Isa, *mut u8, *const u8, usize),
    /// Writes `n` results, `stride` elements apart: `(acc, out, stride, n)`.
    ///
    /// # Safety
    /// `acc` is readable for `n` accumulators, `out` writable at every position; both aligned, no overlap.
    pub(super) finish: unsafe fn(*const u8, *mut u8, isize, usize),
}

fn kernels<R: Reducer>() -> Kernels {
    /// # Safety
    /// `x` is readable for `n` elements and aligned.
    unsafe fn read<'a, T>(x: *const u8, n: usize) -> &'a [T] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts(x.cast(), n) }
    }
    /// # Safety
    /// `x` is valid for `n` elements, aligned, and nothing else uses them.
    unsafe fn write<'a, T>(x: *mut u8, n: usize) -> &'a mut [T] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(x.cast(), n) }
    }
    Kernels {
        acc_size: size_of::<R::Acc>(),
        out_size: size_of::<R::Out>(),
        // SAFETY: what the table asks of its callers.
        block: |isa, x, n, acc| unsafe { write(acc, 1)[0] = R::block(isa, read(x, n)) },
        // SAFETY: as above.
        row: |isa, x, n, acc, first| unsafe { R::row(isa, read(x, n), write(acc, n), first) },
        // SAFETY: as above.
        quad: |isa, x, n, acc, first| unsafe { R::quad(isa, x.map(|x| read(x, n)), write(acc, n), first) },
        // SAFETY: as above.
        merge: |isa, a, b, n| unsafe { R::merge(isa, write(a, n), read(b, n)) },
        finish: |acc, out, stride, n| {
            for i in 0..n {
                // SAFETY: as above.
                unsafe { *out.cast::<R::Out>().offset(i as isize * stride) = R::finish(*acc.cast::<R::Acc>().add(i)) };
            }
        },
    }
}

/// Reduces at most [`BLOCK`] elements.
#[inline(always)]
fn block<R: Reducer>(x: &[R::In]) -> R::Acc {
    // Kept in memory: as registers LLVM takes the lanes apart into scalars. The elements are read strictly in order, which
    // is what the prefetchers of the processor follow.
    let mut all = [R::IDENTITY; LANES];
    let lanes: &mut [R::Acc; LANES] = std::hint::black_box(&mut all);
    let mut chunks = x.chunks_exact(LANES);
    for chunk in &mut chunks {
        for j in 0..LANES {
            lanes[j] = R::combine(lanes[j], R::lift(chunk[j]));
        }
    }
    for (lane, &v) in lanes.iter_mut().zip(chunks.remainder()) {
        *lane = R::combine(*lane, R::lift(v));
    }
    let mut half = LANES / 2;
    while half > 0 {
        for j in 0..half {
            lanes[j] = R::combine(lanes[j], lanes[j + half]);
        }
        half /= 2;
    }
    lanes[0]
}

/// Combines a row into accumulators, one an element.
#[inline(always)]
fn row<R: Reducer>(x: &[R::In], acc: &mut [R::Acc], first: bool) {
    if first {
        for (a, &x) in acc.iter_mut().zip(x) {
            *a = R::combine(R::IDENTITY, R::lift(x));
        }
    } else {
        for (a, &x) in acc.iter_mut().zip(x) {
            *a = R::combine(*a, R::lift(x));
        }
    }
}

/// Combines four rows into accumulators, the first row first.
#[inline(always)]
fn quad<R: Reducer>(a: &[R::In], b: &[R::In], c: &[R::In], d: &[R::In], acc: &mut [R::Acc], first: bool) {
    let n = acc.len();
    let (a, b, c, d) = (&a[..n], &b[..n], &c[..n], &d[..n]);
    if first {
        acc.fill(R::IDENTITY);
    }
    for j in 0..n {
        let pair = R::combine(R::combine(acc[j], R::lift(a[j])), R::lift(b[j]));
        acc[j] = R::combine(R::combine(pair, R::lift(c[j])), R::lift(d[j]));
    }
}

/// Combines accumulators into accumulators.
#[inline(always)]
fn merge<R: Reducer>(a: &mut [R::Acc], b: &[R::Acc]) {
    for (a, &b) in a.iter_mut().zip(b) {
        *a = R::combine(*a, b);
    }
}

macro_rules! reducer {
    ($isa:ident $name:ident: $in:ty => $acc:ty => $out:ty, $identity:expr, $lift:expr, $combine:expr, $finish:expr) => {
        struct $name;
        impl Reducer for $name {
            type In = $in;
            type Acc = $acc;
            type Out = $out;
            const IDENTITY: $acc = $identity;
            #[inline(always)]
            fn lift(x: $in) -> $acc {
                ($lift)(x)
            }
            #[inline(always)]
            fn combine(a: $acc, b: $acc) -> $acc {
                ($combine)(a, b)
            }
            #[inline(always)]
            fn finish(a: $acc) -> $out {
                ($finish)(a)
            }
            reducer!(@$isa $name $in, $acc);
        }
    };
    (@vector $name:ident $in:ty, $acc:ty) => {
        fn block(isa: Isa, x: &[$in]) -> $acc {
            per_isa! { fn run(x: &[$in]) -> $acc = block::<$name>; }
            run(isa, x)
        }
        fn row(isa: Isa, x: &[$in], acc: &mut [$acc], first: bool) {
            per_isa! { fn run(x: &[$in], acc: &mut [$acc], first: bool) = row::<$name>; }
            run(isa, x, acc, first);
        }
        fn quad(isa: Isa, x: [&[$in]; 4], acc: &mut [$acc], first: bool) {
            per_isa! {
                fn run(a: &[$in], b: &[$in], c: &[$in], d: &[$in], acc: &mut [$acc], first: bool) = quad::<$name>;
            }
            run(isa, x[0], x[1], x[2], x[3], acc, first);
        }
        fn merge(isa: Isa, a: &mut [$acc], b: &[$acc]) {
            per_isa! { fn run(a: &mut [$acc], b: &[$acc]) = merge::<$name>; }
            run(isa, a, b);
        }
    };
    (@portable $name:ident $in:ty, $acc:ty) => {
        fn block(_: Isa, x: &[$in]) -> $acc {
            block::<$name>(x)
        }
        fn row(_: Isa, x: &[$in], acc: &mut [$acc], first: bool) {
            row::<$name>(x, acc, first);
        }
        fn quad(_: Isa, [a, b, c, d]: [&[$in]; 4], acc: &mut [$acc], first: bool) {
            quad::<$name>(a, b, c, d, acc, first);
        }
        fn merge(_: Isa, a: &mut [$acc], b: &[$acc]) {
            merge::<$name>(a, b);
        }
    };
}

/// The table for an operation on a float type, or on an integer type.
macro_rules! floats {
    ($fn:ident, $t:ty, $c:ty) => {
        fn $fn(op: ReduceOp) -> Kernels {
            reducer!(vector Sum: $t => $c => $t, 0.0, Float::widen, |a: $c, b: $c| a + b, <$t as Float>::narrow);
            reducer!(vector Prod: $t => $c => $t, 1.0, Float::widen, |a: $c, b: $c| a * b, <$t as Float>::narrow);
            reducer!(vector Max: $t => $c => $t, <$c>::NEG_INFINITY, Float::widen, <$c>::larger, <$t as Float>::narrow);
            reducer!(vector Min: $t => $c => $t, <$c>::INFINITY, Float::widen, <$c>::smaller, <$t as Float>::narrow);
            reducer!(portable Any: $t => u8 => u8, 0, |x: $t| u8::from(x.widen() != 0.0), |a: u8, b: u8| a | b, |a| a);
            reducer!(portable All: $t => u8 => u8, 1, |x: $t| u8::from(x.widen() != 0.0), |a: u8, b: u8| a & b, |a| a);
            match op {
                ReduceOp::Sum => kernels::<Sum>(),
                ReduceOp::Prod => kernels::<Prod>(),
                ReduceOp::Max => kernels::<Max>(),
                ReduceOp::Min => kernels::<Min>(),
                ReduceOp::Any => kernels::<Any>(),
                ReduceOp::All => kernels::<All>(),
            }
        }
    };
}
macro_rules! ints {
    ($fn:ident, $t:ty, $c:ty, $lift:expr) => {
        fn $fn(op: ReduceOp) -> Kernels {
            reducer!(portable Sum: $t => $c => $c, 0, |x: $t| $lift(x) as $c, <$c>::wrapping_add, |a| a);
            reducer!(portable Prod: $t => $c => $c, 1, |x: $t| $lift(x) as $c, <$c>::wrapping_mul, |a| a);
            reducer!(portable Max: $t => $t => $t, <$t>::MIN, $lift, <$t>::max, |a| a);
            reducer!(portable Min: $t => $t => $t, <$t>::MAX, $lift, <$t>::min, |a| a);
            reducer!(portable Any: $t => u8 => u8, 0, |x: $t| u8::from(x != 0), |a: u8, b: u8| a | b, |a| a);
            reducer!(portable All: $t => u8 => u8, 1, |x: $t| u8::from(x != 0), |a: u8, b: u8| a & b, |a| a);
            match op {
                ReduceOp::Sum => kernels::<Sum>(),
                ReduceOp::Prod => kernels::<Prod>(),
                ReduceOp::Max => kernels::<Max>(),
                ReduceOp::Min => kernels::<Min>(),
                ReduceOp::Any => kernels::<Any>(),
                ReduceOp::All => kernels::<All>(),
            }
        }
    };
}
floats!(of_f64, f64, f64);
floats!(of_f32, f32, f32);
floats!(of_f16, f16, f32);
floats!(of_bf16, bf16, f32);
ints!(of_i64, i64, i64, |x: i64| x);
ints!(of_i32, i32, i64, |x: i32| x);
ints!(of_i16, i16, i64, |x: i16| x);
ints!(of_i8, i8, i64, |x: i8| x);
ints!(of_u64, u64, u64, |x: u64| x);
ints!(of_u32, u32, i64, |x: u32| x);
ints!(of_u16, u16, i64, |x: u16| x);
ints!(of_u8, u8, i64, |x: u8| x);
// Any byte but 0 is true.
ints!(of_bool, u8, i64, |x: u8| u8::from(x != 0));

/// The functions of an operation on a dtype.
pub(super) fn table(op: ReduceOp, dtype: DType) -> Kernels {
    match dtype {
        DType::F64 => of_f64(op),
        DType::F32 => of_f32(op),
        DType::F16 => of_f16(op),
        DType::BF16 => of_bf16(op),
        DType::I64 => of_i64(op),
        DType::I32 => of_i32(op),
        DType::I16 => of_i16(op),
        DType::I8 => of_i8(op),
        DType::U64 => of_u64(op),
        DType::U32 => of_u32(op),
        DType::U16 => of_u16(op),
        DType::U8 => of_u8(op),
        DType::Bool => of_bool(op),
    }
}
