//! Devices without memory left.

use std::collections::BTreeSet;

use gradus_nn::{AdamConfig, AdamW, Forward, Init, Linear, Module, Optimizer};
use gradus_tensor::{DType, Device, Error, ErrorKind, Generator, Result, Tensor};

use crate::stand_in::{computes, fail, numbers, opened, with_variables};

#[test]
fn what_does_not_fit_is_an_error_that_says_so() {
    let test = "memory::what_does_not_fit_is_an_error_that_says_so";
    with_variables(test, &[("GRADUS_PTX_MEMORY", "1000000")], || {
        let Some(device) = opened() else { return };
        let e = Tensor::zeros([1 << 20], DType::F32, &device).expect_err("more than there is");
        assert!(matches!(e.kind(), ErrorKind::OutOfMemory { requested: 4_194_304 }), "{e}");
        assert!(e.to_string().contains("smaller batches"), "{e}");
        computes(&device);
    });
}

#[test]
fn memory_that_is_freed_is_used_again() {
    let test = "memory::memory_that_is_freed_is_used_again";
    // The pool keeps what is freed, until the device has no more.
    with_variables(test, &[("GRADUS_PTX_MEMORY", "1000000"), ("GRADUS_CUDA_EXACT", "0")], || {
        let Some(device) = opened() else { return };
        for size in [40_000, 80_000, 120_000, 160_000, 200_000] {
            let x = Tensor::zeros([size], DType::F32, &device).expect("what is kept is given back first");
            drop(x);
        }
        computes(&device);
    });
}

/// A network with its optimiser.
struct Training {
    layer: Linear,
    optimizer: AdamW,
    x: Tensor,
}

impl Training {
    fn new(device: &Device) -> Result<Training> {
        let mut generator = Generator::new(0);
        let mut init = Init::new(DType::F32, device, &mut generator);
        let layer = Linear::new(4, 3, &mut init)?;
        let optimizer = AdamW::new(layer.named_parameters(), AdamConfig::default())?;
        Ok(Training { layer, optimizer, x: numbers(device)?.reshape([25, 4])? })
    }

    /// One step. An error comes with the part that failed.
    fn step(&mut self) -> std::result::Result<(), (&'static str, Error)> {
        let loss = self.layer.forward(&self.x).and_then(|y| y.tanh()?.sum_all()).map_err(|e| ("forward", e))?;
        let gradients = loss.backward().map_err(|e| ("backward", e))?;
        self.optimizer.step(&gradients).map_err(|e| ("optimizer", e))
    }

    fn values(&self) -> Result<Vec<Vec<f32>>> {
        self.layer.named_parameters().iter().map(|(_, one)| one.tensor().to_vec()).collect()
    }
}

/// A step that runs out of memory, wherever that happens, changes nothing, and the next one is as if it had not been tried.
#[test]
fn a_training_step_without_memory_changes_nothing() {
    with_variables("memory::a_training_step_without_memory_changes_nothing", &[], || {
        let Some(device) = opened() else { return };
        let mut undisturbed = Training::new(&device).expect("a network");
        let mut values = vec![undisturbed.values().expect("values")];
        for _ in 0..2 {
            undisturbed.step().expect("memory");
            values.push(undisturbed.values().expect("values"));
        }
        let mut failed = BTreeSet::new();
        // The first step of the optimiser makes its state, the second one has it.
        for done in 0..2 {
            for call in 1.. {
                let mut training = Training::new(&device).expect("a network");
                for _ in 0..done {
                    training.step().expect("memory");
                }
                fail(&format!("cuMemAlloc_v2:{call}+=2"));
                let outcome = training.step();
                fail("");
                let Err((part, e)) = outcome else { break };
                assert!(matches!(e.kind(), ErrorKind::OutOfMemory { .. }), "{part}, allocation {call}: {e}");
                assert_eq!(training.values().expect("values"), values[done], "{part}, allocation {call}");
                training.step().expect("memory");
                assert_eq!(training.values().expect("values"), values[done + 1], "{part}, allocation {call}");
                failed.insert(part);
            }
        }
        assert_eq!(failed.into_iter().collect::<Vec<_>>(), ["backward", "forward", "optimizer"]);
    });
}
