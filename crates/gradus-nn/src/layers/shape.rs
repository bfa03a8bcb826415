//! Layers that only move elements: [`Flatten`], [`Unflatten`], [`PixelShuffle`], [`PixelUnshuffle`],
//! [`ChannelShuffle`], [`Unfold`], [`Fold`] and [`Identity`].

use gradus_tensor::{ConvOptions, Error, Here, Result, Tensor};

use crate::{Forward, Module};

/// Merges the axes `start` to `end`, both included. Negative axes count from the end. The default keeps the batch axis:
/// `[n, c, h, w]` to `[n, c * h * w]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Module)]
pub struct Flatten {
    /// The first axis to merge.
    pub start: isize,
    /// The last axis to merge.
    pub end: isize,
}

impl Default for Flatten {
    fn default() -> Self {
        Flatten { start: 1, end: -1 }
    }
}

impl Forward for Flatten {
    #[track_caller]
    fn compute(&self, input: &Tensor) -> Result<Tensor> {
        input.flatten(self.start, self.end)
    }
}

/// Splits an axis into axes of these sizes, of which one may be [`INFER`](gradus_tensor::INFER). See
/// [`Tensor::unflatten`].
#[derive(Debug, Clone, PartialEq, Eq, Module)]
pub struct Unflatten {
    /// The axis to split. A negative axis counts from the end.
    pub axis: isize,
    /// The sizes of the new axes.
    pub sizes: Vec<usize>,
}

impl Forward for Unflatten {
    #[track_caller]
    fn compute(&self, input: &Tensor) -> Result<Tensor> {
        input.unflatten(self.axis, &self.sizes)
    }
}

/// Returns its input. A placeholder where a layer is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Module)]
pub struct Identity;

impl Forward for Identity {
    fn compute(&self, input: &Tensor) -> Result<Tensor> {
        Ok(input.clone())
    }
}

/// The error of a layer whose input has the wrong shape.
#[track_caller]
fn wrong(op: &str, message: String, x: &Tensor) -> Error {
    Error::shape(op, message).operand("input", x.shape(), x.dtype(), x.device())
}

/// `[.., c r^2, h, w]` to `[.., c, h r, w r]`: every `r^2` channels become blocks of `r` by `r` pixels (Shi et al.,
/// 2016).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Module)]
pub struct PixelShuffle {
    /// The factor `r`, at least 1.
    pub upscale_factor: usize,
}

impl Forward for PixelShuffle {
    #[track_caller]
    fn compute(&self, input: &Tensor) -> Result<Tensor> {
        let (r, op) = (self.upscale_factor, "pixel_shuffle");
        let [lead @ .., c, h, w] = input.shape() else {
            return Err(wrong(op, "the input is [.., c, h, w]".into(), input));
        };
        let Some(square) = r.checked_mul(r).filter(|&s| s > 0 && c.is_multiple_of(s)) else {
            return Err(wrong(op, format!("{c} channels are no multiple of the square of {r}"), input));
        };
        let overflow = || wrong(op, "the output has too many elements along an axis".into(), input);
        let (height, width) = h.checked_mul(r).zip(w.checked_mul(r)).ok_or_else(overflow).here()?;
        let n = lead.iter().product::<usize>();
        let split = input.reshape([n, c / square, r, r, *h, *w])?.permute(&[0, 1, 4, 2, 5, 3])?;
        split.reshape([lead, &[c / square, height, width]].concat())
    }
}

/// `[.., c, h r, w r]` to `[.., c r^2, h, w]`: the inverse of [`PixelShuffle`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Module)]
pub struct PixelUnshuffle {
    /// The factor `r`, at least 1.
    pub downscale_factor: usize,
}

impl Forward for PixelUnshuffle {
    #[track_caller]
    fn compute(&self, input: &Tensor) -> Result<Tensor> {
        let (r, op) = (self.downscale_factor, "pixel_unshuffle");
        let [lead @ .., c, h, w] = input.shape() else {
            return Err(wrong(op, "the input is [.., c, h, w]".into(), input));
        };
        if r == 0 || !h.is_multiple_of(r) || !w.is_multiple_of(r) {
            return Err(wrong(op, format!("height {h} and width {w} are no multiples of {r}"), input));
        }
        let overflow = || wrong(op, "the output has too many channels".into(), input);
        let channels = r.checked_mul(r).and_then(|s| s.checked_mul(*c)).ok_or_else(overflow).here()?;
        let n = lead.iter().product::<usize>();
        let split = input.reshape([n, *c, h / r, r, w / r, r])?.permute(&[0, 1, 3, 5, 2, 4])?;
        split.reshape([lead, &[channels, h / r, w / r]].concat())
    }
}

/// Takes the channels of `[n, c, ..]` in turn from each of `groups` groups (Zhang et al., 2018).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Module)]
pub struct ChannelShuffle {
    /// The number of groups, which divides the number of channels.
    pub groups: usize,
}

impl Forward for ChannelShuffle {
    #[track_caller]
    fn compute(&self, input: &Tensor) -> Result<Tensor> {
        let (g, op) = (self.groups, "channel_shuffle");
        let &[n, c, ref rest @ ..] = input.shape() else {
            return Err(wrong(op, "the input is [n, c, ..]".into(), input));
        };
        if g == 0 || !c.is_multiple_of(g) {
            return Err(wrong(op, format!("{g} groups do not divide {c} channels"), input));
        }
        let size = rest.iter().product::<usize>();
        input.reshape([n, g, c / g, size])?.transpose(1, 2)?.reshape(input.shape())
    }
}

macro_rules! windows {
    ($($(#[doc = $doc:literal])* $layer:ident { $($field:ident)? } |$me:ident, $x:ident, $options:ident| $value:expr;)*) => {$(
        $(#[doc = $doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Module)]
        pub struct $layer {
            $($field: [usize; 2],)?
            kernel: [usize; 2],
            stride: [usize; 2],
            padding: [usize; 2],
            dilation: [usize; 2],
        }

        impl $layer {
            /// Creates a layer with windows of size `kernel`, stride 1, no padding, and dilation 1.
            pub fn new($($field: [usize; 2],)? kernel: [usize; 2]) -> Self {
                $layer { $($field,)? kernel, stride: [1; 2], padding: [0; 2], dilation: [1; 2] }
            }

            /// Sets the step between windows, at least 1.
            #[must_use]
            pub fn stride(mut self, stride: [usize; 2]) -> Self {
                self.stride = stride;
                self
            }

            /// Sets the number of zeros on both sides of each axis.
            #[must_use]
            pub fn padding(mut self, padding: [usize; 2]) -> Self {
                self.padding = padding;
                self
            }

            /// Sets the step between the elements of a window, at least 1.
            #[must_use]
            pub fn dilation(mut self, dilation: [usize; 2]) -> Self {
                self.dilation = dilation;
                self
            }
        }

        impl Forward for $layer {
            #[track_caller]
            fn compute(&self, $x: &Tensor) -> Result<Tensor> {
                let $me = self;
                let $options = ConvOptions::new().stride(self.stride).padding(self.padding).dilation(self.dilation);
                $value.here()
            }
        }
    )*};
}

windows! {
    /// Copies the elements under every window of `[n, c, h, w]` into a column: `[n, c kh kw, positions]`. See
    /// [`Tensor::unfold`].
    Unfold {} |it, x, options| x.unfold(it.kernel, options);
    /// Adds columns `[n, c kh kw, positions]` at the places from which [`Unfold`] copies them: `[n, c, output..]`. See
    /// [`Tensor::fold`].
    Fold { output } |it, x, options| x.fold(it.output, it.kernel, options);
}
