//! Steps that cannot be replayed. `capture` compares two traces of a step and refuses what a replay could not follow;
//! [captured steps](../captured-steps.md) says how it works. A step that is refused may have run in part or to its
//! end, and what it changed stays changed. Call the function itself until it is mended. `first_error(step, &x)` calls
//! the step on `x` until it fails, which takes four calls at most.

use crate::page::page;
use gradus::graph::Step;
use gradus::prelude::*;

page! {
    "Captured steps":
    a_number_is_read_inside_the_step,
    an_operation_differs_between_calls,
    a_constant_differs_between_calls,
    the_number_of_operations_differs,
    a_generator_outside_of_a_layer,
    a_result_requires_a_gradient,
    an_argument_has_a_graph,
    the_step_keeps_a_result,
    the_step_uses_two_devices,
    the_learning_rate_is_set_inside,
}

/// Calls a step until it returns an error.
#[track_caller]
fn first_error<F>(mut step: Step<F>, x: &Tensor) -> Error
where
    F: FnMut(&[Tensor]) -> Result<Vec<Tensor>>,
{
    for _ in 0..4 {
        if let Err(e) = step.call(&[x]) {
            return e;
        }
    }
    panic!("the step is not refused")
}

/// The step reads elements on the host, with `item`, `to_vec` or by printing a tensor, and computes with them. A replay
/// would go on with the numbers of the call that was traced.
///
/// Mend: keep the number on the device, as a tensor of one element, or return it and read it after the call.
fn a_number_is_read_inside_the_step(device: &Device) -> Result<Error> {
    let x = Tensor::ones([3], DType::F32, device)?;
    let error = first_error(capture(|x| Ok(vec![(&x[0] / x[0].sum_all()?.item()?)?])), &x);

    capture(|x: &[Tensor]| Ok(vec![(&x[0] / x[0].sum_all()?)?])).call(&[&x])?;
    Ok(error)
}

/// A number that the step computes with, or a parameter of an operation, is another one in each call.
///
/// Mend: pass what changes as an argument. A tensor of one element will do.
fn an_operation_differs_between_calls(device: &Device) -> Result<Error> {
    let x = Tensor::ones([3], DType::F32, device)?;
    let mut temperature = 1.0;
    let cooling = move |x: &[Tensor]| {
        temperature *= 0.9;
        Ok(vec![(&x[0] / temperature)?.softmax(-1)?])
    };
    let error = first_error(capture(cooling), &x);

    let mut step = capture(|x: &[Tensor]| Ok(vec![(&x[0] / &x[1])?.softmax(-1)?]));
    step.call(&[&x, &Tensor::scalar(0.9f32, device)?])?;
    Ok(error)
}

/// The step makes a tensor from numbers of the host, and they differ from call to call: a mask, a batch of labels.
///
/// Mend: make the tensor outside, and pass it.
fn a_constant_differs_between_calls(device: &Device) -> Result<Error> {
    let x = Tensor::ones([2], DType::F32, device)?;
    let (there, mut call) = (device.clone(), 0.0f32);
    let step = capture(move |x| {
        call += 1.0;
        Ok(vec![x[0].add(&Tensor::from_vec(vec![call, 0.0], [2], &there)?)?])
    });
    let error = first_error(step, &x);

    let offset = Tensor::from_vec(vec![1.0f32, 0.0], [2], device)?;
    capture(|x: &[Tensor]| Ok(vec![x[0].add(&x[1])?])).call(&[&x, &offset])?;
    Ok(error)
}

/// The step runs other operations, or more of them, in its second call: a branch, or a loop whose length changes.
///
/// Mend: capture each branch by itself, and choose among them outside.
fn the_number_of_operations_differs(device: &Device) -> Result<Error> {
    let x = Tensor::ones([3], DType::F32, device)?;
    let mut call = 0;
    let longer = move |x: &[Tensor]| {
        call += 1;
        (0..call).try_fold(x[0].clone(), |x, _| x.tanh()).map(|x| vec![x])
    };
    let error = first_error(capture(longer), &x);

    capture(|x: &[Tensor]| (0..3).try_fold(x[0].clone(), |x, _| x.tanh()).map(|x| vec![x])).call(&[&x])?;
    Ok(error)
}

/// The step draws random numbers from a `Generator` of its own, which has moved on in the second call.
///
/// Mend: draw from a `RandomState`, as layers do: a replay continues where it is.
fn a_generator_outside_of_a_layer(device: &Device) -> Result<Error> {
    let x = Tensor::ones([8], DType::F32, device)?;
    let mut rng = Generator::new(0);
    let error = first_error(capture(move |x| Ok(vec![x[0].dropout(0.5, &mut rng)?])), &x);

    let dropout = Dropout::new(0.5, &mut Generator::new(0))?;
    capture(move |x: &[Tensor]| Ok(vec![dropout.forward(&x[0])?])).call(&[&x])?;
    Ok(error)
}

/// The result of a step carries a graph, and a replay records none.
///
/// Mend: compute gradients inside of the step, and return detached tensors; or run an evaluation inside `no_grad`.
fn a_result_requires_a_gradient(device: &Device) -> Result<Error> {
    let x = Tensor::ones([3], DType::F32, device)?;
    let w = Tensor::ones([3], DType::F32, device)?.with_grad()?;
    let weight = w.clone();
    let error = first_error(capture(move |x| Ok(vec![x[0].mul(&weight)?.sum_all()?])), &x);

    capture(|x: &[Tensor]| {
        let loss = x[0].mul(&w)?.sum_all()?;
        Ok(vec![loss.detach(), loss.backward()?.get(&w).unwrap().clone()])
    })
    .call(&[&x])?;
    Ok(error)
}

/// An argument of the step was itself computed by recorded operations, and no gradient could flow back to them.
///
/// Mend: compute it inside of the step, or pass `x.detach()`.
fn an_argument_has_a_graph(device: &Device) -> Result<Error> {
    let w = Tensor::ones([3], DType::F32, device)?.with_grad()?;
    let mut step = capture(|x: &[Tensor]| Ok(vec![x[0].detach().square()?]));
    let error = step.call(&[&w.exp()?]).unwrap_err();

    step.call(&[&w.exp()?.detach()])?;
    Ok(error)
}

/// The step keeps a tensor that it has computed for its next call: a hidden state, a running mean.
///
/// Mend: return it and pass it in again, or write it into a tensor that stays, with `copy_`.
fn the_step_keeps_a_result(device: &Device) -> Result<Error> {
    let x = Tensor::ones([3], DType::F32, device)?;
    let mut hidden = Tensor::zeros([3], DType::F32, device)?;
    let step = capture(move |x| {
        hidden = (&hidden + &x[0])?.tanh()?;
        Ok(vec![hidden.clone()])
    });
    let error = first_error(step, &x);

    let hidden = Tensor::zeros([3], DType::F32, device)?;
    let mut step = capture(move |x: &[Tensor]| {
        hidden.copy_(&(&hidden + &x[0])?.tanh()?)?;
        Ok(vec![hidden.copy()?])
    });
    (0..4).try_for_each(|_| step.call(&[&x]).map(drop))?;
    Ok(error)
}

/// The step moves a tensor to another device.
///
/// Mend: move tensors before the call.
fn the_step_uses_two_devices(device: &Device) -> Result<Error> {
    use std::sync::Arc;
    let x = Tensor::ones([3], DType::F32, device)?;
    let other = Device::from_backend(Arc::new(gradus::cpu::CpuBackend::new()?));
    let there = other.clone();
    let error = first_error(capture(move |x| Ok(vec![x[0].to_device(&there)?.exp()?])), &x);

    capture(|x: &[Tensor]| Ok(vec![x[0].exp()?])).call(&[&x.to_device(&other)?])?;
    Ok(error)
}

/// A schedule is applied inside of the step. Each replay reads the learning rate that the optimiser has at that time, so
/// it is set outside.
///
/// Mend: call `schedule.apply` before the step.
fn the_learning_rate_is_set_inside(device: &Device) -> Result<Error> {
    let mut rng = Generator::new(0);
    let model = Linear::new(3, 1, &mut Init::new(DType::F32, device, &mut rng))?;
    let x = Tensor::ones([2, 3], DType::F32, device)?;
    let mut optimizer = Sgd::new(model.named_parameters(), SgdConfig { lr: 0.1, ..Default::default() })?;
    let (schedule, mut n) = (Schedule::cosine(10, 0.0)?, 0);
    let step = capture(|x| {
        schedule.apply(n, &mut optimizer)?;
        n += 1;
        let loss = model.forward(&x[0])?.square()?.mean_all()?;
        optimizer.step(&loss.backward()?)?;
        Ok(vec![loss.detach()])
    });
    let error = first_error(step, &x);

    schedule.apply(n, &mut optimizer)?;
    Ok(error)
}
