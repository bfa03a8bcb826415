//! Gradient clipping.

use std::panic::Location;

use gradus_tensor::{DType, Device, Error, Gradients, Here, Result, Tensor, no_autocast_guard, no_grad_guard};

use crate::{Parameter, divisions};

/// The operation that errors of clipping in captured steps name.
const ON_DEVICE: &str = "clip_grad_norm_on_device";

/// Downloads the values of scalar tensors, with one transfer per device and dtype.
#[track_caller]
pub(super) fn fetch(scalars: &[Tensor]) -> Result<Vec<f64>> {
    let mut values = vec![0.0; scalars.len()];
    let mut kinds: Vec<(&Device, DType, Vec<usize>)> = Vec::new();
    for (i, s) in scalars.iter().enumerate() {
        match kinds.iter_mut().find(|(device, dtype, _)| *device == s.device() && *dtype == s.dtype()) {
            Some((.., members)) => members.push(i),
            None => kinds.push((s.device(), s.dtype(), vec![i])),
        }
    }
    for (_, dtype, members) in kinds {
        let parts: Vec<&Tensor> = members.iter().map(|&i| &scalars[i]).collect();
        let all = Tensor::stack(&parts, 0)?;
        let found = match dtype {
            DType::F64 => all.to_vec::<f64>()?,
            _ => all.to_dtype(DType::F32)?.to_vec::<f32>()?.into_iter().map(f64::from).collect(),
        };
        members.into_iter().zip(found).for_each(|(i, v)| values[i] = v);
    }
    Ok(values)
}

/// The distinct parameters that have a gradient, each with its gradient.
fn present<'a>(gradients: &Gradients, parameters: &'a [Parameter]) -> Vec<(&'a Parameter, Tensor)> {
    let mut seen = std::collections::HashSet::new();
    let distinct = parameters.iter().filter(|p| seen.insert(p.id()));
    distinct.filter_map(|p| Some((p, gradients.get(p.tensor())?.detach()))).collect()
}

/// Makes the numbers of all processes from those of this one.
type Gather<'a> = &'a dyn Fn(Vec<f64>) -> Result<Vec<f64>>;

/// The numbers of the parameters that are whole, and then those of the parts that all processes have of the others.
fn of_all_parts(numbers: &[f64], parameters: &[&Parameter], line: &'static Location<'static>) -> Result<Vec<f64>> {
    let of = |group: Option<usize>| {
        let both = numbers.iter().zip(parameters);
        both.filter(move |(_, p)| p.division().map(|d| d.group()) == group).map(|(number, _)| *number)
    };
    let mut all: Vec<f64> = of(None).collect();
    for division in divisions(parameters.iter().copied()) {
        all.extend(division.gather(&of(Some(division.group())).collect::<Vec<_>>(), line)?);
    }
    Ok(all)
}

/// The norm over all elements of the gradients of these parameters, of which `get` gives the one of a number, if there is
/// one, and of those of other processes.
///
/// Squares are summed in f32 or wider. If they overflow or vanish, they are summed again relative to the largest
/// element, so that the norm of finite gradients is correct whatever its size. Other powers always are.
#[track_caller]
fn total_norm(
    parameters: &[&Parameter],
    get: &dyn Fn(usize) -> Result<Option<Tensor>>,
    norm_type: f64,
    gather: Gather<'_>,
) -> Result<f64> {
    let line = Location::caller();
    // One number of each gradient that has elements, in at least f32.
    let each = |number: &dyn Fn(Tensor) -> Result<Tensor>| {
        let (mut numbers, mut owners) = (vec![], vec![]);
        for (i, parameter) in parameters.iter().enumerate() {
            if let Some(g) = get(i)?.filter(|g| g.numel() > 0) {
                numbers.push(number(g.to_dtype(g.dtype().compute())?)?);
                owners.push(*parameter);
            }
        }
        gather(of_all_parts(&fetch(&numbers)?, &owners, line)?)
    };
    if norm_type == 2.0 {
        let sum: f64 = each(&|g| g.square()?.sum_all())?.iter().sum();
        if sum.is_nan() || (sum.is_finite() && sum > 1e-20) {
            return Ok(sum.sqrt());
        }
    }
    // Unlike `f64::max`, this keeps NaN.
    let larger = |a: f64, b: f64| if a >= b || a.is_nan() { a } else { b };
    let largest = each(&|g| g.abs()?.max_all())?.into_iter().fold(0.0, larger);
    if largest == 0.0 || !largest.is_finite() || norm_type == f64::INFINITY {
        return Ok(largest);
    }
    let power = |g: Tensor| {
        let part = g.div(largest)?;
        if norm_type == 2.0 { part.square()? } else { part.abs()?.pow(norm_type)? }.sum_all()
    };
    let sum: f64 = each(&power)?.iter().sum();
    Ok(largest * if norm_type == 2.0 { sum.sqrt() } else { sum.powf(1.0 / norm_type) })
}

/// [`total_norm`] of gradients that are at hand.
#[track_caller]
fn norm_of_all(gradients: &[(&Parameter, Tensor)], norm_type: f64, gather: Gather<'_>) -> Result<f64> {
    let parameters: Vec<&Parameter> = gradients.iter().map(|(p, _)| *p).collect();
    total_norm(&parameters, &|i| Ok(Some(gradients[i].1.clone())), norm_type, gather)
}

/// The numbers of scalar tensors, as an f64 tensor of one axis.
#[track_caller]
fn gathered(scalars: &[Tensor]) -> Result<Tensor> {
    let wide = scalars.iter().map(|s| s.to_dtype(DType::F64)).collect::<Result<Vec<_>>>()?;
    Tensor::stack(&wide.iter().collect::<Vec<_>>(), 0)
}

/// [`total_norm`] with `norm_type` 2, computed on the device: an f64 tensor of shape `[]`, with the same bits. `gather` makes
/// one vector of the scalars of all processes.
#[track_caller]
fn device_norm(gradients: &[Tensor], gather: &dyn Fn(&[Tensor]) -> Result<Tensor>) -> Result<Tensor> {
    // The sum from the first to the last, as on the host.
    let summed = |scalars: &[Tensor]| {
        let all = gather(scalars)?;
        let Some(last) = all.numel().checked_sub(1).filter(|_| all.rank() == 1 && all.dtype() == DType::F64) else {
            let e = Error::argument(ON_DEVICE, "the numbers of all processes are no vector of f64 with an element");
            return Err(e.operand("numbers", all.shape(), all.dtype(), all.device()));
        };
        all.cumsum(0)?.narrow(0, last, 1)?.reshape([])
    };
    let (mut squares, mut largest) = (vec![], vec![]);
    for g in gradients {
        let g = g.to_dtype(g.dtype().compute())?;
        squares.push(g.square()?.sum_all()?);
        largest.push(g.abs()?.max_all()?);
    }
    let sum = summed(&squares)?;
    let largest = gather(&largest)?.max_all()?;
    let mut powers = vec![];
    for g in gradients {
        let dtype = g.dtype().compute();
        powers.push(g.to_dtype(dtype)?.div(&largest.to_dtype(dtype)?)?.square()?.sum_all()?);
    }
    let scaled = largest.mul(&summed(&powers)?.sqrt()?)?;
    let kept = largest.eq(0.0)?.logical_or(&largest.isfinite()?.logical_not()?)?;
    let scaled = kept.where_(&largest, &scaled)?;
    let usual = sum.isnan()?.logical_or(&sum.isfinite()?.logical_and(&sum.gt(1e-20)?)?)?;
    usual.where_(&sum.sqrt()?, &scaled)
}

/// The norm over all elements of the gradients of `parameters`: `(sum |g|^p)^(1/p)` for `norm_type` p, or the largest
/// magnitude for infinity (`torch.nn.utils.get_total_norm`). A shared parameter counts once; parameters without a
/// gradient do not count. Of a parameter that [is divided](Parameter::division) among processes the parts of all count:
/// all of them call it, and get the same norm.
///
/// # Errors
/// Fails if `norm_type` is not above 0.
#[track_caller]
pub fn grad_norm(gradients: &Gradients, parameters: &[Parameter], norm_type: f64) -> Result<f64> {
    check_norm_type("grad_norm", norm_type)?;
    let _guards = (no_grad_guard(), no_autocast_guard());
    norm_of_all(&present(gradients, parameters), norm_type, &Ok)
}

/// The [`grad_norm`] of gradients that need not all be there at once, to the same bits: `get` gives that of the parameter
/// with a number, if there is one, and is called up to three times for each.
///
/// # Errors
/// Those of `get`.
#[track_caller]
pub fn grad_norm_of(parameters: &[Parameter], get: impl Fn(usize) -> Result<Option<Tensor>>) -> Result<f64> {
    let _guards = (no_grad_guard(), no_autocast_guard());
    let parameters: Vec<&Parameter> = parameters.iter().collect();
    total_norm(&parameters, &|i| Ok(get(i)?.map(|g| g.detach())), 2.0, &Ok)
}

/// The [`grad_norm`] of gradients that are divided among several processes, to the same bits, if each process has those
/// of some consecutive parameters. `gather` is given one number for each gradient of this process and returns those of
/// all processes, in the order of the parameters. It is called up to three times, as often on every process.
///
/// ```
/// # use gradus_nn::{Parameter, grad_norm_across}; use gradus_tensor::*;
/// # let device = Device::from_backend(std::sync::Arc::new(gradus_cpu::CpuBackend::new()?));
/// let p = Parameter::new(Tensor::from_vec([3.0f32], [1], &device)?)?;
/// let gradients = p.square()?.sum_all()?.mul(0.5)?.backward()?;
/// // Another process has the gradient 4, whose square is 16.
/// let norm = grad_norm_across(&gradients, &[p], |squares| Ok([squares, vec![16.0]].concat()))?;
/// assert_eq!(norm, 5.0);
/// # Ok::<(), Error>(())
/// ```
///
/// # Errors
/// Those of `gather`.
#[track_caller]
pub fn grad_norm_across(
    gradients: &Gradients,
    parameters: &[Parameter],
    gather: impl Fn(Vec<f64>) -> Result<Vec<f64>>,
) -> Result<f64> {
    let _guards = (no_grad_guard(), no_autocast_guard());
    norm_of_all(&present(gradients, parameters), 2.0, &gather)
}

#[track_caller]
fn check_max_norm(op: &str, max_norm: f64) -> Result<()> {
    if max_norm > 0.0 {
        return Ok(());
    }
    Err(Error::argument(op, format!("max_norm is {max_norm}; it is above 0")))
}

#[track_caller]
fn check_norm_type(op: &str, norm_type: f64) -> Result<()> {
    if norm_type > 0.0 {
        return Ok(());
    }
    Err(Error::argument(op, format!("norm_type is {norm_type}; it is above 0")).help("2 is the usual length"))
}

/// Scales the gradients of `parameters` so that their total norm is at most `max_norm`. As in PyTorch, the factor is
/// `min(1, max_norm / (norm + 1e-6))`. Returns the norm before clipping, that of [`grad_norm`].
///
/// ```
/// # use gradus_nn::{Parameter, clip_grad_norm}; use gradus_tensor::*;
/// # let device = Device::from_backend(std::sync::Arc::new(gradus_cpu::CpuBackend::new()?));
/// let p = Parameter::new(Tensor::from_vec([3.0f32, 4.0], [2], &device)?)?;
/// let mut gradients = p.square()?.sum_all()?.mul(0.5)?.backward()?;
/// assert_eq!(clip_grad_norm(&mut gradients, &[p.clone()], 1.0)?, 5.0);
/// let clipped = gradients.get(&p).unwrap().to_vec::<f32>()?;
/// assert!((clipped[0] - 0.6).abs() < 1e-6 && (clipped[1] - 0.8).abs() < 1e-6);
/// # Ok::<(), Error>(())
/// ```
///
/// # Errors
/// Fails if the norm is not finite or `max_norm` is not above 0. No gradient is changed then.
#[track_caller]
pub fn clip_grad_norm(gradients: &mut Gradients, parameters: &[Parameter], max_norm: f64) -> Result<f64> {
    clip_grad_norm_with(gradients, parameters, max_norm, 2.0)
}

/// [`clip_grad_norm`] with the norm that [`grad_norm`] computes. To clip groups of parameters each by its own norm, call
/// it for each.
#[track_caller]
pub fn clip_grad_norm_with(
    gradients: &mut Gradients,
    parameters: &[Parameter],
    max_norm: f64,
    norm_type: f64,
) -> Result<f64> {
    check_norm_type("clip_grad_norm", norm_type)?;
    check_max_norm("clip_grad_norm", max_norm)?;
    let _guards = (no_grad_guard(), no_autocast_guard());
    let found = present(gradients, parameters);
    let norm = norm_of_all(&found, norm_type, &Ok)?;
    clip_to_norm(gradients, parameters, norm, max_norm).map(|()| norm)
}

/// What [`clip_grad_norm`] does once it knows the norm of the gradients.
///
/// # Errors
/// Fails if the norm is not finite or `max_norm` is not above 0. No gradient is changed then.
#[track_caller]
pub fn clip_to_norm(gradients: &mut Gradients, parameters: &[Parameter], norm: f64, max_norm: f64) -> Result<()> {
    check_max_norm("clip_grad_norm", max_norm)?;
    if !norm.is_finite() {
        let m = format!("the norm of the gradients is {norm}; nothing was changed");
        return Err(Error::argument("clip_grad_norm", m).help("lower the learning rate, or skip this step"));
    }
    let _guards = (no_grad_guard(), no_autocast_guard());
    let factor = max_norm / (norm + 1e-6);
    if factor < 1.0 {
        // All clipped gradients are computed before the first one is replaced.
        let mut new = vec![];
        for (p, g) in present(gradients, parameters) {
            new.push((p, g.mul(factor)?));
        }
        replace(gradients, new)?;
    }
    Ok(())
}

/// [`clip_grad_norm`] for [captured steps](https://docs.rs/gradus-graph): the norm stays on the device, and is returned
/// as an f64 tensor of shape `[]`. Norm and gradients have the bits of `clip_grad_norm`, which reads fewer elements and is
/// faster outside of captured steps.
///
/// If the norm is not finite, the gradients stay as they are, and there is no error: look at the norm. If the same
/// captured step also updates the parameters, such gradients have reached them by then.
///
/// # Errors
/// Fails if `max_norm` is not above 0, if gradients are on several devices, if the device does not support f64, or if a
/// parameter [is divided](Parameter::division) among processes.
#[track_caller]
pub fn clip_grad_norm_on_device(gradients: &mut Gradients, parameters: &[Parameter], max_norm: f64) -> Result<Tensor> {
    check_max_norm(ON_DEVICE, max_norm)?;
    let found = present(gradients, parameters);
    let Some((_, first)) = found.first() else {
        return Err(Error::argument(ON_DEVICE, "no parameter has a gradient")
            .help("give the parameters that the loss was computed with"));
    };
    if found.iter().all(|(_, g)| g.numel() == 0) {
        return Tensor::zeros([], DType::F64, first.device());
    }
    let norm = grad_norm_on_device(gradients, parameters, gathered)?;
    clip_to_norm_on_device(gradients, parameters, &norm, max_norm).map(|()| norm)
}

/// [`grad_norm_across`] for captured steps: an f64 tensor of shape `[]`, on the CPU with the same bits. `gather` is given a
/// scalar for each gradient of this process that has elements. It returns those of all processes as one f64 vector, which
/// has at least one element; zeros among them change nothing. It is called three times.
///
/// ```
/// # use gradus_nn::{Parameter, clip_to_norm_on_device, grad_norm_on_device}; use gradus_tensor::*;
/// # let device = Device::from_backend(std::sync::Arc::new(gradus_cpu::CpuBackend::new()?));
/// let p = Parameter::new(Tensor::from_vec([3.0f32], [1], &device)?)?;
/// let mut gradients = p.square()?.sum_all()?.mul(0.5)?.backward()?;
/// // Another process has a gradient that is zero.
/// let gather = |mine: &[Tensor]| Tensor::stack(&[&mine[0], &mine[0].zeros_like()?], 0)?.to_dtype(DType::F64);
/// let norm = grad_norm_on_device(&gradients, &[p.clone()], gather)?;
/// assert_eq!(norm.item()?, 3.0);
/// clip_to_norm_on_device(&mut gradients, &[p.clone()], &norm, 1.5)?;
/// assert!((gradients.get(&p).unwrap().item()? - 1.5).abs() < 1e-6);
/// # Ok::<(), Error>(())
/// ```
///
/// # Errors
/// Those of `gather`; if it returns something else, if the device does not support f64, or if a parameter
/// [is divided](Parameter::division) among processes.
#[track_caller]
pub fn grad_norm_on_device(
    gradients: &Gradients,
    parameters: &[Parameter],
    gather: impl Fn(&[Tensor]) -> Result<Tensor>,
) -> Result<Tensor> {
    let _guards = (no_grad_guard(), no_autocast_guard());
    let found = present(gradients, parameters);
    let whole = found.iter().try_for_each(|(p, _)| p.check_whole(ON_DEVICE));
    whole.map_err(|e| e.help("clip with clip_grad_norm")).here()?;
    let filled: Vec<Tensor> = found.into_iter().map(|(_, g)| g).filter(|g| g.numel() > 0).collect();
    device_norm(&filled, &gather)
}

/// [`clip_to_norm`] for captured steps: `norm` is an f64 tensor of shape `[]`. If it is not finite, the gradients stay as they
/// are, and there is no error.
///
/// # Errors
/// Fails if `max_norm` is not above 0, or if `norm` is something else.
#[track_caller]
pub fn clip_to_norm_on_device(
    gradients: &mut Gradients,
    parameters: &[Parameter],
    norm: &Tensor,
    max_norm: f64,
) -> Result<()> {
    check_max_norm(ON_DEVICE, max_norm)?;
    if norm.rank() != 0 || norm.dtype() != DType::F64 {
        let e = Error::argument(ON_DEVICE, "the norm is one number, of f64");
        return Err(e.operand("norm", norm.shape(), norm.dtype(), norm.device()));
    }
    let _guards = (no_grad_guard(), no_autocast_guard());
    let factor = (max_norm / norm.add(1e-6)?)?;
    let clips = norm.isfinite()?.logical_and(&factor.lt(1.0)?)?;
    let factor = clips.where_(&factor, 1.0)?;
    let mut new = vec![];
    for (p, g) in present(gradients, parameters) {
        let clipped = g.mul(&factor.to_dtype(g.dtype().compute())?)?.to_dtype(g.dtype())?;
        new.push((p, clipped));
    }
    replace(gradients, new)
}

/// Clamps each element of the gradients of `parameters` to `-max ..= max`. NaN stays NaN.
#[track_caller]
pub fn clip_grad_value(gradients: &mut Gradients, parameters: &[Parameter], max: f64) -> Result<()> {
    if max.is_nan() || max < 0.0 {
        return Err(Error::argument("clip_grad_value", format!("max is {max}; it is at least 0")));
    }
    let _guard = no_grad_guard();
    let found = present(gradients, parameters);
    let mut new = vec![];
    for (p, g) in found {
        new.push((p, g.clamp(-max, max)?));
    }
    replace(gradients, new)
}

#[track_caller]
fn replace(gradients: &mut Gradients, new: Vec<(&Parameter, Tensor)>) -> Result<()> {
    new.into_iter().try_for_each(|(p, g)| gradients.set(p.tensor(), g)).here()
}
