//! [`learn`]: finds the merges of byte-pair encoding.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap};

/// Words as lists of symbols, each with the number of its occurrences.
pub(super) type Counted = Vec<(Vec<u32>, u64)>;

/// Repeatedly replaces the most frequent pair of neighbouring symbols by a new symbol. Of equally frequent pairs, the
/// one with the lower symbols comes first. `add` returns the symbol for a pair, or `None` when there are enough.
/// Source: *Neural Machine Translation of Rare Words with Subword Units*, R. Sennrich and others, 2016.
pub(super) fn learn(mut words: Counted, mut add: impl FnMut((u32, u32)) -> Option<u32>) {
    let mut counts: HashMap<(u32, u32), u64> = HashMap::new();
    // The words in which a pair occurs.
    let mut places: HashMap<(u32, u32), BTreeSet<usize>> = HashMap::new();
    for (word, (symbols, count)) in words.iter().enumerate() {
        for pair in symbols.windows(2).map(|p| (p[0], p[1])) {
            *counts.entry(pair).or_default() += count;
            places.entry(pair).or_default().insert(word);
        }
    }
    let mut heap: BinaryHeap<(u64, Reverse<(u32, u32)>)> = counts.iter().map(|(&p, &n)| (n, Reverse(p))).collect();
    while let Some((count, Reverse(pair))) = heap.pop() {
        let now = counts.get(&pair).copied().unwrap_or(0);
        if now != count {
            // The count is out of date, because other merges have removed occurrences since.
            if now > 0 {
                heap.push((now, Reverse(pair)));
            }
            continue;
        }
        let Some(made) = add(pair) else { return };
        let mut grown: BTreeSet<(u32, u32)> = BTreeSet::new();
        for word in places.remove(&pair).unwrap_or_default() {
            let (symbols, times) = &mut words[word];
            for old in symbols.windows(2).map(|p| (p[0], p[1])) {
                if let Some(n) = counts.get_mut(&old) {
                    *n -= *times;
                }
            }
            join(symbols, pair, made);
            for new in symbols.windows(2).map(|p| (p[0], p[1])) {
                *counts.entry(new).or_default() += *times;
                places.entry(new).or_default().insert(word);
                if new.0 == made || new.1 == made {
                    grown.insert(new);
                }
            }
        }
        counts.remove(&pair);
        heap.extend(grown.into_iter().filter_map(|new| Some((*counts.get(&new)?, Reverse(new)))));
    }
}

/// Replaces the pair from left to right.
fn join(symbols: &mut Vec<u32>, pair: (u32, u32), made: u32) {
    let mut kept = 0;
    let mut at = 0;
    while at < symbols.len() {
        let is_pair = symbols.get(at + 1).is_some_and(|&right| (symbols[at], right) == pair);
        symbols[kept] = if is_pair { made } else { symbols[at] };
        kept += 1;
        at += if is_pair { 2 } else { 1 };
    }
    symbols.truncate(kept);
}
