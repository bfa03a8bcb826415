//! Packing: the weights of products are copied once into the panels that the device reads in place.

use std::sync::Arc;

use gradus_tensor::ops::{LinearPanels, Op};
use gradus_tensor::{DType, Layout, Shape};

use crate::graph::{Graph, Memory, Node, Origin, Place};
use crate::panels::Panels;

/// The largest number of rows of the left operand. With more, packing is a small part of a product.
const ROWS: usize = 256;

/// Lets products with few rows read their weight in panels, and copies it there, if there is memory for that. This is done
/// for weights of f32 that the step does not write, and that nothing changed between the calls that were traced: a training
/// step changes its weights, an evaluation does not. Panels that other graphs of the step already have are passed as
/// `known`, and used again.
pub fn pack_weights(graph: &mut Graph, known: &[Arc<Panels>]) {
    let Some(width) = graph.device.info().f32_panel else { return };
    // Panels are read before the step runs, so it must not write their matrix.
    let mut steady: Vec<bool> = graph.memories.iter().map(|m| m.is_steady).collect();
    graph.nodes.iter().filter(|n| n.in_place).flat_map(|n| &n.outputs).for_each(|p| steady[p.memory] = false);
    for i in 0..graph.nodes.len() {
        let Some(product) = Product::new(&graph.nodes[i], width).filter(|p| steady[p.weight]) else { continue };
        let Origin::Held(storage) = &graph.memories[product.weight].origin else { continue };
        let panels = Panels::new(storage.clone(), product.matrix, width);
        let Ok(shape) = panels.shape() else { continue };
        let here = graph.memories.iter().position(|m| matches!(&m.origin, Origin::Panels(p) if p.is_same(&panels)));
        let memory = match here {
            Some(memory) => memory,
            None => {
                let panels = known.iter().find(|p| p.is_same(&panels)).cloned().unwrap_or_else(|| Arc::new(panels));
                if panels.now().is_err() {
                    continue;
                }
                let bytes = shape.numel() * DType::F32.size();
                graph.memories.push(Memory { origin: Origin::Panels(panels), bytes, is_steady: true });
                graph.memories.len() - 1
            }
        };
        let node = &mut graph.nodes[i];
        node.op = LinearPanels { n: product.matrix.dims()[1] }.into();
        node.inputs[0].layout = product.input;
        node.inputs[1] = Place { memory, version: 0, layout: Layout::contiguous(shape), dtype: DType::F32 };
        node.outputs[0].layout = product.output;
    }
}

/// A product whose right operand can be read in panels.
struct Product {
    /// The memory of the right operand, and the matrix there.
    weight: usize,
    matrix: Layout,
    /// The left operand and the result as matrices.
    input: Layout,
    output: Layout,
}

impl Product {
    fn new(node: &Node, width: usize) -> Option<Product> {
        let ([input, weight, ..], [output]) = (&node.inputs[..], &node.outputs[..]) else { return None };
        let matrix = match node.op {
            Op::Linear(_) => weight.layout.transpose(0, 1).ok()?,
            Op::Matmul(_) => weight.layout,
            _ => return None,
        };
        let &[_, n] = matrix.dims() else { return None };
        let rows = output.layout.numel().checked_div(n)?;
        let is_worth_it = LinearPanels::is_worth_it(matrix.dims()[0], n, width) && (1..=ROWS).contains(&rows);
        if node.in_place || weight.dtype != DType::F32 || !is_worth_it {
            return None;
        }
        let flat = |layout: &Layout| layout.reshape(Shape::new(&[rows, *layout.dims().last()?]).ok()?);
        Some(Product { weight: weight.memory, matrix, input: flat(&input.layout)?, output: flat(&output.layout)? })
    }
}
