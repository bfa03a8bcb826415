//! `conv_transpose1d`, `conv_transpose2d`, `conv_transpose3d`: the adjoint of convolution, which spreads each element
//! of its input over a window of its result. It is recorded as the gradient of a convolution with respect to its input,
//! so its own gradients of every order are convolutions again.

use gradus_backend::{Error, ErrorKind, Here, Result, Shape, Window};

use super::conv::{check_operands, describe};
use super::operand_rules::{cast, cast_some};
use super::pad::PadMode;
use super::{Conv, ConvBackwardInput, ConvOptions, apply_one};
use crate::Tensor;

/// One spatial axis of a transposed convolution.
struct Axis {
    /// Size of the result.
    size: usize,
    /// Size of the result without any padding.
    full: usize,
    /// Number of zeros at the end of the result, where no input element reaches.
    rest: usize,
}

/// The sizes along axis `i`, where the input has `input` elements. `None` if a size overflows or the result would be
/// empty.
fn axis(w: &Window, i: usize, input: usize, output_padding: usize) -> Option<Axis> {
    let reach = (w.kernel[i].checked_sub(1)?).checked_mul(w.dilation[i])?.checked_add(1)?;
    let full = input.checked_sub(1)?.checked_mul(w.stride[i])?.checked_add(reach)?;
    let size = full.checked_add(output_padding)?.checked_sub(w.pad_before[i].checked_add(w.pad_after[i])?)?;
    let rest = output_padding.saturating_sub(w.pad_after[i]);
    (size >= 1).then_some(Axis { size, full, rest })
}

impl Tensor {
    /// Transposed convolution over one axis of `self [n, c, l]` with `weight [c, k / groups, kernel]` and `bias [k]`.
    /// Returns `[n, k, size]`. For the details see [`conv_transpose2d`](Tensor::conv_transpose2d).
    #[track_caller]
    pub fn conv_transpose1d(&self, weight: &Tensor, bias: Option<&Tensor>, options: ConvOptions<1>) -> Result<Tensor> {
        self.convolve_transposed("conv_transpose1d", weight, bias, options)
    }

    /// Transposed convolution over two axes of `self [n, c, h, w]` with `weight [c, k / groups, kh, kw]` and
    /// `bias [k]`. Returns `[n, k, oh, ow]`, where the size of each spatial axis is
    /// `(input - 1) stride - before - after + dilation (kernel - 1) + output_padding + 1`.
    ///
    /// It is the adjoint of the [`conv2d`](Tensor::conv2d) that has the same weight and options, and whose input has
    /// the size of this result. Any dtype but bool is accepted; dtypes promote. Differentiable to any order.
    ///
    /// ```
    /// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
    /// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
    /// let x = Tensor::from_vec(vec![1.0f32, 10.0], [1, 1, 1, 2], &device)?;
    /// let w = Tensor::from_vec(vec![1.0f32, 2.0, 3.0], [1, 1, 1, 3], &device)?;
    /// let y = x.conv_transpose2d(&w, None, ConvOptions::new().stride([1, 2]))?;
    /// assert_eq!(y.to_vec::<f32>()?, [1.0, 2.0, 13.0, 20.0, 30.0]);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails if ranks or channels do not fit together, if `groups` does not divide `c`, if a kernel, stride or dilation
    /// is 0, if an output padding is not below the larger of stride and dilation, if a spatial axis is empty, or if the
    /// padding leaves nothing of the result.
    #[track_caller]
    pub fn conv_transpose2d(&self, weight: &Tensor, bias: Option<&Tensor>, options: ConvOptions<2>) -> Result<Tensor> {
        self.convolve_transposed("conv_transpose2d", weight, bias, options)
    }

    /// Transposed convolution over three axes of `self [n, c, d, h, w]` with `weight [c, k / groups, kd, kh, kw]` and
    /// `bias [k]`. Returns `[n, k, od, oh, ow]`. For the details see [`conv_transpose2d`](Tensor::conv_transpose2d).
    #[track_caller]
    pub fn conv_transpose3d(&self, weight: &Tensor, bias: Option<&Tensor>, options: ConvOptions<3>) -> Result<Tensor> {
        self.convolve_transposed("conv_transpose3d", weight, bias, options)
    }

    #[track_caller]
    fn convolve_transposed<const N: usize>(
        &self,
        name: &'static str,
        weight: &Tensor,
        bias: Option<&Tensor>,
        options: ConvOptions<N>,
    ) -> Result<Tensor> {
        let dtype = check_operands(name, self, weight, bias, N + 2)?;
        let (x, weight, bias) = (&*cast(self, dtype)?, &*cast(weight, dtype)?, &cast_some(bias, dtype)?);
        let bias = bias.as_deref();
        let refuse = |m: String| {
            let e = describe(Error::shape(name, m), x, weight, bias);
            Err(e.help("input is [n, c, spatial..], weight [c, k / groups, kernel..] and bias [k]"))
        };
        let (groups, c) = (options.groups, x.shape()[1]);
        if groups == 0 || !c.is_multiple_of(groups) {
            return refuse(format!("{groups} groups do not divide {c} input channels")).here();
        }
        if weight.shape()[0] != c {
            return refuse(format!("the weight takes {} channels, the input has {c}", weight.shape()[0])).here();
        }
        let overflow = || Error::new(ErrorKind::Overflow, name, "the result is too large");
        let k = weight.shape()[1].checked_mul(groups).ok_or_else(overflow).here()?;
        if bias.is_some_and(|b| b.shape() != [k]) {
            return refuse(format!("the bias is not [{k}]")).here();
        }
        let mut window = options.window(name, &weight.shape()[2..])?;
        let mut axes = Vec::with_capacity(N);
        for (i, &input) in x.shape()[2..].iter().enumerate() {
            for (what, v) in
                [("kernel", window.kernel[i]), ("stride", window.stride[i]), ("dilation", window.dilation[i])]
            {
                if v == 0 {
                    let e = Error::argument(name, format!("{what} is 0 on spatial axis {i}; it is at least 1"));
                    return Err(describe(e, x, weight, bias));
                }
            }
            let (more, limit) = (options.output_padding[i], window.stride[i].max(window.dilation[i]));
            if more >= limit {
                let m = format!("output padding {more} on spatial axis {i} is not below stride and dilation, {limit}");
                return Err(describe(Error::argument(name, m), x, weight, bias));
            }
            let Some(sizes) = axis(&window, i, input, more) else {
                return refuse(format!("on spatial axis {i}, {input} elements give no result of a possible size"))
                    .here();
            };
            axes.push(sizes);
        }

        // With a bias, everything is computed in the compute dtype and rounded once, after the bias is added.
        let wide = if bias.is_some() { x.dtype().compute() } else { x.dtype() };
        let operands = [x.to_dtype(wide)?, weight.to_dtype(wide)?];
        let operands = [&operands[0], &operands[1]];
        let adjoint = |window: Window, sizes: Vec<usize>| -> Result<ConvBackwardInput> {
            let input = Shape::new(&[&[x.shape()[0], k], &sizes[..]].concat())?;
            Ok(ConvBackwardInput { conv: Conv { window, groups }, input })
        };
        // A convolution of the result has as many positions as `x` has elements, provided that fewer than `stride`
        // elements are left over at the end.
        let fits = axes.iter().zip(window.stride).all(|(a, stride)| a.rest < stride);
        let y = if fits {
            for i in 0..N {
                window.pad_after[i] = window.pad_after[i].saturating_sub(options.output_padding[i]);
            }
            apply_one(adjoint(window, axes.iter().map(|a| a.size).collect()).here()?, &operands)?
        } else {
            let before = window.pad_before;
            (window.pad_before, window.pad_after) = ([0; 3], [0; 3]);
            let mut y = apply_one(adjoint(window, axes.iter().map(|a| a.full).collect()).here()?, &operands)?;
            let rest: Vec<_> = axes.iter().map(|a| (0, isize::try_from(a.rest).unwrap_or(isize::MAX))).collect();
            y = y.pad(&rest, PadMode::Constant(0.into()))?;
            for (i, a) in axes.iter().enumerate() {
                y = y.narrow(2 + i as isize, before[i], a.size)?;
            }
            y
        };
        let Some(bias) = bias else { return y.contiguous() };
        let mut channel = vec![1; N + 2];
        channel[1] = k;
        y.add(&bias.reshape(&channel)?.to_dtype(wide)?)?.to_dtype(x.dtype())
    }
}
