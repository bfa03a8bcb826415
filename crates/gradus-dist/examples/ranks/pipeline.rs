//! Trains a GPT whose parts are divided among the ranks, and gives the hash of its weights, which does not depend on the
//! number of stages.

use std::ops::Range;
use std::sync::Arc;

use gradus_dist::{Communicator, DataParallel, Mesh, Pipeline, Stage};
use gradus_graph::Captured;
use gradus_models::{Gpt2, Gpt2Config};
use gradus_nn::{AdamConfig, AdamW, Init, Module, Optimizer};
use gradus_tensor::{DType, Device, Error, Generator, Result, Tensor};

use super::{EMPTY, hash, line};

const BATCH: usize = 64;
const MICRO_BATCHES: usize = 8;

/// Trains with `pipelines` pipelines, among which the ranks are divided, in `captured` steps or eager ones. If it `fails`, the
/// last step does so in the middle, at the last stage.
pub(crate) fn run(
    comm: &Arc<dyn Communicator>,
    device: &Device,
    steps: usize,
    pipelines: usize,
    captured: bool,
    fails: bool,
) -> Result<String> {
    let stages = comm.size() / pipelines.max(1);
    let mesh = Mesh::new(comm, [("data", pipelines), ("pipe", stages)])?;
    let pipe = mesh.axis("pipe")?;
    let config =
        Gpt2Config { vocab_size: 32, n_positions: 16, n_embd: 32, n_layer: 2, n_head: 2, ..Gpt2Config::default() };
    let parts = config.n_layer + 2;
    let stage = Stage::even(&pipe, parts, |i| {
        let mut generator = Generator::new(7).fork(i as u64);
        Gpt2::part(&config, i, &mut Init::new(DType::F32, device, &mut generator))
    })?;
    let data = DataParallel::with_shards(mesh.axis("data")?, MICRO_BATCHES)?;
    let mut pipeline = Pipeline::with_data(&pipe, &data, device)?;
    pipeline.tie(&stage, ["0.wte.weight", &format!("{}.lm_head.weight", parts - 1)])?;
    let mut optimizer = AdamW::new(stage.named_parameters(), AdamConfig { lr: 0.01, ..AdamConfig::default() })?;
    let mut rng = Generator::new(3);
    let parameters = stage.parameters();
    let mut train = |text: &Tensor, fails: bool| {
        let rows_of = |rows: Range<usize>| text.narrow(0, rows.start, rows.len());
        let input = |rows: Range<usize>| rows_of(rows)?.narrow(1, 0, 16);
        let (loss, mut gradients) = pipeline.backward(&stage, BATCH, input, |logits, rows| {
            if fails && rows.start == BATCH / 2 {
                return Err(Error::argument("loss", "no loss for these rows"));
            }
            let targets = rows_of(rows)?.narrow(1, 1, 16)?;
            logits.reshape([targets.numel(), 32])?.cross_entropy(&targets.reshape([targets.numel()])?)
        })?;
        if captured {
            let _ = pipeline.clip_grad_norm_on_device(&mut gradients, &parameters, 0.3)?;
        } else {
            pipeline.clip_grad_norm(&mut gradients, &parameters, 0.3)?;
        }
        optimizer.step(&gradients).map(|()| loss)
    };
    // The other stages replay the step in which the last one fails.
    let fails = |step: usize| fails && step + 1 == steps && pipe.rank() + 1 == stages;
    let mut last = f64::NAN;
    let mut replayed = Captured::strict();
    for step in 0..steps {
        let text = Tensor::randint(0, 32, [BATCH, 17], DType::I64, device, &mut rng)?;
        let loss = match captured && !fails(step) {
            true => replayed.call(0, &[&text], |x| Ok((vec![train(&x[0], false)?], ())))?.0.pop(),
            false => Some(train(&text, fails(step))?),
        };
        last = loss.map_or(Ok(last), |loss| loss.item())?;
    }
    if captured && replayed.replays() == 0 {
        return Err(Error::argument("ranks", "no step was replayed"));
    }
    // The hash goes on from stage to stage.
    let (rank, last_stage) = (pipe.rank(), stages - 1);
    let mut mine = match rank {
        0 => EMPTY,
        _ => pipe.receive([1], DType::U64, device, rank - 1)?.to_vec::<u64>()?[0],
    };
    for (name, tensor) in stage.state_dict()?.iter() {
        mine = hash(hash(mine, name.as_bytes()), &tensor.to_bytes()?);
    }
    let mine = Tensor::from_vec(vec![mine], [1], device)?;
    if rank < last_stage {
        pipe.send(&mine, rank + 1)?;
    }
    let whole = pipe.broadcast(&mine, last_stage)?;
    let all = comm.all_gather(&whole)?.to_vec::<u64>()?;
    if all.iter().any(|other| *other != all[0]) {
        return Err(Error::argument("ranks", format!("pipelines have different weights: {all:x?}")));
    }
    let mut text = String::new();
    line(&mut text, format_args!("{:016x} loss {last}", all[0]));
    Ok(text)
}
