//! Random draws. Each invocation computes one element, as [`gradus_backend::philox`] defines it.
//!
//! If the adapter has no f64, uniform and normal draws are computed in f32 from the same random words. They then agree
//! with the definition to within a few units in the last place.

use gradus_backend::philox::words_per_element;
use gradus_backend::{DType, Distribution, Error, Result, Scalar, Shape, ViewMut};

use crate::WgpuBackend;
use crate::queue::Launch;
use crate::temp::Temp;
use crate::wgsl::{self, GROUP, Text, param};
use gradus_backend::MergedAxes as Axes;
use gradus_backend::key::key;

const OP: &str = "random";
/// The number of parameters before the sizes and strides. They are the number of elements, the seed, the position in
/// the stream, two 64-bit numbers of the distribution, and the position of the first element.
const FIXED: usize = 10;

/// The kind of draw, without its numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    Uniform,
    Normal,
    Bernoulli,
    Int,
}

/// Fails if a parameter is out of its domain or the dtype cannot hold a draw.
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
        Distribution::Bernoulli { p } if !(0.0..=1.0).contains(&p) => wrong(format!("a probability of {p}")),
        Distribution::Int { lo, hi } => {
            if dtype.is_float() || dtype == DType::Bool {
                return Err(Error::dtype(OP, dtype, "integers"));
            }
            if lo >= hi {
                return wrong(format!("an integer draw from {lo} to {hi}, which is empty"));
            }
            let ends = [Scalar::Int(lo), Scalar::Int(hi - 1)];
            ends.iter().try_for_each(|s| s.check(dtype)).map_err(|e| Error::argument(OP, e.message()))
        }
        _ => Ok(()),
    }
}

/// See [`Backend::random`](gradus_backend::Backend::random).
pub(crate) fn random(b: &WgpuBackend, dist: Distribution, seed: u64, offset: u64, out: &mut ViewMut<'_>) -> Result<()> {
    check(dist, out.dtype)?;
    b.check_dtype(OP, out.dtype)?;
    let n = out.layout.numel();
    if n == 0 {
        return Ok(());
    }
    if !b.fits(out.layout, out.dtype) {
        return by_halves(b, dist, seed, offset, out);
    }
    let wide = b.missing(DType::F64).is_none();
    let float = |v: f64| if wide { v.to_bits() } else { u64::from((v as f32).to_bits()) };
    let (kind, numbers) = match dist {
        Distribution::Uniform { lo, hi } => (Kind::Uniform, [float(lo), float(hi)]),
        Distribution::Normal { mean, std } => (Kind::Normal, [float(mean), float(std)]),
        // A word is below p * 2^32 if it is below the next integer, which is 2^32 for p = 1.
        Distribution::Bernoulli { p } => (Kind::Bernoulli, [(p * 4_294_967_296.0).ceil() as u64, 0]),
        Distribution::Int { lo, hi } => (Kind::Int, [lo as u64, (hi as u64).wrapping_sub(lo as u64)]),
    };
    let to = b.output(OP, "out", out)?;
    let axes = Axes::merged(&[&to.layout], 0..to.layout.rank());
    let (dtype, rank, words) = (out.dtype, axes.rank(), words_per_element(dist, out.dtype));
    let mut params = vec![n as u32];
    params.extend([seed, offset, numbers[0], numbers[1]].iter().flat_map(|&v| [v as u32, (v >> 32) as u32]));
    params.push(to.layout.offset() as u32);
    params.extend(axes.dims.iter().map(|&d| d as u32));
    params.extend(axes.steps[0].iter().map(|&s| s as u32));
    b.queue().launch(&Launch {
        call: OP.into(),
        key: key(("random", kind, dtype, words, rank, wide)),
        source: &|| source(kind, dtype, words, rank, wide),
        binds: &[to.bind],
        params: &params,
        groups: (n as u64).div_ceil(u64::from(GROUP)),
    })
}

/// Draws half by half for an output that is too large to bind. The second half continues the stream.
fn by_halves(b: &WgpuBackend, dist: Distribution, seed: u64, offset: u64, out: &mut ViewMut<'_>) -> Result<()> {
    let n = out.layout.numel();
    let Some(flat) = out.layout.reshape(Shape::new(&[n])?) else {
        let mut plain = Temp::new(b, out.dtype, *out.layout.shape())?;
        random(b, dist, seed, offset, &mut plain.view_mut())?;
        return crate::map::copy_strided(b, plain.view(), out);
    };
    for (start, len) in [(0, n / 2), (n / 2, n - n / 2)] {
        let offset = offset.wrapping_add(start as u64 * words_per_element(dist, out.dtype));
        random(b, dist, seed, offset, &mut out.with(&flat.narrow(0, start, len)?))?;
    }
    Ok(())
}

fn source(kind: Kind, dtype: DType, words: u64, rank: usize, wide: bool) -> String {
    let mut text = Text::new(FIXED + 2 * rank);
    text.output("y", dtype);
    text.line(format_args!("if (id >= {}) {{ return; }}", param(0)));
    wgsl::coordinates(&mut text, "c", "id", rank, FIXED);
    // The 64-bit index of an element's first random word: the position in the stream, plus `words` for every earlier
    // element.
    text.line(format_args!("let step = id * {words}u; let over = {};", if words == 2 { "id >> 31u" } else { "0u" }));
    let (lo, hi) = (param(3), param(4));
    text.line(format_args!("let w0 = {lo} + step; let w1 = {hi} + over + select(0u, 1u, w0 < step);"));
    let seed = format!("vec2<u32>({}, {})", param(1), param(2));
    text.line(format_args!("let first = philox_word({seed}, w0, w1);"));
    if words == 2 {
        text.line(format_args!("let second = philox_word({seed}, w0 + 1u, w1 + select(0u, 1u, w0 == 0xffffffffu));"));
    }
    let number = |k: usize| {
        if wide {
            crate::map::scalar_param(5 + 2 * k, DType::F64)
        } else {
            crate::map::scalar_param(5 + 2 * k, DType::F32)
        }
    };
    let value = match kind {
        Kind::Bernoulli => {
            text.line(format_args!("let one = {} != 0u || first < {};", param(6), param(5)));
            wgsl::cast("one", DType::Bool, dtype.compute())
        }
        Kind::Int => {
            // The upper 64 bits of v * range, plus the lower bound. Both are 64-bit numbers of two words.
            let range = format!("vec2<u32>({}, {})", param(7), param(8));
            text.line(format_args!("let high = mul64_high(vec2<u32>(second, first), {range});"));
            text.line(format_args!(
                "let d0 = high.x + {}; let d1 = high.y + {} + select(0u, 1u, d0 < high.x);",
                param(5),
                param(6)
            ));
            match dtype {
                DType::I64 | DType::U64 => "vec2<u32>(d0, d1)".to_owned(),
                d if d.is_signed() => "bitcast<i32>(d0)".to_owned(),
                _ => "d0".to_owned(),
            }
        }
        Kind::Uniform if wide => {
            let unit = if dtype == DType::F64 {
                "f64(((u64(first) << 32u) | u64(second)) >> 11u) * 1.1102230246251565e-16lf"
            } else {
                "f64(first >> 8u) * 5.9604644775390625e-08lf"
            };
            text.line(format_args!("let lo = {}; let hi = {}; let u = {unit};", number(0), number(1)));
            text.line("let v = lo + u * (hi - lo);");
            let rounded = match dtype {
                DType::F64 => "v",
                DType::F32 => "f64(f32(v))",
                DType::F16 => "f64(f32_from_f16(f16_from_f32(f32_to_odd(v))))",
                _ => "f64(bitcast<f32>(bf16_from_f32(f32_to_odd(v)) << 16u))",
            };
            text.line(format_args!("let rounded = {rounded};"));
            text.line("let kept = select(rounded, lo, rounded >= hi && hi > lo);");
            match dtype {
                DType::F64 => "kept".to_owned(),
                DType::F32 => "f32(kept)".to_owned(),
                _ => "f32_to_odd(kept)".to_owned(),
            }
        }
        Kind::Uniform => {
            text.line(format_args!("let lo = {}; let hi = {};", number(0), number(1)));
            text.line("let v = lo + f32(first >> 8u) * 5.9604644775390625e-08f * (hi - lo);");
            let rounded = match dtype {
                DType::F16 => "f32_from_f16(f16_from_f32(v))",
                DType::BF16 => "bitcast<f32>(bf16_from_f32(v) << 16u)",
                _ => "v",
            };
            text.line(format_args!("let rounded = {rounded};"));
            "select(rounded, lo, rounded >= hi && hi > lo)".to_owned()
        }
        Kind::Normal if wide => {
            text.line(
                "let u1 = f64(first) * 2.3283064365386963e-10lf; let u2 = f64(second) * 2.3283064365386963e-10lf;",
            );
            text.line("let r = sqrt(-2.0lf * log1p_f64(-u1)); let c = cos_f64(6.283185307179586lf * u2);");
            text.line(format_args!("let v = {} + {} * r * c;", number(0), number(1)));
            match dtype {
                DType::F64 => "v".to_owned(),
                DType::F32 => "f32(v)".to_owned(),
                _ => "f32_to_odd(v)".to_owned(),
            }
        }
        Kind::Normal => {
            text.line("let u1 = f32(first) * 2.3283064e-10f;");
            // If u1 is at least 0.5, 1 - u1 is computed from the inverted word, which keeps all of its bits.
            text.line(
                "let l = select(log1p_f32(-u1), log_f32((f32(~first) + 1.0f) * 2.3283064e-10f), (first >> 31u) == 1u);",
            );
            text.line("let r = sqrt(-2.0f * l);");
            text.line(format_args!("let v = {} + {} * r * cos_turn_f32(second);", number(0), number(1)));
            "v".to_owned()
        }
    };
    text.line(format_args!("store_y({}, {value});", wgsl::position("c", rank, 9, FIXED + rank)));
    text.finish(GROUP)
}
