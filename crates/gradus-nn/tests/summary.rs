//! The table of the layers of a model, and the memory of a training step beside what the device counts.
#![allow(clippy::unwrap_used)]

mod common;

use common::device;
use gradus_nn::{
    BatchNorm2d, BatchNormConfig, Conv2d, Conv2dConfig, ConvTranspose2d, ConvTransposeConfig, Dropout, Embedding,
    Flatten, Forward, Gelu, Gru, Init, LayerNorm, LayerNormConfig, Linear, Lstm, MaxPool2d, Module, MultiheadAttention,
    MultiheadAttentionConfig, RecurrentConfig, Relu, Sequential, StepMemory, Summary, step_memory, summary,
};
use gradus_tensor::{DType, Device, Generator, Result, Tensor};

fn with_f32<R>(device: &Device, f: impl FnOnce(&mut Init<'_>) -> Result<R>) -> R {
    f(&mut Init::new(DType::F32, device, &mut Generator::new(5))).unwrap()
}

/// A layer that runs twice, one that runs not at all, and a product beside the layers.
#[derive(Module)]
struct Odd {
    shared: Linear,
    unused: Linear,
    head: Sequential,
}

impl Forward for Odd {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        let x = self.shared.forward(&self.shared.forward(x)?)?;
        self.head.forward(&x.matmul(&x.transpose(-1, -2)?)?)
    }
}

#[test]
fn every_call_of_a_layer_has_a_row_with_its_output_parameters_and_work() {
    let d = device();
    let model = with_f32(&d, |init| {
        let inner = Sequential::new().add(Relu).add(Linear::without_bias(5, 3, init)?);
        let head = Sequential::new().add(Relu).add_named("inner", inner)?.add(Relu);
        Ok(Odd { shared: Linear::new(4, 4, init)?, unused: Linear::new(9, 9, init)?, head })
    });
    model.unused.weight.freeze();
    let found = summary(&model, [2, 5, 4]).unwrap();
    let rows: Vec<_> = found
        .layers
        .iter()
        .map(|l| (&*l.path, &*l.kind, l.depth, &*l.output_shape, l.parameters, l.multiply_adds, l.repeated))
        .collect();
    let (linear, square, last) = (2 * 5 * 4 * 4, 2 * 5 * 5 * 4, 2 * 5 * 5 * 3);
    let all = 2 * linear + square + last;
    assert_eq!(
        rows,
        [
            ("", "Odd", 0, &[2, 5, 3][..], 20 + 90 + 15, all, false),
            ("shared", "Linear", 1, &[2, 5, 4], 20, linear, false),
            ("shared", "Linear", 1, &[2, 5, 4], 20, linear, true),
            ("head", "Sequential", 1, &[2, 5, 3], 15, last, false),
            ("head.0", "Relu", 2, &[2, 5, 5], 0, 0, false),
            ("head.inner", "Sequential", 2, &[2, 5, 3], 15, last, false),
            ("head.inner.0", "Relu", 3, &[2, 5, 5], 0, 0, false),
            ("head.inner.1", "Linear", 3, &[2, 5, 3], 15, last, false),
            ("head.2", "Relu", 2, &[2, 5, 3], 0, 0, false),
        ]
    );
    assert_eq!((found.parameters, found.trainable_parameters), (125, 125 - 81));
    assert_eq!((found.multiply_adds, found.input_bytes, found.parameter_bytes), (all, 160, 500));
    // Two of the shared layer, two Relus of [2, 5, 5], and two results of [2, 5, 3].
    assert_eq!(found.output_bytes, 4 * (2 * 40 + 2 * 50 + 2 * 30));
    let text = found.to_string();
    let line = text.lines().find(|l| l.contains("inner: Sequential")).unwrap();
    assert_eq!(line.split_whitespace().collect::<Vec<_>>(), ["inner:", "Sequential", "[2,", "5,", "3]", "15", "150"]);
    assert!(text.contains("(again)") && text.contains("parameters       125 (81 frozen)"), "{text}");
}

#[test]
fn work_is_counted_from_the_operations_that_run() {
    let d = device();
    with_f32(&d, |init| {
        let work = |found: Result<Summary>| found.unwrap().multiply_adds;
        let config = Conv2dConfig { groups: 2, padding: [1, 1], stride: [2, 2], ..Default::default() };
        // 6 outputs of 4 x 3 places, each from 2 of 4 channels under a window of 3 x 3.
        assert_eq!(work(summary(&Conv2d::new(4, 6, [3, 3], config, init)?, [5, 4, 8, 6])), 5 * 6 * 4 * 3 * 2 * 9);
        // 3 inputs of 4 x 4 places, each to 2 channels under a window of 2 x 2.
        let up = ConvTranspose2d::new(3, 2, [2, 2], ConvTransposeConfig::default(), init)?;
        assert_eq!(work(summary(&up, [5, 3, 4, 4])), 5 * 3 * 16 * 2 * 4);
        // Three projections and that of the output; the scores, and their sums of values.
        let attention = MultiheadAttention::new(8, 2, MultiheadAttentionConfig::default(), init)?;
        let (rows, scores) = (5 * 7, 5 * 2 * 7 * 7 * 4);
        assert_eq!(work(summary(&attention, [5, 7, 8])), 4 * rows * 8 * 8 + 2 * scores);
        // Two directions, each with four gates of 3 features, from 5 features and from 3.
        let config = RecurrentConfig { bidirectional: true, ..Default::default() };
        let lstm = Lstm::new(5, 3, config, init)?;
        assert_eq!(work(summary(&lstm, [2, 7, 5])), 2 * 2 * 7 * 12 * (5 + 3));
        let gru = Gru::new(5, 3, RecurrentConfig::default(), init)?;
        assert_eq!(work(summary(&gru, [2, 7, 5])), 2 * 7 * 9 * (5 + 3));
        let table = Embedding::new(10, 3, None, init)?;
        let index = Tensor::zeros([2, 4], DType::I64, &d)?;
        let found = Summary::of(&table, &index)?;
        assert_eq!((found.multiply_adds, &*found.layers[0].output_shape), (0, &[2, 4, 3][..]));
        Ok(())
    });
}

#[test]
fn a_summary_changes_nothing() {
    let d = device();
    let model = with_f32(&d, |init| {
        let norm = BatchNorm2d::new(2, BatchNormConfig::default(), init)?;
        Ok(Sequential::new().add(norm).add(Dropout::new(0.5, init.generator)?))
    });
    let state = |model: &Sequential| {
        let buffers = model.state_dict().unwrap();
        let generators: Vec<_> = model.named_random_states().iter().map(|(_, r)| format!("{r:?}")).collect();
        (buffers.get("0.running_mean").unwrap().to_vec::<f32>().unwrap(), generators)
    };
    let before = state(&model);
    let _ = summary(&model, [4, 2, 3, 3]).unwrap();
    let _ = step_memory(&model, [16, 2, 3, 3]).unwrap();
    assert_eq!(state(&model), before);
    let plain = Sequential::new().add(Relu);
    assert!(summary(&plain, [2]).unwrap_err().to_string().contains("no parameter"));
    assert!(step_memory(&model, []).unwrap_err().to_string().contains("no axis"));
    assert!(summary(&model, [4, 3, 3, 3]).is_err());
    // A pass after one that was watched, or failed while watched, is not watched.
    let x = Tensor::ones([4, 2, 3, 3], DType::F32, &d).unwrap();
    assert_eq!(model.forward(&x).unwrap().shape(), x.shape());
}

fn convolutions(init: &mut Init<'_>) -> Result<Sequential> {
    let same = Conv2dConfig { padding: [1, 1], ..Default::default() };
    Ok(Sequential::new()
        .add(Conv2d::new(3, 16, [3, 3], same, init)?)
        .add(BatchNorm2d::new(16, BatchNormConfig::default(), init)?)
        .add(Relu)
        .add(MaxPool2d::new([2, 2], [2, 2], [0, 0])?)
        .add(Conv2d::new(16, 32, [3, 3], same, init)?)
        .add(Relu)
        .add(Flatten::default())
        .add(Dropout::new(0.1, init.generator)?)
        .add(Linear::new(32 * 8 * 8, 10, init)?))
}

fn perceptron(init: &mut Init<'_>) -> Result<Sequential> {
    let (first, second) = (Linear::new(256, 1024, init)?, Linear::new(1024, 256, init)?);
    Ok(Sequential::new().add(first).add(Gelu).add(second))
}

fn attention(init: &mut Init<'_>) -> Result<Sequential> {
    let norm = LayerNorm::new([64], LayerNormConfig::default(), init)?;
    let attention = MultiheadAttention::new(64, 4, MultiheadAttentionConfig::default(), init)?;
    Ok(Sequential::new()
        .add(norm)
        .add(attention)
        .add(Linear::new(64, 256, init)?)
        .add(Gelu)
        .add(Linear::new(256, 64, init)?))
}

/// The peak that the device of a new process counts while a model is made, and a step runs.
fn real_peak(make: impl FnOnce(&mut Init<'_>) -> Result<Sequential>, shape: &[usize]) -> usize {
    let d = device();
    let model = with_f32(&d, make);
    let x = Tensor::zeros(shape, DType::F32, &d).unwrap();
    let loss = model.forward(&x).unwrap().square().unwrap().mean_all().unwrap();
    let _gradients = loss.backward().unwrap();
    d.memory_stats().peak
}

#[test]
fn the_predicted_peak_is_within_a_tenth_of_the_real_one() {
    type Make = fn(&mut Init<'_>) -> Result<Sequential>;
    let models: [(&str, Make, &[usize]); 6] = [
        ("convolutions", convolutions, &[24, 3, 16, 16]),
        ("more convolutions", convolutions, &[96, 3, 16, 16]),
        ("perceptron", perceptron, &[16, 256]),
        ("wide perceptron", perceptron, &[512, 256]),
        ("attention", attention, &[24, 32, 64]),
        ("more attention", attention, &[64, 32, 64]),
    ];
    for (name, make, shape) in models {
        let predicted = step_memory(&with_f32(&device(), make), shape).unwrap().peak(0) as f64;
        let real = real_peak(make, shape) as f64;
        assert!((predicted / real - 1.0).abs() < 0.1, "{name}: predicted {predicted}, real {real}");
    }
}

#[test]
fn the_prediction_is_what_a_step_of_this_size_takes() {
    let d = device();
    let shape = [512, 256];
    let model = with_f32(&d, perceptron);
    let predicted = step_memory(&model, shape).unwrap();
    let of = StepMemory::of(&model, &Tensor::zeros(shape, DType::F32, &d).unwrap()).unwrap();
    let (peak, real) = (of.peak(0), real_peak(perceptron, &shape));
    let guess = predicted.peak(0);
    assert!(peak.abs_diff(real) * 100 < real && guess.abs_diff(peak) * 20 < peak, "{guess}, {peak}, {real}");
    assert_eq!(predicted.gradients, predicted.parameters);
    assert_eq!(predicted.peak(2) - predicted.peak(0), 2 * predicted.gradients);
    assert!(predicted.to_string().contains("peak with Adam"), "{predicted}");
    // In half precision an optimiser keeps an f32 copy, and its states are f32.
    let mut half = with_f32(&d, perceptron);
    half.cast_parameters(DType::BF16).unwrap();
    let half = step_memory(&half, [2, 256]).unwrap();
    assert_eq!((half.parameters, half.state, half.master), (half.state / 2, predicted.parameters, half.state));
    assert_eq!(half.peak(2), half.parameters + half.input + half.passes + 3 * half.state);
}
