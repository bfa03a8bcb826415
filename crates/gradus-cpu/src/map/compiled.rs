//! Kernels compiled ahead of time: all their instructions in one loop, with every value in a register.
//!
//! The block interpreter runs a loop an instruction, so values go through L1 between them, some 2 cycles for 8 elements
//! each time. For these kernels, activations with all that keeps their limits exact, this is most of the time.
//! `list.rs` has them instruction by instruction: `cargo xtask compiled` makes it from the kernels that `tests.rs` names. A
//! kernel is found by comparing all of its instructions; one that differs anywhere is interpreted, which gives the same bits.

use std::hint::select_unpredictable as select;
use std::ops::Range;

use gradus_backend::kernel::{Inst, Value};
use gradus_backend::{DType, Scalar, ScalarOp};

use super::convert::{slice, slice_mut};
use crate::isa::{Isa, per_isa};
use crate::math::Logistic;

/// Most arguments and outputs of these kernels.
pub(super) const MOST_ARGS: usize = 12;
pub(super) const MOST_OUTS: usize = 3;

/// The arguments that are a single number for all elements, at their positions.
type Numbers = [f32; MOST_ARGS];

/// Number of elements whose exponentials are computed before they are used. A lane that did both would be a chain so
/// long that the processor could not keep enough lanes in flight.
const STAGE: usize = 128;

/// The exponentials that the sigmoids of a lane are computed from.
struct Kept(Option<Logistic>);

impl Kept {
    #[inline(always)]
    fn of(&mut self, x: f32) -> Logistic {
        *self.0.get_or_insert_with(|| Logistic::new(x))
    }
}

/// One of the kernels below.
pub(super) struct Compiled {
    insts: &'static [Inst],
    outs: &'static [Value],
    /// How many arguments have one value per element; the rest are single numbers.
    pub(super) elementwise: usize,
    /// Runs the kernel over this many elements, with arguments and outputs in order.
    ///
    /// # Safety
    /// The pointers of arguments are readable for this many f32 (those of single numbers for one), and the pointers of
    /// outputs are writable; no output overlaps anything else.
    pub(super) run: unsafe fn(Isa, [*const u8; MOST_ARGS], [*mut u8; MOST_OUTS], usize),
}

impl std::fmt::Debug for Compiled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Compiled({} instructions)", self.insts.len())
    }
}

/// What an instruction does to a lane.
macro_rules! lane {
    (Arg $x:ident, $k:literal) => {
        $x.0[$k]
    };
    (Number $x:ident, $k:literal) => {
        $x.1[$k]
    };
    (Const $x:ident, $c:expr) => {{
        const VALUE: f64 = $c;
        VALUE as f32
    }};
    (Add $x:ident, $a:ident, $b:ident) => {
        $a + $b
    };
    (Sub $x:ident, $a:ident, $b:ident) => {
        $a - $b
    };
    (Mul $x:ident, $a:ident, $b:ident) => {
        $a * $b
    };
    (Div $x:ident, $a:ident, $b:ident) => {
        $a / $b
    };
    (Sqrt $x:ident, $a:ident) => {
        $a.sqrt()
    };
    (Neg $x:ident, $a:ident) => {
        -$a
    };
    (Sigmoid $x:ident, $a:ident) => {
        Kept::of(&mut $x.2, $a).sigmoid()
    };
    (SigmoidNeg $x:ident, $a:ident) => {
        Kept::of(&mut $x.2, $a).sigmoid_neg($a)
    };
    (Eq $x:ident, $a:ident, $b:ident) => {
        $a == $b
    };
    (Lt $x:ident, $a:ident, $b:ident) => {
        $a < $b
    };
    (Gt $x:ident, $a:ident, $b:ident) => {
        $a > $b
    };
    (Select $x:ident, $c:ident, $a:ident, $b:ident) => {
        select($c, $a, $b)
    };
}

/// The instruction, its operands being variants of `$values`.
macro_rules! inst {
    (Arg $values:ident, $k:literal) => { inst!(@ ScalarOp::Arg($k), F32, [0, 0, 0]) };
    (Number $values:ident, $k:literal) => { inst!(@ ScalarOp::Arg($k), F32, [0, 0, 0]) };
    (Const $values:ident, $c:expr) => { inst!(@ ScalarOp::Const(Scalar::Float($c)), F32, [0, 0, 0]) };
    (Eq $values:ident, $a:ident, $b:ident) => { inst!(@ Bool, Eq $values, $a, $b) };
    (Lt $values:ident, $a:ident, $b:ident) => { inst!(@ Bool, Lt $values, $a, $b) };
    (Gt $values:ident, $a:ident, $b:ident) => { inst!(@ Bool, Gt $values, $a, $b) };
    (@ Bool, $op:ident $values:ident, $a:ident, $b:ident) => {
        inst!(@ ScalarOp::$op, Bool, [$values::$a as Value, $values::$b as Value, 0])
    };
    ($op:ident $values:ident, $a:ident) => { inst!(@ ScalarOp::$op, F32, [$values::$a as Value, 0, 0]) };
    ($op:ident $values:ident, $a:ident, $b:ident) => {
        inst!(@ ScalarOp::$op, F32, [$values::$a as Value, $values::$b as Value, 0])
    };
    ($op:ident $values:ident, $a:ident, $b:ident, $c:ident) => {
        inst!(@ ScalarOp::$op, F32, [$values::$a as Value, $values::$b as Value, $values::$c as Value])
    };
    (@ $op:expr, $dtype:ident, $operands:expr) => { Inst { op: $op, dtype: DType::$dtype, operands: $operands } };
}

/// Number of arguments of the code.
const fn count(insts: &[Inst]) -> usize {
    let (mut n, mut i) = (0, 0);
    while i < insts.len() {
        n += matches!(insts[i].op, ScalarOp::Arg(_)) as usize;
        i += 1;
    }
    n
}

/// Whether the code has a sigmoid, all of which must be of one value.
const fn has_sigmoid(insts: &[Inst]) -> bool {
    let (mut of, mut i) = (None, 0);
    while i < insts.len() {
        if matches!(insts[i].op, ScalarOp::Sigmoid | ScalarOp::SigmoidNeg) {
            let x = insts[i].operands[0];
            assert!(of.is_none() || matches!(of, Some(y) if y == x));
            of = Some(x);
        }
        i += 1;
    }
    of.is_some()
}

macro_rules! compiled {
    ($($name:ident($args:literal) -> ($($out:ident),+) { $($v:ident = $op:ident($($x:tt)*);)* })*) => {
        pub(super) const ALL: &[&Compiled] = &[$(&$name::COMPILED),*];

        $(mod $name {
            use crate::map::compiled::*;

            #[allow(non_camel_case_types)]
            #[repr(u16)]
            enum Values { $($v),* }

            const OUTS: &[Value] = &[$(Values::$out as Value),+];
            pub(super) const COMPILED: Compiled =
                Compiled { insts: &[$(inst!($op Values, $($x)*)),*], outs: OUTS, elementwise: $args, run };

            /// The outputs of a lane, and the exponentials of its sigmoids, which are computed unless they are given.
            #[inline(always)]
            #[allow(unused_mut)] // without a sigmoid nothing is kept
            fn lane(args: [f32; $args], numbers: Numbers, given: Kept) -> ([f32; OUTS.len()], Kept) {
                let mut x = (args, numbers, given);
                $(let $v = lane!($op x, $($x)*);)*
                ([$($out),+], x.2)
            }

            const STAGED: bool = has_sigmoid(COMPILED.insts);

            #[inline(always)]
            fn body(args: [&[f32]; $args], numbers: Numbers, outs: [&mut [f32]; OUTS.len()]) {
                let n = outs[0].len();
                let (args, mut outs) = (args.map(|a| &a[..n]), outs.map(|o| &mut o[..n]));
                let staged = if STAGED { n - n % STAGE } else { 0 };
                if staged > 0 {
                    let (mut qs, mut ts) = ([0.0; STAGE], [0.0; STAGE]);
                    for start in (0..staged).step_by(STAGE) {
                        let args = args.map(|a| &a[start..start + STAGE]);
                        let mut outs = outs.each_mut().map(|o| &mut o[start..start + STAGE]);
                        // Nothing else of this is used, so nothing else is computed.
                        for i in 0..STAGE {
                            if let (_, Kept(Some(Logistic { q, t }))) = lane(args.map(|a| a[i]), numbers, Kept(None)) {
                                (qs[i], ts[i]) = (q, t);
                            }
                        }
                        for i in 0..STAGE {
                            let kept = Kept(Some(Logistic { q: qs[i], t: ts[i] }));
                            let (lane, _) = lane(args.map(|a| a[i]), numbers, kept);
                            for (o, y) in outs.iter_mut().zip(lane) {
                                o[i] = y;
                            }
                        }
                    }
                }
                for i in staged..n {
                    let (lane, _) = lane(args.map(|a| a[i]), numbers, Kept(None));
                    for (o, y) in outs.iter_mut().zip(lane) {
                        o[i] = y;
                    }
                }
            }

            per_isa! { fn per_isa(args: [&[f32]; $args], numbers: Numbers, outs: [&mut [f32]; OUTS.len()]) = body; }

            /// # Safety
            /// See [`Compiled::run`].
            unsafe fn run(isa: Isa, args: [*const u8; MOST_ARGS], outs: [*mut u8; MOST_OUTS], n: usize) {
                const ARGS: Range<usize> = $args..count(COMPILED.insts);
                // SAFETY: the caller's promise.
                unsafe {
                    let number = |k| if ARGS.contains(&k) { *args[k].cast::<f32>() } else { 0.0 };
                    let numbers = std::array::from_fn(number);
                    let outs = std::array::from_fn(|k| slice_mut(outs[k], n));
                    per_isa(isa, std::array::from_fn(|k| slice(args[k], n)), numbers, outs);
                }
            }
        })*
    };
}

mod find;
mod list;

pub(super) use find::find;

#[cfg(test)]
mod tests;
