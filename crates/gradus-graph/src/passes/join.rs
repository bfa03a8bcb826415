//! Joining: an elementwise operation is merged into the elementwise operation that reads its result next.

use std::sync::Arc;

use gradus_tensor::backend::kernel::JoinArg;
use gradus_tensor::ops::{Arg, Map, Op};
use gradus_tensor::{DType, Kernel};

use crate::graph::{Graph, Node, Origin, Place};

/// The largest number of instructions and of arguments of a joined kernel.
const INSTRUCTIONS: usize = 96;
const ARGUMENTS: usize = 16;

/// The largest number of elements and of operands of operations that are joined though another one reads the value between
/// them. A device may bind no more than seven buffers to a kernel besides its parameters, and the CPU walks no more than
/// eight operands together.
const FEW: usize = 4096;
const OPERANDS: usize = 7;

/// The largest number of bytes that may live longer because such operations are joined: the size of a value of so few
/// elements.
const LONGER: usize = FEW * 8;

/// The nodes that read or write each memory, in order. Nodes that were joined into later ones stay listed, which does not matter
/// to passes that go forwards.
pub(super) struct Users(Vec<Vec<usize>>);

impl Users {
    pub(super) fn of(graph: &Graph) -> Users {
        let mut users = Users(vec![Vec::new(); graph.memories.len()]);
        for (i, node) in graph.nodes.iter().enumerate() {
            node.inputs.iter().chain(&node.outputs).for_each(|p| users.add(p.memory, i));
        }
        users
    }

    /// Records that `node` uses a memory.
    fn add(&mut self, memory: usize, node: usize) {
        let users = &mut self.0[memory];
        let at = users.partition_point(|&user| user < node);
        if users.get(at) != Some(&node) {
            users.insert(at, node);
        }
    }

    /// Records that node `second`, which takes the place of node `first`, now reads the inputs of `first` too.
    pub(super) fn join(&mut self, graph: &Graph, first: usize, second: usize) {
        graph.nodes[first].inputs.iter().for_each(|p| self.add(p.memory, second));
    }

    /// The users of a memory after node `node`.
    fn after(&self, memory: usize, node: usize) -> impl Iterator<Item = usize> {
        let users = &self.0[memory];
        users[users.partition_point(|&user| user <= node)..].iter().copied()
    }
}

/// Joins elementwise operations, so that the values between them are never stored. The results are the same: a value in
/// half precision is still rounded.
pub fn join_elementwise(graph: &mut Graph) {
    let mut keep = vec![true; graph.nodes.len()];
    let mut users = Users::of(graph);
    for (first, keep) in keep.iter_mut().enumerate() {
        let Some(second) = only_reader(graph, &users, first) else { continue };
        if !matches!(graph.nodes[second].op, Op::Map(_)) || !whole(graph, first, second) {
            continue;
        }
        if let Some(joined) = joined(&graph.nodes[first], &graph.nodes[second], false) {
            users.join(graph, first, second);
            graph.nodes[second] = joined;
            *keep = false;
        }
    }
    graph.retain(&keep);
}

/// Joins elementwise operations with few elements into the next operation that reads their result, if that is elementwise
/// too and others read the result later: the joined kernel has both results. So few elements take less time than a call.
/// Values that are then kept for longer take little memory.
pub fn join_small(graph: &mut Graph) {
    let mut keep = vec![true; graph.nodes.len()];
    let mut users = Users::of(graph);
    for first in (0..graph.nodes.len()).rev() {
        let Some((second, others)) = next_reader(graph, &users, first, &keep) else { continue };
        if !whole(graph, first, second) || extended(graph, first, second, &keep) > LONGER {
            continue;
        }
        let joined = joined(&graph.nodes[first], &graph.nodes[second], others);
        let fits = |n: &Node| matches!(&n.op, Op::Map(map) if map.args.len() + n.outputs.len() <= OPERANDS);
        if let Some(joined) = joined.filter(fits) {
            users.join(graph, first, second);
            graph.nodes[second] = joined;
            keep[first] = false;
        }
    }
    graph.retain(&keep);
}

/// The next node, of those to keep, that uses the result of node `first`, and whether others use it later, if the two can be
/// joined: neither is in place, the second reads the result as it was written, and what the first reads is still unchanged
/// then.
fn next_reader(graph: &Graph, users: &Users, first: usize, keep: &[bool]) -> Option<(usize, bool)> {
    let node = &graph.nodes[first];
    let ([out], Op::Map(_), false) = (&node.outputs[..], &node.op, node.in_place) else { return None };
    let is_new = matches!(graph.memories[out.memory].origin, Origin::Computed);
    if node.op.can_fail() || !is_new || out.layout.numel() > FEW {
        return None;
    }
    let touches = |place: &&Place| place.memory == out.memory;
    let mut users = users.after(out.memory, first).filter(|&i| keep[i]);
    let second = users.next()?;
    let reader = &graph.nodes[second];
    let others = users.next().is_some() || graph.leaves(out.memory);
    let is_map = matches!(reader.op, Op::Map(_)) && !reader.in_place;
    let same = reader.inputs.iter().filter(touches).all(|p| p == out);
    (is_map && same && unchanged_between(graph, first, second)).then_some((second, others))
}

/// The node that alone reads the result of node `first`, if that is elementwise and the two can be joined: the result is
/// temporary, neither is in place, the second reads the result as it was written, and what the first reads is still
/// unchanged then.
pub(super) fn only_reader(graph: &Graph, users: &Users, first: usize) -> Option<usize> {
    let node = &graph.nodes[first];
    let ([out], Op::Map(_), false) = (&node.outputs[..], &node.op, node.in_place) else { return None };
    // An error must name the operation that failed, and come before later writes in place.
    if node.op.can_fail() || !graph.is_temporary(out.memory) {
        return None;
    }
    let touches = |place: &Place| place.memory == out.memory;
    let mut users = users.after(out.memory, first);
    let second = users.next()?;
    let reader = &graph.nodes[second];
    let same = reader.inputs.iter().filter(|p| touches(p)).all(|p| p == out);
    (users.next().is_none() && !reader.in_place && same && unchanged_between(graph, first, second)).then_some(second)
}

/// Whether the results of node `second` have the shape of the result of node `first`.
fn whole(graph: &Graph, first: usize, second: usize) -> bool {
    let shape = graph.nodes[first].outputs[0].layout.shape();
    graph.nodes[second].outputs.iter().all(|o| o.layout.shape() == shape)
}

/// Whether the inputs of node `first` are still unchanged when node `second` runs.
fn unchanged_between(graph: &Graph, first: usize, second: usize) -> bool {
    let read = |memory| graph.nodes[first].inputs.iter().any(|p| p.memory == memory);
    graph.nodes[first + 1..second].iter().all(|n| !n.in_place || !n.outputs.iter().any(|o| read(o.memory)))
}

/// The bytes of the temporary values that would live longer if node `first` ran just before node `second`, with only the
/// nodes to `keep` between them: those that it is the last to read.
pub(super) fn extended(graph: &Graph, first: usize, second: usize, keep: &[bool]) -> usize {
    if keep[first + 1..second].iter().all(|stays| !stays) {
        return 0;
    }
    let mut memories: Vec<usize> = graph.nodes[first].inputs.iter().map(|p| p.memory).collect();
    memories.sort_unstable();
    memories.dedup();
    let later = &graph.nodes[first + 1..];
    let ends = |m: usize| graph.is_temporary(m) && !later.iter().any(|n| n.inputs.iter().any(|p| p.memory == m));
    memories.into_iter().filter(|&m| ends(m)).map(|m| graph.memories[m].bytes).sum()
}

/// The two operations as one, with the result of the first too if it `keeps` that; `None` if the kernel would be too large,
/// or cannot be built.
fn joined(first: &Node, second: &Node, keeps: bool) -> Option<Node> {
    let (Op::Map(a), Op::Map(b)) = (&first.op, &second.op) else { return None };
    let between = first.outputs[0];
    let mut arguments = Arguments::default();
    let first_args = a.args.iter().zip(a.kernel.args()).map(|(&arg, &d)| arguments.number(arg, d, &first.inputs));
    let first_args = first_args.collect::<Option<Vec<_>>>()?;
    let second_args = b.args.iter().zip(b.kernel.args()).map(|(&arg, &d)| match arg {
        Arg::Tensor(i) if second.inputs[i] == between => Some(JoinArg::First),
        arg => arguments.number(arg, d, &second.inputs).map(JoinArg::Arg),
    });
    let second_args = second_args.collect::<Option<Vec<_>>>()?;
    if arguments.args.len() > ARGUMENTS {
        return None;
    }
    let kernel = Kernel::joined(&a.kernel, &b.kernel, &arguments.dtypes, &first_args, &second_args, keeps).ok()?;
    if kernel.insts().len() > INSTRUCTIONS {
        return None;
    }
    let op = Op::Map(Map { kernel: Arc::new(kernel), args: arguments.args.into_iter().collect() });
    let outputs = second.outputs.iter().copied().chain(keeps.then_some(between)).collect();
    Some(Node { op, inputs: arguments.inputs, outputs, ..second.clone() })
}

/// The arguments of a joined kernel.
#[derive(Default)]
struct Arguments {
    args: Vec<Arg>,
    dtypes: Vec<DType>,
    inputs: Vec<Place>,
}

impl Arguments {
    /// Returns the joined kernel's argument number for an argument of one of the two kernels. A place that both read
    /// becomes one argument.
    fn number(&mut self, arg: Arg, dtype: DType, inputs: &[Place]) -> Option<usize> {
        let arg = match arg {
            Arg::Tensor(i) => {
                let place = *inputs.get(i)?;
                let at = self.inputs.iter().position(|p| *p == place).unwrap_or_else(|| {
                    self.inputs.push(place);
                    self.inputs.len() - 1
                });
                Arg::Tensor(at)
            }
            Arg::Scalar(s) => Arg::Scalar(s),
            Arg::Output(_) => return None,
        };
        let known = |i: &usize| self.args[*i] == arg && self.dtypes[*i] == dtype && matches!(arg, Arg::Tensor(_));
        if let Some(i) = (0..self.args.len()).find(known) {
            return Some(i);
        }
        self.args.push(arg);
        self.dtypes.push(dtype);
        Some(self.args.len() - 1)
    }
}
