//! [`divide`]: divides the layers of a whole model among the ranks by the names of their parameters.

use std::collections::HashMap;
use std::panic::Location;
use std::sync::Arc;

use gradus_nn::{Item, ItemMut, Module, Parameter, Split, StateDict, Visitor, VisitorMut};
use gradus_tensor::{Error, ErrorKind, Here, Result, Tensor};

use crate::communicator::Communicator;
use crate::division::{Divided, Output, part_of};
use crate::group::Line;

const OP: &str = "divide";

/// The layers that compute with a part of a weight.
const LAYERS: [&str; 3] = ["Linear", "Embedding", "Conv1D"];

/// Divides layers of a model among the ranks of `comm` (tensor parallelism; Shoeybi et al., 2019). The model then computes
/// what the whole one does, within rounding, and each rank holds its parts only. All ranks call it on models with the same
/// weights, before the optimiser is made.
///
/// `plan` says how each parameter is divided: the first entry counts whose name is the name of the parameter or its end,
/// as `mlp.c_fc.weight` is of `transformer.h.0.mlp.c_fc.weight`. Others stay whole. Models have plans, such as
/// `Gpt2::TENSOR_PARALLEL`. In one of your own, a [`Linear`](gradus_nn::Linear) whose weight and bias have
/// [`Split::Axis(0)`](Split::Axis) takes what is the same on all ranks and gives each some features; one whose weight has
/// `Split::Axis(1)` takes these, and gives all ranks the same sum. So they come in pairs, with nothing in between but what
/// treats each feature by itself. Random states in between are to draw other numbers on each rank ([`Split::Random`]).
/// In `Conv1D` the axes of the weight are the other way around. The table of an [`Embedding`](gradus_nn::Embedding) is
/// divided along axis 0. Layers are known by the names of their types, so a plan must not name a layer of your own with such
/// a name, nor a weight that something else than its layer reads too.
///
/// Names in the state stay what they were. [`join_state`] makes a state of the whole model from those of all ranks.
///
/// ```
/// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
/// use gradus_dist::{Options, divide, threads};
/// use gradus_nn::{Forward, Gelu, Init, Linear, Module, Sequential, Split};
///
/// threads(2, Options::default(), |comm| {
///     let device = Device::from_backend(Arc::new(CpuBackend::new()?));
///     let mut generator = Generator::new(7);
///     let mut init = Init::new(DType::F64, &device, &mut generator);
///     let mut model = Sequential::new().add(Linear::new(4, 8, &mut init)?).add(Gelu).add(Linear::new(8, 4, &mut init)?);
///     let x = Tensor::ones([3, 4], DType::F64, &device)?;
///     let whole = model.forward(&x)?;
///     let plan = [("0.weight", Split::Axis(0)), ("0.bias", Split::Axis(0)), ("2.weight", Split::Axis(1))];
///     divide(&mut model, &plan, comm)?;
///     assert_eq!(model.parameters()[0].shape(), [4, 4]);
///     assert!(model.forward(&x)?.sub(&whole)?.abs()?.max_all()?.item()? < 1e-12);
///     Ok(())
/// })?;
/// # Ok::<(), Error>(())
/// ```
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] if the plan fits no parameter, or has no such axis; if a parameter is divided already or
/// does not belong to a layer that computes with parts; [`ErrorKind::ShapeMismatch`] if it does not divide among the ranks
/// (a vocabulary does as long as each rank has a token). After any of these errors the model is unchanged. Heads that do not
/// divide among the ranks are an error of the first forward pass.
#[track_caller]
pub fn divide(model: &mut (impl Module + ?Sized), plan: &[(&str, Split)], comm: &Arc<dyn Communicator>) -> Result<()> {
    let parts = parts(&*model, plan, comm).here()?;
    VisitorMut::walk(model, &mut |_, item| {
        if let ItemMut::Parameter(p) = item
            && let Some((part, _)) = parts.iter().find(|(_, whole)| whole.is_same(p))
        {
            *p = part.clone();
        }
    });
    if comm.size() > 1 {
        for (name, state) in model.named_random_states() {
            if found(plan, &name) == Some(Split::Random) {
                state.set(state.get().fork(comm.rank() as u64));
            }
        }
    }
    Ok(())
}

/// The parts of this rank, each with the parameter whose place it takes.
fn parts(
    model: &(impl Module + ?Sized),
    plan: &[(&str, Split)],
    comm: &Arc<dyn Communicator>,
) -> Result<Vec<(Parameter, Parameter)>> {
    let mut kinds = HashMap::new();
    Visitor::walk(model, &mut |path, item| {
        if let Item::Kind(kind) = item {
            kinds.insert(path.to_owned(), kind.to_owned());
        }
    });
    let mut parts = vec![];
    for (name, parameter) in model.named_parameters() {
        let Some(split) = found(plan, &name) else { continue };
        let kind = kinds.get(name.rsplit_once('.').map_or("", |(layer, _)| layer)).map_or("no", String::as_str);
        if !LAYERS.contains(&kind) {
            let m = format!("{name} belongs to a layer of the type {kind}, which does not compute with a part of it");
            return Err(Error::argument(OP, m).help(format!("these do: {}", LAYERS.join(", "))));
        }
        if kind == "Embedding" && matches!(split, Split::Axis(axis) | Split::Blocks(axis, _) if axis != 0) {
            return Err(Error::argument(OP, format!("{name} is a table, which is divided along axis 0")));
        }
        let divided = divided(&name, &parameter, split, comm)?;
        parts.push((part_of(&parameter, divided)?, parameter));
    }
    if parts.is_empty() {
        let names = plan.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
        let own: Vec<String> = model.named_parameters().into_iter().map(|(name, _)| name).take(20).collect();
        let e = Error::argument(OP, format!("the plan fits no parameter of the model; it has {names}"));
        return Err(e.help(format!("names of the plan are ends of names of parameters: {}", own.join(", "))));
    }
    Ok(parts)
}

/// What the plan says of a name.
fn found(plan: &[(&str, Split)], name: &str) -> Option<Split> {
    let fits = |end: &str| name.strip_suffix(end).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
    plan.iter().find(|(end, _)| fits(end)).map(|(_, split)| *split)
}

/// How a parameter is divided.
fn divided(name: &str, parameter: &Parameter, split: Split, comm: &Arc<dyn Communicator>) -> Result<Divided> {
    let refuse = |kind, m: String| {
        let e = Error::new(kind, OP, m);
        Err(e.operand("parameter", parameter.shape(), parameter.dtype(), parameter.device()))
    };
    if parameter.division().is_some() {
        return refuse(ErrorKind::InvalidArgument, format!("{name} is divided already"));
    }
    let (axis, count, output) = match split {
        Split::Blocks(axis, count) => (axis, count, Output::Part),
        Split::Vocabulary => (0, 1, Output::Whole),
        Split::Classes => (0, 1, Output::Part),
        Split::Axis(axis) => (axis, 1, Output::Part),
        Split::Random => {
            return refuse(ErrorKind::InvalidArgument, format!("{name} is a parameter, and no random state"));
        }
    };
    let Some(&length) = parameter.shape().get(axis) else {
        return refuse(ErrorKind::InvalidArgument, format!("{name} has no axis {axis}"));
    };
    if count == 0 || !length.is_multiple_of(count) {
        let m = format!("{name} does not consist of {count} blocks of one length along axis {axis}");
        return refuse(ErrorKind::InvalidArgument, m);
    }
    let (each, ranks) = (length / count, comm.size());
    let is_even = each.is_multiple_of(ranks) || matches!(split, Split::Vocabulary | Split::Classes);
    if each < ranks || !is_even {
        let m = format!("{each} elements of {name} along axis {axis} do not divide among {ranks} ranks");
        return refuse(ErrorKind::ShapeMismatch, m);
    }
    Ok(Divided { axis, blocks: vec![each; count], output, comm: comm.clone() })
}

/// The state of the whole from that of this rank and of the others among which layers of `model` are divided: of the
/// model itself, or of its optimiser, whose tensors have the shapes of the parameters. Other tensors stay as they are. All
/// ranks call it. The result loads into the whole model and its optimiser, and with [`split_state`] on any other number of
/// ranks.
///
/// ```
/// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
/// use gradus_dist::{Options, divide, join_state, split_state, threads};
/// use gradus_nn::{AdamConfig, AdamW, Forward, Init, Linear, Module, Optimizer, Split, Strict};
///
/// threads(2, Options::default(), |comm| {
///     let device = Device::from_backend(Arc::new(CpuBackend::new()?));
///     let mut generator = Generator::new(7);
///     let mut model = Linear::without_bias(4, 8, &mut Init::new(DType::F32, &device, &mut generator))?;
///     divide(&mut model, &[("weight", Split::Vocabulary)], comm)?;
///     let mut optimizer = AdamW::new(model.named_parameters(), AdamConfig::default())?;
///     let x = Tensor::ones([3, 4], DType::F32, &device)?;
///     optimizer.step(&model.forward(&x)?.square()?.sum_all()?.backward()?)?;
///
///     let (weights, state) = (model.state_dict()?, optimizer.state_dict()?);
///     let (weights, state) = (join_state(&weights, &model)?, join_state(&state, &model)?);
///     assert_eq!(weights.get("weight").unwrap().shape(), [8, 4]);
///     model.load_state_dict(&split_state(&weights, &model)?, Strict::Yes)?;
///     optimizer.load_state_dict(&split_state(&state, &model)?, Strict::Yes)?;
///     Ok(())
/// })?;
/// # Ok::<(), Error>(())
/// ```
///
/// # Errors
/// Those of the communicators.
#[track_caller]
pub fn join_state(state: &StateDict, model: &(impl Module + ?Sized)) -> Result<StateDict> {
    let line: Line = Location::caller();
    mapped(state, model, |parameter, tensor| match parameter.division() {
        Some(division) if tensor.shape() == parameter.shape() => division.whole(tensor, line),
        _ => Ok(tensor.clone()),
    })
    .here()
}

/// What of the state of a whole model, or of its optimiser, belongs to the parts that this rank has of the divided layers
/// of `model`: the inverse of [`join_state`].
///
/// # Errors
/// Those of the device. A tensor that does not have the shape of the whole stays as it is, and is an error where it is loaded.
#[track_caller]
pub fn split_state(state: &StateDict, model: &(impl Module + ?Sized)) -> Result<StateDict> {
    mapped(state, model, |parameter, tensor| match parameter.division() {
        Some(division) if tensor.shape() == division.whole_shape(parameter.shape()) => division.part(tensor),
        _ => Ok(tensor.clone()),
    })
    .here()
}

/// A state with `f` of each tensor of a parameter: of its values, or of what an optimiser has for it.
fn mapped(
    state: &StateDict,
    model: &(impl Module + ?Sized),
    f: impl Fn(&Parameter, &Tensor) -> Result<Tensor>,
) -> Result<StateDict> {
    let mut parameters = HashMap::new();
    Visitor::walk(model, &mut |path, item| {
        if let Item::Parameter(p) = item {
            parameters.insert(path.to_owned(), p.clone());
        }
    });
    let mut made = StateDict::new();
    state.iter_metadata().for_each(|(key, text)| made.set_metadata(key, text));
    for (key, tensor) in state.iter() {
        let of_optimizer = || key.rsplit_once('.').and_then(|(name, _)| parameters.get(name));
        let tensor = match parameters.get(key).or_else(of_optimizer) {
            Some(parameter) => f(parameter, tensor)?,
            None => tensor.clone(),
        };
        made.insert(key, tensor);
    }
    Ok(made)
}
