//! Splits a dataset into a training set, a test set and optionally a validation set. A split depends only on the
//! arguments. For cross-validation, see [`folds`](crate::folds).

use std::collections::BTreeMap;

use gradus_tensor::backend::host_vec::collect;
use gradus_tensor::{Error, Generator, Result};

/// The indices of both sets, each in ascending order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Split {
    /// The training set.
    pub train: Vec<usize>,
    /// The test set.
    pub test: Vec<usize>,
}

/// Puts a random share `test` (0 to 1) of `n` samples into the test set.
#[track_caller]
pub fn random(n: usize, test: f64, seed: u64) -> Result<Split> {
    check_share(test)?;
    let order = Generator::new(seed).fork(0).permutation(n)?;
    let (held_out, rest) = order.split_at(((n as f64 * test).round() as usize).min(n));
    let mut split =
        Split { train: collect("split", rest.iter().copied())?, test: collect("split", held_out.iter().copied())? };
    split.sort();
    Ok(split)
}

#[track_caller]
fn check_share(test: f64) -> Result<()> {
    if (0.0..=1.0).contains(&test) {
        return Ok(());
    }
    Err(Error::argument("split", format!("the share to hold out is {test}; it goes from 0 to 1")))
}

impl Split {
    fn sort(&mut self) {
        self.train.sort_unstable();
        self.test.sort_unstable();
    }
}

/// Puts a share `test` (0 to 1) of the samples into the test set, with as nearly as possible the same share of every
/// label.
///
/// ```
/// let labels = [0, 0, 0, 0, 0, 0, 1, 1, 1, 1];
/// let split = gradus_data::split::stratified(&labels, 0.5, 1)?;
/// assert_eq!(split.test.iter().filter(|&&i| labels[i] == 0).count(), 3);
/// assert_eq!(split.test.iter().filter(|&&i| labels[i] == 1).count(), 2);
/// # Ok::<(), gradus_tensor::Error>(())
/// ```
#[track_caller]
pub fn stratified(labels: &[i64], test: f64, seed: u64) -> Result<Split> {
    check_share(test)?;
    let mut by_label: BTreeMap<i64, Vec<usize>> = BTreeMap::new();
    for (index, &label) in labels.iter().enumerate() {
        by_label.entry(label).or_default().push(index);
    }
    // The largest-remainder method: each label's share is rounded down, and the labels with the largest remainders get
    // one more sample.
    let wanted = (labels.len() as f64 * test).round() as usize;
    let mut counts: Vec<usize> = by_label.values().map(|c| (c.len() as f64 * test).floor() as usize).collect();
    let mut by_loss: Vec<(usize, f64)> =
        by_label.values().map(|c| (c.len() as f64 * test).fract()).enumerate().collect();
    by_loss.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    let missing = wanted.saturating_sub(counts.iter().sum());
    for &(class, _) in by_loss.iter().take(missing) {
        counts[class] += 1;
    }
    let mut split = Split { train: Vec::new(), test: Vec::new() };
    let base = Generator::new(seed);
    for ((&label, members), &count) in by_label.iter().zip(&counts) {
        let order = base.fork(label as u64).permutation(members.len())?;
        let count = count.min(members.len());
        split.test.extend(order[..count].iter().map(|&i| members[i]));
        split.train.extend(order[count..].iter().map(|&i| members[i]));
    }
    split.sort();
    Ok(split)
}

/// The indices of three sets, each in ascending order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThreeWay {
    /// The training set.
    pub train: Vec<usize>,
    /// The validation set, for choosing settings.
    pub validation: Vec<usize>,
    /// The test set.
    pub test: Vec<usize>,
}

/// Puts random shares (0 to 1) of `n` samples into the validation set and the test set. Errors if a share is not within
/// 0 to 1, or if they sum to more than 1.
///
/// ```
/// let split = gradus_data::split::three_way(100, 0.2, 0.1, 7)?;
/// assert_eq!((split.train.len(), split.validation.len(), split.test.len()), (70, 20, 10));
/// # Ok::<(), gradus_tensor::Error>(())
/// ```
#[track_caller]
pub fn three_way(n: usize, validation: f64, test: f64, seed: u64) -> Result<ThreeWay> {
    let outer = random(n, test, seed)?;
    let share = share_of_rest(validation, test)?;
    let inner = random(outer.train.len(), share, seed ^ INNER)?;
    Ok(nested(outer, &inner))
}

/// Like [`three_way`], with as nearly as possible the same share of every label in each set.
#[track_caller]
pub fn stratified_three_way(labels: &[i64], validation: f64, test: f64, seed: u64) -> Result<ThreeWay> {
    let outer = stratified(labels, test, seed)?;
    let share = share_of_rest(validation, test)?;
    let rest: Vec<i64> = outer.train.iter().map(|&i| labels[i]).collect();
    let inner = stratified(&rest, share, seed ^ INNER)?;
    Ok(nested(outer, &inner))
}

/// Changes the seed of the second of two splits.
const INNER: u64 = 1 << 63;

/// The validation set as a share of the samples that are not in the test set.
#[track_caller]
fn share_of_rest(validation: f64, test: f64) -> Result<f64> {
    check_share(validation)?;
    // Shares such as 0.9 and 0.1 may sum to a little more than 1.
    if validation + test > 1.0 + 1e-9 {
        let m = format!("the shares to hold out, {validation} and {test}, sum to more than 1");
        return Err(Error::argument("split", m));
    }
    Ok(if test < 1.0 { (validation / (1.0 - test)).min(1.0) } else { 0.0 })
}

/// Divides the training set of `outer`. `inner` holds indices into it.
fn nested(outer: Split, inner: &Split) -> ThreeWay {
    let at = |places: &[usize]| places.iter().map(|&i| outer.train[i]).collect();
    let (train, validation) = (at(&inner.train), at(&inner.test));
    ThreeWay { train, validation, test: outer.test }
}

#[cfg(test)]
mod tests {
    use gradus_tensor::ErrorKind;

    use super::*;

    #[test]
    fn the_parts_are_disjoint_complete_and_as_large_as_asked() {
        let labels: Vec<i64> = (0..1797).map(|i| i * i % 10).collect();
        for (test, count) in [(0.0, 0), (0.2, 359), (0.5, 899), (1.0, 1797)] {
            let split = stratified(&labels, test, 3).unwrap();
            assert_eq!(split.test.len(), count);
            let mut all = [split.train, split.test].concat();
            all.sort_unstable();
            assert!(all.into_iter().eq(0..1797));
        }
    }

    #[test]
    fn three_parts_are_disjoint_complete_and_as_large_as_asked() {
        let labels: Vec<i64> = (0..1000).map(|i| i % 10).collect();
        for (validation, test) in [(0.1, 0.2), (0.0, 0.0), (0.9, 0.1), (0.3, 0.7), (0.0, 1.0), (1.0, 0.0)] {
            let stratified = stratified_three_way(&labels, validation, test, 3).unwrap();
            assert_eq!(stratified.test.iter().filter(|&&i| labels[i] == 4).count(), (100.0 * test) as usize);
            for split in [three_way(1000, validation, test, 3).unwrap(), stratified] {
                assert_eq!(split.validation.len(), (1000.0 * validation) as usize);
                assert_eq!(split.test.len(), (1000.0 * test) as usize);
                let mut all = [split.train, split.validation, split.test].concat();
                all.sort_unstable();
                assert!(all.into_iter().eq(0..1000));
            }
        }
        assert!(three_way(10, 0.6, 0.6, 0).unwrap_err().to_string().contains("sum to more than 1"));
        assert!(three_way(10, -0.1, 0.6, 0).is_err() && three_way(10, 0.1, f64::NAN, 0).is_err());
    }

    #[test]
    fn a_random_split_is_that_of_samples_of_one_label_and_too_many_samples_are_an_error() {
        for (n, test) in [(0, 0.5), (1, 0.5), (7, 0.5), (100, 0.3), (33, 1.0)] {
            assert_eq!(random(n, test, 4).unwrap(), stratified(&vec![0; n], test, 4).unwrap());
        }
        assert!(matches!(random(usize::MAX, 0.1, 1).unwrap_err().kind(), ErrorKind::OutOfMemory { .. }));
    }

    #[test]
    fn another_seed_is_another_split_and_the_same_seed_the_same() {
        assert_eq!(random(100, 0.3, 1).unwrap(), random(100, 0.3, 1).unwrap());
        assert_ne!(random(100, 0.3, 1).unwrap(), random(100, 0.3, 2).unwrap());
    }

    #[test]
    fn a_share_that_is_none_is_an_error() {
        for test in [-0.1, 1.5, f64::NAN, f64::INFINITY] {
            assert!(random(10, test, 0).is_err(), "{test}");
        }
        assert_eq!(random(0, 0.5, 0).unwrap(), Split { train: vec![], test: vec![] });
    }
}
