//! [`capture`] and [`Step`]: a function that is traced and then replayed.

use std::sync::Arc;

use gradus_tensor::backend::log;
use gradus_tensor::{Error, ErrorKind, Result, Tensor};

use crate::compare::agree;
use crate::graph::Graph;
use crate::key::Key;
use crate::passes;
use crate::plan::Plan;
use crate::record::{First, Trace, record};
use crate::verify;

/// The number of calls that may be traced before a difference between two of them is an error. The first call of a
/// training step allocates the state of its optimiser, so it differs from the others.
const TRACES: usize = 4;

/// The largest number of plans of a step. The least recently used one goes first.
const PLANS: usize = 8;

/// A function of tensors whose operations are traced and then replayed; see [`capture`].
pub struct Step<F> {
    pub(crate) f: F,
    /// The most recently used last.
    plans: Vec<(Key, Progress)>,
    replays: u64,
    /// The number of replays that are still to be verified.
    verified: u64,
}

/// How far the capture for one kind of arguments is.
enum Progress {
    /// The last of so many traces.
    Traced(Box<Trace>, usize),
    Ready(Box<Plan>),
}

/// Wraps `f` so that its later calls are replayed.
///
/// The first two calls of [`Step::call`] run `f` and trace the operations. If these agree, the calls that follow replay
/// them. If not, the next calls are traced too: the first call of a training step allocates the optimiser's state. After
/// four traces a difference is an error that names the operation and both forms. Arguments of another shape, dtype,
/// stride or device are traced anew; at most eight forms are kept, and with `GRADUS_LOG=graph` a line says why a call is
/// traced.
///
/// A replay repeats the operations of `f` and nothing else that `f` does. What it could not follow is an error: reading a tensor on the host (`item`,
/// `to_vec`, `Display`), results that require a gradient, host numbers that differ from call to call, and a tensor kept
/// from one call for the next. Parameters and buffers of layers, optimisers (their steps and learning rates), and random
/// states of layers are followed: a replay continues them as the function would.
pub fn capture<F>(f: F) -> Step<F>
where
    F: FnMut(&[Tensor]) -> Result<Vec<Tensor>>,
{
    Step { f, plans: vec![], replays: 0, verified: 0 }
}

impl<F> Step<F>
where
    F: FnMut(&[Tensor]) -> Result<Vec<Tensor>>,
{
    /// Runs the step on these arguments.
    ///
    /// # Errors
    /// Those of the function, and those that [`capture`] lists. An operation of a replay has the error that it has in
    /// the function, with the same line, unless nobody reads its result. A refusal comes after the function has run.
    #[track_caller]
    pub fn call(&mut self, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        if !gradus_tensor::ops::can_replay() {
            return (self.f)(&owned(inputs));
        }
        if let Some(t) = inputs.iter().find(|t| !t.is_leaf()) {
            let m = "an argument of a captured step was computed by recorded operations";
            return Err(Error::new(ErrorKind::Autograd, "capture", m)
                .operand("argument", t.shape(), t.dtype(), t.device())
                .note("a replay does not know that graph, so no gradient could flow through it")
                .help("pass x.detach(), or compute it inside of the step"));
        }
        let key = Key::of(inputs);
        let mut why = match self.plans.last() {
            Some((last, _)) if *last != key => last.difference(&key),
            Some(_) => "two traces are compared".to_owned(),
            None => "it is the first call".to_owned(),
        };
        let found = self.plans.iter().position(|(known, _)| *known == key);
        match found.map(|at| self.plans.remove(at).1) {
            Some(Progress::Ready(plan)) if plan.is_stale() || !plan.serves(inputs) => {
                why = "what the step works with was replaced".to_owned();
            }
            Some(Progress::Ready(plan)) if plan.overlaps(inputs) => {
                self.plans.push((key, Progress::Ready(plan)));
                return (self.f)(&owned(inputs));
            }
            Some(Progress::Ready(mut plan)) => {
                let first = std::mem::replace(&mut plan.is_new, false) && cfg!(debug_assertions);
                let results = if first || self.verified > 0 {
                    self.verified = self.verified.saturating_sub(u64::from(!first));
                    verify::beside(&mut plan, &mut self.f, inputs)
                } else {
                    plan.run(inputs)
                };
                self.replays += u64::from(results.is_ok());
                self.plans.push((key, Progress::Ready(plan)));
                return results;
            }
            Some(Progress::Traced(before, count)) => {
                self.log("two traces are compared");
                let (results, trace) = record(&mut self.f, &owned(inputs))?;
                let progress = match agree(&before, &trace) {
                    Ok(graph) => Progress::Ready(Box::new(planned(graph, &before, &trace, inputs)?)),
                    Err(e) if count + 1 >= TRACES => return Err(e),
                    Err(_) => Progress::Traced(Box::new(trace), count + 1),
                };
                self.plans.push((key, progress));
                return Ok(results);
            }
            None => {}
        }
        self.log(&why);
        let (results, trace) = record(&mut self.f, &owned(inputs))?;
        if self.plans.len() == PLANS {
            self.plans.remove(0);
        }
        self.plans.push((key, Progress::Traced(Box::new(trace), 1)));
        Ok(results)
    }

    /// Prints why a call is traced, if `GRADUS_LOG` lists `graph`.
    fn log(&self, why: &str) {
        if log::wanted("graph") {
            log::print(&format!("capture: a call is traced: {why}"));
        }
    }

    /// Verifies the next `calls` replays: each runs beside the function, and if the results, the tensors written in place
    /// or the states differ by a bit, the call is an error that lists the operations. On devices other than CPUs, whose
    /// compilers may combine instructions, a difference of 1e-4 of the largest element is allowed. In debug builds the
    /// first replay of each plan is verified anyway.
    pub fn verify(&mut self, calls: u64) {
        self.verified = calls;
    }

    /// The number of calls that were replayed.
    pub fn replays(&self) -> u64 {
        self.replays
    }

    /// The graph of the most recent call that could be replayed.
    pub fn graph(&self) -> Option<&Graph> {
        self.plans.iter().rev().find_map(|(_, p)| if let Progress::Ready(plan) = p { Some(&plan.graph) } else { None })
    }
}

/// Makes a plan of the graph on which two traces agree.
#[track_caller]
fn planned(mut graph: Graph, first: &Trace, second: &Trace, inputs: &[&Tensor]) -> Result<Plan> {
    passes::dead_code(&mut graph);
    passes::join_elementwise(&mut graph);
    let pinned = inputs.iter().map(|t| {
        let input = |trace: &Trace, m: usize| matches!(trace.memories[m].first, First::Input(_));
        let seen = |trace: &Trace| trace.memory_of(t).filter(|&m| input(trace, m)).map(|m| trace.memories[m].base);
        let same = seen(first).is_some() && seen(first) == seen(second);
        same.then(|| (Arc::downgrade(t.storage()), t.layout().offset()))
    });
    Plan::new(graph, pinned.collect(), second.switches.clone())
}

fn owned(inputs: &[&Tensor]) -> Vec<Tensor> {
    inputs.iter().map(|&t| t.clone()).collect()
}
