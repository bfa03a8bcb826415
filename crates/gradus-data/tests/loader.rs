//! Tests the loader: the order of samples, workers, errors, and epochs that end early.
#![allow(clippy::unwrap_used)]

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use gradus_cpu::CpuBackend;
use gradus_data::{DataLoader, DataLoaderBuilder, Dataset};
use gradus_tensor::{Device, Error, Result};

fn device() -> Device {
    Device::from_backend(Arc::new(CpuBackend::new().unwrap()))
}

/// `0..n` as i64, with one sample that fails and one that panics.
#[derive(Default)]
struct Numbers {
    n: usize,
    fails: Option<usize>,
    panics: Option<usize>,
    reads: Arc<AtomicUsize>,
}

impl Dataset for Numbers {
    type Item = i64;

    fn len(&self) -> usize {
        self.n
    }

    fn get(&self, index: usize) -> Result<i64> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        if self.fails == Some(index) {
            return Err(Error::argument("numbers", "the disk is full of sand"));
        }
        assert!(self.panics != Some(index), "out of cheese");
        Ok(index as i64)
    }
}

fn numbers(n: usize) -> Numbers {
    Numbers { n, ..Numbers::default() }
}

fn batches(builder: DataLoaderBuilder<Numbers>, epoch: u64) -> Vec<Vec<i64>> {
    let loader = builder.build().unwrap();
    let batches: Vec<Vec<i64>> = loader.epoch(epoch).unwrap().map(|b| b.unwrap().to_vec().unwrap()).collect();
    assert_eq!(batches.len(), loader.len());
    assert_eq!(batches.iter().map(Vec::len).sum::<usize>(), loader.samples());
    batches
}

#[test]
fn without_shuffle_batches_come_in_order_and_the_last_is_short() {
    let d = device();
    let loader = || DataLoader::new(numbers(7), &d).batch_size(3);
    assert_eq!(batches(loader(), 0), [vec![0, 1, 2], vec![3, 4, 5], vec![6]]);
    assert_eq!(batches(loader().drop_last(true), 0), [vec![0, 1, 2], vec![3, 4, 5]]);
    assert_eq!(batches(DataLoader::new(numbers(0), &d), 0), Vec::<Vec<i64>>::new());
    assert_eq!(batches(DataLoader::new(numbers(0), &d).workers(2), 0), Vec::<Vec<i64>>::new());
}

#[test]
fn the_number_of_workers_changes_nothing() {
    let d = device();
    let run = |workers: usize, epoch: u64| {
        let augment = |x: i64, g: &mut gradus_tensor::Generator| Ok(x * 1000 + g.below(1000) as i64);
        let loader = DataLoader::new(numbers(103), &d).batch_size(8).shuffle(5).augment(augment);
        batches(loader.workers(workers).prefetch(1), epoch)
    };
    let alone = run(0, 3);
    for workers in [1, 2, 3, 16] {
        assert_eq!(run(workers, 3), alone, "{workers} workers");
    }
    assert_ne!(run(0, 4), alone);
    let seen: HashSet<i64> = alone.concat().into_iter().map(|x| x / 1000).collect();
    assert_eq!(seen.len(), 103);
}

#[test]
fn a_failing_sample_is_named_and_ends_the_epoch() {
    let d = device();
    for workers in [0, 2] {
        for (fails, panics, want) in [(Some(13), None, "the disk is full of sand"), (None, Some(13), "out of cheese")] {
            let data = Numbers { fails, panics, ..numbers(40) };
            let loader = DataLoader::new(data, &d).batch_size(5).workers(workers).build().unwrap();
            let all: Vec<_> = loader.epoch(0).unwrap().collect();
            assert_eq!(all.len(), 3, "two good batches, then the error");
            let e = all[2].as_ref().unwrap_err().to_string();
            assert!(e.contains(want) && e.contains("sample 13"), "{e}");
        }
    }
}

#[test]
fn an_early_drop_stops_the_workers_and_they_never_run_far_ahead() {
    let d = device();
    let data = numbers(100_000);
    let reads = data.reads.clone();
    let loader = DataLoader::new(data, &d).batch_size(10).workers(2).prefetch(2).build().unwrap();
    let mut epoch = loader.epoch(0).unwrap();
    assert!(epoch.next().unwrap().is_ok());
    // The workers run until every channel is full; from then on the number of reads does not change.
    let mut read = 0;
    while reads.load(Ordering::Relaxed) != read {
        read = reads.load(Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(300));
    }
    // One batch was received, and each worker holds two ready and one that it cannot send yet.
    assert!(read <= 10 * (1 + 2 * 3), "{read} samples were read");
    drop(epoch);
}

#[test]
fn settings_that_make_no_sense_are_errors() {
    let d = device();
    let error = |b: DataLoaderBuilder<Numbers>| b.build().unwrap_err().to_string();
    assert!(error(DataLoader::new(numbers(1), &d).batch_size(0)).contains("batch size is 0"));
    assert!(error(DataLoader::new(numbers(1), &d).prefetch(0)).contains("prefetch is 0"));
    assert!(error(DataLoader::new(numbers(1), &d).workers(100_000)).contains("100000 workers"));
    let huge = DataLoader::new(numbers(5), &d).batch_size(usize::MAX);
    assert_eq!(batches(huge, 0), [[0, 1, 2, 3, 4]]);
    let eager = DataLoader::new(numbers(5), &d).batch_size(2).workers(2).prefetch(usize::MAX);
    assert_eq!(batches(eager, 0).concat(), [0, 1, 2, 3, 4]);
}

#[test]
fn samples_of_different_sizes_cannot_be_joined() {
    let d = device();
    let data = numbers(4).map(|n| Ok(vec![0.0f32; if n == 2 { 3 } else { 2 }]));
    let loader = DataLoader::new(data, &d).batch_size(4).build().unwrap();
    let e = loader.epoch(0).unwrap().next().unwrap().unwrap_err().to_string();
    assert!(e.contains("sample 2 of the batch has 3") || e.contains("sample 2 has 3"), "{e}");
}
