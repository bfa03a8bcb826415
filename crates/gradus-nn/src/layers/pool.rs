//! Pooling layers: [`MaxPool2d`], [`AvgPool2d`], [`AdaptiveAvgPool2d`], [`AdaptiveMaxPool2d`], and their counterparts
//! over one and three axes.

use gradus_tensor::{Error, PoolOptions, Result, Tensor};

use crate::{Forward, Module};

#[track_caller]
fn check<const N: usize>(op: &str, kernel: [usize; N], stride: [usize; N], padding: [usize; N]) -> Result<()> {
    if kernel.contains(&0) || stride.contains(&0) {
        return Err(Error::argument(op, format!("kernel {kernel:?} or stride {stride:?} has a 0; each is at least 1")));
    }
    if (0..N).any(|i| padding[i] > kernel[i] / 2) {
        return Err(Error::argument(op, format!("padding {padding:?} is more than half of the kernel {kernel:?}")));
    }
    Ok(())
}

macro_rules! pools {
    ($($n:literal $shape:literal $max:ident $max_pool:ident $avg:ident $avg_pool:ident;)*) => {$(
        #[doc = concat!("Largest element under each window of `[n, c, ", $shape, "]`. Along each axis there are")]
        /// `(size + 2 padding - dilation (kernel - 1) - 1) / stride + 1` windows, rounded down. Padding is never the
        /// largest element.
        #[derive(Clone, Module)]
        pub struct $max {
            kernel: [usize; $n],
            stride: [usize; $n],
            padding: [usize; $n],
            dilation: [usize; $n],
            ceil_mode: bool,
        }

        impl $max {
            /// Creates a layer with windows of size `kernel` that are `stride` apart. Errors if kernel or stride
            /// contain a 0, or if the padding is more than half of the kernel.
            #[track_caller]
            pub fn new(kernel: [usize; $n], stride: [usize; $n], padding: [usize; $n]) -> Result<Self> {
                check(stringify!($max_pool), kernel, stride, padding)?;
                Ok($max { kernel, stride, padding, dilation: [1; $n], ceil_mode: false })
            }

            /// Sets the step between neighbouring elements of a window. Errors if it contains a 0.
            #[track_caller]
            pub fn dilation(mut self, dilation: [usize; $n]) -> Result<Self> {
                if dilation.contains(&0) {
                    let m = format!("dilation {dilation:?} has a 0; each is at least 1");
                    return Err(Error::argument(stringify!($max_pool), m));
                }
                self.dilation = dilation;
                Ok(self)
            }

            /// Sets whether the number of windows is rounded up instead of down.
            #[must_use]
            pub fn ceil_mode(mut self, ceil_mode: bool) -> Self {
                self.ceil_mode = ceil_mode;
                self
            }
        }

        impl Forward for $max {
            #[track_caller]
            fn compute(&self, input: &Tensor) -> Result<Tensor> {
                let options = PoolOptions::new().stride(self.stride).padding(self.padding).dilation(self.dilation);
                input.$max_pool(self.kernel, options.ceil_mode(self.ceil_mode))
            }
        }

        #[doc = concat!("Mean under each window of `[n, c, ", $shape, "]`. Along each axis there are")]
        /// `(size + 2 padding - kernel) / stride + 1` windows, rounded down.
        #[derive(Clone, Module)]
        pub struct $avg {
            kernel: [usize; $n],
            stride: [usize; $n],
            padding: [usize; $n],
            count_include_pad: bool,
            ceil_mode: bool,
        }

        impl $avg {
            /// Creates a layer with windows of size `kernel` that are `stride` apart. With `count_include_pad`, padding
            /// counts as zeros; without it, padding does not count. Errors if kernel or stride contain a 0, or if the
            /// padding is more than half of the kernel.
            #[track_caller]
            pub fn new(
                kernel: [usize; $n],
                stride: [usize; $n],
                padding: [usize; $n],
                count_include_pad: bool,
            ) -> Result<Self> {
                check(stringify!($avg_pool), kernel, stride, padding)?;
                Ok($avg { kernel, stride, padding, count_include_pad, ceil_mode: false })
            }

            /// Sets whether the number of windows is rounded up instead of down.
            #[must_use]
            pub fn ceil_mode(mut self, ceil_mode: bool) -> Self {
                self.ceil_mode = ceil_mode;
                self
            }
        }

        impl Forward for $avg {
            #[track_caller]
            fn compute(&self, input: &Tensor) -> Result<Tensor> {
                let options = PoolOptions::new().stride(self.stride).padding(self.padding).ceil_mode(self.ceil_mode);
                input.$avg_pool(self.kernel, options, self.count_include_pad)
            }
        }
    )*};
}

pools! {
    1 "l" MaxPool1d max_pool1d AvgPool1d avg_pool1d;
    2 "h, w" MaxPool2d max_pool2d AvgPool2d avg_pool2d;
    3 "d, h, w" MaxPool3d max_pool3d AvgPool3d avg_pool3d;
}

macro_rules! adaptive_pools {
    ($($what:literal $n:literal $layer:ident $method:ident;)*) => {$(
        #[doc = concat!($what, " of as many bins as the result has elements: `[n, c, spatial..]` to `[n, c, output..]`, see")]
        #[doc = concat!("[`Tensor::", stringify!($method), "`].")]
        #[derive(Clone, Module)]
        pub struct $layer {
            output: [usize; $n],
        }

        impl $layer {
            /// Creates a layer whose output has this spatial size. Errors if it contains a 0.
            #[track_caller]
            pub fn new(output: [usize; $n]) -> Result<Self> {
                if output.contains(&0) {
                    let m = format!("the output size {output:?} has a 0; each is at least 1");
                    return Err(Error::argument(stringify!($method), m));
                }
                Ok($layer { output })
            }
        }

        impl Forward for $layer {
            #[track_caller]
            fn compute(&self, input: &Tensor) -> Result<Tensor> {
                input.$method(self.output)
            }
        }
    )*};
}

adaptive_pools! {
    "Mean" 1 AdaptiveAvgPool1d adaptive_avg_pool1d;
    "Mean" 2 AdaptiveAvgPool2d adaptive_avg_pool2d;
    "Mean" 3 AdaptiveAvgPool3d adaptive_avg_pool3d;
    "Largest element" 1 AdaptiveMaxPool1d adaptive_max_pool1d;
    "Largest element" 2 AdaptiveMaxPool2d adaptive_max_pool2d;
    "Largest element" 3 AdaptiveMaxPool3d adaptive_max_pool3d;
}
