//! Matrix products with any strides, any batch axes and every number type.
//!
//! The order of each sum is defined once (see `kernel`), so an element has the same bits for any number of threads, any
//! instruction set, and any number of other rows: a row of a batch of 32 equals the same row computed alone. Operands
//! are never copied as a whole: they are read in place or packed in panels. f16 and bf16 are widened as they are
//! packed, and the results are rounded once at the end. If the processor has an instruction for pairs of bf16, they are
//! packed in pairs instead (see `paired`).

mod block;
mod gemm_i32;
mod int;
mod kernel;
mod linear_i8;
mod pack;
mod packed;
mod paired;
mod plan;
mod products;
pub(crate) mod transpose;

#[cfg(test)]
mod tests;

use std::any::TypeId;

use gradus_backend::{DType, Error, Result, Scalar, View, ViewMut};

pub(crate) use block::{K_BLOCK, MatMut, Product, k_step, tile};
pub(crate) use gemm_i32::gemm_i32;
pub(crate) use kernel::{FREE_ROWS, Micro, Real, Store, THIN_ROWS, thin_vectors};
pub(crate) use linear_i8::linear_i8;
pub(crate) use pack::{L2, Mat, Pack, Panels, prefetch};
pub(crate) use products::products;
pub(crate) use transpose::Transpose;
#[cfg(target_arch = "x86_64")]
pub(crate) use transpose::f32_by_16;

use crate::CpuBackend;
use crate::access::{as_computed, check_dtype};
use crate::check::check_output;
use crate::copy::bits;
use int::Int;
use packed::Packed;
use plan::{OP, Plan};

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
    let plan = &mut Plan::new(OP, a, b, c)?;
    check_output(OP, "c", c.layout)?;
    match a.dtype {
        DType::F64 => float::<f64>(cpu, plan, alpha, a, b, beta, c),
        DType::F32 => float::<f32>(cpu, plan, alpha, a, b, beta, c),
        DType::F16 => float::<gradus_backend::f16>(cpu, plan, alpha, a, b, beta, c),
        DType::BF16 if paired::fits(cpu, plan, a, b)? => float::<paired::Paired>(cpu, plan, alpha, a, b, beta, c),
        DType::BF16 => float::<gradus_backend::bf16>(cpu, plan, alpha, a, b, beta, c),
        // Signed and unsigned products and sums have the same low bits.
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
    // SAFETY: the data stays borrowed mutably through `c`, and the matrices created from it are used as `products`
    // requires.
    let c_data = unsafe { MatMut::new(cpu.slice_mut::<S>(OP, c)?.as_mut_ptr(), 0, 0, 0) };
    if plan.count() == 0 {
        return Ok(());
    }
    plan.fold_rows();
    let width = S::Compute::panel(cpu.isa());
    let same = TypeId::of::<S>() == TypeId::of::<S::Compute>();
    let panels = if same { plan.fold_panels(width) } else { None };
    // A vector holds neighbouring columns of a row of C, so columns should be contiguous and numerous. The transposed
    // product is computed instead if it meets this better.
    let [_, _, [rs, cs]] = plan.strides;
    let mut data = [a_data, b_data];
    if panels.is_none() && ((plan.n < plan.m && plan.n <= 8) || (rs == 1 && cs != 1 && plan.m > 8)) {
        plan.transpose();
        data.reverse();
    }
    let [sa, sb, sc] = plan.strides;
    let (alpha, beta) = (S::Compute::from_f64(alpha.to_f64()), S::Compute::from_f64(beta.to_f64()));
    let product = Product { m: plan.m, n: plan.n, k: plan.k, alpha, beta };
    // SAFETY: `slice` checked that every element of every view lies inside its data, and the plan addresses only these
    // elements. `c` is borrowed mutably, and no two of its elements share a position.
    unsafe {
        let outer = |at: [usize; 3]| (Mat::new(data[0], at[0], sa[0], sa[1]), c_data.matrix(at[2], sc[0], sc[1]));
        if let Some(apart) = panels {
            let operands = |i: usize| {
                let at = plan.starts(i);
                let (a, c) = outer(at);
                (a, Packed::lying(as_computed(data[1].get(at[1]..).unwrap_or_default()), plan.k, width, apart), c)
            };
            products(cpu, plan.count(), &product, operands, |_, _, _, _| ());
        } else {
            let operands = |i: usize| {
                let at = plan.starts(i);
                let (a, c) = outer(at);
                (a, Mat::new(data[1], at[1], sb[0], sb[1]), c)
            };
            products(cpu, plan.count(), &product, operands, |_, _, _, _| ());
        }
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
