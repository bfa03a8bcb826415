//! Tokenisers against Hugging Face's (`reference/text.py` makes the file), and windows of tokens.
#![allow(clippy::unwrap_used)]

use std::fs;

use gradus_cpu::CpuBackend;
use gradus_data::text::{Bpe, Bytes, Characters, TokenWidth, TokenWindows, Tokenizer, read_text, save_tokens};
use gradus_data::{DataLoader, Dataset};
use gradus_tensor::{Device, ErrorKind};
use serde_json::Value;

const TEXT: &str = include_str!("data/kjv.txt");

fn reference() -> Value {
    serde_json::from_str(include_str!("reference/text.json")).unwrap()
}

/// The tokeniser of 500 tokens that Hugging Face trained.
fn theirs() -> (Bpe, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    for name in ["vocab.json", "merges.txt"] {
        fs::write(dir.path().join(name), reference()["500"][name].as_str().unwrap()).unwrap();
    }
    (Bpe::load(dir.path()).unwrap(), dir)
}

#[test]
fn training_gives_the_vocabulary_and_the_files_of_hugging_face() {
    let dir = tempfile::tempdir().unwrap();
    let bpe = Bpe::train(TEXT.split_inclusive('\n'), 500, &["<|endoftext|>"]).unwrap();
    assert_eq!(bpe.vocabulary_size(), 500);
    bpe.save(dir.path()).unwrap();
    for name in ["merges.txt", "vocab.json"] {
        assert_eq!(fs::read_to_string(dir.path().join(name)).unwrap(), reference()["500"][name], "{name}");
    }
    let [vocabulary, merges] = bpe.to_texts().unwrap();
    let again = Bpe::from_texts(&vocabulary, &merges).unwrap();
    assert_eq!(again.to_texts().unwrap(), [vocabulary.clone(), merges]);
    assert_eq!(again.encode(TEXT).unwrap(), bpe.encode(TEXT).unwrap());
    let e = Bpe::from_texts(&vocabulary, "t h\nt zz").unwrap_err().to_string();
    assert!(e.contains("merges.txt: line 2: \"zz\" is not in the vocabulary"), "{e}");
    // Here the words run out before the vocabulary is full.
    let bpe = Bpe::train(TEXT.split_inclusive('\n'), 4000, &["<|endoftext|>"]).unwrap();
    assert_eq!(bpe.vocabulary_size(), reference()["4000"]["size"]);
    bpe.save(dir.path()).unwrap();
    let merges = fs::read_to_string(dir.path().join("merges.txt")).unwrap();
    let last: Vec<String> = serde_json::from_value(reference()["4000"]["last"].clone()).unwrap();
    assert!(merges.trim_end().ends_with(&last.join("\n")));
}

#[test]
fn texts_are_encoded_as_hugging_face_does_and_decoded_again() {
    let (bpe, _dir) = theirs();
    let reference = reference();
    let texts = reference["texts"].as_array().unwrap();
    for (text, tokens) in texts.iter().zip(reference["500"]["encoded"].as_array().unwrap()) {
        let text = text.as_str().unwrap();
        let tokens: Vec<i64> = serde_json::from_value(tokens.clone()).unwrap();
        assert_eq!(bpe.encode(text).unwrap(), tokens, "{text:?}");
        assert_eq!(bpe.decode(&tokens).unwrap(), text);
        assert_eq!(Bytes.decode(&Bytes.encode(text).unwrap()).unwrap(), text);
        let characters = Characters::of(text);
        assert_eq!(characters.decode(&characters.encode(text).unwrap()).unwrap(), text);
    }
    let some: Vec<i64> = (300..500).step_by(7).collect();
    assert_eq!(bpe.decode(&some).unwrap(), reference["500"]["decoded"]);
    assert_eq!(bpe.decode(&[0]).unwrap(), "<|endoftext|>");
    // A part of a character is no text.
    let part = bpe.encode("é").unwrap();
    assert_eq!(bpe.decode(&part[..1]).unwrap(), "\u{fffd}");
}

#[test]
fn what_is_no_token_is_named() {
    let (bpe, dir) = theirs();
    assert!(bpe.decode(&[1, 500]).unwrap_err().to_string().contains("token 1 is 500; the vocabulary has 500"));
    assert!(bpe.decode(&[-1]).is_err() && Bytes.decode(&[256]).is_err());
    assert!(Characters::of("ab").decode(&[2]).is_err());
    assert!(Bpe::train(["a"], 256, &["x"]).unwrap_err().to_string().contains("a vocabulary of 256 tokens"));
    assert!(Bpe::train(["a"], 300, &["<s>", "<s>"]).unwrap_err().to_string().contains("\"<s>\" is there already"));
    let load = |name: &str, text: &str| {
        let before = fs::read(dir.path().join(name)).unwrap();
        fs::write(dir.path().join(name), text).unwrap();
        let e = Bpe::load(dir.path()).unwrap_err();
        assert_eq!(e.kind(), &ErrorKind::Format);
        fs::write(dir.path().join(name), before).unwrap();
        e.to_string()
    };
    assert!(load("vocab.json", "{\"a\":0,").contains("vocab.json: EOF"));
    assert!(load("vocab.json", "{\"a\":0,\"b\":0}").contains("both have the number 0"));
    assert!(load("vocab.json", "{\"a\":7}").contains("\"a\" has the number 7, and there are 1 tokens"));
    assert!(load("merges.txt", "#version: 0.2\na\n").contains("merges.txt: line 2: is no pair"));
    assert!(load("merges.txt", "#version: 0.2\nt h\nt zz\n").contains("line 3: \"zz\" is not in the vocabulary"));
    assert!(load("merges.txt", "t h\nt h\n").contains("line 2: this pair came before"));
    assert!(load("vocab.json", "{\"a\":0}").contains("is not in the vocabulary"));
    fs::write(dir.path().join("merges.txt"), "").unwrap();
    fs::write(dir.path().join("vocab.json"), "{\"a\":0}").unwrap();
    let e = Bpe::load(dir.path()).unwrap().encode("aab").unwrap_err().to_string();
    assert!(e.contains("byte 2: the vocabulary has no token for 0x62"), "{e}");
    assert!(Bpe::load(dir.path().join("none")).unwrap_err().to_string().contains("none/vocab.json"));
}

#[test]
fn windows_of_a_list_and_of_a_file_are_alike() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tokens.bin");
    let tokens: Vec<i64> = (0..50).map(|i| i * 1311).collect();
    for width in [TokenWidth::U16, TokenWidth::U32] {
        save_tokens(&path, &tokens, width).unwrap();
        for (length, stride) in [(1, 1), (8, 8), (8, 3), (49, 1), (10, 100)] {
            let memory = TokenWindows::new(tokens.clone(), length, stride).unwrap();
            let file = TokenWindows::open(&path, width, length, stride).unwrap();
            assert_eq!(memory.len(), (0..50).step_by(stride).filter(|start| start + length < 50).count());
            assert_eq!(memory.len(), file.len());
            for i in 0..memory.len() {
                let (input, target) = memory.get(i).unwrap();
                assert_eq!(
                    (&input[..], &target[..]),
                    (&tokens[i * stride..][..length], &tokens[i * stride + 1..][..length])
                );
                assert_eq!(file.get(i).unwrap(), (input, target));
            }
            assert!(file.get(file.len()).is_err());
        }
    }
    let device = Device::from_backend(std::sync::Arc::new(CpuBackend::new().unwrap()));
    let windows = TokenWindows::open(&path, TokenWidth::U32, 8, 8).unwrap();
    let loader = DataLoader::new(windows, &device).batch_size(4).workers(2).build().unwrap();
    let (x, y) = loader.epoch(0).unwrap().next().unwrap().unwrap();
    assert_eq!((x.shape(), y.shape()), (&[4, 8][..], &[4, 8][..]));
    assert_eq!(y.to_vec::<i64>().unwrap(), tokens[1..33]);
}

#[test]
fn windows_that_cannot_be_are_errors() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tokens.bin");
    let error = |length, stride| TokenWindows::new(vec![1, 2, 3], length, stride).unwrap_err().to_string();
    assert!(error(3, 1).contains("3 tokens for sections of 3 and the token after each"));
    assert!(error(usize::MAX, 1).contains("3 tokens"));
    assert!(error(0, 1).contains("at least 1") && error(1, 0).contains("at least 1"));
    assert!(save_tokens(&path, &[1, 65_536], TokenWidth::U16).unwrap_err().to_string().contains("token 1 is 65536"));
    assert!(save_tokens(&path, &[-1], TokenWidth::U32).is_err());
    fs::write(&path, [0; 7]).unwrap();
    let e = TokenWindows::open(&path, TokenWidth::U16, 2, 1).unwrap_err().to_string();
    assert!(e.contains("tokens.bin has 7 bytes, no multiple of 2"), "{e}");
    fs::write(&path, [0; 8]).unwrap();
    let windows = TokenWindows::open(&path, TokenWidth::U16, 2, 1).unwrap();
    fs::write(&path, [0; 2]).unwrap();
    assert!(windows.get(1).unwrap_err().to_string().contains("was the file changed"));
    assert!(TokenWindows::open(dir.path(), TokenWidth::U16, 2, 1).is_err());
}

#[test]
fn a_file_that_is_no_text_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("text.txt");
    fs::write(&path, "Grüße\nan alle\n").unwrap();
    assert_eq!(read_text(&path).unwrap(), "Grüße\nan alle\n");
    fs::write(&path, b"one\ntwo \xff\n").unwrap();
    let e = read_text(&path).unwrap_err();
    assert_eq!(e.kind(), &ErrorKind::Format);
    assert!(e.to_string().contains("text.txt: byte 8, in line 2, is not UTF-8"), "{e}");
    assert!(read_text(dir.path()).unwrap_err().to_string().contains("a text file"));
    assert!(read_text(dir.path().join("none")).unwrap_err().to_string().contains("none"));
}
