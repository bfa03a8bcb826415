//! [`Key`]: what two calls of a step must have in common to use the same plan.

use std::sync::Arc;

use gradus_tensor::autograd::saved_value_modes;
use gradus_tensor::{DType, Device, Tensor, autocast_dtype, is_grad_enabled, is_inference};

/// The number of the form, the shapes, strides, dtypes and devices of the arguments, which of them share memory, whether
/// operations are recorded, how saved values are protected, and the dtype of autocast.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Key {
    form: u64,
    inputs: Vec<Input>,
    records: bool,
    inference: bool,
    saved: u16,
    autocast: Option<DType>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Input {
    shape: Vec<usize>,
    strides: Vec<isize>,
    dtype: DType,
    device: Device,
    requires_grad: bool,
    /// The first argument in the same storage, and the distance of this argument's offset from its offset.
    shares: Option<(usize, isize)>,
}

impl Key {
    pub(crate) fn of(form: u64, inputs: &[&Tensor]) -> Key {
        let input = |(i, t): (usize, &&Tensor)| {
            let first = inputs[..i].iter().position(|o| Arc::ptr_eq(o.storage(), t.storage()));
            let distance = |o: &Tensor| t.layout().offset() as isize - o.layout().offset() as isize;
            Input {
                shape: t.shape().to_vec(),
                strides: t.layout().strides().to_vec(),
                dtype: t.dtype(),
                device: t.device().clone(),
                requires_grad: t.requires_grad(),
                shares: first.map(|first| (first, distance(inputs[first]))),
            }
        };
        Key {
            form,
            inputs: inputs.iter().enumerate().map(input).collect(),
            records: is_grad_enabled(),
            inference: is_inference(),
            saved: saved_value_modes(),
            autocast: autocast_dtype(),
        }
    }

    /// Whether a call with these arguments has this key. Unlike [`of`](Key::of), it allocates nothing.
    pub(crate) fn matches(&self, form: u64, inputs: &[&Tensor]) -> bool {
        let like = |(i, (known, t)): (usize, (&Input, &&Tensor))| {
            let first = inputs[..i].iter().position(|o| Arc::ptr_eq(o.storage(), t.storage()));
            let distance = |o: &Tensor| t.layout().offset() as isize - o.layout().offset() as isize;
            known.shape == t.shape()
                && known.strides == t.layout().strides()
                && known.dtype == t.dtype()
                && known.requires_grad == t.requires_grad()
                && known.device == *t.device()
                && known.shares == first.map(|first| (first, distance(inputs[first])))
        };
        self.form == form
            && self.inputs.len() == inputs.len()
            && self.inputs.iter().zip(inputs).enumerate().all(like)
            && self.records == is_grad_enabled()
            && self.inference == is_inference()
            && self.saved == saved_value_modes()
            && self.autocast == autocast_dtype()
    }

    /// Whether calls with the two keys differ at most in the sizes and strides of their arguments. An axis of size 1 or 0
    /// remains one.
    pub(crate) fn differs_in_sizes(&self, other: &Key) -> bool {
        let alike = |(a, b): (&Input, &Input)| {
            let kind = |&n: &usize| n.min(2);
            a.shape.iter().map(kind).eq(b.shape.iter().map(kind))
                && (a.dtype, a.requires_grad, &a.device) == (b.dtype, b.requires_grad, &b.device)
                && a.shares.map(|s| s.0) == b.shares.map(|s| s.0)
        };
        let modes = |key: &Key| (key.form, key.records, key.inference, key.saved, key.autocast);
        modes(self) == modes(other)
            && self.inputs.len() == other.inputs.len()
            && self.inputs.iter().zip(&other.inputs).all(alike)
    }

    /// The first way in which the arguments of `self` differ from those of `other`, in words.
    pub(crate) fn difference(&self, other: &Key) -> String {
        if self.inputs.len() != other.inputs.len() {
            return format!("there are {} inputs, not {}", other.inputs.len(), self.inputs.len());
        }
        for (i, (a, b)) in self.inputs.iter().zip(&other.inputs).enumerate() {
            if a != b {
                let show = |x: &Input| format!("{}{:?} with strides {:?}", x.dtype, x.shape, x.strides);
                return format!("input {i}: {} -> {}", show(a), show(b));
            }
        }
        if self.form != other.form {
            return "it is another form of the step".to_owned();
        }
        "gradients, autocast or the protection of saved values were switched on or off".to_owned()
    }
}
