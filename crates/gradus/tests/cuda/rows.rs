//! Operations along rows that are long enough to be read 16 bytes at a time.

use gradus::prelude::*;

use crate::same;

/// Numbers between -2 and 2.
fn numbers(shape: &[usize], seed: usize, dtype: DType, device: &Device) -> Result<Tensor> {
    let count = shape.iter().product();
    let values: Vec<f32> = (0..count).map(|i| ((i * 7919 + seed * 104_729) % 4093) as f32 / 1023.0 - 2.0).collect();
    Tensor::from_vec(values, shape, device)?.to_dtype(dtype)
}

/// Each operation with its gradients, on the `width` columns from `first` on of a matrix with `more` columns.
fn operations(width: usize, dtype: DType, [first, more]: [usize; 2], device: &Device) -> Result<Vec<Tensor>> {
    let rows = |seed| numbers(&[3, width + more], seed, dtype, device)?.narrow(1, first, width)?.with_grad();
    let (x, seed) = (rows(1)?, rows(2)?.detach());
    let (w, b) = (numbers(&[width], 3, dtype, device)?.with_grad()?, numbers(&[width], 4, dtype, device)?.with_grad()?);
    let classes = Tensor::from_vec(vec![0i64, 5, width as i64 - 1], [3], device)?;
    let mut all = Vec::new();
    let of_rows = [
        (x.layer_norm(&[width], Some(&w), Some(&b), 1e-5)?, &[&x, &w, &b][..]),
        (x.rms_norm(&[width], Some(&w), 1e-5)?, &[&x, &w]),
        (x.softmax(1)?, &[&x]),
        (x.log_softmax(1)?, &[&x]),
    ];
    for (y, inputs) in of_rows {
        all.extend(grad(&[&y], inputs, Some(&[&seed]), BackwardOptions::new())?.into_iter().flatten());
        all.push(y);
    }
    for loss in [x.cross_entropy(&classes)?, x.cross_entropy_with(&classes, None, Some(5), 0.1, Reduction::Mean)?] {
        all.extend(grad(&[&loss], &[&x], None, BackwardOptions::new())?.into_iter().flatten());
        all.push(loss);
    }
    Ok(all)
}

#[test]
fn long_rows_give_what_the_cpu_gives() {
    // One pack for each lane of a warp, packs that do not fill a block, and several packs for each thread.
    for (dtype, tolerance, widths) in [
        (DType::F64, 1e-12, &[64, 6144, 16_384][..]),
        (DType::F32, 2e-6, &[128, 772, 12_288]),
        (DType::F16, 4e-3, &[256, 768]),
        (DType::BF16, 3e-2, &[256, 776, 20_000, 24_576]),
    ] {
        for &width in widths {
            println!("{dtype}, {width}");
            same(tolerance, |device| operations(width, dtype, [0, 0], device));
        }
        // Rows that begin at multiples of 16 bytes with gaps between them, rows of which only the first does, and none.
        for part in [[0, 16], [0, 1], [1, 16]] {
            same(tolerance, |device| operations(widths[0], dtype, part, device));
        }
    }
}
