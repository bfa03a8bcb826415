//! Tests of every instruction, dtype and memory layout against `Kernel::eval`, on every instruction set of the machine.

use gradus_backend::kernel::TypeRule;
use gradus_backend::*;

use super::map;
use crate::CpuBackend;
use crate::isa::Level;

/// A tensor with its own buffer, whose elements are given as bit patterns.
struct Tensor {
    buffer: Buffer,
    dtype: DType,
    layout: Layout,
}

const CANARY: u8 = 0xa5;

impl Tensor {
    fn new(cpu: &CpuBackend, dtype: DType, layout: Layout, mut bits: impl FnMut(usize) -> u64) -> Tensor {
        let size = dtype.size();
        let mut bytes = vec![CANARY; layout.span().end * size + 16];
        for (i, at) in layout.positions().enumerate() {
            bytes[at * size..(at + 1) * size].copy_from_slice(&bits(i).to_le_bytes()[..size]);
        }
        let mut buffer = cpu.alloc(bytes.len()).unwrap();
        cpu.upload(&mut buffer, 0, &bytes).unwrap();
        Tensor { buffer, dtype, layout }
    }

    fn view(&self) -> View<'_> {
        View { buffer: &self.buffer, dtype: self.dtype, layout: &self.layout }
    }

    fn view_mut(&mut self) -> ViewMut<'_> {
        ViewMut { buffer: &mut self.buffer, dtype: self.dtype, layout: &self.layout }
    }

    /// Returns the bit patterns in row-major order, and asserts that the memory between elements is unchanged.
    fn bits(&self, cpu: &CpuBackend) -> Vec<u64> {
        let size = self.dtype.size();
        let mut bytes = vec![0; self.buffer.bytes()];
        cpu.download(&self.buffer, 0, &mut bytes).unwrap();
        let out = self.layout.positions().map(|at| {
            let mut word = [0; 8];
            word[..size].copy_from_slice(&bytes[at * size..(at + 1) * size]);
            u64::from_le_bytes(word)
        });
        let out: Vec<_> = out.collect();
        for at in self.layout.positions() {
            bytes[at * size..(at + 1) * size].fill(CANARY);
        }
        assert!(bytes.iter().all(|&b| b == CANARY), "bytes between elements were written");
        out
    }
}

fn random(i: usize) -> u64 {
    let mut z = (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Returns bit pattern number `i` of a dtype: at random a special value, any pattern or an ordinary number.
fn pattern(dtype: DType, i: usize) -> u64 {
    let r = random(i);
    let ordinary = (r >> 11) as f64 / (1u64 << 53) as f64 * 12.0 - 6.0;
    let special =
        [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 2.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 1e-40, 3e38, 100.0, 17.0];
    let float = match r % 3 {
        0 => special[(r >> 8) as usize % special.len()],
        _ => ordinary,
    };
    let mask = u64::MAX >> (64 - 8 * dtype.size());
    match dtype {
        DType::Bool => [0, 1, 0, 255, 1][r as usize % 5],
        _ if r >> 60 == 0 => random(i + 77777) & mask,
        DType::F64 => float.to_bits(),
        DType::F32 => u64::from((float as f32).to_bits()),
        DType::F16 => u64::from(f16_from_f64(float).to_bits()),
        DType::BF16 => u64::from(bf16_from_f64(float).to_bits()),
        _ if r & 3 == 0 => random(i + 99999) & mask,
        _ => (((r >> 20) % 23) as i64 - 11) as u64 & mask,
    }
}

fn scalar(dtype: DType, bits: u64) -> Scalar {
    match dtype {
        DType::F64 => Scalar::Float(f64::from_bits(bits)),
        DType::F32 => Scalar::Float(f64::from(f32::from_bits(bits as u32))),
        DType::F16 => Scalar::Float(f16::from_bits(bits as u16).to_f64()),
        DType::BF16 => Scalar::Float(bf16::from_bits(bits as u16).to_f64()),
        DType::I64 | DType::U64 => Scalar::Int(bits as i64),
        DType::I32 => Scalar::Int(i64::from(bits as i32)),
        DType::I16 => Scalar::Int(i64::from(bits as i16)),
        DType::I8 => Scalar::Int(i64::from(bits as i8)),
        DType::U32 | DType::U16 | DType::U8 => Scalar::Int(bits as i64),
        DType::Bool => Scalar::Bool(bits != 0),
    }
}

/// Returns whether a result is right. Integers must be exact, and floats within one step of the correctly rounded
/// value.
fn agrees(dtype: DType, got: u64, want: Scalar) -> bool {
    let steps = |a: i64, b: i64| a.abs_diff(b) <= 1;
    let order = |b: i64, sign: i64| if b & sign != 0 { -(b & sign.wrapping_sub(1)) } else { b };
    let value = scalar(dtype, got).to_f64();
    let w = want.to_f64();
    if !dtype.is_float() {
        return match (dtype, want) {
            (DType::Bool, w) => got == u64::from(w.to_f64() != 0.0),
            (_, Scalar::Int(w)) => scalar(dtype, got) == Scalar::Int(w),
            _ => false,
        };
    }
    if w.is_nan() || value.is_nan() {
        return w.is_nan() && value.is_nan();
    }
    match dtype {
        DType::F64 => steps(order(got as i64, i64::MIN), order(w.to_bits() as i64, i64::MIN)) || value == w,
        DType::F32 => steps(order(got as i64, 1 << 31), order(i64::from((w as f32).to_bits()), 1 << 31)),
        DType::F16 => steps(order(got as i64, 1 << 15), order(i64::from(f16_from_f64(w).to_bits()), 1 << 15)),
        _ => steps(order(got as i64, 1 << 15), order(i64::from(bf16_from_f64(w).to_bits()), 1 << 15)),
    }
}

fn shape(dims: &[usize]) -> Shape {
    Shape::new(dims).unwrap()
}

fn flat(n: usize) -> Layout {
    Layout::contiguous(shape(&[n]))
}

/// Returns several memory layouts of the same shape.
fn layouts(dims: &[usize]) -> Vec<Layout> {
    let s = shape(dims);
    let reversed: Vec<_> = dims.iter().rev().copied().collect();
    let axes: Vec<isize> = (0..dims.len() as isize).rev().collect();
    let mut wide = dims.to_vec();
    let last = dims.len() - 1;
    wide[last] = dims[last] * 3 + 2;
    let mut padded = dims.to_vec();
    padded[last] += 5;
    vec![
        Layout::contiguous(s),
        Layout::contiguous(shape(&reversed)).permute(&axes).unwrap(),
        Layout::contiguous(shape(&wide)).slice(last, 1, 1 + dims[last] * 3, 3).unwrap(),
        Layout::contiguous(shape(&padded)).narrow(last, 2, dims[last]).unwrap(),
        (0..dims.len()).fold(Layout::contiguous(s), |l, a| l.flip(a)),
    ]
}

/// Returns broadcast layouts, which only arguments may have.
fn stretched(dims: &[usize]) -> Vec<Layout> {
    let s = shape(dims);
    let mut out = vec![Layout::contiguous(shape(&[1])).expand(s).unwrap()];
    for axis in 0..dims.len() {
        out.push(Layout::contiguous(s.with(axis, 1).unwrap()).expand(s).unwrap());
    }
    out
}

/// Returns all backends to compare: one with two threads, and one with a single thread for each instruction set.
fn backends() -> Vec<CpuBackend> {
    let mut all = vec![CpuBackend::with_threads(2).unwrap()];
    for level in Level::ALL {
        all.extend(CpuBackend::with_threads(1).unwrap().with_isa(level.name()));
    }
    all
}

/// Runs a kernel on arguments with the layouts `args` and compares its outputs, with the layout `out`, with the results
/// of `Kernel::eval`.
fn check(cpus: &[CpuBackend], kernel: &Kernel, args: &[Layout], out: Layout, value: impl Fn(usize, usize) -> u64) {
    let mut first: Option<Vec<Vec<u64>>> = None;
    let mut want: Vec<Vec<Scalar>> = Vec::new();
    for cpu in cpus {
        // In a broadcast layout, several indices share one position, so values are assigned to positions.
        let tensors: Vec<_> = (0..args.len())
            .map(|k| {
                let at: Vec<usize> = args[k].positions().collect();
                Tensor::new(cpu, kernel.args()[k], args[k], |i| value(k, at[i]))
            })
            .collect();
        let mut outs: Vec<_> = kernel.outputs().iter().map(|o| Tensor::new(cpu, o.1, out, |_| !0)).collect();
        {
            let views: Vec<_> = tensors.iter().map(|t| MapArg::View(t.view())).collect();
            let mut out_views: Vec<_> = outs.iter_mut().map(Tensor::view_mut).collect();
            map(cpu, kernel, &views, &mut out_views).unwrap();
        }
        if want.is_empty() {
            let given: Vec<_> = tensors.iter().map(|t| t.bits(cpu)).collect();
            want = (0..out.numel())
                .map(|i| {
                    let scalars: Vec<_> = given.iter().zip(kernel.args()).map(|(g, &d)| scalar(d, g[i])).collect();
                    kernel.eval(&scalars).unwrap()
                })
                .collect();
        }
        let got: Vec<_> = outs.iter().map(|t| t.bits(cpu)).collect();
        for (k, o) in outs.iter().enumerate() {
            for i in 0..out.numel() {
                assert!(
                    agrees(o.dtype, got[k][i], want[i][k]),
                    "{kernel} output {k} element {i} on {cpu:?}: {:?} for {:?}, args {:?}",
                    scalar(o.dtype, got[k][i]),
                    want[i][k],
                    (0..args.len()).map(|a| scalar(kernel.args()[a], tensors[a].bits(cpu)[i])).collect::<Vec<_>>()
                );
            }
        }
        let canonical: Vec<Vec<u64>> = got
            .iter()
            .zip(&outs)
            .map(|(g, o)| g.iter().map(|&b| if scalar(o.dtype, b).to_f64().is_nan() { !0 } else { b }).collect())
            .collect();
        match &first {
            None => first = Some(canonical),
            Some(f) => assert!(*f == canonical, "{kernel}: other bits on {cpu:?}"),
        }
    }
}

/// Returns every kernel that consists of one instruction.
fn instructions() -> Vec<(Kernel, ScalarOp)> {
    let mut all = Vec::new();
    for &op in ScalarOp::ALL {
        for d in DType::ALL {
            let c = d.compute();
            let legal = match op.rule() {
                TypeRule::Float => d.is_float(),
                TypeRule::Number | TypeRule::Test => d != DType::Bool,
                TypeRule::Signed => d.is_signed(),
                TypeRule::Logic => d == DType::Bool,
                TypeRule::Compare | TypeRule::Select | TypeRule::Cast => true,
                TypeRule::Arg | TypeRule::Const => false,
            };
            if !legal {
                continue;
            }
            match op {
                ScalarOp::Select => {
                    let k = Kernel::build("select", &[DType::Bool, d, d], |v| vec![v[0].select(v[1], v[2])]);
                    all.push((k.unwrap(), op));
                }
                ScalarOp::Cast => {
                    for to in DType::ALL.into_iter().filter(|to| to.compute() != c) {
                        let builder = KernelBuilder::new(&[d]);
                        let e = builder.args()[0].cast(to);
                        all.push((builder.finish("cast", &[(e, to)]).unwrap(), op));
                    }
                }
                _ if op.arity() == 1 => {
                    all.push((Kernel::build(op.name(), &[d], |v| vec![v[0].unary(op)]).unwrap(), op))
                }
                _ => all.push((Kernel::build(op.name(), &[d, d], |v| vec![v[0].binary(op, v[1])]).unwrap(), op)),
            }
        }
    }
    all
}

/// Returns a value that is legal for argument `k` of an instruction.
fn legal(op: ScalarOp, dtype: DType, k: usize, i: usize) -> u64 {
    let bits = pattern(dtype, i * 3 + k);
    let int = dtype.is_int() && k == 1;
    match op {
        ScalarOp::Div | ScalarOp::FloorDiv | ScalarOp::Fmod | ScalarOp::Remainder if int && bits == 0 => 3,
        ScalarOp::Pow if int => bits % 9,
        _ => bits,
    }
}

#[test]
fn every_instruction_and_dtype_agrees_with_the_oracle_across_block_boundaries() {
    let cpus = backends();
    for (kernel, op) in &instructions() {
        for n in [0, 1, 7, 33, 1025] {
            let value = |k: usize, i: usize| legal(*op, kernel.args()[k], k, i + n);
            check(&cpus, kernel, &vec![flat(n); kernel.args().len()], flat(n), value);
        }
    }
}

#[test]
fn every_instruction_and_dtype_reads_and_writes_any_strides() {
    let cpus = &backends()[..1];
    let dims = [3, 2, 9];
    let (ways, mut all) = (layouts(&dims), layouts(&dims));
    all.extend(stretched(&dims));
    for (turn, (kernel, op)) in instructions().iter().enumerate() {
        for round in 0..4 {
            let pick = |k: usize| all[(turn * 7 + round * 3 + k * 5) % all.len()];
            let args: Vec<_> = (0..kernel.args().len()).map(pick).collect();
            check(cpus, kernel, &args, ways[(turn + round) % ways.len()], |k, i| legal(*op, kernel.args()[k], k, i));
        }
    }
}

fn swiglu() -> Kernel {
    Kernel::build("swiglu", &[DType::F32, DType::F32, DType::F32], |v| {
        let a = v[0] * v[0].sigmoid() * v[1];
        vec![a, v[2].gt(a).select(a + 1.0, 2.0 - v[2]), v[1]]
    })
    .unwrap()
}

#[test]
fn every_pair_of_layouts_works_in_every_walk() {
    let cpus = backends();
    let kernel = swiglu();
    for dims in [[2, 3, 300], [40, 5, 3], [7, 11, 1]] {
        let ways = layouts(&dims);
        let mut all = ways.clone();
        all.extend(stretched(&dims));
        for (t, a) in all.iter().enumerate() {
            let value = |k: usize, i: usize| u64::from(((random(i * 5 + k) % 1000) as f32 / 100.0 - 5.0).to_bits());
            let args = [*a, all[(t * 3 + 1) % all.len()], all[(t + 4) % all.len()]];
            // The errors of several instructions, each of up to one step, may add up, so the results are compared with
            // a tolerance.
            compose(&cpus, &kernel, &args, ways[t % ways.len()], value);
        }
    }
}

/// Like `check`, but with a relative tolerance, for kernels of several instructions.
fn compose(cpus: &[CpuBackend], kernel: &Kernel, args: &[Layout], out: Layout, value: impl Fn(usize, usize) -> u64) {
    for cpu in cpus {
        let tensors: Vec<_> = (0..args.len())
            .map(|k| {
                let at: Vec<usize> = args[k].positions().collect();
                Tensor::new(cpu, kernel.args()[k], args[k], |i| value(k, at[i]))
            })
            .collect();
        let mut outs: Vec<_> = kernel.outputs().iter().map(|o| Tensor::new(cpu, o.1, out, |_| !0)).collect();
        {
            let views: Vec<_> = tensors.iter().map(|t| MapArg::View(t.view())).collect();
            let mut out_views: Vec<_> = outs.iter_mut().map(Tensor::view_mut).collect();
            map(cpu, kernel, &views, &mut out_views).unwrap();
        }
        let given: Vec<_> = tensors.iter().map(|t| t.bits(cpu)).collect();
        let got: Vec<_> = outs.iter().map(|t| t.bits(cpu)).collect();
        for i in 0..out.numel() {
            let scalars: Vec<_> = given.iter().zip(kernel.args()).map(|(g, &d)| scalar(d, g[i])).collect();
            for (k, w) in kernel.eval(&scalars).unwrap().iter().enumerate() {
                let g = scalar(outs[k].dtype, got[k][i]).to_f64();
                let w = w.to_f64();
                assert!((g - w).abs() <= 1e-6 * (1.0 + w.abs()), "{kernel} {args:?} {out:?} [{i}][{k}]: {g} {w}");
            }
        }
    }
}

#[test]
fn bits_do_not_depend_on_threads_or_instruction_set() {
    let kernel = swiglu();
    let dims = [300, 700];
    for (a, out) in [(0, 0), (1, 3), (2, 0)] {
        let mut first = None;
        for threads in [1, 2, 3] {
            for level in Level::ALL {
                let Ok(cpu) = CpuBackend::with_threads(threads).unwrap().with_isa(level.name()) else { continue };
                let value = |i: usize| u64::from(((random(i) % 10_000) as f32 / 500.0 - 10.0).to_bits());
                let args = [layouts(&dims)[a], stretched(&dims)[1], layouts(&dims)[0]];
                let args = args.map(|l| Tensor::new(&cpu, DType::F32, l, value));
                let mut outs = [0; 3].map(|_| Tensor::new(&cpu, DType::F32, layouts(&dims)[out], |_| 0));
                let mut views: Vec<_> = outs.iter_mut().map(Tensor::view_mut).collect();
                map(&cpu, &kernel, &args.each_ref().map(|t| MapArg::View(t.view())), &mut views).unwrap();
                let got = outs.each_ref().map(|t| t.bits(&cpu));
                assert!(*first.get_or_insert_with(|| got.clone()) == got, "{threads} {level:?}");
            }
        }
    }
}

#[test]
fn scalars_constants_and_in_place_outputs() {
    let cpu = CpuBackend::with_threads(2).unwrap();
    let n = 3000;
    // p and m are updated in place: m' = 0.9 m + 0.1 g and p' = p - lr * m' / (sqrt(|m|) + 1e-3).
    let adam = Kernel::build("adam", &[DType::F32; 4], |v| {
        let (p, m, g, lr) = (v[0], v[1], v[2], v[3]);
        let m2 = m * 0.9 + g * 0.1;
        vec![p - lr * m2 / (m.abs().sqrt() + 1e-3), m2, m]
    })
    .unwrap();
    let x = |k: usize, i: usize| (random(i * 5 + k) % 1000) as f32 / 100.0 - 5.0;
    let tensor = |k: usize| Tensor::new(&cpu, DType::F32, flat(n), |i| u64::from(x(k, i).to_bits()));
    let (mut p, mut m, mut old, g) = (tensor(0), tensor(1), tensor(2), tensor(3));
    let args = [MapArg::Output(0), MapArg::Output(1), MapArg::View(g.view()), MapArg::Scalar(Scalar::Float(0.01))];
    map(&cpu, &adam, &args, &mut [p.view_mut(), m.view_mut(), old.view_mut()]).unwrap();
    for i in 0..n {
        let f = |v: f32| Scalar::Float(f64::from(v));
        let want = adam.eval(&[f(x(0, i)), f(x(1, i)), f(x(3, i)), Scalar::Float(0.01)]).unwrap();
        for (t, w) in [&p, &m, &old].iter().zip(want) {
            let g = f32::from_bits(t.bits(&cpu)[i] as u32);
            assert!((f64::from(g) - w.to_f64()).abs() < 1e-5 * (1.0 + w.to_f64().abs()), "{i}: {g} {w}");
        }
    }
    // One instruction in place, with a scalar, on contiguous and strided memory.
    let sub = Kernel::build("sub", &[DType::F32; 2], |v| vec![v[0] - v[1]]).unwrap();
    for layout in layouts(&[50, 40]) {
        let mut t = Tensor::new(&cpu, DType::F32, layout, |i| u64::from((i as f32).to_bits()));
        map(&cpu, &sub, &[MapArg::Output(0), MapArg::Scalar(Scalar::Int(3))], &mut [t.view_mut()]).unwrap();
        assert!(t.bits(&cpu).iter().enumerate().all(|(i, &b)| f32::from_bits(b as u32) == i as f32 - 3.0));
        map(&cpu, &sub, &[MapArg::Scalar(Scalar::Int(1)), MapArg::Output(0)], &mut [t.view_mut()]).unwrap();
        assert!(t.bits(&cpu).iter().enumerate().all(|(i, &b)| f32::from_bits(b as u32) == 4.0 - i as f32));
    }
    // The same on few elements, with another operand, just below and above the number of elements saved at a time.
    for n in [1, 5, 63, 64, 65, 700] {
        let value = |i: usize| u64::from((i as f32).to_bits());
        let (mut t, b) = (Tensor::new(&cpu, DType::F32, flat(n), value), Tensor::new(&cpu, DType::F32, flat(n), value));
        map(&cpu, &sub, &[MapArg::View(b.view()), MapArg::Output(0)], &mut [t.view_mut()]).unwrap();
        assert!(t.bits(&cpu).iter().all(|&b| f32::from_bits(b as u32) == 0.0));
        map(&cpu, &sub, &[MapArg::Output(0), MapArg::View(b.view())], &mut [t.view_mut()]).unwrap();
        assert!(t.bits(&cpu).iter().enumerate().all(|(i, &b)| f32::from_bits(b as u32) == -(i as f32)));
    }
    // Outputs that are constants, and the same value as two outputs.
    let k = Kernel::build("k", &[DType::F32], |v| {
        vec![v[0].constant(2.0).exp(), v[0].constant(7.0), v[0] * 2.0, v[0] * 2.0]
    });
    let k = k.unwrap();
    assert!(k.args().len() == 1);
    let mut outs: Vec<_> = (0..4).map(|_| Tensor::new(&cpu, DType::F32, flat(n), |_| 0)).collect();
    let mut views: Vec<_> = outs.iter_mut().map(Tensor::view_mut).collect();
    map(&cpu, &k, &[MapArg::View(g.view())], &mut views).unwrap();
    for (o, i) in [(0, 5), (1, n - 1), (2, n - 1), (3, 1030)] {
        let want = [2f32.exp(), 7.0, x(3, i) * 2.0, x(3, i) * 2.0][o];
        assert_eq!(f32::from_bits(outs[o].bits(&cpu)[i] as u32), want);
    }
}

#[test]
fn registers_are_reused_without_clobbering_in_long_programs() {
    let cpus = backends();
    // A wide tree and a long chain, with many values that are live at once. Most of them are last used before the end
    // of the program.
    let kernel = Kernel::build("wide", &[DType::F32, DType::BF16, DType::F32], |v| {
        let b = v[1].cast(DType::F32);
        let leaves: Vec<_> = (0..40).map(|i| v[0] * f64::from(i) + b * v[2]).collect();
        let chain = leaves.iter().skip(1).fold(leaves[0], |a, &l| (a - l) * 0.5 + v[2]);
        vec![chain, leaves.iter().skip(1).fold(leaves[0], |a, &l| a.max(l)), leaves[7]]
    })
    .unwrap();
    let value = |k: usize, i: usize| {
        let x = (random(i * 5 + k) % 1000) as f32 / 500.0 - 1.0;
        if k == 1 { u64::from(bf16::from_f32(x).to_bits()) } else { u64::from(x.to_bits()) }
    };
    let s = [30, 50];
    compose(&cpus, &kernel, &[flat(1500); 3], flat(1500), value);
    compose(&cpus, &kernel, &[layouts(&s)[1], layouts(&s)[2], stretched(&s)[1]], layouts(&s)[4], value);
}

#[test]
fn random_chains_agree_with_the_oracle_to_the_bit() {
    use ScalarOp::*;
    let cpus = backends();
    for seed in 0..200 {
        // Mostly the value before and another one, so that chains are found and end in all ways: by values that are
        // read again, by outputs, by masks that are read twice, and by an instruction that is never part of one.
        let draw = |n: usize, of: usize| random(seed * 1000 + n) as usize % of;
        let builder = KernelBuilder::new(&[DType::F32; 3]);
        let mut values = builder.args();
        values.push(builder.constant(DType::F32, 0.75));
        let mut masks = vec![];
        for n in 1..5 + draw(1, 24) {
            let newest = values.len() - 1;
            let a = values[if draw(10 * n, 4) == 0 { draw(10 * n + 1, values.len()) } else { newest }];
            let b = values[draw(10 * n + 2, values.len())];
            let (a, b) = if draw(10 * n + 3, 2) == 0 { (a, b) } else { (b, a) };
            let all = [Add, Sub, Mul, Div, Neg, Abs, Sqrt, Recip, Eq, Ne, Lt, Le, Gt, Ge, Select, Select, Floor];
            match all[draw(10 * n + 4, all.len())] {
                op @ (Eq | Ne | Lt | Le | Gt | Ge) => masks.push(a.binary(op, b)),
                Select if masks.is_empty() => {}
                Select => values.push(masks[masks.len() - 1 - draw(10 * n + 5, masks.len().min(3))].select(a, b)),
                op if op.arity() == 1 => values.push(a.unary(op)),
                op => values.push(a.binary(op, b)),
            }
        }
        let mut outs = vec![(values[values.len() - 1], DType::F32)];
        if draw(2, 3) == 0 {
            outs.push((values[draw(3, values.len())], DType::F32));
        }
        if let (0, Some(&mask)) = (draw(4, 4), masks.last()) {
            outs.push((mask, DType::Bool));
        }
        let kernel = builder.finish("chain", &outs).unwrap();
        for (cpu, n) in cpus.iter().flat_map(|cpu| [1, 15, 16, 17, 129, 1000, 1100].map(|n| (cpu, n))) {
            let value = |k: usize, i: usize| pattern(DType::F32, seed * 31 + k * 1000 + i);
            let args: Vec<_> = (0..3).map(|k| Tensor::new(cpu, DType::F32, flat(n), |i| value(k, i))).collect();
            let mut outs: Vec<_> = kernel.outputs().iter().map(|o| Tensor::new(cpu, o.1, flat(n), |_| !0)).collect();
            let mut views: Vec<_> = outs.iter_mut().map(Tensor::view_mut).collect();
            // Sometimes the first output is also the first argument.
            let in_place = draw(5, 3) == 0;
            if in_place {
                let copy = Kernel::build("copy", &[DType::F32], |v| vec![v[0]]).unwrap();
                map(cpu, &copy, &[MapArg::View(args[0].view())], &mut views[..1]).unwrap();
            }
            let first = if in_place { MapArg::Output(0) } else { MapArg::View(args[0].view()) };
            map(cpu, &kernel, &[first, MapArg::View(args[1].view()), MapArg::View(args[2].view())], &mut views)
                .unwrap();
            let got: Vec<_> = outs.iter().map(|t| t.bits(cpu)).collect();
            for i in 0..n {
                let scalars: Vec<_> = (0..3).map(|k| scalar(DType::F32, value(k, i))).collect();
                for (k, want) in kernel.eval(&scalars).unwrap().into_iter().enumerate() {
                    let (got, want) = (scalar(outs[k].dtype, got[k][i]).to_f64(), want.to_f64());
                    let same = got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan();
                    assert!(same, "{kernel} [{i}][{k}] of {n}: {got} {want}");
                }
            }
        }
    }
}

#[test]
fn integer_failures_are_errors_wherever_they_happen() {
    for cpu in backends() {
        for (op, bad) in [(ScalarOp::Div, 0i64), (ScalarOp::Fmod, 0), (ScalarOp::Pow, -1), (ScalarOp::FloorDiv, 0)] {
            let k = Kernel::build("k", &[DType::I64; 2], |v| vec![v[0].binary(op, v[1])]).unwrap();
            for (n, at) in [(1, 0), (100_000, 99_999), (5000, 2500)] {
                let a = Tensor::new(&cpu, DType::I64, flat(n), |_| 5);
                let b = Tensor::new(&cpu, DType::I64, flat(n), |i| if i == at { bad as u64 } else { 2 });
                let mut out = Tensor::new(&cpu, DType::I64, flat(n), |_| 0);
                let e = map(&cpu, &k, &[MapArg::View(a.view()), MapArg::View(b.view())], &mut [out.view_mut()])
                    .unwrap_err();
                assert_eq!((e.kind(), e.op()), (&ErrorKind::InvalidArgument, "k"));
                let s = [MapArg::Scalar(Scalar::Int(1)), MapArg::Scalar(Scalar::Int(bad))];
                assert!(map(&cpu, &k, &s, &mut [out.view_mut()]).is_err());
            }
        }
    }
}

#[test]
fn u64_above_the_range_of_i64_stays_unsigned() {
    let cpu = CpuBackend::with_threads(1).unwrap();
    let big = u64::MAX - 1000;
    let x = Tensor::new(&cpu, DType::U64, flat(2), |i| [big, 3][i]);
    for (to, want) in [
        (DType::F64, (big as f64).to_bits()),
        (DType::F32, u64::from((big as f32).to_bits())),
        (DType::I64, big),
        (DType::Bool, 1),
        (DType::U8, big & 255),
    ] {
        let b = KernelBuilder::new(&[DType::U64]);
        let k = b.finish("cast", &[(b.args()[0].cast(to), to)]).unwrap();
        let mut out = Tensor::new(&cpu, to, flat(2), |_| 0);
        map(&cpu, &k, &[MapArg::View(x.view())], &mut [out.view_mut()]).unwrap();
        assert_eq!(out.bits(&cpu)[0], want, "{to}");
    }
}

#[test]
fn wrong_operands_are_typed_errors() {
    let cpu = CpuBackend::with_threads(1).unwrap();
    let add = Kernel::build("add", &[DType::F32; 2], |v| vec![v[0] + v[1]]).unwrap();
    let x = Tensor::new(&cpu, DType::F32, flat(4), |_| 0);
    let short = Tensor::new(&cpu, DType::F32, flat(3), |_| 0);
    let int = Tensor::new(&cpu, DType::I32, flat(4), |_| 0);
    let mut out = Tensor::new(&cpu, DType::F32, flat(4), |_| 0);
    let mut kind = |args: &[MapArg<'_>]| map(&cpu, &add, args, &mut [out.view_mut()]).unwrap_err().kind().clone();
    let v = MapArg::View(x.view());
    assert_eq!(kind(&[v]), ErrorKind::InvalidArgument);
    assert_eq!(kind(&[v, MapArg::View(short.view())]), ErrorKind::ShapeMismatch);
    assert_eq!(kind(&[v, MapArg::View(int.view())]), ErrorKind::DTypeMismatch);
    assert_eq!(kind(&[v, MapArg::Output(1)]), ErrorKind::InvalidArgument);
    let far = View { layout: &Layout::from_parts(shape(&[4]), &[1], 100, 104).unwrap(), ..x.view() };
    assert_eq!(kind(&[v, MapArg::View(far)]), ErrorKind::InvalidArgument);
    assert!(map(&cpu, &add, &[v, v], &mut []).is_err());
    let mut overlapping = Tensor::new(&cpu, DType::F32, flat(1), |_| 0);
    overlapping.layout = overlapping.layout.expand(shape(&[4])).unwrap();
    assert!(map(&cpu, &add, &[v, v], &mut [overlapping.view_mut()]).is_err());
    let byte = Kernel::build("add", &[DType::U8; 2], |v| vec![v[0] + v[1]]).unwrap();
    let mut b = Tensor::new(&cpu, DType::U8, flat(4), |_| 0);
    assert!(map(&cpu, &byte, &[MapArg::Output(0), MapArg::Scalar(Scalar::Int(300))], &mut [b.view_mut()]).is_err());
}
