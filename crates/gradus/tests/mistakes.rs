//! Tests that Gradus does not repeat mistakes of the source projects, which are numbered as in the contract.
#![cfg(feature = "cpu")]
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use gradus::autograd::{gradcheck, gradgradcheck};
use gradus::backend::{AttentionParams, Buffer, Element, Layout, Shape, View, ViewMut, Window};
use gradus::cpu::CpuBackend;
use gradus::prelude::*;
use gradus::{ComputeModule, Scalar};

fn cpu() -> Device {
    Device::cpu().unwrap()
}

fn f64s(values: &[f64], shape: &[usize]) -> Tensor {
    Tensor::from_vec(values, shape, &cpu()).unwrap()
}

fn f32s(values: &[f32], shape: &[usize]) -> Tensor {
    Tensor::from_vec(values, shape, &cpu()).unwrap()
}

fn i64s(values: &[i64], shape: &[usize]) -> Tensor {
    Tensor::from_vec(values, shape, &cpu()).unwrap()
}

fn randn(shape: &[usize], seed: u64) -> Tensor {
    Tensor::randn(shape, DType::F64, &cpu(), &mut Generator::new(seed)).unwrap()
}

fn numbers(t: &Tensor) -> Vec<f64> {
    t.to_dtype(DType::F64).unwrap().to_vec().unwrap()
}

#[track_caller]
fn assert_close(got: &[f64], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len());
    assert!(got.iter().zip(want).all(|(g, w)| (g - w).abs() <= tolerance), "{got:?} where {want:?} is right");
}

/// The gradient of `sum(f(x))` at `x`.
fn slope(f: impl Fn(&Tensor) -> Result<Tensor>, x: &Tensor) -> Vec<f64> {
    let x = x.with_grad().unwrap();
    let g = f(&x).unwrap().sum_all().unwrap().backward().unwrap();
    numbers(g.get(&x).unwrap())
}

/// A dense f64 tensor in the form in which a backend sees it.
struct Raw {
    buffer: Buffer,
    layout: Layout,
}

impl Raw {
    fn new(values: &[f64], shape: &[usize]) -> Raw {
        let device = cpu();
        let mut buffer = device.backend().alloc(8 * values.len()).unwrap();
        device.backend().upload(&mut buffer, 0, f64::as_bytes(values)).unwrap();
        Raw { buffer, layout: Layout::contiguous(Shape::new(shape).unwrap()) }
    }

    fn view(&self) -> View<'_> {
        View { buffer: &self.buffer, dtype: DType::F64, layout: &self.layout }
    }

    fn view_mut(&mut self) -> ViewMut<'_> {
        ViewMut { buffer: &mut self.buffer, dtype: DType::F64, layout: &self.layout }
    }

    fn values(&self) -> Vec<f64> {
        let mut bytes = vec![0; self.buffer.bytes()];
        cpu().backend().download(&self.buffer, 0, &mut bytes).unwrap();
        f64::from_bytes(&bytes)
    }
}

#[test]
fn mistake_01_indices_are_integers_exact_above_2_to_24_and_checked() {
    let far = (1 << 24) + 1;
    let mut values = vec![0u8; far + 3];
    values[far] = 1;
    let x = Tensor::from_vec(&values, [far + 3], &cpu()).unwrap();
    assert_eq!(x.argmax(0, false).unwrap().to_scalar::<i64>().unwrap(), far as i64);
    let picked = x.index_select(0, &i64s(&[far as i64, far as i64 - 1], &[2])).unwrap();
    assert_eq!(picked.to_vec::<u8>().unwrap(), [1, 0]);
    let table = f32s(&[1.0, 2.0, 3.0, 4.0], &[2, 2]);
    for index in [-1, 2, far as i64] {
        let wanted = ErrorKind::IndexOutOfBounds { pos: 1, index, size: 2 };
        assert_eq!(table.embedding(&i64s(&[0, index], &[2]), None).unwrap_err().kind(), &wanted);
        assert_eq!(table.cross_entropy(&i64s(&[0, index], &[2])).unwrap_err().kind(), &wanted);
    }
    let floats = f32s(&[0.0, f32::NAN], &[2]);
    assert!(table.embedding(&floats, None).is_err() && table.cross_entropy(&floats).is_err());
}

#[test]
fn mistake_02_pooling_windows_overlap_and_their_indices_lie_inside() {
    let x = f64s(&[1.0, 2.0, 9.0, 3.0, 4.0], &[1, 1, 1, 5]);
    let pool = |x: &Tensor| x.max_pool2d([1, 3], PoolOptions::new().stride([1, 1]));
    assert_eq!(numbers(&pool(&x).unwrap()), [9.0; 3]);
    // All three windows have their maximum at the same position.
    assert_eq!(slope(pool, &x), [0.0, 0.0, 3.0, 0.0, 0.0]);
    for low in [f64::NAN, f64::NEG_INFINITY] {
        let x = Tensor::full([1, 1, 4, 4], low, DType::F64, &cpu()).unwrap();
        let (_, at) = x.max_pool2d_with_indices([2, 2], PoolOptions::new().stride([2, 2])).unwrap();
        for (window, at) in at.to_vec::<i64>().unwrap().into_iter().enumerate() {
            let (y, x) = (at as usize / 4, at as usize % 4);
            assert_eq!((y / 2, x / 2), (window / 2, window % 2), "{low}");
        }
    }
}

#[test]
fn mistake_03_relu_maximum_and_pooling_keep_nan() {
    let x = f32s(&[f32::NAN, -1.0, 2.0, 5.0], &[1, 1, 2, 2]);
    let first_is_nan = |t: Result<Tensor>| numbers(&t.unwrap())[0].is_nan();
    assert!(first_is_nan(x.relu()) && first_is_nan(x.maximum(0.0)) && first_is_nan(x.clamp(0.0, 1.0)));
    assert!(first_is_nan(x.max_all()) && first_is_nan(x.min_all()) && first_is_nan(x.relu_mul(0.0)));
    assert!(first_is_nan(x.max_pool2d([2, 2], PoolOptions::new().stride([1, 1]))));
    assert!(first_is_nan(x.avg_pool2d([2, 2], PoolOptions::new().stride([1, 1]), true)));
}

#[test]
fn mistake_04_outputs_need_no_zeros_batches_run_whole_and_sizes_are_checked() {
    let device = cpu();
    let window = Window::new2d([1, 2]);
    // Two windows of two elements each cover three elements; both contain the middle one.
    let columns = Raw::new(&[1.0, 2.0, 3.0, 4.0], &[1, 1, 1, 2, 1, 2]);
    let mut image = Raw::new(&[f64::NAN; 3], &[1, 1, 1, 3]);
    device.backend().fold(&window, columns.view(), &mut image.view_mut()).unwrap();
    assert_eq!(image.values(), [1.0, 5.0, 4.0]);
    let mut short = Raw::new(&[0.0; 2], &[1, 1, 1, 2]);
    assert!(device.backend().fold(&window, columns.view(), &mut short.view_mut()).is_err());

    let (x, w) = (randn(&[3, 2, 5, 5], 1), randn(&[4, 2, 3, 3], 2));
    let conv = |x: &Tensor| x.conv2d(&w, None, ConvOptions::new().padding([1, 1])).unwrap();
    let each: Vec<Tensor> = (0..3).map(|i| conv(&x.narrow(0, i, 1).unwrap())).collect();
    let each = Tensor::cat(&each.iter().collect::<Vec<_>>(), 0).unwrap();
    assert_close(&numbers(&conv(&x)), &numbers(&each), 1e-12);
}

#[test]
fn mistake_05_batch_norm_has_a_gradient_in_evaluation_and_an_unbiased_running_variance() {
    let (device, mut generator) = (cpu(), Generator::new(0));
    let config = BatchNormConfig { momentum: Some(1.0), ..Default::default() };
    let mut norm = BatchNorm2d::new(1, config, &mut Init::new(DType::F64, &device, &mut generator)).unwrap();
    let x = f64s(&[1.0, 2.0, 3.0, 6.0], &[4, 1]);
    let y = norm.forward(&x).unwrap();
    assert_close(&[y.square().unwrap().mean_all().unwrap().item().unwrap()], &[1.0], 1e-4);
    assert_close(&numbers(&norm.running_var.as_ref().unwrap().tensor()), &[14.0 / 3.0], 1e-9);
    norm.eval();
    let want = 1.0 / (14.0 / 3.0 + 1e-5f64).sqrt();
    assert_close(&slope(|x| norm.forward(x), &x), &[want; 4], 1e-9);
}

#[test]
fn mistake_06_dropout_masks_are_independent_seeded_and_finite() {
    let ones = Tensor::ones([1000], DType::F64, &cpu()).unwrap();
    let masks = |seed| {
        let mut g = Generator::new(seed);
        (0..6).map(|_| numbers(&ones.dropout(0.5, &mut g).unwrap())).collect::<Vec<_>>()
    };
    assert_eq!(masks(1), masks(1));
    assert_ne!(masks(1), masks(2));
    // If one mask were only a permutation of another, both would keep the same number of elements.
    let kept: Vec<usize> = masks(1).iter().map(|m| m.iter().filter(|v| **v != 0.0).count()).collect();
    assert!(kept.iter().any(|k| *k != kept[0]) && kept.iter().all(|k| (400..600).contains(k)), "{kept:?}");
    let all = |x: &Tensor| x.dropout(1.0, &mut Generator::new(3));
    assert_eq!((numbers(&all(&ones).unwrap()), slope(all, &ones)), (vec![0.0; 1000], vec![0.0; 1000]));
}

#[test]
fn mistake_07_cross_entropy_pays_no_gradient_ahead_ignores_an_index_and_is_its_formula() {
    let device = Device::from_backend(Arc::new(CpuBackend::new().unwrap()));
    let logits = Tensor::zeros([1000, 1000], DType::F32, &device).unwrap();
    let target = Tensor::zeros([1000], DType::I64, &device).unwrap();
    // The budget is enough for the logits and some small tensors, but not for a gradient as large as the logits.
    device.backend().set_memory_budget(Some(6_000_000)).unwrap();
    assert_close(&[logits.cross_entropy(&target).unwrap().item().unwrap()], &[1000f64.ln()], 1e-4);
    let loss = logits.with_grad().unwrap().cross_entropy(&target).unwrap();
    assert!(matches!(loss.backward().unwrap_err().kind(), ErrorKind::OutOfMemory { .. }));

    let (x, t) = (randn(&[4, 3], 1), i64s(&[2, -100, 0, 1], &[4]));
    let fused = x.cross_entropy_with(&t, None, Some(-100), 0.0, Reduction::Mean).unwrap();
    let steps = x.log_softmax(1).unwrap().nll_loss(&t, None, Some(-100), Reduction::Mean).unwrap();
    assert_close(&numbers(&fused), &numbers(&steps), 1e-12);
    let g = slope(|x| x.cross_entropy_with(&t, None, Some(-100), 0.0, Reduction::Mean), &x);
    assert!(g[3..6] == [0.0; 3] && g[0] != 0.0, "{g:?}");
}

#[test]
fn mistake_08_versions_count_by_themselves_and_only_where_values_are_read() {
    let x = f32s(&[1.0, 2.0], &[2]).with_grad().unwrap();
    let w = f32s(&[3.0, 4.0], &[2]);
    let (sum, product) = (x.add(&w).unwrap(), x.mul(&w).unwrap());
    w.fill_(0.0).unwrap();
    assert!(sum.sum_all().unwrap().backward().is_ok());
    let e = product.sum_all().unwrap().backward().unwrap_err();
    assert!(e.kind() == &ErrorKind::Autograd && e.to_string().contains("fill_"), "{e}");
}

#[test]
fn mistake_09_every_argument_counts_and_success_means_done() {
    let (x, w, bias) = (randn(&[2, 4, 5, 5], 1), randn(&[4, 2, 3, 3], 2), randn(&[4], 3));
    let doubled = Tensor::cat(&[&w, &w], 1).unwrap();
    let conv = |w, bias, options| numbers(&x.conv2d(w, bias, options).unwrap());
    let one = ConvOptions::new().padding([1, 1]);
    let plain = conv(&doubled, None, one);
    for other in [
        conv(&doubled, Some(&bias), one),
        conv(&doubled, None, one.stride([1, 2])),
        conv(&doubled, None, one.padding([2, 1])),
        conv(&doubled, None, one.dilation([2, 1])),
        conv(&w, None, one.groups(2)),
    ] {
        assert_ne!(plain, other);
    }
    let m = randn(&[3, 3], 4);
    assert_ne!(numbers(&m.softmax(0).unwrap()), numbers(&m.softmax(1).unwrap()));
    assert_ne!(numbers(&m.sum(&[0], false).unwrap()), numbers(&m.sum(&[1], false).unwrap()));
    assert_ne!(numbers(&m.matmul(&m).unwrap()), numbers(&m.matmul(&m.t().unwrap()).unwrap()));
    let out = m.copy().unwrap();
    out.fill_(7.0).unwrap();
    assert_eq!(numbers(&out), [7.0; 9]);
    out.copy_(&m).unwrap();
    assert_eq!(numbers(&out), numbers(&m));
    let run = cpu().backend().dispatch_compute(ComputeModule::Wgsl("fn f() {}"), &mut [], &[], [1, 1, 1]);
    assert_eq!(run.unwrap_err().kind(), &ErrorKind::Unsupported);
}

#[test]
fn mistake_10_comparisons_are_their_own_and_exact() {
    let (nan, one) = (f64s(&[f64::NAN], &[1]), f64s(&[1.0], &[1]));
    let ask = |t: Result<Tensor>| t.unwrap().to_vec::<bool>().unwrap()[0];
    for (a, b) in [(&nan, &one), (&one, &nan), (&nan, &nan)] {
        assert!(!ask(a.gt(b)) && !ask(a.ge(b)) && !ask(a.lt(b)) && !ask(a.le(b)) && !ask(a.eq(b)) && ask(a.ne(b)));
    }
    let i = i64s(&[1], &[1]);
    assert!(ask(i.eq(1.0)) && ask(i.le(1.0)) && ask(i.ge(1.0)) && !ask(i.ne(1.0)) && !ask(i.lt(1.0)));
    let i = i64s(&[(1 << 53) + 1], &[1]);
    assert!(ask(i.gt(1i64 << 53)) && !ask(i.eq(1i64 << 53)));
}

#[test]
fn mistake_11_integers_wrap_in_every_build_and_steps_are_checked() {
    let edge = Tensor::from_vec([i32::MAX, i32::MIN], [2], &cpu()).unwrap();
    assert_eq!(edge.add(1).unwrap().to_vec::<i32>().unwrap(), [i32::MIN, i32::MIN + 1]);
    assert_eq!(edge.mul(2).unwrap().to_vec::<i32>().unwrap(), [-2, 0]);
    assert_eq!(edge.abs().unwrap().to_vec::<i32>().unwrap(), [i32::MAX, i32::MIN]);
    assert_eq!(edge.floor_div(-1).unwrap().to_vec::<i32>().unwrap(), [-i32::MAX, i32::MIN]);
    assert_eq!(edge.floor_div(0).unwrap_err().kind(), &ErrorKind::InvalidArgument);

    let parameter = || Parameter::new(f64s(&[2.0], &[1])).unwrap();
    let named = |p: &Parameter| [("p".to_owned(), p.clone())];
    let config = AdamConfig { lr: 0.1, weight_decay: 0.5, ..Default::default() };
    let p = parameter();
    let wrong = AdamW::new(named(&p), AdamConfig { beta1: 1.0, ..config }).err().unwrap();
    assert_eq!(wrong.kind(), &ErrorKind::InvalidArgument);
    // Weight decay alone moves a parameter whose gradient is zero.
    let zero = |p: &Parameter| p.mul(0.0).unwrap().sum_all().unwrap().backward().unwrap();
    AdamW::new(named(&p), config).unwrap().step(&zero(&p)).unwrap();
    assert_close(&numbers(p.tensor()), &[2.0 * (1.0 - 0.1 * 0.5)], 1e-12);
    let p = parameter();
    let config = SgdConfig { lr: 0.1, weight_decay: 0.5, ..Default::default() };
    Sgd::new(named(&p), config).unwrap().step(&zero(&p)).unwrap();
    assert_close(&numbers(p.tensor()), &[1.9], 1e-12);
}

#[test]
fn mistake_12_the_fingerprint_is_data_before_the_functions_that_it_vouches_for() {
    use gradus::backend::plugin::{FINGERPRINT, Header, MAGIC, Table};
    use std::mem::{offset_of, size_of};
    // The table can be read without calling a function, and it describes itself. `examples/tiny-plugin/tests/load.rs`
    // tests damaged tables.
    assert_eq!(offset_of!(Table, header), 0);
    assert!(offset_of!(Table, create) >= size_of::<Header>());
    assert_eq!((Header::OURS.magic, Header::OURS.fingerprint), (MAGIC, FINGERPRINT));
    assert_eq!(Header::OURS.size, size_of::<Table>() as u64);
}

#[test]
fn mistake_13_attention_multiplies_by_its_scale_and_masked_rows_are_zero() {
    let device = cpu();
    let b = device.backend();
    let (q, k) = (Raw::new(&[1.0, 2.0], &[1, 1, 2, 1]), Raw::new(&[0.5, -0.25], &[1, 1, 2, 1]));
    let v = Raw::new(&[1.0, 3.0], &[1, 1, 2, 1]);
    let (q, k, v) = (q.view(), k.view(), v.view());
    let params = AttentionParams { causal: false, scale: 4.0 };
    let (mut out, mut stats) = (Raw::new(&[f64::NAN; 2], &[1, 1, 2, 1]), Raw::new(&[f64::NAN; 4], &[1, 1, 2, 2]));
    b.attention(&params, q, k, v, None, &mut out.view_mut(), &mut stats.view_mut()).unwrap();
    let row = |q: f64| {
        let (x, y) = ((4.0 * q * 0.5).exp(), (4.0 * q * -0.25).exp());
        (x + 3.0 * y) / (x + y)
    };
    assert_close(&out.values(), &[row(1.0), row(2.0)], 1e-12);

    // The mask hides every key from the second query.
    let mask = Raw::new(&[0.0, 0.0, f64::NEG_INFINITY, f64::NEG_INFINITY], &[1, 1, 2, 2]);
    let mask = Some(mask.view());
    b.attention(&params, q, k, v, mask, &mut out.view_mut(), &mut stats.view_mut()).unwrap();
    assert_close(&out.values(), &[row(1.0), 0.0], 1e-12);
    let g = Raw::new(&[1.0, 1.0], &[1, 1, 2, 1]);
    let [mut dq, mut dk, mut dv] = [(); 3].map(|()| Raw::new(&[f64::NAN; 2], &[1, 1, 2, 1]));
    let (out, stats, g) = (out.view(), stats.view(), g.view());
    let grads = (&mut dq.view_mut(), &mut dk.view_mut(), &mut dv.view_mut());
    b.attention_backward(&params, q, k, v, mask, out, stats, g, grads.0, grads.1, grads.2).unwrap();
    assert!(dq.values()[0] != 0.0 && dq.values()[1] == 0.0, "{:?}", dq.values());
    assert!(dk.values().iter().all(|v| v.is_finite()));
    // Only the first query reads the values.
    assert_close(&[dv.values().iter().sum()], &[1.0], 1e-12);
}

#[test]
fn mistake_14_gemm_is_row_major_reads_c_only_for_beta_and_takes_any_strides() {
    let device = cpu();
    let gemm = |alpha: f64, a: View<'_>, b: View<'_>, beta: f64, c: &mut Raw| {
        let (alpha, beta) = (Scalar::Float(alpha), Scalar::Float(beta));
        device.backend().gemm(alpha, a, b, beta, &mut c.view_mut()).unwrap();
    };
    let a = Raw::new(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3]);
    let b = Raw::new(&[1.0, 0.0, 0.0, 1.0, 1.0, 1.0], &[3, 2]);
    let mut c = Raw::new(&[f64::NAN; 4], &[2, 2]);
    gemm(2.0, a.view(), b.view(), 0.0, &mut c);
    assert_eq!(c.values(), [8.0, 10.0, 20.0, 22.0]);
    let (at, bt) = (a.layout.transpose(0, 1).unwrap(), b.layout.transpose(0, 1).unwrap());
    let mut c = Raw::new(&[1.0; 9], &[3, 3]);
    gemm(1.0, a.view().with(&at), b.view().with(&bt), -1.0, &mut c);
    // Row i of the transposed a is (a[0][i], a[1][i]), and column j of the transposed b is row j of b.
    assert_eq!(c.values(), [0.0, 3.0, 4.0, 1.0, 4.0, 6.0, 2.0, 5.0, 8.0]);
    let (none_a, none_b) = (Raw::new(&[], &[2, 0]), Raw::new(&[], &[0, 2]));
    let mut c = Raw::new(&[1.0, 2.0, 3.0, 4.0], &[2, 2]);
    gemm(1.0, none_a.view(), none_b.view(), 0.5, &mut c);
    assert_eq!(c.values(), [0.5, 1.0, 1.5, 2.0]);
    // The matrices are batched and larger than any tile, so this checks that every row is written.
    let (x, y) = (randn(&[2, 130, 70], 1), randn(&[2, 70, 150], 2));
    let by_hand = x.unsqueeze(3).unwrap().mul(y.unsqueeze(1).unwrap()).unwrap().sum(&[2], false).unwrap();
    assert_close(&numbers(&x.matmul(&y).unwrap()), &numbers(&by_hand), 1e-11);
}

#[test]
fn mistake_15_gated_products_have_a_hessian_and_finite_slopes() {
    let [a, b] = [0.7, 1.3].map(|v| f64s(&[v], &[1]).with_grad().unwrap());
    let first = grad(&[&a.silu_mul(&b).unwrap()], &[&a, &b], None, BackwardOptions::new().create_graph()).unwrap();
    let mut hessian = vec![];
    for g in first.iter().flatten() {
        let rows = grad(&[g], &[&a, &b], None, BackwardOptions::new().retain_graph()).unwrap();
        hessian.extend(rows.into_iter().map(|h| h.map_or(0.0, |h| h.item().unwrap())));
    }
    assert_close(&hessian, &[0.509, 0.823, 0.823, 0.0], 5e-4);

    let (x, one) = (f32s(&[10.06, 1e3, f32::INFINITY], &[3]), f32s(&[1.0], &[1]));
    assert_close(&slope(|x| x.gelu_tanh_mul(&one), &x), &[1.0; 3], 1e-6);
    assert_close(&slope(|x| x.gelu_mul(&one), &x), &[1.0; 3], 1e-6);
    let x = Tensor::full([1], 256, DType::BF16, &cpu()).unwrap();
    let one = x.ones_like().unwrap();
    assert_eq!(slope(|x| x.silu_mul(&one), &x), [1.0]);
    let (column, row) = (randn(&[3, 1], 1), randn(&[2], 2).with_grad().unwrap());
    let y = column.silu_mul(&row).unwrap();
    assert_eq!((y.shape(), y.grad_fn().unwrap().saved().len()), (&[3, 2][..], 1));
    assert_eq!(y.sum_all().unwrap().backward().unwrap().len(), 1);
}

#[test]
fn mistake_16_gradients_keep_shapes_add_up_and_exist_at_zero() {
    let both = |f: &dyn Fn(&[Tensor]) -> Result<Tensor>, x: &[Tensor]| {
        gradcheck(f, x).unwrap();
        gradgradcheck(f, x).unwrap();
    };
    both(&|x| x[0].layer_norm(&[4], Some(&x[1]), None, 1e-5), &[randn(&[2, 3, 4], 1), randn(&[4], 2)]);
    both(&|x| x[0].slice(1, 1, 4, 2)?.square(), &[randn(&[2, 5, 3], 1)]);
    // The gradient of a convolution is a transposed convolution, which has its own gradient.
    let images = [randn(&[1, 2, 4, 4], 1), randn(&[3, 2, 2, 2], 2)];
    both(&|x| x[0].conv2d(&x[1], None, ConvOptions::new().stride([2, 1]).padding([1, 0])), &images);
    let filters = [randn(&[1, 2, 3, 3], 1), randn(&[2, 3, 2, 2], 2)];
    both(&|x| x[0].conv_transpose2d(&x[1], None, ConvOptions::new().stride([2, 1])), &filters);
    assert_eq!(slope(|x| x.cumprod(0), &f64s(&[2.0, 0.0, 3.0], &[3])), [1.0, 8.0, 0.0]);
    let repeated = i64s(&[1, 1, 0, 1], &[4]);
    assert_eq!(slope(|x| x.gather(0, &repeated), &f64s(&[5.0, 6.0], &[2])), [1.0, 3.0]);

    let zero = f64s(&[0.0], &[1]);
    for (exponent, want) in [(0.0, 0.0), (1.0, 1.0), (2.0, 0.0), (3.0, 0.0)] {
        assert_eq!(slope(|x| x.pow(exponent), &zero), [want], "{exponent}");
    }
    assert_eq!(slope(|e| zero.pow(e), &f64s(&[2.0], &[1])), [0.0]);
}

#[test]
fn mistake_17_identities_are_unique_across_threads_and_kept_by_clones() {
    let make = |i: usize| move || f64s(&[i as f64], &[1]).with_grad().unwrap();
    let threads: Vec<_> = (1..=4).map(|i| std::thread::spawn(make(i))).collect();
    let leaves: Vec<Tensor> = threads.into_iter().map(|t| t.join().unwrap()).collect();
    let product = leaves.iter().skip(1).fold(leaves[0].clone(), |p, x| p.mul(x).unwrap());
    let g = product.backward().unwrap();
    assert_eq!(g.len(), 4);
    for (i, leaf) in leaves.iter().enumerate() {
        assert_eq!(g.get(&leaf.clone()).unwrap().item().unwrap(), 24.0 / (i + 1) as f64);
        assert!(g.get(&leaf.detach().with_grad().unwrap()).is_none());
    }
}

#[test]
fn mistake_18_many_groups_and_many_elements_work() {
    let n = (1 << 24) + 5;
    let x = Tensor::ones([n], DType::U8, &cpu()).unwrap();
    assert_eq!(x.sum_all().unwrap().to_scalar::<i64>().unwrap(), n as i64);
    let y = x.add(1).unwrap();
    assert_eq!(y.narrow(0, n - 2, 2).unwrap().to_vec::<u8>().unwrap(), [2, 2]);
    assert_eq!(y.sum_all().unwrap().to_scalar::<i64>().unwrap(), 2 * n as i64);

    let rows = 70_000usize;
    let x = Tensor::arange(0, 2 * rows as i64, 1, DType::F32, &cpu()).unwrap().reshape([rows, 1, 2]).unwrap();
    let sums = x.matmul(&Tensor::ones([rows, 2, 1], DType::F32, &cpu()).unwrap()).unwrap();
    assert_eq!(sums.to_vec::<f32>().unwrap()[rows - 1], (4 * rows - 3) as f32);
    let soft = x.softmax(-1).unwrap().sum_all().unwrap().item().unwrap();
    assert!((soft / rows as f64 - 1.0).abs() < 1e-4, "{soft}");
    let pooled = x.reshape([rows, 1, 1, 2]).unwrap().max_pool2d([1, 2], PoolOptions::new().stride([1, 2])).unwrap();
    assert_eq!(pooled.to_vec::<f32>().unwrap()[rows - 1], (2 * rows - 1) as f32);
}

#[test]
fn mistake_19_a_step_that_fails_changes_nothing() {
    let make = |v: f64| Parameter::new(f64s(&[v], &[1])).unwrap();
    let (a, b) = (make(1.0), make(2.0));
    let named = vec![("a".to_owned(), a.clone()), ("b".to_owned(), b.clone())];
    let sgd = Sgd::new(named, SgdConfig { lr: 0.1, ..Default::default() }).unwrap();
    let mut sgd = sgd.non_finite(gradus::nn::NonFinite::Error);
    let loss = |factor: f64| a.mul(3.0).unwrap().add(b.mul(factor).unwrap()).unwrap().backward().unwrap();
    let e = sgd.step(&loss(f64::NAN)).unwrap_err();
    assert!(e.to_string().contains("nothing was changed"), "{e}");
    assert_eq!((numbers(&a), numbers(&b)), (vec![1.0], vec![2.0]));
    sgd.step(&loss(1.0)).unwrap();
    assert_close(&[numbers(&a)[0], numbers(&b)[0]], &[0.7, 1.9], 1e-12);
}

#[test]
fn mistake_20_values_are_read_as_what_they_are_or_not_at_all() {
    let x = f32s(&[1.0, 2.0], &[2]);
    let e = x.to_vec::<f64>().unwrap_err();
    assert!(e.kind() == &ErrorKind::DTypeMismatch && e.to_string().contains("to_dtype"), "{e}");
    assert!(x.to_vec::<i32>().is_err() && x.to_vec::<u8>().is_err() && x.to_scalar::<f32>().is_err());
    assert_eq!(x.narrow(0, 1, 1).unwrap().to_scalar::<f32>().unwrap(), 2.0);
    let half = x.to_dtype(DType::F16).unwrap();
    assert_eq!(half.to_bytes().unwrap().len(), 4);
    assert!(half.to_vec::<f32>().is_err());
}
