//! [`Pipeline`]: a model whose layers are divided among the ranks, with the schedule 1F1B.

use std::collections::VecDeque;
use std::ops::Range;
use std::panic::Location;
use std::sync::Arc;

use gradus_nn::{
    Forward, Module, Parameter, clip_to_norm, clip_to_norm_on_device, grad_norm_across, grad_norm_on_device,
};
use gradus_tensor::{
    BackwardOptions, DType, Device, Error, ErrorKind, Gradients, Here, Result, Tensor, all_or_nothing, grad, no_grad,
};

use crate::call::Collective;
use crate::communicator::Communicator;
use crate::data_parallel::{DataParallel, Extras, Shard, Sums, head, trained};
use crate::division::gathered;
use crate::fact::fact;
use crate::group::Line;
use crate::handle::Handle;
use crate::link::{Link, MicroBatch, Parcel};
use crate::reduce::Reduce;
use crate::stage::together;
use crate::tie::Tie;
use crate::vectors::{Flats, Named, Tree};

/// Trains a model whose consecutive modules are divided among ranks: rank `r` is stage `r`, and holds only the parameters
/// of its [`Stage`](crate::Stage).
///
/// A batch is cut into micro-batches, whose activations go from stage to stage, and the gradients of these back. The schedule
/// is 1F1B (Narayanan et al., "Memory-Efficient Pipeline-Parallel DNN Training", 2021): a stage computes some micro-batches
/// ahead, then one backward for each forward pass. Stage `r` of `n` holds the activations of at most `n - r` micro-batches,
/// however many there are. With `m` micro-batches of the same duration, a stage waits for `(n - 1) / (m + n - 1)` of a step.
///
/// Micro-batches are the virtual shards of [`DataParallel`]: gradients are added in its tree, a layer sees one micro-batch at
/// a time, running statistics become the mean of those of all, and dropout depends on the number of the micro-batch. So on
/// the CPU the weights have the same bits on any number of stages: those of `DataParallel` with as many shards.
///
/// ```
/// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
/// use gradus_dist::{Options, Pipeline, Stage, threads};
/// use gradus_nn::{Forward, Init, Linear, Module, Optimizer, Sgd, SgdConfig};
///
/// let train = |stages| {
///     threads(stages, Options::default(), |comm| {
///         let device = Device::from_backend(Arc::new(CpuBackend::new()?));
///         let x = Tensor::randn([64, 3], DType::F32, &device, &mut Generator::new(7))?;
///         let y = x.sum(&[1], true)?;
///         let stage = Stage::even(comm, 4, |i| {
///             let mut generator = Generator::new(8).fork(i as u64);
///             Linear::new(3, if i == 3 { 1 } else { 3 }, &mut Init::new(DType::F32, &device, &mut generator))
///         })?;
///         let pipeline = Pipeline::new(comm, 8, &device)?;
///         let mut optimizer = Sgd::new(stage.named_parameters(), SgdConfig::default())?;
///         let mut last = Tensor::scalar(0.0f32, &device)?;
///         for _ in 0..5 {
///             let input = |rows: std::ops::Range<usize>| x.narrow(0, rows.start, rows.len());
///             let (loss, gradients) = pipeline.backward(&stage, 64, input, |output, rows| {
///                 output.mse_loss(&y.narrow(0, rows.start, rows.len())?, Reduction::Mean)
///             })?;
///             optimizer.step(&gradients)?;
///             last = loss;
///         }
///         last.item()
///     })
/// };
/// assert_eq!(train(1)?[0], train(4)?[2]);
/// # Ok::<(), Error>(())
/// ```
///
/// In a [captured step](https://docs.rs/gradus-graph) the schedule is part of the graph. Replays send and receive in its order,
/// and hold the activations of as many micro-batches, beside copies of what is on its way to a neighbour. What goes between
/// stages has the same shapes, dtypes and rows in each replay: give the step of each rank the batch, or its input, so that
/// batches of other sizes are traced again on all ranks.
///
/// Waits for other stages have the deadline of the communicator. It must be longer than a micro-batch takes from the first
/// stage to the last and back, and longer than the slowest stage takes for as many micro-batches as there are stages.
#[derive(Debug, Clone)]
pub struct Pipeline {
    comm: Arc<dyn Communicator>,
    parallel: DataParallel,
    device: Device,
    before: Option<Neighbour>,
    after: Option<Neighbour>,
    ties: Vec<Tie>,
}

/// The traffic with a neighbour: activations and their gradients.
#[derive(Debug, Clone)]
struct Neighbour {
    activations: Link,
    gradients: Link,
}

impl Pipeline {
    /// A pipeline of all ranks, in which a batch is cut into `micro_batches`. Activations are received on `device`, which is
    /// that of this rank's parameters.
    ///
    /// All ranks call it.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for 0 micro-batches; [`ErrorKind::Peer`] if ranks have different numbers of them.
    #[track_caller]
    pub fn new(comm: &Arc<dyn Communicator>, micro_batches: usize, device: &Device) -> Result<Pipeline> {
        let line = Location::caller();
        let alone = comm.split_by(comm.rank() as u32, 0, line)?;
        Pipeline::with(comm, DataParallel::alone(alone, micro_batches), device, line)
    }

    /// One of several pipelines that share a batch: `comm` connects its stages, and the communicator of `data` the ranks that
    /// are the same stage of all pipelines, as those of a mesh do. The micro-batches are the shards of this rank in
    /// `data`. Weights have the same bits on any number of pipelines, too.
    ///
    /// All ranks call it.
    ///
    /// # Errors
    /// [`ErrorKind::Peer`] if ranks of a pipeline have different shards.
    #[track_caller]
    pub fn with_data(comm: &Arc<dyn Communicator>, data: &DataParallel, device: &Device) -> Result<Pipeline> {
        Pipeline::with(comm, data.clone(), device, Location::caller())
    }

    #[track_caller]
    fn with(comm: &Arc<dyn Communicator>, parallel: DataParallel, device: &Device, line: Line) -> Result<Pipeline> {
        let (rank, stages) = (comm.rank(), comm.size());
        let (shards, mine) = (parallel.all_shards() as u64, parallel.shards());
        if !comm.agrees(&[shards, mine.start as u64], line)? {
            let e = Error::new(ErrorKind::Peer, "pipeline", "the stages of a pipeline have different micro-batches");
            let e = e.note(format!("rank {rank}: micro-batches {mine:?} of {shards}")).at(line);
            return Err(
                e.help("give all ranks the same number, and ranks of one pipeline the same place among the others")
            );
        }
        if shards == 0 {
            return Err(Error::argument("pipeline", "0 micro-batches; there is at least one").at(line));
        }
        // A send may wait until its receiver comes. Each link has a communicator of its own, so that it holds up no other
        // traffic: two for activations, and two for gradients, of which neighbouring links take one each.
        let mut comms = vec![];
        for _ in 0..if stages > 1 { 4 } else { 0 } {
            comms.push(comm.split_by(0, rank as i64, line)?);
        }
        let link = |comm: usize, peer: usize| Some(Link { comm: comms.get(comm)?.clone(), peer });
        let neighbour = |peer: usize| {
            let parity = peer.min(rank) % 2;
            Some(Neighbour { activations: link(parity, peer)?, gradients: link(2 + parity, peer)? })
        };
        let before = rank.checked_sub(1).and_then(neighbour);
        let after = if rank + 1 < stages { neighbour(rank + 1) } else { None };
        Ok(Pipeline { comm: comm.clone(), parallel, device: device.clone(), before, after, ties: vec![] })
    }

    /// The communicator of the stages.
    pub fn communicator(&self) -> &Arc<dyn Communicator> {
        &self.comm
    }

    /// The numbers of the micro-batches of this pipeline.
    pub fn micro_batches(&self) -> Range<usize> {
        self.parallel.shards()
    }

    /// Ties two parameters, of one stage or of two: the second gets the values of the first, and in
    /// [`backward`](Pipeline::backward) the gradient of each becomes the sum of both. So the same optimiser keeps them equal.
    /// GPT-2 has the table of tokens as the weight of its head; here the two are parameters of two modules.
    ///
    /// All ranks call it, with the same names. A parameter is tied at most once, and again on a new pipeline after a change of
    /// dtype or device, which makes new parameters.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if no stage has a parameter of a name, if several have one, or if it is tied already;
    /// [`ErrorKind::Peer`] if shape or dtype differ. After any of them no further call is possible, on any rank.
    #[track_caller]
    pub fn tie(&mut self, stage: &(impl Module + ?Sized), names: [&str; 2]) -> Result<()> {
        let line = Location::caller();
        let tie =
            together(&*self.comm, || Tie::new(&*self.comm, stage, names, &self.ties, line)).map_err(|e| e.at(line))?;
        self.ties.push(tie);
        Ok(())
    }

    /// The mean loss of a batch of `batch` rows, on all ranks, and the gradients of the parameters of this rank's stage.
    ///
    /// `input` gives the input of the first stage for some rows, and is called there only. `loss` computes their mean loss
    /// from the output of the last stage, and is called there only. Between stages goes one tensor of any shape and dtype,
    /// which may be another for each micro-batch. A parameter that no loss depends on has no gradient. Gradients cannot be
    /// differentiated again.
    ///
    /// All ranks call it, with the same number of rows.
    ///
    /// # Errors
    /// Those of `stage`, `input` and `loss` on the rank where they fail. Then the other ranks get [`ErrorKind::Peer`] at once,
    /// with the reason, and no further call is possible. An error leaves buffers and random states as they were.
    /// [`ErrorKind::Peer`] if ranks give different numbers of rows; [`ErrorKind::InvalidArgument`] if a tied parameter is no
    /// longer one of the stage.
    #[track_caller]
    pub fn backward(
        &self,
        stage: &(impl Forward + ?Sized),
        batch: usize,
        mut input: impl FnMut(Range<usize>) -> Result<Tensor>,
        mut loss: impl FnMut(&Tensor, Range<usize>) -> Result<Tensor>,
    ) -> Result<(Tensor, Gradients)> {
        let line = Location::caller();
        let step = || {
            if batch == 0 {
                return Err(Error::argument("pipeline", "a batch of 0 rows has no gradient"));
            }
            let parameters = stage.parameters();
            self.ties.iter().try_for_each(|tie| tie.check(&parameters))?;
            let step = Step {
                pipeline: self,
                stage,
                parameters: trained(stage),
                extras: Extras::of(stage)?,
                batch,
                alive: VecDeque::new(),
                sent: vec![],
                line,
            };
            let sums = step.run(&mut input, &mut loss)?;
            let (value, mut gradients) = self.parallel.of_all_ranks(sums, line)?;
            self.ties.iter().try_for_each(|tie| tie.sum(&mut gradients, line))?;
            let last = Collective::Broadcast(self.comm.size() - 1);
            Ok((self.comm.run(last, &value, line)?, gradients))
        };
        together(&*self.comm, || all_or_nothing(step)).here()
    }

    /// The outputs of the last stage for the rows of this pipeline of a batch of `batch` rows, joined along axis 0; `None` on
    /// the other stages, and on all stages of a pipeline without rows. Micro-batches go through one after the other, and
    /// nothing is recorded. Layers in training mode change their state with each micro-batch.
    ///
    /// All ranks call it, with the same number of rows.
    ///
    /// # Errors
    /// Those of `stage` and `input`, as in [`backward`](Pipeline::backward).
    #[track_caller]
    pub fn forward(
        &self,
        stage: &(impl Forward + ?Sized),
        batch: usize,
        mut input: impl FnMut(Range<usize>) -> Result<Tensor>,
    ) -> Result<Option<Tensor>> {
        let line = Location::caller();
        // The same on all stages.
        if self.parallel.shards().all(|shard| self.parallel.rows(batch, shard).is_empty()) {
            return Ok(None);
        }
        let pass = || {
            let (mut outputs, mut sent) = (vec![], VecDeque::new());
            for micro in self.parallel.shards().map(|shard| self.micro_batch(batch, shard)) {
                if micro.rows.is_empty() {
                    continue;
                }
                let (Parcel::Tracked(x) | Parcel::Constant(x)) = self.input(&micro, &mut input, line)? else {
                    return Err(Error::new(ErrorKind::Peer, "pipeline", "an activation is missing"));
                };
                let y = stage.forward(&x).map_err(|e| self.about(e, "forward", &micro))?;
                let Some(after) = &self.after else {
                    outputs.push(y);
                    continue;
                };
                let parcel = Parcel::Constant(unwritten(&x, &y)?);
                sent.extend(after.activations.send(&micro, &parcel, &self.device, line)?.into_iter().flatten());
                // No more than two activations wait for the next stage.
                while sent.len() > 4
                    && let Some(handle) = sent.pop_front()
                {
                    handle.wait().map(drop)?;
                }
            }
            sent.into_iter().try_for_each(|handle: Handle| handle.wait().map(drop))?;
            if self.after.is_some() {
                return Ok(None);
            }
            Tensor::cat(&outputs.iter().collect::<Vec<_>>(), 0).map(Some)
        };
        together(&*self.comm, || all_or_nothing(|| no_grad(pass))).here()
    }

    /// Scales the gradients of this rank's `parameters` so that the norm over all stages is at most `max_norm`, as
    /// [`clip_grad_norm`](gradus_nn::clip_grad_norm) does, and with its bits. Returns the norm before that, the same on all
    /// ranks. Of tied parameters one counts, and of divided layers the parts of all ranks.
    ///
    /// All ranks call it, those among which layers are divided too.
    ///
    /// # Errors
    /// If the norm is not finite or `max_norm` is not above 0: then on all ranks, and no gradient is changed. Other errors end
    /// all communication.
    #[track_caller]
    pub fn clip_grad_norm(&self, gradients: &mut Gradients, parameters: &[Parameter], max_norm: f64) -> Result<f64> {
        let line = Location::caller();
        let gather = |numbers: Vec<f64>| gathered(&*self.comm, &numbers, line);
        let counted = self.counted(parameters);
        let norm = together(&*self.comm, || grad_norm_across(gradients, &counted, gather)).here()?;
        clip_to_norm(gradients, parameters, norm, max_norm).map(|()| norm)
    }

    /// [`clip_grad_norm`](Pipeline::clip_grad_norm) for captured steps: the norm stays on the device, and is returned as an f64
    /// tensor of shape `[]`, on the CPU with the same bits. If it is not finite, the gradients stay as they are, and there is no
    /// error: a step in the same captured step gives them to the parameters.
    ///
    /// All ranks call it.
    ///
    /// # Errors
    /// If `max_norm` is not above 0, on all ranks. Others end all communication: if the device does not support f64, or if layers
    /// are divided.
    #[track_caller]
    pub fn clip_grad_norm_on_device(
        &self,
        gradients: &mut Gradients,
        parameters: &[Parameter],
        max_norm: f64,
    ) -> Result<Tensor> {
        let line = Location::caller();
        let counted = self.counted(parameters);
        let norm = || {
            let most = Tensor::from_vec(vec![counted.len() as i64], [1], &self.device)?;
            self.comm.run_in_place(Collective::AllReduce(Reduce::Max), &most, line)?;
            let most = fact::<i64>(&most, "the numbers of parameters of the stages", line)?;
            let most = most.first().map_or(counted.len(), |&most| most as usize);
            // One number more, so that there is one. Zeros do not change a norm.
            let gather = |scalars: &[Tensor]| {
                let mut numbers =
                    scalars.iter().map(|x| x.to_dtype(DType::F64)?.reshape([1])).collect::<Result<Vec<_>>>()?;
                numbers.push(Tensor::zeros([1 + most - numbers.len()], DType::F64, &self.device)?);
                let mine = Tensor::cat(&numbers.iter().collect::<Vec<_>>(), 0)?;
                self.comm.run(Collective::AllGather, &mine, line)
            };
            grad_norm_on_device(gradients, &counted, gather)
        };
        let norm = together(&*self.comm, norm).here()?;
        clip_to_norm_on_device(gradients, parameters, &norm, max_norm).map(|()| norm)
    }

    /// The parameters whose gradients count in the norm.
    fn counted(&self, parameters: &[Parameter]) -> Vec<Parameter> {
        let is_second = |p: &Parameter| self.ties.iter().any(|tie| tie.second.as_ref().is_some_and(|q| q.is_same(p)));
        parameters.iter().filter(|p| !is_second(p)).cloned().collect()
    }

    fn micro_batch(&self, batch: usize, shard: usize) -> MicroBatch {
        MicroBatch { number: shard, rows: self.parallel.rows(batch, shard) }
    }

    /// What this stage computes a micro-batch from.
    fn input(
        &self,
        micro: &MicroBatch,
        input: &mut dyn FnMut(Range<usize>) -> Result<Tensor>,
        line: Line,
    ) -> Result<Parcel> {
        match &self.before {
            None => input(micro.rows.clone()).map(Parcel::Constant).map_err(|e| self.about(e, "input", micro)),
            Some(before) => before.activations.receive(micro, &self.device, line),
        }
    }

    fn about(&self, e: Error, pass: &str, micro: &MicroBatch) -> Error {
        e.note(format!("in the {pass} pass of {micro}, stage {} of {}", self.comm.rank(), self.comm.size()))
    }
}

/// The output `y` of a stage as a tensor that nobody writes before it is sent. The caller may write the input `x`, whose
/// memory a stage of views shares, for the next micro-batch.
fn unwritten(x: &Tensor, y: &Tensor) -> Result<Tensor> {
    let y = y.detach();
    if Arc::ptr_eq(x.storage(), y.storage()) { y.copy() } else { Ok(y) }
}

/// A micro-batch between its forward and its backward pass.
struct Alive {
    micro: MicroBatch,
    /// Nothing if the micro-batch has no rows.
    pass: Option<Pass>,
    statistics: Flats,
}

struct Pass {
    /// The input, if the stage before waits for its gradient.
    input: Option<Tensor>,
    /// The output of the stage, or the loss times the share of the micro-batch in the batch.
    output: Tensor,
}

/// One call of [`Pipeline::backward`].
struct Step<'a, S: ?Sized> {
    pipeline: &'a Pipeline,
    stage: &'a S,
    parameters: Vec<Named>,
    extras: Extras,
    batch: usize,
    alive: VecDeque<Alive>,
    sent: Vec<Handle>,
    line: Line,
}

impl<S: Forward + ?Sized> Step<'_, S> {
    /// Computes all micro-batches.
    ///
    /// It never ends in a circle of ranks that wait for each other. A rank waits only to receive: for the activation of a
    /// micro-batch, whose forward pass the stage before makes earlier in its own order, or for the gradient of one, whose
    /// backward pass the stage after does. What is sent waits for its receiver on another thread, and nobody writes it.
    fn run(
        mut self,
        input: &mut dyn FnMut(Range<usize>) -> Result<Tensor>,
        loss: &mut dyn FnMut(&Tensor, Range<usize>) -> Result<Tensor>,
    ) -> Result<Sums> {
        let pipeline = self.pipeline;
        let shards = pipeline.parallel.shards();
        let ahead = (pipeline.comm.size() - 1 - pipeline.comm.rank()).min(shards.len());
        let (mut tree, mut heads) = (Tree::default(), 0);
        for i in 0..shards.len() + ahead {
            if i < shards.len() {
                self.forward(pipeline.micro_batch(self.batch, shards.start + i), input, loss)?;
            }
            if let Some(alive) = if i < ahead { None } else { self.alive.pop_front() } {
                let (head, gradients) = self.backward(alive)?;
                heads = head.len();
                tree.push([head, gradients].concat())?;
            }
        }
        self.sent.into_iter().try_for_each(|handle| handle.wait().map(drop))?;
        let mut heads_and_gradients = tree.all()?;
        let gradients = heads_and_gradients.split_off(heads);
        Ok(Sums { parameters: self.parameters, extras: self.extras, heads: heads_and_gradients, gradients })
    }

    fn send(&mut self, link: &Link, micro: &MicroBatch, parcel: &Parcel) -> Result<()> {
        self.sent.extend(link.send(micro, parcel, &self.pipeline.device, self.line)?.into_iter().flatten());
        Ok(())
    }

    fn share(&self, micro: &MicroBatch) -> f64 {
        micro.rows.len() as f64 / self.batch as f64
    }

    fn forward(
        &mut self,
        micro: MicroBatch,
        input: &mut dyn FnMut(Range<usize>) -> Result<Tensor>,
        loss: &mut dyn FnMut(&Tensor, Range<usize>) -> Result<Tensor>,
    ) -> Result<()> {
        let (pipeline, share) = (self.pipeline, self.share(&micro));
        if micro.rows.is_empty() {
            self.alive.push_back(Alive { micro, pass: None, statistics: self.extras.weighted(share)? });
            return Ok(());
        }
        self.extras.begin(micro.number as u64)?;
        let (x, tracked) = match pipeline.input(&micro, input, self.line)? {
            Parcel::Constant(x) => (x, None),
            Parcel::Tracked(x) => x.with_grad().map(|x| (x.clone(), Some(x)))?,
            Parcel::Nothing => return Err(Error::new(ErrorKind::Peer, "pipeline", "an activation is missing")),
        };
        let y = self.stage.forward(&x).map_err(|e| pipeline.about(e, "forward", &micro))?;
        let statistics = self.extras.weighted(share)?;
        let output = match &pipeline.after {
            None => loss(&y, micro.rows.clone())
                .and_then(|loss| loss.mul(share))
                .map_err(|e| pipeline.about(e, "forward", &micro))?,
            Some(after) => {
                let sent = unwritten(&x, &y)?;
                let parcel = if y.requires_grad() { Parcel::Tracked(sent) } else { Parcel::Constant(sent) };
                self.send(&after.activations, &micro, &parcel)?;
                y
            }
        };
        self.alive.push_back(Alive { micro, pass: Some(Pass { input: tracked, output }), statistics });
        Ok(())
    }

    /// The backward pass of a micro-batch: its head and its gradients.
    fn backward(&mut self, alive: Alive) -> Result<(Flats, Flats)> {
        let Alive { micro, pass, statistics } = alive;
        let mut gradients = Gradients::default();
        let mut loss = None;
        if let Some(Pass { input, output }) = pass {
            let mut leaves: Vec<&Tensor> = self.parameters.iter().map(|(_, p)| p.tensor()).collect();
            leaves.extend(&input);
            let found = match &self.pipeline.after {
                None => {
                    loss = Some(output.detach());
                    grad(&[&output], &leaves, None, BackwardOptions::new())
                }
                Some(after) if output.requires_grad() => {
                    match after.gradients.receive(&micro, &self.pipeline.device, self.line)? {
                        Parcel::Tracked(seed) => grad(&[&output], &leaves, Some(&[&seed]), BackwardOptions::new()),
                        _ => Ok(vec![None; leaves.len()]),
                    }
                }
                Some(_) => Ok(vec![None; leaves.len()]),
            };
            let mut found = found.map_err(|e| self.pipeline.about(e, "backward", &micro))?;
            // The graph has been freed; these were the last of its tensors.
            let of_input = input.and_then(|_| found.pop());
            drop(output);
            if let (Some(before), Some(gradient)) = (&self.pipeline.before, of_input) {
                let parcel = gradient.map_or(Parcel::Nothing, Parcel::Tracked);
                self.send(&before.gradients, &micro, &parcel)?;
            }
            for ((_, parameter), gradient) in self.parameters.iter().zip(found) {
                if let Some(gradient) = gradient {
                    gradients.insert(parameter.tensor(), gradient)?;
                }
            }
        }
        let Shard { loss, there, vectors } = Shard::with(&self.parameters, loss, &gradients)?;
        let batches = self.pipeline.parallel.batches(self.batch, micro.number == self.pipeline.parallel.shards().start);
        Ok((head(&self.pipeline.device, &there, batches, loss, statistics)?, vectors))
    }
}
