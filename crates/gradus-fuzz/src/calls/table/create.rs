//! Creation of tensors, and generators.

use gradus::backend::Distribution;
use gradus::prelude::*;
use gradus::tensor::Element;

use super::{LONG, Row, SHORT, rows};
use crate::calls::Draw;

fn from_vec<T: Element>(d: &mut Draw) -> Result<Tensor> {
    let n = d.below(40);
    let values: Vec<T> = (0..n).map(|_| T::from_f64(d.number())).collect();
    let shape = if d.flag() { vec![n] } else { d.shape() };
    Tensor::from_vec(values, shape, &d.device)
}

fn distribution(d: &mut Draw) -> Distribution {
    match d.below(4) {
        0 => Distribution::Uniform { lo: d.number(), hi: d.number() },
        1 => Distribution::Normal { mean: d.number(), std: d.number() },
        2 => Distribution::Bernoulli { p: d.fraction() },
        _ => Distribution::Int { lo: d.int(), hi: d.int() },
    }
}

const NEW: &[Row] = rows! { SHORT;
    from_vec |d| match d.below(4) {
        0 => from_vec::<f32>(d),
        1 => from_vec::<i64>(d),
        2 => from_vec::<u8>(d),
        _ => from_vec::<bool>(d),
    };
    from_bytes |d| {
        let (n, dtype) = (d.below(30), d.dtype());
        let bytes: Vec<u8> = (0..n * dtype.size()).map(|_| if d.once_in(9) { d.below(256) as u8 } else { 1 }).collect();
        let shape = if d.flag() { vec![n] } else { d.shape() };
        Tensor::from_bytes(&bytes, shape, dtype, &d.device)
    };
    from_pieces |d| {
        let (shape, dtype, fails) = (d.shape(), d.dtype(), d.once_in(8));
        Tensor::from_pieces(shape, dtype, &d.device.clone(), |piece| {
            piece.fill_with(|| d.below(2) as u8);
            if fails { Err(Error::argument("read", "nothing is left").help("give more")) } else { Ok(()) }
        })
    };
    scalar |d| Tensor::scalar(d.number(), &d.device);
    zeros |d| Tensor::zeros(d.shape(), d.dtype(), &d.device);
    ones |d| Tensor::ones(d.shape(), d.dtype(), &d.device);
    full |d| Tensor::full(d.shape(), d.scalar(), d.dtype(), &d.device);
    arange |d| Tensor::arange(d.int(), d.int(), d.int(), d.dtype(), &d.device);
    linspace |d| Tensor::linspace(d.number(), d.number(), d.size(), d.float_dtype(), &d.device);
    eye |d| Tensor::eye(d.size(), d.dtype(), &d.device);
    rand |d| Tensor::rand(d.shape(), d.float_dtype(), &d.device.clone(), &mut d.generator);
    randn |d| Tensor::randn(d.shape(), d.dtype(), &d.device.clone(), &mut d.generator);
    randint |d| Tensor::randint(d.int(), d.int(), d.shape(), d.dtype(), &d.device.clone(), &mut d.generator);
    random |d| Tensor::random(distribution(d), d.shape(), d.dtype(), &d.device.clone(), &mut d.generator);
    uniform |d| Tensor::uniform(d.number(), d.number(), d.shape(), d.dtype(), &d.device.clone(), &mut d.generator);
    normal |d| Tensor::normal(d.number(), d.number(), d.shape(), d.dtype(), &d.device.clone(), &mut d.generator);
    bernoulli |d| Tensor::bernoulli(d.fraction(), d.shape(), d.dtype(), &d.device.clone(), &mut d.generator);
    exponential |d| Tensor::exponential(d.number(), d.shape(), d.float_dtype(), &d.device.clone(), &mut d.generator);
    randperm |d| Tensor::randperm(d.size(), &d.device.clone(), &mut d.generator);
    Generator::permutation |d| { let n = d.size(); d.generator.permutation(n) };
    Generator::others |d| {
        let mut g = Generator::at(d.bits(), d.bits());
        Ok::<_, Error>(g.fork(d.bits()).below(d.size()) as u64 ^ g.next_u64() ^ g.seed() ^ g.offset())
    };
};

const LIKE: &[Row] = rows! { LONG any;
    zeros_like |x, _d| x.zeros_like();
    ones_like |x, _d| x.ones_like();
    full_like |x, d| x.full_like(d.scalar());
    rand_like |x, d| x.rand_like(&mut d.generator);
    randn_like |x, d| x.randn_like(&mut d.generator);
};

const DRAWN: &[Row] = rows! { SHORT float;
    bernoulli_like |x, d| if d.flag() { x.sigmoid()?.bernoulli_like(&mut d.generator) } else { x.bernoulli_like(&mut d.generator) };
    multinomial |x, d| {
        let (n, again, x) = (d.size(), d.flag(), if d.once_in(3) { x } else { x.abs()?.add(0.1)? });
        x.multinomial(n, again, &mut d.generator)
    };
};

pub(super) const ROWS: &[&[Row]] = &[NEW, LIKE, DRAWN];
