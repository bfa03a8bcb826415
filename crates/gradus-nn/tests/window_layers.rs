//! Convolutions, pooling, normalisation and attention as layers: shapes, parameter names, initial values, and PyTorch's
//! results.
#![allow(clippy::unwrap_used)]

mod common;

use common::{assert_close, device, values, with_init};
use gradus_nn::{
    AdaptiveAvgPool1d, AdaptiveAvgPool2d, AdaptiveAvgPool3d, AdaptiveMaxPool1d, AdaptiveMaxPool2d, AdaptiveMaxPool3d,
    AvgPool1d, AvgPool3d, Conv1d, Conv1dConfig, Conv3d, Conv3dConfig, ConvTranspose1d, ConvTranspose2d,
    ConvTranspose3d, ConvTransposeConfig, Forward, GroupNorm, GroupNormConfig, InstanceNorm, InstanceNormConfig,
    MaxPool1d, MaxPool2d, MaxPool3d, Module, MultiheadAttention, MultiheadAttentionConfig, RmsNorm, RmsNormConfig,
};
use gradus_tensor::autograd::gradcheck;
use gradus_tensor::{Causal, ConvOptions, Device, PoolOptions, Tensor};

fn numbers(t: &Tensor) -> Vec<f64> {
    t.to_vec::<f64>().unwrap()
}

fn parameters(m: &dyn Module) -> Vec<(String, Vec<usize>)> {
    m.named_parameters().into_iter().map(|(n, p)| (n, p.shape().to_vec())).collect()
}

fn named(list: &[(&str, &[usize])]) -> Vec<(String, Vec<usize>)> {
    list.iter().map(|(n, s)| ((*n).to_owned(), s.to_vec())).collect()
}

/// `sin(a i + b)` for element `i`.
fn sines(shape: &[usize], a: f64, b: f64, device: &Device) -> Tensor {
    let n: usize = shape.iter().product();
    Tensor::from_vec((0..n).map(|i| (i as f64 * a + b).sin()).collect::<Vec<_>>(), shape, device).unwrap()
}

#[test]
fn convolutions_have_pytorchs_shapes_and_first_values() {
    let d = device();
    with_init(&d, |init| {
        let config = Conv1dConfig { stride: [2], padding: [1], dilation: [2], groups: 2, ..Default::default() };
        let layer = Conv1d::new(4, 6, [3], config, init).unwrap();
        assert_eq!(parameters(&layer), named(&[("weight", &[6, 2, 3]), ("bias", &[6])]));
        let bound = 1.0 / 6f64.sqrt();
        let bias = layer.bias.clone().unwrap();
        assert!(numbers(&layer.weight).iter().chain(&numbers(&bias)).all(|v| v.abs() <= bound));
        let x = values(&[2, 4, 9], &d);
        let options = ConvOptions::new().stride([2]).padding([1]).dilation([2]).groups(2);
        let y = layer.forward(&x).unwrap();
        assert_eq!(y.shape(), [2, 6, 4]);
        assert_close(&y, &numbers(&x.conv1d(&layer.weight, layer.bias.as_deref(), options).unwrap()));

        let layer = Conv3d::new(2, 3, [2, 1, 3], Conv3dConfig { bias: false, ..Default::default() }, init).unwrap();
        assert_eq!(parameters(&layer), named(&[("weight", &[3, 2, 2, 1, 3])]));
        assert_eq!(layer.forward(&values(&[1, 2, 3, 3, 3], &d)).unwrap().shape(), [1, 3, 2, 3, 1]);
        assert!(layer.to_string().starts_with("Conv3d(in_channels=2, out_channels=3, kernel=(2, 1, 3)"), "{layer}");
    });
}

/// Measured in bytes, these steps exceed an `isize`, but no element is that far away.
#[test]
fn a_stride_or_dilation_that_no_tap_takes_may_have_any_size() {
    let d = device();
    let (x, w) = (values(&[1, 2, 6], &d), values(&[16, 2, 1], &d));
    let all = numbers(&x.conv1d(&w, None, ConvOptions::new()).unwrap());
    let first: Vec<f64> = all.iter().step_by(6).copied().collect();
    for size in [1 << 58, 1 << 59, 1 << 60, (1 << 60) + 1, 1 << 61] {
        assert_close(&x.conv1d(&w, None, ConvOptions::new().dilation([size])).unwrap(), &all);
        assert_close(&x.conv1d(&w, None, ConvOptions::new().stride([size])).unwrap(), &first);
    }
}

#[test]
fn transposed_convolutions_store_the_weight_from_in_to_out() {
    let d = device();
    with_init(&d, |init| {
        let config = ConvTransposeConfig { stride: [2], output_padding: [1], groups: 2, ..Default::default() };
        let layer = ConvTranspose1d::new(4, 6, [3], config, init).unwrap();
        assert_eq!(parameters(&layer), named(&[("weight", &[4, 3, 3]), ("bias", &[6])]));
        let bound = 1.0 / 9f64.sqrt(); // as in PyTorch: fan_in is computed from axis 1
        assert!(numbers(layer.bias.as_deref().unwrap()).iter().all(|v| v.abs() <= bound));
        let x = values(&[2, 4, 5], &d);
        let options = ConvOptions::new().stride([2]).output_padding([1]).groups(2);
        let y = layer.forward(&x).unwrap();
        assert_eq!(y.shape(), [2, 6, 12]);
        assert_close(&y, &numbers(&x.conv_transpose1d(&layer.weight, layer.bias.as_deref(), options).unwrap()));
        gradcheck(|x| layer.forward(&x[0]), &[x]).unwrap();

        let config = ConvTransposeConfig { stride: [2, 2], padding: [1, 1], dilation: [1, 2], ..Default::default() };
        let layer = ConvTranspose2d::new(3, 2, [4, 3], config, init).unwrap();
        assert_eq!(layer.forward(&values(&[1, 3, 4, 4], &d)).unwrap().shape(), [1, 2, 8, 9]);
        let layer = ConvTranspose3d::new(3, 2, [2, 2, 2], ConvTransposeConfig::default(), init).unwrap();
        assert_eq!(parameters(&layer), named(&[("weight", &[3, 2, 2, 2, 2]), ("bias", &[2])]));
        assert_eq!(layer.forward(&values(&[1, 3, 1, 2, 3], &d)).unwrap().shape(), [1, 2, 2, 3, 4]);
    });
}

#[test]
fn pools_are_the_operations() {
    let d = device();
    let x = values(&[2, 3, 8], &d);
    let o = PoolOptions::new().stride([2]).padding([1]);
    let y = MaxPool1d::new([3], [2], [1]).unwrap().dilation([2]).unwrap().ceil_mode(true).forward(&x).unwrap();
    assert_close(&y, &numbers(&x.max_pool1d([3], o.dilation([2]).ceil_mode(true)).unwrap()));
    let y = AvgPool1d::new([3], [2], [1], true).unwrap().ceil_mode(true).forward(&x).unwrap();
    assert_close(&y, &numbers(&x.avg_pool1d([3], o.ceil_mode(true), true).unwrap()));
    let y = AdaptiveAvgPool1d::new([3]).unwrap().forward(&x).unwrap();
    assert_close(&y, &numbers(&x.adaptive_avg_pool1d([3]).unwrap()));
    let y = AdaptiveMaxPool1d::new([3]).unwrap().forward(&x).unwrap();
    assert_close(&y, &numbers(&x.adaptive_max_pool1d([3]).unwrap()));

    let x = values(&[1, 2, 5, 4], &d);
    assert_eq!(AdaptiveAvgPool2d::new([1, 1]).unwrap().forward(&x).unwrap().shape(), [1, 2, 1, 1]);
    assert_eq!(AdaptiveMaxPool2d::new([2, 3]).unwrap().forward(&x).unwrap().shape(), [1, 2, 2, 3]);
    let y = MaxPool2d::new([2, 2], [2, 2], [0, 0]).unwrap().ceil_mode(true).forward(&x).unwrap();
    assert_eq!(y.shape(), [1, 2, 3, 2]);
    let x = values(&[1, 2, 3, 4, 4], &d);
    assert_eq!(MaxPool3d::new([2; 3], [1, 2, 2], [0; 3]).unwrap().forward(&x).unwrap().shape(), [1, 2, 2, 2, 2]);
    assert_eq!(AvgPool3d::new([2; 3], [1, 2, 2], [1; 3], false).unwrap().forward(&x).unwrap().shape(), [1, 2, 4, 3, 3]);
    assert_eq!(AdaptiveAvgPool3d::new([2; 3]).unwrap().forward(&x).unwrap().shape(), [1, 2, 2, 2, 2]);
    assert_eq!(AdaptiveMaxPool3d::new([2; 3]).unwrap().forward(&x).unwrap().shape(), [1, 2, 2, 2, 2]);
    let pool = MaxPool2d::new([2, 2], [2, 2], [0, 0]).unwrap();
    assert_eq!(
        pool.to_string(),
        "MaxPool2d(kernel=(2, 2), stride=(2, 2), padding=(0, 0), dilation=(1, 1), ceil_mode=false)"
    );
}

#[test]
fn norms_are_the_operations_and_start_as_the_identity_of_their_scale() {
    let d = device();
    let x = values(&[2, 4, 3], &d);
    with_init(&d, |init| {
        let norm = GroupNorm::new(2, 4, GroupNormConfig::default(), init).unwrap();
        assert_eq!(parameters(&norm), named(&[("weight", &[4]), ("bias", &[4])]));
        assert_close(&norm.forward(&x).unwrap(), &numbers(&x.group_norm(2, None, None, 1e-5).unwrap()));
        norm.weight.as_ref().unwrap().set(&values(&[4], &d)).unwrap();
        norm.bias.as_ref().unwrap().set(&values(&[4], &d)).unwrap();
        let (w, b) = (norm.weight.as_deref(), norm.bias.as_deref());
        assert_close(&norm.forward(&x).unwrap(), &numbers(&x.group_norm(2, w, b, 1e-5).unwrap()));
        assert!(norm.forward(&values(&[2, 6, 3], &d)).is_err());

        let norm = InstanceNorm::new(4, InstanceNormConfig::default(), init).unwrap();
        assert!(parameters(&norm).is_empty());
        assert_close(&norm.forward(&x).unwrap(), &numbers(&x.instance_norm(None, None, 1e-5).unwrap()));
        assert!(norm.forward(&values(&[2, 3, 3], &d)).is_err());
        let norm =
            InstanceNorm::new(4, InstanceNormConfig { eps: 0.1, affine: true, ..Default::default() }, init).unwrap();
        assert_eq!(parameters(&norm), named(&[("weight", &[4]), ("bias", &[4])]));

        let norm = RmsNorm::new([4, 3], RmsNormConfig::default(), init).unwrap();
        assert_eq!(parameters(&norm), named(&[("weight", &[4, 3])]));
        let want = x.rms_norm(&[4, 3], None, f64::from(f32::EPSILON)).unwrap();
        assert_close(&norm.forward(&x).unwrap(), &numbers(&want));
    });
}

#[test]
fn attention_has_pytorchs_parameters_and_numbers() {
    let d = device();
    let layer = with_init(&d, |init| MultiheadAttention::new(4, 2, MultiheadAttentionConfig::default(), init).unwrap());
    let all: &[(&str, &[usize])] =
        &[("in_proj_weight", &[12, 4]), ("in_proj_bias", &[12]), ("out_proj.weight", &[4, 4]), ("out_proj.bias", &[4])];
    assert_eq!(parameters(&layer), named(all));
    let keys: Vec<String> = layer.state_dict().unwrap().iter().map(|(name, _)| name.to_owned()).collect();
    assert!(all.iter().all(|(n, _)| keys.iter().any(|k| k == n)) && keys.len() == 4, "{keys:?}");
    let bound = (6.0 / 16f64).sqrt();
    assert!(numbers(layer.in_proj_weight.as_deref().unwrap()).iter().all(|w| w.abs() <= bound));
    assert_eq!(numbers(layer.in_proj_bias.as_deref().unwrap()), [0.0; 12]);
    assert_eq!(numbers(layer.out_proj.bias.as_deref().unwrap()), [0.0; 4]);

    layer.in_proj_weight.as_ref().unwrap().set(&sines(&[12, 4], 0.31, 0.2, &d)).unwrap();
    layer.in_proj_bias.as_ref().unwrap().set(&sines(&[12], 0.5, 0.4, &d)).unwrap();
    layer.out_proj.weight.set(&sines(&[4, 4], 0.77, 0.1, &d)).unwrap();
    layer.out_proj.bias.as_ref().unwrap().set(&sines(&[4], 1.7, 0.3, &d)).unwrap();
    let (x, memory) = (sines(&[2, 3, 4], 1.7, 0.3, &d), sines(&[2, 2, 4], 0.6, 0.5, &d));
    let own = [
        -2.391576874022,
        3.503582072369,
        -3.021469641436,
        1.60676845801,
        -2.390959273776,
        3.502919758393,
        -3.020765125527,
        1.606024412013,
        -2.390757992453,
        3.502709424654,
        -3.020546537052,
        1.605798397791,
        -1.326574135942,
        2.431873453813,
        -1.947119549981,
        0.533851318903,
        -1.312308949021,
        2.417798616746,
        -1.933288440965,
        0.520316391807,
        -1.303029841854,
        2.408639302009,
        -1.924283654954,
        0.511500284776,
    ];
    assert_close(&layer.forward(&x).unwrap(), &own);
    let other = [
        0.304245405029,
        0.470298154094,
        0.337772320845,
        -2.06569177158,
        0.285455100961,
        0.485644618824,
        0.325927896243,
        -2.057394306563,
        0.304084563226,
        0.474937911648,
        0.328671243616,
        -2.052163890108,
        0.141860184007,
        0.824815272427,
        -0.207532204295,
        -1.331667882948,
        0.329716895084,
        0.66881531692,
        -0.083980627295,
        -1.422302517544,
        0.376945389017,
        0.647682169333,
        -0.089022972581,
        -1.391103802256,
    ];
    assert_close(&layer.attend(&x, &memory, &memory, None, Causal::No).unwrap(), &other);

    // A mask for each sample, and a causal mask, which lets each query see only earlier keys.
    let keep = Tensor::from_vec(vec![true, true, true, false], [2, 1, 1, 2], &d).unwrap();
    let y = layer.attend(&x, &memory, &memory, Some(&keep), Causal::No).unwrap();
    assert_close(&y.narrow(0, 0, 1).unwrap(), &other[..12]);
    let first = memory.narrow(1, 0, 1).unwrap();
    let alone = layer.attend(&x, &first, &first, None, Causal::No).unwrap();
    assert_close(&y.narrow(0, 1, 1).unwrap(), &numbers(&alone)[12..]);
    let y = layer.attend(&x, &x, &x, None, Causal::TopLeft).unwrap();
    assert_close(&y.narrow(1, 2, 1).unwrap(), &[&own[8..12], &own[20..24]].concat());
    gradcheck(|x| layer.forward(&x[0]), &[x]).unwrap();
}

#[test]
fn attention_of_other_sizes_has_weights_of_its_own() {
    let d = device();
    with_init(&d, |init| {
        let config = MultiheadAttentionConfig { kdim: Some(3), vdim: Some(5), ..Default::default() };
        let layer = MultiheadAttention::new(4, 2, config, init).unwrap();
        let want: &[(&str, &[usize])] = &[
            ("q_proj_weight", &[4, 4]),
            ("k_proj_weight", &[4, 3]),
            ("v_proj_weight", &[4, 5]),
            ("in_proj_bias", &[12]),
            ("out_proj.weight", &[4, 4]),
            ("out_proj.bias", &[4]),
        ];
        assert_eq!(parameters(&layer), named(want));
        let (q, k, v) = (values(&[2, 3, 4], &d), values(&[2, 6, 3], &d), values(&[2, 6, 5], &d));
        assert_eq!(layer.attend(&q, &k, &v, None, Causal::No).unwrap().shape(), [2, 3, 4]);
        assert!(layer.forward(&q).is_err());
        let config = MultiheadAttentionConfig { bias: false, ..Default::default() };
        let layer = MultiheadAttention::new(4, 2, config, init).unwrap();
        assert_eq!(parameters(&layer), named(&[("in_proj_weight", &[12, 4]), ("out_proj.weight", &[4, 4])]));
        assert!(layer.attend(&q, &q.narrow(1, 0, 2).unwrap(), &q, None, Causal::No).is_err());
        // Without a batch axis, as in PyTorch.
        let single = values(&[3, 4], &d);
        let batched = layer.forward(&single.unsqueeze(0).unwrap()).unwrap();
        assert_eq!(numbers(&layer.forward(&single).unwrap()), numbers(&batched));
        assert!(layer.forward(&values(&[4], &d)).is_err());
    });
}

#[test]
fn attention_drops_weights_while_it_trains() {
    let d = device();
    let config = MultiheadAttentionConfig { dropout: 0.5, ..Default::default() };
    let mut layer = with_init(&d, |init| MultiheadAttention::new(4, 2, config, init).unwrap());
    let x = values(&[2, 3, 4], &d);
    let run = |layer: &MultiheadAttention| numbers(&layer.forward(&x).unwrap());
    let saved = layer.named_random_states()[0].1.get();
    let first = run(&layer);
    assert_ne!(first, run(&layer));
    layer.named_random_states()[0].1.set(saved);
    assert_eq!(first, run(&layer));
    layer.eval();
    assert_eq!(run(&layer), run(&layer));
    assert_ne!(first, run(&layer));
}

#[test]
fn impossible_layers_are_refused() {
    let d = device();
    with_init(&d, |init| {
        let ok = ConvTransposeConfig::default();
        assert!(Conv1d::new(3, 4, [0], Conv1dConfig::default(), init).is_err());
        assert!(Conv1d::new(3, 4, [1], Conv1dConfig { groups: 2, ..Default::default() }, init).is_err());
        assert!(ConvTranspose1d::new(3, 4, [1], ConvTransposeConfig { stride: [0], ..ok }, init).is_err());
        assert!(ConvTranspose1d::new(3, 4, [1], ConvTransposeConfig { output_padding: [1], ..ok }, init).is_err());
        assert!(ConvTranspose1d::new(3, 4, [1], ConvTransposeConfig { groups: 3, ..ok }, init).is_err());
        assert!(GroupNorm::new(3, 4, GroupNormConfig::default(), init).is_err());
        assert!(GroupNorm::new(0, 4, GroupNormConfig::default(), init).is_err());
        assert!(GroupNorm::new(2, 4, GroupNormConfig { eps: 0.0, ..Default::default() }, init).is_err());
        assert!(InstanceNorm::new(4, InstanceNormConfig { eps: f64::NAN, ..Default::default() }, init).is_err());
        assert!(RmsNorm::new([], RmsNormConfig::default(), init).is_err());
        assert!(RmsNorm::new([2], RmsNormConfig { eps: -1.0, weight: true }, init).is_err());
        assert!(MultiheadAttention::new(4, 3, MultiheadAttentionConfig::default(), init).is_err());
        assert!(MultiheadAttention::new(4, 0, MultiheadAttentionConfig::default(), init).is_err());
        let config = MultiheadAttentionConfig { dropout: 1.5, ..Default::default() };
        assert!(MultiheadAttention::new(4, 2, config, init).is_err());
    });
    assert!(MaxPool1d::new([2], [1], [2]).is_err());
    assert!(MaxPool1d::new([2], [1], [0]).unwrap().dilation([0]).is_err());
    assert!(AvgPool3d::new([2, 0, 2], [1; 3], [0; 3], true).is_err());
    assert!(AdaptiveAvgPool2d::new([1, 0]).is_err());
}
