//! `interpolate`: the values of PyTorch 2.15, edge cases and gradients.
#![allow(clippy::unwrap_used)]

mod common;

use common::{assert_close, cpu, f32s, f64s, layouts};
use gradus_tensor::autograd::{gradcheck, gradgradcheck};
use gradus_tensor::{DType, ErrorKind, Interpolate, Interpolation, Resized, Tensor, f16};

/// The mode that has this name in PyTorch.
fn mode(name: &str) -> Interpolation {
    match name {
        "nearest" => Interpolation::Nearest,
        "nearest-exact" => Interpolation::NearestExact,
        "linear" => Interpolation::Linear,
        "bilinear" => Interpolation::Bilinear,
        "trilinear" => Interpolation::Trilinear,
        "bicubic" => Interpolation::Bicubic,
        "area" => Interpolation::Area,
        _ => panic!("{name}"),
    }
}

fn how(name: &str, align_corners: bool, antialias: bool) -> Interpolate {
    let how = Interpolate::from(mode(name));
    let how = if align_corners { how.align_corners() } else { how };
    if antialias { how.antialias() } else { how }
}

/// The same image as in the script that computed PyTorch's values.
fn image(spatial: &[usize]) -> Tensor {
    let n: usize = spatial.iter().product();
    let values: Vec<f64> = (0..n).map(|i| ((i * 37 + 11) % 101) as f64 / 50.0 - 1.0).collect();
    f64s(&values, &[&[1, 1], spatial].concat())
}

/// Mode, spatial shape, `align_corners`, antialias; then the shape and values of PyTorch's result.
type BySize = (&'static str, &'static [usize], bool, bool, &'static [usize], &'static [f64]);
#[rustfmt::skip]
const BY_SIZE: &[BySize] = &[
    ("nearest", &[5], false, false, &[1, 1, 8], &[-0.78, -0.78, -0.04, -0.04, 0.7, -0.58, -0.58, 0.16]),
    ("nearest", &[5], false, false, &[1, 1, 3], &[-0.78, -0.04, -0.58]),
    ("nearest-exact", &[5], false, false, &[1, 1, 3], &[-0.78, 0.7, 0.16]),
    ("nearest-exact", &[5], false, false, &[1, 1, 8], &[-0.78, -0.78, -0.04, 0.7, 0.7, -0.58, 0.16, 0.16]),
    ("linear", &[5], false, false, &[1, 1, 7], &[-0.78, -0.357142857143, 0.171428571429, 0.7, -0.214285714286,
        -0.262857142857, 0.16]),
    ("linear", &[5], false, false, &[1, 1, 3], &[-0.533333333333, 0.7, -0.086666666667]),
    ("area", &[5], false, false, &[1, 1, 3], &[-0.41, 0.026666666667, -0.21]),
    ("area", &[5], false, false, &[1, 1, 7], &[-0.78, -0.41, 0.33, 0.7, 0.06, -0.21, 0.16]),
    ("bilinear", &[4, 5], false, false, &[1, 1, 3, 7], &[-0.5, -0.269523809524, 0.114761904762, 0.643333333333,
        -0.270952380952, -0.319523809524, 0.103333333333, 0.73, -0.001428571429, -0.338571428571, 0.19,
        -0.002857142857, -0.195714285714, -0.35, 0.276666666667, 0.507142857143, 0.410476190476, -0.263333333333,
        0.265238095238, -0.071904761905, -0.803333333333]),
    ("bicubic", &[4, 5], false, false, &[1, 1, 3, 7], &[-0.568416140266, -0.349521312493, 0.219072994277,
        0.657106481481, -0.363360395746, -0.470594158298, 0.178117778858, 1.049947157434, -0.140533892128,
        -0.663703534985, 0.19, 0.061401239067, -0.221690962099, -0.371253644315, 0.227463489364, 0.627942379333,
        0.467064976784, -0.277106481481, 0.393939436886, 0.0272122341, -0.920625067487]),
    ("nearest", &[4, 5], false, false, &[1, 1, 3, 7], &[-0.78, -0.78, -0.04, 0.7, 0.7, -0.58, 0.16, 0.9, 0.9, -0.38,
        0.36, 0.36, -0.92, -0.18, 0.56, 0.56, -0.72, 0.02, 0.02, 0.76, -0.52]),
    ("area", &[4, 5], false, false, &[1, 1, 3, 2], &[0.126666666667, -0.076666666667, 0.123333333333, -0.08, 0.12,
        -0.083333333333]),
    ("trilinear", &[2, 3, 3], false, false, &[1, 1, 3, 2, 4], &[-0.73, -0.2675, 0.2875, 0.75, -0.43, 0.0325,
        0.019375, -0.465, -0.43, 0.0325, 0.20875, 0.04, -0.13, 0.3325, 0.2246875, -0.4175, -0.13, 0.3325, 0.13,
        -0.67, 0.17, 0.6325, 0.43, -0.37]),
    ("nearest", &[2, 3, 2], false, false, &[1, 1, 3, 2, 3], &[-0.78, -0.78, -0.04, 0.7, 0.7, -0.58, -0.78, -0.78,
        -0.04, 0.7, 0.7, -0.58, -0.38, -0.38, 0.36, -0.92, -0.92, -0.18]),
    ("area", &[2, 3, 3], false, false, &[1, 1, 1, 2, 2], &[-0.01, 0.225, 0.19, 0.1725]),
    ("linear", &[5], true, false, &[1, 1, 7], &[-0.78, -0.286666666667, 0.206666666667, 0.7, -0.153333333333,
        -0.333333333333, 0.16]),
    ("linear", &[5], true, false, &[1, 1, 1], &[-0.78]),
    ("bilinear", &[4, 5], true, false, &[1, 1, 3, 7], &[-0.78, -0.286666666667, 0.206666666667, 0.7, -0.153333333333,
        -0.333333333333, 0.16, 0.73, -0.123333333333, -0.303333333333, 0.19, 0.01, -0.17, -0.35, 0.22,
        0.713333333333, 0.533333333333, -0.32, 0.173333333333, -0.006666666667, -0.86]),
    ("bicubic", &[4, 5], true, false, &[1, 1, 6, 3], &[-0.78, 0.7, 0.16, 0.28488, 0.52864, -0.01136, 1.0096, 0.27568,
        -0.26432, 0.6928, 0.10432, -0.43568, 0.39136, -0.14864, -0.68864, 0.22, -0.32, -0.86]),
    ("trilinear", &[2, 3, 3], true, false, &[1, 1, 3, 2, 4], &[-0.78, -0.286666666667, 0.206666666667, 0.7, -0.38,
        0.113333333333, -0.066666666667, -0.92, -0.48, 0.013333333333, 0.17, -0.01, -0.08, 0.413333333333,
        0.233333333333, -0.62, -0.18, 0.313333333333, 0.133333333333, -0.72, 0.22, 0.713333333333, 0.533333333333,
        -0.32]),
    ("bilinear", &[7, 9], false, true, &[1, 1, 3, 4], &[-0.097795918367, 0.008989547038, 0.167700348432,
        0.065346938776, -0.234084033613, -0.137388809182, 0.026083213773, 0.165008403361, 0.185673469388,
        0.074773519164, -0.111393728223, -0.022204081633]),
    ("bilinear", &[7, 9], true, true, &[1, 1, 3, 4], &[-0.122434210526, 0.035, 0.150290697674, -0.00671875,
        -0.066432748538, -0.086507936508, 0.009302325581, 0.1125, 0.248421052632, 0.143968253968, -0.118139534884,
        0.22875]),
    ("bicubic", &[7, 9], false, true, &[1, 1, 3, 4], &[-0.110684392378, 0.019878874166, 0.205875267236,
        0.045569201964, -0.269351278696, -0.158903517336, 0.015909051197, 0.190926774676, 0.222258509687,
        0.063389194533, -0.133405672584, -0.013495431558]),
    ("bicubic", &[7, 9], true, true, &[1, 1, 3, 4], &[-0.160422186067, 0.042706630995, 0.1748328594, -0.068957295112,
        -0.065814733289, -0.103250330087, 0.013735774247, 0.164032773418, 0.319287525952, 0.190424751147,
        -0.170845376709, 0.282353709829]),
    ("bilinear", &[4, 5], false, true, &[1, 1, 2, 8], &[0.131428571429, -0.049821428571, -0.236607142857,
        0.225892857143, 0.147321428571, -0.472321428571, -0.280357142857, -0.082857142857, 0.462857142857,
        0.281607142857, 0.040714285714, -0.037857142857, 0.063928571429, 0.346071428571, -0.183392857143,
        -0.617142857143]),
    ("bilinear", &[4, 5], true, true, &[1, 1, 2, 8], &[0.31, 0.123392857143, -0.175178571429, 0.03125,
        0.237678571429, -0.060892857143, -0.25125, -0.26125, 0.333333333333, 0.357142857143, 0.395238095238,
        0.096666666667, -0.15380952381, 0.269047619048, 0.259047619048, -0.472380952381]),
    ("bicubic", &[4, 5], false, true, &[1, 1, 6, 2], &[-0.165444159452, 0.031824800349, 0.04479476234,
        -0.213823967553, 0.200726770077, -0.357841108825, -0.052552572257, 0.053129704508, 0.18627367525,
        -0.01777574703, 0.470758504049, -0.197940547261]),
    ("bicubic", &[4, 5], true, true, &[1, 1, 6, 2], &[-0.080867543555, 0.047919103562, -0.061960350976,
        -0.172211985893, -0.027558892053, -0.464132973944, -0.006929453792, -0.216393459119, 0.054252029653,
        -0.126709114191, 0.1737071776, -0.441860311155]),
    ("bicubic", &[3, 3], false, true, &[1, 1, 1, 1], &[-0.027107750473]),
    ("bicubic", &[3, 3], true, true, &[1, 1, 1, 1], &[-0.8975]),
];

/// Mode, spatial shape, scale factors, antialias; then the shape and values of PyTorch's result.
type Scaled = (&'static str, &'static [usize], &'static [f64], bool, &'static [usize], &'static [f64]);
#[rustfmt::skip]
const BY_FACTOR: &[Scaled] = &[
    ("nearest", &[5], &[1.7], false, &[1, 1, 8], &[-0.78, -0.78, -0.04, -0.04, 0.7, 0.7, -0.58, 0.16]),
    ("linear", &[5], &[1.7], false, &[1, 1, 8], &[-0.78, -0.497058823529, -0.061764705882, 0.373529411765,
        0.511764705882, -0.241176470588, -0.340588235294, 0.094705882353]),
    ("bicubic", &[4, 5], &[0.6, 1.3], false, &[1, 1, 2, 6], &[-0.239270137941, -0.244494017515, 0.296800076704,
        0.427921191987, -0.760644339293, -0.193555411209, 0.646681838871, -0.381340179791, -0.606366920801,
        0.242927571689, 0.77278078061, -0.175044094219]),
    ("bilinear", &[4, 5], &[0.6, 1.3], true, &[1, 1, 2, 6], &[-0.06, -0.142197802198, 0.127362637363, 0.308131868132,
        -0.676483516484, -0.184945054945, 0.56, 0.016581196581, -0.147948717949, 0.075982905983, 0.299914529915,
        -0.296239316239]),
    ("nearest-exact", &[5], &[0.55], false, &[1, 1, 2], &[-0.78, 0.7]),
];

#[test]
fn sizes_give_pytorchs_numbers() {
    for &(name, spatial, align, antialias, shape, want) in BY_SIZE {
        let y = image(spatial).interpolate(Resized::To(&shape[2..]), how(name, align, antialias)).unwrap();
        assert_eq!(y.shape(), shape, "{name}");
        assert_close(&y.to_vec::<f64>().unwrap(), want, 1e-11);
    }
}

#[test]
fn factors_give_pytorchs_numbers() {
    for &(name, spatial, factors, antialias, shape, want) in BY_FACTOR {
        let y = image(spatial).interpolate(Resized::By(factors), how(name, false, antialias)).unwrap();
        assert_eq!(y.shape(), shape, "{name}");
        assert_close(&y.to_vec::<f64>().unwrap(), want, 1e-11);
    }
}

#[test]
fn an_axis_whose_size_stays_is_copied_by_linear_and_antialiased_modes() {
    // PyTorch's values for a row of twelve pixels, with a scale factor that still results in twelve.
    let x = f64s(&(0..12).map(f64::from).collect::<Vec<_>>(), &[1, 1, 12, 1]).expand([1, 1, 12, 12]).unwrap();
    let column = |how: Interpolate| {
        let y = x.interpolate(Resized::By(&[1.08, 1.08]), how).unwrap();
        y.select(3, 0).unwrap().to_vec::<f64>().unwrap()
    };
    let same: Vec<f64> = (0..12).map(f64::from).collect();
    assert_eq!(column(how("bilinear", false, false)), same);
    assert_eq!(column(how("bicubic", false, true)), same);
    let cubic = [-0.026, 0.842, 1.767, 2.695, 3.63, 4.57, 5.514, 6.458, 7.401, 8.339, 9.27, 10.207];
    assert_close(&column(how("bicubic", false, false)), &cubic, 1e-3);
    let exact = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 6.0, 7.0, 8.0, 9.0, 10.0];
    assert_eq!(column(how("nearest-exact", false, false)), exact);
}

#[test]
fn a_bad_pixel_reaches_its_neighbours_only() {
    let mut values = vec![1.0; 9];
    (values[0], values[8]) = (f64::NAN, f64::INFINITY);
    let y = f64s(&values, &[1, 1, 3, 3]).interpolate(Resized::To(&[2, 2]), how("bilinear", false, true)).unwrap();
    // PyTorch returns the same.
    assert_close(&y.to_vec::<f64>().unwrap(), &[f64::NAN, 1.0, 1.0, f64::INFINITY], 1e-12);
    let wide = f32s(&[f32::INFINITY, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0], &[1, 1, 1, 7]);
    let y = wide.interpolate(Resized::To(&[1, 3]), how("bilinear", false, true)).unwrap().to_vec::<f32>().unwrap();
    assert_eq!(y[0], f32::INFINITY);
    assert!((y[2] - 1.0).abs() < 1e-6, "{y:?}");
}

#[test]
fn dtypes_and_batches() {
    // Nearest mode accepts any dtype.
    let bools = Tensor::from_vec(vec![true, false], [1, 1, 2], &cpu()).unwrap();
    let y = bools.interpolate(Resized::To(&[4]), Interpolation::Nearest).unwrap();
    assert_eq!(y.to_vec::<bool>().unwrap(), [true, true, false, false]);
    let bytes = Tensor::from_vec(vec![1u8, 2, 3, 4], [2, 1, 1, 2], &cpu()).unwrap();
    let y = bytes.interpolate(Resized::By(&[1.0, 0.5]), Interpolation::NearestExact).unwrap();
    assert_eq!((y.shape(), y.to_vec::<u8>().unwrap()), (&[2, 1, 1, 1][..], vec![2, 4]));
    // Half precision is computed in f32 and rounded once.
    let x = image(&[6, 5]);
    let half = x.to_dtype(DType::F16).unwrap();
    let y = half.interpolate(Resized::To(&[4, 9]), Interpolation::Bicubic).unwrap();
    let wide = half.to_dtype(DType::F32).unwrap().interpolate(Resized::To(&[4, 9]), Interpolation::Bicubic).unwrap();
    assert_eq!(y.to_vec::<f16>().unwrap(), wide.to_dtype(DType::F16).unwrap().to_vec::<f16>().unwrap());
    // There may be no images or no channels.
    for shape in [[0, 3, 4, 4], [2, 0, 4, 4]] {
        let none = Tensor::zeros(shape, DType::F32, &cpu()).unwrap();
        let y = none.interpolate(Resized::To(&[2, 8]), Interpolation::Bilinear).unwrap();
        assert_eq!(y.shape(), [shape[0], shape[1], 2, 8]);
    }
    // A constant image is unchanged. In nearest mode, this includes -0.
    for name in ["bilinear", "bicubic"] {
        let y = f64s(&[0.3; 77], &[1, 1, 7, 11]).interpolate(Resized::To(&[3, 2]), how(name, false, true)).unwrap();
        assert_close(&y.to_vec::<f64>().unwrap(), &[0.3; 6], 1e-14);
    }
    let zero = f64s(&[-0.0], &[1, 1, 1]).interpolate(Resized::To(&[2]), Interpolation::Nearest).unwrap();
    assert!(zero.to_vec::<f64>().unwrap().iter().all(|v| v.is_sign_negative()));
}

#[test]
fn gradients_of_every_mode_to_second_order() {
    for (name, align, antialias) in [
        ("bilinear", false, false),
        ("bilinear", true, false),
        ("bilinear", false, true),
        ("bicubic", false, false),
        ("bicubic", false, true),
        ("nearest", false, false),
        ("nearest-exact", false, false),
        ("area", false, false),
    ] {
        for x in layouts(&[2, 2, 3, 4], 5) {
            // The result is squared so that the second derivative is not zero.
            let f = |x: &[Tensor]| x[0].interpolate(Resized::To(&[2, 5]), how(name, align, antialias))?.square();
            gradcheck(f, std::slice::from_ref(&x)).unwrap_or_else(|e| panic!("{name}: {e}"));
            gradgradcheck(f, &[x]).unwrap_or_else(|e| panic!("{name}: {e}"));
        }
    }
    let volume = |x: &[Tensor]| x[0].interpolate(Resized::To(&[3, 1, 2]), Interpolation::Trilinear)?.square();
    gradcheck(volume, &[image(&[2, 2, 3])]).unwrap();
    gradgradcheck(volume, &[image(&[2, 2, 3])]).unwrap();
}

#[test]
fn what_makes_no_sense_is_refused() {
    let x = image(&[4, 5]);
    let to = |sizes: &[usize], how: Interpolate| x.interpolate(Resized::To(sizes), how).unwrap_err().to_string();
    let says = |message: String, words: &str| assert!(message.contains(words), "no {words:?} in\n{message}");
    says(to(&[3], how("bilinear", false, false)), "1 sizes for a tensor of rank 4 by bilinear");
    says(to(&[3, 3], how("linear", false, false)), "rank 3");
    says(to(&[3, 3], how("trilinear", false, false)), "rank 5");
    says(to(&[0, 3], how("bilinear", false, false)), "axis 2 goes from 4 to 0");
    says(to(&[3, 3], how("nearest", true, false)), "no corners");
    says(to(&[3, 3], how("area", false, true)), "antialiased");
    let none = Tensor::zeros([1, 1, 0, 4], DType::F32, &cpu()).unwrap();
    assert!(none.interpolate(Resized::To(&[2, 2]), Interpolation::Nearest).is_err());
    let ints = Tensor::zeros([1, 1, 2], DType::I32, &cpu()).unwrap();
    let e = ints.interpolate(Resized::To(&[3]), Interpolation::Linear).unwrap_err();
    assert_eq!(e.kind(), &ErrorKind::UnsupportedDType);
    for factor in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e300, 0.01] {
        let e = x.interpolate(Resized::By(&[factor, 1.0]), Interpolation::Bilinear).unwrap_err().to_string();
        assert!(e.starts_with("interpolate: "), "{e}");
    }
    assert!(x.interpolate(Resized::To(&[usize::MAX, 2]), Interpolation::Nearest).is_err());
}

#[test]
fn results_that_do_not_fit_are_refused_and_empty_ones_cost_nothing() {
    let one = f64s(&[1.0], &[1, 1, 1]);
    let e = one.interpolate(Resized::To(&[1 << 40]), Interpolation::Nearest).unwrap_err();
    assert!(matches!(e.kind(), ErrorKind::OutOfMemory { .. }), "{e}");
    let none = Tensor::zeros([0, 1, 1], DType::F32, &cpu()).unwrap();
    let y = none.interpolate(Resized::To(&[1 << 31]), Interpolation::Linear).unwrap();
    assert_eq!(y.shape(), [0, 1, 1 << 31]);
}
