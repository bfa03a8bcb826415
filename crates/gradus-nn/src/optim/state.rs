//! Saving and loading the state of an optimiser.

use std::collections::HashSet;
use std::sync::Arc;

use gradus_tensor::{Error, Result, Shape, Tensor, no_grad_guard};

use super::stepper::{Master, Member, Members, Rule, State, Stepper, at_least_zero};
use crate::StateDict;
use crate::state_dict::moved;

const OP: &str = "load_state_dict";

fn step_key(name: &str) -> String {
    format!("{name}.step")
}

fn slot_key(name: &str, slot: &str) -> String {
    format!("{name}.{slot}")
}

/// A number from the metadata.
fn number<T: std::str::FromStr>(state: &StateDict, key: &str) -> Result<Option<T>> {
    let Some(text) = state.metadata(key) else { return Ok(None) };
    let parsed =
        text.parse().map_err(|_| Error::argument(OP, format!("metadata {key} is {text:?}, which is no number")))?;
    Ok(Some(parsed))
}

impl<R: Rule> Stepper<R> {
    pub(super) fn state_dict(&self) -> Result<StateDict> {
        let _guard = no_grad_guard();
        let mut saved = StateDict::new();
        saved.set_metadata("optimizer", self.rule.name());
        saved.set_metadata("lr_factor", format!("{:?}", self.factor));
        for (i, group) in self.groups.iter().enumerate() {
            saved.set_metadata(format!("group.{i}.lr"), format!("{:?}", group.lr));
            saved.set_metadata(format!("group.{i}.weight_decay"), format!("{:?}", group.weight_decay));
        }
        for member in self.members() {
            let Some(state) = &member.state else { continue };
            saved.set_metadata(step_key(&member.name), state.step.to_string());
            for (slot, tensor) in self.rule.slots().iter().zip(&state.slots) {
                saved.insert(slot_key(&member.name, slot), tensor.copy()?);
            }
            if let Some(master) = &state.master {
                saved.insert(slot_key(&member.name, "master"), master.values.copy()?);
            }
        }
        Ok(saved)
    }

    pub(super) fn load_state_dict(&mut self, saved: &StateDict) -> Result<()> {
        let _guard = no_grad_guard();
        let name = self.rule.name();
        let kind = saved.metadata("optimizer").unwrap_or("unknown");
        if kind != name {
            return Err(Error::argument(OP, format!("the state is of optimiser {kind:?}, this one is {name:?}")));
        }
        let mut rates = Vec::with_capacity(self.groups.len());
        for i in 0..self.groups.len() {
            let get = |what: &str| -> Result<f64> {
                let key = format!("group.{i}.{what}");
                let value = number(saved, &key)?;
                let value = value.ok_or_else(|| Error::argument(OP, format!("the state has no {key}")))?;
                at_least_zero(OP, &key, value)
            };
            rates.push((get("lr")?, get("weight_decay")?));
        }
        if saved.metadata(&format!("group.{}.lr", self.groups.len())).is_some() {
            return Err(Error::argument(OP, format!("the state has more than {} groups", self.groups.len())));
        }
        let factor = at_least_zero(OP, "lr_factor", number(saved, "lr_factor")?.unwrap_or(1.0))?;

        let states = self.states(OP, &self.groups, saved)?;
        self.factor = factor;
        for (group, (lr, weight_decay)) in self.groups.iter_mut().zip(rates) {
            (group.lr, group.weight_decay) = (lr, weight_decay);
        }
        for (member, state) in self.groups.iter_mut().flat_map(|g| &mut g.members).zip(states) {
            member.state = state;
        }
        Ok(())
    }

    /// The saved state of each member of `groups`, or one error with all that does not fit.
    pub(super) fn states(&self, op: &str, groups: &[Members], saved: &StateDict) -> Result<Vec<Option<State>>> {
        let _guard = no_grad_guard();
        let mut problems = Vec::new();
        let mut known = HashSet::new();
        let mut states = Vec::new();
        for member in groups.iter().flat_map(|g| &g.members) {
            states.push(self.member_state(member, saved, &mut known, &mut problems)?);
        }
        let unexpected = saved.iter().map(|(key, _)| key).filter(|key| !known.contains(*key));
        problems.extend(unexpected.map(|key| format!("unexpected: {key}")));
        if problems.is_empty() {
            return Ok(states);
        }
        let m = format!("the state does not fit the {} optimiser; nothing was changed", self.rule.name());
        let e = problems.iter().take(20).fold(Error::argument(op, m), Error::note);
        Err(if problems.len() > 20 { e.note(format!("and {} more", problems.len() - 20)) } else { e })
    }

    /// The saved state of one parameter; `None` if it was not stepped. What does not fit goes to `problems`.
    fn member_state(
        &self,
        member: &Member,
        saved: &StateDict,
        known: &mut HashSet<String>,
        problems: &mut Vec<String>,
    ) -> Result<Option<State>> {
        let values = member.parameter.values();
        let dtype = values.dtype().compute();
        let step = number(saved, &step_key(&member.name))?;
        let mut take = |slot: &str, required: bool| -> Result<Option<Tensor>> {
            let key = slot_key(&member.name, slot);
            let Some(tensor) = saved.get(&key) else {
                if required && step.is_some() {
                    problems.push(format!("missing: {key}"));
                }
                return Ok(None);
            };
            known.insert(key.clone());
            if tensor.shape() != values.shape() || !tensor.dtype().is_float() {
                let (found, wanted) = (Shape::display(tensor.shape()), Shape::display(values.shape()));
                problems.push(format!("mismatched: {key} is {found} {}, not {wanted} {dtype}", tensor.dtype()));
                return Ok(None);
            }
            // A copy of its own: what was saved is not stepped.
            let moved = moved(tensor, values.device(), dtype)?;
            let shared = Arc::ptr_eq(moved.storage(), tensor.storage());
            if shared { moved.copy().map(Some) } else { Ok(Some(moved)) }
        };
        let slots = self.rule.slots().iter().map(|slot| take(slot, true)).collect::<Result<Vec<_>>>()?;
        // The copy in f32 counts only if it is what the parameter was rounded from; a parameter in f32 has none.
        let master = match take("master", false)? {
            Some(m) if values.dtype() != dtype && m.to_dtype(values.dtype())?.to_bytes()? == values.to_bytes()? => {
                Some(Master { values: m, version: values.storage().version() })
            }
            _ => None,
        };
        let Some(step) = step else {
            let stray = slots.iter().flatten().count();
            if stray > 0 {
                problems.push(format!("missing: {}, the number of steps", step_key(&member.name)));
            }
            return Ok(None);
        };
        Ok(Some(State { step, slots: slots.into_iter().flatten().collect(), master }))
    }
}
