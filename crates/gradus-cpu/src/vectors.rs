//! Sixteen numbers held as one value in explicit vector registers. They are for loops over few chunks, where LLVM would
//! compile arrays of sixteen numbers to vectors of only two or four. Each operation is one IEEE operation per number,
//! so all instances return the same bits, except that the bits of a NaN may differ.
//!
//! All of these operations are inlined into functions that enable the instruction set. A closure passed to such a
//! function must be small enough to be inlined too.

use std::ops::{Add, Div, Mul, Sub};

use crate::gemm::Real;
use crate::lanes::{LANES, larger};

/// The operations of one instruction set. A value of this type is proof that the machine has that instruction set.
pub(crate) trait Vectors: Copy {
    type Number: Real;
    type Vector: Copy
        + Add<Output = Self::Vector>
        + Sub<Output = Self::Vector>
        + Mul<Output = Self::Vector>
        + Div<Output = Self::Vector>;
    type Mask: Copy;
    fn splat(self, x: Self::Number) -> Self::Vector;
    fn load(self, from: &[Self::Number; LANES]) -> Self::Vector;
    /// Loads a slice of at most sixteen numbers and sets the other lanes to 0.
    fn load_first(self, from: &[Self::Number]) -> Self::Vector;
    fn store(self, v: Self::Vector, to: &mut [Self::Number; LANES]);
    /// Returns `a * b + c`, rounded once.
    fn fused(self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector;
    /// Returns `b` in the lanes where it is larger than `a`, and otherwise `a`.
    fn larger(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// Returns a mask of the first `lanes` lanes.
    fn first(self, lanes: usize) -> Self::Mask;
    /// Returns the square root of each number.
    fn sqrt(self, a: Self::Vector) -> Self::Vector;
    /// Clears the sign of each number, also that of a NaN.
    fn abs(self, a: Self::Vector) -> Self::Vector;
    /// Flips the sign of each number, also that of a NaN.
    fn neg(self, a: Self::Vector) -> Self::Vector;
    /// Returns a mask of the lanes in which the comparison `HOW` holds: [`EQ`], [`NE`], [`LT`] or [`LE`].
    fn compare<const HOW: i32>(self, a: Self::Vector, b: Self::Vector) -> Self::Mask;
    /// Returns `yes` in the lanes of the mask and `no` in the others.
    fn select(self, mask: Self::Mask, yes: Self::Vector, no: Self::Vector) -> Self::Vector;
}

/// Comparisons, numbered as in the instructions of x86. All but `NE` are false for NaN.
pub(crate) const EQ: i32 = 0x00;
pub(crate) const NE: i32 = 0x04;
pub(crate) const LT: i32 = 0x11;
pub(crate) const LE: i32 = 0x12;

/// A number type that has vectors in every instruction set.
pub(crate) trait Vectorized: Real {
    #[cfg(target_arch = "x86_64")]
    type Avx512: Vectors<Number = Self>;
    #[cfg(target_arch = "x86_64")]
    type Avx2: Vectors<Number = Self>;
    /// # Safety
    /// The machine must have the instruction set.
    #[cfg(target_arch = "x86_64")]
    unsafe fn avx512() -> Self::Avx512;
    /// # Safety
    /// The machine must have the instruction set.
    #[cfg(target_arch = "x86_64")]
    unsafe fn avx2() -> Self::Avx2;
}

/// Like [`per_isa!`](crate::isa::per_isa), but for a body that takes the [`Vectors`] of a number type before the
/// arguments.
macro_rules! per_vectors {
    ($t:ty: $(fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? = $body:expr;)*) => {$(
        fn $name(isa: $crate::isa::Isa, $($arg: $ty),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            use $crate::vectors::Vectorized;
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c,bmi2,avx512f,avx512bw,avx512dq,avx512vl")]
            fn avx512($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: this function is called only where the machine has its features.
                $body(unsafe { <$t>::avx512() }, $($arg),*)
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c,bmi2")]
            fn avx2($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: as above.
                $body(unsafe { <$t>::avx2() }, $($arg),*)
            }
            match isa.level() {
                #[cfg(target_arch = "x86_64")]
                // SAFETY: an `Isa` of this level exists only if this machine was found to have these features.
                $crate::isa::Level::Avx512 => unsafe { avx512($($arg),*) },
                #[cfg(target_arch = "x86_64")]
                // SAFETY: as above.
                $crate::isa::Level::Avx2 => unsafe { avx2($($arg),*) },
                $crate::isa::Level::Portable => $body($crate::vectors::Arrays::<$t>::new(), $($arg),*),
            }
        }
    )*};
}
pub(crate) use per_vectors;

/// Vectors for any machine, made of arrays.
#[derive(Clone, Copy)]
pub(crate) struct Arrays<T>(std::marker::PhantomData<T>);

impl<T> Arrays<T> {
    pub(crate) fn new() -> Self {
        Arrays(std::marker::PhantomData)
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Array<T>([T; LANES]);

/// The operations on signs and roots that [`Real`] lacks.
pub(crate) trait Signed: Copy {
    fn root(self) -> Self;
    fn magnitude(self) -> Self;
    fn negated(self) -> Self;
}

macro_rules! signed {
    ($($t:ty)*) => {$(
        impl Signed for $t {
            #[inline(always)]
            fn root(self) -> $t {
                self.sqrt()
            }
            #[inline(always)]
            fn magnitude(self) -> $t {
                self.abs()
            }
            #[inline(always)]
            fn negated(self) -> $t {
                -self
            }
        }
    )*};
}
signed! { f32 f64 }

impl<T: Real + PartialOrd + Signed> Vectors for Arrays<T>
where
    T: Sub<Output = T> + Div<Output = T>,
{
    type Number = T;
    type Vector = Array<T>;
    /// A lane each, which compilers keep in vectors.
    type Mask = [bool; LANES];
    #[inline(always)]
    fn splat(self, x: T) -> Array<T> {
        Array([x; LANES])
    }
    #[inline(always)]
    fn load(self, from: &[T; LANES]) -> Array<T> {
        Array(*from)
    }
    #[inline(always)]
    fn load_first(self, from: &[T]) -> Array<T> {
        let mut all = [T::ZERO; LANES];
        all[..from.len()].copy_from_slice(from);
        Array(all)
    }
    #[inline(always)]
    fn store(self, v: Array<T>, to: &mut [T; LANES]) {
        *to = v.0;
    }
    #[inline(always)]
    fn fused(self, a: Array<T>, b: Array<T>, mut c: Array<T>) -> Array<T> {
        for l in 0..LANES {
            c.0[l] = a.0[l].fused(b.0[l], c.0[l]);
        }
        c
    }
    #[inline(always)]
    fn larger(self, mut a: Array<T>, b: Array<T>) -> Array<T> {
        for l in 0..LANES {
            a.0[l] = larger(a.0[l], b.0[l]);
        }
        a
    }
    #[inline(always)]
    fn first(self, lanes: usize) -> [bool; LANES] {
        std::array::from_fn(|l| l < lanes)
    }
    #[inline(always)]
    fn sqrt(self, a: Array<T>) -> Array<T> {
        Array(a.0.map(T::root))
    }
    #[inline(always)]
    fn abs(self, a: Array<T>) -> Array<T> {
        Array(a.0.map(T::magnitude))
    }
    #[inline(always)]
    fn neg(self, a: Array<T>) -> Array<T> {
        Array(a.0.map(T::negated))
    }
    #[inline(always)]
    fn compare<const HOW: i32>(self, a: Array<T>, b: Array<T>) -> [bool; LANES] {
        let holds = |l: usize| match HOW {
            EQ => a.0[l] == b.0[l],
            NE => a.0[l] != b.0[l],
            LT => a.0[l] < b.0[l],
            _ => a.0[l] <= b.0[l],
        };
        std::array::from_fn(holds)
    }
    #[inline(always)]
    fn select(self, mask: [bool; LANES], yes: Array<T>, no: Array<T>) -> Array<T> {
        Array(std::array::from_fn(|l| if mask[l] { yes.0[l] } else { no.0[l] }))
    }
}

macro_rules! array_operator {
    ($($trait:ident $method:ident)*) => {$(
        impl<T: $trait<Output = T> + Copy> $trait for Array<T> {
            type Output = Self;
            #[inline(always)]
            fn $method(mut self, b: Self) -> Self {
                for l in 0..LANES {
                    self.0[l] = self.0[l].$method(b.0[l]);
                }
                self
            }
        }
    )*};
}
array_operator! { Add add Sub sub Mul mul Div div }

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;
    use std::ops::{Add, Div, Mul, Sub};

    use super::{LANES, Vectorized, Vectors};

    /// The index of each lane.
    const NUMBERS: [f64; LANES] = [0., 1., 2., 3., 4., 5., 6., 7., 8., 9., 10., 11., 12., 13., 14., 15.];

    // SAFETY of every operation: vectors are created only through a value of `$vectors`, which exists only if the
    // machine has the instruction set. Loads and stores stay within an array or, through a mask, within a slice.
    macro_rules! vectors {
        ($vectors:ident $vector:ident: $t:ty, $register:ty, $mask:ty, $parts:literal; $splat:ident $load:ident
         $load_some:expr; $store:ident $fused:ident $max:ident $sqrt:ident $andnot:ident $xor:ident; $compare:ident $select:expr; $($trait:ident $method:ident $op:ident)*) => {
            #[derive(Clone, Copy)]
            pub(crate) struct $vectors(());
            #[derive(Clone, Copy)]
            pub(crate) struct $vector([$register; $parts]);

            impl $vectors {
                const WIDTH: usize = LANES / $parts;
            }

            impl Vectors for $vectors {
                type Number = $t;
                type Vector = $vector;
                type Mask = [$mask; $parts];
                #[inline(always)]
                fn splat(self, x: $t) -> $vector {
                    // SAFETY: see above.
                    $vector([unsafe { $splat(x) }; $parts])
                }
                #[inline(always)]
                fn load(self, from: &[$t; LANES]) -> $vector {
                    let mut v = self.splat(0.0);
                    for p in 0..$parts {
                        // SAFETY: see above.
                        v.0[p] = unsafe { $load(from.as_ptr().add(p * Self::WIDTH)) };
                    }
                    v
                }
                #[inline(always)]
                fn load_first(self, from: &[$t]) -> $vector {
                    assert!(from.len() <= LANES);
                    let (mask, mut v) = (self.first(from.len()), self.splat(0.0));
                    for p in 0..$parts {
                        // SAFETY: see above; lanes outside the mask are not read.
                        v.0[p] = unsafe { $load_some(mask[p], from.as_ptr().wrapping_add(p * Self::WIDTH)) };
                    }
                    v
                }
                #[inline(always)]
                fn store(self, v: $vector, to: &mut [$t; LANES]) {
                    for p in 0..$parts {
                        // SAFETY: see above.
                        unsafe { $store(to.as_mut_ptr().add(p * Self::WIDTH), v.0[p]) };
                    }
                }
                #[inline(always)]
                fn fused(self, a: $vector, b: $vector, mut c: $vector) -> $vector {
                    for p in 0..$parts {
                        // SAFETY: see above.
                        c.0[p] = unsafe { $fused(a.0[p], b.0[p], c.0[p]) };
                    }
                    c
                }
                #[inline(always)]
                fn larger(self, mut a: $vector, b: $vector) -> $vector {
                    for p in 0..$parts {
                        // SAFETY: see above. `$max` returns its second operand if the numbers are equal or either is
                        // NaN.
                        a.0[p] = unsafe { $max(b.0[p], a.0[p]) };
                    }
                    a
                }
                #[inline(always)]
                fn first(self, lanes: usize) -> [$mask; $parts] {
                    let (lanes, numbers) = (self.splat(lanes as $t), self.load(&NUMBERS.map(|n| n as $t)));
                    // SAFETY: see above.
                    std::array::from_fn(|p| unsafe { $compare::<_CMP_GT_OQ>(lanes.0[p], numbers.0[p]) })
                }
                #[inline(always)]
                fn sqrt(self, mut a: $vector) -> $vector {
                    for p in 0..$parts {
                        // SAFETY: see above.
                        a.0[p] = unsafe { $sqrt(a.0[p]) };
                    }
                    a
                }
                #[inline(always)]
                fn abs(self, mut a: $vector) -> $vector {
                    let sign = self.splat(-0.0);
                    for p in 0..$parts {
                        // SAFETY: see above.
                        a.0[p] = unsafe { $andnot(sign.0[p], a.0[p]) };
                    }
                    a
                }
                #[inline(always)]
                fn neg(self, mut a: $vector) -> $vector {
                    let sign = self.splat(-0.0);
                    for p in 0..$parts {
                        // SAFETY: see above.
                        a.0[p] = unsafe { $xor(sign.0[p], a.0[p]) };
                    }
                    a
                }
                #[inline(always)]
                fn compare<const HOW: i32>(self, a: $vector, b: $vector) -> [$mask; $parts] {
                    // SAFETY: see above.
                    std::array::from_fn(|p| unsafe { $compare::<HOW>(a.0[p], b.0[p]) })
                }
                #[inline(always)]
                fn select(self, mask: [$mask; $parts], yes: $vector, mut no: $vector) -> $vector {
                    for p in 0..$parts {
                        // SAFETY: see above.
                        no.0[p] = unsafe { $select(mask[p], yes.0[p], no.0[p]) };
                    }
                    no
                }
            }

            $(impl $trait for $vector {
                type Output = Self;
                #[inline(always)]
                fn $method(mut self, b: Self) -> Self {
                    for p in 0..$parts {
                        // SAFETY: see above.
                        self.0[p] = unsafe { $op(self.0[p], b.0[p]) };
                    }
                    self
                }
            })*
        };
    }
    vectors! {
        F32Avx512 F32x512: f32, __m512, __mmask16, 1;
        _mm512_set1_ps _mm512_loadu_ps |m, p| _mm512_maskz_loadu_ps(m, p); _mm512_storeu_ps _mm512_fmadd_ps _mm512_max_ps _mm512_sqrt_ps _mm512_andnot_ps _mm512_xor_ps;
        _mm512_cmp_ps_mask |m, yes, no| _mm512_mask_blend_ps(m, no, yes);
        Add add _mm512_add_ps Sub sub _mm512_sub_ps Mul mul _mm512_mul_ps Div div _mm512_div_ps
    }
    vectors! {
        F64Avx512 F64x512: f64, __m512d, __mmask8, 2;
        _mm512_set1_pd _mm512_loadu_pd |m, p| _mm512_maskz_loadu_pd(m, p); _mm512_storeu_pd _mm512_fmadd_pd _mm512_max_pd _mm512_sqrt_pd _mm512_andnot_pd _mm512_xor_pd;
        _mm512_cmp_pd_mask |m, yes, no| _mm512_mask_blend_pd(m, no, yes);
        Add add _mm512_add_pd Sub sub _mm512_sub_pd Mul mul _mm512_mul_pd Div div _mm512_div_pd
    }
    vectors! {
        F32Avx2 F32x256: f32, __m256, __m256, 2;
        _mm256_set1_ps _mm256_loadu_ps |m, p| _mm256_maskload_ps(p, _mm256_castps_si256(m)); _mm256_storeu_ps _mm256_fmadd_ps _mm256_max_ps _mm256_sqrt_ps _mm256_andnot_ps _mm256_xor_ps;
        _mm256_cmp_ps |m, yes, no| _mm256_blendv_ps(no, yes, m);
        Add add _mm256_add_ps Sub sub _mm256_sub_ps Mul mul _mm256_mul_ps Div div _mm256_div_ps
    }
    vectors! {
        F64Avx2 F64x256: f64, __m256d, __m256d, 4;
        _mm256_set1_pd _mm256_loadu_pd |m, p| _mm256_maskload_pd(p, _mm256_castpd_si256(m)); _mm256_storeu_pd _mm256_fmadd_pd _mm256_max_pd _mm256_sqrt_pd _mm256_andnot_pd _mm256_xor_pd;
        _mm256_cmp_pd |m, yes, no| _mm256_blendv_pd(no, yes, m);
        Add add _mm256_add_pd Sub sub _mm256_sub_pd Mul mul _mm256_mul_pd Div div _mm256_div_pd
    }

    macro_rules! vectorized {
        ($t:ty: $avx512:ident $avx2:ident) => {
            impl Vectorized for $t {
                type Avx512 = $avx512;
                type Avx2 = $avx2;
                #[inline(always)]
                unsafe fn avx512() -> $avx512 {
                    $avx512(())
                }
                #[inline(always)]
                unsafe fn avx2() -> $avx2 {
                    $avx2(())
                }
            }
        };
    }
    vectorized! { f32: F32Avx512 F32Avx2 }
    vectorized! { f64: F64Avx512 F64Avx2 }
}

#[cfg(not(target_arch = "x86_64"))]
impl<T: Real> Vectorized for T {}
