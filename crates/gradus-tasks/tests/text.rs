//! Language models of texts: tokens, sections, and what is refused.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::sync::Arc;

use gradus_cpu::CpuBackend;
use gradus_data::{DataLoader, Dataset};
use gradus_models::{GenerateOptions, Gpt2, Sampling};
use gradus_nn::*;
use gradus_tasks::text::*;
use gradus_tensor::{DType, Device, Generator, Result};
use gradus_train::{Trainer, evaluate};

fn device() -> Device {
    Device::from_backend(Arc::new(CpuBackend::new().unwrap()))
}

const VERSE: &str = "pack my box with five jugs. ";

#[track_caller]
fn refused<T>(result: Result<T>) -> String {
    match result {
        Ok(_) => panic!("there is no error"),
        Err(e) => e.to_string(),
    }
}

#[test]
fn the_last_tenth_of_a_text_is_held_out() {
    let text: String = ('a'..='z').chain(['é', '€']).cycle().take(1000).collect();
    for tokens in [Tokens::Characters, Tokens::Bytes, Tokens::Bpe(300)] {
        let corpus = Corpus::new(&text, tokens).unwrap();
        let [training, validation] = corpus.lengths();
        let cut = text.len() - corpus.held_out().len();
        assert!((cut as f64 / text.len() as f64 - 0.9).abs() < 0.005, "{tokens}");
        assert_eq!(corpus.tokenizer().encode(&text[..cut]).unwrap().len(), training, "{tokens}");
        assert_eq!(corpus.tokenizer().encode(&text[cut..]).unwrap().len(), validation, "{tokens}");
        let ratio = corpus.held_out().len() as f64 / validation as f64;
        assert_eq!(corpus.bytes_per_token(), ratio);
        let again: Vocabulary = serde_json::from_str(&serde_json::to_string(corpus.vocabulary()).unwrap()).unwrap();
        assert_eq!(&again, corpus.vocabulary());
        assert_eq!(again.tokenizer().unwrap().encode(&text).unwrap(), corpus.tokenizer().encode(&text).unwrap());
    }
}

#[test]
fn an_epoch_covers_the_text_once() {
    for (count, context) in [(100, 9), (101, 10), (11, 10), (20, 10), (21, 10), (22, 10), (7, 1)] {
        let tokens: Vec<i64> = (0..count).collect();
        let windows = gradus_data::text::TokenWindows::new(tokens, context, 1).unwrap();
        let sampler = once_in_each_epoch(&windows, context);
        let loader = DataLoader::new(windows, &device()).sampler(sampler, 3).batch_size(1000).build().unwrap();
        let mut firsts = std::collections::BTreeSet::new();
        for epoch in 0..30 {
            let (input, _) = loader.epoch(epoch).unwrap().next().unwrap().unwrap();
            let mut seen = input.to_vec::<i64>().unwrap();
            seen.sort_unstable();
            let (first, length) = (seen[0], seen.len() as i64);
            assert!(seen.iter().copied().eq(first..first + length), "{count} {context}: {seen:?}");
            assert!(length > count - 1 - 2 * context as i64, "{count} {context}");
            firsts.insert(first);
        }
        // Sections do not begin at the same tokens each time.
        assert!(firsts.len() > 1 || count as usize == context + 1, "{count} {context}");
    }
}

#[test]
fn a_model_learns_a_text_and_writes_it() {
    let device = device();
    let corpus = Corpus::new(&VERSE.repeat(60), Tokens::Characters).unwrap();
    let sizes = Sizes { layers: 1, heads: 2, width: 32, context: 32 };
    let config = sizes.config(corpus.vocabulary_size(), 0.0);
    let mut model = Gpt2::new(config, &mut Init::new(DType::F32, &device, &mut Generator::new(0))).unwrap();
    let [training, validation] = corpus.windows(32).unwrap();
    let sampler = once_in_each_epoch(&training, 32);
    let training = DataLoader::new(training, &device).sampler(sampler, 0).batch_size(8).build().unwrap();
    let validation = DataLoader::new(validation, &device).batch_size(8).build().unwrap();
    let mut optimizer = AdamW::new(model.named_parameters(), AdamConfig { lr: 1e-2, ..Default::default() }).unwrap();
    let task = next_token_loss::<Gpt2>;
    Trainer::new(30).unwrap().fit(&mut model, &mut optimizer, &training, Some(&validation), &task, &mut []).unwrap();
    let loss = evaluate(&mut model, &validation, &task).unwrap().loss;
    assert!(loss < 0.15, "{loss}");
    let greedy = GenerateOptions { max_new_tokens: 40, sampling: Sampling::greedy(), ..Default::default() };
    let mut write = |prompt: &str, options: GenerateOptions| {
        write_on(&mut model, corpus.tokenizer(), prompt, &device, options)?.collect::<Result<String>>()
    };
    assert_eq!(write("pack my", greedy.clone()).unwrap(), VERSE.repeat(3)[7..47]);
    assert!(refused(write("pack my zoo", greedy.clone())).contains("byte 8: 'z' is none of the"));
    assert!(refused(write("", greedy.clone())).contains("the prompt is empty"));
    assert!(refused(write(&VERSE.repeat(2), greedy)).contains("the prompt has 56 tokens; the model sees 32 at once"));
}

#[test]
fn what_is_no_text_to_learn_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("text.txt");
    let read = |bytes: &[u8], tokens| {
        fs::write(&path, bytes).unwrap();
        let e = refused(Corpus::read(&path, tokens));
        assert!(e.contains("text.txt"), "{e}");
        e
    };
    assert!(read(b"", Tokens::Characters).contains("the text is empty"));
    assert!(read(b"abc\n\xe9t\xe9", Tokens::Bytes).contains("byte 4, in line 2, is not UTF-8"));
    assert!(read(b"aaaaaaaaaa", Tokens::Characters).contains("consists of the character 'a' only"));
    let short = Corpus::new(&VERSE.repeat(4), Tokens::Characters).unwrap();
    let e = refused(short.windows(32));
    assert!(e.contains("validation, the last tenth of the text, has 11 tokens, and a context of 32"), "{e}");
    assert!(refused(short.windows(200)).contains("training has 101 tokens"));
    assert!(refused(short.windows(0)).contains("sections of 0 tokens"));
    short.windows(10).unwrap();
}

#[test]
fn the_words_for_tokenisers() {
    for (text, tokens) in [("chars", Tokens::Characters), ("bytes", Tokens::Bytes), ("bpe:257", Tokens::Bpe(257))] {
        assert_eq!(text.parse::<Tokens>().unwrap(), tokens);
        assert_eq!(tokens.to_string(), text);
    }
    for wrong in ["", "char", "bpe", "bpe:", "bpe:256", "bpe:-1", "bpe:99999999999", "bpe:1e3"] {
        assert!(refused(wrong.parse::<Tokens>()).contains("write chars, bytes, or bpe:N"), "{wrong}");
    }
}

#[test]
fn sections_are_whole_sentences_of_numbers() {
    let corpus = Corpus::new(&VERSE.repeat(40), Tokens::Bytes).unwrap();
    let [training, validation] = corpus.windows(16).unwrap();
    let (input, next) = validation.get(1).unwrap();
    assert_eq!(input[1..], next[..15]);
    assert_eq!(training.len(), corpus.lengths()[0] - 16);
    assert_eq!(validation.len(), (corpus.lengths()[1] - 1) / 16);
}
