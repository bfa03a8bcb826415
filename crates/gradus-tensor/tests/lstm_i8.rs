//! `LstmI8` beside the same steps as separate operations, whose results must have the same bits.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use gradus_cpu::CpuBackend;
use gradus_tensor::ops::LstmI8;
use gradus_tensor::{DType, Device, Generator, Result, Tensor, fused};

/// A product of `x [m, k]`, rounded to 8 bits, with `w [n, k]`.
fn linear(x: &Tensor, w: &Tensor, scale: &Tensor, bias: &Tensor) -> Result<Tensor> {
    let (lo, hi) = x.aminmax(&[0, 1], false)?;
    let x_scale = fused!(|lo, hi| {
        let range = (hi.max(0.0) - lo.min(0.0)) / 255.0;
        range.eq(0.0).select(1.0, range)
    });
    let x_scale = x_scale(&lo, &hi)?;
    let zero = fused!(|lo, scale| (-lo.min(0.0) / scale).round().max(0.0).min(255.0))(&lo, &x_scale)?;
    let rounded = fused!(|x, scale, zero| ((x / scale).round() + zero).max(0.0).min(255.0))(x, &x_scale, &zero)?;
    let centred = rounded.sub(zero)?.to_dtype(DType::I16)?;
    let sums = centred.matmul_i32(&w.t()?)?;
    fused!(|sums, x, w, bias| sums * (x * w) + bias)(&sums, &x_scale, scale, bias)
}

#[test]
fn a_layer_has_the_bits_of_its_steps() -> Result<()> {
    let device = Device::from_backend(Arc::new(CpuBackend::new()?));
    let mut rng = Generator::new(3);
    let orders: [&[bool]; 5] = [&[false], &[true], &[false, true], &[true, false], &[true, true]];
    for (reverse, [t, b, features, hidden]) in orders
        .into_iter()
        .flat_map(|reverse| [[1, 1, 3, 2], [4, 1, 70, 5], [5, 3, 9, 17], [0, 2, 3, 4]].map(|sizes| (reverse, sizes)))
    {
        let (d, n) = (reverse.len(), 4 * hidden);
        let mut floats = |shape: &[usize]| Tensor::randn(shape, DType::F32, &device, &mut rng);
        let (x, h, c) = (floats(&[t, b, features])?, floats(&[d, b, hidden])?, floats(&[d, b, hidden])?);
        let mut weight = |k: usize| -> Result<[Tensor; 4]> {
            let w = floats(&[d, n, k])?.mul(50.0)?.clamp(-128.0, 127.0)?.to_dtype(DType::I8)?;
            let sums = w.to_dtype(DType::I32)?.sum(&[2], false)?.to_dtype(DType::I32)?;
            Ok([w, floats(&[d, n])?.mul(0.01)?, sums, floats(&[d, n])?])
        };
        let ([w, w_scale, w_sums, w_bias], [r, r_scale, r_sums, r_bias]) = (weight(features)?, weight(hidden)?);
        let op = LstmI8 { reverse: reverse.iter().copied().collect() };
        let found = op.apply([&x, &h, &c, &w, &w_scale, &w_sums, &r, &r_scale, &r_sums, &w_bias, &r_bias])?;
        assert_eq!(found[0].shape(), [t, d, b, hidden]);
        for (i, &reverse) in reverse.iter().enumerate() {
            let of = |tensor: &Tensor| tensor.select(0, i as isize);
            let (mut h, mut c) = (of(&h)?, of(&c)?);
            for step in (0..t).map(|step| (if reverse { t - 1 - step } else { step }) as isize) {
                let all = linear(&x.reshape([t * b, features])?, &of(&w)?, &of(&w_scale)?, &of(&w_bias)?)?;
                let to = all.reshape([t, b, n])?.select(0, step)?;
                let gates = to.add(linear(&h, &of(&r)?, &of(&r_scale)?, &of(&r_bias)?)?)?;
                let gate = |k: usize| gates.narrow(1, k * hidden, hidden);
                let (input, output, forget, cell) = (gate(0)?, gate(1)?, gate(2)?, gate(3)?);
                let next = fused!(|i, f, g, c| f.sigmoid() * c + i.sigmoid() * g.tanh());
                c = next(&input, &forget, &cell, &c)?;
                h = fused!(|o, c| o.sigmoid() * c.tanh())(&output, &c)?;
                let y = found[0].select(0, step)?.select(0, i as isize)?;
                assert_eq!(y.to_vec::<f32>()?, h.to_vec::<f32>()?, "{t} {b} step {step} of {i}");
            }
            assert_eq!(of(&found[1])?.to_vec::<f32>()?, h.to_vec::<f32>()?);
            assert_eq!(of(&found[2])?.to_vec::<f32>()?, c.to_vec::<f32>()?);
        }
    }
    Ok(())
}

#[test]
fn wrong_operands_are_refused() -> Result<()> {
    let device = Device::from_backend(Arc::new(CpuBackend::new()?));
    let zeros = |shape: &[usize], dtype: DType| Tensor::zeros(shape, dtype, &device).unwrap();
    let floats = |shape: &[usize]| zeros(shape, DType::F32);
    let (w, r) = (zeros(&[2, 8, 3], DType::I8), zeros(&[2, 8, 2], DType::I8));
    let (x, state, vector, sums) =
        (floats(&[4, 1, 3]), floats(&[2, 1, 2]), floats(&[2, 8]), zeros(&[2, 8], DType::I32));
    let right = [&x, &state, &state, &w, &vector, &sums, &r, &vector, &sums, &vector, &vector];
    let op = |reverse: &[bool]| LstmI8 { reverse: reverse.iter().copied().collect() };
    op(&[false, true]).apply(right)?;
    assert!(op(&[false]).apply(right).unwrap_err().to_string().contains("one or two directions"));
    for (i, name) in
        ["c_0", "weight_ih", "scale_ih", "sums_ih", "weight_hh", "scale_hh", "sums_hh", "bias_ih", "bias_hh"]
            .into_iter()
            .enumerate()
    {
        let mut wrong = right;
        let other = floats(&[2, 3, 3]);
        wrong[i + 2] = &other;
        assert!(op(&[false, true]).apply(wrong).unwrap_err().to_string().contains(name), "{name}");
    }
    Ok(())
}
