//! Operators on strings, which the host runs.

use std::collections::HashMap;
use std::sync::Arc;

use gradus_tensor::{Error, Result, Tensor};

use crate::elem::Elem;
use crate::graph::{Call, Row, one, row, size, unsupported};
use crate::value::{OnnxValue, Strings};

type Values = Result<Vec<OnnxValue>>;

pub(super) const ROWS: &[Row] = &[
    row("StringConcat", &[20], concat),
    row("StringSplit", &[20], split),
    row("StringNormalizer", &[10], normalise),
    row("TfIdfVectorizer", &[9], tf_idf),
];

fn strings(shape: Vec<usize>, values: Vec<String>) -> OnnxValue {
    OnnxValue::Strings(Arc::new(Strings { shape, values }))
}

/// For each position of the result, the position in an operand of this shape.
fn places(shape: &[usize], result: &[usize]) -> Vec<usize> {
    let n: usize = result.iter().product();
    let place = |mut flat: usize| {
        let (mut at, mut scale) = (0, 1);
        for (i, &size) in result.iter().enumerate().rev() {
            let own = (i + shape.len()).checked_sub(result.len()).and_then(|i| shape.get(i)).copied().unwrap_or(1);
            if own > 1 {
                at += flat % size * scale;
            }
            scale *= own;
            flat /= size;
        }
        at
    };
    // At most the number of strings of a result that fits the operands.
    (0..n).map(place).collect()
}

fn concat(c: &Call<'_>) -> Values {
    let (a, b) = (c.strings(0)?, c.strings(1)?);
    let rank = a.shape.len().max(b.shape.len());
    let at = |shape: &[usize], i: usize| (i + shape.len()).checked_sub(rank).map_or(1, |i| shape[i]);
    let mut shape = Vec::new();
    for i in 0..rank {
        shape.push(match (at(&a.shape, i), at(&b.shape, i)) {
            (x, y) if x == y || y == 1 => x,
            (1, y) => y,
            _ => return Err(Error::shape("onnx", format!("strings of shapes {:?} and {:?}", a.shape, b.shape))),
        });
    }
    let pairs = places(&a.shape, &shape).into_iter().zip(places(&b.shape, &shape));
    let values = pairs.map(|(i, j)| format!("{}{}", a.values[i], b.values[j])).collect();
    Ok(vec![strings(shape, values)])
}

fn split(c: &Call<'_>) -> Values {
    let x = c.strings(0)?;
    let delimiter = c.text("delimiter", "")?;
    let most = c.has("maxsplit").then(|| c.int("maxsplit", 0)).transpose()?.filter(|&n| n >= 0).map(|n| n as usize);
    let parts = |text: &String| -> Vec<String> {
        let mut parts = Vec::new();
        if delimiter.is_empty() {
            let mut rest = text.trim_start();
            while !rest.is_empty() {
                match rest.find(char::is_whitespace).filter(|_| most.is_none_or(|most| parts.len() < most)) {
                    Some(end) => {
                        parts.push(rest[..end].to_owned());
                        rest = rest[end..].trim_start();
                    }
                    None => {
                        parts.push(
                            if most.is_some_and(|most| parts.len() >= most) { rest } else { rest.trim_end() }
                                .to_owned(),
                        );
                        rest = "";
                    }
                }
            }
        } else {
            match most {
                Some(most) => parts.extend(text.splitn(most.saturating_add(1), delimiter).map(str::to_owned)),
                None => parts.extend(text.split(delimiter).map(str::to_owned)),
            }
        }
        parts
    };
    let all: Vec<Vec<String>> = x.values.iter().map(parts).collect();
    let widest = all.iter().map(Vec::len).max().unwrap_or(0);
    let counts = all.iter().map(|parts| parts.len() as i64).collect();
    let mut values = Vec::new();
    for mut parts in all {
        // At most the most parts of a string.
        parts.resize(widest, String::new());
        values.append(&mut parts);
    }
    let shape = [&x.shape[..], &[widest]].concat();
    Ok(vec![strings(shape, values), c.upload(Elem::I64, x.shape.clone(), counts)])
}

fn normalise(c: &Call<'_>) -> Values {
    c.skip(&["locale"]);
    let x = c.strings(0)?;
    let action = c.text("case_change_action", "NONE")?;
    let sensitive = c.flag("is_case_sensitive", false)?;
    let changed = |text: &str| match action {
        "LOWER" => Ok(text.to_lowercase()),
        "UPPER" => Ok(text.to_uppercase()),
        "NONE" => Ok(text.to_owned()),
        other => Err(Error::argument("onnx", format!("case_change_action = `{other}`"))),
    };
    let folded = |text: &str| if sensitive { text.to_owned() } else { text.to_lowercase() };
    let stops: Vec<String> = c.texts("stopwords")?.unwrap_or_default().iter().map(|word| folded(word)).collect();
    let kept = x.values.iter().filter(|text| !stops.contains(&folded(text)));
    let mut values: Vec<String> = kept.map(|text| changed(text)).collect::<Result<_>>()?;
    if values.is_empty() {
        values.push(String::new());
    }
    let shape = match *x.shape {
        [_] => vec![values.len()],
        [1, _] => vec![1, values.len()],
        _ => return Err(unsupported(format!("strings of shape {:?}", x.shape))),
    };
    Ok(vec![strings(shape, values)])
}

/// The words of an input as numbers, which are equal exactly if the words are.
fn words(c: &Call<'_>, pool: &mut Vec<usize>) -> Result<(Vec<usize>, Vec<usize>)> {
    let mut numbers: HashMap<String, usize> = HashMap::new();
    let mut number = |word: String| {
        let next = numbers.len();
        *numbers.entry(word).or_insert(next)
    };
    if let Some(texts) = c.texts("pool_strings")? {
        pool.extend(texts.iter().map(|text| number(text.clone())));
    }
    if let Some(ints) = c.ints("pool_int64s")? {
        pool.extend(ints.iter().map(|v| number(v.to_string())));
    }
    Ok(match c.input(0)? {
        OnnxValue::Strings(s) => (s.shape.clone(), s.values.iter().map(|text| number(text.clone())).collect()),
        _ => (c.array(0)?.shape().to_vec(), c.host_ints(0)?.iter().map(|v| number(v.to_string())).collect()),
    })
}

fn tf_idf(c: &Call<'_>) -> Values {
    let mut pool = Vec::new();
    let (shape, words) = words(c, &mut pool)?;
    let (longest, shortest) = (size(c.int("max_gram_length", 1)?)?, size(c.int("min_gram_length", 1)?)?);
    let skips = size(c.int("max_skip_count", 0)?)?;
    let (starts, columns) = (c.ints("ngram_counts")?.unwrap_or_default(), c.ints("ngram_indexes")?.unwrap_or_default());
    let weights = c.floats("weights")?.unwrap_or_default();
    let mode = c.text("mode", "")?;
    // The column of each n-gram.
    let mut grams: HashMap<&[usize], usize> = HashMap::new();
    let mut id = 0;
    for (i, &start) in starts.iter().enumerate() {
        let n = i + 1;
        let end = starts.get(n).map_or(pool.len(), |&end| end.max(0) as usize);
        for gram in pool.get(start.max(0) as usize..end).unwrap_or_default().chunks_exact(n) {
            let Some(&column) = columns.get(id) else {
                return Err(Error::argument("onnx", "an n-gram without a column"));
            };
            grams.insert(gram, size(column)?);
            id += 1;
        }
    }
    let width = columns.iter().copied().max().map_or(Ok(0), size)?.saturating_add(1);
    let (rows, length) = match *shape {
        [] | [_] => (1, words.len()),
        [rows, length] => (rows, length),
        _ => return Err(Error::shape("onnx", format!("words of shape {shape:?}"))),
    };
    if width.saturating_mul(rows.max(1)) > 1 << 26 {
        return Err(unsupported(format!("{rows} rows of {width} columns")));
    }
    let mut counts: Vec<f32> = Vec::new();
    // At most 2^26.
    counts.resize(rows * width, 0.0);
    for row in 0..rows {
        let line = words.get(row * length..(row + 1) * length).unwrap_or_default();
        for n in shortest.max(1)..=longest {
            // Skips do not apply to single words.
            for step in 1..=if n == 1 { 1 } else { skips.saturating_add(1).min(length.max(1)) } {
                for start in 0..length {
                    let gram: Vec<usize> =
                        line.get(start..).unwrap_or_default().iter().step_by(step).take(n).copied().collect();
                    if gram.len() < n {
                        break;
                    }
                    if let Some(&column) = grams.get(&*gram) {
                        counts[row * width + column] += 1.0;
                    }
                }
            }
        }
    }
    let weight = |i: usize| weights.get(i % width).copied().unwrap_or(1.0);
    for (i, count) in counts.iter_mut().enumerate() {
        *count = match mode {
            "TF" => *count,
            "IDF" => {
                if *count > 0.0 {
                    weight(i)
                } else {
                    0.0
                }
            }
            "TFIDF" => *count * weight(i),
            other => return Err(Error::argument("onnx", format!("mode = `{other}`"))),
        };
    }
    let shape = if shape.len() == 2 { vec![rows, width] } else { vec![width] };
    Ok(one(Tensor::from_vec(counts, shape, c.device)?))
}
