//! Dropout layers: [`Dropout`], [`Dropout1d`] and its kin for whole channels, [`StochasticDepth`] for whole samples, and
//! [`AlphaDropout`].

use gradus_tensor::backend::params::Distribution;
use gradus_tensor::ops::Class;
use gradus_tensor::{DType, Elementwise, Error, Generator, Operand, Result, Tensor};

use crate::{Forward, Mode, Module, RandomState};

/// Refuses a number called `name` that is no probability.
#[track_caller]
pub(super) fn check_probability(op: &str, name: &str, p: f64) -> Result<()> {
    if (0.0..=1.0).contains(&p) {
        return Ok(());
    }
    Err(Error::argument(op, format!("{name} is {p}; it is a probability, 0 to 1")))
}

macro_rules! dropouts {
    ($($(#[doc = $doc:literal])* $layer:ident $op:literal |$x:ident, $p:ident, $generator:ident| $value:expr;)*) => {$(
        $(#[doc = $doc])*
        #[derive(Clone, Module)]
        pub struct $layer {
            p: f64,
            random: RandomState,
            mode: Mode,
        }

        impl $layer {
            /// Creates a layer with drop probability `p`, 0 to 1. Its seed is drawn from `generator`.
            #[track_caller]
            pub fn new(p: f64, generator: &mut Generator) -> Result<Self> {
                check_probability($op, "p", p)?;
                Ok($layer { p, random: RandomState::new(Generator::new(generator.next_u64())), mode: Mode::Train })
            }
        }

        impl Forward for $layer {
            #[track_caller]
            fn compute(&self, input: &Tensor) -> Result<Tensor> {
                if !self.mode.is_training() {
                    return Ok(input.clone());
                }
                let mut draw = self.random.begin();
                let ($x, $p, $generator) = (input, self.p, &mut draw.generator);
                let y = $value;
                draw.end(y)
            }
        }
    )*};
}

dropouts! {
    /// Dropout (Srivastava et al., 2014). In training, it zeroes each element with probability `p` and divides the rest
    /// by `1 - p`. In evaluation, it returns its input.
    ///
    /// The layer has its own generator, so its masks depend only on its seed and on how often it has run, not on other
    /// layers. Inside [`checkpoint`](gradus_tensor::autograd::checkpoint), the recomputation drops the same elements as
    /// the first run.
    Dropout "dropout" |x, p, generator| x.dropout(p, generator);
    /// [`Dropout`] of whole channels (Tompson et al., 2015): in training, each channel of each sample of `[n, c, l]` is
    /// zeroed with probability `p`, and the rest is divided by `1 - p`.
    Dropout1d "dropout1d" |x, p, generator| of_channels("dropout1d", x, 1, p, generator);
    /// [`Dropout1d`] for images `[n, c, h, w]`.
    Dropout2d "dropout2d" |x, p, generator| of_channels("dropout2d", x, 2, p, generator);
    /// [`Dropout1d`] for volumes `[n, c, d, h, w]`.
    Dropout3d "dropout3d" |x, p, generator| of_channels("dropout3d", x, 3, p, generator);
    /// Stochastic depth (Huang et al., 2016), which timm calls `DropPath`: in training, each sample of `[n, ..]` is zeroed
    /// with probability `p`, and the rest is divided by `1 - p`. The input is what a residual block adds to its own
    /// input, so a sample that is dropped skips the block.
    StochasticDepth "stochastic_depth" |x, p, generator| {
        masked("stochastic_depth", x, 1, p, generator)
    };
    /// Dropout that keeps the mean and the variance of inputs with mean 0 and variance 1 (Klambauer et al., 2017), for
    /// networks of [`Selu`](crate::Selu). In training, each element is replaced by the limit of SELU, -1.7581, with
    /// probability `p`; then everything is scaled and shifted. In evaluation, it returns its input.
    AlphaDropout "alpha_dropout" |x, p, generator| alpha(x, x.shape(), p, generator);
    /// [`AlphaDropout`] of whole channels of `[n, c, ..]`.
    FeatureAlphaDropout "feature_alpha_dropout" |x, p, generator| {
        let mask = leading("feature_alpha_dropout", x, 2)?;
        alpha(x, &mask, p, generator)
    };
}

/// The operands are mask, x and scale. The select comes last, so that a dropped element and its gradient are exactly 0.
static SCALED: Elementwise =
    Elementwise::new("dropout", Class::Float, 3, |x| vec![x[0].select(x[1] * x[2], 0.0)]).conditions(1);

/// The operands are mask, x, scale, shift, and the value of a dropped element.
static SHIFTED: Elementwise =
    Elementwise::new("alpha_dropout", Class::Float, 5, |x| vec![x[0].select(x[1] * x[2] + x[3], x[4])]).conditions(1);

/// The shape of a mask with one element for each index of the first axes: `[n, c, 1, ..]` for 2 axes, which has one for
/// each channel of each sample.
#[track_caller]
fn leading(op: &str, x: &Tensor, axes: usize) -> Result<Vec<usize>> {
    if x.rank() < axes {
        let e = Error::shape(op, if axes > 1 { "the input is [n, c, ..]" } else { "the input is [n, ..]" });
        return Err(e.operand("input", x.shape(), x.dtype(), x.device()));
    }
    Ok(x.shape().iter().enumerate().map(|(axis, &size)| if axis < axes { size } else { 1 }).collect())
}

#[track_caller]
fn of_channels(op: &str, x: &Tensor, spatial: usize, p: f64, generator: &mut Generator) -> Result<Tensor> {
    if x.rank() != spatial + 2 {
        let e = Error::shape(op, format!("the input has a batch axis, a channel axis and {spatial} more"));
        let e = e.operand("input", x.shape(), x.dtype(), x.device());
        return Err(e.help("unsqueeze a batch axis, or use Dropout for single elements"));
    }
    masked(op, x, 2, p, generator)
}

/// Zeroes each index of the first axes with probability `p`, and divides the rest by `1 - p`.
#[track_caller]
fn masked(op: &str, x: &Tensor, axes: usize, p: f64, generator: &mut Generator) -> Result<Tensor> {
    let mask = leading(op, x, axes)?;
    if p == 0.0 {
        return Ok(x.clone());
    }
    let keep = Distribution::Bernoulli { p: 1.0 - p };
    let mask = Tensor::random(keep, mask, DType::Bool, x.device(), generator)?;
    let scale = if p < 1.0 { 1.0 / (1.0 - p) } else { 0.0 };
    SCALED.apply(&[Operand::Tensor(&mask), Operand::Tensor(x), scale.into()])
}

/// The limit of SELU for negative inputs is `-LIMIT`.
const LIMIT: f64 = 1.758_099_340_847_376_6;

#[track_caller]
fn alpha(x: &Tensor, mask: &[usize], p: f64, generator: &mut Generator) -> Result<Tensor> {
    if p == 0.0 {
        return Ok(x.clone());
    }
    let keep = Distribution::Bernoulli { p: 1.0 - p };
    let mask = Tensor::random(keep, mask, DType::Bool, x.device(), generator)?;
    // With everything dropped, PyTorch returns zeros.
    let scale = if p < 1.0 { 1.0 / ((LIMIT * LIMIT * p + 1.0) * (1.0 - p)).sqrt() } else { 0.0 };
    let (shift, dropped) = (LIMIT * scale * p, LIMIT * scale * (p - 1.0));
    SHIFTED.apply(&[Operand::Tensor(&mask), Operand::Tensor(x), scale.into(), shift.into(), dropped.into()])
}
