//! Jobs. Each runs in three ways: with Gradus on the device, with hand-written modules, and with Gradus on the CPU.

use gradus::prelude::*;
use gradus_wgpu::WgpuBackend;

use crate::written::{Call, Written};

/// Makes a repeatable call from the inputs of a job.
type Prepare = Box<dyn Fn(&[Tensor]) -> Result<Call>>;

/// An input with random elements.
#[derive(Clone, Copy)]
pub(crate) enum Input {
    F32(&'static [usize]),
    Bf16(&'static [usize]),
    /// An i64 tensor of this shape, with elements from 0 up to, but not including, the number.
    Index(&'static [usize], usize),
}

/// What limits a job, for the columns that compare it with the device.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Work {
    /// Memory: each input is read once and each result written once.
    Bytes,
    /// Arithmetic: the number of floating-point operations.
    Flops(f64),
    /// The overhead of calls to the device.
    Calls,
}

/// How a call is timed.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Until {
    /// Several calls are timed together with a wait for the device.
    Done,
    /// One call is timed together with a wait for the device.
    DoneAlone,
    /// Only the calls are timed, without the wait for the device.
    Returned,
}

pub(crate) struct Job {
    pub(crate) name: &'static str,
    inputs: Vec<Input>,
    prepare: Prepare,
    written: Option<Written>,
    pub(crate) work: Work,
    pub(crate) until: Until,
    /// The largest permitted difference between results, relative to the largest element.
    tolerance: f32,
}

/// A job that is ready to be timed on a device. The results of all three ways have been compared, and agree.
pub(crate) struct Ready {
    pub(crate) ours: Call,
    pub(crate) written: Option<Call>,
    pub(crate) cpu: Call,
    /// The bytes of all inputs and results.
    pub(crate) needed: u64,
    /// The bytes that one call of Gradus moves on the device.
    pub(crate) moved: u64,
}

impl Job {
    pub(crate) fn new(
        name: &'static str,
        inputs: impl Into<Vec<Input>>,
        ours: impl Fn(&[Tensor]) -> Result<Tensor> + Copy + 'static,
    ) -> Job {
        Job::prepared(name, inputs, move |x| {
            let x = x.to_vec();
            Ok(Box::new(move || Ok(vec![ours(&x)?])))
        })
    }

    /// A job that prepares something from its inputs before it is timed.
    pub(crate) fn prepared(
        name: &'static str,
        inputs: impl Into<Vec<Input>>,
        prepare: impl Fn(&[Tensor]) -> Result<Call> + 'static,
    ) -> Job {
        let (inputs, prepare) = (inputs.into(), Box::new(prepare));
        Job { name, inputs, prepare, written: None, work: Work::Bytes, until: Until::Done, tolerance: 1e-5 }
    }

    pub(crate) fn written(self, written: Written) -> Job {
        Job { written: Some(written), ..self }
    }

    pub(crate) fn work(self, work: Work) -> Job {
        Job { work, ..self }
    }

    pub(crate) fn until(self, until: Until) -> Job {
        Job { until, ..self }
    }

    pub(crate) fn tolerance(self, tolerance: f32) -> Job {
        Job { tolerance, ..self }
    }

    /// Makes the inputs and runs each way once. Returns an error if the results differ. `backend` is the backend of
    /// `device`.
    pub(crate) fn ready(&self, backend: &WgpuBackend, device: &Device) -> Result<Ready> {
        let (cpu, mut generator) = (Device::cpu()?, Generator::new(1));
        let inputs: Vec<Tensor> =
            self.inputs.iter().map(|input| input.make(&cpu, &mut generator)).collect::<Result<_>>()?;
        let on_device: Vec<Tensor> = inputs.iter().map(|x| x.to_device(device)).collect::<Result<_>>()?;
        let (ours, cpu) = ((self.prepare)(&on_device)?, (self.prepare)(&inputs)?);
        let before = backend.counters().bytes;
        let results = ours()?;
        let moved = backend.counters().bytes - before;
        self.same("the CPU", &results, &cpu()?)?;
        let written = self.written.as_ref().map(|w| w.prepare(&on_device, &results)).transpose()?;
        if let Some(written) = &written {
            self.same("the hand-written module", &results, &written()?)?;
        }
        let needed = on_device.iter().chain(&results).map(|t| (t.numel() * t.dtype().size()) as u64).sum();
        Ok(Ready { ours, written, cpu, needed, moved })
    }

    /// Returns an error if the results differ from those of another way by more than the tolerance.
    fn same(&self, other: &str, ours: &[Tensor], theirs: &[Tensor]) -> Result<()> {
        for (a, b) in ours.iter().zip(theirs) {
            let (a, b) = (a.to_dtype(DType::F32)?.to_vec::<f32>()?, b.to_dtype(DType::F32)?.to_vec::<f32>()?);
            let most = b.iter().fold(0f32, |m, v| m.max(v.abs()));
            let near = |(a, b): (&f32, &f32)| a == b || (a - b).abs() <= self.tolerance * most;
            if a.len() != b.len() || !a.iter().zip(&b).all(near) {
                let worst = a.iter().zip(&b).fold(0f32, |m, (a, b)| m.max((a - b).abs()));
                let m = format!("{}: the result differs from that of {other} by {worst}, of {most}", self.name);
                return Err(Error::new(ErrorKind::Backend, "bench", m));
            }
        }
        Ok(())
    }
}

impl Input {
    fn make(&self, device: &Device, generator: &mut Generator) -> Result<Tensor> {
        match *self {
            Input::F32(shape) => Tensor::randn(shape, DType::F32, device, generator),
            Input::Bf16(shape) => Tensor::randn(shape, DType::BF16, device, generator),
            Input::Index(shape, below) => Tensor::randint(0, below as i64, shape, DType::I64, device, generator),
        }
    }
}
