//! Checks rules for the operands of all operations: dtypes are promoted, and an index may have any integer dtype.

use gradus::prelude::*;

use crate::{Call, calls, file, words};

/// Operands that do not affect the dtype of the result: running statistics, and an additive mask.
const ACCOMPANY: [(&str, usize); 3] =
    [("batch_norm_eval", 3), ("batch_norm_eval", 4), ("scaled_dot_product_attention/bias", 3)];

/// Every case of the file, with its call and inputs.
fn cases() -> Vec<(String, Call, Vec<Tensor>)> {
    let (file, calls) = (file(), calls());
    let names = words().into_iter().filter(|(_, v)| v.starts_with("order=")).map(|(name, _)| name);
    let call = |name: &str| calls.get(name).or_else(|| calls.get(name.split('/').next().unwrap())).copied().unwrap();
    names.map(|name| (call(&name), file.inputs(&name), name)).map(|(call, inputs, name)| (name, call, inputs)).collect()
}

/// The dtype, shape and bytes of a tensor.
type Plain = (DType, Vec<usize>, Vec<u8>);

/// The results of a call.
fn results(call: Call, inputs: &[Tensor]) -> Result<Vec<Plain>> {
    call(inputs)?.iter().map(|y| Ok((y.dtype(), y.shape().to_vec(), y.to_bytes()?))).collect()
}

/// The inputs, with some of them converted to another dtype.
fn converted(inputs: &[Tensor], dtype: DType, which: impl Fn(usize) -> bool) -> Result<Vec<Tensor>> {
    let one = |(i, t): (usize, &Tensor)| if which(i) { t.to_dtype(dtype) } else { Ok(t.clone()) };
    inputs.iter().enumerate().map(one).collect()
}

#[test]
fn floats_of_several_dtypes_promote_in_every_operation() {
    let mut tried = 0;
    // `broadcast_tensors` returns views, each with its own dtype.
    for (name, call, inputs) in cases().into_iter().filter(|c| c.0 != "broadcast_tensors") {
        let floats: Vec<usize> = (0..inputs.len()).filter(|&i| inputs[i].dtype().is_float()).collect();
        for &i in floats.iter().filter(|_| floats.len() > 1) {
            tried += 1;
            let mixed = converted(&inputs, DType::F32, |k| k == i).unwrap();
            let wide = converted(&mixed, DType::F64, |k| k == i).unwrap();
            let got = results(call, &mixed).unwrap_or_else(|e| panic!("{name}, input {i}: {e}"));
            assert!(got == results(call, &wide).unwrap(), "{name} with input {i} in f32 is not as in f64");
            // Neither f16 nor bf16 can represent all values of the other, so the two promote to f32.
            let mixed =
                converted(&converted(&inputs, DType::BF16, |k| floats.contains(&k)).unwrap(), DType::F16, |k| k == i);
            let mixed = mixed.unwrap();
            let wide = converted(&mixed, DType::F32, |k| floats.contains(&k)).unwrap();
            let got = results(call, &mixed).unwrap_or_else(|e| panic!("{name}, input {i}: {e}"));
            if ACCOMPANY.contains(&(&name, i)) {
                assert!(got.iter().all(|y| y.0 == DType::BF16), "{name}: input {i} decides the dtype");
                continue;
            }
            assert!(got == results(call, &wide).unwrap(), "{name} with input {i} in f16 and others in bf16");
        }
    }
    assert!(tried > 200, "{tried}");
}

#[test]
fn indices_are_integers_of_any_dtype() {
    let mut tried = 0;
    for (name, call, inputs) in cases() {
        let takes = inputs.iter().any(|t| t.dtype().is_float()) || name == "one_hot";
        let is_index = |i: usize| inputs[i].dtype() == DType::I64;
        if !takes || !(0..inputs.len()).any(is_index) {
            continue;
        }
        let want = results(call, &inputs).unwrap();
        for dtype in DType::ALL.into_iter().filter(|d| d.is_int()) {
            let short = converted(&inputs, dtype, is_index).unwrap();
            // Skips dtypes that cannot represent a negative index of this case.
            let number = |t: &Tensor| t.to_dtype(DType::F64).unwrap().to_bytes().unwrap();
            if (0..inputs.len()).any(|i| is_index(i) && number(&short[i]) != number(&inputs[i])) {
                continue;
            }
            tried += 1;
            let got = results(call, &short).unwrap_or_else(|e| panic!("{name} in {dtype}: {e}"));
            assert!(got == want, "{name} with indices in {dtype}");
        }
        let floats = converted(&inputs, DType::F64, is_index).unwrap();
        assert!(results(call, &floats).is_err(), "{name} takes floats for indices");
    }
    assert!(tried > 150, "{tried}");
}
