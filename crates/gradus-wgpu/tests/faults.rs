//! Tests of errors that the device finds late: reads of the tensors that they spoil return them.

mod common;

use std::sync::Arc;

use gradus::prelude::*;

fn device() -> Option<Device> {
    Some(Device::from_backend(Arc::new(common::opened()?)))
}

fn ints(values: &[i64], device: &Device) -> Tensor {
    Tensor::from_vec(values, [values.len()], device).expect("integers")
}

fn ones(n: usize, device: &Device) -> Tensor {
    Tensor::ones([n], DType::F32, device).expect("ones")
}

/// Asserts that reading `t` returns the error of the bad index, the first time and the second.
#[track_caller]
fn is_spoiled(t: &Tensor, index: i64, line: u32) {
    for _ in 0..2 {
        let e = t.to_dtype(DType::F32).and_then(|t| t.to_vec::<f32>()).expect_err("a spoiled tensor");
        assert!(matches!(e.kind(), ErrorKind::IndexOutOfBounds { index: i, .. } if *i == index), "{e}");
        let at = e.location().expect("a line");
        assert_eq!((e.op(), at.file(), at.line()), ("gather", file!(), line), "{e}");
    }
}

#[test]
fn a_tensor_is_its_own_error_every_time_and_no_other_tensor_is() {
    let Some(device) = device() else { return };
    let x = ones(4, &device);
    let good = x.add(1.0).expect("a sum");
    let bad = x.gather(0, &ints(&[0, 9], &device)).expect("a late error");
    let line = line!() - 1;
    // Queued before the error is known.
    let child = bad.mul(2.0).and_then(|t| t.sum_all()).expect("queued");
    let beside = good.mul(3.0).expect("a product");
    assert_eq!(beside.to_vec::<f32>().expect("not concerned"), [6.0; 4]);
    is_spoiled(&child, 9, line);
    is_spoiled(&bad, 9, line);
    // Queued after the error is known.
    let view = bad.reshape([2, 1]).and_then(|t| t.transpose(0, 1)).expect("a view");
    is_spoiled(&view, 9, line);
    is_spoiled(&view.matmul(&bad.reshape([2, 1]).expect("a view")).expect("queued"), 9, line);
    is_spoiled(&bad.copy().expect("queued"), 9, line);
    let joined = Tensor::cat(&[&good, &bad], 0).expect("queued");
    is_spoiled(&joined, 9, line);
    // The operands are unchanged, and `synchronize` does not repeat an error that reads have returned.
    assert_eq!(x.to_vec::<f32>().expect("an operand"), [1.0; 4]);
    assert_eq!(good.to_vec::<f32>().expect("not concerned"), [2.0; 4]);
    device.synchronize().expect("everything was told");
}

#[test]
fn an_error_of_many_indices_names_the_first() {
    let Some(device) = device() else { return };
    // Widths whose rows are read by single elements, and by one, two, three and four groups of four elements.
    for (rows, width) in [(9, 3), (40_000, 3), (30_000, 4), (200_000, 8), (70_000, 16), (20_000, 60)] {
        let table = Tensor::ones([7, width], DType::F32, &device).expect("a table");
        let mut text: Vec<i64> = (0..rows).map(|i| i % 7).collect();
        let good = table.embedding(&ints(&text, &device), None).expect("a result");
        let (first, last) = (rows as usize / 3 + 1, rows as usize - 1);
        (text[first], text[last]) = (-2, 7);
        let text = ints(&text, &device);
        let bad = ErrorKind::IndexOutOfBounds { pos: first, index: -2, size: 7 };
        let found = table.embedding(&text, None).and_then(|t| t.sum_all()).and_then(|t| t.item());
        assert_eq!(found.expect_err("an index out of range").kind(), &bad, "{rows} of {width}");
        assert_eq!(good.sum_all().and_then(|t| t.item()).expect("not concerned"), (rows as usize * width) as f64);
        let each = text.reshape([rows as usize, 1]).and_then(|t| t.expand([rows as usize, width])).expect("a view");
        let bad = ErrorKind::IndexOutOfBounds { pos: first * width, index: -2, size: 7 };
        let found = table.gather(0, &each).and_then(|t| t.sum_all()).and_then(|t| t.item());
        assert_eq!(found.expect_err("an index out of range").kind(), &bad, "{rows} of {width}");
    }
}

#[test]
fn what_is_written_in_place_is_spoiled_until_it_is_replaced() {
    let Some(device) = device() else { return };
    let (x, y) = (ones(4, &device), ones(4, &device));
    let bad = ErrorKind::IndexOutOfBounds { pos: 1, index: 4, size: 4 };
    // The call is rejected before it writes anything, because the range that the index spans is computed first, which
    // checks the index.
    let e = x.scatter_(0, &ints(&[1, 4], &device), ones(2, &device)).expect_err("an index out of range");
    assert_eq!((e.kind(), x.to_vec::<f32>().expect("untouched")), (&bad, vec![1.0; 4]));
    device.synchronize().expect("nothing was queued");
    x.add_(x.gather(0, &ints(&[0, 4, 0, 0], &device)).expect("a late error")).expect("queued");
    y.add_(&x).expect("queued");
    for t in [&x, &y] {
        assert_eq!(t.to_vec::<f32>().expect_err("spoiled").kind(), &bad);
    }
    y.mul_(0.0).expect("queued");
    assert!(y.to_vec::<f32>().is_err(), "0 times a number that is not known");
    y.narrow(0, 0, 2).and_then(|part| part.fill_(3.0)).expect("queued");
    assert!(y.to_vec::<f32>().is_err(), "the other half is still spoiled");
    y.fill_(3.0).expect("queued");
    assert_eq!(y.to_vec::<f32>().expect("new values"), [3.0; 4]);
    x.copy_(&y).expect("queued");
    assert_eq!(x.to_vec::<f32>().expect("new values"), [3.0; 4]);
}

#[test]
fn memory_that_is_used_again_is_not_spoiled() {
    let Some(device) = device() else { return };
    let x = ones(1000, &device);
    for _ in 0..3 {
        let bad = x.gather(0, &ints(&[5000; 1000], &device)).expect("a late error");
        assert!(bad.to_vec::<f32>().is_err());
        drop(bad);
        let next = x.add(1.0).expect("a sum");
        assert_eq!(next.to_vec::<f32>().expect("new memory"), [2.0; 1000]);
    }
}

#[test]
fn what_nobody_read_is_the_error_of_synchronize_once() {
    let Some(device) = device() else { return };
    let x = ints(&[7, 0, 3], &device);
    drop(ints(&[1, 1, 1], &device).floor_div(&x).expect("a late error"));
    drop(ones(2, &device).gather(0, &ints(&[3], &device)).expect("a late error"));
    let e = device.synchronize().expect_err("two errors").to_string();
    assert!(e.contains("zero") && e.contains("index 3"), "{e}");
    device.synchronize().expect("nothing new");
}

#[test]
fn more_late_errors_than_slots_and_each_tensor_has_its_own() {
    let Some(device) = device() else { return };
    let x = ones(3, &device);
    // Nothing is read until all are queued.
    let picked: Vec<Tensor> = (0..3000)
        .map(|i| x.gather(0, &ints(&[if i % 2 == 0 { 1 } else { 10 + i }], &device)).expect("queued"))
        .collect();
    for (i, t) in picked.iter().enumerate().filter(|(i, _)| i % 97 < 2) {
        match t.to_vec::<f32>() {
            Ok(values) => assert!(i % 2 == 0 && values == [1.0], "{i}: {values:?}"),
            Err(e) => {
                assert_eq!(e.kind(), &ErrorKind::IndexOutOfBounds { pos: 0, index: 10 + i as i64, size: 3 }, "{i}");
            }
        }
    }
}

#[test]
fn eight_threads_get_their_own_errors_and_no_others() {
    let Some(device) = device() else { return };
    std::thread::scope(|scope| {
        for thread in 0..8i64 {
            let device = &device;
            scope.spawn(move || {
                let x = ones(50, device);
                for i in 0..40 {
                    // In every fourth thread, more than one work-group checks the indices.
                    let n = if thread % 4 == 3 { 40_000 } else { 10 };
                    let mut at = vec![0; n];
                    let bad = (i + thread) % 3 == 0;
                    if bad {
                        at[n - 3] = 100 + thread;
                    }
                    let y = x.gather(0, &ints(&at, device)).and_then(|y| y.mul(2.0)).expect("queued");
                    for _ in 0..2 {
                        match y.to_vec::<f32>() {
                            Ok(values) => assert!(!bad && values == vec![2.0; n], "{thread}: {i}"),
                            Err(e) => {
                                let of = ErrorKind::IndexOutOfBounds { pos: n - 3, index: 100 + thread, size: 50 };
                                assert!(bad && e.kind() == &of, "{thread}: {i}: {e}");
                            }
                        }
                    }
                    assert_eq!(x.to_vec::<f32>().expect("an operand"), [1.0; 50]);
                }
            });
        }
    });
}

#[test]
fn a_bad_label_spoils_the_step_and_not_the_data() {
    let Some(device) = device() else { return };
    let w = Tensor::ones([4, 3], DType::F32, &device).and_then(|w| w.with_grad()).expect("a weight");
    let x = Tensor::ones([2, 4], DType::F32, &device).expect("rows");
    let loss = x.matmul(&w).and_then(|y| y.cross_entropy(&ints(&[1, 3], &device))).expect("queued");
    let gradient = loss.backward().expect("queued").get(&w).expect("a gradient").clone();
    no_grad(|| w.sub_(&gradient)).expect("queued");
    for t in [&loss, &gradient, &w.detach()] {
        let e = t.to_vec::<f32>().expect_err("spoiled");
        assert_eq!(e.kind(), &ErrorKind::IndexOutOfBounds { pos: 1, index: 3, size: 3 }, "{e}");
    }
    assert_eq!(x.to_vec::<f32>().expect("the data"), [1.0; 8]);
}

#[test]
fn a_late_error_of_a_captured_step_is_that_of_one_call_and_of_what_depends_on_it() {
    let Some(device) = device() else { return };
    let x = Tensor::from_vec((0..100u8).map(f32::from).collect::<Vec<_>>(), [100], &device).expect("numbers");
    let index = ints(&[3, 99, 0, 7, 7], &device);
    // The second result needs less temporary memory than the first, and has it after the first.
    let function = |x: &[Tensor]| {
        let first = x[0].index_select(0, &x[1])?.cumsum(0)?.sum_all()?;
        Ok(vec![first, x[0].narrow(0, 0, 3)?.cumsum(0)?.sum_all()?])
    };
    let mut step = capture(function);
    let numbers = |results: &[Tensor]| results.iter().map(|t| t.item().expect("a number")).collect::<Vec<_>>();
    let expected = numbers(&function(&[x.clone(), index.clone()]).expect("a call"));
    for i in 0..12 {
        let is_bad = i > 3 && i % 4 == 0;
        index.copy_(&ints(&[3, if is_bad { 100 } else { 99 }, 0, 7, 7], &device)).expect("a copy");
        let results = step.call(&[&x, &index]).expect("the error is found later");
        assert_eq!(results[1].item().expect("not affected"), expected[1], "call {i}");
        match results[0].item() {
            Ok(found) => assert!(!is_bad && found == expected[0], "call {i}: {found}"),
            Err(e) => {
                let of = ErrorKind::IndexOutOfBounds { pos: 1, index: 100, size: 100 };
                assert!(is_bad && e.kind() == &of, "call {i}: {e}");
            }
        }
    }
    assert!(step.replays() > 8);
}
