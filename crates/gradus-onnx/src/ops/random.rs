//! Random numbers. A node with a seed draws the same numbers in each run; the others draw from the model's generator.

use gradus_tensor::{DType, Error, Generator, Result, Tensor};

use crate::graph::{Call, Row, one, row, size, sizes, unsupported};
use crate::value::OnnxValue;

type Values = Result<Vec<OnnxValue>>;

pub(super) const ROWS: &[Row] = &[
    row("RandomNormal", &[1, 22], |c| normal(c, sizes(c.ints("shape")?.unwrap_or_default())?, DType::F32)),
    row("RandomNormalLike", &[1, 22], |c| normal(c, c.array(0)?.shape().to_vec(), c.array(0)?.elem().stored())),
    row("RandomUniform", &[1, 22], |c| uniform(c, sizes(c.ints("shape")?.unwrap_or_default())?, DType::F32)),
    row("RandomUniformLike", &[1, 22], |c| uniform(c, c.array(0)?.shape().to_vec(), c.array(0)?.elem().stored())),
    row("Bernoulli", &[15, 22], |c| {
        let x = c.tensor(0)?;
        let to = dtype(c, x.dtype())?;
        Ok(one(draw(c, |g| x.bernoulli_like(g))?.to_dtype(to)?))
    }),
    row("Multinomial", &[7, 22], |c| {
        let (x, n) = (c.tensor(0)?, size(c.int("sample_size", 1)?)?);
        let to = dtype(c, DType::I32)?;
        // The input holds log-probabilities.
        Ok(one(draw(c, |g| x.softmax(-1)?.multinomial(n, true, g))?.to_dtype(to)?))
    }),
];

fn dtype(c: &Call<'_>, default: DType) -> Result<DType> {
    match c.elem_attribute("dtype")? {
        None => Ok(default),
        Some(elem) => elem.dtype().ok_or_else(|| unsupported(format!("random numbers of {}", elem.name()))),
    }
}

/// Draws with the node's seed, or from the model's generator.
pub(super) fn draw(c: &Call<'_>, f: impl FnOnce(&mut Generator) -> Result<Tensor>) -> Result<Tensor> {
    if c.has("seed") {
        let seed = match c.float("seed", 0.0) {
            Ok(seed) => u64::from((seed as f32).to_bits()),
            // The seed of `Dropout` is an integer.
            Err(_) => c.int("seed", 0)? as u64,
        };
        return f(&mut Generator::new(seed));
    }
    let mut generator =
        c.state.random.lock().map_err(|_| Error::argument("onnx", "another run of the model failed"))?;
    f(&mut generator)
}

fn normal(c: &Call<'_>, shape: Vec<usize>, default: DType) -> Values {
    let (mean, scale, to) = (c.float("mean", 0.0)?, c.float("scale", 1.0)?, dtype(c, default)?);
    let y = draw(c, |g| Tensor::randn(&shape, DType::F32, c.device, g))?;
    Ok(one(y.mul(scale)?.add(mean)?.to_dtype(to)?))
}

fn uniform(c: &Call<'_>, shape: Vec<usize>, default: DType) -> Values {
    let (low, high, to) = (c.float("low", 0.0)?, c.float("high", 1.0)?, dtype(c, default)?);
    let y = draw(c, |g| Tensor::rand(&shape, DType::F32, c.device, g))?;
    Ok(one(y.mul(high - low)?.add(low)?.to_dtype(to)?))
}
