//! Puts registers that are never live together into the same rows, so that the registers of a block fit the caches of the
//! host: PTX has a new register for each value. What a lane writes concerns that lane only, so the liveness of one thread
//! decides.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use crate::code::{ALWAYS, Address, BarrierReduce, Code, Dst, Inst, Op, Src, Vote};

/// A row of a register, whether it is the first of two, and whether it is written.
type Visit<'v> = &'v mut dyn FnMut(&mut u32, bool, bool);

fn source(src: &mut Src, visit: Visit<'_>) {
    match src {
        Src::Row(at) => visit(at, false, false),
        Src::Wide(at) => visit(at, true, false),
        Src::Const(_) => {}
    }
}

fn sources<'s>(all: impl IntoIterator<Item = &'s mut Src>, visit: Visit<'_>) {
    all.into_iter().for_each(|src| source(src, visit));
}

fn target(d: &mut Dst, visit: Visit<'_>) {
    match d {
        Dst::None => {}
        Dst::Half(at) | Dst::Row(at) => visit(at, false, true),
        Dst::Wide(at) => visit(at, true, true),
    }
}

fn targets(all: &mut [Dst], visit: Visit<'_>) {
    all.iter_mut().for_each(|d| target(d, visit));
}

fn address(at: &mut Address, visit: Visit<'_>) {
    source(&mut at.base, visit);
}

/// Visits the registers of an instruction, those that it reads first.
fn registers(op: &mut Op, visit: Visit<'_>) {
    match op {
        Op::Alu { d, from, .. } => {
            sources(from, visit);
            visit(d, false, true);
        }
        Op::AluWide { d, from, .. } => {
            sources(from, visit);
            target(d, visit);
        }
        Op::Move { d, a } => {
            source(a, visit);
            visit(d, false, true);
        }
        Op::MoveWide { d, a } => {
            source(a, visit);
            target(d, visit);
        }
        Op::Special { d, .. } | Op::ActiveMask { d } => target(d, visit),
        Op::Select { d, a, b, .. } => {
            sources([a, b], visit);
            target(d, visit);
        }
        Op::Compare { from, .. } | Op::CompareHalves { from, .. } => sources(from, visit),
        Op::CompareTo { from, d, .. } => {
            sources(from, visit);
            target(d, visit);
        }
        Op::Carry { d, from, .. } => {
            sources(from, visit);
            target(d, visit);
        }
        Op::Convert { d, a, b, .. } => {
            sources(std::iter::once(a).chain(b), visit);
            target(d, visit);
        }
        Op::Pack { d, from, .. } => {
            sources(from, visit);
            target(d, visit);
        }
        Op::Unpack { d, from, .. } => {
            source(from, visit);
            targets(d, visit);
        }
        Op::IsSpace { a, .. } => source(a, visit),
        Op::Load(load) => {
            address(&mut load.address, visit);
            targets(&mut load.to, visit);
        }
        Op::Store(store) => {
            address(&mut store.address, visit);
            sources(&mut store.from, visit);
        }
        Op::Atomic(atomic) => {
            address(&mut atomic.address, visit);
            sources([&mut atomic.b, &mut atomic.c], visit);
            target(&mut atomic.to, visit);
        }
        Op::CopyAsync(copy) => {
            address(&mut copy.to, visit);
            address(&mut copy.from, visit);
            sources(&mut copy.source_size, visit);
        }
        Op::LoadMatrix { address: at, to, .. } => {
            address(at, visit);
            targets(to, visit);
        }
        Op::Matrix(matrix) => {
            sources(matrix.a.iter_mut().chain(&mut matrix.b).chain(&mut matrix.c), visit);
            targets(&mut matrix.d, visit);
        }
        Op::BranchIndex { index, .. } => source(index, visit),
        Op::Barrier(barrier) => {
            sources(std::iter::once(&mut barrier.id).chain(&mut barrier.count), visit);
            if let Some((BarrierReduce::Count(d), _)) = &mut barrier.reduce {
                target(d, visit);
            }
        }
        Op::WarpBarrier { mask } => source(mask, visit),
        Op::Shuffle { d, a, b, clamp, mask, .. } => {
            sources([a, b, clamp, mask], visit);
            target(d, visit);
        }
        Op::Vote { kind, mask, .. } => {
            source(mask, visit);
            if let Vote::Ballot(d) = kind {
                target(d, visit);
            }
        }
        Op::Match { d, a, mask, .. } | Op::Reduce { d, a, mask, .. } => {
            sources([a, mask], visit);
            target(d, visit);
        }
        Op::Logic { .. } | Op::CopyCommit | Op::CopyWait(_) | Op::Branch { .. } | Op::Exit | Op::Trap | Op::Fence => {}
        Op::Print { .. } | Op::AssertFail { .. } => {}
    }
}

/// A set of registers.
type Bits = Vec<u64>;

fn set(bits: &mut Bits, at: u32) {
    bits[at as usize / 64] |= 1 << (at % 64);
}

fn clear(bits: &mut Bits, at: u32) {
    bits[at as usize / 64] &= !(1 << (at % 64));
}

fn members(bits: &Bits) -> impl Iterator<Item = usize> {
    let word = |(at, word): (usize, &u64)| {
        let word = *word;
        (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| 64 * at + bit)
    };
    bits.iter().enumerate().filter(|(_, word)| **word != 0).flat_map(word)
}

/// Instructions that are executed one after the other.
struct Block {
    start: usize,
    end: usize,
    next: Vec<usize>,
    /// What is read before it is written, and what is written whatever the guards say.
    reads: Bits,
    kills: Bits,
    live_in: Bits,
    live_out: Bits,
}

fn blocks(insts: &mut [Inst], registers_in_all: usize) -> Vec<Block> {
    let mut starts = BTreeSet::from([0]);
    for (at, inst) in insts.iter().enumerate() {
        match &inst.op {
            Op::Branch { to } => starts.extend([*to as usize, at + 1]),
            Op::BranchIndex { to, .. } => starts.extend(to.iter().map(|to| *to as usize).chain([at + 1])),
            Op::Exit | Op::Trap => starts.extend([at + 1]),
            _ => {}
        }
    }
    starts.retain(|start| *start < insts.len());
    let starts: Vec<usize> = starts.into_iter().collect();
    let index = |at: u32| starts.binary_search(&(at as usize)).ok();
    let ends = starts.iter().skip(1).copied().chain([insts.len()]);
    let empty = || vec![0u64; registers_in_all.div_ceil(64)];
    let mut all = Vec::new();
    for (start, end) in starts.iter().copied().zip(ends) {
        let last = &insts[end - 1];
        let falls = last.guard != ALWAYS
            || !matches!(last.op, Op::Branch { .. } | Op::BranchIndex { .. } | Op::Exit | Op::Trap);
        let mut next: Vec<usize> = match &last.op {
            Op::Branch { to } => index(*to).into_iter().collect(),
            Op::BranchIndex { to, .. } => to.iter().filter_map(|to| index(*to)).collect(),
            _ => Vec::new(),
        };
        next.extend(if falls { index(end as u32) } else { None });
        let (mut reads, mut kills) = (empty(), empty());
        for inst in insts[start..end].iter_mut().rev() {
            let always = inst.guard == ALWAYS;
            registers(&mut inst.op, &mut |at, _, writes| {
                if writes && always {
                    set(&mut kills, *at);
                    clear(&mut reads, *at);
                }
            });
            registers(&mut inst.op, &mut |at, _, writes| {
                if !writes {
                    set(&mut reads, *at);
                }
            });
        }
        all.push(Block { start, end, next, reads, kills, live_in: empty(), live_out: empty() });
    }
    all
}

/// Finds what is live at the borders of all blocks.
fn flow(all: &mut [Block]) {
    let mut changed = true;
    while changed {
        changed = false;
        for at in (0..all.len()).rev() {
            let mut out = std::mem::take(&mut all[at].live_out);
            for next in all[at].next.clone() {
                for (out, word) in out.iter_mut().zip(&all[next].live_in) {
                    *out |= word;
                }
            }
            let block = &mut all[at];
            for (word, live) in out.iter().enumerate() {
                let live_in = block.reads[word] | live & !block.kills[word];
                changed |= live_in != block.live_in[word];
                block.live_in[word] = live_in;
            }
            block.live_out = out;
        }
    }
}

/// Gives registers new rows.
pub(super) fn compact(code: &mut Code) {
    let count = code.rows as usize;
    let mut all = blocks(&mut code.insts, count);
    flow(&mut all);
    // From the first to the last instruction at which a register, named by its first row, is live.
    let mut spans = vec![(usize::MAX, 0); count];
    let mut wides = vec![false; count];
    let extend = |spans: &mut Vec<(usize, usize)>, register: usize, at: usize| {
        let span = &mut spans[register];
        *span = (span.0.min(at), span.1.max(at));
    };
    for block in &all {
        members(&block.live_in).for_each(|register| extend(&mut spans, register, block.start));
        members(&block.live_out).for_each(|register| extend(&mut spans, register, block.end));
        for (at, inst) in code.insts[block.start..block.end].iter_mut().enumerate() {
            registers(&mut inst.op, &mut |register, wide, _| {
                wides[*register as usize] |= wide;
                extend(&mut spans, *register as usize, block.start + at);
            });
        }
    }
    let mut order: Vec<usize> = (0..count).filter(|register| spans[*register].0 != usize::MAX).collect();
    order.sort_by_key(|register| spans[*register].0);
    // Narrow and wide registers have places of their own, so that any free place fits.
    let (mut used, mut free, mut busy) = ([0u32; 2], [Vec::new(), Vec::new()], [BinaryHeap::new(), BinaryHeap::new()]);
    let mut places = vec![0; count];
    for register in order {
        let (start, end) = spans[register];
        let kind = usize::from(wides[register]);
        while let Some(&Reverse((last, place))) = busy[kind].peek() {
            if last >= start {
                break;
            }
            busy[kind].pop();
            free[kind].push(place);
        }
        let place = free[kind].pop().unwrap_or_else(|| {
            used[kind] += 1;
            used[kind] - 1
        });
        busy[kind].push(Reverse((end, place)));
        places[register] = place;
    }
    for inst in &mut code.insts {
        registers(&mut inst.op, &mut |register, wide, _| {
            let place = places[*register as usize];
            *register = if wide { used[0] + 2 * place } else { place };
        });
    }
    code.rows = used[0] + 2 * used[1];
}

#[cfg(test)]
mod tests {
    use crate::lower::lower;

    /// A loop over many temporary values needs few rows, and what is live around it keeps its own.
    #[test]
    fn temporary_values_share_rows() {
        let mut text = String::from(
            ".visible .entry k(.param .u64 p)\n{\n.reg .pred %p<2>;\n.reg .b32 %r<200>;\n.reg .b64 %rd<9>;\nld.param.u64 %rd1, \
             [p];\nmov.u32 %r1, 0;\nmov.u32 %r2, 7;\nL:\n",
        );
        for at in 10..190 {
            text += &format!("add.u32 %r{}, %r{at}, %r2;\n", at + 1);
        }
        text += "add.u32 %r1, %r1, 1;\nsetp.lt.u32 %p1, %r1, 9;\n@%p1 bra L;\nst.global.u32 [%rd1], %r1;\nret;\n}\n";
        let unit = crate::parse::parse(&text).unwrap();
        let code = lower(&unit, &unit.functions[0]).unwrap();
        // Two that live around the loop, the first of the chain, which is never written, two of the chain, and an address.
        assert_eq!(code.rows, 2 + 1 + 2 + 2);
    }
}
