//! Measures the time of each way to run a job, in turns, and the highest speeds that the device reaches.

use std::time::{Duration, Instant};

use gradus::backend::Buffer;
use gradus::prelude::*;

use crate::job::{Ready, Until};
use crate::written::{Call, Written};

/// The smallest number of rounds of a job. After these, rounds continue until `BUDGET` is spent.
const ROUNDS: usize = 5;
const BUDGET: Duration = Duration::from_millis(1500);
/// The approximate time in seconds that the calls of a slice take together.
const SLICE: f64 = 5e-3;
/// The largest number of calls before a wait. After a few more, the backend would submit the work by itself.
const CALLS: usize = 200;

/// The medians of a job's rounds, in seconds per call.
pub(crate) struct Measured {
    pub(crate) ours: f64,
    pub(crate) written: Option<f64>,
    pub(crate) cpu: f64,
    /// The median ratio of our time to that of the hand-written modules in the same round.
    pub(crate) ratio: Option<f64>,
}

/// A call, and how many times it is made in a slice.
struct Paced<'a> {
    call: &'a Call,
    device: &'a Device,
    count: usize,
    until: Until,
}

impl<'a> Paced<'a> {
    fn new(call: &'a Call, device: &'a Device, until: Until) -> Result<Self> {
        let mut paced = Paced { call, device, count: 1, until };
        let one = paced.seconds()?.min(paced.seconds()?);
        if until != Until::DoneAlone {
            paced.count = ((SLICE / one) as usize).clamp(1, CALLS);
        }
        Ok(paced)
    }

    /// Runs a slice, and returns the seconds per call.
    fn seconds(&self) -> Result<f64> {
        let start = Instant::now();
        for _ in 0..self.count {
            drop((self.call)()?);
        }
        let returned = start.elapsed();
        self.device.synchronize()?;
        let time = if self.until == Until::Returned { returned } else { start.elapsed() };
        Ok(time.as_secs_f64() / self.count as f64)
    }
}

/// Times the ways to run a job, in turns.
pub(crate) fn measure(device: &Device, until: Until, job: &Ready) -> Result<Measured> {
    let cpu = Device::cpu()?;
    let ours = Paced::new(&job.ours, device, until)?;
    let written = job.written.as_ref().map(|call| Paced::new(call, device, until)).transpose()?;
    let host = Paced::new(&job.cpu, &cpu, until)?;
    let mut times: [Vec<f64>; 4] = Default::default();
    let start = Instant::now();
    while times[0].len() < ROUNDS || start.elapsed() < BUDGET {
        let first = ours.seconds()?;
        times[0].push(first);
        if let Some(written) = &written {
            let second = written.seconds()?;
            times[1].push(second);
            times[2].push(first / second);
        }
        times[3].push(host.seconds()?);
    }
    let [ours, written, ratio, cpu] = times.map(median);
    let there = |x: f64| job.written.is_some().then_some(x);
    Ok(Measured { ours, written: there(written), cpu, ratio: there(ratio) })
}

/// The median of the times; NaN if there are none.
fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The time of the fastest of a few runs, in seconds.
fn fastest(device: &Device, mut run: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut best = f64::INFINITY;
    for _ in 0..=ROUNDS {
        let start = Instant::now();
        run()?;
        device.synchronize()?;
        best = best.min(start.elapsed().as_secs_f64());
    }
    Ok(best)
}

/// The bytes per second that a copy from one buffer to another reads and writes.
pub(crate) fn bandwidth(device: &Device) -> Result<f64> {
    const BYTES: usize = 64 << 20;
    let backend = device.backend();
    let (from, mut to): (Buffer, Buffer) = (backend.alloc(BYTES)?, backend.alloc(BYTES)?);
    let time = fastest(device, || backend.copy_buffer(&from, 0, &mut to, 0, BYTES))?;
    Ok(2.0 * BYTES as f64 / time)
}

/// The floating-point operations per second of a kernel that does nothing but multiply and add in f32.
pub(crate) fn peak(device: &Device) -> Result<f64> {
    const INVOCATIONS: usize = 1 << 16;
    const STEPS: usize = 4096;
    /// The number of multiply-adds that an invocation does in one step.
    const CHAINS: usize = 8;
    let x = Tensor::full([INVOCATIONS], 0.5, DType::F32, device)?;
    let text = include_str!("../wgsl/peak.wgsl");
    let call = Written::one(text, &[("STEPS", STEPS)], [(INVOCATIONS / 64) as u32, 1, 1])
        .prepare(std::slice::from_ref(&x), std::slice::from_ref(&x))?;
    let time = fastest(device, || call().map(drop))?;
    Ok((2 * CHAINS * STEPS * INVOCATIONS) as f64 / time)
}
