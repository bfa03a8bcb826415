//! Bad input to the library through the `gradus` crate. Each call returns an error that names the problem and carries
//! the line of the call, and no call panics.
#![allow(clippy::unwrap_used)]

use gradus::data::{CsvOptions, Table, digits, idx, split};
use gradus::prelude::*;
use gradus::train::{ConfusionMatrix, Outcome, RunFolder};

/// A call that must fail, and a text that its message must contain.
struct Case {
    name: &'static str,
    result: Result<()>,
    says: &'static str,
}

macro_rules! cases {
    ($($name:literal: $call:expr => $says:literal,)*) => {
        vec![$(Case { name: $name, result: $call.map(drop), says: $says },)*]
    };
}

fn verify(cases: Vec<Case>) {
    let wrong = |Case { name, result, says }: Case| match result {
        Ok(()) => Some(format!("{name}: no error")),
        Err(e) if e.location().is_none_or(|line| line.file() != file!()) => Some(format!("{name}: no line in\n{e}")),
        Err(e) if e.to_string().contains(says) => None,
        Err(e) => Some(format!("{name}: no `{says}` in\n{e}")),
    };
    let wrong: Vec<String> = cases.into_iter().filter_map(wrong).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn tensors_that_do_not_fit() {
    let d = &Device::cpu().unwrap();
    let f = |shape: &[usize]| Tensor::ones(shape, DType::F32, d).unwrap();
    let i = |values: &[i64]| Tensor::from_vec(values, [values.len()], d).unwrap();
    let image = f(&[2, 1, 8, 8]);
    verify(cases! {
        "values and shape": Tensor::from_vec(vec![1.0f32; 5], [2, 3], d) => "5 values",
        "a size beyond memory": Tensor::zeros([usize::MAX, 2], DType::F32, d) => "more elements than memory",
        "nine axes": Tensor::zeros([1; 9], DType::F32, d) => "9",
        "broadcast": f(&[2, 3]).add(f(&[2, 4])) => "[2, 4]",
        "inner sizes of matmul": f(&[32, 784]).matmul(&f(&[512, 784])) => "784",
        "matmul of a scalar": f(&[]).matmul(&f(&[2, 2])) => "matmul",
        "linear's weight": f(&[4, 8]).linear(&f(&[3, 7]), None) => "[3, 7]",
        "an axis of sum": f(&[2, 3]).sum(&[2], false) => "2",
        "an axis twice": f(&[2, 3]).sum(&[1, -1], false) => "1",
        "an axis of softmax": f(&[2, 3]).softmax(-3) => "-3",
        "argmax of nothing": f(&[0]).argmax(0, false) => "argmax",
        "reshape": f(&[2, 3]).reshape([4, 2]) => "[4, 2]",
        "permute": f(&[2, 3]).permute(&[0, 0]) => "permute",
        "narrow past the end": f(&[2, 3]).narrow(1, 2, 5) => "2..7",
        "select past the end": f(&[2, 3]).select(0, 9) => "9",
        "cat of nothing": Tensor::cat(&[], 0) => "cat",
        "cat of other shapes": Tensor::cat(&[&f(&[2, 3]), &f(&[2, 4])], 0) => "cat",
        "stack of other shapes": Tensor::stack(&[&f(&[2]), &f(&[3])], 0) => "stack",
        "index_select past the end": f(&[2, 3]).index_select(0, &i(&[0, 7])) => "7",
        "a negative index": f(&[2, 3]).index_select(0, &i(&[-5])) => "-5",
        "an index of floats": f(&[2, 3]).index_select(0, &f(&[1])) => "f32",
        "an embedding past the end": f(&[10, 4]).embedding(&i(&[3, 10]), None) => "10",
        "channels of conv2d": image.conv2d(&f(&[4, 3, 3, 3]), None, ConvOptions::new()) => "conv2d",
        "stride 0": image.conv2d(&f(&[4, 1, 3, 3]), None, ConvOptions::new().stride([0, 1])) => "stride",
        "a kernel larger than the image": image.conv2d(&f(&[4, 1, 9, 9]), None, ConvOptions::new()) => "9",
        "a pool larger than the image": image.max_pool2d([9, 9], PoolOptions::new()) => "9",
        "a probability of dropout": image.dropout(1.5, &mut Generator::new(0)) => "1.5",
        "mse of other shapes": f(&[2]).mse_loss(&f(&[2, 1]), Reduction::Mean) => "[2, 1]",
        "a value of another dtype": f(&[2]).to_vec::<i64>() => "f32",
        "one number of many": f(&[2]).item() => "2",
        "gradients of integers": i(&[1]).with_grad() => "i64",
        "backward of many": f(&[2]).with_grad().unwrap().backward() => "backward",
        "backward without a graph": f(&[]).backward() => "backward",
        "normal numbers without spread": Tensor::randint(5, 5, [2], DType::I64, d, &mut Generator::new(0)) => "5..5",
        "infinite steps": Tensor::arange(0, 5, 0, DType::F32, d) => "steps of 0",
        "an unknown device": Device::open("tpu:7") => "tpu:7",
    });
}

#[test]
fn training_that_cannot_work() {
    let d = &Device::cpu().unwrap();
    let f = |shape: &[usize]| Tensor::ones(shape, DType::F32, d).unwrap();
    let i = |values: &[i64]| Tensor::from_vec(values, [values.len()], d).unwrap();
    let logits = f(&[2, 10]);
    let mut generator = Generator::new(0);
    let model = &mut Linear::new(4, 3, &mut Init::new(DType::F32, d, &mut generator)).unwrap();
    let rate = |lr: f64| AdamW::new(model.named_parameters(), AdamConfig { lr, ..Default::default() });
    verify(cases! {
        "a label past the classes": logits.cross_entropy(&i(&[3, 10])) => "10",
        "a negative label": logits.cross_entropy(&i(&[-1, 0])) => "-1",
        "labels of floats": logits.cross_entropy(&f(&[2])) => "f32",
        "too few labels": logits.cross_entropy(&i(&[1])) => "target",
        "smoothing": logits.cross_entropy_with(&i(&[0, 1]), None, None, 2.0, Reduction::Mean) => "2",
        "a layer's input": model.forward(&f(&[2, 5])) => "[2, 5]",
        "a learning rate of NaN": rate(f64::NAN) => "NaN",
        "a negative learning rate": rate(-1.0) => "-1",
        "no epochs": Trainer::new(0) => "0 epochs",
        "a cosine over no steps": Schedule::cosine(0, 0.0) => "steps is 0",
        "a probability": Dropout::new(-0.5, &mut Generator::new(0)) => "-0.5",
        "groups that do not divide":
            Conv2d::new(3, 8, [3, 3], Conv2dConfig { groups: 2, ..Default::default() },
                &mut Init::new(DType::F32, d, &mut Generator::new(0))) => "2 groups",
        "no classes": ConfusionMatrix::new(0) => "0 classes",
        "a class past the end": ConfusionMatrix::new(2).and_then(|mut m| m.add(0, 2)) => "class 2",
        "a share above 1": split::stratified(&[0, 1], 1.5, 0) => "1.5",
        "a folder without a name": RunFolder::create("", false) => "empty",
        "an absent state": StateDict::load_safetensors("absent.safetensors", d) => "absent.safetensors",
        "an absent table": Table::read_csv("absent.csv", &CsvOptions::default()) => "absent.csv",
        "a folder as a table": Table::read_csv(".", &CsvOptions::default()) => "folder",
        "a foreign table": Table::from_csv(b"%PDF-1.7\n%\xe2\n", "x.csv", &CsvOptions::default()) => "byte 10, on line 2",
        "an absent folder": idx::read_folder("absent", idx::Part::Train) => "absent",
        "inputs without labels": TensorDataset::new(f(&[3, 2]), i(&[0, 1])) => "[3, 2]",
        "a sample past the end": digits::load().and_then(|s| s.get(1797)) => "1797",
        "a subset past the end": digits::load().and_then(|s| s.subset(vec![0, 2000])) => "2000",
        "pixels and labels": ImageSet::new([1, 2, 2], 255, vec![0; 9], vec![0, 1]) => "9 pixels",
        "pixels and size": Image::new(1, 2, 2, vec![0.0; 3]) => "3 pixels",
        "batches of none": DataLoader::new(digits::load().unwrap(), d).batch_size(0).build() => "batch size is 0",
    });
}

/// Trains a linear layer on these samples for one epoch.
fn train_on(inputs: Tensor, labels: Tensor) -> Result<()> {
    let d = Device::cpu()?;
    let mut model = Linear::new(2, 3, &mut Init::new(DType::F32, &d, &mut Generator::new(0)))?;
    let mut optimizer = AdamW::new(model.named_parameters(), AdamConfig::default())?;
    let before = model.weight.to_vec::<f32>()?;
    let loader = DataLoader::new(TensorDataset::new(inputs, labels)?, &d).batch_size(4).build()?;
    let trained = Trainer::new(1)?.fit(&mut model, &mut optimizer, &loader, None, &Classification::default(), &mut []);
    assert!(trained.is_ok() || model.weight.to_vec::<f32>()? == before, "the failed step changed the weights");
    trained.and_then(|_| evaluate(&mut model, &loader, &Classification::default())).map(drop)
}

#[test]
fn datasets_that_cannot_be_learnt() {
    let d = &Device::cpu().unwrap();
    let inputs = |values: &[f32]| Tensor::from_vec(values, [values.len() / 2, 2], d).unwrap();
    let labels = |values: &[i64]| Tensor::from_vec(values, [values.len()], d).unwrap();
    let task = |_: &Linear, _: &(Tensor, Tensor)| -> Result<Outcome> { Err(Error::argument("task", "my own reason")) };
    let mut model = Linear::new(2, 2, &mut Init::new(DType::F32, d, &mut Generator::new(0))).unwrap();
    let loader = DataLoader::new(TensorDataset::new(inputs(&[0.0; 4]), labels(&[0, 1])).unwrap(), d).build().unwrap();
    train_on(inputs(&[0.0, 1.0, 2.0, 3.0]), labels(&[0, 2])).unwrap();
    verify(cases! {
        "NaN in a sample": train_on(inputs(&[0.0, 1.0, f32::NAN, 0.0]), labels(&[0, 1])) => "sample 1 of the batch holds a value of NaN",
        "infinity in a sample": train_on(inputs(&[f32::INFINITY, 1.0]), labels(&[0])) => "epoch 1, step 1",
        "a label past the classes": train_on(inputs(&[0.0, 1.0]), labels(&[3])) => "3",
        "a negative label": train_on(inputs(&[0.0, 1.0]), labels(&[-1])) => "-1",
        "no sample": train_on(inputs(&[]), labels(&[])) => "0 samples",
        "labels of floats": train_on(inputs(&[0.0, 1.0]), inputs(&[0.0, 1.0]).select(1, 0).unwrap()) => "f32",
        "an error of the task": evaluate(&mut model, &loader, &task) => "my own reason",
        "labels past the matrix": Classification::confusion(&mut model, &loader, 1) => "class",
    });
}
