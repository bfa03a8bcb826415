//! Activation functions as layers, for [`Sequential`](crate::Sequential) and generic models. Elsewhere, call the
//! tensor's method.

use gradus_tensor::{Result, Tensor};

use crate::{Forward, Module};

macro_rules! activation {
    ($($(#[doc = $doc:literal])* $name:ident => $method:ident;)*) => {$(
        $(#[doc = $doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Module)]
        pub struct $name;

        impl Forward for $name {
            #[track_caller]
            fn compute(&self, input: &Tensor) -> Result<Tensor> {
                input.$method()
            }
        }
    )*};
}

activation! {
    /// `max(x, 0)`
    Relu => relu;
    /// The exact GELU: `x * Phi(x)`, where `Phi` is the cumulative distribution function of the standard normal.
    Gelu => gelu;
    /// GELU, approximated with tanh.
    GeluTanh => gelu_tanh;
    /// `x * sigmoid(x)`
    Silu => silu;
    /// `1 / (1 + e^-x)`
    Sigmoid => sigmoid;
    /// Hyperbolic tangent.
    Tanh => tanh;
    /// `ln(1 + e^x)`
    Softplus => softplus;
}

/// `x` above 0, and `slope * x` otherwise. The default slope is 0.01.
#[derive(Debug, Clone, Copy, PartialEq, Module)]
pub struct LeakyRelu {
    /// The slope for negative inputs.
    pub slope: f64,
}

impl Default for LeakyRelu {
    fn default() -> Self {
        LeakyRelu { slope: 0.01 }
    }
}

impl Forward for LeakyRelu {
    #[track_caller]
    fn compute(&self, input: &Tensor) -> Result<Tensor> {
        input.leaky_relu(self.slope)
    }
}

/// `e^x / sum(e^x)` along an axis. A negative axis counts from the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Module)]
pub struct Softmax {
    /// The axis along which the outputs sum to 1.
    pub axis: isize,
}

impl Forward for Softmax {
    #[track_caller]
    fn compute(&self, input: &Tensor) -> Result<Tensor> {
        input.softmax(self.axis)
    }
}

/// `x - ln(sum(e^x))` along an axis. A negative axis counts from the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Module)]
pub struct LogSoftmax {
    /// The axis along which the exponentials of the outputs sum to 1.
    pub axis: isize,
}

impl Forward for LogSoftmax {
    #[track_caller]
    fn compute(&self, input: &Tensor) -> Result<Tensor> {
        input.log_softmax(self.axis)
    }
}
