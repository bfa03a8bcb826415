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

/// The number of traced calls after which a difference between the last two is an error. The first call of a training
/// step allocates the state of its optimiser, so it differs from the others.
const TRACES: usize = 4;

/// The largest number of plans of a step. Beyond it, the least recently used plan is dropped.
const PLANS: usize = 8;

/// A function of tensors whose operations are traced and then replayed; see [`capture`].
pub struct Step<F> {
    pub(crate) f: F,
    /// Ordered by use, the most recently used plan last.
    plans: Vec<(Key, Progress)>,
    replays: u64,
    /// The number of replays that remain to be verified.
    verified: u64,
}

/// The progress of the capture for one kind of arguments.
enum Progress {
    /// The most recent trace, and the number of traces so far.
    Traced(Box<Trace>, usize),
    Ready(Box<Plan>),
}

/// Wraps `f` so that its later calls are replayed.
///
/// The first two calls of [`Step::call`] run `f` and trace the operations. If the two traces agree, later calls replay
/// them. If not, the next calls are traced too, because the first call of a training step allocates the optimiser's
/// state and so differs from the second. A difference that remains after four traces is an error, which names the
/// operation and shows both forms. Arguments of another shape, dtype, stride or device are traced separately; at most
/// eight such forms are kept. With `GRADUS_LOG=graph`, a line is printed that says why a call is traced.
///
/// A replay repeats the operations of `f` and nothing else that `f` does. It is therefore an error to read a tensor on
/// the host (`item`, `to_vec`, `Display`), to return a result that requires a gradient, to use host numbers that differ
/// from call to call, or to keep a tensor from one call for the next. A replay does update the parameters and buffers
/// of layers, the step counts and learning rates of optimisers, and the random states of layers, exactly as the
/// function would.
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
    /// Returns the errors of the function, and those that [`capture`] lists. If an operation of a replay fails, the
    /// error is the same as in the function, with the same line; but an operation whose result nobody reads is not run.
    /// If a trace cannot be replayed, the error is returned after the function has run.
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

    /// Verifies the next `calls` replays: the function runs as well, and if a single bit of the results, of the tensors
    /// written in place or of the buffers of layers differs, the call fails with an error that lists the operations. On
    /// devices other than CPUs, whose compilers may fuse instructions, a difference of 1e-4 times the largest magnitude
    /// is allowed. In debug builds the first replay of each plan is always verified.
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

/// Creates a plan for the graph on which two traces agree.
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
