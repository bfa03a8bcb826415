//! Views of a recorded graph: [`Tensor::to_dot`], [`Tensor::graph_stats`].

use std::collections::{BTreeMap, HashSet};
use std::fmt::{self, Write};
use std::sync::Arc;

use crate::autograd::graph::node::Node;
use crate::{Storage, Tensor};

/// The number of nodes and the saved bytes of one kind of operation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OpStats {
    /// The number of nodes.
    pub nodes: usize,
    /// The bytes of the storages that hold the nodes' saved values. A storage in which several nodes save values counts
    /// once, for the node that was recorded first.
    pub saved_bytes: usize,
}

/// Statistics of the graph behind a tensor.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GraphStats {
    /// The number of nodes, including leaves.
    pub nodes: usize,
    /// The number of leaves.
    pub leaves: usize,
    /// The bytes of all storages that hold saved values, each counted once.
    pub saved_bytes: usize,
    /// The nodes and saved bytes of each operation, by name. Leaves are not included.
    pub by_op: BTreeMap<String, OpStats>,
}

/// Writes the totals, then a line for each operation, sorted by saved bytes, largest first.
impl fmt::Display for GraphStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} nodes, {} of them leaves; {} bytes kept", self.nodes, self.leaves, self.saved_bytes)?;
        let mut ops: Vec<(&String, &OpStats)> = self.by_op.iter().collect();
        ops.sort_by_key(|(_, of)| std::cmp::Reverse(of.saved_bytes));
        let widest = |column: &dyn Fn(&(&String, &OpStats)) -> usize| ops.iter().map(column).max().unwrap_or(0);
        let names = widest(&|op| op.0.len());
        let (nodes, bytes) = (widest(&|op| digits(op.1.nodes)), widest(&|op| digits(op.1.saved_bytes)));
        for (name, OpStats { nodes: n, saved_bytes: b }) in ops {
            write!(f, "\n  {name:names$}  {n:nodes$} nodes  {b:bytes$} bytes")?;
        }
        Ok(())
    }
}

fn digits(n: usize) -> usize {
    n.to_string().len()
}

/// Writes the lines of `{:#?}` after the first one.
pub(in crate::autograd) fn details(node: &Node, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for (i, edge) in node.inputs.iter().enumerate() {
        match edge {
            Some(e) => write!(f, "\n  input {i}: {} {} from {:?}", e.spec().shape, e.spec().dtype, e.node)?,
            None => write!(f, "\n  input {i}: requires no gradient")?,
        }
    }
    for (i, (shape, dtype)) in node.output_specs().enumerate() {
        write!(f, "\n  output {i}: {shape:?} {dtype}")?;
    }
    if node.is_freed() {
        return write!(f, "\n  freed by a backward pass");
    }
    kept(node).try_for_each(|line| write!(f, "\n  {line}"))
}

/// One line for each saved value.
fn kept(node: &Node) -> impl Iterator<Item = String> {
    let stale = node.stale();
    node.saved().into_iter().map(move |(what, shape, dtype, version)| {
        let now = match stale.iter().find(|s| s.0 == what) {
            Some((_, w)) => format!("; {} wrote over it at {} (version {})", w.op, w.location, w.version),
            None => String::new(),
        };
        format!("keeps {what}: {shape:?} {dtype}, version {version}{now}")
    })
}

/// Escapes a label for a quoted Graphviz string, since a name may contain any character.
fn escaped(label: &str) -> String {
    let mut s = String::with_capacity(label.len());
    for c in label.chars() {
        match c {
            '\\' => s.push_str("\\\\"),
            '"' => s.push_str("\\\""),
            '\n' => s.push_str("\\n"),
            c if c.is_control() => {
                let _ = write!(s, "\\{}", c.escape_default());
            }
            c => s.push(c),
        }
    }
    s
}

/// The nodes behind a tensor in the order in which they were recorded.
fn nodes(t: &Tensor) -> BTreeMap<u64, &Arc<Node>> {
    let mut found = BTreeMap::new();
    let mut stack: Vec<&Arc<Node>> = t.edge().map(|e| &e.node).into_iter().collect();
    while let Some(node) = stack.pop() {
        if found.insert(node.seq, node).is_none() {
            stack.extend(node.inputs().flatten());
        }
    }
    found
}

impl Tensor {
    /// The number of nodes and saved bytes of the graph behind this tensor, by operation. All zero for a tensor without
    /// a graph. Values captured by the closure of a checkpoint do not count, since the graph does not own them. Of the
    /// values packed by [`saved_tensors_hooks`](crate::autograd::saved_tensors_hooks), only tensors and lists of
    /// tensors count.
    ///
    /// ```
    /// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
    /// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
    /// let x = Tensor::zeros([4], DType::F32, &device)?.with_grad()?;
    /// let stats = x.exp()?.sin()?.graph_stats();
    /// assert_eq!((stats.nodes, stats.leaves), (3, 1));
    /// println!("{stats}");
    /// # Ok::<(), Error>(())
    /// ```
    pub fn graph_stats(&self) -> GraphStats {
        let mut stats = GraphStats::default();
        let mut seen: HashSet<*const Storage> = HashSet::new();
        for node in nodes(self).into_values() {
            stats.nodes += 1;
            if node.is_leaf() {
                stats.leaves += 1;
                continue;
            }
            let kept = node.saved_storages();
            let fresh = kept.iter().filter(|s| seen.insert(Arc::as_ptr(s)));
            let bytes: usize = fresh.map(|s| s.bytes()).sum();
            let of = stats.by_op.entry(node.name().to_owned()).or_default();
            of.nodes += 1;
            of.saved_bytes += bytes;
            stats.saved_bytes += bytes;
        }
        stats
    }

    /// The graph behind this tensor as text for Graphviz (`dot -Tsvg`). A box is an operation, labelled with its
    /// parameters, its output shapes, its saved values with their versions and the writes over them, and the line that
    /// recorded it. An ellipse is a leaf. Arrows point in the direction of the forward computation.
    pub fn to_dot(&self) -> String {
        let nodes = nodes(self);
        let number: BTreeMap<u64, usize> = nodes.keys().enumerate().map(|(i, &seq)| (seq, i)).collect();
        let mut s = String::from("digraph gradients {\n");
        for (i, node) in nodes.values().enumerate() {
            let mut label = node.op().map_or_else(|| "leaf".to_owned(), |op| format!("{op:?}"));
            for (shape, dtype) in node.output_specs() {
                let _ = write!(label, "\n{shape:?} {dtype}");
            }
            kept(node).for_each(|line| label.extend(["\n", &line]));
            let _ = write!(label, "\n{}", node.location());
            let label = escaped(&label);
            let shape = if node.is_leaf() { "ellipse" } else { "box" };
            let _ = writeln!(s, "  n{i} [shape={shape}, label=\"{label}\"];");
            for input in node.inputs().flatten() {
                if let Some(from) = number.get(&input.seq) {
                    let _ = writeln!(s, "  n{from} -> n{i};");
                }
            }
        }
        s.push_str("}\n");
        s
    }
}
