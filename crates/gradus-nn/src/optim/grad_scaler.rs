//! [`GradScaler`]: scaling of the loss, so that small gradients do not vanish in f16.

use std::panic::Location;

use gradus_tensor::{Error, Gradients, Here, Result, Tensor};

use crate::division::on_all;
use crate::{Optimizer, StateDict};

const OP: &str = "grad_scaler";

/// Scales the loss before the backward pass and the gradients after it, so that they do not vanish in f16, and adapts
/// the scale: it grows after many steps whose gradients were finite, and shrinks when they were not. The numbers are
/// those of PyTorch's `GradScaler`.
///
/// It is of use for [`autocast`](gradus_tensor::autocast) to f16; bf16 has the range of f32. The state is part of a run.
///
/// ```
/// # use gradus_nn::{AdamConfig, AdamW, Forward, GradScaler, GradScalerConfig, Init, Linear, Module, Optimizer};
/// # use gradus_nn::clip_grad_norm; use gradus_tensor::*;
/// # let device = Device::from_backend(std::sync::Arc::new(gradus_cpu::CpuBackend::new()?));
/// # let mut rng = Generator::new(0);
/// # let model = Linear::new(4, 2, &mut Init::new(DType::F32, &device, &mut rng))?;
/// # let mut optimizer = AdamW::new(model.named_parameters(), AdamConfig::default())?;
/// # let x = Tensor::randn([8, 4], DType::F32, &device, &mut rng)?;
/// # let target = Tensor::zeros([8], DType::I64, &device)?;
/// let mut scaler = GradScaler::new(GradScalerConfig::default())?;
/// for _ in 0..3 {
///     let loss = autocast(DType::F16, || model.forward(&x)?.cross_entropy(&target))?;
///     let scaled = scaler.scale(&loss)?.backward()?;
///     // `None` if they are not finite. `scaler.step(&mut optimizer, scaled)?` is the same without the clipping.
///     if let Some(mut gradients) = scaler.unscale(&optimizer, scaled)? {
///         clip_grad_norm(&mut gradients, &model.parameters(), 1.0)?;
///         optimizer.step(&gradients)?;
///     }
///     scaler.update()?;
/// }
/// assert_eq!((scaler.get_scale(), scaler.skipped_steps()), (65536.0, 0));
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct GradScaler {
    config: GradScalerConfig,
    scale: f64,
    /// Steps with finite gradients since the scale last changed.
    growth_tracker: u64,
    skipped: u64,
    /// What was found since the last update: whether all gradients were finite. `None` if none were checked.
    finite: Option<bool>,
}

/// The options of [`GradScaler`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GradScalerConfig {
    /// The first scale, above 0. Default 65536.
    pub init_scale: f64,
    /// What the scale is multiplied by when it grows, above 1. Default 2.
    pub growth_factor: f64,
    /// What the scale is multiplied by when gradients are not finite, above 0 and below 1. Default 0.5.
    pub backoff_factor: f64,
    /// The number of updates in a row with finite gradients after which the scale grows, at least 1. Default 2000.
    pub growth_interval: u64,
    /// Whether anything is scaled, checked or skipped. Default true.
    pub enabled: bool,
}

impl Default for GradScalerConfig {
    fn default() -> Self {
        GradScalerConfig {
            init_scale: 65536.0,
            growth_factor: 2.0,
            backoff_factor: 0.5,
            growth_interval: 2000,
            enabled: true,
        }
    }
}

impl GradScaler {
    /// Creates it with the first scale.
    #[track_caller]
    pub fn new(config: GradScalerConfig) -> Result<Self> {
        let GradScalerConfig { init_scale, growth_factor, backoff_factor, growth_interval, .. } = config;
        let refuse = |m: String| Err(Error::argument(OP, m));
        if !(init_scale.is_finite() && init_scale > 0.0) {
            return refuse(format!("init_scale is {init_scale}; it is finite and above 0")).here();
        }
        if !(growth_factor.is_finite() && growth_factor > 1.0) {
            return refuse(format!("growth_factor is {growth_factor}; it is finite and above 1")).here();
        }
        if !(backoff_factor > 0.0 && backoff_factor < 1.0) {
            return refuse(format!("backoff_factor is {backoff_factor}; it is above 0 and below 1")).here();
        }
        if growth_interval == 0 {
            return refuse("growth_interval is 0; it is at least 1".into()).here();
        }
        Ok(GradScaler { config, scale: init_scale, growth_tracker: 0, skipped: 0, finite: None })
    }

    /// The loss times the scale, in at least f32. The backward pass begins with it.
    #[track_caller]
    pub fn scale(&self, loss: &Tensor) -> Result<Tensor> {
        if !self.config.enabled {
            return Ok(loss.clone());
        }
        loss.to_dtype(loss.dtype().compute())?.mul(self.scale)
    }

    /// The gradients of a scaled loss divided by the scale, in at least f32, or `None` if one is not finite: then there
    /// is no step to make, which counts as skipped. To accumulate gradients, [add](Gradients::add) the scaled ones, and
    /// unscale the sum.
    ///
    /// `optimizer` is the one that will make the step. If its parameters [are divided](crate::Parameter::division) among
    /// processes, all of these call it, and a gradient of any part that is not finite counts on all of them. Where several
    /// optimisers share the parameters, this one has some that are divided, if any are.
    #[track_caller]
    pub fn unscale(&mut self, optimizer: &dyn Optimizer, mut gradients: Gradients) -> Result<Option<Gradients>> {
        if !self.config.enabled {
            return Ok(Some(gradients));
        }
        gradients.scale(1.0 / self.scale)?;
        let finite = on_all(&optimizer.parameters(), gradients.all_finite()?, Location::caller())?;
        self.finite = Some(finite && self.finite.unwrap_or(true));
        if !finite {
            self.skipped = self.skipped.saturating_add(1);
            return Ok(None);
        }
        Ok(Some(gradients))
    }

    /// [Unscales](GradScaler::unscale) gradients and makes a step with them. Returns whether it was made: it is skipped
    /// if they are not finite.
    #[track_caller]
    pub fn step(&mut self, optimizer: &mut dyn Optimizer, gradients: Gradients) -> Result<bool> {
        match self.unscale(optimizer, gradients)? {
            Some(gradients) => optimizer.step(&gradients).map(|()| true),
            None => Ok(false),
        }
    }

    /// Adapts the scale. Call it once an iteration, after all steps.
    ///
    /// # Errors
    /// Fails if no gradients were unscaled since the last update.
    #[track_caller]
    pub fn update(&mut self) -> Result<()> {
        if !self.config.enabled {
            return Ok(());
        }
        let Some(finite) = self.finite.take() else {
            let e = Error::argument(OP, "no gradients were unscaled since the last update");
            return Err(e.help("call `unscale` or `step` with the gradients of the scaled loss first"));
        };
        if !finite {
            self.scale *= self.config.backoff_factor;
            self.growth_tracker = 0;
            return Ok(());
        }
        self.growth_tracker = self.growth_tracker.saturating_add(1);
        if self.growth_tracker >= self.config.growth_interval {
            let larger = self.scale * self.config.growth_factor;
            // The scaled loss may be f32.
            if (larger as f32).is_finite() {
                self.scale = larger;
            }
            self.growth_tracker = 0;
        }
        Ok(())
    }

    /// The scale; 1 if it is not enabled.
    pub fn get_scale(&self) -> f64 {
        if self.config.enabled { self.scale } else { 1.0 }
    }

    /// The number of times that gradients were not finite.
    pub fn skipped_steps(&self) -> u64 {
        self.skipped
    }

    /// The state, as metadata. The options are not part of it.
    pub fn state_dict(&self) -> StateDict {
        let mut state = StateDict::new();
        state.set_metadata("scale", format!("{:?}", self.scale));
        state.set_metadata("growth_tracker", self.growth_tracker.to_string());
        state.set_metadata("skipped", self.skipped.to_string());
        state
    }

    /// Replaces the state by a saved one. Fails, and changes nothing, if a part is missing, no number, or a scale that
    /// is not above 0.
    #[track_caller]
    pub fn load_state_dict(&mut self, state: &StateDict) -> Result<()> {
        let scale: f64 = state.required_number("scale")?;
        if !(scale.is_finite() && scale > 0.0) {
            return Err(Error::argument(OP, format!("the saved scale is {scale}; it is finite and above 0")));
        }
        let growth_tracker = state.required_number("growth_tracker")?;
        let skipped = state.required_number("skipped")?;
        *self = GradScaler { config: self.config, scale, growth_tracker, skipped, finite: None };
        Ok(())
    }
}
