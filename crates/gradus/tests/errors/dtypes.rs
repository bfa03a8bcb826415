//! Elements of the wrong kind. Operands of different number types promote as in PyTorch; what remains an error has no
//! single right answer: booleans are no numbers, an index is an integer, and a fraction does not fit into an integer.

use crate::page::page;
use gradus::prelude::*;

page! {
    "Dtypes":
    elements_are_read_as_another_type,
    an_operation_is_not_defined_for_a_dtype,
    booleans_do_not_add,
    a_mask_is_no_boolean,
    indices_are_no_integers,
    class_labels_are_floats,
    a_fraction_does_not_go_into_integers,
    a_number_is_too_large_for_its_dtype,
    integers_have_no_gradient,
    a_write_would_lose_fractions,
    two_matrices_of_booleans,
    a_byte_is_no_boolean,
    a_layer_of_integers,
}

/// `to_vec` and `to_scalar` copy elements as they are, and the Rust type is not the tensor's dtype.
///
/// Mend: read the type that the tensor has, or convert it first. `item` reads any dtype as an `f64`.
fn elements_are_read_as_another_type(device: &Device) -> Result<Error> {
    let labels = Tensor::from_vec(vec![3i64, 1, 2], [3], device)?;
    let error = labels.to_vec::<f32>().unwrap_err();

    labels.to_vec::<i64>()?;
    labels.to_dtype(DType::F32)?.to_vec::<f32>()?;
    Ok(error)
}

/// The operation works on other dtypes only; the message says on which. An average pool of bytes, for example, has no
/// dtype for its result.
///
/// Mend: convert to one of the dtypes that the message names.
fn an_operation_is_not_defined_for_a_dtype(device: &Device) -> Result<Error> {
    let pixels = Tensor::zeros([1, 3, 8, 8], DType::U8, device)?;
    let error = pixels.avg_pool2d([2, 2], PoolOptions::new(), true).unwrap_err();

    pixels.to_dtype(DType::F32)?.avg_pool2d([2, 2], PoolOptions::new(), true)?;
    Ok(error)
}

/// A comparison gives booleans. They do not add or multiply, because it is not said what `true + true` is.
///
/// Mend: convert them, combine them with `logical_and` and its kin, or count them with `sum`, which counts in i64.
fn booleans_do_not_add(device: &Device) -> Result<Error> {
    let x = Tensor::from_vec(vec![0.2f32, 0.9, 1.4], [3], device)?;
    let (low, high) = (x.gt(0.5)?, x.gt(1.0)?);
    let error = low.add(&high).unwrap_err();

    low.logical_and(&high)?;
    assert_eq!(low.sum_all()?.item()?, 2.0);
    Ok(error)
}

/// A mask chooses elements, so its elements are booleans. Numbers that are 0 and 1 are no mask.
///
/// Mend: compare, which says what is meant.
fn a_mask_is_no_boolean(device: &Device) -> Result<Error> {
    let x = Tensor::ones([3], DType::F32, device)?;
    let padding = Tensor::from_vec(vec![0i64, 0, 1], [3], device)?;
    let error = x.masked_fill(&padding, f64::NEG_INFINITY).unwrap_err();

    x.masked_fill(&padding.eq(1)?, f64::NEG_INFINITY)?;
    Ok(error)
}

/// An index counts elements, so it is an integer. A float would be exact to 2^24 only.
///
/// Mend: keep indices as `i64`; convert once, where they come from.
fn indices_are_no_integers(device: &Device) -> Result<Error> {
    let table = Tensor::zeros([10, 4], DType::F32, device)?;
    let rows = Tensor::from_vec(vec![1.0f32, 7.0], [2], device)?;
    let error = table.index_select(0, &rows).unwrap_err();

    table.index_select(0, &rows.to_dtype(DType::I64)?)?;
    Ok(error)
}

/// The target of `cross_entropy` is the number of the class, an integer.
///
/// Mend: convert the labels. For probabilities as targets, use `cross_entropy` of soft targets: `soft_cross_entropy`.
fn class_labels_are_floats(device: &Device) -> Result<Error> {
    let logits = Tensor::zeros([2, 3], DType::F32, device)?;
    let labels = Tensor::from_vec(vec![0.0f32, 2.0], [2], device)?;
    let error = logits.cross_entropy(&labels).unwrap_err();

    logits.cross_entropy(&labels.to_dtype(DType::I64)?)?;
    Ok(error)
}

/// A number with a fraction is to fill a tensor of integers. PyTorch cuts the fraction off without a word.
///
/// Mend: use a float dtype, or round the number yourself.
fn a_fraction_does_not_go_into_integers(device: &Device) -> Result<Error> {
    let error = Tensor::full([3], 0.5, DType::I64, device).unwrap_err();

    Tensor::full([3], 0.5, DType::F32, device)?;
    Ok(error)
}

/// The number is outside the range of the dtype.
///
/// Mend: use a larger dtype.
fn a_number_is_too_large_for_its_dtype(device: &Device) -> Result<Error> {
    let error = Tensor::full([3], 300, DType::U8, device).unwrap_err();

    Tensor::full([3], 300, DType::I32, device)?;
    Ok(error)
}

/// A derivative is a limit of small changes, and integers have none.
///
/// Mend: convert to floats before `with_grad`.
fn integers_have_no_gradient(device: &Device) -> Result<Error> {
    let x = Tensor::from_vec(vec![1i64, 2], [2], device)?;
    let error = x.with_grad().unwrap_err();

    x.to_dtype(DType::F32)?.with_grad()?;
    Ok(error)
}

/// A write in place keeps the dtype of the tensor that is written, and the value would lose its fraction.
///
/// Mend: make a new tensor, whose dtype is promoted, or round the value first.
fn a_write_would_lose_fractions(device: &Device) -> Result<Error> {
    let counts = Tensor::from_vec(vec![1i64, 2, 3], [3], device)?;
    let error = counts.mul_(0.5).unwrap_err();

    assert_eq!(counts.mul(0.5)?.dtype(), DType::F32);
    Ok(error)
}

/// A matrix product adds products, and booleans do neither.
///
/// Mend: convert one of them: the other follows.
fn two_matrices_of_booleans(device: &Device) -> Result<Error> {
    let edges = Tensor::eye(3, DType::F32, device)?.gt(0.0)?;
    let error = edges.matmul(&edges).unwrap_err();

    edges.to_dtype(DType::F32)?.matmul(&edges.to_dtype(DType::F32)?)?;
    Ok(error)
}

/// Bytes that are read as booleans contain one that is neither 0 nor 1.
///
/// Mend: read them as bytes, and compare.
fn a_byte_is_no_boolean(device: &Device) -> Result<Error> {
    let error = Tensor::from_bytes(&[0, 1, 255], [3], DType::Bool, device).unwrap_err();

    Tensor::from_bytes(&[0, 1, 255], [3], DType::U8, device)?.ne(0)?;
    Ok(error)
}

/// Layers have weights, and weights have gradients, so an `Init` is made for floats.
///
/// Mend: keep integers of a module in a `Buffer`.
fn a_layer_of_integers(device: &Device) -> Result<Error> {
    let counts = Tensor::zeros([4], DType::I64, device)?;
    let error = Parameter::new(counts.clone()).unwrap_err();

    Buffer::new(counts);
    Ok(error)
}
