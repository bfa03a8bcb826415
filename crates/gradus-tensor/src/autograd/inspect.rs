//! Looking at a recorded graph: [`Tensor::to_dot`], [`Tensor::graph_stats`].

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write;
use std::sync::Arc;

use super::node::Node;
use crate::{Storage, Tensor};

/// Nodes and kept bytes of one kind of operation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OpStats {
    /// Number of nodes.
    pub nodes: usize,
    /// Bytes of the storages that their kept values hold. One that several nodes hold counts for the first recorded.
    pub saved_bytes: usize,
}

/// What the graph behind a tensor consists of.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GraphStats {
    /// Number of nodes, leaves included.
    pub nodes: usize,
    /// Number of leaves.
    pub leaves: usize,
    /// Bytes of the distinct storages that kept values hold.
    pub saved_bytes: usize,
    /// The same by the name of the operation; leaves are not among them.
    pub by_op: BTreeMap<String, OpStats>,
}

/// The nodes behind a tensor, in the order of recording.
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
    /// Number of nodes and kept bytes of the graph behind this tensor, by operation. All zero for one without a graph.
    /// What the function of a checkpoint captured is not counted: it belongs to others.
    ///
    /// ```
    /// # use gradus_cpu::CpuBackend; use gradus_tensor::*; use std::sync::Arc;
    /// # let device = Device::from_backend(Arc::new(CpuBackend::new()?));
    /// let x = Tensor::zeros([4], DType::F32, &device)?.require_grad()?;
    /// let stats = x.exp()?.sin()?.graph_stats();
    /// assert_eq!((stats.nodes, stats.leaves), (3, 1));
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
            let bytes: usize = fresh.map(|s| s.read().bytes()).sum();
            let of = stats.by_op.entry(node.name().to_owned()).or_default();
            of.nodes += 1;
            of.saved_bytes += bytes;
            stats.saved_bytes += bytes;
        }
        stats
    }

    /// The graph behind this tensor as text for Graphviz (`dot -Tsvg`): a box an operation, with its parameters, shapes,
    /// kept values with their versions, and the line that recorded it; an ellipse a leaf. Arrows go with the computation.
    pub fn to_dot(&self) -> String {
        let nodes = nodes(self);
        let number: BTreeMap<u64, usize> = nodes.keys().enumerate().map(|(i, &seq)| (seq, i)).collect();
        let mut s = String::from("digraph gradients {\n");
        for (i, node) in nodes.values().enumerate() {
            let mut label = node.op().map_or_else(|| "leaf".to_owned(), |op| format!("{op:?}"));
            for (shape, dtype) in node.output_specs() {
                let _ = write!(label, "\n{shape:?} {dtype}");
            }
            for (what, shape, dtype, version) in node.saved() {
                let _ = write!(label, "\nkeeps {what}: {shape:?} {dtype}, version {version}");
            }
            let _ = write!(label, "\n{}", node.location());
            let label = label.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
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
