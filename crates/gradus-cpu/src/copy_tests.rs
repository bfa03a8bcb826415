//! Tests of copies, fills and transfers.

use gradus_backend::{Backend, ErrorKind, Layout, Shape, View, ViewMut};

use super::*;
use crate::testing::{Lie, Tensor};

#[test]
fn any_layout_copies_to_any_other() {
    for cpu in
        [CpuBackend::with_threads(2).unwrap(), CpuBackend::with_threads(1).unwrap().with_isa("portable").unwrap()]
    {
        for dims in [&[][..], &[0, 3], &[1], &[5, 7], &[33, 70], &[3, 40, 17], &[2, 3, 4, 5], &[260, 150]] {
            for dtype in [DType::U8, DType::F16, DType::F32, DType::F64] {
                for from in Lie::ALL {
                    for to in Lie::ALL {
                        let x = Tensor::new(&cpu, dtype, dims, from, |i| (i % 251) as f64);
                        let mut out = Tensor::canary(&cpu, dtype, dims, to);
                        cpu.copy_strided(x.view(), &mut out.view_mut()).unwrap();
                        assert_eq!(out.bytes(&cpu), x.bytes(&cpu), "{dims:?} {dtype} {from:?} {to:?}");
                        out.assert_gaps_untouched(&cpu);
                    }
                }
            }
        }
    }
}

#[test]
fn stretched_and_permuted_views_copy() {
    let cpu = CpuBackend::with_threads(2).unwrap();
    let x = Tensor::new(&cpu, DType::F32, &[1, 20, 1, 30], Lie::Contiguous, |i| i as f64);
    let wide = x.layout.expand(Shape::new(&[9, 20, 11, 30]).unwrap()).unwrap();
    for perm in [[0, 1, 2, 3], [3, 1, 0, 2], [1, 3, 2, 0], [0, 3, 1, 2]] {
        let layout = wide.permute(&perm).unwrap();
        let mut out = Tensor::canary(&cpu, DType::F32, layout.dims(), Lie::Contiguous);
        cpu.copy_strided(x.view().with(&layout), &mut out.view_mut()).unwrap();
        let got = out.values(&cpu);
        assert!(layout.positions().zip(got).all(|(at, g)| g == at as f64), "{perm:?}");
    }
}

#[test]
fn fill_sets_every_element_and_nothing_else() {
    let cpu = CpuBackend::with_threads(2).unwrap();
    for dtype in DType::ALL {
        for lie in Lie::ALL {
            for dims in [&[][..], &[0], &[3, 5], &[300, 400]] {
                let mut t = Tensor::canary(&cpu, dtype, dims, lie);
                cpu.fill(&mut t.view_mut(), Scalar::Int(1)).unwrap();
                assert!(t.values(&cpu).iter().all(|&v| v == 1.0), "{dtype} {lie:?}");
                t.assert_gaps_untouched(&cpu);
            }
        }
    }
    let mut t = Tensor::canary(&cpu, DType::U8, &[3], Lie::Contiguous);
    assert!(cpu.fill(&mut t.view_mut(), Scalar::Int(256)).is_err());
    assert!(cpu.fill(&mut t.view_mut(), Scalar::Float(0.5)).is_err());
}

#[test]
fn transfers_check_their_ranges() {
    let cpu = CpuBackend::with_threads(2).unwrap();
    let bytes: Vec<u8> = (0..1_000_000).map(|i| (i % 253) as u8).collect();
    let mut a = cpu.alloc(bytes.len() + 8).unwrap();
    let mut b = cpu.alloc(bytes.len()).unwrap();
    cpu.upload(&mut a, 8, &bytes).unwrap();
    cpu.copy_buffer(&a, 8, &mut b, 0, bytes.len()).unwrap();
    let mut back = vec![0; bytes.len()];
    cpu.download(&b, 0, &mut back).unwrap();
    assert_eq!(back, bytes);
    assert_eq!(cpu.upload(&mut a, 9, &bytes).unwrap_err().kind(), &ErrorKind::InvalidArgument);
    assert!(cpu.download(&b, usize::MAX, &mut back[..1]).is_err());
    assert!(cpu.copy_buffer(&a, 0, &mut b, 1, bytes.len()).is_err());
    let layout = Layout::contiguous(Shape::new(&[2]).unwrap());
    let x = View { buffer: &a, dtype: DType::F32, layout: &layout };
    assert!(cpu.copy_strided(x, &mut ViewMut { buffer: &mut b, dtype: DType::I32, layout: &layout }).is_err());
}
