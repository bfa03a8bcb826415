//! A warp: its registers, and which of its lanes are where.

use super::copies::Copies;
use super::scratch::Scratch;
use super::{Context, Mistake};
use crate::FaultKind;
use crate::code::{BarrierReduce, Dst, Inst, Op, Pred, Src, V, W};

/// Lanes that are at one place in the code.
#[derive(Debug, Clone, Copy)]
struct Group {
    pc: u32,
    mask: u32,
    /// Whether it waits for other lanes of the warp.
    waits: bool,
}

/// A warp that has come to a barrier of its block.
#[derive(Debug, Clone)]
pub(super) struct Arrival {
    pub(super) pc: u32,
    pub(super) lanes: u32,
    pub(super) id: u32,
    /// How many threads take part; none: all of the block.
    pub(super) count: Option<u32>,
    pub(super) waits: bool,
    pub(super) reduce: Option<BarrierReduce>,
    /// The lanes whose predicate holds.
    pub(super) votes: u32,
}

/// Why a warp stopped running.
#[derive(Debug)]
pub(super) enum Stop {
    /// It may go on.
    Pause,
    Barrier(Arrival),
    End,
}

/// What an instruction tells the loop.
enum Next {
    Go,
    /// Lanes that the instruction needs are not here.
    Wait,
    Jump(u32),
    Split,
    Exit,
    Arrive(Arrival),
}

/// A warp.
pub(super) struct Warp {
    pub(super) index: u32,
    file: Vec<[u64; 16]>,
    pub(super) preds: Vec<u32>,
    groups: Vec<Group>,
    /// The lanes that have a thread which has not ended.
    pub(super) live: u32,
    /// The lanes that have a thread.
    pub(super) threads: u32,
    steps: u64,
    /// The threads' own memory: for each word, one of each lane.
    pub(super) local: Vec<u32>,
    pub(super) local_written: Vec<u8>,
    pub(super) copies: Copies,
}

impl Warp {
    /// A warp at the start of the code. `count` of its lanes have a thread.
    /// Its registers come from `scratch`, with what an earlier block left there.
    pub(super) fn new(context: &Context<'_>, scratch: &mut Scratch, index: u32, count: u32) -> Self {
        let threads = if count >= 32 { u32::MAX } else { (1 << count) - 1 };
        let code = context.job.code;
        let mut preds = vec![0; code.preds as usize];
        preds[0] = u32::MAX;
        Self {
            index,
            file: scratch.files.pop().unwrap_or_else(|| vec![[0; 16]; code.rows as usize]),
            preds,
            groups: vec![Group { pc: 0, mask: threads, waits: false }],
            live: threads,
            threads,
            steps: 0,
            local: Vec::new(),
            local_written: Vec::new(),
            copies: Copies::default(),
        }
    }

    /// Gives the registers back.
    pub(super) fn end(self, scratch: &mut Scratch) {
        scratch.files.push(self.file);
    }

    /// The lanes whose predicate holds.
    #[inline]
    pub(super) fn pred(&self, pred: Pred) -> u32 {
        let mask = self.preds[pred.at as usize];
        if pred.negated { !mask } else { mask }
    }

    /// Writes a predicate of these lanes.
    #[inline]
    pub(super) fn put_pred(&mut self, at: u32, active: u32, value: u32) {
        let old = &mut self.preds[at as usize];
        *old = *old & !active | value & active;
    }

    /// The lower 32 bits of an operand.
    #[inline]
    pub(super) fn v<'v>(&'v self, context: &Context<'_>, src: Src, buffer: &'v mut V) -> &'v V {
        match src {
            Src::Row(at) => bytemuck::must_cast_ref(&self.file[at as usize]),
            Src::Const(at) => {
                *buffer = [context.job.constants[at as usize] as u32; 32];
                buffer
            }
            Src::Wide(_) => {
                let mut wide = [0; 32];
                self.w(context, src, &mut wide);
                for (to, from) in buffer.iter_mut().zip(wide) {
                    *to = from as u32;
                }
                buffer
            }
        }
    }

    /// All bits of an operand, extended with zeros.
    #[inline]
    pub(super) fn w(&self, context: &Context<'_>, src: Src, out: &mut W) {
        match src {
            Src::Row(at) => {
                let row: &V = bytemuck::must_cast_ref(&self.file[at as usize]);
                for (to, from) in out.iter_mut().zip(row) {
                    *to = u64::from(*from);
                }
            }
            Src::Const(at) => *out = [context.job.constants[at as usize]; 32],
            Src::Wide(at) => out.copy_from_slice(self.file[at as usize..at as usize + 2].as_flattened()),
        }
    }

    /// Writes a row of these lanes.
    #[inline]
    pub(super) fn put_v(&mut self, at: u32, active: u32, value: &V) {
        let row: &mut V = bytemuck::must_cast_mut(&mut self.file[at as usize]);
        if active == u32::MAX {
            *row = *value;
            return;
        }
        for lane in 0..32 {
            let keep = (active >> lane & 1).wrapping_sub(1);
            row[lane] = row[lane] & keep | value[lane] & !keep;
        }
    }

    /// Writes a register of any width of these lanes.
    #[inline]
    pub(super) fn put_w(&mut self, d: Dst, active: u32, value: &W) {
        match d {
            Dst::None => {}
            Dst::Half(at) => self.put_v(at, active, &value.map(|bits| bits as u32 & 0xffff)),
            Dst::Row(at) => self.put_v(at, active, &value.map(|bits| bits as u32)),
            Dst::Wide(at) => {
                let row = self.file[at as usize..at as usize + 2].as_flattened_mut();
                for (lane, (to, from)) in row.iter_mut().zip(value).enumerate() {
                    let keep = u64::from(active >> lane & 1).wrapping_sub(1);
                    *to = *to & keep | from & !keep;
                }
            }
        }
    }

    /// Writes a register from 32-bit results.
    pub(super) fn put_narrow(&mut self, d: Dst, active: u32, value: &V) {
        match d {
            Dst::None => {}
            Dst::Row(at) => self.put_v(at, active, value),
            Dst::Half(at) => self.put_v(at, active, &value.map(|bits| bits & 0xffff)),
            Dst::Wide(_) => self.put_w(d, active, &value.map(u64::from)),
        }
    }

    /// Takes the group at the lowest place that does not wait, with all that are at the same place.
    fn choose(&mut self) -> Option<Group> {
        let lowest = self.groups.iter().filter(|group| !group.waits).map(|group| group.pc).min()?;
        let mut mask = 0;
        self.groups.retain(|group| {
            let here = group.pc == lowest;
            mask |= if here { group.mask } else { 0 };
            !here
        });
        Some(Group { pc: lowest, mask, waits: false })
    }

    /// Where a group at this place must stop, since others join it or come first.
    fn horizon(&self, pc: u32) -> u32 {
        let others = self.groups.iter().filter(|group| !group.waits || group.pc >= pc);
        others.map(|group| group.pc).min().unwrap_or(u32::MAX)
    }

    /// Runs until a barrier, the end, or for this many instructions.
    pub(super) fn run(&mut self, context: &mut Context<'_>, quantum: u64) -> Result<Stop, Box<Mistake>> {
        let code = context.job.code;
        let pause = self.steps + quantum;
        loop {
            let Some(Group { mut pc, mut mask, .. }) = self.choose() else {
                return if self.groups.is_empty() { Ok(Stop::End) } else { self.stuck(context) };
            };
            let mut horizon = self.horizon(pc);
            loop {
                if pc >= horizon || self.steps >= pause {
                    self.groups.push(Group { pc, mask, waits: false });
                    if self.steps >= pause {
                        return self.pause(context, pc, mask);
                    }
                    break;
                }
                let inst = &code.insts[pc as usize];
                let active = mask & self.pred(inst.guard);
                self.steps += 1;
                context.stats.warp_instructions += 1;
                context.stats.thread_instructions += u64::from(mask.count_ones());
                match self.step(context, pc, inst, active)? {
                    Next::Go => pc += 1,
                    Next::Jump(to) if active == mask => {
                        pc = to;
                        if !self.groups.is_empty() {
                            horizon = self.horizon(pc);
                        }
                    }
                    Next::Jump(to) => {
                        self.groups.push(Group { pc: to, mask: active, waits: false });
                        self.groups.push(Group { pc: pc + 1, mask: mask & !active, waits: false });
                        break;
                    }
                    Next::Split => {
                        if mask & !active != 0 {
                            self.groups.push(Group { pc: pc + 1, mask: mask & !active, waits: false });
                        }
                        break;
                    }
                    Next::Wait => {
                        self.groups.push(Group { pc, mask: active, waits: true });
                        if mask & !active != 0 {
                            self.groups.push(Group { pc: pc + 1, mask: mask & !active, waits: false });
                        }
                        break;
                    }
                    Next::Exit => {
                        self.live &= !active;
                        // Others may have waited for these lanes.
                        self.groups.iter_mut().for_each(|group| group.waits = false);
                        mask &= !active;
                        if mask == 0 {
                            break;
                        }
                        pc += 1;
                        horizon = self.horizon(pc);
                    }
                    Next::Arrive(arrival) => {
                        self.groups.push(Group { pc: pc + 1, mask, waits: false });
                        return Ok(Stop::Barrier(arrival));
                    }
                }
            }
        }
    }

    /// Another warp's turn, or the end where the limit is passed.
    fn pause(&self, context: &Context<'_>, pc: u32, mask: u32) -> Result<Stop, Box<Mistake>> {
        if self.steps < context.job.limits.steps {
            return Ok(Stop::Pause);
        }
        let text = format!("the warp executed {} instructions, which is the limit", self.steps);
        context.mistake(FaultKind::Steps, pc, mask.trailing_zeros(), text)
    }

    /// All groups wait for each other.
    #[cold]
    fn stuck(&self, context: &Context<'_>) -> Result<Stop, Box<Mistake>> {
        let Some(first) = self.groups.iter().min_by_key(|group| group.pc) else { return Ok(Stop::End) };
        let is_barrier = matches!(context.job.code.insts[first.pc as usize].op, Op::Barrier(_));
        let kind = if is_barrier { FaultKind::DivergentBarrier } else { FaultKind::DivergentWarp };
        let text = format!(
            "lanes {:#010x} of the warp wait for lanes of {:#010x}, which are at another instruction or have ended",
            first.mask,
            self.threads & !first.mask
        );
        context.mistake(kind, first.pc, first.mask.trailing_zeros(), text)
    }

    /// Executes one instruction of the active lanes.
    #[inline]
    fn step(&mut self, context: &mut Context<'_>, pc: u32, inst: &Inst, active: u32) -> Result<Next, Box<Mistake>> {
        if active == 0 {
            return Ok(Next::Go);
        }
        match &inst.op {
            Op::Branch { to } => return Ok(Next::Jump(*to)),
            Op::Exit => return Ok(Next::Exit),
            Op::BranchIndex { index, to } => {
                let mut buffer = [0; 32];
                let index = *self.v(context, *index, &mut buffer);
                for lane in super::lanes(active) {
                    let Some(&pc_to) = to.get(index[lane] as usize) else {
                        let text = format!("a branch to target {} of {}", index[lane], to.len());
                        return context.mistake(FaultKind::BadOperand, pc, lane as u32, text);
                    };
                    self.groups.push(Group { pc: pc_to, mask: 1 << lane, waits: false });
                }
                return Ok(Next::Split);
            }
            Op::Barrier(barrier) => {
                if active != self.live {
                    return Ok(Next::Wait);
                }
                return self.arrive(context, pc, active, barrier).map(Next::Arrive);
            }
            op => {
                if self.needed(context, op, active, pc)?.is_some_and(|needed| needed & !active != 0) {
                    return Ok(Next::Wait);
                }
                self.execute(context, pc, op, active)?;
            }
        }
        Ok(Next::Go)
    }
}
