//! Mixed precision: which dtype each operation computes in, that gradients are those of the same casts written out, and
//! PyTorch's values.
#![allow(clippy::unwrap_used)]

mod common;

use common::cpu;
use gradus_tensor::autograd::checkpoint;
use gradus_tensor::{
    AttentionOptions, BackwardOptions, ConvOptions, DType, Gradients, Reduction, Result, Tensor, autocast,
    autocast_dtype, autocast_guard, grad, no_autocast, no_autocast_guard,
};

fn values(shape: &[usize], phase: f64) -> Tensor {
    let n: usize = shape.iter().product();
    let v: Vec<f32> = (0..n).map(|i| (i as f64 * 1.7 + phase).sin() as f32).collect();
    Tensor::from_vec(v, shape, &cpu()).unwrap()
}

fn bits(t: &Tensor) -> Vec<u8> {
    t.detach().to_bytes().unwrap()
}

/// The result of an operation on a square matrix of each dtype, inside autocast to bf16.
type Job = fn(&Tensor) -> Result<Tensor>;

fn image(x: &Tensor) -> Result<Tensor> {
    x.reshape([1, 1, 4, 4])
}

/// The products of PyTorch's list for CUDA that are operations here.
const PRODUCTS: &[(&str, Job)] = &[
    ("matmul", |x| x.matmul(x)),
    ("linear", |x| x.linear(x, None)),
    ("addmm", |x| x.addmm(x, x, 1.0, 1.0)),
    ("baddbmm", |x| {
        let x = x.unsqueeze(0)?;
        x.baddbmm(&x, &x, 1.0, 1.0)
    }),
    ("einsum", |x| Tensor::einsum("ij,jk->ik", &[x, x])),
    ("conv1d", |x| x.unsqueeze(0)?.conv1d(&x.unsqueeze(-1)?, None, ConvOptions::new())),
    ("conv2d", |x| image(x)?.conv2d(&image(x)?, None, ConvOptions::new())),
    ("conv3d", |x| image(x)?.unsqueeze(0)?.conv3d(&image(x)?.unsqueeze(0)?, None, ConvOptions::new())),
    ("conv_transpose1d", |x| x.unsqueeze(0)?.conv_transpose1d(&x.unsqueeze(-1)?, None, ConvOptions::new())),
    ("conv_transpose2d", |x| image(x)?.conv_transpose2d(&image(x)?, None, ConvOptions::new())),
    ("conv_transpose3d", |x| {
        let x = image(x)?.unsqueeze(0)?;
        x.conv_transpose3d(&x, None, ConvOptions::new())
    }),
    ("attention", |x| x.scaled_dot_product_attention(x, x, AttentionOptions::new())),
];

/// The operations of PyTorch's list for CUDA that compute in f32.
const IN_F32: &[(&str, Job)] = &[
    ("acos", |x| x.acos()),
    ("asin", |x| x.asin()),
    ("cosh", |x| x.cosh()),
    ("sinh", |x| x.sinh()),
    ("tan", |x| x.tan()),
    ("exp", |x| x.exp()),
    ("expm1", |x| x.expm1()),
    ("log", |x| x.log()),
    ("log10", |x| x.log10()),
    ("log1p", |x| x.log1p()),
    ("log2", |x| x.log2()),
    ("pow", |x| x.pow(2.0)),
    ("pow by a tensor", |x| x.pow(x)),
    ("recip", |x| x.recip()),
    ("rsqrt", |x| x.rsqrt()),
    ("softplus", |x| x.softplus()),
    ("softmax", |x| x.softmax(-1)),
    ("log_softmax", |x| x.log_softmax(-1)),
    ("softmin", |x| x.softmin(-1)),
    ("sum", |x| x.sum_all()),
    ("prod", |x| x.prod_all()),
    ("cumsum", |x| x.cumsum(0)),
    ("cumprod", |x| x.cumprod(0)),
    ("norm", |x| x.norm(2.0, &[0], false)),
    ("normalize", |x| x.normalize(2.0, 0, 1e-12)),
    ("cdist", |x| x.cdist(x, 2.0)),
    ("cosine_similarity", |x| x.cosine_similarity(x, 0, 1e-8)),
    ("layer_norm", |x| x.layer_norm(&[4], None, None, 1e-5)),
    ("group_norm", |x| x.group_norm(2, None, None, 1e-5)),
    ("mse_loss", |x| x.mse_loss(x, Reduction::Mean)),
    ("l1_loss", |x| x.l1_loss(x, Reduction::Mean)),
    ("smooth_l1_loss", |x| x.smooth_l1_loss(x, 1.0, Reduction::Mean)),
    ("kl_div", |x| x.kl_div(x, false, Reduction::Mean)),
    ("poisson_nll_loss", |x| x.poisson_nll_loss(x, true, false, 1e-8, Reduction::Mean)),
    ("soft_margin_loss", |x| x.soft_margin_loss(x, Reduction::Mean)),
    ("hinge_embedding_loss", |x| x.hinge_embedding_loss(x, 1.0, Reduction::Mean)),
    ("margin_ranking_loss", |x| x.margin_ranking_loss(x, x, 0.5, Reduction::Mean)),
    ("triplet_margin_loss", |x| x.triplet_margin_loss(x, x, 1.0, 2.0, false, Reduction::Mean)),
    ("bce_with_logits", |x| x.bce_with_logits(x, None, None, Reduction::Mean)),
    ("cross_entropy", |x| x.cross_entropy(&Tensor::zeros([4], DType::I64, &cpu())?)),
    ("nll_loss", |x| x.nll_loss(&Tensor::zeros([4], DType::I64, &cpu())?, None, None, Reduction::Mean)),
];

/// Operations that compute in the dtype of their operands.
const AS_GIVEN: &[(&str, Job)] = &[
    ("add", |x| x.add(x)),
    ("mul by a number", |x| x.mul(2.0)),
    ("relu", |x| x.relu()),
    ("gelu", |x| x.gelu()),
    ("tanh", |x| x.tanh()),
    ("mean", |x| x.mean_all()),
    ("max", |x| x.max_all()),
    ("reshape", |x| x.reshape([16])),
    ("max_pool", |x| x.unsqueeze(0)?.max_pool1d([2], gradus_tensor::PoolOptions::new())),
];

#[test]
fn each_operation_computes_in_the_dtype_of_its_list() -> Result<()> {
    let x = values(&[4, 4], 0.4).abs()?.add(0.1)?.minimum(0.9)?;
    for lower in [DType::BF16, DType::F16] {
        let dtype = |job: Job, given: DType| autocast(lower, || job(&x.to_dtype(given)?)).map(|y| y.dtype());
        for (name, job) in PRODUCTS {
            for given in [DType::F32, DType::BF16, DType::F16] {
                assert_eq!(dtype(*job, given)?, lower, "{name} of {given}");
            }
        }
        for (name, job) in IN_F32 {
            for given in [DType::F32, DType::BF16, DType::F16] {
                assert_eq!(dtype(*job, given)?, DType::F32, "{name} of {given}");
            }
        }
        for (name, job) in AS_GIVEN {
            for given in [DType::F32, DType::BF16, DType::F16] {
                assert_eq!(dtype(*job, given)?, given, "{name} of {given}");
            }
        }
        for (name, job) in PRODUCTS.iter().chain(IN_F32).chain(AS_GIVEN) {
            assert_eq!(dtype(*job, DType::F64)?, DType::F64, "{name} of f64");
        }
        let integers = Tensor::ones([2, 2], DType::I64, &cpu())?;
        assert_eq!(autocast(lower, || integers.matmul(&integers))?.dtype(), DType::I64);
        // Operands of two dtypes promote.
        assert_eq!(autocast(lower, || x.to_dtype(lower)?.add(&x))?.dtype(), DType::F32);
    }
    Ok(())
}

/// The values are those of the operands cast by hand.
#[test]
fn the_values_are_those_of_casts_by_hand() -> Result<()> {
    let x = values(&[4, 4], 0.4).abs()?.add(0.1)?.minimum(0.9)?;
    let half = x.to_dtype(DType::BF16)?;
    for (name, job) in PRODUCTS {
        assert_eq!(bits(&autocast(DType::BF16, || job(&x))?), bits(&job(&half)?), "{name}");
    }
    let back = half.to_dtype(DType::F32)?;
    for (name, job) in IN_F32 {
        assert_eq!(bits(&autocast(DType::BF16, || job(&half))?), bits(&job(&back)?), "{name}");
    }
    Ok(())
}

/// A network of products, a norm, attention and a loss. `cast` is what a product does to its operands, and `wide` what
/// an operation in f32 does.
fn network(
    p: &[Tensor],
    cast: &dyn Fn(&Tensor) -> Result<Tensor>,
    wide: &dyn Fn(&Tensor) -> Result<Tensor>,
) -> Result<Tensor> {
    let y = cast(&p[0])?.linear(&cast(&p[1])?, Some(&cast(&p[2])?))?.gelu()?;
    let y = wide(&y)?.layer_norm(&[4], None, None, 1e-5)?.add(&p[0])?;
    let y = cast(&y)?.scaled_dot_product_attention(&cast(&y)?, &cast(&y)?, AttentionOptions::new())?;
    let y = y.matmul(&cast(&p[1])?)?;
    let target = Tensor::from_vec(vec![0i64, 3, 1, 1], [4], &cpu())?;
    wide(&y)?.cross_entropy(&target)?.add(wide(&y)?.exp()?.mean_all()?)
}

fn inputs() -> Result<Vec<Tensor>> {
    [values(&[4, 4], 0.1), values(&[4, 4], 0.2), values(&[4], 0.3)].iter().map(Tensor::with_grad).collect()
}

fn same(p: &[Tensor], a: &Gradients, b: &Gradients) {
    for p in p {
        assert_eq!(a.get(p).unwrap().dtype(), DType::F32);
        assert_eq!(bits(a.get(p).unwrap()), bits(b.get(p).unwrap()));
    }
}

const AS_IS: &dyn Fn(&Tensor) -> Result<Tensor> = &|t| Ok(t.clone());
const TO_BF16: &dyn Fn(&Tensor) -> Result<Tensor> = &|t| t.to_dtype(DType::BF16);
const TO_F32: &dyn Fn(&Tensor) -> Result<Tensor> = &|t| t.to_dtype(DType::F32);

#[test]
fn gradients_are_those_of_casts_by_hand_inside_and_outside_and_through_a_checkpoint() -> Result<()> {
    let p = inputs()?;
    let hand = network(&p, TO_BF16, TO_F32)?;
    let wanted = hand.backward()?;
    let loss = autocast(DType::BF16, || network(&p, AS_IS, AS_IS))?;
    assert_eq!(bits(&loss), bits(&hand));
    same(&p, &loss.backward()?, &wanted);
    let inside = autocast(DType::BF16, || network(&p, AS_IS, AS_IS)?.backward())?;
    same(&p, &inside, &wanted);
    let list: Vec<&Tensor> = p.iter().collect();
    let region = autocast(DType::BF16, || checkpoint(|x| network(x, AS_IS, AS_IS), &list))?;
    assert_eq!(bits(&region), bits(&hand));
    // The second run casts as the first did, whatever the mode of the backward pass.
    same(&p, &autocast(DType::F16, || region.backward())?, &wanted);
    let outside = checkpoint(|x| autocast(DType::BF16, || network(x, AS_IS, AS_IS)), &list)?;
    same(&p, &outside.backward()?, &wanted);
    Ok(())
}

#[test]
fn second_derivatives_are_those_of_casts_by_hand() -> Result<()> {
    let p = inputs()?;
    let list: Vec<&Tensor> = p.iter().collect();
    let penalty = |loss: &Tensor| -> Result<Gradients> {
        let first = grad(&[loss], &list, None, BackwardOptions::new().create_graph())?;
        let mut sum = Tensor::scalar(0.0f32, &cpu())?;
        for g in first.iter().flatten() {
            sum = sum.add(g.square()?.sum_all()?)?;
        }
        sum.backward()
    };
    let wanted = penalty(&network(&p, TO_BF16, TO_F32)?)?;
    same(&p, &penalty(&autocast(DType::BF16, || network(&p, AS_IS, AS_IS))?)?, &wanted);
    Ok(())
}

#[test]
fn modes_nest_and_belong_to_their_thread() -> Result<()> {
    let x = values(&[2, 2], 0.0);
    let dtype = || x.matmul(&x).map(|y| y.dtype());
    assert_eq!((autocast_dtype(), dtype()?), (None, DType::F32));
    autocast(DType::BF16, || {
        assert_eq!(dtype()?, DType::BF16);
        no_autocast(|| -> Result<()> {
            assert_eq!((autocast_dtype(), dtype()?), (None, DType::F32));
            assert_eq!(autocast(DType::F16, dtype)?, DType::F16);
            Ok(())
        })?;
        assert_eq!(autocast(DType::F16, dtype)?, DType::F16);
        assert_eq!(dtype()?, DType::BF16);
        let other = std::thread::scope(|s| s.spawn(|| dtype().unwrap()).join().unwrap());
        assert_eq!(other, DType::F32);
        Ok(())
    })?;
    let outer = autocast_guard(DType::BF16)?;
    let inner = no_autocast_guard();
    drop(outer);
    assert_eq!(autocast_dtype(), None);
    drop(inner);
    assert_eq!((autocast_dtype(), dtype()?), (None, DType::F32));
    let e = autocast(DType::F32, || Ok(())).unwrap_err().to_string();
    assert!(e.contains("bf16 or f16") && e.contains("no_autocast"), "{e}");
    // An error inside ends the mode.
    assert!(autocast(DType::BF16, || x.reshape([7])).is_err());
    assert_eq!(autocast_dtype(), None);
    Ok(())
}

/// Both round every operand to bf16, but sum in other orders, and recompute
/// other values for gradients, so the results agree to a few of its last bits.
#[test]
fn loss_and_gradients_are_those_of_pytorch() -> Result<()> {
    const FOUND: &[(&str, &[f64])] = &include!("reference/autocast.txt");
    let p = [
        values(&[4, 3, 3, 3], 0.2).div(3.0)?.with_grad()?,
        values(&[4], 0.3).with_grad()?,
        values(&[5, 16], 0.4).div(4.0)?.with_grad()?,
        values(&[5], 0.5).with_grad()?,
        values(&[5, 5], 0.6).div(2.0)?.with_grad()?,
    ];
    let (logits, loss) = autocast(DType::BF16, || {
        let y = values(&[2, 3, 6, 6], 0.1).conv2d(&p[0], Some(&p[1]), ConvOptions::new().stride([2, 2]))?.relu()?;
        let y = y.flatten(1, -1)?.linear(&p[2], Some(&p[3]))?.tanh()?.matmul(&p[4])?;
        let loss = y.cross_entropy(&Tensor::from_vec(vec![1i64, 4], [2], &cpu())?)?;
        Ok((y, loss))
    })?;
    let gradients = loss.backward()?;
    let found = [logits, loss].into_iter().chain(p.iter().map(|p| gradients.get(p).unwrap().clone()));
    for (got, (name, want)) in found.zip(FOUND) {
        let got = got.detach().to_dtype(DType::F64)?.to_vec::<f64>()?;
        assert_eq!(got.len(), want.len());
        let size = want.iter().fold(0.0, |m: f64, w| m.max(w.abs()));
        for (g, w) in got.iter().zip(*want) {
            assert!((g - w).abs() <= 0.02 * size, "{name}: {g} is not {w}");
        }
    }
    Ok(())
}
