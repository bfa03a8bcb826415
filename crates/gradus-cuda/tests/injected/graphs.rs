//! Captured steps as graphs of the driver.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use gradus_backend::Backend;
use gradus_cuda::CudaBackend;
use gradus_graph::capture;
use gradus_nn::{
    AdamConfig, AdamW, BatchNorm1d, BatchNormConfig, Embedding, Forward, Init, Linear, Module, Optimizer, Sequential,
    Sgd, SgdConfig, Tanh,
};
use gradus_tensor::{DType, Device, ErrorKind, Generator, Result, Tensor, UpdateFn};

use crate::stand_in::{computes, counted, fail, numbers, opened, with_variables};

/// Memory that is freed serves the next tensor, as without tools that check accesses, so that a step finds everything where
/// it was.
const POOLED: (&str, &str) = ("GRADUS_CUDA_EXACT", "0");

/// A network that reads words, with its optimiser.
struct Training {
    model: Sequential,
    optimizer: Box<dyn Optimizer>,
}

impl Training {
    fn new(device: &Device, is_adam: bool) -> Training {
        let mut generator = Generator::new(0);
        let mut init = Init::new(DType::F32, device, &mut generator);
        let embedding = Embedding::new(10, 8, None, &mut init).expect("a layer");
        let model = Sequential::new().add(embedding).add(Tanh).add(Linear::new(8, 3, &mut init).expect("a layer"));
        let parameters = model.named_parameters();
        let optimizer: Box<dyn Optimizer> = match is_adam {
            true => {
                Box::new(AdamW::new(parameters, AdamConfig { lr: 0.1, ..Default::default() }).expect("an optimiser"))
            }
            false => Box::new(Sgd::new(parameters, SgdConfig { lr: 0.1, ..Default::default() }).expect("an optimiser")),
        };
        Training { model, optimizer }
    }

    fn step(&mut self, x: &[Tensor]) -> Result<Vec<Tensor>> {
        let loss = self.model.forward(&x[0])?.cross_entropy(&x[1])?;
        self.optimizer.step(&loss.backward()?)?;
        Ok(vec![loss.detach()])
    }
}

fn indices(device: &Device, values: [i64; 5]) -> Tensor {
    Tensor::from_vec(values, [5], device).expect("indices")
}

fn bits(tensors: &[Tensor]) -> Vec<Vec<u8>> {
    tensors.iter().map(|t| t.to_bytes().expect("a tensor")).collect()
}

#[track_caller]
fn trains_as_without_a_graph(device: &Device, is_adam: bool) {
    let (mut plain, mut captured) = (Training::new(device, is_adam), Training::new(device, is_adam));
    let parameters = |of: &Training| of.model.named_parameters().into_iter().map(|(_, p)| p).collect::<Vec<_>>();
    let (expected, found) = (parameters(&plain), parameters(&captured));
    let values = |of: &[gradus_nn::Parameter]| bits(&of.iter().map(|p| p.tensor().clone()).collect::<Vec<_>>());
    let mut step = capture(|x| captured.step(x));
    let target = indices(device, [0, 1, 2, 1, 0]);
    let (words, moved) = (indices(device, [1, 2, 3, 9, 0]), indices(device, [4, 4, 3, 3, 0]));
    let mut by_graph = 0;
    for i in 0..24 {
        // The words are elsewhere from time to time.
        let x = [if i % 8 == 5 { moved.clone() } else { words.clone() }, target.clone()];
        let before = counted("graph_launches");
        let got = bits(&step.call(&[&x[0], &x[1]]).expect("a step"));
        by_graph += u64::from(counted("graph_launches") > before);
        assert_eq!(got, bits(&plain.step(&x).expect("a step")), "step {i}");
        assert_eq!(values(&found), values(&expected), "step {i}");
    }
    assert!(by_graph >= 8, "{by_graph} steps were started as graphs");
}

#[test]
fn a_captured_training_step_is_a_graph_with_the_same_bits() {
    let test = "graphs::a_captured_training_step_is_a_graph_with_the_same_bits";
    with_variables(test, &[POOLED], || {
        let Some(device) = opened() else { return };
        trains_as_without_a_graph(&device, false);
        // The numbers of each step of Adam are new: its updates are calls after the graph.
        trains_as_without_a_graph(&device, true);
    });
}

/// A recording has what its own thread queues, and memory of its own.
#[test]
fn steps_of_two_threads_do_not_mix() {
    with_variables("graphs::steps_of_two_threads_do_not_mix", &[POOLED, ("GRADUS_PTX_LATE", "1")], || {
        let Some(device) = opened() else { return };
        let target = indices(&device, [0, 1, 2, 1, 0]);
        // Both begin each step together. Where one has ended, whatever the reason, the other does not wait.
        let train = |is_adam: bool, words: [i64; 5], other: Option<(Sender<()>, Receiver<()>)>| {
            let (mut training, x) = (Training::new(&device, is_adam), [indices(&device, words), target.clone()]);
            let Some((begins, has_begun)) = other else {
                return (0..30).map(|_| bits(&training.step(&x).expect("a step"))).collect::<Vec<_>>();
            };
            let mut step = capture(|x| training.step(x));
            let mut call = || {
                let _ = begins.send(());
                let _ = has_begun.recv();
                bits(&step.call(&[&x[0], &x[1]]).expect("a step"))
            };
            (0..30).map(|_| call()).collect()
        };
        let (a, b) = ([1, 2, 3, 9, 0], [4, 4, 3, 3, 0]);
        let expected = [train(false, a, None), train(true, b, None)];
        let before = counted("graph_launches");
        let ((to_b, from_a), (to_a, from_b)) = (channel(), channel());
        let found = std::thread::scope(|scope| {
            let threads = [
                scope.spawn(|| train(false, a, Some((to_b, from_b)))),
                scope.spawn(|| train(true, b, Some((to_a, from_a)))),
            ];
            threads.map(|thread| thread.join().expect("a thread"))
        });
        assert_eq!(found, expected);
        assert!(counted("graph_launches") > before);
    });
}

/// Asserts that a training step is one start of a graph, and so many launches beside it.
#[track_caller]
fn a_step_is_a_graph_and(launches: u64, is_adam: bool) {
    let Some(device) = opened() else { return };
    let mut training = Training::new(&device, is_adam);
    let mut step = capture(|x| training.step(x));
    let (words, target) = (indices(&device, [1, 2, 3, 9, 0]), indices(&device, [0, 1, 2, 1, 0]));
    for _ in 0..8 {
        step.call(&[&words, &target]).expect("a step");
    }
    let calls = ["graph_launches", "cuLaunchKernel"].map(counted);
    step.call(&[&words, &target]).expect("a step");
    assert_eq!(["graph_launches", "cuLaunchKernel"].map(counted), [calls[0] + 1, calls[1] + launches]);
}

#[test]
fn a_step_whose_numbers_stay_is_one_launch() {
    let body = || a_step_is_a_graph_and(0, false);
    with_variables("graphs::a_step_whose_numbers_stay_is_one_launch", &[POOLED], body);
}

#[test]
fn the_updates_of_an_optimizer_are_one_launch() {
    let body = || a_step_is_a_graph_and(1, true);
    with_variables("graphs::the_updates_of_an_optimizer_are_one_launch", &[POOLED], body);
}

/// A function with temporary memory, of which a graph is made in the fourth call.
fn gathered(x: &[Tensor]) -> Result<Vec<Tensor>> {
    Ok(vec![x[0].index_select(0, &x[1])?.add(1.0)?.softmax(0)?, x[0].exp()?.sum_all()?])
}

#[test]
fn a_late_error_of_a_graph_is_that_of_its_run() {
    let body = || {
        let Some(device) = opened() else { return };
        let x = numbers(&device).expect("numbers");
        let (good, bad) = ([3, 99, 0, 7, 7], [3, 99, -1, 100, 7]);
        let index = indices(&device, good);
        let expected = bits(&gathered(&[x.clone(), index.clone()]).expect("a call"));
        let mut step = capture(gathered);
        for _ in 0..8 {
            step.call(&[&x, &index]).expect("a call");
        }
        let other = indices(&device, bad);
        for _ in 0..3 {
            let before = counted("graph_launches");
            // Nothing is read between a run that fails and one that does not.
            index.copy_(&other).expect("a copy");
            let failed = step.call(&[&x, &index]).expect("the error is found later");
            index.copy_(&indices(&device, good)).expect("a copy");
            let fine = step.call(&[&x, &index]);
            let e = failed[0].to_bytes().expect_err("an index out of range");
            assert!(matches!(e.kind(), ErrorKind::IndexOutOfBounds { pos: 2, index: -1, size: 100 }), "{e}");
            assert!(e.to_string().contains("graphs.rs"), "{e}");
            assert_eq!(failed[1].to_bytes().expect("not affected"), expected[1]);
            assert_eq!(bits(&fine.expect("a call")), expected);
            assert!(counted("graph_launches") > before);
            drop(failed);
            for _ in 0..4 {
                assert_eq!(bits(&step.call(&[&x, &index]).expect("a call")), expected);
            }
        }
        device.synchronize().expect("every error was told");
    };
    with_variables("graphs::a_late_error_of_a_graph_is_that_of_its_run", &[POOLED, ("GRADUS_PTX_LATE", "1")], body);
}

/// Memory of a step that a bad index has spoiled is renewed, though what is computed there next fills only a part of it.
#[test]
fn a_late_error_of_a_step_is_that_of_one_call_and_of_what_depends_on_it() {
    let test = "graphs::a_late_error_of_a_step_is_that_of_one_call_and_of_what_depends_on_it";
    with_variables(test, &[POOLED], || {
        let Some(device) = opened() else { return };
        let x = numbers(&device).expect("numbers");
        // The second result needs less temporary memory than the first, and has it after the first.
        let function = |x: &[Tensor]| {
            let first = x[0].index_select(0, &x[1])?.cumsum(0)?.sum_all()?;
            Ok(vec![first, x[0].narrow(0, 0, 3)?.cumsum(0)?.sum_all()?])
        };
        let mut step = capture(function);
        let index = |values: &[i64]| Tensor::from_vec(values, [values.len()], &device).expect("indices");
        // The memory of a larger call serves the smaller ones too.
        let (large, small) = (index(&[1; 50]), index(&[3, 99, 0, 7, 7]));
        let expected = bits(&function(&[x.clone(), small.clone()]).expect("a call"));
        for index in [&large, &small] {
            (0..6).for_each(|_| drop(bits(&step.call(&[&x, index]).expect("a call"))));
        }
        let before = counted("graph_launches");
        for round in 0..3 {
            small.copy_(&index(&[3, 100, 0, 7, 7])).expect("a copy");
            let failed = step.call(&[&x, &small]).expect("the error is found later");
            assert_eq!(failed[1].to_bytes().expect("not affected"), expected[1], "round {round}");
            let e = failed[0].to_bytes().expect_err("an index out of range");
            assert!(matches!(e.kind(), ErrorKind::IndexOutOfBounds { pos: 1, index: 100, size: 100 }), "{e}");
            drop(failed);
            small.copy_(&index(&[3, 99, 0, 7, 7])).expect("a copy");
            for _ in 0..2 {
                assert_eq!(bits(&step.call(&[&x, &small]).expect("a call")), expected, "round {round}");
            }
        }
        assert!(counted("graph_launches") > before);
    });
}

static MIX: UpdateFn = UpdateFn::new("mix", |x| vec![x[0] * 0.5 + x[1]]);

#[test]
fn a_late_error_spoils_only_those_of_many_updates_that_depend_on_it() {
    let test = "graphs::a_late_error_spoils_only_those_of_many_updates_that_depend_on_it";
    with_variables(test, &[POOLED], || {
        let Some(device) = opened() else { return };
        let x = numbers(&device).expect("numbers");
        let index = indices(&device, [3, 99, 0, 7, 7]);
        let all = || (0..4).map(|i| Tensor::full([5], f64::from(i), DType::F32, &device).expect("a tensor"));
        let (updated, plain): (Vec<Tensor>, Vec<Tensor>) = (all().collect(), all().collect());
        let mut step = capture(|x| {
            let (gathered, part) = (x[0].index_select(0, &x[1])?, x[0].narrow(0, 0, 5)?.cumsum(0)?);
            for (i, t) in updated.iter().enumerate() {
                MIX.apply(&[t], &[t, if i == 2 { &gathered } else { &part }], &[])?;
            }
            Ok(())
        });
        let part = x.narrow(0, 0, 5).and_then(|x| x.cumsum(0)).expect("numbers");
        for i in 0..9 {
            if i == 8 {
                index.copy_(&indices(&device, [3, 99, 0, 100, 7])).expect("a copy");
            }
            let before = ["graph_launches", "cuLaunchKernel"].map(counted);
            step.call(&[&x, &index]).expect("a call");
            let now = ["graph_launches", "cuLaunchKernel"].map(counted);
            assert!(i < 7 || now == [before[0] + 1, before[1]], "call {i} starts a graph");
            plain.iter().for_each(|t| MIX.apply(&[t], &[t, &part], &[]).expect("an update"));
        }
        for (i, (found, expected)) in updated.iter().zip(&plain).enumerate() {
            match found.to_bytes() {
                Ok(bytes) => assert!(i != 2 && bytes == expected.to_bytes().expect("numbers"), "{i}"),
                Err(e) => assert!(i == 2 && e.to_string().contains("index 100"), "{i}: {e}"),
            }
        }
    });
}

#[test]
fn what_is_spoiled_before_a_graph_is_spoiled_after_it() {
    with_variables("graphs::what_is_spoiled_before_a_graph_is_spoiled_after_it", &[POOLED], || {
        let Some(device) = opened() else { return };
        let mut step = capture(|x| Ok(vec![x[0].exp()?.matmul(&x[0])?.softmax(0)?]));
        let x = numbers(&device).and_then(|x| x.reshape([10, 10])).expect("numbers");
        let values = x.copy().expect("a copy");
        let expected = bits(&step.call(&[&x]).expect("a call"));
        for _ in 0..6 {
            step.call(&[&x]).expect("a call");
        }
        let before = counted("graph_launches");
        let index = Tensor::full([10, 10], 10.0, DType::I64, &device).expect("indices");
        x.copy_(&values.gather(0, &index).expect("the error is found later")).expect("a copy");
        let e = step.call(&[&x]).expect("a call")[0].to_bytes().expect_err("what it was computed from");
        assert!(matches!(e.kind(), ErrorKind::IndexOutOfBounds { .. }), "{e}");
        x.copy_(&values).expect("a copy");
        assert_eq!(bits(&step.call(&[&x]).expect("a call")), expected);
        assert_eq!(counted("graph_launches"), before + 2);
    });
}

/// A graph writes only to its own memory and to its operands, whatever is allocated between two starts.
#[test]
fn the_temporary_memory_of_a_graph_is_its_own() {
    with_variables("graphs::the_temporary_memory_of_a_graph_is_its_own", &[POOLED], || {
        let Some(device) = opened() else { return };
        let x = Tensor::randn([64, 64], DType::F32, &device, &mut Generator::new(1)).expect("numbers");
        let mut step = capture(|x| Ok(vec![x[0].sort(0, true)?.0.cumsum(1)?.matmul(&x[0])?.sum_all()?]));
        let mut kept = vec![];
        let mut expected = None;
        for i in 0..10 {
            let got = bits(&step.call(&[&x]).expect("a call"));
            assert_eq!(*expected.get_or_insert(got.clone()), got);
            for size in [1, 64, 100, 1000, 4096, 10_000] {
                kept.push((i, Tensor::full([size], f64::from(i), DType::F32, &device).expect("memory")));
            }
        }
        assert!(counted("graph_launches") > 0);
        for (i, tensor) in &kept {
            assert!(tensor.to_vec::<f32>().expect("values").iter().all(|&v| v == *i as f32), "{i}");
        }
    });
}

#[test]
fn a_graph_gives_its_memory_back_when_there_is_no_more() {
    let test = "graphs::a_graph_gives_its_memory_back_when_there_is_no_more";
    with_variables(test, &[POOLED, ("GRADUS_PTX_MEMORY", "1000000")], || {
        let Some(device) = opened() else { return };
        let x = Tensor::randn([128, 128], DType::F32, &device, &mut Generator::new(1)).expect("numbers");
        let mut step = capture(|x| Ok(vec![x[0].sort(0, true)?.0.sum_all()?]));
        let expected = bits(&step.call(&[&x]).expect("a call"));
        for _ in 0..6 {
            step.call(&[&x]).expect("a call");
        }
        let (started, destroyed) = (counted("graph_launches"), counted("cuGraphExecDestroy"));
        assert!(started > 0);
        // There is room for these only without the memory of the graph, and for that only without these.
        let mut all = vec![];
        while counted("cuGraphExecDestroy") == destroyed {
            all.push(Tensor::zeros([4096], DType::F32, &device).expect("the graph's memory"));
        }
        drop(all);
        assert_eq!(bits(&step.call(&[&x]).expect("a call")), expected);
        computes(&device);
    });
}

/// Whether a call of the step starts a graph.
fn is_started(step: &mut impl FnMut() -> Vec<Tensor>) -> bool {
    let before = counted("graph_launches");
    step();
    counted("graph_launches") > before
}

#[test]
fn an_allocation_that_cannot_succeed_takes_nothing_and_a_graph_comes_back_after_one_that_could() {
    let test = "graphs::an_allocation_that_cannot_succeed_takes_nothing_and_a_graph_comes_back_after_one_that_could";
    with_variables(test, &[POOLED, ("GRADUS_PTX_MEMORY", "1000000")], || {
        if opened().is_none() {
            return;
        }
        let backend = Arc::new(CudaBackend::open(0).expect("a device"));
        let device = Device::from_backend(backend.clone());
        let x = Tensor::randn([128, 128], DType::F32, &device, &mut Generator::new(1)).expect("numbers");
        let mut captured = capture(|x| Ok(vec![x[0].sort(0, true)?.0.sum_all()?]));
        let mut step = || captured.call(&[&x]).expect("a call");
        let expected = bits(&step());
        (0..6).for_each(|_| drop(step()));
        assert!(is_started(&mut step));
        let is_refused = |elements: usize| match Tensor::zeros([elements], DType::F32, &device) {
            Ok(_) => false,
            Err(e) => matches!(e.kind(), ErrorKind::OutOfMemory { .. }),
        };
        // More than the device has; more than it has beside a tensor that lives; more than the budget allows.
        assert!(is_refused(300_000) && is_started(&mut step));
        assert!(is_refused(240_000) && is_started(&mut step));
        backend.set_memory_budget(Some(device.memory_stats().in_use + 4096)).expect("a budget");
        assert!(is_refused(200_000) && is_started(&mut step));
        backend.set_memory_budget(None).expect("no budget");
        // More than it has beside a tensor of somebody else.
        let other = Device::from_backend(Arc::new(CudaBackend::open(0).expect("the same device")));
        let held = Tensor::zeros([50_000], DType::F32, &other).expect("memory");
        assert!(is_refused(190_000) && is_started(&mut step));
        drop(held);
        let destroyed = counted("cuGraphExecDestroy");
        let mut all = vec![];
        while counted("cuGraphExecDestroy") == destroyed {
            all.push(Tensor::zeros([4096], DType::F32, &device).expect("the graph's memory"));
        }
        drop(all);
        assert!(!is_started(&mut step));
        assert!((0..100).any(|_| is_started(&mut step)), "the step has a graph again");
        assert_eq!(bits(&step()), expected);
    });
}

#[test]
fn the_place_of_a_result_is_given_back_when_there_is_no_more_memory() {
    let test = "graphs::the_place_of_a_result_is_given_back_when_there_is_no_more_memory";
    with_variables(test, &[POOLED, ("GRADUS_PTX_MEMORY", "1000000")], || {
        let Some(device) = opened() else { return };
        let x = Tensor::randn([200, 200], DType::F32, &device, &mut Generator::new(1)).expect("numbers");
        let mut captured = capture(|x| Ok(vec![x[0].exp()?]));
        let mut step = || captured.call(&[&x]).expect("a call");
        let expected = bits(&step());
        (0..6).for_each(|_| drop(step()));
        let fill = || {
            let made = (0..100).map_while(|_| Tensor::zeros([4096], DType::F32, &device).ok());
            made.collect::<Vec<_>>()
        };
        // The device has room for 61. `x` takes 10 of it, the buffer of faults 2, and a place for results 10 more.
        let all = fill();
        assert!(all.len() > 43, "{} tensors of 16 KiB", all.len());
        drop(all);
        for _ in 0..80 {
            assert_eq!(bits(&step()), expected);
        }
    });
}

#[test]
fn a_graph_that_the_driver_does_not_make_is_calls() {
    with_variables("graphs::a_graph_that_the_driver_does_not_make_is_calls", &[POOLED], || {
        let Some(device) = opened() else { return };
        let (x, index) = (numbers(&device).expect("numbers"), indices(&device, [3, 99, 0, 7, 7]));
        let expected = bits(&gathered(&[x.clone(), index.clone()]).expect("a call"));
        for function in ["cuStreamBeginCapture_v2", "cuStreamEndCapture", "cuGraphInstantiateWithFlags"] {
            let (mut step, before) = (capture(gathered), counted("graph_launches"));
            for _ in 0..8 {
                fail(&format!("{function}:1+=801"));
                assert_eq!(bits(&step.call(&[&x, &index]).expect("a call")), expected, "{function}");
            }
            fail("");
            assert_eq!(counted("graph_launches"), before, "{function}");
        }
    });
}

#[test]
fn a_graph_for_which_memory_is_short_is_made_later_and_one_that_is_refused_is_not() {
    let test = "graphs::a_graph_for_which_memory_is_short_is_made_later_and_one_that_is_refused_is_not";
    with_variables(test, &[POOLED], || {
        let Some(device) = opened() else { return };
        let (x, index) = (numbers(&device).expect("numbers"), indices(&device, [3, 99, 0, 7, 7]));
        let expected = bits(&gathered(&[x.clone(), index.clone()]).expect("a call"));
        for (code, is_made) in [(2, true), (801, false)] {
            let mut captured = capture(gathered);
            let mut step = || captured.call(&[&x, &index]).expect("a call");
            fail(&format!("cuGraphInstantiateWithFlags:1+={code}"));
            (0..8).for_each(|_| assert_eq!(bits(&step()), expected));
            fail("");
            assert!(!is_started(&mut step));
            assert_eq!((0..100).any(|_| is_started(&mut step)), is_made, "code {code}");
            assert_eq!(bits(&step()), expected);
        }
    });
}

#[test]
fn a_start_that_fails_is_an_error_and_the_next_is_made_of_calls() {
    with_variables("graphs::a_start_that_fails_is_an_error_and_the_next_is_made_of_calls", &[POOLED], || {
        let Some(device) = opened() else { return };
        let (x, index) = (numbers(&device).expect("numbers"), indices(&device, [3, 99, 0, 7, 7]));
        let mut step = capture(gathered);
        let expected = bits(&step.call(&[&x, &index]).expect("a call"));
        for _ in 0..6 {
            step.call(&[&x, &index]).expect("a call");
        }
        fail("cuGraphLaunch:1=1");
        let e = step.call(&[&x, &index]).expect_err("a start that fails");
        assert!(e.to_string().contains("CUDA_ERROR_INVALID_VALUE"), "{e}");
        fail("");
        for _ in 0..6 {
            assert_eq!(bits(&step.call(&[&x, &index]).expect("a call")), expected);
        }
        fail("cuGraphLaunch:1=719");
        let e = step.call(&[&x, &index]).expect_err("a device that is gone");
        assert!(e.to_string().contains("CUDA_ERROR_LAUNCH_FAILED"), "{e}");
        fail("");
        for _ in 0..3 {
            let text = step.call(&[&x, &index]).expect_err("the device stays lost").to_string();
            assert!(text.contains("is lost") && text.contains("start the program again"), "{text}");
        }
    });
}

/// Once a graph is started, what fails after it is an error of what cannot be known any more, and of nothing else.
#[test]
fn a_copy_that_fails_after_a_start_does_not_undo_the_step() {
    let test = "graphs::a_copy_that_fails_after_a_start_does_not_undo_the_step";
    with_variables(test, &[POOLED], || {
        let Some(device) = opened() else { return };
        let (x, index) = (numbers(&device).expect("numbers"), indices(&device, [3, 99, 0, 7, 7]));
        let total = Tensor::zeros([], DType::F32, &device).expect("a tensor");
        let function = |x: &[Tensor]| {
            let sum = x[0].cumsum(0)?.sum_all()?;
            MIX.apply(&[&total], &[&total, &sum], &[])?;
            Ok(vec![x[0].index_select(0, &x[1])?.softmax(0)?, sum])
        };
        let expected = bits(&function(&[x.clone(), index.clone()]).expect("a call"));
        let mut sum = total.item().expect("a number") as f32;
        let once = x.cumsum(0).and_then(|x| x.sum_all()?.item()).expect("a number") as f32;
        let mut step = capture(function);
        // A failure of the copy of slots, of each result, and none.
        let mut seen = [0; 3];
        for i in 0..20 {
            let copies = (i > 7).then_some(i % 4 + 1);
            if let Some(n) = copies {
                fail(&format!("cuMemcpyDtoDAsync_v2:{n}=1"));
            }
            let before = counted("graph_launches");
            let called = step.call(&[&x, &index]);
            fail("");
            assert!(i < 8 || counted("graph_launches") > before, "call {i}");
            match called {
                Ok(results) => match results[0].to_bytes() {
                    Ok(_) => {
                        assert_eq!(bits(&results), expected, "call {i}");
                        seen[2] += 1;
                    }
                    Err(e) => {
                        let text = e.to_string();
                        assert!(text.contains("is not known") && text.contains("CUDA_ERROR_INVALID_VALUE"), "{text}");
                        assert_eq!(results[1].to_bytes().expect("not affected"), expected[1], "call {i}");
                        seen[0] += 1;
                    }
                },
                Err(e) => {
                    assert!(e.to_string().contains("CUDA_ERROR_INVALID_VALUE"), "{e}");
                    seen[1] += 1;
                }
            }
            sum = sum * 0.5 + once;
            assert_eq!(total.item().expect("a number") as f32, sum, "the step ran once: call {i}");
        }
        assert!(seen[0] >= 3 && seen[1] >= 6 && seen[2] >= 11, "{seen:?}");
    });
}

#[test]
fn results_that_are_kept_and_states_that_are_replaced_stay_those_of_their_calls() {
    let test = "graphs::results_that_are_kept_and_states_that_are_replaced_stay_those_of_their_calls";
    with_variables(test, &[POOLED], || {
        let Some(device) = opened() else { return };
        let made = || {
            let mut generator = Generator::new(0);
            let mut init = Init::new(DType::F32, &device, &mut generator);
            BatchNorm1d::new(40, BatchNormConfig::default(), &mut init).expect("a layer")
        };
        let (captured, plain) = (made(), made());
        let states = |layer: &BatchNorm1d| {
            bits(&layer.named_buffers().into_iter().map(|(_, buffer)| buffer.tensor()).collect::<Vec<_>>())
        };
        let values = |i| Tensor::randn([3, 40], DType::F32, &device, &mut Generator::new(i)).expect("numbers");
        let expected = (0..24).map(|i| {
            let result = plain.forward(&values(i)).and_then(|x| x.cumsum(0)).expect("a call");
            (bits(&[result]), states(&plain))
        });
        let expected: Vec<_> = expected.collect();
        let mut step = capture(|x| Ok(vec![captured.forward(&x[0])?.cumsum(0)?.detach()]));
        let (x, mut kept) = (values(0), vec![]);
        for (i, (_, expected)) in expected.iter().enumerate() {
            x.copy_(&values(i as u64)).expect("a copy");
            let before = counted("graph_launches");
            let results = step.call(&[&x]).expect("a call");
            assert_eq!(&states(&captured), expected, "call {i}");
            if i >= 16 {
                // The old and the new states have memory that takes turns. Results have other sizes.
                assert!(counted("graph_launches") > before, "call {i}");
                kept.push(results);
            }
        }
        for (kept, (expected, _)) in kept.iter().zip(&expected[16..]) {
            assert_eq!(&bits(kept), expected);
        }
    });
}
