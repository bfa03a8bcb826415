//! The memory that the graph of a GPT block holds, compared with the values that its gradients need.
//!
//! The block is a pre-norm block with causal attention, an MLP with GELU, residual connections and a cross-entropy
//! loss, in f32. For each operation the example prints the values that the first-order gradients read, their bytes, and
//! the bytes that the recorded graph holds. It then prints the backend's own count of live bytes after the forward
//! pass, and the peak during the backward pass.
//!
//! ```sh
//! cargo run --release -p gradus --example memory_of_a_graph
//! ```
#![allow(clippy::print_stdout)]

use std::collections::BTreeMap;
use std::sync::Arc;

use gradus::cpu::CpuBackend;
use gradus::prelude::*;

/// The sizes: batch `B`, sequence length `T`, features `C`, heads `H` and classes `V`.
const B: usize = 4;
const T: usize = 128;
const C: usize = 256;
const H: usize = 4;
const V: usize = 512;

/// A value that gradients read: its name, the operation that reads it, its shape, the bytes per element, and the
/// gradients that need it.
struct Value {
    name: &'static str,
    op: &'static str,
    shape: Vec<usize>,
    element: usize,
    needed_by: &'static str,
}

impl Value {
    fn bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.element
    }
}

/// The names of the operations that save values.
const NORM: &str = "layer_norm";
const LINEAR: &str = "linear";
const ATTENTION: &str = "scaled_dot_product_attention";
const GELU: &str = "gelu";
const LOSS: &str = "cross_entropy";

/// The values that the first-order gradients mathematically require if every kernel is fused. A value that two
/// operations read is listed only with the first. Additions, splits, transposes and means require no values.
fn required() -> Vec<Value> {
    let n = B * T;
    let value = |name, op, shape: &[usize], needed_by| Value { name, op, shape: shape.to_vec(), element: 4, needed_by };
    let mut all = vec![];
    for (x, mean, rstd, scale) in [("x", "mean 1", "1 / std 1", "scale 1"), ("x + a", "mean 2", "1 / std 2", "scale 2")]
    {
        all.push(value(x, NORM, &[n, C], "dx and dscale"));
        all.push(value(mean, NORM, &[n], "dx and dscale"));
        all.push(value(rstd, NORM, &[n], "dx and dscale"));
        all.push(value(scale, NORM, &[C], "dx"));
    }
    all.push(value("norm 1", LINEAR, &[n, C], "dW of q, k, v"));
    all.push(value("W of q, k, v", LINEAR, &[3 * C, C], "dx"));
    all.push(value("q, k, v", ATTENTION, &[3, B, H, T, C / H], "the weights again, dq, dk, dv"));
    all.push(value("a = attention", ATTENTION, &[B, H, T, C / H], "sum(a da); dW of the output"));
    all.push(value("shifts and sums of scores", ATTENTION, &[B, H, T, 2], "the weights again, without a softmax"));
    all.push(value("W of the output", LINEAR, &[C, C], "dx"));
    all.push(value("norm 2", LINEAR, &[n, C], "dW of the first layer"));
    all.push(value("W of the first layer", LINEAR, &[4 * C, C], "dx"));
    all.push(value("h", GELU, &[n, 4 * C], "dx"));
    all.push(value("gelu(h)", LINEAR, &[n, 4 * C], "dW of the second layer"));
    all.push(value("W of the second layer", LINEAR, &[C, 4 * C], "dx"));
    all.push(value("x + a + m", LINEAR, &[n, C], "dW of the head"));
    all.push(value("W of the head", LINEAR, &[V, C], "dx"));
    all.push(value("logits", LOSS, &[n, V], "dx"));
    all.push(value("log-sum-exp of rows", LOSS, &[n], "dx"));
    all.push(Value { element: 8, ..value("targets", LOSS, &[n], "dx") });
    all
}

/// The leaves of the block.
struct Parameters {
    scale: [Tensor; 2],
    shift: [Tensor; 2],
    weight: [Tensor; 5],
    bias: [Tensor; 5],
}

impl Parameters {
    fn new(device: &Device, generator: &mut Generator) -> Result<Parameters> {
        let zeros = |n: usize| Tensor::zeros([n], DType::F32, device)?.with_grad();
        let ones = || Tensor::ones([C], DType::F32, device)?.with_grad();
        let mut weight = |out: usize, inputs: usize| {
            Tensor::randn([out, inputs], DType::F32, device, generator)?.mul(0.02)?.with_grad()
        };
        Ok(Parameters {
            scale: [ones()?, ones()?],
            shift: [zeros(C)?, zeros(C)?],
            weight: [weight(3 * C, C)?, weight(C, C)?, weight(4 * C, C)?, weight(C, 4 * C)?, weight(V, C)?],
            bias: [zeros(3 * C)?, zeros(C)?, zeros(4 * C)?, zeros(C)?, zeros(V)?],
        })
    }

    fn all(&self) -> impl Iterator<Item = &Tensor> {
        self.scale.iter().chain(&self.shift).chain(&self.weight).chain(&self.bias)
    }

    fn linear(&self, i: usize, x: &Tensor) -> Result<Tensor> {
        x.linear(&self.weight[i], Some(&self.bias[i]))
    }

    fn norm(&self, i: usize, x: &Tensor) -> Result<Tensor> {
        x.layer_norm(&[C], Some(&self.scale[i]), Some(&self.shift[i]), 1e-5)
    }

    /// The loss for the input `x [b, t, c]`.
    fn loss(&self, x: &Tensor, targets: &Tensor) -> Result<Tensor> {
        let packed = self.linear(0, &self.norm(0, x)?)?.reshape([B, T, 3, H, C / H])?;
        let parts = packed.unbind(2)?;
        let part = |i: usize| parts[i].transpose(1, 2);
        let options = AttentionOptions::new().causal(Causal::TopLeft);
        let a = part(0)?.scaled_dot_product_attention(&part(1)?, &part(2)?, options)?;
        let x = (x + self.linear(1, &a.transpose(1, 2)?.reshape([B, T, C])?))?;
        let hidden = self.linear(2, &self.norm(1, &x)?)?.gelu()?;
        let x = (x + self.linear(3, &hidden))?;
        self.linear(4, &x)?.reshape([B * T, V])?.cross_entropy(targets)
    }
}

/// The measurements of [`run`].
#[derive(Debug)]
pub(crate) struct Found {
    /// The bytes that the gradients need and the bytes that the graph holds, for each operation.
    pub(crate) by_op: BTreeMap<String, (usize, usize)>,
    /// The bytes that the graph holds, counting each storage once.
    pub(crate) held: usize,
    /// The part of `held` that belongs to parameters and inputs, which stay in memory with or without the graph.
    pub(crate) shared: usize,
    /// The bytes of the gradients.
    pub(crate) gradients: usize,
    /// The number of bytes by which the backend's live buffers grew in the forward pass.
    pub(crate) grew: usize,
    /// The peak of live bytes, minus the bytes that were live before the forward pass.
    pub(crate) peak: usize,
}

/// Runs one forward and one backward pass of the block, on a separate device.
pub(crate) fn run() -> Result<Found> {
    let device = Device::from_backend(Arc::new(CpuBackend::new()?));
    let mut generator = Generator::new(0);
    let parameters = Parameters::new(&device, &mut generator)?;
    let x = Tensor::randn([B, T, C], DType::F32, &device, &mut generator)?.with_grad()?;
    let targets = Tensor::randint(0, V as i64, [B * T], DType::I64, &device, &mut generator)?;
    let before = device.memory_stats();
    let loss = parameters.loss(&x, &targets)?;
    let after = device.memory_stats();
    let stats = loss.graph_stats();
    let mut by_op: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    for (name, of) in stats.by_op.iter().filter(|(_, of)| of.saved_bytes > 0) {
        by_op.entry(name.clone()).or_default().1 = of.saved_bytes;
    }
    for value in required() {
        by_op.entry(value.op.to_owned()).or_default().0 += value.bytes();
    }
    let all = |t: &Tensor| t.numel() * t.dtype().size();
    // No gradient reads the shifts and biases.
    let shared = parameters.scale.iter().chain(&parameters.weight).chain([&x, &targets]).map(all).sum();
    let found = loss.backward()?;
    let peak = device.memory_stats().peak;
    let gradients = parameters.all().chain([&x]).filter_map(|t| found.get(t)).map(all).sum();
    Ok(Found {
        by_op,
        held: stats.saved_bytes,
        shared,
        gradients,
        grew: after.in_use - before.in_use,
        peak: peak - before.in_use,
    })
}

fn main() -> Result<()> {
    println!("{:<22} {:<30} {:>20} {:>10}  needed by", "value", "operation", "shape", "bytes");
    for value in required() {
        let shape = format!("{:?}", value.shape);
        println!("{:<22} {:<30} {shape:>20} {:>10}  {}", value.name, value.op, value.bytes(), value.needed_by);
    }
    let found = run()?;
    println!("\n{:<30} {:>10} {:>10} {:>8}", "operation", "needed", "held", "beyond");
    for (op, (needed, held)) in &found.by_op {
        println!("{op:<30} {needed:>10} {held:>10} {:>8}", *held as i64 - *needed as i64);
    }
    let needed: usize = required().iter().map(Value::bytes).sum();
    println!("{:<30} {needed:>10} {:>10} {:>8}", "all", found.held, found.held as i64 - needed as i64);
    println!("\nparameters and inputs among these, which live anyway    {:>10}", found.shared);
    println!("live bytes that the forward pass added, the loss too    {:>10}", found.grew);
    println!("gradients at the end                                    {:>10}", found.gradients);
    println!("most live beside parameters and inputs, at any time     {:>10}", found.peak);
    Ok(())
}
