//! Makes the graph of a model faster to run. Each pass is a file; none changes what the model computes, except for the
//! rounding of floats where [`affine`] says so.
//!
//! Passes treat initialisers and constants as fixed, so a model whose constants are trained or given as inputs runs as
//! it is in the file.

mod affine;
mod bias;
mod dead;
mod fold;
mod integer;
mod links;
mod panels;
mod recurrent;

use std::sync::Arc;

use crate::graph::{Attribute, Graph, State};
use crate::plan::free_early;

/// The graph with all passes applied. No input has a constant of the same name, or a run gives none for it.
pub(crate) fn optimised(graph: &Graph, state: &State<'_>) -> Graph {
    let mut graph = graph.clone();
    for node in &mut graph.nodes {
        for (_, attribute) in &mut node.attributes {
            // The constants of a sub-graph are defaults of its inputs of the same name.
            if let Attribute::Graph(inner) = attribute
                && !inner.inputs.iter().any(|(_, slot)| inner.constants.iter().any(|(_, constant, _)| constant == slot))
            {
                *attribute = Attribute::Graph(Arc::new(optimised(inner, state)));
            }
        }
    }
    fold::fold_constants(&mut graph, state);
    affine::into_convolutions(&mut graph, state);
    bias::transpose_matrices(&mut graph, state);
    bias::into_products(&mut graph, state);
    recurrent::prepare_weights(&mut graph, state);
    recurrent::centre_weights(&mut graph, state);
    integer::prepare_operands(&mut graph, state);
    panels::into_panels(&mut graph, state);
    dead::remove_dead(&mut graph);
    free_early(&mut graph);
    graph
}
