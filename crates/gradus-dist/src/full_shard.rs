//! [`FullShard`]: parameters of which each rank holds a part, and which are there one block at a time (ZeRO 3).
//!
//! While a shard of the batch is computed, an operation that needs a block that is not there gathers it first and gives
//! the block before it back ([`with_supply`]). A gradient leaves the backward pass as soon as it is complete
//! ([`take_gradients`]); once a block has all of its own, its values are given back, the gradients are summed over the
//! ranks, and each rank keeps its part.
//!
//! The shard before says which block is next. It is gathered while this one is computed. Meanwhile, the gradients of the
//! block before are summed; one sum is in flight at a time.
//!
//! **Invariant**: ranks make the same calls in the same order. Where all have rows, their passes come to the same
//! [events](Event), which they compare at the end of the shard, before anything is made of its results. Otherwise, and
//! outside of steps, a rank may need other blocks than the rest, or none: there they agree before each call on what is
//! next, the largest of the events that they have come to. Those that came to another one take part in it, and ask again.

use std::any::Any;
use std::collections::{HashMap, HashSet};
use std::ptr;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use gradus_nn::Module;
use gradus_tensor::autograd::take_gradients;
use gradus_tensor::backend::{Backend, Binding};
use gradus_tensor::ops::{self, HostCall};
use gradus_tensor::{DType, Error, ErrorKind, Gradients, Result, Storage, Tensor, no_grad, with_supply};

use crate::block::Block;
use crate::call::Collective;
use crate::data_parallel::{DataParallel, Shard, trained};
use crate::fact::fact;
use crate::group::Line;
use crate::handle::Handle;
use crate::reduce::Reduce;
use crate::vectors::Named;

/// What a rank has come to. Of several, the largest is next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    /// The end of what it computes.
    Done,
    /// The gradients of a block are complete.
    Reduce(usize),
    /// It needs the values of a block.
    Gather(usize),
}

#[derive(Debug)]
pub(crate) struct FullShard {
    parallel: DataParallel,
    pub(crate) blocks: Vec<Block>,
    /// The block of each storage.
    homes: HashMap<usize, usize>,
    round: Mutex<Round>,
}

/// What there is of each block at the moment.
#[derive(Debug)]
struct Round {
    /// The line of the call that the ranks are in.
    line: Line,
    /// The events so far, as one number, if all ranks come to the same.
    events: Option<u64>,
    /// The blocks that were gathered in the last shard in which all ranks came to the same events, and so far in this one.
    last: Vec<usize>,
    gathered: Vec<usize>,
    /// A block that is being gathered before it is needed.
    ahead: Option<(usize, Handle)>,
    /// A block whose gradients are being summed.
    summing: Option<(usize, Handle)>,
    /// The versions at which the parameters were filled, if they are there.
    there: Vec<Option<Vec<u64>>>,
    /// The versions of the parts whose values the parameters had, or were last announced to have.
    announced: Vec<u64>,
    gradients: Vec<Sum>,
}

/// The gradients of a block.
#[derive(Debug, Default)]
struct Sum {
    /// Those of this rank so far, one for each parameter.
    own: Vec<Option<Tensor>>,
    /// Whether each parameter has one.
    taken: Vec<bool>,
    /// Whether the sum over all ranks was started.
    is_sent: bool,
    /// This rank's part of it, once it is there.
    part: Option<Tensor>,
}

fn address(storage: &Storage) -> usize {
    ptr::from_ref(storage).addr()
}

impl FullShard {
    /// Gives the memory of the parameters of `blocks` back.
    pub(crate) fn new(parallel: &DataParallel, blocks: Vec<Block>, line: Line) -> Result<FullShard> {
        FullShard::check_ranks(parallel)?;
        let homes = FullShard::homes(&blocks)?;
        let versions =
            |block: &Block| Some(block.parameters.iter().map(|(_, p)| p.values().storage().version()).collect());
        let there = blocks.iter().map(versions).collect();
        let (events, last, gathered, gradients) = (None, vec![], vec![], vec![]);
        let announced = blocks.iter().map(Block::version).collect();
        let round = Round { line, events, last, gathered, ahead: None, summing: None, there, announced, gradients };
        let round = Mutex::new(round);
        let this = FullShard { parallel: parallel.clone(), blocks, homes, round };
        this.give_back()?;
        Ok(this)
    }

    /// The block of each storage. Fails if a parameter shares its memory.
    pub(crate) fn homes(blocks: &[Block]) -> Result<HashMap<usize, usize>> {
        let mut homes = HashMap::new();
        for (i, block) in blocks.iter().enumerate() {
            for (name, parameter) in &block.parameters {
                let storage = parameter.values().storage();
                if storage.bytes() != parameter.numel() * parameter.dtype().size()
                    || homes.insert(address(storage), i).is_some()
                {
                    let m = format!("{name} shares its memory with another tensor, so it cannot be given back");
                    return Err(Error::argument("sharded_optimizer", m).help("make the parameter of x.copy()?"));
                }
            }
        }
        Ok(homes)
    }

    /// Fails unless the number of ranks is a power of two.
    #[track_caller]
    pub(crate) fn check_ranks(parallel: &DataParallel) -> Result<()> {
        let (ranks, shards) = (parallel.communicator().size(), parallel.all_shards());
        if ranks.is_power_of_two() {
            return Ok(());
        }
        let m = format!("parameters are divided among {ranks} ranks, which is no power of two");
        let e = Error::argument("fully_sharded", m);
        Err(e.help(format!("the tree of sums over {shards} shards needs one; ShardedOptimizer::new takes any")))
    }

    fn lock(&self) -> MutexGuard<'_, Round> {
        self.round.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Gives all blocks back.
    pub(crate) fn give_back(&self) -> Result<()> {
        let mut round = self.lock();
        (0..self.blocks.len()).try_for_each(|i| self.give_back_one(i, &mut round))
    }

    /// Takes what was written into the blocks that are there as this rank's parts.
    pub(crate) fn take_written(&self) -> Result<()> {
        let mut round = self.lock();
        (0..self.blocks.len()).try_for_each(|i| self.take_written_one(i, &mut round))
    }

    fn take_written_one(&self, i: usize, round: &mut Round) -> Result<()> {
        let Some(versions) = &mut round.there[i] else { return Ok(()) };
        let block = &self.blocks[i];
        let values = || block.parameters.iter().map(|(_, p)| p.values());
        let now: Vec<u64> = values().map(|t| t.storage().version()).collect();
        if now != *versions {
            block.part.set(&no_grad(|| block.part_of(values(), &self.parallel))?)?;
            *versions = now;
            round.announced[i] = block.version();
        }
        Ok(())
    }

    /// Gives a block back if it is there. What was written into it becomes this rank's part.
    fn give_back_one(&self, i: usize, round: &mut Round) -> Result<()> {
        if round.there[i].is_none() {
            return Ok(());
        }
        self.take_written_one(i, round)?;
        self.blocks[i].parameters.iter().try_for_each(|(_, p)| p.values().storage().give_back())?;
        round.there[i] = None;
        Ok(())
    }

    /// Gathers all blocks on the ranks that `keep` them. All ranks call it.
    pub(crate) fn gather(&self, line: Line, keep: bool) -> Result<()> {
        self.announce(line)?;
        let mut round = self.lock();
        (round.line, round.events) = (line, None);
        for i in 0..self.blocks.len() {
            if keep && round.there[i].is_none() {
                self.reach(Event::Gather(i), &mut round)?;
            }
        }
        self.reach(Event::Done, &mut round)
    }

    /// Begins a step with all blocks given back; each replay of a captured one does so too.
    pub(crate) fn begin(self: &Arc<Self>, line: Line) -> Result<()> {
        self.give_back()?;
        match self.blocks.first().filter(|_| ops::is_captured()) {
            Some(block) => block.part.device().dispatch_host(Arc::new(GiveBack(Arc::downgrade(self))), &[], line),
            None => Ok(()),
        }
    }

    /// Whoever still needs the old values of a part hears of it, if the part was written: by an optimiser, or by the replay of
    /// a step.
    pub(crate) fn announce(&self, line: Line) -> Result<()> {
        let mut round = self.lock();
        for (block, announced) in self.blocks.iter().zip(&mut round.announced) {
            let now = block.version();
            if *announced != now {
                block.parameters.iter().try_for_each(|(_, p)| p.values().storage().note_change("step", line))?;
                *announced = now;
            }
        }
        Ok(())
    }

    /// Runs `f`, in which each block is there when it is needed. The other ranks take part, whatever they compute.
    pub(crate) fn supplied<R>(self: &Arc<Self>, line: Line, f: impl FnOnce() -> Result<R>) -> Result<R> {
        self.supplied_alike(line, false, f)
    }

    /// [`supplied`](FullShard::supplied); `alike` says whether all ranks come to the same events.
    fn supplied_alike<R>(self: &Arc<Self>, line: Line, alike: bool, f: impl FnOnce() -> Result<R>) -> Result<R> {
        self.announce(line)?;
        let mut round = self.lock();
        (round.line, round.events) = (line, alike.then_some(0));
        // Those of a shard that failed are of no use.
        round.gathered = vec![];
        drop(round);
        let this = self.clone();
        let result = with_supply(Rc::new(move |storages| this.supply(storages)), f)
            .and_then(|result| no_grad(|| self.reach(Event::Done, &mut self.lock())).map(|()| result));
        if result.is_err() {
            // What was started ends before the communicator may be dropped. Its error adds nothing to the first one.
            let mut round = self.lock();
            for (_, handle) in round.summing.take().into_iter().chain(round.ahead.take()) {
                drop(handle.wait());
            }
        }
        result
    }

    /// What a shard of this rank of a batch of so many rows gives, if it has some of them. The batch began with all blocks
    /// [given back](FullShard::give_back). Beside it come this rank's parts of the gradients of all ranks.
    pub(crate) fn shard(
        self: &Arc<Self>,
        model: &(impl Module + ?Sized),
        batch: usize,
        line: Line,
        pass: Option<impl FnOnce() -> Result<(Tensor, Gradients)>>,
    ) -> Result<Shard> {
        let empty = |block: &Block| {
            let n = block.parameters.len();
            Sum { own: vec![None; n], taken: vec![false; n], is_sent: false, part: None }
        };
        self.lock().gradients = self.blocks.iter().map(empty).collect();
        let of_block =
            |(i, block): (usize, &Block)| (0..block.parameters.len()).map(move |j| (i, j)).collect::<Vec<_>>();
        let places: Vec<(usize, usize)> = self.blocks.iter().enumerate().flat_map(of_block).collect();
        let leaves: Vec<&Tensor> = places.iter().map(|&(i, j)| self.blocks[i].parameters[j].1.tensor()).collect();
        let (this, at) = (self.clone(), places.clone());
        let take = move |leaf: usize, gradient: &Tensor| this.take(at[leaf], gradient);
        let all_have_rows = batch >= self.parallel.all_shards();
        let loss = self.supplied_alike(line, all_have_rows, || {
            let Some(pass) = pass else { return Ok(None) };
            let (loss, _) = take_gradients(&leaves, Rc::new(take), pass)??;
            no_grad(|| self.flush())?;
            Ok(Some(loss))
        })?;
        let mut round = self.lock();
        let taken = |&(i, j): &(usize, usize)| {
            round.gradients[i].taken[j].then(|| address(self.blocks[i].parameters[j].1.values().storage()))
        };
        let taken: HashSet<usize> = places.iter().filter_map(taken).collect();
        let there = trained(model).iter().map(|(_, p)| taken.contains(&address(p.values().storage()))).collect();
        let part = |(sum, block): (&mut Sum, &Block)| match sum.part.take() {
            Some(part) => Ok((block.dtype, part)),
            // No rank has rows.
            None => Ok((block.dtype, self.zeros(block, block.part.numel())?)),
        };
        let vectors = round.gradients.iter_mut().zip(&self.blocks).map(part).collect::<Result<_>>()?;
        Ok(Shard { loss, there, vectors })
    }

    /// Gathers the blocks of the storages, after giving back those that are there and not among them.
    fn supply(&self, storages: &[&Arc<Storage>]) -> Result<()> {
        let mut round = self.lock();
        let wanted: HashSet<usize> = storages.iter().filter_map(|s| self.homes.get(&address(s)).copied()).collect();
        for i in (0..self.blocks.len()).filter(|i| !wanted.contains(i)) {
            self.give_back_one(i, &mut round)?;
        }
        let mut missing: Vec<usize> = wanted.into_iter().filter(|&i| round.there[i].is_none()).collect();
        missing.sort_unstable();
        missing.into_iter().try_for_each(|i| self.reach(Event::Gather(i), &mut round))
    }

    /// Takes the gradient of parameter `j` of block `i`. The last one of a block is followed by the sum over the ranks.
    fn take(&self, (i, j): (usize, usize), gradient: &Tensor) -> Result<()> {
        let mut round = self.lock();
        let (block, sum) = (&self.blocks[i], &mut round.gradients[i]);
        let name = &block.parameters[j].0;
        if sum.is_sent || std::mem::replace(&mut sum.taken[j], true) {
            let m = format!("a second backward pass over the same shard reaches {name}");
            return Err(
                Error::new(ErrorKind::Autograd, "sharded_optimizer", m).help("add the losses, and return the sum")
            );
        }
        sum.own[j] = Some(gradient.clone());
        if !sum.taken.iter().all(|&taken| taken) {
            return Ok(());
        }
        // Nothing reads the values of a layer after its gradients, but for rare models, for which they are gathered again.
        self.give_back_one(i, &mut round)?;
        self.reach(Event::Reduce(i), &mut round)
    }

    /// Sums the gradients of the blocks of which a parameter has none, after the pass of a shard.
    fn flush(&self) -> Result<()> {
        let mut round = self.lock();
        for i in 0..self.blocks.len() {
            if !round.gradients[i].is_sent {
                self.reach(Event::Reduce(i), &mut round)?;
            }
        }
        Ok(())
    }

    /// Zeros in the dtype in which gradients of the block are added.
    fn zeros(&self, block: &Block, n: usize) -> Result<Tensor> {
        Tensor::zeros([n], block.dtype.compute(), block.part.device())
    }

    /// The gradients of a block as one vector, with zeros for those that are missing and for the padding.
    fn vector(&self, block: &Block, own: &mut [Option<Tensor>]) -> Result<Tensor> {
        let piece = |((_, parameter), own): (&Named, &mut Option<Tensor>)| match own.take() {
            Some(own) => own.to_dtype(block.dtype.compute())?.reshape([parameter.numel()]),
            None => self.zeros(block, parameter.numel()),
        };
        let mut pieces = block.parameters.iter().zip(own).map(piece).collect::<Result<Vec<_>>>()?;
        let length: usize = pieces.iter().map(Tensor::numel).sum();
        pieces.push(self.zeros(block, block.padded - length)?);
        Tensor::cat(&pieces.iter().collect::<Vec<_>>(), 0)
    }

    /// Returns when `mine` has happened on all ranks.
    fn reach(&self, mine: Event, round: &mut Round) -> Result<()> {
        if let Some(events) = round.events {
            if mine == Event::Done {
                self.finish_sum(round)?;
                // What was gathered ahead and not needed is no loss but of time.
                round.ahead.take().map(|(_, handle)| handle.wait()).transpose()?;
                round.last = std::mem::take(&mut round.gathered);
                return self.compare(events, round.line);
            }
            // Numbers of two orders of events hardly ever agree.
            round.events = Some((events ^ self.code(mine)).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29));
            return self.serve(mine, mine, round);
        }
        loop {
            let next = self.agree(mine, round.line)?;
            self.serve(next, mine, round)?;
            if next == mine {
                return Ok(());
            }
        }
    }

    /// Takes part in an event of this rank or of another.
    fn serve(&self, next: Event, mine: Event, round: &mut Round) -> Result<()> {
        match next {
            Event::Done => self.finish_sum(round),
            Event::Reduce(i) => self.reduce(i, mine, round),
            Event::Gather(i) => self.gather_one(i, mine == next, round),
        }
    }

    /// Fails unless all ranks came to the same events.
    fn compare(&self, events: u64, line: Line) -> Result<()> {
        let comm = self.parallel.communicator();
        let same = if ops::is_captured() {
            // Replays come to the same events again, if all ranks replay.
            // 16 bits each, which f32 holds exactly.
            let own = [0, 16, 32, 48].map(|bit| f32::from((events >> bit) as u16));
            let Some(device) = self.blocks.first().map(|block| block.part.device()) else { return Ok(()) };
            let mine = Tensor::from_vec(own, [4], device)?;
            let all =
                fact::<f32>(&comm.run(Collective::AllGather, &mine, line)?, "the layers that ranks compute", line)?;
            all.chunks(4).all(|other| other == own)
        } else {
            comm.agrees(&[events], line)?
        };
        if same { Ok(()) } else { Err(disagree("the layers of a shard")) }
    }

    /// The number of an event; larger ones come first.
    fn code(&self, event: Event) -> u64 {
        match event {
            Event::Done => 0,
            Event::Reduce(i) => 1 + i as u64,
            Event::Gather(i) => (1 + self.blocks.len() + i) as u64,
        }
    }

    /// The largest event of all ranks.
    fn agree(&self, mine: Event, line: Line) -> Result<Event> {
        ops::refuse(|| {
            let m = "ranks agree before each call on the parameters that they need, which a replay cannot do";
            let shards = self.parallel.all_shards();
            Error::new(ErrorKind::Unsupported, "capture", m).help(format!(
                "give each batch at least {shards} rows, one for each virtual shard; gather outside of captured steps"
            ))
        })
        .map_err(|e| e.at(line))?;
        let n = self.blocks.len();
        let call = Collective::AllReduce(Reduce::Max);
        let largest = self.parallel.communicator().run_on_host(call, DType::U64, vec![self.code(mine)], line)?;
        match largest.first().map_or(0, |&code| code as usize) {
            0 => Ok(Event::Done),
            code if code <= n => Ok(Event::Reduce(code - 1)),
            code if code <= 2 * n => Ok(Event::Gather(code - 1 - n)),
            code => {
                let m = format!("another rank has more than {n} blocks: {code}");
                Err(Error::new(ErrorKind::Peer, "sharded_optimizer", m))
            }
        }
    }

    /// Gathers a block, and keeps it if this rank asked for it.
    fn gather_one(&self, i: usize, mine: bool, round: &mut Round) -> Result<()> {
        let (block, comm) = (&self.blocks[i], self.parallel.communicator());
        let ahead = round.ahead.take().map(|(j, handle)| Ok((j, handle.wait()?))).transpose()?;
        let whole = match ahead {
            Some((j, whole)) if j == i => whole,
            other => {
                drop(other);
                comm.run(Collective::AllGather, block.part.values(), round.line)?
            }
        };
        if !mine {
            return Ok(());
        }
        let pieces = block.cut(&whole).map(|piece| piece?.1.copy()).collect::<Result<Vec<_>>>()?;
        drop(whole);
        let fill = |((_, parameter), piece): (&Named, Tensor)| {
            let storage = parameter.values().storage();
            storage.fill(piece)?;
            Ok(storage.version())
        };
        match block.parameters.iter().zip(pieces).map(fill).collect::<Result<Vec<_>>>() {
            Ok(versions) => round.there[i] = Some(versions),
            Err(e) => {
                // A block is there as a whole, or not at all.
                block.parameters.iter().try_for_each(|(_, p)| p.values().storage().give_back())?;
                return Err(e);
            }
        }
        self.gather_ahead(i, round)
    }

    /// After block `i`, begins to gather the next one, if all ranks come to the same events, and did so in the last shard.
    fn gather_ahead(&self, i: usize, round: &mut Round) -> Result<()> {
        // A replay gathers nothing in the background.
        if round.events.is_none() || ops::is_captured() {
            return Ok(());
        }
        round.gathered.push(i);
        let (so_far, rest) = round.last.split_at(round.gathered.len().min(round.last.len()));
        if so_far == round.gathered
            && let Some(&next) = rest.first()
            && round.there[next].is_none()
        {
            let part = self.blocks[next].part.values();
            let handle = self.parallel.communicator().start(Collective::AllGather, part, round.line)?;
            round.ahead = Some((next, handle));
        }
        Ok(())
    }

    /// Begins to sum the gradients of a block over the ranks, when the sum before it is there. A rank without rows has zeros.
    fn reduce(&self, i: usize, mine: Event, round: &mut Round) -> Result<()> {
        self.finish_sum(round)?;
        let (block, sum) = (&self.blocks[i], &mut round.gradients[i]);
        if sum.is_sent || !(mine == Event::Reduce(i) || mine == Event::Done) {
            return Err(disagree(&format!("the gradients of {}", block.name)));
        }
        let vector = match sum.own.iter().all(Option::is_none) {
            true => self.zeros(block, block.padded)?,
            false => self.vector(block, &mut sum.own)?,
        };
        sum.is_sent = true;
        let call = Collective::ReduceScatter(Reduce::Sum);
        round.summing = Some((i, self.parallel.communicator().start(call, &vector, round.line)?));
        Ok(())
    }

    /// Waits for the sum that is on its way.
    fn finish_sum(&self, round: &mut Round) -> Result<()> {
        if let Some((i, handle)) = round.summing.take() {
            round.gradients[i].part = Some(handle.wait()?);
        }
        Ok(())
    }
}

/// Gives all blocks back before a replay: since the trace, they may have been gathered, and written.
#[derive(Debug)]
struct GiveBack(Weak<FullShard>);

impl HostCall for GiveBack {
    fn name(&self) -> &str {
        "give_back"
    }

    fn is_same(&self, other: &dyn HostCall) -> bool {
        let other: Option<&GiveBack> = (other as &dyn Any).downcast_ref();
        other.is_some_and(|other| self.0.ptr_eq(&other.0))
    }

    fn is_seen(&self) -> bool {
        false
    }

    // Here rather than in the call, in which a replay has locked the parts.
    fn check(&self) -> Result<()> {
        self.0.upgrade().map_or(Ok(()), |full| full.give_back())
    }

    fn call(&self, _: &dyn Backend, _: &mut [Binding<'_>]) -> Result<()> {
        Ok(())
    }
}

/// The error of ranks whose passes are not alike.
fn disagree(what: &str) -> Error {
    let m = format!("ranks compute {what} in another order than other ranks");
    let e = Error::new(ErrorKind::Autograd, "sharded_optimizer", m);
    e.help("the loss of each shard uses the same layers in the same order, whatever is in it")
}
