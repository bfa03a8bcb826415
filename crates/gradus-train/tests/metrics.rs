//! Compares metrics with scikit-learn, whose values `reference/metrics.py` wrote.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use gradus_cpu::CpuBackend;
use gradus_data::{DataLoader, TensorDataset};
use gradus_nn::Identity;
use gradus_tensor::{DType, Device, Tensor};
use gradus_train::{
    Accuracy, Average, AveragePrecision, CalibrationError, ClassScore, ConfusionMatrix, Metric, Perplexity, R2,
    RegressionError, RocAuc, TopK, measure,
};
use serde_json::Value;

fn device() -> Device {
    Device::from_backend(Arc::new(CpuBackend::new().unwrap()))
}

fn reference(part: &str) -> Vec<(String, Value)> {
    let all: Value = serde_json::from_str(include_str!("reference/metrics.json")).unwrap();
    all[part].as_object().unwrap().iter().map(|(name, case)| (name.clone(), case.clone())).collect()
}

fn numbers(list: &Value) -> Vec<f64> {
    list.as_array().unwrap().iter().map(|n| n.as_f64().unwrap()).collect()
}

fn shape(case: &Value) -> Vec<usize> {
    numbers(&case["shape"]).into_iter().map(|n| n as usize).collect()
}

fn outputs(case: &Value, device: &Device) -> Tensor {
    Tensor::from_vec(numbers(&case["outputs"]), shape(case), device).unwrap()
}

fn labels(case: &Value, device: &Device) -> Tensor {
    let targets: Vec<i64> = numbers(&case["targets"]).into_iter().map(|n| n as i64).collect();
    Tensor::from_vec(targets.clone(), [targets.len()], device).unwrap()
}

/// Feeds a metric all samples at once, and again in parts of 7, and compares it with the value of that name; `null` is
/// an error.
fn compare(metric: &mut dyn Metric, outputs: &Tensor, targets: &Tensor, case: (&str, &Value)) {
    assert!(metric.value().unwrap_err().to_string().contains("no samples"), "{}", metric.name());
    let name = metric.name().to_owned();
    let want = &case.1["values"][&name];
    for part in [usize::MAX, 7] {
        metric.reset();
        let n = targets.shape()[0];
        let mut from = 0;
        while from < n {
            let take = part.min(n - from);
            metric.update(&outputs.narrow(0, from, take).unwrap(), &targets.narrow(0, from, take).unwrap()).unwrap();
            from += take;
        }
        match want.as_f64() {
            Some(want) => {
                let found = metric.value().unwrap();
                let most = 1e-12 * want.abs().max(1.0);
                assert!((found - want).abs() <= most, "{name} of {}: {found}, not {want}", case.0);
            }
            None => {
                assert!(want.is_null(), "{name} has no value");
                let e = metric.value().unwrap_err().to_string();
                assert!(e.contains("not defined"), "{name} of {}: {e}", case.0);
            }
        }
    }
    metric.reset();
    assert!(metric.value().is_err());
}

#[test]
fn metrics_of_classes_are_those_of_scikit_learn() {
    let device = device();
    for (name, case) in reference("classes") {
        let (x, y) = (outputs(&case, &device), labels(&case, &device));
        let averages = [Average::Micro, Average::Macro];
        let mut metrics: Vec<Box<dyn Metric>> = vec![
            Box::new(Accuracy::default()),
            Box::new(Perplexity::default()),
            Box::new(CalibrationError::new(15).unwrap()),
        ];
        metrics.extend((1..=3).map(|k| Box::new(TopK::new(k).unwrap()) as Box<dyn Metric>));
        for average in averages {
            metrics.push(Box::new(ClassScore::precision(average)));
            metrics.push(Box::new(ClassScore::recall(average)));
            metrics.push(Box::new(ClassScore::f1(average)));
        }
        metrics.iter_mut().for_each(|metric| compare(&mut **metric, &x, &y, (&name, &case)));
        let classes = x.shape()[1];
        let mut matrix = ConfusionMatrix::new(classes).unwrap();
        matrix.update(&x, &y).unwrap();
        for (truth, row) in case["values"]["confusion"].as_array().unwrap().iter().enumerate() {
            let found: Vec<f64> = (0..classes).map(|predicted| matrix.count(truth, predicted) as f64).collect();
            assert_eq!(found, numbers(row), "{name}");
        }
    }
}

#[test]
fn metrics_of_rankings_are_those_of_scikit_learn() {
    let device = device();
    for (name, case) in reference("ranking") {
        let (x, y) = (outputs(&case, &device), labels(&case, &device));
        compare(&mut RocAuc::default(), &x, &y, (&name, &case));
        compare(&mut AveragePrecision::default(), &x, &y, (&name, &case));
    }
}

#[test]
fn metrics_of_numbers_are_those_of_scikit_learn() {
    let device = device();
    for (name, case) in reference("regression") {
        let x = outputs(&case, &device);
        let y = Tensor::from_vec(numbers(&case["targets"]), shape(&case), &device).unwrap();
        for mut metric in [RegressionError::mae(), RegressionError::mse(), RegressionError::rmse()] {
            compare(&mut metric, &x, &y, (&name, &case));
        }
        compare(&mut R2::default(), &x, &y, (&name, &case));
    }
}

#[test]
fn outputs_and_targets_that_do_not_fit_are_errors_and_do_not_count() {
    let device = device();
    let zeros = |shape: &[usize], dtype| Tensor::zeros(shape, dtype, &device).unwrap();
    let x = zeros(&[3, 2], DType::F32);
    let nan = Tensor::full([3, 2], f64::NAN, DType::F32, &device).unwrap();
    let label = |n: i64| Tensor::from_vec(vec![n; 3], [3], &device).unwrap();
    let mut of_classes: Vec<Box<dyn Metric>> = vec![
        Box::new(Accuracy::default()),
        Box::new(TopK::new(2).unwrap()),
        Box::new(ClassScore::f1(Average::Macro)),
        Box::new(Perplexity::default()),
        Box::new(CalibrationError::new(3).unwrap()),
        Box::new(ConfusionMatrix::new(2).unwrap()),
    ];
    for metric in &mut of_classes {
        for (x, y) in [
            (&x, label(2)),
            (&x, label(-1)),
            (&nan, label(0)),
            (&x, zeros(&[3], DType::F32)),
            (&x, zeros(&[2], DType::I64)),
            (&x, zeros(&[3, 1], DType::I64)),
            (&zeros(&[3], DType::F32), label(0)),
        ] {
            assert!(metric.update(x, &y).is_err(), "{} {x:?} {y:?}", metric.name());
        }
        assert!(metric.value().is_err(), "{}", metric.name());
    }
    let x = zeros(&[3], DType::F32);
    for metric in [&mut RocAuc::default() as &mut dyn Metric, &mut AveragePrecision::default()] {
        let nan = Tensor::full([3], f64::NAN, DType::F32, &device).unwrap();
        for (x, y) in
            [(&x, label(2)), (&nan, label(1)), (&x, zeros(&[3], DType::F32)), (&x, zeros(&[3, 1], DType::I64))]
        {
            assert!(metric.update(x, &y).is_err());
        }
        assert!(metric.value().is_err());
    }
    // A column and a list would be a table of all pairs, if they were broadcast.
    let mut mse = RegressionError::mse();
    let e = mse.update(&zeros(&[3, 1], DType::F32), &x).unwrap_err().to_string();
    assert!(e.contains("[3, 1]") && e.contains("different shapes"), "{e}");
    mse.update(&zeros(&[3, 2], DType::F32), &zeros(&[3, 2], DType::F32)).unwrap();
    assert!(mse.update(&zeros(&[3, 4], DType::F32), &zeros(&[3, 4], DType::F32)).is_err());
    assert_eq!(mse.value().unwrap(), 0.0);
    assert!(TopK::new(0).is_err() && CalibrationError::new(0).is_err());
}

#[test]
fn all_batches_of_a_loader_are_measured() {
    let device = device();
    let x = Tensor::from_vec(vec![1.0f32, 0.0, 0.0, 1.0, 0.0, 1.0], [3, 2], &device).unwrap();
    let y = Tensor::from_vec(vec![0i64, 1, 0], [3], &device).unwrap();
    let loader = DataLoader::new(TensorDataset::new(x, y).unwrap(), &device).batch_size(2).build().unwrap();
    let (mut accuracy, mut f1) = (Accuracy::default(), ClassScore::f1(Average::Macro));
    for _ in 0..2 {
        measure(&mut Identity, &loader, &mut [&mut accuracy, &mut f1]).unwrap();
    }
    assert_eq!((accuracy.value().unwrap(), f1.of_class(0)), (2.0 / 3.0, 2.0 / 3.0));
}
