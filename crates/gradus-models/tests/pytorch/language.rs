//! The networks for texts beside those of transformers.

use gradus_models::{
    Bert, BertConfig, BertForSequenceClassification, CausalLm, GenerateOptions, Llama, LlamaConfig, Sampling, T5,
    T5Config, T5FeedForward, generate,
};
use gradus_nn::Forward;
use gradus_tensor::{Device, Result, Tensor, no_grad};

use crate::formula::ids;
use crate::reference::{array, check, close, device, make};

fn tokens(device: &Device) -> Tensor {
    ids("tokens", 20, &[2, 7], device)
}

/// Which tokens count: seven of the first text, four of the second.
fn mask(device: &Device) -> Tensor {
    Tensor::from_vec(vec![1i64, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0], [2, 7], device).unwrap()
}

#[test]
fn bert() {
    let device = &device();
    let (tokens, mask, types) = (tokens(device), mask(device), ids("types", 2, &[2, 7], device));
    let config = BertConfig {
        vocab_size: 20,
        hidden_size: 12,
        num_hidden_layers: 2,
        num_attention_heads: 3,
        intermediate_size: 16,
        max_position_embeddings: 9,
        hidden_dropout_prob: 0.0,
        attention_probs_dropout_prob: 0.0,
        ..BertConfig::default()
    };
    check("bert", make(device, |init| Bert::new(config, init)), |model| {
        let features = model.encode(&tokens, Some(&mask), Some(&types))?;
        Tensor::cat(&[&features.flatten(0, -1)?, &model.pooled(&features)?.flatten(0, -1)?], 0)
    });
    let model = make(device, |init| Bert::new(BertConfig { pooler: false, ..config }, init));
    check("bert_sentences", model, |model| model.sentence_embeddings(&tokens, &mask));
    let model = make(device, |init| BertForSequenceClassification::new(config, 5, init));
    check("bert_classifier", model, |model| model.logits(&tokens, Some(&mask), Some(&types)));
}

fn llama_config() -> LlamaConfig {
    LlamaConfig {
        vocab_size: 20,
        hidden_size: 12,
        intermediate_size: 16,
        num_hidden_layers: 2,
        num_attention_heads: 6,
        num_key_value_heads: Some(2),
        max_position_embeddings: 30,
        ..LlamaConfig::default()
    }
}

#[test]
fn llama() {
    let device = &device();
    let tokens = tokens(device);
    check("llama", make(device, |init| Llama::new(llama_config(), init)), |model| model.forward(&tokens));
    let tied = LlamaConfig {
        num_attention_heads: 3,
        num_key_value_heads: None,
        head_dim: Some(6),
        tie_word_embeddings: true,
        attention_bias: true,
        mlp_bias: true,
        rms_norm_eps: 1e-3,
        rope_theta: 100.0,
        ..llama_config()
    };
    check("llama_tied", make(device, |init| Llama::new(tied, init)), |model| model.forward(&tokens));
}

/// The most probable tokens after a prompt, with the keys and values of the earlier ones in caches.
fn written<M: CausalLm>(model: &mut M, prompt: &[i64], device: &Device) -> Vec<i64> {
    let sampling = Sampling { temperature: 0.0, ..Sampling::default() };
    let options = GenerateOptions { max_new_tokens: 12, sampling, ..GenerateOptions::default() };
    generate(model, prompt, device, options).unwrap().collect::<Result<Vec<i64>>>().unwrap()
}

/// The tokens that transformers writes.
fn wanted(case: &str) -> Vec<i64> {
    array(&format!("{case}/written")).into_iter().map(|token| token as i64).collect()
}

/// What is written token by token is what transformers writes, and the logits are those of the whole text at once.
#[test]
fn llama_writes_as_in_transformers() {
    let device = &device();
    let mut model = make(device, |init| Llama::new(llama_config(), init));
    let prompt = tokens(device).narrow(0, 0, 1).unwrap().to_vec::<i64>().unwrap();
    assert_eq!(written(&mut model, &prompt, device), wanted("llama"));

    let tokens = tokens(device);
    let all = no_grad(|| model.forward(&tokens)).unwrap();
    let mut cache = model.new_cache();
    for (first, length) in [(0, 3), (3, 1), (4, 3)] {
        let part = tokens.narrow(1, first, length).unwrap();
        let got = no_grad(|| model.decode(&part, &mut cache)).unwrap().to_vec::<f64>().unwrap();
        let wanted = all.select(1, (first + length - 1) as isize).unwrap().to_vec::<f64>().unwrap();
        close("llama", "logits with a cache", &got, &wanted);
    }
}

#[test]
fn t5() {
    let device = &device();
    let (tokens, mask, answer) = (tokens(device), mask(device), ids("answer", 20, &[2, 26], device));
    let config = T5Config {
        vocab_size: 20,
        d_model: 12,
        d_kv: 4,
        d_ff: 16,
        num_layers: 2,
        num_heads: 2,
        dropout_rate: 0.0,
        ..T5Config::default()
    };
    let more = T5Config { num_decoder_layers: Some(3), ..config };
    check("t5", make(device, |init| T5::new(more, init)), |model| model.logits(&tokens, Some(&mask), &answer));
    let mut model = make(device, |init| T5::new(more, init));
    let (question, counts) = (tokens.narrow(0, 1, 1).unwrap(), mask.narrow(0, 1, 1).unwrap());
    let mut writer = model.writer(&question, Some(&counts)).unwrap();
    assert_eq!(written(&mut writer, &[0], device), wanted("t5"));
    let gated = T5Config {
        feed_forward_proj: T5FeedForward::GatedGelu,
        relative_attention_num_buckets: 8,
        relative_attention_max_distance: 20,
        scale_decoder_outputs: false,
        tie_word_embeddings: false,
        ..config
    };
    check("t5_gated", make(device, |init| T5::new(gated, init)), |model| model.logits(&tokens, Some(&mask), &answer));
}
