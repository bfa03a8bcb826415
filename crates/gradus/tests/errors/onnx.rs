//! ONNX models, read with the feature `onnx`. A model is checked when it is loaded, and an operator that is not there is
//! named with its nodes. In the snippets, `model(operator)` is the file of a model of one operator, from `x` of the shape
//! `[2, 3]` to `y`.

use std::fs::write;

use crate::page::page;
use gradus::prelude::*;
use gradus_onnx::OnnxModel;

page! {
    "ONNX models":
    there_is_no_such_model,
    a_file_is_no_model,
    an_operator_is_not_there,
    an_input_is_missing,
    an_input_has_another_name,
    an_input_has_another_shape,
    no_initialiser_fits_the_pattern,
}

/// A field of a message in the format of protocol buffers.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    [&[number << 3 | 2, bytes.len() as u8], bytes].concat()
}

/// The file of a model of one operator.
fn model(operator: &str) -> Vec<u8> {
    let node = [field(1, b"x"), field(2, b"y"), field(3, b"first"), field(4, operator.as_bytes())].concat();
    let value = |name: &[u8]| {
        let dims = [field(1, &[1 << 3, 2]), field(1, &[1 << 3, 3])].concat();
        let tensor = [&[1 << 3, 1][..], &field(2, &dims)].concat();
        [field(1, name), field(2, &field(1, &tensor))].concat()
    };
    let graph = [field(1, &node), field(2, b"graph"), field(11, &value(b"x")), field(12, &value(b"y"))].concat();
    let opset = [field(1, b""), vec![2 << 3, 17]].concat();
    [vec![1 << 3, 8], field(7, &graph), field(8, &opset)].concat()
}

/// The path leads nowhere.
///
/// Mend: a relative path starts at the folder in which the program was started.
fn there_is_no_such_model(device: &Device) -> Result<Error> {
    let error = OnnxModel::load("relu.onnx", device).err().unwrap();

    write("relu.onnx", model("Relu")).unwrap();
    OnnxModel::load("relu.onnx", device)?;
    Ok(error)
}

/// The file is of another format, or cut off.
///
/// Mend: copy it again. A file of Git LFS that was not fetched is a few lines of text.
fn a_file_is_no_model(device: &Device) -> Result<Error> {
    let error = OnnxModel::from_bytes(b"version https://git-lfs.github.com/spec/v1\n", device).err().unwrap();

    OnnxModel::from_bytes(&model("Relu"), device)?;
    Ok(error)
}

/// The model has an operator that Gradus does not have. All of them are listed at once, before anything runs.
///
/// Mend: export the model with other operators, or compute that part in Rust.
/// [The page on ONNX](https://github.com/gradus-rs/gradus/blob/main/docs/onnx.md) lists the operators that run.
fn an_operator_is_not_there(device: &Device) -> Result<Error> {
    let error = OnnxModel::from_bytes(&model("ImageDecoder"), device).err().unwrap();

    OnnxModel::from_bytes(&model("Relu"), device)?;
    Ok(error)
}

/// An input of the model was not given.
///
/// Mend: give each input that `model.inputs()` lists.
fn an_input_is_missing(device: &Device) -> Result<Error> {
    let relu = OnnxModel::from_bytes(&model("Relu"), device)?;
    let error = relu.run(&[]).unwrap_err();

    relu.run(&[("x", Tensor::ones([2, 3], DType::F32, device)?)])?;
    Ok(error)
}

/// The model has no input of this name.
///
/// Mend: the error lists the names that it has.
fn an_input_has_another_name(device: &Device) -> Result<Error> {
    let relu = OnnxModel::from_bytes(&model("Relu"), device)?;
    let error = relu.run(&[("input", Tensor::ones([2, 3], DType::F32, device)?)]).unwrap_err();

    relu.run(&[("x", Tensor::ones([2, 3], DType::F32, device)?)])?;
    Ok(error)
}

/// The model declares the sizes of its inputs, and the tensor has others.
///
/// Mend: export the model with a dynamic batch axis, or pass batches of the size that it declares.
fn an_input_has_another_shape(device: &Device) -> Result<Error> {
    let relu = OnnxModel::from_bytes(&model("Relu"), device)?;
    let error = relu.run(&[("x", Tensor::ones([5, 3], DType::F32, device)?)]).unwrap_err();

    relu.run(&[("x", Tensor::ones([2, 3], DType::F32, device)?)])?;
    Ok(error)
}

/// `trainable` makes parameters of the initialisers whose names fit the pattern, and none does.
///
/// Mend: `model.parameters()` lists the names.
fn no_initialiser_fits_the_pattern(device: &Device) -> Result<Error> {
    let mut relu = OnnxModel::from_bytes(&model("Relu"), device)?;
    let error = relu.trainable("fc.*").unwrap_err();

    assert!(relu.parameters().is_empty());
    Ok(error)
}
