//! [`FullyShardedDataParallel`]: divided parameters (ZeRO 3) for a [`Trainer`](gradus_train::Trainer).

use std::cell::RefCell;
use std::ops::Range;
use std::panic::Location;
use std::sync::{Arc, Mutex, MutexGuard};

use gradus_nn::{Module, Optimizer, Parameter, StateDict, grad_norm_of};
use gradus_tensor::{DType, Error, ErrorKind, Gradients, Here, Result, Tensor, all_or_nothing, no_grad};
use gradus_train::{Pass, Ranks};

use crate::block::{Block, blocks_of, check_model, steps_of};
use crate::call::Collective;
use crate::data_parallel::{DataParallel, Order};
use crate::full_shard::FullShard;
use crate::sharded_optimizer::check_divisible;
use crate::vectors::Named;

/// [`DataParallel`] for a [`Trainer`](gradus_train::Trainer), during whose training each rank holds a part of the
/// parameters, of their gradients and of the optimiser's state: ZeRO 3, as
/// [`ShardedOptimizer::fully_sharded`](crate::ShardedOptimizer::fully_sharded) describes it.
///
/// The bits are those of `DataParallel`. Model and optimiser are whole when a training begins and when it ends. Each rank
/// writes its part of a checkpoint into the folder of rank 0, which all ranks reach by the same path. An error leaves
/// model and optimiser divided: make them anew. Parameters are frozen and unfrozen before a training. Steps are not captured.
///
/// ```
/// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
/// use gradus_data::{DataLoader, TensorDataset};
/// use gradus_dist::{DataParallel, FullyShardedDataParallel, Options, threads};
/// use gradus_nn::{AdamConfig, AdamW, Init, Linear, Module};
/// use gradus_train::{Classification, Trainer};
///
/// threads(2, Options::default(), |comm| {
///     let device = Device::from_backend(Arc::new(CpuBackend::new()?));
///     let mut rng = Generator::new(7);
///     let x = Tensor::randn([64, 3], DType::F32, &device, &mut rng)?;
///     let y = x.narrow(1, 0, 1)?.gt(0.0)?.to_dtype(DType::I64)?.reshape([64])?;
///     let loader = DataLoader::new(TensorDataset::new(x, y)?, &device).batch_size(32).build()?;
///     let mut model = Linear::new(3, 2, &mut Init::new(DType::F32, &device, &mut rng))?;
///     let mut optimizer = AdamW::new(model.named_parameters(), AdamConfig::default())?;
///     let ranks = FullyShardedDataParallel::new(DataParallel::new(comm.clone())?)?;
///     let trainer = Trainer::new(2)?.ranks(Arc::new(ranks));
///     trainer.fit(&mut model, &mut optimizer, &loader, None, &Classification::default(), &mut [])?;
///     Ok(())
/// })?;
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug)]
pub struct FullyShardedDataParallel {
    parallel: DataParallel,
    divided: Mutex<Option<Divided>>,
}

/// The parameters while they are divided.
#[derive(Debug, Clone)]
struct Divided {
    full: Arc<FullShard>,
    /// The pieces of each block that this rank holds, for the optimiser.
    pieces: Arc<Vec<Vec<Piece>>>,
}

/// The elements of a parameter that lie in the part of this rank; there may be none.
#[derive(Debug)]
struct Piece {
    name: String,
    whole: Parameter,
    /// The elements, as a parameter of the optimiser.
    part: Parameter,
    /// Where they lie in `whole`.
    range: Range<usize>,
}

impl Piece {
    /// This piece of a tensor with the shape of the parameter. A tensor of another shape belongs to all elements alike.
    fn of(&self, tensor: &Tensor) -> Result<Tensor> {
        if tensor.shape() != self.whole.shape() {
            return Ok(tensor.clone());
        }
        tensor.reshape([self.whole.numel()])?.narrow(0, self.range.start, self.range.len())?.copy()
    }
}

/// The pieces of a block that lie in the part of a rank, which they share.
fn pieces_of(block: &Block, rank: usize) -> Result<Vec<Piece>> {
    let each = block.part.numel();
    let own = rank * each..(rank + 1) * each;
    let piece = |((name, whole), at): (&Named, usize)| {
        let cut = |i: usize| i.clamp(at, at + whole.numel()) - at;
        let range = cut(own.start)..cut(own.end);
        let begin = (at + range.start).clamp(own.start, own.end) - own.start;
        // Divided among other ranks if the whole is, along another axis of a mesh.
        let part = whole.with_values(block.part.values().narrow(0, begin, range.len())?)?;
        Ok(Piece { name: name.clone(), whole: whole.clone(), part, range })
    };
    block.parameters.iter().zip(block.offsets()).map(piece).collect()
}

/// Fails if an optimiser with this state and these parameters has a name for another parameter than the model.
#[track_caller]
fn check_names(model: &[Named], state: &StateDict, own: &[Parameter]) -> Result<()> {
    let is_own = |parameter: &Parameter| own.iter().any(|p| p.is_same(parameter));
    let is_named = |name: &str| state.metadata(&steps_of(name)).is_some();
    let Some((name, _)) = model.iter().find(|(name, parameter)| is_named(name) && !is_own(parameter)) else {
        return Ok(());
    };
    let mut m = format!("the optimiser has the name {name} for another parameter than the model");
    if let Some((other, _)) = model.iter().find(|(other, parameter)| is_own(parameter) && !is_named(other)) {
        m += &format!(", which has {other} too");
    }
    Err(Error::argument("fully_sharded", m).help("make the optimiser from the names that the whole model gives"))
}

impl FullyShardedDataParallel {
    /// Over the ranks and virtual shards of `parallel`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] unless the number of ranks is a power of two.
    #[track_caller]
    pub fn new(parallel: DataParallel) -> Result<Self> {
        FullShard::check_ranks(&parallel)?;
        Ok(FullyShardedDataParallel { parallel, divided: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, Option<Divided>> {
        self.divided.lock().unwrap_or_else(|e| e.into_inner())
    }

    #[track_caller]
    fn divided(&self) -> Result<Divided> {
        self.lock().clone().ok_or_else(|| {
            let m = "the parameters are divided only while Trainer::fit runs";
            Error::new(ErrorKind::Unsupported, "fully_sharded", m).help("take DataParallel for other loops")
        })
    }

    /// The state of the optimiser of all ranks.
    fn whole_state(&self, divided: &Divided, own: &StateDict) -> Result<StateDict> {
        let line = Location::caller();
        let mut whole = own.clone();
        for (block, pieces) in divided.full.blocks.iter().zip(&*divided.pieces) {
            let mut slots: Vec<&str> = vec![];
            for (slot, tensor) in own.iter().filter_map(|(key, t)| key.rsplit_once('.').map(|(_, slot)| (slot, t))) {
                if tensor.rank() == 1 && !slots.contains(&slot) {
                    slots.push(slot);
                }
            }
            for slot in slots {
                let key = |piece: &Piece| format!("{}.{slot}", piece.name);
                let there: Vec<Option<&Tensor>> = pieces
                    .iter()
                    .map(|piece| own.get(&key(piece)).filter(|t| t.shape() == piece.part.shape()))
                    .collect();
                let Some(dtype) = there.iter().flatten().next().map(|t| t.dtype()) else { continue };
                let all = self.gather_pieces(block, pieces, dtype, |i| Ok(there[i].cloned()), line)?;
                for (((_, parameter), at), (piece, there)) in
                    block.parameters.iter().zip(block.offsets()).zip(pieces.iter().zip(&there))
                {
                    if there.is_some() {
                        let own = all.narrow(0, at, parameter.numel())?.reshape(parameter.shape())?.copy()?;
                        whole.insert(key(piece), own);
                    }
                }
            }
        }
        Ok(whole)
    }

    /// The gradient of the whole parameter of which the optimiser has `parameter`. `gathered` keeps those of a block for
    /// the next call with the same gradients.
    fn whole_gradient(
        &self,
        divided: &Divided,
        (gradients, parameter): (&Gradients, &Parameter),
        gathered: &mut Option<(usize, Tensor)>,
        line: &'static Location<'static>,
    ) -> Result<Option<Tensor>> {
        let at = |pieces: &Vec<Piece>| pieces.iter().position(|piece| piece.part.is_same(parameter));
        let place = divided.pieces.iter().enumerate().find_map(|(i, pieces)| Some((i, at(pieces)?)));
        let (Some((i, j)), true) = (place, gradients.get(parameter.tensor()).is_some()) else {
            return Ok(gradients.get(parameter.tensor()).cloned());
        };
        let (block, pieces) = (&divided.full.blocks[i], &divided.pieces[i]);
        let all = match gathered.take().filter(|(other, _)| *other == i) {
            Some((_, all)) => all,
            None => {
                let own = |i: usize| Ok(gradients.get(pieces[i].part.tensor()).cloned());
                self.gather_pieces(block, pieces, block.dtype, own, line)?
            }
        };
        let at = block.offsets().nth(j).unwrap_or(0);
        let whole = all.narrow(0, at, pieces[j].whole.numel())?.reshape(pieces[j].whole.shape())?;
        *gathered = Some((i, all));
        Ok(Some(whole))
    }

    /// Gathers a vector of a block of the pieces that each rank has; missing ones are zero.
    fn gather_pieces(
        &self,
        block: &Block,
        pieces: &[Piece],
        dtype: DType,
        own: impl Fn(usize) -> Result<Option<Tensor>>,
        line: &'static Location<'static>,
    ) -> Result<Tensor> {
        let part = Tensor::zeros([block.part.numel()], dtype, block.part.device())?;
        let mut at = 0;
        for (i, piece) in pieces.iter().enumerate() {
            if let Some(tensor) = own(i)? {
                no_grad(|| part.narrow(0, at, piece.range.len())?.copy_(&tensor))?;
            }
            at += piece.range.len();
        }
        self.parallel.communicator().run(Collective::AllGather, &part, line)
    }
}

impl Ranks for FullyShardedDataParallel {
    fn rank(&self) -> usize {
        self.parallel.communicator().rank()
    }

    fn size(&self) -> usize {
        self.parallel.communicator().size()
    }

    fn parts(&self, samples: usize) -> Vec<Range<usize>> {
        let shards = self.parallel.shards_in(Order::Rounds(Location::caller())).into_iter();
        shards.map(|shard| self.parallel.rows(samples, shard)).filter(|rows| !rows.is_empty()).collect()
    }

    #[track_caller]
    fn backward(&self, model: &dyn Module, samples: usize, pass: &mut Pass<'_>) -> Result<(Tensor, Gradients)> {
        let line = Location::caller();
        let divided = self.divided()?;
        check_model(&divided.full.blocks, model).here()?;
        // After an evaluation or a checkpoint, ranks may hold different blocks.
        divided.full.give_back()?;
        let step = || {
            let mut of_shard = |rows: Range<usize>, share| {
                divided.full.shard(
                    model,
                    samples,
                    line,
                    (!rows.is_empty()).then_some(|| pass(share, &Tensor::backward)),
                )
            };
            let mut sums = self.parallel.sums(model, samples, Order::Rounds(line), &mut of_shard)?;
            // What a forward pass wrote is part of the values that are stepped.
            divided.full.give_back()?;
            let (loss, there) = sums.take_heads(&**self.parallel.communicator(), line)?;
            let mut gradients = Gradients::default();
            for ((_, sum), (block, pieces)) in
                sums.gradients.iter().zip(divided.full.blocks.iter().zip(&*divided.pieces))
            {
                let mut at = 0;
                for piece in pieces {
                    let own = sum.narrow(0, at, piece.range.len())?;
                    at += piece.range.len();
                    if sums.parameters.iter().zip(&there).any(|((_, p), there)| *there && p.is_same(&piece.whole)) {
                        gradients.insert(piece.part.tensor(), own.to_dtype(block.dtype)?)?;
                    }
                }
            }
            Ok((loss, gradients))
        };
        all_or_nothing(step).here()
    }

    #[track_caller]
    fn sum(&self, numbers: &mut [f64]) -> Result<()> {
        self.parallel.sum(numbers)
    }

    #[track_caller]
    fn broadcast(&self, from: usize, bytes: Vec<u8>) -> Result<Vec<u8>> {
        Ranks::broadcast(&self.parallel, from, bytes)
    }

    fn give_up(&self, why: &str) {
        Ranks::give_up(&self.parallel, why);
    }

    fn divides(&self) -> bool {
        true
    }

    #[track_caller]
    fn divide(&self, parameters: Vec<(String, Parameter)>, optimizer: &mut dyn Optimizer) -> Result<()> {
        let state = check_divisible(optimizer)?;
        check_names(&parameters, &state, &optimizer.parameters())?;
        let (trained, mut parts): (Vec<Named>, Vec<Named>) = parameters.into_iter().partition(|(_, p)| !p.is_frozen());
        let blocks = blocks_of(&trained).into_iter().map(|(name, own)| Block::of(&name, &own, &self.parallel));
        let blocks: Vec<Block> = blocks.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect();
        FullShard::homes(&blocks)?;
        let pieces = blocks.iter().map(|block| pieces_of(block, self.rank())).collect::<Result<Vec<_>>>()?;
        let mut own = StateDict::new();
        state.iter_metadata().for_each(|(key, text)| own.set_metadata(key, text));
        for (key, tensor) in state.iter() {
            let of = |(name, _): (&str, &str)| pieces.iter().flatten().find(|piece| piece.name == name);
            let piece = key.rsplit_once('.').and_then(of);
            own.insert(key, piece.map_or_else(|| Ok(tensor.clone()), |piece| piece.of(tensor))?);
        }
        parts.extend(pieces.iter().flatten().map(|piece| (piece.name.clone(), piece.part.clone())));
        optimizer.rebind_with(parts, &own)?;
        let full = Arc::new(FullShard::new(&self.parallel, blocks, Location::caller())?);
        *self.lock() = Some(Divided { full, pieces: Arc::new(pieces) });
        Ok(())
    }

    #[track_caller]
    fn join(&self, parameters: Vec<(String, Parameter)>, optimizer: &mut dyn Optimizer) -> Result<()> {
        let line = Location::caller();
        let divided = self.divided()?;
        let state = no_grad(|| self.whole_state(&divided, &optimizer.state_dict()?))?;
        no_grad(|| divided.full.gather(line, true))?;
        optimizer.rebind_with(parameters, &state)?;
        *self.lock() = None;
        Ok(())
    }

    #[track_caller]
    fn pieces(&self) -> Result<Vec<gradus_train::Piece>> {
        let divided = self.divided()?;
        // What a forward pass wrote is part of the values, and what is set must not be hidden by values that are there.
        divided.full.give_back()?;
        let piece = |piece: &Piece| gradus_train::Piece {
            name: piece.name.clone(),
            shape: piece.whole.shape().to_vec(),
            start: piece.range.start,
            part: piece.part.clone(),
        };
        Ok(divided.pieces.iter().flatten().map(piece).collect())
    }

    #[track_caller]
    fn supplied(&self, f: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        // Before and after a training, the parameters are whole.
        let divided = self.lock().clone();
        match divided {
            Some(divided) => divided.full.supplied(Location::caller(), f),
            None => f(),
        }
    }

    #[track_caller]
    fn grad_norm(&self, gradients: &Gradients, parameters: &[Parameter]) -> Result<f64> {
        let line = Location::caller();
        let divided = self.divided()?;
        let gathered = RefCell::new(None);
        grad_norm_of(parameters, |i| {
            self.whole_gradient(&divided, (gradients, &parameters[i]), &mut gathered.borrow_mut(), line)
        })
    }

    #[track_caller]
    fn stepped(&self) -> Result<()> {
        self.divided()?.full.announce(Location::caller())
    }
}
