//! `grid_sample` and `affine_grid`: the values of PyTorch 2.15, edge cases and gradients.
#![allow(clippy::unwrap_used)]

mod common;

use common::{another_cpu, assert_close, cpu, f64s, layouts, randn};
use gradus_tensor::autograd::{BackwardOptions, grad, gradcheck, gradgradcheck};
use gradus_tensor::{DType, GridPadding, GridSample, Sampling, Tensor};

fn how(mode: &str, padding: &str, align_corners: bool) -> GridSample {
    let mode = match mode {
        "bilinear" => Sampling::Bilinear,
        "nearest" => Sampling::Nearest,
        _ => Sampling::Bicubic,
    };
    let padding = match padding {
        "zeros" => GridPadding::Zeros,
        "border" => GridPadding::Border,
        _ => GridPadding::Reflection,
    };
    GridSample { mode, padding, align_corners }
}

fn every_way() -> impl Iterator<Item = GridSample> {
    GOLDEN.iter().map(|&(mode, padding, align, _)| how(mode, padding, align))
}

/// The same image as in the script that computed PyTorch's values.
fn image(shape: &[usize]) -> Tensor {
    let n: usize = shape.iter().product();
    let values: Vec<f64> = (0..n).map(|i| ((i * 37 + 11) % 101) as f64 / 50.0 - 1.0).collect();
    f64s(&values, shape)
}

/// Points inside, at the corners, outside, far outside, and a NaN.
const POINTS: [f64; 20] = [
    -1.0,
    -1.0,
    1.0,
    1.0,
    0.0,
    0.0,
    -0.35,
    0.62,
    0.91,
    -0.77,
    -1.3,
    0.2,
    2.7,
    -3.1,
    0.5,
    1.15,
    f64::NAN,
    0.3,
    1.02,
    -0.98,
];

/// Mode, padding, `align_corners`, and PyTorch's values for an image `[1, 2, 3, 4]`.
type Case = (&'static str, &'static str, bool, &'static [f64]);
#[rustfmt::skip]
const GOLDEN: &[Case] = &[
    ("bilinear", "zeros", false, &[-0.195, -0.18, 0.26, -0.2524, -0.333268, 0.0, 0.0, -0.022, f64::NAN, -0.141404,
        0.005, 0.02, 0.05, 0.43448, 0.126412, 0.0, 0.0, -0.07975, f64::NAN, 0.053636]),
    ("bilinear", "zeros", true, &[-0.78, -0.72, 0.26, 0.2119, -0.253721, -0.0308, 0.0, 0.204, f64::NAN, -0.544364,
        0.02, 0.08, 0.05, 0.26349, -0.065579, 0.4092, 0.0, -0.40375, f64::NAN, 0.192448]),
    ("bilinear", "border", false, &[-0.78, -0.72, 0.26, -0.2524, -0.58, -0.164, -0.58, -0.08, -0.326, -0.58, 0.02,
        0.08, 0.05, 0.43448, 0.22, 0.636, 0.22, -0.29, 0.474, 0.22]),
    ("bilinear", "border", true, &[-0.78, -0.72, 0.26, 0.2119, -0.253721, -0.056, -0.58, 0.24, -0.164, -0.5612, 0.02,
        0.08, 0.05, 0.26349, -0.065579, 0.744, 0.22, -0.475, 0.636, 0.1984]),
    ("bilinear", "reflection", false, &[-0.78, -0.72, 0.26, -0.2524, -0.58, -0.09, -0.846, -0.08, -0.326, -0.58,
        0.02, 0.08, 0.05, 0.43448, 0.22, 0.5686, -0.046, -0.29, 0.474, 0.22]),
    ("bilinear", "reflection", true, &[-0.78, -0.72, 0.26, 0.2119, -0.253721, 0.277, -0.479, 0.17475, -0.164,
        -0.524012, 0.02, 0.08, 0.05, 0.26349, -0.065579, 0.3498, 0.2301, -0.38875, 0.636, 0.177412]),
    ("nearest", "zeros", false, &[-0.78, 0.0, -0.38, -0.18, -0.58, 0.0, 0.0, 0.0, 0.0, 0.0, 0.02, 0.0, 0.42, 0.62,
        0.22, 0.0, 0.0, 0.0, 0.0, 0.0]),
    ("nearest", "zeros", true, &[-0.78, -0.72, -0.38, -0.18, -0.58, 0.16, 0.0, 0.56, 0.0, -0.58, 0.02, 0.08, 0.42,
        0.62, 0.22, 0.96, 0.0, -0.66, 0.0, 0.22]),
    ("nearest", "border", false, &[-0.78, -0.72, -0.38, -0.18, -0.58, 0.16, -0.58, 0.56, 0.16, -0.58, 0.02, 0.08,
        0.42, 0.62, 0.22, 0.96, 0.22, -0.66, 0.96, 0.22]),
    ("nearest", "border", true, &[-0.78, -0.72, -0.38, -0.18, -0.58, 0.16, -0.58, 0.56, 0.16, -0.58, 0.02, 0.08,
        0.42, 0.62, 0.22, 0.96, 0.22, -0.66, 0.96, 0.22]),
    ("nearest", "reflection", false, &[-0.78, -0.72, -0.38, -0.18, -0.58, 0.16, -0.92, 0.56, 0.16, -0.58, 0.02, 0.08,
        0.42, 0.62, 0.22, 0.96, -0.12, -0.66, 0.96, 0.22]),
    ("nearest", "reflection", true, &[-0.78, -0.72, -0.38, -0.18, -0.58, 0.16, -0.92, 0.56, 0.16, -0.58, 0.02, 0.08,
        0.42, 0.62, 0.22, 0.96, -0.12, -0.66, 0.96, 0.22]),
    ("bicubic", "zeros", false, &[-0.27375, -0.30837890625, 0.26, -0.3449273194, -0.548467035824, 0.00493016625, 0.0,
        -0.01898673584, f64::NAN, -0.258903889689, -0.09150390625, 0.11650390625, 0.05, 0.59224425392,
        0.286100887256, -0.04596618375, 0.0, -0.108701538086, f64::NAN, 0.153079863455]),
    ("bicubic", "zeros", true, &[-0.78, -0.72, 0.26, 0.243455578912, -0.333805428722, -0.05618294, 0.0,
        0.33496130127, f64::NAN, -0.587194503752, 0.02, 0.08, 0.05, 0.282396108892, -0.058880430876, 0.589176885,
        0.0, -0.610001918945, f64::NAN, 0.216818345176]),
    ("bicubic", "border", false, &[-0.9375, -0.95900390625, 0.26, -0.3060605662, -0.818681809962, -0.037685, -0.58,
        -0.005716169434, f64::NAN, -0.799910527187, -0.15525390625, 0.25525390625, 0.05, 0.565908014, 0.410375526837,
        0.762315, 0.22, -0.420665783691, f64::NAN, 0.407496022187]),
    ("bicubic", "border", true, &[-0.78, -0.72, 0.26, 0.266434835596, -0.259006207534, -0.015389375, -0.58,
        0.404569094238, f64::NAN, -0.591735470721, 0.02, 0.08, 0.05, 0.213382001684, -0.070562486841, 0.97434165,
        0.22, -0.695245344238, f64::NAN, 0.218203255721]),
    ("bicubic", "reflection", false, &[-1.095, -1.233515625, 0.26, -0.3060605662, -0.9136166818, 0.02933409375,
        -1.050916471875, 0.007225292969, f64::NAN, -1.06438660495, -0.366015625, 0.466015625, 0.05, 0.565908014,
        0.4792410568, 0.68261265625, -0.204366203125, -0.448784667969, f64::NAN, 0.62994010495]),
    ("bicubic", "reflection", true, &[-0.78, -0.72, 0.26, 0.14383382926, -0.405622492827, 0.37648363, -0.6949217225,
        0.26310796875, f64::NAN, -0.575818893385, 0.02, 0.08, 0.05, 0.316016294565, 0.049463131577, 0.424363395,
        0.245034735, -0.55690046875, f64::NAN, 0.216457163385]),
];

#[test]
fn every_mode_and_padding_gives_pytorchs_numbers() {
    let (x, grid) = (image(&[1, 2, 3, 4]), f64s(&POINTS, &[1, 2, 5, 2]));
    for &(mode, padding, align, want) in GOLDEN {
        let y = x.grid_sample(&grid, how(mode, padding, align)).unwrap();
        assert_eq!(y.shape(), [1, 2, 2, 5]);
        let mut got = y.to_vec::<f64>().unwrap();
        // At a NaN point, PyTorch returns NaN or the border value, depending on the padding. Gradus returns NaN, except
        // in nearest mode.
        let mut want = want.to_vec();
        if mode != "nearest" {
            assert!(got[8].is_nan() && got[18].is_nan(), "{mode} {padding}");
            for i in [8, 18] {
                (got[i], want[i]) = (0.0, 0.0);
            }
        }
        assert_close(&got, &want, 1e-11);
    }
}

#[test]
fn points_at_infinity_are_no_trouble() {
    let grid = f64s(&[f64::INFINITY, 0.0, f64::NEG_INFINITY, 0.0, 1e30, 0.0, 0.0, -1e300], &[1, 1, 4, 2]);
    for how in every_way() {
        let y = image(&[1, 1, 3, 4]).grid_sample(&grid, how).unwrap().to_vec::<f64>().unwrap();
        match how.padding {
            GridPadding::Zeros => assert_eq!(y, [0.0; 4], "{how:?}"),
            GridPadding::Border if how.mode != Sampling::Bicubic => {
                assert_close(&y[..3], &[0.36, 0.16, 0.36], 1e-12);
            }
            _ => assert_eq!(y.len(), 4),
        }
    }
}

#[test]
fn a_nan_pixel_is_not_seen_from_outside() {
    let x = Tensor::full([1, 1, 2, 2], f64::NAN, DType::F64, &cpu()).unwrap();
    for mode in ["bilinear", "nearest", "bicubic"] {
        let y = x.grid_sample(&f64s(&[5.0, 0.0], &[1, 1, 1, 2]), how(mode, "zeros", false)).unwrap();
        assert_eq!(y.item().unwrap(), 0.0);
    }
}

#[test]
fn gradients_of_image_and_points_to_second_order() {
    // The points avoid half pixels, whole pixels and borders, where the pieces of the interpolation meet.
    let points = [-0.83, -0.71, 0.37, 0.21, 1.53, -0.13, 0.11, 1.37, -1.57, 0.57, 0.67, -1.83];
    let grid = f64s(&points, &[2, 3, 1, 2]);
    // Each combination is tested with one layout, chosen so that both values of `align_corners` meet every layout.
    let all = layouts(&[2, 2, 3, 4], 3);
    for (i, how) in every_way().enumerate() {
        let x = &all[(i + i / 2) % 4];
        let f = |x: &[Tensor]| x[0].grid_sample(&x[1], how)?.square();
        if how.mode == Sampling::Nearest {
            let f = |x: &[Tensor]| x[0].grid_sample(&grid, how)?.square();
            gradcheck(f, std::slice::from_ref(x)).unwrap_or_else(|e| panic!("{how:?}: {e}"));
            continue;
        }
        let inputs = [x.clone(), grid.clone()];
        gradcheck(f, &inputs).unwrap_or_else(|e| panic!("{how:?}: {e}"));
        gradgradcheck(f, &inputs).unwrap_or_else(|e| panic!("{how:?}: {e}"));
    }
}

#[test]
fn affine_grids_are_pytorchs() {
    let theta = f64s(&[1.1, 0.2, -0.3, 0.4, 0.9, 0.1], &[1, 2, 3]);
    let edges = [
        -1.133333333333,
        -0.616666666667,
        -0.4,
        -0.35,
        0.333333333333,
        -0.083333333333,
        -0.933333333333,
        0.283333333333,
        -0.2,
        0.55,
        0.533333333333,
        0.816666666667,
    ];
    let centres = [-1.6, -1.2, -0.5, -0.8, 0.6, -0.4, -1.2, 0.6, -0.1, 1.0, 1.0, 1.4];
    for (align, want) in [(false, edges), (true, centres)] {
        let grid = theta.affine_grid(2, 3, align).unwrap();
        assert_eq!(grid.shape(), [1, 2, 3, 2]);
        assert_close(&grid.to_vec::<f64>().unwrap(), &want, 1e-11);
    }
    let thin = theta.affine_grid(1, 2, true).unwrap();
    assert_close(&thin.to_vec::<f64>().unwrap(), &[-1.4, -0.3, 0.8, 0.5], 1e-12);
    // The identity transform reproduces the image.
    let same = f64s(&[1.0, 0.0, 0.0, 0.0, 1.0, 0.0], &[1, 2, 3]).affine_grid(3, 4, false).unwrap();
    let x = image(&[1, 1, 3, 4]);
    let y = x.grid_sample(&same, GridSample::default()).unwrap();
    assert_close(&y.to_vec::<f64>().unwrap(), &x.to_vec::<f64>().unwrap(), 1e-12);
    gradcheck(|x| x[0].affine_grid(3, 2, true)?.square(), &[randn(&[2, 2, 3], 1)]).unwrap();
    gradgradcheck(|x| x[0].affine_grid(3, 2, false)?.square(), &[randn(&[2, 2, 3], 1)]).unwrap();
}

#[test]
fn dtypes_and_empty_batches() {
    let (x, grid) = (image(&[1, 2, 3, 4]), f64s(&POINTS[..16], &[1, 2, 4, 2]));
    let want = x.grid_sample(&grid, GridSample::default()).unwrap().to_vec::<f64>().unwrap();
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let y =
            x.to_dtype(dtype).unwrap().grid_sample(&grid.to_dtype(DType::F32).unwrap(), GridSample::default()).unwrap();
        assert_eq!(y.dtype(), DType::F32, "the points are in f32");
        assert_close(&y.to_dtype(DType::F64).unwrap().to_vec().unwrap(), &want, 1e-2);
    }
    let none = Tensor::zeros([0, 2, 3, 4], DType::F32, &cpu()).unwrap();
    let y = none.grid_sample(&Tensor::zeros([0, 5, 6, 2], DType::F32, &cpu()).unwrap(), GridSample::default()).unwrap();
    assert_eq!(y.shape(), [0, 2, 5, 6]);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F32, &cpu()).unwrap();
    let (x, g) = (zeros(&[2, 1, 3, 4]), zeros(&[2, 5, 6, 2]));
    for (x, g, says) in [
        (&zeros(&[1, 3, 4]), &g, "not [n, c, h, w]"),
        (&x, &zeros(&[2, 5, 6, 3]), "not [n, oh, ow, 2]"),
        (&x, &zeros(&[3, 5, 6, 2]), "2 images and 3 grids"),
        (&zeros(&[2, 1, 0, 4]), &g, "no pixels"),
        (&x.to_dtype(DType::U8).unwrap(), &g, "u8"),
        (&x, &g.to_dtype(DType::I64).unwrap(), "i64"),
        (&x, &Tensor::zeros([2, 5, 6, 2], DType::F32, &another_cpu()).unwrap(), "different devices"),
    ] {
        let e = x.grid_sample(g, GridSample::default()).unwrap_err().to_string();
        assert!(e.contains(says), "no {says:?} in\n{e}");
    }
    assert!(zeros(&[2, 3, 3]).affine_grid(2, 2, false).is_err());
    assert!(x.to_dtype(DType::I64).unwrap().reshape([4, 2, 3]).unwrap().affine_grid(2, 2, false).is_err());
}

#[test]
fn a_border_pixels_centre_has_slope_0() {
    let x = f64s(&[1.0, 2.0, 5.0], &[1, 1, 1, 3]);
    for padding in ["border", "reflection"] {
        let g = f64s(&[-1.0, 0.0, 1.0, 0.0], &[1, 1, 2, 2]).with_grad().unwrap();
        let y = x.grid_sample(&g, how("bilinear", padding, true)).unwrap().sum_all().unwrap();
        let slopes = grad(&[&y], &[&g], None, BackwardOptions::new()).unwrap().remove(0).unwrap();
        assert_eq!(slopes.to_vec::<f64>().unwrap(), [0.0; 4], "{padding}");
    }
}
