//! Kernels that are compiled with this crate: all their instructions in one loop, with every value in a register.
//!
//! The block interpreter runs a loop an instruction, so values go through L1 between them, some 2 cycles for 8 elements
//! each time. For the kernels below, activations with all that keeps their limits exact, this is most of the time.
//! They are listed instruction by instruction, as [`Kernel`] prints them, and found by comparing all of them: a kernel that
//! differs anywhere is interpreted, which gives the same bits.

use std::hint::select_unpredictable as select;
use std::ops::Range;

use gradus_backend::kernel::{Inst, Value};
use gradus_backend::{DType, Kernel, Scalar, ScalarOp};

use super::convert::{slice, slice_mut};
#[cfg(test)]
use crate::CpuBackend;
use crate::isa::{Isa, per_isa};
use crate::math::Logistic;

/// Most arguments and outputs of the kernels below.
pub(super) const MOST_ARGS: usize = 12;
pub(super) const MOST_OUTS: usize = 3;

/// The arguments that are one number for all elements, each in its place.
type Numbers = [f32; MOST_ARGS];

/// Elements whose exponentials are computed before what they are used for. A lane that does both is so long a chain
/// that the processor holds too few lanes at once to keep its units busy.
const STAGE: usize = 128;

/// What makes the sigmoids of a lane, once it is computed.
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
    /// How many arguments have a value an element; the rest are numbers.
    pub(super) elementwise: usize,
    /// Runs it over so many elements, arguments and outputs in order.
    ///
    /// # Safety
    /// The pointers that the kernel has arguments for are readable for as many f32, those of numbers for one, those that it
    /// has outputs for writable; no output overlaps anything else.
    pub(super) run: unsafe fn(Isa, [*const u8; MOST_ARGS], [*mut u8; MOST_OUTS], usize),
}

impl std::fmt::Debug for Compiled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Compiled({} instructions)", self.insts.len())
    }
}

/// The one that does what `kernel` does, for arguments of which these are numbers.
pub(super) fn find(kernel: &Kernel, is_number: impl Fn(usize) -> bool) -> Option<&'static Compiled> {
    let is_f32 = |outs: &[(Value, DType)]| outs.iter().all(|o| o.1 == DType::F32);
    ALL.iter().copied().find(|c| {
        c.insts.len() == kernel.insts().len()
            && c.insts == kernel.insts()
            && c.outs.iter().eq(kernel.outputs().iter().map(|(v, _)| v))
            && is_f32(kernel.outputs())
            && kernel.args().len() <= MOST_ARGS
            && kernel.args().iter().all(|&a| a == DType::F32)
            && (0..kernel.args().len()).all(|k| is_number(k) == (k >= c.elementwise))
    })
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
        const ALL: &[&Compiled] = &[$(&$name::COMPILED),*];

        $(mod $name {
            use super::*;

            #[allow(non_camel_case_types)]
            #[repr(u16)]
            enum Values { $($v),* }

            const OUTS: &[Value] = &[$(Values::$out as Value),+];
            pub(super) const COMPILED: Compiled =
                Compiled { insts: &[$(inst!($op Values, $($x)*)),*], outs: OUTS, elementwise: $args, run };

            /// The outputs of a lane, and what made its sigmoids: what is given or else is computed.
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

compiled! {
    silu(1) -> (v5) {
        v0 = Arg(0);
        v1 = Const(-1000.0);
        v2 = Lt(v0, v1);
        v3 = Select(v2, v1, v0);
        v4 = Sigmoid(v3);
        v5 = Mul(v3, v4);
    }
    silu_backward(2) -> (v15) {
        v0 = Arg(0);
        v1 = Arg(1);
        v2 = Const(-1000.0);
        v3 = Lt(v0, v2);
        v4 = Select(v3, v2, v0);
        v5 = Sigmoid(v4);
        v6 = Mul(v4, v5);
        v7 = Const(1000.0);
        v8 = Gt(v6, v7);
        v9 = Select(v8, v7, v6);
        v10 = SigmoidNeg(v4);
        v11 = Mul(v9, v10);
        v12 = Add(v5, v11);
        v13 = Mul(v1, v12);
        v14 = Const(0.0);
        v15 = Select(v3, v14, v13);
    }
    silu_mul(2) -> (v7) {
        v0 = Arg(0);
        v1 = Arg(1);
        v2 = Const(-1000.0);
        v3 = Lt(v0, v2);
        v4 = Select(v3, v2, v0);
        v5 = Sigmoid(v4);
        v6 = Mul(v4, v5);
        v7 = Mul(v6, v1);
    }
    silu_mul_backward(3) -> (v18, v9) {
        v0 = Arg(0);
        v1 = Arg(1);
        v2 = Arg(2);
        v3 = Const(-1000.0);
        v4 = Lt(v0, v3);
        v5 = Select(v4, v3, v0);
        v6 = Sigmoid(v5);
        v7 = Mul(v5, v6);
        v8 = Mul(v2, v1);
        v9 = Mul(v2, v7);
        v10 = Const(1000.0);
        v11 = Gt(v7, v10);
        v12 = Select(v11, v10, v7);
        v13 = SigmoidNeg(v5);
        v14 = Mul(v12, v13);
        v15 = Add(v6, v14);
        v16 = Mul(v8, v15);
        v17 = Const(0.0);
        v18 = Select(v4, v17, v16);
    }
    gelu_tanh(1) -> (v19) {
        v0 = Arg(0);
        v1 = Const(-60.0);
        v2 = Lt(v0, v1);
        v3 = Select(v2, v1, v0);
        v4 = Const(60.0);
        v5 = Gt(v3, v4);
        v6 = Select(v5, v4, v3);
        v7 = Mul(v6, v6);
        v8 = Mul(v7, v6);
        v9 = Const(0.044715);
        v10 = Mul(v8, v9);
        v11 = Add(v6, v10);
        v12 = Const(1.595_769_121_605_730_8);
        v13 = Mul(v11, v12);
        v14 = Sigmoid(v13);
        v15 = Const(f64::NEG_INFINITY);
        v16 = Eq(v0, v15);
        v17 = Mul(v0, v14);
        v18 = Const(-0.0);
        v19 = Select(v16, v18, v17);
    }
    gelu_tanh_backward(2) -> (v35) {
        v0 = Arg(0);
        v1 = Arg(1);
        v2 = Const(-60.0);
        v3 = Lt(v0, v2);
        v4 = Select(v3, v2, v0);
        v5 = Const(60.0);
        v6 = Gt(v4, v5);
        v7 = Select(v6, v5, v4);
        v8 = Mul(v7, v7);
        v9 = Mul(v8, v7);
        v10 = Const(0.044715);
        v11 = Mul(v9, v10);
        v12 = Add(v7, v11);
        v13 = Const(1.595_769_121_605_730_8);
        v14 = Mul(v12, v13);
        v15 = Sigmoid(v14);
        v16 = Const(f64::NEG_INFINITY);
        v17 = Eq(v0, v16);
        v18 = Const(0.0);
        v19 = Select(v17, v18, v1);
        v20 = Mul(v19, v15);
        v21 = Mul(v19, v0);
        v22 = SigmoidNeg(v14);
        v23 = Mul(v15, v22);
        v24 = Mul(v21, v23);
        v25 = Mul(v24, v13);
        v26 = Mul(v25, v10);
        v27 = Mul(v26, v7);
        v28 = Mul(v26, v8);
        v29 = Add(v25, v28);
        v30 = Mul(v27, v7);
        v31 = Add(v29, v30);
        v32 = Add(v31, v30);
        v33 = Select(v6, v18, v32);
        v34 = Select(v3, v18, v33);
        v35 = Add(v20, v34);
    }
    adam(4) -> (v23, v13, v17) {
        v0 = Arg(0);
        v1 = Arg(1);
        v2 = Arg(2);
        v3 = Arg(3);
        v4 = Number(4);
        v5 = Number(5);
        v6 = Number(6);
        v7 = Number(7);
        v8 = Number(8);
        v9 = Number(9);
        v10 = Number(10);
        v11 = Mul(v4, v2);
        v12 = Mul(v5, v1);
        v13 = Add(v11, v12);
        v14 = Mul(v6, v3);
        v15 = Mul(v1, v1);
        v16 = Mul(v7, v15);
        v17 = Add(v14, v16);
        v18 = Mul(v8, v13);
        v19 = Sqrt(v17);
        v20 = Mul(v19, v9);
        v21 = Add(v20, v10);
        v22 = Div(v18, v21);
        v23 = Sub(v0, v22);
    }
    adamw(4) -> (v25, v15, v19) {
        v0 = Arg(0);
        v1 = Arg(1);
        v2 = Arg(2);
        v3 = Arg(3);
        v4 = Number(4);
        v5 = Number(5);
        v6 = Number(6);
        v7 = Number(7);
        v8 = Number(8);
        v9 = Number(9);
        v10 = Number(10);
        v11 = Number(11);
        v12 = Mul(v0, v11);
        v13 = Mul(v4, v2);
        v14 = Mul(v5, v1);
        v15 = Add(v13, v14);
        v16 = Mul(v6, v3);
        v17 = Mul(v1, v1);
        v18 = Mul(v7, v17);
        v19 = Add(v16, v18);
        v20 = Mul(v8, v15);
        v21 = Sqrt(v19);
        v22 = Mul(v21, v9);
        v23 = Add(v22, v10);
        v24 = Div(v20, v23);
        v25 = Sub(v12, v24);
    }
}

#[cfg(test)]
mod tests;
