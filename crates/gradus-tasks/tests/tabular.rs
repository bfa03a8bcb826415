//! Tables through the library: what the command line cannot show.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use gradus_cpu::CpuBackend;
use gradus_data::{CsvOptions, Table};
use gradus_nn::Module;
use gradus_tasks::tabular::{Network, Options, Spec, measure, predict};
use gradus_tensor::Device;

fn device() -> Device {
    Device::from_backend(Arc::new(CpuBackend::new().unwrap()))
}

/// Targets near 1.7e9, as times in seconds are, differ by less than f32 can tell apart there.
#[test]
fn numbers_that_differ_little_are_compared_in_f64() {
    let device = device();
    let rows: String = (0..31).map(|i| format!("{},{}\n", (i * 7) % 10, 1_700_000_000 + i)).collect();
    let table = Table::from_csv(format!("x,t\n{rows}").as_bytes(), "t.csv", &CsvOptions::default()).unwrap();
    let spec = Spec::fit(&table, "t", Options { classify: Some(false), ..Options::default() }).unwrap();
    let mut network = Network::new(&spec, &device, 0).unwrap();
    network.eval();
    // An untrained network is no better than the mean, and its errors are those of its answers.
    let measured = measure(&spec, &network, &table, &device).unwrap();
    let r2 = measured.metrics.iter().find(|metric| metric.key == "r2").unwrap().value;
    assert!(r2 < 0.5, "{r2}");
    let answers = predict(&spec, &network, &table, &device).unwrap();
    for (row, (answer, loss)) in answers.iter().zip(&measured.losses).enumerate() {
        let gradus_tasks::Answer::Number { value } = answer else { panic!("{answer}") };
        assert!(((value - (1_700_000_000 + row) as f64).abs() - loss).abs() < 1e-6, "row {row}: {answer} and {loss}");
    }
    let mae = measured.losses.iter().sum::<f64>() / 31.0;
    assert!((5.0..12.0).contains(&mae), "{mae}");
}
