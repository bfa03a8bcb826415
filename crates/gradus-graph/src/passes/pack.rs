//! Packing: the weights of products and convolutions are copied once into the form that the device reads in place.

use std::sync::Arc;

use gradus_tensor::ops::{LinearPanels, Op};
use gradus_tensor::{DType, Layout, Shape};

use crate::graph::{Graph, Memory, Node, Origin, Place};
use crate::panels::{Form, Panels};

/// The largest number of rows of the left operand. With more, packing is a small part of a product.
const ROWS: usize = 256;

/// The largest number of positions of a convolution, over all images. With more, packing is a small part of it.
const POSITIONS: usize = 2048;

/// The least number of output channels of a convolution.
const CHANNELS: usize = 8;

/// The largest number of elements under all windows of an image, and those that are added to each channel to space channels
/// in the cache. The device copies the elements under some of the windows, and does not read a weight in place if they are
/// too many for that.
const REACH: usize = 1 << 19;
const SPACING: usize = 31;

/// Lets products with few rows and convolutions with few positions read their weight from a copy, in panels or with
/// adjacent output channels, if there is memory for that. This is done for weights of f32 that the step does not write, and
/// that nothing changed between the calls that were traced: a training step changes its weights, an evaluation does not.
/// Copies that other graphs of the step already have are passed as `known`, and used again.
pub fn pack_weights(graph: &mut Graph, known: &[Arc<Panels>]) {
    let Some(width) = graph.device.info().f32_panel else { return };
    // Copies are read before the step runs, so it must not write their weight.
    let mut steady: Vec<bool> = graph.memories.iter().map(|m| m.is_steady).collect();
    graph.nodes.iter().filter(|n| n.in_place).flat_map(|n| &n.outputs).for_each(|p| steady[p.memory] = false);
    for i in 0..graph.nodes.len() {
        let node = &graph.nodes[i];
        let [_, weight, ..] = node.inputs[..] else { continue };
        if node.in_place || weight.dtype != DType::F32 || !steady[weight.memory] {
            continue;
        }
        let product = Product::new(node, width);
        let (layout, form) = match &product {
            Some(product) => (product.matrix, Form::Columns(width)),
            None if is_small_convolution(node) => (weight.layout, Form::Channels),
            None => continue,
        };
        let Origin::Held(storage) = &graph.memories[weight.memory].origin else { continue };
        let panels = Panels::new(storage.clone(), layout, form);
        let same = |m: &Memory| matches!(&m.origin, Origin::Panels(p) if p.is_same(&panels));
        let here = graph.memories.iter().position(same);
        let panels = match here.map(|memory| &graph.memories[memory].origin) {
            Some(Origin::Panels(panels)) => panels.clone(),
            _ => known.iter().find(|p| p.is_same(&panels)).cloned().unwrap_or_else(|| Arc::new(panels)),
        };
        let Ok(copy) = panels.now() else { continue };
        let memory = here.unwrap_or_else(|| {
            let bytes = copy.storage().bytes();
            graph.memories.push(Memory { origin: Origin::Panels(panels), bytes, is_steady: true });
            graph.memories.len() - 1
        });
        let node = &mut graph.nodes[i];
        node.inputs[1] = Place { memory, version: 0, layout: *copy.layout(), dtype: DType::F32 };
        if let Some(product) = product {
            node.op = LinearPanels { n: product.matrix.dims()[1] }.into();
            node.inputs[0].layout = product.input;
            node.outputs[0].layout = product.output;
        }
    }
}

/// Whether a node is a convolution of few positions whose device reads a weight with adjacent output channels in place.
fn is_small_convolution(node: &Node) -> bool {
    let (Op::Conv(conv), [_, weight, ..], [output]) = (&node.op, &node.inputs[..], &node.outputs[..]) else {
        return false;
    };
    let (numel, &[k, channels, ref kernel @ ..]) = (output.layout.numel(), weight.layout.dims()) else { return false };
    if conv.groups != 1 || k < CHANNELS || numel == 0 || numel / k > POSITIONS {
        return false;
    }
    let window = &conv.window;
    let axis = |i: usize| {
        let taps = kernel[i].checked_sub(1)?.checked_mul(window.dilation[i])?;
        (output.layout.dims()[2 + i] - 1).checked_mul(window.stride[i])?.checked_add(taps)?.checked_add(1)
    };
    let reach = || {
        let channel = (0..kernel.len()).try_fold(1usize, |product, i| product.checked_mul(axis(i)?))?;
        channel.checked_add(SPACING)?.checked_mul(channels)
    };
    // Windows of one element do not overlap, so those of a few positions have few elements.
    kernel.iter().all(|&n| n == 1) || reach().is_some_and(|elements| elements <= REACH)
}

/// A product whose right operand can be read in panels.
struct Product {
    /// The right operand as a matrix.
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
        if !is_worth_it {
            return None;
        }
        let flat = |layout: &Layout| layout.reshape(Shape::new(&[rows, *layout.dims().last()?]).ok()?);
        Some(Product { matrix, input: flat(&input.layout)?, output: flat(&output.layout)? })
    }
}
