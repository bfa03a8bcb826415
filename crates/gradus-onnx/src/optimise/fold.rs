//! Constant folding: nodes that read only constants run once.

use std::cell::Cell;

use gradus_tensor::{limit_results, no_grad};

use super::links::Links;
use crate::graph::{Attribute, Graph, Node, State};
use crate::run::run_node;
use crate::value::{OnnxValue, bytes_of};

/// The most bytes of the results of a node that is folded, beyond the bytes of its inputs. A few sizes in a file can
/// stand for tensors of any size, which would be kept for as long as the model.
const FOLDED: usize = 1 << 20;

/// Results of at most this many integers are kept on the host as well.
const FEW: usize = 16;

/// Whether a node always gives the same results for the same inputs, and has no sub-graphs.
fn is_pure(node: &Node) -> bool {
    let random = ["RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial", "Bernoulli"];
    let graphs = node.attributes.iter().any(|(_, a)| matches!(a, Attribute::Graph(_)));
    !graphs && node.row.name != "Dropout" && !random.contains(&node.row.name)
}

/// Runs the nodes that read only constants, and replaces them with their results. A node that fails stays, so that the
/// error comes when the model runs.
pub(super) fn fold_constants(graph: &mut Graph, state: &State<'_>) {
    let links = Links::of(graph);
    let mut values: Vec<Option<OnnxValue>> = (0..graph.slots).map(|s| links.constant(Some(s)).cloned()).collect();
    let quiet = State { rounds: Cell::new(0), times: None, ..*state };
    let nodes = std::mem::take(&mut graph.nodes);
    for node in nodes {
        let known = node.inputs.iter().all(|slot| slot.is_none_or(|slot| values[slot].is_some()));
        if !known || !is_pure(&node) || node.outputs.is_empty() {
            graph.nodes.push(node);
            continue;
        }
        let given: usize = node.inputs.iter().flatten().filter_map(|&s| values[s].as_ref()).map(bytes_of).sum();
        let most = given.saturating_add(FOLDED);
        let results = limit_results(most, || no_grad(|| run_node(&node, &values, &quiet)));
        match results {
            Ok(results) if results.iter().map(bytes_of).sum::<usize>() <= most => {
                for (slot, value) in node.outputs.iter().zip(results) {
                    let Some(slot) = *slot else { continue };
                    // Sizes and positions are needed on the host.
                    if let OnnxValue::Tensor(array) = &value
                        && array.numel() <= FEW
                        && array.elem().dtype().is_some_and(|d| !d.is_float())
                    {
                        let _ = array.ints();
                    }
                    values[slot] = Some(value.clone());
                    graph.constants.push((String::new(), slot, value));
                }
            }
            _ => graph.nodes.push(node),
        }
    }
}
