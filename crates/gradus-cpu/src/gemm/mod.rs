//! Matrix products: any strides, any batch, every number type.
//!
//! The sums are defined once (see `kernel`), so an element has the same bits for any number of threads, any instruction
//! set, and any number of rows around it: a row of a batch of 32 equals the same row alone. Operands are read where
//! they lie; at most panels of them are packed. f16 and bf16 are widened as they are packed (bf16 is taken in pairs where
//! there is an instruction for that, `paired`) and rounded once at the end.

mod block;
mod int;
mod kernel;
mod pack;
mod packed;
mod paired;
mod products;
pub(crate) mod transpose;

#[cfg(test)]
mod tests;

use gradus_backend::shape::MAX_RANK;
use gradus_backend::{DType, Error, Result, Scalar, View, ViewMut};

pub(crate) use block::{K_BLOCK, MatMut, Product, k_step, tile};
pub(crate) use kernel::{Micro, Real, Store, THIN_ROWS, thin_vectors};
pub(crate) use pack::{Mat, Pack, Panels};
pub(crate) use products::products;
pub(crate) use transpose::Transpose;

use crate::CpuBackend;
use crate::access::check_dtype;
use crate::check::check_output;
use crate::copy::bits;
use int::Int;

const OP: &str = "gemm";

/// Sizes of a product and where its operands lie: matrices, and batch axes that step from one to the next.
#[derive(Debug, Clone, Copy)]
struct Plan {
    m: usize,
    n: usize,
    k: usize,
    /// Row and column strides of A, B and C.
    strides: [[isize; 2]; 3],
    offsets: [usize; 3],
    /// Batch axes, outermost first.
    batch_rank: usize,
    batch: [usize; MAX_RANK],
    batch_strides: [[isize; 3]; MAX_RANK],
}

impl Plan {
    fn new(a: &View<'_>, b: &View<'_>, c: &ViewMut<'_>) -> Result<Plan> {
        let layouts = [&a.layout, &b.layout, &c.layout];
        let rank = a.layout.rank();
        if rank < 2 || layouts.iter().any(|l| l.rank() != rank) {
            return Err(mismatch("the operands need one rank of at least 2", a, b, c));
        }
        let r = rank - 2;
        let (ad, bd, cd) = (a.layout.dims(), b.layout.dims(), c.layout.dims());
        let (m, n, k) = (ad[r], bd[r + 1], ad[r + 1]);
        if bd[r] != k || cd[r..] != [m, n] {
            return Err(mismatch("the operands are not [m, k], [k, n] and [m, n]", a, b, c));
        }
        if ad[..r] != bd[..r] || ad[..r] != cd[..r] {
            return Err(mismatch("the batch axes differ", a, b, c));
        }
        let mut plan = Plan {
            m,
            n,
            k,
            strides: layouts.map(|l| [l.strides()[r], l.strides()[r + 1]]),
            offsets: layouts.map(|l| l.offset()),
            batch_rank: 0,
            batch: [1; MAX_RANK],
            batch_strides: [[0; 3]; MAX_RANK],
        };
        for (axis, &size) in ad[..r].iter().enumerate() {
            if size != 1 {
                plan.batch[plan.batch_rank] = size;
                plan.batch_strides[plan.batch_rank] = layouts.map(|l| l.strides()[axis]);
                plan.batch_rank += 1;
            }
        }
        Ok(plan)
    }

    /// Turns inner batch axes that share B, and along which the rows of A and C go on, into rows.
    fn fold_rows(&mut self) {
        while self.batch_rank > 0 {
            let last = self.batch_rank - 1;
            let (size, [sa, sb, sc]) = (self.batch[last], self.batch_strides[last]);
            let goes_on = |s: isize, x: usize| self.m == 1 || s == self.strides[x][0] * self.m as isize;
            if sb != 0 || !goes_on(sa, 0) || !goes_on(sc, 2) {
                return;
            }
            if self.m == 1 {
                self.strides[0][0] = sa;
                self.strides[2][0] = sc;
            }
            self.m *= size;
            self.batch_rank -= 1;
        }
    }

    /// Exchanges the roles of rows and columns: `c^T = b^T a^T`, the same sums.
    fn transpose(&mut self) {
        std::mem::swap(&mut self.m, &mut self.n);
        let [a, b, c] = self.strides;
        let flip = |s: [isize; 2]| [s[1], s[0]];
        self.strides = [flip(b), flip(a), flip(c)];
        self.offsets.swap(0, 1);
        self.batch_strides.iter_mut().for_each(|s| s.swap(0, 1));
    }

    fn count(&self) -> usize {
        self.batch[..self.batch_rank].iter().product()
    }

    /// Where the operands of product `i` start.
    fn starts(&self, mut i: usize) -> [usize; 3] {
        let mut at = self.offsets;
        for axis in (0..self.batch_rank).rev() {
            let index = (i % self.batch[axis]) as isize;
            i /= self.batch[axis];
            for (at, s) in at.iter_mut().zip(self.batch_strides[axis]) {
                *at = at.wrapping_add_signed(s.wrapping_mul(index));
            }
        }
        at
    }
}

#[cold]
fn mismatch(message: &str, a: &View<'_>, b: &View<'_>, c: &ViewMut<'_>) -> Error {
    Error::shape(OP, message)
        .operand("a", a.layout.dims(), a.dtype, "cpu")
        .operand("b", b.layout.dims(), b.dtype, "cpu")
        .operand("c", c.layout.dims(), c.dtype, "cpu")
}

/// See [`Backend::gemm`](gradus_backend::Backend::gemm).
pub(crate) fn gemm(
    cpu: &CpuBackend,
    alpha: Scalar,
    a: View<'_>,
    b: View<'_>,
    beta: Scalar,
    c: &mut ViewMut<'_>,
) -> Result<()> {
    check_dtype(OP, "b", b.dtype, a.dtype)?;
    check_dtype(OP, "c", c.dtype, a.dtype)?;
    let (a, b) = (&a, &b);
    let plan = &mut Plan::new(a, b, c)?;
    check_output(OP, "c", c.layout)?;
    match a.dtype {
        DType::F64 => float::<f64>(cpu, plan, alpha, a, b, beta, c),
        DType::F32 => float::<f32>(cpu, plan, alpha, a, b, beta, c),
        DType::F16 => float::<gradus_backend::f16>(cpu, plan, alpha, a, b, beta, c),
        DType::BF16 if paired::fits(cpu, plan, a, b)? => float::<paired::Paired>(cpu, plan, alpha, a, b, beta, c),
        DType::BF16 => float::<gradus_backend::bf16>(cpu, plan, alpha, a, b, beta, c),
        // The low bits of products and sums are the same with a sign and without.
        DType::I64 | DType::U64 => int::<u64>(cpu, plan, alpha, a, b, beta, c),
        DType::I32 | DType::U32 => int::<u32>(cpu, plan, alpha, a, b, beta, c),
        DType::I16 | DType::U16 => int::<u16>(cpu, plan, alpha, a, b, beta, c),
        DType::I8 | DType::U8 => int::<u8>(cpu, plan, alpha, a, b, beta, c),
        DType::Bool => Err(Error::dtype(OP, DType::Bool, "floats and integers")),
    }
}

fn float<S: Pack>(
    cpu: &CpuBackend,
    plan: &mut Plan,
    alpha: Scalar,
    a: &View<'_>,
    b: &View<'_>,
    beta: Scalar,
    c: &mut ViewMut<'_>,
) -> Result<()> {
    let (a_data, b_data) = (cpu.slice::<S>(OP, *a)?, cpu.slice::<S>(OP, *b)?);
    // SAFETY: the data stays borrowed mutably through `c`; the matrices made from it are used as `products` says.
    let c_data = unsafe { MatMut::new(cpu.slice_mut::<S>(OP, c)?.as_mut_ptr(), 0, 0, 0) };
    if plan.count() == 0 {
        return Ok(());
    }
    plan.fold_rows();
    // Vectors lie along columns: they need adjacent columns of C, and enough of them.
    let [_, _, [rs, cs]] = plan.strides;
    let mut data = [a_data, b_data];
    if (plan.n < plan.m && plan.n <= 8) || (rs == 1 && cs != 1 && plan.m > 8) {
        plan.transpose();
        data.reverse();
    }
    let [sa, sb, sc] = plan.strides;
    let (alpha, beta) = (S::Compute::from_f64(alpha.to_f64()), S::Compute::from_f64(beta.to_f64()));
    let product = Product { m: plan.m, n: plan.n, k: plan.k, alpha, beta };
    // SAFETY: `slice` checked that every element of every view lies inside its data, and the plan addresses those
    // elements only; `c` is borrowed mutably and no two of its elements share a place.
    unsafe {
        let operands = |i: usize| {
            let at = plan.starts(i);
            let a = Mat::new(data[0], at[0], sa[0], sa[1]);
            let b = Mat::new(data[1], at[1], sb[0], sb[1]);
            (a, b, c_data.matrix(at[2], sc[0], sc[1]))
        };
        products(cpu, plan.count(), &product, operands, |_, _, _, _| ());
    }
    Ok(())
}

fn int<T: Int>(
    cpu: &CpuBackend,
    plan: &mut Plan,
    alpha: Scalar,
    a: &View<'_>,
    b: &View<'_>,
    beta: Scalar,
    c: &mut ViewMut<'_>,
) -> Result<()> {
    alpha.check(a.dtype)?;
    beta.check(a.dtype)?;
    let (alpha, beta) = (T::low(bits(alpha, a.dtype)), T::low(bits(beta, a.dtype)));
    let (a, b) = (cpu.words::<T>(OP, *a)?, cpu.words::<T>(OP, *b)?);
    // SAFETY: as in `float`.
    let c = unsafe { MatMut::new(cpu.words_mut::<T>(OP, c)?.as_mut_ptr(), 0, 0, 0) };
    if plan.count() == 0 || plan.m == 0 || plan.n == 0 {
        return Ok(());
    }
    let [sa, sb, sc] = plan.strides;
    let product = Product { m: plan.m, n: plan.n, k: plan.k, alpha, beta };
    // SAFETY: as in `float`.
    unsafe {
        int::products(cpu, plan.count(), &product, |i| {
            let at = plan.starts(i);
            let a = Mat::new(a, at[0], sa[0], sa[1]);
            let b = Mat::new(b, at[1], sb[0], sb[1]);
            (a, b, c.matrix(at[2], sc[0], sc[1]))
        });
    }
    Ok(())
}
