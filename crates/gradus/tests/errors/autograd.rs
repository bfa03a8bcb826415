//! Gradients that cannot be computed correctly. Instead of a silently wrong number there is an error of the kind
//! `Autograd`, with the lines of the operations that are involved.

use std::sync::Arc;

use crate::page::page;
use gradus::autograd::{self, Context, gradcheck};
use gradus::prelude::*;
use gradus::{CustomOp, apply_custom, hessian, vmap};

page! {
    "Autograd":
    nothing_requires_a_gradient,
    the_way_to_the_parameter_was_cut,
    several_elements_need_a_seed,
    a_seed_has_another_shape,
    the_graph_was_freed,
    a_saved_value_was_overwritten,
    a_write_is_refused_while_the_graph_lives,
    an_input_of_a_strict_operation_was_overwritten,
    a_parameter_is_written_in_place,
    a_computed_tensor_was_overwritten,
    an_input_of_grad_requires_no_gradient,
    there_are_no_gradients_inside_inference,
    an_operation_is_not_differentiable_twice,
    a_custom_gradient_has_the_wrong_shape,
    a_custom_gradient_gives_too_few,
    a_custom_operation_captures_a_tracked_tensor,
    numbers_are_read_in_a_gradient_that_is_differentiated,
    a_custom_operation_overwrites_its_input,
    a_gradient_is_wrong,
    a_gradient_is_checked_in_f32,
    a_hook_gives_another_shape,
    a_hook_writes_into_the_gradient,
    a_checkpointed_region_writes_outside,
    a_checkpointed_region_differs_when_it_runs_again,
    a_function_for_the_hessian_gives_several_numbers,
    no_axis_is_mapped,
    autocast_to_a_full_float,
}

/// `backward` starts at a tensor that no parameter led to.
///
/// Mend: make a leaf with `with_grad` before the computation. Parameters of layers are leaves already.
fn nothing_requires_a_gradient(device: &Device) -> Result<Error> {
    let x = Tensor::ones([3], DType::F32, device)?;
    let error = x.square()?.sum_all()?.backward().unwrap_err();

    let x = x.with_grad()?;
    x.square()?.sum_all()?.backward()?;
    Ok(error)
}

/// The computation depends on a parameter, and recording was off on the way: inside `no_grad`, or after `detach`. The
/// error tells which.
///
/// Mend: compute the loss outside of `no_grad`. `explain_grad(&parameter, || loss(..))` prints the operation at which
/// the way ends.
fn the_way_to_the_parameter_was_cut(device: &Device) -> Result<Error> {
    let w = Tensor::ones([3], DType::F32, device)?.with_grad()?;
    let loss = no_grad(|| w.square()?.sum_all())?;
    let error = loss.backward().unwrap_err();

    w.square()?.sum_all()?.backward()?;
    Ok(error)
}

/// The derivative of several numbers is a matrix; `backward` computes that of one.
///
/// Mend: reduce the loss with `mean_all` or `sum_all`, or pass to `grad` the seed that weighs the elements.
fn several_elements_need_a_seed(device: &Device) -> Result<Error> {
    let w = Tensor::ones([3], DType::F32, device)?.with_grad()?;
    let error = w.square()?.backward().unwrap_err();

    w.square()?.mean_all()?.backward()?;
    grad(&[&w.square()?], &[&w], Some(&[&Tensor::ones([3], DType::F32, device)?]), BackwardOptions::new())?;
    Ok(error)
}

/// A seed weighs each element of an output, so it has the output's shape, dtype and device.
///
/// Mend: make it like the output.
fn a_seed_has_another_shape(device: &Device) -> Result<Error> {
    let w = Tensor::ones([3], DType::F32, device)?.with_grad()?;
    let y = w.square()?;
    let seed = Tensor::ones([1], DType::F32, device)?;
    let error = grad(&[&y], &[&w], Some(&[&seed]), BackwardOptions::new()).unwrap_err();

    grad(&[&y], &[&w], Some(&[&y.ones_like()?]), BackwardOptions::new())?;
    Ok(error)
}

/// A backward pass frees the values that it has used, and a second one finds none.
///
/// Mend: add the losses and call `backward` once; or keep the graph in the first pass, which costs memory.
fn the_graph_was_freed(device: &Device) -> Result<Error> {
    let w = Tensor::ones([3], DType::F32, device)?.with_grad()?;
    let loss = w.square()?.sum_all()?;
    loss.backward()?;
    let error = loss.backward().unwrap_err();

    let loss = w.square()?.sum_all()?;
    loss.backward_with(BackwardOptions::new().retain_graph())?;
    loss.backward()?;
    Ok(error)
}

/// A value of the forward pass, which the gradient needs, was overwritten before the backward pass. The error names the
/// operation that needs it, the one that overwrote it, and the line of each; `version_mismatch` has them as data.
///
/// Mend: write into a copy, or use the operation that makes a new tensor. [Writing in place](../writes-in-place.md) has
/// three switches that change when and whether this is an error.
fn a_saved_value_was_overwritten(device: &Device) -> Result<Error> {
    let w = Tensor::ones([3], DType::F32, device)?.with_grad()?;
    let scale = Tensor::full([3], 2.0, DType::F32, device)?;
    let loss = w.mul(&scale)?.sum_all()?;
    scale.fill_(0.0)?;
    let error = loss.backward().unwrap_err();

    let loss = w.mul(&scale.copy()?)?.sum_all()?;
    scale.fill_(1.0)?;
    loss.backward()?;
    Ok(error)
}

/// Under `strict_inplace`, the write itself is refused, at the line where it happens.
///
/// Mend: write after the backward pass.
fn a_write_is_refused_while_the_graph_lives(device: &Device) -> Result<Error> {
    let w = Tensor::ones([3], DType::F32, device)?.with_grad()?;
    let scale = Tensor::full([3], 2.0, DType::F32, device)?;
    let loss = autograd::strict_inplace(|| w.mul(&scale)?.sum_all())?;
    let error = scale.fill_(0.0).unwrap_err();

    loss.backward()?;
    scale.fill_(0.0)?;
    Ok(error)
}

/// Under `strict`, every input has to stay as it was, even one whose value no gradient needs, such as that of a sum.
///
/// Mend: write into a copy.
fn an_input_of_a_strict_operation_was_overwritten(device: &Device) -> Result<Error> {
    let w = Tensor::ones([3], DType::F32, device)?.with_grad()?;
    let bias = Tensor::full([3], 2.0, DType::F32, device)?;
    let loss = autograd::strict(|| w.add(&bias)?.sum_all())?;
    bias.fill_(0.0)?;
    let error = loss.backward().unwrap_err();

    let loss = w.add(&bias)?.sum_all()?;
    bias.fill_(1.0)?;
    loss.backward()?;
    Ok(error)
}

/// A write in place is not recorded, so a gradient could not follow it through a leaf.
///
/// Mend: update parameters inside `no_grad`, as optimisers do, or make a new tensor.
fn a_parameter_is_written_in_place(device: &Device) -> Result<Error> {
    let w = Tensor::ones([3], DType::F32, device)?.with_grad()?;
    let error = w.mul_(0.5).unwrap_err();

    no_grad(|| w.mul_(0.5))?;
    Ok(error)
}

/// A computed tensor was overwritten, and then used again: its graph tells of the values before the write.
///
/// Mend: cut the past off with `detach`, or write into a copy.
fn a_computed_tensor_was_overwritten(device: &Device) -> Result<Error> {
    let w = Tensor::ones([3], DType::F32, device)?.with_grad()?;
    let hidden = w.mul(2.0)?;
    no_grad(|| hidden.fill_(0.0))?;
    let error = hidden.square().unwrap_err();

    hidden.detach().square()?;
    Ok(error)
}

/// `grad` is asked for the gradient of a tensor that requires none.
///
/// Mend: call `with_grad` before the computation; the result of `with_grad` is the leaf to compute with.
fn an_input_of_grad_requires_no_gradient(device: &Device) -> Result<Error> {
    let w = Tensor::ones([3], DType::F32, device)?.with_grad()?;
    let x = Tensor::ones([3], DType::F32, device)?;
    let loss = w.mul(&x)?.sum_all()?;
    let error = grad(&[&loss], &[&x], None, BackwardOptions::new()).unwrap_err();

    grad(&[&loss], &[&w], None, BackwardOptions::new())?;
    Ok(error)
}

/// `inference` promises that no gradient is computed inside of it, which lets it save work.
///
/// Mend: use `no_grad`, inside of which `enable_grad` turns recording on again.
fn there_are_no_gradients_inside_inference(device: &Device) -> Result<Error> {
    let w = Tensor::ones([3], DType::F32, device)?.with_grad()?;
    let loss = w.square()?.sum_all()?;
    let error = inference(|| loss.backward()).unwrap_err();

    loss.backward()?;
    Ok(error)
}

/// The operation says that its gradient cannot be differentiated again, and a second derivative was asked for.
///
/// Mend: write the gradient in tensor operations, and leave `once_differentiable` out.
fn an_operation_is_not_differentiable_twice(device: &Device) -> Result<Error> {
    struct Once;
    impl CustomOp for Once {
        fn name(&self) -> &str {
            "once"
        }
        fn forward(&self, x: &[Tensor]) -> Result<Vec<Tensor>> {
            Ok(vec![x[0].square()?])
        }
        fn backward(&self, ctx: &Context<'_>, g: &[Option<Tensor>]) -> Result<Vec<Option<Tensor>>> {
            g[0].as_ref().map(|g| (ctx.input(0)? * 2.0 * g)?.abs()).transpose().map(|g| vec![g])
        }
        fn once_differentiable(&self) -> bool {
            true
        }
    }
    let x = Tensor::ones([3], DType::F32, device)?.with_grad()?;
    let y = apply_custom(&Arc::new(Once), &[&x])?.remove(0).sum_all()?;
    let first = grad(&[&y], &[&x], None, BackwardOptions::new().create_graph())?.remove(0).unwrap();
    let error = first.sum_all()?.backward().unwrap_err();

    let first =
        grad(&[&x.square()?.sum_all()?], &[&x], None, BackwardOptions::new().create_graph())?.remove(0).unwrap();
    first.sum_all()?.backward()?;
    Ok(error)
}

/// A gradient has the shape, dtype and device of its input. After broadcasting, that takes a sum.
///
/// Mend: sum over the axes that the forward pass stretched.
fn a_custom_gradient_has_the_wrong_shape(device: &Device) -> Result<Error> {
    struct Total;
    impl CustomOp for Total {
        fn name(&self) -> &str {
            "total"
        }
        fn forward(&self, x: &[Tensor]) -> Result<Vec<Tensor>> {
            Ok(vec![x[0].sum_all()?])
        }
        fn backward(&self, _: &Context<'_>, g: &[Option<Tensor>]) -> Result<Vec<Option<Tensor>>> {
            Ok(vec![g[0].clone()]) // of shape [], where the input has [3]
        }
    }
    let x = Tensor::ones([3], DType::F32, device)?.with_grad()?;
    let error = apply_custom(&Arc::new(Total), &[&x])?[0].backward().unwrap_err();

    x.sum_all()?.backward()?;
    Ok(error)
}

/// `backward` of a custom operation returns one gradient for each input; `None` is zero.
///
/// Mend: return as many as there are inputs.
fn a_custom_gradient_gives_too_few(device: &Device) -> Result<Error> {
    struct Product;
    impl CustomOp for Product {
        fn name(&self) -> &str {
            "product"
        }
        fn forward(&self, x: &[Tensor]) -> Result<Vec<Tensor>> {
            Ok(vec![x[0].mul(&x[1])?])
        }
        fn backward(&self, ctx: &Context<'_>, g: &[Option<Tensor>]) -> Result<Vec<Option<Tensor>>> {
            g[0].as_ref().map(|g| g.mul(&ctx.input(1)?)).transpose().map(|g| vec![g])
        }
    }
    let x = Tensor::ones([3], DType::F32, device)?.with_grad()?;
    let error = apply_custom(&Arc::new(Product), &[&x, &x])?[0].sum_all()?.backward().unwrap_err();

    x.mul(&x)?.sum_all()?.backward()?;
    Ok(error)
}

/// `forward` reads a tensor that requires a gradient and is no input, so no gradient would reach it.
///
/// Mend: pass it as an input, or capture `w.detach()`.
fn a_custom_operation_captures_a_tracked_tensor(device: &Device) -> Result<Error> {
    struct Scaled(Tensor);
    impl CustomOp for Scaled {
        fn name(&self) -> &str {
            "scaled"
        }
        fn forward(&self, x: &[Tensor]) -> Result<Vec<Tensor>> {
            Ok(vec![x[0].mul(&self.0)?])
        }
        fn backward(&self, _: &Context<'_>, g: &[Option<Tensor>]) -> Result<Vec<Option<Tensor>>> {
            g[0].as_ref().map(|g| g.mul(&self.0)).transpose().map(|g| vec![g])
        }
    }
    let x = Tensor::ones([3], DType::F32, device)?.with_grad()?;
    let w = Tensor::ones([3], DType::F32, device)?.with_grad()?;
    let error = apply_custom(&Arc::new(Scaled(w.clone())), &[&x]).unwrap_err();

    apply_custom(&Arc::new(Scaled(w.detach())), &[&x])?;
    Ok(error)
}

/// With `create_graph` the gradient is itself differentiated, and numbers that are read on the host have no derivative.
///
/// Mend: compute with tensors, or let `once_differentiable` return true.
fn numbers_are_read_in_a_gradient_that_is_differentiated(device: &Device) -> Result<Error> {
    struct Read;
    impl CustomOp for Read {
        fn name(&self) -> &str {
            "read"
        }
        fn forward(&self, x: &[Tensor]) -> Result<Vec<Tensor>> {
            Ok(vec![x[0].square()?])
        }
        fn backward(&self, ctx: &Context<'_>, g: &[Option<Tensor>]) -> Result<Vec<Option<Tensor>>> {
            let slope = 2.0 * ctx.input(0)?.item()?;
            g[0].as_ref().map(|g| g.mul(slope)).transpose().map(|g| vec![g])
        }
    }
    let x = Tensor::ones([], DType::F32, device)?.with_grad()?;
    let y = apply_custom(&Arc::new(Read), &[&x])?.remove(0);
    let error = grad(&[&y], &[&x], None, BackwardOptions::new().create_graph()).unwrap_err();

    let y = apply_custom(&Arc::new(Read), &[&x])?.remove(0);
    grad(&[&y], &[&x], None, BackwardOptions::new())?;
    Ok(error)
}

/// `forward` of a custom operation writes into its input, which others may hold.
///
/// Mend: write into a copy.
fn a_custom_operation_overwrites_its_input(device: &Device) -> Result<Error> {
    struct InPlace;
    impl CustomOp for InPlace {
        fn name(&self) -> &str {
            "in_place"
        }
        fn forward(&self, x: &[Tensor]) -> Result<Vec<Tensor>> {
            x[0].mul_(2.0)?;
            Ok(vec![x[0].clone()])
        }
        fn backward(&self, _: &Context<'_>, g: &[Option<Tensor>]) -> Result<Vec<Option<Tensor>>> {
            Ok(vec![g[0].clone()])
        }
    }
    let x = Tensor::ones([3], DType::F32, device)?;
    let error = apply_custom(&Arc::new(InPlace), &[&x]).unwrap_err();

    x.copy()?.mul_(2.0)?;
    Ok(error)
}

/// `gradcheck` compares the gradient of a function with finite differences, and they differ. Here the derivative of the
/// square lacks its 2.
///
/// Mend: correct the gradient. Near a kink finite differences are wrong: check at other points.
fn a_gradient_is_wrong(device: &Device) -> Result<Error> {
    struct Square;
    impl CustomOp for Square {
        fn name(&self) -> &str {
            "square"
        }
        fn forward(&self, x: &[Tensor]) -> Result<Vec<Tensor>> {
            Ok(vec![x[0].square()?])
        }
        fn backward(&self, ctx: &Context<'_>, g: &[Option<Tensor>]) -> Result<Vec<Option<Tensor>>> {
            g[0].as_ref().map(|g| g.mul(&ctx.input(0)?)).transpose().map(|g| vec![g])
        }
    }
    let (op, x) = (Arc::new(Square), Tensor::full([1], 3.0, DType::F64, device)?);
    let error = gradcheck(|x| Ok(apply_custom(&op, &[&x[0]])?.remove(0)), std::slice::from_ref(&x)).unwrap_err();

    gradcheck(|x| x[0].square(), &[x])?;
    Ok(error)
}

/// Finite differences in f32 have no more than three correct digits.
///
/// Mend: check in f64. The formula is the same.
fn a_gradient_is_checked_in_f32(device: &Device) -> Result<Error> {
    let x = Tensor::ones([3], DType::F32, device)?;
    let error = gradcheck(|x| x[0].exp(), std::slice::from_ref(&x)).unwrap_err();

    gradcheck(|x| x[0].exp(), &[x.to_dtype(DType::F64)?])?;
    Ok(error)
}

/// A hook may replace the gradient that it is shown by one of the same shape, dtype and device.
///
/// Mend: keep the shape; `Ok(None)` leaves the gradient as it is.
fn a_hook_gives_another_shape(device: &Device) -> Result<Error> {
    let x = Tensor::ones([3], DType::F32, device)?.with_grad()?;
    let y = x.square()?;
    let hook = y.register_hook(|g| Ok(Some(g.mean_all()?)))?;
    let error = y.sum_all()?.backward().unwrap_err();

    hook.remove();
    y.sum_all()?.backward()?;
    Ok(error)
}

/// The gradient that a hook is shown may be shared with others, so a write into it would change them.
///
/// Mend: return a new tensor.
fn a_hook_writes_into_the_gradient(device: &Device) -> Result<Error> {
    let x = Tensor::ones([3], DType::F32, device)?.with_grad()?;
    let y = x.square()?;
    let hook = y.register_hook(|g| g.mul_(2.0).map(|()| None))?;
    let error = y.exp()?.sum_all()?.backward().unwrap_err();

    hook.remove();
    let _hook = y.register_hook(|g| Ok(Some(g.mul(2.0)?)))?;
    y.exp()?.sum_all()?.backward()?;
    Ok(error)
}

/// A checkpointed region runs twice, so a write into a tensor from outside would happen twice.
///
/// Mend: write outside of the region, or wrap what shall happen once in `autograd::once`.
fn a_checkpointed_region_writes_outside(device: &Device) -> Result<Error> {
    let x = Tensor::ones([3], DType::F32, device)?.with_grad()?;
    let calls = Tensor::zeros([1], DType::F32, device)?;
    let counting = |counter: Tensor| {
        move |x: &[Tensor]| {
            counter.add_(1.0)?;
            x[0].exp()
        }
    };
    let error = checkpoint(counting(calls.clone()), &[&x]).unwrap_err();

    checkpoint(|x: &[Tensor]| x[0].exp(), &[&x])?;
    calls.add_(1.0)?;
    Ok(error)
}

/// The second run of a region gives other values: it depends on a counter, on time, or on something else that changes
/// between the passes.
///
/// Mend: make the function one of its inputs. Random numbers of a `Generator` are drawn again, so dropout is fine.
fn a_checkpointed_region_differs_when_it_runs_again(device: &Device) -> Result<Error> {
    use std::sync::atomic::{AtomicU64, Ordering};
    let x = Tensor::ones([3], DType::F32, device)?.with_grad()?;
    let calls = AtomicU64::new(0);
    let counting = move |x: &[Tensor]| x[0].exp()?.mul(calls.fetch_add(1, Ordering::Relaxed) as f64);
    let error = checkpoint(counting, &[&x])?.sum_all()?.backward().unwrap_err();

    checkpoint(|x: &[Tensor]| x[0].exp(), &[&x])?.sum_all()?.backward()?;
    Ok(error)
}

/// A Hessian is made of the second derivatives of one number.
///
/// Mend: reduce the result; `jacobian` takes functions of several numbers.
fn a_function_for_the_hessian_gives_several_numbers(device: &Device) -> Result<Error> {
    let x = Tensor::ones([3], DType::F64, device)?;
    let error = hessian(|x| x.square(), &x).unwrap_err();

    hessian(|x| x.square()?.sum_all(), &x)?;
    Ok(error)
}

/// `vmap` calls a function for each slice along an axis of its inputs, and no input has such an axis.
///
/// Mend: give at least one input its axis.
fn no_axis_is_mapped(device: &Device) -> Result<Error> {
    let x = Tensor::ones([4, 3], DType::F32, device)?;
    let error = vmap(|x| x[0].sum_all(), &[&x], &[None], &[0]).unwrap_err();

    vmap(|x| x[0].sum_all(), &[&x], &[Some(0)], &[0])?;
    Ok(error)
}

/// `autocast` lowers the precision of chosen operations, to one of the two half precisions.
///
/// Mend: use `BF16`, which has the range of f32, or `F16` with a `GradScaler`.
fn autocast_to_a_full_float(device: &Device) -> Result<Error> {
    let x = Tensor::ones([3, 3], DType::F32, device)?;
    let error = autocast(DType::F32, || x.matmul(&x)).unwrap_err();

    autocast(DType::BF16, || x.matmul(&x))?;
    Ok(error)
}
