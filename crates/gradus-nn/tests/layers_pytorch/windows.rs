//! Convolutions and pooling.

use gradus_nn::{
    AdaptiveAvgPool1d, AdaptiveAvgPool2d, AdaptiveAvgPool3d, AdaptiveMaxPool1d, AdaptiveMaxPool2d, AdaptiveMaxPool3d,
    AvgPool1d, AvgPool2d, AvgPool3d, Conv1d, Conv2d, Conv3d, ConvConfig, ConvTranspose1d, ConvTranspose2d,
    ConvTranspose3d, ConvTransposeConfig, Forward, FractionalMaxPool2d, FractionalMaxPool3d, LpPool1d, LpPool2d,
    LpPool3d, MaxPool1d, MaxPool2d, MaxPool3d, MaxUnpool1d, MaxUnpool2d, MaxUnpool3d, PaddingMode,
};
use gradus_tensor::{DType, Generator, Tensor};

use crate::reference::Cases;

/// The first `N` of three sizes.
fn first<const N: usize>(sizes: [usize; 3]) -> [usize; N] {
    std::array::from_fn(|i| sizes[i])
}

/// The spatial sizes of the inputs.
fn spatial(n: usize) -> &'static [usize] {
    [&[9][..], &[7, 6], &[4, 5, 3]][n - 1]
}

macro_rules! convolutions {
    ($t:ident, $n:literal, $conv:ident, $transpose:ident) => {{
        let (n, t) = ($n, &$t);
        let x = |batch: usize, channels: usize| [&[batch, channels], spatial(n)].concat();
        let k: [usize; $n] = first([3, 2, 3]);
        let conv = |i, o, k, config| t.make(|init| $conv::new(i, o, k, config, init));
        let plain = ConvConfig::<$n>::default;
        t.layer(&format!("{n}"), conv(2, 3, k, plain()), &x(2, 2));
        let config = ConvConfig { stride: [2; $n], padding: [1; $n], groups: 2, bias: false, ..plain() };
        t.layer(&format!("{n}full"), conv(4, 2, k, config), &x(1, 4));
        let config = ConvConfig { dilation: first([2, 3, 1]), padding: first([2, 1, 1]), ..plain() };
        t.layer(&format!("{n}dilated"), conv(2, 2, k, config), &x(1, 2));
        let config = ConvConfig { same: true, dilation: first([1, 2, 1]), ..plain() };
        t.layer(&format!("{n}same"), conv(2, 2, first([4, 2, 3]), config), &x(1, 2));
        t.layer(&format!("{n}valid"), conv(1, 2, k, plain()), &x(1, 1));
        for (name, padding_mode) in [
            ("reflect", PaddingMode::Reflect),
            ("replicate", PaddingMode::Replicate),
            ("circular", PaddingMode::Circular),
        ] {
            let config = ConvConfig { stride: [2; $n], padding: first([2, 1, 1]), padding_mode, ..plain() };
            t.layer(&format!("{n}{name}"), conv(1, 2, k, config), &x(1, 1));
            let config = ConvConfig { same: true, padding_mode, ..plain() };
            t.layer(&format!("{n}{name}same"), conv(1, 2, first([4, 2, 3]), config), &x(1, 1));
        }
        let x = |batch: usize, channels: usize| [&[batch, channels], &[3, 2, 2][..n]].concat();
        let plain = ConvTransposeConfig::<$n>::default;
        t.layer(&format!("{n}t"), t.make(|init| $transpose::new(2, 3, k, plain(), init)), &x(2, 2));
        let (stride, output_padding, dilation) = (first([2, 3, 2]), first([1, 2, 0]), first([1, 1, 2]));
        let config = ConvTransposeConfig { stride, padding: [1; $n], output_padding, dilation, groups: 2, bias: false };
        t.layer(&format!("{n}tfull"), t.make(|init| $transpose::new(4, 2, k, config, init)), &x(1, 4));
        let config = ConvTransposeConfig { stride: first([2, 3, 2]), ..plain() };
        let sized = first([[7, 5, 5], [8, 6, 5]][n % 2]);
        let layer = t.make(|init| $transpose::new(2, 1, k, config, init));
        t.check(&format!("{n}tsized"), layer, &[t.value(&x(1, 2), 0)], |layer, x| layer.forward_sized(&x[0], sized));
    }};
}

#[test]
fn convolutions() {
    let t = Cases::of("conv");
    convolutions!(t, 1, Conv1d, ConvTranspose1d);
    convolutions!(t, 2, Conv2d, ConvTranspose2d);
    convolutions!(t, 3, Conv3d, ConvTranspose3d);
    t.finish();
}

macro_rules! pools {
    ($t:ident, $n:literal, $max:ident, $avg:ident, $lp:ident, $unpool:ident, $aavg:ident, $amax:ident) => {{
        let (n, t) = ($n, &$t);
        let x = [&[2, 2], spatial(n)].concat();
        let k: [usize; $n] = first([3, 2, 2]);
        let (stride, padding) = (first([2, 2, 1]), first([1, 1, 0]));
        for ceil in [false, true] {
            let text = if ceil { "True" } else { "False" };
            let max = || $max::new(k, stride, padding).unwrap().ceil_mode(ceil);
            t.layer(&format!("max{n}{text}"), max(), &x);
            t.layer(&format!("max{n}dilated{text}"), max().dilation(first([2, 1, 2])).unwrap(), &x);
            let avg = |include| $avg::new(k, stride, padding, include).unwrap().ceil_mode(ceil);
            t.layer(&format!("avg{n}{text}"), avg(true), &x);
            t.layer(&format!("avg{n}nopad{text}"), avg(false), &x);
            if n > 1 {
                t.layer(&format!("avg{n}divisor{text}"), avg(true).divisor_override(3).unwrap(), &x);
            }
            t.layer(&format!("lp{n}{text}"), $lp::new(2.0, k, stride).unwrap().ceil_mode(ceil), &x);
        }
        t.layer_of(&format!("lp{n}odd"), $lp::new(3.0, k, stride).unwrap(), t.value(&x, 0).abs().unwrap());
        t.layer(&format!("aavg{n}"), $aavg::new(first([4, 3, 2])).unwrap(), &x);
        t.layer(&format!("amax{n}"), $amax::new(first([4, 3, 2])).unwrap(), &x);
        let (pool, unpool) = ($max::new(k, k, [0; $n]).unwrap(), $unpool::new(k, k, [0; $n]).unwrap());
        let whole: Vec<usize> = k.iter().map(|size| 2 * size).collect();
        t.function(&format!("unpool{n}"), &[t.value(&[&[2, 2], &whole[..]].concat(), 0)], |x| {
            let (y, indices) = pool.forward_with_indices(&x[0])?;
            unpool.forward(&y, &indices, None)
        });
        t.function(&format!("unpool{n}sized"), &[t.value(&x, 0)], |x| {
            let (y, indices) = pool.forward_with_indices(&x[0])?;
            assert_eq!(y.to_vec::<f64>()?, pool.forward(&x[0])?.to_vec::<f64>()?);
            unpool.forward(&y, &indices, Some(std::array::from_fn(|i| spatial(n)[i])))
        });
    }};
}

macro_rules! fractional {
    ($t:ident, $n:literal, $layer:ident) => {{
        let (t, rng) = (&$t, &mut Generator::new(0));
        let sizes: &[usize] = [&[7, 6][..], &[6, 7, 5]][$n - 2];
        let (x, k) = (t.value(&[&[2, 2], sizes].concat(), 0), first([2, 3, 2]));
        let output = first(if $n == 2 { [4, 3, 0] } else { [4, 4, 3] });
        let samples = t.value(&[2, 2, $n], 5).div(3.1).unwrap().add(0.5).unwrap();
        let sized = $layer::to(k, output, rng).unwrap();
        let name = concat!("fractional", $n);
        t.function(name, std::slice::from_ref(&x), |x| Ok(sized.forward_with(&x[0], &samples)?.0));
        let places = |x: &[Tensor]| sized.forward_with(&x[0], &samples)?.1.to_dtype(DType::F64);
        t.function(&format!("{name}places"), std::slice::from_ref(&x), places);
        let by_ratio = $layer::by(k, std::array::from_fn(|i| [0.5, 0.4, 0.6][i]), rng).unwrap();
        t.function(&format!("{name}ratio"), std::slice::from_ref(&x), |x| {
            Ok(by_ratio.forward_with(&x[0], &samples)?.0)
        });
        let one = $layer::to(k, [1; $n], rng).unwrap();
        t.function(&format!("{name}one"), std::slice::from_ref(&x), |x| Ok(one.forward_with(&x[0], &samples)?.0));

        // The layer draws the samples itself, others each time, and the places are those of its output.
        let (y, places) = sized.forward_with_indices(&x).unwrap();
        let flat = x.reshape([2, 2, sizes.iter().product::<usize>()]).unwrap();
        let windows = output.iter().product::<usize>();
        let there = flat.gather(2, &places.reshape([2, 2, windows]).unwrap()).unwrap();
        assert_eq!(there.to_vec::<f64>().unwrap(), y.to_vec::<f64>().unwrap());
        assert_ne!(sized.forward(&x).unwrap().to_vec::<f64>().unwrap(), y.to_vec::<f64>().unwrap());
        assert!($layer::to(k, first([6, 6, 2]), rng).unwrap().forward(&x).is_err());
        assert!($layer::to(k, [0; $n], rng).is_err() && $layer::by(k, [1.0; $n], rng).is_err());
        assert!(sized.forward_with(&x, &samples.narrow(0, 0, 1).unwrap()).is_err());
    }};
}

#[test]
fn pooling() {
    let t = Cases::of("pool");
    pools!(t, 1, MaxPool1d, AvgPool1d, LpPool1d, MaxUnpool1d, AdaptiveAvgPool1d, AdaptiveMaxPool1d);
    pools!(t, 2, MaxPool2d, AvgPool2d, LpPool2d, MaxUnpool2d, AdaptiveAvgPool2d, AdaptiveMaxPool2d);
    pools!(t, 3, MaxPool3d, AvgPool3d, LpPool3d, MaxUnpool3d, AdaptiveAvgPool3d, AdaptiveMaxPool3d);
    fractional!(t, 2, FractionalMaxPool2d);
    fractional!(t, 3, FractionalMaxPool3d);
    t.finish();
}
