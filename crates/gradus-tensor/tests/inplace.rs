//! In-place writes. A write that autograd would have to record is refused. Every other write raises the version of its
//! storage, and errors about it name the method. There is no other way to write bytes.
#![allow(clippy::unwrap_used)]

mod common;

use std::panic::Location;
use std::path::Path;

use common::{f64s, i64s, values};
use gradus_tensor::{
    BackwardOptions, DType, Error, ErrorKind, Gemm, Result, Tensor, UpdateFn, find_nan, grad, no_grad_guard,
};

static DESCEND: UpdateFn = UpdateFn::new("descend", |x| vec![x[0] - x[2] * x[1]]);
static AVERAGE: UpdateFn = UpdateFn::new("average", |x| vec![x[2] * x[0] + (1.0 - x[2]) * x[1], x[0]]);

type Write = fn(&Tensor, &Tensor) -> Result<()>;

/// The source text of a line of this file.
fn text_of(line: &Location<'_>) -> &'static str {
    assert!(line.file().ends_with("tests/inplace.rs"), "{line}");
    include_str!("inplace.rs").lines().nth(line.line() as usize - 1).unwrap()
}

/// How the call of an entry of [`WRITES`] appears in the source.
fn call_of(name: &str) -> String {
    match name {
        "gemm" => ".run_(".into(),
        "descend" | "average" => format!("{}.apply(", name.to_uppercase()),
        _ => format!(".{name}("),
    }
}

/// Every method that writes into its tensor (here of three elements): its name, a call that writes all elements and may
/// use an operand, whether the operand is read, and the recorded form that the error suggests.
const WRITES: [(&str, Write, bool, &str); 19] = [
    ("copy_", |x, y| x.copy_(y), true, "index_assign"),
    ("fill_", |x, _| x.fill_(7.0), false, "full_like"),
    ("zero_", |x, _| x.zero_(), false, "full_like"),
    ("add_", |x, y| x.add_(y), true, "x.add("),
    ("sub_", |x, y| x.sub_(y), true, "x.sub("),
    ("mul_", |x, y| x.mul_(y), true, "x.mul("),
    ("div_", |x, y| x.div_(y), true, "x.div("),
    ("clamp_", |x, _| x.clamp_(0.0, 0.5), false, "x.clamp("),
    ("index_assign_", |x, y| x.index_assign_(.., y), true, "x.index_assign("),
    ("index_put_", |x, y| x.index_put_(&[&i64s(&[2, 1, 0], &[3])], y, false), true, "x.index_put("),
    ("scatter_", |x, y| x.scatter_(0, &i64s(&[2, 1, 0], &[3]), y), true, "x.scatter("),
    ("scatter_add_", |x, y| x.scatter_add_(0, &i64s(&[2, 1, 0], &[3]), y), true, "x.scatter_add("),
    ("index_add_", |x, y| x.index_add_(0, &i64s(&[2, 1, 0], &[3]), y), true, "x.index_add("),
    ("index_copy_", |x, y| x.index_copy_(0, &i64s(&[2, 1, 0], &[3]), y), true, "x.index_copy("),
    ("index_fill_", |x, _| x.index_fill_(0, &i64s(&[2, 1, 0], &[3]), 7.0), false, "x.index_fill("),
    ("masked_fill_", |x, _| x.masked_fill_(&x.detach().ne(99.0)?, 7.0), false, "x.masked_fill("),
    ("descend", |x, g| DESCEND.apply(&[x], &[x, g], &[0.1]), true, "no_grad"),
    ("average", |x, g| AVERAGE.apply(&[x, &x.detach().zeros_like()?], &[x, g], &[0.9]), true, "no_grad"),
    ("gemm", |x, y| Gemm::new(1, 3, 3).run_(y, &Tensor::eye(3, DType::F64, x.device())?, x), true, "matmul"),
];

fn start() -> Tensor {
    f64s(&[1.0, 2.0, 3.0], &[3])
}

fn operand() -> Tensor {
    f64s(&[4.0, -5.0, 0.25], &[3])
}

fn leaf() -> Tensor {
    start().with_grad().unwrap()
}

fn gradient(y: &Tensor, x: &Tensor) -> Result<Tensor> {
    Ok(grad(&[&y.sum_all()?], &[x], None, BackwardOptions::new().retain_graph())?[0].clone().unwrap())
}

fn assert_says(e: &Error, kind: &ErrorKind, words: &[&str]) {
    let text = e.to_string();
    assert_eq!(e.kind(), kind, "{text}");
    for word in words {
        assert!(text.contains(word), "no {word} in: {text}");
    }
}

#[test]
fn writes_that_would_have_to_be_recorded_are_refused_and_name_the_form_that_is() {
    for (name, write, reads, functional) in WRITES {
        let x = leaf();
        let targets = [
            ("leaf", x.clone()),
            ("recorded at", x.narrow(0, 0, 3).unwrap()),
            ("recorded at", x.reshape([3, 1]).unwrap().squeeze(1).unwrap()),
            ("computed", x.mul(2.0).unwrap()),
        ];
        for (what, target) in targets {
            let e = write(&target, &operand()).unwrap_err();
            let what = if name == "gemm" { "gradient is required" } else { what };
            assert_says(&e, &ErrorKind::Autograd, &[what, functional, "no_grad", "help:"]);
            assert_eq!((e.op(), target.storage().version()), (name, 0), "{name}");
        }
        if reads {
            for tracked in [leaf(), leaf().mul(2.0).unwrap()] {
                let x = start();
                let e = write(&x, &tracked).unwrap_err();
                assert_says(&e, &ErrorKind::Autograd, &["operand", "no_grad"]);
                assert_eq!((values(&x), x.storage().version()), (values(&start()), 0), "{name}");
            }
        }
    }
}

#[test]
fn every_write_changes_values_counts_and_is_named_with_its_line() {
    let guard = no_grad_guard();
    for (name, write, ..) in WRITES {
        let reference = start();
        write(&reference, &operand()).unwrap();
        assert_ne!(values(&reference), values(&start()), "{name}");
        // Inside `no_grad`, the target may be a leaf or a view, and the operand may have a graph.
        let x = leaf();
        let twice = f64s(&[0.0, 1.0, 2.0, 3.0], &[4]);
        for target in [x.clone(), twice.narrow(0, 1, 3).unwrap()] {
            let y = operand().with_grad().unwrap();
            write(&target, &y).unwrap();
            assert_eq!(values(&target), values(&reference), "{name}");
            assert_eq!(target.storage().version(), 1, "{name}");
            let log = target.storage().overwritten(0, &(0..usize::MAX)).unwrap();
            assert_eq!(log.op, name);
            assert!(text_of(log.location).contains(&call_of(name)), "{name}: {}", log.location);
        }
        assert_eq!(twice.to_vec::<f64>().unwrap()[0], 0.0);
    }
    drop(guard);
}

#[test]
fn every_write_of_a_nan_is_found_by_its_name_and_line() {
    for (name, write, reads, _) in WRITES {
        let (x, nan) = (start(), f64s(&[4.0, f64::NAN, 0.25], &[3]));
        let found = find_nan(|| write(&x, &nan)).unwrap();
        assert_eq!(found.is_some(), reads, "{name}");
        if let Some(found) = found {
            assert_eq!(found.op, name);
            assert!(text_of(found.location).contains(&call_of(name)), "{found}");
        }
    }
}

#[test]
fn every_write_over_a_needed_value_is_an_error_and_beside_it_is_none() {
    for (name, write, ..) in WRITES {
        let x = leaf();
        let w = f64s(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[6]);
        let y = x.mul(w.narrow(0, 3, 3).unwrap()).unwrap();
        write(&w.narrow(0, 0, 3).unwrap(), &operand()).unwrap();
        assert_eq!(values(&gradient(&y, &x).unwrap()), [4.0, 5.0, 6.0], "{name}");
        // This write overlaps the needed values. Its target has no graph, just like the data of a leaf or a detached
        // tensor.
        write(&w.narrow(0, 2, 3).unwrap(), &operand()).unwrap();
        let e = gradient(&y, &x).unwrap_err();
        assert_says(&e, &ErrorKind::Autograd, &["mul needs its input 1", name, "tests/inplace.rs"]);
    }
    // Tensors that share the storage of a leaf are checked like the leaf itself.
    let x = leaf();
    let y = x.square().unwrap();
    x.detach().mul_(2.0).unwrap();
    assert_says(&gradient(&y, &x).unwrap_err(), &ErrorKind::Autograd, &["square", "mul_"]);
}

#[test]
fn stretched_tensors_are_refused_and_empty_ones_need_no_write() {
    for (name, write, ..) in WRITES {
        let x = f64s(&[1.0], &[1]).expand([3]).unwrap();
        assert!(write(&x, &operand()).is_err(), "{name}");
        assert_eq!(x.storage().version(), 0, "{name}");
    }
    let none = f64s(&[], &[0]);
    none.add_(&none).unwrap();
    none.sub_(&none).unwrap();
    none.mul_(&none).unwrap();
    none.div_(&none).unwrap();
    none.copy_(&none).unwrap();
    none.zero_().unwrap();
    none.index_assign_(.., 1.0).unwrap();
    none.masked_fill_(&none.gt(0.0).unwrap(), 1.0).unwrap();
}

#[test]
fn errors_write_nothing() {
    let index = i64s(&[0, 3], &[2]);
    let two = f64s(&[9.0, 9.0], &[2]);
    let writes: [(&str, Write); 12] = [
        ("shape", |x, two| x.copy_(two)),
        ("value", |x, _| x.to_dtype(DType::U8)?.fill_(-1)),
        ("shape", |x, two| x.div_(two)),
        ("dtype", |x, _| x.to_dtype(DType::I64)?.div_(2)),
        ("index", |x, two| x.index_put_(&[&i64s(&[0, 3], &[2])], two, false)),
        ("index", |x, two| x.scatter_(0, &i64s(&[0, 3], &[2]), two)),
        ("index", |x, two| x.scatter_add_(0, &i64s(&[0, 3], &[2]), two)),
        ("index", |x, two| x.index_copy_(0, &i64s(&[0, 3], &[2]), two)),
        ("index", |x, _| x.index_fill_(0, &i64s(&[0, 3], &[2]), 1.0)),
        ("range", |x, two| x.index_assign_(1..4, two)),
        ("mask", |x, _| x.masked_fill_(&x.reshape([1, 3])?.expand([2, 3])?.gt(0.0)?, 1.0)),
        ("mask", |x, two| x.masked_fill_(two, 1.0)),
    ];
    for (k, (what, write)) in writes.into_iter().enumerate() {
        let x = start();
        let e = write(&x, &two).unwrap_err();
        assert!(!e.op().is_empty() && !e.message().is_empty());
        assert_eq!((values(&x), x.storage().version()), (values(&start()), 0), "{k}: {what}: {e}");
    }
    assert_eq!(index.storage().version(), 0);
}

#[test]
fn slices_are_assigned_by_index_or_through_views() {
    let x = f64s(&[0.0; 12], &[3, 4]);
    x.narrow(0, 1, 1).unwrap().copy_(&f64s(&[1.0, 2.0, 3.0, 4.0], &[4])).unwrap();
    x.slice(1, 0, 4, 2).unwrap().add_(10.0).unwrap();
    x.t().unwrap().index_assign_((3, 2), 7.0).unwrap();
    x.index_assign_((0, &i64s(&[3, 1], &[2])), f64s(&[5.0, 6.0], &[2])).unwrap();
    assert_eq!(values(&x), [10.0, 6.0, 10.0, 5.0, 11.0, 2.0, 13.0, 4.0, 10.0, 0.0, 10.0, 7.0]);
    // Only the bytes of the slice count as written.
    let w = f64s(&[1.0, 2.0, 3.0], &[3]);
    let l = leaf();
    let y = l.narrow(0, 0, 2).unwrap().mul(w.narrow(0, 0, 2).unwrap()).unwrap();
    w.index_assign_(2.., 0.0).unwrap();
    assert_eq!(values(&gradient(&y, &l).unwrap()), [1.0, 2.0, 0.0]);
}

#[test]
fn the_table_above_has_every_method_that_writes() {
    for file in sources() {
        let text = std::fs::read_to_string(&file).unwrap();
        for line in text.lines() {
            let Some(rest) = line.trim_start().strip_prefix("pub fn ") else { continue };
            let name: String = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            // `where_` is `where`, which is a keyword in Rust. `run_` is listed as gemm.
            if name.ends_with('_') && name != "where_" {
                let name = if name == "run_" { "gemm" } else { &name };
                assert!(WRITES.iter().any(|w| w.0 == name), "{name} in {}", file.display());
            }
        }
    }
}

/// The files of this crate that contain a pattern outside comments, one entry for each matching line.
fn find(pattern: &str) -> Vec<String> {
    let mut found = vec![];
    for file in sources() {
        let text = std::fs::read_to_string(&file).unwrap();
        let count = text.lines().filter(|l| !l.trim_start().starts_with("//") && l.contains(pattern)).count();
        let name = file.strip_prefix(env!("CARGO_MANIFEST_DIR")).unwrap().display().to_string();
        found.extend(std::iter::repeat_n(name, count));
    }
    found.sort();
    found
}

/// Bytes can only be written in ways that count the write. `Storage::write` is called only by `Locks::write`. Otherwise
/// a buffer is written only before it belongs to a storage, or while nobody else holds the storage (`is_spare`, `into_own`).
/// `Storage::give_back` and `fill` put another buffer into a storage; nothing in this crate calls them.
#[test]
fn no_write_escapes_the_version() {
    // `storage.rs` defines the write guard and creates it, gives back and fills. Only `locks.rs` and `replay.rs` request a
    // guard.
    assert_eq!(find("buffer.write()"), ["src/storage.rs"; 3]);
    assert_eq!(find(".rewrite()"), ["src/ops/bind.rs"]);
    assert_eq!(find(" map_over("), ["src/autograd/pass/queue.rs", "src/ops/map.rs", "src/ops/map.rs"]);
    assert_eq!(find(".is_spare()"), ["src/autograd/pass/queue.rs", "src/ops/map.rs"]);
    assert_eq!(find(".into_own()"), ["src/storage.rs"]);
    assert_eq!(find(".into_memory()"), ["src/storage.rs"]);
    assert!(find(".give_back()").is_empty() && find("storage().fill(").is_empty() && find("storage.fill(").is_empty());
    assert_eq!(find(".storage().write("), ["src/locks.rs"]);
    assert_eq!(find("storage.write_all("), ["src/ops/replay.rs"]);
    let known = ["src/locks.rs", "src/ops/replay.rs", "src/storage.rs"];
    assert!(find("WriteGuard").iter().all(|f| known.contains(&f.as_str())));
    assert!(find("storage.write(").is_empty());
    // All other buffers that are written are fresh: `alloc` made them in the same function.
    assert_eq!(find("&mut buffer"), ["src/create.rs", "src/ops/bind.rs"]);
    assert_eq!(find("&mut allocated"), ["src/ops/bind.rs"]);
    assert_eq!(find("&mut Buffer"), ["src/create.rs", "src/ops/replay.rs", "src/storage.rs"]);
    assert!(find("unsafe ").is_empty());
}

/// A single line runs kernels, the one in `bind`, and a single line replays them. Everywhere else, tensors ask a backend only for memory, for memory
/// statistics, and for what it supports.
#[test]
fn one_line_runs_kernels() {
    assert_eq!(find(".forward(device.backend()"), ["src/ops/bind.rs", "src/ops/replay.rs"]);
    let others = [
        "upload",
        "alloc",
        "copy_buffer",
        "supports",
        "unsupported",
        "check_compute",
        "register_native",
        "allow_modules",
        "compute_limits",
        "prepares",
        "run_prepared",
        "renew",
        "offer",
    ];
    for file in sources() {
        let text = std::fs::read_to_string(&file).unwrap();
        for method in text.split(".backend().").skip(1) {
            let name: String = method.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            assert!(others.contains(&name.as_str()), "{name} in {}", file.display());
        }
    }
}

fn sources() -> Vec<std::path::PathBuf> {
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
    let mut files = vec![];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { folders.push(path) } else { files.push(path) }
        }
    }
    files
}

#[test]
fn bytes_that_come_and_go_are_copies() {
    let mut mine = vec![1.0f64, 2.0, 3.0];
    let x = Tensor::from_vec(&mine, [3], &common::cpu()).unwrap().with_grad().unwrap();
    let y = x.square().unwrap();
    mine.fill(0.0);
    let mut bytes = x.to_bytes().unwrap();
    bytes.fill(0);
    let mut list = x.to_vec::<f64>().unwrap();
    list.fill(0.0);
    assert_eq!((values(&x), x.storage().version()), (vec![1.0, 2.0, 3.0], 0));
    assert_eq!(values(&gradient(&y, &x).unwrap()), [2.0, 4.0, 6.0]);
}

#[test]
fn gradients_that_are_given_out_share_no_memory() {
    let (a, b) = (leaf(), leaf());
    let seed = f64s(&[1.0, 2.0, 3.0], &[3]);
    let options = [BackwardOptions::new().retain_graph(), BackwardOptions::new().create_graph()];
    let y = a.add(&b).unwrap();
    for options in options {
        // The sum passes its gradient on to both operands. The gradient of `y` itself is the seed.
        let g = grad(&[&y], &[&a, &b, &y, &a], Some(&[&seed]), options).unwrap();
        let g: Vec<Tensor> = g.into_iter().flatten().collect();
        let _guard = no_grad_guard();
        for (k, t) in g.iter().enumerate() {
            t.fill_(10.0 + k as f64).unwrap();
        }
        for (k, t) in g.iter().enumerate() {
            assert_eq!(values(t), [10.0 + k as f64; 3]);
        }
        assert_eq!(values(&seed), [1.0, 2.0, 3.0]);
    }
    let gradients =
        y.sum_all().unwrap().mul(a.narrow(0, 0, 1).unwrap().sum_all().unwrap()).unwrap().backward().unwrap();
    let before = values(gradients.get(&b).unwrap());
    let _guard = no_grad_guard();
    gradients.get(&a).unwrap().mul_(0.0).unwrap();
    assert_eq!(values(gradients.get(&b).unwrap()), before);
}

#[test]
fn hooks_that_overwrite_gradients_are_caught() {
    let hook = "tests/inplace.rs";
    // The hook overwrites the gradient that it is shown, which other nodes may share.
    let (a, b) = (leaf(), leaf());
    let u = a.add(&b).unwrap();
    let guard = u.register_hook(|g| {
        g.mul_(2.0)?;
        Ok(None)
    });
    let e = u.square().unwrap().sum_all().unwrap().backward().unwrap_err();
    assert_says(&e, &ErrorKind::Autograd, &["mul_ overwrote a gradient that a hook", "add", hook, "help:"]);
    drop(guard);
    let node = u.grad_fn().unwrap();
    let guards = [
        node.register_prehook(|g| g[0].as_ref().map_or(Ok(None), |g| g.fill_(0.0).map(|()| None))),
        node.register_hook(|inputs, _| inputs[1].as_ref().map_or(Ok(None), |g| g.fill_(0.0).map(|()| None))),
    ];
    for guard in guards {
        let y = u.square().unwrap().sum_all().unwrap();
        let result = y.backward_with(BackwardOptions::new().retain_graph());
        assert_says(&result.unwrap_err(), &ErrorKind::Autograd, &["fill_ overwrote a gradient that a hook", hook]);
        drop(guard);
    }
    // The hook overwrites a seed that is still pending.
    let (y, z) = (a.square().unwrap(), a.exp().unwrap());
    let seeds = [f64s(&[1.0; 3], &[3]), f64s(&[1.0; 3], &[3])];
    let waiting = seeds[0].clone();
    let _guard = z.register_hook(move |_| waiting.fill_(5.0).map(|()| None)).unwrap();
    let result = grad(&[&y, &z], &[&a], Some(&[&seeds[0], &seeds[1]]), BackwardOptions::new().retain_graph());
    let e = result.unwrap_err();
    assert_says(&e, &ErrorKind::Autograd, &["fill_ overwrote the gradient of output 0 of square", hook]);
    // The hook overwrites a gradient that has already been computed and is kept until the end.
    let early = a.mul(3.0).unwrap();
    let seen = std::sync::Arc::new(std::sync::Mutex::new(None::<Tensor>));
    let (store, take) = (seen.clone(), seen);
    let _see = early.register_hook(move |g| {
        *store.lock().unwrap() = Some(g.clone());
        Ok(None)
    });
    let _spoil =
        a.register_hook(move |_| take.lock().unwrap().take().map_or(Ok(None), |g| g.fill_(0.0).map(|()| None)));
    let e =
        grad(&[&early.square().unwrap().sum_all().unwrap()], &[&early, &a], None, BackwardOptions::new()).unwrap_err();
    assert_says(&e, &ErrorKind::Autograd, &["fill_ overwrote the gradient", hook]);
}

#[test]
fn gradients_that_wait_beside_writers_on_other_threads_are_right_or_errors() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let x = leaf();
    let seed = f64s(&[1.0; 3], &[3]);
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            let mut k = 0.0;
            while !stop.load(Ordering::Relaxed) {
                k += 1.0;
                seed.fill_(k).unwrap();
            }
        });
        for _ in 0..2000 {
            // Both gradients, the seed and twice the seed, must come from the same moment.
            let z = x.mul(2.0).unwrap();
            if let Ok(g) = grad(&[&z], &[&x, &z], Some(&[&seed]), BackwardOptions::new()) {
                let (gx, gz) = (values(g[0].as_ref().unwrap()), values(g[1].as_ref().unwrap()));
                assert!(gx.iter().zip(&gz).all(|(x, z)| *x == 2.0 * z && *z == gz[0]), "{gx:?} {gz:?}");
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
}
