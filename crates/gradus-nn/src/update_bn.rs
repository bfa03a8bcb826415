//! [`update_bn`]: running statistics of batch normalisation for weights that no training step has seen.

use gradus_tensor::{Error, Result, Tensor, no_grad_guard};

use crate::{Buffer, Item, ItemMut, Mode, Module, Visitor, VisitorMut};

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
/// normalised with them. The model is in training mode meanwhile, and afterwards each module is in the mode that it was
/// in. Other layers, such as [`InstanceNorm`](crate::InstanceNorm), update their statistics as in training.
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
///     assert_eq!(model.running_mean.as_ref().unwrap().tensor().item()?, 4.0);
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
    let mut modes: Vec<Mode> = Vec::new();
    Visitor::walk(model, &mut |_, item| {
        if let Item::Mode(mode) = item {
            modes.push(mode);
        }
    });
    model.train();
    let done = collect(model, &layers, batches, &mut forward);
    let mut modes = modes.into_iter();
    VisitorMut::walk(model, &mut |_, item| {
        if let ItemMut::Mode(mode) = item
            && let Some(before) = modes.next()
        {
            *mode = before;
        }
    });
    if done.is_err() {
        for (layer, [mean, var, count]) in layers.iter().zip(&before) {
            layer.mean.set(mean)?;
            layer.var.set(var)?;
            layer.count.set(count)?;
        }
    }
    done
}

/// The batch normalisations of a model that have running statistics. A walk shows the setting `momentum` as text, from
/// which an f64 is read back exactly.
#[track_caller]
fn layers<M: Module + ?Sized>(model: &M) -> Result<Vec<Layer>> {
    let buffers = model.named_buffers();
    let buffer = |name: &str| buffers.iter().find(|(n, _)| n == name).map(|(_, buffer)| buffer.clone());
    // The path of each batch normalisation with a dot, and its momentum.
    let mut norms: Vec<(String, String)> = Vec::new();
    Visitor::walk(model, &mut |path, item| match item {
        Item::Kind("BatchNorm") => {
            let dot = if path.is_empty() { "" } else { "." };
            norms.push((format!("{path}{dot}"), "None".to_owned()));
        }
        Item::Setting(value) => {
            if let Some((stem, text)) = norms.last_mut()
                && path.strip_prefix(&**stem) == Some("momentum")
            {
                *text = format!("{value:?}");
            }
        }
        _ => {}
    });
    let mut layers = Vec::new();
    for (stem, text) in norms {
        let of = |what: &str| buffer(&format!("{stem}{what}"));
        let (Some(mean), Some(var), Some(count)) = (of("running_mean"), of("running_var"), of("num_batches_tracked"))
        else {
            continue;
        };
        let name = stem.trim_end_matches('.').to_owned();
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
