//! Tests of the accuracy against the f64 functions of the `libm` crate, on every 4099th bit pattern by default. To test
//! all 2^32 bit patterns, run `GRADUS_MATH_STRIDE=1 cargo test --release -p gradus-cpu math -- --nocapture`, with FMA
//! (`RUSTFLAGS=-Ctarget-cpu=native`). Each test prints the largest error that it found.

/// Bit patterns of non-negative points, other than powers of two, near which errors are likely.
const DELICATE: [f32; 23] = [
    core::f32::consts::FRAC_1_SQRT_2,
    core::f32::consts::SQRT_2,
    core::f32::consts::SQRT_2 - 1.0,
    core::f32::consts::LN_2 / 2.0,
    core::f32::consts::FRAC_PI_4,
    core::f32::consts::FRAC_PI_2,
    core::f32::consts::PI,
    3.0,
    3.92,
    8.66,
    9.19,
    10.0,
    10.05,
    11_371.0 * core::f32::consts::PI,
    16.64,
    17.33,
    87.33,
    88.37,
    88.72,
    89.41,
    103.28,
    103.97,
    149.5,
];

/// Returns the distance from `got` to the true value `want`, in units in the last place of `want` rounded to f32. It is
/// infinite if only one of them is NaN or if a zero has the wrong sign.
fn ulps(got: f32, want: f64) -> f64 {
    if want.is_nan() || got.is_nan() {
        return if want.is_nan() && got.is_nan() { 0.0 } else { f64::INFINITY };
    }
    if (got == 0.0 || want == 0.0) && got.is_sign_negative() != want.is_sign_negative() {
        return f64::INFINITY;
    }
    let limit = 2.0_f64.powi(128); // infinity counts as the number after f32::MAX
    let rounded = (want as f32).abs().clamp(f32::MIN_POSITIVE, f32::MAX);
    let ulp = f64::from_bits(f64::from(rounded).to_bits() & 0x7ff0_0000_0000_0000) / 8_388_608.0;
    (f64::from(got).clamp(-limit, limit) - want.clamp(-limit, limit)).abs() / ulp
}

fn stride() -> usize {
    std::env::var("GRADUS_MATH_STRIDE").ok().and_then(|s| s.parse().ok()).unwrap_or(4099)
}

/// Calls `visit` with every sample point: strided bit patterns, then the neighbourhoods of the special points.
fn samples(mut visit: impl FnMut(f32)) {
    for bits in (0..=u32::MAX).step_by(stride()) {
        visit(f32::from_bits(bits));
    }
    let powers = (0..=255_u32).map(|e| e << 23);
    let points = powers.chain(DELICATE.map(f32::to_bits));
    for centre in points {
        for bits in centre.saturating_sub(40)..=centre + 40 {
            visit(f32::from_bits(bits));
            visit(-f32::from_bits(bits));
        }
    }
}

/// Asserts that `f` is within 1 ULP of `reference` on all samples.
fn check(name: &str, f: impl Fn(f32) -> f32, reference: impl Fn(f64) -> f64) {
    let (mut worst, mut at) = (0.0, 0.0);
    samples(|x| {
        let error = ulps(f(x), reference(f64::from(x)));
        if error > worst {
            (worst, at) = (error, x);
        }
    });
    println!("{name:10} {worst:.4} ULP at {at:e} ({:#010x})", at.to_bits());
    assert!(worst <= 1.0, "{name}({at:e}) = {:e}, want {:e}: {worst} ULP", f(at), reference(f64::from(at)));
}

macro_rules! within_one_ulp {
    ($($name:ident: $reference:expr;)*) => {
        mod within_one_ulp {
            $(#[test]
            fn $name() {
                super::check(stringify!($name), |x| super::super::$name(x), $reference);
            })*
        }

        const UNARY: &[(&str, fn(f32) -> f32)] = &[$((stringify!($name), |x| super::$name(x))),*];
    };
}

within_one_ulp! {
    exp: libm::exp;
    exp2: libm::exp2;
    expm1: libm::expm1;
    sigmoid: |x| 1.0 / (1.0 + libm::exp(-x));
    sigmoid_neg: |x| 1.0 / (1.0 + libm::exp(x));
    softplus: |x: f64| x.max(0.0) + libm::log1p(libm::exp(-x.abs()));
    log: libm::log;
    log2: libm::log2;
    log10: libm::log10;
    log1p: libm::log1p;
    sin: libm::sin;
    cos: libm::cos;
    tan: libm::tan;
    asin: libm::asin;
    acos: libm::acos;
    atan: libm::atan;
    sinh: libm::sinh;
    cosh: libm::cosh;
    tanh: libm::tanh;
    asinh: libm::asinh;
    acosh: |x| if x < 1.0 { f64::NAN } else { libm::acosh(x) };
    atanh: libm::atanh;
    erf: libm::erf;
    erfc: libm::erfc;
    rsqrt: |x| 1.0 / libm::sqrt(x);
}

/// Returns an element of a Weyl sequence, which scatters bit patterns well enough.
fn scatter(i: u64) -> u64 {
    i.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[test]
fn pow_is_within_one_ulp_where_the_result_is_in_range() {
    let count = (1_u64 << 32) / stride() as u64;
    let (mut worst, mut at) = (0.0, (0.0, 0.0));
    for i in 0..count {
        let random = scatter(i);
        // `x` is spread over all bit patterns. `y` is chosen so that the results are spread over the range of f32, and
        // is sometimes an integer.
        let x = f32::from_bits((random >> 32) as u32);
        let target = (random & 0xffff_ffff) as f64 / 4_294_967_296.0 * 195.0 - 105.0;
        let y = (target / libm::log(f64::from(x.abs()))) as f32;
        let y = if i % 4 == 0 || x < 0.0 { y.round() } else { y };
        let error = ulps(super::pow(x, y), libm::pow(f64::from(x), f64::from(y)));
        if error > worst {
            (worst, at) = (error, (x, y));
        }
    }
    println!("pow        {worst:.4} ULP at {at:?}");
    assert!(worst <= 1.0, "pow{at:?}: {worst} ULP");
}

#[test]
fn pow_has_the_special_values_of_c99() {
    let positive = [
        0.0,
        1e-45,
        1e-40,
        0.5,
        0.99999994,
        1.0,
        1.0000001,
        1.5,
        2.0,
        3.0,
        8_388_607.5,
        8_388_609.0,
        16_777_215.0,
        16_777_216.0,
        3e38,
        f32::INFINITY,
        f32::NAN,
    ];
    let values: Vec<f32> = positive.iter().flat_map(|&v| [v, -v]).collect();
    for &x in &values {
        for &y in &values {
            let (got, want) = (super::pow(x, y), libm::pow(f64::from(x), f64::from(y)));
            assert!(ulps(got, want) <= 1.0, "pow({x:e}, {y:e}) = {got:e}, want {want:e}");
        }
    }
}

#[test]
fn slices_give_the_bits_of_the_scalar_functions() {
    // Multiples of a step that changes every 300 elements, so that blocks lie inside and outside the range of the quick
    // reduction.
    let x: Vec<f32> = (0..5000_u64).map(|i| f32::from_bits((scatter(i / 300) >> 33) as u32) * (i as f32)).collect();
    let mut out = vec![0.0; x.len()];
    type Pair = (fn(&[f32], &mut [f32]), fn(f32) -> f32);
    let pairs: [Pair; 3] = [
        (|x, out| super::sin_slice(x, out), |x| super::sin(x)),
        (|x, out| super::cos_slice(x, out), |x| super::cos(x)),
        (|x, out| super::tan_slice(x, out), |x| super::tan(x)),
    ];
    for (slice, scalar) in pairs {
        slice(&x, &mut out);
        for (&x, &y) in x.iter().zip(&out) {
            assert_eq!(y.to_bits(), scalar(x).to_bits(), "{x:e}");
        }
    }
}

/// A checksum of the results on about 2^15 fixed points must be the same on every machine and in every build.
#[test]
fn bits_are_the_same_on_every_machine() {
    let mut found = String::new();
    for (name, f) in UNARY {
        let mut hash = 0_u64;
        for bits in (0..=u32::MAX).step_by(131_071) {
            let y = f(f32::from_bits(bits));
            let y = if y.is_nan() { f32::NAN } else { y };
            hash = scatter(hash ^ u64::from(y.to_bits())) ^ (hash >> 29);
        }
        found += &format!("{name} {hash:016x}\n");
    }
    assert_eq!(found, include_str!("checksums.txt"), "a changed function needs a changed line in checksums.txt");
}
