//! Sequence parallelism (Korthikanti et al., 2022): between divided layers, each rank has a part of the sequence.

use std::fmt;
use std::ops::Deref;
use std::panic::Location;
use std::sync::{Arc, Mutex};

use gradus_nn::{Forward, Module, Parameter, Visitor, VisitorMut};
use gradus_tensor::autograd::Hook;
use gradus_tensor::{Here, Result, Tensor};

use crate::communicator::Communicator;
use crate::group::Line;
use crate::region::{Border, cross, divided_axis, sequence_axis};

/// This rank's part of `x` along `axis`, the same tensor on all ranks: `[batch, length, ..]` to
/// `[batch, length / ranks, ..]` for axis 1. With a gradient, to any order: that of `x` is the whole one, on all ranks.
///
/// # Errors
/// [`ErrorKind::ShapeMismatch`](gradus_tensor::ErrorKind::ShapeMismatch) if the axis does not divide, and
/// [`ErrorKind::InvalidArgument`](gradus_tensor::ErrorKind::InvalidArgument) if it is the last one or none.
#[track_caller]
pub fn split_sequence(x: &Tensor, axis: isize, comm: &Arc<dyn Communicator>) -> Result<Tensor> {
    let axis = divided_axis(x, axis, &**comm).here()?;
    cross(Border::Split(axis, x.shape()[axis]), comm, x, Location::caller()).here()
}

/// The parts of all ranks joined along `axis`, the same tensor on all ranks: the inverse of [`split_sequence`]. What
/// follows must be the same on all ranks too, such as a loss.
///
/// # Errors
/// Those of the communicator, and [`ErrorKind::InvalidArgument`](gradus_tensor::ErrorKind::InvalidArgument) if the axis
/// is the last one or none.
#[track_caller]
pub fn join_sequence(x: &Tensor, axis: isize, comm: &Arc<dyn Communicator>) -> Result<Tensor> {
    let axis = sequence_axis(x, axis).here()?;
    cross(Border::Join(axis, x.shape()[axis] * comm.size()), comm, x, Location::caller()).here()
}

/// A layer that all ranks hold as a whole and that computes parts of a sequence, such as a norm or dropout between
/// divided layers.
///
/// Each rank computes the gradients of its parameters for its part, and they are summed over the ranks as soon as they
/// are complete. So every gradient that a backward pass returns is that of the whole sequence, to any order. Random
/// numbers differ on each rank. Names in the state are those of the layer. Not for layers with running statistics: each
/// rank would have its own.
///
/// ```
/// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
/// use gradus_dist::{Options, SequenceParallel, join_sequence, split_sequence, threads};
/// use gradus_nn::{Forward, Init, LayerNorm, LayerNormConfig};
///
/// threads(2, Options::default(), |comm| {
///     let device = Device::from_backend(Arc::new(CpuBackend::new()?));
///     let mut generator = Generator::new(7);
///     let x = Tensor::randn([3, 6, 4], DType::F64, &device, &mut generator)?;
///     let norm = || LayerNorm::new([4], LayerNormConfig::default(), &mut Init::new(DType::F64, &device, &mut Generator::new(0)));
///     let (whole, divided) = (norm()?, SequenceParallel::of(norm()?, comm)?);
///
///     let part = split_sequence(&x, 1, comm)?; // [3, 3, 4]
///     let y = join_sequence(&divided.forward(&part)?, 1, comm)?; // [3, 6, 4]
///     let ours = y.pow(3.0)?.sum_all()?.backward()?;
///     let theirs = whole.forward(&x)?.pow(3.0)?.sum_all()?.backward()?;
///     let (a, b) = (divided.weight.as_ref(), whole.weight.as_ref());
///     let [a, b] = [ours.get(a.unwrap()).unwrap(), theirs.get(b.unwrap()).unwrap()];
///     assert!(a.sub(b)?.abs()?.max_all()?.item()? < 1e-12);
///     Ok(())
/// })?;
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone)]
pub struct SequenceParallel<M> {
    layer: M,
    comm: Arc<dyn Communicator>,
    line: Line,
    /// What sums the gradient of each parameter. Clones share it, as they share parameters, whose gradients are summed once.
    sums: Arc<Mutex<Vec<(Parameter, Hook)>>>,
}

impl<M: Module> SequenceParallel<M> {
    /// Takes a layer with the same weights on all ranks. Nothing else may use its parameters.
    ///
    /// # Errors
    /// None on parameters that a layer of this crate has.
    #[track_caller]
    pub fn of(layer: M, comm: &Arc<dyn Communicator>) -> Result<Self> {
        if comm.size() > 1 {
            for (_, state) in layer.named_random_states() {
                state.set(state.get().fork(comm.rank() as u64));
            }
        }
        let this = SequenceParallel { layer, comm: comm.clone(), line: Location::caller(), sums: Arc::default() };
        this.watch().here()?;
        Ok(this)
    }

    /// Lets the gradients of all parameters be summed. Parameters are new after a change of device or dtype.
    fn watch(&self) -> Result<()> {
        let parameters = self.layer.parameters();
        let mut sums = self.sums.lock().unwrap_or_else(|e| e.into_inner());
        // A clone of the layer may still have parameters that this one had before.
        if Arc::strong_count(&self.sums) == 1 {
            sums.retain(|(old, _)| parameters.iter().any(|new| new.is_same(old)));
        }
        for parameter in parameters {
            if sums.iter().any(|(old, _)| old.is_same(&parameter)) {
                continue;
            }
            // Only the tensor that computations use while it is not frozen has a gradient.
            let frozen = parameter.is_frozen();
            parameter.unfreeze();
            let (comm, line) = (self.comm.clone(), self.line);
            let hook = parameter.tensor().register_hook(move |g| cross(Border::Sum, &comm, g, line).map(Some));
            if frozen {
                parameter.freeze();
            }
            sums.push((parameter, hook?));
        }
        Ok(())
    }
}

impl<M> Deref for SequenceParallel<M> {
    type Target = M;

    fn deref(&self) -> &M {
        &self.layer
    }
}

impl<M: Module> Module for SequenceParallel<M> {
    fn visit<'m>(&'m self, visitor: &mut Visitor<'m>) {
        visitor.wrapped(&self.layer);
    }

    fn visit_mut<'m>(&'m mut self, visitor: &mut VisitorMut<'m>) {
        visitor.wrapped(&mut self.layer);
    }
}

impl<M: Module> fmt::Display for SequenceParallel<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.tree().fmt(f)
    }
}

impl<M: Forward> Forward for SequenceParallel<M> {
    #[track_caller]
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        self.watch().here()?;
        self.layer.forward(x)
    }
}
