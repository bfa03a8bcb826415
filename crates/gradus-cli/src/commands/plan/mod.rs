//! `gradus plan`: how ranks should share a model, and what a step would take.

mod cost;
mod machine;
mod work;

use gradus::{Error, Result};
use serde_json::{Value, json};

pub(super) use cost::{Cost, Layout, cost};
pub(super) use machine::{Calls, Line, Machine, Measured, fit};
pub(super) use work::{Work, shape_of, without_dropout};

use crate::args::PlanArgs;
use crate::output::{say, thousands};

/// How many ways to share a model are listed.
const LISTED: usize = 12;

/// Runs the command.
pub(crate) fn run(args: &PlanArgs) -> Result<()> {
    let work = Work::of(&shape_of(&args.model)?);
    let measured = Measured::read(&args.bench)?;
    let all = cost::layouts(&work, args.gpus, args.batch);
    if all.is_empty() {
        let m = format!(
            "{} ranks cannot share {} sequences, {} heads and {} blocks",
            args.gpus, args.batch, work.heads, work.blocks
        );
        return Err(Error::argument("plan", m).help("take a number of ranks with smaller factors, or a larger batch"));
    }
    let costs = all.into_iter().map(|layout| cost(&work, args.batch, &measured, layout)).collect::<Option<Vec<_>>>();
    let Some(mut costs) = costs else {
        let ranks: Vec<usize> = measured.machines.iter().map(|machine| machine.ranks).collect();
        let m = format!("{} has measurements of {ranks:?} ranks only", args.bench.display());
        return Err(Error::argument("plan", m).help("measure calls between ranks too: gradus launch -n 2 -- bench"));
    };
    let fits = |cost: &Cost| cost.memory.all() <= args.memory as f64;
    // The fastest first; what does not fit comes last, the least memory first.
    let key = |cost: &Cost| if fits(cost) { (false, cost.time.all()) } else { (true, cost.memory.all()) };
    costs.sort_by(|a, b| {
        let ((a_late, a), (b_late, b)) = (key(a), key(b));
        a_late.cmp(&b_late).then(a.total_cmp(&b))
    });
    let parameters = thousands(work.parameters() as usize);
    say(&format!(
        "{}: {parameters} parameters, {} blocks; a batch of {} sequences in f32, AdamW, on {} ranks with {} each",
        args.model,
        work.blocks,
        args.batch,
        args.gpus,
        gib(args.memory as f64)
    ))?;
    say("   data  tensor  pipeline  ZeRO      memory   sent a step        step")?;
    for cost in costs.iter().take(LISTED) {
        let Layout { data, tensor, pipeline, zero } = cost.layout;
        say(&format!(
            "{data:>7} {tensor:>7} {pipeline:>9} {:>5} {:>11} {:>13} {:>11}{}{}",
            if zero > 0 { zero.to_string() } else { "-".into() },
            gib(cost.memory.all()),
            gib(cost.traffic),
            time(cost.time.all()),
            if cost.measured { "" } else { "  extrapolated" },
            if fits(cost) { "" } else { "  does not fit" },
        ))?;
    }
    if costs.len() > LISTED {
        say(&format!("and {} other ways", costs.len() - LISTED))?;
    }
    let best = &costs[0];
    if !fits(best) {
        let m = format!("a step needs at least {} on each of {} ranks", gib(best.memory.all()), args.gpus);
        return Err(Error::argument("plan", m).help("take more ranks, a smaller batch, or devices with more memory"));
    }
    let memory = &best.memory;
    say(&format!(
        "memory  {} parameters, {} gradients, {} optimiser, {} values for the backward pass",
        gib(memory.parameters),
        gib(memory.gradients),
        gib(memory.optimizer),
        gib(memory.activations)
    ))?;
    let t = &best.time;
    say(&format!(
        "time    {} passes, {} pipeline bubble, {} sums and optimiser, {} calls between ranks",
        time(t.passes),
        time(t.bubble),
        time(t.update),
        time(t.calls)
    ))?;
    say(&format!("next    {}", next(best, args.gpus)))?;
    if args.json {
        let rows: Vec<Value> = costs.iter().map(|cost| row(cost, fits(cost))).collect();
        let of = json!({ "model": args.model, "parameters": work.parameters(), "ranks": args.gpus, "plans": rows });
        say(&of.to_string())?;
    }
    Ok(())
}

/// How to train so.
fn next(best: &Cost, ranks: usize) -> String {
    let Layout { data, tensor, pipeline, zero } = best.layout;
    if data < ranks {
        return format!(r#"Mesh::new(&comm, [("data", {data}), ("pipeline", {pipeline}), ("tensor", {tensor})])"#);
    }
    let shard = if zero == 3 { " --shard" } else { "" };
    match zero {
        2 => "ShardedOptimizer::new(&parallel, &model, ..)".into(),
        _ => format!("gradus launch -n {ranks} -- train text FILE{shard}"),
    }
}

fn row(cost: &Cost, fits: bool) -> Value {
    let Cost { layout, memory, traffic, time, measured } = cost;
    json!({
        "data": layout.data, "tensor": layout.tensor, "pipeline": layout.pipeline, "zero": layout.zero,
        "fits": fits, "measured": measured, "bytes_sent": traffic,
        "memory_bytes": {
            "all": memory.all(), "parameters": memory.parameters, "gradients": memory.gradients,
            "optimizer": memory.optimizer, "activations": memory.activations,
        },
        "seconds": {
            "all": time.all(), "passes": time.passes, "bubble": time.bubble, "update": time.update,
            "calls": time.calls,
        },
    })
}

/// Bytes as text.
fn gib(bytes: f64) -> String {
    match bytes {
        b if b >= 1e9 => format!("{:.2} GiB", b / f64::from(1 << 30)),
        b => format!("{:.1} MiB", b / f64::from(1 << 20)),
    }
}

/// Seconds as text.
pub(super) fn time(seconds: f64) -> String {
    if seconds >= 1.0 { format!("{seconds:.2} s") } else { format!("{:.2} ms", seconds * 1e3) }
}
