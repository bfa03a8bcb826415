//! Tests of the sizes of the operands that operations launch kernels on: those of inputs and results, and few temporary
//! ones. How often a kernel reads an operand is not counted. Also tests that the hand-written modules of
//! `benches/handwritten` give what Gradus gives.

mod common;
#[allow(dead_code)]
#[path = "../benches/handwritten/job.rs"]
mod job;
#[path = "../benches/handwritten/jobs.rs"]
mod jobs;
#[path = "../benches/handwritten/written.rs"]
mod written;

use std::sync::Arc;

use gradus::prelude::*;
use gradus_wgpu::WgpuBackend;

use job::Work;

/// The largest permitted number of bytes of the operands of an operation's launches, relative to that of its inputs and
/// results.
const MOST: f64 = 1.1;
/// Jobs whose operands have more, how much at most, and why.
const MORE: &[(&str, f64, &str)] = &[
    ("conv2d, gradient of w", 1.19, "sums of parts of the positions are written, and read by a second kernel"),
    ("attention, gradients", 2.2, "three kernels read the operands, because nothing of the scores is kept"),
];

fn opened() -> Option<(Arc<WgpuBackend>, Device)> {
    let backend = Arc::new(common::opened()?);
    Some((backend.clone(), Device::from_backend(backend)))
}

/// The bytes that a call adds to the counter.
fn moved<T>(backend: &WgpuBackend, call: impl FnOnce() -> Result<T>) -> u64 {
    let before = backend.counters().bytes;
    drop(call().expect("a result"));
    backend.counters().bytes - before
}

#[test]
fn kernels_have_no_more_operands_than_inputs_and_results() {
    let Some((backend, device)) = opened() else { return };
    let mut wrong = Vec::new();
    for (name, ..) in MORE {
        assert!(jobs::jobs().iter().any(|job| job.name == *name), "there is no job {name}");
    }
    for job in jobs::jobs() {
        let ready = job.ready(&backend, &device).expect("results that agree");
        if job.work == Work::Calls {
            continue;
        }
        let ratio = ready.moved as f64 / ready.needed as f64;
        let exception = MORE.iter().find(|(name, ..)| *name == job.name);
        let most = exception.map_or(MOST, |&(_, most, _)| most);
        // An exception that is not needed is wrong too.
        if ratio > most || (exception.is_some() && ratio <= MOST) {
            wrong.push(format!("{}: {ratio:.3} of at most {most}", job.name));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn bytes_are_those_of_distinct_elements() {
    let Some((backend, device)) = opened() else { return };
    let ones = |shape: &[usize]| Tensor::ones(shape, DType::F32, &device).expect("a tensor");
    let (x, row) = (ones(&[300, 200]), ones(&[200]));
    assert_eq!(moved(&backend, || x.add(&row)), 4 * (2 * 300 * 200 + 200));
    assert_eq!(moved(&backend, || x.add(&x)), 4 * 2 * 300 * 200, "an operand that is there twice is read once");
    assert_eq!(moved(&backend, || x.softmax(1)), 4 * 2 * 300 * 200, "an operand that is read three times counts once");
    assert_eq!(moved(&backend, || x.add_(&row)), 4 * (300 * 200 + 200), "a sum in place counts its output once");
    assert_eq!(moved(&backend, || x.narrow(0, 10, 5)?.t()?.copy()), 4 * 2 * 5 * 200);
    assert_eq!(moved(&backend, || x.to_dtype(DType::BF16)), (4 + 2) * 300 * 200);
    let windows = moved(&backend, || row.unfold_axis(0, 150, 1)?.copy());
    assert_eq!(windows, 4 * (200 + 51 * 150), "no more than what windows span");
}

#[test]
fn copies_between_buffers_count_twice_and_those_from_the_host_do_not() {
    let Some((backend, device)) = opened() else { return };
    let device = device.backend();
    let (mut from, mut to) = (device.alloc(4096).expect("memory"), device.alloc(4096).expect("memory"));
    assert_eq!(moved(&backend, || device.upload(&mut from, 0, &[7; 4096])), 0);
    assert_eq!(moved(&backend, || device.copy_buffer(&from, 0, &mut to, 1024, 2048)), 2 * 2048);
    let mut bytes = [0; 2048];
    assert_eq!(moved(&backend, || device.download(&to, 1024, &mut bytes)), 0);
    assert_eq!(bytes, [7; 2048]);
}
