//! The divided embedding, loss and attention beside whole ones.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;

use common::{descend, device, near, near_all, off};
use gradus_dist::{
    ColumnLinear, Communicator, Options, ParallelAttention, ParallelEmbedding, RowLinear, parallel_cross_entropy,
    split_sequence, threads,
};
use gradus_nn::{
    Buffer, CrossEntropyLoss, Embedding, Forward, Init, KvCache, Linear, Masks, Module, MultiheadAttention,
    MultiheadAttentionConfig, RotaryEmbedding, Strict,
};
use gradus_tensor::{
    BackwardOptions, Causal, DType, Device, ErrorKind, Generator, Reduction, Result, Tensor, autocast, grad, no_grad,
};

fn grads(loss: &Tensor, model: &impl Module) -> Result<Vec<Option<Tensor>>> {
    let parameters = model.parameters();
    grad(
        &[loss],
        &parameters.iter().map(|p| p.tensor()).collect::<Vec<_>>(),
        None,
        BackwardOptions::new().retain_graph(),
    )
}

/// The gradient of the leaf `x`, with a graph.
fn first(loss: &Tensor, x: &Tensor) -> Result<Tensor> {
    Ok(grad(&[loss], &[x], None, BackwardOptions::new().create_graph())?[0].clone().unwrap())
}

#[test]
fn a_divided_embedding_is_the_whole_one() {
    for ranks in [1, 2, 3] {
        threads(ranks, Options::default(), |comm| {
            let device = device()?;
            let mut rng = Generator::new(5);
            let mut init = Init::new(DType::F64, &device, &mut rng);
            let (whole, after) = (Embedding::new(7, 4, Some(4), &mut init)?, Linear::new(4, 3, &mut init)?);
            let divided = ParallelEmbedding::of(&whole, comm)?;
            near_all(&divided.whole()?, &whole, |_| 0.0);
            let scale = Tensor::ones([4], DType::F64, &device)?.with_grad()?;
            for dtype in [DType::I64, DType::I32, DType::U32, DType::U8] {
                let ids = Tensor::from_vec(vec![0i64, 6, 4, 2, 6, 3], [2, 3], &device)?.to_dtype(dtype)?;
                assert_eq!(off(&divided.forward(&ids)?, &whole.forward(&ids)?), 0.0, "a row and zeros");
                // The gradient of the squared length of a gradient reaches the table.
                let second = |rows: Tensor| {
                    let g = first(&after.forward(&rows.mul(&scale)?)?.pow(3.0)?.sum_all()?, &scale)?;
                    g.square()?.sum_all()
                };
                let (ours, theirs) = (second(divided.forward(&ids)?)?, second(whole.forward(&ids)?)?);
                near(&ours, &theirs);
                let (whole, divided) = (copy(&whole)?, copy_divided(&divided, comm)?);
                for (ours, theirs) in [
                    (divided.forward(&ids)?.pow(3.0)?.sum_all()?, whole.forward(&ids)?.pow(3.0)?.sum_all()?),
                    (second(divided.forward(&ids)?)?, second(whole.forward(&ids)?)?),
                ] {
                    let before = whole.weight.values().copy()?;
                    descend(&divided, &grads(&ours, &divided)?)?;
                    descend(&whole, &grads(&theirs, &whole)?)?;
                    near_all(&divided.whole()?, &whole, |_| 1e-9);
                    let moved = off(&before, whole.weight.values());
                    assert!(moved > 1e-3, "{moved}");
                    near(&before.narrow(0, 4, 1)?, &whole.weight.values().narrow(0, 4, 1)?);
                }
            }
            for wrong in [7, -1] {
                let ids = Tensor::from_vec(vec![0i64, wrong], [2], &device)?;
                let (ours, theirs) = (divided.forward(&ids).unwrap_err(), whole.forward(&ids).unwrap_err());
                assert_eq!(*ours.kind(), ErrorKind::IndexOutOfBounds { pos: 1, index: wrong, size: 7 });
                assert_eq!((ours.kind(), ours.message()), (theirs.kind(), theirs.message()));
                assert!(ours.location().unwrap().file().ends_with("divided_layers.rs"));
            }
            Ok(())
        })
        .unwrap();
    }
}

fn copy(whole: &Embedding) -> Result<Embedding> {
    Embedding::from_parameters(gradus_nn::Parameter::new(whole.weight.values().copy()?)?, whole.padding_idx())
}

fn copy_divided(divided: &ParallelEmbedding, comm: &Arc<dyn Communicator>) -> Result<ParallelEmbedding> {
    ParallelEmbedding::of(&divided.whole()?, comm)
}

/// All options of the loss, for classes `[c]`.
fn options(classes: usize, device: &Device) -> Result<Vec<CrossEntropyLoss>> {
    let mut all = vec![];
    for label_smoothing in [0.0, 0.1, 1.0] {
        for ignore_index in [-100, 2] {
            for reduction in [Reduction::Mean, Reduction::Sum, Reduction::None] {
                for weighted in [false, true] {
                    let weight: Vec<f64> = (0..classes).map(|i| 0.5 + i as f64 / 7.0).collect();
                    let weight = Buffer::new(Tensor::from_vec(weight, [classes], device)?)?;
                    let weight = weighted.then_some(weight);
                    all.push(CrossEntropyLoss { weight, ignore_index, label_smoothing, reduction });
                }
            }
        }
    }
    Ok(all)
}

#[test]
fn the_divided_loss_is_the_whole_one_to_second_order() {
    for (ranks, classes) in [(1, 5), (2, 6), (3, 7), (4, 4)] {
        threads(ranks, Options::default(), |comm| {
            let device = device()?;
            let mut rng = Generator::new(6);
            let table = Embedding::new(classes, 3, None, &mut Init::new(DType::F64, &device, &mut rng))?;
            let divided = ParallelEmbedding::of(&table, comm)?;
            let head = divided.head()?;
            // A row whose logits overflow unless the largest is subtracted.
            let scale = Tensor::from_vec(vec![1000.0, 1.0, 1.0, 1.0], [4, 1], &device)?;
            let x = Tensor::randn([4, 3], DType::F64, &device, &mut rng)?.mul(&scale)?.with_grad()?;
            let targets = Tensor::from_vec(vec![0i64, 2, classes as i64 - 1, 1], [4], &device)?;
            for options in options(classes, &device)? {
                let loss = |y: Tensor| y.mul(&Tensor::from_vec(vec![1.0, 2.0, -1.0, 0.5], [4], &device)?)?.sum_all();
                let all = |y: Tensor| if options.reduction == Reduction::None { loss(y) } else { Ok(y) };
                let mine = parallel_cross_entropy(&head.forward(&x)?, &targets, classes, comm, &options)?;
                let theirs = options.forward(&x.linear(&table.weight, None)?, &targets)?;
                near(&mine, &theirs);
                let (mine, theirs) = (all(mine)?, all(theirs)?);
                let (a, b) = (first(&mine, &x)?, first(&theirs, &x)?);
                near(&a, &b);
                let second = |g: &Tensor, w: &Tensor| {
                    let order = grad(&[&g.sin()?.sum_all()?], &[&x, w], None, BackwardOptions::new())?;
                    Ok((order[0].clone().unwrap(), order[1].clone().unwrap()))
                };
                let ((ax, aw), (bx, bw)) = (second(&a, &divided.weight)?, second(&b, &table.weight)?);
                near(&ax, &bx);
                let at = classes * comm.rank() / ranks;
                near(&aw, &bw.narrow(0, at, divided.weight.shape()[0])?);
            }
            Ok(())
        })
        .unwrap();
    }
}

#[test]
fn the_divided_loss_takes_images_half_precision_and_rows_of_nan_that_do_not_count() {
    threads(2, Options::default(), |comm| {
        let device = device()?;
        let mut rng = Generator::new(7);
        let part = |x: &Tensor| x.narrow(1, 3 * comm.rank(), 3)?.copy();
        let options = CrossEntropyLoss { label_smoothing: 0.2, ..CrossEntropyLoss::default() };
        let x = Tensor::randn([2, 6, 5], DType::F32, &device, &mut rng)?;
        let targets = Tensor::from_vec((0..10i64).map(|i| i % 6).collect::<Vec<_>>(), [2, 5], &device)?;
        for dtype in [DType::BF16, DType::F16, DType::F32] {
            let x = x.to_dtype(dtype)?.with_grad()?;
            let mine = part(&x.detach())?.with_grad()?;
            for targets in [targets.clone(), targets.to_dtype(DType::U8)?, targets.to_dtype(DType::U32)?] {
                let ours = parallel_cross_entropy(&mine, &targets, 6, comm, &options)?;
                let theirs = options.forward(&x, &targets)?;
                assert_eq!(ours.dtype(), DType::F32);
                assert!(off(&ours, &theirs) < 1e-6);
                let (a, b) = (ours.backward()?, theirs.backward()?);
                let (a, b) = (a.get(&mine).unwrap(), part(b.get(&x).unwrap())?);
                assert_eq!(a.dtype(), dtype);
                assert!(
                    off(&a.to_dtype(DType::F32)?, &b.to_dtype(DType::F32)?)
                        < 2e-3 / if dtype == DType::F32 { 1e3 } else { 1.0 }
                );
            }
        }
        let x = Tensor::from_vec(vec![f64::NAN, 1.0, 2.0, 3.0], [2, 2], &device)?.with_grad()?;
        let targets = Tensor::from_vec(vec![-100i64, 3], [2], &device)?;
        let loss = parallel_cross_entropy(&x, &targets, 4, comm, &options)?;
        assert!(loss.item()?.is_finite());
        let g = loss.backward()?.get(&x).unwrap().to_vec::<f64>()?;
        assert!(g[0] == 0.0 && g[1] == 0.0 && g[2].is_finite() && g[2] != 0.0, "{g:?}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn bad_logits_and_targets_are_the_errors_of_the_whole_loss() {
    threads(2, Options::default(), |comm| {
        let device = device()?;
        let options = CrossEntropyLoss::default();
        let x = Tensor::zeros([3, 2 + comm.rank()], DType::F32, &device)?;
        let of = |targets: Vec<i64>, classes| {
            let n = targets.len();
            parallel_cross_entropy(&x, &Tensor::from_vec(targets, [n], &device).unwrap(), classes, comm, &options)
                .unwrap_err()
        };
        let e = of(vec![0, 5, 1], 5);
        assert_eq!(*e.kind(), ErrorKind::IndexOutOfBounds { pos: 1, index: 5, size: 5 });
        assert!(e.to_string().contains("parallel_cross_entropy: target 5 at position 1 is outside 5 classes"), "{e}");
        assert_eq!(*of(vec![0, 1], 5).kind(), ErrorKind::ShapeMismatch);
        let e = of(vec![0, 1, 2], 9).to_string();
        let own = if comm.rank() == 0 { "0..4" } else { "4..9" };
        assert!(e.contains(&format!("this rank has the classes {own} of 9")), "{e}");
        // Rank 0 would have none.
        let none = Tensor::zeros([3, comm.rank()], DType::F32, &device)?;
        let targets = Tensor::from_vec(vec![0i64; 3], [3], &device)?;
        let e = parallel_cross_entropy(&none, &targets, 1, comm, &options).unwrap_err();
        assert!(*e.kind() == ErrorKind::ShapeMismatch && e.message().contains("1 classes do not divide"), "{e}");
        let targets = Tensor::from_vec(vec![0i64, 1, 2], [3], &device)?;
        let smooth = CrossEntropyLoss { label_smoothing: 1.5, ..options.clone() };
        let e = parallel_cross_entropy(&x, &targets, 5, comm, &smooth).unwrap_err();
        assert!(e.message().contains("label smoothing is 1.5"), "{e}");
        let e = parallel_cross_entropy(&x, &targets.to_dtype(DType::F32)?, 5, comm, &options).unwrap_err();
        assert!(matches!(e.kind(), ErrorKind::UnsupportedDType), "{e:?}");
        assert!(e.location().unwrap().file().ends_with("divided_layers.rs"));
        Ok(())
    })
    .unwrap();
}

/// Attentions of 4 query heads, and the most ranks that they divide among.
fn attentions(init: &mut Init<'_>) -> Result<Vec<(usize, MultiheadAttention)>> {
    let config = MultiheadAttentionConfig::default();
    let mut new = |config| MultiheadAttention::new(8, 4, config, init);
    Ok(vec![
        (4, new(config)?),
        (4, new(MultiheadAttentionConfig { bias: false, ..config })?.with_rotary(RotaryEmbedding::new(2, 100.0)?)),
        (2, new(MultiheadAttentionConfig { num_kv_heads: Some(2), ..config })?),
        (1, new(MultiheadAttentionConfig { num_kv_heads: Some(1), ..config })?),
        (4, new(MultiheadAttentionConfig { kdim: Some(5), vdim: Some(3), batch_first: false, ..config })?),
        (4, new(MultiheadAttentionConfig { add_bias_kv: true, add_zero_attn: true, ..config })?),
    ])
}

#[test]
fn divided_attention_is_the_whole_one_to_second_order() {
    for ranks in [1, 2, 4] {
        threads(ranks, Options::default(), |comm| {
            let device = device()?;
            let mut rng = Generator::new(8);
            let all = attentions(&mut Init::new(DType::F64, &device, &mut rng))?;
            for (i, (most, whole)) in all.into_iter().enumerate() {
                if ranks > most {
                    let e = ParallelAttention::of(&whole, comm).err().unwrap();
                    assert_eq!(*e.kind(), ErrorKind::InvalidArgument);
                    assert!(e.message().contains(&format!("do not divide among {ranks} ranks")), "{e}");
                    continue;
                }
                // Biases are 0 at first.
                for parameter in whole.parameters() {
                    parameter.set(&Tensor::randn(parameter.shape(), DType::F64, &device, &mut rng)?.mul(0.4)?)?;
                }
                let divided = ParallelAttention::of(&whole, comm)?;
                near_all(&divided.whole()?, &whole, |_| 0.0);
                let names = |m: &dyn Module| {
                    m.named_parameters().into_iter().map(|(name, _)| name).collect::<std::collections::BTreeSet<_>>()
                };
                assert_eq!(names(&divided), names(&whole));
                let widths = if i == 4 { [8, 5, 3] } else { [8; 3] };
                let x = widths
                    .map(|w| Tensor::randn([3, 3, w], DType::F64, &device, &mut rng).unwrap().with_grad().unwrap());
                let [q, k, v] = if i == 4 { [&x[0], &x[1], &x[2]] } else { [&x[0]; 3] };
                let of_heads = Tensor::randn([3, 4, 3, 3], DType::F64, &device, &mut rng)?;
                let keys =
                    Tensor::from_vec(vec![true, true, false, true, true, true, true, false, true], [3, 3], &device)?;
                let tracked = [[3, 4, 3, 3], [3, 1, 3, 3]]
                    .map(|shape| Tensor::randn(shape, DType::F64, &device, &mut rng).unwrap().with_grad().unwrap());
                let of_keys = Tensor::randn([3, 3], DType::F64, &device, &mut rng)?.with_grad()?;
                let masks = [
                    Masks { mask: Some(&tracked[0]), ..Masks::default() },
                    Masks { mask: Some(&tracked[1]), key_mask: Some(&of_keys), causal: Causal::No },
                    Masks::default(),
                    Masks { mask: Some(&of_heads), key_mask: Some(&keys), causal: Causal::No },
                    Masks::causal(Causal::TopLeft),
                ];
                for masks in masks {
                    let (ours, theirs) = (divided.attend_with(q, k, v, masks)?, whole.attend_with(q, k, v, masks)?);
                    near(&ours, &theirs);
                    let (ours, theirs) = (ours.sin()?.sum_all()?, theirs.sin()?.sum_all()?);
                    let (a, b) = (first(&ours, q)?, first(&theirs, q)?);
                    near(&a, &b);
                    let (a, b) = (a.sin()?.sum_all()?, b.sin()?.sum_all()?);
                    near(&first(&a, v)?, &first(&b, v)?);
                    for mask in tracked.iter().chain([&of_keys]) {
                        if [masks.mask, masks.key_mask].into_iter().flatten().any(|used| std::ptr::eq(used, mask)) {
                            near(&first(&ours, mask)?, &first(&theirs, mask)?);
                            near(&first(&a, mask)?, &first(&b, mask)?);
                        }
                    }
                    // Small steps, so that values stay near 1.
                    let small = |gradients: Vec<Option<Tensor>>| -> Result<Vec<_>> {
                        gradients.into_iter().map(|g| g.map(|g| g.mul(1e-2)).transpose()).collect()
                    };
                    let of_first = (small(grads(&ours, &divided)?)?, small(grads(&theirs, &whole)?)?);
                    let of_second = (small(grads(&a, &divided)?)?, small(grads(&b, &whole)?)?);
                    for (ours, theirs) in [of_first, of_second] {
                        descend(&divided, &ours)?;
                        descend(&whole, &theirs)?;
                        near_all(&divided.whole()?, &whole, |_| 1e-9);
                    }
                }
            }
            Ok(())
        })
        .unwrap();
    }
}

#[test]
fn masks_of_another_number_of_heads_are_refused_as_by_the_whole_layer() {
    threads(2, Options::default(), |comm| {
        let device = device()?;
        let mut rng = Generator::new(8);
        let mut init = Init::new(DType::F64, &device, &mut rng);
        let whole = MultiheadAttention::new(8, 4, MultiheadAttentionConfig::default(), &mut init)?;
        let divided = ParallelAttention::of(&whole, comm)?;
        let x = Tensor::randn([3, 5, 8], DType::F64, &device, &mut rng)?;
        // Two heads are as many as a rank has.
        let mask = Tensor::zeros([3, 2, 5, 5], DType::F64, &device)?;
        let masks = Masks { mask: Some(&mask), ..Masks::default() };
        let [ours, theirs] = [divided.attend_with(&x, &x, &x, masks), whole.attend_with(&x, &x, &x, masks)];
        let (ours, theirs) = (ours.unwrap_err(), theirs.unwrap_err());
        assert_eq!((ours.kind(), theirs.kind()), (&ErrorKind::Broadcast, &ErrorKind::Broadcast));
        assert!(ours.message().contains("the mask is for 2 heads"), "{ours}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn under_autocast_divided_layers_have_the_dtypes_of_whole_ones() {
    threads(2, Options::default(), |comm| {
        let device = device()?;
        let mut rng = Generator::new(8);
        let mut init = Init::new(DType::F32, &device, &mut rng);
        let (up, down) = (Linear::new(8, 6, &mut init)?, Linear::new(6, 8, &mut init)?);
        let attention = MultiheadAttention::new(8, 4, MultiheadAttentionConfig::default(), &mut init)?;
        attention.out_proj.bias.as_ref().unwrap().set(&Tensor::ones([8], DType::F32, &device)?)?;
        let x = Tensor::randn([2, 4, 8], DType::F32, &device, &mut rng)?;
        let (column, row) = (ColumnLinear::of(&up, comm)?, RowLinear::of(&down, comm)?);
        let divided = ParallelAttention::of(&attention, comm)?;
        let whole = autocast(DType::BF16, || Ok([down.forward(&up.forward(&x)?)?, attention.forward(&x)?]))?;
        let ours = autocast(DType::BF16, || Ok([row.forward(&column.forward(&x)?)?, divided.forward(&x)?]))?;
        let part = split_sequence(&x, 1, comm)?;
        let (column, row, divided) = (column.sequence(1), row.sequence(1), divided.sequence(1));
        let parts = autocast(DType::BF16, || Ok([row.forward(&column.forward(&part)?)?, divided.forward(&part)?]))?;
        let biases = [row.linear.bias.as_ref(), divided.bias.as_ref()];
        for (((whole, ours), part), bias) in whole.iter().zip(&ours).zip(&parts).zip(biases) {
            assert_eq!([whole.dtype(), ours.dtype(), part.dtype()], [DType::BF16; 3]);
            assert!(off(whole, ours) < 0.05 && off(&split_sequence(whole, 1, comm)?, part) < 0.05);
            assert_eq!(ours.sum_all()?.backward()?.get(bias.unwrap()).unwrap().dtype(), DType::F32);
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn divided_attention_decodes_as_the_whole_one_and_drops_other_numbers_on_each_rank() {
    let drawn = threads(2, Options::default(), |comm| {
        let device = device()?;
        let mut rng = Generator::new(9);
        let config = MultiheadAttentionConfig { dropout: 0.5, ..Default::default() };
        let whole = MultiheadAttention::new(8, 4, config, &mut Init::new(DType::F64, &device, &mut rng))?;
        let mut divided = ParallelAttention::of(&whole, comm)?;
        let x = Tensor::randn([2, 3, 8], DType::F64, &device, &mut rng)?;
        let (a, b) = (divided.forward(&x)?, divided.forward(&x)?);
        assert!(off(&a, &b) > 1e-3);
        let [states, theirs] = [&divided as &dyn Module, &whole].map(|m| m.named_random_states());
        assert_eq!((states.len(), &states[0].0), (1, &theirs[0].0));

        divided.eval();
        let mut whole = whole;
        whole.eval();
        let (mut ours, mut theirs) = (KvCache::new(), KvCache::new());
        no_grad(|| {
            for at in 0..3 {
                let one = x.narrow(1, at, 1)?;
                let masks = Masks::default();
                near(&divided.decode(&one, &mut ours, masks)?, &whole.decode(&one, &mut theirs, masks)?);
            }
            Ok(())
        })?;
        // The same output on both ranks, from other numbers.
        Ok((a.to_vec::<f64>()?, states[0].1.get().seed()))
    })
    .unwrap();
    assert!(drawn[0].0 == drawn[1].0 && drawn[0].1 != drawn[1].1);
}

#[test]
fn a_state_of_divided_layers_is_gathered_and_loads_on_another_number_of_ranks() {
    let device = device().unwrap();
    let mut rng = Generator::new(10);
    let mut init = Init::new(DType::F32, &device, &mut rng);
    let first = Linear::new(6, 12, &mut init).unwrap();
    let second = Linear::new(12, 5, &mut init).unwrap();
    first.weight.freeze();
    let (whole_first, whole_second) = (first.state_dict().unwrap(), second.state_dict().unwrap());
    let mut state = (whole_first.clone(), whole_second.clone());
    for ranks in [4, 3, 1, 2] {
        let (first, second, state_then) = (&first, &second, &state);
        state = threads(ranks, Options::default(), move |comm| {
            // Layers that a model already has, with other values, take a whole state by a whole layer.
            let load = |like: &Linear, state| {
                let mut whole = Linear::from_parameters(
                    gradus_nn::Parameter::new(like.weight.values().zeros_like()?)?,
                    Some(gradus_nn::Parameter::new(like.bias.as_ref().unwrap().values().zeros_like()?)?),
                )?;
                whole.load_state_dict(state, Strict::Yes).map(|_| whole)
            };
            let (mut column, mut row) = (ColumnLinear::of(first, comm)?, RowLinear::of(second, comm)?);
            let frozen = column.whole()?;
            assert!(frozen.weight.is_frozen() && !frozen.bias.as_ref().unwrap().is_frozen());
            let part = ColumnLinear::of(&load(first, &state_then.0)?, comm)?.state_dict()?;
            column.load_state_dict(&part, Strict::Yes)?;
            let part = RowLinear::of(&load(second, &state_then.1)?, comm)?.state_dict()?;
            row.load_state_dict(&part, Strict::Yes)?;
            Ok((column.whole()?.state_dict()?, row.whole()?.state_dict()?))
        })
        .unwrap()
        .swap_remove(0);
    }
    for (now, then) in [(&state.0, &whole_first), (&state.1, &whole_second)] {
        for (name, tensor) in then.iter() {
            assert_eq!(now.get(name).unwrap().to_bytes().unwrap(), tensor.to_bytes().unwrap(), "{name}");
        }
    }
}
