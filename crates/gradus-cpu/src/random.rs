//! Random draws. Every element is the result of [`philox::element`], but many blocks are computed at a time.

use gradus_backend::philox::{self, unit_f32, unit_f64};
use gradus_backend::{DType, Distribution, Element, Error, Result, Scalar, ViewMut};

use crate::check::check_output;
use crate::isa::per_isa;
use crate::nest::Nest;
use crate::parallel::Disjoint;
use crate::{CpuBackend, scratch};

const OP: &str = "random";
/// The number of elements per task.
const TASK: usize = 1 << 12;
/// The number of blocks that are computed together.
const WIDTH: usize = 16;

per_isa! {
    /// Computes the words of consecutive blocks. The length of `out` is a multiple of `4 * WIDTH`.
    fn blocks(seed: u64, first: u64, out: &mut [u32]) = make_blocks;
}

/// Does the same as [`philox::block`], with the lanes of `WIDTH` blocks side by side.
#[inline(always)]
#[allow(clippy::needless_range_loop)] // Zips of four arrays would hide which lanes are combined.
fn make_blocks(seed: u64, first: u64, out: &mut [u32]) {
    for (group, out) in out.chunks_exact_mut(4 * WIDTH).enumerate() {
        let mut c = [[0u32; WIDTH]; 4];
        for i in 0..WIDTH {
            let counter = first.wrapping_add((group * WIDTH + i) as u64);
            (c[0][i], c[1][i]) = (counter as u32, (counter >> 32) as u32);
        }
        let mut key = [seed as u32, (seed >> 32) as u32];
        for _ in 0..10 {
            for i in 0..WIDTH {
                let p0 = 0xD251_1F53 * u64::from(c[0][i]);
                let p1 = 0xCD9E_8D57 * u64::from(c[2][i]);
                c[0][i] = (p1 >> 32) as u32 ^ c[1][i] ^ key[0];
                c[2][i] = (p0 >> 32) as u32 ^ c[3][i] ^ key[1];
                c[1][i] = p1 as u32;
                c[3][i] = p0 as u32;
            }
            key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
        }
        for i in 0..WIDTH {
            for (l, lane) in c.iter().enumerate() {
                out[4 * i + l] = lane[i];
            }
        }
    }
}

/// See [`Backend::random`](gradus_backend::Backend::random).
pub(crate) fn random(
    cpu: &CpuBackend,
    dist: Distribution,
    seed: u64,
    offset: u64,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    check(dist, out.dtype)?;
    check_output(OP, "out", out.layout)?;
    match out.dtype {
        DType::F64 => fill::<f64>(cpu, dist, seed, offset, out),
        DType::F32 => fill::<f32>(cpu, dist, seed, offset, out),
        DType::F16 => fill::<gradus_backend::f16>(cpu, dist, seed, offset, out),
        DType::BF16 => fill::<gradus_backend::bf16>(cpu, dist, seed, offset, out),
        DType::I64 => fill::<i64>(cpu, dist, seed, offset, out),
        DType::I32 => fill::<i32>(cpu, dist, seed, offset, out),
        DType::I16 => fill::<i16>(cpu, dist, seed, offset, out),
        DType::I8 => fill::<i8>(cpu, dist, seed, offset, out),
        DType::U64 => fill::<u64>(cpu, dist, seed, offset, out),
        DType::U32 => fill::<u32>(cpu, dist, seed, offset, out),
        DType::U16 => fill::<u16>(cpu, dist, seed, offset, out),
        DType::U8 | DType::Bool => fill::<u8>(cpu, dist, seed, offset, out),
    }
}

/// Checks that every parameter is in its domain and that the dtype can represent every draw.
fn check(dist: Distribution, dtype: DType) -> Result<()> {
    let wrong = |m: String| Err(Error::argument(OP, m));
    match dist {
        Distribution::Uniform { .. } | Distribution::Normal { .. } if !dtype.is_float() => {
            Err(Error::dtype(OP, dtype, "floats; draw integers with Int or Bernoulli"))
        }
        Distribution::Uniform { lo, hi } if !(lo.is_finite() && hi.is_finite() && lo <= hi) => {
            wrong(format!("a uniform draw from {lo} to {hi}"))
        }
        Distribution::Normal { mean, std } if !(mean.is_finite() && std.is_finite() && std >= 0.0) => {
            wrong(format!("a normal draw of mean {mean} and standard deviation {std}"))
        }
        Distribution::Bernoulli { p } if !(0.0..=1.0).contains(&p) => wrong(format!("probability {p}")),
        Distribution::Int { lo, hi } if lo >= hi => wrong(format!("integers from {lo} to below {hi}: there is none")),
        Distribution::Int { lo, hi } => Scalar::Int(lo).check(dtype).and(Scalar::Int(hi - 1).check(dtype)),
        _ => Ok(()),
    }
}

fn fill<T: Element + crate::access::Plain>(
    cpu: &CpuBackend,
    dist: Distribution,
    seed: u64,
    offset: u64,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    let dtype = out.dtype;
    let words = philox::words_per_element(dist, dtype) as usize;
    let nest = Nest::<1>::new(&[out.layout]);
    let contiguous = out.layout.is_contiguous().then_some(out.layout.offset());
    let out = Disjoint::new(cpu.slice_mut::<T>(OP, out)?);
    // By definition, a draw that rounds to `hi` becomes `lo`.
    let float = |v: f64| T::from_f64(v);
    let uniform = |u: f64, lo: f64, hi: f64| {
        let rounded = float(lo + u * (hi - lo));
        if Element::to_f64(rounded) >= hi && hi > lo { float(lo) } else { rounded }
    };
    const UNIT: f64 = 1.0 / 4_294_967_296.0;
    let draw = |w: &[u32]| -> T {
        match dist {
            Distribution::Uniform { lo, hi } if dtype == DType::F64 => uniform(unit_f64(w[0], w[1]), lo, hi),
            Distribution::Uniform { lo, hi } => uniform(f64::from(unit_f32(w[0])), lo, hi),
            Distribution::Normal { mean, std } => {
                let r = libm::sqrt(-2.0 * libm::log1p(-(f64::from(w[0]) * UNIT)));
                float(mean + std * r * libm::cos(std::f64::consts::TAU * (f64::from(w[1]) * UNIT)))
            }
            Distribution::Bernoulli { p } => float(f64::from(u8::from(f64::from(w[0]) * UNIT < p))),
            Distribution::Int { lo, hi } => {
                let v = (u128::from(w[0]) << 32) | u128::from(w[1]);
                let range = (i128::from(hi) - i128::from(lo)) as u128;
                let v = (i128::from(lo) + ((v * range) >> 64) as i128) as i64;
                // `check` ensured that every draw fits.
                T::from_scalar(Scalar::Int(v)).unwrap_or_default()
            }
        }
    };
    cpu.parallel_for(nest.numel(), TASK, |range| {
        let first = offset.wrapping_add((range.start as u64).wrapping_mul(words as u64));
        let skip = (first % 4) as usize;
        let needed = (skip + range.len() * words).next_multiple_of(4 * WIDTH);
        scratch::with(needed, |stream: &mut [u32]| {
            // The stream has 2^64 words and starts again after the last one.
            let to_end = (u64::MAX / 4 - first / 4).saturating_add(1);
            if to_end >= (needed / 4) as u64 {
                blocks(cpu.isa(), seed, first / 4, stream);
            } else {
                for (i, w) in stream.iter_mut().enumerate() {
                    *w = philox::word(seed, (first - skip as u64).wrapping_add(i as u64));
                }
            }
            let values = stream[skip..].chunks_exact(words).map(draw);
            match contiguous {
                Some(at) => {
                    // SAFETY: `parallel_for` hands out each range once.
                    let out = unsafe { out.slice(at + range.start..at + range.end) };
                    out.iter_mut().zip(values).for_each(|(o, v)| *o = v);
                }
                None => {
                    let mut values = values;
                    nest.for_each(range, |_, [at]| {
                        let value = values.next().unwrap_or_default();
                        // SAFETY: as above, and no two elements of the output share a position.
                        unsafe { out.write(at, value) };
                    });
                }
            }
        });
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use gradus_backend::{Backend, ErrorKind};

    use crate::testing::{Lie, Tensor, assert_same_bits};

    fn draws() -> Vec<Distribution> {
        vec![
            Distribution::Uniform { lo: -1.0, hi: 3.0 },
            Distribution::Uniform { lo: 1.0, hi: 1.0 + 1e-6 },
            Distribution::Normal { mean: 0.5, std: 2.0 },
            Distribution::Bernoulli { p: 0.3 },
            Distribution::Int { lo: 0, hi: 2 },
            Distribution::Int { lo: 0, hi: 100 },
        ]
    }

    #[test]
    fn every_element_is_what_the_definition_says() {
        let cpu = CpuBackend::with_threads(2).unwrap();
        for dist in draws() {
            for (t, dtype) in DType::ALL.into_iter().enumerate() {
                for (offset, dims) in [(0, &[9000][..]), (5, &[3, 7]), (u64::MAX - 10, &[40]), (1, &[2, 0]), (3, &[])] {
                    let mut out = Tensor::canary(&cpu, dtype, dims, Lie::ALL[t % 4]);
                    let seed = 0x1234_5678_9abc_def0;
                    match cpu.random(dist, seed, offset, &mut out.view_mut()) {
                        Ok(()) => {}
                        Err(e) if e.kind() == &ErrorKind::UnsupportedDType => assert!(!dtype.is_float()),
                        Err(e) => {
                            assert!(dtype == DType::Bool && matches!(dist, Distribution::Int { hi: 100, .. }), "{e}")
                        }
                    }
                    if check(dist, dtype).is_err() {
                        continue;
                    }
                    let want: Vec<f64> = (0..out.layout.numel() as u64)
                        .map(|i| {
                            let s = philox::element(dist, dtype, seed, offset, i);
                            stored(dtype, s)
                        })
                        .collect();
                    assert_eq!(out.values(&cpu), want, "{dist:?} {dtype} {offset}");
                    out.assert_gaps_untouched(&cpu);
                }
            }
        }
    }

    /// Returns the value that a scalar has once it is stored in the dtype.
    fn stored(dtype: DType, s: Scalar) -> f64 {
        match dtype {
            DType::F32 => f32::from_scalar(s).unwrap().into(),
            DType::F16 => gradus_backend::f16::from_scalar(s).unwrap().to_f64(),
            DType::BF16 => gradus_backend::bf16::from_scalar(s).unwrap().to_f64(),
            _ => s.to_f64(),
        }
    }

    #[test]
    fn threads_and_instruction_sets_change_no_bit() {
        for dist in draws() {
            assert_same_bits(|cpu| {
                let mut out = Tensor::canary(cpu, DType::F32, &[20_000], Lie::Contiguous);
                cpu.random(dist, 7, 3, &mut out.view_mut()).unwrap();
                out.bytes(cpu)
            });
        }
    }

    #[test]
    fn impossible_draws_are_refused() {
        let cpu = CpuBackend::with_threads(1).unwrap();
        let draw = |dist, dtype| {
            let mut out = Tensor::canary(&cpu, dtype, &[3], Lie::Contiguous);
            cpu.random(dist, 1, 0, &mut out.view_mut()).unwrap_err().kind().clone()
        };
        assert_eq!(draw(Distribution::Bernoulli { p: 1.5 }, DType::F32), ErrorKind::InvalidArgument);
        assert_eq!(draw(Distribution::Int { lo: 3, hi: 3 }, DType::I32), ErrorKind::InvalidArgument);
        assert_eq!(draw(Distribution::Int { lo: 0, hi: 300 }, DType::U8), ErrorKind::InvalidArgument);
        assert_eq!(draw(Distribution::Uniform { lo: 1.0, hi: 0.0 }, DType::F32), ErrorKind::InvalidArgument);
        assert_eq!(draw(Distribution::Normal { mean: 0.0, std: 1.0 }, DType::I8), ErrorKind::UnsupportedDType);
    }
}
