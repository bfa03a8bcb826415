//! `arange`: evenly spaced integers, computed on the device and converted to the output's dtype.

use gradus_backend::{DType, Error, Result, Scalar, ScalarOp, Shape, ViewMut, composite};

use crate::WgpuBackend;
use crate::queue::Launch;
use crate::temp::Temp;
use crate::wgsl::{self, GROUP, Text, param};
use gradus_backend::MergedAxes as Axes;
use gradus_backend::key::key;

const OP: &str = "arange";
/// The number of parameters before the sizes and strides: the number of elements, the first integer and the step (two
/// words each), and the position of the first element.
const FIXED: usize = 6;

/// See [`Backend::arange`](gradus_backend::Backend::arange).
pub(crate) fn arange(b: &WgpuBackend, start: i64, step: i64, out: &mut ViewMut<'_>) -> Result<()> {
    let (dtype, n) = (out.dtype, out.layout.numel());
    b.check_dtype(OP, dtype)?;
    if n == 0 {
        return Ok(());
    }
    // If nothing wraps and the first and the last integer fit the dtype, so do those between them.
    let Some(last) = step.checked_mul(n as i64 - 1).and_then(|distance| start.checked_add(distance)) else {
        return composite::arange::arange(b, start, step, out);
    };
    let ends = [start, last];
    ends.iter().try_for_each(|&v| Scalar::Int(v).check(dtype)).map_err(|e| Error::argument(OP, e.message()))?;
    // The kernel converts to half precision through f32, which could round integers above 2^24 twice. Those are
    // computed on the host.
    if dtype.is_float() && dtype.size() == 2 && ends.iter().any(|v| v.unsigned_abs() > 1 << 24) {
        return composite::arange::arange(b, start, step, out);
    }
    if !b.fits(out.layout, dtype) {
        return by_halves(b, start, step, out);
    }
    let to = b.output(OP, "out", out)?;
    let axes = Axes::merged(&[&to.layout], 0..to.layout.rank());
    let rank = axes.rank();
    let mut params = vec![n as u32];
    params.extend([start, step].iter().flat_map(|&v| [v as u32, (v >> 32) as u32]));
    params.push(to.layout.offset() as u32);
    params.extend(axes.dims.iter().map(|&d| d as u32));
    params.extend(axes.steps[0].iter().map(|&s| s as u32));
    b.queue().launch(&Launch {
        call: OP.into(),
        key: key((OP, dtype, rank)),
        source: &|| source(dtype, rank),
        binds: &[to.bind],
        params: &params,
        groups: (n as u64).div_ceil(u64::from(GROUP)),
    })
}

/// Splits an output that is too large to bind, and computes each half.
fn by_halves(b: &WgpuBackend, start: i64, step: i64, out: &mut ViewMut<'_>) -> Result<()> {
    let n = out.layout.numel();
    let Some(flat) = out.layout.reshape(Shape::new(&[n])?) else {
        let mut plain = Temp::new(b, out.dtype, *out.layout.shape())?;
        arange(b, start, step, &mut plain.view_mut())?;
        return crate::map::copy_strided(b, plain.view(), out);
    };
    for (first, len) in [(0, n / 2), (n / 2, n - n / 2)] {
        let start = start.wrapping_add(step.wrapping_mul(first as i64));
        arange(b, start, step, &mut out.with(&flat.narrow(0, first, len)?))?;
    }
    Ok(())
}

fn source(dtype: DType, rank: usize) -> String {
    let mut text = Text::new(FIXED + 2 * rank);
    text.output("y", dtype);
    text.line(format_args!("if (id >= {}) {{ return; }}", param(0)));
    wgsl::coordinates(&mut text, "c", "id", rank, FIXED);
    let joined = |op, a: &str, b: &str| wgsl::binary(op, DType::I64, a, b);
    let step = format!("vec2<u32>({}, {})", param(3), param(4));
    let moved = joined(ScalarOp::Mul, "vec2<u32>(id, 0u)", &step);
    let value = joined(ScalarOp::Add, &format!("vec2<u32>({}, {})", param(1), param(2)), &moved);
    text.line(format_args!("let v = {value};"));
    let at = wgsl::position("c", rank, 5, FIXED + rank);
    text.line(format_args!("store_y({at}, {});", wgsl::cast("v", DType::I64, dtype)));
    text.finish(GROUP)
}
