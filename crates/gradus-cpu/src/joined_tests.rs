//! Tests of kernels that are joined into the loads of other operations.

use gradus_backend::kernel::KernelBuilder;
use gradus_backend::{
    Axes, Backend, DType, Error, ErrorKind, Kernel, MapArg, Reader, ReduceOp, Result, Scalar, Shape, View, ViewMut,
    composite,
};

use crate::CpuBackend;
use crate::testing::{Lie, Tensor, assert_same_bits, noise};

/// `x * y + s`, rounded to `dtype`.
fn kernel(dtype: DType) -> Kernel {
    let builder = KernelBuilder::new(&[dtype, dtype, dtype.compute()]);
    let x = builder.args();
    builder.finish("mul_add", &[(x[0] * x[1] + x[2], dtype)]).unwrap()
}

fn axes(list: &[usize]) -> Axes {
    list.iter().fold(Axes::NONE, |set, &a| set.with(a))
}

/// The output of a reader of elements of this dtype and shape, as bytes, from `read`.
fn result(
    cpu: &CpuBackend,
    reader: Reader,
    (dtype, shape): (DType, Shape),
    lie: Lie,
    read: impl FnOnce(&mut ViewMut<'_>) -> Result<()>,
) -> Vec<u8> {
    let (dtype, shape) = match reader {
        Reader::Reduce(ReduceOp::Sum | ReduceOp::Prod, axes) => (dtype.accumulate(), shape.reduced(axes, true)),
        Reader::Reduce(ReduceOp::Max | ReduceOp::Min, axes) => (dtype, shape.reduced(axes, true)),
        Reader::Reduce(ReduceOp::Any | ReduceOp::All, axes) => (DType::Bool, shape.reduced(axes, true)),
        Reader::Softmax { .. } => (dtype, shape),
    };
    let mut out = Tensor::canary(cpu, dtype, shape.dims(), lie);
    read(&mut out.view_mut()).unwrap();
    out.assert_gaps_untouched(cpu);
    out.bytes(cpu)
}

/// Asserts that what a kernel computes is read with the bits that it has after a call of `map`: operands in several
/// layouts, one of them stretched along axes, and results in several layouts.
fn assert_reads_as_stored(cpu: &CpuBackend, dtype: DType, dims: &[usize], reader: Reader, factor: f64) {
    let (kernel, shape) = (kernel(dtype), Shape::new(dims).unwrap());
    let x = |lie| {
        let mut numbers = noise(1);
        Tensor::new(cpu, dtype, dims, lie, move |i| factor * numbers(i))
    };
    // The second operand has its full size along no axis, the last, the first, or all.
    let some = |k: usize| {
        let full = |a: usize| k == 3 || (k == 1 && a + 1 == dims.len()) || (k == 2 && a == 0);
        dims.iter().enumerate().map(|(a, &d)| if full(a) { d } else { d.min(1) }).collect::<Vec<_>>()
    };
    let lies = [Lie::Contiguous, Lie::Contiguous, Lie::Transposed, Lie::Flipped];
    for (k, of_x) in lies.into_iter().enumerate() {
        let of_out = if k == 2 { Lie::Spaced } else { Lie::Contiguous };
        let (x, y) = (x(of_x), Tensor::new(cpu, dtype, &some(k), Lie::Contiguous, noise(2)));
        let stretched = y.layout.expand(shape).unwrap();
        let args =
            [MapArg::View(x.view()), MapArg::View(y.view().with(&stretched)), MapArg::Scalar(Scalar::Float(0.25))];
        let read = |lie, f: &dyn Fn(&mut ViewMut<'_>) -> Result<()>| result(cpu, reader, (dtype, shape), lie, f);
        let got = read(of_out, &|out| cpu.map_into(&kernel, &args, shape, reader, out));
        let want = read(of_out, &|out| composite::mapped::map_into(cpu, &kernel, &args, shape, reader, out));
        assert!(got == want, "{reader:?} of {dtype} {dims:?}, operands {k}");
    }
}

#[test]
fn reductions_read_what_a_kernel_computes_as_if_it_were_stored() {
    let cpu = CpuBackend::with_threads(2).unwrap();
    let shapes: [(&[usize], &[usize]); 15] = [
        (&[], &[]),
        (&[5], &[0]),
        (&[5, 3], &[]),
        (&[3, 40], &[1]),
        (&[300, 33], &[1]),
        (&[4, 5, 6], &[1, 2]),
        (&[4, 5, 1], &[1]),
        (&[5, 4100], &[1]),
        (&[3, 66_000], &[1]),
        (&[140_000], &[0]),
        (&[30, 64], &[0]),
        (&[2, 30, 5, 6], &[0, 2]),
        (&[4, 9, 17], &[1]),
        (&[3, 0], &[1]),
        (&[0, 70], &[0]),
    ];
    for (dims, list) in shapes {
        let empty = dims.contains(&0);
        for op in [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Max, ReduceOp::Any] {
            for dtype in [DType::F32, DType::F16, DType::BF16, DType::F64] {
                if !(empty && op == ReduceOp::Max) {
                    assert_reads_as_stored(&cpu, dtype, dims, Reader::Reduce(op, axes(list)), 1.0);
                }
            }
        }
    }
}

#[test]
fn softmaxes_read_what_a_kernel_computes_as_if_it_were_stored() {
    let cpu = CpuBackend::with_threads(2).unwrap();
    for dtype in [DType::F32, DType::F16, DType::BF16, DType::F64] {
        for dims in [&[70, 7][..], &[20, 300], &[33, 16], &[3, 9000], &[2, 3, 40, 1], &[0, 4], &[4, 0]] {
            for axis in [0, 1, dims.len() - 1] {
                for log in [false, true] {
                    assert_reads_as_stored(&cpu, dtype, dims, Reader::Softmax { log, axis }, 4.0);
                }
            }
        }
    }
}

#[test]
fn threads_and_instruction_sets_change_no_bit() {
    for (dims, reader) in [
        (&[300, 400][..], Reader::Reduce(ReduceOp::Sum, Axes::one(1))),
        (&[140_000], Reader::Reduce(ReduceOp::Sum, Axes::one(0))),
        (&[130, 200], Reader::Softmax { log: false, axis: 1 }),
    ] {
        assert_same_bits(|cpu| {
            let (kernel, shape) = (kernel(DType::F32), Shape::new(dims).unwrap());
            let x = Tensor::new(cpu, DType::F32, dims, Lie::Contiguous, noise(1));
            let args = [MapArg::View(x.view()), MapArg::View(x.view()), MapArg::Scalar(Scalar::Float(0.5))];
            let read = |out: &mut ViewMut<'_>| cpu.map_into(&kernel, &args, shape, reader, out);
            result(cpu, reader, (DType::F32, shape), Lie::Contiguous, read)
        });
    }
}

#[test]
fn wrong_operands_are_typed_errors() {
    let cpu = CpuBackend::with_threads(1).unwrap();
    let kind = |r: Result<()>| r.as_ref().map_err(Error::kind).unwrap_err().clone();
    let x = Tensor::new(&cpu, DType::F32, &[4, 3], Lie::Contiguous, |_| 1.0);
    let shape = *x.layout.shape();
    let [mut out, mut small] = [[4, 1], [3, 1]].map(|dims| Tensor::canary(&cpu, DType::F32, &dims, Lie::Contiguous));
    let (square, sum) = (Kernel::build("square", &[DType::F32], |x| vec![x[0] * x[0]]).unwrap(), ReduceOp::Sum);
    let sums = |axis| Reader::Reduce(sum, Axes::one(axis));
    let call = |kernel: &Kernel, arg: MapArg<'_>, reader, out: &mut Tensor| {
        kind(cpu.map_into(kernel, &[arg], shape, reader, &mut out.view_mut()))
    };
    let view = MapArg::View(x.view());
    assert_eq!(call(&square, view, sums(1), &mut small), ErrorKind::ShapeMismatch);
    assert_eq!(call(&square, view, sums(2), &mut out), ErrorKind::InvalidAxis);
    assert_eq!(call(&square, MapArg::Output(0), sums(1), &mut out), ErrorKind::InvalidArgument);
    let turned = x.layout.transpose(0, 1).unwrap();
    let other = View { layout: &turned, ..x.view() };
    assert_eq!(call(&square, MapArg::View(other), sums(1), &mut out), ErrorKind::ShapeMismatch);
    let softmax = Reader::Softmax { log: false, axis: 2 };
    assert_eq!(call(&square, view, softmax, &mut out), ErrorKind::InvalidAxis);
    let twice = Kernel::build("twice", &[DType::F32], |x| vec![x[0], x[0]]).unwrap();
    assert_eq!(call(&twice, view, sums(1), &mut out), ErrorKind::InvalidArgument);
    // An integer is divided by zero.
    let zeros = Tensor::new(&cpu, DType::I64, &[4, 3], Lie::Contiguous, |_| 0.0);
    let mut sums_of_all = Tensor::canary(&cpu, DType::I64, &[4, 1], Lie::Contiguous);
    let divide = Kernel::build("divide", &[DType::I64], |x| vec![x[0].constant(1).floor_div(x[0])]).unwrap();
    assert_eq!(call(&divide, MapArg::View(zeros.view()), sums(1), &mut sums_of_all), ErrorKind::InvalidArgument);
}
