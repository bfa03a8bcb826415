//! Runs the conformance suite, and tests operations that use default bodies.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use gradus::prelude::*;
use tiny_backend::TinyBackend;

#[test]
fn it_conforms() {
    gradus_conformance::check(&TinyBackend::new().unwrap()).unwrap_or_else(|report| panic!("{report}"));
}

#[test]
fn gradients_of_composites_are_those_of_the_cpu() {
    let on = |device: &Device| -> Result<Vec<f64>> {
        let mut generator = Generator::new(3);
        let x = Tensor::randn([2, 3, 6, 6], DType::F64, device, &mut generator)?.with_grad()?;
        let w = Tensor::randn([4, 3, 3, 3], DType::F64, device, &mut generator)?.with_grad()?;
        let y = x.conv2d(&w, None, ConvOptions::default())?.softmax(1)?;
        let loss = y.square()?.sum_all()?;
        let gradients = loss.backward()?;
        let flat = |t: &Tensor| gradients.get(t).expect("a gradient").to_vec::<f64>();
        Ok([flat(&x)?, flat(&w)?].concat())
    };
    let tiny = Device::from_backend(Arc::new(TinyBackend::new().unwrap()));
    let (ours, theirs) = (on(&tiny).unwrap(), on(&Device::cpu().unwrap()).unwrap());
    assert!(theirs.iter().any(|v| v.abs() > 1e-3));
    for (a, b) in ours.iter().zip(&theirs) {
        assert!((a - b).abs() < 1e-12, "{a} {b}");
    }
}
