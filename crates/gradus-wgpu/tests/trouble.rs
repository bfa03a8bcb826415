//! Tests of devices that are lost, full or closed in the middle of a step, of modules that misbehave, and of two
//! processes on one adapter. Errors must be typed, and a step that failed can be repeated.

mod common;

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use gradus::backend::Backend;
use gradus::prelude::*;
use gradus::{Bound, ComputeModule};
use gradus_wgpu::WgpuBackend;

/// A small classifier, its optimiser and its device.
struct Training {
    model: Sequential,
    optimizer: AdamW,
    device: Device,
}

impl Training {
    fn new(device: &Device) -> Result<Training> {
        let mut rng = Generator::new(3);
        let init = &mut Init::new(DType::F32, device, &mut rng);
        let model = Sequential::new().add(Linear::new(6, 8, init)?).add(Relu).add(Linear::new(8, 3, init)?);
        let optimizer = AdamW::new(model.named_parameters(), AdamConfig { lr: 0.1, ..AdamConfig::default() })?;
        Ok(Training { model, optimizer, device: device.clone() })
    }

    /// A forward pass, a backward pass, a step of the optimiser and a read, as one unit. Returns the loss.
    fn step(&mut self, at: usize) -> Result<f32> {
        let numbers: Vec<f32> = (0..24).map(|i| ((i * 7 + at * 5) % 11) as f32 - 5.0).collect();
        let x = Tensor::from_vec(numbers, [4, 6], &self.device)?;
        let y = Tensor::from_vec([0i64, 2, 1, 2], [4], &self.device)?;
        all_or_nothing(|| {
            let loss = self.model.forward(&x)?.cross_entropy(&y)?;
            self.optimizer.step(&loss.backward()?)?;
            Ok(loss.to_vec::<f32>()?[0])
        })
    }
}

/// The losses of three steps on a device that nothing disturbs.
fn undisturbed() -> Option<[f32; 3]> {
    let device = Device::from_backend(Arc::new(common::opened()?));
    let mut training = Training::new(&device).expect("a model");
    Some([0, 1, 2].map(|at| training.step(at).expect("a step")))
}

#[test]
fn a_device_that_is_lost_at_any_call_of_a_step_is_an_error_and_the_step_can_be_repeated_elsewhere() {
    let Some(expected) = undisturbed() else { return };
    let spare = Device::from_backend(Arc::new(common::opened().expect("a device")));
    // `lost_after` is the number of the call after which the device is lost. The loop ends when the step makes fewer
    // calls.
    for lost_after in 1.. {
        let backend = Arc::new(common::opened().expect("a device"));
        let (calls, counted) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let (seen, counts, closing) = (calls.clone(), counted.clone(), backend.clone());
        let device = Device::from_backend(backend.clone()).watched(move |_| {
            if counts.load(Relaxed) && seen.fetch_add(1, Relaxed) + 1 == lost_after {
                closing.close();
            }
        });
        let mut training = Training::new(&device).expect("a model");
        training.step(0).expect("a step");
        let cpu = Device::cpu().expect("the CPU");
        let (model, optimizer) = (training.model.state_dict(), training.optimizer.state_dict());
        let saved = [model, optimizer].map(|state| state.and_then(|s| s.to_device(&cpu)).expect("a state on the host"));
        counted.store(true, Relaxed);
        let done = training.step(1);
        counted.store(false, Relaxed);
        if !backend.is_lost() {
            assert!(lost_after > 20 && done.expect("a step") == expected[1], "{lost_after} calls");
            break;
        }
        // If the device is lost after the last call, nothing is left that could fail.
        if let Err(e) = done {
            assert!(e.kind() == &ErrorKind::Backend && e.to_string().contains("is lost"), "{lost_after}: {e}");
            let again = training.step(1).expect_err("the device is gone");
            assert_eq!(again.kind(), &ErrorKind::Backend, "{again}");
        }
        drop(training);
        let mut training = Training::new(&spare).expect("a model");
        training.model.load_state_dict(&saved[0], Strict::Yes).expect("the parameters");
        training.optimizer.load_state_dict(&saved[1], Strict::Yes).expect("the optimiser's state");
        assert_eq!([1, 2].map(|at| training.step(at).expect("a step")), expected[1..], "{lost_after}");
    }
}

#[test]
fn a_step_that_finds_no_memory_changes_nothing_and_can_be_repeated() {
    let Some(expected) = undisturbed() else { return };
    let backend = Arc::new(common::opened().expect("a device"));
    let device = Device::from_backend(backend.clone());
    let mut training = Training::new(&device).expect("a model");
    assert_eq!(training.step(0).expect("a step"), expected[0]);
    let (mut refused, used) = (0, backend.memory_stats().in_use);
    for more in (0..).step_by(4) {
        backend.set_memory_budget(Some(used + more)).expect("a budget");
        match training.step(1) {
            Err(e) => {
                assert!(matches!(e.kind(), ErrorKind::OutOfMemory { requested } if *requested > 0), "{more}: {e}");
                assert!(e.location().is_some(), "{more}: {e}");
                refused += 1;
            }
            Ok(loss) => {
                assert_eq!(loss, expected[1], "{more}");
                break;
            }
        }
        assert_eq!(backend.memory_stats().in_use, used, "{more}");
    }
    assert!(refused > 100, "{refused} budgets refused");
    backend.set_memory_budget(None).expect("no budget");
    assert_eq!(training.step(2).expect("a step"), expected[2]);
}

#[test]
fn a_device_that_is_closed_while_others_compute_is_an_error_for_each_of_them() {
    for after in [0, 1, 5, 20, 50] {
        let Some(backend) = common::opened() else { return };
        let backend = Arc::new(backend);
        let device = Device::from_backend(backend.clone());
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let Ok(mut training) = Training::new(&device) else { return };
                    let failed = (0..).find_map(|at| training.step(at).err()).expect("an end");
                    assert!(failed.kind() == &ErrorKind::Backend && failed.to_string().contains("is lost"), "{failed}");
                });
            }
            std::thread::sleep(std::time::Duration::from_millis(after));
            backend.close();
        });
        assert!(device.synchronize().is_err());
    }
}

/// A module whose main function has this body, with bindings `x` and `y` of i32.
fn ints(body: &str) -> String {
    format!(
        "@group(0) @binding(0) var<storage, read> x: array<i32>;
        @group(0) @binding(1) var<storage, read_write> y: array<i32>;
        @compute @workgroup_size(1) fn main() {{ {body} }}"
    )
}

#[test]
fn a_module_that_divides_by_zero_overflows_or_never_ends_leaves_the_device_usable() {
    let Some(backend) = common::opened() else { return };
    let device = Device::from_backend(Arc::new(backend));
    let x = Tensor::from_vec([0i32, -1, i32::MIN, 40], [4], &device).expect("numbers");
    let y = Tensor::zeros([4], DType::I32, &device).expect("zeros");
    let run = |body: &str| {
        let both = [Bound::Read(&x), Bound::Write(&y)];
        device.dispatch_compute(ComputeModule::Wgsl(&ints(body)), &both, &[], [1, 1, 1])?;
        y.to_vec::<i32>()
    };
    // In WGSL, division by zero returns the dividend, and so does a division that overflows.
    let divided = run("y[0] = x[3] / x[0]; y[1] = x[3] % x[0]; y[2] = x[2] / x[1]; y[3] = x[2] % x[1];");
    assert_eq!(divided.expect("numbers"), [40, 0, i32::MIN, 0]);
    let wrapped = run("y[0] = x[2] - 1; y[1] = x[3] << u32(x[3]); y[2] = i32(f32(x[2]) * 4.0); y[3] = -x[2];");
    assert_eq!(wrapped.expect("numbers"), [i32::MAX, 40 << 8, i32::MIN, i32::MIN]);
    // A driver either ends such a kernel or gives up the device.
    match run("loop { y[0] = y[0] + 1; if (y[0] == -5) { break; } }") {
        Ok(_) => assert_eq!(run("y[0] = 3;").expect("numbers")[0], 3),
        Err(e) => assert_eq!(e.kind(), &ErrorKind::Backend, "{e}"),
    }
}

/// The environment variable that is set for the processes that the test below starts, which train and print their
/// losses.
const CHILD: &str = "GRADUS_TEST_CHILD";

#[test]
fn two_processes_train_on_one_adapter() {
    let Some(expected) = undisturbed() else { return };
    let line = format!("losses {:?}", expected.map(f32::to_bits));
    if std::env::var_os(CHILD).is_some() {
        for _ in 0..5 {
            println!("losses {:?}", undisturbed().expect("a device").map(f32::to_bits));
        }
        return;
    }
    let start = || {
        let mut child = Command::new(std::env::current_exe().expect("this program"));
        child.args(["--exact", "two_processes_train_on_one_adapter", "--nocapture"]).env(CHILD, "1");
        child.stdout(Stdio::piped()).spawn().expect("a process")
    };
    for child in [start(), start()] {
        let output = child.wait_with_output().expect("its output");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.matches(&line).count() == 5, "{line}: {text}");
    }
}

#[test]
fn a_tensor_outlives_its_device_and_its_loss() {
    let Some(backend) = common::opened() else { return };
    let backend: Arc<WgpuBackend> = Arc::new(backend);
    let x = Tensor::ones([3], DType::F32, &Device::from_backend(backend.clone())).expect("ones");
    assert_eq!(x.add(1.0).and_then(|x| x.to_vec::<f32>()).expect("values"), [2.0; 3]);
    backend.close();
    drop(backend);
    assert_eq!(x.to_vec::<f32>().expect_err("the device is gone").kind(), &ErrorKind::Backend);
}
