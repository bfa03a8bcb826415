//! [`Rule`]: the arithmetic of an optimiser.

use gradus_tensor::{Result, Tensor};

/// The part that differs from one optimiser to another.
pub(super) trait Rule: Send + Sync + 'static {
    /// The optimiser's name.
    fn name(&self) -> &'static str;

    /// The learning rate and weight decay of a group that does not set its own.
    fn defaults(&self) -> (f64, f64);

    /// The momentum that [`Hyper::momentum`] has until another is set, if the rule reads it: the share of the last
    /// steps' direction that a step keeps. `None` for rules whose momentum does not change.
    fn momentum(&self) -> Option<f64> {
        None
    }

    /// Returns an error for invalid hyper-parameters.
    #[track_caller]
    fn check(&self) -> Result<()>;

    /// Names of the state tensors that are kept for each parameter. They have its shape.
    fn slots(&self) -> &'static [&'static str];

    /// The value of all elements of a state tensor before the first step.
    fn initial(&self, _slot: &str) -> f64 {
        0.0
    }

    /// Returns an error for a parameter that the rule does not apply to.
    #[track_caller]
    fn check_parameter(&self, _name: &str, _values: &Tensor) -> Result<()> {
        Ok(())
    }

    /// Whether the update of an element depends on other elements of its parameter.
    fn mixes(&self) -> bool {
        false
    }

    /// The number of tensors of the parameter's shape that [`prepare`](Rule::prepare) writes.
    fn scratch(&self) -> usize {
        0
    }

    /// Writes the scratch tensors, which follow the state tensors in `slots`, by applying updates. Together with
    /// [`derive`](Rule::derive), it computes what the update needs beside the state, for all parameters before the first
    /// of them is written.
    #[track_caller]
    fn prepare(&self, _hyper: Hyper, _target: &Tensor, _gradient: &Tensor, _slots: &[Tensor]) -> Result<()> {
        Ok(())
    }

    /// Computes more tensors for the update, without numbers that differ from step to step. A rule whose update would
    /// allocate memory does so here. `slots` are the state tensors and the scratch tensors.
    #[track_caller]
    fn derive(&self, _target: &Tensor, _gradient: &Tensor, _slots: &[Tensor]) -> Result<Vec<Tensor>> {
        Ok(Vec::new())
    }

    /// Updates `target` in place by applying updates. `slots` are the state tensors of the parameter, the scratch
    /// tensors, and what [`derive`](Rule::derive) returned.
    #[track_caller]
    fn update(&self, hyper: Hyper, target: &Tensor, gradient: &Tensor, slots: &[Tensor]) -> Result<()>;
}

/// The hyper-parameters of one step of one parameter.
#[derive(Debug, Clone, Copy)]
pub(super) struct Hyper {
    pub(super) lr: f64,
    pub(super) weight_decay: f64,
    /// See [`Rule::momentum`]; 0 for a rule that does not read it.
    pub(super) momentum: f64,
    /// Number of this step, counted from 1.
    pub(super) step: u64,
}
