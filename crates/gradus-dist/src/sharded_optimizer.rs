//! [`ShardedOptimizer`]: an optimiser whose state is divided among the ranks.

use std::collections::HashSet;
use std::ops::Range;
use std::panic::Location;
use std::sync::Arc;

use gradus_nn::{Division, Module, NonFinite, Optimizer, Parameter, StateDict, Strict, divisions};
use gradus_tensor::{DType, Error, Gradients, Here, Result, Tensor, all_or_nothing, no_grad};
use gradus_train::Backward;

use crate::block::{Block, blocks_of, check_model, steps_of};
use crate::buckets::Buckets;
use crate::call::Collective;
use crate::data_parallel::{DataParallel, Order, trained};
use crate::full_shard::FullShard;
use crate::group::Line;
use crate::reduce::Reduce;
use crate::vectors::Named;

/// Optimisers that treat each element by itself, so that a part of the parameters may be stepped alone.
const ELEMENTWISE: [&str; 10] =
    ["sgd", "adam", "adamw", "adamax", "nadam", "radam", "adagrad", "adadelta", "rmsprop", "lion"];

/// An optimiser whose state is divided among the ranks: ZeRO (Rajbhandari et al., 2020), stage 2 by
/// [`new`](ShardedOptimizer::new) and stage 3 by [`fully_sharded`](ShardedOptimizer::fully_sharded).
/// [`step_with`](ShardedOptimizer::step_with) is stage 1, for gradients that something else has computed.
///
/// In stage 2, the parameters of each [bucket](DataParallel::bucket_bytes) form one vector, cut into as many parts as there
/// are ranks. Each rank holds the state of the optimiser for its parts, receives the sums of the gradients of its parts
/// only, while the backward pass goes on, steps them, and gives the result to all. In stage 3 the parameters are divided
/// too. The weights have the same bits as those of [`DataParallel::backward`] and a whole optimiser.
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
    divided: Divided,
    optimizer: O,
    /// The names of the parameters of the model that are frozen.
    frozen: Vec<String>,
    max_norm: Option<f64>,
    norm: Option<f64>,
}

/// What is divided beside the state of the optimiser.
#[derive(Debug)]
enum Divided {
    /// The sums of the gradients. There is one block for each bucket.
    Gradients(Vec<Block>),
    /// The parameters too.
    Parameters(Arc<FullShard>),
}

impl<O: Optimizer> ShardedOptimizer<O> {
    /// ZeRO 2, or 1. `make` makes the optimiser for the parts of this rank, named `part0.f32` and so on; parameters that are
    /// frozen are left out. All ranks must have the same weights ([`DataParallel::synchronize`]).
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
        let of_bucket = |(i, own): (usize, Vec<usize>)| {
            let own: Vec<Named> = own.into_iter().filter_map(|i| parameters.get(i).cloned()).collect();
            Block::of(&format!("part{i}"), &own, parallel)
        };
        let blocks = parallel.cut(&parameters).into_iter().enumerate().map(of_bucket);
        let blocks: Vec<Block> = blocks.collect::<Result<Vec<_>>>().here()?.into_iter().flatten().collect();
        let optimizer = divisible(make(parts(&blocks))?)?;
        let (parallel, divided, frozen) = (parallel.clone(), Divided::Gradients(blocks), frozen(model));
        Ok(ShardedOptimizer { parallel, divided, optimizer, frozen, max_norm: None, norm: None })
    }

    /// ZeRO 3: the parameters are divided too. The model stays as it is, but its parameters that are not frozen give
    /// their memory back ([`Storage::give_back`](gradus_tensor::Storage::give_back)), and each rank keeps a part of them.
    /// They are cut into blocks: what lies below the same first number in the names, such as `h.0`, and a layer elsewhere;
    /// small neighbours are joined.
    /// In [`step`](ShardedOptimizer::step) and [`supplied`](ShardedOptimizer::supplied) a block is gathered when an
    /// operation needs it, in the forward and in the backward pass, and the one before it is given back. Gradients are
    /// summed and divided as soon as those of a block are complete. Elsewhere, to read a parameter is an
    /// [`ErrorKind::InvalidArgument`](gradus_tensor::ErrorKind::InvalidArgument), but for after
    /// [`gather`](ShardedOptimizer::gather).
    ///
    /// A rank holds its parts of parameters and state, the values and gradients of one block, the values of the next, which
    /// is gathered while that one computes, the gradients of the block before, which are summed meanwhile, and the parts of
    /// as many sums as the tree has levels: one more than the logarithm of the number of shards of a rank.
    ///
    /// # Errors
    /// Those of [`new`](ShardedOptimizer::new), and
    /// [`ErrorKind::InvalidArgument`](gradus_tensor::ErrorKind::InvalidArgument) unless the number of ranks is a power of
    /// two, and if a parameter shares its memory with another tensor.
    #[track_caller]
    pub fn fully_sharded(
        parallel: &DataParallel,
        model: &(impl Module + ?Sized),
        make: impl FnOnce(Vec<(String, Parameter)>) -> Result<O>,
    ) -> Result<Self> {
        let line = Location::caller();
        let blocks = blocks_of(&trained(model)).into_iter().map(|(name, own)| Block::of(&name, &own, parallel));
        let blocks: Vec<Block> = blocks.collect::<Result<Vec<_>>>().here()?.into_iter().flatten().collect();
        let optimizer = divisible(make(parts(&blocks))?)?;
        let full = FullShard::new(parallel, blocks, line).here()?;
        let (parallel, divided, frozen) = (parallel.clone(), Divided::Parameters(Arc::new(full)), frozen(model));
        Ok(ShardedOptimizer { parallel, divided, optimizer, frozen, max_norm: None, norm: None })
    }

    fn blocks(&self) -> &[Block] {
        match &self.divided {
            Divided::Gradients(blocks) => blocks,
            Divided::Parameters(full) => &full.blocks,
        }
    }

    /// Gathers the parameters of the model, so that they can be read and written until the next
    /// [`step`](ShardedOptimizer::step) or [`supplied`](ShardedOptimizer::supplied). All ranks call it, and write the same.
    /// If the parameters are not divided, it does nothing.
    #[track_caller]
    pub fn gather(&self) -> Result<()> {
        match &self.divided {
            Divided::Gradients(_) => Ok(()),
            Divided::Parameters(full) => no_grad(|| full.gather(Location::caller(), true)).here(),
        }
    }

    /// Runs `f`, in which a block of the parameters is gathered when it is needed, such as an evaluation. All ranks call
    /// it; what they compute in it need not be the same. If the parameters are not divided, it just runs `f`.
    #[track_caller]
    pub fn supplied<R>(&self, f: impl FnOnce() -> Result<R>) -> Result<R> {
        let line = Location::caller();
        match &self.divided {
            Divided::Gradients(_) => f(),
            Divided::Parameters(full) => full.supplied(line, f).and_then(|result| full.give_back().map(|()| result)),
        }
        .here()
    }

    /// The optimiser of this rank's part, for its learning rate.
    pub fn inner(&mut self) -> &mut O {
        &mut self.optimizer
    }

    /// Scales the gradients before each step, so that the norm of all of them is at most `max_norm`, as
    /// [`clip_grad_norm`](gradus_nn::clip_grad_norm) does. The bits do not depend on the number of ranks. With divided layers,
    /// the parts of all ranks count.
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
    /// [`ErrorKind::Autograd`](gradus_tensor::ErrorKind::Autograd) if no loss depends on a parameter. If the optimiser
    /// checks gradients ([`NonFinite`]) and one of any rank is not finite, the step fails, or is skipped, on all ranks. If
    /// it does not, and the norm of the gradients is asked for and not finite, the step changes no parameter and is an
    /// [`ErrorKind::InvalidArgument`](gradus_tensor::ErrorKind::InvalidArgument) on all ranks. Ranks among which layers are
    /// divided count as well.
    #[track_caller]
    pub fn step(
        &mut self,
        model: &(impl Module + ?Sized),
        batch: usize,
        mut loss: impl FnMut(Range<usize>) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let line = Location::caller();
        let gradients = || {
            let parameters = trained(model);
            let mut pass = |rows: Range<usize>, share: f64, backward: &Backward<'_>| {
                let loss = loss(rows)?.mul(share)?;
                let gradients = backward(&loss)?;
                Ok((loss.detach(), gradients))
            };
            let ((value, there), mut mine) = match &self.divided {
                Divided::Gradients(blocks) => {
                    let place = |(_, own): &Named| parameters.iter().position(|(_, p)| p.is_same(own));
                    let cut = blocks.iter().map(|block| block.parameters.iter().filter_map(place).collect()).collect();
                    let call = Collective::ReduceScatter(Reduce::Sum);
                    let buckets = self.parallel.buckets(parameters.clone(), cut, call, line);
                    let mut pass =
                        |rows, share, buckets: &Arc<Buckets>| pass(rows, share, &|loss| buckets.backward(loss));
                    (self.parallel.summed(model, batch, &buckets, &mut pass, line)?, buckets.vectors())
                }
                Divided::Parameters(full) => {
                    let mut of_shard = |rows: Range<usize>, share| {
                        let pass = || pass(rows.clone(), share, &Tensor::backward);
                        full.shard(model, batch, line, (!rows.is_empty()).then_some(pass))
                    };
                    let mut sums = self.parallel.sums(model, batch, Order::Rounds(line), &mut of_shard)?;
                    let heads = sums.take_heads(&**self.parallel.communicator(), line)?;
                    (heads, sums.gradients.into_iter().map(|(_, part)| part).collect())
                }
            };
            if let Some(i) = there.iter().position(|there| !there) {
                return Err(not_reached(&parameters[i]));
            }
            let finite = self.all_finite(&mut mine, line)?;
            let norm = match self.max_norm.filter(|_| finite) {
                Some(max_norm) => Some(self.clip(&mut mine, max_norm, line)?),
                None => None,
            };
            let mut gradients = Gradients::default();
            for (mine, block) in mine.iter().zip(self.blocks()) {
                gradients.insert(block.part.tensor(), mine.to_dtype(block.dtype)?)?;
            }
            Ok((value, gradients, norm))
        };
        check_model(self.blocks(), model).here()?;
        if let Divided::Parameters(full) = &self.divided {
            full.begin(line).here()?;
        }
        let (value, gradients, norm) = all_or_nothing(gradients).here()?;
        self.norm = norm;
        if let Divided::Parameters(full) = &self.divided {
            // What a forward pass wrote is part of the values that are stepped.
            full.give_back().here()?;
        }
        self.optimizer.step(&gradients).here()?;
        drop(gradients);
        match &self.divided {
            Divided::Gradients(blocks) => no_grad(|| self.give(blocks, line)).here()?,
            Divided::Parameters(full) => full.announce(line).here()?,
        }
        Ok(value)
    }

    /// ZeRO 1: makes a step with gradients that have been summed over all ranks, such as those of
    /// [`Pipeline::backward`](crate::Pipeline::backward). Each rank steps its parts, and gives the result to all.
    ///
    /// All ranks call it.
    ///
    /// # Errors
    /// Those of the optimiser; [`ErrorKind::Autograd`](gradus_tensor::ErrorKind::Autograd) if a parameter has no gradient;
    /// [`ErrorKind::InvalidArgument`](gradus_tensor::ErrorKind::InvalidArgument) if
    /// [`clip_norm`](ShardedOptimizer::clip_norm) was called: clip the gradients before the step instead; and
    /// [`ErrorKind::Unsupported`](gradus_tensor::ErrorKind::Unsupported) if the parameters are divided.
    #[track_caller]
    pub fn step_with(&mut self, model: &(impl Module + ?Sized), gradients: &Gradients) -> Result<()> {
        let line = Location::caller();
        let Divided::Gradients(blocks) = &self.divided else {
            let e = unsupported("gradients of a whole model are given, and its parameters are divided".into());
            return Err(e.help("call step, which computes the gradients block by block"));
        };
        if self.max_norm.is_some() {
            let e = Error::argument("sharded_optimizer", "clip_norm was called, and gradients are given");
            return Err(e.help("clip them with clip_grad_norm, or pipeline.clip_grad_norm, before the step"));
        }
        check_model(blocks, model).here()?;
        let part = |block: &Block| {
            let of = |named: &Named| gradients.get(named.1.tensor()).ok_or_else(|| not_reached(named));
            let own = block.parameters.iter().map(of).collect::<Result<Vec<_>>>()?;
            no_grad(|| block.part_of(own.into_iter(), &self.parallel)?.copy())
        };
        let mut mine = blocks.iter().map(part).collect::<Result<Vec<_>>>().here()?;
        self.all_finite(&mut mine, line).here()?;
        let mut own = Gradients::default();
        for (mine, block) in mine.into_iter().zip(blocks) {
            own.insert(block.part.tensor(), mine).here()?;
        }
        self.optimizer.step(&own).here()?;
        drop(own);
        no_grad(|| self.give(blocks, line)).here()
    }

    /// Whether the gradients of all ranks are finite, if the optimiser checks that. If one of another rank is not, this
    /// rank's become NaN, so that its optimiser does the same as the other's.
    fn all_finite(&self, mine: &mut [Tensor], line: Line) -> Result<bool> {
        if self.optimizer.non_finite_policy() == NonFinite::Unchecked {
            return Ok(true);
        }
        let is_finite = |vector: &Tensor| Ok(vector.isfinite()?.all(&[0], false)?.item()? != 0.0);
        let own = mine.iter().map(is_finite).collect::<Result<Vec<_>>>()?.into_iter().all(|finite| finite);
        let call = Collective::AllReduce(Reduce::Max);
        let bad = self.parallel.communicator().run_on_host(call, DType::U64, vec![u64::from(!own)], line)?;
        let (here, mut finite) = (f64::from(u8::from(bad == [0])), true);
        for division in self.divisions() {
            finite &= division.gather(&[here], line)?.iter().all(|&finite| finite == 1.0);
        }
        let finite = finite && bad == [0];
        if own && !finite {
            no_grad(|| mine.iter_mut().try_for_each(|vector| vector.mul(f64::NAN).map(|nan| *vector = nan)))?;
        }
        Ok(finite)
    }

    /// One division for each group of ranks among which layers are divided.
    fn divisions(&self) -> Vec<Arc<dyn Division>> {
        divisions(self.blocks().iter().flat_map(|block| &block.parameters).map(|(_, parameter)| parameter))
    }

    /// Clips this rank's gradients by the norm of those of all ranks, which it returns. Each vector is cut into as many
    /// pieces as there are shards, whose squares are added one after the other on all ranks: those of parameters that are
    /// whole, and those of each group of ranks among which others are divided.
    fn clip(&self, mine: &mut [Tensor], max_norm: f64, line: Line) -> Result<f64> {
        let (shards, own) = (self.parallel.all_shards(), self.parallel.shards());
        let divisions = self.divisions();
        let kinds = 1 + divisions.len();
        let kind = |p: &Parameter| {
            let group = p.division().map(|division| division.group());
            group.map_or(0, |group| 1 + divisions.iter().take_while(|division| division.group() != group).count())
        };
        let mut squares = vec![0.0; mine.len() * shards * kinds];
        for ((vector, block), squares) in mine.iter().zip(self.blocks()).zip(squares.chunks_mut(shards * kinds)) {
            let values: Vec<f64> = match vector.dtype() {
                DType::F64 => vector.to_vec::<f64>()?,
                _ => vector.to_dtype(DType::F32)?.to_vec::<f32>()?.into_iter().map(f64::from).collect(),
            };
            let (first, each) = (self.parallel.communicator().rank() * values.len(), values.len() / own.len());
            for ((_, parameter), at) in block.parameters.iter().zip(block.offsets()) {
                let inside = |i: usize| i.clamp(first, first + values.len()) - first;
                let (kind, mut i, end) = (kind(parameter), inside(at), inside(at + parameter.numel()));
                while i < end {
                    let next = end.min((i / each + 1) * each);
                    let square = &mut squares[(own.start + i / each) * kinds + kind];
                    *square = values[i..next].iter().fold(*square, |sum, value| sum + value * value);
                    i = next;
                }
            }
        }
        let squares = squares.into_iter().map(f64::to_bits).collect();
        // The other ranks have zeros in the places of this one's pieces.
        let all =
            self.parallel.communicator().run_on_host(Collective::AllReduce(Reduce::Sum), DType::F64, squares, line)?;
        let sum = |kind: usize| all.iter().skip(kind).step_by(kinds).map(|&bits| f64::from_bits(bits)).sum::<f64>();
        let mut norm = sum(0);
        for (i, division) in divisions.iter().enumerate() {
            norm += division.gather(&[sum(1 + i)], line)?.iter().sum::<f64>();
        }
        let norm = norm.sqrt();
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
    fn give(&self, blocks: &[Block], line: Line) -> Result<()> {
        for block in blocks {
            let whole = self.parallel.communicator().run(Collective::AllGather, block.part.values(), line)?;
            block.cut(&whole).try_for_each(|piece| piece.and_then(|((_, parameter), piece)| parameter.set(&piece)))?;
        }
        Ok(())
    }

    /// The state of all ranks together, the same on every rank: that of an optimiser of the whole model. It can be loaded
    /// on any number of ranks, and by such an optimiser. All ranks call it.
    #[track_caller]
    pub fn state_dict(&self) -> Result<StateDict> {
        let (line, state) = (Location::caller(), self.optimizer.state_dict()?);
        let gather = |tensor: &Tensor| self.parallel.communicator().run(Collective::AllGather, tensor, line);
        let mut whole = StateDict::new();
        let of_parts: HashSet<String> = self.blocks().iter().map(|block| steps_of(&block.name)).collect();
        let common = state.iter_metadata().filter(|(key, _)| !of_parts.contains(*key));
        common.for_each(|(key, text)| whole.set_metadata(key, text));
        self.blocks().iter().try_for_each(|block| block.give_state(&state, &mut whole, gather)).here()?;
        self.frozen.iter().for_each(|name| whole.set_metadata(steps_of(name), "0"));
        Ok(whole)
    }

    /// Loads a state that [`state_dict`](ShardedOptimizer::state_dict) gave on any number of ranks, or that of an optimiser
    /// of the whole model. The state of parameters that are frozen is passed over.
    ///
    /// # Errors
    /// Those of [`Optimizer::load_state_dict`] with [`Strict::Yes`], and
    /// [`ErrorKind::InvalidArgument`](gradus_tensor::ErrorKind::InvalidArgument) if parameters of a block have not made
    /// equally many steps.
    #[track_caller]
    pub fn load_state_dict(&mut self, state: &StateDict) -> Result<()> {
        if let Divided::Parameters(full) = &self.divided {
            // The state belongs to values that may have been loaded into the model just before.
            full.take_written().here()?;
        }
        let (mut rest, mut mine) = (state.clone(), StateDict::new());
        self.blocks().iter().try_for_each(|block| block.take_state(&mut rest, &mut mine, &self.parallel)).here()?;
        let names = self.blocks().iter().flat_map(|block| &block.parameters).map(|(name, _)| name);
        let of_parameters: HashSet<String> = names.chain(&self.frozen).map(|name| steps_of(name)).collect();
        let common = state.iter_metadata().filter(|(key, _)| !of_parameters.contains(*key));
        common.for_each(|(key, text)| mine.set_metadata(key, text));
        // What is left belongs to no parameter of the model, and is reported.
        let is_frozen =
            |key: &str| key.rsplit_once('.').is_some_and(|(of, _)| self.frozen.iter().any(|name| name == of));
        let rest = rest.iter().filter(|(key, _)| !is_frozen(key));
        rest.for_each(|(name, tensor)| mine.insert(name, tensor.clone()));
        self.optimizer.load_state_dict(&mine, Strict::Yes).map(drop)
    }
}

/// The names of the parameters that are not trained.
fn frozen(model: &(impl Module + ?Sized)) -> Vec<String> {
    model.named_parameters().into_iter().filter(|(_, p)| p.is_frozen()).map(|(name, _)| name).collect()
}

/// The error for a parameter without a gradient.
fn not_reached((name, parameter): &Named) -> Error {
    let m = format!("no loss depends on parameter {name} of the model, {:?}", parameter.shape());
    let e = Error::new(gradus_tensor::ErrorKind::Autograd, "sharded_optimizer", m);
    e.help("freeze it before the optimiser is made")
}

/// The parameters of the optimiser: the parts of this rank.
fn parts(blocks: &[Block]) -> Vec<(String, Parameter)> {
    blocks.iter().map(|block| (block.name.clone(), block.part.clone())).collect()
}

/// The optimiser, unless its state cannot be divided.
#[track_caller]
fn divisible<O: Optimizer>(optimizer: O) -> Result<O> {
    check_elementwise(&optimizer).map(|_| optimizer)
}

fn unsupported(m: String) -> Error {
    Error::new(gradus_tensor::ErrorKind::Unsupported, "sharded_optimizer", m)
}

/// The state of an optimiser. Fails unless it treats each element by itself.
#[track_caller]
fn check_elementwise(optimizer: &dyn Optimizer) -> Result<StateDict> {
    let state = optimizer.state_dict()?;
    let kind = state.metadata("optimizer").unwrap_or("unknown");
    if ELEMENTWISE.contains(&kind) {
        return Ok(state);
    }
    let e = unsupported(format!("{kind} does not treat each element by itself, so its state cannot be divided"));
    Err(e.help("take SGD or one of the Adam family, or a whole optimiser on each rank"))
}

/// The state of an optimiser. Fails unless it treats each element by itself, and does not look for gradients that are not
/// finite, which each rank would do for its part alone.
#[track_caller]
pub(crate) fn check_divisible(optimizer: &dyn Optimizer) -> Result<StateDict> {
    let state = check_elementwise(optimizer)?;
    match optimizer.non_finite_policy() {
        NonFinite::Unchecked => Ok(state),
        policy => {
            let m = format!("NonFinite::{policy:?} looks at the gradients of one rank, which has only a part of them");
            Err(unsupported(m).help("take Trainer::on_non_finite, which looks at those of all ranks"))
        }
    }
}
