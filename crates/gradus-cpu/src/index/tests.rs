//! Tests of gather, scatter and embeddings against plain loops.

use gradus_backend::{Backend, DType, ErrorKind, ScatterOp, Shape};

use crate::CpuBackend;
use crate::testing::{Lie, Tensor, assert_same_bits, integers};

/// Returns the position, in a tensor of shape `sizes`, of the element that index number `i` selects along `axis`. The
/// indices have shape `dims`, and this one has value `v`.
fn picked(dims: &[usize], sizes: &[usize], axis: usize, mut i: usize, v: usize) -> usize {
    let mut at = vec![0; dims.len()];
    for a in (0..dims.len()).rev() {
        at[a] = i % dims[a];
        i /= dims[a];
    }
    at[axis] = v;
    at.iter().zip(sizes).fold(0, |p, (&i, &d)| p * d + i)
}

const CASES: [(&[usize], usize, usize); 6] =
    [(&[5], 0, 9), (&[4, 6], 0, 7), (&[4, 6], 1, 3), (&[2, 3, 4], 1, 5), (&[2, 0, 4], 0, 3), (&[3, 300], 0, 200)];

#[test]
fn gather_and_scatter_agree_with_plain_loops() {
    let cpu = CpuBackend::with_threads(2).unwrap();
    for (c, (sizes, axis, picks)) in CASES.into_iter().enumerate() {
        let mut dims = sizes.to_vec();
        dims[axis] = picks;
        for (d, dtype) in DType::ALL.into_iter().enumerate() {
            let lie = |i: usize| Lie::ALL[(c + d + i) % 4];
            let index_dtype = [DType::I64, DType::I32, DType::U32][(c + d) % 3];
            let size = sizes[axis] as f64;
            let mut draw = integers(5, 1000);
            let index = Tensor::new(&cpu, index_dtype, &dims, lie(0), |i| draw(i).abs() % size);
            let number = |i: usize| if dtype == DType::Bool { (i % 2) as f64 } else { (i % 50) as f64 };
            let x = Tensor::new(&cpu, dtype, sizes, lie(1), number);
            let (iv, xv) = (index.values(&cpu), x.values(&cpu));
            let at = |i: usize| picked(&dims, sizes, axis, i, iv[i] as usize);
            let mut out = Tensor::canary(&cpu, dtype, &dims, lie(2));
            cpu.gather(x.view(), axis, index.view(), &mut out.view_mut()).unwrap();
            let want: Vec<_> = (0..iv.len()).map(|i| xv[at(i)]).collect();
            assert_eq!(out.values(&cpu), want, "{dtype} {sizes:?}");
            out.assert_gaps_untouched(&cpu);

            let src = Tensor::new(&cpu, dtype, &dims, lie(3), |i| (i % 2) as f64);
            let sv = src.values(&cpu);
            let mut y = Tensor::new(&cpu, dtype, sizes, lie(2), number);
            cpu.scatter(ScatterOp::Set, axis, index.view(), src.view(), &mut y.view_mut()).unwrap();
            let mut want = xv.clone();
            (0..iv.len()).for_each(|i| want[at(i)] = sv[i]);
            assert_eq!(y.values(&cpu), want, "{dtype} {sizes:?}");
            y.assert_gaps_untouched(&cpu);

            let mut y = Tensor::new(&cpu, dtype, sizes, lie(1), number);
            let added = cpu.scatter(ScatterOp::Add, axis, index.view(), src.view(), &mut y.view_mut());
            if dtype == DType::Bool {
                assert_eq!(added.unwrap_err().kind(), &ErrorKind::UnsupportedDType);
                continue;
            }
            added.unwrap();
            let mut want = xv.clone();
            (0..iv.len()).for_each(|i| want[at(i)] += sv[i]);
            assert_eq!(y.values(&cpu), want, "{dtype} {sizes:?}");
            y.assert_gaps_untouched(&cpu);
        }
    }
}

#[test]
fn a_stretched_index_moves_rows() {
    let cpu = CpuBackend::with_threads(2).unwrap();
    let x = Tensor::new(&cpu, DType::F32, &[7, 4, 5], Lie::Contiguous, |i| i as f64);
    let index = Tensor::new(&cpu, DType::I64, &[3, 1, 1], Lie::Contiguous, |i| [6.0, 0.0, 6.0][i]);
    let stretched = index.layout.expand(Shape::new(&[3, 4, 5]).unwrap()).unwrap();
    let stretched = index.view().with(&stretched);
    for lie in Lie::ALL {
        let mut out = Tensor::canary(&cpu, DType::F32, &[3, 4, 5], lie);
        cpu.gather(x.view(), 0, stretched, &mut out.view_mut()).unwrap();
        let want: Vec<_> = [6, 0, 6].iter().flat_map(|&r| (0..20).map(move |i| (r * 20 + i) as f64)).collect();
        assert_eq!(out.values(&cpu), want);
        let mut back = Tensor::new(&cpu, DType::F32, &[7, 4, 5], lie, |_| 1.0);
        cpu.scatter(ScatterOp::Add, 0, stretched, out.view(), &mut back.view_mut()).unwrap();
        let times = |i: usize| [1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 2.0][i / 20];
        assert_eq!(back.values(&cpu), (0..140).map(|i| 1.0 + times(i) * i as f64).collect::<Vec<_>>());
    }
}

#[test]
fn embeddings_pick_rows_and_their_gradient_adds_them() {
    let cpu = CpuBackend::with_threads(2).unwrap();
    for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16, DType::I32] {
        for (dims, d) in [
            (&[][..], 3),
            (&[5][..], 4),
            (&[2, 6][..], 300),
            (&[0, 2][..], 4),
            (&[3][..], 0),
            (&[5, 4][..], 1),
            (&[400][..], 200),
        ] {
            let w = Tensor::new(&cpu, dtype, &[9, d], Lie::Flipped, |i| (i % 60) as f64);
            let mut draw = integers(3, 100);
            let index = Tensor::new(&cpu, DType::I64, dims, Lie::Spaced, |i| draw(i).abs() % 9.0);
            let rows = [dims, &[d]].concat();
            let mut out = Tensor::canary(&cpu, dtype, &rows, Lie::Transposed);
            cpu.embedding(w.view(), index.view(), &mut out.view_mut()).unwrap();
            let (wv, iv) = (w.values(&cpu), index.values(&cpu));
            let want: Vec<f64> = iv.iter().flat_map(|&i| wv[i as usize * d..(i as usize + 1) * d].to_vec()).collect();
            assert_eq!(out.values(&cpu), want);

            let g = Tensor::new(&cpu, dtype, &rows, Lie::Spaced, |i| (i % 3) as f64);
            let mut dw = Tensor::canary(&cpu, dtype, &[9, d], Lie::Transposed);
            cpu.embedding_backward(index.view(), g.view(), Some(4), &mut dw.view_mut()).unwrap();
            let (mut want, gv) = (vec![0.0; 9 * d], g.values(&cpu));
            for (r, &i) in iv.iter().enumerate().filter(|&(_, &i)| i != 4.0) {
                (0..d).for_each(|c| want[i as usize * d + c] += gv[r * d + c]);
            }
            assert_eq!(dw.values(&cpu), want, "{dtype} {dims:?}");
        }
    }
}

#[test]
fn half_precision_adds_in_f32() {
    let cpu = CpuBackend::with_threads(1).unwrap();
    let index = Tensor::new(&cpu, DType::I64, &[1000], Lie::Contiguous, |_| 0.0);
    let src = Tensor::new(&cpu, DType::BF16, &[1000], Lie::Contiguous, |_| 1.0);
    let mut out = Tensor::new(&cpu, DType::BF16, &[2], Lie::Contiguous, |_| 0.0);
    cpu.scatter(ScatterOp::Add, 0, index.view(), src.view(), &mut out.view_mut()).unwrap();
    assert_eq!(out.values(&cpu), [1000.0, 0.0]);
}

#[test]
fn threads_change_no_bit_of_sums() {
    for (dims, axis) in [([900usize, 300], 0), ([300, 900], 1)] {
        assert_same_bits(|cpu| {
            let mut draw = integers(3, 100);
            let index = Tensor::new(cpu, DType::I32, &dims, Lie::Contiguous, |i| draw(i).abs() % 7.0);
            let src = Tensor::new(cpu, DType::F32, &dims, Lie::Contiguous, crate::testing::noise(9));
            let mut sizes = dims;
            sizes[axis] = 7;
            let mut out = Tensor::new(cpu, DType::F32, &sizes, Lie::Contiguous, |_| 0.5);
            cpu.scatter(ScatterOp::Add, axis, index.view(), src.view(), &mut out.view_mut()).unwrap();
            out.bytes(cpu)
        });
    }
}

#[test]
fn bad_indices_are_named_and_nothing_is_written() {
    let cpu = CpuBackend::with_threads(2).unwrap();
    for (value, dtype) in [(-1.0, DType::I64), (4.0, DType::I32), (4e9, DType::U32), (1e18, DType::I64)] {
        let index = Tensor::new(&cpu, dtype, &[3, 4], Lie::Transposed, |i| if i == 6 || i == 9 { value } else { 1.0 });
        let x = Tensor::new(&cpu, DType::F32, &[4, 4], Lie::Contiguous, |_| 0.0);
        let src = Tensor::new(&cpu, DType::F32, &[3, 4], Lie::Contiguous, |_| 0.0);
        let mut out = Tensor::canary(&cpu, DType::F32, &[3, 4], Lie::Contiguous);
        let want = ErrorKind::IndexOutOfBounds { pos: 6, index: value as i64, size: 4 };
        let e = cpu.gather(x.view(), 0, index.view(), &mut out.view_mut()).unwrap_err();
        assert_eq!((e.kind(), e.op()), (&want, "gather"));
        let mut out = Tensor::canary(&cpu, DType::F32, &[4, 4], Lie::Contiguous);
        let before = out.bytes(&cpu);
        for op in [ScatterOp::Set, ScatterOp::Add] {
            let e = cpu.scatter(op, 0, index.view(), src.view(), &mut out.view_mut()).unwrap_err();
            assert_eq!((e.kind(), e.op()), (&want, "scatter"));
        }
        assert_eq!(out.bytes(&cpu), before);
        let mut rows = Tensor::canary(&cpu, DType::F32, &[3, 4, 4], Lie::Contiguous);
        let e = cpu.embedding(x.view(), index.view(), &mut rows.view_mut()).unwrap_err();
        assert_eq!((e.kind(), e.op()), (&want, "embedding"));
    }
    let index = Tensor::new(&cpu, DType::I64, &[1], Lie::Contiguous, |_| 0.0);
    let x = Tensor::new(&cpu, DType::F32, &[0], Lie::Contiguous, |_| 0.0);
    let mut out = Tensor::canary(&cpu, DType::F32, &[1], Lie::Contiguous);
    let e = cpu.gather(x.view(), 0, index.view(), &mut out.view_mut()).unwrap_err();
    assert_eq!(e.kind(), &ErrorKind::IndexOutOfBounds { pos: 0, index: 0, size: 0 });
    let float = Tensor::new(&cpu, DType::F32, &[1], Lie::Contiguous, |_| 0.0);
    let e = cpu.gather(x.view(), 0, float.view(), &mut out.view_mut()).unwrap_err();
    assert_eq!(e.kind(), &ErrorKind::UnsupportedDType);
    let e = cpu.gather(x.view(), 3, index.view(), &mut out.view_mut()).unwrap_err();
    assert_eq!(e.kind(), &ErrorKind::InvalidAxis);
}
