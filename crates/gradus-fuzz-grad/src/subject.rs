//! The library's side of the comparison: runs the same statements on real tensors.

use std::any::Any;
use std::sync::Arc;

use gradus_tensor::ops::AttentionOptions;
use gradus_tensor::{
    BackwardOptions, CustomOp, DType, Error, ErrorKind, Generator, Hook, Result, Tensor, apply_custom, autograd,
    checkpoint_with, enable_grad_guard, fused, grad, no_grad_guard,
};

use crate::arrays::{EPS, numel};
use crate::library::device;
use crate::program::{NONE, Name, Slot, Statement, indices, masked, values};

/// A mistake planted in the library's side, which the comparison must find.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Planted {
    /// Hooks scale by a wrong factor.
    Hook,
    /// Recorded gradients are detached from the graph.
    Severed,
    /// Recorded gradients are right and tracked, but half of the graph behind them is detached.
    Halved,
    /// The switches for saved tensors have no effect.
    Unguarded,
}

impl Planted {
    /// All planted mistakes.
    pub const ALL: &[Planted] = &[Planted::Hook, Planted::Severed, Planted::Halved, Planted::Unguarded];
}

/// The tensors of a program, by number.
pub(crate) struct Subject {
    tensors: Vec<Option<Tensor>>,
    hooks: Vec<(Slot, Hook)>,
    planted: Option<Planted>,
}

/// A custom operation: the product of two operands, or the cube of one.
struct Product;

impl CustomOp for Product {
    fn name(&self) -> &str {
        "product"
    }
    fn forward(&self, x: &[Tensor]) -> Result<Vec<Tensor>> {
        Ok(vec![match x {
            [x, y] => x.mul(y)?,
            _ => x[0].pow(3.0)?,
        }])
    }
    fn backward(&self, ctx: &autograd::Context<'_>, g: &[Option<Tensor>]) -> Result<Vec<Option<Tensor>>> {
        let count = ctx.input_count();
        let Some(g) = &g[0] else { return Ok(vec![None; count]) };
        let one = |i: usize| -> Result<Option<Tensor>> {
            match count {
                _ if !ctx.needs(i) => Ok(None),
                1 => ctx.input(0)?.square()?.mul(3.0)?.mul(g).map(Some),
                _ => {
                    let all = ctx.input(1 - i)?.mul(g)?;
                    summed(&all, &ctx.input_spec(i)?.shape).map(Some)
                }
            }
        };
        (0..count).map(one).collect()
    }
}

/// Sums `t` over the axes along which `shape` was broadcast.
fn summed(t: &Tensor, shape: &[usize]) -> Result<Tensor> {
    let lead = t.rank() - shape.len();
    let stretched = |&k: &usize| k < lead || shape[k - lead] == 1 && t.shape()[k] != 1;
    let axes: Vec<isize> = (0..t.rank()).filter(stretched).map(|k| k as isize).collect();
    if axes.is_empty() { Ok(t.clone()) } else { t.sum(&axes, true)?.reshape(shape) }
}

/// The error for a tensor that does not exist.
fn missing(slot: Slot) -> Error {
    Error::new(ErrorKind::InvalidArgument, "fuzz_grad", format!("there is no %{slot}"))
}

fn get(tensors: &[Option<Tensor>], slot: Slot) -> Result<&Tensor> {
    tensors.get(slot as usize).and_then(Option::as_ref).ok_or_else(|| missing(slot))
}

fn set(tensors: &mut Vec<Option<Tensor>>, slot: Slot, tensor: Option<Tensor>) {
    let slot = slot as usize;
    if tensors.len() <= slot {
        tensors.resize(slot + 1, None);
    }
    tensors[slot] = tensor;
}

impl Subject {
    pub(crate) fn new(planted: Option<Planted>) -> Self {
        Subject { tensors: vec![], hooks: vec![], planted }
    }

    pub(crate) fn tensor(&self, slot: Slot) -> Result<&Tensor> {
        get(&self.tensors, slot)
    }

    /// The number of slots.
    pub(crate) fn slots(&self) -> Slot {
        self.tensors.len() as Slot
    }

    /// The tensors that are defined, by number.
    pub(crate) fn living(&self) -> impl Iterator<Item = &Tensor> {
        self.tensors.iter().flatten()
    }

    pub(crate) fn define(&mut self, slot: Slot, tensor: Tensor) {
        set(&mut self.tensors, slot, Some(tensor));
    }

    /// Runs a statement that is neither a pass nor a hook, and whose body can be run completely.
    pub(crate) fn run(&mut self, s: &Statement) -> Result<()> {
        run(&mut self.tensors, s, &mut Generator::new(s.number(0).unsigned_abs()))
    }

    /// Sets the switch of a block until the returned guard is dropped.
    pub(crate) fn guard(&self, name: Name) -> Box<dyn Any> {
        match name {
            Name::NoGrad => Box::new(no_grad_guard()),
            _ if self.planted == Some(Planted::Unguarded) => Box::new(()),
            Name::Packed => Box::new(autograd::saved_tensors_hooks_guard(Tensor::copy, Tensor::copy)),
            Name::AllowMutation => Box::new(autograd::allow_mutation_on_saved_tensors_guard()),
            Name::StrictInplace => Box::new(autograd::strict_inplace_guard()),
            Name::Strict => Box::new(autograd::strict_guard()),
            _ => Box::new(()),
        }
    }

    /// Registers or removes a hook.
    pub(crate) fn hook(&mut self, s: &Statement) -> Result<()> {
        let of = s.of.first().copied().unwrap_or(NONE);
        if s.name == Name::Unhook {
            self.hooks.retain(|h| h.0 != of);
            return Ok(());
        }
        let (kind, mut factor) = (s.number(0), s.scalar(1));
        if self.planted == Some(Planted::Hook) {
            factor += 0.5;
        }
        let t = get(&self.tensors, of)?;
        let node = || t.grad_fn().ok_or_else(|| missing(of));
        let scaled = move |g: &[Option<Tensor>]| -> Result<Option<Vec<Option<Tensor>>>> {
            if kind != 1 {
                return Ok(None);
            }
            let one = |g: &Option<Tensor>| g.as_ref().map(|g| g.mul(factor)).transpose();
            Ok(Some(g.iter().map(one).collect::<Result<_>>()?))
        };
        let hook = match s.name {
            Name::Before => node()?.register_prehook(move |g| scaled(g))?,
            Name::After => node()?.register_hook(move |inputs, _| scaled(inputs))?,
            _ => t.register_hook(move |g| match kind {
                1 => g.mul(factor).map(Some),
                2 => g.tanh().map(Some),
                _ => Ok(None),
            })?,
        };
        self.hooks.push((s.outs.first().copied().unwrap_or(NONE), hook));
        Ok(())
    }

    /// Computes the gradients of a pass for `inputs`. Returns one result per thread.
    pub(crate) fn pass(&self, s: &Statement, inputs: &[Slot]) -> Result<Vec<Result<Vec<Option<Tensor>>>>> {
        let options = match s.name {
            Name::GradCreate => BackwardOptions::new().create_graph(),
            Name::GradRetain | Name::BackwardRetain => BackwardOptions::new().retain_graph(),
            _ => BackwardOptions::new(),
        };
        let inputs: Vec<&Tensor> = inputs.iter().map(|&i| self.tensor(i)).collect::<Result<_>>()?;
        if matches!(s.name, Name::Backward | Name::BackwardRetain) {
            let all = self.tensor(s.of.first().copied().unwrap_or(NONE))?.backward_with(options);
            return Ok(vec![all.map(|g| inputs.iter().map(|t| g.get(t).cloned()).collect())]);
        }
        let (mut roots, mut seeds, mut plain) = (vec![], vec![], true);
        for pair in s.of.chunks(2).take(s.place(0)) {
            let root = self.tensor(pair[0])?;
            let seed = match pair.get(1) {
                None | Some(&NONE) => Tensor::ones(root.shape(), DType::F64, &device()?)?,
                Some(&seed) => {
                    plain = false;
                    self.tensor(seed)?.clone()
                }
            };
            roots.push(root);
            seeds.push(seed);
        }
        let seeds: Vec<&Tensor> = seeds.iter().collect();
        let take = || grad(&roots, &inputs, if plain { None } else { Some(&seeds[..]) }, options);
        if s.number(1) < 2 {
            return Ok(vec![take()]);
        }
        Ok(std::thread::scope(|scope| {
            let other = scope.spawn(take);
            let own = take();
            let lost = |_| Err(Error::new(ErrorKind::Autograd, "fuzz_grad", "a thread panicked"));
            vec![own, other.join().unwrap_or_else(lost)]
        }))
    }

    /// Defines the gradients of a pass as tensors. Recorded ones are copied. Otherwise one gradient could be an
    /// intermediate value of another; that is correct, but in the reference every gradient is the end of a graph.
    pub(crate) fn define_gradients(&mut self, s: &Statement, inputs: &[Slot], found: &[Option<Tensor>]) -> Result<()> {
        let _mode = enable_grad_guard();
        for ((&out, &input), g) in s.outs.iter().zip(inputs).zip(found) {
            let own = match g {
                Some(g) if s.name == Name::GradCreate => match self.planted {
                    Some(Planted::Severed) => g.copy()?.detach(),
                    Some(Planted::Halved) => g.add(g.detach())?.mul(0.5)?,
                    _ => g.copy()?,
                },
                Some(g) => g.clone(),
                None => Tensor::zeros(self.tensor(input)?.shape(), DType::F64, &device()?)?,
            };
            self.define(out, own);
        }
        Ok(())
    }
}

fn run(tensors: &mut Vec<Option<Tensor>>, s: &Statement, generator: &mut Generator) -> Result<()> {
    match s.name {
        Name::Drop => {
            s.of.iter().for_each(|&slot| set(tensors, slot, None));
            Ok(())
        }
        Name::Checkpoint => region(tensors, s, generator),
        name if name.is_write() => write(tensors, s),
        _ => {
            let operands: Vec<&Tensor> = s.of.iter().map(|&h| get(tensors, h)).collect::<Result<_>>()?;
            let made = match (s.name, &operands[..]) {
                (Name::Dropout, [x]) => x.dropout(s.scalar(1), generator)?,
                _ => apply(s, &operands)?,
            };
            s.outs.iter().for_each(|&out| set(tensors, out, Some(made.clone())));
            Ok(())
        }
    }
}

/// Runs a statement of a region. The reference does not see the layouts of tensors in a region, so they must be the
/// ones that it expects.
fn run_inside(tensors: &mut Vec<Option<Tensor>>, s: &Statement, generator: &mut Generator) -> Result<()> {
    if s.name == Name::NoGrad {
        let _mode = no_grad_guard();
        return s.body.iter().try_for_each(|b| run_inside(tensors, b, generator));
    }
    run(tensors, s, generator)?;
    if s.name == Name::Attention {
        for &out in &s.outs {
            let t = get(tensors, out)?.contiguous()?;
            set(tensors, out, Some(t));
        }
    }
    Ok(())
}

fn region(tensors: &mut Vec<Option<Tensor>>, s: &Statement, generator: &mut Generator) -> Result<()> {
    let mut captured: Vec<Option<Tensor>> = vec![];
    crate::program::visit(&s.body, &mut |b| {
        for &slot in b.of.iter().filter(|slot| !s.of.contains(slot)) {
            if let Ok(t) = get(tensors, slot) {
                set(&mut captured, slot, Some(t.clone()));
            }
        }
    });
    let passed: Vec<&Tensor> = s.of.iter().map(|&h| get(tensors, h)).collect::<Result<_>>()?;
    let (slots, body, gives) = (s.of.clone(), s.body.clone(), s.gives.clone());
    let f = move |x: &[Tensor], generator: &mut Generator| -> Result<Vec<Tensor>> {
        let mut own = captured.clone();
        slots.iter().zip(x).for_each(|(&slot, t)| set(&mut own, slot, Some(t.clone())));
        body.iter().try_for_each(|b| run_inside(&mut own, b, generator))?;
        gives.iter().map(|&g| get(&own, g).cloned()).collect()
    };
    let made = checkpoint_with(f, &passed, generator)?;
    s.outs.iter().zip(made).for_each(|(&out, t)| set(tensors, out, Some(t)));
    Ok(())
}

fn write(tensors: &[Option<Tensor>], s: &Statement) -> Result<()> {
    let to = get(tensors, s.of.first().copied().unwrap_or(NONE))?;
    let from = || get(tensors, s.of.get(1).copied().unwrap_or(NONE));
    let (count, axis) = (s.place(1), s.number(2) as isize);
    let rows = |axis| index(&indices(s.number(0), count, to.size(axis)?), &[count]);
    let elements = || {
        let mut shape = to.shape().to_vec();
        *shape.get_mut(s.place(2)).ok_or_else(|| missing(NONE))? = count;
        index(&indices(s.number(0), numel(&shape), to.size(axis)?), &shape)
    };
    match s.name {
        Name::AddIn => to.add_(from()?),
        Name::SubIn => to.sub_(from()?),
        Name::MulIn => to.mul_(from()?),
        Name::DivIn => to.div_(from()?),
        Name::ZeroIn => to.zero_(),
        Name::CopyIn => to.copy_(from()?),
        Name::AssignIn => to.index_assign_(s.place(0)..s.place(1), from()?),
        Name::IndexPutIn => to.index_put_(&[&rows(0)?], from()?, s.number(2) != 0),
        Name::IndexAddIn => to.index_add_(axis, &rows(axis)?, from()?),
        Name::IndexCopyIn => to.index_copy_(axis, &rows(axis)?, from()?),
        Name::IndexFillIn => to.index_fill_(axis, &rows(axis)?, s.scalar(3)),
        Name::ScatterIn => to.scatter_(axis, &elements()?, from()?),
        Name::ScatterAddIn => to.scatter_add_(axis, &elements()?, from()?),
        Name::MaskedFillIn => {
            let mask: Vec<bool> = (0..to.numel()).map(|i| masked(s.number(0), i)).collect();
            to.masked_fill_(&Tensor::from_vec(mask, to.shape(), &device()?)?, s.scalar(1))
        }
        Name::ClampIn => to.clamp_(s.scalar(0), s.scalar(1)),
        Name::ScaleIn => to.mul_(s.scalar(0)),
        _ => to.fill_(s.scalar(0)),
    }
}

fn index(numbers: &[usize], shape: &[usize]) -> Result<Tensor> {
    Tensor::from_vec(numbers.iter().map(|&n| n as i64).collect::<Vec<_>>(), shape, &device()?)
}

/// The axes of a reduction.
fn axes(s: &Statement, x: &Tensor) -> Vec<isize> {
    (0..x.rank() as isize).filter(|&k| s.number(0) >> k & 1 == 1).collect()
}

fn apply(s: &Statement, x: &[&Tensor]) -> Result<Tensor> {
    let sizes = || s.numbers.iter().map(|&n| n as usize).collect::<Vec<_>>();
    let (axis, a, b) = (s.number(0) as isize, s.number(1) as isize, s.number(2) as isize);
    if let Name::Leaf | Name::Data = s.name {
        let shape = &sizes()[1..];
        let t = Tensor::from_vec(values(s.number(0), numel(shape)), shape, &device()?)?;
        return if s.name == Name::Leaf { t.with_grad() } else { Ok(t) };
    }
    let (&x0, rest) = x.split_first().ok_or_else(|| missing(NONE))?;
    let x1 = || rest.first().copied().ok_or_else(|| missing(NONE));
    let x2 = || rest.get(1).copied().ok_or_else(|| missing(NONE));
    let keep = s.number(1) != 0;
    match s.name {
        Name::Neg => x0.neg(),
        Name::Sin => x0.sin(),
        Name::Cos => x0.cos(),
        Name::Tanh => x0.tanh(),
        Name::Exp => x0.exp(),
        Name::Sigmoid => x0.sigmoid(),
        Name::Square => x0.square(),
        Name::Cube => x0.pow(3.0),
        Name::Silu => x0.silu(),
        Name::Softplus => x0.softplus(),
        Name::Relu => x0.relu(),
        Name::Abs => x0.abs(),
        Name::Sqrt => x0.sqrt(),
        Name::Log => x0.log(),
        Name::Recip => x0.recip(),
        Name::Scale => x0.mul(s.scalar(0)),
        Name::Shift => x0.add(s.scalar(0)),
        Name::Clamp => x0.clamp(s.scalar(0), s.scalar(1)),
        Name::Custom1 | Name::Custom2 => Ok(apply_custom(&Arc::new(Product), x)?.swap_remove(0)),
        Name::Fused1 => fused!(|a| (a * 0.5).tanh() * a)(x0),
        Name::MaskedFill => {
            let mask: Vec<bool> = (0..x0.numel()).map(|i| masked(s.number(0), i)).collect();
            x0.masked_fill(&Tensor::from_vec(mask, x0.shape(), &device()?)?, s.scalar(1))
        }
        Name::Add => x0.add(x1()?),
        Name::Sub => x0.sub(x1()?),
        Name::Mul => x0.mul(x1()?),
        Name::Div => x0.div(x1()?),
        Name::Maximum => x0.maximum(x1()?),
        Name::Minimum => x0.minimum(x1()?),
        Name::Pow => x0.pow(x1()?),
        Name::SiluMul => x0.silu_mul(x1()?),
        Name::Fused2 => fused!(|a, b| a * b.sigmoid() + (a - b).sin())(x0, x1()?),
        Name::Fused3 => fused!(|a, b, c| (a * b + c).tanh() * b)(x0, x1()?, x2()?),
        Name::Sum => x0.sum(&axes(s, x0), keep),
        Name::Mean => x0.mean(&axes(s, x0), keep),
        Name::Prod => x0.prod(&axes(s, x0), keep),
        Name::Max => x0.max(&axes(s, x0), keep),
        Name::Min => x0.min(&axes(s, x0), keep),
        Name::LogSumExp => x0.logsumexp(&axes(s, x0), keep),
        Name::Var => x0.var(&axes(s, x0), s.place(2), keep),
        Name::Softmax => x0.softmax(axis),
        Name::LogSoftmax => x0.log_softmax(axis),
        Name::Cumsum => x0.cumsum(axis),
        Name::Cumprod => x0.cumprod(axis),
        Name::LayerNorm => {
            let last = x0.shape().last().copied().unwrap_or(1);
            x0.layer_norm(&[last], rest.first().copied(), rest.get(1).copied(), EPS)
        }
        Name::RmsNorm => x0.rms_norm(&[x0.shape().last().copied().unwrap_or(1)], rest.first().copied(), EPS),
        Name::Matmul => x0.matmul(x1()?),
        Name::Attention => x0.scaled_dot_product_attention(x1()?, x2()?, AttentionOptions::new()),
        Name::CrossEntropy => {
            let (n, c) = (x0.size(0)?, x0.size(1)?);
            x0.cross_entropy(&index(&indices(s.number(0), n, c), &[n])?)
        }
        Name::Cat => Tensor::cat(x, axis),
        Name::Stack => Tensor::stack(x, axis),
        Name::Gather => x0.gather(axis, &index(&indices(s.number(1), x0.numel(), x0.size(axis)?), x0.shape())?),
        Name::IndexSelect => {
            let size = x0.size(axis)?;
            // A captured program may have other leaves than its text says, also an empty one: that is an error, not a
            // division by zero.
            let picked: Vec<usize> = s.numbers[1..].iter().map(|&n| n.unsigned_abs() as usize % size.max(1)).collect();
            x0.index_select(axis, &index(&picked, &[picked.len()])?)
        }
        Name::ScatterAdd => {
            let source = x1()?;
            x0.scatter_add(axis, &index(&indices(s.number(1), source.numel(), x0.size(axis)?), source.shape())?, source)
        }
        Name::IndexAdd => {
            let (source, size) = (x1()?, x0.size(axis)?);
            let n = source.size(axis)?;
            x0.index_add(axis, &index(&indices(s.number(1), n, size), &[n])?, source)
        }
        Name::Slice => x0.slice(axis, s.place(1), s.place(2), s.place(3)),
        Name::Select => x0.select(axis, a),
        Name::Transpose => x0.transpose(axis, a),
        Name::Reshape => x0.reshape(sizes()),
        Name::Expand => x0.expand(sizes()),
        Name::Flip => x0.flip(axis),
        Name::Diagonal => x0.diagonal(axis, a, b),
        Name::Squeeze => x0.squeeze(axis),
        Name::Unsqueeze => x0.unsqueeze(axis),
        Name::Windows => x0.unfold_axis(axis, s.place(1), s.place(2)),
        Name::Copy => x0.copy(),
        Name::Detach => Ok(x0.detach()),
        Name::Require => x0.with_grad(),
        _ => Err(missing(NONE)),
    }
}
