//! Prints a graph, as text and for Graphviz.

use std::fmt;

use gradus_tensor::Shape;

use crate::graph::{Graph, Place};
use crate::text::Value;

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Value::from(self).fmt(f)
    }
}

/// One line for each operation: its outputs, its name and inputs, and the line of the call. See [`Text`](crate::Text).
impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text().fmt(f)
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
