//! Divided layers on a mesh, captured and eager.

use std::ops::Range;

use gradus_dist::{
    ColumnLinear, DataParallel, Mesh, Options, ParallelAttention, ParallelEmbedding, RowLinear, SequenceParallel,
    join_sequence, parallel_cross_entropy, split_sequence, threads,
};
use gradus_graph::capture;
use gradus_nn::{
    AdamConfig, AdamW, CrossEntropyLoss, Embedding, Forward, Init, LayerNorm, LayerNormConfig, Linear, Masks, Module,
    MultiheadAttention, MultiheadAttentionConfig, Optimizer,
};
use gradus_tensor::{Causal, DType, Generator, Result, Tensor};

use crate::device;

#[derive(Module)]
struct Model {
    table: ParallelEmbedding,
    norm: SequenceParallel<LayerNorm>,
    attention: ParallelAttention,
    first: ColumnLinear,
    second: RowLinear,
}

#[test]
fn a_step_on_a_mesh() {
    let trained = |captured: bool| {
        threads(4, Options::default(), |comm| {
            let device = device()?;
            let mesh = Mesh::new(comm, [("data", 2), ("tensor", 2)])?;
            let tensor = mesh.axis("tensor")?;
            let mut rng = Generator::new(7);
            let mut init = Init::new(DType::F32, &device, &mut rng);
            let norm = LayerNorm::new([8], LayerNormConfig::default(), &mut init)?;
            let attention = MultiheadAttention::new(8, 4, MultiheadAttentionConfig::default(), &mut init)?;
            let model = Model {
                table: ParallelEmbedding::of(&Embedding::new(11, 8, None, &mut init)?, &tensor)?,
                norm: SequenceParallel::of(norm, &tensor)?,
                attention: ParallelAttention::of(&attention, &tensor)?,
                first: ColumnLinear::of(&Linear::new(8, 16, &mut init)?, &tensor)?,
                second: RowLinear::of(&Linear::new(16, 8, &mut init)?, &tensor)?,
            };
            let parallel = DataParallel::with_shards(mesh.axis("data")?, 4)?;
            let mut optimizer = AdamW::new(model.named_parameters(), AdamConfig { lr: 0.02, ..AdamConfig::default() })?;
            let mut step = |tokens: &[Tensor]| {
                let loss = |rows: Range<usize>| {
                    let ids = tokens[0].narrow(0, rows.start, rows.len())?;
                    let part = split_sequence(&model.table.forward(&ids)?, 1, &tensor)?;
                    let x = join_sequence(&model.norm.forward(&part)?, 1, &tensor)?;
                    let x = model.attention.attend_with(&x, &x, &x, Masks::causal(Causal::TopLeft))?.add(&x)?;
                    let x = model.second.forward(&model.first.forward(&x)?.relu()?)?.reshape([rows.len() * 6, 8])?;
                    let logits = model.table.head()?.forward(&x)?;
                    let targets = ids.reshape([rows.len() * 6])?;
                    parallel_cross_entropy(&logits, &targets, 11, &tensor, &CrossEntropyLoss::default())
                };
                let (loss, gradients) = parallel.backward(&model, 8, loss)?;
                optimizer.step(&gradients)?;
                Ok(loss)
            };
            let batch = |i: u64| Tensor::randint(0, 11, [8, 6], DType::I64, &device, &mut Generator::new(i));
            let mut bytes = vec![];
            if captured {
                let mut step = capture(step);
                for i in 0..5 {
                    bytes.push(step.call::<Tensor>(&[&batch(i)?])?.to_bytes()?);
                }
                assert_eq!(step.replays(), 2);
            } else {
                for i in 0..5 {
                    bytes.push(step(&[batch(i)?])?.to_bytes()?);
                }
            }
            bytes.extend(model.state_dict()?.iter().map(|(_, tensor)| tensor.to_bytes()).collect::<Result<Vec<_>>>()?);
            Ok(bytes)
        })
        .unwrap()
    };
    assert!(trained(true) == trained(false));
}
