//! A kernel that is ready to run, with its values assigned to registers, splats and memory.
//!
//! A *register* is a block of elements in scratch memory that stays in the L1 cache. A *splat* is [`LANES`] equal
//! elements. Values that depend only on constants and scalars are computed once, when the program is compiled, and used
//! as splats. An argument or output whose memory can be used in place needs no register. A register is free for reuse
//! after the last instruction that reads it. It is never both the result and an operand of one instruction, because the
//! loops rely on this.

use gradus_backend::kernel::{Inst, integer_failure};
use gradus_backend::{DType, Error, Kernel, Result, ScalarOp};

use super::chain::{self, Found, Known, Link};
use super::compiled::{self, Compiled, MOST_ARGS, MOST_OUTS};
use super::convert::{Splat, splat_scalar};
use super::float::LANES;
use super::step::{self, One, Slot};
use crate::isa::Isa;

/// How an argument is read.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum ArgMode {
    /// One value for all elements, in a splat.
    Uniform,
    /// Read in place.
    Direct,
    /// Loaded into a register, block by block.
    Load,
    /// One value per row, filled into a register at the start of each row.
    Row,
}

/// How an output is written.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum OutMode {
    /// In place, by the instruction that computes it.
    Direct,
    /// From a register, at the end of each block.
    Store,
}

/// A part of a program that runs on a whole block.
#[derive(Debug, Clone, Copy)]
pub(super) enum Step {
    One(One),
    /// A [chain](chain) of these links, numbered from..to, with the slots of the value that it loads and of its result.
    Chain {
        start: Slot,
        links: (usize, usize),
        dst: Slot,
    },
}

/// A kernel that is compiled ahead of time, with the slots of its operands.
#[derive(Debug)]
pub(super) struct Whole {
    kernel: &'static Compiled,
    args: [Slot; MOST_ARGS],
    outs: [Slot; MOST_OUTS],
}

/// A kernel that is ready to run (see the [module page](self)).
#[derive(Debug, Default)]
pub(super) struct Program {
    pub(super) steps: Vec<Step>,
    /// The links of all chains.
    links: Vec<Link>,
    found: Vec<Found>,
    /// The compiled kernel that replaces all steps, if there is one.
    pub(super) whole: Option<Whole>,
    pub(super) splats: Vec<Splat>,
    /// Arguments to load at the start of each block, with their registers.
    pub(super) loads: Vec<(usize, Slot)>,
    /// Arguments to fill in at the start of each row, with their registers.
    pub(super) rows: Vec<(usize, Slot)>,
    /// Splats to fill into registers at the start, with their registers and the size of an element. They hold outputs
    /// that are the same for all elements.
    pub(super) fills: Vec<(Slot, Slot, usize)>,
    /// Outputs to store at the end of each block, with the slots and dtypes of their values.
    pub(super) stores: Vec<(usize, Slot, DType)>,
    /// The number of arguments. `outs` and `registers` are the numbers of outputs and of registers.
    pub(super) args: usize,
    pub(super) outs: usize,
    pub(super) registers: usize,
    /// The size in bytes of the largest element in a register.
    pub(super) width: usize,
    /// The cost per element, in units of about one cheap instruction.
    pub(super) cost: usize,
    free: Vec<Slot>,
    place: Vec<Place>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Place {
    slot: Slot,
    uniform: bool,
    /// The index of the last instruction that reads the value; `u32::MAX` if it is needed until the end of the block.
    last: u32,
    /// Whether the value is in a register that becomes free after the last use.
    owned: bool,
    /// The output that the value's instruction writes in place.
    direct: Option<Slot>,
}

/// Returns the cost of an instruction, in units of about one cheap instruction.
pub(super) fn cost(op: ScalarOp, dtype: DType) -> usize {
    use ScalarOp::*;
    match op {
        Arg(_) | Const(_) => 0,
        Neg | Abs | Sign | Floor | Ceil | Round | Trunc | IsNan | IsFinite | Not | Add | Sub | Mul | Max | Min => 1,
        Eq | Ne | Lt | Le | Gt | Ge | And | Or | Xor | Select => 1,
        Cast | RoundF16 | RoundBf16 => 2,
        Sqrt | Recip | Div => 3,
        FloorDiv | Fmod | Remainder => 8,
        Sin | Cos | Tan | Pow if dtype != DType::F64 => 16,
        _ if dtype == DType::F64 => 32,
        _ => 8,
    }
}

impl Program {
    /// The number of slots.
    pub(super) fn slots(&self) -> usize {
        self.args + self.outs + self.splats.len() + self.registers
    }

    /// The slot of the first register.
    pub(super) fn first_register(&self) -> usize {
        self.args + self.outs + self.splats.len()
    }

    /// Turns this into the program of `kernel`. `alias(k)` returns the output that argument `k` reads, if any. `fill(k,
    /// splat)` writes the value of argument `k`, which is uniform. Returns an error if an integer instruction on
    /// uniform values has no result.
    pub(super) fn compile(
        &mut self,
        isa: Isa,
        kernel: &Kernel,
        arg_modes: &[ArgMode],
        out_modes: &[OutMode],
        alias: impl Fn(usize) -> Option<usize>,
        mut fill: impl FnMut(usize, &mut Splat),
    ) -> Result<()> {
        let insts = kernel.insts();
        self.clear(arg_modes.len(), out_modes.len(), insts.len());
        if let Some(compiled) = compiled::find(kernel, |k| arg_modes[k] == ArgMode::Uniform) {
            self.whole(kernel, compiled, arg_modes, out_modes, alias, fill);
            return Ok(());
        }
        // Finds the last use of each value, and the values that are uniform.
        for (i, inst) in insts.iter().enumerate() {
            let uniform = match inst.op {
                ScalarOp::Const(_) => true,
                ScalarOp::Arg(k) => arg_modes[usize::from(k)] == ArgMode::Uniform,
                _ => inst.inputs().iter().all(|&v| self.place[usize::from(v)].uniform),
            };
            self.place[i].uniform = uniform;
            self.splats.extend(uniform.then_some(Splat([0; LANES * 8])));
            self.width = self.width.max(inst.dtype.size());
            if !uniform {
                self.cost += cost(inst.op, inst.dtype);
            }
            for &v in inst.inputs() {
                self.place[usize::from(v)].last = i as u32;
            }
        }
        let mut next_splat = 0;
        // Outputs that no instruction writes in place are stored at the end, so their values must be kept. Arguments
        // come first, because whether an output can be written in place depends on how long they are needed.
        for &(v, _) in kernel.outputs() {
            if matches!(insts[usize::from(v)].op, ScalarOp::Arg(_)) {
                self.place[usize::from(v)].last = u32::MAX;
            }
        }
        for (k, &(v, _)) in kernel.outputs().iter().enumerate() {
            if self.is_direct(kernel, out_modes, &alias, k) {
                self.place[usize::from(v)].direct = Some(k as Slot);
            } else {
                self.place[usize::from(v)].last = u32::MAX;
                self.stores.push((k, 0, insts[usize::from(v)].dtype));
            }
        }
        // The value that the chain which is being passed loads, and the index of its last instruction.
        let mut passing: Option<(u16, usize)> = None;
        for (i, inst) in insts.iter().enumerate() {
            if self.place[i].uniform {
                self.uniform(isa, kernel, i, next_splat, &mut fill)?;
                next_splat += 1;
                continue;
            }
            if passing.is_none() && !matches!(inst.op, ScalarOp::Arg(_)) {
                passing = self.chain_from(kernel, i);
            }
            if let Some((start, last)) = passing
                && !matches!(inst.op, ScalarOp::Arg(_))
            {
                if i == last {
                    self.chain(insts, start, i);
                    passing = None;
                }
                continue;
            }
            let slot = match inst.op {
                ScalarOp::Arg(k) => {
                    let k = usize::from(k);
                    // Memory used in place may have been overwritten by the end of the block, when outputs are stored.
                    let overwritten = self.place[i].last == u32::MAX && alias(k).is_some();
                    if arg_modes[k] == ArgMode::Direct && !overwritten {
                        k as Slot
                    } else {
                        let slot = self.new_register();
                        self.place[i].owned = arg_modes[k] != ArgMode::Row;
                        if arg_modes[k] == ArgMode::Row { &mut self.rows } else { &mut self.loads }.push((k, slot));
                        slot
                    }
                }
                _ => {
                    let dst = self.result(i);
                    self.steps.push(Step::One(self.step(insts, inst, dst)));
                    dst
                }
            };
            self.place[i].slot = slot;
            for &v in inst.inputs() {
                self.release(v, i);
            }
            self.release_unread(i);
        }
        for n in 0..self.stores.len() {
            let (v, _) = kernel.outputs()[self.stores[n].0];
            let place = self.place[usize::from(v)];
            self.stores[n].1 = place.slot;
            if place.uniform {
                self.stores[n].1 = self.new_register();
                self.fills.push((place.slot, self.stores[n].1, self.stores[n].2.size()));
            }
        }
        self.cost += arg_modes.len() + out_modes.len();
        Ok(())
    }

    /// Replaces the values of uniform arguments of a program of `kernel` by those that `fill` writes. Fails as
    /// [`compile`](Program::compile) does.
    pub(super) fn refill(&mut self, isa: Isa, kernel: &Kernel, mut fill: impl FnMut(usize, &mut Splat)) -> Result<()> {
        if let Some(whole) = &self.whole {
            for (k, splat) in (whole.kernel.elementwise..).zip(&mut self.splats) {
                fill(k, splat);
            }
            return Ok(());
        }
        let mut next = 0;
        for i in 0..self.place.len() {
            if self.place[i].uniform {
                self.uniform(isa, kernel, i, next, &mut fill)?;
                next += 1;
            }
        }
        Ok(())
    }

    /// The slot for the result of instruction `i`: the output that it writes in place, or a register.
    fn result(&mut self, i: usize) -> Slot {
        match self.place[i].direct {
            Some(k) => self.args as Slot + k,
            None => {
                self.place[i].owned = true;
                self.register()
            }
        }
    }

    /// The register of a value that nothing reads is free at once.
    fn release_unread(&mut self, i: usize) {
        if self.place[i].last == 0 && self.place[i].owned {
            self.free.push(self.place[i].slot);
            self.place[i].owned = false;
        }
    }

    /// Finds the chain that begins with instruction `first`: the value that it loads, and its last instruction. Its
    /// links are in `found`.
    fn chain_from(&mut self, kernel: &Kernel, first: usize) -> Option<(u16, usize)> {
        let place = &self.place;
        let known = Known {
            insts: kernel.insts(),
            uniform: &|v| place[v].uniform,
            last: &|v| place[v].last,
            leaves: &|v| place[v].direct.is_some(),
        };
        let start = chain::find(&known, first, &mut self.found)?;
        Some((start, self.found.last()?.inst))
    }

    /// Adds the chain whose links are in `found` and whose last instruction is `last`.
    fn chain(&mut self, insts: &[Inst], start: u16, last: usize) {
        let dst = self.result(last);
        self.place[last].slot = dst;
        let from = self.links.len();
        for found in &self.found {
            let place = found.operand.map_or(Place::default(), |v| self.place[usize::from(v)]);
            self.links.push(Link { what: found.what, slot: place.slot, splat: place.uniform });
        }
        let start = self.place[usize::from(start)].slot;
        self.steps.push(Step::Chain { start, links: (from, self.links.len()), dst });
        let found = std::mem::take(&mut self.found);
        for i in found.iter().map(|f| f.inst) {
            insts[i].inputs().iter().for_each(|&v| self.release(v, i));
        }
        self.found = found;
        self.release_unread(last);
    }

    /// Runs a step on `n` elements, with pointers from the table. If an integer instruction has no result, returns the
    /// instruction as the error.
    ///
    /// # Safety
    /// For each slot that the step names, the table points to `n` elements of its type, or to `LANES` elements if the
    /// slot is a splat. The memory of the result does not overlap that of the operands, except that the result of a chain
    /// may be the memory of one of them.
    #[inline]
    pub(super) unsafe fn run(&self, step: &Step, isa: Isa, table: &[*mut u8], n: usize) -> Result<(), ScalarOp> {
        match *step {
            // SAFETY: guaranteed by the caller.
            Step::One(ref one) => unsafe { one.run(isa, table, n) },
            Step::Chain { start, links: (from, to), dst } => {
                // SAFETY: guaranteed by the caller.
                unsafe { chain::run(isa, start, &self.links[from..to], table, dst, n) };
                Ok(())
            }
        }
    }

    /// Turns this into the program of a kernel that is compiled ahead of time. Outputs that an argument also reads are
    /// written at the end of each block.
    fn whole(
        &mut self,
        kernel: &Kernel,
        compiled: &'static Compiled,
        arg_modes: &[ArgMode],
        out_modes: &[OutMode],
        alias: impl Fn(usize) -> Option<usize>,
        mut fill: impl FnMut(usize, &mut Splat),
    ) {
        let mut whole = Whole { kernel: compiled, args: [0; MOST_ARGS], outs: [0; MOST_OUTS] };
        for k in compiled.elementwise..self.args {
            let mut splat = Splat([0; LANES * 8]);
            fill(k, &mut splat);
            whole.args[k] = (self.args + self.outs + self.splats.len()) as Slot;
            self.splats.push(splat);
        }
        for (k, mode) in arg_modes.iter().enumerate().take(compiled.elementwise) {
            whole.args[k] = k as Slot;
            if *mode != ArgMode::Direct {
                whole.args[k] = self.new_register();
                if *mode == ArgMode::Row { &mut self.rows } else { &mut self.loads }.push((k, whole.args[k]));
            }
        }
        for (k, mode) in out_modes.iter().enumerate() {
            whole.outs[k] = (self.args + k) as Slot;
            if *mode != OutMode::Direct || (0..self.args).any(|a| alias(a) == Some(k)) {
                whole.outs[k] = self.new_register();
                self.stores.push((k, whole.outs[k], DType::F32));
            }
        }
        self.width = DType::F32.size();
        self.cost = kernel.insts().iter().map(|inst| cost(inst.op, inst.dtype)).sum();
        self.whole = Some(whole);
    }

    fn clear(&mut self, args: usize, outs: usize, insts: usize) {
        self.steps.clear();
        self.links.clear();
        self.whole = None;
        self.splats.clear();
        self.loads.clear();
        self.rows.clear();
        self.fills.clear();
        self.stores.clear();
        self.free.clear();
        self.place.clear();
        // A kernel has at most 2^16 instructions.
        self.place.resize(insts, Place::default());
        (self.args, self.outs, self.registers, self.width, self.cost) = (args, outs, 0, 1, 0);
    }

    /// Returns whether the instruction that computes output `k` may write it in place. This requires that its storage
    /// type is its compute type, that it is the first output with this value, and that no argument with the old
    /// contents is read at this instruction or later.
    fn is_direct(
        &self,
        kernel: &Kernel,
        out_modes: &[OutMode],
        alias: &impl Fn(usize) -> Option<usize>,
        k: usize,
    ) -> bool {
        let (v, _) = kernel.outputs()[k];
        let inst = &kernel.insts()[usize::from(v)];
        if out_modes[k] != OutMode::Direct
            || matches!(inst.op, ScalarOp::Arg(_))
            || self.place[usize::from(v)].uniform
            || kernel.outputs()[..k].iter().any(|o| o.0 == v)
            // Selection copies the byte of a bool, which may have any value, but storing turns it into 0 or 1.
            || (inst.op == ScalarOp::Select && inst.dtype == DType::Bool)
        {
            return false;
        }
        kernel.insts().iter().zip(&self.place).all(|(inst, place)| match inst.op {
            ScalarOp::Arg(a) if alias(usize::from(a)) == Some(k) => place.last < u32::from(v),
            _ => true,
        })
    }

    /// Returns a free register.
    fn register(&mut self) -> Slot {
        self.free.pop().unwrap_or_else(|| self.new_register())
    }

    /// Returns a register that was never used, for a value that is written before the first step runs.
    fn new_register(&mut self) -> Slot {
        self.registers += 1;
        (self.first_register() + self.registers - 1) as Slot
    }

    /// Frees the register of operand `v` if instruction `i` was the last to read it.
    fn release(&mut self, v: u16, i: usize) {
        let place = &mut self.place[usize::from(v)];
        if place.owned && place.last as usize == i {
            place.owned = false;
            let slot = place.slot;
            self.free.push(slot);
        }
    }

    fn step(&self, insts: &[Inst], inst: &Inst, dst: Slot) -> One {
        let mut step = One { op: inst.op, from: inst.dtype, to: inst.dtype, dst, src: [0; 3], splat: 0 };
        for (k, &v) in inst.inputs().iter().enumerate() {
            let place = self.place[usize::from(v)];
            step.src[k] = place.slot;
            step.splat |= u8::from(place.uniform) << k;
        }
        if inst.op != ScalarOp::Select {
            step.from = insts[usize::from(inst.operands[0])].dtype;
        }
        step
    }

    /// Computes a value that is the same for all elements and stores it in splat number `n`.
    fn uniform(
        &mut self,
        isa: Isa,
        kernel: &Kernel,
        i: usize,
        n: usize,
        fill: &mut impl FnMut(usize, &mut Splat),
    ) -> Result<()> {
        let inst = &kernel.insts()[i];
        self.place[i].slot = (self.args + self.outs + n) as Slot;
        match inst.op {
            ScalarOp::Const(c) => splat_scalar(inst.dtype, c, &mut self.splats[n]),
            ScalarOp::Arg(k) => fill(usize::from(k), &mut self.splats[n]),
            op => {
                let step = self.step(kernel.insts(), inst, 0);
                let first = self.args + self.outs;
                let (before, here) = self.splats.split_at_mut(n);
                // Unused operands point to an arbitrary splat.
                let src = step.src.map(|s| before[(s as usize).saturating_sub(first).min(n - 1)].0.as_ptr());
                // SAFETY: the operands are earlier splats, which have `LANES` elements, and the result is another
                // splat.
                if !unsafe { step::run(isa, &step, src, here[0].0.as_mut_ptr(), LANES) } {
                    return Err(failure(kernel, op));
                }
            }
        }
        Ok(())
    }
}

/// Returns the error of an integer instruction that has no result.
pub(super) fn failure(kernel: &Kernel, op: ScalarOp) -> Error {
    Error::argument(kernel.name(), integer_failure(op))
}

impl Whole {
    /// Runs the kernel on `n` elements, with pointers from the table.
    ///
    /// # Safety
    /// For each slot that is named here, the table points to `n` f32, or to [`LANES`] f32 if the slot is a splat. The
    /// memory of an output overlaps nothing else.
    #[inline]
    pub(super) unsafe fn run(&self, isa: Isa, table: &[*mut u8], n: usize) {
        let args = self.args.map(|s| table[s as usize].cast_const());
        // SAFETY: guaranteed by the caller. Slots beyond the kernel's operands are 0 and are not used.
        unsafe { (self.kernel.run)(isa, args, self.outs.map(|s| table[s as usize]), n) }
    }
}
