//! What a captured step costs beside an eager one: memory, the time of a trace, and the overhead of a replay.
//!
//! The first two are measured on a training step of a GPT of 10 million parameters (6 layers, 6 heads, 384 wide, context
//! 256, 4 sections a step, AdamW). Memory is counted by the backend: the smallest budget in which a step runs. The
//! overhead is measured on a step of generation, one token with cached keys and values, by a model so narrow that its
//! arithmetic takes no time.
//!
//! ```sh
//! cargo bench -p gradus-graph --bench costs
//! ```
#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Instant;

use gradus_cpu::CpuBackend;
use gradus_graph::{MemoryLimit, capture};
use gradus_nn::{AdamConfig, AdamW, Embedding, Forward, Init, LayerNorm, LayerNormConfig, Linear, Module, Optimizer};
use gradus_tensor::{AttentionOptions, Causal, DType, Device, ErrorKind, Generator, Result, Tensor, UpdateFn, no_grad};

/// The sizes of the model and of a batch.
#[derive(Clone, Copy)]
struct Sizes {
    layers: usize,
    heads: usize,
    width: usize,
    context: usize,
    batch: usize,
}

/// The model of the table in docs/performance.md.
const GPT: Sizes = Sizes { layers: 6, heads: 6, width: 384, context: 256, batch: 4 };

/// A model for the overhead of generation.
const NARROW: Sizes = Sizes { layers: 6, heads: 2, width: 8, context: 16, batch: 1 };

/// A GPT of these sizes, with 256 tokens.
#[derive(Module)]
struct Gpt {
    tokens: Embedding,
    positions: Embedding,
    blocks: Vec<Block>,
    norm: LayerNorm,
    head: Linear,
}

#[derive(Module)]
struct Block {
    norm1: LayerNorm,
    qkv: Linear,
    proj: Linear,
    norm2: LayerNorm,
    up: Linear,
    down: Linear,
}

fn model(sizes: Sizes, device: &Device) -> Result<Gpt> {
    let (width, mut generator) = (sizes.width, Generator::new(0));
    let mut init = Init::new(DType::F32, device, &mut generator);
    let norm = |init: &mut Init<'_>| LayerNorm::new([width], LayerNormConfig::default(), init);
    let mut blocks = vec![];
    for _ in 0..sizes.layers {
        blocks.push(Block {
            norm1: norm(&mut init)?,
            qkv: Linear::new(width, 3 * width, &mut init)?,
            proj: Linear::new(width, width, &mut init)?,
            norm2: norm(&mut init)?,
            up: Linear::new(width, 4 * width, &mut init)?,
            down: Linear::new(4 * width, width, &mut init)?,
        });
    }
    Ok(Gpt {
        tokens: Embedding::new(256, width, None, &mut init)?,
        positions: Embedding::new(sizes.context, width, None, &mut init)?,
        blocks,
        norm: norm(&mut init)?,
        head: Linear::without_bias(width, 256, &mut init)?,
    })
}

/// The logits of `tokens [n, length]` at `positions [length]`. `attend` is given the number of the block, and its
/// queries, keys and values `[n, heads, length, size]`.
fn logits(
    model: &Gpt,
    sizes: Sizes,
    tokens: &Tensor,
    positions: &Tensor,
    attend: impl Fn(usize, [Tensor; 3]) -> Result<Tensor>,
) -> Result<Tensor> {
    let (n, length, width) = (tokens.size(0)?, tokens.size(1)?, sizes.width);
    let mut x = model.tokens.forward(tokens)?.add(&model.positions.forward(positions)?)?;
    for (i, block) in model.blocks.iter().enumerate() {
        let parts = block.qkv.forward(&block.norm1.forward(&x)?)?.split(width, -1)?;
        let part = |i: usize| parts[i].reshape([n, length, sizes.heads, width / sizes.heads])?.transpose(1, 2);
        let a = attend(i, [part(0)?, part(1)?, part(2)?])?.transpose(1, 2)?.reshape([n, length, width])?;
        x = x.add(&block.proj.forward(&a)?)?;
        x = x.add(&block.down.forward(&block.up.forward(&block.norm2.forward(&x)?)?.gelu_tanh()?)?)?;
    }
    model.head.forward(&model.norm.forward(&x)?)
}

/// A device of its own, so that its counters count one program.
fn new_device() -> Result<Device> {
    Ok(Device::from_backend(Arc::new(CpuBackend::new()?)))
}

/// Tokens, and the tokens that follow them.
fn batch(sizes: Sizes, device: &Device) -> Result<[Tensor; 2]> {
    let mut generator = Generator::new(1);
    let mut draw = || Tensor::randint(0, 256, [sizes.batch, sizes.context], DType::I64, device, &mut generator);
    let (x, y) = (draw()?, draw()?);
    Ok([x, y.flatten(0, -1)?])
}

fn train(model: &Gpt, sizes: Sizes, optimizer: &mut AdamW, x: &[Tensor]) -> Result<Vec<Tensor>> {
    let positions = Tensor::arange(0, sizes.context as i64, 1, DType::I64, x[0].device())?;
    let attend = |_: usize, [q, k, v]: [Tensor; 3]| {
        q.scaled_dot_product_attention(&k, &v, AttentionOptions::new().causal(Causal::TopLeft))
    };
    let logits = logits(model, sizes, &x[0], &positions, attend)?;
    let loss = logits.flatten(0, 1)?.cross_entropy(&x[1])?;
    optimizer.step(&loss.backward()?)?;
    Ok(vec![loss.detach()])
}

/// The smallest budget of a device, in bytes, in which `step` runs, to a hundredth of what is in use beyond `held`.
fn smallest_budget(device: &Device, held: usize, most: usize, mut step: impl FnMut() -> Result<()>) -> Result<usize> {
    let (mut low, mut high) = (held, most);
    while high - low > (high - held) / 100 {
        let middle = low + (high - low) / 2;
        device.backend().trim()?;
        device.backend().set_memory_budget(Some(middle))?;
        match step() {
            Ok(()) => high = middle,
            Err(e) if matches!(e.kind(), ErrorKind::OutOfMemory { .. }) => low = middle,
            Err(e) => return Err(e),
        }
    }
    device.backend().set_memory_budget(None)?;
    Ok(high)
}

/// The bytes that live all the time (parameters, the optimiser's state and the batch), the smallest budget of an eager
/// step, and that of a replay within each limit.
fn memory(sizes: Sizes, limits: &[MemoryLimit]) -> Result<(usize, usize, Vec<usize>)> {
    let device = new_device()?;
    let (model, inputs) = (model(sizes, &device)?, batch(sizes, &device)?);
    let mut optimizer = AdamW::new(model.named_parameters(), AdamConfig::default())?;
    train(&model, sizes, &mut optimizer, &inputs)?;
    let held = device.memory_stats().in_use;
    let most = 2 * device.memory_stats().peak;
    let eager = smallest_budget(&device, held, most, || train(&model, sizes, &mut optimizer, &inputs).map(drop))?;
    let mut replays = vec![];
    for &limit in limits {
        let mut step = capture(|x| train(&model, sizes, &mut optimizer, x));
        step.limit_memory(limit);
        while step.replays() < 2 {
            step.call(&[&inputs[0], &inputs[1]])?;
        }
        replays.push(smallest_budget(&device, held, most, || step.call(&[&inputs[0], &inputs[1]]).map(drop))?);
    }
    Ok((held, eager, replays))
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Runs `f` and returns how long it took, in seconds.
fn timed<T>(f: impl FnOnce() -> Result<T>) -> Result<f64> {
    let start = Instant::now();
    let kept = f()?;
    let time = start.elapsed().as_secs_f64();
    drop(kept);
    Ok(time)
}

/// Seconds of an eager step, of a traced step and of replays within each limit, in turn: medians of `rounds` rounds.
fn times(sizes: Sizes, limits: &[MemoryLimit], rounds: usize) -> Result<(f64, f64, Vec<f64>)> {
    let device = new_device()?;
    let (model, inputs) = (model(sizes, &device)?, batch(sizes, &device)?);
    let inputs = [&inputs[0], &inputs[1]];
    let new_optimizer = || AdamW::new(model.named_parameters(), AdamConfig::default());
    let run = |optimizer: &mut AdamW, x: &[Tensor]| train(&model, sizes, optimizer, x);
    let (mut eager, mut traced, mut replayed) = (vec![], vec![], vec![vec![]; limits.len()]);
    let mut optimizer = new_optimizer()?;
    let owned = inputs.map(Tensor::clone);
    run(&mut optimizer, &owned)?;
    let mut optimizers = limits.iter().map(|_| new_optimizer()).collect::<Result<Vec<_>>>()?;
    let mut steps: Vec<_> = optimizers.iter_mut().map(|optimizer| capture(move |x| run(optimizer, x))).collect();
    for (step, &limit) in steps.iter_mut().zip(limits) {
        step.limit_memory(limit);
        while step.replays() < 2 {
            step.call(&inputs)?;
        }
    }
    for _ in 0..rounds {
        eager.push(timed(|| run(&mut optimizer, &owned))?);
        let mut step = capture(|x| run(&mut optimizer, x));
        // The second trace is compared with the first, and made into a plan.
        let both = timed(|| step.call(&inputs))? + timed(|| step.call(&inputs))?;
        traced.push(both / 2.0);
        for (step, times) in steps.iter_mut().zip(&mut replayed) {
            times.push(timed(|| step.call(&inputs))?);
        }
    }
    Ok((median(eager), median(traced), replayed.into_iter().map(median).collect()))
}

/// Writes the row of the current token into a cache: `here ? new : cache`, in place.
static PUT: UpdateFn = UpdateFn::new("put", |x| vec![x[1].gt(0.0).select(x[2], x[0])]);

/// The logits of the token after `token [1, 1]` at `position [1]`, with the keys and values of the tokens before it in
/// `caches`, each `[1, heads, context, size]`. The shapes are the same for every token.
fn decode(model: &Gpt, sizes: Sizes, caches: &[[Tensor; 2]], token: &Tensor, position: &Tensor) -> Result<Tensor> {
    let places = Tensor::arange(0, sizes.context as i64, 1, DType::I64, token.device())?;
    let here = places.eq(position)?.reshape([1, 1, sizes.context, 1])?;
    let seen = places.le(position)?.reshape([1, 1, 1, sizes.context])?;
    logits(model, sizes, token, position, |i, [q, k, v]| {
        let [keys, values] = &caches[i];
        PUT.apply(&[keys], &[keys, &here, &k], &[])?;
        PUT.apply(&[values], &[values, &here, &v], &[])?;
        q.scaled_dot_product_attention(keys, values, AttentionOptions::new().mask(&seen))
    })
}

fn caches(sizes: Sizes, device: &Device) -> Result<Vec<[Tensor; 2]>> {
    let shape = [1, sizes.heads, sizes.context, sizes.width / sizes.heads];
    (0..sizes.layers)
        .map(|_| Ok([Tensor::zeros(shape, DType::F32, device)?, Tensor::zeros(shape, DType::F32, device)?]))
        .collect()
}

/// A step of generation.
#[derive(Debug)]
struct Generation {
    /// The number of operations of a replay.
    operations: usize,
    /// Seconds a token, eager and captured.
    eager: f64,
    captured: f64,
    /// Whether all logits were equal to the bit.
    same: bool,
}

/// Fills the context token by token, eagerly and captured, `rounds` times.
fn generation(sizes: Sizes, rounds: usize) -> Result<Generation> {
    let device = new_device()?;
    let model = model(sizes, &device)?;
    let (a, b) = (caches(sizes, &device)?, caches(sizes, &device)?);
    let mut step = capture(|x| Ok(vec![no_grad(|| decode(&model, sizes, &b, &x[0], &x[1]))?]));
    let (mut eager, mut captured, mut same) = (vec![], vec![], true);
    for _ in 0..rounds {
        for i in 0..sizes.context {
            let token = Tensor::full([1, 1], (i * 7 % 256) as i64, DType::I64, &device)?;
            let position = Tensor::full([1], i as i64, DType::I64, &device)?;
            let start = Instant::now();
            let want = no_grad(|| decode(&model, sizes, &a, &token, &position))?;
            eager.push(start.elapsed().as_secs_f64());
            let start = Instant::now();
            let got = step.call(&[&token, &position])?;
            captured.push(start.elapsed().as_secs_f64());
            same &= got[0].to_vec::<f32>()? == want.to_vec::<f32>()?;
        }
    }
    let operations = step.graph().map_or(0, |graph| graph.nodes.len());
    Ok(Generation { operations, eager: median(eager), captured: median(captured), same })
}

/// Seconds of a replay of a step without operations.
fn empty(rounds: usize) -> Result<f64> {
    let device = new_device()?;
    let x = Tensor::zeros([4], DType::F32, &device)?;
    let mut step = capture(|x| Ok(vec![x[0].clone()]));
    let mut call = |n: usize| -> Result<f64> {
        let start = Instant::now();
        for _ in 0..n {
            step.call(&[&x])?;
        }
        Ok(start.elapsed().as_secs_f64() / n as f64)
    };
    call(10)?;
    Ok(median((0..rounds).map(|_| call(1000)).collect::<Result<Vec<f64>>>()?))
}

fn main() -> Result<()> {
    let mib = |bytes: usize| bytes as f64 / (1 << 20) as f64;
    let limits =
        [MemoryLimit::Bytes(usize::MAX), MemoryLimit::Cheap, MemoryLimit::Bytes(50 << 20), MemoryLimit::Bytes(0)];
    let (held, eager, replays) = memory(GPT, &limits)?;
    let (once, traced, times) = times(GPT, &limits, 7)?;
    println!("training step of a GPT: {:.1} MiB of parameters, optimiser and batch", mib(held));
    println!("{:<24} {:>9} {:>7} {:>9} {:>7} {:>8} {:>7}", "", "peak MiB", "ratio", "beside", "ratio", "ms", "ratio");
    let row = |name: &str, bytes: usize, time: f64| {
        let (all, beside) = (bytes as f64 / eager as f64, (bytes - held) as f64 / (eager - held) as f64);
        let (peak, rest) = (mib(bytes), mib(bytes - held));
        println!(
            "{name:<24} {peak:>9.1} {all:>7.3} {rest:>9.1} {beside:>7.3} {:>8.0} {:>7.3}",
            1e3 * time,
            time / once
        );
    };
    row("eager", eager, once);
    for ((limit, bytes), time) in limits.iter().zip(replays).zip(times) {
        row(&format!("{limit:?}"), bytes, time);
    }
    println!("a traced step takes {:.2} times as long as an eager one", traced / once);
    let found = generation(NARROW, 20)?;
    let each = |time: f64| 1e6 * time / found.operations as f64;
    println!(
        "a token of a narrow GPT, {} operations: {:.2} us an operation eager, {:.2} captured; same logits: {}",
        found.operations,
        each(found.eager),
        each(found.captured),
        found.same
    );
    println!("a replay of no operations: {:.0} ns", 1e9 * empty(20)?);
    Ok(())
}
