//! The observer of a watched device runs outside every lock, and outside everything that the program records and
//! checks.
#![allow(clippy::unwrap_used)]

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::time::Duration;

use common::{another_cpu, values};
use gradus_tensor::autograd::{Context, CustomOp, apply_custom, checkpoint, find_nonfinite, strict_guard};
use gradus_tensor::backend::ComputeModule;
use gradus_tensor::{
    BackwardOptions, Bound, DType, Device, ErrorKind, Gemm, Generator, Result, Tensor, UpdateFn, find_nan, grad,
    is_grad_enabled,
};

/// Runs `f`, and fails if it does not end within a minute.
fn ends(f: impl FnOnce() + Send + 'static) {
    let (done, wait) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        let result = catch_unwind(AssertUnwindSafe(f));
        done.send(()).unwrap();
        result.unwrap();
    });
    wait.recv_timeout(Duration::from_secs(60)).expect("it waits for ever");
    thread.join().unwrap();
}

/// The tensors that the device's observer reads after every call, and also writes if `writes` is set, and the names of
/// the calls.
#[derive(Default)]
struct Seen {
    tensors: OnceLock<Vec<Tensor>>,
    names: Mutex<Vec<String>>,
    writes: AtomicBool,
}

fn watched() -> (Device, Arc<Seen>) {
    let seen = Arc::new(Seen::default());
    let all = seen.clone();
    let device = another_cpu().watched(move |call| {
        all.names.lock().unwrap().push(call.name.to_owned());
        for t in all.tensors.get().into_iter().flatten() {
            t.to_bytes().unwrap();
            if all.writes.load(Ordering::Relaxed) {
                t.mul_(1.0).unwrap();
            }
        }
    });
    (device, seen)
}

fn on(device: &Device, values: &[f64]) -> Tensor {
    Tensor::from_vec(values, [values.len()], device).unwrap()
}

#[test]
fn what_was_just_written_or_read_may_be_read_and_written() {
    static STEP: UpdateFn = UpdateFn::new("step", |x| {
        let v = x[3] * x[2] + x[1];
        vec![x[0] - v, v]
    });
    for writes in [false, true] {
        ends(move || {
            let (device, seen) = watched();
            device
                .register_native("set", |call| {
                    let [x] = call.operands()?;
                    x.write::<f64>()?[0] = 5.0;
                    Ok(())
                })
                .unwrap();
            let x = on(&device, &[1.0, 2.0, 3.0, 4.0]);
            let (y, z) = (x.copy().unwrap(), x.copy().unwrap());
            seen.tensors.set(vec![x.clone(), y.clone(), z.clone()]).ok().unwrap();
            seen.writes.store(writes, Ordering::Relaxed);
            let count = || seen.names.lock().unwrap().len();
            let index = Tensor::zeros([1], DType::I64, &device).unwrap();
            let calls: [(&str, &dyn Fn() -> Result<()>); 13] = [
                ("fill", &|| x.fill_(1.0)),
                ("add", &|| x.add_(&y)),
                ("copy_strided", &|| x.copy_(&y)),
                ("copy_strided", &|| x.slice(0, 0, 4, 2)?.copy_(&y.slice(0, 1, 4, 2)?)),
                ("scatter", &|| x.index_add_(0, &index, &y.narrow(0, 0, 1)?)),
                ("step", &|| STEP.apply(&[&x, &z], &[&x, &y, &z], &[0.9])),
                ("dispatch_compute", &|| {
                    device.dispatch_compute(ComputeModule::Native("set"), &[Bound::Write(&x)], &[], [1, 1, 1])
                }),
                ("gemm", &|| Gemm::new(2, 2, 1).run_(&y, &z, &x)),
                ("mul", &|| x.mul(&x).map(drop)),
                ("lt", &|| x.lt(&y).map(drop)),
                ("sort", &|| x.sort(0, false).map(drop)),
                ("download", &|| x.to_vec::<f64>().map(drop)),
                ("random", &|| Tensor::randn([4], DType::F64, &device, &mut Generator::new(1)).map(drop)),
            ];
            for (name, call) in calls {
                let before = count();
                call().unwrap();
                let names = seen.names.lock().unwrap();
                let told = &names[before..];
                assert!(told.iter().any(|n| n == name), "{name}: {told:?}");
                // The observer's own use of the tensors is not reported to it.
                let own = told.iter().filter(|n| *n == "mul").count();
                assert_eq!(own, usize::from(name == "mul"), "{name}: {told:?}");
            }
        });
    }
}

/// The square, with a gradient that can be differentiated again.
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
fn it_is_no_part_of_what_is_recorded_checked_or_looked_at() {
    ends(|| {
        let (device, seen) = watched();
        let x = on(&device, &[3.0]).with_grad().unwrap();
        let other = on(&device, &[1.0]).with_grad().unwrap();
        let noise = on(&device, &[0.0]);
        seen.tensors.set(vec![x.clone(), other, noise]).ok().unwrap();
        let found = find_nonfinite(|| {
            let _strict = strict_guard();
            let y = checkpoint(|x| Ok(apply_custom(&Arc::new(Square), &[&x[0]])?.swap_remove(0)), &[&x])?;
            let g = grad(&[&y], &[&x], None, BackwardOptions::new().create_graph())?[0].clone().unwrap();
            assert_eq!(values(&g), [6.0]);
            assert_eq!(values(g.backward()?.get(&x).unwrap()), [2.0]);
            Ok(())
        });
        assert!(found.unwrap().is_none());
    });
}

#[test]
fn who_watches_may_look_for_nan_while_somebody_does() {
    ends(|| {
        let looked = Arc::new(AtomicUsize::new(0));
        let count = looked.clone();
        let other = common::f64s(&[-1.0], &[1]);
        let device = another_cpu().watched(move |_| {
            assert!(!is_grad_enabled());
            let found = find_nan(|| other.sqrt()).unwrap().unwrap();
            assert_eq!(found.op, "sqrt");
            count.fetch_add(1, Ordering::Relaxed);
        });
        let x = on(&device, &[0.0]);
        let found = find_nan(|| x.div(&x)).unwrap().unwrap();
        assert_eq!(found.op, "div");
        assert!(looked.load(Ordering::Relaxed) > 2);
    });
}

#[test]
fn a_panic_of_who_watches_leaves_everything_usable_and_loses_no_call() {
    ends(|| {
        let (armed, names) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(vec![])));
        let (fuse, seen) = (armed.clone(), names.clone());
        let device = another_cpu().watched(move |call| {
            seen.lock().unwrap().push(call.name.to_owned());
            assert!(!fuse.swap(false, Ordering::Relaxed), "it was armed");
        });
        let x = on(&device, &[1.0, 2.0]);
        names.lock().unwrap().clear();
        for _ in 0..3 {
            armed.store(true, Ordering::Relaxed);
            assert!(catch_unwind(AssertUnwindSafe(|| x.add_(1.0))).is_err());
            armed.store(true, Ordering::Relaxed);
            assert!(catch_unwind(AssertUnwindSafe(|| x.sort(0, false))).is_err());
        }
        // Every write was done exactly once.
        assert_eq!(values(&x), [4.0, 5.0]);
        assert_eq!(x.storage().version(), 3);
        let names = names.lock().unwrap().clone();
        assert_eq!(names.iter().filter(|n| *n == "add").count(), 3, "{names:?}");
        assert_eq!(names.iter().filter(|n| *n == "sort").count(), 3, "{names:?}");
        assert_eq!(names.last().unwrap(), "download");
    });
}

#[test]
fn several_watch_one_device_or_each_other() {
    ends(|| {
        let names: Arc<Mutex<Vec<String>>> = Arc::default();
        let note = |who: &'static str| {
            let names = names.clone();
            move |what: &str| names.lock().unwrap().push(format!("{who} {what}"))
        };
        let (first, second, third) = (note("first"), note("second"), note("third"));
        let mirror = another_cpu().watched(move |call| third(call.name));
        let copy = on(&mirror, &[0.0]);
        let device = another_cpu().watched(move |call| first(call.name)).watched(move |call| {
            second(call.name);
            copy.fill_(1.0).unwrap();
        });
        let x = on(&device, &[1.0]);
        names.lock().unwrap().clear();
        let _ = x.exp().unwrap();
        assert_eq!(*names.lock().unwrap(), ["first exp", "second exp", "third fill"]);
        // A device may have any number of observers.
        let count = Arc::new(AtomicUsize::new(0));
        let deep = (0..5_000).fold(another_cpu(), |device, _| {
            let count = count.clone();
            device.watched(move |_| {
                count.fetch_add(1, Ordering::Relaxed);
            })
        });
        let _ = on(&deep, &[1.0]);
        assert_eq!(count.load(Ordering::Relaxed), 5_000);
    });
}

#[test]
fn two_that_watch_one_device_and_compute_on_it_do_not_tell_each_other_without_end() {
    ends(|| {
        let shared: Arc<OnceLock<Tensor>> = Arc::default();
        let count = Arc::new(AtomicUsize::new(0));
        let device = [(); 2].into_iter().fold(another_cpu(), |device, ()| {
            let (shared, count) = (shared.clone(), count.clone());
            device.watched(move |_| {
                count.fetch_add(1, Ordering::Relaxed);
                if let Some(t) = shared.get() {
                    t.to_bytes().unwrap();
                }
            })
        });
        let x = on(&device, &[1.0]);
        shared.set(x.clone()).ok().unwrap();
        count.store(0, Ordering::Relaxed);
        let _ = x.exp().unwrap();
        // Each observer is called for the operation, and there is one more call for each observer's own read.
        assert_eq!(count.load(Ordering::Relaxed), 4);
    });
}

#[test]
fn a_native_that_uses_what_is_bound_is_refused() {
    ends(|| {
        let device = another_cpu();
        let (x, y) = (on(&device, &[1.0]), on(&device, &[2.0]));
        let free = on(&device, &[3.0]);
        let uses: [fn(&Tensor) -> Result<()>; 7] = [
            |t| t.to_vec::<f64>().map(drop),
            |t| t.exp().map(drop),
            |t| t.fill_(0.0),
            |t| t.expand([2])?.to_vec::<f64>().map(drop),
            |t| t.add(1.0)?.mul(t).map(drop),
            |t| t.with_grad()?.square()?.sum_all()?.backward().map(drop),
            |t| t.device().dispatch_compute(ComputeModule::Native("use"), &[Bound::Write(t)], &[], [1, 1, 1]),
        ];
        let which = Arc::new(AtomicUsize::new(0));
        let (at, bound, other) = (which.clone(), [x.clone(), y.clone()], free.clone());
        device
            .register_native("use", move |_| {
                let at = at.load(Ordering::Relaxed);
                other.add_(1.0)?;
                uses[at / 2](&bound[at % 2])
            })
            .unwrap();
        for at in 0..14 {
            which.store(at, Ordering::Relaxed);
            let bindings = [Bound::Read(&x), Bound::Write(&y)];
            let e = device.dispatch_compute(ComputeModule::Native("use"), &bindings, &[], [1, 1, 1]).unwrap_err();
            assert_eq!(*e.kind(), ErrorKind::InvalidArgument, "{at}: {e}");
            assert!(e.message().contains("cannot use them meanwhile"), "{at}: {e}");
        }
        // Other tensors may be used during the call. The bound tensors can be used again after it.
        assert_eq!((values(&free), values(&x), values(&y)), (vec![17.0], vec![1.0], vec![2.0]));
        y.copy_(&x).unwrap();
    });
}
