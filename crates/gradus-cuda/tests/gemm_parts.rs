//! Products whose inner axis is cut into parts, and those of every tile, beside sums on the host.

mod common;

use gradus_backend::{Backend, DType, Element, Layout, Result, Scalar, Shape, View, ViewMut, bf16, f16};

/// Small integers, so that every sum is exact in every dtype.
fn value(i: usize) -> i64 {
    (i * 7 % 5) as i64 - 2
}

fn product<T: Element>(b: &dyn Backend, dtype: DType, [m, k, n]: [usize; 3], transposed: [bool; 2]) -> Result<()> {
    // A transposed factor is stored the other way round.
    let stored = |rows: usize, cols: usize, other: bool| {
        let shape = Shape::new(&if other { [cols, rows] } else { [rows, cols] })?;
        let layout = Layout::contiguous(shape);
        if other { layout.transpose(0, 1) } else { Ok(layout) }
    };
    let layouts = [stored(m, k, transposed[0])?, stored(k, n, transposed[1])?, stored(m, n, false)?];
    let mut buffers = Vec::new();
    for layout in &layouts {
        let values = (0..layout.numel()).map(|i| T::from_scalar(Scalar::Int(value(i)))).collect::<Result<Vec<T>>>()?;
        let mut buffer = b.alloc(layout.numel() * dtype.size())?;
        b.upload(&mut buffer, 0, T::as_bytes(&values))?;
        buffers.push(buffer);
    }
    let [x, y, z] = &mut buffers[..] else { unreachable!("three operands") };
    let (p, q) = (View { buffer: x, dtype, layout: &layouts[0] }, View { buffer: y, dtype, layout: &layouts[1] });
    let mut out = ViewMut { buffer: z, dtype, layout: &layouts[2] };
    b.gemm(Scalar::Int(1), p, q, Scalar::Int(2), &mut out)?;
    let mut bytes = vec![0; m * n * dtype.size()];
    b.download(z, 0, &mut bytes)?;
    let at = |row: usize, col: usize, rows: usize, cols: usize, other: bool| {
        value(if other { col * rows + row } else { row * cols + col })
    };
    for (row, col) in (0..m).flat_map(|row| (0..n).map(move |col| (row, col))) {
        let sum: i64 = (0..k).map(|i| at(row, i, m, k, transposed[0]) * at(i, col, k, n, transposed[1])).sum();
        let want = T::from_scalar(Scalar::Int(sum + 2 * value(row * n + col)))?;
        let place = (row * n + col) * dtype.size();
        assert_eq!(&bytes[place..place + dtype.size()], T::as_bytes(&[want]), "{dtype} {m}x{k}x{n} at {row}, {col}");
    }
    Ok(())
}

#[test]
fn the_parts_of_a_long_inner_axis_are_added() {
    let Some(b) = common::opened() else { return };
    for transposed in [[false, false], [true, true]] {
        product::<f16>(&b, DType::F16, [33, 808, 40], transposed).unwrap();
        product::<bf16>(&b, DType::BF16, [16, 648, 9], transposed).unwrap();
        product::<f32>(&b, DType::F32, [33, 777, 40], transposed).unwrap();
        product::<f64>(&b, DType::F64, [10, 600, 12], transposed).unwrap();
        product::<f32>(&b, DType::F32, [3, 20_000, 50], transposed).unwrap();
    }
}
