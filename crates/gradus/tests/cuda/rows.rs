//! Operations along rows that are long enough to be read 16 bytes at a time.

use gradus::prelude::*;

use crate::same;

/// Numbers between -2 and 2.
fn numbers(shape: &[usize], seed: usize, dtype: DType, device: &Device) -> Result<Tensor> {
    let count = shape.iter().product();
    let values: Vec<f32> = (0..count).map(|i| ((i * 7919 + seed * 104_729) % 4093) as f32 / 1023.0 - 2.0).collect();
    Tensor::from_vec(values, shape, device)?.to_dtype(dtype)
}

/// Each operation with its gradients, on whole rows and, where `cut`, on rows that do not begin at 16 bytes.
fn operations(width: usize, dtype: DType, cut: bool, device: &Device) -> Result<Vec<Tensor>> {
    let rows = |seed| {
        let x = numbers(&[3, width + 4], seed, dtype, device)?;
        let x = x.narrow(1, if cut { 1 } else { 0 }, width)?;
        if cut { x.with_grad() } else { x.contiguous()?.with_grad() }
    };
    let (x, seed) = (rows(1)?, rows(2)?.detach());
    let (w, b) = (numbers(&[width], 3, dtype, device)?.with_grad()?, numbers(&[width], 4, dtype, device)?.with_grad()?);
    let classes = Tensor::from_vec(vec![0i64, 5, width as i64 - 1], [3], device)?;
    let mut all = Vec::new();
    for y in [x.layer_norm(&[width], Some(&w), Some(&b), 1e-5)?, x.rms_norm(&[width], Some(&w), 1e-5)?] {
        all.extend(grad(&[&y], &[&x, &w], Some(&[&seed]), BackwardOptions::new())?.into_iter().flatten());
        all.push(y);
    }
    for y in [x.softmax(1)?, x.log_softmax(1)?] {
        all.extend(grad(&[&y], &[&x], Some(&[&seed]), BackwardOptions::new())?.into_iter().flatten());
        all.push(y);
    }
    let loss = x.cross_entropy(&classes)?;
    all.extend(grad(&[&loss], &[&x], None, BackwardOptions::new())?.into_iter().flatten());
    all.push(loss);
    Ok(all)
}

#[test]
fn long_rows_give_what_the_cpu_gives() {
    // One pack for each lane of a warp, packs that do not fill a block, and several packs for each thread.
    for (dtype, tolerance, widths) in [
        (DType::F64, 1e-12, &[64, 4096][..]),
        (DType::F32, 2e-6, &[128, 772, 8192]),
        (DType::F16, 4e-3, &[256, 768]),
        (DType::BF16, 3e-2, &[256, 776, 16_384, 20_000]),
    ] {
        for &width in widths {
            println!("{dtype}, {width}");
            same(tolerance, |device| operations(width, dtype, false, device));
        }
        same(tolerance, |device| operations(widths[0], dtype, true, device));
    }
}
