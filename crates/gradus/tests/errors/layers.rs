//! Layers, losses, optimisers and their state. An error inside of a model names the layer, under the name that
//! `named_parameters` uses.

use crate::page::page;
use gradus::nn::init::{Fan, Gain};
use gradus::prelude::*;

page! {
    "Layers and optimisers":
    an_input_does_not_fit_a_layer_of_a_model,
    a_probability_of_dropout_is_outside_0_to_1,
    a_batch_of_one_cannot_be_normalised,
    channels_do_not_divide_into_groups,
    a_sequence_has_the_wrong_rank,
    lengths_of_sequences_do_not_fit,
    a_weight_has_no_fan,
    modules_are_nested_without_end,
    names_of_a_saved_model_differ,
    shapes_of_a_saved_model_differ,
    a_learning_rate_is_negative,
    no_gradient_is_of_this_optimiser,
    a_parameter_is_in_two_groups,
    a_gradient_is_not_finite,
    the_norm_of_the_gradients_is_not_finite,
    the_state_is_of_another_optimiser,
    muon_steps_matrices_only,
    a_scaler_is_updated_before_a_step,
    a_schedule_without_steps,
    statistics_that_never_change,
    a_summary_of_a_model_without_parameters,
}

/// The input of a layer has another number of features than its weight. Read the layer's name from the message: here the
/// second linear layer takes 64 features, and the first one gives 32.
///
/// Mend: make both the same. `summary(&model, shape)` prints the shapes layer by layer.
fn an_input_does_not_fit_a_layer_of_a_model(device: &Device) -> Result<Error> {
    let mut rng = Generator::new(0);
    let mut init = Init::new(DType::F32, device, &mut rng);
    let x = Tensor::zeros([8, 784], DType::F32, device)?;
    let model = Sequential::new().add(Linear::new(784, 32, &mut init)?).add(Relu).add(Linear::new(64, 10, &mut init)?);
    let error = model.forward(&x).unwrap_err();

    let model = Sequential::new().add(Linear::new(784, 32, &mut init)?).add(Relu).add(Linear::new(32, 10, &mut init)?);
    model.forward(&x)?;
    Ok(error)
}

/// The probability is that of dropping an element, from 0 to 1; 50 for per cent is none.
///
/// Mend: divide by 100.
fn a_probability_of_dropout_is_outside_0_to_1(_: &Device) -> Result<Error> {
    let mut rng = Generator::new(0);
    let error = Dropout::new(50.0, &mut rng).unwrap_err();

    Dropout::new(0.5, &mut rng)?;
    Ok(error)
}

/// While a model trains, batch normalisation takes the variance of each channel over the batch, and one value has none.
///
/// Mend: leave out an incomplete last batch (`drop_last`), or evaluate with `model.eval()`.
fn a_batch_of_one_cannot_be_normalised(device: &Device) -> Result<Error> {
    let mut rng = Generator::new(0);
    let mut norm = BatchNorm1d::new(4, Default::default(), &mut Init::new(DType::F32, device, &mut rng))?;
    let x = Tensor::ones([1, 4], DType::F32, device)?;
    let error = norm.forward(&x).unwrap_err();

    norm.eval();
    norm.forward(&x)?;
    Ok(error)
}

/// Group normalisation divides the channels into groups of one size.
///
/// Mend: choose a number of groups that divides the number of channels.
fn channels_do_not_divide_into_groups(device: &Device) -> Result<Error> {
    let mut rng = Generator::new(0);
    let mut init = Init::new(DType::F32, device, &mut rng);
    let error = GroupNorm::new(5, 32, Default::default(), &mut init).err().unwrap();

    GroupNorm::new(4, 32, Default::default(), &mut init)?;
    Ok(error)
}

/// A recurrent layer takes `[l, n, features]`, or `[l, features]` for one sequence.
///
/// Mend: insert the missing axis. `batch_first` in the settings swaps the first two.
fn a_sequence_has_the_wrong_rank(device: &Device) -> Result<Error> {
    let mut rng = Generator::new(0);
    let lstm = Lstm::new(8, 16, Default::default(), &mut Init::new(DType::F32, device, &mut rng))?;
    let x = Tensor::zeros([8], DType::F32, device)?;
    let error = lstm.forward(&x).unwrap_err();

    lstm.forward(&x.unsqueeze(0)?)?;
    Ok(error)
}

/// There is one length for each sequence of the batch. It is at least 1 and at most the number of time steps.
///
/// Mend: pass the lengths that `Sequence::collate` returns with the padded batch.
fn lengths_of_sequences_do_not_fit(device: &Device) -> Result<Error> {
    let mut rng = Generator::new(0);
    let gru = Gru::new(8, 16, Default::default(), &mut Init::new(DType::F32, device, &mut rng))?;
    let x = Tensor::zeros([5, 2, 8], DType::F32, device)?;
    let error = gru.run(&x, Some(&[5, 9]), None).err().unwrap();

    gru.run(&x, Some(&[5, 4]), None)?;
    Ok(error)
}

/// Kaiming and Xavier initialisation divide by the number of inputs of a weight, and a vector has no such axis.
///
/// Mend: draw vectors from `uniform` or `normal`.
fn a_weight_has_no_fan(device: &Device) -> Result<Error> {
    let mut rng = Generator::new(0);
    let mut init = Init::new(DType::F32, device, &mut rng);
    let error = init.kaiming_uniform([8], Fan::In, Gain::Relu).unwrap_err();

    init.uniform([8], -0.1, 0.1)?;
    Ok(error)
}

/// A module computes itself, or a chain of modules that ends in itself.
///
/// Mend: call the layers inside, not the module.
fn modules_are_nested_without_end(device: &Device) -> Result<Error> {
    #[derive(Module)]
    struct Endless {
        inner: Linear,
    }
    impl Forward for Endless {
        fn compute(&self, x: &Tensor) -> Result<Tensor> {
            self.forward(&self.inner.forward(x)?)
        }
    }
    let mut rng = Generator::new(0);
    let model = Endless { inner: Linear::new(2, 2, &mut Init::new(DType::F32, device, &mut rng))? };
    let x = Tensor::zeros([1, 2], DType::F32, device)?;
    let error = model.forward(&x).unwrap_err();

    model.inner.forward(&x)?;
    Ok(error)
}

/// A state dict lacks names that the module has, or has others: the model was built otherwise, or the names carry a
/// prefix such as `module.`. Nothing was changed.
///
/// Mend: build the same model, rename the tensors, or load what fits with `Strict::No` and read the report.
fn names_of_a_saved_model_differ(device: &Device) -> Result<Error> {
    let mut rng = Generator::new(0);
    let mut model = Linear::new(2, 2, &mut Init::new(DType::F32, device, &mut rng))?;
    let state = model.state_dict()?;
    let wrapped: StateDict = state.iter().map(|(name, t)| (format!("module.{name}"), t.clone())).collect();
    let error = model.load_state_dict(&wrapped, Strict::Yes).unwrap_err();

    let bare: StateDict =
        wrapped.iter().map(|(name, t)| (name.trim_start_matches("module.").to_owned(), t.clone())).collect();
    model.load_state_dict(&bare, Strict::Yes)?;
    Ok(error)
}

/// A tensor of the state has another shape than the module's: another number of classes, another width.
///
/// Mend: for another number of classes, load with `Strict::No`: what does not fit keeps its fresh values.
fn shapes_of_a_saved_model_differ(device: &Device) -> Result<Error> {
    let mut rng = Generator::new(0);
    let mut init = Init::new(DType::F32, device, &mut rng);
    let (old, mut model) = (Linear::new(8, 1000, &mut init)?, Linear::new(8, 10, &mut init)?);
    let error = model.load_state_dict(&old.state_dict()?, Strict::Yes).unwrap_err();

    let report = model.load_state_dict(&old.state_dict()?, Strict::No)?;
    assert_eq!(report.kept.len(), 2);
    Ok(error)
}

/// Settings of optimisers are checked when the optimiser is made.
///
/// Mend: `maximize()` walks uphill; a negative rate does not.
fn a_learning_rate_is_negative(device: &Device) -> Result<Error> {
    let w = [("w".to_owned(), Parameter::new(Tensor::ones([2], DType::F32, device)?)?)];
    let error = Sgd::new(w.clone(), SgdConfig { lr: -0.1, ..Default::default() }).err().unwrap();

    Sgd::new(w, SgdConfig { lr: 0.1, ..Default::default() })?.maximize();
    Ok(error)
}

/// The gradients are those of other parameters than the optimiser's. The model was made anew, or moved to another device,
/// after the optimiser.
///
/// Mend: make the optimiser after the model has its device and dtype, or call `rebind`.
fn no_gradient_is_of_this_optimiser(device: &Device) -> Result<Error> {
    let make = |seed| Linear::new(2, 1, &mut Init::new(DType::F32, device, &mut Generator::new(seed)));
    let (old, model) = (make(0)?, make(1)?);
    let x = Tensor::ones([4, 2], DType::F32, device)?;
    let mut optimizer = Sgd::new(old.named_parameters(), SgdConfig { lr: 0.1, ..Default::default() })?;
    let error = optimizer.step(&model.forward(&x)?.mean_all()?.backward()?).unwrap_err();

    optimizer.rebind(model.named_parameters())?;
    optimizer.step(&model.forward(&x)?.mean_all()?.backward()?)?;
    Ok(error)
}

/// A parameter is listed in two groups, and it would be stepped twice.
///
/// Mend: divide the parameters with `partition`.
fn a_parameter_is_in_two_groups(device: &Device) -> Result<Error> {
    let mut rng = Generator::new(0);
    let model = Linear::new(2, 1, &mut Init::new(DType::F32, device, &mut rng))?;
    let all = model.named_parameters();
    let biases = all.iter().filter(|(name, _)| name.ends_with("bias")).cloned();
    let groups = [Group::new(all.clone()), Group::new(biases).weight_decay(0.0)];
    let error = AdamW::with_groups(groups, AdamConfig::default()).err().unwrap();

    let (biases, weights): (Vec<_>, Vec<_>) = all.into_iter().partition(|(name, _)| name.ends_with("bias"));
    AdamW::with_groups([Group::new(weights), Group::new(biases).weight_decay(0.0)], AdamConfig::default())?;
    Ok(error)
}

/// An optimiser that was told to check its gradients found NaN or infinity. The parameters are as they were.
///
/// Mend: lower the learning rate, clip the gradients, or skip such steps. `find_nonfinite(|| ..)` names the operation
/// where the first one appears.
fn a_gradient_is_not_finite(device: &Device) -> Result<Error> {
    use gradus::nn::NonFinite;
    let w = Parameter::new(Tensor::zeros([2], DType::F32, device)?)?;
    let named = [("w".to_owned(), w.clone())];
    let config = SgdConfig { lr: 0.1, ..Default::default() };
    let mut optimizer = Sgd::new(named.clone(), config)?.non_finite(NonFinite::Error);
    let error = optimizer.step(&w.sqrt()?.sum_all()?.backward()?).unwrap_err();

    let mut optimizer = Sgd::new(named, config)?.non_finite(NonFinite::Skip);
    optimizer.step(&w.sqrt()?.sum_all()?.backward()?)?;
    Ok(error)
}

/// Clipping divides by the norm of all gradients, and it is NaN or infinite. PyTorch would make all gradients NaN.
///
/// Mend: leave the step out, and look for its cause with `find_nonfinite`.
fn the_norm_of_the_gradients_is_not_finite(device: &Device) -> Result<Error> {
    let w = Parameter::new(Tensor::zeros([2], DType::F32, device)?)?;
    let mut gradients = w.sqrt()?.sum_all()?.backward()?;
    let error = clip_grad_norm(&mut gradients, std::slice::from_ref(&w), 1.0).unwrap_err();

    let mut gradients = (w.tensor() + 1.0)?.sqrt()?.sum_all()?.backward()?;
    clip_grad_norm(&mut gradients, &[w], 1.0)?;
    Ok(error)
}

/// Moments of Adam say nothing to SGD.
///
/// Mend: make the optimiser that was saved.
fn the_state_is_of_another_optimiser(device: &Device) -> Result<Error> {
    let w = [("w".to_owned(), Parameter::new(Tensor::ones([2], DType::F32, device)?)?)];
    let saved = AdamW::new(w.clone(), AdamConfig::default())?.state_dict()?;
    let mut sgd = Sgd::new(w.clone(), SgdConfig { lr: 0.1, ..Default::default() })?;
    let error = sgd.load_state_dict(&saved, Strict::Yes).unwrap_err();

    AdamW::new(w, AdamConfig::default())?.load_state_dict(&saved, Strict::Yes)?;
    Ok(error)
}

/// Muon makes the step of a matrix orthogonal, and a vector is no matrix.
///
/// Mend: let Muon step the weights of hidden layers, and AdamW everything else.
fn muon_steps_matrices_only(device: &Device) -> Result<Error> {
    let mut rng = Generator::new(0);
    let model = Linear::new(4, 4, &mut Init::new(DType::F32, device, &mut rng))?;
    let error = Muon::new(model.named_parameters(), MuonConfig::default()).err().unwrap();

    let (matrices, others): (Vec<_>, Vec<_>) = model.named_parameters().into_iter().partition(|(_, p)| p.rank() == 2);
    Muon::new(matrices, MuonConfig::default())?;
    AdamW::new(others, AdamConfig::default())?;
    Ok(error)
}

/// `GradScaler::update` adapts the scale to what the last steps found, and there was none.
///
/// Mend: call `step` with the gradients of the scaled loss, then `update`.
fn a_scaler_is_updated_before_a_step(device: &Device) -> Result<Error> {
    let w = Parameter::new(Tensor::ones([2], DType::F32, device)?)?;
    let mut optimizer = Sgd::new([("w".to_owned(), w.clone())], SgdConfig { lr: 0.1, ..Default::default() })?;
    let mut scaler = GradScaler::new(GradScalerConfig::default())?;
    let error = scaler.update().unwrap_err();

    let loss = w.square()?.sum_all()?;
    scaler.step(&mut optimizer, scaler.scale(&loss)?.backward()?)?;
    scaler.update()?;
    Ok(error)
}

/// A schedule runs over a number of steps, and 0 is none.
///
/// Mend: count the steps: epochs times the number of batches.
fn a_schedule_without_steps(_: &Device) -> Result<Error> {
    let error = Schedule::cosine(0, 0.1).unwrap_err();

    Schedule::cosine(10 * 60, 0.1)?;
    Ok(error)
}

/// `update_bn` computes the statistics of batch normalisation anew from batches, and there are none.
///
/// Mend: pass the batches of the training set.
fn statistics_that_never_change(device: &Device) -> Result<Error> {
    let mut rng = Generator::new(0);
    let mut model = BatchNorm1d::new(4, Default::default(), &mut Init::new(DType::F32, device, &mut rng))?;
    let none: [Result<Tensor>; 0] = [];
    let error = update_bn(&mut model, none, |m, x| m.forward(x).map(drop)).unwrap_err();

    let batch = Tensor::randn([8, 4], DType::F32, device, &mut rng)?;
    update_bn(&mut model, [Ok(batch)], |m, x| m.forward(x).map(drop))?;
    Ok(error)
}

/// `summary` runs the model on an input of zeros, and takes its dtype and device from the first parameter.
///
/// Mend: pass an input to `Summary::of`.
fn a_summary_of_a_model_without_parameters(_: &Device) -> Result<Error> {
    let error = summary(&Sequential::new().add(Relu), [1, 8]).err().unwrap();

    summary(&Linear::new(8, 2, &mut Init::new(DType::F32, &Device::cpu()?, &mut Generator::new(0)))?, [1, 8])?;
    Ok(error)
}
