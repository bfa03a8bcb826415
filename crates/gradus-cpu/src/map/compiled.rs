//! Kernels that are compiled ahead of time. Each runs all of its instructions in one loop, with every value in a
//! register.
//!
//! The block interpreter runs one loop per instruction, so values pass through the L1 cache between instructions, which
//! takes about 2 cycles for 8 elements each time. For activations, this would be most of the time, because many cheap
//! instructions keep their limits exact. `list.rs` holds the kernels instruction by instruction. `cargo xtask compiled`
//! generates it from the kernels that `tests.rs` names. A kernel is found by comparing all of its instructions. One
//! that differs anywhere is interpreted, which computes the same bits.

use std::hint::select_unpredictable as select;
use std::ops::Range;

use gradus_backend::kernel::{Inst, Value};
use gradus_backend::{DType, Scalar, ScalarOp};

use super::convert::{slice, slice_mut};
use crate::isa::{Isa, per_isa};
use crate::math::Logistic;

/// The maximum number of arguments of these kernels; `MOST_OUTS` is the maximum number of outputs.
pub(super) const MOST_ARGS: usize = 12;
pub(super) const MOST_OUTS: usize = 3;

/// The values of the arguments that are a single number for all elements, each at the index of its argument.
type Numbers = [f32; MOST_ARGS];

/// The number of elements whose exponentials are computed before they are used. If a lane did both at once, its chain
/// of instructions would be so long that the processor could not keep enough lanes in flight.
const STAGE: usize = 128;

/// The exponentials that the sigmoids of a lane are computed from.
struct Kept(Option<Logistic>);

impl Kept {
    #[inline(always)]
    fn of(&mut self, x: f32) -> Logistic {
        *self.0.get_or_insert_with(|| Logistic::new(x))
    }
}

/// A kernel that is compiled ahead of time.
pub(super) struct Compiled {
    insts: &'static [Inst],
    outs: &'static [Value],
    /// The number of arguments that have one value per element. The other arguments are single numbers.
    pub(super) elementwise: usize,
    /// Runs the kernel on the given number of elements. The pointers are in the order of the arguments and of the
    /// outputs.
    ///
    /// # Safety
    /// The pointers of arguments are readable for this many f32, or for one f32 if the argument is a single number. The
    /// pointers of outputs are writable for this many f32. No output overlaps anything else.
    pub(super) run: unsafe fn(Isa, [*const u8; MOST_ARGS], [*mut u8; MOST_OUTS], usize),
}

impl std::fmt::Debug for Compiled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Compiled({} instructions)", self.insts.len())
    }
}

/// Computes an instruction for one lane.
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
    (Le $x:ident, $a:ident, $b:ident) => {
        $a <= $b
    };
    (Ge $x:ident, $a:ident, $b:ident) => {
        $a >= $b
    };
    (Select $x:ident, $c:ident, $a:ident, $b:ident) => {
        select($c, $a, $b)
    };
}

/// The [`Inst`] of an instruction whose operands are variants of `$values`.
macro_rules! inst {
    (Arg $values:ident, $k:literal) => { inst!(@ ScalarOp::Arg($k), F32, [0, 0, 0]) };
    (Number $values:ident, $k:literal) => { inst!(@ ScalarOp::Arg($k), F32, [0, 0, 0]) };
    (Const $values:ident, $c:expr) => { inst!(@ ScalarOp::Const(Scalar::Float($c)), F32, [0, 0, 0]) };
    (Eq $values:ident, $a:ident, $b:ident) => { inst!(@ Bool, Eq $values, $a, $b) };
    (Lt $values:ident, $a:ident, $b:ident) => { inst!(@ Bool, Lt $values, $a, $b) };
    (Gt $values:ident, $a:ident, $b:ident) => { inst!(@ Bool, Gt $values, $a, $b) };
    (Le $values:ident, $a:ident, $b:ident) => { inst!(@ Bool, Le $values, $a, $b) };
    (Ge $values:ident, $a:ident, $b:ident) => { inst!(@ Bool, Ge $values, $a, $b) };
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

/// Returns the number of arguments of these instructions.
const fn count(insts: &[Inst]) -> usize {
    let (mut n, mut i) = (0, 0);
    while i < insts.len() {
        n += matches!(insts[i].op, ScalarOp::Arg(_)) as usize;
        i += 1;
    }
    n
}

/// Returns whether there is a sigmoid among the instructions. All sigmoids must have the same operand.
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

            /// Returns the outputs of a lane and the exponentials of its sigmoids, which are computed unless they are
            /// given.
            #[inline(always)]
            #[allow(unused_mut)] // Without a sigmoid, `x` is not changed.
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
                        // Only the exponentials are used, so LLVM removes all other computations.
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
            /// As for [`Compiled::run`].
            unsafe fn run(isa: Isa, args: [*const u8; MOST_ARGS], outs: [*mut u8; MOST_OUTS], n: usize) {
                const ARGS: Range<usize> = $args..count(COMPILED.insts);
                // SAFETY: guaranteed by the caller.
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
