//! Activation functions as layers, for [`Sequential`](crate::Sequential) and generic models. Elsewhere, call the
//! tensor's method.

use gradus_tensor::backend::params::Distribution;
use gradus_tensor::{Error, Generator, Result, Tensor, fused};

use crate::{Forward, Init, Mode, Module, Parameter, RandomState};

macro_rules! activations {
    ($($(#[doc = $doc:literal])* $name:ident: |$x:ident| $value:expr;)*) => {$(
        $(#[doc = $doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Module)]
        pub struct $name;

        impl Forward for $name {
            #[track_caller]
            fn compute(&self, $x: &Tensor) -> Result<Tensor> {
                $value
            }
        }
    )*};
}

activations! {
    /// `max(x, 0)`
    Relu: |x| x.relu();
    /// `min(max(x, 0), 6)`
    Relu6: |x| x.relu6();
    /// The exact GELU: `x * Phi(x)`, where `Phi` is the cumulative distribution function of the standard normal.
    Gelu: |x| x.gelu();
    /// GELU, approximated with tanh.
    GeluTanh: |x| x.gelu_tanh();
    /// `x * sigmoid(x)`
    Silu: |x| x.silu();
    /// `x * tanh(ln(1 + e^x))`
    Mish: |x| x.mish();
    /// `1 / (1 + e^-x)`
    Sigmoid: |x| x.sigmoid();
    /// `ln(1 / (1 + e^-x))`
    LogSigmoid: |x| x.log_sigmoid();
    /// `relu6(x + 3) / 6`
    Hardsigmoid: |x| x.hardsigmoid();
    /// `x * relu6(x + 3) / 6`
    Hardswish: |x| x.hardswish();
    /// Hyperbolic tangent.
    Tanh: |x| x.tanh();
    /// `x - tanh(x)`
    Tanhshrink: |x| x.sub(&x.tanh()?);
    /// `x / (1 + |x|)`
    Softsign: |x| x.softsign();
    /// The self-normalising ELU (Klambauer et al., 2017): `1.0507 * elu(x)` with alpha 1.6733. Goes with
    /// [`AlphaDropout`](crate::AlphaDropout).
    Selu: |x| x.selu();
    /// `e^x / sum(e^x)` over the channels, axis -3 of `[n, c, h, w]` or `[c, h, w]`.
    Softmax2d: |x| {
        if !(3..=4).contains(&x.rank()) {
            let e = Error::shape("softmax2d", "the input is [n, c, h, w] or [c, h, w]");
            return Err(e.operand("input", x.shape(), x.dtype(), x.device()));
        }
        x.softmax(-3)
    };
}

macro_rules! with_settings {
    ($(
        $(#[doc = $doc:literal])*
        $name:ident { $($(#[doc = $of:literal])* $field:ident: $type:ty = $default:expr,)* }: |$me:ident, $x:ident| $value:expr;
    )*) => {$(
        $(#[doc = $doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Module)]
        pub struct $name {
            $($(#[doc = $of])* pub $field: $type,)*
        }

        impl Default for $name {
            fn default() -> Self {
                $name { $($field: $default,)* }
            }
        }

        impl Forward for $name {
            #[track_caller]
            fn compute(&self, $x: &Tensor) -> Result<Tensor> {
                let $me = self;
                $value
            }
        }
    )*};
}

with_settings! {
    /// `x` above 0, and `slope * x` otherwise.
    LeakyRelu {
        /// The slope for negative inputs. Default 0.01.
        slope: f64 = 0.01,
    }: |it, x| x.leaky_relu(it.slope);
    /// `x` above 0, and `alpha (e^x - 1)` otherwise (Clevert et al., 2016).
    Elu {
        /// Minus the limit for negative inputs. Default 1.
        alpha: f64 = 1.0,
    }: |it, x| x.elu(it.alpha);
    /// `x` above 0, and `alpha (e^(x / alpha) - 1)` otherwise (Barron, 2017). An alpha of 0 is an error.
    Celu {
        /// Minus the limit for negative inputs. Default 1.
        alpha: f64 = 1.0,
    }: |it, x| x.celu(it.alpha);
    /// `ln(1 + e^(beta x)) / beta`, and `x` where `beta x` is above the threshold. A beta of 0 is an error.
    Softplus {
        /// The sharpness of the bend. Default 1.
        beta: f64 = 1.0,
        /// Where the function becomes the identity. Default 20.
        threshold: f64 = 20.0,
    }: |it, x| {
        if it.beta == 0.0 || !it.beta.is_finite() {
            return Err(Error::argument("softplus", format!("beta is {}; it is finite and not 0", it.beta)));
        }
        fused!(|x, beta, threshold| {
            let linear = (x * beta).gt(threshold);
            linear.select(x, linear.select(0.0, x * beta).softplus() / beta)
        })(x, it.beta, it.threshold)
    };
    /// `x` limited to the range from `min_val` to `max_val`. A `min_val` above `max_val` is an error.
    Hardtanh {
        /// The lower end. Default -1.
        min_val: f64 = -1.0,
        /// The upper end. Default 1.
        max_val: f64 = 1.0,
    }: |it, x| x.hardtanh(it.min_val, it.max_val);
    /// 0 from `-lambda` to `lambda`, and `x` elsewhere.
    Hardshrink {
        /// The largest magnitude that becomes 0. Default 0.5.
        lambda: f64 = 0.5,
    }: |it, x| x.hardshrink(it.lambda);
    /// `x` moved by `lambda` towards 0, and 0 if it would cross 0. A negative lambda is an error.
    Softshrink {
        /// The distance. Default 0.5.
        lambda: f64 = 0.5,
    }: |it, x| x.softshrink(it.lambda);
    /// The first half of an axis times the sigmoid of the second half (Dauphin et al., 2017). An odd size is an error.
    Glu {
        /// The axis that is halved. A negative axis counts from the end. Default -1.
        axis: isize = -1,
    }: |it, x| x.glu(it.axis);
}

/// `x` above `threshold`, and `value` otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Module)]
pub struct Threshold {
    /// The largest input that is replaced.
    pub threshold: f64,
    /// The replacement.
    pub value: f64,
}

impl Forward for Threshold {
    #[track_caller]
    fn compute(&self, input: &Tensor) -> Result<Tensor> {
        input.threshold(self.threshold, self.value)
    }
}

macro_rules! along_an_axis {
    ($($(#[doc = $doc:literal])* $name:ident $method:ident $axis:literal;)*) => {$(
        $(#[doc = $doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Module)]
        pub struct $name {
            #[doc = $axis]
            pub axis: isize,
        }

        impl Forward for $name {
            #[track_caller]
            fn compute(&self, input: &Tensor) -> Result<Tensor> {
                input.$method(self.axis)
            }
        }
    )*};
}

along_an_axis! {
    /// `e^x / sum(e^x)` along an axis. A negative axis counts from the end.
    Softmax softmax "The axis along which the outputs sum to 1.";
    /// `e^-x / sum(e^-x)` along an axis. A negative axis counts from the end.
    Softmin softmin "The axis along which the outputs sum to 1.";
    /// `x - ln(sum(e^x))` along an axis. A negative axis counts from the end.
    LogSoftmax log_softmax "The axis along which the exponentials of the outputs sum to 1.";
}

/// `x` above 0, and `weight * x` otherwise, with a trained weight (He et al., 2015). There is one weight for all
/// elements, or one for each channel (axis 1) of `[n, c, ..]`.
#[derive(Clone, Module)]
pub struct PRelu {
    num_parameters: usize,
    /// The slopes for negative inputs, `[num_parameters]`.
    pub weight: Parameter,
}

impl PRelu {
    /// Creates a layer with `num_parameters` slopes of this value: 1 slope of 0.25 is usual. Errors if there are none.
    #[track_caller]
    pub fn new(num_parameters: usize, value: f64, init: &mut Init<'_>) -> Result<Self> {
        if num_parameters == 0 {
            return Err(Error::argument("prelu", "there are 0 parameters; there is 1, or one for each channel"));
        }
        Ok(PRelu { num_parameters, weight: Parameter::new(init.constant([num_parameters], value)?)? })
    }
}

impl Forward for PRelu {
    #[track_caller]
    fn compute(&self, input: &Tensor) -> Result<Tensor> {
        input.prelu(&self.weight)
    }
}

/// Leaky ReLU with random slopes (Xu et al., 2015). In training, the slope of each negative element is drawn uniformly
/// from `lower` to `upper`. In evaluation it is their mean.
#[derive(Clone, Module)]
pub struct RRelu {
    lower: f64,
    upper: f64,
    random: RandomState,
    mode: Mode,
}

impl RRelu {
    /// Creates a layer. PyTorch's default range is 1/8 to 1/3. Its seed is drawn from `generator`. Errors if the range
    /// is empty or not finite.
    #[track_caller]
    pub fn new(lower: f64, upper: f64, generator: &mut Generator) -> Result<Self> {
        if !(lower <= upper && lower.is_finite() && upper.is_finite()) {
            let m = format!("the slopes are from {lower} to {upper}; the ends are finite and in order");
            return Err(Error::argument("rrelu", m));
        }
        let random = RandomState::new(Generator::new(generator.next_u64()));
        Ok(RRelu { lower, upper, random, mode: Mode::Train })
    }
}

impl Forward for RRelu {
    #[track_caller]
    fn compute(&self, input: &Tensor) -> Result<Tensor> {
        if !self.mode.is_training() || self.lower == self.upper {
            return input.leaky_relu((self.lower + self.upper) / 2.0);
        }
        let slopes = Distribution::Uniform { lo: self.lower, hi: self.upper };
        let dtype = input.dtype().to_float();
        let mut draw = self.random.begin();
        let slopes = Tensor::random(slopes, input.shape(), dtype, input.device(), &mut draw.generator)?;
        draw.end(fused!(|x, slope| {
            let above = x.gt(0.0);
            above.select(x, above.select(0.0, x) * slope)
        })(input, &slopes))
    }
}
