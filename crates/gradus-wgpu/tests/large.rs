//! Tests of operands that are too large to bind (128 MiB if the adapter has only WebGPU's minimum), and of long sums.

mod common;

use std::sync::Arc;

use gradus::backend::Backend;
use gradus::prelude::*;
use gradus_wgpu::Profile;

/// This many elements take more than 128 MiB in f32.
const N: usize = 35_000_000;

fn opened() -> Option<Device> {
    Some(Device::from_backend(Arc::new(common::opened()?)))
}

#[test]
fn a_long_sum_is_near_the_sum_in_f64() {
    let Some(device) = opened() else { return };
    let n = 250_000;
    let x = Tensor::rand([n, 64], DType::F32, &device, &mut Generator::new(1)).expect("draws");
    let values = x.to_vec::<f32>().expect("values");
    let sums = x.sum(&[0], false).and_then(|s| s.to_vec::<f32>()).expect("sums");
    for (column, got) in sums.into_iter().enumerate() {
        let want: f64 = values.iter().skip(column).step_by(64).map(|&v| f64::from(v)).sum();
        assert!((f64::from(got) / want - 1.0).abs() < 1e-6, "column {column}: {got} and {want}");
    }
}

#[test]
fn columns_of_a_large_matrix_are_summed() {
    let Some(device) = opened() else { return };
    let x = Tensor::ones([N / 50, 50], DType::F32, &device).expect("ones");
    let sums = x.sum(&[0], true).and_then(|s| s.to_vec::<f32>()).expect("sums");
    assert_eq!(sums, [(N / 50) as f32; 50]);
}

#[test]
fn a_million_elements_and_a_row_are_added_in_groups_of_four() {
    let (Some(device), cpu) = (opened(), Device::cpu().expect("the CPU")) else { return };
    let mut generator = Generator::new(3);
    let x = Tensor::rand([1028, 1028], DType::F32, &cpu, &mut generator).expect("draws");
    let row = Tensor::rand([1028], DType::F32, &cpu, &mut generator).expect("draws");
    let sum = |device: &Device| -> Result<Vec<f32>> { x.to_device(device)?.add(&row.to_device(device)?)?.to_vec() };
    assert_eq!(sum(&device).expect("a sum"), sum(&cpu).expect("a sum"));
}

#[test]
fn many_small_matrices_are_transposed() {
    let (Some(device), cpu) = (opened(), Device::cpu().expect("the CPU")) else { return };
    // More work-groups than one axis of a launch has.
    let x = Tensor::randint(0, 255, [70_000, 16, 16], DType::U8, &cpu, &mut Generator::new(4)).expect("draws");
    let transposed = |device: &Device| x.to_device(device)?.transpose(1, 2)?.copy()?.to_bytes();
    assert_eq!(transposed(&device).expect("bytes"), transposed(&cpu).expect("bytes"));
}

#[test]
fn a_stride_beyond_32_bits_does_not_matter_to_a_single_position() {
    let Some(device) = opened() else { return };
    let row = |device: &Device| Tensor::from_vec(vec![1.0f32, 2.0, 3.0], [1, 1, 3], device)?.with_grad();
    let (x, w) = (row(&device).expect("a row"), row(&device).expect("a row"));
    let y = x.conv1d(&w, None, ConvOptions::new().stride([1 << 32])).and_then(|y| y.sum_all()).expect("a sum");
    assert_eq!(y.item().expect("a number"), 14.0);
    let gradients = y.backward().expect("gradients");
    let of_x = gradients.get(&x).expect("a gradient");
    assert_eq!(of_x.to_vec::<f32>().expect("numbers"), [1.0, 2.0, 3.0]);
}

#[test]
fn large_draws_are_those_of_the_stream() {
    let Some(device) = opened() else { return };
    let cpu = Device::cpu().expect("the processor");
    let draw = |device: &Device| Tensor::rand([N], DType::F32, device, &mut Generator::new(3)).expect("draws");
    let (here, there) = (draw(&device), draw(&cpu));
    for start in [0, N / 2 - 2, N - 4] {
        let part = |x: &Tensor| x.narrow(0, start, 4).and_then(|x| x.to_vec::<f32>()).expect("values");
        assert_eq!(part(&here), part(&there), "from {start}");
    }
}

#[test]
fn a_large_line_is_scanned() {
    let Some(device) = opened() else { return };
    let x = Tensor::full([N], 2.0, DType::F32, &device).expect("twos");
    let sums = x.cumsum(0).expect("sums");
    for at in [1, N / 2, N / 2 + 4, N] {
        let got = sums.narrow(0, at - 1, 1).and_then(|s| s.to_vec::<f32>()).expect("a value");
        assert_eq!(got, [(2 * at) as f32]);
    }
}

#[test]
fn a_large_tensor_is_looked_up() {
    let Some(device) = opened() else { return };
    let at = [0i64, N as i64 - 1, N as i64 / 2, 1 << 24];
    let index = Tensor::from_vec(at, [4], &device).expect("indices");
    let x = Tensor::arange(0, N as i64, 1, DType::I32, &device).expect("a range");
    let got = x.gather(0, &index).and_then(|x| x.to_vec::<i32>()).expect("values");
    assert_eq!(got, at.map(|v| v as i32));

    let (rows, d) = (N / 100, 100);
    let column = Tensor::arange(0, rows as i64, 1, DType::F32, &device).and_then(|x| x.reshape([rows, 1]));
    let table = column.and_then(|x| x.add(&Tensor::zeros([rows, d], DType::F32, &device)?)).expect("a table");
    let at = [rows as i64 - 1, 0, rows as i64 / 2, rows as i64 / 2 - 1];
    let index = Tensor::from_vec(at, [4], &device).expect("indices");
    let got = table.embedding(&index, None).and_then(|x| x.to_vec::<f32>()).expect("rows");
    assert!(got.chunks(d).zip(at).all(|(row, at)| row.iter().all(|&v| v == at as f32)));
}

#[test]
fn a_bad_index_among_many_is_found_at_its_position() {
    let Some(device) = opened() else { return };
    // This many elements take more than 128 MiB in i64.
    let n = N / 2;
    let index = Tensor::zeros([n], DType::I64, &device).expect("indices");
    let bad = Tensor::from_vec([7i64], [1], &device).expect("an index");
    let part = |len: usize| index.narrow(0, 0, len).expect("a part");
    let bad = Tensor::cat(&[&part(n - 3), &bad, &part(2)], 0);
    let x = Tensor::from_vec([5u8], [1], &device).expect("a tensor");
    let picked = x.gather(0, &bad.expect("indices")).expect("a late error");
    let error = picked.narrow(0, 0, 1).and_then(|x| x.to_vec::<u8>()).expect_err("an index outside");
    assert_eq!(error.kind(), &ErrorKind::IndexOutOfBounds { pos: n - 3, index: 7, size: 1 });
}

#[test]
fn many_lines_are_sorted() {
    let Some(device) = opened() else { return };
    let lines = N / 8;
    let line = Tensor::from_vec([3f32, 1.0, 2.0, 8.0, 5.0, 7.0, 6.0, 4.0], [1, 8], &device).expect("a line");
    let x = line.expand([lines, 8]).and_then(|x| x.contiguous()).expect("lines");
    let (values, indices) = x.sort(1, false).expect("sorted");
    for at in [0, lines / 2, lines - 1] {
        let got = values.narrow(0, at, 1).and_then(|x| x.to_vec::<f32>()).expect("values");
        assert_eq!(got, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
        let got = indices.narrow(0, at, 1).and_then(|x| x.to_vec::<i64>()).expect("indices");
        assert_eq!(got, [1, 2, 0, 7, 4, 6, 5, 3]);
    }
}

#[test]
fn a_large_batch_goes_through_convolution_and_pooling() {
    let Some(device) = opened() else { return };
    let (n, c, side) = (190, 64, 56);
    let x = Tensor::ones([n, c, side, side], DType::F32, &device).expect("images");
    let w = Tensor::ones([2, c, 1, 1], DType::F32, &device).and_then(|w| w.with_grad()).expect("filters");
    let y = x.conv2d(&w, None, ConvOptions::default()).expect("a convolution");
    let last = y.narrow(0, n - 1, 1).and_then(|y| y.to_vec::<f32>()).expect("values");
    assert!(last.iter().all(|&v| v == c as f32));
    let gradients = y.sum_all().and_then(|s| s.backward()).expect("gradients");
    let dw = gradients.get(&w).expect("a gradient").to_vec::<f32>().expect("values");
    assert_eq!(dw, vec![(n * side * side) as f32; 2 * c]);
    let pooled = x.max_pool2d([2, 2], PoolOptions::new()).expect("pooled");
    let last = pooled.narrow(0, n - 1, 1).and_then(|y| y.to_vec::<f32>()).expect("values");
    assert!(last.len() == c * side * side / 4 && last.iter().all(|&v| v == 1.0));
    let x = x.with_grad().expect("images");
    let pooled = x.avg_pool2d([2, 2], PoolOptions::new(), true).expect("means");
    let last = pooled.narrow(0, n - 1, 1).and_then(|y| y.to_vec::<f32>()).expect("values");
    assert!(last.len() == c * side * side / 4 && last.iter().all(|&v| v == 1.0));
    let gradients = pooled.sum_all().and_then(|s| s.backward()).expect("gradients");
    let dx = gradients.get(&x).and_then(|dx| dx.narrow(0, n - 1, 1).ok()).expect("a gradient");
    assert!(dx.to_vec::<f32>().expect("values").iter().all(|&v| v == 0.25));
}

#[test]
fn a_large_download_comes_in_pieces_through_a_buffer_that_trim_gives_back() {
    let Some(backend) = common::opened() else { return };
    let bytes: Vec<u8> = (0..(130usize << 20) + 5).map(|i| (i % 251) as u8).collect();
    let mut buffer = backend.alloc(bytes.len()).expect("memory");
    backend.upload(&mut buffer, 0, &bytes).expect("an upload");
    let mut back = vec![0; bytes.len() - 1];
    backend.download(&buffer, 1, &mut back).expect("a download");
    assert!(back == bytes[1..]);
    let cached = backend.memory_stats().cached;
    assert!(cached > 0 && cached <= 64 << 20, "{cached} bytes");
    backend.trim().expect("a device that works");
    assert_eq!(backend.memory_stats().cached, 0);
}

#[test]
fn the_largest_of_a_large_line_is_found() {
    let Some(device) = opened() else { return };
    let x = Tensor::arange(0, N as i64, 1, DType::I32, &device).expect("a range");
    let found = |x: &Tensor| x.argmax(0, false).and_then(|at| at.to_vec::<i64>()).expect("an index");
    assert_eq!(found(&x), [N as i64 - 1]);
    assert_eq!(found(&x.neg().expect("falling")), [0]);
    // The first of equal elements wins, even if the line can be bound and is merely long.
    assert_eq!(found(&Tensor::ones([20_000_000], DType::F32, &device).expect("ones")), [0]);
    assert_eq!(found(&x.narrow(0, 0, 20_000_000).expect("a part")), [19_999_999]);
}

#[test]
fn a_table_that_is_too_large_to_bind_has_a_gradient() {
    let Some(backend) = common::opened_as(Profile::Core) else { return };
    let device = Device::from_backend(Arc::new(backend));
    let (rows, d) = (280_000, 128);
    let table = Tensor::zeros([rows, d], DType::F32, &device).and_then(|t| t.with_grad()).expect("a table");
    // There are too many indices to look at one by one, so they are sorted.
    let index: Vec<i64> = (0..200).map(|i| [0, rows as i64 - 1, 139_999, 140_000, 7][i % 5]).collect();
    let index = Tensor::from_vec(index, [200], &device).expect("indices");
    let weights = Tensor::arange(0, 200 * d as i64, 1, DType::F32, &device).and_then(|w| w.reshape([200, d]));
    let weights = weights.expect("weights");
    let loss = table.embedding(&index, None).and_then(|y| y.mul(&weights)?.sum_all()).expect("a loss");
    let gradients = loss.backward().expect("gradients");
    let gradient = gradients.get(&table).expect("the table's");
    for (k, row) in [0, rows - 1, 139_999, 140_000, 7].into_iter().enumerate() {
        let found = gradient.narrow(0, row, 1).and_then(|r| r.to_vec::<f32>()).expect("a row");
        let want: Vec<f32> = (0..d).map(|j| (0..40).map(|i| ((5 * i + k) * d + j) as f32).sum()).collect();
        assert_eq!(found, want, "row {row}");
    }
    let total = gradient.sum_all().and_then(|s| s.item()).expect("a sum");
    let n = 200.0 * d as f64;
    assert!((total / (n * (n - 1.0) / 2.0) - 1.0).abs() < 1e-6, "{total}");
}

/// Asserts that two results have the same infinities and NaN, and that their other elements are close.
fn assert_near(got: &Tensor, want: &Tensor, what: &str) {
    let (got, want) = (got.to_vec::<f32>().expect(what), want.to_vec::<f32>().expect(what));
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (g, w)) in got.iter().zip(&want).enumerate() {
        let same = if w.is_finite() {
            (g - w).abs() <= 1e-4 * (1.0 + w.abs())
        } else {
            g.to_bits() == w.to_bits() || (g.is_nan() && w.is_nan())
        };
        assert!(same, "{what}: element {i} is {g}, and {w} on the CPU");
    }
}

#[test]
fn products_and_convolutions_in_large_tiles_agree_with_the_cpu() {
    let Some(device) = opened() else { return };
    let cpu = Device::cpu().expect("the CPU");
    let draw =
        |shape: &[usize], seed| Tensor::randn(shape, DType::F32, &cpu, &mut Generator::new(seed)).expect("draws");
    for (m, k, n) in [(513, 100, 520), (512, 7, 512), (700, 33, 600)] {
        for (a, b) in [
            (draw(&[m, k], 1), draw(&[k, n], 2)),
            (draw(&[k, m], 3).t().expect("a view"), draw(&[n, k], 4).t().expect("a view")),
        ] {
            let here = a.to_device(&device).and_then(|a| a.matmul(&b.to_device(&device)?)).expect("a product");
            assert_near(&here, &a.matmul(&b).expect("a product"), &format!("{m} x {k} x {n}"));
        }
    }
    let (x, mut w) = (draw(&[16, 80, 12, 12], 5), draw(&[72, 80, 3, 3], 6));
    for infinite in [false, true] {
        if infinite {
            w.narrow(0, 3, 1)
                .and_then(|w| w.narrow(2, 0, 1)?.narrow(3, 1, 1)?.fill_(f32::INFINITY))
                .expect("infinities");
        }
        let pass = |device: &Device| {
            let (x, w) = (x.to_device(device)?.with_grad()?, w.to_device(device)?.with_grad()?);
            let y = x.conv2d(&w, None, ConvOptions::new().padding([1, 1]))?;
            let gradients = y.sum_all()?.backward()?;
            Ok::<_, Error>([
                y.detach(),
                gradients.get(&x).expect("a gradient").clone(),
                gradients.get(&w).expect("a gradient").clone(),
            ])
        };
        let (here, there) = (pass(&device).expect("a pass"), pass(&cpu).expect("a pass"));
        for ((here, there), what) in here.iter().zip(&there).zip(["y", "dx", "dw"]) {
            // With infinite weights, `y` sums infinities of both signs, and devices may differ in where the sums become
            // NaN. The gradients only sum infinities of one sign.
            if what != "y" || !infinite {
                assert_near(here, there, what);
            }
        }
        w = w.copy().expect("a copy");
    }
}

#[test]
fn flat_operands_are_computed_in_groups_of_four_and_leave_their_neighbours_alone() {
    for profile in [Profile::Full, Profile::Core] {
        let Some(backend) = common::opened_as(profile) else { return };
        let (device, cpu) = (Device::from_backend(Arc::new(backend)), Device::cpu().expect("the CPU"));
        let numbers = |i: usize| ((i as u32).wrapping_mul(2_654_435_769) >> 16) as f32 % 200.0 / 2.0 - 20.0;
        let all = Tensor::from_vec((0..4100).map(numbers).collect::<Vec<_>>(), [4100], &cpu).expect("numbers");
        let dtypes: Vec<DType> = DType::ALL.into_iter().filter(|d| d.size() <= 4).collect();
        for &from in &dtypes {
            let here = all.to_dtype(from).expect("a cast");
            let there = here.to_device(&device).expect("a copy");
            let bytes = |t: Result<Tensor>, what: &str| t.and_then(|t| t.to_bytes()).expect(what);
            // Parts whose lengths and positions are multiples of four, and parts where they are not.
            for (start, len) in [(0, 4100), (4, 2048), (8, 1024), (3, 2048), (4, 2047)] {
                let (x, y) = (here.narrow(0, start, len), there.narrow(0, start, len));
                let (x, y) = (x.expect("a part"), y.expect("a part"));
                for &to in &dtypes {
                    let what = format!("{from} to {to}, {len} from {start}");
                    assert_eq!(bytes(x.to_dtype(to), &what), bytes(y.to_dtype(to), &what), "{what}");
                }
                if from == DType::Bool {
                    continue;
                }
                for op in [|x: &Tensor| x.add(x), |x: &Tensor| x.maximum(&x.mul(2)?), |x: &Tensor| x.ge(&x.mul(x)?)] {
                    assert_eq!(bytes(op(&x), "a result"), bytes(op(&y), "a result"), "{from}, {len} from {start}");
                }
                // Writes in place to the middle of a tensor.
                let written = |t: &Tensor| -> Result<Tensor> {
                    let copy = t.copy()?;
                    copy.narrow(0, start, len)?.add_(3)?;
                    Ok(copy)
                };
                assert_eq!(
                    bytes(written(&here), "a sum"),
                    bytes(written(&there), "a sum"),
                    "{from}, {len} from {start}"
                );
            }
            if from == DType::Bool {
                continue;
            }
            // Parts of rows are written, and rows in another order are read, with a row that is the same for all of them.
            let rows = |t: &Tensor| -> Result<[Tensor; 2]> {
                let copy = t.narrow(0, 0, 4096)?.reshape([16, 4, 64])?.copy()?;
                copy.narrow(2, 4, 40)?.add_(3)?;
                let row = t.narrow(0, 4, 64)?;
                Ok([copy.permute(&[1, 0, 2])?.add(&row)?, copy])
            };
            let [x, y] = [&here, &there].map(|t| rows(t).expect("rows"));
            for (x, y) in x.into_iter().zip(y) {
                assert_eq!(bytes(Ok(x), "a sum"), bytes(Ok(y), "a sum"), "{from}, rows");
            }
        }
    }
}
