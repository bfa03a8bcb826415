//! [`DataParallel`] as the ranks of a [`Trainer`](gradus_train::Trainer).

use std::ops::Range;
use std::panic::Location;
use std::sync::Arc;

use gradus_nn::Module;
use gradus_tensor::{DType, Gradients, Result, Tensor};
use gradus_train::{Pass, Ranks};

use crate::buckets::Buckets;
use crate::call::Collective;
use crate::data_parallel::DataParallel;
use crate::reduce::Reduce;

impl Ranks for DataParallel {
    fn rank(&self) -> usize {
        self.communicator().rank()
    }

    fn size(&self) -> usize {
        self.communicator().size()
    }

    fn parts(&self, samples: usize) -> Vec<Range<usize>> {
        self.shards().map(|shard| self.rows(samples, shard)).filter(|rows| !rows.is_empty()).collect()
    }

    #[track_caller]
    fn backward(&self, model: &dyn Module, samples: usize, pass: &mut Pass<'_>) -> Result<(Tensor, Gradients)> {
        let mut pass = |_, share, buckets: &Arc<Buckets>| pass(share, &|loss| buckets.backward(loss));
        self.reduced(model, samples, &mut pass, Location::caller())
    }

    #[track_caller]
    fn sum(&self, numbers: &mut [f64]) -> Result<()> {
        let words = numbers.iter().map(|number| number.to_bits()).collect();
        let call = Collective::AllReduce(Reduce::Sum);
        let sums = self.communicator().run_on_host(call, DType::F64, words, Location::caller())?;
        numbers.iter_mut().zip(sums).for_each(|(number, sum)| *number = f64::from_bits(sum));
        Ok(())
    }

    #[track_caller]
    fn broadcast(&self, from: usize, bytes: Vec<u8>) -> Result<Vec<u8>> {
        let line = Location::caller();
        let run = |words| self.communicator().run_on_host(Collective::Broadcast(from), DType::U64, words, line);
        let length = run(vec![bytes.len() as u64])?.first().map_or(0, |&length| length as usize);
        let mut words = vec![0; length.div_ceil(8)];
        if self.rank() == from {
            for (word, bytes) in words.iter_mut().zip(bytes.chunks(8)) {
                let mut eight = [0; 8];
                eight[..bytes.len()].copy_from_slice(bytes);
                *word = u64::from_le_bytes(eight);
            }
        }
        let mut bytes: Vec<u8> = run(words)?.into_iter().flat_map(u64::to_le_bytes).collect();
        bytes.truncate(length);
        Ok(bytes)
    }

    fn give_up(&self, why: &str) {
        self.communicator().give_up(why);
    }
}
