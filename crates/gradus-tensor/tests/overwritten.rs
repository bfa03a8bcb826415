//! Corner cases of in-place writes that random programs found (`cargo xtask fuzz-grad`).
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;

use common::{cpu, f64s, gradient, i64s, values};
use gradus_tensor::autograd::{
    Context, CustomOp, allow_mutation_on_saved_tensors_guard, apply_custom, saved_tensors_hooks_guard, strict,
    strict_inplace, strict_inplace_guard,
};
use gradus_tensor::{
    BackwardOptions, DType, ErrorKind, Result, Tensor, checkpoint, enable_grad_guard, grad, no_grad_guard, vjp,
};

#[test]
fn a_region_that_writes_into_what_it_captured_is_refused_even_if_it_gives_it() {
    let w = f64s(&[2.0], &[1]).with_grad().unwrap();
    let x = f64s(&[3.0], &[1]).with_grad().unwrap();
    let inside = w.clone();
    let f = move |x: &[Tensor]| {
        let alias = inside.detach();
        alias.mul_(0.75)?;
        Ok([x[0].square()?, alias])
    };
    let e = checkpoint(f, &[&x]).unwrap_err();
    assert!(e.message().contains("outlives the region"), "{e}");
}

#[test]
fn what_a_region_makes_and_writes_may_be_given_and_overwritten_later() {
    let x = f64s(&[3.0], &[1]).with_grad().unwrap();
    let f = |x: &[Tensor]| {
        let made = x[0].detach().zeros_like()?;
        made.fill_(5.0)?;
        Ok([x[0].mul(&made)?, made])
    };
    let [y, made] = checkpoint(f, &[&x]).unwrap();
    assert_eq!(values(&made), [5.0]);
    made.fill_(7.0).unwrap();
    // The second run makes and fills another tensor.
    assert_eq!(values(y.backward().unwrap().get(&x).unwrap()), [5.0]);
}

#[test]
fn a_computed_tensor_that_was_overwritten_is_not_what_a_function_gives() {
    let x = f64s(&[3.0], &[1]).with_grad().unwrap();
    let f = |x: &[Tensor]| {
        let y = x[0].square()?;
        y.detach().fill_(1.0)?;
        Ok(y)
    };
    for e in [checkpoint(f, &[&x]).unwrap_err(), vjp(f, &[&x], &[&f64s(&[1.0], &[1])]).unwrap_err()] {
        assert_eq!(*e.kind(), ErrorKind::Autograd);
        assert!(e.message().contains("which fill_ overwrote"), "{e}");
    }
}

#[test]
fn gradients_of_one_tensor_asked_for_twice_share_no_memory() {
    let x = f64s(&[1.0, 2.0], &[2]).with_grad().unwrap();
    for options in [BackwardOptions::new(), BackwardOptions::new().create_graph()] {
        let y = x.square().unwrap().sum_all().unwrap();
        let g = grad(&[&y], &[&x, &x], None, options).unwrap();
        let [Some(a), Some(b)] = &g[..] else { panic!("{g:?}") };
        assert_eq!(a.requires_grad(), b.requires_grad());
        let _guard = no_grad_guard();
        a.fill_(0.0).unwrap();
        assert_eq!(values(b), [2.0, 4.0]);
    }
}

#[test]
fn the_elements_of_a_gradient_share_no_memory() {
    let x = f64s(&[1.0, 2.0, 3.0], &[3]).with_grad().unwrap();
    let g = grad(&[&x.sum_all().unwrap()], &[&x], None, BackwardOptions::new()).unwrap().swap_remove(0).unwrap();
    g.narrow(0, 1, 1).unwrap().fill_(0.0).unwrap();
    assert_eq!(values(&g), [1.0, 0.0, 1.0]);
}

#[test]
fn a_hook_before_a_node_changes_what_goes_on_and_not_what_was_asked_for() {
    let x = f64s(&[3.0], &[1]).with_grad().unwrap();
    let h = x.square().unwrap();
    let double = |g: &[Option<Tensor>]| Ok(Some(vec![g[0].as_ref().map(|g| g.mul(2.0)).transpose()?]));
    let _hook = h.grad_fn().unwrap().register_prehook(double).unwrap();
    let y = h.mul(10.0).unwrap();
    let keep = BackwardOptions::new().retain_graph();
    let alone = grad(&[&y], &[&h], None, keep).unwrap();
    let both = grad(&[&y], &[&h, &x], None, keep).unwrap();
    assert_eq!(values(alone[0].as_ref().unwrap()), [10.0]);
    assert_eq!(values(both[0].as_ref().unwrap()), [10.0]);
    assert_eq!(values(both[1].as_ref().unwrap()), [120.0]);
}

#[test]
fn rows_of_a_buffer_are_kept_apart_however_many_are_written() {
    let x = f64s(&[2.0], &[1]).with_grad().unwrap();
    for n in [16, 17, 300, 3000] {
        let buffer = f64s(&vec![0.0; n], &[n]);
        let mut terms = vec![];
        for i in 0..n {
            let row = buffer.narrow(0, i, 1).unwrap();
            row.fill_(i as f64).unwrap();
            terms.push(x.mul(&row).unwrap());
        }
        let sum = terms.iter().skip(1).fold(terms[0].clone(), |s, t| s.add(t).unwrap());
        assert_eq!(gradient(&sum, &x).unwrap(), [(n * (n - 1) / 2) as f64]);
        // Only the overwritten row makes its product stale.
        buffer.narrow(0, n / 2, 1).unwrap().fill_(0.0).unwrap();
        for (i, t) in terms.iter().enumerate().skip(n / 2 - 1).take(3) {
            let kept = t.grad_fn().unwrap().stale();
            assert_eq!(kept.len(), usize::from(i == n / 2), "{i} of {n}");
        }
    }
}

#[test]
fn a_cache_may_be_filled_column_by_column() {
    let x = f64s(&[2.0], &[1]).with_grad().unwrap();
    let n = 1500;
    let cache = Tensor::zeros([2, n, 2], DType::F64, &cpu()).unwrap();
    let column = |i: usize| cache.narrow(1, i, 1).unwrap();
    let mut terms = vec![];
    for i in 0..n {
        column(i).fill_(i as f64).unwrap();
        terms.push(x.mul(column(i)).unwrap());
    }
    let stale = || terms.iter().filter(|t| !t.grad_fn().unwrap().stale().is_empty()).count();
    assert_eq!(stale(), 0);
    column(7).fill_(0.0).unwrap();
    assert_eq!(stale(), 1);
    assert!(terms[7].sum_all().unwrap().backward().is_err());
}

#[test]
fn what_lies_between_places_written_over_and_over_was_never_written() {
    let x = f64s(&[2.0], &[1]).with_grad().unwrap();
    let b = f64s(&[1.0; 9], &[9]);
    let y = x.mul(b.narrow(0, 4, 1).unwrap()).unwrap();
    for i in 0..5000 {
        b.narrow(0, i % 2 * 8, 1).unwrap().fill_(0.0).unwrap();
    }
    assert_eq!(gradient(&y, &x).unwrap(), [1.0]);
}

#[test]
fn a_hook_may_pack_into_the_rows_of_one_buffer() {
    let x = f64s(&[1.0], &[1]).with_grad().unwrap();
    let (buffer, n) = (f64s(&[0.0; 64], &[64]), std::sync::atomic::AtomicUsize::new(0));
    let pack = move |t: &Tensor| {
        let row = buffer.narrow(0, n.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 1)?;
        row.copy_(t)?;
        Ok(row)
    };
    let _guard = saved_tensors_hooks_guard(pack, |row: &Tensor| row.copy());
    let y = (0..20).fold(x.clone(), |y, _| y.square().unwrap());
    assert_eq!(gradient(&y, &x).unwrap(), [f64::from(1 << 20)]);
}

#[test]
fn a_write_between_the_elements_of_a_kept_view_changes_none() {
    let parts: [fn(&Tensor) -> Result<Tensor>; 7] = [
        |m| m.narrow(1, 0, 1),
        |m| m.narrow(1, 3, 1),
        |m| m.slice(1, 1, 4, 2),
        |m| m.slice(1, 2, 4, 2)?.slice(0, 0, 4, 2),
        |m| m.t()?.narrow(0, 2, 1)?.slice(1, 1, 4, 2),
        |m| m.narrow(0, 1, 2)?.narrow(1, 1, 2),
        |m| m.diagonal(0, 0, 1),
    ];
    let places = f64s(&(0..16).map(f64::from).collect::<Vec<_>>(), &[4, 4]);
    let (mut beside, mut over) = (0, 0);
    for kept in parts {
        for written in parts {
            let m = places.copy().unwrap();
            let want = values(&kept(&m).unwrap().contiguous().unwrap());
            let shares = values(&written(&m).unwrap().contiguous().unwrap()).iter().any(|v| want.contains(v));
            let k = kept(&m).unwrap();
            let x = k.ones_like().unwrap().with_grad().unwrap();
            let y = x.mul(&k).unwrap();
            written(&m).unwrap().fill_(-1.0).unwrap();
            match gradient(&y, &x) {
                Ok(g) => assert!(!shares && g == want, "{g:?} {want:?}"),
                Err(e) => assert!(shares && e.message().contains("which fill_ overwrote"), "{e}"),
            }
            (beside, over) = (beside + usize::from(!shares), over + usize::from(shares));
        }
    }
    assert!(beside > 10 && over > 20, "{beside} {over}");
}

#[test]
fn a_column_that_is_assigned_leaves_the_others() {
    let x = f64s(&[2.0, 2.0], &[2]).with_grad().unwrap();
    let m = f64s(&[1.0, 2.0, 3.0, 4.0], &[2, 2]);
    let column = |i| m.narrow(1, i, 1).unwrap().squeeze(1).unwrap();
    let y = strict_inplace(|| x.mul(column(0)).unwrap());
    m.index_assign_((.., 1), 9.0).unwrap();
    assert!(m.index_assign_((1, ..), 9.0).unwrap_err().message().contains("mul needs its input 1"));
    let strict = strict(|| x.mul(column(0)).unwrap());
    m.index_assign_((.., 1), 8.0).unwrap();
    assert_eq!((gradient(&y, &x).unwrap(), gradient(&strict, &x).unwrap()), (vec![1.0, 3.0], vec![1.0, 3.0]));
    // The unwritten part of a computed tensor can still be used.
    let z = x.expand([2, 2]).unwrap().square().unwrap();
    let first = z.narrow(1, 0, 1).unwrap();
    z.detach().narrow(1, 1, 1).unwrap().fill_(0.0).unwrap();
    assert_eq!(values(&first.mul(3.0).unwrap()), [12.0, 12.0]);
    assert!(z.mul(3.0).unwrap_err().message().contains("which fill_ overwrote"));
}

#[test]
fn writes_by_an_index_tensor_are_those_of_its_slices() {
    let x = f64s(&[2.0; 2], &[2]).with_grad().unwrap();
    let at = |i: &[i64]| Tensor::from_vec(i, [i.len()], &cpu()).unwrap();
    let rows = |i: &[i64]| Tensor::from_vec(i.repeat(2), [2, i.len()], &cpu()).unwrap().t().unwrap();
    type Write = fn(&Tensor, &Tensor, &Tensor, &Tensor) -> Result<()>;
    let writes: [Write; 6] = [
        |w, i, _, _| w.index_fill_(0, i, 9.0),
        |w, i, _, v| w.index_copy_(0, i, v),
        |w, i, _, v| w.index_add_(0, i, v),
        |w, i, _, v| w.index_put_(&[&i.sub(5)?], v, false),
        |w, _, i, v| w.scatter_(0, i, v),
        |w, _, i, v| w.scatter_add_(-2, i, v),
    ];
    for (number, write) in writes.iter().enumerate() {
        // The graph needs rows 2 and 3 of 5.
        for (index, meets) in [(vec![], false), (vec![0, 1], false), (vec![4, 4], false), (vec![1, 3], true)] {
            let w = f64s(&[1.0; 10], &[5, 2]);
            let y = x.mul(w.narrow(0, 2, 2).unwrap()).unwrap();
            let sevens = f64s(&vec![7.0; index.len() * 2], &[index.len(), 2]);
            write(&w, &at(&index), &rows(&index), &sevens).unwrap();
            assert_eq!(y.grad_fn().unwrap().stale().is_empty(), !meets, "{number}, {index:?}");
            let changed: Vec<bool> = values(&w).chunks(2).map(|row| row != [1.0; 2]).collect();
            let named: Vec<bool> = (0..5).map(|row| index.contains(&row)).collect();
            assert_eq!(changed, named, "{number}, {index:?}");
        }
    }
}

#[test]
fn views_whose_elements_interleave_are_written_and_told_apart() {
    // Windows of 2 over three rows of 3 make six rows. Every other row is taken: places 0 3 2 5 4 7.
    let x = f64s(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0], &[3, 3]);
    let view = x.unfold_axis(0, 2, 1).unwrap().reshape([6, 2]).unwrap().slice(0, 0, 6, 2).unwrap();
    assert_eq!((view.shape(), view.layout().strides()), (&[3, 2][..], &[2, 3][..]));
    let between = x.reshape([9]).unwrap().slice(0, 1, 7, 5).unwrap();
    let w = f64s(&[2.0, 3.0], &[2]).with_grad().unwrap();
    let y = between.mul(&w).unwrap().sum_all().unwrap();
    view.mul_(10.0).unwrap();
    assert_eq!(values(&x), [0.0, 1.0, 20.0, 30.0, 40.0, 50.0, 6.0, 70.0, 8.0]);
    // Places 1 and 6 were not written.
    assert_eq!(values(y.backward().unwrap().get(&w).unwrap()), [1.0, 6.0]);
    let y = between.mul(&w).unwrap().sum_all().unwrap();
    x.slice(1, 1, 2, 1).unwrap().fill_(0.0).unwrap();
    assert!(y.backward().is_err());
    // If elements share a place, the write is refused.
    let shared = x.unfold_axis(0, 2, 1).unwrap();
    assert!(shared.mul_(10.0).unwrap_err().message().contains("share one place"));
}

/// The square of its input.
struct Square;

impl CustomOp for Square {
    fn name(&self) -> &str {
        "my_square"
    }
    fn forward(&self, x: &[Tensor]) -> Result<Vec<Tensor>> {
        Ok(vec![x[0].mul(&x[0])?])
    }
    fn backward(&self, ctx: &Context<'_>, g: &[Option<Tensor>]) -> Result<Vec<Option<Tensor>>> {
        let Some(g) = &g[0] else { return Ok(vec![None]) };
        Ok(vec![Some(ctx.input(0)?.mul(g)?.mul(2.0)?)])
    }
}

#[test]
fn what_is_read_again_is_known_element_by_element() {
    let read: [fn(&Tensor) -> Result<Tensor>; 3] = [
        |x| Ok(apply_custom(&Arc::new(Square), &[x])?.swap_remove(0)),
        |x| checkpoint(|x| x[0].square(), &[x]),
        |x| {
            let inside = x.clone();
            checkpoint(move |_| inside.square(), &[])
        },
    ];
    let mut refused = 0;
    for (i, read) in read.into_iter().enumerate() {
        for switch in [enable_grad_guard, strict_inplace_guard, allow_mutation_on_saved_tensors_guard] {
            let _switch = switch();
            let x = f64s(&[1.0, 2.0, 3.0, 4.0], &[2, 1, 2]).with_grad().unwrap();
            // Elements 1 and 3 are read. The write goes to elements 0 and 2.
            let y = read(&x.slice(2, 1, 2, 2).unwrap()).unwrap().sum_all().unwrap();
            x.detach().index_add_(2, &i64s(&[0], &[1]), &f64s(&[7.0, 7.0], &[2, 1, 1])).unwrap();
            let g = y.backward_with(BackwardOptions::new().retain_graph()).unwrap();
            assert_eq!(values(g.get(&x).unwrap()), [0.0, 4.0, 0.0, 8.0], "{i}");
            // After a write to elements that are read, one of three things happens: the write is refused, the gradient
            // is refused, or the graph keeps a copy.
            let written = x.detach().slice(2, 1, 2, 1).unwrap().fill_(0.0);
            match y.backward() {
                Ok(g) => assert_eq!(values(g.get(&x).unwrap()), [0.0, 4.0, 0.0, 8.0], "{i}"),
                Err(e) => assert!(written.is_ok() && e.message().contains("fill_"), "{e}"),
            }
            refused += usize::from(written.is_err());
        }
    }
    assert_eq!(refused, 5);
}
