//! Normalisation layers.

use gradus_nn::{
    BatchNorm1d, BatchNormConfig, GroupNorm, GroupNormConfig, InstanceNorm1d, InstanceNormConfig, LayerNorm,
    LayerNormConfig, LocalResponseNorm, RmsNorm, RmsNormConfig,
};

use crate::reference::Cases;

#[test]
fn normalisation() {
    let t = Cases::of("norm");
    let batch = |config| t.make(|init| BatchNorm1d::new(3, config, init));
    let instance = |config| t.make(|init| InstanceNorm1d::new(3, config, init));
    let (plain, each) = (BatchNormConfig::default(), InstanceNormConfig::default());
    for (n, shape) in [(1, &[4, 3, 5][..]), (2, &[2, 3, 2, 2]), (3, &[2, 3, 1, 2, 2])] {
        t.layer(&format!("batch{n}"), batch(plain), shape);
        let config = BatchNormConfig { eps: 0.1, momentum: Some(0.7), bias: false, ..plain };
        t.layer(&format!("batch{n}settings"), batch(config), shape);
        t.layer(&format!("instance{n}"), instance(each), shape);
        t.layer(&format!("instance{n}affine"), instance(InstanceNormConfig { eps: 0.1, affine: true, ..each }), shape);
        let config = InstanceNormConfig { affine: true, momentum: 0.3, track_running_stats: true, ..each };
        t.layer(&format!("instance{n}tracked"), instance(config), shape);
    }
    t.layer("batch_vectors", batch(plain), &[5, 3]);
    t.layer("batch_cumulative", batch(BatchNormConfig { momentum: None, ..plain }), &[5, 3]);
    t.layer("batch_untracked", batch(BatchNormConfig { track_running_stats: false, ..plain }), &[5, 3]);
    t.layer("batch_plain", batch(BatchNormConfig { affine: false, ..plain }), &[5, 3]);

    let group = |groups, config| t.make(|init| GroupNorm::new(groups, 4, config, init));
    let plain = GroupNormConfig::default();
    t.layer("group", group(2, plain), &[2, 4, 3]);
    t.layer("group_settings", group(4, GroupNormConfig { eps: 0.1, bias: false, ..plain }), &[2, 4, 2, 2]);
    t.layer("group_plain", group(1, GroupNormConfig { affine: false, ..plain }), &[2, 4, 3]);

    let layer = |shape: &[usize], config| t.make(|init| LayerNorm::new(shape, config, init));
    let plain = LayerNormConfig::default();
    t.layer("layer", layer(&[3, 2], plain), &[2, 3, 2]);
    t.layer("layer_settings", layer(&[4], LayerNormConfig { eps: 0.1, bias: false, ..plain }), &[3, 4]);
    t.layer("layer_plain", layer(&[4], LayerNormConfig { weight: false, bias: false, ..plain }), &[3, 4]);
    t.layer("rms", t.make(|init| RmsNorm::new([4], RmsNormConfig { eps: 1e-6, weight: true }, init)), &[3, 4]);
    let config = RmsNormConfig { eps: 0.1, weight: false };
    t.layer("rms_plain", t.make(|init| RmsNorm::new([3, 2], config, init)), &[2, 3, 2]);
    t.layer("response", LocalResponseNorm::new(2), &[2, 4, 3]);
    t.layer("response_settings", LocalResponseNorm { size: 3, alpha: 0.5, beta: 0.4, k: 2.0 }, &[1, 5, 2, 2]);
    t.finish();
}
