//! Operations are equal if their parameters are; floats are compared by their bits.

use std::hash::{BuildHasher, RandomState};

use super::*;

#[test]
fn operations_are_equal_by_their_parameters_and_floats_by_their_bits() {
    let norm = |eps: f64| {
        let (axes, scale, shift) = (gradus_backend::Axes::one(1), true, false);
        Op::from(Normalize { norm: Norm::Layer, axes, eps, scale, shift })
    };
    let [plus, minus, nan] = [norm(0.0), norm(-0.0), norm(f64::NAN)];
    assert!(plus == norm(0.0) && nan == norm(f64::NAN) && plus != minus && plus != nan);
    let hasher = RandomState::new();
    assert_eq!(hasher.hash_one(&nan), hasher.hash_one(norm(f64::NAN)));
    assert_ne!(hasher.hash_one(&plus), hasher.hash_one(&minus));
    let softmax = |log| Op::from(Softmax { log, axis: 1 });
    assert!(softmax(true) == softmax(true) && softmax(true) != softmax(false) && softmax(true) != plus);
}
