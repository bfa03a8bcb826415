//! Code that all filters share: the check that a tensor is an image, the choice of the compute dtype, and the treatment
//! of alpha.

use gradus_tensor::{DType, Error, Result, Tensor};

use crate::convert::{to_bytes, to_float};

/// A tensor that has been checked to be an image.
pub(crate) struct Picture<'a> {
    source: &'a Tensor,
    channels: usize,
}

impl<'a> Picture<'a> {
    /// Checks that `x` is an image.
    #[track_caller]
    pub(crate) fn new(op: &str, x: &'a Tensor) -> Result<Self> {
        let shown = |e: Error| e.operand("image", x.shape(), x.dtype(), x.device());
        let channels = match x.shape() {
            [.., c @ (1 | 3 | 4), _, _] => *c,
            _ => {
                let e = shown(Error::shape(op, "this is no image [.., c, h, w] of 1, 3 or 4 channels"));
                return Err(e.help("channels come before rows: use permute for [h, w, c], unsqueeze for [h, w]"));
            }
        };
        if x.dtype() != DType::U8 && !x.dtype().is_float() {
            let e = shown(Error::dtype(op, x.dtype(), "u8, or floats from 0 to 1"));
            return Err(e.help("convert with to_dtype"));
        }
        Ok(Picture { source: x, channels })
    }

    /// The numbers of rows and columns.
    pub(crate) fn size(&self) -> (usize, usize) {
        match self.source.shape() {
            &[.., h, w] => (h, w),
            _ => (0, 0),
        }
    }

    /// Whether the image has no elements, so that there is nothing to compute.
    pub(crate) fn is_empty(&self) -> bool {
        self.source.numel() == 0
    }

    /// The colour channels (grey, or red, green and blue) in the dtype to compute in.
    #[track_caller]
    pub(crate) fn colour(&self) -> Result<Tensor> {
        if self.channels == 4 { working(&self.source.narrow(-3, 0, 3)?) } else { self.all() }
    }

    /// All channels, in the dtype to compute in.
    #[track_caller]
    pub(crate) fn all(&self) -> Result<Tensor> {
        working(self.source)
    }

    /// The luma `[.., 1, h, w]`, in the dtype to compute in: `0.299 r + 0.587 g + 0.114 b`.
    #[track_caller]
    pub(crate) fn luma(&self) -> Result<Tensor> {
        let colour = self.colour()?;
        if self.channels == 1 {
            return Ok(colour);
        }
        let weights = Tensor::from_vec(vec![0.299f64, 0.587, 0.114], [3, 1, 1], self.source.device())?;
        colour.mul(&weights.to_dtype(colour.dtype())?)?.sum(&[-3], true)
    }

    /// Repeats a grey channel for each colour channel of the image.
    #[track_caller]
    pub(crate) fn spread(&self, grey: &Tensor) -> Result<Tensor> {
        let mut shape = self.source.shape().to_vec();
        let axis = shape.len() - 3;
        if let Some(channels) = shape.get_mut(axis) {
            *channels = self.channels.min(3);
        }
        grey.expand(shape)
    }

    /// Converts the colours of a result to the dtype of the image and appends the image's alpha, if it has one.
    #[track_caller]
    pub(crate) fn with_alpha(&self, colour: &Tensor) -> Result<Tensor> {
        let colour = self.plain(colour)?;
        if self.channels < 4 {
            return Ok(colour);
        }
        Tensor::cat(&[&colour, &self.source.narrow(-3, 3, 1)?], -3)
    }

    /// Converts a result to the dtype of the image.
    #[track_caller]
    pub(crate) fn plain(&self, x: &Tensor) -> Result<Tensor> {
        match self.source.dtype() {
            DType::U8 => to_bytes(x),
            dtype => x.to_dtype(dtype),
        }
    }
}

/// Converts an image to floats from 0 to 1: to f64 if it is f64, otherwise to f32.
#[track_caller]
fn working(x: &Tensor) -> Result<Tensor> {
    to_float(x, if x.dtype() == DType::F64 { DType::F64 } else { DType::F32 })
}

/// Returns an error if an argument is negative or not finite.
#[track_caller]
pub(crate) fn not_negative(op: &str, name: &str, value: f64) -> Result<()> {
    if value.is_finite() && value >= 0.0 {
        return Ok(());
    }
    Err(Error::argument(op, format!("{name} is {value}")).help(format!("{name} is finite, and 0 or more")))
}
