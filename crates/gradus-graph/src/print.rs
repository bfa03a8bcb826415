//! Prints a graph, as text and for Graphviz.

use std::fmt;

use gradus_tensor::Shape;

use crate::graph::{Graph, Place};

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "%{}", self.memory)?;
        if self.version > 0 {
            write!(f, ".{}", self.version)?;
        }
        write!(f, ": {}{}", self.dtype, Shape::display(self.layout.dims()))
    }
}

/// One line for each operation: its outputs, its name and inputs, and the line of the call.
impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "step on {}", self.device)?;
        let list = |places: &[Place]| places.iter().map(Place::to_string).collect::<Vec<_>>().join(", ");
        for node in &self.nodes {
            let sign = if node.in_place { "<-" } else { "=" };
            let (out, op) = (list(&node.outputs), format!("{:?}", node.op));
            writeln!(f, "  {out} {sign} {op}({})  // {}", list(&node.inputs), node.location)?;
        }
        writeln!(f, "  return {}", list(&self.results))?;
        for (i, m) in self.memories.iter().enumerate().filter(|(i, _)| !self.is_temporary(*i)) {
            writeln!(f, "  %{i} is {:?}, {} bytes", m.origin, m.bytes)?;
        }
        Ok(())
    }
}

impl Graph {
    /// The graph in the language of Graphviz: `dot -Tsvg` draws it.
    pub fn to_dot(&self) -> String {
        let mut dot = String::from("digraph step {\n  node [shape=box, fontname=\"sans-serif\"];\n");
        let mut writer: Vec<Option<usize>> = vec![None; self.memories.len()];
        for (i, node) in self.nodes.iter().enumerate() {
            dot += &format!("  n{i} [label={:?}];\n", node.op.name());
            for input in &node.inputs {
                let from = match writer[input.memory] {
                    Some(w) => format!("n{w}"),
                    None => format!("{:?}", format!("%{} {:?}", input.memory, self.memories[input.memory].origin)),
                };
                dot += &format!("  {from} -> n{i} [label={:?}];\n", Shape::display(input.layout.dims()).to_string());
            }
            node.outputs.iter().for_each(|out| writer[out.memory] = Some(i));
        }
        dot += "}\n";
        dot
    }
}
