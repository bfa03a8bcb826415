//! Tests of sums and searches that are longer than a loop in a shader may be. Drivers end long loops, some of them
//! silently.

mod common;

use std::sync::Arc;

use gradus::AttentionOptions;
use gradus::prelude::*;
use gradus_wgpu::Profile;

fn opened() -> Option<Device> {
    Some(Device::from_backend(Arc::new(common::opened()?)))
}

#[test]
fn the_long_cases_of_the_suite() {
    let Some(backend) = common::opened_as(Profile::Core) else { return };
    let report = gradus_conformance::long(&backend);
    eprintln!("{}", report.to_string().lines().last().unwrap_or_default());
    assert!(report.passed(), "{report}");
}

/// Small whole numbers from -2 to 2, whose sums are exact in f32.
fn numbers(shape: &[usize], device: &Device) -> Tensor {
    let n: usize = shape.iter().product();
    let values: Vec<f32> = (0..n as u32).map(|i| (i.wrapping_mul(2_654_435_769) >> 16) as f32 % 5.0 - 2.0).collect();
    Tensor::from_vec(values, shape, device).expect("a tensor")
}

/// Asserts that a computation returns the same numbers on the device as on the CPU, up to `error` times the largest
/// number.
fn same(what: &str, error: f32, compute: impl Fn(&Device) -> Result<Tensor>) {
    let Some(device) = opened() else { return };
    let cpu = Device::cpu().expect("the CPU");
    let values = |device: &Device| compute(device).and_then(|t| t.to_dtype(DType::F32)?.to_vec::<f32>()).expect(what);
    let (ours, theirs) = (values(&device), values(&cpu));
    let most = theirs.iter().fold(0f32, |m, v| m.max(v.abs()));
    let worst = ours.iter().zip(&theirs).fold(0f32, |m, (a, b)| {
        if m.is_nan() {
            m
        } else {
            let v = (a - b).abs();
            if v <= m { m } else { v }
        }
    });
    assert!(ours.len() == theirs.len() && worst <= error * most, "{what}: {worst} beside {most}");
}

/// The gradient of a weighted sum of the elements of `f(x)`, with irregular weights.
fn gradient(x: &Tensor, f: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
    let x = x.with_grad()?;
    let y = f(&x)?;
    let weighted = (&y * numbers(y.shape(), y.device()))?.sum_all()?;
    weighted.backward()?.get(&x).cloned().ok_or_else(|| Error::argument("gradient", "there is none"))
}

#[test]
fn products_with_a_long_inner_axis() {
    for (m, k, n) in [(1, 1_500_000, 1), (3, 400_000, 2), (20, 70_000, 20), (100, 20_000, 70)] {
        same(&format!("{m} x {k} x {n}"), 0.0, |d| numbers(&[m, k], d).matmul(&numbers(&[k, n], d)));
        same(&format!("{m} x {k} x {n} of halves"), 0.01, |d| {
            numbers(&[m, k], d).to_dtype(DType::BF16)?.matmul(&numbers(&[k, n], d).to_dtype(DType::BF16)?)
        });
    }
    same("integers", 0.0, |d| {
        numbers(&[2, 90_000], d).to_dtype(DType::I32)?.matmul(&numbers(&[90_000, 3], d).to_dtype(DType::I32)?)
    });
    same("a batch", 0.0, |d| numbers(&[5, 2, 70_000], d).matmul(&numbers(&[5, 70_000, 2], d)));
    same("dot", 0.0, |d| numbers(&[2_000_000], d).dot(&numbers(&[2_000_000], d)));
    same("the weight of a linear layer", 0.0, |d| {
        let (x, w) = (numbers(&[1_000_000, 3], d), numbers(&[3, 2], d));
        gradient(&w, |w| x.matmul(w))
    });
}

#[test]
fn convolutions_with_many_channels_or_positions() {
    same("channels", 0.0, |d| {
        numbers(&[1, 40_000, 3, 3], d).conv2d(
            &numbers(&[2, 40_000, 3, 3], d),
            Some(&numbers(&[2], d)),
            ConvOptions::new(),
        )
    });
    same("the gradient of many filters", 0.0, |d| {
        let (x, w) = (numbers(&[1, 2, 4, 4], d), numbers(&[30_000, 2, 3, 3], d));
        gradient(&x, |x| x.conv2d(&w, None, ConvOptions::new()))
    });
    same("the gradient of a weight", 0.0, |d| {
        let (x, w) = (numbers(&[16, 3, 224, 224], d), numbers(&[4, 3, 3, 3], d));
        gradient(&w, |w| x.conv2d(w, None, ConvOptions::new().padding([1, 1])))
    });
    same("the gradient of a weight in groups", 0.0, |d| {
        let (x, w) = (numbers(&[2, 4, 70_000], d), numbers(&[4, 2, 3], d));
        gradient(&w, |w| x.conv1d(w, None, ConvOptions::new().groups(2)))
    });
}

#[test]
fn windows_of_many_elements() {
    same("max_pool2d", 0.0, |d| numbers(&[1, 1, 1001, 1000], d).max_pool2d([1000, 1000], PoolOptions::new()));
    same("avg_pool2d", 1e-6, |d| numbers(&[1, 1, 1001, 1000], d).avg_pool2d([1000, 1000], PoolOptions::new(), true));
    // Its taps are summed in two launches.
    same("fold", 0.0, |d| numbers(&[1, 12_000, 2], d).fold([12_001], [12_000], ConvOptions::new()));
    for (kernel, stride) in [(70_000, 1), (70_000, 7)] {
        same("the gradient of avg_pool1d", 1e-5, |d| {
            let options = PoolOptions::new().stride([stride]);
            gradient(&numbers(&[1, 2, 70_010], d), |x| x.avg_pool1d([kernel], options, true))
        });
    }
}

#[test]
fn attention_to_many_keys() {
    for (queries, keys, causal) in [(2, 1_000_000, Causal::No), (3, 70_001, Causal::BottomRight)] {
        same("attention", 1e-4, |d| {
            let of = |rows: usize| numbers(&[1, 1, rows, 4], d).mul(0.25);
            of(queries)?.scaled_dot_product_attention(&of(keys)?, &of(keys)?, AttentionOptions::new().causal(causal))
        });
    }
    // Scores that have no digits left for the sum of a row.
    same("attention of large scores", 1e-4, |d| {
        let (x, mask) = (numbers(&[1, 1, 70_001, 4], d), Tensor::full([1, 1], -1e9, DType::F32, d)?);
        numbers(&[1, 1, 2, 4], d).scaled_dot_product_attention(&x, &x, AttentionOptions::new().mask(&mask))
    });
}

#[test]
fn gradients_of_attention_to_many_keys_and_of_many_queries() {
    for (queries, keys, dtype, error) in
        [(3, 40_000, DType::F32, 1e-4), (40_000, 3, DType::F32, 1e-4), (40_000, 2, DType::BF16, 0.02)]
    {
        let of = |rows: usize, d: &Device| numbers(&[1, 1, rows, 4], d).mul(0.25)?.to_dtype(dtype);
        let attention = |q: &Tensor, k: &Tensor, v: &Tensor| {
            q.scaled_dot_product_attention(k, v, AttentionOptions::new().causal(Causal::BottomRight))?
                .to_dtype(DType::F32)
        };
        same("the gradient of queries", error, |d| {
            gradient(&of(queries, d)?, |q| attention(q, &of(keys, d)?, &of(keys, d)?))
        });
        same("the gradient of keys and values", error, |d| {
            gradient(&of(keys, d)?, |k| attention(&of(queries, d)?, k, &k.mul(0.5)?))
        });
    }
}

#[test]
fn many_equal_indices() {
    let zeros = |n: usize, d: &Device| Tensor::zeros([n], DType::I64, d);
    same("index_add", 0.0, |d| {
        Tensor::zeros([3, 2], DType::F32, d)?.index_add(0, &zeros(200_000, d)?, &numbers(&[200_000, 2], d))
    });
    same("scatter_add", 0.0, |d| {
        let index = zeros(100_000, d)?.reshape([1, 100_000])?;
        Tensor::zeros([1, 5], DType::F32, d)?.scatter_add(1, &index, &numbers(&[1, 100_000], d))
    });
    same("the gradient of an embedding", 0.0, |d| {
        let index = zeros(200_000, d)?;
        gradient(&numbers(&[4, 3], d), |w| w.embedding(&index, None))
    });
}

#[test]
fn rows_of_many_elements() {
    let n = 20_000_000;
    same("softmax", 1e-5, |d| numbers(&[n], d).softmax(0)?.narrow(0, n - 4, 4));
    same("layer_norm", 1e-5, |d| numbers(&[1, n], d).layer_norm(&[n], None, None, 1e-5)?.narrow(1, n - 4, 4));
    same("cumsum", 0.0, |d| numbers(&[n], d).cumsum(0)?.narrow(0, n - 4, 4));
    same("argmax", 0.0, |d| numbers(&[n], d).argmax(0, false));
}
