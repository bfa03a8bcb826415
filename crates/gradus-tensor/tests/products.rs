//! `einsum` and related products, matrix products on flat buffers, and distances.
#![allow(clippy::unwrap_used)]

mod common;

use common::{assert_close, both, cpu, f32s, f64s, i64s, layouts, randn};
use gradus_tensor::{DType, ErrorKind, Gemm, Result, Tensor, no_grad_guard};

const NAN: f64 = f64::NAN;

fn v(t: &Tensor) -> Vec<f64> {
    t.to_dtype(DType::F64).unwrap().to_vec().unwrap()
}

/// `einsum` by its definition: the sum over every assignment of the labels. Does not support an ellipsis.
fn by_definition(inputs: &[(&str, &Tensor)], output: &str) -> (Vec<usize>, Vec<f64>) {
    let mut labels: Vec<(char, usize)> = Vec::new();
    for (l, t) in inputs {
        for (c, &d) in l.chars().zip(t.shape()) {
            match labels.iter_mut().find(|x| x.0 == c) {
                Some(x) => x.1 = x.1.max(d),
                None => labels.push((c, d)),
            }
        }
    }
    let size = |c: char| labels.iter().find(|x| x.0 == c).unwrap().1;
    let shape: Vec<usize> = output.chars().map(size).collect();
    let mut out = vec![0.0; shape.iter().product()];
    let values: Vec<Vec<f64>> = inputs.iter().map(|i| v(i.1)).collect();
    for mut n in 0..labels.iter().map(|l| l.1).product::<usize>() {
        let mut at = std::collections::HashMap::new();
        for &(c, d) in &labels {
            at.insert(c, n % d);
            n /= d;
        }
        let place = |l: &str, shape: &[usize]| {
            l.chars().zip(shape).fold(0, |p, (c, &d)| p * d + if d == 1 { 0 } else { at[&c] })
        };
        let product: f64 = inputs.iter().zip(&values).map(|((l, t), x)| x[place(l, t.shape())]).product();
        out[place(output, &shape)] += product;
    }
    (shape, out)
}

/// The labels and the shape of an input.
type Input<'a> = (&'a str, &'a [usize]);

#[test]
fn einsum_is_its_definition() {
    let cases: &[(&[Input<'_>], &str)] = &[
        (&[("ij", &[2, 3]), ("jk", &[3, 4])], "ki"),
        (&[("ij", &[2, 3])], "ji"),
        (&[("ij", &[2, 3])], ""),
        (&[("ii", &[3, 3])], "i"),
        (&[("iji", &[3, 2, 3])], "j"),
        (&[("iii", &[3, 3, 3])], "i"),
        (&[("iijj", &[2, 2, 3, 3])], "ji"),
        (&[("i", &[3]), ("i", &[3])], ""),
        (&[("i", &[3]), ("j", &[2])], "ij"),
        (&[("bij", &[2, 3, 4]), ("bjk", &[2, 4, 2])], "bik"),
        (&[("bij", &[2, 3, 4]), ("bij", &[2, 3, 4])], "b"),
        (&[("ab", &[2, 3]), ("cb", &[4, 3]), ("cd", &[4, 2])], "ad"),
        (&[("Ab", &[2, 3]), ("bA", &[3, 2]), ("b", &[3])], "A"),
        (&[("ij", &[2, 1]), ("jk", &[3, 4])], "ik"),
        (&[("i", &[1]), ("i", &[3]), ("j", &[2])], "ji"),
        (&[("", &[]), ("ij", &[2, 2])], "ij"),
        (&[("ij", &[2, 0]), ("jk", &[0, 3])], "ik"),
        (&[("a", &[2]), ("b", &[2]), ("c", &[2]), ("abc", &[2, 2, 2])], ""),
    ];
    for (inputs, output) in cases {
        let tensors: Vec<Tensor> = inputs.iter().enumerate().map(|(i, (_, s))| randn(s, i as u64 + 1)).collect();
        let named: Vec<(&str, &Tensor)> = inputs.iter().zip(&tensors).map(|((l, _), t)| (*l, t)).collect();
        let (shape, want) = by_definition(&named, output);
        let equation = format!("{} -> {output}", inputs.iter().map(|i| i.0).collect::<Vec<_>>().join(", "));
        let y = Tensor::einsum(&equation, &tensors.iter().collect::<Vec<_>>()).unwrap();
        assert_eq!(y.shape(), shape, "{equation}");
        assert_close(&v(&y), &want, 1e-12);
        both(|x| Tensor::einsum(&equation, &x.iter().collect::<Vec<_>>()), &tensors);
    }
}

#[test]
fn einsum_of_views_and_many_operands() {
    for a in layouts(&[3, 4], 1) {
        let b = randn(&[2, 4], 2).t().unwrap();
        let y = Tensor::einsum("ij,jk", &[&a, &b]).unwrap();
        assert_close(&v(&y), &v(&a.matmul(&b).unwrap()), 1e-12);
        both(|x| Tensor::einsum("ij,jk->ki", &[&x[0], &x[1]]), &[a, b]);
    }
    // A chain of matrices, contracted by dynamic programming and, for 10 operands, in greedy order.
    for n in [4usize, 8, 10] {
        let names: Vec<char> = ('a'..='z').take(n + 1).collect();
        let sizes: Vec<usize> = (0..=n).map(|i| i % 3 + 2).collect();
        let tensors: Vec<Tensor> = (0..n).map(|i| randn(&[sizes[i], sizes[i + 1]], i as u64)).collect();
        let terms: Vec<String> = (0..n).map(|i| format!("{}{}", names[i], names[i + 1])).collect();
        let equation = format!("{}->{}{}", terms.join(","), names[0], names[n]);
        let y = Tensor::einsum(&equation, &tensors.iter().collect::<Vec<_>>()).unwrap();
        let want = tensors[1..].iter().fold(tensors[0].clone(), |p, t| p.matmul(t).unwrap());
        assert_close(&v(&y), &v(&want), 1e-10);
    }
}

#[test]
fn ellipses_broadcast_and_the_implicit_output_is_sorted() {
    let (a, b) = (randn(&[2, 1, 3, 4], 1), randn(&[5, 4, 2], 2));
    let y = Tensor::einsum("...ij, ...jk -> ...ik", &[&a, &b]).unwrap();
    assert_eq!(y.shape(), [2, 5, 3, 2]);
    assert_close(&v(&y), &v(&a.matmul(&b).unwrap()), 1e-12);
    both(|x| Tensor::einsum("...ij,...jk", &[&x[0], &x[1]]), &[a.clone(), b]);
    assert_eq!(Tensor::einsum("b...a", &[&a]).unwrap().shape(), [1, 3, 4, 2]);
    assert_eq!(Tensor::einsum("i...->i", &[&a]).unwrap().shape(), [2]);
    assert_close(&v(&Tensor::einsum("...->", &[&a]).unwrap()), &v(&a.sum_all().unwrap()), 1e-12);
    let m = randn(&[2, 3], 1);
    assert_eq!(Tensor::einsum("ba", &[&m]).unwrap().shape(), [3, 2]);
    assert_eq!(Tensor::einsum("aB", &[&m]).unwrap().shape(), [3, 2]);
    assert_eq!(Tensor::einsum("ij,kj", &[&m, &m]).unwrap().shape(), [2, 2]);
    let n = i64s(&[1, 2, 3, 4], &[2, 2]).to_dtype(DType::I32).unwrap();
    let trace = Tensor::einsum("ii", &[&n]).unwrap();
    assert_eq!(trace.to_scalar::<i32>().unwrap(), 5);
    assert_eq!(Tensor::einsum("ij,jk->ik", &[&n, &n]).unwrap().to_vec::<i32>().unwrap(), [7, 10, 15, 22]);
}

#[test]
fn einsum_refuses_what_is_no_equation_and_says_where() {
    let (m, x) = (randn(&[2, 3], 1), randn(&[3], 1));
    for (equation, operands, says) in [
        ("ij,jk->ik", &[&m][..], "2 operands"),
        ("ij", &[&x], "position 0"),
        ("i,jk", &[&x, &x], "position 2"),
        ("i$", &[&m], "position 1"),
        ("i..", &[&m], "position 1"),
        ("...i...", &[&m], "position 4"),
        ("ij->k", &[&m], "no operand"),
        ("ij->ii", &[&m], "twice in the output"),
        ("ij->i->j", &[&m], "arrow"),
        ("ij->i,j", &[&m], "position 5"),
        ("ii", &[&m], "size 3"),
        ("ij,ik", &[&m, &m.t().unwrap()], "size 3 here and 2 before"),
    ] {
        let e = Tensor::einsum(equation, operands).unwrap_err();
        assert_eq!(e.kind(), &ErrorKind::InvalidArgument, "{equation}");
        assert!(e.to_string().contains(says), "{equation}: {e}");
    }
    assert!(Tensor::einsum("", &[]).is_err());
    assert_eq!(Tensor::einsum("ij", &[&m.gt(0.0).unwrap()]).unwrap_err().kind(), &ErrorKind::UnsupportedDType);
    let wide = Tensor::ones([1; 5], DType::F32, &cpu()).unwrap();
    assert!(Tensor::einsum("abcde,fghij", &[&wide, &wide]).is_err());
}

#[test]
fn tensordot_outer_and_dot() {
    let (a, b) = (randn(&[2, 3, 4], 1), randn(&[4, 3, 5], 2));
    let y = a.tensordot(&b, &[1, -1], &[1, 0]).unwrap();
    assert_close(&v(&y), &v(&Tensor::einsum("ijk,kjl->il", &[&a, &b]).unwrap()), 1e-12);
    both(|x| x[0].tensordot(&x[1], &[1, 2], &[1, 0]), &[a.clone(), b.clone()]);
    assert_eq!(a.tensordot(&b, &[], &[]).unwrap().shape(), [2, 3, 4, 4, 3, 5]);
    assert_eq!(a.tensordot(&b, &[0], &[0]).unwrap_err().kind(), &ErrorKind::ShapeMismatch);
    assert_eq!(a.tensordot(&b, &[1], &[]).unwrap_err().kind(), &ErrorKind::InvalidArgument);
    assert_eq!(a.tensordot(&b, &[1, 1], &[1, 1]).unwrap_err().kind(), &ErrorKind::InvalidAxis);
    let (x, y) = (f64s(&[1.0, 2.0], &[2]), f64s(&[3.0, 4.0, 5.0], &[3]));
    assert_eq!(v(&x.outer(&y).unwrap()), [3.0, 4.0, 5.0, 6.0, 8.0, 10.0]);
    assert_eq!(x.dot(&x).unwrap().item().unwrap(), 5.0);
    assert_eq!(f64s(&[], &[0]).dot(&f64s(&[], &[0])).unwrap().item().unwrap(), 0.0);
    assert!(x.dot(&y).is_err() && a.outer(&x).is_err());
    both(|x| x[0].outer(&x[1]), &[x, y]);
}

#[test]
fn addmm_scales_both_and_beta_zero_ignores_nan() {
    let (a, b, c) = (randn(&[2, 3], 1), randn(&[3, 4], 2), randn(&[4], 3));
    let y = c.addmm(&a, &b, 0.5, -2.0).unwrap();
    let want = a.matmul(&b).unwrap().mul(-2.0).unwrap().add(c.mul(0.5).unwrap()).unwrap();
    assert_close(&v(&y), &v(&want), 1e-12);
    both(|x| x[0].addmm(&x[1], &x[2], 0.5, -2.0), &[c.clone(), a.clone(), b.clone()]);
    let nan = Tensor::full([4], NAN, DType::F64, &cpu()).unwrap();
    assert_eq!(v(&nan.addmm(&a, &b, 0, 1).unwrap()), v(&a.matmul(&b).unwrap()));
    let batch = [randn(&[2, 2, 4], 4), randn(&[2, 2, 3], 5), randn(&[2, 3, 4], 6)];
    both(|x| x[0].baddbmm(&x[1], &x[2], 1, 3.0), &batch);
    assert_eq!(randn(&[5], 1).addmm(&a, &b, 1, 1).unwrap_err().kind(), &ErrorKind::Broadcast);
    assert_eq!(c.addmm(&batch[1], &b, 1, 1).unwrap_err().kind(), &ErrorKind::ShapeMismatch);
}

#[test]
fn gemm_honours_transposes_leading_dimensions_and_scalars() {
    let (m, n, k) = (3, 4, 2);
    for dtype in [DType::F64, DType::F32, DType::F16, DType::BF16, DType::I64, DType::I8, DType::U8] {
        for (ta, tb) in [(false, false), (true, false), (false, true), (true, true)] {
            let (rows_a, columns_a) = if ta { (k, m) } else { (m, k) };
            let (rows_b, columns_b) = if tb { (n, k) } else { (k, n) };
            let (lda, ldb, ldc) = (columns_a + 2, columns_b + 1, n + 3);
            let fill = |n: usize, by: usize| {
                let values: Vec<i64> = (0..n).map(|i| (i * by % 4) as i64).collect();
                i64s(&values, &[n]).to_dtype(dtype).unwrap()
            };
            // The last row has no padding.
            let a = fill((rows_a - 1) * lda + columns_a, 3);
            let b = fill((rows_b - 1) * ldb + columns_b, 5);
            let c = fill((m - 1) * ldc + n, 7);
            let gemm = Gemm::new(m, n, k).trans_a(ta).trans_b(tb).lda(lda).ldb(ldb).ldc(ldc).alpha(2).beta(3);
            let got = v(&gemm.run(&a, &b, Some(&c)).unwrap());
            let (av, bv, mut want) = (v(&a), v(&b), v(&c));
            for i in 0..m {
                for j in 0..n {
                    let at =
                        |x: &[f64], t: bool, r: usize, c: usize, ld: usize| x[if t { c * ld + r } else { r * ld + c }];
                    let sum: f64 = (0..k).map(|l| at(&av, ta, i, l, lda) * at(&bv, tb, l, j, ldb)).sum();
                    want[i * ldc + j] = 2.0 * sum + 3.0 * want[i * ldc + j];
                }
            }
            assert_eq!(got, want, "{dtype} {ta} {tb}");
            assert_eq!(v(&c), v(&fill((m - 1) * ldc + n, 7)), "the functional form leaves C alone");
        }
    }
}

#[test]
fn gemm_reads_c_only_for_beta_and_scales_it_without_k() {
    let (a, b) = (f64s(&[1.0, 2.0], &[2]), f64s(&[3.0, 4.0], &[2]));
    let c = f64s(&[NAN, 5.0], &[2]);
    assert_eq!(v(&Gemm::new(1, 1, 2).run(&a, &b, Some(&c)).unwrap()), [11.0, 5.0]);
    assert!(v(&Gemm::new(1, 1, 2).beta(1).run(&a, &b, Some(&c)).unwrap())[0].is_nan());
    let empty = f64s(&[], &[0]);
    assert_eq!(
        v(&Gemm::new(1, 2, 0).beta(2).run(&empty, &empty, Some(&f64s(&[1.0, 5.0], &[2]))).unwrap()),
        [2.0, 10.0]
    );
    assert_eq!(v(&Gemm::new(1, 2, 0).run(&empty, &empty, Some(&c)).unwrap()), [0.0, 0.0]);
    assert_eq!(Gemm::new(2, 0, 1).run(&a, &empty, None).unwrap().shape(), [2, 0]);
    assert!(v(&Gemm::new(1, 1, 2).run(&f64s(&[0.0, 0.0], &[2]), &f64s(&[NAN, 1.0], &[2]), None).unwrap())[0].is_nan());
    // In place, on a part of a buffer that also holds A.
    let buffer = f64s(&[1.0, 2.0, 3.0, 4.0, 0.0, 0.0, 0.0, 0.0], &[8]);
    let (square, place) = (buffer.narrow(0, 0, 4).unwrap(), buffer.narrow(0, 4, 4).unwrap());
    let version = buffer.storage().version();
    Gemm::new(2, 2, 2).run_(&square, &square, &place).unwrap();
    assert_eq!(v(&buffer)[4..], [7.0, 10.0, 15.0, 22.0]);
    assert!(buffer.storage().version() > version);
}

#[test]
fn batched_gemm_strides() {
    let a = f64s(&[1.0, 2.0, 3.0, 4.0], &[4]);
    let b = f64s(&[5.0, 6.0], &[2]);
    // Two dot products with the same B, and a gap in C.
    let c = f64s(&[0.0, -1.0, 1.0], &[3]);
    let gemm = Gemm::new(1, 1, 2).strided_batched(2, 2, 0, 2).beta(1);
    assert_eq!(v(&gemm.run(&a, &b, Some(&c)).unwrap()), [17.0, -1.0, 40.0]);
    let y = Gemm::new(1, 1, 2).strided_batched(2, 2, 0, 1).run(&a, &b, None).unwrap();
    assert_eq!((y.shape(), v(&y)), (&[2, 1, 1][..], vec![17.0, 39.0]));
    let overlapping = Gemm::new(1, 1, 2).strided_batched(2, 2, 0, 0);
    assert_eq!(overlapping.run(&a, &b, Some(&c)).unwrap_err().kind(), &ErrorKind::InvalidArgument);
    // The matrices of C lie side by side in one row.
    let wide = Gemm::new(2, 1, 1).strided_batched(2, 2, 1, 1).ldc(2);
    assert_eq!(v(&wide.run(&a, &b, Some(&f64s(&[0.0; 4], &[4]))).unwrap()), [5.0, 18.0, 10.0, 24.0]);
}

#[test]
fn gemm_refuses_buffers_that_do_not_fit() {
    let (a, b, c) = (randn(&[6], 1), randn(&[6], 2), randn(&[4], 3));
    let gemm = Gemm::new(2, 2, 3);
    assert!(gemm.run(&a, &b, Some(&c)).is_ok());
    let kind = |e: Result<Tensor>| e.unwrap_err().kind().clone();
    assert_eq!(kind(gemm.lda(2).run(&a, &b, None)), ErrorKind::InvalidArgument);
    assert_eq!(kind(gemm.trans_a(true).lda(1).run(&a, &b, None)), ErrorKind::InvalidArgument);
    assert_eq!(kind(gemm.ldc(1).run(&a, &b, Some(&c))), ErrorKind::InvalidArgument);
    assert_eq!(kind(gemm.ldb(3).run(&a, &b, None)), ErrorKind::ShapeMismatch);
    assert_eq!(kind(gemm.lda(usize::MAX).run(&a, &b, None)), ErrorKind::Overflow);
    assert_eq!(kind(gemm.ldc(3).run(&a, &b, None)), ErrorKind::InvalidArgument);
    assert_eq!(kind(gemm.beta(1).run(&a, &b, None)), ErrorKind::InvalidArgument);
    assert_eq!(kind(gemm.run(&a, &f32s(&[0.0; 6], &[6]), None)), ErrorKind::DTypeMismatch);
    let strided = randn(&[2, 3], 1).t().unwrap();
    assert_eq!(kind(gemm.run(&strided, &b, None)), ErrorKind::InvalidArgument);
    let ints = i64s(&[1; 6], &[6]);
    assert_eq!(kind(gemm.alpha(0.5).run(&ints, &ints, None)), ErrorKind::InvalidArgument);
    let tracked = a.with_grad().unwrap();
    assert_eq!(kind(gemm.run(&tracked, &b, None)), ErrorKind::Autograd);
    let _guard = no_grad_guard();
    assert!(gemm.run(&tracked, &b, None).is_ok());
}

#[test]
fn distances_agree_with_the_reference_and_coincide_smoothly() {
    let x = f64s(&[1.0, -2.0, 0.5, 3.0, 0.0, -1.0], &[2, 3]);
    for (p, d) in [(1.0, 5.5), (2.0, 10.25f64.sqrt()), (3.0, 2.685_842_677_472_416), (f64::INFINITY, 2.0)] {
        assert_close(&v(&x.cdist(&x, p).unwrap()), &[0.0, d, d, 0.0], 1e-14);
        let tracked = x.with_grad().unwrap();
        let g = tracked.cdist(&x, p).unwrap().sum_all().unwrap().backward().unwrap();
        assert!(v(g.get(&tracked).unwrap()).iter().all(|g| g.is_finite()));
    }
    let far = f64s(&[1e8, 1.0, 1e8, 2.0], &[2, 2]);
    assert_eq!(v(&far.cdist(&far, 2.0).unwrap()), [0.0, 1.0, 1.0, 0.0]);
    both(|x| x[0].cdist(&x[1], 2.0), &[randn(&[2, 3, 2], 1), randn(&[4, 2], 2)]);
    both(|x| x[0].cdist(&x[1], 3.0), &[randn(&[3, 2], 1), randn(&[2, 2], 2)]);
    assert_eq!(randn(&[2, 0], 1).cdist(&randn(&[3, 0], 1), f64::INFINITY).unwrap().shape(), [2, 3]);
    assert_eq!(x.cdist(&randn(&[2, 2], 1), 2.0).unwrap_err().kind(), &ErrorKind::ShapeMismatch);

    let (a, b) = (x.select(0, 0).unwrap(), x.select(0, 1).unwrap());
    assert_close(&v(&a.pairwise_distance(&b, 2.0, 1e-6, false).unwrap()), &[3.201_561], 1e-5);
    assert_close(&v(&a.cosine_similarity(&b, 0, 1e-8).unwrap()), &[2.5 / (5.25f64 * 10.0).sqrt()], 1e-14);
    both(|x| x[0].pairwise_distance(&x[1], 2.0, 1e-6, true), &[randn(&[2, 3], 1), randn(&[3], 2)]);
    both(|x| x[0].cosine_similarity(&x[1], -1, 1e-8), &[randn(&[2, 3], 1), randn(&[3], 2)]);
    let zero = f64s(&[0.0, 0.0], &[2]).with_grad().unwrap();
    let y = zero.cosine_similarity(&f64s(&[1.0, 2.0], &[2]), 0, 1e-8).unwrap();
    assert_eq!(y.item().unwrap(), 0.0);
    assert!(v(y.backward().unwrap().get(&zero).unwrap()).iter().all(|g| g.is_finite()));
    assert!(a.cosine_similarity(&b, 0, 0.0).is_err() && a.cosine_similarity(&b, 1, 1e-8).is_err());
}

#[test]
fn cross_and_kronecker_products() {
    let (a, b) = (f64s(&[1.0, 2.0, 3.0], &[3]), f64s(&[4.0, 5.0, 7.0], &[3]));
    assert_eq!(v(&a.cross(&b, 0).unwrap()), [-1.0, 5.0, -3.0]);
    for x in layouts(&[3, 2], 1) {
        both(|x| x[0].cross(&x[1], 0), &[x, randn(&[3, 2], 2)]);
    }
    assert_eq!(a.cross(&randn(&[2], 1), 0).unwrap_err().kind(), &ErrorKind::ShapeMismatch);
    assert_eq!(randn(&[2], 1).cross(&randn(&[2], 1), 0).unwrap_err().kind(), &ErrorKind::ShapeMismatch);
    let m = i64s(&[1, 2, 3, 4], &[2, 2]);
    let k = m.kron(&i64s(&[1, 10], &[2])).unwrap();
    assert_eq!((k.shape(), k.to_vec::<i64>().unwrap()), (&[2, 4][..], vec![1, 10, 2, 20, 3, 30, 4, 40]));
    let k = i64s(&[1, 10], &[2]).kron(&m).unwrap();
    assert_eq!((k.shape(), k.to_vec::<i64>().unwrap()), (&[2, 4][..], vec![1, 2, 10, 20, 3, 4, 30, 40]));
    both(|x| x[0].kron(&x[1]), &[randn(&[2, 3], 1), randn(&[2, 1, 2], 2)]);
    assert_eq!(randn(&[1; 5], 1).kron(&a).unwrap_err().kind(), &ErrorKind::InvalidArgument);
}

#[test]
fn distances_and_cross_products_of_narrow_dtypes_are_rounded_once() {
    let bytes = |v: u8| Tensor::from_vec([v], [1, 1], &cpu()).unwrap();
    assert_eq!(bytes(1).cdist(&bytes(2), 2.0).unwrap().item().unwrap(), 1.0);
    assert_eq!(bytes(1).pairwise_distance(&bytes(2), 1.0, 0.0, false).unwrap().item().unwrap(), 1.0);
    let half = |v: &[f64]| f64s(v, &[1, v.len()]).to_dtype(DType::F16).unwrap();
    assert_eq!(half(&[2048.0; 3]).cdist(&half(&[-1.0; 3]), 1.0).unwrap().item().unwrap(), 6148.0);
    let c = half(&[300.0, 300.0, 1.0]).cross(&half(&[300.0, 301.0, 1.0]), 1).unwrap();
    assert_eq!(c.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap(), [-1.0, 0.0, 300.0]);
    let y =
        Tensor::einsum("i,k->k", &[&half(&[1000.0; 100]).flatten(0, 1).unwrap(), &half(&[0.001]).squeeze(0).unwrap()]);
    assert!((y.unwrap().item().unwrap() - 100.0).abs() < 0.1);
}

#[test]
fn distances_take_the_highest_rank_and_check_the_kind_of_norm_first() {
    let x = randn(&[1, 1, 2, 1, 1, 1, 3, 2], 1);
    assert_eq!(x.cdist(&x, 2.0).unwrap().shape(), [1, 1, 2, 1, 1, 1, 3, 3]);
    assert!(
        Tensor::zeros([3, 0], DType::F32, &cpu())
            .unwrap()
            .cdist(&Tensor::zeros([2, 0], DType::F32, &cpu()).unwrap(), f64::NAN)
            .is_err()
    );
    let wide = Tensor::ones([1], DType::F32, &cpu()).unwrap().expand([1 << 40]).unwrap();
    assert!(wide.kron(&wide).is_err());
}

#[test]
fn nothing_is_written_at_any_distance() {
    let a = f64s(&[], &[0]);
    let y = Gemm::new(0, 2, 0).strided_batched(4, 0, 0, isize::MAX as usize).run(&a, &a, None);
    assert!(y.is_err() || y.unwrap().numel() == 0);
}
