//! Names that mean something different in Gradus than in the five sources. They are the rows of "Porting" in
//! `docs/sources.md`.
#![cfg(feature = "cpu")]
#![allow(clippy::unwrap_used, clippy::float_cmp)]

use gradus::image::{Border, gaussian_blur, sobel};
use gradus::prelude::*;
use gradus::{Gemm, Scalar};

fn f64s(values: &[f64], shape: &[usize]) -> Tensor {
    Tensor::from_vec(values, shape, &Device::cpu().unwrap()).unwrap()
}

fn numbers(t: Result<Tensor>) -> Vec<f64> {
    t.unwrap().to_vec().unwrap()
}

/// `0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))`, as S0, S2 and S4 compute it.
fn tanh_form(x: f64) -> f64 {
    0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
}

#[test]
fn gelu_is_exact_and_the_tanh_form_has_a_name() {
    let (x, b) = (f64s(&[0.7, -1.5], &[2]), f64s(&[2.0, 3.0], &[2]));
    let want = [tanh_form(0.7), tanh_form(-1.5)];
    let near = |got: Vec<f64>, want: [f64; 2]| got.iter().zip(want).all(|(g, w)| (g - w).abs() < 1e-12);
    assert!(near(numbers(x.gelu_tanh()), want) && !near(numbers(x.gelu()), want));
    let product = [2.0 * want[0], 3.0 * want[1]];
    assert!(near(numbers(x.gelu_tanh_mul(&b)), product) && !near(numbers(x.gelu_mul(&b)), product));
}

#[test]
fn fused_products_broadcast() {
    let (a, b) = (f64s(&[1.0, -2.0], &[2, 1]), f64s(&[3.0, 4.0, 5.0], &[3]));
    assert_eq!(numbers(a.relu_mul(&b)), [3.0, 4.0, 5.0, 0.0, 0.0, 0.0]);
}

#[test]
fn matrices_are_row_major_and_column_major_ones_change_places() {
    // The matrices are stored column by column: A = [[1, 3, 5], [2, 4, 6]], B = [[1, 0], [0, 1], [2, 3]].
    let (a, b) = (f64s(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[6]), f64s(&[1.0, 0.0, 2.0, 0.0, 1.0, 3.0], &[6]));
    let (m, n, k) = (2, 2, 3);
    // C = A B stored column by column is C^T = B^T A^T stored row by row.
    assert_eq!(numbers(Gemm::new(n, m, k).run(&b, &a, None)), [11.0, 14.0, 18.0, 22.0]);
    // An operand that is transposed stays transposed in its new place. Here B is given as B^T, stored column by column.
    let bt = f64s(&[1.0, 0.0, 0.0, 1.0, 2.0, 3.0], &[6]);
    assert_eq!(numbers(Gemm::new(n, m, k).trans_a(true).run(&bt, &a, None)), [11.0, 14.0, 18.0, 22.0]);
}

#[test]
fn distances_between_matrices_are_in_elements() {
    let (a, b) = (f64s(&[1.0, 2.0, 3.0], &[3]), f64s(&[10.0, 20.0, 30.0], &[3]));
    assert_eq!(numbers(Gemm::new(1, 1, 1).strided_batched(3, 1, 1, 1).run(&a, &b, None)), [10.0, 40.0, 90.0]);
}

#[test]
fn the_weight_of_linear_is_out_by_in() {
    let x = f64s(&[1.0, 2.0], &[1, 2]);
    let (weight, bias) = (f64s(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3]), f64s(&[0.5; 3], &[3]));
    let theirs = (x.matmul(&weight).unwrap() + &bias).unwrap();
    assert_eq!(numbers(x.linear(&weight.t().unwrap(), Some(&bias))), numbers(Ok(theirs)));
    assert!(x.linear(&weight, Some(&bias)).is_err());
}

#[test]
fn rounding_goes_to_even_and_keeps_the_kind() {
    assert_eq!(numbers(f64s(&[0.5, 1.5, 2.5, -2.5], &[4]).round()), [0.0, 2.0, 2.0, -2.0]);
    assert_eq!(numbers(f64s(&[0.5, 1.5, 2.5, -2.5], &[4]).round_half_away()), [1.0, 2.0, 3.0, -3.0]);
    for (scalar, want) in
        [(Scalar::Float(2.5).round(), 2.0), (Scalar::Float(2.5).floor(), 2.0), (Scalar::Float(2.5).ceil(), 3.0)]
    {
        assert!(matches!(scalar, Scalar::Float(v) if v == want), "{scalar:?}");
    }
}

#[test]
fn scalars_hold_nan_and_powers_that_overflow_are_errors() {
    assert!(matches!(Scalar::Float(0.0).div(0.0), Ok(Scalar::Float(v)) if v.is_nan()));
    assert!(Scalar::Int(10).pow(30).is_err() && Scalar::Int(i64::MAX).add(1).is_err());
}

#[test]
fn the_running_variance_is_unbiased() -> Result<()> {
    let (device, mut rng) = (Device::cpu()?, Generator::new(0));
    let config = BatchNormConfig { momentum: Some(1.0), ..Default::default() };
    let norm = BatchNorm2d::new(1, config, &mut Init::new(DType::F64, &device, &mut rng))?;
    let x = f64s(&[1.0, 2.0, 3.0, 6.0], &[4, 1]);
    let _ = norm.forward(&x)?;
    let biased = x.var(&[0], 0, false)?.item()?;
    assert!((norm.running_var.as_ref().unwrap().tensor().item()? - biased * 4.0 / 3.0).abs() < 1e-12);
    Ok(())
}

/// Attention of two queries over three keys with equal scores. The result is the mean of the values that each query
/// sees.
fn attend(options: AttentionOptions<'_>) -> Vec<f64> {
    let (q, k) = (f64s(&[0.0; 2], &[1, 2, 1]), f64s(&[0.0; 3], &[1, 3, 1]));
    numbers(q.scaled_dot_product_attention(&k, &f64s(&[1.0, 2.0, 3.0], &[1, 3, 1]), options))
}

#[test]
fn causal_attention_says_where_it_is_aligned() {
    assert_eq!(attend(AttentionOptions::new()), [2.0, 2.0]);
    assert_eq!(attend(AttentionOptions::new().causal(Causal::TopLeft)), [1.0, 1.5]);
    assert_eq!(attend(AttentionOptions::new().causal(Causal::BottomRight)), [1.5, 2.0]);
}

#[test]
fn the_scale_of_attention_multiplies_and_its_mask_counts() {
    let (q, k, v) = (f64s(&[1.0], &[1, 1, 1]), f64s(&[0.0, 1.0], &[1, 2, 1]), f64s(&[0.0, 1.0], &[1, 2, 1]));
    let y = numbers(q.scaled_dot_product_attention(&k, &v, AttentionOptions::new().scale(3.0)));
    assert!((y[0] - 1.0 / (1.0 + (-3f64).exp())).abs() < 1e-12);
    let second = Tensor::from_vec(vec![false, true], [1, 2], &Device::cpu().unwrap()).unwrap();
    let y = q.scaled_dot_product_attention(&k, &v, AttentionOptions::new().mask(&second));
    assert_eq!(numbers(y), [1.0]);
}

#[test]
fn cross_entropy_is_the_mean_and_its_classes_are_integers() -> Result<()> {
    let logits = f64s(&[2.0, 0.0, 1.0, 1.0], &[2, 2]);
    let classes = Tensor::from_vec(vec![0i64, 1], [2], logits.device())?;
    let each = logits.cross_entropy_with(&classes, None, None, 0.0, Reduction::None)?;
    assert_eq!(each.shape(), [2]);
    assert!((each.mean_all()? - logits.cross_entropy(&classes)?)?.item()?.abs() < 1e-12);
    assert!(logits.cross_entropy(&classes.to_dtype(DType::F64)?).is_err());
    Ok(())
}

#[test]
fn indices_are_integers() -> Result<()> {
    let table = f64s(&[1.0, 2.0], &[2, 1]);
    assert!(table.embedding(&f64s(&[1.0], &[1]), None).is_err());
    let (_, places) = f64s(&[1.0, 3.0, 2.0, 0.0], &[1, 1, 2, 2]).max_pool2d_with_indices([2, 2], PoolOptions::new())?;
    assert_eq!(places.to_vec::<i64>()?, [1]);
    Ok(())
}

#[test]
fn axes_count() -> Result<()> {
    let x = f64s(&[1.0, 2.0, 3.0, 4.0], &[2, 2]);
    assert_eq!(numbers(x.sum(&[0], false)), [4.0, 6.0]);
    assert_eq!(x.sum_all()?.item()?, 10.0);
    assert_eq!(numbers(f64s(&[1.0, 2.0, 1.0, 2.0], &[2, 2]).softmax(0)), [0.5; 4]);
    Ok(())
}

#[test]
fn images_come_in_batches() -> Result<()> {
    let x = f64s(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], &[2, 1, 2, 2]);
    assert_eq!(numbers(x.max_pool2d([2, 2], PoolOptions::new())), [3.0, 7.0]);
    assert_eq!(x.unfold([2, 2], ConvOptions::new())?.shape(), [2, 4, 1]);
    assert!(x.select(0, 0)?.max_pool2d([2, 2], PoolOptions::new()).is_err());
    Ok(())
}

#[test]
fn dropout_draws_from_a_generator() -> Result<()> {
    let (x, mut rng) = (f64s(&[1.0; 64], &[64]), Generator::new(5));
    let (first, second) = (numbers(x.dropout(0.5, &mut rng)), numbers(x.dropout(0.5, &mut rng)));
    assert_ne!(first, second);
    assert_eq!(first, numbers(x.dropout(0.5, &mut Generator::new(5))));
    Ok(())
}

#[test]
fn nan_stays() {
    assert!(numbers(f64s(&[f64::NAN], &[1]).relu())[0].is_nan());
}

#[test]
fn both_sides_of_a_loss_have_gradients() -> Result<()> {
    let (a, b) = (f64s(&[1.0], &[1]).with_grad()?, f64s(&[3.0], &[1]).with_grad()?);
    let gradients = a.mse_loss(&b, Reduction::Mean)?.backward()?;
    assert_eq!([&a, &b].map(|t| gradients.get(t).unwrap().item().unwrap()), [-4.0, 4.0]);
    Ok(())
}

#[test]
fn a_write_counts_where_a_gradient_needs_the_bytes() -> Result<()> {
    let (x, w) = (f64s(&[1.0, 2.0], &[2]).with_grad()?, f64s(&[3.0, 4.0, 5.0], &[3]));
    let (sum, product) = ((&x + w.narrow(0, 0, 2)?)?, (&x * w.narrow(0, 0, 2)?)?);
    w.narrow(0, 2, 1)?.fill_(0.0)?;
    assert!(product.sum_all()?.backward_with(BackwardOptions::new().retain_graph()).is_ok());
    w.fill_(0.0)?;
    assert!(sum.sum_all()?.backward().is_ok());
    assert_eq!(product.sum_all()?.backward().unwrap_err().kind(), &ErrorKind::Autograd);
    Ok(())
}

#[test]
fn edges_have_a_strength_and_a_threshold_is_reached() -> Result<()> {
    let step = f64s(&[0.0, 0.0, 1.0, 1.0], &[1, 1, 4]);
    assert_eq!(numbers(sobel(&step, None, Border::Replicate)), [0.0, 4.0, 4.0, 0.0]);
    assert_eq!(numbers(sobel(&step, Some(4.0), Border::Replicate)), [0.0, 1.0, 1.0, 0.0]);
    assert_eq!(numbers(sobel(&step, Some(4.1), Border::Replicate)), [0.0; 4]);
    Ok(())
}

#[test]
fn sigma_counts() {
    let point = f64s(&[0.0, 0.0, 1.0, 0.0, 0.0], &[1, 1, 5]);
    let middle = |sigma| numbers(gaussian_blur(&point, sigma, None, Border::Replicate))[2];
    assert!(middle(0.5) > middle(1.0) && middle(1.0) > middle(2.0));
}
