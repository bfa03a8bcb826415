//! [`WeightNorm`]: a layer whose weight is trained as a length and a direction.

use gradus_tensor::{Error, Here, Result, Tensor};

use super::weighted::Weighted;
use crate::{Forward, Module, Parameter, Visitor, VisitorMut};

/// Weight normalisation (Salimans and Kingma, 2016): the layer computes with `g v / |v|` in place of its weight.
///
/// It is PyTorch's `torch.nn.utils.parametrizations.weight_norm`, with its names: `parametrizations.weight.original0`
/// is the length `g`. `parametrizations.weight.original1` is the direction `v`, which was the layer's `weight`. The older
/// `torch.nn.utils.weight_norm` calls them `weight_g` and `weight_v`. All other parameters keep their names.
///
/// ```
/// # use gradus_nn::{Forward, Init, Linear, Module, WeightNorm}; use gradus_tensor::*;
/// # let device = Device::from_backend(std::sync::Arc::new(gradus_cpu::CpuBackend::new()?));
/// # let mut generator = Generator::new(0);
/// # let mut init = Init::new(DType::F32, &device, &mut generator);
/// let layer = WeightNorm::new(Linear::new(4, 3, &mut init)?, Some(0))?;
/// let names: Vec<String> = layer.named_parameters().into_iter().map(|(name, _)| name).collect();
/// let g = "parametrizations.weight.original0";
/// assert_eq!(names, ["parametrizations.weight.original1", "bias", g]);
/// assert_eq!(layer.state_dict()?.get(g).unwrap().shape(), [3, 1]);
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone)]
pub struct WeightNorm<L> {
    layer: L,
    axis: Option<usize>,
    length: Parameter,
}

impl<L: Weighted> WeightNorm<L> {
    /// Wraps a layer, which first computes as before. There is one length for each index of `axis` of the weight, 0 in
    /// PyTorch's default, and a single one with `None`. Errors if the weight has no such axis.
    #[track_caller]
    pub fn new(layer: L, axis: Option<usize>) -> Result<Self> {
        layer
            .weight()
            .check_whole("weight_norm")
            .map_err(|e| e.help("leave the weight of the layer out of the plan"))?;
        let weight = layer.weight().values();
        if let Some(axis) = axis.filter(|&axis| axis >= weight.rank()) {
            let e = Error::argument("weight_norm", format!("axis {axis} of a weight of rank {}", weight.rank()));
            return Err(e.operand("weight", weight.shape(), weight.dtype(), weight.device()));
        }
        let length = Parameter::new(lengths(weight, axis)?)?;
        Ok(WeightNorm { layer, axis, length })
    }

    /// The weight with which the layer computes, `g v / |v|`.
    #[track_caller]
    pub fn weight(&self) -> Result<Tensor> {
        let v = self.layer.weight();
        v.check_whole("weight_norm").map_err(|e| e.help("leave the weight of the layer out of the plan"))?;
        v.mul(&self.length.div(&lengths(v, self.axis)?)?)
    }

    /// The layer without weight normalisation: its weight takes the values of [`weight`](WeightNorm::weight).
    #[track_caller]
    pub fn into_inner(self) -> Result<L> {
        let weight = self.weight()?.detach();
        self.layer.weight().set(&weight)?;
        Ok(self.layer)
    }
}

/// The lengths of the parts of a weight along an axis, with all axes kept, or the length of the whole.
#[track_caller]
fn lengths(weight: &Tensor, axis: Option<usize>) -> Result<Tensor> {
    let others: Vec<isize> = (0..weight.rank()).filter(|&a| Some(a) != axis).map(|a| a as isize).collect();
    weight.norm(2.0, &others, axis.is_some())
}

const FROM: &str = "weight";
const DIRECTION: &str = "parametrizations.weight.original1";
const LENGTH: &str = "parametrizations.weight.original0";

impl<L: Weighted> Module for WeightNorm<L> {
    fn visit<'m>(&'m self, visitor: &mut Visitor<'m>) {
        visitor.fields_of(&self.layer, FROM, DIRECTION);
        visitor.child(LENGTH, &self.length);
        visitor.kind("WeightNorm");
    }
    fn visit_mut<'m>(&'m mut self, visitor: &mut VisitorMut<'m>) {
        visitor.fields_of(&mut self.layer, FROM, DIRECTION);
        visitor.child(LENGTH, &mut self.length);
    }
}

impl<L: Weighted> Forward for WeightNorm<L> {
    #[track_caller]
    fn compute(&self, input: &Tensor) -> Result<Tensor> {
        self.layer.compute_with(&self.weight()?, input).here()
    }
}

impl<L: Weighted> std::fmt::Display for WeightNorm<L> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.tree().fmt(f)
    }
}

impl<L: Weighted> std::fmt::Debug for WeightNorm<L> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}
