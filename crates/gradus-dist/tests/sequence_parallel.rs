//! Parts of a sequence between divided layers, beside one process.
#![allow(clippy::unwrap_used)]

mod common;

use common::{DividedGpt, Gpt, batch, descend, device, near, near_all, off};
use gradus_dist::{ColumnLinear, Options, RowLinear, SequenceParallel, join_sequence, split_sequence, threads};
use gradus_nn::{Dropout, Forward, Init, LayerNorm, LayerNormConfig, Linear, Module, Sequential};
use gradus_tensor::{BackwardOptions, DType, Error, ErrorKind, Generator, Result, Tensor, grad};

#[test]
fn a_gpt_on_parts_of_the_sequence_is_the_whole_one_to_second_order() {
    for sequence in [false, true] {
        threads(2, Options::default(), |comm| {
            let device = device()?;
            let (tokens, targets) = batch(2, &device)?;
            let whole = Gpt::new(DType::F64, 0.0, &device)?;
            let divided = DividedGpt::of(Gpt::new(DType::F64, 0.0, &device)?, sequence, comm)?;
            let (mine, theirs) = (divided.loss(&tokens, &targets)?, whole.loss(&tokens, &targets)?);
            near(&mine, &theirs);
            let first = |loss: &Tensor, leaf: &Tensor| {
                let g = grad(&[loss], &[leaf], None, BackwardOptions::new().create_graph())?;
                g[0].as_ref().unwrap().square()?.sum_all()
            };
            // Gradients of the loss, and of the squared length of its gradient of the positions.
            let second = (first(&mine, &divided.positions)?, first(&theirs, &whole.positions)?);
            near(&second.0, &second.1);
            let all = |loss: &Tensor, parameters: Vec<gradus_nn::Parameter>| {
                let leaves: Vec<&Tensor> = parameters.iter().map(|p| p.tensor()).collect();
                grad(&[loss], &leaves, None, BackwardOptions::new().retain_graph())
            };
            let both = |(mine, theirs): (Tensor, Tensor)| {
                Ok::<_, Error>((all(&mine, divided.parameters())?, all(&theirs, whole.parameters())?))
            };
            for (ours, theirs) in [both((mine, theirs))?, both(second)?] {
                descend(&divided, &ours)?;
                descend(&whole, &theirs)?;
                near_all(&divided.whole()?, &whole, |_| 1e-9);
            }
            Ok(())
        })
        .unwrap();
    }
}

#[test]
fn parts_and_wholes_are_each_others_gradients() {
    threads(3, Options::default(), |comm| {
        let device = device()?;
        let x = Tensor::randn([2, 6, 4], DType::F64, &device, &mut Generator::new(1))?.with_grad()?;
        for axis in [0, 1, -2, -3] {
            let at = if axis < 0 { axis + 3 } else { axis } as usize;
            if x.shape()[at] % 3 != 0 {
                let e = split_sequence(&x, axis, comm).unwrap_err();
                assert!(*e.kind() == ErrorKind::ShapeMismatch && e.message().contains("a sequence of 2"), "{e}");
                continue;
            }
            let part = split_sequence(&x, axis, comm)?;
            near(&part, &x.narrow(axis, 2 * comm.rank(), 2)?);
            assert_eq!(part.storage().bytes(), x.storage().bytes() / 3);
            let again = join_sequence(&part.pow(2.0)?, axis, comm)?;
            near(&again, &x.pow(2.0)?);
            near(again.pow(2.0)?.sum_all()?.backward()?.get(&x).unwrap(), &x.pow(3.0)?.mul(4.0)?);
        }
        for axis in [2, -1, 3, -4] {
            let e = split_sequence(&x, axis, comm).unwrap_err();
            assert!(*e.kind() == ErrorKind::InvalidArgument, "{e}");
            assert!(e.message().contains("not an axis of the sequence"), "{e}");
            assert!(e.location().unwrap().file().ends_with("sequence_parallel.rs"));
        }
        Ok(())
    })
    .unwrap();
}

/// What a graph holds of activations and parameters.
fn held(loss: &Tensor) -> usize {
    loss.graph_stats().saved_bytes
}

#[test]
fn the_graph_of_divided_layers_holds_parts_of_the_sequence() {
    const SHAPE: [usize; 3] = [2, 64, 16];
    threads(4, Options::default(), |comm| {
        let device = device()?;
        let mut rng = Generator::new(2);
        let x = Tensor::randn(SHAPE, DType::F32, &device, &mut rng)?;
        let mut init = Init::new(DType::F32, &device, &mut rng);
        let norm = LayerNorm::new([16], LayerNormConfig::default(), &mut init)?;
        let (up, down) = (Linear::new(16, 64, &mut init)?, Linear::new(64, 16, &mut init)?);
        let (column, row) = (ColumnLinear::of(&up, comm)?, RowLinear::of(&down, comm)?);
        let run = |norm: &dyn Forward, column: &ColumnLinear, row: &RowLinear, x: &Tensor| {
            row.forward(&column.forward(&norm.forward(x)?)?.relu()?)?.square()
        };
        let whole = run(&norm, &column, &row, &x)?;
        let whole_norm = norm.clone();
        let norm = SequenceParallel::of(norm, comm)?;
        let (column, row) = (column.sequence(1), row.sequence(1));
        let part = run(&norm, &column, &row, &split_sequence(&x, 1, comm)?)?;
        let tolerance = 1e-5;
        assert!(off(&join_sequence(&part, 1, comm)?, &whole) < tolerance);
        // Three whole activations become parts: the input of the norm, its output and the output of the pair. What
        // lies between the pair is divided already.
        let bytes = SHAPE.iter().product::<usize>() * 4;
        let statistics = 2 * SHAPE[0] * SHAPE[1] * 4;
        let saved = held(&whole) - held(&part);
        assert!(saved >= 3 * bytes * 3 / 4 && saved <= (3 * bytes + statistics) * 3 / 4, "{saved} of {bytes}");
        drop(whole_norm);
        Ok(())
    })
    .unwrap();
}

#[test]
fn gradients_of_layers_on_parts_are_summed_after_a_change_of_dtype_and_while_frozen() {
    threads(2, Options::default(), |comm| {
        let device = device()?;
        let mut rng = Generator::new(3);
        let x = Tensor::randn([2, 4, 3], DType::F64, &device, &mut rng)?;
        let new = || {
            LayerNorm::new([3], LayerNormConfig::default(), &mut Init::new(DType::F32, &device, &mut Generator::new(1)))
        };
        let (mut whole, mut norm) = (new()?, SequenceParallel::of(new()?, comm)?);
        let both = |whole: &LayerNorm, norm: &SequenceParallel<LayerNorm>, x: &Tensor| -> Result<()> {
            let theirs = whole.forward(x)?.pow(3.0)?.sum_all()?.backward()?;
            let part = split_sequence(x, 1, comm)?;
            let ours = join_sequence(&norm.forward(&part)?, 1, comm)?.pow(3.0)?.sum_all()?.backward()?;
            for (a, b) in norm.parameters().iter().zip(whole.parameters()) {
                match (ours.get(a), theirs.get(&b)) {
                    (Some(a), Some(b)) => assert!(off(a, b) < 1e-4 && off(a, &b.zeros_like()?) > 0.1),
                    (a, b) => assert!(a.is_none() && b.is_none()),
                }
            }
            Ok(())
        };
        both(&whole, &norm, &x.to_dtype(DType::F32)?)?;
        whole.cast_parameters(DType::F64)?;
        norm.cast_parameters(DType::F64)?;
        both(&whole, &norm, &x)?;
        whole.freeze();
        norm.freeze();
        norm.cast_parameters(DType::F32)?;
        whole.cast_parameters(DType::F32)?;
        let _ = norm.forward(&split_sequence(&x.to_dtype(DType::F32)?, 1, comm)?)?;
        assert!(norm.parameters().iter().all(|p| p.is_frozen()));
        whole.unfreeze();
        norm.unfreeze();
        both(&whole, &norm, &x.to_dtype(DType::F32)?)?;
        assert_eq!(norm.to_string(), whole.to_string());
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_layer_goes_on_to_sum_its_gradients_when_a_clone_has_another_dtype() {
    threads(2, Options::default(), |comm| {
        let device = device()?;
        let x = Tensor::randn([2, 4, 3], DType::F32, &device, &mut Generator::new(3))?;
        let new = || {
            LayerNorm::new([3], LayerNormConfig::default(), &mut Init::new(DType::F32, &device, &mut Generator::new(1)))
        };
        let (whole, norm) = (new()?, SequenceParallel::of(new()?, comm)?);
        let mut other = norm.clone();
        let part = split_sequence(&x, 1, comm)?;
        // While both have the same parameters, gradients are summed once.
        for cast in [false, true] {
            if cast {
                other.cast_parameters(DType::F64)?;
                let _ = other.forward(&part.to_dtype(DType::F64)?)?;
            } else {
                let _ = other.forward(&part)?;
            }
            let theirs = whole.forward(&x)?.pow(3.0)?.sum_all()?.backward()?;
            let y = norm.forward(&part)?;
            // What the clone does between the two passes does not matter either.
            let _ = other.forward(&part.to_dtype(other.parameters()[0].dtype())?)?;
            let ours = join_sequence(&y, 1, comm)?.pow(3.0)?.sum_all()?.backward()?;
            for (a, b) in norm.parameters().iter().zip(whole.parameters()) {
                assert!(off(ours.get(a).unwrap(), theirs.get(&b).unwrap()) < 1e-4);
            }
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn dropout_on_parts_drops_other_elements_on_each_rank() {
    let kept = threads(2, Options::default(), |comm| {
        let device = device()?;
        let layer = Sequential::new().add(Dropout::new(0.5, &mut Generator::new(4))?);
        let layer = SequenceParallel::of(layer, comm)?;
        layer.forward(&Tensor::ones([2, 16, 4], DType::F32, &device)?)?.to_vec::<f32>()
    })
    .unwrap();
    assert!(kept[0] != kept[1]);
    assert!(kept.iter().all(|values| values.contains(&0.0) && values.contains(&2.0)));
}

#[test]
fn a_sequence_that_does_not_divide_is_refused_on_all_ranks() {
    threads(2, Options::default(), |comm| {
        let device = device()?;
        let layer = Linear::new(4, 4, &mut Init::new(DType::F32, &device, &mut Generator::new(5)))?;
        let row = RowLinear::of(&layer, comm)?.sequence(1);
        let e = row.forward(&Tensor::zeros([2, 3, 2], DType::F32, &device)?).unwrap_err();
        assert!(*e.kind() == ErrorKind::ShapeMismatch, "{e}");
        assert!(e.to_string().contains("a sequence of 3 does not divide among 2 ranks"), "{e}");
        let column = ColumnLinear::of(&layer, comm)?.sequence(2);
        let e = column.forward(&Tensor::zeros([2, 2, 4], DType::F32, &device)?).unwrap_err();
        assert!(e.message().contains("axis 2 is not an axis of the sequence"), "{e}");
        assert!(e.location().unwrap().file().ends_with("sequence_parallel.rs"));
        Ok(())
    })
    .unwrap();
}
