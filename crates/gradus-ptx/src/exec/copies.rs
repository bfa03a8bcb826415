//! The asynchronous copies of a warp. The bytes arrive when they are waited for; until then, nothing may touch their place.

use std::collections::VecDeque;

use super::lanes::lanes;

/// One copy of one lane.
#[derive(Debug)]
pub(super) struct Copy {
    pub(super) lane: u32,
    pub(super) pc: u32,
    pub(super) to: u64,
    pub(super) words: Vec<u32>,
}

/// The copies of a warp that were not waited for.
#[derive(Debug, Default)]
pub(super) struct Copies {
    open: Vec<Copy>,
    /// Each group with the lanes that have not waited for it.
    groups: VecDeque<(u32, Vec<Copy>)>,
}

impl Copies {
    pub(super) fn push(&mut self, copy: Copy) {
        self.open.push(copy);
    }

    /// Makes a group of these lanes' copies.
    pub(super) fn commit(&mut self, active: u32) {
        let of_active = |copy: &mut Copy| active >> copy.lane & 1 == 1;
        let group = self.open.extract_if(.., of_active).collect();
        self.groups.push_back((active, group));
    }

    /// Takes what must have arrived when these lanes wait until at most this many groups are pending.
    pub(super) fn arrived(&mut self, active: u32, most: u32) -> Vec<Copy> {
        let mut newer = [0u32; 32];
        let mut arrived = Vec::new();
        for (mask, copies) in self.groups.iter_mut().rev() {
            let mut done = 0;
            for lane in lanes(*mask & active) {
                done |= u32::from(newer[lane] >= most) << lane;
                newer[lane] += 1;
            }
            *mask &= !done;
            arrived.extend(copies.extract_if(.., |copy| done >> copy.lane & 1 == 1));
        }
        self.groups.retain(|(mask, _)| *mask != 0);
        arrived
    }
}
