//! `gradus bench`: measures on several ranks what `gradus plan` needs to know.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use gradus::dist::{Communicator, DataParallel, Reduce};
use gradus::models::{Gpt2, Gpt2Config};
use gradus::prelude::*;
use gradus::tasks::text::next_token_loss;
use gradus::train::{check_file, write_file};

use super::plan::{
    Calls, Cost, Layout, Line, Machine, Measured, Work, cost, fit, shape_of, shards, time, without_dropout,
};
use super::train::{Team, threads};
use crate::args::BenchArgs;
use crate::output::say;

/// Bytes of the calls that are measured, and how often each is made.
const SIZES: [(usize, usize); 4] = [(4 << 10, 60), (64 << 10, 40), (1 << 20, 20), (16 << 20, 6)];

/// The blocks that are measured: width, heads, tokens of a sequence, sequences.
const BLOCKS: [[usize; 4]; 6] =
    [[64, 2, 32, 1], [64, 2, 64, 4], [192, 6, 64, 1], [192, 6, 128, 2], [512, 8, 64, 1], [512, 8, 128, 2]];
const LAYERS: usize = 2;

/// The tokens of the models that are measured are few, so that logits count for nothing.
const VOCABULARY: usize = 32;

/// How often each block is run.
const RUNS: usize = 7;

/// Numbers of the vectors whose sums are measured.
const LARGE: usize = 8 << 20;

/// How often a step of a model is run.
const STEPS: usize = 7;

/// Runs the command.
pub(crate) fn run(args: &BenchArgs) -> Result<()> {
    let shape = args.model.as_deref().map(shape_of).transpose()?;
    let (team, comm, device) = Team::connect(&args.common)?;
    team.watch_launcher(|| std::process::exit(crate::interrupt::INTERRUPTED));
    let threads = threads(args.common.threads);
    // Before the work. If the first rank cannot keep what it finds, it leaves, and the calls of the others say so.
    let mut measured = if comm.rank() == 0 { kept(&args.out)? } else { Measured::default() };
    let bench = Bench { comm: &comm, device: &device };
    let machine = bench.machine(&args.common.device, threads)?;
    show(&machine, &args.common.device)?;
    measured.add(machine);
    if comm.rank() == 0 {
        let text = serde_json::to_string_pretty(&measured)
            .map_err(|e| Error::argument("bench", format!("the measurement cannot be written: {e}")))?;
        write_file(&args.out, text.as_bytes())?;
    }
    say(&format!("kept in {}", args.out.display()))?;
    let mut checked = serde_json::Value::Null;
    if let (Some(shape), Some(name)) = (shape, &args.model) {
        let layout = Layout { data: comm.size(), tensor: 1, pipeline: 1, zero: 0 };
        let step = bench.step(&shape, args.batch)?;
        if let Some(Cost { time: predicted, .. }) = cost(&Work::of(&shape), args.batch, &measured, layout) {
            say(&format!(
                "a step of {name} with {} sequences: {}, predicted {} ({:+.0} %): {} passes, {} sums and optimiser, {} calls",
                args.batch,
                time(step),
                time(predicted.all()),
                100.0 * (predicted.all() / step - 1.0),
                time(predicted.passes),
                time(predicted.update),
                time(predicted.calls)
            ))?;
            checked = serde_json::json!({ "model": name, "seconds": step, "predicted_seconds": predicted.all() });
        }
    }
    if args.common.json {
        say(&serde_json::json!({ "measured": measured, "step": checked }).to_string())?;
    }
    Ok(())
}

/// What a file holds, into which more will be written.
fn kept(out: &Path) -> Result<Measured> {
    check_file(out)?;
    if out.exists() { Measured::read(out) } else { Ok(Measured::default()) }
}

fn show(machine: &Machine, device: &str) -> Result<()> {
    let threads = machine.threads.map_or(String::new(), |n| format!(", {n} threads each"));
    say(&format!("{} ranks on {device}{threads}", machine.ranks))?;
    say(&format!("  products          {:.1} GFLOP/s a rank", 1e-9 / machine.per_flop))?;
    say(&format!("  passes over memory {:.2} GB/s a rank", 1e-9 / machine.per_byte))?;
    say(&format!("  a block           {} besides", time(machine.block)))?;
    let Some(calls) = &machine.calls else { return Ok(()) };
    let named = [
        ("all_reduce", calls.all_reduce),
        ("reduce_scatter", calls.reduce_scatter),
        ("all_gather", calls.all_gather),
        ("send", calls.send),
    ];
    for (name, line) in named {
        let speed = match line.per_byte {
            0.0 => "too fast to tell the time of a byte".into(),
            per_byte => format!("{:.2} GB/s", 1e-9 / per_byte),
        };
        say(&format!("  {name:<17} {:.0} us, {speed}", 1e6 * line.latency))?;
    }
    Ok(())
}

struct Bench<'a> {
    comm: &'a Arc<dyn Communicator>,
    device: &'a Device,
}

impl Bench<'_> {
    /// The median time of `f` on the slowest rank. All ranks begin together.
    fn time(&self, runs: usize, f: &mut dyn FnMut() -> Result<()>) -> Result<f64> {
        let mut times = vec![];
        for _ in 0..runs + 2 {
            self.comm.barrier(self.device)?;
            let start = Instant::now();
            f()?;
            self.device.synchronize()?;
            times.push(start.elapsed().as_secs_f64());
        }
        // The first runs allocate memory.
        let mut times = times.split_off(2);
        times.sort_by(f64::total_cmp);
        let median = Tensor::scalar(times[times.len() / 2], &Device::cpu()?)?;
        self.comm.all_reduce(&median, Reduce::Max)?.item()
    }

    fn machine(&self, device: &str, threads: Option<usize>) -> Result<Machine> {
        let ranks = self.comm.size();
        let mut points = vec![];
        for [width, heads, tokens, rows] in BLOCKS {
            let shape = without_dropout(Gpt2Config {
                vocab_size: VOCABULARY,
                n_positions: tokens,
                n_embd: width,
                n_layer: LAYERS,
                n_head: heads,
                ..Gpt2Config::default()
            });
            let model = self.model(&shape)?;
            let batch = self.batch(&shape, rows)?;
            let seconds = self.time(RUNS, &mut || next_token_loss(&model, &batch)?.loss.backward().map(drop))?;
            let (layers, rows, work) = (LAYERS as f64, rows as f64, Work::of(&shape));
            let flops = 6.0 * rows * (layers * work.block.multiply_adds + work.ends.multiply_adds);
            let elements = rows * (layers * work.block.elements + work.ends.elements);
            points.push(([layers, flops, elements], seconds));
        }
        let [block, per_flop, per_element] = fit(&points);
        let into = Tensor::zeros([LARGE], DType::F32, self.device)?;
        let other = into.copy()?;
        let sums = self.time(RUNS, &mut || into.add_(&other).map(drop))?;
        let per_byte = sums / (3 * LARGE * DType::F32.size()) as f64;
        for (seconds, what) in [(per_flop, "blocks"), (per_byte, "vectors")] {
            if seconds == 0.0 {
                let m = format!("the {what} that are measured are too small for this device to tell their time");
                let e = Error::new(ErrorKind::Unsupported, "bench", m);
                return Err(e.help("measure again while nothing else runs"));
            }
        }
        let calls = if ranks > 1 { Some(self.calls()?) } else { None };
        let device = device.to_owned();
        Ok(Machine { ranks, device, threads, block, per_flop, per_element, per_byte, calls })
    }

    fn calls(&self) -> Result<Calls> {
        let (comm, ranks, device) = (self.comm, self.comm.size(), self.device);
        let line = |make: &dyn Fn(&Tensor) -> Result<()>| -> Result<Line> {
            let mut points = vec![];
            for (bytes, runs) in SIZES {
                // Ranks have equal parts of it.
                let numbers = (bytes / DType::F32.size()).next_multiple_of(ranks);
                let x = Tensor::zeros([numbers], DType::F32, device)?;
                let bytes = numbers * DType::F32.size();
                points.push(([1.0, bytes as f64], self.time(runs, &mut || make(&x))?));
            }
            let [latency, per_byte] = fit(&points);
            Ok(Line { latency, per_byte })
        };
        // Neighbours in pairs: one sends, one receives.
        let (me, other) = (comm.rank(), comm.rank() ^ 1);
        let send = |x: &Tensor| match (other < ranks, me < other) {
            (false, _) => Ok(()),
            (_, true) => comm.send(x, other),
            (_, false) => comm.receive(x.shape(), x.dtype(), device, other).map(drop),
        };
        Ok(Calls {
            all_reduce: line(&|x| comm.all_reduce_(x, Reduce::Sum))?,
            reduce_scatter: line(&|x| comm.reduce_scatter(x, Reduce::Sum).map(drop))?,
            // The line is of the bytes of the result.
            all_gather: line(&|x| comm.all_gather(&x.narrow(0, 0, x.numel() / ranks)?).map(drop))?,
            send: line(&send)?,
        })
    }

    /// The median time of a training step.
    fn step(&self, shape: &Gpt2Config, rows: usize) -> Result<f64> {
        let model = self.model(shape)?;
        let (tokens, next) = self.batch(shape, rows)?;
        let parallel = DataParallel::with_shards(self.comm.clone(), shards(self.comm.size()))?;
        let mut optimizer = AdamW::new(model.named_parameters(), AdamConfig::default())?;
        let mut step = || {
            let (_, gradients) = parallel.backward(&model, rows, |part| {
                let of = |x: &Tensor| x.narrow(0, part.start, part.len());
                Ok(next_token_loss(&model, &(of(&tokens)?, of(&next)?))?.loss)
            })?;
            optimizer.step(&gradients)
        };
        self.time(STEPS, &mut step)
    }

    /// A model with the same weights on all ranks.
    fn model(&self, shape: &Gpt2Config) -> Result<Gpt2> {
        Gpt2::new(*shape, &mut Init::new(DType::F32, self.device, &mut Generator::new(0)))
    }

    /// Sequences, and what follows each of their tokens.
    fn batch(&self, shape: &Gpt2Config, rows: usize) -> Result<(Tensor, Tensor)> {
        let (most, sizes) = (shape.vocab_size as i64, [rows, shape.n_positions]);
        let draw = |seed| Tensor::randint(0, most, sizes, DType::I64, self.device, &mut Generator::new(seed));
        Ok((draw(1)?, draw(2)?))
    }
}
