//! Convolutions, and [`Window`], the sliding window of convolutions and poolings.

use gradus_tensor::{ConvOptions, Error, PadMode, Result, Scalar, Tensor};

use super::sample::pixels;
use crate::graph::{Call, Row, one, row, size, sizes, unsupported, volume};
use crate::value::OnnxValue;

type Values = Result<Vec<OnnxValue>>;

pub(super) const ROWS: &[Row] = &[
    row("Conv", &[1, 11, 22], |c| {
        let (x, w) = (c.tensor(0)?, c.tensor(1)?);
        let window = Window::of(c, &x, Some(kernel_of(&w)?))?;
        Ok(one(convolved(&x, &w, c.optional(2)?.as_ref(), &window, size(c.int("group", 1)?)?)?))
    }),
    row("ConvTranspose", &[1, 11, 22], conv_transpose),
    row("DeformConv", &[19, 22], deform_conv),
    row("Col2Im", &[18], col2im),
];

/// The spatial sizes of a kernel `[k, c, spatial..]`.
pub(super) fn kernel_of(w: &Tensor) -> Result<&[usize]> {
    match w.shape().get(2..) {
        Some(spatial) if !spatial.is_empty() => Ok(spatial),
        _ => Err(Error::shape("onnx", format!("a kernel of shape {:?}", w.shape()))),
    }
}

/// A window over the spatial axes.
#[derive(Debug, Clone)]
pub(super) struct Window {
    pub(super) kernel: Vec<usize>,
    pub(super) stride: Vec<usize>,
    pub(super) dilation: Vec<usize>,
    /// Padding before and after each axis.
    pub(super) pads: Vec<(usize, usize)>,
}

/// The integers of an attribute, one for each axis.
fn each(c: &Call<'_>, name: &str, rank: usize, default: i64) -> Result<Vec<usize>> {
    match c.ints(name)? {
        // At most the rank.
        None => Ok(vec![size(default)?; rank]),
        Some(values) if values.len() == rank => sizes(values),
        Some(values) => Err(Error::argument("onnx", format!("`{name}` has {} values for {rank} axes", values.len()))),
    }
}

impl Window {
    /// The window that a node describes. `kernel` is the spatial size of the weight, if there is one.
    pub(super) fn of(c: &Call<'_>, x: &Tensor, kernel: Option<&[usize]>) -> Result<Window> {
        let Some(spatial) = x.shape().get(2..) else {
            return Err(Error::shape("onnx", format!("shape {:?} has no axes besides batch and channels", x.shape())));
        };
        let rank = spatial.len();
        let kernel = match (c.ints("kernel_shape")?, kernel) {
            (Some(shape), Some(weight)) if sizes(shape)? != weight => {
                return Err(Error::shape("onnx", format!("kernel_shape {shape:?}, and a kernel of {weight:?}")));
            }
            (Some(shape), _) => sizes(shape)?,
            (None, Some(weight)) => weight.to_vec(),
            (None, None) => return Err(Error::argument("onnx", "kernel_shape is missing")),
        };
        let (stride, dilation) = (each(c, "strides", rank, 1)?, each(c, "dilations", rank, 1)?);
        if kernel.len() != rank || kernel.contains(&0) || stride.contains(&0) || dilation.contains(&0) {
            return Err(Error::argument("onnx", format!("a kernel of {kernel:?} for {rank} axes, or a step of 0")));
        }
        let mut window = Window { kernel, stride, dilation, pads: Vec::new() };
        let given = c.ints("pads")?;
        window.pads = match c.text("auto_pad", "NOTSET")? {
            "NOTSET" | "" => match given {
                // At most the rank.
                None => vec![(0, 0); rank],
                Some(pads) if pads.len() == 2 * rank => {
                    let pads = sizes(pads)?;
                    (0..rank).map(|i| (pads[i], pads[rank + i])).collect()
                }
                Some(pads) => return Err(Error::argument("onnx", format!("{} pads for {rank} axes", pads.len()))),
            },
            "VALID" => vec![(0, 0); rank],
            auto @ ("SAME_UPPER" | "SAME_LOWER") => {
                let pads = (0..rank).map(|i| {
                    let out = spatial[i].div_ceil(window.stride[i]);
                    let span = out.saturating_sub(1).saturating_mul(window.stride[i]).saturating_add(window.reach(i));
                    let total = span.saturating_sub(spatial[i]);
                    if auto == "SAME_UPPER" { (total / 2, total - total / 2) } else { (total - total / 2, total / 2) }
                });
                pads.collect()
            }
            other => return Err(Error::argument("onnx", format!("auto_pad = `{other}`"))),
        };
        Ok(window)
    }

    /// The extent of the window along axis `i`, from its first to its last element, dilation included.
    pub(super) fn reach(&self, i: usize) -> usize {
        (self.kernel[i] - 1).saturating_mul(self.dilation[i]).saturating_add(1)
    }

    /// The number of positions of the window along axis `i` of an input of size `n`.
    pub(super) fn places(&self, i: usize, n: usize) -> Result<usize> {
        let whole = n.saturating_add(self.pads[i].0).saturating_add(self.pads[i].1);
        match whole.checked_sub(self.reach(i)) {
            Some(left) => Ok(left / self.stride[i] + 1),
            None => Err(Error::shape("onnx", format!("a window of {} over {whole} elements", self.reach(i)))),
        }
    }
}

/// The values of a list as an array.
fn fixed<const N: usize, T: Copy>(values: &[T]) -> Result<[T; N]> {
    values.try_into().map_err(|_| unsupported("a convolution over other than 1 to 3 axes"))
}

fn options<const N: usize>(w: &Window, groups: usize) -> Result<ConvOptions<N>> {
    let options = ConvOptions::new().stride(fixed(&w.stride)?).dilation(fixed(&w.dilation)?);
    Ok(options.padding_sides(fixed(&w.pads)?).groups(groups))
}

pub(super) fn convolved(
    x: &Tensor,
    w: &Tensor,
    bias: Option<&Tensor>,
    window: &Window,
    groups: usize,
) -> Result<Tensor> {
    match window.kernel.len() {
        1 => x.conv1d(w, bias, options(window, groups)?),
        2 => x.conv2d(w, bias, options(window, groups)?),
        3 => x.conv3d(w, bias, options(window, groups)?),
        other => Err(unsupported(format!("a convolution over {other} axes; 1 to 3 are possible"))),
    }
}

fn conv_transpose(c: &Call<'_>) -> Values {
    let (x, w) = (c.tensor(0)?, c.tensor(1)?);
    let rank = x.rank().saturating_sub(2);
    if w.rank() < 3 || w.rank() != x.rank() {
        return Err(Error::shape("onnx", format!("a kernel of shape {:?}", w.shape())));
    }
    let groups = size(c.int("group", 1)?)?;
    let auto = c.text("auto_pad", "NOTSET")?;
    let mut window = Window::of(c, &x, Some(kernel_of(&w)?))?;
    let extra = each(c, "output_padding", rank, 0)?;
    let want = c.ints("output_shape")?.map(sizes).transpose()?;
    // The size of the whole result, from which the pads are then cut off.
    let full =
        |i: usize| x.shape()[2 + i].saturating_sub(1).saturating_mul(window.stride[i]).saturating_add(window.reach(i));
    let mut cuts = window.pads.clone();
    let mut ends = extra.clone();
    if let Some(want) = &want {
        let want = want.get(want.len().saturating_sub(rank)..).unwrap_or_default();
        if want.len() != rank {
            return Err(Error::argument("onnx", format!("output_shape {want:?} for {rank} axes")));
        }
        for i in 0..rank {
            let total = full(i).saturating_add(extra[i]) as i64 - want[i] as i64;
            let (total, more) = (total.max(0) as usize, (-total).max(0) as usize);
            cuts[i] =
                if auto == "SAME_UPPER" { (total / 2, total - total / 2) } else { (total - total / 2, total / 2) };
            ends[i] = extra[i] + more;
        }
    } else if matches!(auto, "SAME_UPPER" | "SAME_LOWER") {
        for i in 0..rank {
            let total =
                full(i).saturating_add(extra[i]).saturating_sub(x.shape()[2 + i].saturating_mul(window.stride[i]));
            cuts[i] =
                if auto == "SAME_UPPER" { (total / 2, total - total / 2) } else { (total - total / 2, total / 2) };
        }
    }
    window.pads = cuts.iter().map(|_| (0, 0)).collect();
    let mut y = match rank {
        1 => x.conv_transpose1d(&w, None, options(&window, groups)?)?,
        2 => x.conv_transpose2d(&w, None, options(&window, groups)?)?,
        3 => x.conv_transpose3d(&w, None, options(&window, groups)?)?,
        other => return Err(unsupported(format!("a convolution over {other} axes; 1 to 3 are possible"))),
    };
    let mut sides = vec![(0, 0), (0, 0)];
    for i in 0..rank {
        sides.push((-(cuts[i].0 as isize), ends[i] as isize - cuts[i].1 as isize));
    }
    if sides.iter().any(|s| *s != (0, 0)) {
        y = y.pad(&sides, PadMode::Constant(Scalar::Float(0.0)))?;
    }
    if let Some(bias) = c.optional(2)? {
        let mut bias = bias;
        for _ in 0..rank {
            bias = bias.unsqueeze(-1)?;
        }
        y = y.add(bias)?;
    }
    Ok(one(y))
}

/// Deformable convolution over two axes. The pixels at the shifted positions are sampled first.
fn deform_conv(c: &Call<'_>) -> Values {
    let (x, w, offset) = (c.tensor(0)?, c.tensor(1)?, c.tensor(2)?);
    let (groups, offset_groups) = (size(c.int("group", 1)?)?, size(c.int("offset_group", 1)?)?.max(1));
    let (&[n, channels, h, width], &[out, _, kh, kw]) = (x.shape(), w.shape()) else {
        return Err(unsupported("deformable convolution over other than 2 axes"));
    };
    let window = Window::of(c, &x, Some(&[kh, kw]))?;
    let (oh, ow) = (window.places(0, h)?, window.places(1, width)?);
    let area = kh * kw;
    if offset.shape() != [n, offset_groups.saturating_mul(area).saturating_mul(2), oh, ow]
        || !channels.is_multiple_of(offset_groups)
    {
        return Err(Error::shape("onnx", format!("offsets {:?} for {oh} x {ow} places", offset.shape())));
    }
    // The positions that the window reads without offsets, as [k, positions].
    let base = |i: usize, count: usize, inner: usize, k: usize, k_inner: usize| -> Result<Tensor> {
        let place = |t: usize, at: usize| {
            let (k_at, o_at) = if i == 0 { (t / k_inner, at / inner) } else { (t % k_inner, at % inner) };
            (o_at * window.stride[i] + k_at * window.dilation[i]) as f32 - window.pads[i].0 as f32
        };
        // At most the number of elements of the offsets.
        let values: Vec<f32> =
            (0..k).flat_map(|t| (0..count).map(move |at| (t, at))).map(|(t, at)| place(t, at)).collect();
        Tensor::from_vec(values, [1, 1, k, count], x.device())?.to_dtype(x.dtype())
    };
    let places = oh * ow;
    let moves = offset.reshape([n, offset_groups, area, 2, places])?;
    let y = moves.select(3, 0)?.add(base(0, places, ow, area, kw)?)?;
    let sx = moves.select(3, 1)?.add(base(1, places, ow, area, kw)?)?;
    // The pixels of each group, sampled at positions shifted by the offsets of the group.
    let image = x.reshape([n * offset_groups, channels / offset_groups, h * width])?;
    let at = [y, sx].map(|t| t.reshape([n * offset_groups, area * places]));
    let [y, sx] = at;
    let sampled = pixels(&image, &[h, width], &[y?, sx?], false)?;
    let mut sampled = sampled.reshape([n * offset_groups, channels / offset_groups, area, places])?;
    if let Some(mask) = c.optional(4)? {
        sampled = sampled.mul(mask.reshape([n * offset_groups, 1, area, places])?)?;
    }
    let per_out = (channels / groups.max(1)) * area;
    let columns = sampled.reshape([n, groups, per_out, places])?;
    let weight = w.reshape([groups, out / groups.max(1), per_out])?;
    let mut result = weight.matmul(&columns)?.reshape([n, out, oh, ow])?;
    if let Some(bias) = c.optional(3)? {
        result = result.add(bias.reshape([out, 1, 1])?)?;
    }
    Ok(one(result))
}

/// Sums columns back into images, over any number of axes.
fn col2im(c: &Call<'_>) -> Values {
    let x = c.tensor(0)?;
    let (image, block) = (sizes(&c.host_ints(1)?)?, sizes(&c.host_ints(2)?)?);
    let rank = image.len();
    let (stride, dilation) = (each(c, "strides", rank, 1)?, each(c, "dilations", rank, 1)?);
    let pads = each(c, "pads", 2 * rank, 0)?;
    let &[n, rows, columns] = x.shape() else { return Err(Error::shape("onnx", "columns of three axes belong here")) };
    let area = volume(&block)?;
    if block.len() != rank || area == 0 || !rows.is_multiple_of(area) || stride.contains(&0) || dilation.contains(&0) {
        return Err(Error::shape("onnx", format!("{rows} rows for blocks of {block:?}")));
    }
    let window = Window {
        kernel: block.clone(),
        stride,
        dilation,
        pads: (0..rank).map(|i| (pads[i], pads[rank + i])).collect(),
    };
    let places: Vec<usize> = (0..rank).map(|i| window.places(i, image[i])).collect::<Result<_>>()?;
    let wide: Vec<usize> = (0..rank).map(|i| image[i].saturating_add(pads[i]).saturating_add(pads[rank + i])).collect();
    let spread = volume(&wide)?;
    if volume(&places)? != columns || spread > 1 << 40 {
        return Err(Error::shape("onnx", format!("{columns} columns for {places:?} places")));
    }
    // The position of each element of each block in the flattened, padded image.
    let mut index: Vec<i64> = Vec::new();
    for b in 0..area {
        for p in 0..columns {
            let (mut at, mut scale, mut b, mut p) = (0, 1, b, p);
            for i in (0..rank).rev() {
                at += ((p % places[i]) * window.stride[i] + (b % block[i]) * window.dilation[i]) * scale;
                scale *= wide[i];
                (b, p) = (b / block[i], p / places[i]);
            }
            index.push(at as i64);
        }
    }
    let channels = rows / area;
    let index = Tensor::from_vec(index, [1, 1, area * columns], c.device)?;
    let index = index.expand([n, channels, area * columns])?.contiguous()?;
    let flat = Tensor::zeros([n, channels, spread], x.dtype(), c.device)?;
    let summed = flat.scatter_add(2, &index, &x.reshape([n, channels, area * columns])?)?;
    let mut y = summed.reshape([&[n, channels], &wide[..]].concat())?;
    for i in 0..rank {
        y = y.narrow(2 + i as isize, pads[i], image[i])?;
    }
    Ok(one(y))
}
