//! Instructions in which lanes take part together.

use super::warp::{Arrival, Warp};
use super::{Context, Mistake, lanes};
use crate::FaultKind;
use crate::code::{Barrier, BarrierReduce, Dst, Op, Pred, Shuffle, Src, V, Vote};

impl Warp {
    /// The lanes that must be at the instruction, or none if it needs no others.
    #[inline]
    pub(super) fn needed(
        &self,
        context: &Context<'_>,
        op: &Op,
        active: u32,
        pc: u32,
    ) -> Result<Option<u32>, Box<Mistake>> {
        let mask = match op {
            Op::WarpBarrier { mask }
            | Op::Shuffle { mask, .. }
            | Op::Vote { mask, .. }
            | Op::Match { mask, .. }
            | Op::Reduce { mask, .. } => *mask,
            Op::LoadMatrix { .. } | Op::Matrix(_) if active != u32::MAX => {
                if self.live != u32::MAX {
                    let text = "a matrix instruction in a warp some of whose lanes have no thread or have ended";
                    return context.mistake(FaultKind::DivergentWarp, pc, active.trailing_zeros(), text);
                }
                return Ok(Some(u32::MAX));
            }
            _ => return Ok(None),
        };
        let mut buffer = [0; 32];
        let masks = self.v(context, mask, &mut buffer);
        let mut all = 0;
        for lane in lanes(active) {
            if masks[lane] >> lane & 1 == 0 {
                let text = format!("the lane is not in the mask {:#010x} with which it calls", masks[lane]);
                return context.mistake(FaultKind::DivergentWarp, pc, lane as u32, text);
            }
            all |= masks[lane];
        }
        Ok(Some(all & self.live))
    }

    /// The lanes that take part with each lane.
    fn partners(&self, context: &Context<'_>, active: u32, mask: Src) -> V {
        let mut buffer = [0; 32];
        let masks = self.v(context, mask, &mut buffer);
        std::array::from_fn(|lane| masks[lane] & active)
    }

    /// `b` and `clamp` as the manual of `shfl` names them.
    pub(super) fn shuffle(
        &mut self,
        context: &Context<'_>,
        pc: u32,
        active: u32,
        kind: Shuffle,
        (d, p): (Dst, u32),
        [a, b, clamp, mask]: [Src; 4],
    ) -> Result<(), Box<Mistake>> {
        let (mut buffers, partners) = ([[0; 32]; 3], self.partners(context, active, mask));
        let [x, y, z] = &mut buffers;
        let (values, by, clamps) = (*self.v(context, a, x), *self.v(context, b, y), *self.v(context, clamp, z));
        let (mut out, mut inside) = ([0; 32], 0);
        for lane in lanes(active) {
            let (by, segment, limit) = (by[lane] & 31, clamps[lane] >> 8 & 31, clamps[lane] & 31);
            let own = lane as u32;
            let highest = own & segment | limit & !segment;
            let (from, valid) = match kind {
                Shuffle::Up => (own.wrapping_sub(by), own as i32 - by as i32 >= highest as i32),
                Shuffle::Down => (own + by, own + by <= highest),
                Shuffle::Butterfly => (own ^ by, own ^ by <= highest),
                Shuffle::Index => {
                    let from = own & segment | by & !segment;
                    (from, from <= highest)
                }
            };
            let from = if valid { from } else { own };
            if partners[lane] >> from & 1 == 0 {
                let text = format!("the shuffle reads lane {from}, which does not take part in it");
                return context.mistake(FaultKind::DivergentWarp, pc, own, text);
            }
            out[lane] = values[from as usize];
            inside |= u32::from(valid) << lane;
        }
        self.put_narrow(d, active, &out);
        self.put_pred(p, active, inside);
        Ok(())
    }

    pub(super) fn vote(&mut self, context: &Context<'_>, active: u32, kind: Vote, p: Pred, mask: Src) {
        let partners = self.partners(context, active, mask);
        let holds = self.pred(p);
        let each = |of: &dyn Fn(u32, u32) -> bool| {
            lanes(active).map(|lane| u32::from(of(holds & partners[lane], partners[lane])) << lane).sum::<u32>()
        };
        match kind {
            Vote::All(d) => self.put_pred(d, active, each(&|yes, all| yes == all)),
            Vote::Any(d) => self.put_pred(d, active, each(&|yes, _| yes != 0)),
            Vote::Uniform(d) => self.put_pred(d, active, each(&|yes, all| yes == all || yes == 0)),
            Vote::Ballot(d) => self.put_narrow(d, active, &partners.map(|all| all & holds)),
        }
    }

    pub(super) fn matches(
        &mut self,
        context: &Context<'_>,
        active: u32,
        all: bool,
        (d, p): (Dst, u32),
        a: Src,
        mask: Src,
    ) {
        let partners = self.partners(context, active, mask);
        let mut values = [0; 32];
        self.w(context, a, &mut values);
        let (mut out, mut same) = ([0; 32], 0);
        for lane in lanes(active) {
            let equal: u32 = lanes(partners[lane]).map(|other| u32::from(values[other] == values[lane]) << other).sum();
            let complete = equal == partners[lane];
            out[lane] = if all && !complete { 0 } else { equal };
            same |= u32::from(complete) << lane;
        }
        self.put_narrow(d, active, &out);
        if all {
            self.put_pred(p, active, same);
        }
    }

    pub(super) fn reduce(
        &mut self,
        context: &Context<'_>,
        active: u32,
        run: fn(u32, u32) -> u32,
        d: Dst,
        a: Src,
        mask: Src,
    ) {
        let partners = self.partners(context, active, mask);
        let mut buffer = [0; 32];
        let values = *self.v(context, a, &mut buffer);
        let mut out = [0; 32];
        for lane in lanes(active) {
            out[lane] = lanes(partners[lane]).map(|other| values[other]).reduce(run).unwrap_or(0);
        }
        self.put_narrow(d, active, &out);
    }

    /// What the warp brings to a barrier of its block.
    pub(super) fn arrive(
        &self,
        context: &Context<'_>,
        pc: u32,
        active: u32,
        barrier: &Barrier,
    ) -> Result<Arrival, Box<Mistake>> {
        let first = active.trailing_zeros();
        let uniform = |src: Src| {
            let mut buffer = [0; 32];
            let values = self.v(context, src, &mut buffer);
            let value = values[first as usize];
            if lanes(active).all(|lane| values[lane] == value) { Some(value) } else { None }
        };
        let (id, count) = (uniform(barrier.id), barrier.count.map(uniform));
        let Some(id) = id.filter(|id| *id < 16) else {
            let text = "a barrier needs one number below 16 for the whole warp";
            return context.mistake(FaultKind::BadOperand, pc, first, text);
        };
        let threads = context.job.launch.block.iter().product::<u32>();
        let count = match count {
            None => None,
            // A warp counts as 32 threads, so the last one is filled up.
            Some(Some(count)) if count >= threads && count <= threads.next_multiple_of(32) => None,
            Some(Some(count)) if count % 32 == 0 && count > 0 => Some(count),
            Some(_) => {
                let text = "a barrier needs a number of threads that is a multiple of 32, the same for the whole warp";
                return context.mistake(FaultKind::BadOperand, pc, first, text);
            }
        };
        let votes = barrier.reduce.map_or(0, |(_, p)| self.pred(p) & active);
        let reduce = barrier.reduce.map(|(reduce, _)| reduce);
        Ok(Arrival { pc, lanes: active, id, count, waits: barrier.waits, reduce, votes })
    }

    /// Takes the result of a barrier's reduction.
    pub(super) fn reduced(&mut self, arrival: &Arrival, votes: u32, threads: u32) {
        let mask = |holds: bool| if holds { u32::MAX } else { 0 };
        match arrival.reduce {
            None => {}
            Some(BarrierReduce::Count(d)) => self.put_narrow(d, arrival.lanes, &[votes; 32]),
            Some(BarrierReduce::And(p)) => self.put_pred(p, arrival.lanes, mask(votes == threads)),
            Some(BarrierReduce::Or(p)) => self.put_pred(p, arrival.lanes, mask(votes > 0)),
        }
    }
}
