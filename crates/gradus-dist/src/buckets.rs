//! [`Buckets`]: gradients that are summed over the ranks while the backward pass goes on.
//!
//! The parameters are cut into buckets, those of the last layers first. As soon as the last shard of this rank has given
//! all gradients of a bucket, and those before it were sent, it is sent. So every rank sends the buckets in the same
//! order. What a pass did not reach is sent after it.

use std::cell::{RefCell, RefMut};
use std::rc::Rc;
use std::sync::Arc;

use gradus_tensor::autograd::take_gradients;
use gradus_tensor::{DType, Error, ErrorKind, Gradients, Result, Tensor, no_grad};

use crate::call::Collective;
use crate::communicator::Communicator;
use crate::group::Line;
use crate::handle::Handle;
use crate::reduce::Reduce;
use crate::vectors::{Named, Tree};

/// Parameters of one dtype, whose gradients are summed as one vector.
#[derive(Default)]
struct Bucket {
    /// The numbers of the parameters.
    parameters: Vec<usize>,
    /// The gradients of the current shard, until all have come.
    gradients: Vec<Option<Tensor>>,
    /// Whether the current shard has been added to the sums.
    added: bool,
    /// The sums over this rank's shards.
    sums: Tree,
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

/// The sums of the gradients of one batch.
pub(crate) struct Buckets {
    comm: Arc<dyn Communicator>,
    line: Line,
    /// Whether the sums over ranks run while the backward pass goes on. They come after it on a single rank, and in a
    /// captured step, since a replay starts nothing in the background.
    overlaps: bool,
    /// The number of this rank's shards.
    shards: usize,
    parameters: Vec<Named>,
    /// The bucket of each parameter, and its place there.
    places: Vec<(usize, usize)>,
    state: RefCell<State>,
}

/// The parameters of each bucket: of one dtype, and of at most `bytes` bytes unless it is a single one.
fn cut(parameters: &[Named], bytes: usize) -> Vec<Vec<usize>> {
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
    /// For a batch of which this rank has `shards` shards. If the sums overlap, `comm` makes no other calls meanwhile.
    pub(crate) fn new(
        parameters: Vec<Named>,
        shards: usize,
        bytes: usize,
        comm: Arc<dyn Communicator>,
        overlaps: bool,
        line: Line,
    ) -> Buckets {
        let mut places = vec![(0, 0); parameters.len()];
        let bucket = |(b, own): (usize, Vec<usize>)| {
            own.iter().enumerate().for_each(|(j, &i)| places[i] = (b, j));
            Bucket { gradients: vec![None; own.len()], parameters: own, ..Bucket::default() }
        };
        let buckets = cut(&parameters, bytes).into_iter().enumerate().map(bucket).collect();
        let state = RefCell::new(State { buckets, there: vec![], sent: vec![], whole: vec![] });
        Buckets { comm, line, overlaps, shards, parameters, places, state }
    }

    fn state(&self) -> Result<RefMut<'_, State>> {
        self.state.try_borrow_mut().map_err(|_| Error::argument("data_parallel", "a gradient comes during a sum"))
    }

    /// The gradients of a loss. If the sums overlap, they are taken as soon as they are complete, and not returned.
    pub(crate) fn backward(self: &Rc<Self>, loss: &Tensor) -> Result<Gradients> {
        if !self.overlaps {
            return loss.backward();
        }
        let leaves: Vec<&Tensor> = self.parameters.iter().map(|(_, parameter)| parameter.tensor()).collect();
        let this = self.clone();
        take_gradients(&leaves, Rc::new(move |i, gradient: &Tensor| this.take(i, gradient)), || loss.backward())?
    }

    /// Runs the pass of a shard, if it has rows. Returns its loss, and whether each parameter has a gradient.
    pub(crate) fn shard(
        self: &Rc<Self>,
        pass: Option<impl FnOnce() -> Result<(Tensor, Gradients)>>,
    ) -> Result<(Option<Tensor>, Vec<bool>)> {
        let mut state = self.state()?;
        state.there = vec![false; self.parameters.len()];
        state.buckets.iter_mut().for_each(|bucket| bucket.added = false);
        drop(state);
        let loss = match pass {
            Some(pass) => {
                let (loss, gradients) = pass()?;
                // Those that were not taken. The last layers come first.
                for (i, (_, parameter)) in self.parameters.iter().enumerate().rev() {
                    if let Some(gradient) = gradients.get(parameter.tensor()) {
                        no_grad(|| self.take(i, &gradient.detach()))?;
                    }
                }
                Some(loss)
            }
            None => None,
        };
        let mut state = self.state()?;
        for bucket in state.buckets.iter_mut().filter(|bucket| !bucket.added) {
            no_grad(|| self.add(bucket))?;
        }
        self.send(&mut state)?;
        Ok((loss, std::mem::take(&mut state.there)))
    }

    /// Takes the gradient of a parameter. The last one of a bucket completes it: the bucket is added to those of earlier
    /// shards, and sent after the last shard.
    fn take(&self, i: usize, gradient: &Tensor) -> Result<()> {
        let mut state = self.state()?;
        let (b, j) = self.places[i];
        if std::mem::replace(&mut state.there[i], true) {
            let m = format!("the gradient of {} comes twice", self.parameters[i].0);
            return Err(Error::new(ErrorKind::Autograd, "data_parallel", m));
        }
        let bucket = &mut state.buckets[b];
        bucket.gradients[j] = Some(gradient.clone());
        if bucket.gradients.iter().all(Option::is_some) {
            self.add(bucket)?;
            self.send(&mut state)?;
        }
        Ok(())
    }

    /// Adds the gradients of a bucket, with zeros where there is none, to the sums over this rank's shards.
    fn add(&self, bucket: &mut Bucket) -> Result<()> {
        let Bucket { parameters, gradients, added, sums } = bucket;
        let piece = |(&i, gradient): (&usize, &mut Option<Tensor>)| {
            let parameter = &self.parameters[i].1;
            let (dtype, n) = (parameter.dtype().compute(), parameter.numel());
            match gradient.take() {
                Some(gradient) => gradient.to_dtype(dtype)?.reshape([n]),
                None => Tensor::zeros([n], dtype, parameter.device()),
            }
        };
        let pieces = parameters.iter().zip(gradients).map(piece).collect::<Result<Vec<_>>>()?;
        let vector = Tensor::cat(&pieces.iter().collect::<Vec<_>>(), 0)?;
        *added = true;
        sums.push(vec![(vector.dtype(), vector)])
    }

    /// Sends the buckets of which all shards were added, up to the first of which one is missing.
    fn send(&self, State { buckets, sent, .. }: &mut State) -> Result<()> {
        while self.overlaps
            && let Some(sums) = buckets.get(sent.len()).and_then(|bucket| bucket.sums.of(self.shards))
        {
            for (_, sum) in sums {
                sent.push(self.comm.start(Collective::AllReduce(Reduce::Sum), sum, self.line)?);
            }
        }
        Ok(())
    }

    /// Returns when the sums over all ranks are there.
    pub(crate) fn finish(&self) -> Result<()> {
        let mut state = self.state()?;
        let State { buckets, sent, whole, .. } = &mut *state;
        // All of them end, even if one fails.
        let mut sent = sent.drain(..).map(Handle::wait).collect::<Vec<_>>().into_iter();
        for bucket in buckets {
            let Some([(_, own)]) = bucket.sums.of(self.shards).map(Vec::as_slice) else {
                return Err(Error::argument("data_parallel", "shards are missing"));
            };
            whole.push(match sent.next() {
                Some(sum) => sum?,
                None => {
                    self.comm.run_in_place(Collective::AllReduce(Reduce::Sum), own, self.line)?;
                    own.clone()
                }
            });
        }
        Ok(())
    }

    /// The gradients, once they are [there](Buckets::finish), of the parameters that have one on some rank.
    pub(crate) fn gradients(&self, there: &[bool]) -> Result<Gradients> {
        let state = self.state()?;
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
        // After an error, what was sent ends before the communicator may be dropped. The other ranks send it too, and
        // their errors add nothing to the first one.
        self.state.get_mut().sent.drain(..).for_each(|handle| drop(handle.wait()));
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
