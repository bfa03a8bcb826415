//! Tests the loader: the order of samples, workers, errors, and epochs that end early.
#![allow(clippy::unwrap_used)]

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use gradus_cpu::CpuBackend;
use gradus_data::{DataLoader, DataLoaderBuilder, Dataset, Position, Sample, Sampler, Sequence};
use gradus_tensor::{Device, Error, Generator, Result};

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
        let augment = |x: i64, g: &mut Generator| Ok(x * 1000 + g.below(1000) as i64);
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
fn a_sample_that_is_drawn_again_is_altered_in_another_way() {
    let d = device();
    let augment = |x: i64, g: &mut Generator| Ok(x * 1_000_000 + g.below(1_000_000) as i64);
    let run = |sampler: Sampler, shard: (usize, usize)| {
        let loader = DataLoader::new(numbers(4), &d).batch_size(7).sampler(sampler, 5).augment(augment);
        batches(loader.shard(shard.0, shard.1), 3).concat()
    };
    let weighted = || Sampler::Weighted { weights: vec![1.0; 4], samples: 100 };
    let drawn = run(weighted(), (0, 1));
    assert_eq!(drawn.iter().collect::<HashSet<_>>().len(), 100);
    // The first draw of a sample is augmented as without a sampler that repeats samples. Shards contain the samples of
    // the whole epoch.
    let plain = run(Sampler::Sequential, (0, 1));
    assert!(plain.iter().all(|x| drawn.contains(x)), "{plain:?} {drawn:?}");
    for rank in 0..2 {
        let want: Vec<i64> = drawn.iter().copied().skip(rank).step_by(2).collect();
        assert_eq!(run(weighted(), (rank, 2)), want);
    }
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

#[test]
fn a_skipped_batch_is_not_read_and_the_rest_is_the_same() {
    let d = device();
    for workers in [0, 3] {
        let data = numbers(50);
        let reads = data.reads.clone();
        let augment = |x: i64, g: &mut Generator| Ok(x * 1000 + g.below(1000) as i64);
        let loader = DataLoader::new(data, &d).batch_size(7).shuffle(5).augment(augment).workers(workers);
        let loader = loader.build().unwrap();
        let all: Vec<Vec<i64>> = loader.epoch(2).unwrap().map(|b| b.unwrap().to_vec().unwrap()).collect();
        for skip in 0..=loader.len() {
            reads.store(0, Ordering::Relaxed);
            let mut rest = loader.epoch_from(2, skip).unwrap();
            assert_eq!(rest.position(), Position { epoch: 2, batch: skip });
            let mut found = Vec::new();
            while let Some(batch) = rest.next() {
                found.push(batch.unwrap().to_vec::<i64>().unwrap());
                assert_eq!(rest.position().batch, skip + found.len());
            }
            assert_eq!(found, all[skip..]);
            assert_eq!(reads.load(Ordering::Relaxed), 50 - (7 * skip).min(50));
        }
        let e = loader.epoch_from(2, 9).unwrap_err().to_string();
        assert!(e.contains("9 batches of epoch 2 are to be skipped; it has 8"), "{e}");
    }
}

#[test]
fn a_position_survives_a_file_and_names_the_batch_that_failed() {
    let d = device();
    let data = Numbers { fails: Some(13), ..numbers(40) };
    let loader = DataLoader::new(data, &d).batch_size(5).build().unwrap();
    let mut batches = loader.epoch(4).unwrap();
    assert_eq!(batches.by_ref().count(), 3);
    let text = serde_json::to_string(&batches.position()).unwrap();
    assert_eq!(text, r#"{"epoch":4,"batch":2}"#);
    let position: Position = serde_json::from_str(&text).unwrap();
    assert!(loader.resume(position).unwrap().next().unwrap().unwrap_err().to_string().contains("sample 13"));
}

#[test]
fn weights_decide_how_often_a_sample_comes() {
    let d = device();
    let weights = vec![0.0, 1.0, 3.0, 0.0, 6.0, 0.0];
    let sampler = Sampler::Weighted { weights: weights.clone(), samples: 20_000 };
    let loader = DataLoader::new(numbers(6), &d).sampler(sampler, 1).batch_size(20_000).build().unwrap();
    let drawn: Vec<i64> = loader.epoch(0).unwrap().next().unwrap().unwrap().to_vec().unwrap();
    for (sample, weight) in weights.iter().enumerate() {
        let share = drawn.iter().filter(|&&x| x == sample as i64).count() as f64 / 20_000.0;
        // Five standard deviations of a share of 20,000 draws.
        assert!((share - weight / 10.0).abs() <= 5.0 * (weight / 10.0 * (1.0 - weight / 10.0) / 20_000.0).sqrt());
    }
    let error = |weights: Vec<f64>| {
        let sampler = Sampler::Weighted { weights, samples: 5 };
        DataLoader::new(numbers(2), &d).sampler(sampler, 0).build().unwrap_err().to_string()
    };
    assert!(error(vec![1.0]).contains("1 weights for 2 samples"));
    assert!(error(vec![1.0, f64::NAN]).contains("weight of sample 1 is NaN"));
    assert!(error(vec![-1.0, 1.0]).contains("weight of sample 0 is -1"));
    assert!(error(vec![0.0, 0.0]).contains("the weights sum to 0"));
    assert!(error(vec![f64::MAX, f64::MAX]).contains("the weights sum to inf"));
}

#[test]
fn buckets_give_every_sample_once_and_batches_of_similar_length() {
    let d = device();
    let lengths: Vec<usize> = (0..203).map(|i| i * 7919 % 100).collect();
    let padding = |sampler: Sampler| {
        let batches = batches(DataLoader::new(numbers(203), &d).sampler(sampler, 3).batch_size(10), 1);
        let mut all = batches.concat();
        all.sort_unstable();
        assert!(all.into_iter().eq(0..203));
        assert_eq!(batches.last().unwrap().len(), 3);
        let length = |&i: &i64| lengths[i as usize];
        let waste = |batch: &Vec<i64>| {
            let longest = batch.iter().map(length).max().unwrap();
            batch.iter().map(|i| longest - length(i)).sum::<usize>()
        };
        batches.iter().map(waste).sum::<usize>()
    };
    let shuffled = padding(Sampler::Shuffled);
    let bucketed = padding(Sampler::Bucketed { lengths: lengths.clone(), pool: 10 });
    assert!(bucketed * 5 < shuffled, "{bucketed} of {shuffled} places are padding");
    let build = |lengths: Vec<usize>, pool| {
        let sampler = Sampler::Bucketed { lengths, pool };
        DataLoader::new(numbers(3), &d).sampler(sampler, 0).build().unwrap_err().to_string()
    };
    assert!(build(vec![1], 1).contains("1 lengths for 3 samples"));
    assert!(build(vec![1; 3], 0).contains("a pool of 0 batches"));
}

#[test]
fn a_function_chooses_the_order_and_is_checked() {
    let d = device();
    let custom = |samples, indices: Vec<usize>| {
        let order = Arc::new(move |epoch, _: &mut Generator| Ok(indices.iter().map(|i| i + epoch as usize).collect()));
        DataLoader::new(numbers(5), &d).sampler(Sampler::Custom { samples, order }, 0).batch_size(2)
    };
    assert_eq!(batches(custom(3, vec![3, 0, 3]), 1), [vec![4, 1], vec![4]]);
    let error = |b: DataLoaderBuilder<Numbers>, epoch| b.build().unwrap().epoch(epoch).unwrap_err().to_string();
    assert!(error(custom(3, vec![3, 0, 3]), 2).contains("sample 5 asked for; there are 5"));
    assert!(error(custom(2, vec![3, 0, 3]), 0).contains("order of epoch 0 has 3 indices, not 2"));
}

#[test]
fn processes_read_disjoint_parts_of_equal_size() {
    let d = device();
    let part = |rank, drop_last| {
        batches(DataLoader::new(numbers(10), &d).shuffle(1).batch_size(2).shard(rank, 3).drop_last(drop_last), 0)
    };
    let whole = batches(DataLoader::new(numbers(10), &d).shuffle(1).batch_size(10), 0).concat();
    // As torch.utils.data.DistributedSampler does: the first samples fill the gap.
    let at = |places: &[usize]| places.iter().map(|&i| whole[i]).collect::<Vec<_>>();
    assert_eq!(part(0, false).concat(), at(&[0, 3, 6, 9]));
    assert_eq!(part(1, false).concat(), at(&[1, 4, 7, 0]));
    assert_eq!(part(2, false).concat(), at(&[2, 5, 8, 1]));
    assert_eq!(part(2, true).concat(), at(&[2, 5]));
    let none = batches(DataLoader::new(numbers(1), &d).shard(1, 2).drop_last(true), 0);
    assert!(none.is_empty());
    for (rank, world) in [(0, 0), (3, 3)] {
        let e = DataLoader::new(numbers(1), &d).shard(rank, world).build().unwrap_err().to_string();
        assert!(e.contains(&format!("process {rank} of {world}")), "{e}");
    }
}

#[derive(Sample)]
struct Verse(Sequence<i64>, String, (f32, bool));

#[derive(Sample)]
struct Book {
    verse: Verse,
    r#type: u8,
}

#[test]
fn the_parts_of_a_batch_are_read_alone_and_together_are_the_batch() {
    let d = device();
    for workers in [0, 2] {
        let builder = || {
            let augment = |x: i64, g: &mut Generator| Ok(x * 1000 + g.below(1000) as i64);
            DataLoader::new(numbers(23), &d).batch_size(8).shuffle(5).augment(augment).workers(workers)
        };
        let whole = batches(builder(), 3);
        let loader = builder().build().unwrap();
        // The second process reads two parts of each batch but the first, and the other one the rest.
        let halves = |second: bool| -> Vec<(usize, Vec<Vec<i64>>)> {
            let parts = move |batch: usize, samples: usize| match (second, batch) {
                (true, 0) => vec![],
                (true, _) => vec![samples - 2..samples - 1, samples - 1..samples],
                (false, 0) => vec![0..3, 3..samples],
                (false, _) => std::iter::once(0..samples - 2).collect(),
            };
            let batches = loader.epoch_in_parts(3, 0, parts).unwrap().map(Result::unwrap);
            batches.map(|b| (b.samples, b.parts.iter().map(|part| part.to_vec().unwrap()).collect())).collect()
        };
        let (first, second) = (halves(false), halves(true));
        for (i, batch) in whole.iter().enumerate() {
            assert_eq!((first[i].0, second[i].0), (batch.len(), batch.len()));
            assert_eq!([first[i].1.concat(), second[i].1.concat()].concat(), *batch);
        }
        assert_eq!(second[1].1.len(), 2);
    }
    let counted = numbers(6);
    let reads = counted.reads.clone();
    let loader = DataLoader::new(counted, &d).batch_size(3).build().unwrap();
    assert_eq!(loader.epoch_in_parts(0, 1, |_, _| std::iter::once(1..2).collect()).unwrap().count(), 1);
    assert_eq!(reads.load(Ordering::Relaxed), 1);
    for wrong in [2..2, 2..4] {
        let parts = move |_, _| Vec::from_iter([wrong.clone()]);
        let e = loader.epoch_in_parts(0, 0, parts).unwrap().next().unwrap().unwrap_err();
        assert!(e.to_string().contains("are no part of batch 0, which has 3"), "{e}");
    }
}

#[test]
fn structs_are_batched_field_by_field() {
    let d = device();
    let book = |tokens: Vec<i64>, name: &str, t| {
        let values = Sequence { values: tokens, padding: -100 };
        Book { verse: Verse(values, name.into(), (t as f32, t == 1)), r#type: t }
    };
    let batch = Book::collate(vec![book(vec![], "a", 1), book(vec![7, 8], "b", 2)], &d).unwrap();
    let VerseBatch(tokens, names, (number, flag)) = batch.verse;
    assert_eq!(tokens.values.to_vec::<i64>().unwrap(), [-100, -100, 7, 8]);
    assert_eq!(tokens.lengths.to_vec::<i64>().unwrap(), [0, 2]);
    assert_eq!(tokens.mask.to_vec::<bool>().unwrap(), [false, false, true, true]);
    assert_eq!(names, ["a", "b"]);
    assert_eq!(number.to_vec::<f32>().unwrap(), [1.0, 2.0]);
    assert_eq!(flag.to_vec::<bool>().unwrap(), [true, false]);
    assert_eq!(batch.r#type.to_vec::<u8>().unwrap(), [1, 2]);
    let mut mixed = vec![book(vec![1], "a", 1), book(vec![2], "b", 2)];
    mixed[1].verse.0.padding = 0;
    let e = Book::collate(mixed, &d).err().unwrap().to_string();
    assert!(e.contains("different paddings") && e.contains("in the field 0 of Verse"), "{e}");
}
