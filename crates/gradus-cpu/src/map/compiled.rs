//! Kernels that are compiled with this crate: all their instructions in one loop, with every value in a register.
//!
//! The block interpreter runs a loop an instruction, so values go through L1 between them, some 2 cycles for 8 elements
//! each time. For the kernels below, activations with all that keeps their limits exact, this is most of the time.
//! They are listed instruction by instruction, as [`Kernel`] prints them, and found by comparing all of them: a kernel that
//! differs anywhere is interpreted, which gives the same bits.

use std::hint::select_unpredictable as select;

use gradus_backend::kernel::{Inst, Value};
use gradus_backend::{DType, Kernel, Scalar, ScalarOp};

use super::convert::{slice, slice_mut};
#[cfg(test)]
use crate::CpuBackend;
use crate::extreme::Extreme;
use crate::isa::{Isa, per_isa};
use crate::math;

/// Most arguments and outputs of the kernels below.
pub(super) const MOST_ARGS: usize = 3;
pub(super) const MOST_OUTS: usize = 2;

/// One of the kernels below.
pub(super) struct Compiled {
    insts: &'static [Inst],
    outs: &'static [Value],
    /// Runs it over so many elements, arguments and outputs in order.
    ///
    /// # Safety
    /// The pointers that the kernel has arguments for are readable for as many f32, those that it has outputs for writable; no
    /// output overlaps anything else.
    pub(super) run: unsafe fn(Isa, [*const u8; MOST_ARGS], [*mut u8; MOST_OUTS], usize),
}

impl std::fmt::Debug for Compiled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Compiled({} instructions)", self.insts.len())
    }
}

/// The one that does what `kernel` does.
pub(super) fn find(kernel: &Kernel) -> Option<&'static Compiled> {
    let is_f32 = |outs: &[(Value, DType)]| outs.iter().all(|o| o.1 == DType::F32);
    ALL.iter().copied().find(|c| {
        c.insts.len() == kernel.insts().len()
            && c.insts == kernel.insts()
            && c.outs.iter().eq(kernel.outputs().iter().map(|(v, _)| v))
            && is_f32(kernel.outputs())
            && kernel.args().iter().all(|&a| a == DType::F32)
    })
}

/// What an instruction does to a lane.
macro_rules! lane {
    (Arg $x:ident, $k:literal) => {
        $x[$k]
    };
    (Const $x:ident, $c:expr) => {
        $c as f32
    };
    (Add $x:ident, $a:ident, $b:ident) => {
        $a + $b
    };
    (Mul $x:ident, $a:ident, $b:ident) => {
        $a * $b
    };
    (Max $x:ident, $a:ident, $b:ident) => {
        $a.larger($b)
    };
    (Min $x:ident, $a:ident, $b:ident) => {
        $a.smaller($b)
    };
    (Neg $x:ident, $a:ident) => {
        -$a
    };
    (Sigmoid $x:ident, $a:ident) => {
        math::sigmoid($a)
    };
    (Eq $x:ident, $a:ident, $b:ident) => {
        $a == $b
    };
    (Lt $x:ident, $a:ident, $b:ident) => {
        $a < $b
    };
    (Select $x:ident, $c:ident, $a:ident, $b:ident) => {
        select($c, $a, $b)
    };
}

/// The instruction, its operands being variants of `$values`.
macro_rules! inst {
    (Arg $values:ident, $k:literal) => { inst!(@ ScalarOp::Arg($k), F32, [0, 0, 0]) };
    (Const $values:ident, $c:expr) => { inst!(@ ScalarOp::Const(Scalar::Float($c)), F32, [0, 0, 0]) };
    (Eq $values:ident, $a:ident, $b:ident) => { inst!(@ ScalarOp::Eq, Bool, [$values::$a as Value, $values::$b as Value, 0]) };
    (Lt $values:ident, $a:ident, $b:ident) => { inst!(@ ScalarOp::Lt, Bool, [$values::$a as Value, $values::$b as Value, 0]) };
    ($op:ident $values:ident, $a:ident) => { inst!(@ ScalarOp::$op, F32, [$values::$a as Value, 0, 0]) };
    ($op:ident $values:ident, $a:ident, $b:ident) => {
        inst!(@ ScalarOp::$op, F32, [$values::$a as Value, $values::$b as Value, 0])
    };
    ($op:ident $values:ident, $a:ident, $b:ident, $c:ident) => {
        inst!(@ ScalarOp::$op, F32, [$values::$a as Value, $values::$b as Value, $values::$c as Value])
    };
    (@ $op:expr, $dtype:ident, $operands:expr) => { Inst { op: $op, dtype: DType::$dtype, operands: $operands } };
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
            pub(super) const COMPILED: Compiled = Compiled { insts: &[$(inst!($op Values, $($x)*)),*], outs: OUTS, run };

            #[inline(always)]
            fn body(args: [&[f32]; $args], outs: [&mut [f32]; OUTS.len()]) {
                let n = outs[0].len();
                let (args, mut outs) = (args.map(|a| &a[..n]), outs.map(|o| &mut o[..n]));
                for i in 0..n {
                    let x = args.map(|a| a[i]);
                    $(let $v = lane!($op x, $($x)*);)*
                    for (o, y) in outs.iter_mut().zip([$($out),+]) {
                        o[i] = y;
                    }
                }
            }

            per_isa! { fn per_isa(args: [&[f32]; $args], outs: [&mut [f32]; OUTS.len()]) = body; }

            /// # Safety
            /// See [`Compiled::run`].
            unsafe fn run(isa: Isa, args: [*const u8; MOST_ARGS], outs: [*mut u8; MOST_OUTS], n: usize) {
                // SAFETY: the caller's promise.
                let (args, outs) = unsafe {
                    (std::array::from_fn(|k| slice(args[k], n)), std::array::from_fn(|k| slice_mut(outs[k], n)))
                };
                per_isa(isa, args, outs);
            }
        })*
    };
}

compiled! {
    silu(1) -> (v10) {
        v0 = Arg(0);
        v1 = Const(-1000.0);
        v2 = Max(v0, v1);
        v3 = Const(1000.0);
        v4 = Min(v2, v3);
        v5 = Sigmoid(v4);
        v6 = Const(f64::NEG_INFINITY);
        v7 = Eq(v0, v6);
        v8 = Mul(v0, v5);
        v9 = Const(-0.0);
        v10 = Select(v7, v9, v8);
    }
    silu_backward(2) -> (v28) {
        v0 = Arg(0);
        v1 = Arg(1);
        v2 = Const(-1000.0);
        v3 = Max(v0, v2);
        v4 = Const(1000.0);
        v5 = Min(v3, v4);
        v6 = Sigmoid(v5);
        v7 = Const(f64::NEG_INFINITY);
        v8 = Eq(v0, v7);
        v9 = Const(0.0);
        v10 = Select(v8, v9, v1);
        v11 = Mul(v10, v6);
        v12 = Mul(v10, v0);
        v13 = Neg(v5);
        v14 = Sigmoid(v13);
        v15 = Mul(v6, v14);
        v16 = Mul(v12, v15);
        v17 = Lt(v4, v3);
        v18 = Eq(v3, v4);
        v19 = Const(0.5);
        v20 = Mul(v16, v19);
        v21 = Select(v18, v20, v16);
        v22 = Select(v17, v9, v21);
        v23 = Lt(v0, v2);
        v24 = Eq(v0, v2);
        v25 = Mul(v22, v19);
        v26 = Select(v24, v25, v22);
        v27 = Select(v23, v9, v26);
        v28 = Add(v11, v27);
    }
    silu_mul(2) -> (v12) {
        v0 = Arg(0);
        v1 = Arg(1);
        v2 = Const(-1000.0);
        v3 = Max(v0, v2);
        v4 = Const(1000.0);
        v5 = Min(v3, v4);
        v6 = Sigmoid(v5);
        v7 = Const(f64::NEG_INFINITY);
        v8 = Eq(v0, v7);
        v9 = Mul(v0, v6);
        v10 = Const(-0.0);
        v11 = Select(v8, v10, v9);
        v12 = Mul(v11, v1);
    }
    silu_mul_backward(3) -> (v34, v14) {
        v0 = Arg(0);
        v1 = Arg(1);
        v2 = Arg(2);
        v3 = Const(-1000.0);
        v4 = Max(v0, v3);
        v5 = Const(1000.0);
        v6 = Min(v4, v5);
        v7 = Sigmoid(v6);
        v8 = Const(f64::NEG_INFINITY);
        v9 = Eq(v0, v8);
        v10 = Mul(v0, v7);
        v11 = Const(-0.0);
        v12 = Select(v9, v11, v10);
        v13 = Mul(v2, v1);
        v14 = Mul(v2, v12);
        v15 = Const(0.0);
        v16 = Select(v9, v15, v13);
        v17 = Mul(v16, v7);
        v18 = Mul(v16, v0);
        v19 = Neg(v6);
        v20 = Sigmoid(v19);
        v21 = Mul(v7, v20);
        v22 = Mul(v18, v21);
        v23 = Lt(v5, v4);
        v24 = Eq(v4, v5);
        v25 = Const(0.5);
        v26 = Mul(v22, v25);
        v27 = Select(v24, v26, v22);
        v28 = Select(v23, v15, v27);
        v29 = Lt(v0, v3);
        v30 = Eq(v0, v3);
        v31 = Mul(v28, v25);
        v32 = Select(v30, v31, v28);
        v33 = Select(v29, v15, v32);
        v34 = Add(v17, v33);
    }
    gelu_tanh(1) -> (v17) {
        v0 = Arg(0);
        v1 = Const(-60.0);
        v2 = Max(v0, v1);
        v3 = Const(60.0);
        v4 = Min(v2, v3);
        v5 = Mul(v4, v4);
        v6 = Mul(v5, v4);
        v7 = Const(0.044715);
        v8 = Mul(v6, v7);
        v9 = Add(v4, v8);
        v10 = Const(1.595_769_121_605_730_8);
        v11 = Mul(v9, v10);
        v12 = Sigmoid(v11);
        v13 = Const(f64::NEG_INFINITY);
        v14 = Eq(v0, v13);
        v15 = Mul(v0, v12);
        v16 = Const(-0.0);
        v17 = Select(v14, v16, v15);
    }
    gelu_tanh_backward(2) -> (v43) {
        v0 = Arg(0);
        v1 = Arg(1);
        v2 = Const(-60.0);
        v3 = Max(v0, v2);
        v4 = Const(60.0);
        v5 = Min(v3, v4);
        v6 = Mul(v5, v5);
        v7 = Mul(v6, v5);
        v8 = Const(0.044715);
        v9 = Mul(v7, v8);
        v10 = Add(v5, v9);
        v11 = Const(1.595_769_121_605_730_8);
        v12 = Mul(v10, v11);
        v13 = Sigmoid(v12);
        v14 = Const(f64::NEG_INFINITY);
        v15 = Eq(v0, v14);
        v16 = Const(0.0);
        v17 = Select(v15, v16, v1);
        v18 = Mul(v17, v13);
        v19 = Mul(v17, v0);
        v20 = Neg(v12);
        v21 = Sigmoid(v20);
        v22 = Mul(v13, v21);
        v23 = Mul(v19, v22);
        v24 = Mul(v23, v11);
        v25 = Mul(v24, v8);
        v26 = Mul(v25, v5);
        v27 = Mul(v25, v6);
        v28 = Add(v24, v27);
        v29 = Mul(v26, v5);
        v30 = Add(v28, v29);
        v31 = Add(v30, v29);
        v32 = Lt(v4, v3);
        v33 = Eq(v3, v4);
        v34 = Const(0.5);
        v35 = Mul(v31, v34);
        v36 = Select(v33, v35, v31);
        v37 = Select(v32, v16, v36);
        v38 = Lt(v0, v2);
        v39 = Eq(v0, v2);
        v40 = Mul(v37, v34);
        v41 = Select(v39, v40, v37);
        v42 = Select(v38, v16, v41);
        v43 = Add(v18, v42);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use gradus_backend::{Backend, MapArg};

    use super::*;
    use crate::testing::{Lie, Tensor, assert_same_bits, noise};

    /// The kernels that the list is about, as they are built everywhere.
    fn kernels() -> Vec<Arc<Kernel>> {
        let f32s = [DType::F32; 2];
        let forward = [
            Kernel::build("silu", &f32s[..1], |v| vec![v[0].silu()]),
            Kernel::build("silu_mul", &f32s, |v| vec![v[0].silu() * v[1]]),
            Kernel::build("gelu_tanh", &f32s[..1], |v| vec![v[0].gelu_tanh()]),
        ]
        .map(|k| Arc::new(k.unwrap()));
        let backward = |k: &Arc<Kernel>| k.vjp((1 << k.args().len()) - 1).unwrap().kernel.clone();
        forward.iter().flat_map(|k| [k.clone(), backward(k)]).collect()
    }

    /// The same values, from a kernel that has one more output and so is interpreted.
    fn interpreted(kernel: &Kernel) -> Kernel {
        let builder = gradus_backend::kernel::KernelBuilder::new(kernel.args());
        let args = builder.args();
        let mut values: Vec<gradus_backend::kernel::Expr<'_>> = Vec::new();
        for inst in kernel.insts() {
            let input = |k: usize| values[usize::from(inst.operands[k])];
            values.push(match (inst.op, inst.op.arity()) {
                (ScalarOp::Arg(k), _) => args[usize::from(k)],
                (ScalarOp::Const(c), _) => builder.constant(inst.dtype, c),
                (ScalarOp::Select, _) => input(0).select(input(1), input(2)),
                (op, 1) => input(0).unary(op),
                (op, _) => input(0).binary(op, input(1)),
            });
        }
        let mut outs: Vec<_> = kernel.outputs().iter().map(|&(v, d)| (values[usize::from(v)], d)).collect();
        outs.push((args[0], DType::F32));
        builder.finish(kernel.name(), &outs).unwrap()
    }

    const SPECIAL: [f64; 12] =
        [0.0, -0.0, 1.0, -1000.0, 1000.0, 60.0, -60.0, 1e-40, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 3e38];

    /// Runs a kernel on arguments that lie as they are told, all special values and their pairs among them.
    fn run(cpu: &CpuBackend, kernel: &Kernel, lie: impl Fn(usize) -> Lie) -> Vec<Vec<u64>> {
        let dims = [7, 181];
        let value = |k: usize| {
            let mut random = noise(k as u64);
            move |i: usize| match i / SPECIAL.len().pow(k as u32) {
                j if i < 900 => SPECIAL[j % SPECIAL.len()],
                _ => 8.0 * random(i),
            }
        };
        let args: Vec<_> =
            (0..kernel.args().len()).map(|k| Tensor::new(cpu, DType::F32, &dims, lie(k), value(k))).collect();
        let mut outs: Vec<_> =
            kernel.outputs().iter().enumerate().map(|(k, o)| Tensor::canary(cpu, o.1, &dims, lie(3 + k))).collect();
        let args: Vec<_> = args.iter().map(|a| MapArg::View(a.view())).collect();
        cpu.map(kernel, &args, &mut outs.iter_mut().map(Tensor::view_mut).collect::<Vec<_>>()).unwrap();
        outs.iter().map(|o| o.values(cpu).iter().map(|v| if v.is_nan() { 0 } else { v.to_bits() }).collect()).collect()
    }

    #[test]
    fn each_is_found_and_gives_the_interpreters_bits() {
        let cpu = CpuBackend::with_threads(2).unwrap();
        let kernels = kernels();
        assert_eq!(kernels.len(), ALL.len());
        for kernel in &kernels {
            let slow = interpreted(kernel);
            assert!(find(kernel).is_some(), "{kernel}");
            assert!(find(&slow).is_none());
            for shift in 0..4 {
                let lie = |k: usize| if shift == 0 { Lie::Contiguous } else { Lie::ALL[(k + shift) % 4] };
                let (fast, slow) = (run(&cpu, kernel, lie), run(&cpu, &slow, lie));
                assert_eq!(fast[..], slow[..fast.len()], "{kernel}");
            }
        }
    }

    #[test]
    fn an_argument_may_be_an_output() {
        let cpu = CpuBackend::with_threads(1).unwrap();
        for kernel in &kernels() {
            let n = kernel.args().len();
            let tensor = |k: usize| Tensor::new(&cpu, DType::F32, &[3000], Lie::Contiguous, noise(k as u64));
            let args: Vec<_> = (0..n).map(tensor).collect();
            let mut outs: Vec<_> = kernel.outputs().iter().map(|_| tensor(9)).collect();
            let views = |from: usize| args[from..].iter().map(|a| MapArg::View(a.view()));
            let all: Vec<_> = views(0).collect();
            cpu.map(kernel, &all, &mut outs.iter_mut().map(Tensor::view_mut).collect::<Vec<_>>()).unwrap();
            let want: Vec<_> = outs.iter().map(|o| o.values(&cpu)).collect();

            outs[0] = tensor(0);
            let all: Vec<_> = std::iter::once(MapArg::Output(0)).chain(views(1)).collect();
            cpu.map(kernel, &all, &mut outs.iter_mut().map(Tensor::view_mut).collect::<Vec<_>>()).unwrap();
            assert_eq!(outs.iter().map(|o| o.values(&cpu)).collect::<Vec<_>>(), want, "{kernel}");
        }
    }

    #[test]
    fn threads_and_instruction_sets_change_no_bit() {
        for kernel in kernels() {
            assert_same_bits(|cpu| {
                run(cpu, &kernel, |_| Lie::Contiguous).concat().iter().flat_map(|v| v.to_le_bytes()).collect()
            });
        }
    }

    #[test]
    fn another_constant_is_another_kernel() {
        let other = Kernel::build("silu", &[DType::F32], |v| vec![v[0].gated(v[0].bounded(900.0).sigmoid())]).unwrap();
        let f64s = Kernel::build("silu", &[DType::F64], |v| vec![v[0].silu()]).unwrap();
        assert!(find(&other).is_none() && find(&f64s).is_none());
    }
}
