//! [`ShardedOptimizer`]: an optimiser whose state is divided among the ranks.

use std::ops::Range;
use std::panic::Location;

use gradus_nn::{Module, Optimizer, Parameter, StateDict, Strict};
use gradus_tensor::{DType, Error, Gradients, Here, Result, Tensor, all_or_nothing, no_grad};

use crate::call::Collective;
use crate::data_parallel::{DataParallel, Reader, joined, pad, pass, trained};
use crate::group::Line;
use crate::reduce::Reduce;

/// Optimisers that treat each element by itself, so that a part of the parameters may be stepped alone.
const ELEMENTWISE: [&str; 10] =
    ["sgd", "adam", "adamw", "adamax", "nadam", "radam", "adagrad", "adadelta", "rmsprop", "lion"];

/// An optimiser whose state is divided among the ranks: ZeRO, stages 1 and 2 (Rajbhandari et al., 2020).
///
/// All parameters of a dtype form one vector, cut into as many parts as there are ranks. Each rank holds the state of
/// the optimiser for its part, receives the sums of the gradients of its part only, steps it, and gives the result to
/// all. The weights have the same bits as those of [`DataParallel::backward`] and a whole optimiser.
///
/// ```
/// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
/// use gradus_dist::{DataParallel, Options, ShardedOptimizer, threads};
/// use gradus_nn::{AdamConfig, AdamW, Forward, Init, Linear};
///
/// threads(2, Options::default(), |comm| {
///     let device = Device::from_backend(Arc::new(CpuBackend::new()?));
///     let mut generator = Generator::new(7);
///     let x = Tensor::randn([32, 3], DType::F32, &device, &mut generator)?;
///     let model = Linear::new(3, 1, &mut Init::new(DType::F32, &device, &mut generator))?;
///     let parallel = DataParallel::new(comm.clone())?;
///     let adam = |parameters| AdamW::new(parameters, AdamConfig::default());
///     let mut optimizer = ShardedOptimizer::new(&parallel, &model, adam)?;
///     let loss = optimizer.step(&model, 32, |rows| {
///         model.forward(&x.narrow(0, rows.start, rows.len())?)?.square()?.mean_all()
///     })?;
///     assert!(loss.item()? > 0.0);
///     Ok(())
/// })?;
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug)]
pub struct ShardedOptimizer<O> {
    parallel: DataParallel,
    /// The dtypes of the parameters, the part of this rank of the vector of each, and the elements without padding.
    parts: Vec<(DType, Parameter, usize)>,
    optimizer: O,
    max_norm: Option<f64>,
    norm: Option<f64>,
}

/// The values of the parameters, as one vector for each dtype, padded to a multiple of the number of shards, so that
/// pieces of a vector are the same for any number of ranks.
fn vectors(parameters: &[Parameter], shards: usize) -> Result<Vec<(DType, Tensor)>> {
    let piece = |p: &Parameter| Ok((p.dtype(), p.values().detach().reshape([p.numel()])?));
    let mut pieces = parameters.iter().map(piece).collect::<Result<Vec<_>>>()?;
    pad(&mut pieces, shards)?;
    joined(&pieces)
}

impl<O: Optimizer> ShardedOptimizer<O> {
    /// `make` makes the optimiser for the parts of this rank, named `part.f32` and so on; parameters that are frozen are
    /// left out. All ranks must have the same weights ([`DataParallel::synchronize`]).
    ///
    /// # Errors
    /// Those of `make`, and [`ErrorKind::Unsupported`](gradus_tensor::ErrorKind::Unsupported) for an optimiser that does
    /// not treat each element by itself, such as `Lamb`, `Muon` and `Lbfgs`.
    #[track_caller]
    pub fn new(
        parallel: &DataParallel,
        model: &(impl Module + ?Sized),
        make: impl FnOnce(Vec<(String, Parameter)>) -> Result<O>,
    ) -> Result<Self> {
        let parameters = trained(model);
        let (rank, ranks) = (parallel.communicator().rank(), parallel.communicator().size());
        let mut parts = vec![];
        for (dtype, vector) in vectors(&parameters, parallel.all_shards()).here()? {
            let each = vector.numel() / ranks;
            let elements = parameters.iter().filter(|p| p.dtype() == dtype).map(|p| p.numel()).sum();
            let part = vector.narrow(0, rank * each, each)?.copy()?;
            parts.push((dtype, Parameter::new(part)?, elements));
        }
        let optimizer = make(parts.iter().map(|(dtype, part, _)| (format!("part.{dtype}"), part.clone())).collect())?;
        let kind = optimizer.state_dict()?.metadata("optimizer").unwrap_or("unknown").to_owned();
        if !ELEMENTWISE.contains(&kind.as_str()) {
            let m = format!("{kind} does not treat each element by itself, so its state cannot be divided");
            let e = Error::new(gradus_tensor::ErrorKind::Unsupported, "sharded_optimizer", m);
            return Err(e.help("take SGD or one of the Adam family, or a whole optimiser on each rank"));
        }
        Ok(ShardedOptimizer { parallel: parallel.clone(), parts, optimizer, max_norm: None, norm: None })
    }

    /// The optimiser of this rank's part, for its learning rate.
    pub fn inner(&mut self) -> &mut O {
        &mut self.optimizer
    }

    /// Scales the gradients before each step, so that the norm of all of them is at most `max_norm`, as
    /// [`clip_grad_norm`](gradus_nn::clip_grad_norm) does. The bits do not depend on the number of ranks.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](gradus_tensor::ErrorKind::InvalidArgument) unless it is above 0.
    #[track_caller]
    pub fn clip_norm(&mut self, max_norm: f64) -> Result<()> {
        if max_norm.is_nan() || max_norm <= 0.0 {
            return Err(Error::argument("sharded_optimizer", format!("max_norm is {max_norm}; it is above 0")));
        }
        self.max_norm = Some(max_norm);
        Ok(())
    }

    /// The norm of the gradients of the last step before they were clipped; `None` if they are not clipped.
    pub fn grad_norm(&self) -> Option<f64> {
        self.norm
    }

    /// Computes the gradients of a batch as [`DataParallel::backward`] does, makes a step, and returns the mean loss.
    ///
    /// # Errors
    /// Those of [`DataParallel::backward`] and of the optimiser, and
    /// [`ErrorKind::Autograd`](gradus_tensor::ErrorKind::Autograd) if no loss depends on a parameter. If the norm of the
    /// gradients is asked for and not finite, the step changes no parameter and is an
    /// [`ErrorKind::InvalidArgument`](gradus_tensor::ErrorKind::InvalidArgument) on all ranks.
    #[track_caller]
    pub fn step(
        &mut self,
        model: &(impl Module + ?Sized),
        batch: usize,
        mut loss: impl FnMut(Range<usize>) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let line = Location::caller();
        let comm = self.parallel.communicator().clone();
        let gradients = || {
            let mut sums = self
                .parallel
                .sums(model, batch, self.parallel.all_shards(), &mut |rows, share| pass(loss(rows)?, share))?;
            for (_, head) in &sums.heads {
                comm.run_in_place(Collective::AllReduce(Reduce::Sum), head, line)?;
            }
            let (value, there) = sums.take_heads(&*comm, line)?;
            if let Some(i) = there.iter().position(|there| !there) {
                let m = format!("no loss depends on parameter {i} of the model, {:?}", sums.parameters[i].shape());
                let e = Error::new(gradus_tensor::ErrorKind::Autograd, "sharded_optimizer", m);
                return Err(e.help("freeze it before the optimiser is made"));
            }
            let scatter =
                |(_, vector): &(DType, Tensor)| comm.run(Collective::ReduceScatter(Reduce::Sum), vector, line);
            let mut mine = sums.gradients.iter().map(scatter).collect::<Result<Vec<_>>>()?;
            let norm = match self.max_norm {
                Some(max_norm) => Some(self.clip(&mut mine, max_norm, line)?),
                None => None,
            };
            let mut gradients = Gradients::default();
            for (mine, (dtype, part, _)) in mine.iter().zip(&self.parts) {
                gradients.insert(part.tensor(), mine.to_dtype(*dtype)?)?;
            }
            Ok((value, gradients, norm))
        };
        let (value, gradients, norm) = all_or_nothing(gradients).here()?;
        self.norm = norm;
        self.optimizer.step(&gradients).here()?;
        no_grad(|| self.give(model, line)).here()?;
        Ok(value)
    }

    /// Clips this rank's gradients by the norm of those of all ranks, which it returns. Each vector is cut into as many
    /// pieces as there are shards, whose squares are added one after the other on all ranks.
    fn clip(&self, mine: &mut [Tensor], max_norm: f64, line: Line) -> Result<f64> {
        let (shards, own) = (self.parallel.all_shards(), self.parallel.shards());
        let mut squares = vec![0u64; mine.len() * shards];
        for (vector, squares) in mine.iter().zip(squares.chunks_mut(shards)) {
            let values: Vec<f64> = match vector.dtype() {
                DType::F64 => vector.to_vec::<f64>()?,
                _ => vector.to_dtype(DType::F32)?.to_vec::<f32>()?.into_iter().map(f64::from).collect(),
            };
            let pieces = values.chunks((values.len() / own.len()).max(1));
            for (square, piece) in squares[own.clone()].iter_mut().zip(pieces) {
                *square = piece.iter().map(|value| value * value).sum::<f64>().to_bits();
            }
        }
        // The other ranks have zeros in the places of this one's pieces.
        let all =
            self.parallel.communicator().run_on_host(Collective::AllReduce(Reduce::Sum), DType::F64, squares, line)?;
        let norm = all.iter().map(|&bits| f64::from_bits(bits)).sum::<f64>().sqrt();
        if !norm.is_finite() {
            let m = format!("the norm of the gradients is {norm}; no parameter was changed");
            return Err(Error::argument("sharded_optimizer", m).help("lower the learning rate, or skip this step"));
        }
        let factor = max_norm / (norm + 1e-6);
        if factor < 1.0 {
            no_grad(|| mine.iter_mut().try_for_each(|vector| vector.mul(factor).map(|clipped| *vector = clipped)))?;
        }
        Ok(norm)
    }

    /// Gives the parts of all ranks to the model.
    fn give(&self, model: &(impl Module + ?Sized), line: Line) -> Result<()> {
        let mut vectors = vec![];
        for (dtype, part, _) in &self.parts {
            let whole = self.parallel.communicator().run(Collective::AllGather, &part.values().detach(), line)?;
            vectors.push((*dtype, whole));
        }
        let mut reader = Reader::new(&vectors);
        for parameter in trained(model) {
            parameter.set(&reader.take(parameter.dtype(), parameter.dtype(), parameter.shape())?)?;
        }
        Ok(())
    }

    /// The state of all ranks together, the same on every rank. It can be loaded on any number of ranks. All ranks call
    /// it.
    #[track_caller]
    pub fn state_dict(&self) -> Result<StateDict> {
        let (line, mut state) = (Location::caller(), self.optimizer.state_dict()?);
        let mut whole = vec![];
        for (name, tensor) in state.iter() {
            if let Some((_, part, elements)) = self.part(name)
                && tensor.shape() == part.shape()
            {
                let all = self.parallel.communicator().run(Collective::AllGather, tensor, line)?;
                whole.push((name.to_owned(), all.narrow(0, 0, *elements)?.copy()?));
            }
        }
        whole.into_iter().for_each(|(name, tensor)| state.insert(name, tensor));
        Ok(state)
    }

    /// Loads a state that [`state_dict`](ShardedOptimizer::state_dict) gave, on any number of ranks.
    ///
    /// # Errors
    /// Those of [`Optimizer::load_state_dict`] with [`Strict::Yes`].
    #[track_caller]
    pub fn load_state_dict(&mut self, state: &StateDict) -> Result<()> {
        let (rank, mut mine) = (self.parallel.communicator().rank(), state.clone());
        for (name, tensor) in state.iter() {
            let Some((_, part, elements)) = self.part(name) else { continue };
            if tensor.shape() == [*elements] {
                let each = part.numel();
                let (start, end) = ((rank * each).min(*elements), ((rank + 1) * each).min(*elements));
                let piece = tensor.narrow(0, start, end - start)?;
                let zeros = Tensor::zeros([each - (end - start)], tensor.dtype(), tensor.device())?;
                mine.insert(name, Tensor::cat(&[&piece, &zeros], 0)?);
            }
        }
        self.optimizer.load_state_dict(&mine, Strict::Yes).map(drop)
    }

    /// The part to which an entry of the state belongs.
    fn part(&self, name: &str) -> Option<&(DType, Parameter, usize)> {
        self.parts
            .iter()
            .find(|(dtype, _, _)| name.strip_prefix("part.").is_some_and(|rest| rest.starts_with(&format!("{dtype}."))))
    }
}
