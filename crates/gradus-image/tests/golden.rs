//! Compares the filters with scipy, scikit-image and Pillow. `golden/make.py` shows how the numbers were made.
#![allow(clippy::unwrap_used)]

mod common;

use common::{cpu, floats};
use gradus_image::{Border, Rotate, gaussian_blur, grayscale, hue, resize, resize_with, rotate, sharpen, sobel};
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

#[test]
fn hues_are_those_of_torchvision() {
    let file: Value = serde_json::from_str(include_str!("golden/values.json")).unwrap();
    let cases: Value = serde_json::from_str(include_str!("golden/hue.json")).unwrap();
    for case in cases.as_array().unwrap() {
        let input = &file["inputs"][case["input"].as_str().unwrap()];
        let x = Tensor::from_vec(numbers(input), shape(input), &cpu()).unwrap();
        let turn = case["turn"].as_f64().unwrap();
        let want = numbers(case);
        for (dtype, tolerance) in [(DType::F64, 2e-9), (DType::F32, 1e-5)] {
            let y = floats(&hue(&x.to_dtype(dtype).unwrap(), turn).unwrap());
            assert_eq!(y.len(), want.len());
            for (i, (g, w)) in y.iter().zip(&want).enumerate() {
                assert!((g - w).abs() <= tolerance, "{case}: element {i} is {g}, not {w}");
            }
        }
    }
    // Alpha and grey images stay, and u8 images are rounded.
    let alpha = Tensor::from_vec(vec![255u8, 0, 0, 77], [4, 1, 1], &cpu()).unwrap();
    assert_eq!(hue(&alpha, 1.0 / 3.0).unwrap().to_vec::<u8>().unwrap(), [0, 255, 0, 77]);
    let grey = Tensor::from_vec(vec![0.25f32], [1, 1, 1], &cpu()).unwrap();
    assert_eq!(hue(&grey, 0.2).unwrap().to_vec::<f32>().unwrap(), [0.25]);
    assert!(hue(&alpha, 0.6).is_err() && hue(&alpha, f64::NAN).is_err());
}
