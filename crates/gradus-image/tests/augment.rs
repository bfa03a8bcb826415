//! Tests random changes: what they may do, and how often.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use gradus_cpu::CpuBackend;
use gradus_image::augment::{
    ColorJitter, RandomErasing, ResizedCrop, color_jitter, cutmix, mixup, random_crop, random_erasing,
    random_flip_horizontal, random_flip_vertical, random_resized_crop, random_rotation,
};
use gradus_image::{Range, Rotate, saturation};
use gradus_tensor::{DType, Device, Generator, Tensor};

fn device() -> Device {
    Device::from_backend(Arc::new(CpuBackend::new().unwrap()))
}

/// An image whose pixels all differ, `[1, h, w]`.
fn ramp(h: usize, w: usize, dtype: DType, d: &Device) -> Tensor {
    let values = (1..=(h * w) as i64).collect::<Vec<_>>();
    Tensor::from_vec(values, [1, h, w], d).unwrap().to_dtype(dtype).unwrap()
}

fn values(x: &Tensor) -> Vec<f32> {
    x.to_dtype(DType::F32).unwrap().to_vec().unwrap()
}

#[test]
fn crops_are_sections_and_all_places_come() {
    let (d, mut g) = (device(), Generator::new(1));
    let x = ramp(4, 5, DType::U8, &d);
    let mut corners = std::collections::BTreeSet::new();
    for _ in 0..300 {
        let cut = random_crop(&x, 2, 3, 0, &mut g).unwrap();
        let v = values(&cut);
        assert_eq!(v, [v[0], v[0] + 1.0, v[0] + 2.0, v[0] + 5.0, v[0] + 6.0, v[0] + 7.0]);
        corners.insert(v[0] as i64);
    }
    assert!(corners.into_iter().eq([1, 2, 3, 6, 7, 8, 11, 12, 13]));
    // With padding, the whole image fits in at 9 places.
    let zeros: Vec<usize> = (0..300)
        .map(|_| values(&random_crop(&x, 4, 5, 1, &mut g).unwrap()).iter().filter(|&&v| v == 0.0).count())
        .collect();
    assert!([0, 4, 5, 8].iter().all(|count| zeros.contains(count)) && zeros.iter().all(|&count| count <= 8));
    assert_eq!(random_crop(&x, 6, 7, 1, &mut g).unwrap().shape(), [1, 6, 7]);
    let e = random_crop(&x, 7, 7, 1, &mut g).unwrap_err().to_string();
    assert!(e.contains("7 x 7 pixels are not within 6 x 7, with padding"), "{e}");
    assert!(random_crop(&x, 1, 1, usize::MAX, &mut g).is_err());
}

#[test]
fn flips_come_as_often_as_told() {
    let (d, mut g) = (device(), Generator::new(2));
    let x = ramp(2, 2, DType::F32, &d);
    let count = |first: f32, flip: &mut dyn FnMut() -> Tensor| (0..400).filter(|_| values(&flip())[0] == first).count();
    let across = count(2.0, &mut || random_flip_horizontal(&x, 0.25, &mut g).unwrap());
    let down = count(3.0, &mut || random_flip_vertical(&x, 1.0, &mut g).unwrap());
    assert_eq!(down, 400);
    // Five standard deviations of 400 draws are 43.
    assert!((100 - 43..100 + 43).contains(&across), "{across}");
    assert!(random_flip_horizontal(&x, 1.5, &mut g).unwrap_err().to_string().contains("the probability is 1.5"));
}

#[test]
fn resized_crops_have_the_size_and_stay_within_scale_and_ratio() {
    let (d, mut g) = (device(), Generator::new(3));
    let x = ramp(60, 80, DType::F32, &d);
    for _ in 0..50 {
        let cut = random_resized_crop(&x, 4, 4, ResizedCrop::default(), &mut g).unwrap();
        assert_eq!(cut.shape(), [1, 4, 4]);
        // The slope of the resized ramp tells the size of the section.
        let v = values(&cut);
        let (columns, rows) = ((v[2] - v[1]) * 4.0, (v[9] - v[5]) / 80.0 * 4.0);
        let (area, ratio) = (rows * columns / 4800.0, columns / rows);
        assert!((0.075..1.01).contains(&area) && (0.72..1.38).contains(&ratio), "{rows} x {columns}");
    }
    // No section of a strip has such a ratio; the largest in the middle has.
    let strip = ramp(10, 100, DType::F32, &d);
    let how = ResizedCrop { scale: (1.0, 1.0), ..Default::default() };
    let cut = random_resized_crop(&strip, 10, 13, how, &mut g).unwrap();
    assert_eq!(values(&cut)[..2], [44.0, 45.0]);
    assert!(random_resized_crop(&x, 0, 4, how, &mut g).is_err());
    let how = ResizedCrop { scale: (0.5, 0.1), ..Default::default() };
    assert!(random_resized_crop(&x, 4, 4, how, &mut g).unwrap_err().to_string().contains("scale goes from 0.5 to 0.1"));
}

#[test]
fn saturation_is_that_of_pillow() {
    let d = device();
    let x = Tensor::from_vec(vec![200u8, 10, 30, 100, 100, 100, 50, 250, 0], [3, 3, 1], &d).unwrap();
    // PIL.ImageEnhance.Color of the pixels (200, 100, 50), (10, 100, 250) and (30, 100, 0).
    for (factor, expected) in [
        (0.0, [124, 90, 68, 124, 90, 68, 124, 90, 68]),
        (0.5, [162, 50, 49, 112, 95, 84, 87, 170, 34]),
        (2.0, [255, 0, 0, 76, 110, 132, 0, 255, 0]),
    ] {
        let found = values(&saturation(&x, factor, Range::Unit).unwrap());
        // Pillow rounds the luma first.
        assert!(found.iter().zip(expected).all(|(a, b)| (a - b as f32).abs() <= 1.0), "{factor}: {found:?}");
    }
    assert!(saturation(&x, -1.0, Range::Unit).is_err());
}

#[test]
fn jitter_of_0_changes_nothing_and_others_do() {
    let (d, mut g) = (device(), Generator::new(4));
    let x = Tensor::rand([3, 4, 4], DType::F32, &d, &mut g).unwrap();
    assert_eq!(values(&color_jitter(&x, ColorJitter::default(), &mut g).unwrap()), values(&x));
    let jitter = ColorJitter { brightness: 0.4, ..Default::default() };
    for _ in 0..20 {
        let bright = values(&color_jitter(&x, jitter, &mut g).unwrap());
        let factor = bright[0] / values(&x)[0];
        assert!((0.6..1.4).contains(&factor) || bright[0] == 1.0);
        assert!(bright.iter().zip(values(&x)).all(|(a, b)| (a - (b * factor).min(1.0)).abs() < 1e-5 || *a == 1.0));
    }
    let (red, jitter) = (uniform_red(), ColorJitter { hue: 0.1, ..Default::default() });
    for _ in 0..20 {
        // Red stays the largest, and value and saturation are whole.
        let turned = values(&color_jitter(&red, jitter, &mut g).unwrap());
        let others = (turned[1].min(turned[2]), turned[1].max(turned[2]));
        assert!(turned[0] == 1.0 && others.0 == 0.0 && (0.0..=0.6 + 1e-6).contains(&others.1), "{turned:?}");
    }
    let jitter = ColorJitter { hue: 0.51, ..Default::default() };
    assert!(color_jitter(&x, jitter, &mut g).unwrap_err().to_string().contains("hue is 0.51"));
    let jitter = ColorJitter { contrast: f64::NAN, ..Default::default() };
    assert!(color_jitter(&x, jitter, &mut g).unwrap_err().to_string().contains("contrast is NaN"));
}

#[test]
fn an_erased_rectangle_has_the_area_and_the_value() {
    let (d, mut g) = (device(), Generator::new(5));
    let x = Tensor::ones([3, 40, 40], DType::F32, &d).unwrap();
    let how = RandomErasing { p: 1.0, value: 0.5, ..Default::default() };
    for _ in 0..50 {
        let v = values(&random_erasing(&x, how, &mut g).unwrap());
        let erased = |channel: usize| v[channel * 1600..(channel + 1) * 1600].iter().map(|&v| v == 0.5);
        assert!(erased(0).eq(erased(1)) && erased(0).eq(erased(2)));
        let share = erased(0).filter(|&e| e).count() as f64 / 1600.0;
        assert!((0.015..0.35).contains(&share), "{share}");
    }
    let never = RandomErasing { p: 0.0, ..how };
    assert_eq!(values(&random_erasing(&x, never, &mut g).unwrap()), values(&x));
}

#[test]
fn rotations_stay_within_the_angle() {
    let (d, mut g) = (device(), Generator::new(6));
    let x = ramp(9, 9, DType::F32, &d);
    let same = random_rotation(&x, 0.0, Rotate::default(), &mut g).unwrap();
    assert_eq!(values(&same), values(&x));
    let turned = random_rotation(&x, 180.0, Rotate::default(), &mut g).unwrap();
    assert_ne!(values(&turned), values(&x));
    assert!(random_rotation(&x, -1.0, Rotate::default(), &mut g).is_err());
}

#[test]
fn mixed_images_and_labels_fit_together() {
    let (d, mut g) = (device(), Generator::new(7));
    // Image i consists of the number i.
    let x = Tensor::arange(0, 3, 1, DType::F32, &d).unwrap().reshape([3, 1, 1, 1]).unwrap();
    let x = x.expand([3, 3, 8, 8]).unwrap();
    let y = Tensor::from_vec(vec![0i64, 1, 2], [3], &d).unwrap();
    for _ in 0..30 {
        let m = mixup(&x, &y, 0.4, &mut g).unwrap();
        assert_eq!(m.others.to_vec::<i64>().unwrap(), [2, 0, 1]);
        for (i, v) in values(&m.images).chunks(192).enumerate() {
            let mix = m.share * i as f64 + (1.0 - m.share) * ((i + 2) % 3) as f64;
            assert!(v.iter().all(|v| (f64::from(*v) - mix).abs() < 1e-6));
        }
        let m = cutmix(&x, &y, 1.0, &mut g).unwrap();
        for (i, v) in values(&m.images).chunks(192).enumerate() {
            let own = v.iter().filter(|&&v| v == i as f32).count();
            let other = v.iter().filter(|&&v| v == ((i + 2) % 3) as f32).count();
            assert_eq!(own + other, 192);
            assert!((own as f64 / 192.0 - m.share).abs() < 1e-12);
        }
    }
    for (alpha, labels) in [(0.0, &y), (f64::NAN, &y), (1.0, &y.narrow(0, 0, 2).unwrap())] {
        assert!(mixup(&x, labels, alpha, &mut g).is_err() && cutmix(&x, labels, alpha, &mut g).is_err());
    }
    assert!(mixup(&x.to_dtype(DType::U8).unwrap(), &y, 1.0, &mut g).is_err());
}

#[test]
fn shares_are_from_the_beta_distribution() {
    let (d, mut g) = (device(), Generator::new(8));
    let x = Tensor::zeros([1, 1, 1, 1], DType::F32, &d).unwrap();
    let y = Tensor::from_vec(vec![0i64], [1], &d).unwrap();
    for alpha in [0.1, 0.4, 1.0, 5.0] {
        let shares: Vec<f64> = (0..2000).map(|_| mixup(&x, &y, alpha, &mut g).unwrap().share).collect();
        let mean = shares.iter().sum::<f64>() / 2000.0;
        let variance = shares.iter().map(|s| (s - 0.5) * (s - 0.5)).sum::<f64>() / 2000.0;
        // Beta(a, a) has mean 1/2 and variance 1 / (8 a + 4).
        let expected = 1.0 / (8.0 * alpha + 4.0);
        assert!((mean - 0.5).abs() < 5.0 * (expected / 2000.0).sqrt(), "{alpha}: mean {mean}");
        assert!((variance / expected - 1.0).abs() < 0.15, "{alpha}: variance {variance} for {expected}");
    }
}

fn uniform_red() -> Tensor {
    Tensor::from_vec(vec![1.0f32, 0.0, 0.0], [3, 1, 1], &device()).unwrap()
}
