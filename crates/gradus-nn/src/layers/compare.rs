//! Layers of two inputs: [`CosineSimilarity`], [`PairwiseDistance`] and [`Bilinear`].

use gradus_tensor::{Error, Here, Result, Tensor};

use super::linear;
use crate::module::out_of_forward;
use crate::{Init, Module, Parameter};

/// The cosine of the angle between vectors along an axis, see [`Tensor::cosine_similarity`].
#[derive(Debug, Clone, Copy, PartialEq, Module)]
pub struct CosineSimilarity {
    /// The axis of the vectors, after broadcasting. Default 1.
    pub axis: isize,
    /// The smallest length by which is divided. Default 1e-8.
    pub eps: f64,
}

impl Default for CosineSimilarity {
    fn default() -> Self {
        CosineSimilarity { axis: 1, eps: 1e-8 }
    }
}

impl CosineSimilarity {
    /// Computes the cosines. The inputs broadcast; the axis is removed.
    #[track_caller]
    pub fn forward(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        a.cosine_similarity(b, self.axis, self.eps)
    }
}

/// The p-norm of `a - b + eps` along the last axis, see [`Tensor::pairwise_distance`].
#[derive(Debug, Clone, Copy, PartialEq, Module)]
pub struct PairwiseDistance {
    /// The exponent of the norm. Default 2.
    pub p: f64,
    /// Added to each difference. Default 1e-6.
    pub eps: f64,
    /// Whether the last axis is kept with size 1. Default false.
    pub keepdim: bool,
}

impl Default for PairwiseDistance {
    fn default() -> Self {
        PairwiseDistance { p: 2.0, eps: 1e-6, keepdim: false }
    }
}

impl PairwiseDistance {
    /// Computes the distances. The inputs broadcast.
    #[track_caller]
    pub fn forward(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        a.pairwise_distance(b, self.p, self.eps, self.keepdim)
    }
}

/// `y[k] = x1^T weight[k] x2 + bias[k]`: from `[.., in1_features]` and `[.., in2_features]` to `[.., out_features]`.
///
/// `weight [out_features, in1_features, in2_features]` and `bias [out_features]` are initialised uniformly in
/// `±1 / sqrt(in1_features)`, as in PyTorch.
#[derive(Clone, Module)]
pub struct Bilinear {
    in1_features: usize,
    in2_features: usize,
    out_features: usize,
    /// `[out_features, in1_features, in2_features]`
    pub weight: Parameter,
    /// `[out_features]`
    pub bias: Option<Parameter>,
}

impl Bilinear {
    /// Creates a layer with new parameters. Errors if `in1_features` is 0.
    #[track_caller]
    pub fn new(
        in1_features: usize,
        in2_features: usize,
        out_features: usize,
        bias: bool,
        init: &mut Init<'_>,
    ) -> Result<Self> {
        if in1_features == 0 {
            return Err(Error::argument("bilinear", "in1_features is 0; it is at least 1"));
        }
        let bound = 1.0 / (in1_features as f64).sqrt();
        let weight = Parameter::new(init.uniform([out_features, in1_features, in2_features], -bound, bound)?)?;
        let bias = if bias { Some(linear::bias(out_features, in1_features, init)?) } else { None };
        Ok(Bilinear { in1_features, in2_features, out_features, weight, bias })
    }

    /// Computes the output. The leading axes of the inputs must be equal.
    #[track_caller]
    pub fn forward(&self, x1: &Tensor, x2: &Tensor) -> Result<Tensor> {
        self.computed(x1, x2).map_err(|e| out_of_forward(self, e)).here()
    }

    #[track_caller]
    fn computed(&self, x1: &Tensor, x2: &Tensor) -> Result<Tensor> {
        let (i, j, o) = (self.in1_features, self.in2_features, self.out_features);
        let lead = match (x1.shape(), x2.shape()) {
            ([lead @ .., a], [other @ .., b]) if lead == other && (*a, *b) == (i, j) => lead,
            _ => {
                let e = Error::shape("bilinear", format!("the inputs are [.., {i}] and [.., {j}]"));
                let e = e.operand("x1", x1.shape(), x1.dtype(), x1.device());
                return Err(e.operand("x2", x2.shape(), x2.dtype(), x2.device()));
            }
        };
        let n = lead.iter().product::<usize>();
        let right = x2.reshape([n, j])?.linear(&self.weight.reshape([o * i, j])?, None)?.reshape([n, o, i])?;
        let y = right.matmul(&x1.reshape([n, i, 1])?)?.reshape([lead, &[o]].concat())?;
        match &self.bias {
            Some(bias) => y.add(&**bias),
            None => Ok(y),
        }
    }
}
