//! Tests that a run that fails in a step leaves everything in the state of the previous step.
#![allow(clippy::unwrap_used)]

#[path = "../../gradus-nn/tests/common/failing.rs"]
mod failing;

use failing::Failing;
use gradus_data::{DataLoader, TensorDataset};
use gradus_nn::{
    AdamConfig, AdamW, BatchNorm2d, BatchNormConfig, Dropout, Init, Linear, Module, Optimizer, Schedule, Sequential,
};
use gradus_tensor::{DType, Device, Generator, Tensor};
use gradus_train::{Classification, Event, Trainer};

struct Training {
    model: Sequential,
    optimizer: AdamW,
    loader: DataLoader<TensorDataset>,
}

/// A training run with running statistics, random numbers and moments. The last of its five batches contains the
/// number `last`; if that is NaN, so is the loss.
fn training(device: &Device, last: f32) -> Training {
    let mut generator = Generator::new(5);
    let mut x = Tensor::randn([10, 3], DType::F32, device, &mut generator).unwrap().to_vec::<f32>().unwrap();
    x[29] = last;
    let x = Tensor::from_vec(x, [10, 3], device).unwrap();
    let y = Tensor::from_vec([0i64, 1, 1, 0, 1, 0, 0, 1, 0, 1], [10], device).unwrap();
    let loader = DataLoader::new(TensorDataset::new(x, y).unwrap(), device).batch_size(2).build().unwrap();
    let drop = Dropout::new(0.25, &mut generator).unwrap();
    let init = &mut Init::new(DType::F32, device, &mut generator);
    let norm = BatchNorm2d::new(3, BatchNormConfig::default(), init).unwrap();
    let model = Sequential::new().add(norm).add(drop).add(Linear::new(3, 2, init).unwrap());
    let optimizer = AdamW::new(model.named_parameters(), AdamConfig::default()).unwrap();
    Training { model, optimizer, loader }
}

type Bits = Vec<(String, Vec<u8>)>;

impl Training {
    fn bits(&self) -> Bits {
        let mut bits = Bits::new();
        for state in [self.model.state_dict().unwrap(), self.optimizer.state_dict().unwrap()] {
            bits.extend(state.iter().map(|(name, t)| (name.to_owned(), t.to_bytes().unwrap())));
            bits.extend(state.iter_metadata().map(|(name, text)| (name.to_owned(), text.into())));
        }
        let random = self.model.named_random_states().into_iter();
        bits.extend(random.map(|(name, r)| (name, format!("{r:?}").into_bytes())));
        bits
    }

    /// Trains until `steps` steps are done (0 for no limit) or something fails. Returns the number of steps done and
    /// the error.
    fn run(&mut self, steps: usize) -> (usize, String) {
        let mut done = 0;
        let mut logger = |event: Event<'_>| {
            done += usize::from(matches!(event, Event::Step(_)));
            match event {
                Event::Step(_) if done == steps => Err(gradus_tensor::Error::argument("logger", "enough")),
                _ => Ok(()),
            }
        };
        let trainer = Trainer::new(1).unwrap().schedule(Schedule::exponential(0.5).unwrap());
        let Training { model, optimizer, loader } = self;
        let run = trainer.fit(model, optimizer, loader, None, &Classification::default(), &mut [&mut logger]);
        (done, run.err().map(|e| e.to_string()).unwrap_or_default())
    }
}

#[test]
fn whichever_call_fails_the_steps_before_it_are_whole_and_the_one_that_failed_left_nothing() {
    let (backend, device) = Failing::device();
    let after: Vec<Bits> = (0..=5)
        .map(|steps| {
            let mut training = training(&device, 1.0);
            if steps > 0 {
                assert_eq!(training.run(steps).0, steps);
            }
            training.bits()
        })
        .collect();
    let (mut failures, mut unfinished) = ([0; 5], 0);
    for n in 1.. {
        let mut training = training(&device, 1.0);
        let ((done, error), failed) = backend.at(n, || training.run(0));
        let Some(name) = failed else {
            assert_eq!((done, error.as_str()), (5, ""));
            assert_eq!(training.bits(), after[5]);
            break;
        };
        assert!(error.contains("this call fails"), "call {n}, {name}: {error}");
        if error.contains("in the middle of a step") {
            unfinished += 1;
            assert!(training.optimizer.state_dict().is_err());
            continue;
        }
        failures[done] += 1;
        assert_eq!(training.bits(), after[done], "call {n}, {name}: {error}");
    }
    assert!(failures.iter().all(|&count| count > 30), "{failures:?}");
    // One call for each of the four parameters in each of five steps.
    assert_eq!(unfinished, 20);
}

#[test]
fn a_loss_that_is_not_finite_leaves_the_statistics_of_the_step_before() {
    let (_, device) = Failing::device();
    let mut whole = training(&device, 1.0);
    whole.run(4);
    let mut broken = training(&device, f32::NAN);
    let (done, error) = broken.run(0);
    assert!(done == 4 && error.contains("epoch 1, step 5"), "{error}");
    assert_eq!(broken.bits(), whole.bits());
}
