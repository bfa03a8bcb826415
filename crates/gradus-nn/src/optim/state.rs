//! Saving and loading the state of an optimiser.

use std::collections::HashSet;
use std::sync::Arc;

use gradus_tensor::{Error, Here, Result, Shape, Tensor, no_grad_guard};

use super::captured::Number;
use super::rule::Rule;
use super::stepper::{Master, Member, Members, State, Stepper, at_least_zero};
use crate::state_dict::moved;
use crate::{LoadReport, StateDict, Strict};

const OP: &str = "load_state_dict";

/// Prefix of the metadata key for a parameter's step count. Every parameter has one, even before its first step.
const STEPS: &str = "steps.";

/// The metadata key for a hyper-parameter of a group.
fn group_key(group: usize, what: &str) -> String {
    format!("group.{group}.{what}")
}

fn key(name: &str, what: &str) -> String {
    format!("{name}.{what}")
}

/// Reads a hyper-parameter from the metadata. If it is missing, the report says so.
#[track_caller]
fn hyper(saved: &StateDict, key: String, report: &mut LoadReport) -> Result<Option<f64>> {
    match saved.number(&key)? {
        Some(value) => {
            at_least_zero(OP, &key, value)?;
            report.loaded.push(key);
            Ok(Some(value))
        }
        None => {
            report.missing.push(key.clone());
            report.kept.push(key);
            Ok(None)
        }
    }
}

/// The saved state of a parameter, or `None` if the parameter had not been stepped when the state was saved.
type Found = Option<State>;

impl<R: Rule> Stepper<R> {
    /// The state itself, not a copy.
    #[track_caller]
    pub(super) fn view(&self) -> Result<StateDict> {
        self.refuse_unfinished()?;
        let mut view = StateDict::new();
        view.set_metadata("optimizer", self.rule.name());
        view.set_metadata("lr_factor", format!("{:?}", self.factor.get()));
        for (i, group) in self.groups.iter().enumerate() {
            view.set_metadata(group_key(i, "lr"), format!("{:?}", group.lr.get()));
            view.set_metadata(group_key(i, "weight_decay"), format!("{:?}", group.weight_decay.get()));
        }
        for member in self.members() {
            let step = member.state.as_ref().map_or(0, |state| state.step.count());
            view.set_metadata(format!("{STEPS}{}", member.name), step.to_string());
            let Some(state) = &member.state else { continue };
            for (slot, tensor) in self.rule.slots().iter().zip(&state.slots) {
                view.insert(key(&member.name, slot), tensor.clone());
            }
            if let Some(master) = &state.master {
                view.insert(key(&member.name, "master"), master.values.clone());
            }
        }
        Ok(view)
    }

    #[track_caller]
    pub(super) fn state_dict(&self) -> Result<StateDict> {
        self.view()?.copied()
    }

    #[track_caller]
    pub(super) fn load_state_dict(&mut self, saved: &StateDict, strict: Strict) -> Result<LoadReport> {
        let name = self.rule.name();
        let kind = saved.metadata("optimizer").unwrap_or("unknown");
        if kind != name {
            return Err(Error::argument(OP, format!("the state is of optimiser {kind:?}, this one is {name:?}")));
        }
        let mut report = LoadReport::default();
        let factor = hyper(saved, "lr_factor".into(), &mut report)?;
        let mut rates = Vec::with_capacity(self.groups.len());
        for i in 0..self.groups.len() {
            let lr = hyper(saved, group_key(i, "lr"), &mut report)?;
            rates.push((lr, hyper(saved, group_key(i, "weight_decay"), &mut report)?));
        }
        let more = (self.groups.len()..).map(|i| group_key(i, "lr"));
        report.unexpected.extend(more.take_while(|key| saved.metadata(key).is_some()));
        let states = self.states(&self.groups, saved, &mut report)?;
        if strict == Strict::Yes && !report.is_complete() {
            return Err(report.error(OP, &format!("{name} optimiser")));
        }
        if let Some(factor) = factor {
            self.factor.set(factor);
        }
        for (group, (lr, weight_decay)) in self.groups.iter_mut().zip(rates) {
            if let Some(lr) = lr {
                group.lr.set(lr);
            }
            if let Some(weight_decay) = weight_decay {
                group.weight_decay.set(weight_decay);
            }
        }
        for (member, found) in self.groups.iter_mut().flat_map(|g| &mut g.members).zip(states) {
            if let Some(mut state) = found {
                // Replays of captured steps go on with the count that they share.
                if let (Some(old), Some(new)) = (&member.state, &mut state) {
                    old.step.set_count(new.step.count());
                    new.step = old.step.clone();
                }
                member.state = state;
            }
        }
        // Every parameter has been given a saved state, so an unfinished step no longer matters.
        if report.missing.is_empty() && report.mismatched.is_empty() {
            self.unfinished.set(None);
        }
        Ok(report)
    }

    /// The state of each member of `groups`, taken from the entries of the same names in `state`.
    #[track_caller]
    pub(super) fn carried_over(&self, op: &str, groups: &[Members], state: &StateDict) -> Result<Vec<Found>> {
        let mut report = LoadReport::default();
        let states = self.states(groups, state, &mut report)?;
        if report.is_complete() {
            return Ok(states.into_iter().flatten().collect());
        }
        Err(report.error(op, &format!("{} optimiser", self.rule.name())))
    }

    /// The saved state for each member of `groups`, or `None` where it does not fit. The report says why.
    #[track_caller]
    fn states(&self, groups: &[Members], saved: &StateDict, report: &mut LoadReport) -> Result<Vec<Option<Found>>> {
        let _guard = no_grad_guard();
        let mut known = HashSet::new();
        let mut states = Vec::new();
        for member in groups.iter().flat_map(|g| &g.members) {
            let found = self.member_state(member, saved, &mut known, report)?;
            let names = if found.is_some() { &mut report.loaded } else { &mut report.kept };
            names.push(member.name.clone());
            states.push(found);
        }
        // Unexpected entries: each parameter that this optimiser does not have is reported once, by name. Tensors that
        // belong to no parameter at all are reported one by one.
        let metadata = saved.iter_metadata().filter(|(key, _)| !known.contains(*key));
        let strangers: HashSet<&str> = metadata.filter_map(|(key, _)| key.strip_prefix(STEPS)).collect();
        let of_stranger = |key: &str| key.rsplit_once('.').is_some_and(|(name, _)| strangers.contains(name));
        let tensors = saved.iter().map(|(key, _)| key).filter(|key| !known.contains(*key) && !of_stranger(key));
        let mut unexpected: Vec<String> = strangers.iter().copied().chain(tensors).map(str::to_owned).collect();
        unexpected.sort_unstable();
        report.unexpected.append(&mut unexpected);
        Ok(states)
    }

    /// The saved state of one parameter, which may be that it has not been stepped yet. Returns `None` if the state
    /// does not fit; the report says why.
    #[track_caller]
    fn member_state(
        &self,
        member: &Member,
        saved: &StateDict,
        known: &mut HashSet<String>,
        report: &mut LoadReport,
    ) -> Result<Option<Found>> {
        let (name, values) = (&member.name, member.parameter.values());
        let dtype = values.dtype().compute();
        let step_key = format!("{STEPS}{name}");
        let step: Option<u64> = saved.number(&step_key)?;
        known.insert(step_key.clone());
        let (mut fits, mut any) = (true, false);
        let mut take = |slot: &str, required: bool| -> Result<Option<Tensor>> {
            let key = key(name, slot);
            // A parameter that has not been stepped has no tensors.
            let Some(tensor) = saved.get(&key).filter(|_| step != Some(0)) else {
                if required && step.is_some_and(|step| step > 0) {
                    report.missing.push(key);
                    fits = false;
                }
                return Ok(None);
            };
            any = true;
            if tensor.shape() != values.shape() || !tensor.dtype().is_float() {
                let (found, wanted) = (Shape::display(tensor.shape()), Shape::display(values.shape()));
                report.mismatched.push(format!("{key} is {found} {}, not {wanted} {dtype}", tensor.dtype()));
                fits = false;
                known.insert(key);
                return Ok(None);
            }
            known.insert(key);
            // Copy the tensor, so that later steps do not change the saved state.
            let moved = moved(tensor, values.device(), dtype)?;
            let shared = Arc::ptr_eq(moved.storage(), tensor.storage());
            if shared { moved.copy().map(Some) } else { Ok(Some(moved)) }
        };
        let slots = self.rule.slots().iter().map(|slot| take(slot, true)).collect::<Result<Vec<_>>>().here()?;
        // The f32 copy is used only if it still rounds to the parameter's values. A parameter in f32 has no such copy.
        let master = match take("master", false)? {
            Some(m) if values.dtype() != dtype && m.to_dtype(values.dtype())?.to_bytes()? == values.to_bytes()? => {
                Some(Master { values: m, version: values.storage().version() })
            }
            _ => None,
        };
        let Some(step) = step else {
            report.missing.push(if any { step_key } else { name.clone() });
            return Ok(None);
        };
        if !fits {
            return Ok(None);
        }
        Ok(Some((step > 0).then(|| State {
            step: Number::counted(step),
            slots: slots.into_iter().flatten().collect(),
            master,
        })))
    }
}
