//! Layers that move or resize, and comparisons.

use gradus_nn::{
    ChannelShuffle, CircularPad1d, CircularPad2d, CircularPad3d, ConstantPad1d, ConstantPad2d, ConstantPad3d,
    CosineSimilarity, Flatten, Fold, Identity, PairwiseDistance, PixelShuffle, PixelUnshuffle, ReflectionPad1d,
    ReflectionPad2d, ReflectionPad3d, ReplicationPad1d, ReplicationPad2d, ReplicationPad3d, Unflatten, Unfold,
    Upsample, ZeroPad1d, ZeroPad2d, ZeroPad3d,
};
use gradus_tensor::Interpolation;

use crate::reference::Cases;

/// `(before, after)` of each axis, the last axis last, with -2 for 2 if `crop` is set.
fn borders<const N: usize>(crop: bool) -> [(isize, isize); N] {
    let two = if crop { -2 } else { 2 };
    let all = [(1, two), (0, 1), (two, 1)];
    std::array::from_fn(|i| all[N - 1 - i])
}

#[test]
fn moves_and_comparisons() {
    let t = Cases::of("move");
    macro_rules! pads {
        ($($n:literal $shape:expr, $zero:ident $reflection:ident $replication:ident $circular:ident $constant:ident;)*) => {$(
            t.layer(concat!("ZeroPad", $n), $zero::new(borders(false)), &$shape);
            t.layer(concat!("ReflectionPad", $n), $reflection::new(borders(false)), &$shape);
            t.layer(concat!("ReplicationPad", $n), $replication::new(borders(false)), &$shape);
            t.layer(concat!("CircularPad", $n), $circular::new(borders(false)), &$shape);
            t.layer(concat!("ConstantPad", $n), $constant::new(borders(true), 3.5), &$shape);
        )*};
    }
    pads! {
        1 [1, 2, 3], ZeroPad1d ReflectionPad1d ReplicationPad1d CircularPad1d ConstantPad1d;
        2 [1, 2, 3, 4], ZeroPad2d ReflectionPad2d ReplicationPad2d CircularPad2d ConstantPad2d;
        3 [1, 2, 3, 4, 3], ZeroPad3d ReflectionPad3d ReplicationPad3d CircularPad3d ConstantPad3d;
    }
    t.layer("PixelShuffle", PixelShuffle { upscale_factor: 2 }, &[2, 8, 2, 1]);
    t.layer("PixelUnshuffle", PixelUnshuffle { downscale_factor: 2 }, &[2, 2, 4, 2]);
    t.layer("ChannelShuffle", ChannelShuffle { groups: 3 }, &[2, 6, 2, 1]);
    t.layer("Unfold", Unfold::new([2, 3]).dilation([1, 2]).padding([1, 2]).stride([2, 1]), &[1, 2, 4, 3]);
    t.layer("Fold", Fold::new([4, 5], [2, 3]).padding([1, 0]).stride([2, 1]), &[1, 12, 9]);
    t.layer("Flatten", Flatten::default(), &[2, 3, 2]);
    t.layer("Unflatten", Unflatten { axis: 1, sizes: vec![2, 3] }, &[2, 6]);
    t.layer("Identity", Identity, &[2, 3]);

    for (name, n, mode) in [
        ("nearest", 1, Interpolation::Nearest),
        ("nearest", 2, Interpolation::Nearest),
        ("nearest", 3, Interpolation::Nearest),
        ("linear", 1, Interpolation::Linear),
        ("bilinear", 2, Interpolation::Bilinear),
        ("trilinear", 3, Interpolation::Trilinear),
        ("bicubic", 2, Interpolation::Bicubic),
        ("area", 2, Interpolation::Area),
    ] {
        let shape = [&[1, 2], &[4, 3, 2][..n]].concat();
        t.layer(&format!("{name}{n}to"), Upsample::to(&[6, 2, 3][..n], mode), &shape);
        if name != "area" {
            t.layer(&format!("{name}{n}by"), Upsample::by(&[1.5, 2.0, 2.0][..n], mode), &shape);
        }
        if !["nearest", "area"].contains(&name) {
            t.layer(&format!("{name}{n}corners"), Upsample::by(vec![2.0; n], mode).align_corners(), &shape);
        }
    }

    let pair = [t.value(&[3, 4], 0), t.value(&[3, 4], 1)];
    t.check("CosineSimilarity", CosineSimilarity::default(), &pair, |layer, x| layer.forward(&x[0], &x[1]));
    t.check("CosineSimilarity0", CosineSimilarity { axis: 0, eps: 1e-3 }, &pair, |layer, x| {
        layer.forward(&x[0], &x[1])
    });
    t.check("PairwiseDistance", PairwiseDistance::default(), &pair, |layer, x| layer.forward(&x[0], &x[1]));
    let city = PairwiseDistance { p: 1.0, eps: 0.1, keepdim: true };
    t.check("PairwiseDistance1", city, &pair, |layer, x| layer.forward(&x[0], &x[1]));
    t.finish();
}
