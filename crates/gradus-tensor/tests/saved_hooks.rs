//! Hooks that move saved values to disk, to the host or to half precision: memory use, higher derivatives, errors, and
//! changed values.
#![allow(clippy::unwrap_used)]

mod common;

use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use common::{another_cpu, cpu, f64s, gradient, leaf, randn, values};
use gradus_tensor::autograd::{
    allow_mutation_on_saved_tensors_guard, checkpoint, gradgradcheck, saved_tensors_hooks_guard, strict_inplace_guard,
};
use gradus_tensor::{BackwardOptions, DType, Error, ErrorKind, Result, Tensor, grad, no_grad_guard};

/// Bytes on the host, with the shape and dtype that are needed to read them.
type Host = (Vec<u8>, Vec<usize>, DType);

fn to_host(t: &Tensor) -> Result<Host> {
    Ok((t.to_bytes()?, t.shape().to_vec(), t.dtype()))
}

fn from_host((bytes, shape, dtype): &Host) -> Result<Tensor> {
    Tensor::from_bytes(bytes, shape, *dtype, &cpu())
}

#[test]
fn values_on_the_host_on_disk_and_in_half_precision_give_the_gradient() {
    let x = leaf(&[0.5, -1.5, 2.0]);
    let f = || x.square().unwrap().mul(x.exp().unwrap()).unwrap().softmax(0).unwrap().mul(&x).unwrap();
    let want = gradient(&f(), &x).unwrap();
    {
        let _guard = saved_tensors_hooks_guard(to_host, from_host);
        let y = f();
        for _ in 0..2 {
            assert_eq!(gradient(&y, &x).unwrap(), want);
        }
    }
    let folder = std::env::temp_dir().join(format!("gradus-saved-hooks-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (count, place) = (Cell::new(0), folder.clone());
    let io = |e| Error::io("offload", "a file", e);
    let to_disk = move |t: &Tensor| {
        let path = place.join(count.replace(count.get() + 1).to_string());
        let (bytes, shape, dtype) = to_host(t)?;
        std::fs::write(&path, bytes).map_err(io)?;
        Ok((path, shape, dtype))
    };
    let y = {
        let _guard = saved_tensors_hooks_guard(
            to_disk,
            move |(path, shape, dtype): &(std::path::PathBuf, Vec<usize>, DType)| {
                Tensor::from_bytes(&std::fs::read(path).map_err(io)?, shape, *dtype, &cpu())
            },
        );
        f()
    };
    assert_eq!(gradient(&y, &x).unwrap(), want);
    // A missing file is reported as such. Another attempt works once the file is back.
    let moved = folder.join("gone");
    std::fs::rename(folder.join("0"), &moved).unwrap();
    let e = gradient(&y, &x).unwrap_err();
    assert!(e.kind() == &ErrorKind::Io && e.to_string().contains("unpack hook failed"), "{e}");
    std::fs::rename(&moved, folder.join("0")).unwrap();
    assert_eq!(gradient(&y, &x).unwrap(), want);
    std::fs::remove_dir_all(&folder).unwrap();
    let _guard = saved_tensors_hooks_guard(|t| t.to_dtype(DType::BF16), |p| p.to_dtype(DType::F64));
    for (g, w) in gradient(&f(), &x).unwrap().iter().zip(&want) {
        assert!((g - w).abs() < 0.05 * (1.0 + w.abs()), "{g} for {w}");
    }
}

#[test]
fn packed_values_let_their_memory_go() {
    let device = another_cpu();
    let x = Tensor::ones([1 << 16], DType::F32, &device).unwrap().with_grad().unwrap();
    let in_use = || device.backend().memory_stats().in_use;
    let deep = || (0..8).fold(x.clone(), |y, _| y.sin().unwrap());
    let start = in_use();
    let plain = deep();
    let kept = in_use() - start;
    assert!(kept >= 8 << 18, "{kept}");
    drop(plain);
    let place = device.clone();
    let _guard = saved_tensors_hooks_guard(to_host, move |(bytes, shape, dtype): &Host| {
        Tensor::from_bytes(bytes, shape, *dtype, &place)
    });
    let y = deep();
    assert!(in_use() - start <= 1 << 18, "only the result: {}", in_use() - start);
    assert_eq!(y.graph_stats().saved_bytes, 0);
    let (loss, _) = (y.sum_all().unwrap(), drop(y));
    let _ = loss.backward_with(BackwardOptions::new().retain_graph()).unwrap();
    assert!(in_use() - start <= 1 << 10, "nothing unpacked stays: {}", in_use() - start);
}

#[test]
fn unpack_runs_once_in_each_pass_and_packed_values_go_with_the_graph() {
    let x = leaf(&[2.0]);
    let (packs, unpacks) = (Rc::new(Cell::new(0)), Arc::new(AtomicUsize::new(0)));
    let (packed, unpacked) = (packs.clone(), unpacks.clone());
    let alive = Arc::new(());
    let token = alive.clone();
    let guard = saved_tensors_hooks_guard(
        move |t| {
            packed.set(packed.get() + 1);
            Ok((t.to_vec::<f64>()?, token.clone()))
        },
        move |(v, _)| {
            unpacked.fetch_add(1, Ordering::Relaxed);
            Tensor::from_vec(v, [1], &cpu())
        },
    );
    // exp saves a single value.
    let y = x.exp().unwrap();
    // Neither a sum nor a view saves anything.
    let y = y.add(1.0).unwrap().reshape([1, 1]).unwrap().sum_all().unwrap();
    drop(guard);
    let z = y.mul(3.0).unwrap();
    assert_eq!((packs.get(), unpacks.load(Ordering::Relaxed)), (1, 0));
    for pass in 1..=3 {
        let _ = z.backward_with(BackwardOptions::new().retain_graph()).unwrap();
        assert_eq!(unpacks.load(Ordering::Relaxed), pass);
    }
    assert_eq!(Arc::strong_count(&alive), 2);
    let _ = z.backward().unwrap();
    assert_eq!(Arc::strong_count(&alive), 1, "freed");
    assert!(z.backward().unwrap_err().to_string().contains("freed"));
}

#[test]
fn gradients_of_any_order_go_through_packed_values() {
    let f = |x: &[Tensor]| {
        let _guard = saved_tensors_hooks_guard(to_host, from_host);
        x[0].mul(&x[1])?.softmax(-1)?.mul(&x[0].tanh()?)?.matmul(&x[1].t()?)
    };
    gradgradcheck(f, &[randn(&[2, 3], 1), randn(&[2, 3], 2)]).unwrap();
    // The nodes of a recorded gradient are packed as well, if the gradient is computed under the guard.
    let x = leaf(&[0.7]);
    let _guard = saved_tensors_hooks_guard(to_host, from_host);
    let mut g = x.sin().unwrap();
    for want in [0.7f64.cos(), -0.7f64.sin(), -0.7f64.cos()] {
        g = grad(&[&g], &[&x], None, BackwardOptions::new().create_graph()).unwrap()[0].clone().unwrap();
        assert!((g.item().unwrap() - want).abs() < 1e-12);
    }
    assert!(g.grad_fn().is_some());
}

#[test]
fn pack_sees_where_a_value_comes_from_and_the_last_guard_counts() {
    let (x, w) = (leaf(&[2.0]), leaf(&[3.0]));
    let log = Rc::new(std::cell::RefCell::new(vec![]));
    let note = |name: &'static str| {
        let log = log.clone();
        move |t: &Tensor| {
            // Values that a hook computes are neither recorded nor packed.
            assert!(!t.mul(t)?.requires_grad());
            log.borrow_mut().push((name, t.is_leaf(), t.requires_grad()));
            Ok(t.detach())
        }
    };
    let outer = saved_tensors_hooks_guard(note("outer"), |t: &Tensor| Ok(t.clone()));
    let u = x.mul(&w).unwrap();
    let inner = saved_tensors_hooks_guard(note("inner"), |t: &Tensor| Ok(t.clone()));
    let y = u.exp().unwrap();
    drop(inner);
    let y = y.softmax(0).unwrap();
    drop(outer);
    let y = y.mul(&x).unwrap();
    let seen = log.borrow().clone();
    assert_eq!(
        seen,
        [
            ("outer", true, true),
            ("outer", true, true),
            ("inner", false, true),
            // The result of softmax, which has no graph yet.
            ("outer", true, false),
        ]
    );
    gradient(&y, &x).unwrap();
    // Guards may end in any order.
    let first = saved_tensors_hooks_guard(note("first"), |t: &Tensor| Ok(t.clone()));
    let second = saved_tensors_hooks_guard(note("second"), |t: &Tensor| Ok(t.clone()));
    drop(first);
    drop(second);
    let y = x.square().unwrap();
    assert_eq!(gradient(&y, &x).unwrap(), [4.0]);
}

#[test]
fn a_graph_shows_what_is_packed() {
    let x = leaf(&[2.0]);
    let _guard = saved_tensors_hooks_guard(to_host, from_host);
    let y = x.square().unwrap();
    assert_eq!(y.grad_fn().unwrap().saved(), [("input 0 (packed)".to_owned(), vec![1], DType::F64, 0)]);
    assert!(y.to_dot().contains("keeps input 0 (packed): [1] f64"));
}

#[test]
fn what_unpack_gives_is_checked() {
    let x = leaf(&[1.0, 2.0]);
    let run = |unpack: fn(&Tensor) -> Result<Tensor>| {
        let _guard = saved_tensors_hooks_guard(Tensor::copy, unpack);
        let y = x.square().unwrap().sum_all().unwrap();
        let e = y.backward().unwrap_err();
        assert_eq!(e.kind(), &ErrorKind::Autograd);
        let text = e.to_string();
        assert!(
            text.contains("input 0 of square") && text.contains("saved_hooks.rs") && text.contains("help"),
            "{text}"
        );
        text
    };
    assert!(run(|t| t.reshape([1, 2])).contains("another shape, dtype or device"));
    assert!(run(|t| t.to_dtype(DType::F32)).contains("f32"));
    run(|t| Tensor::from_vec(t.to_vec::<f64>()?, [2], &another_cpu()));
}

#[test]
fn hooks_that_fail_change_nothing() {
    let x = leaf(&[1.0, 2.0]);
    let fail = |at: &str| Error::argument("vault", format!("no room at {at}"));
    {
        let _guard = saved_tensors_hooks_guard(move |_| Err::<Tensor, _>(fail("the inn")), |t| Ok(t.clone()));
        let e = x.square().unwrap_err();
        assert!(e.kind() == &ErrorKind::InvalidArgument && e.op() == "saved_tensors_hooks", "{e}");
        for word in ["pack hook failed on input 0 of square", "no room at the inn", "saved_hooks.rs"] {
            assert!(e.to_string().contains(word), "{e}");
        }
        assert!(x.detach().square().is_ok(), "nothing to keep");
    }
    // Unpacking fails at the node recorded first, after the other nodes have run. The whole graph stays intact.
    let works = Arc::new(Mutex::new(false));
    let state = works.clone();
    let y = {
        let _guard = saved_tensors_hooks_guard(to_host, move |h| {
            if *state.lock().unwrap() { from_host(h) } else { Err(fail("the well")) }
        });
        x.square().unwrap()
    };
    let z = y.exp().unwrap().mul(&y).unwrap().sum_all().unwrap();
    let e = z.backward().unwrap_err();
    assert!(e.to_string().contains("unpack hook failed on input 0 of square: no room at the well"), "{e}");
    *works.lock().unwrap() = true;
    let want: Vec<f64> = [1.0f64, 2.0].iter().map(|x| (x * x).exp() * (1.0 + x * x) * 2.0 * x).collect();
    common::assert_close(&values(z.backward().unwrap().get(&x).unwrap()), &want, 1e-12);
    assert!(z.backward().unwrap_err().to_string().contains("freed"));
}

/// Checks for the error about a packed value that was overwritten.
fn assert_caught(result: Result<Vec<f64>>) {
    let e = result.unwrap_err();
    let text = e.to_string();
    assert!(e.kind() == &ErrorKind::Autograd && text.contains("overw") && text.contains("saved_hooks.rs"), "{text}");
}

#[test]
fn changed_packed_values_are_caught() {
    let x = leaf(&[1.0, 2.0]);
    let same = |t: &Tensor| Ok(t.clone());
    // The packed value shares its storage with `w`, which the user overwrites.
    let w = f64s(&[3.0, 4.0], &[2]);
    let y = {
        let _guard = saved_tensors_hooks_guard(same, same);
        x.mul(&w).unwrap()
    };
    assert_eq!(gradient(&y, &x).unwrap(), [3.0, 4.0]);
    w.fill_(0.0).unwrap();
    assert_caught(gradient(&y, &x));
    // All values are packed into the same scratch tensor.
    let scratch = f64s(&[0.0, 0.0], &[2]);
    let shared = scratch.clone();
    let y = {
        let _guard = saved_tensors_hooks_guard(
            move |t| {
                shared.copy_(t)?;
                Ok(shared.clone())
            },
            same,
        );
        let y = x.mul(f64s(&[5.0, 6.0], &[2])).unwrap();
        assert_eq!(gradient(&y, &x).unwrap(), [5.0, 6.0], "still what was packed");
        let _ = x.mul(f64s(&[7.0, 8.0], &[2])).unwrap();
        y
    };
    assert_caught(gradient(&y, &x));
    // `unpack` overwrites the packed value, and returns another tensor made from it.
    let y = {
        let _guard = saved_tensors_hooks_guard(
            |t| t.to_dtype(DType::F32),
            |p| {
                p.fill_(0.0)?;
                p.to_dtype(DType::F64)
            },
        );
        x.mul(f64s(&[5.0, 6.0], &[2])).unwrap()
    };
    // The first pass reads what its own hook wrote. The second pass reads what the first one left behind.
    assert_eq!(gradient(&y, &x).unwrap(), [0.0, 0.0]);
    assert_caught(gradient(&y, &x));
    // A table that `unpack` reads may have been written before the value was packed, but not after.
    let table = f64s(&[1.0], &[1]);
    table.fill_(2.0).unwrap();
    let (pack, unpack) = (table.clone(), table.clone());
    let y = {
        let _guard = saved_tensors_hooks_guard(move |t| t.div(&pack), move |p: &Tensor| p.mul(&unpack));
        x.mul(f64s(&[5.0, 6.0], &[2])).unwrap()
    };
    assert_eq!(gradient(&y, &x).unwrap(), [5.0, 6.0]);
    table.fill_(3.0).unwrap();
    assert_caught(gradient(&y, &x));
}

#[test]
fn what_unpack_gives_is_checked_whatever_else_it_reads() {
    let (slots, x) = (f64s(&[0.0; 8], &[8]), leaf(&[3.0]));
    let slot = |t: &Tensor| t.narrow(0, 4, 1);
    for reads in [false, true] {
        let (packs, unpacks) = (slots.clone(), slots.clone());
        let y = {
            let _guard = saved_tensors_hooks_guard(
                move |t| slot(&packs)?.copy_(t),
                move |_: &()| {
                    if reads {
                        // Reads a header in the same storage.
                        unpacks.narrow(0, 0, 1)?.item()?;
                    }
                    slot(&unpacks)
                },
            );
            x.square().unwrap()
        };
        assert_eq!(gradient(&y, &x).unwrap(), [6.0]);
        slot(&slots).unwrap().fill_(100.0).unwrap();
        assert_caught(gradient(&y, &x));
    }
    // Writes by the hook itself are allowed, even to tensors that it returns.
    let (scratch, packed) = (f64s(&[0.0], &[1]), f64s(&[0.0], &[1]));
    let y = {
        let (packs, unpacks) = (packed.clone(), packed.clone());
        let _guard = saved_tensors_hooks_guard(
            move |t| packs.copy_(t),
            move |_: &()| {
                scratch.copy_(&unpacks)?;
                Ok(scratch.clone())
            },
        );
        x.square().unwrap()
    };
    assert_eq!(gradient(&y, &x).unwrap(), [6.0]);
}

#[test]
fn a_pack_hook_that_overwrites_its_argument_is_caught() {
    let (x, w) = (leaf(&[1.0]), f64s(&[3.0], &[1]));
    let _guard = saved_tensors_hooks_guard(
        |t| {
            t.mul_(2.0)?;
            Ok(t.clone())
        },
        |t| Ok(t.clone()),
    );
    assert_caught(x.mul(&w).map(|_| vec![]));
}

#[test]
fn hooks_pack_a_checkpoint_by_its_inputs() {
    let x = leaf(&[1.0, 2.0]);
    let packs = Rc::new(Cell::new(0));
    let count = packs.clone();
    let y = {
        let _guard = saved_tensors_hooks_guard(
            move |t| {
                count.set(count.get() + 1);
                to_host(t)
            },
            from_host,
        );
        checkpoint(|x| x[0].exp()?.sin()?.square(), &[&x]).unwrap()
    };
    assert_eq!(packs.get(), 1);
    let want = gradient(&x.exp().unwrap().sin().unwrap().square().unwrap(), &x).unwrap();
    for _ in 0..2 {
        common::assert_close(&gradient(&y, &x).unwrap(), &want, 1e-12);
    }
    // A guard inside the region works in both runs.
    let y = checkpoint(
        |x| {
            let _guard = saved_tensors_hooks_guard(to_host, from_host);
            x[0].exp()?.sin()?.square()
        },
        &[&x],
    );
    common::assert_close(&gradient(&y.unwrap(), &x).unwrap(), &want, 1e-12);
}

#[test]
fn a_checkpoint_under_the_guard_packs_its_inputs_and_nothing_else() {
    let x = leaf(&[1.0, 2.0]);
    let packs = Rc::new(Cell::new(0));
    let count = packs.clone();
    let _guard = saved_tensors_hooks_guard(
        move |t| {
            count.set(count.get() + 1);
            to_host(t)
        },
        from_host,
    );
    let y = checkpoint(|x| x[0].exp()?.square()?.exp(), &[&x]).unwrap();
    assert_eq!(packs.get(), 1);
    // The second run takes place under the guard, but packs nothing.
    let _ = y.sum_all().unwrap().backward().unwrap();
    assert_eq!(packs.get(), 1);
    // Packed inputs may change, as they may outside a region. Captured tensors must not.
    let (w, data) = (leaf(&[1.0]), f64s(&[3.0], &[1]));
    let y = checkpoint(|x| x[0].mul(&x[1]), &[&w, &data]).unwrap();
    let shared = data.clone();
    let z = checkpoint(move |x| x[0].mul(&x[1])?.mul(&shared), &[&w, &data]).unwrap();
    assert_eq!(gradient(&z, &w).unwrap(), [9.0]);
    data.fill_(9.0).unwrap();
    assert_eq!(gradient(&y, &w).unwrap(), [3.0]);
    assert_caught(gradient(&z, &w));
}

#[test]
fn a_checkpoint_of_packed_inputs_is_compared_if_they_come_back_as_they_were() {
    let x = randn(&[3, 2], 1).t().unwrap().with_grad().unwrap();
    let f = |x: &Tensor| x.square()?.softmax(-1)?.mul(x);
    let plain = gradient(&f(&x).unwrap(), &x).unwrap();
    let n = Arc::new(AtomicUsize::new(0));
    for (at_most, dtype) in [(1e-14, DType::F64), (0.1, DType::BF16)] {
        let _guard = saved_tensors_hooks_guard(move |t| t.to_dtype(dtype), |p| p.to_dtype(DType::F64));
        let y = checkpoint(move |x| f(&x[0]), &[&x]).unwrap();
        for (g, want) in gradient(&y, &x).unwrap().iter().zip(&plain) {
            assert!((g - want).abs() <= at_most, "{g} for {want}");
        }
        let n = n.clone();
        let y = checkpoint(move |x| x[0].mul(n.fetch_add(1, Ordering::Relaxed) as f64), &[&x]).unwrap();
        if dtype == DType::F64 {
            assert!(gradient(&y, &x).unwrap_err().to_string().contains("gave other values"));
        }
    }
}

#[test]
fn packed_values_need_no_protection_from_writes() {
    let (x, w) = (leaf(&[1.0]), f64s(&[3.0], &[1]));
    let (_refuse, _pack) = (strict_inplace_guard(), saved_tensors_hooks_guard(to_host, from_host));
    let y = x.mul(&w).unwrap();
    w.fill_(0.0).unwrap();
    assert_eq!(gradient(&y, &x).unwrap(), [3.0]);
    let _copy = allow_mutation_on_saved_tensors_guard();
    let y = x.mul(&w).unwrap();
    w.fill_(9.0).unwrap();
    assert_eq!(gradient(&y, &x).unwrap(), [0.0]);
}

#[test]
fn a_long_chain_of_packed_graphs_drops_without_recursion() {
    let x = leaf(&[1.0]);
    let mut y = x.clone();
    for _ in 0..20_000 {
        // Each packed value holds the graph before it.
        let _guard = saved_tensors_hooks_guard(|t| Ok(t.clone()), |t: &Tensor| Ok(t.clone()));
        y = y.cos().unwrap();
    }
    drop(y);
    let _guard = no_grad_guard();
    assert!(!x.cos().unwrap().requires_grad());
}
