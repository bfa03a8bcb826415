//! Activation functions as layers, for [`Sequential`](crate::Sequential) and generic models; elsewhere call the tensor's
//! method.

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
    /// `x * Phi(x)`, exact.
    Gelu => gelu;
    /// GELU, approximated by tanh.
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

/// `x` above 0, else `slope * x`; the default slope is 0.01.
#[derive(Debug, Clone, Copy, PartialEq, Module)]
pub struct LeakyRelu {
    /// Slope below 0.
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

/// `e^x / sum(e^x)` along an axis; negative ones count from the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Module)]
pub struct Softmax {
    /// The axis that sums to 1.
    pub axis: isize,
}

impl Forward for Softmax {
    #[track_caller]
    fn compute(&self, input: &Tensor) -> Result<Tensor> {
        input.softmax(self.axis)
    }
}

/// `x - ln(sum(e^x))` along an axis; negative ones count from the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Module)]
pub struct LogSoftmax {
    /// The axis whose exponentials sum to 1.
    pub axis: isize,
}

impl Forward for LogSoftmax {
    #[track_caller]
    fn compute(&self, input: &Tensor) -> Result<Tensor> {
        input.log_softmax(self.axis)
    }
}
