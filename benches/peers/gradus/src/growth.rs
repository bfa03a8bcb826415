//! Checks that time grows no faster than work: pairs of a small and a large job, timed alternately in one process.

use std::error::Error;

use peer_harness::{Bench, Goal, Job, Outcome, median, seconds_of};

/// The factor by which the time may exceed the growth of the work, and the number of rounds of a pair. A pair above the
/// limit is measured again in three times as many rounds, and only the second measurement counts.
const LIMIT: f64 = 1.1;
const ROUNDS: usize = 7;
/// The minimum time for each job of a pair in a round.
const SECONDS: f64 = 0.25;

/// Two jobs of the same kind and different sizes.
struct Pair {
    name: &'static str,
    kind: &'static str,
    small: &'static [usize],
    large: &'static [usize],
    /// The ratio of the large job's work to that of the small one.
    work: f64,
}

/// The number of multiply-adds of a perceptron of this width.
const fn perceptron(width: usize) -> f64 {
    (784 * width + width * width + width * 10) as f64
}

/// The number of multiply-adds of the GPT per token, for sequences of this length: those of its matrices, and those of
/// the unmasked half of the scores.
const fn gpt(length: usize) -> f64 {
    (6 * 12 * 384 * 384 + 256 * 384 + 6 * 384 * length) as f64
}

// Either both jobs of a pair fit the same cache, or both are several times larger than all caches. Otherwise the large
// job would also pay for slower memory.
const PAIRS: [Pair; 14] = [
    pair("elements added, 16M to 32M", "add", &[1 << 24], &[1 << 25], 2.0),
    pair("elements summed, 32M to 64M", "sum", &[1 << 25], &[1 << 26], 2.0),
    pair("rows of a softmax, 16k to 32k", "softmax", &[16384, 1024], &[32768, 1024], 2.0),
    pair("width of a layer norm, 1k to 2k", "layer_norm", &[128, 1024], &[128, 2048], 2.0),
    pair("side of a product, 512 to 1024", "gemm_f32", &[512], &[1024], 8.0),
    pair("batch of a convolution, 8 to 16", "conv2d_backward", &[8, 64, 56, 64, 3, 1], &[16, 64, 56, 64, 3, 1], 2.0),
    pair("batch of attention, 2 to 4", "attention_backward", &[2, 8, 512, 64], &[4, 8, 512, 64], 2.0),
    pair("batch of a perceptron, 128 to 256", "train_mlp", &[128, 784, 512, 10], &[256, 784, 512, 10], 2.0),
    pair(
        "width of a perceptron, 512 to 1024",
        "train_mlp",
        &[128, 784, 512, 10],
        &[128, 784, 1024, 10],
        perceptron(1024) / perceptron(512),
    ),
    pair("batch of a CNN, 32 to 64", "train_cnn", &[32, 28], &[64, 28], 2.0),
    pair("batch of a GPT, 2 to 4", "train_gpt", &[2, 256], &[4, 256], 2.0),
    pair("length of a GPT's sequences, 128 to 256", "train_gpt", &[4, 128], &[4, 256], 2.0 * gpt(256) / gpt(128)),
    pair("nodes of a graph, 10k to 100k", "chain_backward", &[4, 10_000], &[4, 100_000], 10.0),
    pair("nodes of a graph, 100k to 1M", "chain_backward", &[4, 100_000], &[4, 1_000_000], 10.0),
];

const fn pair(
    name: &'static str,
    kind: &'static str,
    small: &'static [usize],
    large: &'static [usize],
    work: f64,
) -> Pair {
    Pair { name, kind, small, large, work }
}

/// The medians of the rounds: the seconds of the small job, those of the large job, and their ratio divided by the
/// ratio of the work.
fn measure(pair: &Pair, run: fn(&Job, &mut Bench) -> Outcome, rounds: usize) -> Result<[f64; 3], Box<dyn Error>> {
    let job = |sizes: &[usize]| Job {
        name: pair.name,
        kind: pair.kind,
        sizes: sizes.to_vec(),
        goal: Goal::Ratio(1.0),
        tolerance: 0.0,
    };
    let (small, large) = (job(pair.small), job(pair.large));
    let mut all = Vec::new();
    for _ in 0..rounds {
        let (a, b) = (seconds_of(run, &small, SECONDS)?, seconds_of(run, &large, SECONDS)?);
        all.push([a, b, b / a / pair.work]);
    }
    let middle = |i: usize| median(all.iter().map(|round: &[f64; 3]| round[i])).unwrap_or(f64::NAN);
    Ok([middle(0), middle(1), middle(2)])
}

/// Measures all pairs whose name contains `part`. Fails if the time of a pair grows faster than its work.
pub fn check(part: &str, run: fn(&Job, &mut Bench) -> Outcome) -> Result<(), Box<dyn Error>> {
    if !PAIRS.iter().any(|pair| pair.name.contains(part)) {
        return Err(format!("no pair has {part:?} in its name").into());
    }
    println!("| what grows | small, ms | large, ms | work | time by work |\n|---|---:|---:|---:|---:|");
    let mut faster = Vec::new();
    for pair in PAIRS.iter().filter(|pair| pair.name.contains(part)) {
        let mut found = measure(pair, run, ROUNDS)?;
        // A growth of NaN does not pass.
        let is_fast = |growth: f64| growth.is_nan() || growth > LIMIT;
        if is_fast(found[2]) {
            found = measure(pair, run, 3 * ROUNDS)?;
        }
        let [small, large, growth] = found;
        println!("| {} | {:.3} | {:.3} | {:.2} | {growth:.2} |", pair.name, small * 1e3, large * 1e3, pair.work);
        if is_fast(growth) {
            faster.push(format!("{} ({growth:.2} times the work)", pair.name));
        }
    }
    if faster.is_empty() {
        Ok(())
    } else {
        Err(format!("cost grows faster than the work: {}", faster.join(", ")).into())
    }
}
