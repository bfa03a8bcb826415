//! [`OnnxReport`]: the contents of a model, and the operators that would not run.

use std::collections::{BTreeMap, HashSet};
use std::fmt;

use gradus_tensor::{Error, ErrorKind};

use crate::elem::Elem;
use crate::ops;
use crate::plan::{domain, version};
use crate::proto;

/// The newest opset of each domain that the table of operators covers.
const NEWEST: [(&str, i64); 4] = [("", 27), ("ai.onnx.ml", 5), ("ai.onnx.preview", 1), ("ai.onnx.preview.training", 1)];

/// An input or output of a model: its name, and its type in words, as in `float32 [batch, 3, 224, 224]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OnnxPort {
    /// The name.
    pub name: String,
    /// The type in words. Axes without a fixed size appear by name, or as `?`.
    pub kind: String,
    /// The element type of a tensor.
    pub elem: Option<Elem>,
    /// The sizes of a tensor's axes, if the file specifies them; `None` for an axis of any size.
    pub shape: Option<Vec<Option<usize>>>,
}

/// An operator of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OnnxOperator {
    /// The name, with the domain in front if it is not the default one.
    pub name: String,
    /// The number of nodes, including those in sub-graphs and functions.
    pub count: usize,
    /// The reason why it does not run; `None` if it does.
    pub unsupported: Option<String>,
    /// The names of the first few nodes.
    pub nodes: Vec<String>,
}

/// The contents of a model. `Display` prints a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OnnxReport {
    /// The program that wrote the file, with its version.
    pub producer: String,
    /// The imported opsets: domain and version.
    pub opsets: Vec<(String, i64)>,
    /// The inputs that a run requires.
    pub inputs: Vec<OnnxPort>,
    /// The outputs.
    pub outputs: Vec<OnnxPort>,
    /// The operators by name.
    pub operators: Vec<OnnxOperator>,
    /// The number of initialisers and of tensors in `Constant` nodes of the main graph, and the total number of their
    /// elements.
    pub parameters: (usize, u64),
    /// The metadata of the file.
    pub metadata: Vec<(String, String)>,
}

/// How many names of nodes are kept for each operator.
const NAMED: usize = 5;

pub(crate) fn port(info: &proto::ValueInfo<'_>) -> OnnxPort {
    let tensor = info.of.as_ref().and_then(|of| of.tensor.as_ref());
    let dims = tensor.and_then(|t| t.shape.as_ref());
    OnnxPort {
        name: info.name.to_owned(),
        kind: info.of.as_ref().map_or("any".to_owned(), |of| words(of)),
        elem: tensor.and_then(|t| Elem::of_number(t.dtype).ok()),
        shape: dims.map(|s| s.0.iter().map(|d| d.size.and_then(|n| usize::try_from(n).ok())).collect()),
    }
}

fn words(of: &proto::Type<'_>) -> String {
    if let Some(t) = &of.tensor {
        let name = match t.dtype {
            crate::elem::STRING => "string",
            number => Elem::of_number(number).map_or("unknown", Elem::name),
        };
        let dim = |d: &proto::Dim<'_>| match (d.size, d.name) {
            (Some(size), _) => size.to_string(),
            (None, "") => "?".to_owned(),
            (None, name) => name.to_owned(),
        };
        return match &t.shape {
            Some(shape) => format!("{name} [{}]", shape.0.iter().map(dim).collect::<Vec<_>>().join(", ")),
            None => format!("{name}, any shape"),
        };
    }
    match (&of.sequence, &of.optional) {
        (Some(inner), _) => format!("sequence of {}", words(inner)),
        (_, Some(inner)) => format!("optional {}", words(inner)),
        _ => "map, sparse or unknown".to_owned(),
    }
}

/// Counts operators.
struct Count<'m> {
    model: &'m proto::Model<'m>,
    operators: BTreeMap<String, OnnxOperator>,
}

impl<'m> Count<'m> {
    fn nodes(&mut self, nodes: &[proto::Node<'_>], opsets: &[proto::Opset<'_>]) {
        for node in nodes {
            let of = domain(node.domain);
            let functions = &self.model.functions;
            let is_function = functions.iter().any(|f| domain(f.domain) == of && f.name == node.op);
            let name = if of.is_empty() { node.op.to_owned() } else { format!("{of}.{}", node.op) };
            let opset = version(opsets, of).or_else(|| version(&self.model.opsets, of));
            let unsupported = || match (ops::find(of, node.op), opset) {
                _ if is_function => None,
                (None, _) => Some("not in the table of operators".to_owned()),
                (Some(_), None) => Some(format!("the model imports no opset of the domain \"{of}\"")),
                (Some(row), Some(opset)) => {
                    let newest = NEWEST.iter().find(|(d, _)| *d == of).map_or(i64::MAX, |(_, n)| *n);
                    let first = row.since.first().copied().unwrap_or(1);
                    if opset < first {
                        Some(format!("it came with opset {first}, and the model imports {opset}"))
                    } else if opset > newest {
                        Some(format!("the model imports opset {opset}, and {newest} is the newest known here"))
                    } else {
                        None
                    }
                }
            };
            let entry = self.operators.entry(name).or_insert_with_key(|name| OnnxOperator {
                name: name.clone(),
                count: 0,
                unsupported: unsupported(),
                nodes: Vec::new(),
            });
            entry.count += 1;
            if entry.nodes.len() < NAMED {
                entry.nodes.push(
                    if node.name.is_empty() { node.outputs.first().copied().unwrap_or("") } else { node.name }
                        .to_owned(),
                );
            }
            for graph in node.attributes.iter().filter_map(|a| a.graph.as_ref()) {
                self.nodes(&graph.nodes, opsets);
            }
        }
    }
}

/// The report of a model.
pub(crate) fn report(model: &proto::Model<'_>) -> OnnxReport {
    let mut count = Count { model, operators: BTreeMap::new() };
    let empty = proto::Graph::default();
    let graph = model.graph.as_ref().unwrap_or(&empty);
    count.nodes(&graph.nodes, &model.opsets);
    for function in &model.functions {
        count.nodes(&function.nodes, &function.opsets);
    }
    let initialisers: HashSet<&str> = graph.initializers.iter().map(|t| t.name).collect();
    let elements = |t: &proto::Tensor<'_>| t.dims.iter().fold(1u64, |n, &d| n.saturating_mul(d.max(0) as u64));
    let constants = graph.nodes.iter().filter(|n| n.op == "Constant").flat_map(|n| &n.attributes);
    let tensors = || graph.initializers.iter().chain(constants.clone().filter_map(|a| a.tensor.as_deref()));
    OnnxReport {
        producer: format!("{} {}", model.producer, model.producer_version).trim().to_owned(),
        opsets: model.opsets.iter().map(|o| (o.domain.to_owned(), o.version)).collect(),
        inputs: graph.inputs.iter().filter(|i| !initialisers.contains(i.name)).map(port).collect(),
        outputs: graph.outputs.iter().map(port).collect(),
        operators: count.operators.into_values().collect(),
        parameters: (tensors().count(), tensors().map(elements).fold(0, u64::saturating_add)),
        metadata: model.metadata.iter().map(|e| (e.key.to_owned(), e.value.to_owned())).collect(),
    }
}

impl OnnxReport {
    /// The operators that do not run.
    pub fn unsupported(&self) -> impl Iterator<Item = &OnnxOperator> {
        self.operators.iter().filter(|o| o.unsupported.is_some())
    }

    /// One error that names all operators that do not run.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let missing: Vec<_> = self.unsupported().collect();
        if missing.is_empty() {
            return Ok(());
        }
        let m = format!("{} of the model's {} operators are not supported", missing.len(), self.operators.len());
        let mut e = Error::new(ErrorKind::Unsupported, "onnx", m);
        for o in missing {
            let why = o.unsupported.as_deref().unwrap_or("");
            e = e.note(format!("{} in {} nodes ({}): {why}", o.name, o.count, o.nodes.join(", ")));
        }
        Err(e.help("OnnxModel::inspect_file lists what a file holds"))
    }
}

impl fmt::Display for OnnxReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let opset = |(domain, version): &(String, i64)| match &**domain {
            "" => format!("opset {version}"),
            domain => format!("{domain} {version}"),
        };
        writeln!(f, "producer    {}", if self.producer.is_empty() { "not given" } else { &self.producer })?;
        writeln!(f, "opsets      {}", self.opsets.iter().map(opset).collect::<Vec<_>>().join(", "))?;
        writeln!(f, "parameters  {} tensors, {} elements", self.parameters.0, self.parameters.1)?;
        for (what, ports) in [("input", &self.inputs), ("output", &self.outputs)] {
            for port in ports {
                writeln!(f, "{what:<11} {}: {}", port.name, port.kind)?;
            }
        }
        for (key, value) in &self.metadata {
            writeln!(f, "{:<11} {key} = {value}", "metadata")?;
        }
        let width = self.operators.iter().map(|o| o.name.len()).max().unwrap_or(0).max("operator".len());
        writeln!(f, "{:<width$}  nodes", "operator")?;
        for o in &self.operators {
            write!(f, "{:<width$}  {:>5}", o.name, o.count)?;
            match &o.unsupported {
                Some(why) => writeln!(f, "  NOT SUPPORTED: {why}")?,
                None => writeln!(f)?,
            }
        }
        Ok(())
    }
}
