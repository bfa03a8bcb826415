//! [`Captured`]: the traces and plans of a function, one for each form of its arguments.

use std::fmt;
use std::sync::Arc;

use gradus_tensor::backend::{BackendKind, log};
use gradus_tensor::ops::Closed;
use gradus_tensor::{Error, ErrorKind, Here, Result, Tensor};

use crate::blocks::Blocks;
use crate::compare::{Sameness, agree, differs};
use crate::graph::{Graph, Origin};
use crate::key::Key;
use crate::passes::{self, MemoryLimit};
use crate::plan::Plan;
use crate::record::{First, Recorded, Trace, record};
use crate::verify;

/// The number of traced calls after which a difference between the last two is an error. The first call of a training
/// step allocates the state of its optimiser, so it differs from the others.
const TRACES: usize = 4;

/// The largest number of forms that are kept. Beyond it, the least recently used form is dropped.
const FORMS: usize = 8;

/// The number of traced calls after which [`Captured::or_eager`] gives up if there were no more replays than traces.
const MOST_TRACES: u64 = 40;

/// What is known about the calls of a function: for each form of the arguments, a trace or a plan.
///
/// [`capture`](crate::capture) wraps a function together with one of these. Use it directly if the function borrows
/// other things in each call, as in a training loop, or if it returns host values `D` beside tensors. Such values must
/// be equal in both traces, and a replay returns them again.
///
/// ```
/// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
/// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
/// use gradus_graph::Captured;
///
/// let mut captured = Captured::or_eager();
/// for i in 0..4 {
///     let batch = Tensor::full([3], i as f64, DType::F32, &device)?;
///     let (sums, rows) = captured.call(0, &[&batch], |_| Ok((vec![batch.exp()?.sum_all()?], batch.numel())))?;
///     assert_eq!(sums[0].item()?, batch.exp()?.sum_all()?.item()?);
///     assert_eq!(rows, 3);
/// }
/// assert!(captured.replays() == 2 && captured.refusal().is_none());
/// # Ok::<(), Error>(())
/// ```
pub struct Captured<D = ()> {
    /// Ordered by use, the most recently used form last.
    forms: Vec<(Key, Progress<D>)>,
    blocks: Blocks,
    policy: Closed,
    replays: u64,
    traces: u64,
    /// The number of replays that remain to be verified.
    verified: u64,
    limit: MemoryLimit,
    /// Why calls are not replayed.
    refusal: Option<Error>,
}

/// The progress of the capture for one form of the arguments.
enum Progress<D> {
    /// The most recent trace, what the function returned, and the number of traces so far.
    Traced(Box<Trace>, D, usize),
    /// The plan, the trace that it was made from, and what the function returned.
    Ready(Box<Plan>, Box<Trace>, D),
    /// As `Ready`, but the next call is traced to check that the plan is still right.
    Recheck(Box<Plan>, Box<Trace>, D),
    /// Calls of this form run the function.
    Eager,
}

impl<D> fmt::Debug for Captured<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Captured")
            .field("forms", &self.forms.len())
            .field("replays", &self.replays)
            .finish_non_exhaustive()
    }
}

impl<D: Clone + PartialEq + fmt::Debug> Captured<D> {
    /// Calls that could not be replayed are errors.
    pub fn strict() -> Self {
        Self::new(Closed::Strict)
    }

    /// Calls that could not be replayed run the function, and [`refusal`](Captured::refusal) says why.
    pub fn or_eager() -> Self {
        Self::new(Closed::Lenient)
    }

    fn new(policy: Closed) -> Self {
        let blocks = Blocks::default();
        Captured {
            forms: vec![],
            blocks,
            policy,
            replays: 0,
            traces: 0,
            verified: 0,
            limit: MemoryLimit::Cheap,
            refusal: None,
        }
    }

    /// Runs the function on these arguments: `f` itself, or a replay. Calls with another number `form` are traced
    /// separately, so that the function may differ between them.
    ///
    /// `f` may use the arguments by the handles that it is passed, or by its own handles of the same tensors.
    ///
    /// # Errors
    /// Returns the errors of `f`, those of a device that fails while a plan is made and, unless it is
    /// [`or_eager`](Captured::or_eager), those that [`capture`](crate::capture) lists.
    #[track_caller]
    pub fn call(
        &mut self,
        form: u64,
        inputs: &[&Tensor],
        mut f: impl FnMut(&[Tensor]) -> Result<(Vec<Tensor>, D)>,
    ) -> Result<(Vec<Tensor>, D)> {
        if !gradus_tensor::ops::can_replay() {
            return f(&owned(inputs));
        }
        if let Some(t) = inputs.iter().find(|t| !t.is_leaf()) {
            let m = "an argument of a captured step was computed by recorded operations";
            let e = Error::new(ErrorKind::Autograd, "capture", m)
                .operand("argument", t.shape(), t.dtype(), t.device())
                .note("a replay does not know that graph, so no gradient could flow through it")
                .help("pass x.detach(), or compute it inside of the step");
            self.refused(None, e)?;
            return f(&owned(inputs));
        }
        let found = self.forms.iter().position(|(known, _)| known.matches(form, inputs));
        let (key, progress) = match found.map(|at| self.forms.remove(at)) {
            Some((key, progress)) => (key, Some(progress)),
            None => (Key::of(form, inputs), None),
        };
        let mut why = None;
        match progress {
            Some(Progress::Ready(plan, ..) | Progress::Recheck(plan, ..))
                if plan.is_stale() || !plan.serves(inputs) =>
            {
                why = Some("what the step works with was replaced".to_owned());
            }
            Some(ready @ Progress::Ready(..)) => return self.replay(key, ready, inputs, &mut f),
            Some(Progress::Recheck(plan, trace, data)) => {
                return self.recheck_now(key, plan, trace, data, inputs, &mut f);
            }
            Some(Progress::Traced(before, known, count)) => {
                return self.compare(key, &before, &known, count, inputs, &mut f);
            }
            Some(Progress::Eager) => {
                self.forms.push((key, Progress::Eager));
                return f(&owned(inputs));
            }
            None => {}
        }
        if self.has_given_up() {
            return f(&owned(inputs));
        }
        let why = why.unwrap_or_else(|| match self.forms.last() {
            Some((last, _)) => last.difference(&key),
            None => "it is the first call".to_owned(),
        });
        self.log(&format!("a call is traced: {why}"));
        let recorded = self.record(&mut f, inputs)?;
        if self.forms.len() == FORMS {
            self.forms.remove(0);
        }
        Ok(match recorded.trace {
            Ok(trace) => {
                let progress = match self.of_other_sizes(&key, &trace, inputs)? {
                    Some(plan) => Progress::Ready(Box::new(plan), Box::new(trace), recorded.data.clone()),
                    None => Progress::Traced(Box::new(trace), recorded.data.clone(), 1),
                };
                self.forms.push((key, progress));
                (recorded.results, recorded.data)
            }
            Err(e) => {
                self.refused(Some(key), e)?;
                (recorded.results, recorded.data)
            }
        })
    }

    /// A plan for a first trace, if a plan for arguments of other sizes was made from traces of the same operations.
    #[track_caller]
    fn of_other_sizes(&self, key: &Key, trace: &Trace, inputs: &[&Tensor]) -> Result<Option<Plan>> {
        let known = self.forms.iter().rev().find_map(|(other, progress)| match progress {
            Progress::Ready(_, before, _) if other.differs_in_sizes(key) => Some(before),
            _ => None,
        });
        let Some(before) = known else { return Ok(None) };
        match agree(before, trace, Sameness::OtherSizes) {
            Ok(graph) => self.planned(graph, before, trace, inputs).map(Some),
            Err(_) => Ok(None),
        }
    }

    #[track_caller]
    fn record(
        &mut self,
        f: &mut impl FnMut(&[Tensor]) -> Result<(Vec<Tensor>, D)>,
        inputs: &[&Tensor],
    ) -> Result<Recorded<D>> {
        self.traces += 1;
        record(self.policy, f, &owned(inputs))
    }

    /// Replays a plan.
    #[track_caller]
    fn replay(
        &mut self,
        key: Key,
        ready: Progress<D>,
        inputs: &[&Tensor],
        f: &mut impl FnMut(&[Tensor]) -> Result<(Vec<Tensor>, D)>,
    ) -> Result<(Vec<Tensor>, D)> {
        let Progress::Ready(mut plan, trace, data) = ready else { return f(&owned(inputs)) };
        let results = if plan.overlaps(inputs) {
            f(&owned(inputs))
        } else {
            // On other devices than CPUs, numbers may differ a little, and that is no reason to end a lenient step. What
            // a device is takes long to find out.
            let exact =
                |plan: &Plan| self.policy == Closed::Strict || plan.graph.device.info().kind == BackendKind::Cpu;
            // Others would see the calls of both.
            let first = std::mem::replace(&mut plan.is_new, false) && cfg!(debug_assertions) && !plan.is_seen();
            let first = first && exact(&plan);
            let results = if first || self.verified > 0 {
                self.verified = self.verified.saturating_sub(u64::from(!first));
                let mut found = data.clone();
                let eager = |inputs: &[Tensor]| {
                    let (results, now) = f(inputs)?;
                    found = now;
                    Ok(results)
                };
                match verify::beside(&mut plan, &mut self.blocks, eager, inputs) {
                    Ok((results, difference)) => {
                        let other = || (found != data).then(|| other_data(&data, &found));
                        if let Some(e) = difference.or_else(other) {
                            // A plan that differs never runs again.
                            self.refused(Some(key), e)?;
                            return Ok((results, found));
                        }
                        Ok(results)
                    }
                    Err(e) => Err(e),
                }
            } else {
                let replayed = plan.run(&mut self.blocks, inputs);
                if replayed.as_ref().is_err_and(|e| !verify::is_of_device(e)) && !plan.has_written {
                    // The error of the function has its layer and notes, which a replay does not know. What a device
                    // refuses is not tried again.
                    self.forms.push((key, Progress::Ready(plan, trace, data)));
                    return f(&owned(inputs));
                }
                replayed
            };
            self.replays += u64::from(results.is_ok());
            plan.runs += u64::from(results.is_ok());
            results.map(|results| (results, data.clone()))
        };
        self.forms.push((key, Progress::Ready(plan, trace, data)));
        results
    }

    /// Traces a call and compares it with the trace before. If they agree, the next call is replayed.
    #[track_caller]
    fn compare(
        &mut self,
        key: Key,
        before: &Trace,
        known: &D,
        count: usize,
        inputs: &[&Tensor],
        f: &mut impl FnMut(&[Tensor]) -> Result<(Vec<Tensor>, D)>,
    ) -> Result<(Vec<Tensor>, D)> {
        self.log("a call is traced: two traces are compared");
        let Recorded { results, data, trace } = self.record(f, inputs)?;
        let trace = match trace {
            Ok(trace) => trace,
            Err(e) => {
                self.refused(Some(key), e)?;
                return Ok((results, data));
            }
        };
        let graph = if *known == data { agree(before, &trace, Sameness::Exact) } else { Err(other_data(known, &data)) };
        let progress = match graph {
            Ok(graph) => {
                let plan = self.planned(graph, before, &trace, inputs)?;
                Progress::Ready(Box::new(plan), Box::new(trace), data.clone())
            }
            Err(_) if count + 1 < TRACES => Progress::Traced(Box::new(trace), data.clone(), count + 1),
            Err(e) => {
                self.refused(Some(key), e)?;
                return Ok((results, data));
            }
        };
        self.forms.push((key, progress));
        Ok((results, data))
    }

    /// Traces a call and compares it with the trace of a plan. If they agree, the plan is kept.
    #[track_caller]
    fn recheck_now(
        &mut self,
        key: Key,
        mut plan: Box<Plan>,
        before: Box<Trace>,
        known: D,
        inputs: &[&Tensor],
        f: &mut impl FnMut(&[Tensor]) -> Result<(Vec<Tensor>, D)>,
    ) -> Result<(Vec<Tensor>, D)> {
        let Recorded { results, data, trace } = self.record(f, inputs)?;
        let progress = match trace {
            Ok(trace) if known == data && agree(&before, &trace, Sameness::Exact).is_ok() => {
                self.traces -= 1; // It confirmed a plan.
                plan.runs = 0;
                Progress::Ready(plan, Box::new(trace), known)
            }
            Ok(trace) => {
                self.log("a call does other operations than its replays: it is traced again");
                self.recheck(); // The other forms may have changed too.
                Progress::Traced(Box::new(trace), data.clone(), 1)
            }
            Err(e) => {
                self.refused(Some(key), e)?;
                return Ok((results, data));
            }
        };
        self.forms.push((key, progress));
        Ok((results, data))
    }

    /// Notes why calls of this form are not replayed, or returns the error if that is the policy.
    #[track_caller]
    fn refused(&mut self, key: Option<Key>, e: Error) -> Result<()> {
        if self.policy == Closed::Strict {
            return Err(e.here());
        }
        self.forms.extend(key.map(|key| (key, Progress::Eager)));
        let text = e.to_string();
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        self.log(&format!("the step runs eagerly: {}", lines.join("; ")));
        self.refusal = Some(e);
        Ok(())
    }

    /// Whether so many calls were traced, and so few replayed, that tracing more of them is a waste.
    fn has_given_up(&mut self) -> bool {
        if self.policy == Closed::Strict || self.traces < MOST_TRACES || self.replays > self.traces {
            return false;
        }
        if self.refusal.is_none() {
            let m = "the arguments have another form in nearly every call, such as another shape";
            self.log(&format!("the step runs eagerly: {m}"));
            self.refusal = Some(Error::argument("capture", m));
        }
        true
    }

    /// Prints a line if `GRADUS_LOG` lists `graph`.
    fn log(&self, line: &str) {
        if log::wanted("graph") {
            log::print(&format!("capture: {line}"));
        }
    }

    /// Traces the next call of each form again. If the function then does what the replays do, they go on; otherwise two
    /// traces are compared as at first. Call this where the function may begin to do something else, such as between two
    /// epochs.
    pub fn recheck(&mut self) {
        self.recheck_replayed(0);
    }

    /// Like [`recheck`](Captured::recheck), but only for forms that were replayed at least `times` times since they were
    /// traced. So a form that occurs once between two checks is replayed too. If one form has changed, all are checked.
    pub fn recheck_replayed(&mut self, times: u64) {
        for (_, progress) in &mut self.forms {
            *progress = match std::mem::replace(progress, Progress::Eager) {
                Progress::Ready(plan, trace, data) if plan.runs >= times => Progress::Recheck(plan, trace, data),
                other => other,
            };
        }
    }

    /// Forgets all traces and plans.
    pub fn clear(&mut self) {
        self.forms.clear();
        self.blocks = Blocks::default();
    }

    /// Sets how much memory the temporary values of a replay may take; see [`MemoryLimit`]. Forgets all traces and plans.
    pub fn limit_memory(&mut self, limit: MemoryLimit) {
        self.limit = limit;
        self.clear();
    }

    /// The bytes of memory that the plan of the most recent call needs for temporary values, if it could be replayed.
    /// The memory is kept between replays, and shared by all plans.
    pub fn temporary_bytes(&self) -> Option<usize> {
        self.plan().map(Plan::temporary_bytes)
    }

    /// Verifies the next `calls` replays; see [`Step::verify`](crate::Step::verify).
    pub fn verify(&mut self, calls: u64) {
        self.verified = calls;
    }

    /// The number of calls that were replayed.
    pub fn replays(&self) -> u64 {
        self.replays
    }

    /// The reason why calls are not replayed, if there is one.
    pub fn refusal(&self) -> Option<&Error> {
        self.refusal.as_ref()
    }

    /// The graph of the most recent call that could be replayed.
    pub fn graph(&self) -> Option<&Graph> {
        self.plan().map(|plan| &plan.graph)
    }

    /// The plans, that of the most recent call first.
    fn plans(&self) -> impl Iterator<Item = &Plan> {
        self.forms.iter().rev().filter_map(|(_, p)| match p {
            Progress::Ready(plan, ..) | Progress::Recheck(plan, ..) => Some(&**plan),
            Progress::Traced(..) | Progress::Eager => None,
        })
    }

    fn plan(&self) -> Option<&Plan> {
        self.plans().next()
    }

    /// Creates a plan for the graph on which two traces agree.
    #[track_caller]
    fn planned(&self, mut graph: Graph, first: &Trace, second: &Trace, inputs: &[&Tensor]) -> Result<Plan> {
        let origins = self.plans().flat_map(|plan| &plan.graph.memories).map(|m| &m.origin);
        let panels = origins.filter_map(|o| if let Origin::Panels(panels) = o { Some(panels.clone()) } else { None });
        passes::run_all(&mut graph, self.limit, &panels.collect::<Vec<_>>())?;
        let pinned = inputs.iter().map(|t| {
            let input = |trace: &Trace, m: usize| matches!(trace.memories[m].first, First::Input(_));
            let seen = |trace: &Trace| trace.memory_of(t).filter(|&m| input(trace, m)).map(|m| trace.memories[m].base);
            let same = seen(first).is_some() && seen(first) == seen(second);
            same.then(|| (Arc::downgrade(t.storage()), t.layout().offset()))
        });
        Ok(Plan::new(graph, pinned.collect(), second.switches.clone(), second.idle.clone()))
    }
}

/// The error for host values that differ between two calls.
#[track_caller]
fn other_data(first: &impl fmt::Debug, second: &impl fmt::Debug) -> Error {
    differs(None, "what the step returns", format!("{first:?}"), format!("{second:?}"))
}

fn owned(inputs: &[&Tensor]) -> Vec<Tensor> {
    inputs.iter().map(|&t| t.clone()).collect()
}
