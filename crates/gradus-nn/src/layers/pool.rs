//! Pooling layers: [`MaxPool2d`], [`AvgPool2d`], [`LpPool2d`], [`AdaptiveAvgPool2d`], [`AdaptiveMaxPool2d`],
//! [`MaxUnpool2d`], and their counterparts over one and three axes.

use gradus_tensor::{Error, PadMode, PoolOptions, Result, Tensor, fused};

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
    ($($n:literal $shape:literal
        $max:ident $max_pool:ident $with_indices:ident $unpool:ident
        $avg:ident $avg_pool:ident
        $lp:ident
    ;)*) => {$(
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

            fn options(&self) -> PoolOptions<$n> {
                let options = PoolOptions::new().stride(self.stride).padding(self.padding).dilation(self.dilation);
                options.ceil_mode(self.ceil_mode)
            }

            /// The largest elements and their places, i64: the index of each among the elements of its channel. Pass
            /// them on to
            #[doc = concat!("[`", stringify!($unpool), "`].")]
            #[track_caller]
            pub fn forward_with_indices(&self, input: &Tensor) -> Result<(Tensor, Tensor)> {
                input.$with_indices(self.kernel, self.options())
            }
        }

        impl Forward for $max {
            #[track_caller]
            fn compute(&self, input: &Tensor) -> Result<Tensor> {
                input.$max_pool(self.kernel, self.options())
            }
        }

        #[doc = concat!("Puts the elements of `[n, c, ", $shape, "]` at the places where [`", stringify!($max), "`] found them, among")]
        /// zeros. Of several elements with one place, one is put there.
        #[derive(Clone, Module)]
        pub struct $unpool {
            kernel: [usize; $n],
            stride: [usize; $n],
            padding: [usize; $n],
        }

        impl $unpool {
            /// Creates the inverse of the pooling layer with the same arguments.
            #[track_caller]
            pub fn new(kernel: [usize; $n], stride: [usize; $n], padding: [usize; $n]) -> Result<Self> {
                check(stringify!($unpool), kernel, stride, padding)?;
                Ok($unpool { kernel, stride, padding })
            }

            /// Computes the output. Its spatial size is `output`, or `(size - 1) stride - 2 padding + kernel` along each
            /// axis. Errors if the indices have another shape than the input, or lie outside of the output.
            #[track_caller]
            pub fn forward(&self, input: &Tensor, indices: &Tensor, output: Option<[usize; $n]>) -> Result<Tensor> {
                unpooled(stringify!($unpool), input, indices, output, [self.kernel, self.stride, self.padding])
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
            divisor_override: Option<usize>,
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
                let (ceil_mode, divisor_override) = (false, None);
                Ok($avg { kernel, stride, padding, count_include_pad, ceil_mode, divisor_override })
            }

            /// Divides the sum under each window by this number, whatever the window contains. Errors if it is 0.
            #[track_caller]
            pub fn divisor_override(mut self, divisor: usize) -> Result<Self> {
                if divisor == 0 {
                    return Err(Error::argument(stringify!($avg_pool), "divisor_override is 0; it is at least 1"));
                }
                self.divisor_override = Some(divisor);
                Ok(self)
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
                let mean = input.$avg_pool(self.kernel, options, self.count_include_pad)?;
                let Some(divisor) = self.divisor_override else { return Ok(mean) };
                // With all of the padding as elements, every window is whole.
                let windows = &mean.shape()[2..];
                let x = whole(input, windows, [self.kernel, self.stride, self.padding])?;
                let mean = x.$avg_pool(self.kernel, PoolOptions::new().stride(self.stride), true)?;
                mean.mul(self.kernel.iter().product::<usize>() as f64 / divisor as f64)
            }
        }

        #[doc = concat!("`(sum x^p)^(1/p)` under each window of `[n, c, ", $shape, "]`. Along each axis there are")]
        /// `(size - kernel) / stride + 1` windows, rounded down. As in PyTorch, a sum below 0 gives NaN, and with
        /// `ceil_mode` a window that reaches beyond the input counts as if it were filled up with its mean.
        #[derive(Clone, Module)]
        pub struct $lp {
            p: f64,
            kernel: [usize; $n],
            stride: [usize; $n],
            ceil_mode: bool,
        }

        impl $lp {
            /// Creates a layer with windows of size `kernel` that are `stride` apart. Errors if `p` is 0 or not finite,
            /// or if kernel or stride contain a 0.
            #[track_caller]
            pub fn new(p: f64, kernel: [usize; $n], stride: [usize; $n]) -> Result<Self> {
                check("lp_pool", kernel, stride, [0; $n])?;
                if p == 0.0 || !p.is_finite() {
                    return Err(Error::argument("lp_pool", format!("p is {p}; it is finite and not 0")));
                }
                Ok($lp { p, kernel, stride, ceil_mode: false })
            }

            /// Sets whether the number of windows is rounded up instead of down.
            #[must_use]
            pub fn ceil_mode(mut self, ceil_mode: bool) -> Self {
                self.ceil_mode = ceil_mode;
                self
            }
        }

        impl Forward for $lp {
            #[track_caller]
            fn compute(&self, input: &Tensor) -> Result<Tensor> {
                let options = PoolOptions::new().stride(self.stride).ceil_mode(self.ceil_mode);
                let mean = input.pow(self.p)?.$avg_pool(self.kernel, options, false)?;
                let size = self.kernel.iter().product::<usize>() as f64;
                // The slope of a window of zeros is 0.
                fused!(|mean, size, q| {
                    let nothing = mean.eq(0.0);
                    nothing.select(0.0, (nothing.select(1.0, mean) * size).pow(q))
                })(&mean, size, 1.0 / self.p)
            }
        }
    )*};
}

/// The input with its padding as elements, and so many zeros at the end that these numbers of windows are whole.
#[track_caller]
fn whole<const N: usize>(
    input: &Tensor,
    windows: &[usize],
    [kernel, stride, padding]: [[usize; N]; 3],
) -> Result<Tensor> {
    let sizes = &input.shape()[2..];
    let sides: [(isize, isize); N] = std::array::from_fn(|i| {
        let end = (windows[i].max(1) - 1) * stride[i] + kernel[i];
        (padding[i] as isize, end as isize - sizes[i] as isize - padding[i] as isize)
    });
    input.pad(&sides, PadMode::Constant(0.into()))
}

#[track_caller]
fn unpooled<const N: usize>(
    op: &str,
    input: &Tensor,
    indices: &Tensor,
    output: Option<[usize; N]>,
    [kernel, stride, padding]: [[usize; N]; 3],
) -> Result<Tensor> {
    if input.rank() != N + 2 || indices.shape() != input.shape() {
        let e = Error::shape(op, format!("input and indices have one shape, [n, c] and {N} more axes"));
        let e = e.operand("input", input.shape(), input.dtype(), input.device());
        return Err(e.operand("indices", indices.shape(), indices.dtype(), indices.device()));
    }
    let [n, c, sizes @ ..] = input.shape() else { return Err(Error::shape(op, "the input is [n, c, ..]")) };
    let spatial = output.unwrap_or_else(|| {
        let size = |i: usize| sizes[i].saturating_sub(1).saturating_mul(stride[i]).saturating_add(kernel[i]);
        std::array::from_fn(|i| size(i).saturating_sub(2 * padding[i]))
    });
    let Some(places) = spatial.iter().try_fold(1usize, |all, &size| all.checked_mul(size)) else {
        return Err(Error::argument(op, format!("an output of {spatial:?} has more elements than memory can hold")));
    };
    let positions = sizes.iter().product::<usize>();
    let zeros = Tensor::zeros([*n, *c, places], input.dtype(), input.device())?;
    let flat = zeros.scatter(2, &indices.reshape([*n, *c, positions])?, &input.reshape([*n, *c, positions])?)?;
    flat.reshape([&[*n, *c], &spatial[..]].concat())
}

pools! {
    1 "l" MaxPool1d max_pool1d max_pool1d_with_indices MaxUnpool1d AvgPool1d avg_pool1d LpPool1d;
    2 "h, w" MaxPool2d max_pool2d max_pool2d_with_indices MaxUnpool2d AvgPool2d avg_pool2d LpPool2d;
    3 "d, h, w" MaxPool3d max_pool3d max_pool3d_with_indices MaxUnpool3d AvgPool3d avg_pool3d LpPool3d;
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
