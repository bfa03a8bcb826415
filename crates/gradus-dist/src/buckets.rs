//! [`Buckets`]: gradients that are summed over the ranks while the backward pass goes on.
//!
//! The parameters are cut into buckets, those of the last layers first. As soon as the last shard of this rank has given
//! all gradients of a bucket, and those before it were sent, it is sent. So every rank sends the buckets in the same
//! order. What a pass did not reach is sent after it.
//!
//! A pass may be captured. In its trace, a [`Given`] follows the gradients of each bucket: a replay hands them over
//! there, to the buckets of the batch that it is a part of.

use std::any::Any;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use gradus_tensor::autograd::take_gradients;
use gradus_tensor::backend::{Backend, BackendKind, Binding};
use gradus_tensor::ops::{self, HostCall};
use gradus_tensor::{Bound, DType, Error, ErrorKind, Gradients, Result, Tensor, no_grad};

use crate::call::Collective;
use crate::communicator::Communicator;
use crate::group::Line;
use crate::handle::Handle;
use crate::vectors::{Named, Tree, joined, pad};

/// Parameters of one dtype, whose gradients are summed as one vector.
#[derive(Default)]
struct Bucket {
    /// The numbers of the parameters.
    parameters: Vec<usize>,
    /// The gradients of the current shard, until they are added.
    gradients: Vec<Option<Tensor>>,
    /// Whether the current shard has been added to the sums.
    added: bool,
    /// The sums over this rank's shards.
    sums: Tree,
}

impl Bucket {
    fn is_complete(&self) -> bool {
        self.gradients.iter().all(Option::is_some)
    }
}

struct State {
    buckets: Vec<Bucket>,
    /// Whether the current shard has given a gradient of each parameter.
    there: Vec<bool>,
    /// The buckets that were sent: the first ones.
    sent: Vec<Handle>,
    /// Their sums over all ranks.
    whole: Vec<Tensor>,
}

/// The buckets of the batch that is computed now, for the replays of its passes.
pub(crate) type Open = Arc<Mutex<Weak<Buckets>>>;

/// How the gradients of a batch are summed.
pub(crate) struct Sending {
    /// Makes no other calls meanwhile, if the sums overlap.
    pub(crate) comm: Arc<dyn Communicator>,
    pub(crate) line: Line,
    /// The sum over ranks: an `AllReduce`, or a `ReduceScatter`, which gives each rank a part.
    pub(crate) collective: Collective,
    /// The length of each vector is a multiple of it.
    pub(crate) multiple: usize,
    /// Whether the sums over ranks run while the backward pass goes on. They come after it on a single rank, and in a
    /// captured step, since a replay makes only sends in the background.
    pub(crate) overlaps: bool,
    /// The number of this rank's shards.
    pub(crate) shards: usize,
    pub(crate) open: Open,
}

/// The sums of the gradients of one batch.
pub(crate) struct Buckets {
    how: Sending,
    parameters: Vec<Named>,
    /// The bucket of each parameter, and its place there.
    places: Vec<(usize, usize)>,
    state: Mutex<State>,
}

/// The parameters of each bucket: of one dtype, and of at most `bytes` bytes unless it is a single one.
pub(crate) fn cut(parameters: &[Named], bytes: usize) -> Vec<Vec<usize>> {
    let mut closed = vec![];
    let mut open: Vec<(DType, usize, Vec<usize>)> = vec![];
    for (i, (_, parameter)) in parameters.iter().enumerate().rev() {
        let (dtype, size) = (parameter.dtype(), parameter.numel() * parameter.dtype().compute().size());
        match open.iter_mut().find(|(other, _, _)| *other == dtype) {
            None => open.push((dtype, size, vec![i])),
            Some((_, held, own)) if *held + size <= bytes => {
                *held += size;
                own.push(i);
            }
            Some((_, held, own)) => {
                *held = size;
                closed.push(std::mem::replace(own, vec![i]));
            }
        }
    }
    closed.extend(open.into_iter().map(|(_, _, own)| own));
    closed
}

impl Buckets {
    /// Of the numbers of the parameters of each bucket.
    pub(crate) fn new(parameters: Vec<Named>, cut: Vec<Vec<usize>>, how: Sending) -> Arc<Buckets> {
        let mut places = vec![(0, 0); parameters.len()];
        let bucket = |(b, own): (usize, Vec<usize>)| {
            own.iter().enumerate().for_each(|(j, &i)| places[i] = (b, j));
            Bucket { gradients: vec![None; own.len()], parameters: own, ..Bucket::default() }
        };
        let buckets = cut.into_iter().enumerate().map(bucket).collect();
        let state = Mutex::new(State { buckets, there: vec![], sent: vec![], whole: vec![] });
        let this = Arc::new(Buckets { how, parameters, places, state });
        *lock(&this.how.open) = Arc::downgrade(&this);
        this
    }

    /// The gradients of a loss. If the sums overlap, those of buckets that are complete are taken at once, and not
    /// returned.
    pub(crate) fn backward(self: &Arc<Self>, loss: &Tensor) -> Result<Gradients> {
        // On other devices, a replay is one piece, which calls of the host would cut.
        let is_on_host = || loss.device().info().kind == BackendKind::Cpu;
        if !self.how.overlaps || (ops::is_captured() && !is_on_host()) {
            return loss.backward();
        }
        let leaves: Vec<&Tensor> = self.parameters.iter().map(|(_, parameter)| parameter.tensor()).collect();
        let this = self.clone();
        let take = move |i: usize, gradient: &Tensor| this.take(i, gradient);
        let mut gradients = take_gradients(&leaves, Rc::new(take), || loss.backward())??;
        for bucket in lock(&self.state).buckets.iter_mut().filter(|bucket| !bucket.is_complete()) {
            for (&i, gradient) in bucket.parameters.iter().zip(&mut bucket.gradients) {
                if let Some(gradient) = gradient.take() {
                    gradients.insert(self.parameters[i].1.tensor(), gradient)?;
                }
            }
        }
        Ok(gradients)
    }

    /// Runs the pass of a shard, if it has rows. Returns its loss, and whether each parameter has a gradient.
    pub(crate) fn shard(
        &self,
        pass: Option<impl FnOnce() -> Result<(Tensor, Gradients)>>,
    ) -> Result<(Option<Tensor>, Vec<bool>)> {
        let mut state = lock(&self.state);
        state.there = vec![false; self.parameters.len()];
        state.buckets.iter_mut().for_each(|bucket| bucket.added = false);
        drop(state);
        let (loss, left) = match pass {
            Some(pass) => pass().map(|(loss, left)| (Some(loss), left))?,
            None => (None, Gradients::default()),
        };
        let mut state = lock(&self.state);
        let State { buckets, there, .. } = &mut *state;
        for bucket in buckets.iter_mut().filter(|bucket| !bucket.added) {
            for (&i, gradient) in bucket.parameters.iter().zip(&mut bucket.gradients) {
                let left = || left.get(self.parameters[i].1.tensor()).map(Tensor::detach);
                *gradient = gradient.take().or_else(left);
            }
            no_grad(|| self.add(bucket, there))?;
        }
        self.send(&mut state)?;
        Ok((loss, std::mem::take(&mut state.there)))
    }

    /// Takes the gradient of a parameter. The last one of a bucket completes it: the bucket is added to those of earlier
    /// shards, and sent after the last shard.
    fn take(&self, i: usize, gradient: &Tensor) -> Result<()> {
        let (b, j) = self.places[i];
        let mut state = lock(&self.state);
        let State { buckets, there, .. } = &mut *state;
        let bucket = &mut buckets[b];
        if bucket.added || bucket.gradients[j].is_some() {
            let m = format!("the gradient of {} comes twice", self.parameters[i].0);
            return Err(Error::new(ErrorKind::Autograd, "data_parallel", m));
        }
        bucket.gradients[j] = Some(gradient.clone());
        if !bucket.is_complete() {
            return Ok(());
        }
        if !ops::is_captured() {
            self.add(bucket, there)?;
            return self.send(&mut state);
        }
        // They stay in the bucket until the trace has ended: what is done with them is no part of it.
        let dtype = gradient.dtype().compute();
        let pieces = bucket.gradients.iter().flatten().map(|gradient| gradient.to_dtype(dtype));
        let pieces = pieces.collect::<Result<Vec<_>>>()?;
        drop(state);
        let given = Given { open: self.how.open.clone(), bucket: b, dtype };
        let bindings: Vec<Bound<'_>> = pieces.iter().filter(|piece| piece.numel() > 0).map(Bound::Read).collect();
        gradient.device().dispatch_host(Arc::new(given), &bindings, self.how.line)
    }

    /// Takes the gradients of a bucket from a replay.
    fn take_given(&self, b: usize, dtype: DType, mut bytes: Vec<u8>) -> Result<()> {
        let mut state = lock(&self.state);
        let State { buckets, there, .. } = &mut *state;
        let other = || Error::argument("data_parallel", "a replay gives gradients of another model");
        let bucket = buckets.get_mut(b).ok_or_else(other)?;
        if bucket.is_complete() {
            // This is the trace, not a replay.
            return Ok(());
        }
        let elements: usize = bucket.parameters.iter().map(|&i| self.parameters[i].1.numel()).sum();
        if bucket.added || bytes.len() != elements * dtype.size() {
            return Err(other());
        }
        let padded = elements.next_multiple_of(self.how.multiple);
        bytes.resize(padded * dtype.size(), 0);
        let first = bucket.parameters.first().ok_or_else(other)?;
        let vector = Tensor::from_bytes(&bytes, [padded], dtype, self.parameters[*first].1.device())?;
        bucket.parameters.iter().for_each(|&i| there[i] = true);
        bucket.added = true;
        bucket.sums.push(vec![(dtype, vector)])?;
        self.send(&mut state)
    }

    /// Adds the gradients of a bucket, with zeros where there is none, to the sums over this rank's shards.
    fn add(&self, bucket: &mut Bucket, there: &mut [bool]) -> Result<()> {
        let Bucket { parameters, gradients, added, sums } = bucket;
        let mut pieces = vec![];
        for (&i, gradient) in parameters.iter().zip(gradients) {
            let parameter = &self.parameters[i].1;
            let (dtype, n) = (parameter.dtype().compute(), parameter.numel());
            there[i] = gradient.is_some();
            let piece = match gradient.take() {
                Some(gradient) => gradient.to_dtype(dtype)?.reshape([n])?,
                None => Tensor::zeros([n], dtype, parameter.device())?,
            };
            pieces.push((dtype, piece));
        }
        pad(&mut pieces, self.how.multiple)?;
        *added = true;
        sums.push(joined(&pieces)?)
    }

    /// Sends the buckets of which all shards were added, up to the first of which one is missing.
    fn send(&self, State { buckets, sent, .. }: &mut State) -> Result<()> {
        let Sending { ref comm, line, collective, overlaps, shards, .. } = self.how;
        while overlaps && let Some(sums) = buckets.get_mut(sent.len()).and_then(|bucket| bucket.sums.take(shards)) {
            for (_, sum) in sums {
                sent.push(comm.start(collective, &sum, line)?);
            }
        }
        Ok(())
    }

    /// Returns when the sums over all ranks are there.
    pub(crate) fn finish(&self) -> Result<()> {
        let Sending { ref comm, line, collective, shards, .. } = self.how;
        let mut state = lock(&self.state);
        let State { buckets, sent, whole, .. } = &mut *state;
        // All of them end, even if one fails.
        let sent = sent.drain(..).map(Handle::wait).collect::<Vec<_>>();
        for sum in sent {
            whole.push(sum?);
        }
        for bucket in buckets.iter_mut().skip(whole.len()) {
            let missing = || Error::argument("data_parallel", "shards are missing");
            for (_, own) in bucket.sums.take(shards).ok_or_else(missing)? {
                whole.push(match collective {
                    Collective::AllReduce(_) => {
                        comm.run_in_place(collective, &own, line)?;
                        own
                    }
                    _ => comm.run(collective, &own, line)?,
                });
            }
        }
        Ok(())
    }

    /// What the sums have given this rank, one vector for each bucket, once it is [there](Buckets::finish).
    pub(crate) fn vectors(&self) -> Vec<Tensor> {
        std::mem::take(&mut lock(&self.state).whole)
    }

    /// The gradients, once they are [there](Buckets::finish), of the parameters that have one on some rank.
    pub(crate) fn gradients(&self, there: &[bool]) -> Result<Gradients> {
        let state = lock(&self.state);
        let mut gradients = Gradients::default();
        for (sum, bucket) in state.whole.iter().zip(&state.buckets) {
            let mut at = 0;
            for &i in &bucket.parameters {
                let parameter = &self.parameters[i].1;
                let gradient = sum.narrow(0, at, parameter.numel())?.reshape(parameter.shape())?;
                at += parameter.numel();
                if there[i] {
                    gradients.insert(parameter.tensor(), gradient.to_dtype(parameter.dtype())?)?;
                }
            }
        }
        Ok(gradients)
    }
}

impl Drop for Buckets {
    fn drop(&mut self) {
        // After an error, what was sent ends before the communicator may be dropped. The other ranks send it too, or it fails
        // at the deadline. Errors of this add nothing to the first one.
        lock(&self.state).sent.drain(..).for_each(|handle| drop(handle.wait()));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

/// Hands the gradients of a bucket over to the buckets of the batch that is computed now.
#[derive(Debug)]
struct Given {
    open: Open,
    bucket: usize,
    /// The dtype of the operands.
    dtype: DType,
}

impl HostCall for Given {
    fn name(&self) -> &str {
        "bucket"
    }

    fn is_same(&self, other: &dyn HostCall) -> bool {
        let other: Option<&Given> = (other as &dyn Any).downcast_ref();
        other.is_some_and(|other| Arc::ptr_eq(&self.open, &other.open) && self.bucket == other.bucket)
    }

    fn call(&self, backend: &dyn Backend, operands: &mut [Binding<'_>]) -> Result<()> {
        let Some(buckets) = lock(&self.open).upgrade() else {
            return Err(Error::argument("data_parallel", "a captured pass is replayed outside of a step of its ranks"));
        };
        let mut bytes = vec![];
        for operand in operands {
            let Binding::Read(x) = operand else { continue };
            let (at, size) = (bytes.len(), self.dtype.size());
            bytes.resize(at + x.layout.numel() * size, 0);
            backend.download(x.buffer, x.layout.offset() * size, &mut bytes[at..])?;
        }
        no_grad(|| buckets.take_given(self.bucket, self.dtype, bytes))
    }
}

#[cfg(test)]
mod tests {
    use gradus_cpu::CpuBackend;
    use gradus_nn::Parameter;
    use gradus_tensor::Device;

    use super::*;

    #[test]
    fn buckets_hold_the_last_parameters_first_and_one_dtype_each() {
        let device = Device::from_backend(Arc::new(CpuBackend::new().unwrap()));
        let of = |&(n, dtype): &(usize, DType)| {
            (String::new(), Parameter::new(Tensor::zeros([n], dtype, &device).unwrap()).unwrap())
        };
        let (f32, f64) = (DType::F32, DType::F64);
        let parameters: Vec<Named> = [(2, f32), (9, f32), (1, f64), (3, f32), (1, f32)].iter().map(of).collect();
        assert_eq!(cut(&parameters, 16), [vec![4, 3], vec![1], vec![0], vec![2]]);
        assert_eq!(cut(&parameters, 1 << 20), [vec![4, 3, 1, 0], vec![2]]);
        assert!(cut(&[], 16).is_empty());
    }
}
