//! Layers: convolution, pooling, normalisation, attention and resizing.
//!
//! PyTorch also accepts samples without a batch axis; here such a sample becomes a batch of one.

use gradus::ops::{GridPadding, GridSample, Interpolate, Interpolation, Resized, Sampling};
use gradus::prelude::*;
use gradus::{AttentionOptions, Causal, ConvOptions, PadMode, PoolOptions, Scalar};

use crate::sample::{KW, Outs, Rows, Sample, inexpressible, rows};

pub(crate) const ROWS: Rows = rows! {
    "nn.functional.conv1d", |s| batched(s, 3, |x| x.conv1d(s.t(1, "weight")?, s.opt(2, "bias")?, conv(s)?))?;
    "nn.functional.conv2d", |s| batched(s, 4, |x| x.conv2d(s.t(1, "weight")?, s.opt(2, "bias")?, conv(s)?))?;
    "nn.functional.conv3d", |s| batched(s, 5, |x| x.conv3d(s.t(1, "weight")?, s.opt(2, "bias")?, conv(s)?))?;
    "nn.functional.conv_transpose1d", |s| {
        batched(s, 3, |x| x.conv_transpose1d(s.t(1, "weight")?, s.opt(2, "bias")?, conv_transpose(s)?))?
    };
    "nn.functional.conv_transpose2d", |s| {
        batched(s, 4, |x| x.conv_transpose2d(s.t(1, "weight")?, s.opt(2, "bias")?, conv_transpose(s)?))?
    };
    "nn.functional.conv_transpose3d", |s| {
        batched(s, 5, |x| x.conv_transpose3d(s.t(1, "weight")?, s.opt(2, "bias")?, conv_transpose(s)?))?
    };
    "nn.functional.linear", |s| s.x()?.linear(s.t(1, "weight")?, s.opt(2, "bias")?)?;
    "nn.functional.unfold", |s| {
        let options = ConvOptions::new().dilation(s.each(2, "dilation", 1)?).padding(s.each(3, "padding", 0)?);
        batched(s, 4, |x| x.unfold(s.each::<2>(1, "kernel_size", 1)?, options.stride(s.each(4, "stride", 1)?)))?
    };

    "nn.functional.max_pool1d", |s| max_pool::<1>(s, Tensor::max_pool1d_with_indices)?;
    "nn.functional.max_pool2d", |s| max_pool::<2>(s, Tensor::max_pool2d_with_indices)?;
    "nn.functional.max_pool3d", |s| max_pool::<3>(s, Tensor::max_pool3d_with_indices)?;
    "nn.functional.avg_pool1d", |s| avg_pool::<1>(s, Tensor::avg_pool1d)?;
    "nn.functional.avg_pool2d", |s| avg_pool::<2>(s, Tensor::avg_pool2d)?;
    "nn.functional.avg_pool3d", |s| avg_pool::<3>(s, Tensor::avg_pool3d)?;
    "nn.functional.adaptive_avg_pool1d", |s| batched(s, 3, |x| x.adaptive_avg_pool1d(bins(s)?))?;
    "nn.functional.adaptive_avg_pool2d", |s| batched(s, 4, |x| x.adaptive_avg_pool2d(bins(s)?))?;
    "nn.functional.adaptive_avg_pool3d", |s| batched(s, 5, |x| x.adaptive_avg_pool3d(bins(s)?))?;
    "nn.functional.adaptive_max_pool1d", |s| adaptive_max::<1>(s, Tensor::adaptive_max_pool1d_with_indices)?;
    "nn.functional.adaptive_max_pool2d", |s| adaptive_max::<2>(s, Tensor::adaptive_max_pool2d_with_indices)?;
    "nn.functional.adaptive_max_pool3d", |s| adaptive_max::<3>(s, Tensor::adaptive_max_pool3d_with_indices)?;

    "nn.functional.layer_norm", |s| {
        s.x()?.layer_norm(&shape(s)?, s.opt(2, "weight")?, s.opt(3, "bias")?, s.num(4, "eps", 1e-5)?)?
    };
    "nn.functional.rms_norm", |s| s.x()?.rms_norm(&shape(s)?, s.opt(2, "weight")?, s.num(3, "eps", f64::EPSILON)?)?;
    "nn.functional.group_norm", |s| {
        s.x()?.group_norm(s.size(1, "num_groups", 0)?, s.opt(2, "weight")?, s.opt(3, "bias")?, s.num(4, "eps", 1e-5)?)?
    };
    "nn.functional.instance_norm", |s| {
        // Running statistics do not affect the result unless `use_input_stats` is false.
        let running = [s.opt(1, "running_mean")?, s.opt(2, "running_var")?];
        s.num(KW, "momentum", 0.1)?;
        let (weight, bias, eps) = (s.opt(3, "weight")?, s.opt(4, "bias")?, s.num(KW, "eps", 1e-5)?);
        match (s.flag(KW, "use_input_stats", true)?, running) {
            (false, [Some(mean), Some(var)]) => s.x()?.batch_norm_eval(mean, var, weight, bias, eps)?,
            _ => s.x()?.instance_norm(weight, bias, eps)?,
        }
    };
    "nn.functional.batch_norm", |s| {
        let (weight, bias, eps) = (s.opt(3, "weight")?, s.opt(4, "bias")?, s.num(KW, "eps", 1e-5)?);
        let running = [s.opt(1, "running_mean")?, s.opt(2, "running_var")?];
        s.num(KW, "momentum", 0.1)?;
        match (s.flag(KW, "training", false)?, running) {
            (true, _) => s.x()?.batch_norm(weight, bias, eps)?.0,
            (false, [Some(mean), Some(var)]) => s.x()?.batch_norm_eval(mean, var, weight, bias, eps)?,
            _ => return inexpressible("evaluation without statistics"),
        }
    };
    "nn.functional.local_response_norm", |s| {
        let (alpha, beta, k) = (s.num(2, "alpha", 1e-4)?, s.num(3, "beta", 0.75)?, s.num(4, "k", 1.0)?);
        s.x()?.local_response_norm(s.size(1, "size", 0)?, alpha, beta, k)?
    };
    "nn.functional.normalize", |s| {
        s.x()?.normalize(s.num(1, "p", 2.0)?, s.int(2, "dim", 1)?, s.num(3, "eps", 1e-12)?)?
    };
    "softmax softmax/with_dtype", |s| s.cast()?.softmax(s.int(1, "dim", 0)?)?;
    "torch.ops.aten._safe_softmax.default", |s| {
        let x = s.cast()?;
        x.masked_softmax(&Tensor::ones([], DType::Bool, s.device)?, s.int(1, "dim", 0)?)?
    };
    "log_softmax log_softmax/with_dtype", |s| s.cast()?.log_softmax(s.int(1, "dim", 0)?)?;
    "nn.functional.softmin nn.functional.softmin/with_dtype", |s| s.cast()?.softmin(s.int(1, "dim", 0)?)?;
    "masked.softmax", |s| {
        let everywhere = Tensor::ones([], DType::Bool, s.device)?;
        s.x()?.masked_softmax(s.opt(KW, "mask")?.unwrap_or(&everywhere), s.int(1, "dim", 0)?)?
    };
    "nn.functional.scaled_dot_product_attention", |s| {
        if s.num(KW, "dropout_p", 0.0)? != 0.0 {
            return inexpressible("dropout");
        }
        s.flag(KW, "enable_gqa", false)?;
        let mut options = AttentionOptions::new();
        if let Some(mask) = s.opt(KW, "attn_mask")? {
            options = options.mask(mask);
        }
        if s.flag(KW, "is_causal", false)? {
            options = options.causal(Causal::TopLeft);
        }
        s.x()?.scaled_dot_product_attention(s.t(1, "key")?, s.t(2, "value")?, options)?
    };
    "nn.functional.embedding", |s| {
        s.x()?.embedding(s.t(1, "")?, s.value(KW, "padding_idx").map(|_| s.size(KW, "padding_idx", 0)).transpose()?)?
    };
    "nn.functional.one_hot", |s| {
        let classes = match s.int(KW, "num_classes", -1)? {
            -1 => s.x()?.max_all()?.to_scalar::<i64>()? as usize + 1,
            n => n as usize,
        };
        s.x()?.one_hot(classes)?
    };

    "constant_pad_nd", |s| padded(s, PadMode::Constant(s.scalar(2, "value", 0)?))?;
    "nn.functional.pad/constant", |s| {
        s.text(2, "mode", "constant")?;
        padded(s, PadMode::Constant(s.scalar(3, "value", 0)?))?
    };
    "nn.functional.pad/reflect", |s| { s.text(2, "mode", "")?; padded(s, PadMode::Reflect)? };
    "nn.functional.pad/replicate nn.functional.pad/replicate_negative", |s| {
        s.text(2, "mode", "")?;
        padded(s, PadMode::Replicate)?
    };
    "nn.functional.pad/circular", |s| { s.text(2, "mode", "")?; padded(s, PadMode::Circular)? };
    "nn.functional.interpolate/nearest nn.functional.interpolate/nearest-exact nn.functional.interpolate/linear \
     nn.functional.interpolate/bilinear nn.functional.interpolate/bicubic nn.functional.interpolate/trilinear \
     nn.functional.interpolate/area", |s| resized(s, s.text(KW, "mode", "nearest")?)?;
    "nn.functional.upsample_nearest", |s| resized(s, "nearest")?;
    "nn.functional.upsample_bilinear", |s| {
        let (x, how) = (s.x()?, Interpolate::from(Interpolation::Bilinear).align_corners());
        x.interpolate(Resized::To(&target(s)?), how)?
    };
    "_upsample_bilinear2d_aa", |s| {
        let mut how = Interpolate::from(Interpolation::Bilinear).antialias();
        if s.flag(KW, "align_corners", false)? {
            how = how.align_corners();
        }
        let given = ["scale_factors", "scales_h", "scales_w"].map(|name| s.value(KW, name)).iter().any(Option::is_some);
        match s.value(KW, "output_size") {
            Some(_) if given => return inexpressible("a size and factors that it does not follow from"),
            Some(_) => s.x()?.interpolate(Resized::To(&s.sizes(KW, "output_size")?), how)?,
            None => s.x()?.interpolate(Resized::By(&factors(s, "scale_factors")?), how)?,
        }
    };
    "nn.functional.grid_sample", |s| {
        let (mode, padding) = (s.text(KW, "mode", "bilinear")?, s.text(KW, "padding_mode", "zeros")?);
        let place = |name, all: &[&str]| all.iter().position(|n| *n == name).unwrap_or(usize::MAX);
        let mode = place(mode, &["bilinear", "nearest", "bicubic"]);
        sampled(s, mode, place(padding, &["zeros", "border", "reflection"]), s.flag(KW, "align_corners", false)?)?
    };
    "grid_sampler_2d", |s| {
        sampled(s, s.size(2, "mode", 0)?, s.size(3, "padding", 0)?, s.flag(4, "align_corners", false)?)?
    };
};

/// Calls `f` on the input. If the rank of the input is one less than `rank`, the input becomes a batch of one for the
/// call.
fn batched(s: &Sample<'_>, rank: usize, f: impl FnOnce(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
    let x = s.x()?;
    if x.rank() + 1 == rank { f(&x.unsqueeze(0)?)?.squeeze(0) } else { f(x) }
}

fn conv<const N: usize>(s: &Sample<'_>) -> Result<ConvOptions<N>> {
    let kernel = s.t(1, "weight")?.shape();
    let (stride, dilation) = (s.each(3, "stride", 1)?, s.each(5, "dilation", 1)?);
    let padding = match s.text(4, "padding", "").unwrap_or("") {
        "valid" => [(0, 0); N],
        "same" if stride != [1; N] => return inexpressible("padding \"same\" of a stride"),
        "same" => std::array::from_fn(|i| {
            let all = dilation[i] * kernel.get(2 + i).map_or(0, |k| k.saturating_sub(1));
            (all / 2, all - all / 2)
        }),
        _ => s.each::<N>(4, "padding", 0)?.map(|p| (p, p)),
    };
    let options = ConvOptions::new().stride(stride).padding_sides(padding).dilation(dilation);
    Ok(options.groups(s.size(6, "groups", 1)?))
}

fn conv_transpose<const N: usize>(s: &Sample<'_>) -> Result<ConvOptions<N>> {
    let options = ConvOptions::new().stride(s.each(3, "stride", 1)?).padding(s.each(4, "padding", 0)?);
    let options = options.output_padding(s.each(5, "output_padding", 0)?).groups(s.size(6, "groups", 1)?);
    Ok(options.dilation(s.each(7, "dilation", 1)?))
}

fn pool<const N: usize>(s: &Sample<'_>, dilation: bool) -> Result<([usize; N], PoolOptions<N>)> {
    let kernel = s.each(1, "kernel_size", 1)?;
    let mut options = PoolOptions::new().padding(s.each(3, "padding", 0)?);
    if s.ints(2, "stride")?.is_some_and(|all| !all.is_empty()) {
        options = options.stride(s.each(2, "stride", 1)?);
    }
    if dilation {
        options = options.dilation(s.each(4, "dilation", 1)?);
    }
    let ceil = s.flag(if dilation { 5 } else { 4 }, "ceil_mode", false)?;
    Ok((kernel, options.ceil_mode(ceil)))
}

fn max_pool<const N: usize>(
    s: &Sample<'_>,
    f: impl FnOnce(&Tensor, [usize; N], PoolOptions<N>) -> Result<(Tensor, Tensor)>,
) -> Result<Outs> {
    let (kernel, options) = pool::<N>(s, true)?;
    with_places(s, N + 2, s.flag(KW, "return_indices", false)?, |x| f(x, kernel, options))
}

/// [`batched`] for calls that return values and their indices. The indices are returned only if `wanted`.
fn with_places(
    s: &Sample<'_>,
    rank: usize,
    wanted: bool,
    f: impl FnOnce(&Tensor) -> Result<(Tensor, Tensor)>,
) -> Result<Outs> {
    let mut places = None;
    let values = batched(s, rank, |x| {
        let (values, found) = f(x)?;
        places = wanted.then_some(found);
        Ok(values)
    })?;
    let places = match places {
        Some(found) if found.rank() > values.rank() => Some(found.squeeze(0)?),
        found => found,
    };
    Ok([Some(values), places].into_iter().flatten().collect::<Vec<_>>().into())
}

fn avg_pool<const N: usize>(
    s: &Sample<'_>,
    f: impl FnOnce(&Tensor, [usize; N], PoolOptions<N>, bool) -> Result<Tensor>,
) -> Result<Tensor> {
    let (kernel, options) = pool(s, false)?;
    let count = s.flag(5, "count_include_pad", true)?;
    if s.value(6, "divisor_override").is_some() {
        return inexpressible("another divisor");
    }
    batched(s, N + 2, |x| f(x, kernel, options, count))
}

/// The output sizes of an adaptive pool. `None` stands for the size of the input.
fn bins<const N: usize>(s: &Sample<'_>) -> Result<[usize; N]> {
    let x = s.x()?.shape();
    match s.value(1, "output_size") {
        Some(serde_json::Value::Array(all)) => {
            if all.len() != N {
                return inexpressible(format!("{} sizes", all.len()));
            }
            let one = |i: usize| match (all[i].is_null(), all[i].as_u64()) {
                (true, _) => Ok(x[x.len() - N + i]),
                (false, Some(v)) => Ok(v as usize),
                _ => inexpressible("a negative size"),
            };
            let sizes = (0..N).map(one).collect::<Result<Vec<_>>>()?;
            Ok(std::array::from_fn(|i| sizes[i]))
        }
        _ => s.each(1, "output_size", 1),
    }
}

fn adaptive_max<const N: usize>(
    s: &Sample<'_>,
    f: impl FnOnce(&Tensor, [usize; N]) -> Result<(Tensor, Tensor)>,
) -> Result<Outs> {
    with_places(s, N + 2, s.flag(2, "return_indices", false)?, |x| f(x, bins(s)?))
}

fn shape(s: &Sample<'_>) -> Result<Vec<usize>> {
    Ok(s.ints(1, "normalized_shape")?.unwrap_or_default().into_iter().map(|d| d as usize).collect())
}

/// Pads the input. PyTorch lists the pairs of borders from the last axis to the first.
fn padded(s: &Sample<'_>, mode: PadMode) -> Result<Tensor> {
    let all = s.ints(1, "pad")?.unwrap_or_default();
    if all.len() % 2 == 1 {
        return inexpressible("an odd number of borders");
    }
    let pairs: Vec<(isize, isize)> = all.chunks(2).rev().map(|pair| (pair[0], pair[1])).collect();
    let mode = match mode {
        PadMode::Constant(Scalar::Float(v)) if !s.x()?.dtype().is_float() => PadMode::Constant((v as i64).into()),
        mode => mode,
    };
    s.x()?.pad(&pairs, mode)
}

fn factors(s: &Sample<'_>, name: &str) -> Result<Vec<f64>> {
    let axes = s.x()?.rank() - 2;
    match s.value(KW, name) {
        Some(serde_json::Value::Array(all)) => Ok(all.iter().filter_map(serde_json::Value::as_f64).collect()),
        _ => Ok(vec![s.num(KW, name, 1.0)?; axes]),
    }
}

/// The output size that `size` or `scale_factor` specifies.
fn target(s: &Sample<'_>) -> Result<Vec<usize>> {
    let spatial = &s.x()?.shape()[2..];
    if s.value(KW, "size").is_some() {
        let all = s.sizes(KW, "size")?;
        return Ok(if all.len() == 1 { vec![all[0]; spatial.len()] } else { all });
    }
    Ok(spatial.iter().zip(factors(s, "scale_factor")?).map(|(&d, f)| (d as f64 * f) as usize).collect())
}

fn resized(s: &Sample<'_>, mode: &str) -> Result<Tensor> {
    let mode = match mode {
        "nearest" => Interpolation::Nearest,
        "nearest-exact" => Interpolation::NearestExact,
        "linear" => Interpolation::Linear,
        "bilinear" => Interpolation::Bilinear,
        "bicubic" => Interpolation::Bicubic,
        "trilinear" => Interpolation::Trilinear,
        "area" => Interpolation::Area,
        other => return inexpressible(format!("mode {other}")),
    };
    let mut how = Interpolate::from(mode);
    if s.flag(KW, "align_corners", false)? {
        how = how.align_corners();
    }
    let recompute = s.flag(KW, "recompute_scale_factor", false)?;
    if let Some(size) = s.ints(1, "size")? {
        s.value(KW, "scale_factor");
        let size: Vec<usize> = size.into_iter().map(|d| d as usize).collect();
        let axes = s.x()?.rank() - 2;
        return s.x()?.interpolate(Resized::To(&if size.len() == 1 { vec![size[0]; axes] } else { size }), how);
    }
    if recompute {
        return s.x()?.interpolate(Resized::To(&target(s)?), how);
    }
    s.x()?.interpolate(Resized::By(&factors(s, "scale_factor")?), how)
}

fn sampled(s: &Sample<'_>, mode: usize, padding: usize, align_corners: bool) -> Result<Tensor> {
    let modes = [Sampling::Bilinear, Sampling::Nearest, Sampling::Bicubic];
    let paddings = [GridPadding::Zeros, GridPadding::Border, GridPadding::Reflection];
    let (Some(&mode), Some(&padding)) = (modes.get(mode), paddings.get(padding)) else {
        return inexpressible("a mode");
    };
    s.x()?.grid_sample(s.t(1, "grid")?, GridSample { mode, padding, align_corners })
}
