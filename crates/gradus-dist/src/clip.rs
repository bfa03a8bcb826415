//! [`clip_grad_norm`]: the norm of gradients some of which are divided among the ranks.

use std::panic::Location;
use std::sync::Arc;

use gradus_nn::{Parameter, clip_to_norm, grad_norm_across};
use gradus_tensor::{DType, Gradients, Here, Result};

use crate::call::Collective;
use crate::communicator::Communicator;
use crate::group::Line;
use crate::reduce::Reduce;

/// [`gradus_nn::clip_grad_norm`] for a model with divided layers, on the ranks of `comm` among which they are divided. The
/// norm is that of the whole model: of a parameter that [is divided](Parameter::is_divided) the parts of all ranks count,
/// and any other once. Returns the norm before clipping, the same on all ranks.
///
/// All ranks call it, after the gradients were summed over other axes of a mesh, as
/// [`DataParallel::backward`](crate::DataParallel::backward) returns them.
///
/// ```
/// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
/// use gradus_dist::{ColumnLinear, Options, RowLinear, clip_grad_norm, threads};
/// use gradus_nn::{Forward, Init, Linear, Module};
///
/// let norm = |ranks| {
///     threads(ranks, Options::default(), |comm| {
///         let device = Device::from_backend(Arc::new(CpuBackend::new()?));
///         let mut generator = Generator::new(7);
///         let mut init = Init::new(DType::F64, &device, &mut generator);
///         let up = ColumnLinear::of(&Linear::new(2, 8, &mut init)?, comm)?;
///         let down = RowLinear::of(&Linear::new(8, 2, &mut init)?, comm)?;
///         let y = down.forward(&up.forward(&Tensor::ones([3, 2], DType::F64, &device)?)?)?;
///         let mut gradients = y.square()?.sum_all()?.backward()?;
///         clip_grad_norm(&mut gradients, &[up.parameters(), down.parameters()].concat(), 0.1, comm)
///     })
/// };
/// let (one, four) = (norm(1)?[0], norm(4)?);
/// assert!(four.iter().all(|norm| *norm == four[0] && (norm - one).abs() < 1e-12));
/// # Ok::<(), Error>(())
/// ```
///
/// # Errors
/// Those of [`gradus_nn::clip_grad_norm`], on all ranks, and those of the communicator. No gradient is changed then.
#[track_caller]
pub fn clip_grad_norm(
    gradients: &mut Gradients,
    parameters: &[Parameter],
    max_norm: f64,
    comm: &Arc<dyn Communicator>,
) -> Result<f64> {
    let line = Location::caller();
    let (divided, whole): (Vec<Parameter>, Vec<Parameter>) =
        parameters.iter().cloned().partition(Parameter::is_divided);
    // The numbers of the gradients that are whole come first.
    let counts = |i: &usize| {
        let is_there = gradients.get(whole[*i].tensor()).is_some_and(|g| g.numel() > 0);
        is_there && !whole[..*i].iter().any(|other| other.is_same(&whole[*i]))
    };
    let once = (0..whole.len()).filter(counts).count();
    let gather = |mut numbers: Vec<f64>| {
        let parts = numbers.split_off(once.min(numbers.len()));
        numbers.extend(gathered(&**comm, &parts, line)?);
        Ok(numbers)
    };
    let norm = grad_norm_across(gradients, &[&whole[..], &divided].concat(), gather).here()?;
    clip_to_norm(gradients, parameters, norm, max_norm).map(|()| norm)
}

/// The numbers of all ranks, one after the other.
pub(crate) fn gathered(comm: &dyn Communicator, mine: &[f64], line: Line) -> Result<Vec<f64>> {
    let (rank, sum) = (comm.rank(), Collective::AllReduce(Reduce::Sum));
    let mut counts = vec![0; comm.size()];
    counts[rank] = mine.len() as u64;
    let counts = comm.run_on_host(sum, DType::U64, counts, line)?;
    let at = counts[..rank].iter().sum::<u64>() as usize;
    let mut words = vec![0.0f64.to_bits(); counts.iter().sum::<u64>() as usize];
    words[at..at + mine.len()].iter_mut().zip(mine).for_each(|(word, x)| *word = x.to_bits());
    // Each number is added to zeros, which is exact.
    let all = comm.run_on_host(sum, DType::F64, words, line)?;
    Ok(all.into_iter().map(f64::from_bits).collect())
}
