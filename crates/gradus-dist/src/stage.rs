//! [`Stage`]: the modules of one rank of a pipeline.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::panic::Location;
use std::ptr;
use std::sync::Arc;

use gradus_nn::{Forward, Module, Sequential, Visitor, VisitorMut};
use gradus_tensor::{DType, Error, ErrorKind, Here, Result, Tensor};

use crate::call::Collective;
use crate::communicator::Communicator;
use crate::group::Line;
use crate::reduce::Reduce;

/// Some consecutive modules of a model, which one rank of a [`Pipeline`](crate::Pipeline) holds and computes. They keep the
/// names that they have in the whole model, such as `3.weight`, so that the state dicts of all stages together are that of
/// the model.
///
/// A cut is a list of ranges of modules, one for each rank; [`cut_evenly`] makes one from costs.
///
/// ```
/// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
/// use gradus_dist::{Options, Stage, threads};
/// use gradus_nn::{Init, Linear, Module};
///
/// let names = threads(2, Options::default(), |comm| {
///     let device = Device::from_backend(Arc::new(CpuBackend::new()?));
///     // Each module has random numbers of its own, so that the weights do not depend on the cut.
///     let make = |i: usize| {
///         let mut generator = Generator::new(7).fork(i as u64);
///         Linear::without_bias(4, 4, &mut Init::new(DType::F32, &device, &mut generator))
///     };
///     let stage = Stage::new(comm, &[0..1, 1..3], make)?;
///     Ok(stage.named_parameters().into_iter().map(|(name, _)| name).collect::<Vec<_>>())
/// })?;
/// assert_eq!(names, [vec!["0.weight"], vec!["1.weight", "2.weight"]]);
/// # Ok::<(), Error>(())
/// ```
pub struct Stage {
    layers: Vec<(String, Box<dyn Forward>)>,
}

impl Stage {
    /// The modules `cut[rank]`. `make` makes the module of a number, and is called for those of this rank only, so that no
    /// rank holds the parameters of another.
    ///
    /// All ranks call it.
    ///
    /// # Errors
    /// Those of `make`; [`ErrorKind::InvalidArgument`] if the cut does not give each rank at least one module, one after the
    /// other from 0; [`ErrorKind::Peer`] if ranks have different cuts. After any of them no further call is possible, on any
    /// rank.
    #[track_caller]
    pub fn new<F: Forward + 'static>(
        comm: &Arc<dyn Communicator>,
        cut: &[Range<usize>],
        mut make: impl FnMut(usize) -> Result<F>,
    ) -> Result<Stage> {
        let line = Location::caller();
        let made = |i: usize| Ok((i.to_string(), Box::new(make(i)?) as Box<dyn Forward>));
        let build = || own(&**comm, cut, line)?.map(made).collect::<Result<Vec<_>>>();
        Ok(Stage { layers: together(&**comm, build).here()? })
    }

    /// [`new`](Stage::new) for modules `0..modules`, cut so that stages have about as many parameters. Each rank makes some
    /// of the modules, one at a time, to count theirs; so `make` gives the same module for a number whenever it is called.
    ///
    /// All ranks call it.
    ///
    /// # Errors
    /// Those of [`new`](Stage::new) and of [`cut_evenly`]. After any of them no further call is possible, on any rank.
    #[track_caller]
    pub fn even<F: Forward + 'static>(
        comm: &Arc<dyn Communicator>,
        modules: usize,
        mut make: impl FnMut(usize) -> Result<F>,
    ) -> Result<Stage> {
        let line = Location::caller();
        let count = || {
            let mut costs = vec![0; modules];
            for i in (comm.rank()..modules).step_by(comm.size()) {
                costs[i] = make(i)?.num_parameters() as u64;
            }
            let sum = Collective::AllReduce(Reduce::Sum);
            let costs = comm.run_on_host(sum, DType::U64, costs, line)?;
            cut_evenly(&costs.into_iter().map(|n| n as usize).collect::<Vec<_>>(), comm.size())
        };
        let cut = together(&**comm, count).here()?;
        Stage::new(comm, &cut, make)
    }

    /// The layers `cut[rank]` of a model that every rank has made as a whole; the others are dropped.
    ///
    /// All ranks call it.
    ///
    /// # Errors
    /// Those of [`new`](Stage::new), and [`ErrorKind::InvalidArgument`] if layers of several stages share a parameter, or if
    /// the cut does not end with the last layer.
    #[track_caller]
    pub fn of(comm: &Arc<dyn Communicator>, mut model: Sequential, cut: &[Range<usize>]) -> Result<Stage> {
        let line = Location::caller();
        let take = || {
            let range = own(&**comm, cut, line)?;
            let end = cut.last().map_or(0, |range| range.end);
            if end != model.len() {
                let m = format!("the cut has {end} layers, and the model {}", model.len());
                return Err(Error::argument("stage", m));
            }
            refuse_shared(&model, cut)?;
            let names: Vec<String> = model.children().map(|(name, _)| name.into_owned()).collect();
            while model.len() > range.end {
                model.remove(range.end)?;
            }
            names[range.clone()].iter().map(|name| Ok((name.clone(), model.remove(range.start)?))).collect()
        };
        Ok(Stage { layers: together(&**comm, take).here()? })
    }
}

/// Runs `f`; if it fails here, it fails on all ranks.
#[track_caller]
pub(crate) fn together<R>(comm: &dyn Communicator, f: impl FnOnce() -> Result<R>) -> Result<R> {
    f().inspect_err(|e| {
        let text = e.to_string();
        let first = text.lines().next().unwrap_or_default();
        comm.give_up(&format!("stage {} of {} failed: {first}", comm.rank(), comm.size()));
    })
}

/// The modules of this rank, after a check of the cut.
fn own(comm: &dyn Communicator, cut: &[Range<usize>], line: Line) -> Result<Range<usize>> {
    let mut next = 0;
    let fits = cut.iter().all(|range| range.start == std::mem::replace(&mut next, range.end) && !range.is_empty());
    let (Some(range), true, true) = (cut.get(comm.rank()), fits, cut.len() == comm.size()) else {
        let e = Error::argument("stage", format!("a cut {cut:?} for {} ranks", comm.size()));
        return Err(e.help("it has a range for each rank, none of them empty, one after the other from 0"));
    };
    if !comm.agrees(&cut.iter().map(|range| range.end as u64).collect::<Vec<_>>(), line)? {
        let e = Error::new(ErrorKind::Peer, "stage", "ranks cut the model in different places");
        return Err(e.note(format!("rank {}: {cut:?}", comm.rank())).help("give all ranks the same cut"));
    }
    Ok(range.clone())
}

/// Fails if layers of different stages share a parameter, which would become two.
fn refuse_shared(model: &Sequential, cut: &[Range<usize>]) -> Result<()> {
    let mut homes: HashMap<usize, (usize, String)> = HashMap::new();
    for (stage, range) in cut.iter().enumerate() {
        for (layer, module) in model.children().skip(range.start).take(range.len()) {
            for (name, parameter) in module.named_parameters() {
                let address = ptr::from_ref(parameter.values()).addr();
                let name = format!("{layer}.{name}");
                let (home, first) = homes.entry(address).or_insert_with(|| (stage, name.clone()));
                if *home != stage {
                    let m = format!("{first} of stage {home} and {name} of stage {stage} are one parameter");
                    return Err(Error::argument("stage", m)
                        .help("make them two parameters, and tie these with pipeline.tie(&stage, [first, second])?"));
                }
            }
        }
    }
    Ok(())
}

impl Module for Stage {
    fn visit<'m>(&'m self, visitor: &mut Visitor<'m>) {
        visitor.kind("Stage");
        for (name, layer) in &self.layers {
            visitor.child(name.as_str(), layer);
        }
    }

    fn visit_mut<'m>(&'m mut self, visitor: &mut VisitorMut<'m>) {
        for (name, layer) in &mut self.layers {
            visitor.child(name.as_str(), layer);
        }
    }
}

impl Forward for Stage {
    #[track_caller]
    fn compute(&self, input: &Tensor) -> Result<Tensor> {
        let mut x = input.clone();
        for (_, layer) in &self.layers {
            x = layer.forward(&x)?;
        }
        Ok(x)
    }
}

impl fmt::Debug for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.tree().fmt(f)
    }
}

/// Cuts a list of modules into consecutive ranges, one for each of `stages` stages, such that the largest sum of costs is
/// as small as possible and, among such cuts, the sum of their squares. Costs are numbers of parameters or of operations, or
/// measured times, in any unit.
///
/// ```
/// use gradus_dist::cut_evenly;
///
/// assert_eq!(cut_evenly(&[6, 1, 1, 1, 1, 2], 3)?, [0..1, 1..4, 4..6]);
/// # Ok::<(), gradus_tensor::Error>(())
/// ```
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] if there are fewer modules than stages, or no stages.
#[track_caller]
pub fn cut_evenly(costs: &[usize], stages: usize) -> Result<Vec<Range<usize>>> {
    if stages == 0 || costs.len() < stages {
        let m = format!("{} modules for {stages} stages; each stage has at least one", costs.len());
        return Err(Error::argument("cut_evenly", m).help("cut the model into more modules, or take fewer ranks"));
    }
    let (_, most) = best_cut(costs, stages, |worst, cost| Some(worst.max(cost)));
    let squares = |sum: u128, cost: u128| (cost <= most).then(|| sum.saturating_add(cost.saturating_mul(cost)));
    Ok(best_cut(costs, stages, squares).0)
}

/// The cut of the smallest value, and that value. `join` adds a stage of a cost to the value of those before it, unless it
/// may not.
fn best_cut(costs: &[usize], stages: usize, join: impl Fn(u128, u128) -> Option<u128>) -> (Vec<Range<usize>>, u128) {
    // values[n]: the best value of the first n modules in the stages so far; starts[k][n]: where stage k begins then.
    let mut values: Vec<Option<u128>> = vec![None; costs.len() + 1];
    values[0] = Some(0);
    let mut starts = vec![];
    for _ in 0..stages {
        let (mut next, mut start) = (vec![None; costs.len() + 1], vec![0; costs.len() + 1]);
        for (from, before) in values.iter().enumerate() {
            let Some(before) = *before else { continue };
            let mut cost = 0;
            for to in from + 1..=costs.len() {
                cost += costs[to - 1] as u128;
                let Some(value) = join(before, cost) else { break };
                if next[to].is_none_or(|old| value < old) {
                    (next[to], start[to]) = (Some(value), from);
                }
            }
        }
        values = next;
        starts.push(start);
    }
    let mut end = costs.len();
    let mut cut: Vec<Range<usize>> = vec![];
    for start in starts.iter().rev() {
        cut.push(start[end]..end);
        end = start[end];
    }
    cut.reverse();
    (cut, values[costs.len()].unwrap_or(0))
}
