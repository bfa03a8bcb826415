//! [`StepMemory`]: the memory of a training step, measured with small batches.

use std::cell::RefCell;
use std::collections::HashSet;
use std::fmt;
use std::rc::Rc;

use gradus_tensor::{DType, Device, Error, Here, Result, Tensor, enable_grad, ops};

use super::layers::{taste, without_traces};
use super::table::size;
use crate::{Forward, Module};

/// The bytes that live on the device in a training step. It prints as a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct StepMemory {
    /// The parameters.
    pub parameters: usize,
    /// The buffers.
    pub buffers: usize,
    /// The input.
    pub input: usize,
    /// The most that lives beside these during the forward and the backward pass: results, saved values, gradients.
    pub passes: usize,
    /// The gradients of the parameters, which are among `passes`.
    pub gradients: usize,
    /// One number for each parameter that is not frozen, in the dtype in which optimisers compute: f32 for half
    /// precision.
    pub state: usize,
    /// The f32 copies that optimisers keep of parameters in half precision that are not frozen.
    pub master: usize,
}

impl StepMemory {
    /// The most that lives at any time of the step, with an optimiser that keeps this many numbers for each parameter
    /// that is not frozen: 0 for SGD, 1 with momentum, 2 for Adam. It keeps them in at least f32, beside an f32 copy of
    /// each parameter in half precision.
    pub fn peak(&self, optimizer_states: usize) -> usize {
        let states = self.state.saturating_mul(optimizer_states);
        let parts = [self.buffers, self.input, self.passes, states, self.master];
        parts.iter().fold(self.parameters, |all, &n| all.saturating_add(n))
    }

    /// The memory that a training step with this input takes, measured while it runs a forward and a backward pass of
    /// the mean square of the output. The model is left as it was: running statistics and generators are restored.
    ///
    /// The device's count of live bytes is read after each operation, and the largest value that it ever had at the end.
    /// That includes what an operation allocates and frees by itself, such as an operand that a product packs. To tell it
    /// from earlier peaks, as much memory is held meanwhile as was in use at most so far. Others that use the device at the
    /// same time are counted too.
    ///
    /// # Errors
    /// The errors of the passes, and an error if the device does not count its memory.
    #[track_caller]
    pub fn of<M: Forward + ?Sized>(model: &M, input: &Tensor) -> Result<StepMemory> {
        let found = measured(model, input)?;
        Ok(Self::with(model, input.numel() * input.dtype().size(), found.most()))
    }

    fn with<M: Module + ?Sized>(model: &M, input: usize, passes: i64) -> StepMemory {
        let bytes = |t: &Tensor| t.numel() * t.dtype().size();
        let (parameters, mut seen) = (model.parameters(), HashSet::new());
        let wide = |t: &Tensor| t.numel() * t.dtype().compute().size();
        let trained = || parameters.iter().filter(|p| !p.is_frozen());
        let buffers = model.named_buffers();
        StepMemory {
            parameters: parameters.iter().map(|p| bytes(p)).sum(),
            buffers: buffers.iter().filter(|(_, b)| seen.insert(b.id())).map(|(_, b)| bytes(&b.tensor())).sum(),
            input,
            passes: usize::try_from(passes).unwrap_or(0),
            gradients: trained().map(|p| bytes(p)).sum(),
            state: trained().map(|p| wide(p)).sum(),
            master: trained().filter(|p| p.dtype() != p.dtype().compute()).map(|p| wide(p)).sum(),
        }
    }
}

/// The batches that are measured.
const SMALL: [usize; 2] = [2, 4];

/// Larger batches are measured too, as far as they take no more than this many bytes.
const MOST_MEASURED: i128 = 256 << 20;

/// Predicts what a training step with an input of this shape takes, whose first axis is the batch, without running a
/// step of this size. The model is left as it was.
///
/// A forward and a backward pass run with batches of 2 and of 4, as in [`StepMemory::of`]. What lives after each
/// operation is a constant and a multiple of the batch size, which these two give; the peak is the largest of their sums
/// for the batch size in question. What operations allocate and free by themselves does not begin with small batches, so
/// that a half and a quarter of the batch are measured too, or less if they would take more than 256 MiB. A batch of up to
/// 4 is measured itself. The input is zeros of the dtype and on the device of the first parameter.
///
/// ```
/// # use gradus_nn::{Init, Linear, Relu, Sequential, step_memory}; use gradus_tensor::*;
/// # let device = Device::from_backend(std::sync::Arc::new(gradus_cpu::CpuBackend::new()?));
/// # let mut generator = Generator::new(0);
/// # let mut init = Init::new(DType::F32, &device, &mut generator);
/// let model = Sequential::new().add(Linear::new(64, 256, &mut init)?).add(Relu).add(Linear::new(256, 8, &mut init)?);
/// let memory = step_memory(&model, [4096, 64])?;
/// println!("{memory}");
/// println!("with Adam: {} bytes", memory.peak(2));
/// # assert!(memory.passes > 4096 * 256 * 4);
/// # Ok::<(), Error>(())
/// ```
///
/// # Errors
/// Those of [`StepMemory::of`], and an error if the shape has no axis, if the model has no parameters, or if it runs other
/// operations for another batch size.
#[track_caller]
pub fn step_memory<M: Forward + ?Sized>(model: &M, shape: impl AsRef<[usize]>) -> Result<StepMemory> {
    let (dtype, device) = taste(model, OP)?;
    let shape = shape.as_ref();
    let [batch, rest @ ..] = shape else {
        return Err(Error::argument(OP, "the shape has no axis; the first is the batch"));
    };
    let zeros = |n: usize| Tensor::zeros([&[n], rest].concat(), dtype, &device);
    if *batch <= SMALL[1] {
        return StepMemory::of(model, &zeros(*batch).here()?);
    }
    let [few, more] = SMALL;
    let low = measured(model, &zeros(few).here()?)?.line;
    let high = measured(model, &zeros(more).here()?)?.line;
    if low.len() != high.len() {
        let m = format!("{} operations run for a batch of {few}, and {} for one of {more}", low.len(), high.len());
        return Err(Error::argument(OP, m).help("measure a batch of the size in question with StepMemory::of"));
    }
    // Exact in i128, whatever the batch.
    let along = |[low, high]: [i64; 2], [few, more]: [usize; 2], batch: usize| {
        let slope = (i128::from(high) - i128::from(low)) * (batch as i128 - few as i128);
        i128::from(low) + slope / (more - few) as i128
    };
    let predicted =
        |batch: usize| low.iter().zip(&high).map(|(&low, &high)| along([low, high], SMALL, batch)).max().unwrap_or(0);
    let mut most = predicted(*batch);
    let mut half = batch / 2;
    while half > 2 * more && predicted(half) > MOST_MEASURED {
        half /= 2;
    }
    if half > 2 * more {
        let sizes = [half / 2, half];
        let mut peaks = [0; 2];
        for (peak, &n) in peaks.iter_mut().zip(&sizes) {
            *peak = measured(model, &zeros(n).here()?)?.most();
        }
        most = most.max(along(peaks, sizes, *batch));
    }
    let input = shape.iter().fold(dtype.size(), |bytes, &n| bytes.saturating_mul(n));
    Ok(StepMemory::with(model, input, i64::try_from(most).unwrap_or(i64::MAX)))
}

const OP: &str = "step_memory";

/// What a step took.
struct Measured {
    /// The live bytes of the device after each operation, beyond those before the step.
    line: Vec<i64>,
    /// The most that lived at any time, as far as it is known.
    peak: i64,
}

impl Measured {
    fn most(&self) -> i64 {
        self.line.iter().copied().max().unwrap_or(0).max(self.peak)
    }
}

/// Runs a step.
#[track_caller]
fn measured<M: Forward + ?Sized>(model: &M, input: &Tensor) -> Result<Measured> {
    let device: Device = input.device().clone();
    let stats = device.memory_stats();
    if stats.in_use == 0 && input.numel() > 0 {
        return Err(Error::argument(OP, format!("the device {device} does not count its memory")));
    }
    // The device's peak is that of its whole life. With this in use, it rises by what the step takes at most. Without
    // memory for it, what lives after each operation is known at least.
    let filling = Tensor::zeros([stats.peak.saturating_sub(stats.in_use)], DType::U8, &device).ok();
    let before = device.memory_stats().in_use;
    let line = Rc::new(RefCell::new(Vec::new()));
    let seen = line.clone();
    let sample = move |_: &ops::Traced<'_>| {
        seen.borrow_mut().push(device.memory_stats().in_use as i64 - before as i64);
    };
    let step = || {
        let output = model.forward(input)?;
        let output = if output.dtype().is_float() { output } else { output.to_dtype(DType::F32)? };
        let loss = output.square()?.mean_all()?;
        if loss.requires_grad() {
            drop(output);
            return loss.backward().map(Some);
        }
        Ok(None)
    };
    without_traces(|| enable_grad(|| ops::trace(sample, step))).here()?;
    let peak = match filling {
        Some(_) => input.device().memory_stats().peak as i64 - before as i64,
        None => 0,
    };
    Ok(Measured { line: line.take(), peak })
}

impl fmt::Display for StepMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "parameters         {}", size(self.parameters))?;
        writeln!(f, "buffers            {}", size(self.buffers))?;
        writeln!(f, "input              {}", size(self.input))?;
        writeln!(f, "passes, at most    {}", size(self.passes))?;
        writeln!(f, "  of these gradients of parameters {}", size(self.gradients))?;
        writeln!(f, "peak with SGD      {}", size(self.peak(0)))?;
        write!(f, "peak with Adam     {}", size(self.peak(2)))
    }
}
