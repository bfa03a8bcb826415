//! [`Conv1d`], [`Conv2d`], [`Conv3d`], and the transposed convolutions.

use gradus_tensor::{ConvOptions, Error, Here, PadMode, Result, Tensor};

use super::linear;
use super::weighted::Weighted;
use crate::module::out_of_forward;
use crate::{Forward, Init, Module, Parameter};

/// The elements with which a convolution pads its input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PaddingMode {
    /// Zeros.
    #[default]
    Zeros,
    /// The elements next to the edge, mirrored at it but without the edge itself.
    Reflect,
    /// The edge repeated.
    Replicate,
    /// The elements at the other end of the axis.
    Circular,
}

/// Options of a convolution over `N` axes. The default is stride 1, no padding, dilation 1, one group, and a bias.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConvConfig<const N: usize> {
    /// Step between neighbouring windows along each axis; at least 1.
    pub stride: [usize; N],
    /// Number of elements added on both sides of each axis of the input.
    pub padding: [usize; N],
    /// Whether to pad so that the output has the size of the input, with one more element after an axis than before it
    /// where the number is odd. Then `stride` is 1 and `padding` is 0. PyTorch's `padding="same"`.
    pub same: bool,
    /// The values of the padding. Default zeros.
    pub padding_mode: PaddingMode,
    /// Step between neighbouring elements of a window; at least 1.
    pub dilation: [usize; N],
    /// Number of groups. Channels of different groups are not connected. Must divide both channel counts.
    pub groups: usize,
    /// Whether the layer has a bias.
    pub bias: bool,
}

/// Options of [`Conv1d`].
pub type Conv1dConfig = ConvConfig<1>;
/// Options of [`Conv2d`].
pub type Conv2dConfig = ConvConfig<2>;
/// Options of [`Conv3d`].
pub type Conv3dConfig = ConvConfig<3>;

impl<const N: usize> Default for ConvConfig<N> {
    fn default() -> Self {
        let (stride, padding_mode) = ([1; N], PaddingMode::Zeros);
        ConvConfig { stride, padding: [0; N], same: false, padding_mode, dilation: [1; N], groups: 1, bias: true }
    }
}

/// Options of a transposed convolution over `N` axes. The default is stride 1, no padding, dilation 1, one group, and a
/// bias.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConvTransposeConfig<const N: usize> {
    /// Step between neighbouring windows of the output along each axis; at least 1.
    pub stride: [usize; N],
    /// Number of elements cut off both sides of each axis of the output.
    pub padding: [usize; N],
    /// Number of elements added at the end of each axis of the output; less than the larger of stride and dilation.
    pub output_padding: [usize; N],
    /// Step between neighbouring elements of a window; at least 1.
    pub dilation: [usize; N],
    /// Number of groups. Channels of different groups are not connected. Must divide both channel counts.
    pub groups: usize,
    /// Whether the layer has a bias.
    pub bias: bool,
}

impl<const N: usize> Default for ConvTransposeConfig<N> {
    fn default() -> Self {
        let (stride, dilation) = ([1; N], [1; N]);
        ConvTransposeConfig { stride, padding: [0; N], output_padding: [0; N], dilation, groups: 1, bias: true }
    }
}

/// Refuses zeros in kernel, stride or dilation, and groups that do not divide both channel counts.
#[track_caller]
fn check<const N: usize>(
    op: &str,
    channels: [usize; 2],
    groups: usize,
    [kernel, stride, dilation]: [[usize; N]; 3],
) -> Result<()> {
    for (name, values) in [("kernel", kernel), ("stride", stride), ("dilation", dilation)] {
        if values.contains(&0) {
            return Err(Error::argument(op, format!("{name} {values:?} has a 0; each is at least 1")));
        }
    }
    if groups == 0 || channels.iter().any(|c| !c.is_multiple_of(groups)) {
        let [i, o] = channels;
        let m = format!("{groups} groups do not divide {i} input and {o} output channels");
        return Err(Error::argument(op, m));
    }
    Ok(())
}

/// New parameters: `weight [first, second, kernel..]` and, if `out` is given, a bias of `out` elements.
#[track_caller]
fn parameters(
    first: usize,
    second: usize,
    kernel: &[usize],
    out: Option<usize>,
    init: &mut Init<'_>,
) -> Result<(Parameter, Option<Parameter>)> {
    let weight = linear::default_weight(&[&[first, second], kernel].concat(), init)?;
    let fan_in = second * kernel.iter().product::<usize>();
    let bias = out.map(|out| linear::bias(out, fan_in, init)).transpose().here()?;
    Ok((weight, bias))
}

/// The padding before and after each axis with which the output has the size of the input.
fn sides_of_same<const N: usize>(kernel: [usize; N], dilation: [usize; N]) -> [(usize, usize); N] {
    std::array::from_fn(|i| {
        let all = dilation[i].saturating_mul(kernel[i].saturating_sub(1));
        (all / 2, all - all / 2)
    })
}

/// How to fill a border; `None` for zeros, which convolutions add by themselves.
fn border(mode: PaddingMode) -> Option<PadMode> {
    match mode {
        PaddingMode::Zeros => None,
        PaddingMode::Reflect => Some(PadMode::Reflect),
        PaddingMode::Replicate => Some(PadMode::Replicate),
        PaddingMode::Circular => Some(PadMode::Circular),
    }
}

/// The input of a convolution with a border.
#[track_caller]
fn padded(op: &str, input: &Tensor, sides: &[(usize, usize)], mode: PadMode) -> Result<Tensor> {
    if input.rank() != sides.len() + 2 {
        let e = Error::shape(op, format!("the input has a batch axis, a channel axis and {} more", sides.len()));
        return Err(e.operand("input", input.shape(), input.dtype(), input.device()));
    }
    let signed = |n: usize| isize::try_from(n).unwrap_or(isize::MAX);
    let sides: Vec<_> = sides.iter().map(|&(before, after)| (signed(before), signed(after))).collect();
    input.pad(&sides, mode)
}

macro_rules! conv_layers {
    ($($(#[doc = $doc:literal])* $layer:ident, $n:literal, $method:ident;)*) => {$(
        $(#[doc = $doc])*
        #[derive(Clone, Module)]
        pub struct $layer {
            in_channels: usize,
            out_channels: usize,
            kernel: [usize; $n],
            stride: [usize; $n],
            padding: [usize; $n],
            same: bool,
            padding_mode: PaddingMode,
            dilation: [usize; $n],
            groups: usize,
            /// `[out_channels, in_channels / groups, kernel..]`
            pub weight: Parameter,
            /// `[out_channels]`
            pub bias: Option<Parameter>,
        }

        impl $layer {
            /// Creates a layer with new parameters. Errors if kernel, stride or dilation contain a 0, if the groups do
            /// not divide both channel counts, or if `same` is set with a stride or padding.
            #[track_caller]
            pub fn new(
                in_channels: usize,
                out_channels: usize,
                kernel: [usize; $n],
                config: ConvConfig<$n>,
                init: &mut Init<'_>,
            ) -> Result<Self> {
                let ConvConfig { stride, padding, same, padding_mode, dilation, groups, bias } = config;
                check(stringify!($method), [in_channels, out_channels], groups, [kernel, stride, dilation])?;
                if same && (stride != [1; $n] || padding != [0; $n]) {
                    let m = format!("`same` with stride {stride:?} and padding {padding:?}; it takes stride 1 and padding 0");
                    return Err(Error::argument(stringify!($method), m));
                }
                let out = bias.then_some(out_channels);
                let (weight, bias) = parameters(out_channels, in_channels / groups, &kernel, out, init)?;
                Ok($layer {
                    in_channels, out_channels, kernel, stride, padding, same, padding_mode, dilation, groups, weight, bias,
                })
            }
        }

        impl Forward for $layer {
            #[track_caller]
            fn compute(&self, input: &Tensor) -> Result<Tensor> {
                self.compute_with(&self.weight, input)
            }
        }

        impl Weighted for $layer {
            fn weight(&self) -> &Parameter {
                &self.weight
            }

            #[track_caller]
            fn compute_with(&self, weight: &Tensor, input: &Tensor) -> Result<Tensor> {
                let sides = if self.same { sides_of_same(self.kernel, self.dilation) } else { self.padding.map(|p| (p, p)) };
                let options = ConvOptions::new().stride(self.stride).dilation(self.dilation).groups(self.groups);
                let bias = self.bias.as_deref();
                match border(self.padding_mode) {
                    None => input.$method(weight, bias, options.padding_sides(sides)),
                    Some(mode) => padded(stringify!($method), input, &sides, mode)?.$method(weight, bias, options),
                }
            }
        }
    )*};
}

conv_layers! {
    /// Convolution over sequences: `[n, in_channels, l]` to `[n, out_channels, positions]`. Like [`Conv2d`], on one
    /// axis.
    Conv1d, 1, conv1d;
    /// Convolution over images: `[n, in_channels, h, w]` to `[n, out_channels, oh, ow]` with
    /// `oh = (h + 2 padding - dilation (kernel - 1) - 1) / stride + 1`, rounded down.
    ///
    /// `weight [out_channels, in_channels / groups, kh, kw]` and `bias [out_channels]` are initialised uniformly in
    /// `±1 / sqrt(fan_in)`, where `fan_in = in_channels / groups * kh * kw`, as in PyTorch.
    ///
    /// ```
    /// # use gradus_nn::{Conv2d, Conv2dConfig, Forward, Init}; use gradus_tensor::*;
    /// # let device = Device::from_backend(std::sync::Arc::new(gradus_cpu::CpuBackend::new()?));
    /// # let mut generator = Generator::new(0);
    /// # let mut init = Init::new(DType::F32, &device, &mut generator);
    /// let config = Conv2dConfig { stride: [2, 2], padding: [1, 1], ..Default::default() };
    /// let conv = Conv2d::new(3, 8, [3, 3], config, &mut init)?;
    /// assert_eq!(conv.forward(&Tensor::ones([1, 3, 8, 8], DType::F32, &device)?)?.shape(), [1, 8, 4, 4]);
    /// assert!(Conv2d::new(3, 8, [3, 3], Conv2dConfig { groups: 2, ..config }, &mut init).is_err());
    /// # Ok::<(), Error>(())
    /// ```
    Conv2d, 2, conv2d;
    /// Convolution over volumes: `[n, in_channels, d, h, w]` to `[n, out_channels, od, oh, ow]`. Like [`Conv2d`], on
    /// three axes.
    Conv3d, 3, conv3d;
}

/// The output padding with which a transposed convolution has an output of this size.
#[track_caller]
fn output_padding<const N: usize>(
    op: &str,
    input: &Tensor,
    output: [usize; N],
    [kernel, stride, padding, dilation]: [[usize; N]; 4],
) -> Result<[usize; N]> {
    let refuse = |m: String| Error::shape(op, m).operand("input", input.shape(), input.dtype(), input.device());
    if input.rank() != N + 2 {
        return Err(refuse(format!("the input has a batch axis, a channel axis and {N} more")));
    }
    let mut more = [0; N];
    for i in 0..N {
        let steps = (input.shape()[i + 2] as i128 - 1) * stride[i] as i128;
        let window = dilation[i] as i128 * (kernel[i] as i128 - 1) + 1;
        let (least, wanted) = (steps - 2 * padding[i] as i128 + window, output[i] as i128);
        if !(least..least + stride[i] as i128).contains(&wanted) {
            let most = least + stride[i] as i128 - 1;
            return Err(refuse(format!("size {wanted} along spatial axis {i}; it is from {least} to {most}")));
        }
        more[i] = usize::try_from(wanted - least).unwrap_or(0);
    }
    Ok(more)
}

macro_rules! conv_transpose_layers {
    ($($(#[doc = $doc:literal])* $layer:ident, $n:literal, $method:ident;)*) => {$(
        $(#[doc = $doc])*
        #[derive(Clone, Module)]
        pub struct $layer {
            in_channels: usize,
            out_channels: usize,
            kernel: [usize; $n],
            stride: [usize; $n],
            padding: [usize; $n],
            output_padding: [usize; $n],
            dilation: [usize; $n],
            groups: usize,
            /// `[in_channels, out_channels / groups, kernel..]`
            pub weight: Parameter,
            /// `[out_channels]`
            pub bias: Option<Parameter>,
        }

        impl $layer {
            /// Creates a layer with new parameters. Errors if kernel, stride or dilation contain a 0, if the output
            /// padding is not below the larger of stride and dilation, or if the groups do not divide both channel
            /// counts.
            #[track_caller]
            pub fn new(
                in_channels: usize,
                out_channels: usize,
                kernel: [usize; $n],
                config: ConvTransposeConfig<$n>,
                init: &mut Init<'_>,
            ) -> Result<Self> {
                let ConvTransposeConfig { stride, padding, output_padding, dilation, groups, bias } = config;
                check(stringify!($method), [in_channels, out_channels], groups, [kernel, stride, dilation])?;
                if (0..$n).any(|i| output_padding[i] >= stride[i].max(dilation[i])) {
                    let m = format!("output padding {output_padding:?} is not below stride {stride:?} or dilation {dilation:?}");
                    return Err(Error::argument(stringify!($method), m));
                }
                let out = bias.then_some(out_channels);
                let (weight, bias) = parameters(in_channels, out_channels / groups, &kernel, out, init)?;
                Ok($layer {
                    in_channels, out_channels, kernel, stride, padding, output_padding, dilation, groups, weight, bias,
                })
            }

            /// Computes an output of this spatial size, in place of the one that `output_padding` gives. Errors if it is
            /// not one of the `stride` sizes along each axis from which a convolution comes to the size of the input.
            #[track_caller]
            pub fn forward_sized(&self, input: &Tensor, output: [usize; $n]) -> Result<Tensor> {
                let done = output_padding(
                    stringify!($method),
                    input,
                    output,
                    [self.kernel, self.stride, self.padding, self.dilation],
                );
                let options = ConvOptions::new().stride(self.stride).padding(self.padding).dilation(self.dilation);
                let options = options.groups(self.groups);
                let done = done.and_then(|more| {
                    input.$method(&self.weight, self.bias.as_deref(), options.output_padding(more)).here()
                });
                done.map_err(|e| out_of_forward(self, e)).here()
            }
        }

        impl Forward for $layer {
            #[track_caller]
            fn compute(&self, input: &Tensor) -> Result<Tensor> {
                self.compute_with(&self.weight, input)
            }
        }

        impl Weighted for $layer {
            fn weight(&self) -> &Parameter {
                &self.weight
            }

            fn output_axis(&self) -> usize {
                1
            }

            #[track_caller]
            fn compute_with(&self, weight: &Tensor, input: &Tensor) -> Result<Tensor> {
                let options = ConvOptions::new().stride(self.stride).padding(self.padding).dilation(self.dilation);
                let options = options.output_padding(self.output_padding).groups(self.groups);
                input.$method(weight, self.bias.as_deref(), options)
            }
        }
    )*};
}

conv_transpose_layers! {
    /// Transposed convolution over sequences: `[n, in_channels, l]` to `[n, out_channels, size]`. Like
    /// [`ConvTranspose2d`], on one axis.
    ConvTranspose1d, 1, conv_transpose1d;
    /// Transposed convolution over images, typically to enlarge them: `[n, in_channels, h, w]` to
    /// `[n, out_channels, oh, ow]` with `oh = (h - 1) stride - 2 padding + dilation (kernel - 1) + output_padding + 1`.
    ///
    /// `weight [in_channels, out_channels / groups, kh, kw]` and `bias [out_channels]` are initialised uniformly in
    /// `±1 / sqrt(fan_in)`, where, as in PyTorch, `fan_in = out_channels / groups * kh * kw`.
    ///
    /// ```
    /// # use gradus_nn::{ConvTranspose2d, ConvTransposeConfig, Forward, Init}; use gradus_tensor::*;
    /// # let device = Device::from_backend(std::sync::Arc::new(gradus_cpu::CpuBackend::new()?));
    /// # let mut generator = Generator::new(0);
    /// # let mut init = Init::new(DType::F32, &device, &mut generator);
    /// let config = ConvTransposeConfig { stride: [2, 2], ..Default::default() };
    /// let up = ConvTranspose2d::new(8, 3, [2, 2], config, &mut init)?;
    /// assert_eq!(up.forward(&Tensor::ones([1, 8, 4, 4], DType::F32, &device)?)?.shape(), [1, 3, 8, 8]);
    /// # Ok::<(), Error>(())
    /// ```
    ConvTranspose2d, 2, conv_transpose2d;
    /// Transposed convolution over volumes: `[n, in_channels, d, h, w]` to `[n, out_channels, od, oh, ow]`. Like
    /// [`ConvTranspose2d`], on three axes.
    ConvTranspose3d, 3, conv_transpose3d;
}
