//! Arguments of operations: windows, axes, equations, steps, and the settings of losses. Errors that many operations share
//! are under [shapes](shapes.md), [dtypes](dtypes.md) and [indices](indices.md).

use crate::page::page;
use gradus::PadMode;
use gradus::prelude::*;

page! {
    "Operations and losses":
    steps_lead_the_wrong_way,
    a_range_of_random_integers_is_empty,
    a_deviation_is_negative,
    a_tensor_does_not_stretch,
    a_permutation_lacks_an_axis,
    pieces_do_not_fill_the_axis,
    pieces_of_no_elements,
    nothing_to_join,
    a_reflection_is_wider_than_the_image,
    a_window_covers_padding_only,
    a_stride_of_0,
    a_sliding_window_is_too_long,
    an_equation_does_not_fit_its_operands,
    contracted_axes_differ,
    a_product_of_vectors_of_other_ranks,
    a_shift_for_each_axis,
    negative_integers_are_counted,
    a_division_by_the_integer_0,
    normalised_axes_have_another_shape,
    attention_has_keys_of_another_size,
    a_mask_of_attention_does_not_stretch,
    a_weight_for_each_class,
    a_margin_is_negative,
    a_ctc_target_is_too_long,
    a_smoothing_is_above_1,
}

/// `arange` would never reach its end: the step has the wrong sign.
///
/// Mend: count down with a negative step.
fn steps_lead_the_wrong_way(device: &Device) -> Result<Error> {
    let error = Tensor::arange(10, 0, 1, DType::I64, device).unwrap_err();

    Tensor::arange(10, 0, -1, DType::I64, device)?;
    Ok(error)
}

/// `randint` draws from `lo` up to, but not including, `hi`, and nothing lies between.
///
/// Mend: `hi` is one more than the largest number.
fn a_range_of_random_integers_is_empty(device: &Device) -> Result<Error> {
    let mut rng = Generator::new(0);
    let error = Tensor::randint(6, 1, [3], DType::I64, device, &mut rng).unwrap_err();

    Tensor::randint(1, 7, [3], DType::I64, device, &mut rng)?;
    Ok(error)
}

/// A standard deviation is 0 or more.
///
/// Mend: pass the deviation, not its logarithm: networks that predict a spread usually predict `log_std`.
fn a_deviation_is_negative(device: &Device) -> Result<Error> {
    let mut rng = Generator::new(0);
    let log_std = -2.0f64;
    let error = Tensor::normal(0.0, log_std, [3], DType::F32, device, &mut rng).unwrap_err();

    Tensor::normal(0.0, log_std.exp(), [3], DType::F32, device, &mut rng)?;
    Ok(error)
}

/// Only axes of size 1 stretch, and new axes come at the front.
///
/// Mend: insert the axis where it belongs, then stretch it.
fn a_tensor_does_not_stretch(device: &Device) -> Result<Error> {
    let x = Tensor::zeros([4], DType::F32, device)?;
    let error = x.expand([4, 3]).unwrap_err();

    x.unsqueeze(1)?.expand([4, 3])?;
    Ok(error)
}

/// `permute` names each axis once.
///
/// Mend: to exchange two axes, use `transpose`.
fn a_permutation_lacks_an_axis(device: &Device) -> Result<Error> {
    let image = Tensor::zeros([8, 8, 3], DType::F32, device)?;
    let error = image.permute(&[2, 0]).unwrap_err();

    image.permute(&[2, 0, 1])?;
    Ok(error)
}

/// The sizes of the pieces do not sum to the size of the axis.
///
/// Mend: let the last piece take what is left.
fn pieces_do_not_fill_the_axis(device: &Device) -> Result<Error> {
    let x = Tensor::zeros([10, 2], DType::F32, device)?;
    let error = x.split_with_sizes(&[4, 4], 0).unwrap_err();

    x.split_with_sizes(&[4, 6], 0)?;
    Ok(error)
}

/// Pieces of size 0 never fill an axis.
///
/// Mend: `split` takes the size of a piece, `chunk` their number.
fn pieces_of_no_elements(device: &Device) -> Result<Error> {
    let x = Tensor::zeros([10, 2], DType::F32, device)?;
    let error = x.split(0, 0).unwrap_err();

    x.chunk(5, 0)?;
    Ok(error)
}

/// A list of tensors to join is empty, so the result has no shape, dtype or device.
///
/// Mend: handle the empty list before the call.
fn nothing_to_join(device: &Device) -> Result<Error> {
    let error = Tensor::cat(&[], 0).unwrap_err();

    Tensor::cat(&[&Tensor::zeros([0, 2], DType::F32, device)?], 0)?;
    Ok(error)
}

/// A reflected border repeats elements of the image, and it has too few.
///
/// Mend: pad less, or use another mode: `PadMode::Replicate` takes any width.
fn a_reflection_is_wider_than_the_image(device: &Device) -> Result<Error> {
    let x = Tensor::zeros([1, 1, 3], DType::F32, device)?;
    let error = x.pad(&[(3, 3)], PadMode::Reflect).unwrap_err();

    x.pad(&[(3, 3)], PadMode::Replicate)?;
    Ok(error)
}

/// A window of a pool lies in the padding alone, and a maximum of nothing is not defined.
///
/// Mend: pad by at most half of the window.
fn a_window_covers_padding_only(device: &Device) -> Result<Error> {
    let x = Tensor::zeros([1, 1, 4, 4], DType::F32, device)?;
    let error = x.max_pool2d([2, 2], PoolOptions::new().padding([2, 2])).unwrap_err();

    x.max_pool2d([2, 2], PoolOptions::new().padding([1, 1]))?;
    Ok(error)
}

/// A window that moves by 0 stays where it is.
///
/// Mend: a stride is at least 1.
fn a_stride_of_0(device: &Device) -> Result<Error> {
    let x = Tensor::zeros([1, 1, 4, 4], DType::F32, device)?;
    let w = Tensor::zeros([1, 1, 3, 3], DType::F32, device)?;
    let error = x.conv2d(&w, None, ConvOptions::new().stride([0, 1])).unwrap_err();

    x.conv2d(&w, None, ConvOptions::new().stride([1, 1]))?;
    Ok(error)
}

/// A sliding window is longer than its axis.
///
/// Mend: leave out series that are shorter than the window, or pad them.
fn a_sliding_window_is_too_long(device: &Device) -> Result<Error> {
    let series = Tensor::zeros([20], DType::F32, device)?;
    let error = series.unfold_axis(0, 24, 1).unwrap_err();

    series.unfold_axis(0, 12, 1)?;
    Ok(error)
}

/// The equation of `einsum` has a letter for each axis of each operand.
///
/// Mend: count the letters; `...` stands for any number of axes.
fn an_equation_does_not_fit_its_operands(device: &Device) -> Result<Error> {
    let (q, k) = (Tensor::zeros([2, 4, 8], DType::F32, device)?, Tensor::zeros([2, 6, 8], DType::F32, device)?);
    let error = Tensor::einsum("id,jd->ij", &[&q, &k]).unwrap_err();

    Tensor::einsum("nid,njd->nij", &[&q, &k])?;
    Ok(error)
}

/// `tensordot` multiplies along axes of equal sizes.
///
/// Mend: name the axes in the same order on both sides.
fn contracted_axes_differ(device: &Device) -> Result<Error> {
    let (a, b) = (Tensor::zeros([2, 3, 4], DType::F32, device)?, Tensor::zeros([3, 4, 5], DType::F32, device)?);
    let error = a.tensordot(&b, &[1, 2], &[1, 0]).unwrap_err();

    a.tensordot(&b, &[1, 2], &[0, 1])?;
    Ok(error)
}

/// `dot` multiplies two vectors of one length.
///
/// Mend: use `matmul` for matrices, and `(a * b).sum(..)` for a product of rows.
fn a_product_of_vectors_of_other_ranks(device: &Device) -> Result<Error> {
    let (a, b) = (Tensor::zeros([4, 3], DType::F32, device)?, Tensor::zeros([3], DType::F32, device)?);
    let error = a.dot(&b).unwrap_err();

    a.matmul(&b)?;
    Ok(error)
}

/// `roll` takes a shift for each axis that it names.
///
/// Mend: pass as many shifts as axes.
fn a_shift_for_each_axis(device: &Device) -> Result<Error> {
    let x = Tensor::zeros([4, 3], DType::F32, device)?;
    let error = x.roll(&[1], &[0, 1]).unwrap_err();

    x.roll(&[1, 1], &[0, 1])?;
    Ok(error)
}

/// `bincount` counts how often each number from 0 on occurs, and -1 is none of them.
///
/// Mend: leave out what stands for no label.
fn negative_integers_are_counted(device: &Device) -> Result<Error> {
    let labels = Tensor::from_vec(vec![0i64, 2, -1], [3], device)?;
    let error = labels.bincount(None, 3).unwrap_err();

    labels.masked_select(&labels.ge(0)?)?.bincount(None, 3)?;
    Ok(error)
}

/// Integers have no infinity to stand for the result.
///
/// Mend: divide by `floor_div` only where the divisor is not 0, or divide floats.
fn a_division_by_the_integer_0(device: &Device) -> Result<Error> {
    let counts = Tensor::from_vec(vec![6i64, 7], [2], device)?;
    let error = counts.floor_div(0).unwrap_err();

    counts.div(0.0)?;
    Ok(error)
}

/// Layer normalisation names the last axes by their sizes, and the input has others.
///
/// Mend: pass the number of features, the last axis.
fn normalised_axes_have_another_shape(device: &Device) -> Result<Error> {
    let x = Tensor::zeros([8, 16], DType::F32, device)?;
    let error = x.layer_norm(&[8], None, None, 1e-5).unwrap_err();

    x.layer_norm(&[16], None, None, 1e-5)?;
    Ok(error)
}

/// Queries and keys are compared by their product, so both have one size.
///
/// Mend: project them to the same number of features.
fn attention_has_keys_of_another_size(device: &Device) -> Result<Error> {
    let q = Tensor::zeros([1, 2, 5, 8], DType::F32, device)?;
    let kv = Tensor::zeros([1, 2, 7, 16], DType::F32, device)?;
    let error = q.scaled_dot_product_attention(&kv, &kv, AttentionOptions::new()).unwrap_err();

    let k = kv.narrow(-1, 0, 8)?;
    q.scaled_dot_product_attention(&k, &kv, AttentionOptions::new())?;
    Ok(error)
}

/// A mask has a place for each query and key, `[.., lq, lk]`. One that hides padding has a place for each key only.
///
/// Mend: insert the axes of heads and queries.
fn a_mask_of_attention_does_not_stretch(device: &Device) -> Result<Error> {
    let x = Tensor::zeros([3, 2, 5, 8], DType::F32, device)?;
    let is_word = Tensor::ones([3, 5], DType::F32, device)?.gt(0.0)?;
    let error = x.scaled_dot_product_attention(&x, &x, AttentionOptions::new().mask(&is_word)).unwrap_err();

    let mask = is_word.unsqueeze(1)?.unsqueeze(1)?;
    x.scaled_dot_product_attention(&x, &x, AttentionOptions::new().mask(&mask))?;
    Ok(error)
}

/// The weights of a loss are one for each class.
///
/// Mend: pass as many as there are logits in a row.
fn a_weight_for_each_class(device: &Device) -> Result<Error> {
    let log_probs = Tensor::zeros([2, 3], DType::F32, device)?;
    let labels = Tensor::from_vec(vec![0i64, 2], [2], device)?;
    let two = Tensor::ones([2], DType::F32, device)?;
    let error = log_probs.nll_loss(&labels, Some(&two), None, Reduction::Mean).unwrap_err();

    let three = Tensor::ones([3], DType::F32, device)?;
    log_probs.nll_loss(&labels, Some(&three), None, Reduction::Mean)?;
    Ok(error)
}

/// A parameter of a loss is outside of its range.
///
/// Mend: `delta` is where the Huber loss turns from a square into a line; it is above 0.
fn a_margin_is_negative(device: &Device) -> Result<Error> {
    let x = Tensor::zeros([4], DType::F32, device)?;
    let error = x.huber_loss(&x, -1.0, Reduction::Mean).unwrap_err();

    x.huber_loss(&x, 1.0, Reduction::Mean)?;
    Ok(error)
}

/// The lengths that are given to `ctc_loss` go beyond its tensors.
///
/// Mend: pass the number of steps and of labels of each sample before padding.
fn a_ctc_target_is_too_long(device: &Device) -> Result<Error> {
    let log_probs = Tensor::zeros([10, 1, 5], DType::F32, device)?.log_softmax(-1)?;
    let targets = Tensor::from_vec(vec![1i64, 2, 3], [1, 3], device)?;
    let error = log_probs.ctc_loss(&targets, &[10], &[4], 0, false, Reduction::Mean).unwrap_err();

    log_probs.ctc_loss(&targets, &[10], &[3], 0, false, Reduction::Mean)?;
    Ok(error)
}

/// Label smoothing is the share of the probability that is spread over all classes.
///
/// Mend: 0.1 is usual.
fn a_smoothing_is_above_1(device: &Device) -> Result<Error> {
    let logits = Tensor::zeros([2, 3], DType::F32, device)?;
    let labels = Tensor::from_vec(vec![0i64, 2], [2], device)?;
    let error = logits.cross_entropy_with(&labels, None, None, 10.0, Reduction::Mean).unwrap_err();

    logits.cross_entropy_with(&labels, None, None, 0.1, Reduction::Mean)?;
    Ok(error)
}
