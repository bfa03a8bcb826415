//! `map`: every instruction with every dtype, and kernels of many instructions.

use gradus_backend::kernel::TypeRule;
use gradus_backend::{DType, Expr, Kernel, KernelBuilder, MapArg, Result, Scalar, ScalarOp, View, ViewMut};

use super::{FLOATS, fresh, sizes};
use crate::suite::{Array, Bound, Case, Output, Rng, Suite, shape};

/// Special values of the float types, and edges of the functions' domains.
const FLOAT_EDGES: [f64; 40] = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    -0.5,
    1.5,
    2.5,
    -2.5,
    3.0,
    7.0,
    -7.25,
    10.0,
    -10.0,
    30.0,
    -30.0,
    88.5,
    -88.5,
    -103.5,
    104.0,
    709.0,
    -740.0,
    1e-3,
    -1e-8,
    1e-20,
    1e-40,
    5e-324,
    6e-8,
    0.999,
    -0.9999,
    1.0001,
    1e4,
    -1e5,
    8388609.0,
    1e30,
    -1e30,
    65504.0,
    f64::INFINITY,
    f64::NEG_INFINITY,
    f64::NAN,
];

/// Binary operations are tested on all pairs of these values.
const PAIRED: [f64; 14] =
    [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0, -3.0, 7.25, 100.0, -0.125, f64::INFINITY, f64::NEG_INFINITY, f64::NAN];

const INT_EDGES: [i64; 12] = [0, 1, -1, 2, -2, 3, -7, 100, i64::MIN, i64::MAX, 1 << 40, -(1 << 33)];

pub(super) fn run(s: &mut Suite<'_>) {
    for &op in ScalarOp::ALL {
        match op.rule() {
            TypeRule::Cast => casts(s),
            TypeRule::Select => DType::ALL.into_iter().for_each(|d| select(s, d, &[3, 9])),
            rule => DType::ALL.into_iter().filter(|&d| takes(rule, d)).for_each(|d| instruction(s, op, d, None)),
        }
    }
    whole_kernels(s);
    shapes(s);
}

fn takes(rule: TypeRule, d: DType) -> bool {
    match rule {
        TypeRule::Float => d.is_float(),
        TypeRule::Number | TypeRule::Test => d != DType::Bool,
        TypeRule::Signed => d.is_signed(),
        TypeRule::Compare => true,
        TypeRule::Logic => d == DType::Bool,
        TypeRule::Arg | TypeRule::Const | TypeRule::Select | TypeRule::Cast => false,
    }
}

/// The extreme integers of a dtype, and some in between.
fn int_values(d: DType) -> Vec<i64> {
    let bits = d.size() as u32 * 8;
    let ends = match d {
        DType::U64 => vec![-1, i64::MIN],
        _ if d.is_signed() => vec![i64::MIN >> (64 - bits), i64::MAX >> (64 - bits)],
        _ => vec![(u64::MAX >> (64 - bits)) as i64, (i64::MAX as u64 >> (64 - bits)) as i64],
    };
    INT_EDGES.into_iter().chain(ends).collect()
}

/// Values across the range of a dtype, with its extremes.
fn edges(d: DType) -> Vec<Scalar> {
    match d {
        DType::Bool => vec![Scalar::Bool(false), Scalar::Bool(true), Scalar::Bool(true)],
        d if d.is_float() => FLOAT_EDGES.into_iter().map(Scalar::Float).collect(),
        d => int_values(d).into_iter().map(Scalar::Int).collect(),
    }
}

/// The largest error that a backend may make compared with the correctly rounded result.
fn bound(op: ScalarOp, d: DType) -> Bound {
    use ScalarOp::*;
    match op {
        _ if !d.is_float() => Bound::Exact,
        Neg | Abs | Sign | Sqrt | Recip | RoundF16 | RoundBf16 => Bound::Bits,
        Floor | Ceil | Round | Trunc | Add | Sub | Mul | Div | Fmod => Bound::Bits,
        FloorDiv | Remainder | Max | Min => Bound::Exact,
        _ if op.rule() != TypeRule::Float && op != Pow => Bound::Exact,
        // In f64 the oracle itself is off by up to one ULP.
        _ if d == DType::F64 => Bound::Ulps(2),
        _ => Bound::Ulps(1),
    }
}

/// A random instruction or update on a random shape.
pub(super) fn random(s: &mut Suite<'_>, rng: &mut Rng, dims: &[usize]) {
    let pick = |rng: &mut Rng, of: &[DType]| of[rng.int(0, of.len() as i64 - 1) as usize];
    if rng.int(0, 9) == 0 {
        let d = pick(rng, &FLOATS);
        let state = if rng.int(0, 1) == 0 { d } else { DType::F32 };
        return update(s, rng.int(0, UPDATES.len() as i64 - 1) as usize, d, state, dims);
    }
    let op = ScalarOp::ALL[rng.int(0, ScalarOp::ALL.len() as i64 - 1) as usize];
    let taken: Vec<DType> = DType::ALL.into_iter().filter(|&d| takes(op.rule(), d)).collect();
    match op.rule() {
        TypeRule::Select => select(s, pick(rng, &DType::ALL), dims),
        _ if !taken.is_empty() => instruction(s, op, pick(rng, &taken), Some(dims)),
        _ => {
            let (from, to) = (pick(rng, &DType::ALL), pick(rng, &DType::ALL));
            cast(s, from, to, dims);
        }
    }
}

/// One instruction on all test values, or on some of them in a shape.
fn instruction(s: &mut Suite<'_>, op: ScalarOp, d: DType, dims: Option<&[usize]>) {
    let shown = dims.map_or(String::new(), |dims| format!("/{}", sizes(dims)));
    let name = format!("map/{}/{d}{shown}", op.name());
    let arity = op.arity();
    let kernel = Kernel::build(op.name(), &vec![d; arity], |v| {
        vec![if arity == 1 { v[0].unary(op) } else { v[0].binary(op, v[1]) }]
    });
    let Some(kernel) = built(s, &name, kernel) else { return };
    let out = kernel.outputs()[0].1;
    let mut rng = s.rng(&name);
    let mut operands = if arity == 1 {
        let mut values = edges(d);
        if d.is_float() {
            // Covers the range where the functions curve, and every order of magnitude.
            values.extend((0..36).map(|_| Scalar::Float(rng.unit() * 6.0)));
            values.extend((0..36).map(|_| Scalar::Float(rng.unit() * (rng.unit() * 60.0).exp2())));
        }
        vec![values]
    } else {
        let (a, b) = pairs(op, d, &mut rng);
        vec![a, b]
    };
    let all = if arity == 1 { [8, 14] } else { [operands[0].len().div_ceil(8), 8] };
    let dims = dims.unwrap_or(&all);
    if *dims != all {
        let count = operands[0].len();
        let chosen: Vec<usize> = (0..shape(dims).numel()).map(|_| rng.int(0, count as i64 - 1) as usize).collect();
        operands.iter_mut().for_each(|values| *values = chosen.iter().map(|&at| values[at]).collect());
    }
    let inputs = operands.iter().map(|values| Array::cycled(d, dims, values)).collect();
    let call = mapped(&kernel);
    s.case(&Case::new(name, inputs, vec![fresh(out, dims)], &call).bound(bound(op, d)));
}

/// Every pair of test values for which the operation is defined.
fn pairs(op: ScalarOp, d: DType, rng: &mut Rng) -> (Vec<Scalar>, Vec<Scalar>) {
    use ScalarOp::*;
    let values: Vec<Scalar> = match d {
        DType::Bool => edges(d),
        d if d.is_float() => PAIRED.into_iter().map(Scalar::Float).collect(),
        d => int_values(d).into_iter().map(Scalar::Int).collect(),
    };
    let (mut a, mut b) = (Vec::new(), Vec::new());
    for &x in &values {
        for &y in &values {
            let y = gradus_backend::host::converted(y, d);
            let int_failure = !d.is_float()
                && match op {
                    Div | FloorDiv | Fmod | Remainder => y.to_i64() == 0,
                    Pow => y.to_i64() < 0 && d.is_signed(),
                    _ => false,
                };
            if !int_failure {
                a.push(x);
                b.push(y);
            }
        }
    }
    if d.is_float() && !matches!(op, FloorDiv | Remainder) {
        for _ in 0..60 {
            a.push(Scalar::Float(rng.unit() * (rng.unit() * 12.0).exp2()));
            b.push(Scalar::Float(rng.unit() * (rng.unit() * 12.0).exp2()));
        }
    }
    (a, b)
}

fn select(s: &mut Suite<'_>, d: DType, dims: &[usize]) {
    let name = format!("map/select/{d}/{}", sizes(dims));
    let kernel = Kernel::build("select", &[DType::Bool, d, d], |v| vec![v[0].select(v[1], v[2])]);
    let Some(kernel) = built(s, &name, kernel) else { return };
    let mut rng = s.rng(&name);
    let cond = Array::random(DType::Bool, dims, &mut rng);
    let inputs = vec![cond, Array::cycled(d, dims, &edges(d)), Array::random(d, dims, &mut rng)];
    s.case(&Case::new(name, inputs, vec![fresh(kernel.outputs()[0].1, dims)], &mapped(&kernel)));
}

fn casts(s: &mut Suite<'_>) {
    for from in DType::ALL {
        for to in DType::ALL {
            cast(s, from, to, &[7, 7]);
        }
    }
}

fn cast(s: &mut Suite<'_>, from: DType, to: DType, dims: &[usize]) {
    let name = format!("map/cast/{from}_to_{to}/{}", sizes(dims));
    let builder = KernelBuilder::new(&[from]);
    let kernel = builder.finish("cast", &[(builder.args()[0].cast(to), to)]);
    let Some(kernel) = built(s, &name, kernel) else { return };
    let mut values = edges(from);
    if from.is_float() {
        values.extend([255.5, -128.5, 127.99, 256.0, 4294967296.0, 1e19, -1e19, 2147483648.0].map(Scalar::Float));
    }
    let x = Array::cycled(from, dims, &values);
    s.case(&Case::new(name, vec![x], vec![fresh(to, dims)], &mapped(&kernel)));
}

/// The formula of an update. Its arguments are the outputs, then the gradient, then the scalars.
type Formula = for<'k> fn(&[Expr<'k>]) -> Vec<Expr<'k>>;

/// The name, number of outputs, and formula of each update.
const UPDATES: [(&str, usize, Formula); 3] = [
    ("sgd", 1, |x| vec![x[0] - x[2] * (x[1] + x[3] * x[0])]),
    ("nesterov", 2, |x| {
        let v = x[3] * x[1] + x[2];
        vec![x[0] - x[4] * (x[2] + x[3] * v), v]
    }),
    ("adam", 3, |x| {
        let (m, v) = (x[4] * x[1] + (1.0 - x[4]) * x[3], x[5] * x[2] + (1.0 - x[5]) * (x[3] * x[3]));
        vec![x[0] * 0.99 - x[6] * m / (v.sqrt() * x[7] + 1e-8), m, v]
    }),
];

/// A kernel that updates all its outputs, as an optimiser step does. Parameters have dtype `d`, moments dtype `state`.
fn update(s: &mut Suite<'_>, which: usize, d: DType, state: DType, dims: &[usize]) {
    let (name, count, formula) = UPDATES[which];
    let numbers = [0.9, 0.05, 0.01, 1.5];
    let name = format!("map/update/{name}/{d}/{state}/{}", sizes(dims));
    let mut rng = s.rng(&name);
    let written: Vec<DType> = (0..count).map(|i| if i == 0 { d } else { state }).collect();
    let call = |b: &dyn gradus_backend::Backend, ins: &[View<'_>], outs: &mut [ViewMut<'_>]| {
        let written: Vec<DType> = outs.iter().map(|o| o.dtype).collect();
        let wide = written[0].compute();
        let dtypes: Vec<DType> = written.iter().copied().chain([ins[0].dtype]).chain([wide; 4]).collect();
        let builder = KernelBuilder::new(&dtypes);
        let args: Vec<_> = builder.args().into_iter().map(|x| x.cast(wide)).collect();
        let values: Vec<_> = formula(&args).into_iter().zip(&written).map(|(e, &d)| (e.cast(d), d)).collect();
        let mut args: Vec<_> = (0..count).map(MapArg::Output).collect();
        args.push(MapArg::View(ins[0]));
        args.extend(numbers.map(|n| MapArg::Scalar(Scalar::Float(n))));
        b.map(&builder.finish("update", &values)?, &args, outs)
    };
    // The last output is a mean of squares, so its old values are positive.
    let mut outputs: Vec<Array> = written.iter().map(|&d| Array::random(d, dims, &mut rng)).collect();
    let squares = outputs[count - 1].data.iter().map(|v| (v.to_f64().abs() + 0.01).into()).collect::<Vec<_>>();
    outputs[count - 1] = Array::cycled(written[count - 1], dims, &squares);
    let outputs = outputs.into_iter().map(Output::Updated).collect();
    let gradient = vec![Array::random(d, dims, &mut rng)];
    s.case(&Case::new(name, gradient, outputs, &call).bound(Bound::Naive));
}

fn updates(s: &mut Suite<'_>, d: DType, state: DType) {
    for dims in [&[7][..], &[3, 11], &[0], &[]] {
        (0..UPDATES.len()).for_each(|which| update(s, which, d, state, dims));
    }
}

/// Kernels with several instructions, arguments and outputs.
fn whole_kernels(s: &mut Suite<'_>) {
    let mut rng = s.rng("kernels");
    for d in FLOATS {
        for dims in [&[5, 7][..], &[3, 2001]] {
            let name = format!("map/silu_mul/{d}/{}", sizes(dims));
            let kernel = Kernel::build("silu_mul", &[d, d], |v| vec![v[0] * v[0].sigmoid() * v[1]]);
            let Some(kernel) = built(s, &name, kernel) else { return };
            let inputs = vec![Array::random(d, dims, &mut rng), Array::random(d, dims, &mut rng)];
            s.case(&Case::new(name, inputs, vec![fresh(d, dims)], &mapped(&kernel)).bound(Bound::Ulps(4)));
        }

        updates(s, d, d);
        if d != DType::F32 {
            updates(s, d, DType::F32);
        }

        // Two outputs (one updated in place), a scalar argument, a constant, and an argument of another dtype.
        let name = format!("map/in_place/{d}");
        let builder = KernelBuilder::new(&[d, DType::F32, d, DType::I32]);
        let v = builder.args();
        let (x, t) = (v[0] + v[2] * v[1].cast(d), v[0].gt(0.25).select(v[3].cast(d), -1.0));
        let Some(kernel) = built(s, &name, builder.finish("in_place", &[(x, d), (t, d)])) else { return };
        let dims = [4, 33];
        let call = |b: &dyn gradus_backend::Backend, ins: &[View<'_>], outs: &mut [ViewMut<'_>]| {
            let args =
                [MapArg::Output(0), MapArg::View(ins[0]), MapArg::Scalar(Scalar::Float(0.5)), MapArg::View(ins[1])];
            b.map(&kernel, &args, outs)
        };
        let inputs = vec![Array::random(DType::F32, &dims, &mut rng), Array::small(DType::I32, &dims, &mut rng)];
        let outputs = vec![Output::Updated(Array::random(d, &dims, &mut rng)), fresh(d, &dims)];
        s.case(&Case::new(name, inputs, outputs, &call).bound(Bound::Ulps(1)));
    }
    let name = "map/32_arguments/f32";
    let sum = Kernel::build("sum_of_32", &[DType::F32; 32], |v| vec![v[1..].iter().fold(v[0], |a, &b| a + b)]);
    let Some(kernel) = built(s, name, sum) else { return };
    let inputs = (0..32).map(|_| Array::small(DType::F32, &[3, 5], &mut rng)).collect();
    s.case(&Case::new(name, inputs, vec![fresh(DType::F32, &[3, 5])], &mapped(&kernel)));
}

/// Every rank, the sizes 0 and 1, and sizes just below and above the block size.
fn shapes(s: &mut Suite<'_>) {
    let all: [&[usize]; 14] = [
        &[],
        &[0],
        &[1],
        &[2, 0, 3],
        &[1, 1, 1],
        &[31],
        &[1025],
        &[4097],
        &[3, 1, 5],
        &[2, 3, 4, 5],
        &[2, 1, 2, 1, 2, 1, 2, 3],
        &[40, 1, 40],
        &[129, 65],
        &[2, 33, 257],
    ];
    for d in [DType::F32, DType::F16, DType::I64, DType::U8] {
        let add = Kernel::build("add", &[d, d], |v| vec![v[0] + v[1]]);
        let Some(kernel) = built(s, "map/add", add) else { return };
        for dims in all {
            let name = format!("map/add/{d}/{}", sizes(dims));
            let mut rng = s.rng(&name);
            let inputs = vec![Array::random(d, dims, &mut rng), Array::random(d, dims, &mut rng)];
            s.case(&Case::new(name, inputs, vec![fresh(d, dims)], &mapped(&kernel)));
        }
    }
    // Large enough to be split among threads.
    let name = "map/axpy/f32/3x40001";
    let axpy = Kernel::build("axpy", &[DType::F32; 2], |v| vec![v[0] * 0.5 + v[1]]);
    let Some(kernel) = built(s, name, axpy) else { return };
    let mut rng = s.rng(name);
    let inputs = (0..2).map(|_| Array::random(DType::F32, &[3, 40001], &mut rng)).collect();
    s.case(&Case::new(name, inputs, vec![fresh(DType::F32, &[3, 40001])], &mapped(&kernel)));
}

/// The verified kernel, or a recorded failure.
fn built(s: &mut Suite<'_>, name: &str, kernel: Result<Kernel>) -> Option<Kernel> {
    match kernel {
        Ok(kernel) => Some(kernel),
        Err(e) => {
            s.check(name, |_| Err(format!("the kernel cannot be built: {e}")));
            None
        }
    }
}

/// The call that maps a kernel over its inputs.
fn mapped(kernel: &Kernel) -> impl Fn(&dyn gradus_backend::Backend, &[View<'_>], &mut [ViewMut<'_>]) -> Result<()> {
    |b, ins, outs| {
        let args: Vec<_> = ins.iter().map(|&v| MapArg::View(v)).collect();
        b.map(kernel, &args, outs)
    }
}
