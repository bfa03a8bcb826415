//! GPT-2 beside transformers: names and shapes, logits, gradients, cached decoding, and sampling.
//! `reference/gpt2.py` wrote the values.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::Arc;

use gradus_cpu::CpuBackend;
use gradus_models::*;
use gradus_nn::*;
use gradus_tensor::{DType, Device, Generator, Tensor, no_grad};

fn device() -> Device {
    Device::from_backend(Arc::new(CpuBackend::new().unwrap()))
}

fn reference(device: &Device) -> StateDict {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference/gpt2.safetensors");
    StateDict::load_safetensors(path, device).unwrap()
}

fn tiny() -> Gpt2Config {
    Gpt2Config { vocab_size: 13, n_positions: 8, n_embd: 8, n_layer: 2, n_head: 2, ..Default::default() }
}

/// A model with the parameters of `reference/gpt2.py`.
fn filled(config: Gpt2Config, dtype: DType, device: &Device) -> Gpt2 {
    let mut model = Gpt2::new(config, &mut Init::new(dtype, device, &mut Generator::new(0))).unwrap();
    for (i, (name, p)) in model.named_parameters().into_iter().enumerate() {
        let base = if name.contains(".ln_") && name.ends_with("weight") { 1.0 } else { 0.0 };
        let value = |j: usize| ((37 * j + 59 * i + 11) % 101) as f64 / 250.0 - 0.2 + base;
        let values: Vec<f64> = (0..p.numel()).map(value).collect();
        p.set(&Tensor::from_vec(values, p.shape(), device).unwrap()).unwrap();
    }
    model.eval();
    model
}

fn tokens(device: &Device) -> (Tensor, Tensor) {
    let tokens = vec![3i64, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 12, 0];
    let targets = vec![1i64, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 12, 0, 7];
    (Tensor::from_vec(tokens, [2, 7], device).unwrap(), Tensor::from_vec(targets, [14], device).unwrap())
}

#[track_caller]
fn close(name: &str, got: &Tensor, want: &Tensor, tolerance: f64) {
    assert_eq!(got.shape(), want.shape(), "{name}");
    let (got, want) = (got.to_vec::<f64>().unwrap(), want.to_vec::<f64>().unwrap());
    for (i, (g, w)) in got.iter().zip(&want).enumerate() {
        assert!((g - w).abs() <= tolerance * (1.0 + w.abs()), "{name}, element {i}: {g} is not {w}");
    }
}

#[test]
fn names_logits_and_gradients_are_those_of_transformers() {
    let device = device();
    let reference = reference(&device);
    let one = Gpt2Config { n_inner: Some(12), n_layer: 1, ..tiny() };
    let relu = Gpt2Config { activation_function: Gpt2Activation::Relu, layer_norm_epsilon: 1e-3, ..one };
    let gelu = Gpt2Config { activation_function: Gpt2Activation::Gelu, n_head: 4, ..one };
    for (case, config) in [("gelu_new", tiny()), ("relu", relu), ("gelu", gelu)] {
        let model = filled(config, DType::F64, &device);
        let state = model.state_dict().unwrap();
        let shapes = reference.iter().filter_map(|(name, t)| Some((name.strip_prefix(&format!("{case}/shape/"))?, t)));
        let mut wanted: Vec<(String, Vec<usize>)> = shapes
            .map(|(name, t)| (name.to_owned(), t.to_vec::<i64>().unwrap().iter().map(|&n| n as usize).collect()))
            .collect();
        let mut got: Vec<(String, Vec<usize>)> =
            state.iter().map(|(name, t)| (name.to_owned(), t.shape().to_vec())).collect();
        wanted.sort();
        got.sort();
        assert_eq!(got, wanted, "{case}");

        let (tokens, targets) = tokens(&device);
        let logits = model.forward(&tokens).unwrap();
        close(case, &logits.detach(), reference.get(&format!("{case}/logits")).unwrap(), 1e-10);
        let loss = logits.flatten(0, 1).unwrap().cross_entropy(&targets).unwrap();
        close(case, &loss.detach(), reference.get(&format!("{case}/loss")).unwrap(), 1e-10);
        let gradients = loss.backward().unwrap();
        let mut compared = 0;
        for (name, p) in model.named_parameters() {
            let want = reference.get(&format!("{case}/gradient/{name}")).unwrap_or_else(|| panic!("no {name}"));
            close(&format!("{case}/{name}"), gradients.get(p.tensor()).unwrap(), want, 1e-9);
            compared += 1;
        }
        assert_eq!(compared, 2 + 12 * config.n_layer + 2, "{case}");
    }
}

#[test]
fn one_name_of_the_shared_table_is_enough() {
    let device = device();
    let source = filled(tiny(), DType::F64, &device).state_dict().unwrap();
    for missing in ["lm_head.weight", "transformer.wte.weight"] {
        let mut state = StateDict::new();
        source.iter().filter(|(name, _)| *name != missing).for_each(|(name, t)| state.insert(name, t.clone()));
        let mut model = Gpt2::new(tiny(), &mut Init::new(DType::F64, &device, &mut Generator::new(1))).unwrap();
        model.load_state_dict(&state, Strict::Yes).unwrap();
        model.eval();
        let (tokens, _) = tokens(&device);
        let want = reference(&device);
        close(missing, &no_grad(|| model.forward(&tokens)).unwrap(), want.get("gelu_new/logits").unwrap(), 1e-10);
    }
}

#[test]
fn decoding_with_caches_equals_the_whole_sequence() {
    let device = device();
    let model = filled(tiny(), DType::F64, &device);
    let (tokens, _) = tokens(&device);
    let all = no_grad(|| model.forward(&tokens)).unwrap();
    for parts in [vec![7], vec![1; 7], vec![3, 1, 2, 1]] {
        let (mut cache, mut at) = (model.new_cache(), 0);
        for part in parts {
            let logits = no_grad(|| model.decode(&tokens.narrow(1, at, part)?, &mut cache)).unwrap();
            at += part;
            close("decoded", &logits, &all.select(1, at as isize - 1).unwrap(), 1e-12);
        }
        assert!(cache.iter().all(|c| c.len() == 7));
        let e = no_grad(|| model.decode(&tokens.narrow(1, 0, 2)?, &mut cache)).unwrap_err();
        assert!(e.to_string().contains("2 tokens after 7 of the cache; the model has 8 positions"), "{e}");
        let wrong = Tensor::from_vec(vec![13i64, 0], [2, 1], &device).unwrap();
        no_grad(|| model.decode(&wrong, &mut cache)).unwrap_err();
        assert!(cache.iter().all(|c| c.len() == 7));
    }
}

#[test]
fn generation_equals_the_model_without_caches() {
    let device = device();
    let mut model = filled(tiny(), DType::F64, &device);
    for (seed, sampling) in [(0, Sampling::greedy()), (5, Sampling::default())] {
        let options = GenerateOptions { max_new_tokens: 6, sampling, seed, ..Default::default() };
        let got: Vec<i64> = generate(&mut model, &[3, 1], &device, options).unwrap().collect::<Result<_, _>>().unwrap();
        let (mut seen, mut generator) = (vec![3, 1], Generator::new(seed));
        for _ in 0..6 {
            let all = Tensor::from_vec(seen.clone(), [1, seen.len()], &device).unwrap();
            let logits = no_grad(|| model.forward(&all)?.select(1, -1)).unwrap().to_vec::<f64>().unwrap();
            let p = sampling.probabilities(&logits, &seen).unwrap();
            let mut left = (generator.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
            seen.push(
                p.iter()
                    .position(|p| {
                        left -= p;
                        left < 0.0
                    })
                    .unwrap() as i64,
            );
        }
        assert_eq!(got, seen[2..]);
    }
}

#[test]
fn generation_goes_on_beyond_the_context_and_ends_at_a_stop_token() {
    let device = device();
    let mut model = filled(tiny(), DType::F32, &device);
    model.train();
    let options = GenerateOptions { max_new_tokens: 40, sampling: Sampling::default(), seed: 3, stop: vec![] };
    let mut text = |options: GenerateOptions| -> Vec<i64> {
        generate(&mut model, &[3, 1], &device, options).unwrap().collect::<Result<_, _>>().unwrap()
    };
    let all = text(options.clone());
    assert_eq!(all.len(), 40);
    assert_eq!(text(options.clone()), all);
    assert_ne!(text(GenerateOptions { seed: 4, ..options.clone() }), all);
    let end = all.iter().position(|t| *t == all[11]).unwrap();
    assert_eq!(text(GenerateOptions { stop: vec![all[11]], ..options.clone() }), all[..end]);
    // The tokens after a full context are those that follow its newer half.
    let greedy = GenerateOptions { max_new_tokens: 1, sampling: Sampling::greedy(), ..options };
    let long = GenerateOptions { max_new_tokens: 8, ..greedy.clone() };
    let mut run = |prompt: &[i64], options| -> Vec<i64> {
        generate(&mut model, prompt, &device, options).unwrap().collect::<Result<_, _>>().unwrap()
    };
    let beyond = run(&[3, 1], long);
    let newer = [&[3, 1][..], &beyond[..7]].concat()[5..].to_vec();
    assert_eq!(run(&newer, greedy), beyond[7..]);
}

#[test]
fn probabilities_are_those_of_transformers() {
    let reference = reference(&device());
    let logits: Vec<f64> = (0..40).map(|i| ((i * 37 % 41) as f64 - 20.0) / 7.0).collect();
    let plain = Sampling::default();
    for (case, sampling) in [
        ("plain", plain),
        ("temperature", Sampling { temperature: 0.7, ..plain }),
        ("top_k", Sampling { top_k: Some(5), ..plain }),
        ("top_p", Sampling { top_p: 0.6, ..plain }),
        ("penalty", Sampling { repetition_penalty: 1.3, ..plain }),
        ("all", Sampling { temperature: 1.5, top_k: Some(20), top_p: 0.8, repetition_penalty: 1.3 }),
    ] {
        let want = reference.get(&format!("sampling/{case}")).unwrap().to_vec::<f64>().unwrap();
        let got = sampling.probabilities(&logits, &[5, 7, 7, 30]).unwrap();
        for (i, (g, w)) in got.iter().zip(&want).enumerate() {
            assert!((g - w).abs() < 1e-14, "{case}, token {i}: {g} is not {w}");
        }
        assert_eq!(got.len(), want.len());
    }
}

#[test]
fn dropout_of_each_kind_acts_in_training_only() {
    let device = device();
    let none = Gpt2Config { resid_pdrop: 0.0, embd_pdrop: 0.0, attn_pdrop: 0.0, ..tiny() };
    let (tokens, _) = tokens(&device);
    let logits = |config: Gpt2Config, trains: bool| {
        let mut model = filled(config, DType::F64, &device);
        if trains {
            model.train();
        }
        no_grad(|| model.forward(&tokens)).unwrap().to_vec::<f64>().unwrap()
    };
    assert_eq!(logits(none, true), logits(none, false));
    for config in [
        Gpt2Config { resid_pdrop: 0.5, ..none },
        Gpt2Config { embd_pdrop: 0.5, ..none },
        Gpt2Config { attn_pdrop: 0.5, ..none },
    ] {
        assert_ne!(logits(config, true), logits(config, false));
        assert_eq!(logits(config, false), logits(none, false));
    }
}

#[test]
fn wrong_arguments_are_refused() {
    let device = device();
    let new = |config| match Gpt2::new(config, &mut Init::new(DType::F32, &device, &mut Generator::new(0))) {
        Ok(_) => panic!("there is no error"),
        Err(e) => e.to_string(),
    };
    assert!(new(Gpt2Config { n_head: 3, ..tiny() }).contains("n_head 3 does not divide n_embd 8"));
    assert!(new(Gpt2Config { vocab_size: 0, ..tiny() }).contains("vocab_size is 0; it is 1 to"));
    assert!(new(Gpt2Config { attn_pdrop: 1.5, ..tiny() }).contains("1.5"));
    assert!(
        new(Gpt2Config { n_embd: usize::MAX / 2 + 1, ..tiny() }).contains("n_embd is 9223372036854775808; it is 1 to")
    );
    assert!(new(Gpt2Config { n_layer: 0, ..tiny() }).contains("n_layer is 0; it is 1 to"));

    let mut model = filled(tiny(), DType::F32, &device);
    let mut refused = |prompt: &[i64], sampling: Sampling| {
        let options = GenerateOptions { sampling, ..Default::default() };
        match generate(&mut model, prompt, &device, options) {
            Ok(_) => panic!("there is no error"),
            Err(e) => e.to_string(),
        }
    };
    let plain = Sampling::default();
    assert!(refused(&[], plain).contains("the prompt is empty"));
    assert!(refused(&[1; 9], plain).contains("the prompt has 9 tokens; the model sees 8 at once"));
    assert!(refused(&[1, 13], plain).contains("token 1 of the prompt is 13; the vocabulary has 13"));
    assert!(refused(&[-1], plain).contains("token 0 of the prompt is -1"));
    assert!(refused(&[1], Sampling { temperature: -0.5, ..plain }).contains("the temperature is -0.5"));
    assert!(refused(&[1], Sampling { temperature: f64::NAN, ..plain }).contains("the temperature is NaN"));
    assert!(refused(&[1], Sampling { top_k: Some(0), ..plain }).contains("top_k is 0"));
    assert!(refused(&[1], Sampling { top_p: 0.0, ..plain }).contains("top_p is 0"));
    assert!(refused(&[1], Sampling { top_p: 1.1, ..plain }).contains("top_p is 1.1"));
    assert!(refused(&[1], Sampling { repetition_penalty: 0.0, ..plain }).contains("the repetition penalty is 0"));
    assert!(
        plain.probabilities(&[0.0, f64::NAN], &[]).unwrap_err().to_string().contains("the logit of token 1 is NaN")
    );
}

#[test]
fn parts_one_after_the_other_are_the_model() {
    let device = device();
    let whole = Gpt2::new(tiny(), &mut Init::new(DType::F32, &device, &mut Generator::new(3))).unwrap();
    let mut generator = Generator::new(3);
    let mut init = Init::new(DType::F32, &device, &mut generator);
    let parts: Vec<_> = (0..4).map(|i| Gpt2::part(&tiny(), i, &mut init).unwrap()).collect();
    let head = parts[3].named_parameters().into_iter().find(|(name, _)| name == "lm_head.weight").unwrap().1;
    head.set(whole.transformer.wte.weight.values()).unwrap();
    let names: Vec<String> = whole.named_parameters().into_iter().map(|(name, _)| name).collect();
    let of_parts = parts.iter().flat_map(|part| part.named_parameters()).filter(|(name, _)| name != "lm_head.weight");
    assert!(of_parts.map(|(name, _)| name).eq(names.iter().map(|name| {
        let name = name.trim_start_matches("transformer.");
        name.strip_prefix("h.").map_or(name, |rest| rest.split_once('.').unwrap().1).to_owned()
    })));
    // Dropout draws the same numbers, too.
    let (x, _) = tokens(&device);
    let y = parts.iter().fold(x.clone(), |x, part| part.forward(&x).unwrap());
    assert_eq!(y.to_vec::<f32>().unwrap(), whole.forward(&x).unwrap().to_vec::<f32>().unwrap());

    let e = Gpt2::part(&tiny(), 4, &mut init).unwrap_err();
    assert!(e.message().contains("part 4 of a model of 2 blocks, which has 4 parts"), "{e}");
    assert!(parts[0].forward(&x.select(0, 0).unwrap()).unwrap_err().message().contains("tokens are [n, length]"));
}
