//! Layers, compared with naive computations in f64.
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeSet;

use common::{assert_close, device, values, with_init};
use gradus_nn::{
    AvgPool2d, BatchNorm2d, BatchNormConfig, Conv2d, Conv2dConfig, Dropout, Embedding, Flatten, Forward, Gelu,
    Identity, LayerNorm, LayerNormConfig, LeakyRelu, Linear, LogSoftmax, MaxPool2d, Module, MultiheadAttention,
    MultiheadAttentionConfig, Relu, Sequential, Sigmoid, Silu, Softmax, Softplus, Tanh,
};
use gradus_tensor::autograd::{self, gradcheck};
use gradus_tensor::{DType, Generator, Tensor, no_grad_guard};

fn numbers(t: &Tensor) -> Vec<f64> {
    t.to_vec::<f64>().unwrap()
}

#[test]
fn linear_is_a_matrix_product_and_starts_like_pytorch() {
    let device = device();
    let layer = with_init(&device, |init| Linear::new(5, 3, init).unwrap());
    let bias = layer.bias.clone().unwrap();
    let bound = 1.0 / 5f64.sqrt();
    assert!(numbers(&layer.weight).iter().chain(&numbers(&bias)).all(|v| v.abs() <= bound));
    let x = values(&[2, 4, 5], &device);
    let (xs, w, b) = (numbers(&x), numbers(&layer.weight), numbers(&bias));
    let want: Vec<f64> =
        (0..8 * 3).map(|i| b[i % 3] + (0..5).map(|k| xs[i / 3 * 5 + k] * w[i % 3 * 5 + k]).sum::<f64>()).collect();
    let y = layer.forward(&x).unwrap();
    assert_eq!(y.shape(), [2, 4, 3]);
    assert_close(&y, &want);
    assert!(Linear::from_parameters(bias, None).is_err());
}

#[test]
fn conv2d_takes_stride_padding_dilation_and_groups() {
    let device = device();
    let config = Conv2dConfig { stride: [2, 1], padding: [1, 2], dilation: [1, 2], groups: 2, ..Default::default() };
    let layer = with_init(&device, |init| Conv2d::new(4, 6, [3, 2], config, init).unwrap());
    assert_eq!(layer.weight.shape(), [6, 2, 3, 2]);
    let x = values(&[2, 4, 5, 6], &device);
    let y = layer.forward(&x).unwrap();
    let (oh, ow) = ((5 + 2 - 2 - 1) / 2 + 1, 6 + 4 - 2 - 1 + 1);
    assert_eq!(y.shape(), [2, 6, oh, ow]);
    let (xs, w, b) = (numbers(&x), numbers(&layer.weight), numbers(layer.bias.as_deref().unwrap()));
    let mut want = Vec::new();
    for (n, k, i, j) in (0..2 * 6 * oh * ow).map(|i| (i / (6 * oh * ow), i / (oh * ow) % 6, i / ow % oh, i % ow)) {
        let mut sum = b[k];
        for (c, p, q) in (0..2 * 3 * 2).map(|t| (t / 6, t / 2 % 3, t % 2)) {
            let (row, column) = ((i * 2 + p).wrapping_sub(1), (j + q * 2).wrapping_sub(2));
            if row < 5 && column < 6 {
                sum += xs[((n * 4 + k / 3 * 2 + c) * 5 + row) * 6 + column] * w[((k * 2 + c) * 3 + p) * 2 + q];
            }
        }
        want.push(sum);
    }
    assert_close(&y, &want);
}

#[test]
fn batch_norm_normalises_with_the_batch_and_keeps_pytorchs_running_statistics() {
    let device = device();
    let mut norm = with_init(&device, |init| BatchNorm2d::new(3, BatchNormConfig::default(), init).unwrap());
    norm.weight.as_ref().unwrap().set(&values(&[3], &device)).unwrap();
    norm.bias.as_ref().unwrap().set(&values(&[3], &device)).unwrap();
    let affine = numbers(&values(&[3], &device));
    let (mut mean, mut var) = ([0.0; 3], [1.0; 3]);
    for step in 1..=3 {
        let x = values(&[4, 3, 2, 2], &device).mul(step as f64).unwrap().add(0.5).unwrap();
        let xs = numbers(&x);
        let channel = |c: usize| (0..16).map(|i| xs[(i / 4 * 3 + c) * 4 + i % 4]).collect::<Vec<f64>>();
        let moments: Vec<(f64, f64)> = (0..3)
            .map(|c| {
                let v = channel(c);
                let m = v.iter().sum::<f64>() / 16.0;
                (m, v.iter().map(|x| (x - m) * (x - m)).sum::<f64>() / 16.0)
            })
            .collect();
        let want: Vec<f64> = (0..48)
            .map(|i| {
                let c = i / 4 % 3;
                let (m, v) = moments[c];
                (xs[i] - m) / (v + 1e-5).sqrt() * affine[c] + affine[c]
            })
            .collect();
        assert_close(&norm.forward(&x).unwrap(), &want);
        for c in 0..3 {
            mean[c] = 0.9 * mean[c] + 0.1 * moments[c].0;
            var[c] = 0.9 * var[c] + 0.1 * moments[c].1 * 16.0 / 15.0;
        }
        assert_close(&norm.running_mean.as_ref().unwrap().tensor(), &mean);
        assert_close(&norm.running_var.as_ref().unwrap().tensor(), &var);
        assert_eq!(norm.num_batches_tracked.as_ref().unwrap().tensor().to_vec::<i64>().unwrap(), [step]);
    }

    norm.eval();
    let x = values(&[2, 3], &device);
    let xs = numbers(&x);
    let want: Vec<f64> =
        (0..6).map(|i| (xs[i] - mean[i % 3]) / (var[i % 3] + 1e-5).sqrt() * affine[i % 3] + affine[i % 3]).collect();
    assert_close(&norm.forward(&x).unwrap(), &want);
    assert_eq!(norm.num_batches_tracked.as_ref().unwrap().tensor().to_vec::<i64>().unwrap(), [3]);
    assert!(norm.forward(&values(&[2, 4], &device)).is_err());
}

#[test]
fn batch_norm_has_gradients_in_both_modes() {
    let device = device();
    let mut norm = with_init(&device, |init| BatchNorm2d::new(2, BatchNormConfig::default(), init).unwrap());
    let x = values(&[3, 2], &device);
    gradcheck(|x| norm.forward(&x[0]), std::slice::from_ref(&x)).unwrap();
    norm.eval();
    gradcheck(|x| norm.forward(&x[0]), std::slice::from_ref(&x)).unwrap();
    let gradients = norm.forward(&x).unwrap().square().unwrap().sum_all().unwrap().backward().unwrap();
    let g = gradients.get(norm.weight.as_ref().unwrap()).unwrap();
    assert!(numbers(g).iter().all(|g| *g != 0.0));
    // Running statistics are updated outside the graph, even if gradients are disabled.
    norm.train();
    let _guard = no_grad_guard();
    let _ = norm.forward(&x).unwrap();
}

#[test]
fn half_precision_batch_norm_keeps_statistics_in_f32() {
    let device = device();
    let mut generator = Generator::new(0);
    let mut init = gradus_nn::Init::new(DType::BF16, &device, &mut generator);
    let mut norm = BatchNorm2d::new(2, BatchNormConfig::default(), &mut init).unwrap();
    let x = values(&[4, 2], &device).to_dtype(DType::BF16).unwrap();
    assert_eq!(norm.forward(&x).unwrap().dtype(), DType::BF16);
    assert_eq!(norm.running_mean.as_ref().unwrap().tensor().dtype(), DType::F32);
    norm.eval();
    assert_eq!(norm.forward(&x).unwrap().dtype(), DType::BF16);
}

#[test]
fn layer_norm_normalises_trailing_axes() {
    let device = device();
    let norm = with_init(&device, |init| LayerNorm::new([2, 3], LayerNormConfig::default(), init).unwrap());
    let x = values(&[4, 2, 3], &device);
    let want: Vec<f64> = numbers(&x)
        .chunks(6)
        .flat_map(|row| {
            let m = row.iter().sum::<f64>() / 6.0;
            let v = row.iter().map(|x| (x - m) * (x - m)).sum::<f64>() / 6.0;
            row.iter().map(move |x| (x - m) / (v + 1e-5).sqrt()).collect::<Vec<_>>()
        })
        .collect();
    assert_close(&norm.forward(&x).unwrap(), &want);
    assert!(norm.forward(&values(&[3, 2], &device)).is_err());
}

#[test]
fn embedding_looks_up_rows_and_gives_the_padding_row_no_gradient() {
    let device = device();
    let table = with_init(&device, |init| Embedding::new(4, 2, Some(1), init).unwrap());
    let rows = numbers(&table.weight);
    assert_eq!(rows[2..4], [0.0, 0.0]);
    let ids = Tensor::from_vec([3i64, 1, 3], [3], &device).unwrap();
    let y = table.forward(&ids).unwrap();
    assert_close(&y, &[rows[6], rows[7], 0.0, 0.0, rows[6], rows[7]]);
    let gradients = y.sum_all().unwrap().backward().unwrap();
    assert_close(gradients.get(&table.weight).unwrap(), &[0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 2.0, 2.0]);
    assert!(table.forward(&Tensor::from_vec([4i64], [1], &device).unwrap()).is_err());
}

#[test]
fn dropout_depends_on_its_seed_only_and_continues_from_a_saved_state() {
    let device = device();
    let x = Tensor::ones([1000], DType::F32, &device).unwrap();
    let run = |layer: &Dropout| layer.forward(&x).unwrap().to_vec::<f32>().unwrap();
    let layer = Dropout::new(0.25, &mut Generator::new(3)).unwrap();
    let twin = Dropout::new(0.25, &mut Generator::new(3)).unwrap();
    let first = run(&layer);
    assert_eq!(first, run(&twin));
    let kept = first.iter().filter(|v| **v != 0.0).count();
    assert!((700..800).contains(&kept), "{kept}");
    assert!(first.iter().all(|v| *v == 0.0 || (*v - 4.0 / 3.0).abs() < 1e-6));
    let (name, state) = layer.named_random_states().remove(0);
    assert_eq!(name, "random");
    let saved = state.get();
    let second = run(&layer);
    assert_ne!(first, second);
    state.set(saved);
    assert_eq!(run(&layer), second);
}

/// The checkpointed block captures its layers, including their generators.
#[test]
fn dropout_inside_a_checkpoint_drops_the_same_elements_again() {
    let device = device();
    let x = values(&[4, 5], &device).with_grad().unwrap();
    let layer = with_init(&device, |init| Linear::new(5, 5, init).unwrap());
    let (a, b) =
        (Dropout::new(0.5, &mut Generator::new(3)).unwrap(), Dropout::new(0.3, &mut Generator::new(4)).unwrap());
    let block = {
        let (layer, a, b) = (layer.clone(), a.clone(), b.clone());
        move |x: &Tensor| b.forward(&layer.forward(&a.forward(x)?)?.tanh()?)
    };
    let states = || [&a, &b].map(|l| l.named_random_states().remove(0).1.get());
    let start = states();
    let plain = block(&x).unwrap();
    let (after, want) = (states(), plain.square().unwrap().sum_all().unwrap().backward().unwrap());
    for (layer, state) in [&a, &b].into_iter().zip(start) {
        layer.named_random_states().remove(0).1.set(state);
    }
    let (first, second) = (block.clone(), block);
    let y = autograd::checkpoint(move |x| first(&x[0]), &[&x]).unwrap();
    assert_eq!(numbers(&y), numbers(&plain));
    assert_eq!(states(), after);
    // The layers' generators have advanced by the time the block runs again.
    let _ = second(&x).unwrap();
    let before = states();
    assert_ne!(before, after);
    let found = y.square().unwrap().sum_all().unwrap().backward().unwrap();
    for t in [&x, layer.weight.tensor(), layer.bias.as_ref().unwrap().tensor()] {
        assert_eq!(numbers(found.get(t).unwrap()), numbers(want.get(t).unwrap()));
    }
    assert_eq!(states(), before);
}

#[test]
fn batch_norm_inside_a_checkpoint_moves_its_running_statistics_once() {
    let device = device();
    let x = values(&[4, 2, 5, 5], &device).with_grad().unwrap();
    let made = || {
        with_init(&device, |init| {
            let config = Conv2dConfig { padding: [1, 1], ..Conv2dConfig::default() };
            let conv = Conv2d::new(2, 3, [3, 3], config, init).unwrap();
            (conv, BatchNorm2d::new(3, BatchNormConfig::default(), init).unwrap())
        })
    };
    let block = |(conv, norm): &(Conv2d, BatchNorm2d), x: &Tensor| norm.forward(&conv.forward(x)?)?.relu()?.square();
    let statistics = |(_, norm): &(Conv2d, BatchNorm2d)| {
        let count = norm.num_batches_tracked.as_ref().unwrap().tensor().to_vec::<i64>().unwrap();
        (
            numbers(&norm.running_mean.as_ref().unwrap().tensor()),
            numbers(&norm.running_var.as_ref().unwrap().tensor()),
            count,
        )
    };
    let (plain, again) = (made(), made());
    let f = {
        let (inside, block) = (again.clone(), block);
        // Two calls of one layer, the second one in a nested region.
        move |x: &[Tensor]| {
            let inside = inside.clone();
            let y = block(&inside, &x[0])?.narrow(1, 0, 2)?;
            autograd::checkpoint(move |y| block(&inside, &y[0]), &[&y])
        }
    };
    for step in 1..3 {
        let want = block(&plain, &block(&plain, &x).unwrap().narrow(1, 0, 2).unwrap()).unwrap();
        let y = autograd::checkpoint(f.clone(), &[&x]).unwrap();
        assert_eq!(numbers(&y), numbers(&want));
        assert_eq!(statistics(&again), statistics(&plain));
        assert_eq!(statistics(&again).2, [2 * step]);
        let (a, b) = (y.sum_all().unwrap().backward().unwrap(), want.sum_all().unwrap().backward().unwrap());
        assert_eq!(numbers(a.get(&x).unwrap()), numbers(b.get(&x).unwrap()));
        for ((_, p), (_, q)) in again.named_parameters().into_iter().zip(plain.named_parameters()) {
            assert_close(a.get(&p).unwrap(), &numbers(b.get(&q).unwrap()));
        }
        assert_eq!(statistics(&again), statistics(&plain), "the second run moves nothing");
    }
}

#[test]
fn pools_and_flatten_have_their_formulas() {
    let device = device();
    let x = Tensor::from_vec((0..16).map(f64::from).collect::<Vec<_>>(), [1, 1, 4, 4], &device).unwrap();
    let max = MaxPool2d::new([2, 2], [2, 2], [0, 0]).unwrap();
    assert_close(&max.forward(&x).unwrap(), &[5.0, 7.0, 13.0, 15.0]);
    let average = |pad| AvgPool2d::new([3, 3], [3, 3], [1, 1], pad).unwrap().forward(&x).unwrap();
    assert_close(&average(false), &[2.5, 4.5, 10.5, 12.5]);
    assert_close(&average(true), &[10.0 / 9.0, 2.0, 42.0 / 9.0, 50.0 / 9.0]);
    assert_eq!(Flatten::default().forward(&x).unwrap().shape(), [1, 16]);
    assert_close(&Identity.forward(&x).unwrap(), &numbers(&x));
}

#[test]
fn activations_have_their_formulas() {
    let device = device();
    let x = values(&[2, 3], &device);
    let check = |layer: &dyn Forward, f: fn(f64) -> f64| {
        assert_close(&layer.forward(&x).unwrap(), &numbers(&x).into_iter().map(f).collect::<Vec<_>>());
    };
    check(&Relu, |x| x.max(0.0));
    check(&LeakyRelu::default(), |x| if x > 0.0 { x } else { 0.01 * x });
    check(&Sigmoid, |x| 1.0 / (1.0 + (-x).exp()));
    check(&Silu, |x| x / (1.0 + (-x).exp()));
    check(&Tanh, f64::tanh);
    check(&Softplus::default(), |x| x.exp().ln_1p());
    check(&Gelu, |x| 0.5 * x * libm::erfc(-x / 2f64.sqrt()));
    let rows: Vec<f64> = numbers(&x)
        .chunks(3)
        .flat_map(|r| r.iter().map(|x| x.exp() / r.iter().map(|x| x.exp()).sum::<f64>()).collect::<Vec<_>>())
        .collect();
    assert_close(&Softmax { axis: -1 }.forward(&x).unwrap(), &rows);
    assert_close(&LogSoftmax { axis: 1 }.forward(&x).unwrap(), &rows.iter().map(|p| p.ln()).collect::<Vec<_>>());
}

#[test]
fn an_empty_sequential_is_the_identity() {
    let device = device();
    let x = values(&[3], &device);
    let model = Sequential::new();
    assert!(model.is_empty());
    assert_close(&model.forward(&x).unwrap(), &numbers(&x));
}

#[test]
fn impossible_layers_are_refused() {
    let device = device();
    let ok = Conv2dConfig::default();
    with_init(&device, |init| {
        assert!(Conv2d::new(3, 4, [0, 1], ok, init).is_err());
        assert!(Conv2d::new(3, 4, [1, 1], Conv2dConfig { stride: [0, 1], ..ok }, init).is_err());
        assert!(Conv2d::new(3, 4, [1, 1], Conv2dConfig { dilation: [1, 0], ..ok }, init).is_err());
        assert!(Conv2d::new(3, 4, [1, 1], Conv2dConfig { groups: 0, ..ok }, init).is_err());
        assert!(Conv2d::new(3, 4, [1, 1], Conv2dConfig { groups: 3, ..ok }, init).is_err());
        assert!(Conv2d::new(usize::MAX, 4, [2, 2], ok, init).is_err());
        assert!(Linear::new(usize::MAX, 4, init).is_err());
        assert!(Linear::new(0, 4, init).is_ok());
        assert!(BatchNorm2d::new(3, BatchNormConfig { eps: 0.0, ..Default::default() }, init).is_err());
        assert!(BatchNorm2d::new(3, BatchNormConfig { momentum: Some(f64::NAN), ..Default::default() }, init).is_err());
        assert!(LayerNorm::new([], LayerNormConfig::default(), init).is_err());
        assert!(Embedding::new(3, 4, Some(3), init).is_err());
    });
    assert!(Dropout::new(1.5, &mut Generator::new(0)).is_err());
    assert!(MaxPool2d::new([0, 2], [1, 1], [0, 0]).is_err());
    assert!(MaxPool2d::new([2, 2], [1, 1], [2, 0]).is_err());
    assert!(AvgPool2d::new([2, 2], [0, 1], [0, 0], true).is_err());
}

/// The source files of the lines that are recorded in the graph of a tensor.
fn files(y: &Tensor) -> BTreeSet<&'static str> {
    let (mut files, mut stack) = (BTreeSet::new(), vec![y.grad_fn().unwrap().clone()]);
    while let Some(node) = stack.pop() {
        if !node.is_leaf() {
            files.insert(node.location().file());
            stack.extend(node.inputs().flatten().cloned());
        }
    }
    files
}

#[test]
fn layers_record_the_line_that_calls_them() {
    let device = device();
    let x = values(&[2, 4, 8], &device).with_grad().unwrap();
    let config = MultiheadAttentionConfig { dropout: 0.5, ..MultiheadAttentionConfig::default() };
    let attention = with_init(&device, |init| MultiheadAttention::new(8, 2, config, init).unwrap());
    let linear = with_init(&device, |init| Linear::new(8, 8, init).unwrap());
    let norm = with_init(&device, |init| LayerNorm::new([8], LayerNormConfig::default(), init).unwrap());
    let batch_norm = with_init(&device, |init| BatchNorm2d::new(4, BatchNormConfig::default(), init).unwrap());
    let dropout = Dropout::new(0.5, &mut Generator::new(1)).unwrap();
    for y in [
        attention.forward(&x).unwrap(),
        linear.forward(&x).unwrap(),
        norm.forward(&x).unwrap(),
        batch_norm.forward(&x).unwrap(),
        dropout.forward(&x).unwrap(),
        Sequential::new().add(linear.clone()).add(Gelu).forward(&x).unwrap(),
    ] {
        assert_eq!(files(&y), BTreeSet::from([file!()]), "{:?}", y.grad_fn());
    }
}
