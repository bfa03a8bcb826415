//! Tests the results of filters on `u8`, alpha, batches, strides, NaN and empty images. Also tests gradients and
//! errors.
#![allow(clippy::unwrap_used)]

mod common;

use common::{bytes, cpu, floats, random};
use gradus_image::*;
use gradus_tensor::autograd::{gradcheck, gradgradcheck};
use gradus_tensor::{DType, Result, Sampling, Tensor};

type Filter = (&'static str, fn(&Tensor) -> Result<Tensor>);

/// Filters that keep the shape.
const SAME_SHAPE: &[Filter] = &[
    ("blur", |x| gaussian_blur(x, 0.8, None, Border::Replicate)),
    ("blur zero", |x| gaussian_blur(x, 0.8, None, Border::Zero)),
    ("blur reflect", |x| gaussian_blur(x, 0.8, Some(4), Border::Reflect)),
    ("sobel", |x| sobel(x, None, Border::Replicate)),
    ("sharpen", |x| sharpen(x, 0.7, Border::Replicate)),
    ("grayscale", |x| grayscale(x, true)),
    ("brightness", |x| brightness(x, 0.8, Range::Unit)),
    ("brightness open", |x| brightness(x, 1.7, Range::Open)),
    ("contrast", |x| contrast(x, 0.6, Range::Unit)),
    ("contrast open", |x| contrast(x, 1.6, Range::Open)),
    ("contrast about mean", |x| contrast_about_mean(x, 0.5, Range::Open)),
    ("invert", invert),
];

/// Filters that move pixels together with their alpha.
const MOVES: &[Filter] = &[
    ("resize", |x| resize(x, 2, 5)),
    ("crop", |x| crop(x, 1, 0, 2, 3)),
    ("center crop", |x| center_crop(x, 1, 2)),
    ("flip horizontal", flip_horizontal),
    ("flip vertical", flip_vertical),
    ("rotate", |x| rotate(x, 33.0, Rotate::default())),
    ("rotate expand", |x| rotate(x, 33.0, Rotate { expand: true, ..Rotate::default() })),
    ("rotate 90", |x| rotate(x, 90.0, Rotate { expand: true, ..Rotate::default() })),
];

fn every() -> impl Iterator<Item = &'static Filter> {
    SAME_SHAPE.iter().chain(MOVES)
}

#[test]
fn a_batch_gives_what_its_images_give() {
    for (name, f) in every() {
        for channels in [1, 3, 4] {
            let x = random(&[2, 2, channels, 3, 4], 7);
            let y = f(&x).unwrap();
            for i in 0..2 {
                let one = f(&x.select(0, i).unwrap().select(0, 1).unwrap()).unwrap();
                let of_batch = y.select(0, i).unwrap().select(0, 1).unwrap();
                let off = floats(&one).iter().zip(floats(&of_batch)).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
                assert!(off < 1e-12, "{name}, {channels} channels: {off}");
            }
        }
    }
}

#[test]
fn alpha_passes_through_or_moves_along() {
    let x = random(&[4, 3, 4], 3);
    let alpha = x.narrow(0, 3, 1).unwrap();
    for (name, f) in SAME_SHAPE {
        let y = f(&x).unwrap();
        assert_eq!(y.shape(), x.shape(), "{name}");
        assert_eq!(floats(&y.narrow(0, 3, 1).unwrap()), floats(&alpha), "{name}");
    }
    for (name, f) in MOVES {
        let y = f(&x).unwrap();
        assert_eq!(floats(&y.narrow(0, 3, 1).unwrap()), floats(&f(&alpha).unwrap()), "{name}");
    }
    let t = threshold(&x, 0.5).unwrap();
    assert_eq!(floats(&t.narrow(0, 3, 1).unwrap()), floats(&alpha));
    assert_eq!(grayscale(&x, false).unwrap().shape(), [1, 3, 4]);
}

#[test]
fn bytes_are_the_floats_rounded_and_saturated() {
    let values: Vec<u8> = (0..48).map(|i| (i * 53 % 256) as u8).collect();
    let x = bytes(&values, &[4, 3, 4]);
    let unit = x.to_dtype(DType::F32).unwrap().div(255.0).unwrap();
    for (name, f) in every().chain(&[("threshold", (|x| threshold(x, 0.4)) as fn(&Tensor) -> Result<Tensor>)]) {
        let got = f(&x).unwrap();
        assert_eq!(got.dtype(), DType::U8, "{name}");
        let want: Vec<f64> = floats(&f(&unit).unwrap()).iter().map(|v| v * 255.0).collect();
        for (g, w) in floats(&got).iter().zip(&want) {
            assert!((g - w.clamp(0.0, 255.0)).abs() <= 0.5001, "{name}: {g} for {w}");
        }
    }
    // The ends of the range are exact, and halves are rounded to even: 1 * 0.5 gives 0, and 3 * 0.5 gives 2.
    assert_eq!(floats(&invert(&bytes(&[0, 1, 255], &[1, 1, 3])).unwrap()), [255.0, 254.0, 0.0]);
    let halved = brightness(&bytes(&[1, 3, 255], &[1, 1, 3]), 0.5, Range::Unit).unwrap();
    assert_eq!(floats(&halved), [0.0, 2.0, 128.0]);
    assert_eq!(floats(&brightness(&bytes(&[200], &[1, 1, 1]), 9.0, Range::Open).unwrap()), [255.0]);
    let t = threshold(&bytes(&[127, 128, 255], &[1, 1, 3]), 0.5).unwrap();
    assert_eq!(floats(&t), [0.0, 255.0, 255.0]);
}

#[test]
fn strides_do_not_matter() {
    let x = random(&[4, 3, 3], 5);
    let turned = x.permute(&[2, 0, 1]).unwrap().copy().unwrap().permute(&[1, 2, 0]).unwrap();
    let flipped = x.flip(-1).unwrap().copy().unwrap().flip(-1).unwrap();
    let column = random(&[4, 3, 1], 6);
    let (wide, dense) = (column.expand([4, 3, 3]).unwrap(), column.expand([4, 3, 3]).unwrap().copy().unwrap());
    for (name, f) in every() {
        for other in [&turned, &flipped] {
            assert_eq!(floats(&f(&x).unwrap()), floats(&f(other).unwrap()), "{name}");
        }
        assert_eq!(floats(&f(&dense).unwrap()), floats(&f(&wide).unwrap()), "{name}");
    }
}

#[test]
fn nothing_gives_nothing() {
    for (name, f) in every() {
        let y = f(&Tensor::zeros([0, 3, 3, 4], DType::F32, &cpu()).unwrap()).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(y.numel(), 0, "{name}");
    }
    for (name, f) in SAME_SHAPE {
        let y = f(&Tensor::zeros([3, 0, 4], DType::F32, &cpu()).unwrap()).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(y.shape(), [3, 0, 4], "{name}");
    }
}

#[test]
fn nan_stays_near_where_it_is() {
    let mut values = vec![0.5; 121];
    values[60] = f64::NAN;
    let x = Tensor::from_vec(values, [1, 11, 11], &cpu()).unwrap();
    for (name, f) in SAME_SHAPE.iter().filter(|(name, _)| *name != "contrast about mean") {
        let y = floats(&f(&x).unwrap());
        assert!(y[60].is_nan() || *name == "sobel", "{name}");
        assert!(y[0].is_finite() && y[120].is_finite(), "{name}");
        assert!(y.iter().any(|v| v.is_nan()), "{name}");
    }
    assert_eq!(floats(&threshold(&x, 0.5).unwrap())[59..62], [1.0, 0.0, 1.0]);
}

#[test]
fn gradients_to_second_order() {
    for (name, f) in every() {
        for channels in [1, 3, 4] {
            // The image is not square, and its values lie in a range in which nothing is clamped.
            let x = random(&[channels, 3, 4], 11).mul(0.6).unwrap().add(0.2).unwrap();
            let transposed = x.transpose(-1, -2).unwrap().copy().unwrap().transpose(-1, -2).unwrap();
            for x in [x, transposed] {
                let f = |x: &[Tensor]| f(&x[0])?.square();
                gradcheck(f, std::slice::from_ref(&x)).unwrap_or_else(|e| panic!("{name}: {e}"));
                gradgradcheck(f, &[x]).unwrap_or_else(|e| panic!("{name}: {e}"));
            }
        }
    }
    gradcheck(|x| normalize(&x[0], &[0.4, 0.5, 0.6], &[0.2, 0.3, 0.4])?.square(), &[random(&[2, 3, 2, 2], 1)]).unwrap();
    // A uniform image has no edges, and its gradient is 0 instead of NaN.
    let x = Tensor::full([1, 3, 3], 0.3, DType::F64, &cpu()).unwrap().with_grad().unwrap();
    let g = sobel(&x, None, Border::Replicate).unwrap().sum_all().unwrap().backward().unwrap();
    assert_eq!(floats(g.get(&x).unwrap()), [0.0; 9]);
}

#[test]
fn known_values() {
    let row = |v: &[f64]| Tensor::from_vec(v, [1, 1, v.len()], &cpu()).unwrap();
    assert_eq!(floats(&contrast(&row(&[0.0, 0.5, 0.75, 1.0]), 2.0, Range::Unit).unwrap()), [0.0, 0.5, 1.0, 1.0]);
    assert_eq!(floats(&contrast(&row(&[0.0, 1.0]), 2.0, Range::Open).unwrap()), [-0.5, 1.5]);
    assert_eq!(floats(&contrast_about_mean(&row(&[0.0, 0.5]), 0.0, Range::Unit).unwrap()), [0.25, 0.25]);
    assert_eq!(floats(&normalize(&row(&[0.0, 1.0]), &[0.5], &[0.25]).unwrap()), [-2.0, 2.0]);
    // A step of height 1 is an edge of strength 4. With zeros beyond the border, the border itself is an edge.
    let beside = |border| floats(&sobel(&row(&[1.0, 1.0, 1.0, 1.0]), None, border).unwrap());
    assert_eq!(beside(Border::Reflect), [0.0; 4]);
    assert!(beside(Border::Zero)[3] > 0.0);
    assert_eq!(floats(&sharpen(&row(&[1.0]), 1.0, Border::Zero).unwrap()), [5.0]);
    assert_eq!(floats(&sobel(&row(&[0.0, 0.0, 1.0, 1.0]), None, Border::Replicate).unwrap()), [0.0, 4.0, 4.0, 0.0]);
    let x = row(&[0.3, 0.9]);
    assert_eq!(floats(&gaussian_blur(&x, 0.0, None, Border::Zero).unwrap()), floats(&x));
    // Quarter turns go counter-clockwise.
    let quarter = rotate(&row(&[1.0, 2.0, 3.0]), 90.0, Rotate { expand: true, ..Rotate::default() }).unwrap();
    assert_eq!((quarter.shape(), floats(&quarter)), (&[1, 3, 1][..], vec![3.0, 2.0, 1.0]));
    let square = random(&[1, 3, 3], 9);
    let mut turned = square.clone();
    for _ in 0..4 {
        turned = rotate(&turned, 90.0, Rotate::default()).unwrap();
    }
    assert_eq!(floats(&turned), floats(&square));
    // Angles close to quarter turns give nearly the same results as quarter turns.
    for (near, quarter) in [(89.99999, 90.0), (-90.00001, 270.0), (179.99999, -180.0)] {
        let (a, b) =
            (rotate(&square, near, Rotate::default()).unwrap(), rotate(&square, quarter, Rotate::default()).unwrap());
        let off = floats(&a).iter().zip(floats(&b)).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(off < 1e-5, "{near}: {off}");
    }
    // A quarter turn that keeps the size loses the ends of the row.
    let kept = rotate(&row(&[1.0, 2.0, 3.0]), 90.0, Rotate::default()).unwrap();
    assert_eq!(floats(&kept), [0.0, 2.0, 0.0]);
    let big = rotate(&random(&[1, 10, 20], 1), 45.0, Rotate { expand: true, sampling: Sampling::Nearest }).unwrap();
    assert_eq!(big.shape(), [1, 22, 22]);
}

#[test]
fn bytes_and_floats_and_channels_last() {
    let all: Vec<u8> = (0..=255).collect();
    let x = bytes(&all, &[1, 16, 16]);
    for dtype in [DType::F64, DType::F32, DType::F16, DType::BF16] {
        let unit = to_float(&x, dtype).unwrap();
        assert_eq!(unit.dtype(), dtype);
        assert_eq!(floats(&unit)[255], 1.0);
        // bf16 has too few bits for an exact round trip.
        assert!(dtype == DType::BF16 || floats(&to_bytes(&unit).unwrap()) == floats(&x), "{dtype}");
    }
    let odd = Tensor::from_vec(vec![-1.0, 0.5 / 255.0, 1.5 / 255.0, 7.0, f64::NAN, f64::INFINITY], [1, 1, 6], &cpu())
        .unwrap();
    assert_eq!(floats(&to_bytes(&odd).unwrap()), [0.0, 0.0, 2.0, 255.0, 0.0, 255.0]);
    let deep = Tensor::from_vec(vec![0u16, 257, 65535], [1, 1, 3], &cpu()).unwrap();
    assert_eq!(floats(&to_bytes(&deep).unwrap()), [0.0, 1.0, 255.0]);
    assert!(to_bytes(&Tensor::zeros([1, 1, 1], DType::I32, &cpu()).unwrap()).unwrap_err().to_string().contains("i32"));
    assert!(to_float(&x, DType::I64).is_err());
    let x = random(&[2, 4, 5, 3], 1);
    let y = from_hwc(&x).unwrap();
    assert_eq!(y.shape(), [2, 3, 4, 5]);
    assert_eq!(floats(&y.select(1, 2).unwrap()), floats(&x.select(3, 2).unwrap()));
    assert_eq!(floats(&to_hwc(&y).unwrap()), floats(&x));
    assert!(from_hwc(&random(&[4, 5], 1)).is_err() && to_hwc(&random(&[4, 5], 1)).is_err());
}

#[test]
fn what_makes_no_sense_is_refused() {
    let x = random(&[3, 4, 5], 1);
    let says = |result: Result<Tensor>, words: &str| {
        let e = result.unwrap_err().to_string();
        assert!(e.contains(words), "no {words:?} in\n{e}");
    };
    for (name, f) in every() {
        for shape in [&[4, 5][..], &[2, 4, 5], &[5, 4, 3], &[0, 4, 5]] {
            let e = f(&Tensor::zeros(shape, DType::F32, &cpu()).unwrap()).unwrap_err().to_string();
            assert!(e.contains("no image"), "{name}: {e}");
        }
        says(f(&Tensor::zeros([3, 4, 5], DType::I32, &cpu()).unwrap()), "i32");
        says(f(&Tensor::zeros([3, 4, 5], DType::Bool, &cpu()).unwrap()), "bool");
    }
    for bad in [-1.0, f64::NAN, f64::INFINITY] {
        says(gaussian_blur(&x, bad, None, Border::Zero), "sigma is");
        says(sharpen(&x, bad, Border::Replicate), "amount is");
        says(brightness(&x, bad, Range::Unit), "factor is");
        says(contrast(&x, bad, Range::Unit), "factor is");
        says(contrast_about_mean(&x, bad, Range::Unit), "factor is");
        says(sobel(&x, Some(bad), Border::Replicate), "threshold is");
    }
    says(threshold(&x, f64::NAN), "t is NaN");
    says(rotate(&x, f64::NAN, Rotate::default()), "NaN degrees");
    says(gaussian_blur(&x, 1e9, None, Border::Zero), "3000000000 pixels");
    says(gaussian_blur(&x, 1e300, None, Border::Zero), "pixels");
    says(resize(&x, 0, 5), "axis 2 goes from 4 to 0");
    says(crop(&x, 2, 0, 3, 1), "3 x 1 pixels from row 2, column 0 are not within 4 x 5");
    says(crop(&x, usize::MAX, 0, 2, 1), "not within");
    says(center_crop(&x, 5, 5), "not within 4 x 5");
    says(normalize(&x, &[0.5], &[1.0]), "1 means and 1 deviations for 3 channels");
    says(normalize(&x, &[0.5; 3], &[1.0, 0.0, 1.0]), "above 0");
    says(normalize(&bytes(&[0], &[1, 1, 1]), &[0.5], &[1.0]), "u8");
}
