//! Models of `gradus_models` that are divided among ranks, beside whole ones.
#![allow(clippy::unwrap_used)]

mod common;

use std::ops::Range;
use std::sync::Arc;

use common::{device, near_all, off};
use gradus_dist::{
    ColumnLinear, Communicator, DataParallel, Mesh, Options, divide, join_state, parallel_cross_entropy, split_state,
    threads,
};
use gradus_models::{
    Bert, BertConfig, GenerateOptions, Gpt2, Gpt2Config, Llama, LlamaConfig, ViT, ViTConfig, generate,
};
use gradus_nn::{
    AdamConfig, AdamW, CrossEntropyLoss, Embedding, Forward, GradScaler, GradScalerConfig, Init, Linear, LoraConfig,
    LoraLinear, Module, NonFinite, Optimizer, Parameter, SpectralNorm, Split, StateDict, Strict, WeightNorm,
};
use gradus_tensor::{DType, Device, ErrorKind, Generator, Result, Tensor};

type Plan = &'static [(&'static str, Split)];
type Make<F> = fn(&Device, f64) -> Result<F>;

const ROWS: usize = 8;
const VOCABULARY: usize = 11;

fn gpt2(device: &Device, dropout: f64) -> Result<Gpt2> {
    let sizes =
        Gpt2Config { vocab_size: VOCABULARY, n_positions: 6, n_embd: 8, n_layer: 2, n_head: 4, ..Default::default() };
    let config = Gpt2Config { n_inner: Some(24), resid_pdrop: 0.0, embd_pdrop: 0.0, attn_pdrop: dropout, ..sizes };
    Gpt2::new(config, &mut Init::new(DType::F64, device, &mut Generator::new(3)))
}

fn bert(device: &Device, dropout: f64) -> Result<Bert> {
    let config = BertConfig {
        vocab_size: VOCABULARY,
        hidden_size: 8,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        intermediate_size: 24,
        max_position_embeddings: 6,
        hidden_dropout_prob: 0.0,
        attention_probs_dropout_prob: dropout,
        ..BertConfig::default()
    };
    Bert::new(config, &mut Init::new(DType::F64, device, &mut Generator::new(3)))
}

fn llama(device: &Device, dropout: f64) -> Result<Llama> {
    let config = LlamaConfig {
        vocab_size: VOCABULARY,
        hidden_size: 16,
        intermediate_size: 24,
        num_hidden_layers: 2,
        num_attention_heads: 8,
        num_key_value_heads: Some(4),
        max_position_embeddings: 6,
        attention_bias: true,
        mlp_bias: true,
        attention_dropout: dropout,
        ..LlamaConfig::default()
    };
    Llama::new(config, &mut Init::new(DType::F64, device, &mut Generator::new(3)))
}

fn vit(device: &Device, dropout: f64) -> Result<ViT> {
    let sizes = ViTConfig { image_size: [4, 4], patch_size: 2, in_channels: 1, num_classes: 5, ..ViTConfig::tiny() };
    let config = ViTConfig { embed_dim: 8, depth: 2, num_heads: 4, mlp_dim: 24, attention_dropout: dropout, ..sizes };
    ViT::new(config, &mut Init::new(DType::F64, device, &mut Generator::new(3)))
}

fn tokens(device: &Device) -> Result<Tensor> {
    Tensor::randint(0, VOCABULARY as i64, [ROWS, 6], DType::I64, device, &mut Generator::new(23))
}

fn pictures(device: &Device) -> Result<Tensor> {
    Tensor::randn([ROWS, 1, 4, 4], DType::F64, device, &mut Generator::new(23))
}

/// With numbers of its own for each feature: the sum of squares after a norm would not depend on the model.
fn loss(y: &Tensor) -> Result<Tensor> {
    let n = y.size(-1)?;
    let weights = Tensor::arange(1, n as i64 + 1, 1, DType::F64, y.device())?;
    y.mul(&weights)?.square()?.mean_all()
}

/// What Adam divides rounding by, of gradients that are mathematically 0, is far above it.
fn adam(parameters: Vec<(String, Parameter)>) -> Result<AdamW> {
    AdamW::new(parameters, AdamConfig { lr: 0.01, eps: 1e-4, ..AdamConfig::default() })
}

fn tensor_axis(comm: &Arc<dyn Communicator>, sizes: [usize; 2]) -> Result<(DataParallel, Arc<dyn Communicator>)> {
    let mesh = Mesh::new(comm, [("data", sizes[0]), ("tensor", sizes[1])])?;
    Ok((DataParallel::with_shards(mesh.axis("data")?, 4)?, mesh.axis("tensor")?))
}

fn state_of(model: &impl Module, gradients: &gradus_tensor::Gradients) -> StateDict {
    let mut state = StateDict::new();
    for (name, parameter) in model.named_parameters() {
        state.insert(name, gradients.get(parameter.tensor()).unwrap().clone());
    }
    state
}

#[track_caller]
fn near(ours: &StateDict, theirs: &StateDict) {
    let names = |s: &StateDict| s.iter().map(|(name, _)| name.to_owned()).collect::<Vec<_>>();
    assert_eq!(names(ours), names(theirs));
    for (name, tensor) in ours.iter() {
        let off = off(tensor, theirs.get(name).unwrap());
        assert!(off < 1e-12, "{name}: {off}");
    }
}

/// A divided model beside a whole one: outputs, gradients, and weights and states after three steps.
fn check<F: Forward>(make: Make<F>, x: fn(&Device) -> Result<Tensor>, plan: Plan) {
    for sizes in [[2, 2], [4, 1], [1, 4]] {
        threads(sizes[0] * sizes[1], Options::default(), |comm| {
            let device = device()?;
            let x = x(&device)?;
            let (whole, mut model) = (make(&device, 0.0)?, make(&device, 0.0)?);
            let (parallel, tensor) = tensor_axis(comm, sizes)?;
            let names = |m: &F| m.state_dict().unwrap().iter().map(|(name, _)| name.to_owned()).collect::<Vec<_>>();
            divide(&mut model, plan, &tensor)?;
            assert_eq!(names(&model), names(&whole));
            let [part, all] = [&model, &whole].map(|m| m.num_parameters());
            assert!(if sizes[1] > 1 { part < 2 * all / 3 } else { part == all }, "{part} of {all}");
            assert!(off(&model.forward(&x)?, &whole.forward(&x)?) < 1e-12);

            let (mut ours, mut theirs) = (adam(model.named_parameters())?, adam(whole.named_parameters())?);
            for _ in 0..3 {
                let rows = |rows: Range<usize>| loss(&model.forward(&x.narrow(0, rows.start, rows.len())?)?);
                let (value, gradients) = parallel.backward(&model, ROWS, rows)?;
                let expected = loss(&whole.forward(&x)?)?;
                // The losses of shards are added in f32.
                assert!(off(&value, &expected) < 1e-6 * expected.item()?);
                let all = expected.backward()?;
                near(&join_state(&state_of(&model, &gradients), &model)?, &state_of(&whole, &all));
                ours.step(&gradients)?;
                theirs.step(&all)?;
            }
            near(&join_state(&model.state_dict()?, &model)?, &whole.state_dict()?);
            near(&join_state(&ours.state_dict()?, &model)?, &theirs.state_dict()?);
            Ok(())
        })
        .unwrap();
    }
}

#[test]
fn a_divided_gpt2_learns_what_the_whole_one_learns() {
    check(gpt2, tokens, Gpt2::TENSOR_PARALLEL);
}

#[test]
fn a_divided_bert_learns_what_the_whole_one_learns() {
    let bert = |device: &Device, dropout: f64| {
        let mut model = bert(device, dropout)?;
        model.pooler = None;
        Ok(model)
    };
    check(bert, tokens, Bert::TENSOR_PARALLEL);
}

#[test]
fn a_divided_vit_learns_what_the_whole_one_learns() {
    check(vit, pictures, ViT::TENSOR_PARALLEL);
}

#[test]
fn a_divided_llama_learns_what_the_whole_one_learns() {
    check(llama, tokens, Llama::TENSOR_PARALLEL);
}

#[test]
fn a_plan_for_divided_logits_has_the_loss_of_whole_ones() {
    for ranks in [2, 4] {
        threads(ranks, Options::default(), |comm| {
            let device = device()?;
            let (x, y) = (tokens(&device)?, tokens(&device)?.flatten(0, 1)?);
            let (whole, mut model) = (gpt2(&device, 0.0)?, gpt2(&device, 0.0)?);
            let plan = [&[("wte.weight", Split::Classes)], Gpt2::TENSOR_PARALLEL].concat();
            divide(&mut model, &plan, comm)?;
            let logits = model.forward(&x)?.flatten(0, 1)?;
            let own = VOCABULARY * (comm.rank() + 1) / ranks - VOCABULARY * comm.rank() / ranks;
            assert_eq!(logits.shape(), [ROWS * 6, own]);
            let ours = parallel_cross_entropy(&logits, &y, VOCABULARY, comm, &CrossEntropyLoss::default())?;
            let theirs = whole.forward(&x)?.flatten(0, 1)?.cross_entropy(&y)?;
            assert!(off(&ours, &theirs) < 1e-12);
            let (ours, theirs) = (ours.backward()?, theirs.backward()?);
            near(&join_state(&state_of(&model, &ours), &model)?, &state_of(&whole, &theirs));
            // Tokens are not drawn from a part of the logits.
            let mut tokens = generate(&mut model, &[3], &device, GenerateOptions::default())?;
            let e = tokens.next().unwrap().unwrap_err();
            assert!(e.message().contains("numbers for 11 tokens"), "{e}");
            Ok(())
        })
        .unwrap();
    }
}

#[test]
fn a_divided_gpt2_writes_what_the_whole_one_writes() {
    threads(2, Options::default(), |comm| {
        let device = device()?;
        let (mut whole, mut model) = (gpt2(&device, 0.0)?, gpt2(&device, 0.0)?);
        divide(&mut model, Gpt2::TENSOR_PARALLEL, comm)?;
        let write = |model: &mut Gpt2| {
            let options = GenerateOptions { max_new_tokens: 4, ..GenerateOptions::default() };
            generate(model, &[3, 1], &device, options)?.collect::<Result<Vec<i64>>>()
        };
        assert_eq!(write(&mut model)?, write(&mut whole)?);
        Ok(())
    })
    .unwrap();
}

#[test]
fn heads_of_ranks_drop_other_weights_and_what_is_whole_stays_the_same() {
    threads(2, Options::default(), |comm| {
        let device = device()?;
        let x = tokens(&device)?;
        let mut model = gpt2(&device, 0.5)?;
        divide(&mut model, Gpt2::TENSOR_PARALLEL, comm)?;
        let states = model.named_random_states();
        let seeds: Vec<u64> =
            states.iter().filter(|(name, _)| name.contains("heads")).map(|(_, s)| s.get().seed()).collect();
        let mine = Tensor::from_vec(seeds.clone(), [seeds.len()], &device)?;
        let all = comm.all_gather(&mine)?.to_vec::<u64>()?;
        assert!(seeds.len() == 2 && all[..2] != all[2..], "{all:?}");
        let y = model.forward(&x)?.reshape([1, ROWS * 6 * VOCABULARY])?;
        let both = comm.all_gather(&y)?;
        assert_eq!(off(&both.narrow(0, 0, 1)?, &both.narrow(0, 1, 1)?), 0.0);
        Ok(())
    })
    .unwrap();
}

#[test]
fn states_go_on_with_another_number_of_tensor_ranks() {
    let device = device().unwrap();
    let x = tokens(&device).unwrap();
    let whole = gpt2(&device, 0.0).unwrap();
    let mut theirs = adam(whole.named_parameters()).unwrap();
    for _ in 0..4 {
        theirs.step(&loss(&whole.forward(&x).unwrap()).unwrap().backward().unwrap()).unwrap();
    }
    let mut saved: Option<(StateDict, StateDict)> = None;
    for ranks in [4, 1, 2, 4] {
        let mut all = threads(ranks, Options::default(), |comm| {
            let mut model = gpt2(&device, 0.0)?;
            divide(&mut model, Gpt2::TENSOR_PARALLEL, comm)?;
            let mut optimizer = adam(model.named_parameters())?;
            if let Some((weights, state)) = &saved {
                model.load_state_dict(&split_state(weights, &model)?, Strict::Yes)?;
                optimizer.load_state_dict(&split_state(state, &model)?, Strict::Yes)?;
            }
            optimizer.step(&loss(&model.forward(&x)?)?.backward()?)?;
            let (weights, state) = (model.state_dict()?, optimizer.state_dict()?);
            if ranks == 4 {
                // A part is not taken for the whole.
                let e = optimizer.load_state_dict(&join_state(&state, &model)?, Strict::Yes).unwrap_err();
                assert!(e.to_string().contains("exp_avg is [11, 8] f64, not"), "{e}");
            }
            Ok((join_state(&weights, &model)?, join_state(&state, &model)?))
        });
        saved = Some(all.as_mut().unwrap().remove(0));
    }
    let (weights, state) = saved.unwrap();
    near(&weights, &whole.state_dict().unwrap());
    near(&state, &theirs.state_dict().unwrap());
}

/// Two layers, of which the second has a row of huge weights, so that scaled gradients of one feature between them overflow
/// in f32. The other features are those of the other ranks.
fn overflowing(device: &Device, feature: usize) -> Result<[Linear; 2]> {
    let mut rng = Generator::new(9);
    let mut init = Init::new(DType::F32, device, &mut rng);
    let [up, down] = [Linear::new(4, 8, &mut init)?, Linear::new(8, 4, &mut init)?];
    for (parameter, axis, value) in [(&up.weight, 0, 0.0), (up.bias.as_ref().unwrap(), 0, 0.0), (&down.weight, 1, 3e35)]
    {
        gradus_tensor::no_grad(|| parameter.values().narrow(axis, feature, 1)?.fill_(value))?;
    }
    Ok([up, down])
}

#[test]
fn gradients_of_one_rank_that_are_not_finite_count_on_all() {
    const PLAN: Plan = &[("0.weight", Split::Axis(0)), ("0.bias", Split::Axis(0)), ("1.weight", Split::Axis(1))];
    for feature in [0, 3, 6] {
        threads(4, Options::default(), |comm| {
            let device = device()?;
            let x = Tensor::randn([16, 4], DType::F32, &device, &mut Generator::new(4))?;
            let pass = |model: &gradus_nn::Sequential| model.forward(&x)?.square()?.mean_all();
            let make = || {
                let [up, down] = overflowing(&device, feature)?;
                Ok::<_, gradus_tensor::Error>(gradus_nn::Sequential::new().add(up).add(down))
            };
            let train = |model: &gradus_nn::Sequential, unscaled: bool| {
                let mut scaler = GradScaler::new(GradScalerConfig::default())?;
                let mut optimizer = adam(model.named_parameters())?;
                let mut found = vec![];
                for _ in 0..6 {
                    let gradients = scaler.scale(&pass(model)?)?.backward()?;
                    found.push(match unscaled {
                        true => match scaler.unscale(&optimizer, gradients)? {
                            Some(gradients) => optimizer.step(&gradients).map(|()| true)?,
                            None => false,
                        },
                        false => scaler.step(&mut optimizer, gradients)?,
                    });
                    scaler.update()?;
                }
                Ok::<_, gradus_tensor::Error>((found, scaler.get_scale()))
            };
            let (whole, mut model) = (make()?, make()?);
            divide(&mut model, PLAN, comm)?;
            // Only the rank that has the feature has such gradients.
            let mut gradients = pass(&model)?.mul(65536.0)?.backward()?;
            gradients.scale(1.0)?;
            assert_eq!(gradients.all_finite()?, comm.rank() != feature / 2);

            let mut strict = adam(model.named_parameters())?.non_finite(NonFinite::Error);
            let e = strict.step(&gradients).unwrap_err();
            assert_eq!(e.message().contains("another process"), comm.rank() != feature / 2, "{e}");
            let mut skipping = adam(model.named_parameters())?.non_finite(NonFinite::Skip);
            skipping.step(&gradients)?;
            assert_eq!(skipping.skipped_steps(), 1);
            near_f32(&join_state(&model.state_dict()?, &model)?, &whole.state_dict()?, 0.0);

            let expected = train(&whole, true)?;
            assert!(expected.0.contains(&false) && expected.0.contains(&true) && expected.1 < 65536.0, "{expected:?}");
            assert_eq!(train(&model, true)?, expected);
            near_f32(&join_state(&model.state_dict()?, &model)?, &whole.state_dict()?, 1e-6);
            assert_eq!(train(&model, false)?, train(&whole, false)?);
            near_f32(&join_state(&model.state_dict()?, &model)?, &whole.state_dict()?, 1e-6);
            Ok(())
        })
        .unwrap();
    }
}

/// Relative to the largest value of a tensor.
#[track_caller]
fn near_f32(ours: &StateDict, theirs: &StateDict, most: f64) {
    for (name, tensor) in ours.iter() {
        let theirs = theirs.get(name).unwrap();
        let scale = theirs.abs().unwrap().max_all().unwrap().item().unwrap();
        let off = off(tensor, theirs) / scale;
        assert!(off <= most, "{name}: {off}");
    }
}

#[test]
fn plans_that_do_not_fit_are_refused_and_change_nothing() {
    threads(2, Options::default(), |comm| {
        let device = device()?;
        let refused = |plan: &[(&str, Split)], kind: ErrorKind, text: &str| -> Result<()> {
            let (whole, mut model) = (vit(&device, 0.0)?, vit(&device, 0.0)?);
            let e = divide(&mut model, plan, comm).unwrap_err();
            assert!(*e.kind() == kind && e.to_string().contains(text), "{e}");
            assert!(e.location().unwrap().file().ends_with("tests/divide.rs"), "{e}");
            near_all(&model, &whole, |_| 0.0);
            Ok(())
        };
        let wrong = ErrorKind::InvalidArgument;
        refused(
            &[("mlp.fc3.weight", Split::Axis(0))],
            wrong.clone(),
            "the plan fits no parameter of the model; it has mlp.fc3.weight",
        )?;
        refused(
            &[("fc1.weight", Split::Axis(0)), ("fc2.weight", Split::Axis(2))],
            wrong.clone(),
            "blocks.0.mlp.fc2.weight has no axis 2",
        )?;
        refused(
            &[("fc1.weight", Split::Blocks(0, 5))],
            wrong.clone(),
            "does not consist of 5 blocks of one length along axis 0",
        )?;
        refused(
            &[("patch_embed.proj.weight", Split::Axis(0))],
            wrong.clone(),
            "belongs to a layer of the type Conv2d",
        )?;
        refused(&[("fc1.weight", Split::Random)], wrong.clone(), "blocks.0.mlp.fc1.weight is a parameter")?;
        refused(&[("pos_embed", Split::Axis(2))], wrong.clone(), "belongs to a layer of the type ViT")?;
        refused(
            &[("attn.qkv.weight", Split::Blocks(0, 24))],
            ErrorKind::ShapeMismatch,
            "1 elements of blocks.0.attn.qkv.weight along axis 0 do not divide among 2 ranks",
        )?;

        let mut layer = Linear::new(4, 8, &mut Init::new(DType::F64, &device, &mut Generator::new(3)))?;
        divide(&mut layer, &[("weight", Split::Axis(0)), ("bias", Split::Axis(0))], comm)?;
        let mut rng = Generator::new(3);
        let mut init = Init::new(DType::F64, &device, &mut rng);
        let whole_needed = [
            LoraLinear::new(layer.clone(), 2, LoraConfig::default(), &mut init).err(),
            WeightNorm::new(layer.clone(), Some(0)).err(),
            SpectralNorm::new(layer, 1, 1e-12, &mut init).err(),
        ];
        for e in whole_needed {
            let e = e.unwrap();
            assert!(*e.kind() == ErrorKind::Unsupported && e.location().unwrap().file().ends_with("divide.rs"), "{e}");
        }

        let mut model = vit(&device, 0.0)?;
        divide(&mut model, ViT::TENSOR_PARALLEL, comm)?;
        let e = divide(&mut model, ViT::TENSOR_PARALLEL, comm).unwrap_err();
        assert!(e.message().contains("blocks.0.attn.qkv.weight is divided already"), "{e}");
        Ok(())
    })
    .unwrap();
    threads(3, Options::default(), |comm| {
        let e = divide(&mut gpt2(&device()?, 0.0)?, Gpt2::TENSOR_PARALLEL, comm).unwrap_err();
        assert!(e.message().contains("8 elements of transformer.h.0.attn.c_attn.weight along axis 1 do not"), "{e}");
        Ok(())
    })
    .unwrap();
    // Four heads of two features.
    threads(8, Options::default(), |comm| {
        let device = device()?;
        let mut model = gpt2(&device, 0.0)?;
        divide(&mut model, Gpt2::TENSOR_PARALLEL, comm)?;
        let e = model.forward(&tokens(&device)?).unwrap_err().to_string();
        assert!(e.contains("features are no whole number of heads of 2 features"), "{e}");
        Ok(())
    })
    .unwrap();
}

/// What computes wrong numbers from parts is refused, and what is made of parts is a part.
#[test]
fn parts_are_not_taken_for_wholes() {
    threads(2, Options::default(), |comm| {
        let device = device()?;
        let mut rng = Generator::new(3);
        let mut init = Init::new(DType::F64, &device, &mut rng);
        let refused = |e: gradus_tensor::Error, what: &str| assert!(e.message().contains(what), "{e}");

        // The gradients of different parts would be added.
        let mut layer = Linear::new(4, 8, &mut init)?;
        divide(&mut layer, &[("weight", Split::Axis(0)), ("bias", Split::Axis(0))], comm)?;
        let parallel = DataParallel::new(comm.clone())?;
        let x = Tensor::ones([16, 4], DType::F64, &device)?;
        let loss = |rows: Range<usize>| layer.forward(&x.narrow(0, rows.start, 1)?)?.mean_all();
        refused(
            parallel.backward(&layer, 16, loss).unwrap_err(),
            "layers are divided among the ranks that share a batch",
        );
        refused(parallel.synchronize(&layer).unwrap_err(), "layers are divided among the ranks that share a batch");
        refused(ColumnLinear::of(&layer, comm).err().unwrap(), "the parameter is a part already");

        // A bias belongs to the outputs.
        for plan in [&[("weight", Split::Axis(1)), ("bias", Split::Axis(0))][..], &[("weight", Split::Axis(0))]] {
            let mut layer = Linear::new(4, 2, &mut init)?;
            divide(&mut layer, plan, comm)?;
            let x = Tensor::ones([3, layer.weight.shape()[1]], DType::F64, &device)?;
            refused(layer.forward(&x).unwrap_err(), "a bias is divided if its weight is divided along the outputs");
        }

        let mut table = Embedding::new(6, 4, None, &mut init)?;
        refused(divide(&mut table, &[("weight", Split::Axis(1))], comm).unwrap_err(), "is divided along axis 0");

        let mut model = bert(&device, 0.0)?;
        divide(&mut model, &[("position_embeddings.weight", Split::Vocabulary)], comm)?;
        refused(model.forward(&tokens(&device)?).unwrap_err(), "this needs all of a parameter");

        // The sum of a base and its update is divided as the base is.
        let base = Linear::new(4, 2, &mut init)?;
        let mut lora = LoraLinear::new(base, 2, LoraConfig::default(), &mut init)?;
        lora.lora_b.weight.set(&Tensor::ones(lora.lora_b.weight.shape(), DType::F64, &device)?)?;
        let x = Tensor::randn([3, 4], DType::F64, &device, &mut Generator::new(5))?;
        let whole = lora.forward(&x)?;
        let axis = Split::Axis(1);
        divide(&mut lora, &[("base_layer.weight", axis), ("lora_A.weight", axis)], comm)?;
        let merged = lora.merge_and_unload()?;
        assert!(merged.weight.division().is_some());
        let own = x.narrow(1, 2 * comm.rank(), 2)?;
        assert!(off(&merged.forward(&own)?, &whole) < 1e-12);
        Ok(())
    })
    .unwrap();
}
