//! Compares first, recorded and second gradients in f32, f16 and bf16 with those in f64 on the same rounded inputs.

use gradus::prelude::*;

use crate::derivatives::{Found, IRREGULAR, Lay, Weights, derivatives, weight};
use crate::matrix::tolerance;
use crate::orders::{Case, cases};
use crate::{calls, file, values, words};

/// The largest finite number of a dtype. For bf16 this is the limit of f32, which is close to it.
fn largest(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 65504.0,
        _ => f64::from(f32::MAX),
    }
}

/// The inputs, with floats converted to `dtype` and the others unchanged.
fn to(dtype: DType, all: &[Tensor]) -> Result<Vec<Tensor>> {
    all.iter().map(|t| if t.dtype().is_float() { t.to_dtype(dtype) } else { Ok(t.clone()) }).collect()
}

/// Describes a difference; `None` if there is none. An error means that the dtype is refused.
fn difference(case: &Case<'_>, dtype: DType) -> Result<Option<String>> {
    let low = to(dtype, &case.inputs)?;
    let wide = to(DType::F64, &low)?;
    // The weights are rounded to the dtype too.
    let shapes = derivatives(&case.call, &wide, &case.leaves, &IRREGULAR, Lay::Plain)?;
    let outputs = (case.call)(&low)?;
    let position = |i: usize| case.leaves.iter().position(|&leaf| leaf == i).unwrap_or(0);
    let rounded = |t: &Tensor, salt| weight(t, salt).and_then(|t| t.to_dtype(dtype));
    let (of_output, of_gradient) = (
        |i: usize| rounded(&shapes.outputs[i], i).unwrap(),
        |i: usize| rounded(&shapes.first[position(i)], i).unwrap(),
    );
    let run = |inputs: &[Tensor], like: &dyn Fn(usize) -> DType, leaf: DType| -> Result<Found> {
        let weights = Weights {
            of_output: &|i| Some(of_output(i).to_dtype(like(i)).unwrap()),
            of_gradient: &|i| Some(of_gradient(i).to_dtype(leaf).unwrap()),
        };
        derivatives(&case.call, inputs, &case.leaves, &weights, Lay::Plain)
    };
    let got = run(&low, &|i| outputs[i].dtype(), dtype)?;
    let want = run(&wide, &|i| shapes.outputs[i].dtype(), DType::F64)?;
    let compare = |what: &str, got: &[Tensor], want: &[Tensor]| {
        got.iter().zip(want).enumerate().find_map(|(n, (g, w))| {
            let (g, w) = (values(g), values(w));
            let scale = w.iter().filter(|w| w.is_finite()).fold(1.0, |m: f64, w| m.max(w.abs()));
            let near = |g: f64, w: f64| {
                let close = (g - w).abs() <= tolerance(dtype) * scale;
                g == w || close || g.is_nan() && w.is_nan() || w.abs() > largest(dtype) / 2.0
            };
            let (g, w) = g.iter().zip(&w).find(|&(&g, &w)| !near(g, w))?;
            Some(format!("{what} {n} in {dtype} has {g} where f64 has {w}"))
        })
    };
    Ok(compare("gradient", &got.plain, &want.plain)
        .or_else(|| compare("recorded gradient", &got.first, &want.first))
        .or_else(|| compare("second gradient", &got.second, &want.second)))
}

#[test]
fn gradients_of_every_float_dtype_are_those_of_f64() {
    let (file, metadata, calls) = (file(), words(), calls());
    let (mut wrong, mut compared) = (vec![], 0);
    for case in cases(&file, &metadata, &calls).iter().filter(|c| !c.name.ends_with("/special")) {
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            match difference(case, dtype) {
                Ok(None) => compared += 1,
                Ok(Some(difference)) => wrong.push(format!("{}: {difference}", case.name)),
                Err(e) if matches!(e.kind(), ErrorKind::UnsupportedDType | ErrorKind::DTypeMismatch) => {}
                Err(e) => wrong.push(format!("{} in {dtype}: {e}", case.name)),
            }
        }
    }
    println!("{compared} cases and dtypes");
    assert!(wrong.is_empty() && compared > 900, "{compared} compared; {} wrong:\n{}", wrong.len(), wrong.join("\n"));
}
