//! Chains: instructions of f32 that run one after the other on the same elements, while their value stays in vector
//! registers.
//!
//! The steps of a program pass their values through the L1 cache, which takes longer than a cheap instruction itself.
//! In a chain, each instruction reads the value of the one before and at most one other operand, so the value stays in
//! registers, a tile of elements at a time. [`find`] looks for chains in a kernel; a chain ends where its value is
//! needed elsewhere, and at instructions that it does not know. Comparisons may stand in between, with a mask each, as
//! in `relu` and `clamp`. Each instruction is one IEEE operation, so the results have the bits of single steps.

use gradus_backend::kernel::Inst;
use gradus_backend::{DType, ScalarOp};

use super::step::Slot;
use crate::isa::{Isa, Level};
use crate::lanes::LANES;
use crate::vectors::{Arrays, EQ, LE, LT, NE, Vectors};

/// The largest number of instructions of a chain.
pub(super) const MOST: usize = 64;
/// The number of masks that may be in use at a time.
const MASKS: usize = 2;

/// An instruction of a chain: what becomes of the value `a`, given the other operand `x`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Do {
    /// `a + x`, `a - x`, `x - a`, `a * x`, `a / x` and `x / a`.
    Add,
    Sub,
    SubFrom,
    Mul,
    Div,
    DivInto,
    /// `a + a` and `a * a`.
    Double,
    Square,
    Neg,
    Abs,
    Sqrt,
    Recip,
    /// Sets a mask where `a` compares so with `x`.
    Eq(u8),
    Ne(u8),
    Lt(u8),
    Le(u8),
    Gt(u8),
    Ge(u8),
    /// `x` in the lanes of the mask, and `a` in the others.
    Take(u8),
    /// `a` in the lanes of the mask, and `x` in the others.
    Keep(u8),
}

/// An instruction with its other operand, if it has one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Link {
    pub(super) what: Do,
    pub(super) slot: Slot,
    /// Whether the operand is a splat.
    pub(super) splat: bool,
}

/// A link whose operand is a value of the kernel.
#[derive(Debug, Clone, Copy)]
pub(super) struct Found {
    pub(super) inst: usize,
    pub(super) what: Do,
    pub(super) operand: Option<u16>,
}

/// What [`find`] needs to know about a value.
pub(super) struct Known<'a> {
    pub(super) insts: &'a [Inst],
    /// Whether the value is the same for all elements.
    pub(super) uniform: &'a dyn Fn(usize) -> bool,
    /// The index of the last instruction that reads the value; `u32::MAX` if it is needed until the end.
    pub(super) last: &'a dyn Fn(usize) -> u32,
    /// Whether the value is written to an output.
    pub(super) leaves: &'a dyn Fn(usize) -> bool,
}

/// Finds the longest chain that begins with instruction `first`: the value that it loads, and its links. Returns `None`
/// if it has fewer than two.
pub(super) fn find(known: &Known<'_>, first: usize, links: &mut Vec<Found>) -> Option<u16> {
    links.clear();
    let begin = begins(known, first)?;
    let mut chain = Chain { known, value: usize::from(begin), loaded: true, masks: [None; MASKS] };
    // The number of links after which no mask is in use.
    let mut whole = 0;
    for i in first..known.insts.len() {
        if (known.uniform)(i) || matches!(known.insts[i].op, ScalarOp::Arg(_)) {
            continue;
        }
        let Some((what, operand)) = chain.extend(i) else { break };
        links.push(Found { inst: i, what, operand });
        if chain.masks.iter().all(Option::is_none) {
            whole = links.len();
        }
        // A value that leaves is stored, and ends the chain.
        if links.len() == MOST || chain.value == i && ((known.leaves)(i) || (known.last)(i) == u32::MAX) {
            break;
        }
    }
    links.truncate(whole);
    (links.len() > 1).then_some(begin)
}

/// The value that a chain beginning with instruction `i` loads.
fn begins(known: &Known<'_>, i: usize) -> Option<u16> {
    let inst = &known.insts[i];
    let is_f32 = |&v: &u16| known.insts[usize::from(v)].dtype == DType::F32;
    let inputs = inst.inputs();
    if matches!(inst.op, ScalarOp::Select | ScalarOp::Cast) || !inputs.iter().all(is_f32) {
        return None;
    }
    inputs.iter().copied().find(|&v| !(known.uniform)(usize::from(v)))
}

struct Chain<'a> {
    known: &'a Known<'a>,
    /// The value in the registers.
    value: usize,
    /// Whether it was loaded, so that it is in memory too.
    loaded: bool,
    /// The comparisons whose masks are in use.
    masks: [Option<usize>; MASKS],
}

impl Chain<'_> {
    /// Adds instruction `i`, if it can follow.
    fn extend(&mut self, i: usize) -> Option<(Do, Option<u16>)> {
        use ScalarOp::*;
        let inst = &self.known.insts[i];
        let inputs = inst.inputs();
        let is_value = |v: u16| usize::from(v) == self.value;
        let other = |v: u16| {
            let v = usize::from(v);
            let is_mask = self.masks.contains(&Some(v));
            (self.known.insts[v].dtype == DType::F32 && v != self.value && !is_mask).then_some(v as u16)
        };
        let (what, operand) = match (inst.op, inputs) {
            (Select, &[c, a, b]) => {
                let mask = self.masks.iter().position(|m| *m == Some(usize::from(c)))?;
                if inst.dtype != DType::F32 || !self.ends(self.value, i) {
                    return None;
                }
                let found = match (is_value(a), is_value(b)) {
                    (true, false) => (Do::Keep(mask as u8), Some(other(b)?)),
                    (false, true) => (Do::Take(mask as u8), Some(other(a)?)),
                    _ => return None,
                };
                if (self.known.last)(usize::from(c)) == i as u32 {
                    self.masks[mask] = None;
                }
                (self.value, self.loaded) = (i, false);
                return Some(found);
            }
            (Eq | Ne | Lt | Le | Gt | Ge, &[a, b]) => {
                let (swapped, x) = match (is_value(a), is_value(b)) {
                    (true, false) => (false, other(b)?),
                    (false, true) => (true, other(a)?),
                    _ => return None,
                };
                let last = (self.known.last)(i);
                if (self.known.leaves)(i) || last == u32::MAX || last == 0 {
                    return None;
                }
                let mask = self.masks.iter().position(Option::is_none)?;
                self.masks[mask] = Some(i);
                let m = mask as u8;
                let what = match (inst.op, swapped) {
                    (Eq, _) => Do::Eq(m),
                    (Ne, _) => Do::Ne(m),
                    (Lt, false) | (Gt, true) => Do::Lt(m),
                    (Le, false) | (Ge, true) => Do::Le(m),
                    (Gt, false) | (Lt, true) => Do::Gt(m),
                    _ => Do::Ge(m),
                };
                return Some((what, Some(x)));
            }
            _ if inst.dtype != DType::F32 => return None,
            (Add | Sub | Mul | Div, &[a, b]) => match (inst.op, is_value(a), is_value(b)) {
                (Add, true, true) => (Do::Double, None),
                (Mul, true, true) => (Do::Square, None),
                (Add, true, _) => (Do::Add, Some(other(b)?)),
                (Mul, true, _) => (Do::Mul, Some(other(b)?)),
                (Sub, true, false) => (Do::Sub, Some(other(b)?)),
                (Div, true, false) => (Do::Div, Some(other(b)?)),
                (Add, _, true) => (Do::Add, Some(other(a)?)),
                (Mul, _, true) => (Do::Mul, Some(other(a)?)),
                (Sub, false, true) => (Do::SubFrom, Some(other(a)?)),
                (Div, false, true) => (Do::DivInto, Some(other(a)?)),
                _ => return None,
            },
            (Neg | Abs | Sqrt | Recip, &[a]) if is_value(a) => match inst.op {
                Neg => (Do::Neg, None),
                Abs => (Do::Abs, None),
                Sqrt => (Do::Sqrt, None),
                _ => (Do::Recip, None),
            },
            _ => return None,
        };
        if !self.ends(self.value, i) {
            return None;
        }
        (self.value, self.loaded) = (i, false);
        Some((what, operand))
    }

    /// Whether instruction `i` may replace `value` in the registers: it is in memory too, or nothing reads it later.
    fn ends(&self, value: usize, i: usize) -> bool {
        self.loaded || (self.known.last)(value) == i as u32
    }
}

/// Runs a chain on `n` elements, with pointers from the table.
///
/// # Safety
/// For each slot, the table points to `n` f32, or to [`super::float::LANES`] f32 if it is a splat, which are readable.
/// Those of `out` are writable. The memory of `out` may be that of an operand, but does not overlap any in another way.
pub(super) unsafe fn run(isa: Isa, start: Slot, links: &[Link], table: &[*mut u8], out: Slot, n: usize) {
    let chain = Run { start: table[start as usize].cast(), links, table, out: table[out as usize].cast(), n };
    #[cfg(target_arch = "x86_64")]
    use crate::vectors::Vectorized;
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma,f16c,bmi2,avx512f,avx512bw,avx512dq,avx512vl")]
    fn avx512(chain: &Run<'_>) {
        // SAFETY: this function is called only where the machine has its features.
        chain.all::<_, 8>(unsafe { f32::avx512() });
    }
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma,f16c,bmi2")]
    fn avx2(chain: &Run<'_>) {
        // SAFETY: as above.
        chain.all::<_, 4>(unsafe { f32::avx2() });
    }
    match isa.level() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: an `Isa` of this level exists only if this machine was found to have these features.
        Level::Avx512 => unsafe { avx512(&chain) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Level::Avx2 => unsafe { avx2(&chain) },
        Level::Portable => chain.all::<_, 1>(Arrays::<f32>::new()),
    }
}

/// A chain with its operands, which were checked by the caller of [`run`].
struct Run<'a> {
    start: *const f32,
    links: &'a [Link],
    table: &'a [*mut u8],
    out: *mut f32,
    n: usize,
}

impl Run<'_> {
    /// Runs the chain in tiles of `K` vectors, then of one vector, and of a part of one.
    #[inline(always)]
    fn all<V: Vectors<Number = f32>, const K: usize>(&self, v: V) {
        let mut at = 0;
        while at + K * LANES <= self.n {
            self.tile::<V, K>(v, at, LANES);
            at += K * LANES;
        }
        while at < self.n {
            self.tile::<V, 1>(v, at, LANES.min(self.n - at));
            at += LANES;
        }
    }

    /// Runs the chain on the `K` vectors from element `at` on; of a single vector, only the first `lanes` count.
    #[inline(always)]
    fn tile<V: Vectors<Number = f32>, const K: usize>(&self, v: V, at: usize, lanes: usize) {
        let load = |from: *const f32, k: usize| {
            // SAFETY: the operand has these elements.
            unsafe {
                let from = from.add(at + k * LANES);
                if K > 1 || lanes == LANES {
                    v.load(&*from.cast())
                } else {
                    v.load_first(std::slice::from_raw_parts(from, lanes))
                }
            }
        };
        let mut a: [V::Vector; K] = std::array::from_fn(|k| load(self.start, k));
        let mut masks = [[v.first(0); K]; MASKS];
        for link in self.links {
            let from = self.table[link.slot as usize].cast_const().cast::<f32>();
            macro_rules! each {
                (|$a:ident, $x:ident, $k:ident| $body:expr) => {
                    if link.splat {
                        // SAFETY: a splat has more elements than a vector.
                        let $x = v.load(unsafe { &*from.cast() });
                        for $k in 0..K {
                            let $a = &mut a[$k];
                            $body;
                        }
                    } else {
                        for $k in 0..K {
                            let ($a, $x) = (&mut a[$k], load(from, $k));
                            $body;
                        }
                    }
                };
            }
            match link.what {
                Do::Add => each!(|a, x, k| *a = *a + x),
                Do::Sub => each!(|a, x, k| *a = *a - x),
                Do::SubFrom => each!(|a, x, k| *a = x - *a),
                Do::Mul => each!(|a, x, k| *a = *a * x),
                Do::Div => each!(|a, x, k| *a = *a / x),
                Do::DivInto => each!(|a, x, k| *a = x / *a),
                Do::Double => a.iter_mut().for_each(|a| *a = *a + *a),
                Do::Square => a.iter_mut().for_each(|a| *a = *a * *a),
                Do::Neg => a.iter_mut().for_each(|a| *a = v.neg(*a)),
                Do::Abs => a.iter_mut().for_each(|a| *a = v.abs(*a)),
                Do::Sqrt => a.iter_mut().for_each(|a| *a = v.sqrt(*a)),
                Do::Recip => a.iter_mut().for_each(|a| *a = v.splat(1.0) / *a),
                Do::Eq(m) => each!(|a, x, k| masks[m as usize % MASKS][k] = v.compare::<EQ>(*a, x)),
                Do::Ne(m) => each!(|a, x, k| masks[m as usize % MASKS][k] = v.compare::<NE>(*a, x)),
                Do::Lt(m) => each!(|a, x, k| masks[m as usize % MASKS][k] = v.compare::<LT>(*a, x)),
                Do::Le(m) => each!(|a, x, k| masks[m as usize % MASKS][k] = v.compare::<LE>(*a, x)),
                Do::Gt(m) => each!(|a, x, k| masks[m as usize % MASKS][k] = v.compare::<LT>(x, *a)),
                Do::Ge(m) => each!(|a, x, k| masks[m as usize % MASKS][k] = v.compare::<LE>(x, *a)),
                Do::Take(m) => each!(|a, x, k| *a = v.select(masks[m as usize % MASKS][k], x, *a)),
                Do::Keep(m) => each!(|a, x, k| *a = v.select(masks[m as usize % MASKS][k], *a, x)),
            }
        }
        for (k, &a) in a.iter().enumerate() {
            // SAFETY: the output has these elements, and all operands of this tile have been read.
            unsafe {
                let to = self.out.add(at + k * LANES);
                if K > 1 || lanes == LANES {
                    v.store(a, &mut *to.cast());
                } else {
                    let mut last = [0.0; LANES];
                    v.store(a, &mut last);
                    to.copy_from_nonoverlapping(last.as_ptr(), lanes);
                }
            }
        }
    }
}
