//! [`MaxPool2d`] and [`AvgPool2d`].

use gradus_tensor::{Error, Result, Tensor};

use crate::{Forward, Module};

/// Largest element under each window: `[n, c, h, w]` to `[n, c, oh, ow]`, `oh = (h + 2 padding - kernel) / stride + 1`,
/// rounded down. Padding never wins.
#[derive(Clone, Module)]
pub struct MaxPool2d {
    kernel: [usize; 2],
    stride: [usize; 2],
    padding: [usize; 2],
}

/// Mean under each window: `[n, c, h, w]` to `[n, c, oh, ow]`, `oh = (h + 2 padding - kernel) / stride + 1`, rounded down.
#[derive(Clone, Module)]
pub struct AvgPool2d {
    kernel: [usize; 2],
    stride: [usize; 2],
    padding: [usize; 2],
    count_include_pad: bool,
}

fn check(op: &str, kernel: [usize; 2], stride: [usize; 2], padding: [usize; 2]) -> Result<()> {
    if kernel.contains(&0) || stride.contains(&0) {
        return Err(Error::argument(op, format!("kernel {kernel:?} or stride {stride:?} has a 0; each is at least 1")));
    }
    if (0..2).any(|i| padding[i] > kernel[i] / 2) {
        return Err(Error::argument(op, format!("padding {padding:?} is more than half of the kernel {kernel:?}")));
    }
    Ok(())
}

impl MaxPool2d {
    /// Windows of size `kernel`, `stride` apart. Errors for a kernel or stride of 0, and padding wider than half a window.
    pub fn new(kernel: [usize; 2], stride: [usize; 2], padding: [usize; 2]) -> Result<Self> {
        check("max_pool2d", kernel, stride, padding)?;
        Ok(MaxPool2d { kernel, stride, padding })
    }
}

impl AvgPool2d {
    /// Windows of size `kernel`, `stride` apart; `count_include_pad` counts padding as zeros, else it does not count.
    /// Errors for a kernel or stride of 0, and padding wider than half a window.
    pub fn new(kernel: [usize; 2], stride: [usize; 2], padding: [usize; 2], count_include_pad: bool) -> Result<Self> {
        check("avg_pool2d", kernel, stride, padding)?;
        Ok(AvgPool2d { kernel, stride, padding, count_include_pad })
    }
}

impl Forward for MaxPool2d {
    #[track_caller]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        input.max_pool2d(self.kernel, self.stride, self.padding)
    }
}

impl Forward for AvgPool2d {
    #[track_caller]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        input.avg_pool2d(self.kernel, self.stride, self.padding, self.count_include_pad)
    }
}
