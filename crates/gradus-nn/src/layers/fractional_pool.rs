//! [`FractionalMaxPool2d`] and [`FractionalMaxPool3d`].

use gradus_tensor::{DType, Error, Generator, Result, Tensor};

use crate::module::ForwardPass;
use crate::{Forward, Module, RandomState};

macro_rules! fractional_pools {
    ($($n:literal $shape:literal $axes:literal $layer:ident $op:literal;)*) => {$(
        #[doc = concat!("Largest element under each window of `[n, c, ", $shape, "]`, where the windows of each channel of each")]
        /// sample lie at random places (Graham, 2014): along an axis they are on average `(size - kernel) / (output - 1)`
        /// apart, in two kinds of steps that alternate in a random order. The formula is PyTorch's, and like there the
        /// places are random in evaluation too.
        #[derive(Clone, Module)]
        pub struct $layer {
            kernel: [usize; $n],
            sizes: Option<[usize; $n]>,
            ratios: [f64; $n],
            random: RandomState,
        }

        impl $layer {
            /// Creates a layer whose output has these sizes. Its seed is drawn from `generator`. Errors if kernel or
            /// sizes contain a 0.
            #[track_caller]
            pub fn to(kernel: [usize; $n], sizes: [usize; $n], generator: &mut Generator) -> Result<Self> {
                if kernel.contains(&0) || sizes.contains(&0) {
                    let m = format!("kernel {kernel:?} or output {sizes:?} has a 0; each is at least 1");
                    return Err(Error::argument($op, m));
                }
                let random = RandomState::new(Generator::new(generator.next_u64()));
                Ok($layer { kernel, sizes: Some(sizes), ratios: [1.0; $n], random })
            }

            /// Creates a layer whose output has the sizes of its input times these ratios, rounded down. Errors if
            /// the kernel contains a 0, or a ratio is not between 0 and 1.
            #[track_caller]
            pub fn by(kernel: [usize; $n], ratios: [f64; $n], generator: &mut Generator) -> Result<Self> {
                if ratios.iter().any(|r| !(*r > 0.0 && *r < 1.0)) {
                    return Err(Error::argument($op, format!("a ratio of {ratios:?} is not between 0 and 1")));
                }
                Ok($layer { sizes: None, ratios, ..Self::to(kernel, [1; $n], generator)? })
            }

            /// The output for given random numbers, and the places of the largest elements, i64: the index of each
            /// among the elements of its channel. `samples [n, c, axes]` are at least 0 and below 1. As in PyTorch,
            #[doc = concat!("the numbers of a sample belong to the axes ", $axes, ", in this order.")]
            ///
            /// # Errors
            /// Fails if the input has another rank, if the windows do not fit into it, or if the samples have another
            /// shape.
            #[track_caller]
            pub fn forward_with(&self, input: &Tensor, samples: &Tensor) -> Result<(Tensor, Tensor)> {
                let output = self.output($op, input)?;
                let columns: [usize; $n] = std::array::from_fn(|i| if $n == 2 { 1 - i } else { i });
                pooled($op, input, self.kernel, output, samples, columns)
            }

            /// The output and the places of the largest elements, see
            #[doc = concat!("[`forward_with`](", stringify!($layer), "::forward_with). After an error, the random state is restored.")]
            #[track_caller]
            pub fn forward_with_indices(&self, input: &Tensor) -> Result<(Tensor, Tensor)> {
                let pass = ForwardPass::begin()?;
                pass.end(self, self.draw(input))
            }

            #[track_caller]
            fn draw(&self, input: &Tensor) -> Result<(Tensor, Tensor)> {
                self.output($op, input)?;
                let mut draw = self.random.begin();
                let shape = [input.shape()[0], input.shape()[1], $n];
                let samples = Tensor::rand(shape, exact(input.dtype()), input.device(), &mut draw.generator);
                let found = samples.and_then(|samples| self.forward_with(input, &samples));
                draw.end(found)
            }

            /// The spatial sizes of the output, after a check of the input.
            #[track_caller]
            fn output(&self, op: &str, input: &Tensor) -> Result<[usize; $n]> {
                let refuse = |m: String| {
                    Err(Error::shape(op, m).operand("input", input.shape(), input.dtype(), input.device()))
                };
                let [_, _, sizes @ ..] = input.shape() else { return refuse("the input is [n, c, ..]".to_owned()) };
                let Ok(sizes) = <[usize; $n]>::try_from(sizes) else {
                    return refuse(format!("the input has a batch axis, a channel axis and {} more", $n));
                };
                // Below the input's size, because a ratio is below 1.
                let output = self.sizes.unwrap_or(std::array::from_fn(|i| (sizes[i] as f64 * self.ratios[i]) as usize));
                for i in 0..$n {
                    let (size, kernel, output) = (sizes[i], self.kernel[i], output[i]);
                    if output == 0 || output.checked_add(kernel).is_none_or(|end| end - 1 > size) {
                        let m = format!("{output} windows of {kernel} do not fit into the {size} of axis {}", i + 2);
                        return refuse(format!("{m}; there are 1 to size - kernel + 1 windows"));
                    }
                }
                Ok(output)
            }
        }

        impl Forward for $layer {
            #[track_caller]
            fn compute(&self, input: &Tensor) -> Result<Tensor> {
                Ok(self.draw(input)?.0)
            }
        }
    )*};
}

fractional_pools! {
    2 "h, w" "w, h" FractionalMaxPool2d "fractional_max_pool2d";
    3 "d, h, w" "d, h, w" FractionalMaxPool3d "fractional_max_pool3d";
}

/// The dtype in which places are computed.
fn exact(dtype: DType) -> DType {
    if dtype == DType::F64 { DType::F64 } else { DType::F32 }
}

/// The first elements of the windows along an axis, i64 `[n, c, output]`.
fn starts(samples: &Tensor, size: usize, kernel: usize, output: usize) -> Result<Tensor> {
    let (shape, device) = (samples.shape(), samples.device());
    let last = Tensor::full([shape[0], shape[1], 1], (size - kernel) as i64, DType::I64, device)?;
    if output == 1 {
        return Ok(last);
    }
    let alpha = (size - kernel) as f64 / (output - 1) as f64;
    let windows = Tensor::arange(0, output as i64 - 1, 1, samples.dtype(), device)?;
    let places = samples.add(&windows)?.mul(alpha)?.floor()?.sub(&samples.mul(alpha)?.floor()?)?;
    Tensor::cat(&[&places.to_dtype(DType::I64)?, &last], 2)
}

/// The largest elements under the windows, and their places. The windows fit into the input. `columns` are the columns
/// of `samples` that belong to the axes.
#[track_caller]
fn pooled<const N: usize>(
    op: &str,
    input: &Tensor,
    kernel: [usize; N],
    output: [usize; N],
    samples: &Tensor,
    columns: [usize; N],
) -> Result<(Tensor, Tensor)> {
    let [n, c, sizes @ ..] = input.shape() else { return Err(Error::shape(op, "the input is [n, c, ..]")) };
    if samples.shape() != [*n, *c, N] {
        let e = Error::shape(op, format!("the samples are not [{n}, {c}, {N}]"));
        let e = e.operand("input", input.shape(), input.dtype(), input.device());
        return Err(e.operand("samples", samples.shape(), samples.dtype(), samples.device()));
    }
    let samples = samples.to_dtype(exact(input.dtype()))?;
    // The places of all elements of all windows: [n, c, output.., kernel..].
    let mut places = Tensor::full([], 0i64, DType::I64, input.device())?;
    for (i, &column) in columns.iter().enumerate() {
        let sample = samples.narrow(2, column, 1)?;
        let (mut windows, mut elements) = ([1; N], [1; N]);
        (windows[i], elements[i]) = (output[i], kernel[i]);
        let starts = starts(&sample, sizes[i], kernel[i], output[i])?;
        let starts = starts.reshape([&[*n, *c][..], &windows, &[1; N]].concat())?;
        let steps = Tensor::arange(0, kernel[i] as i64, 1, DType::I64, input.device())?;
        let axis = starts.add(steps.reshape([&[1, 1][..], &[1; N], &elements].concat())?)?;
        places = places.add(axis.mul(sizes[i + 1..].iter().product::<usize>() as i64)?)?;
    }
    let (windows, elements) = (output.iter().product::<usize>(), kernel.iter().product::<usize>());
    let flat = input.reshape([*n, *c, sizes.iter().product::<usize>()])?;
    let values = flat.detach().gather(2, &places.reshape([*n, *c, windows * elements])?)?;
    let largest = values.reshape([*n, *c, windows, elements])?.argmax(3, true)?;
    let places = places.reshape([*n, *c, windows, elements])?.gather(3, &largest)?.squeeze(3)?;
    let shape = [&[*n, *c][..], &output].concat();
    Ok((flat.gather(2, &places)?.reshape(&shape)?, places.reshape(&shape)?))
}
