//! The last steps: outputs get their names, what no output needs is left out, and the lowest opset is chosen.

use std::collections::{HashMap, HashSet};

use gradus_tensor::Result;

use super::build::Builder;
use super::opset::LEAST_OPSET;
use super::sizes::fixed;
use super::trace::Id;
use super::write::{Attr, Dim, OutModel, OutNode, Port};
use crate::elem::Elem;

/// The operators whose axes became an input in opset 18.
const AXES_BECAME_INPUT: [&str; 4] = ["ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd"];

impl Builder<'_> {
    fn port(&self, id: Id, name: &str) -> Port {
        let dim = |sizes: &Vec<i64>| match (fixed(sizes), self.symbols.iter().find(|s| s.sizes == *sizes)) {
            (Some(size), _) => Dim::Size(size),
            (None, Some(symbol)) => Dim::Name(symbol.name.clone()),
            (None, None) => Dim::Unknown,
        };
        Port {
            name: name.to_owned(),
            elem: Elem::of_dtype(self.dtype(id)),
            dims: self.dims(id).iter().map(dim).collect(),
        }
    }

    /// The model whose results have the names `outputs`.
    pub(super) fn finish(mut self, inputs: &[&str], outputs: &[String]) -> Result<OutModel> {
        let first = self.first();
        let mut given = HashSet::new();
        for (&id, wanted) in first.outputs.iter().zip(outputs) {
            let name = self.name(id)?;
            let is_made = self.nodes.iter().any(|n| n.outputs.contains(&name));
            if is_made && given.insert(wanted.clone()) && !outputs.contains(&name) {
                self.rename(&name, wanted);
            } else {
                self.nodes.push(OutNode {
                    op: "Identity",
                    inputs: vec![name],
                    outputs: vec![wanted.clone()],
                    attributes: Vec::new(),
                    since: 0,
                });
            }
        }
        let ports = first.inputs.iter().zip(inputs).map(|(&id, name)| self.port(id, name)).collect();
        let results = first.outputs.iter().zip(outputs).map(|(&id, name)| self.port(id, name)).collect();
        self.remove_unused(outputs);
        let opset = self.nodes.iter().map(|n| n.since).max().unwrap_or(0).max(LEAST_OPSET);
        if opset >= 18 {
            self.axes_as_inputs();
        }
        let used: HashSet<&String> = self.nodes.iter().flat_map(|n| &n.inputs).collect();
        self.initializers.retain(|i| used.contains(&i.name));
        let metadata = vec![
            ("producer".to_owned(), "gradus".to_owned()),
            ("gradus_version".to_owned(), env!("CARGO_PKG_VERSION").to_owned()),
        ];
        Ok(OutModel {
            opset,
            nodes: self.nodes,
            initializers: self.initializers,
            inputs: ports,
            outputs: results,
            metadata,
        })
    }

    fn rename(&mut self, from: &str, to: &str) {
        for name in self.nodes.iter_mut().flat_map(|n| n.inputs.iter_mut().chain(&mut n.outputs)) {
            if name == from {
                to.clone_into(name);
            }
        }
        for name in self.names.values_mut().filter(|name| *name == from) {
            to.clone_into(name);
        }
    }

    /// Removes nodes that no output needs.
    fn remove_unused(&mut self, outputs: &[String]) {
        let makers: HashMap<&str, usize> =
            self.nodes.iter().enumerate().flat_map(|(i, n)| n.outputs.iter().map(move |o| (o.as_str(), i))).collect();
        let mut needed = HashSet::new();
        let mut open: Vec<&str> = outputs.iter().map(String::as_str).collect();
        let mut used: HashSet<&str> = HashSet::new();
        while let Some(name) = open.pop() {
            if !used.insert(name) {
                continue;
            }
            if let Some(&at) = makers.get(name)
                && needed.insert(at)
            {
                open.extend(self.nodes[at].inputs.iter().map(String::as_str));
            }
        }
        let used: HashSet<String> = used.into_iter().map(str::to_owned).collect();
        let mut at = 0;
        self.nodes.retain(|_| {
            at += 1;
            needed.contains(&(at - 1))
        });
        // Outputs at the end of a node's list that nothing uses are left out.
        for node in &mut self.nodes {
            while node.op != "Split" && node.outputs.len() > 1 && node.outputs.last().is_some_and(|o| !used.contains(o))
            {
                node.outputs.pop();
            }
        }
    }

    fn axes_as_inputs(&mut self) {
        for at in 0..self.nodes.len() {
            if !AXES_BECAME_INPUT.contains(&self.nodes[at].op) {
                continue;
            }
            let place = self.nodes[at].attributes.iter().position(|(name, _)| *name == "axes");
            if let Some(place) = place
                && let (_, Attr::Ints(axes)) = self.nodes[at].attributes.remove(place)
            {
                let name = self.ints(&axes);
                self.nodes[at].inputs.push(name);
            }
        }
    }
}
