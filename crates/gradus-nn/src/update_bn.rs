//! [`update_bn`]: running statistics of batch normalisation for weights that no training step has seen.

use gradus_tensor::{Error, Result, Tensor, no_grad_guard};

use crate::{Buffer, Item, Mode, Module, Visitor};

const OP: &str = "update_bn";

/// A layer with running statistics.
struct Layer {
    name: String,
    /// The weight of a batch in the running statistics. `None` if these are the mean over all batches.
    momentum: Option<f64>,
    mean: Buffer,
    var: Buffer,
    count: Buffer,
}

/// Computes the running statistics of all batch normalisations anew: as the mean over `batches`, which `forward` passes
/// through the model. The weights of an [`AveragedModel`](crate::AveragedModel) need this, since no batch was ever
/// normalised with them. The model is in training mode meanwhile, and afterwards in the mode that it was in.
///
/// ```
/// # use gradus_nn::{AveragedModel, BatchNorm2d, BatchNormConfig, Forward, Init, Module, update_bn};
/// # use gradus_tensor::*;
/// # let device = Device::from_backend(std::sync::Arc::new(gradus_cpu::CpuBackend::new()?));
/// # let mut rng = Generator::new(0);
/// # let mut model = BatchNorm2d::new(1, BatchNormConfig::default(), &mut Init::new(DType::F32, &device, &mut rng))?;
/// # let mut average = AveragedModel::swa(&model)?;
/// let batches = [1.0f32, 5.0].map(|v| Tensor::from_vec([v, v + 2.0], [2, 1], &device));
/// average.within(&mut model, |model| {
///     update_bn(model, batches, |model, batch| model.forward(batch).map(|_| ()))?;
///     assert_eq!(model.running_mean.tensor().item()?, 4.0);
///     Ok(())
/// })?;
/// # assert_eq!(average.state_dict()?.get("running_mean").unwrap().item()?, 4.0);
/// # Ok::<(), Error>(())
/// ```
///
/// # Errors
/// The errors of `batches` and `forward`; a layer whose momentum is 0, so that nothing of a batch is found; and a layer
/// that `forward` calls more than once, unless its statistics are means. After an error the statistics are as before.
#[track_caller]
pub fn update_bn<M: Module + ?Sized, B>(
    model: &mut M,
    batches: impl IntoIterator<Item = Result<B>>,
    mut forward: impl FnMut(&M, &B) -> Result<()>,
) -> Result<()> {
    let _guard = no_grad_guard();
    let layers = layers(model)?;
    let before: Vec<[Tensor; 3]> = layers.iter().map(|l| [&l.mean, &l.var, &l.count].map(Buffer::tensor)).collect();
    let mut training = false;
    Visitor::walk(model, &mut |_, item| training |= matches!(item, Item::Mode(Mode::Train)));
    model.train();
    let done = collect(model, &layers, batches, &mut forward);
    if !training {
        model.eval();
    }
    if done.is_err() {
        for (layer, [mean, var, count]) in layers.iter().zip(&before) {
            layer.mean.set(mean)?;
            layer.var.set(var)?;
            layer.count.set(count)?;
        }
    }
    done
}

/// The layers of a model that have running statistics: those with these buffers beside a setting called `momentum`. A
/// walk shows a setting as text, from which an f64 is read back exactly.
#[track_caller]
fn layers<M: Module + ?Sized>(model: &M) -> Result<Vec<Layer>> {
    let buffers = model.named_buffers();
    let buffer = |name: &str| buffers.iter().find(|(n, _)| n == name).map(|(_, buffer)| buffer.clone());
    let mut settings: Vec<(String, String)> = Vec::new();
    Visitor::walk(model, &mut |name, item| {
        if let (Item::Setting(value), true) = (item, name.ends_with("momentum")) {
            settings.push((name.to_owned(), format!("{value:?}")));
        }
    });
    let mut layers = Vec::new();
    for (setting, text) in settings {
        let stem = setting.strip_suffix("momentum").unwrap_or_default();
        let of = |what: &str| buffer(&format!("{stem}{what}"));
        let (Some(mean), Some(var), Some(count)) = (of("running_mean"), of("running_var"), of("num_batches_tracked"))
        else {
            continue;
        };
        let name = stem.trim_end_matches('.').to_owned();
        let text = text.trim_start_matches("Some(").trim_end_matches(')');
        let momentum = match text.parse::<f64>() {
            Ok(m) if m > 0.0 => Some(m),
            Err(_) if text == "None" => None,
            _ => {
                let m = format!("layer {name:?} has momentum {text}, so its statistics never change");
                return Err(Error::argument(OP, m).help("give it a momentum above 0"));
            }
        };
        layers.push(Layer { name, momentum, mean, var, count });
    }
    Ok(layers)
}

#[track_caller]
fn collect<M: Module + ?Sized, B>(
    model: &M,
    layers: &[Layer],
    batches: impl IntoIterator<Item = Result<B>>,
    forward: &mut impl FnMut(&M, &B) -> Result<()>,
) -> Result<()> {
    for Layer { mean, var, count, .. } in layers {
        mean.set(&mean.tensor().zeros_like()?)?;
        var.set(&var.tensor().ones_like()?)?;
        count.set(&count.tensor().zeros_like()?)?;
    }
    let mut means: Vec<Mean> = layers.iter().map(|_| Mean::default()).collect();
    let mut any = false;
    for batch in batches {
        any = true;
        // A layer with a momentum adds to zeros, so that its statistics are those of the batch times the momentum.
        for Layer { mean, var, .. } in layers.iter().filter(|layer| layer.momentum.is_some()) {
            mean.set(&mean.tensor().zeros_like()?)?;
            var.set(&var.tensor().zeros_like()?)?;
        }
        forward(model, &batch?)?;
        for (layer, mean) in layers.iter().zip(&mut means) {
            let Some(momentum) = layer.momentum else { continue };
            let calls = layer.count.tensor().item()? - mean.seen;
            if calls == 1.0 {
                mean.add([layer.mean.tensor().div(momentum)?, layer.var.tensor().div(momentum)?])?;
            } else if calls > 1.0 {
                let m = format!("layer {:?} was called more than once for a batch", layer.name);
                return Err(Error::argument(OP, m).help("make it with momentum None, or call it once"));
            }
        }
    }
    if !any {
        return Err(Error::argument(OP, "there are no batches"));
    }
    for (layer, mean) in layers.iter().zip(means) {
        match mean.values {
            Some([mean, var]) => {
                layer.mean.set(&mean)?;
                layer.var.set(&var)?;
            }
            // It was never called.
            None if layer.momentum.is_some() => layer.var.set(&layer.var.tensor().ones_like()?)?,
            None => {}
        }
    }
    Ok(())
}

/// The mean of mean and variance over the batches that a layer has seen.
#[derive(Default)]
struct Mean {
    seen: f64,
    values: Option<[Tensor; 2]>,
}

impl Mean {
    #[track_caller]
    fn add(&mut self, [mean, var]: [Tensor; 2]) -> Result<()> {
        self.seen += 1.0;
        self.values = Some(match &self.values {
            None => [mean, var],
            Some([old_mean, old_var]) => [old_mean.lerp(&mean, 1.0 / self.seen)?, old_var.lerp(&var, 1.0 / self.seen)?],
        });
        Ok(())
    }
}
