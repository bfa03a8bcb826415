//! Steps of the trainer that are captured: the bits of eager steps, and what is not captured.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use gradus_cpu::CpuBackend;
use gradus_data::{DataLoader, Dataset, Sample, TensorDataset};
use gradus_nn::{
    AdamConfig, AdamW, BatchNorm2d, BatchNormConfig, Dropout, Forward, Init, Linear, Module, Optimizer, Relu, Schedule,
    Sequential,
};
use gradus_tensor::{DType, Device, Generator, Result, Tensor};
use gradus_train::{Classification, Event, OnNonFinite, Outcome, Task, Trainer};

type Batch = (Tensor, Tensor);

fn device(threads: usize) -> Device {
    Device::from_backend(Arc::new(CpuBackend::with_threads(threads).unwrap()))
}

/// A model with running statistics and random numbers, and its optimiser.
fn model(device: &Device, dtype: DType) -> (Sequential, AdamW) {
    let mut generator = Generator::new(5);
    let drop = Dropout::new(0.25, &mut generator).unwrap();
    let init = &mut Init::new(dtype, device, &mut generator);
    let model = Sequential::new()
        .add(Linear::new(6, 40, init).unwrap())
        .add(BatchNorm2d::new(40, BatchNormConfig::default(), init).unwrap())
        .add(Relu)
        .add(drop)
        .add(Linear::new(40, 3, init).unwrap());
    let optimizer = AdamW::new(model.named_parameters(), AdamConfig { lr: 0.02, ..Default::default() }).unwrap();
    (model, optimizer)
}

/// 45 samples in batches of 8, so that the last one of an epoch is smaller. `of_sample` changes sample 20.
fn loader(device: &Device, dtype: DType, of_sample: f64) -> DataLoader<TensorDataset> {
    let mut x = Tensor::randn([45, 6], DType::F64, device, &mut Generator::new(1)).unwrap().to_vec::<f64>().unwrap();
    x[20 * 6] = of_sample;
    let y: Vec<i64> = x.chunks(6).map(|row| (row[0] * 7.0).floor().rem_euclid(3.0) as i64).collect();
    let x = Tensor::from_vec(x, [45, 6], device).unwrap().to_dtype(dtype).unwrap();
    let y = Tensor::from_vec(y, [45], device).unwrap();
    DataLoader::new(TensorDataset::new(x, y).unwrap(), device).batch_size(8).shuffle(3).build().unwrap()
}

type Bits = Vec<(String, Vec<u8>)>;

fn bits(model: &Sequential, optimizer: &AdamW) -> Bits {
    let mut bits = Bits::new();
    for state in [model.state_dict().unwrap(), optimizer.state_dict().unwrap()] {
        bits.extend(state.iter().map(|(name, t)| (name.to_owned(), t.to_bytes().unwrap())));
        bits.extend(state.iter_metadata().map(|(name, text)| (name.to_owned(), text.into())));
    }
    let random = model.named_random_states().into_iter();
    bits.extend(random.map(|(name, r)| (name, format!("{r:?}").into_bytes())));
    bits
}

/// Counts how often the task runs.
struct Counted<T>(T, AtomicUsize);

impl<B, T: Task<Sequential, B>> Task<Sequential, B> for Counted<T> {
    fn run(&self, model: &Sequential, batch: &B) -> Result<Outcome> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.run(model, batch)
    }

    fn is_fixed(&self) -> bool {
        self.0.is_fixed()
    }
}

/// The losses, accuracies and norms of all steps, the final state, and the number of times that the task ran.
fn train<D>(
    trainer: &Trainer,
    task: impl Task<Sequential, <D::Item as Sample>::Batch>,
    loader: &DataLoader<D>,
    (device, dtype): (&Device, DType),
) -> (Vec<String>, Bits, usize)
where
    D: Dataset + 'static,
    D::Item: Sample,
{
    let (mut model, mut optimizer) = model(device, dtype);
    let task = Counted(task, AtomicUsize::new(0));
    let mut said = vec![];
    let mut listen = |event: Event<'_>| {
        match event {
            Event::Step(s) => {
                said.push(format!("{:?}", (s.epoch, s.step, s.loss, s.mean_loss, s.accuracy, s.grad_norm)))
            }
            Event::Skipped { epoch, step, value } => said.push(format!("skipped {epoch} {step} {value}")),
            _ => {}
        }
        Ok(())
    };
    trainer.fit(&mut model, &mut optimizer, loader, None, &task, &mut [&mut listen]).unwrap();
    (said, bits(&model, &optimizer), task.1.load(Ordering::Relaxed))
}

#[test]
fn captured_steps_have_the_bits_of_eager_ones() {
    let trainer = || Trainer::new(4).unwrap().schedule(Schedule::exponential(0.9).unwrap());
    let options: [fn(Trainer) -> Trainer; 5] = [
        |t| t,
        |t| t.clip_norm(0.5).unwrap(),
        |t| t.clip_value(0.01).unwrap().log_grad_norm(),
        |t| t.accumulate(2).unwrap(),
        |t| t.accumulate(4).unwrap().on_non_finite(OnNonFinite::Skip),
    ];
    for dtype in [DType::F32, DType::F64] {
        for (i, option) in options.into_iter().enumerate() {
            let device = device(1);
            let loader = loader(&device, dtype, 0.5);
            let task = Classification { label_smoothing: 0.1 };
            let eager = train(&option(trainer()).eager(), task, &loader, (&device, dtype));
            let captured = train(&option(trainer()), task, &loader, (&device, dtype));
            assert_eq!((&captured.0, &captured.1), (&eager.0, &eager.1), "option {i}, {dtype}");
            assert_eq!(eager.2, 24);
            // Two traces of each form, the first again in each epoch, and the replays that debug builds verify.
            assert!(captured.2 < 24, "option {i}: {} runs", captured.2);
        }
    }
}

#[test]
fn a_smaller_last_batch_is_replayed_too() {
    let device = device(1);
    let loader = loader(&device, DType::F32, 0.5);
    let run = |trainer: Trainer| train(&trainer, Classification::default(), &loader, (&device, DType::F32));
    let eager = run(Trainer::new(12).unwrap().eager());
    let captured = run(Trainer::new(12).unwrap());
    assert_eq!((captured.0, captured.1), (eager.0, eager.1));
    // Two traces of each form, a replay that debug builds verify, and a check: of the large batches in each epoch but the
    // first, and of the last one after each three replays.
    assert!(captured.2 <= 3 + 11 + 3 + 3, "{} runs", captured.2);
}

#[test]
fn two_threads_change_no_bit_of_captured_steps() {
    let run = |threads| {
        let device = device(threads);
        train(
            &Trainer::new(3).unwrap(),
            Classification::default(),
            &loader(&device, DType::F32, 0.5),
            (&device, DType::F32),
        )
    };
    assert_eq!(run(1), run(2));
}

#[test]
fn a_replay_whose_loss_is_not_finite_changes_nothing() {
    let device = device(1);
    let trainer = Trainer::new(3).unwrap().on_non_finite(OnNonFinite::Skip);
    for of_sample in [f64::NAN, f64::INFINITY] {
        let loader = loader(&device, DType::F32, of_sample);
        let task = Classification::default();
        let eager = train(&trainer.clone().eager(), task, &loader, (&device, DType::F32));
        let captured = train(&trainer, task, &loader, (&device, DType::F32));
        assert!(eager.0.iter().any(|s| s.starts_with("skipped")), "{:?}", eager.0);
        assert_eq!((captured.0, captured.1), (eager.0, eager.1));
        assert!(captured.2 < eager.2);
    }
}

fn reads(model: &Sequential, (x, y): &Batch) -> Result<Outcome> {
    let logits = model.forward(x)?;
    let loss = logits.cross_entropy(y)?;
    let share = logits.detach().softmax(-1)?.max_all()?.item()?;
    Ok(Outcome { loss: loss.mul(share)?, samples: x.shape()[0], correct: None })
}

#[test]
fn a_task_that_reads_on_the_host_runs_once_for_each_step() {
    let device = device(1);
    let loader = loader(&device, DType::F32, 0.5);
    let eager = train(&Trainer::new(3).unwrap().eager(), reads, &loader, (&device, DType::F32));
    let captured = train(&Trainer::new(3).unwrap().captured(), reads, &loader, (&device, DType::F32));
    assert_eq!(captured, eager);
    assert_eq!(captured.2, 18);
}

#[test]
fn a_task_with_variables_is_captured_only_if_it_says_so() {
    let device = device(1);
    let loader = loader(&device, DType::F32, 0.5);
    let factor = std::cell::Cell::new(1.0);
    let task = |model: &Sequential, (x, y): &Batch| {
        factor.set(factor.get() * 0.99);
        let loss = model.forward(x)?.cross_entropy(y)?.mul(factor.get())?;
        Ok(Outcome { loss, samples: x.shape()[0], correct: None })
    };
    let eager = train(&Trainer::new(2).unwrap().eager(), task, &loader, (&device, DType::F32));
    factor.set(1.0);
    let default = train(&Trainer::new(2).unwrap(), task, &loader, (&device, DType::F32));
    assert_eq!(default, eager);
    // Two traces that differ are noticed even if capturing is asked for.
    factor.set(1.0);
    assert_eq!(train(&Trainer::new(2).unwrap().captured(), task, &loader, (&device, DType::F32)), eager);
    let weight = 0.5;
    let fixed = move |model: &Sequential, (x, y): &Batch| {
        let loss = model.forward(x)?.cross_entropy(y)?.mul(weight)?;
        Ok(Outcome { loss, samples: x.shape()[0], correct: None })
    };
    let eager = train(&Trainer::new(2).unwrap(), fixed, &loader, (&device, DType::F32));
    let captured = train(&Trainer::new(2).unwrap().captured(), fixed, &loader, (&device, DType::F32));
    assert_eq!((captured.0, captured.1), (eager.0, eager.1));
    assert_eq!(eager.2, 12);
    assert!(captured.2 < 12);
}

#[test]
fn a_function_is_not_captured_by_itself_since_it_may_read_statics() {
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    fn sometimes(model: &Sequential, (x, y): &Batch) -> Result<Outcome> {
        let factor = if CALLS.fetch_add(1, Ordering::Relaxed) % 4 == 3 { 0.1 } else { 1.0 };
        Ok(Outcome { loss: model.forward(x)?.cross_entropy(y)?.mul(factor)?, samples: x.shape()[0], correct: None })
    }
    let run = |trainer: Trainer| {
        CALLS.store(0, Ordering::Relaxed);
        let device = device(1);
        train(&trainer, sometimes, &loader(&device, DType::F32, 0.5), (&device, DType::F32))
    };
    assert_eq!(run(Trainer::new(2).unwrap()), run(Trainer::new(2).unwrap().eager()));
}

/// A sample with a text.
struct Named;

impl Dataset for Named {
    type Item = (Vec<f32>, String);

    fn len(&self) -> usize {
        20
    }

    fn get(&self, index: usize) -> Result<(Vec<f32>, String)> {
        Ok((vec![index as f32 / 20.0; 6], if index < 10 { "low" } else { "high" }.to_owned()))
    }
}

fn by_name(model: &Sequential, (x, names): &(Tensor, Vec<String>)) -> Result<Outcome> {
    let labels: Vec<i64> = names.iter().map(|n| i64::from(n == "high")).collect();
    let labels = Tensor::from_vec(labels, [names.len()], x.device())?;
    Ok(Outcome { loss: model.forward(x)?.cross_entropy(&labels)?, samples: names.len(), correct: None })
}

#[test]
fn a_batch_with_texts_is_not_captured() {
    let device = device(1);
    let loader = DataLoader::new(Named, &device).batch_size(4).build().unwrap();
    let eager = train(&Trainer::new(2).unwrap().eager(), by_name, &loader, (&device, DType::F32));
    let captured = train(&Trainer::new(2).unwrap().captured(), by_name, &loader, (&device, DType::F32));
    assert_eq!(captured, eager);
    assert_eq!(eager.2, 10);
}

#[test]
fn what_changes_between_epochs_is_noticed() {
    use std::sync::atomic::AtomicBool;
    static LATE: AtomicBool = AtomicBool::new(false);
    fn scaled(model: &Sequential, (x, y): &Batch) -> Result<Outcome> {
        let factor = if LATE.load(Ordering::Relaxed) { 0.5 } else { 1.0 };
        Ok(Outcome { loss: model.forward(x)?.cross_entropy(y)?.mul(factor)?, samples: x.shape()[0], correct: None })
    }
    let run = |trainer: Trainer| {
        let device = device(1);
        let (mut model, mut optimizer) = model(&device, DType::F32);
        LATE.store(false, Ordering::Relaxed);
        let mut late = |event: Event<'_>| {
            if let Event::EpochEnd(report) = event {
                LATE.store(report.epoch >= 2, Ordering::Relaxed);
            }
            Ok(())
        };
        let loader = loader(&device, DType::F32, 0.5);
        trainer.fit(&mut model, &mut optimizer, &loader, None, &scaled, &mut [&mut late]).unwrap();
        bits(&model, &optimizer)
    };
    assert_eq!(run(Trainer::new(4).unwrap().captured()), run(Trainer::new(4).unwrap().eager()));
}
