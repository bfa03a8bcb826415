//! Folds for cross-validation: every sample is in the test set of exactly one fold. The sizes of the folds are those of
//! scikit-learn.
//!
//! ```
//! use gradus_data::folds;
//! let folds = folds::k_fold(5, 2, None)?;
//! assert_eq!(folds[0].test, [0, 1, 2]);
//! assert_eq!((&folds[1].train[..], &folds[1].test[..]), (&[0, 1, 2][..], &[3, 4][..]));
//! # Ok::<(), gradus_tensor::Error>(())
//! ```

use std::collections::BTreeMap;

use gradus_tensor::backend::host_vec::collect;
use gradus_tensor::{Error, Generator, Here, Result};

use crate::split::Split;

/// Divides `n` samples into `k` folds of consecutive samples, or of random ones if there is a seed. The first `n % k`
/// folds have one sample more than the others.
///
/// # Errors
/// Fails if `k` is less than 2 or greater than `n`.
#[track_caller]
pub fn k_fold(n: usize, k: usize, seed: Option<u64>) -> Result<Vec<Split>> {
    check(n, k, "samples")?;
    let order = order(n, seed, 0)?;
    let mut fold_of = collect("k_fold", (0..n).map(|_| 0))?;
    let mut rest = &order[..];
    for fold in 0..k {
        let (own, others) = rest.split_at(n / k + usize::from(fold < n % k));
        own.iter().for_each(|&sample| fold_of[sample] = fold);
        rest = others;
    }
    splits(&fold_of, k)
}

/// Divides samples into `k` folds, each with as nearly as possible the same share of every label. With a seed, the
/// samples of a label are assigned at random, and without one in order.
///
/// # Errors
/// Fails if `k` is less than 2, or if a label has fewer than `k` samples; the error names the label.
#[track_caller]
pub fn stratified_k_fold(labels: &[i64], k: usize, seed: Option<u64>) -> Result<Vec<Split>> {
    check(labels.len(), k, "samples")?;
    // The labels in the order of their first appearance, with their samples.
    let (mut places, mut classes): (BTreeMap<i64, usize>, Vec<Vec<usize>>) = Default::default();
    for (sample, &label) in labels.iter().enumerate() {
        let class = *places.entry(label).or_insert(classes.len());
        if class == classes.len() {
            classes.push(Vec::new());
        }
        classes[class].push(sample);
    }
    if let Some((label, class)) = places.iter().find(|&(_, &class)| classes[class].len() < k) {
        let m = format!("label {label} has {} samples for {k} folds", classes[*class].len());
        return Err(Error::argument("k_fold", m).help("use fewer folds, or leave this label out"));
    }
    let mut fold_of = collect("k_fold", labels.iter().map(|_| 0))?;
    let mut start = 0;
    for (class, samples) in classes.iter().enumerate() {
        // The sizes are those of dealing all samples, sorted by label, to the folds in turn; the samples of this label
        // are dealt from `start` on. So the folds differ by at most one sample, both in total and for each label.
        let dealt = |fold: usize| (samples.len() + (k - 1) - (fold + k - start % k) % k) / k;
        let order = order(samples.len(), seed, class as u64 + 1)?;
        let mut rest = &order[..];
        for fold in 0..k {
            let (own, others) = rest.split_at(dealt(fold).min(rest.len()));
            own.iter().for_each(|&i| fold_of[samples[i]] = fold);
            rest = others;
        }
        start += samples.len();
    }
    splits(&fold_of, k)
}

/// Divides samples into `k` folds so that all samples of a group are in one fold. The largest remaining group goes to
/// the fold that has the fewest samples so far.
///
/// # Errors
/// Fails if `k` is less than 2 or greater than the number of groups.
#[track_caller]
pub fn group_k_fold(groups: &[i64], k: usize) -> Result<Vec<Split>> {
    let mut sizes: BTreeMap<i64, usize> = BTreeMap::new();
    groups.iter().for_each(|&group| *sizes.entry(group).or_default() += 1);
    check(sizes.len(), k, "groups")?;
    let mut by_size: Vec<(i64, usize)> = sizes.into_iter().collect();
    by_size.sort_by_key(|&(group, size)| (std::cmp::Reverse(size), group));
    // At most one fold a group.
    let mut filled = vec![0; k];
    let mut fold_of = BTreeMap::new();
    for (group, size) in by_size {
        let fold = (0..k).min_by_key(|&fold| filled[fold]).unwrap_or(0);
        filled[fold] += size;
        fold_of.insert(group, fold);
    }
    let fold_of = collect("k_fold", groups.iter().map(|group| fold_of[group]))?;
    splits(&fold_of, k)
}

#[track_caller]
fn check(n: usize, k: usize, what: &str) -> Result<()> {
    if (2..=n).contains(&k) {
        return Ok(());
    }
    Err(Error::argument("k_fold", format!("{k} folds of {n} {what}")).help(format!("use 2 to {n} folds")))
}

/// The numbers `0..n`, in random order if there is a seed.
#[track_caller]
fn order(n: usize, seed: Option<u64>, key: u64) -> Result<Vec<usize>> {
    match seed {
        Some(seed) => Generator::new(seed).fork(key).permutation(n),
        None => collect("k_fold", 0..n),
    }
}

#[track_caller]
fn splits(fold_of: &[usize], k: usize) -> Result<Vec<Split>> {
    let members = |fold: usize, own: bool| {
        let members = fold_of.iter().enumerate().filter(|&(_, &f)| (f == fold) == own);
        members.map(|(sample, _)| sample).collect()
    };
    let split = |fold| Ok(Split { train: members(fold, false), test: members(fold, true) });
    // At most one fold a sample.
    (0..k).map(split).collect::<Result<_>>().here()
}
