//! Every differentiable operation, compared with finite differences: first and second order, in f64, with strided,
//! flipped, expanded and broadcast inputs.
#![allow(clippy::unwrap_used)]

mod common;

use common::{both, cpu, f64s, i64s, layouts, randn};
use gradus_tensor::autograd::{gradcheck, gradgradcheck};
use gradus_tensor::ops::table::{Entry, TABLE};
use gradus_tensor::{ConvOptions, Error, Generator, PoolOptions, Reduction, Result, Tensor};

/// Checks an operation with one input, in every layout of `shape`.
fn unary(shape: &[usize], f: impl Fn(&Tensor) -> Result<Tensor>) {
    for x in layouts(shape, 1) {
        both(|x| f(&x[0]), &[x]);
    }
}

fn call(entry: &Entry, condition: Option<&Tensor>, x: &[Tensor]) -> Result<Tensor> {
    let operands: Vec<Tensor> = condition.into_iter().chain(x).cloned().collect();
    Ok((entry.call)(&operands)?.remove(0))
}

#[test]
fn every_elementwise_operation_at_its_smooth_points() {
    let mut checked = 0;
    for entry in TABLE.iter().filter(|e| !e.smooth.is_empty()) {
        let s = entry.smooth;
        let n = s.len();
        let mask = Tensor::from_vec((0..n * n).map(|i| i % 3 == 0).collect::<Vec<_>>(), [n, n], &cpu()).unwrap();
        let condition = entry.condition.then_some(&mask);
        let tensors = entry.tensors - usize::from(entry.condition);
        // A column and a row together test all pairs of points, and broadcasting. The row is shifted so that no pair is
        // a tie.
        let column = f64s(s, &[n, 1]);
        let row = f64s(&s.iter().map(|v| v * 1.07 + 0.013).collect::<Vec<_>>(), &[n]);
        let inputs: Vec<Tensor> = if tensors == 1 {
            vec![f64s(s, &[n]).flip(0).unwrap().unsqueeze(0).unwrap().expand([n, n]).unwrap()]
        } else {
            vec![column, row]
        };
        let f = |x: &[Tensor]| call(entry, condition, x);
        gradcheck(f, &inputs).unwrap_or_else(|e| panic!("{}: {e}", entry.op.name()));
        gradgradcheck(f, &inputs).unwrap_or_else(|e| panic!("{}: {e}", entry.op.name()));
        checked += 1;
    }
    assert!(checked >= 30, "{checked}");
}

#[test]
fn operations_without_slope_pass_no_gradient() {
    for name in ["sign", "floor", "ceil", "round", "trunc"] {
        let entry = TABLE.iter().find(|e| e.op.name() == name).unwrap();
        let x = f64s(&[0.3, -1.7], &[2]).with_grad().unwrap();
        let y = call(entry, None, std::slice::from_ref(&x)).unwrap().add(&x).unwrap();
        let g = y.sum_all().unwrap().backward().unwrap();
        assert_eq!(g.get(&x).unwrap().to_vec::<f64>().unwrap(), [1.0, 1.0], "{name}");
    }
}

#[test]
fn slopes_at_kinks_are_the_documented_ones() {
    let slope = |f: &dyn Fn(&Tensor) -> Result<Tensor>, at: f64| -> f64 {
        let x = f64s(&[at], &[1]).with_grad().unwrap();
        f(&x).unwrap().sum_all().unwrap().backward().unwrap().get(&x).unwrap().item().unwrap()
    };
    assert_eq!(slope(&|x| x.abs(), 0.0), 0.0);
    assert_eq!(slope(&|x| x.relu(), 0.0), 0.0);
    assert_eq!(slope(&|x| x.relu(), -0.0), 0.0);
    assert_eq!(slope(&|x| x.leaky_relu(0.25), 0.0), 0.25);
    assert_eq!(slope(&|x| x.clamp(-1.0, 1.0), 1.0), 1.0);
    assert_eq!(slope(&|x| x.clamp(-1.0, 1.0), 1.5), 0.0);
    assert_eq!(slope(&|x| x.maximum(2.0), 2.0), 0.5);
    assert_eq!(slope(&|x| x.sqrt(), 0.0), f64::INFINITY);
    assert_eq!(slope(&|x| x.gelu_tanh(), 1e300), 1.0);
    assert_eq!(slope(&|x| x.gelu(), f64::INFINITY), 1.0);
    assert_eq!(slope(&|x| x.silu(), f64::INFINITY), 1.0);
    assert_eq!(slope(&|x| x.silu(), f64::NEG_INFINITY), 0.0);
    let x = f64s(&[3.0, 1.0, 3.0], &[3]).with_grad().unwrap();
    let g = x.max_all().unwrap().backward().unwrap();
    assert_eq!(g.get(&x).unwrap().to_vec::<f64>().unwrap(), [0.5, 0.0, 0.5]);
}

#[test]
fn reductions() {
    unary(&[3, 2, 4], |x| x.sum(&[0, 2], false));
    unary(&[3, 2, 4], |x| x.mean(&[1], true));
    unary(&[3, 2, 4], |x| x.sum_all());
    // All layouts except the broadcast one, in which all elements tie.
    for x in &layouts(&[3, 4], 1)[..4] {
        both(|x| x[0].max(&[1], false), std::slice::from_ref(x));
        both(|x| x[0].min(&[0], true), std::slice::from_ref(x));
    }
    unary(&[3, 4], |x| x.var(&[1], 1, false));
}

#[test]
fn matrix_products_of_every_rank() {
    for (a, b) in [
        (&[3, 4][..], &[4, 2][..]),
        (&[2, 3, 4], &[4, 2]),
        (&[2, 3, 4], &[2, 4, 2]),
        (&[2, 1, 3, 4], &[3, 4, 2]),
        (&[4], &[4, 2]),
        (&[3, 4], &[4]),
        (&[4], &[4]),
    ] {
        both(|x| x[0].matmul(&x[1]), &[randn(a, 1), randn(b, 2)]);
    }
    let b = randn(&[2, 4], 3).t().unwrap();
    for a in layouts(&[3, 4], 1) {
        both(|x| x[0].matmul(&x[1]), &[a, b.clone()]);
    }
    both(|x| x[0].linear(&x[1], Some(&x[2])), &[randn(&[2, 3, 4], 1), randn(&[5, 4], 2), randn(&[5], 3)]);
    both(|x| x[0].linear(&x[1], None), &[randn(&[3, 4], 1), randn(&[5, 4], 2)]);
}

#[test]
fn convolutions_with_stride_padding_dilation_and_groups() {
    for (stride, padding, dilation, groups) in
        [([1, 1], [0, 0], [1, 1], 1), ([2, 1], [1, 2], [1, 1], 1), ([1, 2], [2, 1], [2, 1], 2)]
    {
        let options = ConvOptions::new().stride(stride).padding(padding).dilation(dilation).groups(groups);
        let inputs = [randn(&[2, 4, 5, 6], 1), randn(&[2, 4 / groups, 3, 2], 2), randn(&[2], 3)];
        both(|x| x[0].conv2d(&x[1], Some(&x[2]), options), &inputs);
    }
    let x = randn(&[2, 5, 4, 3], 1).permute(&[0, 3, 2, 1]).unwrap();
    both(|x| x[0].conv2d(&x[1], None, ConvOptions::new().padding([1, 1])), &[x, randn(&[2, 3, 3, 3], 2)]);
}

#[test]
fn pooling_with_overlap_and_padding() {
    unary(&[2, 2, 5, 5], |x| x.max_pool2d([3, 3], PoolOptions::new().stride([2, 2]).padding([1, 1])));
    unary(&[2, 2, 5, 5], |x| x.max_pool2d([2, 2], PoolOptions::new().stride([1, 1])));
    unary(&[2, 2, 5, 5], |x| x.avg_pool2d([3, 2], PoolOptions::new().stride([2, 1]).padding([1, 1]), true));
    unary(&[2, 2, 5, 5], |x| x.avg_pool2d([3, 2], PoolOptions::new().stride([2, 1]).padding([1, 1]), false));
}

#[test]
fn softmax_on_any_axis() {
    for axis in [0, 1, -1] {
        unary(&[3, 4, 2], |x| x.softmax(axis));
        unary(&[3, 4, 2], |x| x.log_softmax(axis));
    }
}

#[test]
fn normalisation() {
    for x in layouts(&[3, 4, 2], 1) {
        let (w, b) = (randn(&[4, 2], 2), randn(&[4, 2], 3));
        both(|x| x[0].layer_norm(&[4, 2], Some(&x[1]), Some(&x[2]), 1e-5), &[x.clone(), w, b]);
        both(|x| x[0].layer_norm(&[2], None, None, 1e-2), std::slice::from_ref(&x));
        let (w, b) = (randn(&[4], 2), randn(&[4], 3));
        both(|x| Ok(x[0].batch_norm(Some(&x[1]), Some(&x[2]), 1e-5)?.0), &[x.clone(), w.clone(), b.clone()]);
        both(|x| Ok(x[0].batch_norm(None, None, 1e-5)?.0), std::slice::from_ref(&x));
        let (mean, var) = (randn(&[4], 4), randn(&[4], 5).square().unwrap().add(0.5).unwrap());
        both(|x| x[0].batch_norm_eval(&x[1], &x[2], Some(&x[3]), Some(&x[4]), 1e-5), &[x, mean, var, w, b]);
    }
}

#[test]
fn losses() {
    let target = i64s(&[2, 0, -100, 3], &[4]);
    for reduction in [Reduction::None, Reduction::Mean, Reduction::Sum] {
        for smoothing in [0.0, 0.2] {
            unary(&[4, 5], |x| x.cross_entropy_with(&target, None, Some(-100), smoothing, reduction));
        }
        both(|x| x[0].mse_loss(&x[1], reduction), &[randn(&[3, 2], 1), randn(&[3, 2], 2)]);
    }
    let target = i64s(&[2, 0, 1, 1, 0, 2], &[2, 3]);
    unary(&[2, 3, 3], |x| x.cross_entropy(&target));
}

#[test]
fn indexing_with_repeated_indices() {
    let index = i64s(&[2, 0, 2, 1, 2], &[5]);
    unary(&[3, 4], |x| x.index_select(0, &index));
    let index = i64s(&[0, 2, 2, 1, 1, 1, 0, 0], &[2, 4]);
    unary(&[3, 4], |x| x.gather(0, &index));
    both(|x| x[0].scatter_add(0, &index, &x[1]), &[randn(&[3, 4], 1), randn(&[2, 4], 2)]);
    let index = i64s(&[1, 0, 3, 1, 1, 2], &[2, 3]);
    unary(&[4, 3], |x| x.embedding(&index, None));
    // The padding row has no gradient by definition, so it is left out of the comparison.
    let weight = |x: &Tensor| -> Result<Tensor> { Tensor::cat(&[&randn(&[1, 2], 5), x], 0) };
    unary(&[3, 2], |x| weight(x)?.embedding(&index, Some(0)));
}

#[test]
fn padding_row_of_an_embedding_gets_no_gradient() {
    let weight = randn(&[3, 2], 1).with_grad().unwrap();
    let y = weight.embedding(&i64s(&[1, 0, 1], &[3]), Some(1)).unwrap();
    let g = y.sum_all().unwrap().backward().unwrap();
    assert_eq!(g.get(&weight).unwrap().to_vec::<f64>().unwrap(), [1.0, 1.0, 0.0, 0.0, 0.0, 0.0]);
}

#[test]
fn movement_and_parts() {
    unary(&[2, 3, 4], |x| x.reshape([6, 4]));
    unary(&[2, 3, 4], |x| x.flatten(1, -1));
    unary(&[2, 3, 4], |x| x.permute(&[2, 0, 1]));
    unary(&[2, 3, 4], |x| x.transpose(0, 2)?.contiguous());
    unary(&[2, 3, 4], |x| x.flip(1));
    unary(&[2, 3, 4], |x| x.slice(2, 1, 4, 2));
    unary(&[2, 3, 4], |x| x.narrow(1, 1, 2));
    unary(&[2, 3, 4], |x| x.select(1, -1));
    unary(&[2, 3, 4], |x| x.unsqueeze(1)?.squeeze(1));
    unary(&[2, 1, 4], |x| x.expand([3, 2, 5, 4]));
    unary(&[2, 3], |x| x.copy());
    both(|x| Tensor::cat(&[&x[0], &x[1], &x[0]], 1), &[randn(&[2, 3], 1), randn(&[2, 1], 2)]);
    both(|x| Tensor::stack(&[&x[0], &x[1]], -1), &[randn(&[2, 3], 1), randn(&[2, 3], 2)]);
}

#[test]
fn dropout_with_one_mask() {
    for p in [0.0, 0.4, 1.0] {
        unary(&[4, 5], |x| x.dropout(p, &mut Generator::new(3)));
    }
}

#[test]
fn tensors_of_no_elements() {
    for shape in [&[0, 3][..], &[2, 0]] {
        let x = randn(shape, 1);
        both(|x| x[0].mul(&x[0])?.exp()?.sum_all(), std::slice::from_ref(&x));
        both(|x| x[0].softmax(-1), std::slice::from_ref(&x));
        both(|x| x[0].sum(&[0], false), std::slice::from_ref(&x));
    }
    both(|x| x[0].matmul(&x[1]), &[randn(&[2, 0], 1), randn(&[0, 3], 1)]);
    both(|x| x[0].conv2d(&x[1], None, ConvOptions::new()), &[randn(&[0, 1, 3, 3], 1), randn(&[2, 1, 2, 2], 1)]);
}

#[test]
fn a_wrong_gradient_is_found() {
    // Detaching one factor halves the gradient of the square, and the check must notice it.
    let f = |x: &[Tensor]| x[0].mul(x[0].detach());
    let e: Error = gradcheck(f, &[randn(&[3], 1)]).unwrap_err();
    assert!(e.to_string().contains("finite differences"), "{e}");
    let f = |x: &[Tensor]| x[0].square()?.mul(x[0].detach());
    assert!(gradgradcheck(f, &[randn(&[3], 1)]).is_err());
}
