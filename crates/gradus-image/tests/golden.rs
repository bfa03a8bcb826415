//! Compares the filters with scipy, scikit-image and Pillow. `golden/make.py` shows how the numbers were made.
#![allow(clippy::unwrap_used)]

mod common;

use common::{cpu, floats};
use gradus_image::{Border, Rotate, gaussian_blur, grayscale, resize, resize_with, rotate, sharpen, sobel};
use gradus_tensor::{DType, Interpolate, Interpolation, Result, Tensor};
use serde_json::Value;

fn numbers(v: &Value) -> Vec<f64> {
    v["values"].as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
}

fn shape(v: &Value) -> Vec<usize> {
    v["shape"].as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as usize).collect()
}

fn run(case: &Value, x: &Tensor) -> Result<Tensor> {
    let [_, h, w] = shape(case)[..] else { panic!("{case}") };
    match case["op"].as_str().unwrap() {
        "gaussian_blur" => {
            let border = match case["border"].as_str().unwrap() {
                "replicate" => Border::Replicate,
                "zero" => Border::Zero,
                _ => Border::Reflect,
            };
            gaussian_blur(x, case["sigma"].as_f64().unwrap(), case["radius"].as_u64().map(|r| r as usize), border)
        }
        "sobel" => sobel(x, case["threshold"].as_f64(), Border::Replicate),
        "sharpen" => sharpen(x, 1.0, Border::Replicate),
        "grayscale" => grayscale(x, false),
        "resize_bilinear" => resize(x, h, w),
        "resize_bicubic" => resize_with(x, h, w, Interpolate::from(Interpolation::Bicubic).antialias()),
        "resize_plain" => resize_with(x, h, w, Interpolation::Bilinear),
        "rotate" => rotate(x, case["degrees"].as_f64().unwrap(), Rotate::default()),
        op => panic!("{op}"),
    }
}

#[test]
fn filters_give_the_numbers_of_other_programs() {
    let file: Value = serde_json::from_str(include_str!("golden/values.json")).unwrap();
    let cases = file["cases"].as_array().unwrap();
    assert!(cases.len() >= 40, "{}", cases.len());
    for case in cases {
        let input = &file["inputs"][case["input"].as_str().unwrap()];
        let x = Tensor::from_vec(numbers(input), shape(input), &cpu()).unwrap();
        let about = || format!("{} {} {}", case["op"], case["input"], case["sigma"]);
        let want = numbers(case);
        for (dtype, tolerance) in [(DType::F64, 1e-7), (DType::F32, 2e-6), (DType::BF16, 0.05)] {
            // These are skipped in bf16, where rounding can move the strength of an edge to the other side of the
            // threshold.
            if dtype == DType::BF16 && (case["op"] == "sobel" || case["op"] == "sharpen") {
                continue;
            }
            let y = run(case, &x.to_dtype(dtype).unwrap()).unwrap();
            assert_eq!((y.shape(), y.dtype()), (&shape(case)[..], dtype), "{}", about());
            let tolerance = case["tolerance"].as_f64().unwrap_or(0.0).max(tolerance);
            for (i, (g, w)) in floats(&y).iter().zip(&want).enumerate() {
                assert!((g - w).abs() <= tolerance, "{} {dtype}: element {i} is {g}, not {w}", about());
            }
        }
    }
}
