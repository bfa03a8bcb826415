//! [`Merges`]: joins the symbols of a word.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

/// Pairs of symbols, each with its rank and the symbol that they become.
pub(super) type Merges = HashMap<(u32, u32), (u32, u32)>;

const NONE: usize = usize::MAX;

/// Joins neighbouring symbols until no pair is left: the pair of the lowest rank first, and the leftmost of equal
/// pairs.
pub(super) fn merge(symbols: &mut Vec<u32>, merges: &Merges) {
    if symbols.len() < 2 {
        return;
    }
    // The symbols form a linked list, so that a long word takes O(n log n) time.
    let count = symbols.len();
    let mut next: Vec<usize> = symbols.iter().enumerate().map(|(i, _)| i + 1).collect();
    next[count - 1] = NONE;
    let mut before: Vec<usize> = symbols.iter().enumerate().map(|(i, _)| i.wrapping_sub(1)).collect();
    let mut gone: Vec<bool> = symbols.iter().map(|_| false).collect();
    let mut heap = BinaryHeap::with_capacity(symbols.len());
    let found = |symbols: &[u32], left: usize, right: usize| {
        let pair = (symbols[left], symbols[right]);
        merges.get(&pair).map(|&(rank, made)| Reverse((rank, left, pair, made)))
    };
    heap.extend((1..count).filter_map(|right| found(symbols, right - 1, right)));
    while let Some(Reverse((_, left, pair, made))) = heap.pop() {
        let right = next[left];
        // The pair may have changed since it was pushed.
        if gone[left] || right == NONE || (symbols[left], symbols[right]) != pair {
            continue;
        }
        symbols[left] = made;
        gone[right] = true;
        next[left] = next[right];
        if next[left] != NONE {
            before[next[left]] = left;
            heap.extend(found(symbols, left, next[left]));
        }
        if before[left] != NONE {
            heap.extend(found(symbols, before[left], left));
        }
    }
    let mut gone = gone.into_iter();
    symbols.retain(|_| !gone.next().unwrap_or(false));
}
