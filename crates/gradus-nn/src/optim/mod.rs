//! Optimisers, one file each, and gradient clipping.

mod adadelta;
mod adagrad;
mod adam;
mod adamax;
mod captured;
mod clip;
mod grad_scaler;
mod group;
mod lamb;
mod lbfgs;
mod line_search;
mod lion;
mod muon;
mod nadam;
mod radam;
mod rmsprop;
mod rule;
mod sgd;
mod state;
mod stepper;

use gradus_tensor::{Error, Gradients, Result};

pub use adadelta::{Adadelta, AdadeltaConfig};
pub use adagrad::{Adagrad, AdagradConfig};
pub use adam::{Adam, AdamConfig, AdamW};
pub use adamax::{Adamax, AdamaxConfig};
pub use clip::{
    clip_grad_norm, clip_grad_norm_on_device, clip_grad_norm_with, clip_grad_value, clip_to_norm,
    clip_to_norm_on_device, grad_norm, grad_norm_across, grad_norm_of, grad_norm_on_device,
};
pub use grad_scaler::{GradScaler, GradScalerConfig};
pub use group::Group;
pub use lamb::{Lamb, LambConfig};
pub use lbfgs::{Lbfgs, LbfgsConfig, LineSearch};
pub use lion::{Lion, LionConfig};
pub use muon::{AdjustLr, Muon, MuonConfig};
pub use nadam::{NAdam, NAdamConfig};
pub use radam::{RAdam, RAdamConfig};
pub use rmsprop::{RmsProp, RmsPropConfig};
pub use sgd::{Sgd, SgdConfig};

use crate::{LoadReport, Parameter, StateDict, Strict};

/// An optimiser: updates parameters from their gradients.
///
/// A step is all or nothing: the shapes, dtypes, devices and hyper-parameters of all parameters are checked, and all
/// memory is allocated, before the first write. After that only a failing device, or a panic in a function that watches
/// the device, can stop the step. The old values are not copied, so such a step stays unfinished: its error says so,
/// and [`step`](Optimizer::step), `state_dict` and `rebind` fail until a saved state is loaded.
///
/// A parameter that is frozen or has no gradient is not changed, and a shared parameter is updated once. Parameters in
/// f16 and bf16 are updated in an f32 copy and then rounded once.
pub trait Optimizer: Send {
    /// Performs one step. Errors if a gradient does not fit its parameter, or if `gradients` is not empty but has no
    /// gradient for any parameter of this optimiser.
    #[track_caller]
    fn step(&mut self, gradients: &Gradients) -> Result<()>;

    /// The learning rate that the next step uses for each group: the group's learning rate times the factor.
    fn lr(&self) -> Vec<f64>;

    /// Sets the learning rate of one group, before the factor is applied.
    #[track_caller]
    fn set_lr(&mut self, group: usize, lr: f64) -> Result<()>;

    /// The factor on the learning rates of all groups, initially 1.
    fn lr_factor(&self) -> f64;

    /// Sets the factor on the learning rates of all groups; see [`Schedule`](crate::Schedule).
    #[track_caller]
    fn set_lr_factor(&mut self, factor: f64) -> Result<()>;

    /// The share of the last steps' direction that the next step keeps: the momentum of [`Sgd`] and [`RmsProp`], beta1
    /// of [`Adam`] and [`AdamW`]. `None` for an optimiser without momentum, and for one whose momentum cannot be set.
    fn momentum(&self) -> Option<f64> {
        None
    }

    /// Sets the momentum of all groups; see [`Schedule::momentum`](crate::Schedule::momentum). It is not part of the
    /// saved state.
    ///
    /// # Errors
    /// Fails if it is negative or not below 1, and for an optimiser whose [`momentum`](Optimizer::momentum) is `None`,
    /// such as an [`Sgd`] that was made with momentum 0.
    #[track_caller]
    fn set_momentum(&mut self, _momentum: f64) -> Result<()> {
        Err(without_momentum("optimizer"))
    }

    /// The parameters of all groups.
    fn parameters(&self) -> Vec<Parameter>;

    /// Number of steps skipped because a gradient was not finite; see [`NonFinite::Skip`].
    fn skipped_steps(&self) -> u64;

    /// What a step does if a gradient is not finite.
    fn non_finite_policy(&self) -> NonFinite {
        NonFinite::Unchecked
    }

    /// A copy of the state. Tensors are named `{parameter}.{what}`, such as `fc1.weight.exp_avg`. The metadata holds
    /// the step count of each parameter, and the learning rate and weight decay of each group.
    #[track_caller]
    fn state_dict(&self) -> Result<StateDict>;

    /// Replaces the parameters by those of the same names in `parameters`. Call it after
    /// [`Module::to_device`](crate::Module::to_device) or [`cast_parameters`](crate::Module::cast_parameters). Each
    /// parameter's state is moved to the new parameter's device and dtype. Everything is checked before anything
    /// changes.
    ///
    /// # Errors
    /// Fails if `parameters` lacks a name that this optimiser has, if a new parameter has another shape than the old
    /// one, or for anything that would make the constructor fail. Extra parameters in `parameters` are ignored.
    #[track_caller]
    fn rebind(&mut self, parameters: Vec<(String, Parameter)>) -> Result<()>;

    /// Replaces the parameters by those of the same names in `parameters`, which may have other shapes, and their state by
    /// `state`, which [`state_dict`](Optimizer::state_dict) of an optimiser of these gives. Learning rates and the like
    /// stay. This is how ranks divide the parameters of an optimiser. Everything is checked before anything changes.
    ///
    /// # Errors
    /// Fails as [`rebind`](Optimizer::rebind) does, and if the state does not fit the new parameters. It is
    /// [`ErrorKind::Unsupported`](gradus_tensor::ErrorKind::Unsupported) for an optimiser that does not offer it.
    #[track_caller]
    fn rebind_with(&mut self, _parameters: Vec<(String, Parameter)>, _state: &StateDict) -> Result<()> {
        let m = "this optimiser does not take parameters of other shapes";
        Err(Error::new(gradus_tensor::ErrorKind::Unsupported, "rebind_with", m).help("take AdamW, Sgd or another one"))
    }

    /// Replaces the state by a saved one, including learning rates and weight decays. Everything is checked before
    /// anything changes. The report contains names of parameters, whose state is loaded as a whole (`fc1.weight`), and
    /// of single entries of the state (`fc1.weight.exp_avg`, `group.0.lr`).
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
    /// With [`Strict::Yes`], fails if anything is missing, unexpected, or of the wrong shape or dtype; one error lists
    /// it all. [`Strict::No`] loads the parameters and groups that fit and leaves the rest unchanged. In both modes,
    /// the state of another kind of optimiser is an error, and so is metadata that should be a number but is not.
    #[track_caller]
    fn load_state_dict(&mut self, state: &StateDict, strict: Strict) -> Result<LoadReport>;
}

/// What a step does if a gradient contains NaN or infinity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NonFinite {
    /// Gradients are not checked, which costs nothing.
    #[default]
    Unchecked,
    /// The step fails with an error that names the parameters, and nothing is changed.
    Error,
    /// The step is skipped and counted by [`Optimizer::skipped_steps`]; nothing is changed.
    Skip,
}

/// The error about an optimiser whose momentum cannot be set.
#[track_caller]
fn without_momentum(op: &str) -> Error {
    let e = Error::argument(op, "this optimiser has no momentum that can be set");
    e.help("Adam and AdamW have one, and Sgd and RmsProp if they are made with a momentum above 0")
}

/// Implements the constructors of a type that wraps a `Stepper`. The rule is made from the configuration, or is it.
macro_rules! constructors {
    ($name:ident, $config:ident) => {
        super::constructors!($name, $config, |config| config);
    };
    ($name:ident, $config:ident, |$given:ident| $rule:expr) => {
        impl $name {
            /// Creates an optimiser for these parameters, in one group.
            #[track_caller]
            pub fn new(
                parameters: impl IntoIterator<Item = (String, crate::Parameter)>,
                config: $config,
            ) -> gradus_tensor::Result<Self> {
                Self::with_groups([crate::Group::new(parameters)], config)
            }

            /// Creates an optimiser for several groups of parameters.
            #[track_caller]
            pub fn with_groups(
                groups: impl IntoIterator<Item = crate::Group>,
                config: $config,
            ) -> gradus_tensor::Result<Self> {
                let $given = config;
                super::stepper::Stepper::new($rule, groups).map($name)
            }
        }
    };
}
use constructors;

/// Implements `Optimizer` for a type that wraps a `Stepper`.
macro_rules! optimizer {
    ($name:ident) => {
        impl $name {
            /// Sets what a step does with gradients that are not finite.
            #[must_use]
            pub fn non_finite(mut self, policy: crate::NonFinite) -> Self {
                self.0.non_finite = policy;
                self
            }

            /// Makes steps go along the gradient, so that the objective rises.
            #[must_use]
            pub fn maximize(mut self) -> Self {
                self.0.maximize = true;
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
                self.0.factor.get()
            }
            fn set_lr_factor(&mut self, factor: f64) -> gradus_tensor::Result<()> {
                self.0.set_lr_factor(factor)
            }
            fn momentum(&self) -> Option<f64> {
                self.0.momentum()
            }
            fn set_momentum(&mut self, momentum: f64) -> gradus_tensor::Result<()> {
                self.0.set_momentum(momentum)
            }
            fn parameters(&self) -> Vec<crate::Parameter> {
                self.0.members().map(|m| m.parameter.clone()).collect()
            }
            fn skipped_steps(&self) -> u64 {
                self.0.skipped
            }
            fn non_finite_policy(&self) -> crate::NonFinite {
                self.0.non_finite
            }
            fn rebind(&mut self, parameters: Vec<(String, crate::Parameter)>) -> gradus_tensor::Result<()> {
                self.0.rebind(parameters)
            }
            fn rebind_with(
                &mut self,
                parameters: Vec<(String, crate::Parameter)>,
                state: &crate::StateDict,
            ) -> gradus_tensor::Result<()> {
                self.0.rebind_with(parameters, state)
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
