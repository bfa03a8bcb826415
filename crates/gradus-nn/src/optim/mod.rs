//! Optimisers: [`Sgd`], [`Adam`], [`AdamW`], and clipping of gradients.

mod adam;
mod clip;
mod group;
mod sgd;
mod state;
mod stepper;

use gradus_tensor::{Gradients, Result};

pub use adam::{Adam, AdamConfig, AdamW};
pub use clip::{clip_grad_norm, clip_grad_value};
pub use group::Group;
pub use sgd::{Sgd, SgdConfig};

use crate::{LoadReport, Parameter, StateDict, Strict};

/// Moves parameters along their gradients.
///
/// A step is all or nothing: shapes, dtypes, devices and hyper-parameters of all parameters are checked, and all memory is
/// allocated, before the first write. Only a failing device, or a panic of a function that watches it, can then stop it.
/// Because the old values are not copied, such a step remains unfinished: its error says so, and [`step`](Optimizer::step),
/// `state_dict` and `rebind` fail until a saved state is loaded.
///
/// A parameter that is frozen or has no gradient is not changed; a shared one is stepped once. Parameters of f16 and bf16
/// are stepped in an f32 copy and rounded once.
pub trait Optimizer: Send {
    /// Makes one step. Errors if a gradient does not fit its parameter, or if there are gradients but none for a parameter
    /// of this optimiser.
    #[track_caller]
    fn step(&mut self, gradients: &Gradients) -> Result<()>;

    /// The learning rate of each group as the next step uses it: the group's own times the factor.
    fn lr(&self) -> Vec<f64>;

    /// Sets the learning rate of one group, without the factor.
    #[track_caller]
    fn set_lr(&mut self, group: usize, lr: f64) -> Result<()>;

    /// The factor on the learning rates of all groups, 1 at first.
    fn lr_factor(&self) -> f64;

    /// Sets the factor on the learning rates of all groups; see [`Schedule`](crate::Schedule).
    #[track_caller]
    fn set_lr_factor(&mut self, factor: f64) -> Result<()>;

    /// The parameters of all groups.
    fn parameters(&self) -> Vec<Parameter>;

    /// Steps that were left out because a gradient was not finite; see [`NonFinite::Skip`].
    fn skipped_steps(&self) -> u64;

    /// A copy of the state: tensors under `{parameter}.{what}` (`fc1.weight.exp_avg`), and in the metadata the number of
    /// steps of each parameter and learning rate and weight decay of each group.
    #[track_caller]
    fn state_dict(&self) -> Result<StateDict>;

    /// Replaces the parameters by these, matched by name, after [`Module::to_device`](crate::Module::to_device) or
    /// [`cast_parameters`](crate::Module::cast_parameters). The state of each is moved to the new parameter's device and
    /// dtype. Everything is checked before anything changes.
    ///
    /// # Errors
    /// A name that this optimiser has and `parameters` lack; a parameter of another shape than the one that it replaces;
    /// what making an optimiser refuses. Parameters that this optimiser did not have are left out.
    #[track_caller]
    fn rebind(&mut self, parameters: Vec<(String, Parameter)>) -> Result<()>;

    /// Replaces the state by a saved one, with learning rates and weight decays. Everything is checked before anything
    /// changes. The names in the report are those of parameters, whose state is loaded as a whole, and of what is in the
    /// state: `fc1.weight`, `fc1.weight.exp_avg`, `group.0.lr`.
    ///
    /// ```
    /// # use gradus_nn::{AdamConfig, AdamW, Init, Linear, Module, Optimizer, Strict}; use gradus_tensor::*;
    /// # let device = Device::from_backend(std::sync::Arc::new(gradus_cpu::CpuBackend::new()?));
    /// # let mut generator = Generator::new(0);
    /// # let mut init = Init::new(DType::F32, &device, &mut generator);
    /// let (old, new) = (Linear::without_bias(2, 3, &mut init)?, Linear::new(2, 3, &mut init)?);
    /// let saved = AdamW::new(old.named_parameters(), AdamConfig::default())?.state_dict()?;
    /// let mut optimizer = AdamW::new(new.named_parameters(), AdamConfig::default())?;
    /// assert!(optimizer.load_state_dict(&saved, Strict::Yes).is_err());
    /// let report = optimizer.load_state_dict(&saved, Strict::No)?;
    /// assert_eq!(report.missing, ["bias"]);
    /// assert_eq!(report.kept, ["bias"]);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// With [`Strict::Yes`]: what is missing, unexpected, or of another shape or dtype, all in one error.
    /// [`Strict::No`] loads the parameters and groups that fit, and leaves the others as they are. In either case: the
    /// state of another kind of optimiser, and texts that are not numbers.
    #[track_caller]
    fn load_state_dict(&mut self, state: &StateDict, strict: Strict) -> Result<LoadReport>;
}

/// What a step does if a gradient contains a NaN or an infinity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NonFinite {
    /// Gradients are not checked, at no cost.
    #[default]
    Unchecked,
    /// An error that names the parameters; nothing is changed.
    Error,
    /// Nothing is changed, and [`Optimizer::skipped_steps`] counts.
    Skip,
}

/// The methods of an optimiser over its stepper.
macro_rules! optimizer {
    ($name:ident) => {
        impl $name {
            /// Sets the treatment of gradients that are not finite.
            #[must_use]
            pub fn non_finite(mut self, policy: crate::NonFinite) -> Self {
                self.0.non_finite = policy;
                self
            }
        }

        impl crate::Optimizer for $name {
            #[track_caller]
            fn step(&mut self, gradients: &gradus_tensor::Gradients) -> gradus_tensor::Result<()> {
                self.0.step(gradients)
            }
            fn lr(&self) -> Vec<f64> {
                self.0.lr()
            }
            fn set_lr(&mut self, group: usize, lr: f64) -> gradus_tensor::Result<()> {
                self.0.set_lr(group, lr)
            }
            fn lr_factor(&self) -> f64 {
                self.0.factor
            }
            fn set_lr_factor(&mut self, factor: f64) -> gradus_tensor::Result<()> {
                self.0.set_lr_factor(factor)
            }
            fn parameters(&self) -> Vec<crate::Parameter> {
                self.0.members().map(|m| m.parameter.clone()).collect()
            }
            fn skipped_steps(&self) -> u64 {
                self.0.skipped
            }
            fn rebind(&mut self, parameters: Vec<(String, crate::Parameter)>) -> gradus_tensor::Result<()> {
                self.0.rebind(parameters)
            }
            fn state_dict(&self) -> gradus_tensor::Result<crate::StateDict> {
                self.0.state_dict()
            }
            fn load_state_dict(
                &mut self,
                state: &crate::StateDict,
                strict: crate::Strict,
            ) -> gradus_tensor::Result<crate::LoadReport> {
                self.0.load_state_dict(state, strict)
            }
        }
    };
}
use optimizer;
