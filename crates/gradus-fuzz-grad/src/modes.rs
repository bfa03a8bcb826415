//! The reference's model of a thread's modes, such as `no_grad`, and the writes that these modes refuse.

use crate::model::{Freed, Guard, Handle, Kind, Mode, Need, Read, Reference, Writes};
use crate::program::Name;

impl Reference {
    /// Sets the mode of a block, and returns the previous mode.
    pub(crate) fn enter(&mut self, name: Name) -> Mode {
        let before = self.mode;
        match name {
            Name::NoGrad => self.mode.recording = false,
            Name::Packed => self.mode.packs = true,
            Name::Strict => self.mode.strict = true,
            Name::AllowMutation => self.mode.writes = Writes::Copied,
            Name::StrictInplace => self.mode.writes = Writes::Refused,
            _ => {}
        }
        before
    }

    /// Whether operations recorded now are unaffected by later writes.
    pub(crate) fn keeps_copies(&self) -> bool {
        self.regions.is_empty() && (self.mode.packs || self.mode.writes == Writes::Copied)
    }

    /// How an operation that is recorded now reads a tensor. `keeps` says whether the gradient needs the tensor.
    pub(crate) fn kept(&self, h: &Handle, name: Name, keeps: bool) -> Read {
        let need = match keeps {
            false => Need::No,
            true if self.keeps_copies() => Need::Copy,
            true => Need::Yes,
        };
        let guard = match self.mode.writes {
            Writes::Refused if keeps && self.regions.is_empty() && !self.mode.packs => {
                if surely_keeps(name) {
                    Guard::Surely
                } else {
                    Guard::Maybe
                }
            }
            _ => Guard::Never,
        };
        Read { need, guard, ..self.noted(h) }
    }

    /// The reads of the inputs that a strict node checks. Empty outside strict mode.
    pub(crate) fn checked(&self, inputs: &[&Handle]) -> Vec<Read> {
        let one = |h: &&Handle| Read { need: Need::Strict, guard: Guard::Never, ..self.noted(h) };
        if self.mode.strict { inputs.iter().map(one).collect() } else { vec![] }
    }

    /// Whether a write is refused because a graph needs the old values. The library logs the write for the places `at`;
    /// the places `certain` are those that it really changes.
    pub(crate) fn guard_of(&self, storage: usize, at: &[usize], certain: &[usize]) -> Guard {
        let mut live = vec![false; self.nodes.len()];
        self.handles.iter().flatten().filter_map(|h| h.node).for_each(|n| live[n] = true);
        let mut found = Guard::Never;
        for n in (0..live.len()).rev() {
            let node = &self.nodes[n];
            // Nodes recorded by a pass may or may not save the values that the pass used.
            if live[n] && node.kind != Kind::Pass {
                node.inputs.iter().for_each(|&i| live[i] = true);
            }
            for r in node.reads.iter().filter(|r| r.guard != Guard::Never && node.freed != Freed::Yes) {
                if r.storage != storage || !at.iter().any(|p| r.at.contains(p)) {
                    continue;
                }
                let lives = live[n] && node.freed == Freed::No && node.kind == Kind::Operation;
                let hit = lives && r.guard == Guard::Surely && r.at.iter().any(|p| certain.contains(p));
                found = if hit || found == Guard::Surely { Guard::Surely } else { Guard::Maybe };
            }
        }
        found
    }
}

/// Whether the operation saves this very tensor if its gradient needs it. That is certain only of operations that the
/// library performs in a single step.
fn surely_keeps(name: Name) -> bool {
    use Name::*;
    matches!(name, Sin | Cos | Tanh | Exp | Sigmoid | Square | Log | Sqrt | Recip | Mul | Div)
}
