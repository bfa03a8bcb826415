//! Compares folds with those of scikit-learn. `reference/folds.py` makes the file.
#![allow(clippy::unwrap_used)]

use gradus_data::folds::{group_k_fold, k_fold, stratified_k_fold};
use gradus_data::split::Split;
use serde_json::Value;

fn numbers(value: &Value) -> Vec<i64> {
    serde_json::from_value(value.clone()).unwrap()
}

fn cases(kind: &str) -> Vec<Value> {
    let all: Vec<Value> = serde_json::from_str(include_str!("reference/folds.json")).unwrap();
    all.into_iter().filter(|case| case["kind"] == kind).collect()
}

/// Every sample is in one test set, and in the training sets of all other folds.
fn check_parts(folds: &[Split], n: usize) {
    let mut tested: Vec<usize> = folds.iter().flat_map(|f| f.test.clone()).collect();
    tested.sort_unstable();
    assert!(tested.into_iter().eq(0..n));
    for fold in folds {
        let mut all = [&fold.train[..], &fold.test].concat();
        all.sort_unstable();
        assert!(all.into_iter().eq(0..n));
    }
}

fn tests(folds: &[Split]) -> Vec<Vec<usize>> {
    folds.iter().map(|f| f.test.clone()).collect()
}

#[test]
fn folds_are_those_of_scikit_learn() {
    let expected = |case: &Value| -> Vec<Vec<usize>> { serde_json::from_value(case["tests"].clone()).unwrap() };
    let k = |case: &Value| case["k"].as_u64().unwrap() as usize;
    for case in cases("k_fold") {
        let n = case["n"].as_u64().unwrap() as usize;
        let folds = k_fold(n, k(&case), None).unwrap();
        check_parts(&folds, n);
        assert_eq!(tests(&folds), expected(&case));
    }
    for case in cases("stratified_k_fold") {
        let labels = numbers(&case["labels"]);
        let folds = stratified_k_fold(&labels, k(&case), None).unwrap();
        check_parts(&folds, labels.len());
        assert_eq!(tests(&folds), expected(&case));
    }
    for case in cases("group_k_fold") {
        let groups = numbers(&case["groups"]);
        let folds = group_k_fold(&groups, k(&case)).unwrap();
        check_parts(&folds, groups.len());
        assert_eq!(tests(&folds), expected(&case));
    }
}

#[test]
fn a_seed_shuffles_and_keeps_the_sizes() {
    let sizes = |folds: &[Split]| folds.iter().map(|f| f.test.len()).collect::<Vec<_>>();
    let (plain, shuffled) = (k_fold(103, 5, None).unwrap(), k_fold(103, 5, Some(1)).unwrap());
    check_parts(&shuffled, 103);
    assert_eq!(sizes(&plain), sizes(&shuffled));
    assert_ne!(plain, shuffled);
    assert_eq!(shuffled, k_fold(103, 5, Some(1)).unwrap());
    let labels: Vec<i64> = (0..101).map(|i| i * i % 4).collect();
    let (plain, shuffled) =
        (stratified_k_fold(&labels, 5, None).unwrap(), stratified_k_fold(&labels, 5, Some(1)).unwrap());
    check_parts(&shuffled, 101);
    let ones = |fold: &Split| fold.test.iter().filter(|&&i| labels[i] == 1).count();
    assert!(plain.iter().map(ones).eq(shuffled.iter().map(ones)));
    assert_ne!(plain, shuffled);
}

#[test]
fn folds_that_cannot_be_are_errors() {
    for (n, k) in [(5, 1), (5, 0), (5, 6), (0, 2)] {
        let e = k_fold(n, k, None).unwrap_err().to_string();
        assert!(e.contains(&format!("{k} folds of {n} samples")), "{e}");
    }
    let e = stratified_k_fold(&[0, 0, 0, 7, 7], 3, None).unwrap_err().to_string();
    assert!(e.contains("label 7 has 2 samples for 3 folds"), "{e}");
    assert!(group_k_fold(&[1, 1, 1], 2).unwrap_err().to_string().contains("2 folds of 1 groups"));
}
