//! The arithmetic of reductions. There is one [`Reducer`] for each operation and type, behind a table of functions.
//!
//! Every reduction uses the same fixed tree over the reduced elements in row-major order. A *block* of [`BLOCK`]
//! elements is accumulated in [`LANES`] lanes, with element `i` in lane `i % LANES`, and the lanes are combined by
//! halving. Blocks are combined pairwise: the combination of `2^k` blocks is combined with that of the next `2^k`
//! blocks (see `Cascade`). A contiguous row, a strided row and a column of the same elements therefore have results
//! with the same bits, regardless of the elements around them and of how the work is divided.

use gradus_backend::{DType, ReduceOp, bf16, f16};

use super::sums::{LANES, SumRows};
use crate::access::{Float, Plain, with_word};
use crate::extreme::Extreme;
use crate::isa::{Isa, per_isa, per_isa_256};
use crate::lanes::first_lanes;
use crate::order::Word;

/// The number of lanes that are combined in registers.
const PART: usize = crate::lanes::LANES;
/// The number of elements in a block.
pub(super) const BLOCK: usize = 4096;

/// An operation on a type: `finish(combine(.. combine(IDENTITY, lift(x)) ..))`. `by` distinguishes dtypes of the same
/// size. Its meaning depends on the reducer.
trait Reducer: 'static {
    type In: Plain;
    type Acc: Plain;
    type Out: Plain;
    const IDENTITY: Self::Acc;
    fn lift(x: Self::In, by: u64) -> Self::Acc;
    fn combine(a: Self::Acc, b: Self::Acc) -> Self::Acc;
    fn finish(a: Self::Acc, by: u64) -> Self::Out;
    /// Runs [`blocks`], or an equivalent for the type, on an instruction set.
    fn blocks(isa: Isa, by: u64, x: &[Self::In], n: usize, acc: &mut [Self::Acc]);
    /// Runs [`row`] on an instruction set.
    fn row(isa: Isa, by: u64, x: &[Self::In], acc: &mut [Self::Acc], first: bool);
    /// Runs [`quad`] on an instruction set.
    fn quad(isa: Isa, by: u64, x: [&[Self::In]; 4], acc: &mut [Self::Acc], first: bool);
    /// Runs [`merge`] on an instruction set.
    fn merge(isa: Isa, a: &mut [Self::Acc], b: &[Self::Acc]);
}

/// The functions of a [`Reducer`] on raw bytes. The driver uses only these, so it is compiled only once.
#[derive(Clone, Copy)]
pub(super) struct Kernels {
    /// The size in bytes of an accumulator; `out_size` is that of an element of the output.
    pub(super) acc_size: usize,
    pub(super) out_size: usize,
    /// The argument `by` of the functions.
    pub(super) by: u64,
    /// Reduces `rows` consecutive rows of up to [`BLOCK`] elements each: `(isa, by, x, n, rows, acc)`.
    ///
    /// # Safety
    /// `x` is readable for `n * rows` elements and `acc` is writable for `rows` accumulators. Both are aligned, and
    /// they do not overlap.
    pub(super) blocks: unsafe fn(Isa, u64, *const u8, usize, usize, *mut u8),
    /// Combines a row of `n` elements into `n` accumulators, which start from the identity if `first` is true:
    /// `(isa, by, x, n, acc, first)`.
    ///
    /// # Safety
    /// `x` is readable for `n` elements and `acc` is valid for `n` accumulators. Both are aligned, and they do not
    /// overlap.
    pub(super) row: unsafe fn(Isa, u64, *const u8, usize, *mut u8, bool),
    /// Combines four rows, one after the other: `(isa, by, x, n, acc, first)`.
    ///
    /// # Safety
    /// As for `row`, for each of the four rows.
    pub(super) quad: unsafe fn(Isa, u64, [*const u8; 4], usize, *mut u8, bool),
    /// Combines `n` accumulators at `b` into those at `a`: `(isa, a, b, n)`.
    ///
    /// # Safety
    /// Both are valid for `n` accumulators and aligned, and they do not overlap.
    pub(super) merge: unsafe fn(Isa, *mut u8, *const u8, usize),
    /// Writes `n` results, `stride` elements apart: `(by, acc, out, stride, n)`.
    ///
    /// # Safety
    /// `acc` is readable for `n` accumulators and `out` is writable at every position. Both are aligned, and they do
    /// not overlap.
    pub(super) finish: unsafe fn(u64, *const u8, *mut u8, isize, usize),
}

fn kernels<R: Reducer>(by: u64) -> Kernels {
    /// # Safety
    /// `x` is readable for `n` elements and aligned.
    unsafe fn read<'a, T>(x: *const u8, n: usize) -> &'a [T] {
        // SAFETY: guaranteed by the caller.
        unsafe { std::slice::from_raw_parts(x.cast(), n) }
    }
    /// # Safety
    /// `x` is valid for `n` elements, aligned, and nothing else uses them.
    unsafe fn write<'a, T>(x: *mut u8, n: usize) -> &'a mut [T] {
        // SAFETY: guaranteed by the caller.
        unsafe { std::slice::from_raw_parts_mut(x.cast(), n) }
    }
    Kernels {
        acc_size: size_of::<R::Acc>(),
        out_size: size_of::<R::Out>(),
        by,
        // SAFETY: guaranteed by the callers of the functions in the table.
        blocks: |isa, by, x, n, rows, acc| unsafe { R::blocks(isa, by, read(x, n * rows), n, write(acc, rows)) },
        // SAFETY: as above.
        row: |isa, by, x, n, acc, first| unsafe { R::row(isa, by, read(x, n), write(acc, n), first) },
        // SAFETY: as above.
        quad: |isa, by, [a, b, c, d], n, acc, first| unsafe {
            R::quad(isa, by, [read(a, n), read(b, n), read(c, n), read(d, n)], write(acc, n), first)
        },
        // SAFETY: as above.
        merge: |isa, a, b, n| unsafe { R::merge(isa, write(a, n), read(b, n)) },
        finish: |by, acc, out, stride, n| {
            for i in 0..n {
                // SAFETY: as above.
                unsafe {
                    *out.cast::<R::Out>().offset(i as isize * stride) = R::finish(*acc.cast::<R::Acc>().add(i), by);
                }
            }
        },
    }
}

/// Reduces one row of `n` elements, at most [`BLOCK`], for each accumulator.
#[inline(always)]
fn blocks<R: Reducer>(by: u64, x: &[R::In], n: usize, acc: &mut [R::Acc]) {
    // There are no closures here, because they would be compiled without the instruction set.
    for (i, acc) in acc.iter_mut().enumerate() {
        let x = &x[i * n..];
        *acc =
            if n < LANES && x.len() >= n.next_multiple_of(PART) { narrow::<R>(by, x, n) } else { block::<R>(by, x, n) };
    }
}

/// Returns elements `first..n`, at most [`PART`] of them, in lanes. The remaining lanes hold the identity. `x` has a
/// whole part from `first` on, even if not all of its elements are used.
#[inline(always)]
fn part<R: Reducer>(by: u64, x: &[R::In], n: usize, first: usize) -> [R::Acc; PART] {
    let mut lanes = [R::IDENTITY; PART];
    if first < n
        && let Some(x) = x[first..].first_chunk::<PART>()
    {
        let counts = first_lanes((n - first).min(PART));
        for j in 0..PART {
            let lifted = R::combine(R::IDENTITY, R::lift(x[j], by));
            lanes[j] = if counts[j] != 0 { lifted } else { R::IDENTITY };
        }
    }
    lanes
}

/// Reduces the first `n` elements, where `n` is less than [`LANES`]. Enough elements must follow for whole vectors.
/// This function does in registers what [`block`] does with lanes in memory.
#[inline(always)]
fn narrow<R: Reducer>(by: u64, x: &[R::In], n: usize) -> R::Acc {
    let mut lanes = part::<R>(by, x, n, 0);
    if n > PART {
        let [b, c, d] = [part::<R>(by, x, n, PART), part::<R>(by, x, n, 2 * PART), part::<R>(by, x, n, 3 * PART)];
        for j in 0..PART {
            lanes[j] = R::combine(R::combine(lanes[j], c[j]), R::combine(b[j], d[j]));
        }
    }
    halved::<R, PART>(&mut lanes)
}

/// Reduces the first `n` elements, at most [`BLOCK`].
#[inline(always)]
fn block<R: Reducer>(by: u64, x: &[R::In], n: usize) -> R::Acc {
    // The lanes are kept in memory, because LLVM would split lanes in registers into scalars. The elements are read
    // strictly in order, as the processor's prefetchers expect.
    let mut all = [R::IDENTITY; LANES];
    let lanes: &mut [R::Acc; LANES] = std::hint::black_box(&mut all);
    let mut chunks = x[..n].chunks_exact(LANES);
    for chunk in &mut chunks {
        for j in 0..LANES {
            lanes[j] = R::combine(lanes[j], R::lift(chunk[j], by));
        }
    }
    for (lane, &v) in lanes.iter_mut().zip(chunks.remainder()) {
        *lane = R::combine(*lane, R::lift(v, by));
    }
    halved::<R, LANES>(lanes)
}

/// Combines the upper half of the lanes with the lower half until one lane is left. As in [`blocks`], there are no
/// closures.
#[inline(always)]
fn halved<R: Reducer, const N: usize>(lanes: &mut [R::Acc; N]) -> R::Acc {
    let mut half = N / 2;
    while half > 0 {
        for j in 0..half {
            lanes[j] = R::combine(lanes[j], lanes[j + half]);
        }
        half /= 2;
    }
    lanes[0]
}

/// Combines a row into accumulators, one per element.
#[inline(always)]
fn row<R: Reducer>(by: u64, x: &[R::In], acc: &mut [R::Acc], first: bool) {
    if first {
        for (a, &x) in acc.iter_mut().zip(x) {
            *a = R::combine(R::IDENTITY, R::lift(x, by));
        }
    } else {
        for (a, &x) in acc.iter_mut().zip(x) {
            *a = R::combine(*a, R::lift(x, by));
        }
    }
}

/// Combines four rows into accumulators, in order.
#[inline(always)]
fn quad<R: Reducer>(by: u64, [a, b, c, d]: [&[R::In]; 4], acc: &mut [R::Acc], first: bool) {
    let n = acc.len();
    let (a, b, c, d) = (&a[..n], &b[..n], &c[..n], &d[..n]);
    if first {
        acc.fill(R::IDENTITY);
    }
    for j in 0..n {
        let pair = R::combine(R::combine(acc[j], R::lift(a[j], by)), R::lift(b[j], by));
        acc[j] = R::combine(R::combine(pair, R::lift(c[j], by)), R::lift(d[j], by));
    }
}

/// Combines the accumulators `b` into the accumulators `a`.
#[inline(always)]
fn merge<R: Reducer>(a: &mut [R::Acc], b: &[R::Acc]) {
    for (a, &b) in a.iter_mut().zip(b) {
        *a = R::combine(*a, b);
    }
}

macro_rules! reducer {
    ($per_isa:ident $name:ident: $in:ty => $acc:ty => $out:ty, $identity:expr, $lift:expr, $combine:expr, $finish:expr) => {
        reducer!($per_isa $name: $in => $acc => $out, $identity, $lift, $combine, $finish, {
            $per_isa! { fn run(by: u64, x: &[$in], n: usize, acc: &mut [$acc]) = blocks::<$name>; }
            run
        });
    };
    ($per_isa:ident $name:ident: $in:ty => $acc:ty => $out:ty, $identity:expr, $lift:expr, $combine:expr, $finish:expr,
     $blocks:expr) => {
        struct $name;
        impl Reducer for $name {
            type In = $in;
            type Acc = $acc;
            type Out = $out;
            const IDENTITY: $acc = $identity;
            #[inline(always)]
            fn lift(x: $in, by: u64) -> $acc {
                ($lift)(x, by)
            }
            #[inline(always)]
            fn combine(a: $acc, b: $acc) -> $acc {
                ($combine)(a, b)
            }
            #[inline(always)]
            fn finish(a: $acc, by: u64) -> $out {
                ($finish)(a, by)
            }
            fn blocks(isa: Isa, by: u64, x: &[$in], n: usize, acc: &mut [$acc]) {
                ($blocks)(isa, by, x, n, acc);
            }
            fn row(isa: Isa, by: u64, x: &[$in], acc: &mut [$acc], first: bool) {
                $per_isa! { fn run(by: u64, x: &[$in], acc: &mut [$acc], first: bool) = row::<$name>; }
                run(isa, by, x, acc, first);
            }
            fn quad(isa: Isa, by: u64, x: [&[$in]; 4], acc: &mut [$acc], first: bool) {
                $per_isa! { fn run(by: u64, x: [&[$in]; 4], acc: &mut [$acc], first: bool) = quad::<$name>; }
                run(isa, by, x, acc, first);
            }
            fn merge(isa: Isa, a: &mut [$acc], b: &[$acc]) {
                $per_isa! { fn run(a: &mut [$acc], b: &[$acc]) = merge::<$name>; }
                run(isa, a, b);
            }
        }
    };
}

/// Defines a single instance, with the features that the target has at compile time.
macro_rules! portable {
    (fn $name:ident($($arg:ident: $ty:ty),*) $(-> $ret:ty)? = $body:expr;) => {
        fn $name(_: Isa, $($arg: $ty),*) $(-> $ret)? {
            $body($($arg),*)
        }
    };
}

/// The numeric operations on a float type.
macro_rules! floats {
    ($extreme:ident $fn:ident, $t:ty, $c:ty $(, $sum_rows:expr)?) => {
        fn $fn(op: ReduceOp) -> Kernels {
            reducer!(per_isa Sum: $t => $c => $t, 0.0,
                |x: $t, _| Float::widen(x), |a: $c, b: $c| a + b, |a, _| <$t as Float>::narrow(a) $(, $sum_rows)?);
            reducer!(per_isa_256 Prod: $t => $c => $t, 1.0,
                |x: $t, _| Float::widen(x), |a: $c, b: $c| a * b, |a, _| <$t as Float>::narrow(a));
            reducer!($extreme Max: $t => $c => $t, <$c>::NEG_INFINITY,
                |x: $t, _| Float::widen(x), <$c>::larger, |a, _| <$t as Float>::narrow(a));
            reducer!($extreme Min: $t => $c => $t, <$c>::INFINITY,
                |x: $t, _| Float::widen(x), <$c>::smaller, |a, _| <$t as Float>::narrow(a));
            match op {
                ReduceOp::Prod => kernels::<Prod>(0),
                ReduceOp::Max => kernels::<Max>(0),
                ReduceOp::Min => kernels::<Min>(0),
                _ => kernels::<Sum>(0),
            }
        }
    };
}
floats!(per_isa of_f64, f64, f64, f64::sum_rows);
floats!(per_isa of_f32, f32, f32, f32::sum_rows);
floats!(per_isa_256 of_f16, f16, f32);
floats!(per_isa_256 of_bf16, bf16, f32);

/// The operations on integers of one size, and the logical operations on every dtype of that size.
trait Bits: Word {
    /// Sums and products. `by` is the sign bit, or 0 for unsigned integers. Wrapping arithmetic is the same for signed
    /// and unsigned integers.
    fn numeric(op: ReduceOp, by: u64) -> Kernels;
    /// The largest element, compared as signed numbers after an exclusive or with `by`.
    fn largest(by: u64) -> Kernels;
    /// `Any` and `All`. An element is true if any bit of the mask `by` is set in it.
    fn logical(op: ReduceOp, by: u64) -> Kernels;
}

macro_rules! bits {
    ($($t:ty, $signed:ty;)*) => {$(
        impl Bits for $t {
            fn numeric(op: ReduceOp, by: u64) -> Kernels {
                reducer!(portable Sum: $t => u64 => u64, 0,
                    |x: $t, by: u64| (u64::from(x) ^ by).wrapping_sub(by), u64::wrapping_add, |a, _| a);
                reducer!(portable Prod: $t => u64 => u64, 1,
                    |x: $t, by: u64| (u64::from(x) ^ by).wrapping_sub(by), u64::wrapping_mul, |a, _| a);
                if op == ReduceOp::Sum { kernels::<Sum>(by) } else { kernels::<Prod>(by) }
            }
            fn largest(by: u64) -> Kernels {
                reducer!(portable Max: $t => $signed => $t, <$signed>::MIN,
                    |x: $t, by: u64| (x ^ by as $t) as $signed, <$signed>::max, |a, by: u64| a as $t ^ by as $t);
                kernels::<Max>(by)
            }
            fn logical(op: ReduceOp, by: u64) -> Kernels {
                reducer!(portable Any: $t => u8 => u8, 0,
                    |x: $t, by: u64| u8::from(x & by as $t != 0), |a: u8, b: u8| a | b, |a, _| a);
                reducer!(portable All: $t => u8 => u8, 1,
                    |x: $t, by: u64| u8::from(x & by as $t != 0), |a: u8, b: u8| a & b, |a, _| a);
                if op == ReduceOp::Any { kernels::<Any>(by) } else { kernels::<All>(by) }
            }
        }
    )*};
}
bits! { u64, i64; u32, i32; u16, i16; u8, i8; }

/// Sums and products of booleans. Every byte other than 0 is true.
fn of_bool(op: ReduceOp) -> Kernels {
    reducer!(portable Sum: u8 => u64 => u64, 0, |x: u8, _| u64::from(x != 0), u64::wrapping_add, |a, _| a);
    reducer!(portable Prod: u8 => u64 => u64, 1, |x: u8, _| u64::from(x != 0), u64::wrapping_mul, |a, _| a);
    if op == ReduceOp::Sum { kernels::<Sum>(0) } else { kernels::<Prod>(0) }
}

/// Returns the functions of an operation on a dtype.
pub(super) fn table(op: ReduceOp, dtype: DType) -> Kernels {
    let sign = 1 << (8 * dtype.size() - 1);
    let op = match op {
        ReduceOp::Max if dtype == DType::Bool => ReduceOp::Any,
        ReduceOp::Min if dtype == DType::Bool => ReduceOp::All,
        op => op,
    };
    match (dtype, op) {
        // The sign bit of a float does not count, because -0 is false.
        (_, ReduceOp::Any | ReduceOp::All) => {
            let by = if dtype.is_float() { !sign } else { u64::MAX };
            with_word!(dtype.size(), W => W::logical(op, by))
        }
        (DType::F64, _) => of_f64(op),
        (DType::F32, _) => of_f32(op),
        (DType::F16, _) => of_f16(op),
        (DType::BF16, _) => of_bf16(op),
        (DType::Bool, _) => of_bool(op),
        (_, ReduceOp::Sum | ReduceOp::Prod) => {
            with_word!(dtype.size(), W => W::numeric(op, if dtype.is_signed() { sign } else { 0 }))
        }
        (_, ReduceOp::Max | ReduceOp::Min) => {
            // Flipping the sign bit turns unsigned numbers into signed ones in the same order. Flipping all bits as
            // well reverses the order, so that the largest number is the smallest.
            let unsigned = if dtype.is_signed() { 0 } else { sign };
            let by = if op == ReduceOp::Max { unsigned } else { !unsigned };
            with_word!(dtype.size(), W => W::largest(by))
        }
    }
}
