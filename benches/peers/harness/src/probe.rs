//! A few numbers that show whether two large results agree.

use crate::inputs::unit;

/// A summary of one result: the number of elements, their norm, and their inner products with two vectors of the input
/// formula. If two results differ by `d`, their inner products differ by about 1.15 times the norm of `d`, whatever the
/// direction of `d`. So the distance of the products indicates the distance of the results.
pub type Probe = [f64; 4];

/// The streams of these two vectors.
const STREAMS: [u32; 2] = [1000, 1001];

pub(crate) fn probe(values: &[f32]) -> Probe {
    let product = |stream| -> f64 {
        values.iter().enumerate().map(|(i, v)| f64::from(*v) * f64::from(unit(stream, i as u32))).sum()
    };
    let length = values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
    [values.len() as f64, length, product(STREAMS[0]), product(STREAMS[1])]
}

/// Whether all results are within `tolerance` of the reference, relative to its norm. The error says which one is not.
pub fn agrees(found: &[Probe], reference: &[Probe], tolerance: f64) -> Result<(), String> {
    if found.len() != reference.len() {
        return Err(format!("{} results where the reference has {}", found.len(), reference.len()));
    }
    for (i, (found, reference)) in found.iter().zip(reference).enumerate() {
        if found[0] != reference[0] {
            return Err(format!("result {i} has {} elements, the reference {}", found[0], reference[0]));
        }
        let distance = (1..4)
            .map(|j| (found[j] - reference[j]).abs())
            .fold(0.0, |a: f64, b| if b > a || b.is_nan() { b } else { a });
        // Written so that NaN fails the test.
        let within = distance <= tolerance * reference[1] + f64::MIN_POSITIVE;
        if !within {
            let relative = distance / reference[1];
            return Err(format!("result {i} is off by {relative:.1e} of its length, allowed are {tolerance:.1e}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inputs::values;

    #[test]
    fn a_changed_permuted_or_unfinished_result_is_found() {
        let right = values(1, 1000, 1.0);
        let check = |v: &[f32]| agrees(&[probe(v)], &[probe(&right)], 2e-5);
        assert_eq!(check(&right), Ok(()));
        let near: Vec<f32> = right.iter().map(|v| v * 1.00001).collect();
        assert_eq!(check(&near), Ok(()));
        let mut swapped = right.clone();
        swapped.swap(3, 700);
        assert!(check(&swapped).is_err());
        let mut one_wrong = right.clone();
        one_wrong[500] = f32::NAN;
        assert!(check(&one_wrong).is_err());
        assert!(check(&right[1..]).is_err());
        assert!(agrees(&[], &[probe(&right)], 1.0).is_err());
    }
}
