//! Tests that the prelude is enough for a training program, and does not hide any name of the standard library.
#![allow(clippy::unwrap_used)]

use gradus::prelude::*;

/// A variational autoencoder for 8 x 8 images of digits, with a convolutional encoder.
#[derive(Module)]
struct Vae {
    encoder: Sequential,
    mean: Linear,
    log_var: Linear,
    decoder: Sequential,
    scale: Parameter,
    noise: RandomState,
    mode: Mode,
}

impl Vae {
    fn new(latent: usize, device: &Device, rng: &mut Generator) -> Result<Self> {
        let noise = RandomState::new(rng.fork(1));
        let mut init = Init::new(DType::F32, device, rng);
        let same = Conv2dConfig { padding: [1, 1], ..Default::default() };
        Ok(Vae {
            encoder: Sequential::new()
                .add(Conv2d::new(1, 8, [3, 3], same, &mut init)?)
                .add(GroupNorm::new(2, 8, GroupNormConfig::default(), &mut init)?)
                .add(Silu)
                .add(AdaptiveAvgPool2d::new([4, 4])?)
                .add(Flatten::default()),
            mean: Linear::new(128, latent, &mut init)?,
            log_var: Linear::new(128, latent, &mut init)?,
            decoder: Sequential::new()
                .add(Linear::new(latent, 64, &mut init)?)
                .add(Gelu)
                .add(Linear::new(64, 64, &mut init)?),
            scale: Parameter::new(init.ones([64])?)?,
            noise,
            mode: Mode::Train,
        })
    }

    /// The negative evidence lower bound, averaged over the samples.
    fn loss(&self, x: &Tensor) -> Result<Tensor> {
        let hidden = self.encoder.forward(x)?;
        let (mean, log_var) = (self.mean.forward(&hidden)?, self.log_var.forward(&hidden)?);
        let z = if self.mode.is_training() {
            let noise = self.noise.draw(|g| mean.randn_like(g))?;
            (&mean + ((0.5 * &log_var)?.exp()? * noise)?)?
        } else {
            mean.clone()
        };
        let logits = (self.decoder.forward(&z)? * &self.scale)?;
        let rec = logits.bce_with_logits(&x.flatten(1, -1)?, None, None, Reduction::Sum)?;
        let kl = ((mean.square()? + log_var.exp()? - &log_var)? - 1.0)?.sum_all()?;
        (rec + kl / 2)? / x.size(0)? as f64
    }
}

fn train() -> Result<(f64, f64)> {
    let (device, mut rng) = (Device::cpu()?, Generator::new(3));
    let digits = gradus::data::digits::load()?.subset((0..256).collect())?;
    let loader = DataLoader::new(digits, &device).batch_size(64).shuffle(0).build()?;
    let mut model = Vae::new(4, &device, &mut rng)?;
    let (weights, others): (Vec<_>, Vec<_>) = model.named_parameters().into_iter().partition(|(_, p)| p.rank() > 1);
    let groups = [Group::new(weights), Group::new(others).weight_decay(0.0)];
    let mut optimizer = AdamW::with_groups(groups, AdamConfig { lr: 1e-2, ..Default::default() })?;
    let (schedule, parameters) = (Schedule::cosine(40, 0.1)?.after_warmup(4), model.parameters());
    let everything = DataLoader::new(loader.dataset().clone(), &device).batch_size(256).build()?;
    let measure = |model: &mut Vae| -> Result<f64> {
        model.eval();
        let (x, _) = everything.epoch(0)?.next().unwrap()?;
        inference(|| model.loss(&x)?.item())
    };
    let (before, mut step) = (measure(&mut model)?, 0);
    for epoch in 0..10 {
        model.train();
        for batch in loader.epoch(epoch)? {
            let (x, _) = batch?;
            schedule.apply(step, &mut optimizer)?;
            let mut gradients = model.loss(&x)?.backward()?;
            clip_grad_norm(&mut gradients, &parameters, 10.0)?;
            optimizer.step(&gradients)?;
            step += 1;
        }
    }
    Ok((before, measure(&mut model)?))
}

#[test]
fn a_training_program_needs_no_other_import() {
    let (before, after) = train().unwrap();
    assert!(after < 0.8 * before, "from {before} to {after}");
}

/// Compiles only if each of these names refers to the standard library.
#[allow(clippy::type_complexity)]
fn standard<I, F, X>(items: I, f: F) -> Result<Vec<String>, Box<dyn std::error::Error + Send + Sync>>
where
    I: IntoIterator<Item = X, IntoIter: DoubleEndedIterator + ExactSizeIterator>,
    F: Fn(X) -> Option<String> + FnMut(X) -> Option<String> + FnOnce(X) -> Option<String>,
    X: ToString + ToOwned + Clone + Copy + Default + Eq + Ord + PartialEq + PartialOrd + AsRef<str> + Into<String>,
    String: From<X> + Extend<char>,
    Vec<String>: FromIterator<String> + AsMut<[String]> + TryFrom<Vec<String>>,
{
    let mut found: Vec<String> = items.into_iter().rev().filter_map(f).collect();
    found.extend(None.or(Some("end".to_owned())));
    drop(u8::try_from(300u32).map(|n| n.to_string()));
    if found.is_empty() { Err("nothing".into()) } else { Ok(found) }
}

#[test]
fn names_of_the_standard_library_mean_what_they_mean() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    assert_eq!(standard(["a", "", "b"], |s| (!s.is_empty()).then(|| s.to_string()))?, ["b", "a", "end"]);
    let ours: Result<Tensor> = Tensor::zeros([1], DType::F32, &Device::cpu()?);
    assert_eq!(ours?.rank(), 1);
    Ok(())
}
