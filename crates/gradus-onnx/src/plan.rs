//! Turns the messages of a file into a [`Graph`] that can run: names become slots, nodes are sorted, and functions are
//! inlined.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use gradus_tensor::{Error, ErrorKind, Result};

use crate::decode::Place;
use crate::graph::{Attribute, Graph, Node, Slot};
use crate::ops;
use crate::proto;
use crate::value::OnnxValue;
use crate::wire::malformed;

/// The deepest nesting of functions.
const MAX_CALLS: usize = 32;

/// The largest number of nodes of a model after its functions are inlined.
const MAX_NODES: usize = 500_000;

/// What the nodes of a graph or function refer to.
struct Scope<'p> {
    /// The versions of the opsets, by domain.
    opsets: &'p [proto::Opset<'p>],
    /// The attributes of the function's call.
    attributes: Vec<(&'p str, &'p proto::Attribute<'p>)>,
    depth: usize,
}

/// A graph that is being built.
#[derive(Default)]
struct Parts {
    slots: usize,
    /// The tensors of `Constant` nodes, which some exporters use instead of initialisers.
    constants: Vec<(String, Slot, OnnxValue)>,
    nodes: Vec<Node>,
}

impl Parts {
    fn slot(&mut self) -> Slot {
        self.slots += 1;
        self.slots - 1
    }
}

type Names<'p> = HashMap<&'p str, Slot>;

pub(crate) struct Planner<'p> {
    place: &'p Place<'p>,
    model: &'p proto::Model<'p>,
    functions: HashMap<(&'p str, &'p str, &'p str), &'p proto::Function<'p>>,
    nodes: usize,
}

/// The default domain has two names.
pub(crate) fn domain(name: &str) -> &str {
    if name == "ai.onnx" { "" } else { name }
}

/// The version of the opset that a model or function imports for a domain.
pub(crate) fn version(opsets: &[proto::Opset<'_>], of: &str) -> Option<i64> {
    opsets.iter().find(|o| domain(o.domain) == domain(of)).map(|o| o.version)
}

/// How errors refer to a node.
fn called(node: &proto::Node<'_>) -> String {
    let name = if node.name.is_empty() { node.outputs.first().copied().unwrap_or_default() } else { node.name };
    format!("the node \"{name}\" ({})", node.op)
}

/// Plans the graph of a model.
pub(crate) fn plan<'p>(model: &'p proto::Model<'p>, place: &'p Place<'p>) -> Result<Graph> {
    let key = |f: &'p proto::Function<'p>| (domain(f.domain), f.name, f.overload);
    let functions = model.functions.iter().map(|f| (key(f), f)).collect();
    let mut planner = Planner { place, model, functions, nodes: 0 };
    let graph = model.graph.as_ref().ok_or_else(|| malformed("the file holds no graph"))?;
    let scope = Scope { opsets: &model.opsets, attributes: Vec::new(), depth: 0 };
    planner.graph(graph, &scope, &[])
}

impl<'p> Planner<'p> {
    /// Plans a graph. `captured` are the names that it takes from the enclosing graph, with their slots there.
    fn graph(&mut self, graph: &'p proto::Graph<'p>, scope: &Scope<'p>, captured: &[(&'p str, Slot)]) -> Result<Graph> {
        if graph.sparse > 0 {
            return Err(Error::new(ErrorKind::Unsupported, "onnx", "sparse initialisers are not supported"));
        }
        let (mut parts, mut names) = (Parts::default(), Names::new());
        let mut captures = Vec::new();
        for &(name, outer) in captured {
            let inner = parts.slot();
            names.insert(name, inner);
            captures.push((outer, inner));
        }
        let mut inputs = Vec::new();
        for input in &graph.inputs {
            let slot = parts.slot();
            if names.insert(input.name, slot).is_some() {
                return Err(malformed(format!("two inputs are called \"{}\"", input.name)));
            }
            inputs.push((input.name.to_owned(), slot));
        }
        let mut constants = Vec::new();
        let mut seen = HashSet::new();
        for tensor in &graph.initializers {
            if !seen.insert(tensor.name) {
                return Err(malformed(format!("two initialisers are called \"{}\"", tensor.name)));
            }
            let slot = *names.entry(tensor.name).or_insert_with(|| parts.slot());
            constants.push((tensor.name.to_owned(), slot, self.place.tensor(tensor)?));
        }
        self.nodes(&graph.nodes.iter().collect::<Vec<_>>(), &mut names, &mut parts, scope)?;
        let mut outputs = Vec::new();
        for output in &graph.outputs {
            let Some(&slot) = names.get(output.name) else {
                return Err(malformed(format!("the output \"{}\" is made by no node", output.name)));
            };
            outputs.push((output.name.to_owned(), slot));
        }
        constants.append(&mut parts.constants);
        let mut graph = Graph { slots: parts.slots, inputs, outputs, constants, captures, nodes: parts.nodes };
        free_early(&mut graph);
        Ok(graph)
    }

    /// Adds nodes to the graph that is being built, each after the nodes whose outputs it reads.
    fn nodes(
        &mut self,
        nodes: &[&'p proto::Node<'p>],
        names: &mut Names<'p>,
        parts: &mut Parts,
        scope: &Scope<'p>,
    ) -> Result<()> {
        for at in in_order(nodes)? {
            let node = nodes[at];
            self.nodes += 1;
            if self.nodes > MAX_NODES {
                return Err(malformed(format!("more than {MAX_NODES} nodes, with the functions of the file inlined")));
            }
            self.node(node, nodes, names, parts, scope).map_err(|e| e.note(format!("in {}", called(node))))?;
        }
        Ok(())
    }

    fn node(
        &mut self,
        node: &'p proto::Node<'p>,
        all: &[&'p proto::Node<'p>],
        names: &mut Names<'p>,
        parts: &mut Parts,
        scope: &Scope<'p>,
    ) -> Result<()> {
        let mut inputs = Vec::new();
        for &input in &node.inputs {
            inputs.push(match (input, names.get(input)) {
                ("", _) => None,
                (_, Some(&slot)) => Some(slot),
                (_, None) => {
                    return Err(malformed(format!(
                        "the input \"{input}\" is no input, initialiser or output of a node"
                    )));
                }
            });
        }
        let resolve = |attribute: &'p proto::Attribute<'p>| match attribute.reference {
            "" => Some((attribute.name, attribute)),
            from => scope.attributes.iter().find(|(name, _)| *name == from).map(|&(_, a)| (attribute.name, a)),
        };
        let attributes: Vec<_> = node.attributes.iter().filter_map(resolve).collect();
        let opset = version(scope.opsets, node.domain).or_else(|| version(&self.model.opsets, node.domain));
        let row = ops::find(domain(node.domain), node.op);
        let function = self.functions.get(&(domain(node.domain), node.op, node.overload)).copied();
        let outputs = match (row, function) {
            (_, Some(function)) if row.is_none() || !domain(node.domain).is_empty() => {
                self.inline(function, attributes, &inputs, parts, scope)?
            }
            (Some(row), _) => {
                let opset = opset.ok_or_else(|| {
                    malformed(format!("the model imports no version of the domain \"{}\"", domain(node.domain)))
                })?;
                let mut planned = Vec::new();
                for (name, attribute) in attributes {
                    planned.push((name.to_owned(), self.attribute(attribute, names, scope)?));
                }
                if node.op == ops::GRADIENT {
                    planned.push((
                        "body".to_owned(),
                        Attribute::Graph(Arc::new(self.function_of(node, all, names, scope)?)),
                    ));
                }
                let outputs: Vec<_> =
                    node.outputs.iter().map(|name| (!name.is_empty()).then(|| parts.slot())).collect();
                // Constants in functions stay nodes, because their names are not unique.
                if row.name == "Constant"
                    && scope.depth == 0
                    && let [(_, Attribute::Value(value))] = &planned[..]
                    && let ([name], &[Some(slot)]) = (&node.outputs[..], &outputs[..])
                {
                    parts.constants.push(((*name).to_owned(), slot, value.clone()));
                    return self.named(node, outputs, names);
                }
                let name = if node.name.is_empty() { node.outputs.first().copied().unwrap_or("") } else { node.name };
                parts.nodes.push(Node {
                    name: name.to_owned(),
                    row,
                    opset,
                    inputs,
                    outputs: outputs.clone(),
                    attributes: planned,
                    frees: Vec::new(),
                });
                outputs
            }
            (None, _) => {
                return Err(Error::new(
                    ErrorKind::Unsupported,
                    "onnx",
                    format!("the operator {} is not known", node.op),
                ));
            }
        };
        self.named(node, outputs, names)
    }

    /// Maps the names of the outputs of a node to their slots.
    fn named(&self, node: &'p proto::Node<'p>, outputs: Vec<Option<Slot>>, names: &mut Names<'p>) -> Result<()> {
        for (&name, slot) in node.outputs.iter().zip(outputs) {
            let Some(slot) = slot.filter(|_| !name.is_empty()) else { continue };
            if names.insert(name, slot).is_some() {
                return Err(malformed(format!("\"{name}\" has a value already")));
            }
        }
        Ok(())
    }

    /// The part of a graph that computes the value `y` of a `Gradient` node from the values `xs` and `zs`.
    fn function_of(
        &mut self,
        node: &'p proto::Node<'p>,
        all: &[&'p proto::Node<'p>],
        names: &Names<'p>,
        scope: &Scope<'p>,
    ) -> Result<Graph> {
        let texts = |name: &'static str| node.attributes.iter().filter(move |a| a.name == name);
        let text = |bytes: &'p [u8]| std::str::from_utf8(bytes).map_err(|_| malformed("a name that is not UTF-8"));
        let inputs: Vec<&str> =
            texts("xs").chain(texts("zs")).flat_map(|a| &a.texts).map(|t| text(t)).collect::<Result<_>>()?;
        let y = texts("y").find_map(|a| a.text).map(text).transpose()?.unwrap_or("");
        let makers: HashMap<&str, usize> =
            all.iter().enumerate().flat_map(|(i, n)| n.outputs.iter().map(move |&name| (name, i))).collect();
        let (mut needed, mut free, mut open) = (BTreeSet::new(), BTreeSet::new(), vec![y]);
        while let Some(name) = open.pop() {
            match makers.get(name) {
                _ if inputs.contains(&name) => {}
                Some(&maker) if needed.insert(maker) => {
                    let mut read = BTreeSet::new();
                    reads([all[maker]], &mut read);
                    open.extend(read);
                }
                Some(_) => {}
                None => {
                    free.insert(name);
                }
            }
        }
        let (mut parts, mut inner) = (Parts::default(), Names::new());
        let mut captures = Vec::new();
        for name in free {
            if let Some(&outer) = names.get(name) {
                let slot = parts.slot();
                captures.push((outer, slot));
                inner.insert(name, slot);
            }
        }
        let mut own = Vec::new();
        for name in inputs {
            let slot = parts.slot();
            own.push((name.to_owned(), slot));
            inner.insert(name, slot);
        }
        let nodes: Vec<_> = needed.into_iter().map(|i| all[i]).collect();
        self.nodes(&nodes, &mut inner, &mut parts, scope)?;
        let Some(&output) = inner.get(y) else { return Err(malformed(format!("\"{y}\" is made by no node"))) };
        let mut graph = Graph {
            slots: parts.slots,
            inputs: own,
            outputs: vec![(y.to_owned(), output)],
            constants: parts.constants,
            captures,
            nodes: parts.nodes,
        };
        free_early(&mut graph);
        Ok(graph)
    }

    /// Adds the nodes of a function, and returns the slots of its outputs.
    fn inline(
        &mut self,
        function: &'p proto::Function<'p>,
        given: Vec<(&'p str, &'p proto::Attribute<'p>)>,
        inputs: &[Option<Slot>],
        parts: &mut Parts,
        scope: &Scope<'p>,
    ) -> Result<Vec<Option<Slot>>> {
        if scope.depth >= MAX_CALLS {
            let m =
                format!("functions within functions, more than {MAX_CALLS} deep; does {} call itself?", function.name);
            return Err(malformed(m));
        }
        let mut attributes = given;
        let known =
            |name: &str| function.attributes.contains(&name) || function.defaults.iter().any(|d| d.name == name);
        if let Some((name, _)) = attributes.iter().find(|(name, _)| !known(name)) {
            return Err(malformed(format!("the function {} has no attribute `{name}`", function.name)));
        }
        for default in &function.defaults {
            if !attributes.iter().any(|(name, _)| *name == default.name) {
                attributes.push((default.name, default));
            }
        }
        let mut names = Names::new();
        for (i, &name) in function.inputs.iter().enumerate() {
            // An input that the call omits gets a slot without a value.
            let slot = inputs.get(i).copied().flatten().unwrap_or_else(|| parts.slot());
            names.insert(name, slot);
        }
        let opsets = if function.opsets.is_empty() { scope.opsets } else { &function.opsets };
        let inner = Scope { opsets, attributes, depth: scope.depth + 1 };
        self.nodes(&function.nodes.iter().collect::<Vec<_>>(), &mut names, parts, &inner)?;
        let output = |name: &&str| match names.get(name) {
            Some(&slot) => Ok(Some(slot)),
            None => {
                Err(malformed(format!("the output \"{name}\" of the function {} is made by no node", function.name)))
            }
        };
        function.outputs.iter().map(output).collect()
    }

    fn attribute(&mut self, a: &'p proto::Attribute<'p>, names: &Names<'p>, scope: &Scope<'p>) -> Result<Attribute> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        // The kind is given by its number or, in older files, by the field that is present.
        let kind = match a.kind {
            0 if a.float.is_some() => 1,
            0 if a.int.is_some() => 2,
            0 if a.text.is_some() => 3,
            0 if a.tensor.is_some() => 4,
            0 if a.graph.is_some() => 5,
            0 if !a.floats.is_empty() => 6,
            0 if !a.texts.is_empty() => 8,
            0 if !a.tensors.is_empty() => 9,
            0 => 7,
            kind => kind,
        };
        Ok(match kind {
            1 => Attribute::Float(a.float.unwrap_or(0.0)),
            2 => Attribute::Int(a.int.unwrap_or(0)),
            3 => Attribute::Text(text(a.text.unwrap_or_default())),
            4 => match &a.tensor {
                Some(tensor) => Attribute::Value(self.place.tensor(tensor)?),
                None => return Err(malformed(format!("the attribute `{}` holds no tensor", a.name))),
            },
            5 => match &a.graph {
                Some(graph) => {
                    let mut free = BTreeSet::new();
                    free_names(graph, &mut free);
                    let captured: Vec<_> = free.iter().filter_map(|&n| names.get(n).map(|&slot| (n, slot))).collect();
                    Attribute::Graph(Arc::new(self.graph(graph, scope, &captured)?))
                }
                None => return Err(malformed(format!("the attribute `{}` holds no graph", a.name))),
            },
            6 => {
                let float = |b: &[u8]| f32::from_le_bytes(b.try_into().unwrap_or_default());
                Attribute::Floats(a.floats.chunks_exact(4).map(float).collect())
            }
            7 => Attribute::Ints(a.ints.clone()),
            8 => Attribute::Texts(a.texts.iter().map(|t| text(t)).collect()),
            _ => Attribute::Other,
        })
    }
}

/// Collects the names that a graph and its sub-graphs take from the enclosing graph.
fn free_names<'p>(graph: &'p proto::Graph<'p>, free: &mut BTreeSet<&'p str>) {
    let mut inner = BTreeSet::new();
    reads(&graph.nodes, &mut inner);
    inner.extend(graph.outputs.iter().map(|o| o.name));
    for own in graph.inputs.iter().map(|i| i.name).chain(graph.initializers.iter().map(|t| t.name)) {
        inner.remove(own);
    }
    for own in graph.nodes.iter().flat_map(|n| &n.outputs) {
        inner.remove(own);
    }
    free.extend(inner);
}

/// Collects the names that nodes read, including in their sub-graphs.
fn reads<'p>(nodes: impl IntoIterator<Item = &'p proto::Node<'p>>, names: &mut BTreeSet<&'p str>) {
    for node in nodes {
        names.extend(node.inputs.iter().filter(|name| !name.is_empty()));
        for graph in node.attributes.iter().filter_map(|a| a.graph.as_ref()) {
            free_names(graph, names);
        }
    }
}

/// An order in which the nodes can run. It follows that of the file where possible.
fn in_order<'p>(nodes: &[&'p proto::Node<'p>]) -> Result<Vec<usize>> {
    let mut makers = HashMap::new();
    for (i, node) in nodes.iter().enumerate() {
        for &name in node.outputs.iter().filter(|name| !name.is_empty()) {
            if makers.insert(name, i).is_some() {
                let e = malformed(format!("\"{name}\" is made by two nodes"));
                return Err(e.note(format!("in {}", called(node))));
            }
        }
    }
    let mut waits: Vec<usize> = Vec::new();
    let mut readers: HashMap<usize, Vec<usize>> = HashMap::new();
    for (i, node) in nodes.iter().enumerate() {
        let mut names = BTreeSet::new();
        reads([*node], &mut names);
        let before: BTreeSet<usize> = names.iter().filter_map(|name| makers.get(name).copied()).collect();
        waits.push(before.len());
        for maker in before {
            readers.entry(maker).or_default().push(i);
        }
    }
    let mut ready: BTreeSet<usize> = (0..nodes.len()).filter(|&i| waits[i] == 0).collect();
    let mut order = Vec::new();
    while let Some(next) = ready.pop_first() {
        order.push(next);
        for &reader in readers.get(&next).into_iter().flatten() {
            waits[reader] -= 1;
            if waits[reader] == 0 {
                ready.insert(reader);
            }
        }
    }
    match nodes.iter().zip(&waits).find(|(_, waits)| **waits > 0) {
        None => Ok(order),
        Some((node, _)) => {
            Err(malformed(format!("nodes read each other's outputs in a circle, among them {}", called(node))))
        }
    }
}

/// Records at each node the values that no later node reads, and removes outputs that nothing reads.
pub(crate) fn free_early(graph: &mut Graph) {
    let mut last: HashMap<Slot, usize> = HashMap::new();
    for (i, node) in graph.nodes.iter().enumerate() {
        let inner = node.attributes.iter().flat_map(|(_, a)| match a {
            Attribute::Graph(g) => g.captures.as_slice(),
            _ => &[],
        });
        for slot in node.inputs.iter().flatten().copied().chain(inner.map(|&(outer, _)| outer)) {
            last.insert(slot, i);
        }
    }
    let kept: HashSet<Slot> = graph.outputs.iter().map(|&(_, slot)| slot).collect();
    for node in &mut graph.nodes {
        node.frees.clear();
        for output in &mut node.outputs {
            *output = output.filter(|slot| kept.contains(slot) || last.contains_key(slot));
        }
    }
    for (slot, at) in last {
        if !kept.contains(&slot) {
            graph.nodes[at].frees.push(slot);
        }
    }
}
