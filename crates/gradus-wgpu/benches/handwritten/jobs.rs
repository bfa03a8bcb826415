//! The list of jobs.

use std::cell::RefCell;

use gradus::prelude::*;

use crate::job::Input::{self, Bf16, F32, Index};
use crate::job::{Job, Until, Work};
use crate::written::{Call, Written};

const ROWS: usize = 4096;
const COLS: usize = 1024;
/// The work-groups for a matrix of `ROWS` by `COLS`, if each has 256 invocations that compute four elements each.
const QUARTERS: [u32; 3] = [(ROWS * COLS / 1024) as u32, 1, 1];
/// One work-group for each row.
const EACH_ROW: [u32; 3] = [ROWS as u32, 1, 1];
const MATRIX: Input = F32(&[ROWS, COLS]);

macro_rules! wgsl {
    ($name:literal) => {
        include_str!(concat!("../wgsl/", $name, ".wgsl"))
    };
}

/// All jobs, in the order of the table.
pub(crate) fn jobs() -> Vec<Job> {
    [elementwise(), rows(), products(), windows(), attention(), lookups(), small()].into_iter().flatten().collect()
}

fn elementwise() -> Vec<Job> {
    let plain = |text| Written::one(text, &[], QUARTERS);
    let side = 2048;
    let tiles = (side / 32) as u32;
    vec![
        Job::new("copy", [MATRIX], |x| x[0].copy()).written(plain(wgsl!("copy"))),
        Job::new("copy of a transpose", [F32(&[2048, 2048])], |x| x[0].t()?.copy()).written(Written::one(
            wgsl!("transpose"),
            &[("SIZE", side)],
            [tiles, tiles, 1],
        )),
        Job::new("add", [MATRIX, MATRIX], |x| x[0].add(&x[1])).written(plain(wgsl!("add"))),
        Job::new("add bf16", [Bf16(&[ROWS, COLS]), Bf16(&[ROWS, COLS])], |x| x[0].add(&x[1]))
            .written(Written::one(wgsl!("add_bf16"), &[], [QUARTERS[0] / 2, 1, 1]))
            .tolerance(0.0),
        Job::new("mul", [MATRIX, MATRIX], |x| x[0].mul(&x[1])).written(plain(wgsl!("mul"))),
        Job::new("silu_mul", [MATRIX, MATRIX], |x| x[0].silu_mul(&x[1])).written(plain(wgsl!("silu_mul"))),
        Job::new("gelu", [MATRIX], |x| x[0].gelu()).written(plain(wgsl!("gelu"))),
    ]
}

fn rows() -> Vec<Job> {
    let by_row = |text| Written::one(text, &[("COLS", COLS)], EACH_ROW);
    let groups = 1024;
    let sum = Written::one(wgsl!("sum"), &[], [groups, 1, 1]).again(groups as usize, [1, 1, 1]);
    vec![
        // The sum is small compared with its terms, so its relative error is larger.
        Job::new("sum", [MATRIX], |x| x[0].sum_all()).written(sum).tolerance(1e-3),
        Job::new("sum of rows", [MATRIX], |x| x[0].sum(&[1], false)).written(by_row(wgsl!("sum_rows"))),
        Job::new("argmax of rows", [MATRIX], |x| x[0].argmax(1, false)).written(by_row(wgsl!("argmax"))).tolerance(0.0),
        Job::new("cumsum of rows", [MATRIX], |x| x[0].cumsum(1)).written(by_row(wgsl!("cumsum"))),
        Job::new("softmax of rows", [MATRIX], |x| x[0].softmax(1)).written(by_row(wgsl!("softmax"))),
        Job::new("layer_norm of rows", [MATRIX, F32(&[COLS]), F32(&[COLS])], |x| {
            x[0].layer_norm(&[COLS], Some(&x[1]), Some(&x[2]), 1e-5)
        })
        .written(by_row(wgsl!("layer_norm"))),
    ]
}

fn products() -> Vec<Job> {
    let square = |name, n: usize, shape: &'static [usize]| {
        let tiles = (n / 64) as u32;
        Job::new(name, [F32(shape), F32(shape)], |x| x[0].matmul(&x[1]))
            .written(Written::one(wgsl!("matmul"), &[("SIZE", n)], [tiles, tiles, 1]))
            .work(Work::Flops(2.0 * (n as f64).powi(3)))
    };
    let rows: u32 = 300_000;
    vec![
        square("matmul 64", 64, &[64, 64]),
        square("matmul 256", 256, &[256, 256]),
        square("matmul 512", 512, &[512, 512]),
        square("matmul 1024", 1024, &[1024, 1024]),
        Job::new("matmul 300000x16x2", [F32(&[300_000, 16]), F32(&[16, 2])], |x| x[0].matmul(&x[1]))
            .written(Written::one(wgsl!("matmul_skinny"), &[], [rows.div_ceil(256), 1, 1])),
    ]
}

fn windows() -> Vec<Job> {
    let (images, channels, side, filters) = (16, 64, 28, 64);
    const IMAGES: Input = F32(&[16, 64, 28, 28]);
    const FILTERS: Input = F32(&[64, 64, 3, 3]);
    let conv = |x: &Tensor, w: &Tensor| x.conv2d(w, None, ConvOptions::new().padding([1, 1]));
    let positions = images * side * side;
    let work = Work::Flops((2 * positions * filters * channels * 9) as f64);
    vec![
        Job::new("conv2d", [IMAGES, FILTERS], move |x| conv(&x[0], &x[1]))
            .written(Written::one(
                wgsl!("conv2d"),
                &[("CHANNELS", channels), ("SIDE", side)],
                [(positions / 64) as u32, 1, 1],
            ))
            .work(work),
        // The gradient of a factor does not depend on the factor itself.
        Job::prepared("conv2d, gradient of x", [FILTERS, IMAGES], move |x| {
            let image = x[1].zeros_like()?.with_grad()?;
            gradients(conv(&image, &x[0])?, vec![image], x[1].clone())
        })
        .work(work),
        Job::prepared("conv2d, gradient of w", [IMAGES, IMAGES], move |x| {
            let filter = Tensor::zeros([filters, channels, 3, 3], DType::F32, x[0].device())?.with_grad()?;
            gradients(conv(&x[0], &filter)?, vec![filter], x[1].clone())
        })
        .work(work),
        Job::prepared("max_pool2d with indices", [F32(&[16, 64, 64, 64])], |x| {
            let x = x[0].clone();
            Ok(Box::new(move || {
                let (values, indices) = x.max_pool2d_with_indices([2, 2], PoolOptions::new())?;
                Ok(vec![values, indices])
            }))
        })
        .written(Written::one(wgsl!("max_pool"), &[("COLS", 64)], [(16 * 64 * 64 * 64 / 8 / 256) as u32, 1, 1]))
        .tolerance(0.0),
    ]
}

fn attention() -> Vec<Job> {
    let (heads, length, width) = (8, 512, 64);
    const HEADS: Input = F32(&[2, 4, 512, 64]);
    let attention = |q: &Tensor, k: &Tensor, v: &Tensor| {
        q.scaled_dot_product_attention(k, v, AttentionOptions::new().causal(Causal::TopLeft))
    };
    // The floating-point operations of one product over all pairs of a query and a key that the query may attend to.
    let product = (2 * heads * (length * (length + 1) / 2) * width) as f64;
    vec![
        Job::new("attention", [HEADS; 3], move |x| attention(&x[0], &x[1], &x[2]))
            .written(Written::one(wgsl!("attention"), &[("LENGTH", length)], [(length / 64) as u32, heads as u32, 1]))
            .work(Work::Flops(2.0 * product)),
        // Five products: the weights of the pairs, their gradients, and the gradients of the three inputs.
        Job::prepared("attention, gradients", [HEADS; 4], move |x| {
            let leaves: Vec<Tensor> = x[..3].iter().map(Tensor::with_grad).collect::<Result<_>>()?;
            gradients(attention(&leaves[0], &leaves[1], &leaves[2])?, leaves, x[3].clone())
        })
        .work(Work::Flops(5.0 * product)),
    ]
}

fn lookups() -> Vec<Job> {
    const WORDS: usize = 32_768;
    const TEXT: usize = 65_536;
    vec![
        Job::new("embedding", [F32(&[WORDS, 64]), Index(&[TEXT], WORDS)], |x| x[0].embedding(&x[1], None))
            .written(Written::one(wgsl!("embedding"), &[], [(TEXT * 64 / 1024) as u32, 1, 1]))
            .tolerance(0.0),
    ]
}

fn small() -> Vec<Job> {
    let add = |name, until| {
        Job::new(name, [F32(&[64]), F32(&[64])], |x| x[0].add(&x[1]))
            .written(Written::one(wgsl!("add"), &[], [1, 1, 1]))
            .work(Work::Calls)
            .until(until)
    };
    vec![
        add("add of 64, until it returns", Until::Returned),
        add("add of 64, with waiting", Until::DoneAlone),
        Job::prepared("training step of a small MLP", [F32(&[64, 64]), Index(&[64], 10)], mlp)
            .work(Work::Calls)
            .tolerance(1e-4),
    ]
}

/// A call that computes the gradients of `result` with respect to `leaves`.
fn gradients(result: Tensor, leaves: Vec<Tensor>, seed: Tensor) -> Result<Call> {
    Ok(Box::new(move || {
        let leaves: Vec<&Tensor> = leaves.iter().collect();
        let found = grad(&[&result], &leaves, Some(&[&seed]), BackwardOptions::new().retain_graph())?;
        Ok(found.into_iter().flatten().collect())
    }))
}

/// A call that runs one training step and returns its loss.
fn mlp(x: &[Tensor]) -> Result<Call> {
    let (points, classes) = (x[0].clone(), x[1].clone());
    let mut generator = Generator::new(2);
    let mut init = Init::new(DType::F32, points.device(), &mut generator);
    let model = Sequential::new().add(Linear::new(64, 128, &mut init)?).add(Relu).add(Linear::new(128, 10, &mut init)?);
    let optimizer = RefCell::new(AdamW::new(model.named_parameters(), AdamConfig::default())?);
    Ok(Box::new(move || {
        let loss = model.forward(&points)?.cross_entropy(&classes)?;
        optimizer.borrow_mut().step(&loss.backward()?)?;
        Ok(vec![loss])
    }))
}
