//! Separates the NaN and infinite elements of a result that an operation made itself from those that it only passed on.

use gradus_backend::kernel::ScalarOp;
use std::rc::Rc;

use gradus_backend::host_vec::collect;
use gradus_backend::{Here, Kernel, Result};

use crate::autograd::Node;
use crate::ops::{Arg, Flow, Op};

/// The kind of an element, in ascending order of severity.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::autograd) enum Mark {
    #[default]
    Finite,
    Infinite,
    Nan,
}

impl Mark {
    pub(in crate::autograd) fn of(v: f64) -> Mark {
        match v {
            v if v.is_nan() => Mark::Nan,
            v if v.is_infinite() => Mark::Infinite,
            _ => Mark::Finite,
        }
    }
}

/// The kind of each element of a tensor, in row-major order.
#[derive(Debug, Clone, Default)]
pub(in crate::autograd) struct Marks {
    pub(in crate::autograd) shape: Vec<usize>,
    /// Empty if all elements are finite.
    pub(in crate::autograd) marks: Rc<Vec<Mark>>,
}

impl Marks {
    pub(in crate::autograd) fn worst(&self) -> Mark {
        self.marks.iter().copied().max().unwrap_or_default()
    }
}

/// How an operation spreads values that are not finite: its [`Flow`], and the worst of the scalars among its operands.
#[derive(Debug, Clone, Copy)]
pub(in crate::autograd) struct Spreads {
    pub(in crate::autograd) flow: Flow,
    number: Mark,
}

impl Spreads {
    pub(in crate::autograd) fn of(op: &Op) -> Spreads {
        let (kernel, args) = match op {
            Op::Map(map) => (&map.kernel, &map.args),
            Op::Update(update) => (&update.kernel, &update.args),
            _ => return op.flow().into(),
        };
        let numbers = args.iter().filter_map(|a| if let Arg::Scalar(s) = a { Some(s.to_f64()) } else { None });
        let number = match numbers.map(Mark::of).max().unwrap_or_default() {
            Mark::Infinite if !is_one_step(kernel) => Mark::Finite,
            worst => worst,
        };
        Spreads { flow: op.flow(), number }
    }

    /// Like [`of`](Spreads::of), for the gradient of a node. Its operands are the gradients of the outputs and the
    /// saved values.
    pub(in crate::autograd) fn of_gradient(node: &Node) -> Spreads {
        match node.op() {
            Some(op @ Op::Map(_)) => Spreads::of(op),
            _ => Flow::Mixes.into(),
        }
    }
}

impl From<Flow> for Spreads {
    fn from(flow: Flow) -> Spreads {
        Spreads { flow, number: Mark::Finite }
    }
}

/// Whether a kernel only applies one instruction, or only selects among its arguments. If it has an infinite argument,
/// an infinite result then comes from that argument.
fn is_one_step(kernel: &Kernel) -> bool {
    use ScalarOp::*;
    let steps = || kernel.insts().iter().map(|inst| inst.op).filter(|op| !matches!(op, Arg(_) | Const(_) | Cast));
    let chooses = |op| matches!(op, Select | Min | Max | Not | And | Or | Xor | IsNan | IsFinite) || compares(op);
    steps().count() <= 1 || steps().all(chooses)
}

fn compares(op: ScalarOp) -> bool {
    use ScalarOp::*;
    matches!(op, Eq | Ne | Lt | Le | Gt | Ge)
}

/// Whether an operation made the values in its results that are not finite, or passed them on.
#[derive(Debug, Default)]
pub(in crate::autograd) struct Spread {
    /// The numbers of NaN and of infinities that the operation made.
    pub(in crate::autograd) made: (usize, usize),
    /// The number of the result that contains the first such value, and the index of the value in it.
    pub(in crate::autograd) first: Option<(usize, Vec<usize>)>,
    /// The most severe value that the operation passed on. An operation that [mixes](Flow::Mixes) elements may have
    /// made that value itself.
    pub(in crate::autograd) passed: Mark,
}

impl Spread {
    /// Counts a NaN as made by the operation if no operand is NaN. If `infinities` is set, counts an infinity as made
    /// by it if all operands are finite. For elementwise operations, only the operand elements at the same place count.
    #[track_caller]
    pub(in crate::autograd) fn judge(
        how: Spreads,
        operands: &[Marks],
        results: &[Marks],
        infinities: bool,
    ) -> Result<Spread> {
        let mut spread = Spread::default();
        let worst = match how.flow {
            Flow::InPlace => Some(Places::new(how.number, operands, results)?),
            Flow::Moves | Flow::Mixes => None,
        };
        let mixed = operands.iter().map(Marks::worst).max().unwrap_or_default();
        for (r, result) in results.iter().enumerate().filter(|(_, r)| !r.marks.is_empty()) {
            let under = worst.as_ref().map(|w| w.under(result)).transpose().here()?;
            for (k, &mark) in result.marks.iter().enumerate() {
                let worst = match (how.flow, &under) {
                    (Flow::Moves, _) => Mark::Nan,
                    (_, Some(under)) => under.get(k).copied().unwrap_or(mixed),
                    (_, None) => mixed,
                };
                match mark {
                    Mark::Finite => continue,
                    Mark::Infinite if !infinities => continue,
                    Mark::Nan if worst < Mark::Nan => spread.made.0 += 1,
                    Mark::Infinite if worst == Mark::Finite => spread.made.1 += 1,
                    passed => {
                        spread.passed = spread.passed.max(passed);
                        continue;
                    }
                }
                spread.first.get_or_insert_with(|| (r, index(&result.shape, k)));
            }
        }
        Ok(spread)
    }
}

/// The worst value of all operands at each place of the shape to which all operands and results broadcast.
struct Places {
    shape: Vec<usize>,
    worst: Vec<Mark>,
}

impl Places {
    #[track_caller]
    fn new(number: Mark, operands: &[Marks], results: &[Marks]) -> Result<Places> {
        let shapes = || operands.iter().chain(results).map(|m| &m.shape);
        let rank = shapes().map(Vec::len).max().unwrap_or(0);
        let size = |axis: usize| {
            let sizes = shapes().filter_map(|s| s.get((axis + s.len()).checked_sub(rank)?).copied());
            sizes.reduce(|a, b| if a == 1 { b } else { a }).unwrap_or(1)
        };
        let shape: Vec<usize> = (0..rank).map(size).collect();
        let count: usize = shape.iter().product();
        let mut places = Places { worst: collect(OP, std::iter::repeat_n(number, count))?, shape };
        for operand in operands.iter().filter(|o| !o.marks.is_empty()) {
            let at = places.elements_of(&operand.shape)?;
            for (worst, at) in places.worst.iter_mut().zip(at) {
                *worst = (*worst).max(operand.marks.get(at).copied().unwrap_or_default());
            }
        }
        Ok(places)
    }

    /// For each place, the number of the element that is broadcast to it from a tensor of this shape.
    #[track_caller]
    fn elements_of(&self, shape: &[usize]) -> Result<Vec<usize>> {
        let lead = self.shape.len() - shape.len();
        let mut strides = vec![0; self.shape.len()];
        let mut stride = 1;
        for (axis, &size) in shape.iter().enumerate().rev() {
            if size != 1 {
                strides[lead + axis] = stride;
            }
            stride *= size;
        }
        let (mut index, mut element) = (vec![0; self.shape.len()], 0);
        let step = |_| {
            let found = element;
            for ((at, &size), &stride) in index.iter_mut().zip(&self.shape).zip(&strides).rev() {
                *at += 1;
                element += stride;
                if *at < size {
                    break;
                }
                element -= stride * size;
                *at = 0;
            }
            found
        };
        collect(OP, (0..self.worst.len()).map(step))
    }

    /// For each element of a result, the worst operand value at its places.
    #[track_caller]
    fn under(&self, result: &Marks) -> Result<Vec<Mark>> {
        let mut found = all_finite(result.marks.len())?;
        for (at, worst) in self.elements_of(&result.shape)?.into_iter().zip(&self.worst) {
            if let Some(f) = found.get_mut(at) {
                *f = (*f).max(*worst);
            }
        }
        Ok(found)
    }
}

/// The operation named in errors about a lack of memory for marks.
pub(in crate::autograd) const OP: &str = "find_nonfinite";

/// Marks for `count` finite elements.
#[track_caller]
pub(in crate::autograd) fn all_finite(count: usize) -> Result<Vec<Mark>> {
    collect(OP, std::iter::repeat_n(Mark::Finite, count))
}

/// The index of element `k` in row-major order.
pub(in crate::autograd) fn index(shape: &[usize], mut k: usize) -> Vec<usize> {
    let mut index = vec![0; shape.len()];
    for (at, &size) in index.iter_mut().zip(shape).rev() {
        (*at, k) = (k % size, k / size);
    }
    index
}
