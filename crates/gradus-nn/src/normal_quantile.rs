//! The cumulative distribution function of the standard normal distribution, and its inverse.

/// The probability that a standard normal variable is at most `x`.
pub(crate) fn normal_cdf(x: f64) -> f64 {
    0.5 * libm::erfc(-x * std::f64::consts::FRAC_1_SQRT_2)
}

/// The value that a standard normal variable does not exceed with probability `p`. The relative error is about 1e-16.
///
/// Wichura, "Algorithm AS 241: the percentage points of the normal distribution" (Applied Statistics 37, 1988).
pub(crate) fn normal_quantile(p: f64) -> f64 {
    let q = p - 0.5;
    if q.abs() <= 0.425 {
        let r = 0.180625 - q * q;
        return q * ratio(r, &CENTRE);
    }
    let tail = if q < 0.0 { p } else { 1.0 - p };
    let r = (-tail.ln()).sqrt();
    let x = if r <= 5.0 { ratio(r - 1.6, &MIDDLE) } else { ratio(r - 5.0, &FAR) };
    if q < 0.0 { -x } else { x }
}

fn ratio(r: f64, [numerator, denominator]: &[[f64; 8]; 2]) -> f64 {
    let horner = |c: &[f64; 8]| c.iter().fold(0.0, |sum, c| sum * r + c);
    horner(numerator) / horner(denominator)
}

/// Polynomial coefficients of numerator and denominator, highest power first.
const CENTRE: [[f64; 8]; 2] = [
    [
        2509.0809287301227,
        33430.57558358813,
        67265.7709270087,
        45921.95393154987,
        13731.69376550946,
        1971.5909503065513,
        133.14166789178438,
        3.3871328727963665,
    ],
    [
        5226.495278852854,
        28729.085735721943,
        39307.89580009271,
        21213.794301586597,
        5394.196021424751,
        687.1870074920579,
        42.31333070160091,
        1.0,
    ],
];

const MIDDLE: [[f64; 8]; 2] = [
    [
        0.0007745450142783414,
        0.022723844989269184,
        0.2417807251774506,
        1.2704582524523684,
        3.6478483247632045,
        5.769497221460691,
        4.630337846156546,
        1.4234371107496835,
    ],
    [
        1.0507500716444169e-09,
        0.0005475938084995345,
        0.015198666563616457,
        0.14810397642748008,
        0.6897673349851,
        1.6763848301838038,
        2.053191626637759,
        1.0,
    ],
];

const FAR: [[f64; 8]; 2] = [
    [
        2.0103343992922881e-07,
        2.7115555687434876e-05,
        0.0012426609473880784,
        0.026532189526576124,
        0.29656057182850487,
        1.7848265399172913,
        5.463784911164114,
        6.657904643501103,
    ],
    [
        2.0442631033899397e-15,
        1.421511758316446e-07,
        1.8463183175100548e-05,
        0.0007868691311456133,
        0.014875361290850615,
        0.1369298809227358,
        0.599832206555888,
        1.0,
    ],
];

#[cfg(test)]
mod tests {
    use super::{normal_cdf, normal_quantile};

    #[test]
    fn quantile_inverts_the_distribution_function() {
        for (p, x) in [(0.5, 0.0), (0.975, 1.959963984540054), (1e-10, -6.361340902404056), (0.3, -0.5244005127080407)]
        {
            assert!((normal_quantile(p) - x).abs() < 1e-12, "{p}");
            assert!((normal_cdf(x) / p - 1.0).abs() < 1e-12, "{x}");
        }
    }
}
