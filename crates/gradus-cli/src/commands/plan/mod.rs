//! `gradus plan`: how ranks should share a model, and what a step would take.

mod cost;
mod machine;
mod work;

use gradus::{Error, Result};
use serde_json::{Value, json};

pub(super) use cost::{Cost, Layout, cost, shards};
pub(super) use machine::{Calls, Line, Machine, Measured, fit};
use work::model_of;
pub(super) use work::{Work, shape_of, without_dropout};

use super::train::SHARDS;
use crate::args::PlanArgs;
use crate::output::{say, thousands};

/// How many ways to share a model are listed.
const LISTED: usize = 12;

/// Runs the command.
pub(crate) fn run(args: &PlanArgs) -> Result<()> {
    let (shape, options) = model_of(&args.model)?;
    let work = Work::of(&shape);
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
    say(&format!("next    {}", next(best.layout, args.batch, options.as_deref()).join("\n        ")))?;
    if args.json {
        let rows: Vec<Value> = costs.iter().map(|cost| row(cost, fits(cost))).collect();
        let of = json!({ "model": args.model, "parameters": work.parameters(), "ranks": args.gpus, "plans": rows });
        say(&of.to_string())?;
    }
    Ok(())
}

/// How to train so: a command if there is one for it, which takes the options of a saved model, or else the calls.
fn next(layout: Layout, batch: usize, options: Option<&str>) -> Vec<String> {
    let Layout { data, tensor, pipeline, zero } = layout;
    let is_data_alone = tensor == 1 && pipeline == 1;
    if let Some(options) = options
        && is_data_alone
        && zero != 2
        && SHARDS.is_multiple_of(data)
    {
        let shard = if zero == 3 { " --shard" } else { "" };
        let command = format!("gradus launch -n {data} -- train text FILE {options} --batch-size {batch}{shard}");
        return vec![command];
    }
    let mut lines = vec![];
    let of = |axis: &str| if is_data_alone { "comm".into() } else { format!(r#"mesh.axis("{axis}")?"#) };
    if !is_data_alone {
        let axes = format!(r#"[("data", {data}), ("pipeline", {pipeline}), ("tensor", {tensor})]"#);
        lines.push(format!("let mesh = Mesh::new(&comm, {axes})?;"));
    }
    if tensor > 1 {
        // The head of a pipeline has a weight of its own.
        lines.push(r#"let classes = [("wte.weight", Split::Classes), ("lm_head.weight", Split::Classes)];"#.into());
        lines.push("let plan = [&classes[..], Gpt2::TENSOR_PARALLEL].concat();".into());
        let model = if pipeline > 1 { "part" } else { "model" };
        lines.push(format!("divide(&mut {model}, &plan, &{})?;", of("tensor")));
    }
    lines.push(format!("let parallel = DataParallel::with_shards({}, {})?;", of("data"), shards(data)));
    if pipeline > 1 {
        lines.push(format!("let pipeline = Pipeline::with_data(&{}, &parallel, &device)?;", of("pipeline")));
    }
    match zero {
        0 => {}
        1 => {
            lines.push("let mut optimizer = ShardedOptimizer::new(&parallel, &stage, adam)?;".into());
            lines.push("optimizer.step_with(&stage, &gradients)?; // those of pipeline.backward".into());
        }
        2 => lines.push("let mut optimizer = ShardedOptimizer::new(&parallel, &model, adam)?;".into()),
        _ => lines.push("let mut optimizer = ShardedOptimizer::fully_sharded(&parallel, &model, adam)?;".into()),
    }
    lines
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_next_can_be_called() {
        let of = |[data, tensor, pipeline]: [usize; 3], zero, options| {
            next(Layout { data, tensor, pipeline, zero }, 32, options)
        };
        let small = Some("--layers 2");
        let command = "gradus launch -n 4 -- train text FILE --layers 2 --batch-size 32";
        assert_eq!(of([4, 1, 1], 0, small), [command]);
        assert_eq!(of([4, 1, 1], 3, small), [format!("{command} --shard")]);
        // `launch` starts at most 16 ranks, and does not train a model that has a name.
        assert_eq!(of([6, 1, 1], 0, small), ["let parallel = DataParallel::with_shards(comm, 6)?;"]);
        assert_eq!(of([32, 1, 1], 0, small), ["let parallel = DataParallel::with_shards(comm, 32)?;"]);
        assert_eq!(of([4, 1, 1], 0, None), ["let parallel = DataParallel::with_shards(comm, 16)?;"]);
        for (zero, call) in [(2, "ShardedOptimizer::new("), (3, "ShardedOptimizer::fully_sharded(")] {
            assert!(of([4, 1, 1], zero, None)[1].contains(call));
        }
        let divided = of([2, 2, 3], 0, small).join("\n");
        for said in [
            r#"Mesh::new(&comm, [("data", 2), ("pipeline", 3), ("tensor", 2)])?"#,
            r#"("lm_head.weight", Split::Classes)"#,
            r#"divide(&mut part, &plan, &mesh.axis("tensor")?)?"#,
            r#"DataParallel::with_shards(mesh.axis("data")?, 16)?"#,
            r#"Pipeline::with_data(&mesh.axis("pipeline")?, &parallel, &device)?"#,
        ] {
            assert!(divided.contains(said), "{divided}");
        }
        assert!(of([2, 2, 3], 1, small).join("\n").contains("step_with(&stage, &gradients)"));
    }
}
