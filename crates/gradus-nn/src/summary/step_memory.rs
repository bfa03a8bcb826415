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
    /// The device's count of live bytes is read after each operation. What an operation allocates and frees by itself is
    /// not seen: on the CPU, a product packs one of its operands, which for a wide layer and a large batch may add a fifth
    /// to the peak. Others that use the device at the same time are counted too.
    ///
    /// # Errors
    /// The errors of the passes, and an error if the device does not count its memory.
    #[track_caller]
    pub fn of<M: Forward + ?Sized>(model: &M, input: &Tensor) -> Result<StepMemory> {
        let line = time_line(model, input)?;
        Ok(Self::with(model, input.numel() * input.dtype().size(), line.into_iter().max().unwrap_or(0)))
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

/// Predicts what a training step with an input of this shape takes, whose first axis is the batch, without running a
/// step of this size. The model is left as it was.
///
/// A forward and a backward pass run with batches of 2 and of 4, as in [`StepMemory::of`]. What lives after each
/// operation is a constant and a multiple of the batch size, which these two give; the peak is the largest of their sums
/// for the batch size in question. A batch of up to 4 is measured itself. The input is zeros of the dtype and on the
/// device of the first parameter.
///
/// On the CPU, the peak was within 1 % of the real one for a convolutional network, an attention block and a perceptron
/// with a batch of 16; for the perceptron with a batch of 512 it was 17 % too low, for the reason that
/// [`StepMemory::of`] gives.
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
    let low = time_line(model, &zeros(few).here()?)?;
    let high = time_line(model, &zeros(more).here()?)?;
    if low.len() != high.len() {
        let m = format!("{} operations run for a batch of {few}, and {} for one of {more}", low.len(), high.len());
        return Err(Error::argument(OP, m).help("measure a batch of the size in question with StepMemory::of"));
    }
    // Exact in i128, whatever the batch.
    let at = |(&low, &high): (&i64, &i64)| {
        let slope = (i128::from(high) - i128::from(low)) * (*batch as i128 - few as i128);
        i128::from(low) + slope / (more - few) as i128
    };
    let most = low.iter().zip(&high).map(at).max().unwrap_or(0);
    let input = shape.iter().fold(dtype.size(), |bytes, &n| bytes.saturating_mul(n));
    Ok(StepMemory::with(model, input, i64::try_from(most).unwrap_or(i64::MAX)))
}

const OP: &str = "step_memory";

/// The live bytes of the device after each operation of a step, beyond those before it.
#[track_caller]
fn time_line<M: Forward + ?Sized>(model: &M, input: &Tensor) -> Result<Vec<i64>> {
    let device: Device = input.device().clone();
    let before = device.memory_stats().in_use;
    if before == 0 && input.numel() > 0 {
        return Err(Error::argument(OP, format!("the device {device} does not count its memory")));
    }
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
    Ok(line.take())
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
