//! Calls that every backend must reject with an error: wrong shapes and dtypes, indices out of range, views that exceed
//! their buffers, outputs that overlap themselves, and parameters outside their domains.

use gradus_backend::{
    ArgReduceOp, AttentionParams, Axes, Backend, Buffer, CrossEntropyParams, DType, Distribution, ErrorKind, Kernel,
    Layout, MapArg, ReduceOp, Result, Scalar, ScanOp, ScatterOp, View, ViewMut, Window,
};

use super::sizes;
use crate::oracle::OracleBackend;
use crate::suite::{Array, Placed, Placement, Refusal, Suite, shape, uploaded};

const F32: DType = DType::F32;
const I64: DType = DType::I64;

/// A contiguous tensor on a backend.
struct Tensor {
    buffer: Buffer,
    dtype: DType,
    layout: Layout,
}

impl Tensor {
    /// A tensor of zeros.
    fn new(b: &dyn Backend, dtype: DType, dims: &[usize]) -> Result<Self> {
        Tensor::of(b, &Array::ints(dtype, dims, &[0]))
    }

    fn ints(b: &dyn Backend, dtype: DType, dims: &[usize], values: &[i64]) -> Result<Self> {
        Tensor::of(b, &Array::ints(dtype, dims, values))
    }

    fn of(b: &dyn Backend, array: &Array) -> Result<Self> {
        let placed = Placed::new(array, Placement::Contiguous, 0);
        Ok(Tensor { buffer: uploaded(b, &placed.bytes)?, dtype: array.dtype, layout: placed.layout })
    }

    fn view(&self) -> View<'_> {
        View { buffer: &self.buffer, dtype: self.dtype, layout: &self.layout }
    }

    fn out(&mut self) -> ViewMut<'_> {
        ViewMut { buffer: &mut self.buffer, dtype: self.dtype, layout: &self.layout }
    }
}

pub(super) fn run(s: &mut Suite<'_>) {
    views(s);
    arithmetic(s);
    primitives(s);
    indices(s);
    composites(s);
    parameters(s);
}

/// Runs `call` with one input and one output of the given dtypes and shapes.
fn two(
    s: &mut Suite<'_>,
    name: &str,
    x: (DType, &[usize]),
    out: (DType, &[usize]),
    call: impl FnOnce(&dyn Backend, View<'_>, &mut ViewMut<'_>) -> Result<()>,
) {
    let name = format!("refusals/{name}/{}{}_to_{}{}", x.0, sizes(x.1), out.0, sizes(out.1));
    s.refuse(&name, &Refusal::Any, |b| {
        let (x, mut out) = (Tensor::new(b, x.0, x.1)?, Tensor::new(b, out.0, out.1)?);
        call(b, x.view(), &mut out.out())
    });
}

fn views(s: &mut Suite<'_>) {
    // A layout that is valid only for a larger buffer.
    let outside = Layout::contiguous(shape(&[64]));
    s.refuse("refusals/views/input_outside_its_buffer", &Refusal::Any, |b| {
        let (x, mut out) = (Tensor::new(b, F32, &[4])?, Tensor::new(b, F32, &[64])?);
        b.copy_strided(x.view().with(&outside), &mut out.out())
    });
    s.refuse("refusals/views/output_outside_its_buffer", &Refusal::Any, |b| {
        let (x, mut out) = (Tensor::new(b, F32, &[64])?, Tensor::new(b, F32, &[4])?);
        b.copy_strided(x.view(), &mut out.out().with(&outside))
    });
    s.refuse("refusals/views/fill_outside_the_buffer", &Refusal::Any, |b| {
        b.fill(&mut Tensor::new(b, F32, &[4])?.out().with(&outside), Scalar::Float(1.0))
    });
    s.refuse("refusals/views/map_outside_the_buffer", &Refusal::Any, |b| {
        let kernel = Kernel::build("neg", &[F32], |v| vec![-v[0]])?;
        let (x, mut out) = (Tensor::new(b, F32, &[4])?, Tensor::new(b, F32, &[64])?);
        b.map(&kernel, &[MapArg::View(x.view().with(&outside))], &mut [out.out()])
    });
    s.refuse("refusals/views/gemm_outside_the_buffer", &Refusal::Any, |b| {
        let (x, mut out) = (Tensor::new(b, F32, &[4])?, Tensor::new(b, F32, &[8, 8])?);
        let larger = Layout::contiguous(shape(&[8, 8]));
        let a = x.view().with(&larger);
        b.gemm(Scalar::Int(1), a, a, Scalar::Int(0), &mut out.out())
    });
    // All rows share memory.
    let stretched = |l: Layout| l.narrow(0, 0, 1)?.expand(*l.shape());
    s.refuse("refusals/views/copy_to_a_stretched_output", &Refusal::Any, |b| {
        let (x, mut out) = (Tensor::new(b, F32, &[3, 4])?, Tensor::new(b, F32, &[3, 4])?);
        let layout = stretched(out.layout)?;
        b.copy_strided(x.view(), &mut out.out().with(&layout))
    });
    s.refuse("refusals/views/map_to_a_stretched_output", &Refusal::Any, |b| {
        let kernel = Kernel::build("neg", &[F32], |v| vec![-v[0]])?;
        let (x, mut out) = (Tensor::new(b, F32, &[3, 4])?, Tensor::new(b, F32, &[3, 4])?);
        out.layout = stretched(out.layout)?;
        b.map(&kernel, &[MapArg::View(x.view())], &mut [out.out()])
    });
    s.refuse("refusals/views/gemm_to_a_stretched_output", &Refusal::Any, |b| {
        let (x, mut out) = (Tensor::new(b, F32, &[3, 3])?, Tensor::new(b, F32, &[3, 3])?);
        let layout = stretched(out.layout)?;
        b.gemm(Scalar::Int(1), x.view(), x.view(), Scalar::Int(0), &mut out.out().with(&layout))
    });
    s.refuse("refusals/views/buffer_of_another_backend", &Refusal::Any, |b| {
        let oracle = OracleBackend::new();
        let (x, mut out) = (Tensor::new(&oracle, F32, &[4])?, Tensor::new(b, F32, &[4])?);
        b.copy_strided(x.view(), &mut out.out())
    });
}

fn arithmetic(s: &mut Suite<'_>) {
    let refusal = Refusal::Kind(ErrorKind::InvalidArgument);
    for d in [DType::I64, DType::I32, DType::I16, DType::I8, DType::U64, DType::U32, DType::U16, DType::U8] {
        type Binary = for<'k> fn(&[gradus_backend::Expr<'k>]) -> gradus_backend::Expr<'k>;
        let ops: [(&str, Binary, i64); 5] = [
            ("div", |v| v[0] / v[1], 0),
            ("floor_div", |v| v[0].floor_div(v[1]), 0),
            ("fmod", |v| v[0].fmod(v[1]), 0),
            ("remainder", |v| v[0].remainder(v[1]), 0),
            ("pow", |v| v[0].pow(v[1]), -1),
        ];
        for (name, op, bad) in ops {
            if bad < 0 && !d.is_signed() {
                continue;
            }
            s.refuse(&format!("refusals/arithmetic/{name}/{d}"), &refusal, |b| {
                let kernel = Kernel::build(name, &[d, d], |v| vec![op(v)])?;
                // A single invalid element after many valid ones, so that checks beyond the first SIMD vectors are
                // tested.
                let mut values = vec![1; 70];
                values[61] = bad;
                let (x, y) = (Tensor::ints(b, d, &[70], &[5])?, Tensor::ints(b, d, &[70], &values)?);
                let mut out = Tensor::new(b, d, &[70])?;
                b.map(&kernel, &[MapArg::View(x.view()), MapArg::View(y.view())], &mut [out.out()])
            });
        }
    }
    for (d, value) in [
        (DType::U8, Scalar::Int(300)),
        (DType::U8, Scalar::Int(-1)),
        (DType::I32, Scalar::Float(0.5)),
        (DType::I64, Scalar::Float(f64::NAN)),
        (DType::Bool, Scalar::Int(2)),
        (DType::I8, Scalar::Float(f64::INFINITY)),
    ] {
        s.refuse(&format!("refusals/fill/{d}/{value}"), &refusal, |b| {
            b.fill(&mut Tensor::new(b, d, &[3])?.out(), value)
        });
    }
    let dists = [
        ("uniform_of_integers", DType::I32, Distribution::Uniform { lo: 0.0, hi: 1.0 }),
        ("normal_of_integers", DType::U8, Distribution::Normal { mean: 0.0, std: 1.0 }),
        ("probability_above_1", F32, Distribution::Bernoulli { p: 1.5 }),
        ("probability_nan", F32, Distribution::Bernoulli { p: f64::NAN }),
        ("no_integer", I64, Distribution::Int { lo: 3, hi: 3 }),
        ("integers_too_large", DType::U8, Distribution::Int { lo: 0, hi: 300 }),
    ];
    for (name, d, dist) in dists {
        s.refuse(&format!("refusals/random/{name}"), &Refusal::Any, |b| {
            b.random(dist, 1, 0, &mut Tensor::new(b, d, &[4])?.out())
        });
    }
    // Values that exceed the dtype: the last one, and one in the middle while the last one fits because it wraps.
    for (name, d, start, step) in [("end", DType::U8, 250, 2), ("middle", DType::I32, 0, 1i64 << 62)] {
        s.refuse(&format!("refusals/arange/{name}"), &Refusal::Any, |b| {
            b.arange(start, step, &mut Tensor::new(b, d, &[5])?.out())
        });
    }
}

fn primitives(s: &mut Suite<'_>) {
    let kernel = |b: &dyn Backend, x: View<'_>, out: &mut ViewMut<'_>| {
        let neg = Kernel::build("neg", &[F32], |v| vec![-v[0]])?;
        let layout = out.layout;
        b.map(&neg, &[MapArg::View(x)], &mut [out.with(layout)])
    };
    two(s, "map", (F32, &[4]), (F32, &[5]), kernel);
    two(s, "map", (F32, &[1]), (F32, &[5]), kernel);
    two(s, "map", (DType::F64, &[4]), (F32, &[4]), kernel);
    two(s, "map", (F32, &[4]), (DType::F64, &[4]), kernel);
    two(s, "map_without_arguments", (F32, &[4]), (F32, &[4]), |b, _, out| {
        let neg = Kernel::build("neg", &[F32], |v| vec![-v[0]])?;
        let layout = out.layout;
        b.map(&neg, &[], &mut [out.with(layout)])
    });
    two(s, "map_of_a_missing_output", (F32, &[4]), (F32, &[4]), |b, _, out| {
        let neg = Kernel::build("neg", &[F32], |v| vec![-v[0]])?;
        let layout = out.layout;
        b.map(&neg, &[MapArg::Output(1)], &mut [out.with(layout)])
    });

    two(s, "copy_strided", (F32, &[4]), (F32, &[2, 2]), |b, x, out| b.copy_strided(x, out));
    two(s, "copy_strided", (F32, &[4]), (DType::I32, &[4]), |b, x, out| b.copy_strided(x, out));

    let sum = |b: &dyn Backend, x: View<'_>, out: &mut ViewMut<'_>| b.reduce(ReduceOp::Sum, x, Axes::one(1), out);
    two(s, "sum", (F32, &[2, 3]), (F32, &[2]), sum);
    two(s, "sum", (F32, &[2, 3]), (F32, &[1, 3]), sum);
    two(s, "sum", (F32, &[2]), (F32, &[1]), sum);
    two(s, "sum", (DType::I32, &[2, 3]), (DType::I32, &[2, 1]), sum);
    let max = |b: &dyn Backend, x: View<'_>, out: &mut ViewMut<'_>| b.reduce(ReduceOp::Max, x, Axes::one(0), out);
    two(s, "max_over_nothing", (F32, &[0, 3]), (F32, &[1, 3]), max);
    let any = |b: &dyn Backend, x: View<'_>, out: &mut ViewMut<'_>| b.reduce(ReduceOp::Any, x, Axes::one(0), out);
    two(s, "any", (F32, &[2]), (F32, &[1]), any);

    let argmax = |b: &dyn Backend, x: View<'_>, out: &mut ViewMut<'_>| b.arg_reduce(ArgReduceOp::Max, x, 0, out);
    two(s, "argmax", (F32, &[3]), (DType::I32, &[1]), argmax);
    two(s, "argmax", (F32, &[3, 2]), (I64, &[3, 1]), argmax);
    two(s, "argmax_over_nothing", (F32, &[0, 2]), (I64, &[1, 2]), argmax);
    two(s, "argmax", (F32, &[]), (I64, &[]), argmax);

    let scan = |op: ScanOp| move |b: &dyn Backend, x: View<'_>, out: &mut ViewMut<'_>| b.scan(op, x, 0, out);
    two(s, "cumsum", (F32, &[3]), (F32, &[4]), scan(ScanOp::Sum));
    two(s, "cumsum", (DType::I8, &[3]), (DType::I8, &[3]), scan(ScanOp::Sum));
    two(s, "cumlogsumexp", (I64, &[3]), (I64, &[3]), scan(ScanOp::LogSumExp));
    two(s, "cumsum", (F32, &[]), (F32, &[]), scan(ScanOp::Sum));

    two(s, "sort", (F32, &[3]), (I64, &[3]), |b, x, out| {
        b.sort(x, 0, false, &mut Tensor::new(b, F32, &[4])?.out(), out)
    });
    two(s, "sort", (F32, &[3]), (DType::I32, &[3]), |b, x, out| {
        b.sort(x, 0, false, &mut Tensor::new(b, F32, &[3])?.out(), out)
    });

    let gemms: [(&str, DType, [&[usize]; 3]); 6] = [
        ("inner", F32, [&[2, 3], &[4, 5], &[2, 5]]),
        ("output", F32, [&[2, 3], &[3, 5], &[2, 4]]),
        ("batch", F32, [&[2, 2, 3], &[3, 3, 5], &[2, 2, 5]]),
        ("rank", F32, [&[2, 3], &[1, 3, 5], &[1, 2, 5]]),
        ("vectors", F32, [&[3], &[3], &[3]]),
        ("bool", DType::Bool, [&[2, 3], &[3, 5], &[2, 5]]),
    ];
    for (name, d, [x, y, z]) in gemms {
        s.refuse(&format!("refusals/gemm/{name}"), &Refusal::Any, |b| {
            let (x, y, mut z) = (Tensor::new(b, d, x)?, Tensor::new(b, d, y)?, Tensor::new(b, d, z)?);
            b.gemm(Scalar::Int(1), x.view(), y.view(), Scalar::Int(0), &mut z.out())
        });
    }
    s.refuse("refusals/gemm/dtypes", &Refusal::Any, |b| {
        let (x, y) = (Tensor::new(b, F32, &[2, 2])?, Tensor::new(b, DType::F64, &[2, 2])?);
        b.gemm(Scalar::Int(1), x.view(), y.view(), Scalar::Int(0), &mut Tensor::new(b, F32, &[2, 2])?.out())
    });
    s.refuse("refusals/gemm/half_an_integer", &Refusal::Any, |b| {
        let x = Tensor::new(b, I64, &[2, 2])?;
        b.gemm(Scalar::Float(0.5), x.view(), x.view(), Scalar::Int(0), &mut Tensor::new(b, I64, &[2, 2])?.out())
    });

    let matrices: [&[usize]; 3] = [&[2, 3], &[3, 5], &[2, 5]];
    for (name, dtypes, dims) in [
        ("inner", [DType::U8, DType::I8, DType::I32], [&[2, 3][..], &[4, 5], &[2, 5]]),
        ("batch", [DType::U8, DType::I8, DType::I32], [&[2, 2, 3], &[3, 3, 5], &[2, 2, 5]]),
        ("wide", [DType::U8, DType::I32, DType::I32], matrices),
        ("narrow_sums", [DType::U8, DType::I8, DType::I16], matrices),
    ] {
        s.refuse(&format!("refusals/gemm_i32/{name}"), &Refusal::Any, |b| {
            let made = |i: usize| Tensor::new(b, dtypes[i], dims[i]);
            b.gemm_i32(made(0)?.view(), made(1)?.view(), &mut made(2)?.out())
        });
    }

    for (name, x, w, sums, out) in [
        ("inner", (F32, [1, 2, 3]), (DType::I8, [1, 4, 5]), [1, 5], [1, 2, 5]),
        ("groups", (F32, [2, 2, 3]), (DType::I8, [1, 3, 5]), [1, 5], [1, 2, 5]),
        ("sums", (F32, [1, 2, 3]), (DType::I8, [1, 3, 5]), [1, 4], [1, 2, 5]),
        ("output", (F32, [1, 2, 3]), (DType::I8, [1, 3, 5]), [1, 5], [1, 2, 4]),
        ("unsigned", (F32, [1, 2, 3]), (DType::U8, [1, 3, 5]), [1, 5], [1, 2, 5]),
        ("integers", (DType::I32, [1, 2, 3]), (DType::I8, [1, 3, 5]), [1, 5], [1, 2, 5]),
    ] {
        s.refuse(&format!("refusals/linear_i8/{name}"), &Refusal::Any, |b| {
            let (x, w) = (Tensor::new(b, x.0, &x.1)?, Tensor::new(b, w.0, &w.1)?);
            let (sums, scale) = (Tensor::new(b, DType::I32, &sums)?, Tensor::new(b, F32, &[1, 5])?);
            let mut out = Tensor::new(b, F32, &out)?;
            b.linear_i8(false, x.view(), w.view(), sums.view(), scale.view(), scale.view(), &mut out.out())
        });
    }

    let w = Window::new2d([2, 2]);
    let unfold =
        |w: Window| move |b: &dyn Backend, x: View<'_>, out: &mut ViewMut<'_>| b.unfold(&w, x, Scalar::Int(0), out);
    two(s, "unfold", (F32, &[1, 1, 3, 3]), (F32, &[1, 1, 2, 2, 2, 3]), unfold(w));
    two(s, "unfold", (F32, &[1, 3, 3]), (F32, &[1, 2, 2, 2, 2]), unfold(w));
    two(s, "unfold", (F32, &[1, 1, 1, 3]), (F32, &[1, 1, 2, 2, 1, 2]), unfold(w));
    let fold = |w: Window| move |b: &dyn Backend, x: View<'_>, out: &mut ViewMut<'_>| b.fold(&w, x, out);
    two(s, "fold", (F32, &[1, 1, 2, 2, 2, 2]), (F32, &[1, 1, 4, 3]), fold(w));
    for (name, bad) in
        [("kernel", Window::new2d([0, 2])), ("stride", w.stride2d([0, 1])), ("dilation", w.dilation2d([1, 0]))]
    {
        two(s, &format!("unfold_{name}_0"), (F32, &[1, 1, 3, 3]), (F32, &[1, 1, 2, 2, 2, 2]), unfold(bad));
    }
}

fn indices(s: &mut Suite<'_>) {
    let at = |pos, index, size| Refusal::Kind(ErrorKind::IndexOutOfBounds { pos, index, size });
    for d in [DType::I64, DType::I32] {
        for bad in [3, -1] {
            s.refuse(&format!("refusals/gather/index{bad}/{d}"), &at(4, bad, 3), |b| {
                let index = Tensor::ints(b, d, &[2, 4], &[0, 1, 2, 0, bad, 1, bad, 0])?;
                let x = Tensor::new(b, F32, &[2, 3])?;
                b.gather(x.view(), 1, index.view(), &mut Tensor::new(b, F32, &[2, 4])?.out())
            });
            s.refuse(&format!("refusals/scatter/index{bad}/{d}"), &at(1, bad, 3), |b| {
                let index = Tensor::ints(b, d, &[2, 2], &[0, bad, 1, bad])?;
                let src = Tensor::new(b, F32, &[2, 2])?;
                let mut out = Tensor::new(b, F32, &[2, 3])?;
                b.scatter(ScatterOp::Add, 1, index.view(), src.view(), &mut out.out())
            });
            s.refuse(&format!("refusals/embedding/index{bad}/{d}"), &at(2, bad, 3), |b| {
                let index = Tensor::ints(b, d, &[2, 2], &[0, 1, bad, 2])?;
                let weight = Tensor::new(b, F32, &[3, 5])?;
                b.embedding(weight.view(), index.view(), &mut Tensor::new(b, F32, &[2, 2, 5])?.out())
            });
            s.refuse(&format!("refusals/embedding_backward/index{bad}/{d}"), &at(2, bad, 3), |b| {
                let index = Tensor::ints(b, d, &[4], &[0, 1, bad, 2])?;
                let g = Tensor::new(b, F32, &[4, 5])?;
                b.embedding_backward(index.view(), g.view(), None, &mut Tensor::new(b, F32, &[3, 5])?.out())
            });
            s.refuse(&format!("refusals/cross_entropy/target{bad}/{d}"), &at(1, bad, 3), |b| {
                let params = CrossEntropyParams { ignore_index: Some(-100), label_smoothing: 0.0 };
                let (logits, target) = (Tensor::new(b, F32, &[3, 3])?, Tensor::ints(b, d, &[3], &[-100, bad, 0])?);
                let (mut loss, mut lse) = (Tensor::new(b, F32, &[3])?, Tensor::new(b, F32, &[3])?);
                b.cross_entropy(&params, logits.view(), target.view(), &mut loss.out(), &mut lse.out())
            });
        }
    }
    s.refuse("refusals/embedding/no_rows", &at(0, 0, 0), |b| {
        let (weight, index) = (Tensor::new(b, F32, &[0, 5])?, Tensor::new(b, I64, &[2])?);
        b.embedding(weight.view(), index.view(), &mut Tensor::new(b, F32, &[2, 5])?.out())
    });
    for d in [I64, DType::I32, DType::U32] {
        s.refuse(&format!("refusals/gather/no_elements/{d}"), &at(0, 3, 0), |b| {
            let (x, index) = (Tensor::new(b, F32, &[0, 2])?, Tensor::ints(b, d, &[2, 2], &[3, 0, 1, 2])?);
            b.gather(x.view(), 0, index.view(), &mut Tensor::new(b, F32, &[2, 2])?.out())
        });
    }
    let gather = |b: &dyn Backend, x: View<'_>, out: &mut ViewMut<'_>| {
        b.gather(x, 1, Tensor::new(b, I64, out.layout.dims())?.view(), out)
    };
    two(s, "gather", (F32, &[2, 3]), (F32, &[3, 3]), gather);
    two(s, "gather", (F32, &[2, 3]), (DType::F64, &[2, 3]), gather);
    two(s, "gather", (F32, &[3]), (F32, &[3]), gather);
    for d in [F32, DType::U8, DType::Bool] {
        two(s, "gather_by", (d, &[2, 3]), (F32, &[2, 3]), |b, index, out| {
            b.gather(Tensor::new(b, F32, &[2, 4])?.view(), 1, index, out)
        });
    }
    two(s, "scatter", (F32, &[3, 3]), (F32, &[2, 3]), |b, src, out| {
        b.scatter(ScatterOp::Set, 1, Tensor::new(b, I64, &[3, 3])?.view(), src, out)
    });
}

fn composites(s: &mut Suite<'_>) {
    let w = Window::new2d([2, 2]);
    let conv = |groups: usize, filters: &'static [usize]| {
        move |b: &dyn Backend, x: View<'_>, out: &mut ViewMut<'_>| {
            b.conv(&w, groups, x, Tensor::new(b, F32, filters)?.view(), None, out)
        }
    };
    two(s, "conv_channels", (F32, &[1, 2, 3, 3]), (F32, &[1, 4, 2, 2]), conv(1, &[4, 3, 2, 2]));
    two(s, "conv_kernel", (F32, &[1, 2, 3, 3]), (F32, &[1, 4, 2, 2]), conv(1, &[4, 2, 3, 3]));
    two(s, "conv_groups", (F32, &[1, 3, 3, 3]), (F32, &[1, 4, 2, 2]), conv(2, &[4, 1, 2, 2]));
    two(s, "conv_groups_0", (F32, &[1, 2, 3, 3]), (F32, &[1, 4, 2, 2]), conv(0, &[4, 2, 2, 2]));
    two(s, "conv_output", (F32, &[1, 2, 3, 3]), (F32, &[1, 4, 3, 3]), conv(1, &[4, 2, 2, 2]));
    let pool = |w: Window| {
        move |b: &dyn Backend, x: View<'_>, out: &mut ViewMut<'_>| {
            b.max_pool(&w, x, out, &mut Tensor::new(b, I64, out.layout.dims())?.out())
        }
    };
    let wide = Window::new2d([2, 2]).padding2d([2, 2]);
    two(s, "max_pool_padding", (F32, &[1, 1, 3, 3]), (F32, &[1, 1, 6, 6]), pool(wide));
    let mut over = Window::new2d([1, 2]).dilation2d([1, 3]);
    (over.pad_before[1], over.pad_after[1]) = (1, 2);
    two(s, "max_pool_of_padding_only", (F32, &[1, 1, 1, 1]), (F32, &[1, 1, 1, 1]), pool(over));
    two(s, "max_pool_output", (F32, &[1, 1, 3, 3]), (F32, &[1, 1, 3, 3]), pool(w));

    let softmax = |b: &dyn Backend, x: View<'_>, out: &mut ViewMut<'_>| b.softmax(false, x, 1, out);
    two(s, "softmax", (F32, &[3]), (F32, &[3]), softmax);
    two(s, "softmax", (I64, &[2, 3]), (I64, &[2, 3]), softmax);
    two(s, "softmax", (F32, &[2, 3]), (F32, &[3, 2]), softmax);
    two(s, "normalize_statistics", (F32, &[2, 3]), (F32, &[2, 3]), |b, x, out| {
        let (mut mean, mut rstd) = (Tensor::new(b, F32, &[2, 1])?, Tensor::new(b, F32, &[2])?);
        b.normalize(false, Axes::one(1), 1e-5, x, None, None, out, &mut mean.out(), &mut rstd.out())
    });
    let attention = |q: &'static [usize], k: &'static [usize], v: &'static [usize]| {
        move |b: &dyn Backend, _: View<'_>, out: &mut ViewMut<'_>| {
            let params = AttentionParams { causal: false, scale: 1.0 };
            let (q, k, v) = (Tensor::new(b, F32, q)?, Tensor::new(b, F32, k)?, Tensor::new(b, F32, v)?);
            let mut stats = Tensor::new(b, F32, &[1, 3, 2, 2])?;
            b.attention(&params, q.view(), k.view(), v.view(), None, out, &mut stats.out())
        }
    };
    let out = (F32, &[1, 3, 2, 4][..]);
    two(s, "attention_heads", (F32, &[]), out, attention(&[1, 3, 2, 4], &[1, 2, 5, 4], &[1, 2, 5, 4]));
    two(s, "attention_keys", (F32, &[]), out, attention(&[1, 3, 2, 4], &[1, 3, 5, 4], &[1, 3, 6, 4]));
    two(s, "attention_depth", (F32, &[]), out, attention(&[1, 3, 2, 4], &[1, 3, 5, 3], &[1, 3, 5, 4]));
    two(s, "cross_entropy_by", (F32, &[2, 3]), (F32, &[2]), |b, logits, loss| {
        let params = CrossEntropyParams { ignore_index: None, label_smoothing: 0.0 };
        let (target, mut lse) = (Tensor::new(b, F32, &[2])?, Tensor::new(b, F32, &[2])?);
        b.cross_entropy(&params, logits, target.view(), loss, &mut lse.out())
    });
}

fn parameters(s: &mut Suite<'_>) {
    let refusal = Refusal::Kind(ErrorKind::InvalidArgument);
    s.refuse("refusals/cross_entropy/smoothing_above_1", &refusal, |b| {
        let params = CrossEntropyParams { ignore_index: None, label_smoothing: 1.5 };
        let (logits, target) = (Tensor::new(b, F32, &[2, 3])?, Tensor::new(b, I64, &[2])?);
        let (mut loss, mut lse) = (Tensor::new(b, F32, &[2])?, Tensor::new(b, F32, &[2])?);
        b.cross_entropy(&params, logits.view(), target.view(), &mut loss.out(), &mut lse.out())
    });
}
