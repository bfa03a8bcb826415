//! [`Stepper`]: the groups, checks and state that all optimisers share. A [`Rule`] does the arithmetic.

use std::collections::HashMap;
use std::panic::Location;
use std::sync::Arc;

use gradus_tensor::ops::{SourceGuard, is_captured, refuse, source_guard};
use gradus_tensor::{
    DType, Error, ErrorKind, Expr, Gradients, Here, Result, Storage, Tensor, UpdateFn, no_autocast_guard, no_grad_guard,
};

use super::captured::{Number, Phase, Rates, Unfinished, Updates};
use super::clip::fetch;
use super::rule::Rule;
use super::{Group, NonFinite};
use crate::division::on_all;
use crate::{Parameter, StateDict};

/// A parameter and its state.
pub(super) struct Member {
    pub(super) name: String,
    pub(super) parameter: Parameter,
    /// `None` before the first step.
    pub(super) state: Option<State>,
}

/// The state kept for a parameter.
#[derive(Clone)]
pub(super) struct State {
    /// Number of steps made. A copy of the state shares it.
    pub(super) step: Number,
    pub(super) slots: Vec<Tensor>,
    /// The f32 copy of a parameter in half precision.
    pub(super) master: Option<Master>,
}

/// An f32 copy, and a version of the parameter's storage at which it rounded to the parameter's values.
#[derive(Clone)]
pub(super) struct Master {
    pub(super) values: Tensor,
    pub(super) version: u64,
}

impl Master {
    /// Takes over what something else wrote to the parameter since the last step, such as loading a checkpoint.
    #[track_caller]
    fn follow(&self, parameter: &Tensor) -> Result<()> {
        let (storage, span, size) = (parameter.storage(), parameter.layout().span(), parameter.dtype().size());
        // Other parameters may lie in the same storage: a write to these leaves the copy current.
        let bytes = span.start * size..span.end * size;
        // Replays of a captured step cannot ask for versions, so what others wrote is found by comparing values.
        if !is_captured() && storage.overwritten(self.version, &bytes).is_none() {
            return Ok(());
        }
        let follow = if parameter.dtype() == DType::F16 { &FOLLOW_F16 } else { &FOLLOW_BF16 };
        follow.apply(&[&self.values], &[&self.values, parameter], &[])
    }
}

pub(super) struct Members {
    pub(super) lr: Number,
    pub(super) weight_decay: Number,
    pub(super) members: Vec<Member>,
}

pub(super) struct Stepper<R> {
    pub(super) rule: Arc<R>,
    pub(super) groups: Vec<Members>,
    pub(super) factor: Number,
    /// 0 if the rule does not read it.
    pub(super) momentum: Number,
    pub(super) non_finite: NonFinite,
    /// Whether steps go along the gradient rather than against it.
    pub(super) maximize: bool,
    pub(super) skipped: u64,
    /// The message about a step that failed halfway, if there is one.
    pub(super) unfinished: Unfinished,
}

/// The planned update of one parameter.
struct Work {
    group: usize,
    member: usize,
    gradient: Tensor,
    state: State,
    /// The scratch tensors, and what [`Rule::derive`] returned.
    prepared: Vec<Tensor>,
}

/// What to do about an optimiser that needs all of a parameter and has a part of it.
pub(super) const OF_ELEMENTS: &str = "take an optimiser that treats each element by itself";

/// The help text of the error about an unfinished step.
const UNFINISHED: &str = "load what was saved last, first into the model, then into this optimiser";

/// Refuses a hyper-parameter that is negative or not finite.
#[track_caller]
pub(super) fn at_least_zero(op: &str, name: &str, value: f64) -> Result<f64> {
    if value.is_finite() && value >= 0.0 {
        return Ok(value);
    }
    Err(Error::argument(op, format!("{name} is {value}; it is finite and at least 0")))
}

/// Refuses to change a number inside a captured step, whose replays would not do so.
#[track_caller]
fn refuse_capture(op: &str, what: &str) -> Result<()> {
    refuse(|| {
        let m = format!("the {what} is set inside a captured step, and a replay would not set it");
        Error::argument(op, m).help("set it before the step is called; each replay uses the number of its time")
    })
}

/// Refuses a decay rate that is negative, or not below 1.
#[track_caller]
pub(super) fn below_one(op: &str, name: &str, value: f64) -> Result<()> {
    if (0.0..1.0).contains(&value) {
        return Ok(());
    }
    Err(Error::argument(op, format!("{name} is {value}; it is at least 0 and below 1")))
}

/// Applies `update` to a parameter, its gradient, `slots` and `numbers`, in this order. It writes the parameter and the
/// first `written` of the slots.
#[track_caller]
pub(super) fn apply(
    update: &UpdateFn,
    target: &Tensor,
    gradient: &Tensor,
    slots: &[Tensor],
    written: usize,
    numbers: &[f64],
) -> Result<()> {
    let (mut outputs, mut inputs) = (vec![target], vec![target, gradient]);
    outputs.extend(slots.iter().take(written));
    inputs.extend(slots);
    update.apply(&outputs, &inputs, numbers)
}

/// Rounds its source into a tensor of a narrower dtype. Unlike `copy_`, it allocates nothing, because an allocation
/// could fail in the middle of a step.
static ROUND: UpdateFn = UpdateFn::new("round", |x| vec![x[0]]);

// The f32 copy where it rounds to the parameter, and the parameter elsewhere.

static FOLLOW_F16: UpdateFn = UpdateFn::new("follow_f16", |x| vec![followed(x, DType::F16)]);
static FOLLOW_BF16: UpdateFn = UpdateFn::new("follow_bf16", |x| vec![followed(x, DType::BF16)]);

fn followed<'k>(x: &[Expr<'k>], dtype: DType) -> Expr<'k> {
    x[0].stored_as(dtype).eq(x[1]).select(x[0], x[1])
}

/// Builds the groups with their members, each parameter once.
#[track_caller]
fn arranged<R: Rule>(rule: &R, groups: impl IntoIterator<Item = Group>) -> Result<Vec<Members>> {
    let op = rule.name();
    let (lr, weight_decay) = rule.defaults();
    // The group of each parameter seen so far, by identity; the names in use; and the memory that the parameters
    // occupy.
    let mut seen: HashMap<usize, usize> = HashMap::new();
    let mut names: HashMap<String, ()> = HashMap::new();
    let mut memory: HashMap<*const Storage, Vec<(std::ops::Range<usize>, String)>> = HashMap::new();
    let mut made = Vec::new();
    for (index, group) in groups.into_iter().enumerate() {
        let mut members = Vec::with_capacity(group.parameters.len());
        for (name, parameter) in group.parameters {
            match seen.insert(parameter.id(), index) {
                // The parameter is shared within the group and is stepped only once.
                Some(other) if other == index => continue,
                Some(other) => {
                    let m = format!("{name} is in group {other} and in group {index}");
                    return Err(Error::argument(op, m).help("a parameter, however often shared, is in one group"));
                }
                None => {}
            }
            if names.insert(name.clone(), ()).is_some() {
                return Err(Error::argument(op, format!("two parameters have the name {name:?}")));
            }
            let (storage, span) = (parameter.values().storage(), parameter.values().layout().span());
            let others = memory.entry(Arc::as_ptr(storage)).or_default();
            if let Some((_, other)) = others.iter().find(|(o, _)| o.start < span.end && span.start < o.end) {
                let m = format!("{name} and {other} are two parameters over the same memory");
                return Err(Error::argument(op, m).help("to share a parameter, clone it"));
            }
            others.push((span, name.clone()));
            rule.check_parameter(&name, parameter.values())?;
            if rule.mixes() {
                parameter.check_whole(op).map_err(|e| e.help(OF_ELEMENTS))?;
            }
            members.push(Member { name, parameter, state: None });
        }
        made.push(Members {
            lr: Number::of(at_least_zero(op, "learning rate", group.lr.unwrap_or(lr))?),
            weight_decay: Number::of(at_least_zero(op, "weight decay", group.weight_decay.unwrap_or(weight_decay))?),
            members,
        });
    }
    Ok(made)
}

impl Members {
    /// What determines the hyper-parameters of a parameter with this state.
    fn rates(&self, factor: &Number, momentum: &Number, state: &State) -> Rates {
        Rates {
            lr: self.lr.clone(),
            factor: factor.clone(),
            weight_decay: self.weight_decay.clone(),
            momentum: momentum.clone(),
            step: state.step.clone(),
        }
    }
}

impl<R: Rule> Stepper<R> {
    #[track_caller]
    pub(super) fn new(rule: R, groups: impl IntoIterator<Item = Group>) -> Result<Self> {
        rule.check()?;
        let groups = arranged(&rule, groups)?;
        let non_finite = NonFinite::default();
        let (factor, momentum) = (Number::of(1.0), Number::of(rule.momentum().unwrap_or(0.0)));
        let (rule, unfinished) = (Arc::new(rule), Unfinished::default());
        Ok(Stepper { rule, groups, factor, momentum, non_finite, maximize: false, skipped: 0, unfinished })
    }

    /// See [`Optimizer::rebind`](crate::Optimizer::rebind).
    #[track_caller]
    pub(super) fn rebind(&mut self, parameters: Vec<(String, Parameter)>) -> Result<()> {
        let state = self.view()?;
        self.replace("rebind", parameters, &state, true)
    }

    /// See [`Optimizer::rebind_with`](crate::Optimizer::rebind_with).
    #[track_caller]
    pub(super) fn rebind_with(&mut self, parameters: Vec<(String, Parameter)>, state: &StateDict) -> Result<()> {
        self.refuse_unfinished()?;
        self.replace("rebind_with", parameters, state, false)
    }

    /// Replaces the parameters, and their state by that in `state`.
    #[track_caller]
    fn replace(
        &mut self,
        op: &'static str,
        parameters: Vec<(String, Parameter)>,
        state: &StateDict,
        same_shapes: bool,
    ) -> Result<()> {
        let mut given = HashMap::new();
        for (name, parameter) in parameters {
            if given.insert(name.clone(), parameter).is_some() {
                let m = format!("two parameters have the name {name:?}; nothing was changed");
                return Err(Error::argument(op, m));
            }
        }
        let replacement = |member: &Member| {
            let old = member.parameter.values();
            let Some(new) = given.get(&member.name) else {
                return Err(Error::argument(
                    op,
                    format!("there is no parameter {:?}; nothing was changed", member.name),
                ));
            };
            if same_shapes && new.values().shape() != old.shape() {
                let m = format!("{} has another shape; nothing was changed", member.name);
                let e = Error::shape(op, m).operand("old", old.shape(), old.dtype(), old.device());
                let new = new.values();
                return Err(e.operand("new", new.shape(), new.dtype(), new.device()));
            }
            Ok((member.name.clone(), new.clone()))
        };
        let group = |group: &Members| {
            let parameters = group.members.iter().map(replacement).collect::<Result<Vec<_>>>().here()?;
            Ok(Group::new(parameters).lr(group.lr.get()).weight_decay(group.weight_decay.get()))
        };
        let groups = self.groups.iter().map(group).collect::<Result<Vec<_>>>().here()?;
        let mut groups = arranged(&*self.rule, groups)?;
        let states = self.carried_over(op, &groups, state)?;
        for (member, mut state) in groups.iter_mut().flat_map(|g| &mut g.members).zip(states) {
            // Replays of captured steps go on with the counts and the rates that they share.
            let old = self.members().find(|m| m.name == member.name).and_then(|m| m.state.as_ref());
            if let (Some(old), Some(new)) = (old, &mut state) {
                old.step.set_count(new.step.count());
                new.step = old.step.clone();
            }
            member.state = state;
        }
        for (new, old) in groups.iter_mut().zip(&self.groups) {
            (new.lr, new.weight_decay) = (old.lr.clone(), old.weight_decay.clone());
        }
        self.groups = groups;
        Ok(())
    }

    pub(super) fn members(&self) -> impl Iterator<Item = &Member> {
        self.groups.iter().flat_map(|g| &g.members)
    }

    pub(super) fn lr(&self) -> Vec<f64> {
        self.groups.iter().map(|g| g.lr.get() * self.factor.get()).collect()
    }

    #[track_caller]
    pub(super) fn set_lr(&mut self, group: usize, lr: f64) -> Result<()> {
        let (op, count) = (self.rule.name(), self.groups.len());
        let Some(group) = self.groups.get_mut(group) else {
            return Err(Error::argument(op, format!("there is no group {group}; there are {count}")));
        };
        refuse_capture(op, "learning rate")?;
        group.lr.set(at_least_zero(op, "learning rate", lr)?);
        Ok(())
    }

    #[track_caller]
    pub(super) fn set_lr_factor(&mut self, factor: f64) -> Result<()> {
        refuse_capture(self.rule.name(), "learning rate")?;
        self.factor.set(at_least_zero(self.rule.name(), "learning rate factor", factor)?);
        Ok(())
    }

    pub(super) fn momentum(&self) -> Option<f64> {
        self.rule.momentum().map(|_| self.momentum.get())
    }

    #[track_caller]
    pub(super) fn set_momentum(&mut self, momentum: f64) -> Result<()> {
        let op = self.rule.name();
        refuse_capture(op, "momentum")?;
        if self.rule.momentum().is_none() {
            return Err(super::without_momentum(op));
        }
        below_one(op, "momentum", momentum)?;
        self.momentum.set(momentum);
        Ok(())
    }

    #[track_caller]
    pub(super) fn step(&mut self, gradients: &Gradients) -> Result<()> {
        let _guards = (no_grad_guard(), no_autocast_guard());
        self.refuse_unfinished()?;
        let mut work = self.plan(gradients)?;
        if !self.finite(&work)? {
            self.skipped += 1;
            return Ok(());
        }
        for work in &mut work {
            if self.maximize {
                work.gradient = work.gradient.neg()?;
            }
            let group = &self.groups[work.group];
            let values = group.members[work.member].parameter.values();
            let target = match &work.state.master {
                Some(master) => {
                    master.follow(values)?;
                    &master.values
                }
                None => values,
            };
            let rates = group.rates(&self.factor, &self.momentum, &work.state);
            // At most a tensor or two.
            let scratch = (0..self.rule.scratch()).map(|_| target.zeros_like()).collect::<Result<Vec<_>>>()?;
            let all: Vec<Tensor>;
            let slots = if scratch.is_empty() {
                &work.state.slots
            } else {
                all = work.state.slots.iter().chain(&scratch).cloned().collect();
                &all
            };
            let source = self.source(Phase::Prepare, &rates, target, &work.gradient, slots);
            self.rule.prepare(rates.next(), target, &work.gradient, slots)?;
            drop(source);
            let derived = self.rule.derive(target, &work.gradient, slots)?;
            work.prepared = scratch;
            work.prepared.extend(derived);
        }
        let count = work.len();
        for (done, work) in work.into_iter().enumerate() {
            // Set before the update, because a function that watches the device may panic during it.
            let m = format!("something failed in the middle of a step, after {done} of {count} parameters");
            self.unfinished.set(Some(m.clone()));
            self.advance(work).map_err(|e| e.note(m).help(UNFINISHED))?;
        }
        self.unfinished.set(None);
        Ok(())
    }

    /// Steps one parameter. If the device fails, the parameter and its state may be partly written.
    #[track_caller]
    fn advance(&mut self, Work { group, member, gradient, mut state, prepared }: Work) -> Result<()> {
        let rates = self.groups[group].rates(&self.factor, &self.momentum, &state);
        let hyper = rates.next();
        let all: Vec<Tensor>;
        let slots = if prepared.is_empty() {
            &state.slots
        } else {
            all = state.slots.iter().cloned().chain(prepared).collect();
            &all
        };
        let values = self.groups[group].members[member].parameter.values();
        let target = state.master.as_ref().map_or(values, |m| &m.values);
        let source = self.source(Phase::Update, &rates, target, &gradient, slots);
        self.rule.update(hyper, target, &gradient, slots)?;
        drop(source);
        if let Some(master) = &mut state.master {
            ROUND.apply(&[values], &[&master.values], &[])?;
            master.version = values.storage().version();
        }
        state.step.set_count(hyper.step);
        self.groups[group].members[member].state = Some(state);
        Ok(())
    }

    /// Inside a captured step, lets replays compute the numbers of this phase anew.
    fn source(&self, phase: Phase, rates: &Rates, target: &Tensor, gradient: &Tensor, slots: &[Tensor]) -> SourceGuard {
        source_guard(|| {
            let tensors = [target, gradient].into_iter().chain(slots);
            Arc::new(Updates::new((&self.rule, &self.unfinished), phase, rates, tensors))
        })
    }

    /// Returns an error if an earlier step is unfinished.
    #[track_caller]
    pub(super) fn refuse_unfinished(&self) -> Result<()> {
        let Some(m) = self.unfinished.get() else { return Ok(()) };
        Err(Error::argument(self.rule.name(), format!("{m}: the values are those of no step")).help(UNFINISHED))
    }

    /// Checks everything and allocates what is needed, without changing anything.
    #[track_caller]
    fn plan(&self, gradients: &Gradients) -> Result<Vec<Work>> {
        let op = self.rule.name();
        let mut work = Vec::new();
        let storages: HashMap<*const Storage, ()> =
            self.members().map(|m| (Arc::as_ptr(m.parameter.values().storage()), ())).collect();
        for (g, group) in self.groups.iter().enumerate() {
            at_least_zero(op, "learning rate", group.lr.get() * self.factor.get())?;
            for (m, member) in group.members.iter().enumerate() {
                let Some(gradient) = gradients.get(member.parameter.tensor()) else { continue };
                let values = member.parameter.values();
                let refuse = |kind, message: &str| {
                    let e = Error::new(kind, op, format!("{}: {message}; nothing was changed", member.name));
                    let e = e.operand("parameter", values.shape(), values.dtype(), values.device());
                    Err(e.operand("gradient", gradient.shape(), gradient.dtype(), gradient.device()))
                };
                if gradient.shape() != values.shape() {
                    return refuse(ErrorKind::ShapeMismatch, "the gradient has another shape").here();
                }
                if !gradient.dtype().is_float() {
                    return refuse(ErrorKind::UnsupportedDType, "the gradient is not float").here();
                }
                if gradient.device() != values.device() {
                    return refuse(ErrorKind::DeviceMismatch, "the gradient is on another device").here();
                }
                // A graph may still need the old values. Fail before any parameter is stepped rather than halfway.
                values.prepare_write(op)?;
                // A gradient that shares memory with a parameter would change while parameters are stepped.
                let aliased = storages.contains_key(&Arc::as_ptr(gradient.storage()));
                let gradient = if aliased { gradient.detach().copy()? } else { gradient.detach() };
                work.push(Work { group: g, member: m, gradient, state: self.state_of(member)?, prepared: Vec::new() });
            }
        }
        let trainable = self.members().any(|m| !m.parameter.is_frozen());
        if work.is_empty() && !gradients.is_empty() && trainable {
            let m = format!("none of the {} gradients is of a parameter of this optimiser", gradients.len());
            return Err(Error::argument(op, m)
                .help("make the optimiser from the parameters that the loss is computed with, or let it rebind them, after to_device and cast_parameters"));
        }
        Ok(work)
    }

    /// The state to step with. It is created before the first step.
    #[track_caller]
    fn state_of(&self, member: &Member) -> Result<State> {
        let values = member.parameter.values();
        let dtype = values.dtype().compute();
        let mut state = match &member.state {
            Some(state) => state.clone(),
            None => {
                let slot = |s: &&str| Tensor::full(values.shape(), self.rule.initial(s), dtype, values.device());
                let slots = self.rule.slots().iter().map(slot).collect::<Result<_>>().here()?;
                State { step: Number::default(), slots, master: None }
            }
        };
        if values.dtype() != dtype && state.master.is_none() {
            let version = values.storage().version();
            state.master = Some(Master { values: values.to_dtype(dtype)?, version });
        }
        Ok(state)
    }

    /// Whether the step may continue under the policy for gradients that are not finite.
    #[track_caller]
    fn finite(&self, work: &[Work]) -> Result<bool> {
        if self.non_finite == NonFinite::Unchecked {
            return Ok(true);
        }
        let mut flags = Vec::with_capacity(work.len());
        for w in work {
            let axes: Vec<isize> = (0..w.gradient.rank() as isize).collect();
            flags.push(w.gradient.isfinite()?.all(&axes, false)?.to_dtype(DType::F32)?);
        }
        let flags = fetch(&flags)?;
        let bad =
            |(w, &finite): (&Work, &f64)| (finite == 0.0).then(|| self.groups[w.group].members[w.member].name.as_str());
        let bad: Vec<&str> = work.iter().zip(&flags).filter_map(bad).collect();
        let parameters: Vec<Parameter> = self.members().map(|m| m.parameter.clone()).collect();
        let finite = on_all(&parameters, bad.is_empty(), Location::caller())?;
        if finite || self.non_finite == NonFinite::Skip {
            return Ok(finite);
        }
        if bad.is_empty() {
            let m = "gradients of another process are not finite; nothing was changed";
            return Err(Error::argument(self.rule.name(), m).help("the error of that process names the parameters"));
        }
        let more = if bad.len() > 20 { format!(", and {} more", bad.len() - 20) } else { String::new() };
        let m = format!("the gradients of {} parameters are not finite; nothing was changed", bad.len());
        Err(Error::argument(self.rule.name(), m)
            .note(format!("{}{more}", bad[..bad.len().min(20)].join(", ")))
            .help("lower the learning rate, clip the gradients, or use NonFinite::Skip"))
    }
}
