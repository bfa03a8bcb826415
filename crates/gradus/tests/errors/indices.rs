//! Places that do not exist. An index outside of its axis is an error on every device; nothing is read from memory that
//! belongs to something else. `ErrorKind::IndexOutOfBounds` has the index, its position and the size of the axis.

use crate::page::page;
use gradus::prelude::*;

page! {
    "Indices":
    a_label_is_outside_the_classes,
    a_token_is_outside_the_vocabulary,
    an_index_is_outside_its_axis,
    a_slice_goes_beyond_the_end,
    a_step_of_0_never_ends,
    more_indices_than_axes,
    an_ellipsis_stands_twice,
    a_mask_has_another_shape,
    an_index_has_another_shape_than_the_input,
    more_elements_than_the_axis_has,
    a_class_to_encode_is_outside,
    weights_of_nothing,
    probabilities_outside_0_to_1,
}

/// A label is at least as large as the number of classes. Often labels count from 1, or a class was added to the data
/// and not to the last layer.
///
/// Mend: let labels count from 0, give the last layer as many outputs as there are classes, and pass `ignore_index` to
/// leave out rows without a label.
fn a_label_is_outside_the_classes(device: &Device) -> Result<Error> {
    let logits = Tensor::zeros([4, 3], DType::F32, device)?;
    let labels = Tensor::from_vec(vec![1i64, 2, 3, 1], [4], device)?;
    let error = logits.cross_entropy(&labels).unwrap_err();

    logits.cross_entropy(&labels.sub(1)?)?;
    Ok(error)
}

/// A token is larger than the table of an `Embedding`.
///
/// Mend: make the table as large as the tokeniser's vocabulary, special tokens included.
fn a_token_is_outside_the_vocabulary(device: &Device) -> Result<Error> {
    let table = Tensor::zeros([1000, 16], DType::F32, device)?;
    let tokens = Tensor::from_vec(vec![5i64, 1000], [2], device)?;
    let error = table.embedding(&tokens, None).unwrap_err();

    table.embedding(&tokens.clamp(0, 999)?, None)?;
    Ok(error)
}

/// An index of `index_select`, `gather` or `scatter` is outside of the axis. Those count from 0 and never from the end.
///
/// Mend: find where the index comes from: its position among the indices is in the message.
fn an_index_is_outside_its_axis(device: &Device) -> Result<Error> {
    let x = Tensor::zeros([5, 2], DType::F32, device)?;
    let rows = Tensor::from_vec(vec![0i64, 4, 5], [3], device)?;
    let error = x.index_select(0, &rows).unwrap_err();

    x.index_select(0, &rows.narrow(0, 0, 2)?)?;
    Ok(error)
}

/// A range ends beyond its axis. PyTorch and Python cut it short, which hides the mistake.
///
/// Mend: take the smaller of both ends, if the last piece may be shorter.
fn a_slice_goes_beyond_the_end(device: &Device) -> Result<Error> {
    let x = Tensor::zeros([100, 2], DType::F32, device)?;
    let error = x.narrow(0, 96, 32).unwrap_err();

    x.narrow(0, 96, 32.min(x.size(0)? - 96))?;
    Ok(error)
}

/// A slice with a step of 0 would return to the same element for ever.
///
/// Mend: a step is at least 1. `flip` reverses an axis.
fn a_step_of_0_never_ends(device: &Device) -> Result<Error> {
    let x = Tensor::zeros([10], DType::F32, device)?;
    let error = x.slice(0, 0, 10, 0).unwrap_err();

    x.slice(0, 0, 10, 2)?;
    Ok(error)
}

/// `index` takes an index for each axis, from the first one on, and there are more indices than axes.
///
/// Mend: leave the surplus out; `NewAxis` inserts an axis.
fn more_indices_than_axes(device: &Device) -> Result<Error> {
    let x = Tensor::zeros([4, 3], DType::F32, device)?;
    let error = x.index((0, 1, 2)).unwrap_err();

    x.index((0, 1))?;
    Ok(error)
}

/// `Ellipsis` stands for all axes that are not named. With two of them, it is not said which axes each stands for.
///
/// Mend: write `..` for a whole axis.
fn an_ellipsis_stands_twice(device: &Device) -> Result<Error> {
    let x = Tensor::zeros([4, 3, 2], DType::F32, device)?;
    let error = x.index((Ellipsis, 0, Ellipsis)).unwrap_err();

    x.index((.., 0, Ellipsis))?;
    Ok(error)
}

/// A mask as an index covers the first axes of the tensor, and its sizes are not theirs.
///
/// Mend: index with a mask of the tensor's shape, or of its first axes. A mask that has to stretch belongs to `where_`.
fn a_mask_has_another_shape(device: &Device) -> Result<Error> {
    let x = Tensor::zeros([4, 3], DType::F32, device)?;
    let columns = Tensor::from_vec(vec![true, false, true], [3], device)?;
    let error = x.index(&columns).unwrap_err();

    x.index((.., &columns))?;
    Ok(error)
}

/// The index of `gather` has the shape of the result, so it has the rank of the input.
///
/// Mend: insert the axis along which is gathered.
fn an_index_has_another_shape_than_the_input(device: &Device) -> Result<Error> {
    let log_probs = Tensor::zeros([4, 3], DType::F32, device)?;
    let labels = Tensor::from_vec(vec![0i64, 1, 2, 1], [4], device)?;
    let error = log_probs.gather(1, &labels).unwrap_err();

    log_probs.gather(1, &labels.unsqueeze(1)?)?.squeeze(1)?;
    Ok(error)
}

/// `topk` is to find more elements than the axis has: the five best of three classes.
///
/// Mend: ask for no more than the axis has.
fn more_elements_than_the_axis_has(device: &Device) -> Result<Error> {
    let logits = Tensor::zeros([4, 3], DType::F32, device)?;
    let error = logits.topk(5, 1, true, true).unwrap_err();

    logits.topk(3, 1, true, true)?;
    Ok(error)
}

/// `one_hot` makes a column for each class, and a label has none.
///
/// Mend: pass the number of all classes, not of those in this batch.
fn a_class_to_encode_is_outside(device: &Device) -> Result<Error> {
    let labels = Tensor::from_vec(vec![0i64, 3], [2], device)?;
    let error = labels.one_hot(3).unwrap_err();

    labels.one_hot(4)?;
    Ok(error)
}

/// A row of weights from which `multinomial` draws has no weight above 0, so there is nothing to draw.
///
/// Mend: leave such rows out, or mask before the softmax instead of after it.
fn weights_of_nothing(device: &Device) -> Result<Error> {
    let mut rng = Generator::new(0);
    let weights = Tensor::from_vec(vec![0.5f32, 0.5, 0.0, 0.0], [2, 2], device)?;
    let error = weights.multinomial(1, true, &mut rng).unwrap_err();

    weights.narrow(0, 0, 1)?.multinomial(1, true, &mut rng)?;
    Ok(error)
}

/// Bernoulli draws take probabilities, and these are logits.
///
/// Mend: apply `sigmoid` first.
fn probabilities_outside_0_to_1(device: &Device) -> Result<Error> {
    let mut rng = Generator::new(0);
    let logits = Tensor::from_vec(vec![-1.0f32, 2.0], [2], device)?;
    let error = logits.bernoulli_like(&mut rng).unwrap_err();

    logits.sigmoid()?.bernoulli_like(&mut rng)?;
    Ok(error)
}
