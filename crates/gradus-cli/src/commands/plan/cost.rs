//! [`Cost`]: what a step takes on ranks that divide a model in some way.

use super::machine::{Call, Measured};
use super::work::{NUMBER, Part, Work};
use crate::commands::train::SHARDS;

/// How ranks share a model and its batch. The product of the three numbers is the number of ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Ranks with a part of the batch each.
    pub(crate) data: usize,
    /// Ranks with a part of each layer.
    pub(crate) tensor: usize,
    /// Ranks with some of the blocks each.
    pub(crate) pipeline: usize,
    /// What the ranks of `data` divide: 0 nothing, 2 the state of the optimiser, 3 also parameters and gradients.
    pub(crate) zero: u8,
}

/// Bytes that a rank holds at the worst moment of a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Memory {
    pub(crate) parameters: f64,
    /// The sums of gradients, and those of the shard that is computed.
    pub(crate) gradients: f64,
    /// The two moments of Adam.
    pub(crate) optimizer: f64,
    /// Values that the forward pass keeps.
    pub(crate) activations: f64,
}

impl Memory {
    pub(crate) fn all(&self) -> f64 {
        self.parameters + self.gradients + self.optimizer + self.activations
    }
}

/// Seconds of a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Time {
    /// Forward and backward passes.
    pub(crate) passes: f64,
    /// Waiting for the first and the last stage of a pipeline.
    pub(crate) bubble: f64,
    /// Adding gradients, and the step of the optimiser.
    pub(crate) update: f64,
    /// Calls between ranks.
    pub(crate) calls: f64,
}

impl Time {
    pub(crate) fn all(&self) -> f64 {
        self.passes + self.bubble + self.update + self.calls
    }
}

/// What a step takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Cost {
    pub(crate) layout: Layout,
    pub(crate) memory: Memory,
    /// Bytes that a rank sends in a step.
    pub(crate) traffic: f64,
    pub(crate) time: Time,
    /// Whether all of it was measured on as many ranks; otherwise it is extrapolated.
    pub(crate) measured: bool,
}

/// The share of elementwise work, and of the values that are kept, that each rank of a divided layer does for itself:
/// norms and sums of residual branches.
const WHOLE: f64 = 1.0 / 3.0;

/// All ways in which ranks can share this model.
pub(crate) fn layouts(work: &Work, ranks: usize, batch: usize) -> Vec<Layout> {
    let divisors = |n: usize| (1..=n).filter(move |d| n.is_multiple_of(*d));
    let mut all = vec![];
    for data in divisors(ranks).filter(|&data| data <= batch) {
        for tensor in divisors(ranks / data).filter(|&tensor| work.heads.is_multiple_of(tensor)) {
            let pipeline = ranks / data / tensor;
            if pipeline > work.blocks {
                continue;
            }
            let stages: &[u8] = match data {
                1 => &[0],
                // Divided gradients need passes of their own, and so does a pipeline.
                _ if pipeline > 1 => &[0, 1],
                _ if data.is_power_of_two() => &[0, 2, 3],
                _ => &[0, 2],
            };
            all.extend(stages.iter().map(|&zero| Layout { data, tensor, pipeline, zero }));
        }
    }
    all
}

/// The virtual shards of a batch: as many as `gradus train` has, if the ranks can divide them.
pub(crate) fn shards(data: usize) -> usize {
    if SHARDS.is_multiple_of(data) && (SHARDS / data).is_power_of_two() { SHARDS } else { data }
}

/// What a step with `batch` sequences takes. `None` if nothing was measured that could tell.
pub(crate) fn cost(work: &Work, batch: usize, measured: &Measured, layout: Layout) -> Option<Cost> {
    let Layout { data, tensor, pipeline, zero } = layout;
    let ranks = data * tensor * pipeline;
    let (machine, mut exact) = measured.computing(ranks)?;
    let own_shards = shards(data) / data;
    // The passes of a rank, and the sequences in each. With divided parameters all ranks take part in each other's passes,
    // so a pass lasts as long as that of a rank with a sequence, even where most have none.
    let passes = own_shards.min(if zero == 3 { batch } else { batch.div_ceil(data) }) as f64;
    let rows = batch as f64 / data as f64 / passes;
    let rows = if zero == 3 { rows.max(1.0) } else { rows };
    let (d, t) = (data as f64, tensor as f64);
    let divided = WHOLE + (1.0 - WHOLE) / t;
    let blocks = work.blocks.div_ceil(pipeline) as f64;

    let seconds = |part: &Part| {
        let flops = 6.0 * part.multiply_adds * rows / t;
        flops * machine.per_flop + part.elements * rows * divided * machine.per_element
    };
    let ends = seconds(&work.ends);
    let pass = blocks * (machine.block + seconds(&work.block)) + ends;

    let own = (blocks * work.block.parameters + work.ends.parameters) / t;
    // Each shard's gradients are joined, which reads and writes them; each sum of two reads two and writes one.
    let sums = passes * 2.0 + (own_shards as f64 - 1.0) * 3.0;
    // Adam reads four vectors and writes three.
    let stepped = if zero > 0 { own / d } else { own };
    let update = (own * sums + stepped * 7.0) * NUMBER * machine.per_byte;

    let (mut calls, mut traffic) = (0.0, 0.0);
    let mut call = |call: Call, ranks: usize, bytes: f64, times: f64| -> Option<()> {
        if ranks > 1 && times > 0.0 {
            let (line, known) = measured.call(call, ranks)?;
            exact &= known;
            calls += times * line.seconds(bytes);
            traffic += times * bytes * call.sent(ranks);
        }
        Some(())
    };
    let between = work.between * rows * NUMBER;
    // Two sums in the forward and two in the backward pass of a block; one each for the table and the logits.
    call(Call::AllReduce, tensor, between, passes * (4.0 * blocks + 2.0))?;
    if pipeline > 1 {
        call(Call::Send, 2, between, 2.0 * passes)?;
    }
    match zero {
        0 => call(Call::AllReduce, data, own * NUMBER, 1.0)?,
        1 => {
            call(Call::AllReduce, data, own * NUMBER, 1.0)?;
            call(Call::AllGather, data, own * NUMBER, 1.0)?;
        }
        2 => {
            call(Call::ReduceScatter, data, own * NUMBER, 1.0)?;
            call(Call::AllGather, data, own * NUMBER, 1.0)?;
        }
        // Each pass gathers each block for the forward and for the backward pass, and sums its gradients.
        _ => {
            for (part, times) in [(&work.block, blocks), (&work.ends, 1.0)] {
                let bytes = part.parameters / t * NUMBER;
                call(Call::AllGather, data, bytes, 2.0 * times * own_shards as f64)?;
                call(Call::ReduceScatter, data, bytes, times * own_shards as f64)?;
            }
        }
    }

    let held = if zero == 3 { own / d } else { own };
    // The tree of sums keeps one vector for each doubling of the shards; a shard's gradients are there twice when they are
    // joined.
    let levels = f64::from(own_shards.max(1).ilog2());
    let largest = work.block.parameters.max(work.ends.parameters) / t;
    let kept = passes.min(pipeline as f64) * rows * divided;
    let memory = Memory {
        parameters: (held + if zero == 3 { 2.0 * largest } else { 0.0 }) * NUMBER,
        gradients: NUMBER * if zero == 3 { (levels + 1.0) * held + 2.0 * largest } else { (levels + 2.0) * own },
        optimizer: 2.0 * stepped * NUMBER,
        activations: NUMBER * kept * (blocks * work.block.kept + work.ends.kept),
    };
    let bubble = (pipeline as f64 - 1.0) * (pass - ends);
    let time = Time { passes: passes * pass, bubble, update, calls };
    Some(Cost { layout, memory, traffic, time, measured: exact })
}
