//! Well-known networks of `gradus::models`, and writing on from a prompt. In the snippets, `small()` is the config of a
//! GPT-2 with 65 tokens, 16 positions and one block, and `gpt2(device)` the model.

use crate::page::page;
use gradus::models::{
    GenerateOptions, Gpt2, Gpt2Config, ResNet, ResNetConfig, Sampling, UNet, UNetConfig, ViT, ViTConfig, generate,
};
use gradus::prelude::*;

page! {
    "Models":
    heads_do_not_divide_the_features,
    images_have_another_number_of_channels,
    images_have_another_size,
    a_config_contradicts_itself,
    weights_are_of_another_config,
    a_prompt_is_empty,
    a_prompt_is_too_long,
    a_prompt_is_of_another_tokeniser,
    a_temperature_is_negative,
    more_tokens_than_positions,
}

fn small() -> Gpt2Config {
    Gpt2Config { vocab_size: 65, n_positions: 16, n_embd: 8, n_layer: 1, n_head: 2, ..Default::default() }
}

fn gpt2(device: &Device) -> Result<Gpt2> {
    Gpt2::new(small(), &mut Init::new(DType::F32, device, &mut Generator::new(0)))
}

/// The features of a token are divided among the heads of attention.
///
/// Mend: choose the number of features as a multiple of the number of heads.
fn heads_do_not_divide_the_features(device: &Device) -> Result<Error> {
    let mut rng = Generator::new(0);
    let mut init = Init::new(DType::F32, device, &mut rng);
    let error = Gpt2::new(Gpt2Config { n_head: 3, ..small() }, &mut init).err().unwrap();

    Gpt2::new(Gpt2Config { n_head: 4, ..small() }, &mut init)?;
    Ok(error)
}

/// The network was made for colour images, and these are grey, or the other way round.
///
/// Mend: make it with `in_channels` of the data, or read the images with `Channels::Rgb`.
fn images_have_another_number_of_channels(device: &Device) -> Result<Error> {
    let mut rng = Generator::new(0);
    let mut init = Init::new(DType::F32, device, &mut rng);
    let grey = Tensor::zeros([2, 1, 32, 32], DType::F32, device)?;
    let error = UNet::new(UNetConfig { width: 4, ..Default::default() }, &mut init)?.forward(&grey).unwrap_err();

    UNet::new(UNetConfig { in_channels: 1, width: 4, ..Default::default() }, &mut init)?.forward(&grey)?;
    Ok(error)
}

/// A vision transformer has a position for each patch, so its images have one size. Convolutional networks take any.
///
/// Mend: resize the images, or make the model with another `image_size`.
fn images_have_another_size(device: &Device) -> Result<Error> {
    let mut rng = Generator::new(0);
    let mut init = Init::new(DType::F32, device, &mut rng);
    let config =
        ViTConfig { image_size: [32, 32], patch_size: 8, embed_dim: 16, depth: 1, num_heads: 2, ..ViTConfig::tiny() };
    let vit = ViT::new(config, &mut init)?;
    let error = vit.forward(&Tensor::zeros([2, 3, 28, 28], DType::F32, device)?).unwrap_err();

    vit.forward(&Tensor::zeros([2, 3, 32, 32], DType::F32, device)?)?;
    Ok(error)
}

/// Two options exclude each other.
///
/// Mend: start from the config of a network that exists, and change one option.
fn a_config_contradicts_itself(device: &Device) -> Result<Error> {
    let mut rng = Generator::new(0);
    let mut init = Init::new(DType::F32, device, &mut rng);
    let error = ResNet::new(ResNetConfig { groups: 32, ..ResNetConfig::resnet18() }, &mut init).err().unwrap();

    let resnext = ResNetConfig { groups: 32, width_per_group: 4, ..ResNetConfig::resnet50() };
    ResNet::new(resnext, &mut init.skip())?; // skip: its weights are loaded next
    Ok(error)
}

/// The file is of a network with other sizes. The model keeps its weights.
///
/// Mend: make the model with the config that comes with the file, in most cases a `config.json` beside it.
fn weights_are_of_another_config(device: &Device) -> Result<Error> {
    let saved = gpt2(device)?.state_dict()?;
    let mut init = Generator::new(0);
    let mut longer =
        Gpt2::new(Gpt2Config { n_positions: 32, ..small() }, &mut Init::new(DType::F32, device, &mut init))?;
    let error = longer.load_state_dict(&saved, Strict::Yes).unwrap_err();

    gpt2(device)?.load_state_dict(&saved, Strict::Yes)?;
    Ok(error)
}

/// A model writes on from something.
///
/// Mend: begin with the token that begins a text, or with a line break.
fn a_prompt_is_empty(device: &Device) -> Result<Error> {
    let mut model = gpt2(device)?;
    let error = generate(&mut model, &[], device, GenerateOptions::default()).err().unwrap();

    generate(&mut model, &[0], device, GenerateOptions::default())?;
    Ok(error)
}

/// The prompt has more tokens than the model sees at once.
///
/// Mend: pass its last tokens.
fn a_prompt_is_too_long(device: &Device) -> Result<Error> {
    let mut model = gpt2(device)?;
    let prompt: Vec<i64> = (0..20).collect();
    let error = generate(&mut model, &prompt, device, GenerateOptions::default()).err().unwrap();

    generate(&mut model, &prompt[4..], device, GenerateOptions::default())?;
    Ok(error)
}

/// A token of the prompt is outside of the model's vocabulary.
///
/// Mend: encode the prompt with the tokeniser that the model was trained with.
fn a_prompt_is_of_another_tokeniser(device: &Device) -> Result<Error> {
    let mut model = gpt2(device)?;
    let error = generate(&mut model, &[15496, 995], device, GenerateOptions::default()).err().unwrap();

    generate(&mut model, &[20, 43], device, GenerateOptions::default())?;
    Ok(error)
}

/// A temperature divides the logits: 0 takes the likeliest token, 1 draws from the model's own probabilities.
///
/// Mend: values from 0.5 to 1 are usual.
fn a_temperature_is_negative(device: &Device) -> Result<Error> {
    let mut model = gpt2(device)?;
    let options = |temperature| {
        let sampling = Sampling { temperature, ..Default::default() };
        GenerateOptions { sampling, ..Default::default() }
    };
    let error = generate(&mut model, &[1], device, options(-1.0)).err().unwrap();

    generate(&mut model, &[1], device, options(0.8))?;
    Ok(error)
}

/// Training windows are longer than the number of positions of the model.
///
/// Mend: cut the text into shorter windows, or make the model with more positions.
fn more_tokens_than_positions(device: &Device) -> Result<Error> {
    let model = gpt2(device)?;
    let tokens = Tensor::zeros([2, 20], DType::I64, device)?;
    let error = model.forward(&tokens).unwrap_err();

    model.forward(&tokens.narrow(1, 0, 16)?)?;
    Ok(error)
}
