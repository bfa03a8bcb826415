//! Arguments at the limits: the highest rank, lists of mismatched lengths, and sizes beyond any memory.
#![allow(clippy::unwrap_used)]

mod common;

use common::cpu;
use gradus_tensor::{DType, ErrorKind, Generator, Result, Tensor, checkpoint, vmap};

/// A tensor with `rank` axes of size 1, filled with ones.
fn of_rank(rank: usize) -> Tensor {
    Tensor::ones(vec![1; rank], DType::F32, &cpu()).unwrap()
}

#[test]
fn tensors_of_different_ranks_are_not_concatenated() {
    for (a, b) in [(2, 0), (0, 2), (1, 2), (3, 1), (8, 7)] {
        for axis in 0..a.max(1) as isize {
            let e = Tensor::cat(&[&of_rank(a), &of_rank(b)], axis).unwrap_err();
            let axis_is_wrong = a == 0;
            assert_eq!(e.kind() == &ErrorKind::InvalidAxis, axis_is_wrong, "{e}");
            assert_eq!(e.kind() == &ErrorKind::ShapeMismatch, !axis_is_wrong, "{e}");
        }
        assert_eq!(Tensor::stack(&[&of_rank(a), &of_rank(b)], 0).unwrap_err().kind(), &ErrorKind::ShapeMismatch);
    }
}

#[test]
fn what_adds_an_axis_is_refused_at_the_highest_rank() {
    let x = of_rank(8);
    let index = x.to_dtype(DType::I64).unwrap();
    let zero = index.sub(1).unwrap();
    let added: &[(&str, Result<Tensor>)] = &[
        ("unsqueeze", x.unsqueeze(0)),
        ("stack", Tensor::stack(&[&x, &x], -1)),
        ("diag_embed", x.diag_embed(0, 0, 1)),
        ("diag_embed of the last axes", x.diag_embed(0, -1, -2)),
        ("one_hot", zero.one_hot(2)),
        ("repeat", x.repeat(&[1; 9])),
        ("expand", x.expand([1; 9])),
        ("unfold_axis", x.unfold_axis(0, 1, 1)),
        ("unflatten", x.unflatten(0, [1, 1])),
        ("embedding", Tensor::ones([1, 1], DType::F32, &cpu()).unwrap().embedding(&zero, None)),
    ];
    for (name, result) in added {
        let e = result.as_ref().err().unwrap_or_else(|| panic!("{name} gave a tensor of rank 9"));
        assert!(matches!(e.kind(), ErrorKind::InvalidAxis | ErrorKind::InvalidArgument), "{name}: {e}");
        assert!(e.to_string().contains('8'), "{name} does not name the highest rank: {e}");
    }
}

/// One element, broadcast to `n`, on a device with a memory budget of one MiB.
fn stretched(n: usize) -> Tensor {
    let device = common::another_cpu();
    device.backend().set_memory_budget(Some(1 << 20)).unwrap();
    Tensor::ones([1], DType::F32, &device).unwrap().expand([n]).unwrap()
}

#[test]
fn what_the_host_has_no_room_for_is_an_error_and_leaves_nothing_behind() {
    // One size is beyond any memory; the other fits into memory, but exceeds the budget.
    for n in [1 << 40, 1 << 22] {
        let x = stretched(n);
        let (t, device) = (x.clone(), x.device().clone());
        let numbers = Tensor::zeros([2], DType::I64, &device).unwrap();
        let small = Tensor::ones([1, 1, 3], DType::F32, &device).unwrap();
        let in_use = device.memory_stats().in_use;
        type Call<'a> = Box<dyn Fn() -> Result<()> + 'a>;
        let calls: Vec<(&str, Call<'_>)> = vec![
            ("to_vec", Box::new(|| t.to_vec::<f32>().map(drop))),
            ("to_bytes", Box::new(|| t.to_bytes().map(drop))),
            ("unbind", Box::new(|| t.unbind(0).map(drop))),
            ("split", Box::new(|| t.split(1, 0).map(drop))),
            ("chunk", Box::new(|| t.chunk(usize::MAX, 0).map(drop))),
            ("vmap", Box::new(|| vmap(|v| v[0].neg(), &[&t], &[Some(0)], &[0]).map(drop))),
            ("nonzero", Box::new(|| t.nonzero().map(drop))),
            ("sort", Box::new(|| t.sort(0, false).map(drop))),
            ("unique", Box::new(|| t.unique(true, true, true).map(drop))),
            ("masked_select", Box::new(|| t.masked_select(&t.gt(0.0)?).map(drop))),
            ("randperm", Box::new(|| Tensor::randperm(n, &device, &mut Generator::new(1)).map(drop))),
            ("arange", Box::new(|| Tensor::arange(0, n as i64, 1, DType::F32, &device).map(drop))),
            ("linspace", Box::new(|| Tensor::linspace(0.0, 1.0, n, DType::F32, &device).map(drop))),
            ("one_hot", Box::new(|| numbers.one_hot(n).map(drop))),
            ("bincount", Box::new(|| numbers.bincount(None, n).map(drop))),
            ("repeat_interleave", Box::new(|| t.repeat_interleave(2, 0).map(drop))),
            ("adaptive_avg_pool1d", Box::new(|| small.adaptive_avg_pool1d([n]).map(drop))),
            ("adaptive_max_pool1d", Box::new(|| small.adaptive_max_pool1d([n]).map(drop))),
            (
                "interpolate",
                Box::new(|| {
                    small.interpolate(gradus_tensor::Resized::To(&[n]), gradus_tensor::Interpolation::Linear).map(drop)
                }),
            ),
        ];
        for (name, call) in calls {
            match call() {
                Err(e) => assert!(matches!(e.kind(), ErrorKind::OutOfMemory { .. }), "{name}: {e}"),
                Ok(()) => panic!("{name} of {n} elements fits into a mebibyte"),
            }
            assert_eq!(device.memory_stats().in_use, in_use, "{name} keeps memory");
        }
        // A huge view can still be printed, because only its two ends are shown.
        assert!(t.to_string().contains("..."), "{t}");
    }
}

#[test]
fn a_permutation_that_is_too_long_is_an_error_and_the_generator_stays() {
    let (mut g, mut same) = (Generator::new(1), Generator::new(1));
    for n in [1 << 50, usize::MAX] {
        let e = g.permutation(n).unwrap_err();
        assert_eq!(e.op(), "permutation");
        assert!(matches!(e.kind(), ErrorKind::OutOfMemory { .. }), "{e}");
        assert!(Tensor::randperm(n, &cpu(), &mut g).is_err());
    }
    assert_eq!(g.permutation(10).unwrap(), same.permutation(10).unwrap());
}

#[test]
fn reading_needs_room_in_the_budget_but_for_what_is_small() {
    let device = common::another_cpu();
    let x = Tensor::ones([100_000], DType::F32, &device).unwrap();
    let budget = |bytes| device.backend().set_memory_budget(Some(bytes)).unwrap();
    budget(800_000);
    assert_eq!(x.to_vec::<f32>().unwrap().len(), 100_000);
    budget(799_999);
    assert_eq!(x.to_vec::<f32>().unwrap_err().kind(), &ErrorKind::OutOfMemory { requested: 400_000 });
    budget(400_000);
    assert_eq!(x.narrow(0, 5, 1).unwrap().item().unwrap(), 1.0);
    assert_eq!(x.narrow(0, 5, 100).unwrap().to_vec::<f32>().unwrap().len(), 100);
}

#[test]
fn a_region_is_computed_again_only_where_there_is_room_to_compare() {
    let device = common::another_cpu();
    let x = Tensor::ones([100_000], DType::F32, &device).unwrap().with_grad().unwrap();
    let run = || checkpoint(|x| x[0].neg(), &[&x]);
    let budget = |bytes| device.backend().set_memory_budget(Some(bytes)).unwrap();
    budget(1_000_000);
    assert_eq!(run().unwrap_err().kind(), &ErrorKind::OutOfMemory { requested: 1 << 18 });
    budget(1_100_000);
    let _ = run().unwrap();
}

#[test]
fn brackets_around_nothing_are_few() {
    let x = Tensor::zeros([1000, 1000, 1000, 0], DType::F32, &cpu()).unwrap();
    let text = x.to_string();
    assert!(text.len() < 10_000 && text.contains("..."), "{} characters", text.len());
    assert_eq!(Tensor::zeros([2, 0], DType::F32, &cpu()).unwrap().to_string(), "[[],\n []]");
}
