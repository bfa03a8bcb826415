//! [`Bpe`]: the byte-pair encoding of GPT-2.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;

use gradus_tensor::{Error, ErrorKind, Here, Result};

use super::byte_symbols::{bytes_of, symbols};
use super::merges::{Merges, merge};
use super::tokenizer::{Tokenizer, unknown};
use super::train::learn;
use super::words::Words;
use crate::memory::read_file;

const OP: &str = "bpe";

/// The names of the two files, which are those of Hugging Face.
const VOCABULARY: &str = "vocab.json";
const MERGES: &str = "merges.txt";

/// Byte-pair encoding on bytes, as in GPT-2: a frequent word is one token, other words are several, and every text can
/// be encoded. A text is divided into words, numbers, signs and spaces, which are encoded one by one.
///
/// The files `vocab.json` and `merges.txt` are those of GPT-2 and of Hugging Face's `tokenizers`.
///
/// Special tokens, such as `<|endoftext|>`, are not recognised in texts: append them by their number, which
/// [`token`](Bpe::token) returns. Their names must not be words: a special token named `the` would also be the token of
/// that word.
#[derive(Clone)]
pub struct Bpe {
    /// The token of each entry of the vocabulary, in which each character stands for a byte.
    tokens: HashMap<String, u32>,
    /// The bytes of each token.
    bytes: Vec<Vec<u8>>,
    /// The token of each byte.
    of_byte: Vec<Option<u32>>,
    merges: Merges,
    /// The merges in their order.
    pairs: Vec<(u32, u32)>,
}

impl Bpe {
    /// Learns a vocabulary of at most `vocabulary_size` tokens from texts: `special` tokens, the 256 bytes, and the
    /// most frequent pairs of tokens. There are fewer if every word of the texts becomes a single token. The tokens and
    /// merges are those of Hugging Face's `BpeTrainer` with its `ByteLevel` alphabet.
    ///
    /// # Errors
    /// Fails if `vocabulary_size` is less than 256 plus the number of special tokens, or if two special tokens are
    /// equal.
    #[track_caller]
    pub fn train<'t>(
        texts: impl IntoIterator<Item = &'t str>,
        vocabulary_size: usize,
        special: &[&str],
    ) -> Result<Bpe> {
        if vocabulary_size < 256 + special.len() || u32::try_from(vocabulary_size).is_err() {
            let m =
                format!("a vocabulary of {vocabulary_size} tokens for 256 bytes and {} special ones", special.len());
            return Err(Error::argument(OP, m).help("give a larger one, such as 5000"));
        }
        let mut names: Vec<String> = special.iter().map(|s| (*s).to_owned()).collect();
        let symbols = symbols();
        let mut sorted = symbols;
        sorted.sort_unstable();
        names.extend(sorted.iter().map(char::to_string));
        let mut tokens = HashMap::new();
        for (token, name) in names.iter().enumerate() {
            if tokens.insert(name.clone(), token as u32).is_some() {
                return Err(Error::argument(OP, format!("the special token {name:?} is there already"))
                    .help("give special tokens of more than one character, each once"));
            }
        }
        let of_byte: Vec<u32> =
            symbols.iter().map(|s| tokens.get(&s.to_string()).copied().unwrap_or_default()).collect();
        let mut counts: HashMap<&str, u64> = HashMap::new();
        texts.into_iter().flat_map(Words).for_each(|word| *counts.entry(word).or_default() += 1);
        let words = counts.into_iter().map(|(word, n)| (word.bytes().map(|b| of_byte[usize::from(b)]).collect(), n));
        let mut pairs = Vec::new();
        learn(words.collect(), |pair| {
            if names.len() >= vocabulary_size {
                return None;
            }
            let name = format!("{}{}", names[pair.0 as usize], names[pair.1 as usize]);
            // Two pairs may join to the same text.
            let made = *tokens.entry(name.clone()).or_insert(names.len() as u32);
            if made as usize == names.len() {
                names.push(name);
            }
            pairs.push((pair, made));
            Some(made)
        });
        Ok(Bpe::assembled(tokens, &names, &pairs))
    }

    fn assembled(tokens: HashMap<String, u32>, names: &[String], pairs: &[((u32, u32), u32)]) -> Bpe {
        let symbols = symbols();
        let bytes = names.iter().map(|name| bytes_of(name, &symbols)).collect();
        let of_byte = symbols.iter().map(|s| tokens.get(&s.to_string()).copied()).collect();
        let merges = pairs.iter().enumerate().map(|(rank, &(pair, made))| (pair, (rank as u32, made))).collect();
        Bpe { tokens, bytes, of_byte, merges, pairs: pairs.iter().map(|&(pair, _)| pair).collect() }
    }

    /// The number of the token with this text in the vocabulary, for example of a special token.
    ///
    /// ```
    /// let bpe = gradus_data::text::Bpe::train(["text"], 300, &["<|endoftext|>"])?;
    /// assert_eq!(bpe.token("<|endoftext|>"), Some(0));
    /// # Ok::<(), gradus_tensor::Error>(())
    /// ```
    pub fn token(&self, name: &str) -> Option<i64> {
        self.tokens.get(name).map(|&t| i64::from(t))
    }

    /// The contents of `vocab.json` and `merges.txt`, from which [`from_texts`](Bpe::from_texts) restores the tokeniser.
    #[track_caller]
    pub fn to_texts(&self) -> Result<[String; 2]> {
        let mut names: Vec<(&String, u32)> = self.tokens.iter().map(|(name, &t)| (name, t)).collect();
        names.sort_unstable_by_key(|(_, t)| *t);
        let entry = |(name, token): &(&String, u32)| {
            let name = serde_json::to_string(name).map_err(|e| Error::new(ErrorKind::Format, OP, e.to_string()));
            Ok(format!("{}:{token}", name?))
        };
        let entries = names.iter().map(entry).collect::<Result<Vec<_>>>().here()?;
        let mut merges = "#version: 0.2\n".to_owned();
        for &(left, right) in &self.pairs {
            merges += &format!("{} {}\n", names[left as usize].0, names[right as usize].0);
        }
        Ok([format!("{{{}}}", entries.join(",")), merges])
    }

    /// A tokeniser from the contents of a `vocab.json` and a `merges.txt`.
    ///
    /// # Errors
    /// Fails if a text has another format, or if a merge has a token that is not in the vocabulary. The error states
    /// which text it is, and the line.
    #[track_caller]
    pub fn from_texts(vocabulary: &str, merges: &str) -> Result<Bpe> {
        parse([VOCABULARY, MERGES], [vocabulary.as_bytes(), merges.as_bytes()])
    }

    /// Writes `vocab.json` and `merges.txt` into a folder, which must exist.
    #[track_caller]
    pub fn save(&self, folder: impl AsRef<Path>) -> Result<()> {
        for (name, text) in [VOCABULARY, MERGES].into_iter().zip(self.to_texts()?) {
            let path = folder.as_ref().join(name);
            gradus_file::write(OP, &path, true, |out| {
                out.write_all(text.as_bytes()).map_err(|e| gradus_file::failed(OP, &path, e))
            })?;
        }
        Ok(())
    }

    /// Reads `vocab.json` and `merges.txt` from a folder.
    ///
    /// # Errors
    /// Fails if a file cannot be read or has another format, or if a merge has a token that is not in the vocabulary.
    /// The error states the file and the line.
    #[track_caller]
    pub fn load(folder: impl AsRef<Path>) -> Result<Bpe> {
        let (vocabulary, merges) = (folder.as_ref().join(VOCABULARY), folder.as_ref().join(MERGES));
        let texts = [read_file(&vocabulary, OP, "a vocab.json")?, read_file(&merges, OP, "a merges.txt")?];
        let names = [vocabulary.display().to_string(), merges.display().to_string()];
        parse([&names[0], &names[1]], [&texts[0], &texts[1]])
    }
}

/// A tokeniser from the contents of `vocab.json` and `merges.txt`, which errors call by these names.
#[track_caller]
fn parse([vocabulary, merges]: [&str; 2], texts: [&[u8]; 2]) -> Result<Bpe> {
    let bad = |name: &str, what: String| {
        let e = Error::new(ErrorKind::Format, OP, format!("{name}: {what}"));
        e.help("give the vocab.json and merges.txt of one tokeniser")
    };
    let tokens: HashMap<String, u32> =
        serde_json::from_slice(texts[0]).map_err(|e| bad(vocabulary, e.to_string())).here()?;
    let mut names: Vec<Option<&String>> = tokens.iter().map(|_| None).collect();
    for (name, &token) in &tokens {
        match names.get_mut(token as usize) {
            Some(place @ None) => *place = Some(name),
            Some(Some(other)) => {
                return Err(bad(vocabulary, format!("{name:?} and {other:?} both have the number {token}")));
            }
            None => {
                let m = format!("{name:?} has the number {token}, and there are {} tokens", tokens.len());
                return Err(bad(vocabulary, m));
            }
        }
    }
    let names: Vec<String> = names.into_iter().flatten().cloned().collect();
    let text = std::str::from_utf8(texts[1])
        .map_err(|e| bad(merges, format!("byte {} is not UTF-8", e.valid_up_to())))
        .here()?;
    let (mut pairs, mut seen) = (Vec::new(), HashMap::new());
    for (i, line) in text.lines().enumerate() {
        if line.is_empty() || (i == 0 && line.starts_with("#version")) {
            continue;
        }
        let wrong = |what: String| bad(merges, format!("line {}: {what}", i + 1));
        let (left, right) = line.split_once(' ').ok_or_else(|| wrong("is no pair of tokens".into())).here()?;
        let find = |name: &str| {
            let shown: String = name.chars().take(40).collect();
            tokens.get(name).copied().ok_or_else(|| wrong(format!("{shown:?} is not in the vocabulary"))).here()
        };
        let pair = (find(left)?, find(right)?);
        let made = find(&format!("{left}{right}"))?;
        if seen.insert(pair, ()).is_some() {
            return Err(wrong("this pair came before".into()));
        }
        pairs.push((pair, made));
    }
    Ok(Bpe::assembled(tokens, &names, &pairs))
}

impl Tokenizer for Bpe {
    fn vocabulary_size(&self) -> usize {
        self.bytes.len()
    }

    #[track_caller]
    fn encode(&self, text: &str) -> Result<Vec<i64>> {
        let (mut tokens, mut at) = (Vec::new(), 0);
        // Most words of a text occur many times, so their tokens are cached.
        let mut known: HashMap<&str, std::ops::Range<usize>> = HashMap::new();
        let mut word_tokens = Vec::new();
        for word in Words(text) {
            if let Some(range) = known.get(word) {
                tokens.extend_from_within(range.clone());
                at += word.len();
                continue;
            }
            word_tokens.clear();
            for (i, byte) in word.bytes().enumerate() {
                let Some(token) = self.of_byte[usize::from(byte)] else {
                    let m = format!("byte {}: the vocabulary has no token for 0x{byte:02x}", at + i);
                    return Err(Error::new(ErrorKind::Format, "encode", m).help("use the tokeniser that fits the text"));
                };
                word_tokens.push(token);
            }
            merge(&mut word_tokens, &self.merges);
            let start = tokens.len();
            crate::memory::reserve(&mut tokens, word_tokens.len(), "encode", "the text")?;
            tokens.extend(word_tokens.iter().map(|&t| i64::from(t)));
            known.insert(word, start..tokens.len());
            at += word.len();
        }
        Ok(tokens)
    }

    #[track_caller]
    fn decode_bytes(&self, tokens: &[i64]) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        for (at, &token) in tokens.iter().enumerate() {
            let found = usize::try_from(token).ok().and_then(|t| self.bytes.get(t));
            let found = found.ok_or_else(|| unknown(at, token, self.bytes.len())).here()?;
            crate::memory::reserve(&mut bytes, found.len(), "decode", "the tokens")?;
            bytes.extend_from_slice(found);
        }
        Ok(bytes)
    }
}

impl fmt::Debug for Bpe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bpe({} tokens, {} merges)", self.bytes.len(), self.pairs.len())
    }
}
