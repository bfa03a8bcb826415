//! [`AveragedModel`]: averages of the weights of a model over its training, and the batch-norm statistics for them.

use std::sync::Arc;

use gradus_tensor::{Error, Expr, Here, Result, Shape, Tensor, UpdateFn, no_grad_guard};

use crate::state_dict::moved;
use crate::{Buffer, Module, Parameter, StateDict};

const OP: &str = "averaged_model";

/// Averages of the parameters of a model over its training: an exponential moving average
/// ([`ema`](AveragedModel::ema)), or the mean ([`swa`](AveragedModel::swa); Izmailov et al., 2018). They often
/// generalise better than the last weights.
///
/// It holds copies, in at least f32, and puts them into the model when asked. The first update copies. Buffers, such as
/// running statistics, are those of the last update; after [`use_buffers`](AveragedModel::use_buffers) those of float
/// dtypes are averaged too. The numbers are those of `torch.optim.swa_utils`.
///
/// ```
/// # use gradus_nn::{AveragedModel, Forward, Init, Linear, Module, Optimizer, Sgd, SgdConfig}; use gradus_tensor::*;
/// # let device = Device::from_backend(std::sync::Arc::new(gradus_cpu::CpuBackend::new()?));
/// # let mut rng = Generator::new(0);
/// # let mut model = Linear::new(2, 1, &mut Init::new(DType::F32, &device, &mut rng))?;
/// # let mut optimizer = Sgd::new(model.named_parameters(), SgdConfig::default())?;
/// # let x = Tensor::ones([4, 2], DType::F32, &device)?;
/// let mut average = AveragedModel::ema(&model, 0.999)?;
/// for _ in 0..3 {
///     optimizer.step(&model.forward(&x)?.square()?.mean_all()?.backward()?)?;
///     average.update(&model)?;
/// }
/// // The model has the averages inside of the function, and its own weights after it.
/// let y = average.within(&mut model, |model| model.forward(&x))?;
/// # assert_ne!(y.to_vec::<f32>()?, model.forward(&x)?.to_vec::<f32>()?);
/// # Ok::<(), Error>(())
/// ```
pub struct AveragedModel {
    /// The decay of an exponential moving average. `None` for a mean.
    decay: Option<f64>,
    use_buffers: bool,
    n_averaged: u64,
    /// Parameters first, each once, then buffers.
    entries: Vec<Entry>,
    /// The values of the model while it has the averages.
    model: Option<Vec<Tensor>>,
}

struct Entry {
    name: String,
    is_parameter: bool,
    /// The average, in memory of its own.
    value: Tensor,
}

/// A part of a model that has an average.
enum Part {
    Parameter(Parameter),
    Buffer(Buffer),
}

impl Part {
    fn tensor(&self) -> Tensor {
        match self {
            Part::Parameter(p) => p.values().clone(),
            Part::Buffer(b) => b.tensor(),
        }
    }

    #[track_caller]
    fn set(&self, values: &Tensor) -> Result<()> {
        match self {
            Part::Parameter(p) => p.set(values),
            Part::Buffer(b) => b.set(values),
        }
    }
}

static EMA: UpdateFn = UpdateFn::new("ema", |x: &[Expr<'_>]| vec![x[2] * x[0] + x[3] * x[1]]);
static MEAN: UpdateFn = UpdateFn::new("mean_of_weights", |x| vec![x[0] + (x[1] - x[0]) * x[2]]);

/// The parameters and buffers of a model, each once, by name.
fn parts<M: Module + ?Sized>(model: &M) -> Vec<(String, Part)> {
    let mut seen = std::collections::HashSet::new();
    let parameters = model.named_parameters().into_iter().map(|(name, p)| (name, p.id(), Part::Parameter(p)));
    let buffers = model.named_buffers().into_iter().map(|(name, b)| (name, b.id(), Part::Buffer(b)));
    let all = parameters.chain(buffers).filter(|(_, id, _)| seen.insert(*id));
    all.map(|(name, _, part)| (name, part)).collect()
}

impl AveragedModel {
    /// An exponential moving average: `average = decay * average + (1 - decay) * weight`, with a decay of 0 to 1.
    #[track_caller]
    pub fn ema<M: Module + ?Sized>(model: &M, decay: f64) -> Result<Self> {
        if !(0.0..=1.0).contains(&decay) {
            return Err(Error::argument(OP, format!("decay is {decay}; it is 0 to 1")));
        }
        Self::new(model, Some(decay))
    }

    /// The mean over all updates.
    #[track_caller]
    pub fn swa<M: Module + ?Sized>(model: &M) -> Result<Self> {
        Self::new(model, None)
    }

    #[track_caller]
    fn new<M: Module + ?Sized>(model: &M, decay: Option<f64>) -> Result<Self> {
        let _guard = no_grad_guard();
        let mut entries = Vec::new();
        for (name, part) in parts(model) {
            let values = part.tensor();
            let wide = values.to_dtype(values.dtype().compute())?;
            let shared = Arc::ptr_eq(wide.storage(), values.storage());
            let value = if shared { wide.copy()? } else { wide };
            entries.push(Entry { name, is_parameter: matches!(part, Part::Parameter(_)), value });
        }
        Ok(AveragedModel { decay, use_buffers: false, n_averaged: 0, entries, model: None })
    }

    /// Averages buffers of float dtypes too.
    #[must_use]
    pub fn use_buffers(mut self) -> Self {
        self.use_buffers = true;
        self
    }

    /// The number of updates.
    pub fn n_averaged(&self) -> u64 {
        self.n_averaged
    }

    /// The parts of the model in the order of the entries.
    #[track_caller]
    fn matched<M: Module + ?Sized>(&self, model: &M) -> Result<Vec<Part>> {
        let found = parts(model);
        if found.len() != self.entries.len() {
            let m = format!("the model has {} parameters and buffers, the average {}", found.len(), self.entries.len());
            return Err(Error::argument(OP, m).help("use the model that the average was made from"));
        }
        let mut matched = Vec::with_capacity(found.len());
        for (entry, (name, part)) in self.entries.iter().zip(found) {
            let (values, average) = (part.tensor(), &entry.value);
            if name != entry.name || values.shape() != average.shape() || values.device() != average.device() {
                let e = Error::argument(OP, format!("the average of {} is not one of {name}", entry.name));
                let e = e.operand("average", average.shape(), average.dtype(), average.device());
                let e = e.operand("model", values.shape(), values.dtype(), values.device());
                return Err(e.help("use the model that the average was made from, on the same device"));
            }
            matched.push(part);
        }
        Ok(matched)
    }

    #[track_caller]
    fn refuse_within(&self, what: &str) -> Result<()> {
        if self.model.is_none() {
            return Ok(());
        }
        Err(Error::argument(OP, format!("{what} while the model has the averages")).help("call swap_out first"))
    }

    /// Takes the weights of the model into the averages. Call it after a step of the optimiser.
    ///
    /// # Errors
    /// Fails if the model is not the one that the average was made from, or has the averages.
    #[track_caller]
    pub fn update<M: Module + ?Sized>(&mut self, model: &M) -> Result<()> {
        let _guard = no_grad_guard();
        self.refuse_within("no update is possible")?;
        let parts = self.matched(model)?;
        for (entry, part) in self.entries.iter().zip(&parts) {
            let (average, new) = (&entry.value, part.tensor());
            let averaged = entry.is_parameter || (self.use_buffers && new.dtype().is_float());
            match self.decay {
                _ if self.n_averaged == 0 || !averaged => average.copy_(&new)?,
                Some(decay) => EMA.apply(&[average], &[average, &new], &[decay, 1.0 - decay])?,
                None => MEAN.apply(&[average], &[average, &new], &[1.0 / (self.n_averaged as f64 + 1.0)])?,
            }
        }
        self.n_averaged = self.n_averaged.saturating_add(1);
        Ok(())
    }

    /// Puts the averages into the model, in its dtypes, and keeps the model's values for
    /// [`swap_out`](AveragedModel::swap_out).
    #[track_caller]
    pub fn swap_in<M: Module + ?Sized>(&mut self, model: &M) -> Result<()> {
        let _guard = no_grad_guard();
        self.refuse_within("they cannot be put in again")?;
        let parts = self.matched(model)?;
        let kept = parts.iter().map(|part| part.tensor().copy()).collect::<Result<Vec<_>>>().here()?;
        let put = self.entries.iter().zip(&parts).try_for_each(|(entry, part)| part.set(&entry.value));
        if put.is_err() {
            for (part, values) in parts.iter().zip(&kept) {
                part.set(values).map_err(|e| e.note("while the values of the model were put back"))?;
            }
            return put.here();
        }
        self.model = Some(kept);
        Ok(())
    }

    /// Gives the model its own values back. Buffers that changed meanwhile, such as those of
    /// [`update_bn`](crate::update_bn), stay with the averages; parameters that changed do not.
    #[track_caller]
    pub fn swap_out<M: Module + ?Sized>(&mut self, model: &M) -> Result<()> {
        let _guard = no_grad_guard();
        let parts = self.matched(model)?;
        let Some(kept) = &self.model else {
            return Err(Error::argument(OP, "the model does not have the averages").help("call swap_in first"));
        };
        for ((entry, part), values) in self.entries.iter().zip(&parts).zip(kept) {
            if !entry.is_parameter {
                entry.value.copy_(&part.tensor())?;
            }
            part.set(values)?;
        }
        self.model = None;
        Ok(())
    }

    /// Runs `f` with a model that has the averages, and gives the model its own values back, also if `f` fails. If `f`
    /// panics, [`swap_out`](AveragedModel::swap_out) does that.
    #[track_caller]
    pub fn within<M: Module + ?Sized, R>(&mut self, model: &mut M, f: impl FnOnce(&mut M) -> Result<R>) -> Result<R> {
        self.swap_in(model)?;
        let result = f(model);
        self.swap_out(model)?;
        result
    }

    /// The averages under the names of the model, which can load them, and the number of updates as metadata.
    #[track_caller]
    pub fn state_dict(&self) -> Result<StateDict> {
        self.refuse_within("the state is in two places")?;
        let mut state = StateDict::new();
        for entry in &self.entries {
            state.insert(entry.name.clone(), entry.value.copy()?);
        }
        state.set_metadata("n_averaged", self.n_averaged.to_string());
        Ok(state)
    }

    /// Replaces the averages and the number of updates by saved ones. The decay is not part of them.
    ///
    /// # Errors
    /// Fails, and changes nothing, if a name is missing or a shape does not fit, and while the model has the averages.
    #[track_caller]
    pub fn load_state_dict(&mut self, state: &StateDict) -> Result<()> {
        let _guard = no_grad_guard();
        self.refuse_within("no state can be loaded")?;
        let n_averaged = state.required_number("n_averaged")?;
        let mut values = Vec::with_capacity(self.entries.len());
        for Entry { name, value, .. } in &self.entries {
            let Some(saved) = state.get(name) else { return Err(Error::argument(OP, format!("{name} is missing"))) };
            if saved.shape() != value.shape() || saved.dtype().is_float() != value.dtype().is_float() {
                let (found, wanted) = (Shape::display(saved.shape()), Shape::display(value.shape()));
                let m = format!("{name} is {found} {}, not {wanted} {}", saved.dtype(), value.dtype());
                return Err(Error::argument(OP, m));
            }
            values.push(moved(saved, value.device(), value.dtype())?.copy()?);
        }
        for (entry, value) in self.entries.iter_mut().zip(values) {
            entry.value = value;
        }
        self.n_averaged = n_averaged;
        Ok(())
    }
}
