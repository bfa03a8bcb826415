//! Sizes that do not fit together. The message names the sizes, and a line for each operand shows its shape, dtype and
//! device.

use crate::page::page;
use gradus::prelude::*;

page! {
    "Shapes":
    inner_dimensions_differ,
    shapes_do_not_broadcast,
    a_batch_does_not_broadcast_in_matmul,
    a_view_has_another_number_of_elements,
    the_inferred_size_is_no_whole_number,
    pieces_of_a_concatenation_differ,
    too_many_values_or_too_few,
    an_axis_is_out_of_range,
    an_axis_is_named_twice,
    an_axis_to_squeeze_is_longer_than_1,
    a_window_is_larger_than_the_image,
    channels_and_groups_do_not_divide,
    one_element_is_needed,
    a_write_in_place_does_not_fit,
    too_many_elements_for_a_shape,
    too_many_axes,
    a_maximum_of_nothing,
    heads_of_attention_do_not_divide,
    a_loss_does_not_broadcast,
}

/// The last axis of the left operand and the last but one of the right operand have different sizes. Most often the
/// right operand is a weight in PyTorch's layout, `[out, in]`.
///
/// Mend: transpose the weight, or call `linear`, which takes weights as they are stored.
fn inner_dimensions_differ(device: &Device) -> Result<Error> {
    let x = Tensor::zeros([32, 784], DType::F32, device)?;
    let weight = Tensor::zeros([10, 784], DType::F32, device)?;
    let error = x.matmul(&weight).unwrap_err();

    let y = x.matmul(&weight.t()?)?;
    assert_eq!(y.shape(), [32, 10]);
    Ok(error)
}

/// Two shapes are aligned from the right, and an axis has sizes that are neither equal nor 1.
///
/// Mend: insert an axis of size 1 where an operand has none. Here the vector holds one number a row, so it needs a last
/// axis.
fn shapes_do_not_broadcast(device: &Device) -> Result<Error> {
    let x = Tensor::zeros([4, 3], DType::F32, device)?;
    let row_means = x.mean(&[1], false)?;
    let error = x.sub(&row_means).unwrap_err();

    x.sub(&row_means.unsqueeze(1)?)?; // or x.mean(&[1], true)?
    Ok(error)
}

/// The matrices fit, and the axes before them do not: 8 matrices meet 6.
///
/// Mend: give both operands the same batch, or one of them a batch of 1.
fn a_batch_does_not_broadcast_in_matmul(device: &Device) -> Result<Error> {
    let a = Tensor::zeros([8, 2, 3], DType::F32, device)?;
    let b = Tensor::zeros([6, 3, 4], DType::F32, device)?;
    let error = a.matmul(&b).unwrap_err();

    a.matmul(&b.narrow(0, 0, 1)?)?;
    Ok(error)
}

/// `reshape` keeps all elements, and the new shape has room for more or fewer.
///
/// Mend: write `INFER` for the axis that shall take what is left.
fn a_view_has_another_number_of_elements(device: &Device) -> Result<Error> {
    let x = Tensor::zeros([16, 1, 8, 8], DType::F32, device)?;
    let error = x.reshape([16, 32]).unwrap_err();

    x.reshape([16, INFER])?;
    Ok(error)
}

/// One axis is to take what is left, and what is left does not divide.
///
/// Mend: check the sizes that are given: 10 elements make no rows of 4.
fn the_inferred_size_is_no_whole_number(device: &Device) -> Result<Error> {
    let x = Tensor::zeros([10], DType::F32, device)?;
    let error = x.reshape([INFER, 4]).unwrap_err();

    x.reshape([INFER, 5])?;
    Ok(error)
}

/// `cat` joins along one axis; all other sizes have to be equal.
///
/// Mend: pad or cut the pieces, or join along the axis in which they differ.
fn pieces_of_a_concatenation_differ(device: &Device) -> Result<Error> {
    let (a, b) = (Tensor::zeros([2, 3], DType::F32, device)?, Tensor::zeros([2, 5], DType::F32, device)?);
    let error = Tensor::cat(&[&a, &b], 0).unwrap_err();

    Tensor::cat(&[&a, &b], 1)?;
    Ok(error)
}

/// A list of numbers and the shape that it is to fill do not have the same number of elements.
///
/// Mend: count what you read. A row too many is often the line of headings.
fn too_many_values_or_too_few(device: &Device) -> Result<Error> {
    let error = Tensor::from_vec(vec![1.0f32, 2.0, 3.0, 4.0, 5.0], [2, 3], device).unwrap_err();

    Tensor::from_vec(vec![1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], [2, 3], device)?;
    Ok(error)
}

/// An operation is told to work along an axis that the tensor does not have. Axes count from 0, negative ones from the
/// end.
///
/// Mend: use -1 for the last axis, whatever the rank is.
fn an_axis_is_out_of_range(device: &Device) -> Result<Error> {
    let logits = Tensor::zeros([32, 10], DType::F32, device)?;
    let error = logits.softmax(2).unwrap_err();

    logits.softmax(-1)?;
    Ok(error)
}

/// A reduction names the same axis twice, for example as 1 and as -1.
///
/// Mend: name each axis once.
fn an_axis_is_named_twice(device: &Device) -> Result<Error> {
    let x = Tensor::zeros([4, 3], DType::F32, device)?;
    let error = x.sum(&[1, -1], false).unwrap_err();

    x.sum(&[0, 1], false)?;
    Ok(error)
}

/// `squeeze` removes axes of size 1, and this one is longer, so elements would be lost.
///
/// Mend: choose one element of the axis with `select`, or reduce over it.
fn an_axis_to_squeeze_is_longer_than_1(device: &Device) -> Result<Error> {
    let x = Tensor::zeros([4, 3], DType::F32, device)?;
    let error = x.squeeze(1).unwrap_err();

    x.select(1, 0)?;
    Ok(error)
}

/// A convolution or a pool has a window that is larger than the image with its padding. In deep networks the image has
/// become too small on its way.
///
/// Mend: pad, use a smaller kernel, or feed a larger image.
fn a_window_is_larger_than_the_image(device: &Device) -> Result<Error> {
    let image = Tensor::zeros([1, 3, 4, 4], DType::F32, device)?;
    let weight = Tensor::zeros([8, 3, 5, 5], DType::F32, device)?;
    let error = image.conv2d(&weight, None, ConvOptions::new()).unwrap_err();

    image.conv2d(&weight, None, ConvOptions::new().padding([2, 2]))?;
    Ok(error)
}

/// The weight of a convolution is `[out, in / groups, kernel..]`, and its second axis does not fit the channels of the
/// image.
///
/// Mend: pass an image with the channels that the layer was made for; a grey image has one, a colour image three.
fn channels_and_groups_do_not_divide(device: &Device) -> Result<Error> {
    let grey = Tensor::zeros([1, 1, 8, 8], DType::F32, device)?;
    let weight = Tensor::zeros([8, 3, 3, 3], DType::F32, device)?;
    let error = grey.conv2d(&weight, None, ConvOptions::new()).unwrap_err();

    grey.expand([1, 3, 8, 8])?.conv2d(&weight, None, ConvOptions::new())?;
    Ok(error)
}

/// `item` and `to_scalar` read a single number, and the tensor has more or none.
///
/// Mend: reduce first, or read all elements with `to_vec`.
fn one_element_is_needed(device: &Device) -> Result<Error> {
    let losses = Tensor::zeros([32], DType::F32, device)?;
    let error = losses.item().unwrap_err();

    losses.mean_all()?.item()?;
    Ok(error)
}

/// The value of a write in place stretches to the tensor that is written, never the other way round: memory does not
/// grow.
///
/// Mend: write into a tensor that is large enough, or make a new one with `add`.
fn a_write_in_place_does_not_fit(device: &Device) -> Result<Error> {
    let total = Tensor::zeros([3], DType::F32, device)?;
    let rows = Tensor::ones([4, 3], DType::F32, device)?;
    let error = total.add_(&rows).unwrap_err();

    total.add_(&rows.sum(&[0], false)?)?;
    Ok(error)
}

/// The sizes multiply to more elements than memory can address. Usually a size is not what it was meant to be: a number
/// of bytes, or an integer that has wrapped around.
///
/// Mend: print the sizes before the call.
fn too_many_elements_for_a_shape(device: &Device) -> Result<Error> {
    let error = Tensor::zeros([usize::MAX, 2], DType::F32, device).unwrap_err();

    Tensor::zeros([1024, 2], DType::F32, device)?;
    Ok(error)
}

/// A tensor has at most 8 axes.
///
/// Mend: flatten axes that belong together.
fn too_many_axes(device: &Device) -> Result<Error> {
    let x = Tensor::zeros([2, 1, 1, 1, 1, 1, 1, 2], DType::F32, device)?;
    let error = x.unsqueeze(0).unwrap_err();

    x.flatten(0, 3)?.unsqueeze(0)?;
    Ok(error)
}

/// An empty axis has no largest and no smallest element. The sum of no elements is 0 and their product is 1, so these are not
/// errors.
///
/// Mend: leave out empty batches before the call.
fn a_maximum_of_nothing(device: &Device) -> Result<Error> {
    let scores = Tensor::zeros([0, 10], DType::F32, device)?;
    let error = scores.max(&[0], false).unwrap_err();

    if scores.size(0)? > 0 {
        scores.max(&[0], false)?;
    }
    Ok(error)
}

/// The features of multi-head attention are divided among the heads, and they do not divide.
///
/// Mend: choose a number of heads that divides the number of features.
fn heads_of_attention_do_not_divide(device: &Device) -> Result<Error> {
    let mut rng = Generator::new(0);
    let mut init = Init::new(DType::F32, device, &mut rng);
    let error = MultiheadAttention::new(64, 5, Default::default(), &mut init).err().unwrap();

    MultiheadAttention::new(64, 4, Default::default(), &mut init)?;
    Ok(error)
}

/// Prediction and target of a loss have one shape. PyTorch stretches them with a warning, and the mean over all pairs is
/// a loss that trains, to something else.
///
/// Mend: give the target the shape of the prediction.
fn a_loss_does_not_broadcast(device: &Device) -> Result<Error> {
    let prediction = Tensor::zeros([32, 1], DType::F32, device)?;
    let target = Tensor::zeros([32], DType::F32, device)?;
    let error = prediction.mse_loss(&target, Reduction::Mean).unwrap_err();

    prediction.mse_loss(&target.unsqueeze(1)?, Reduction::Mean)?;
    Ok(error)
}
