//! Splits a dataset into a training set and a test set. A split depends only on the arguments.

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

/// Puts a share `test` (0 to 1) of the samples into the test set, with the same share of every label as nearly as
/// possible.
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
    // one sample more.
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
