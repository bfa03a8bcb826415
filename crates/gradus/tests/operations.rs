//! Every kernel that runs belongs to an operation: for traces of whole steps, each backend call is matched to exactly
//! one operation. What an operation infers about its results before it runs must be true.
#![cfg(feature = "cpu")]
#![allow(clippy::unwrap_used)]

#[path = "golden/traced.rs"]
mod traced;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use gradus::ops::{InputSpec, LinearPanels, LstmI8, Op, Spec, Traced};
use gradus::prelude::*;
use gradus::{BackwardOptions, Gemm, UpdateFn, checkpoint_with, grad, hvp, no_grad};
use traced::Noted;

/// Runs a step, and returns how many times each operation ran a kernel.
fn walk(step: impl FnOnce(&Device) -> Result<()>) -> BTreeMap<String, usize> {
    let counts = Rc::new(RefCell::new(BTreeMap::new()));
    let seen = counts.clone();
    let count = move |ran: &Traced<'_>, calls: Vec<String>| {
        assert_eq!(calls, calls_of(ran), "{:?}", ran.op);
        infers(ran);
        // Operations that layers and optimisers run on their own, for initial parameters or state, are located in the
        // code of those crates. No operation is located in `gradus-tensor` itself.
        assert!(!ran.location.file().contains("gradus-tensor/src"), "{:?} at {}", ran.op, ran.location);
        if ran.kernel {
            *seen.borrow_mut().entry(ran.op.name().to_owned()).or_insert(0) += 1;
        }
    };
    let noted = Noted::new();
    noted.walk(count, || step(&noted.device)).unwrap();
    counts.take()
}

/// The backend calls that an operation makes.
fn calls_of<'a>(ran: &Traced<'a>) -> Vec<&'a str> {
    if !ran.kernel {
        return vec![];
    }
    vec![match ran.op {
        Op::Map(op) => op.kernel.name(),
        Op::Update(op) => op.kernel.name(),
        // The last panel is not full.
        Op::LinearPanels(op) if !op.n.is_multiple_of(ran.inputs[1].shape()[2]) => {
            return vec!["copy_strided", "gemm", "gemm"];
        }
        Op::Linear(_) | Op::LinearPanels(_) if ran.inputs.len() == 3 => return vec!["copy_strided", "gemm"],
        Op::LstmI8(_) => {
            let steps = (0..ran.inputs[0].shape()[0]).flat_map(|_| ["linear_i8", "lstm_i8"]);
            return ["copy_strided", "linear_i8"].into_iter().chain(steps).chain(["copy_strided"]).collect();
        }
        Op::Scatter(_) => return vec!["copy_strided", "scatter"],
        Op::ScatterAdd(_) => return vec!["fill", "scatter"],
        // One call for each input that is not empty.
        Op::Cat(_) => return ran.inputs.iter().filter(|t| t.numel() > 0).map(|_| "copy_strided").collect(),
        Op::SliceBackward(_) if ran.inputs[0].numel() > 0 => return vec!["fill", "copy_strided"],
        Op::SliceBackward(_) => "fill",
        Op::Linear(_) | Op::LinearPanels(_) | Op::Matmul(_) | Op::Gemm(_) => "gemm",
        Op::MatmulI32(_) => "gemm_i32",
        Op::Contiguous(_) => "copy_strided",
        Op::Fill(_) => "fill",
        Op::ArgReduce(_) => "arg_reduce",
        Op::AvgPool(_) => "avg_pool",
        Op::AvgPoolBackward(_) => "avg_pool_backward",
        Op::Attention(_) => "attention",
        Op::AttentionBackward(_) => "attention_backward",
        Op::Conv(_) => "conv",
        Op::ConvBackwardInput(_) => "conv_backward_input",
        Op::ConvBackwardWeight(_) => "conv_backward_weight",
        Op::MaxPool(_) => "max_pool",
        Op::Normalize(_) => "normalize",
        Op::Reduce(_) => "reduce",
        Op::Scan(_) => "scan",
        op => op.name(),
    }]
}

/// Checks that the shapes and dtypes that an operation infers are those of its results.
fn infers(ran: &Traced<'_>) {
    let spec = |t: &&Tensor| Spec { shape: *t.layout().shape(), dtype: t.dtype() };
    let inputs: Vec<InputSpec<'_>> = ran
        .inputs
        .iter()
        .map(|t| InputSpec { shape: t.layout().shape(), dtype: t.dtype(), device: t.device() })
        .collect();
    let inferred = ran.op.infer(&inputs).unwrap().unwrap();
    assert_eq!(inferred[..], ran.outputs.iter().map(spec).collect::<Vec<_>>()[..], "{:?}", ran.op);
}

/// Checks that each of these operations ran a kernel.
#[track_caller]
fn ran(counts: &BTreeMap<String, usize>, names: &[&str]) {
    for name in names {
        assert!(counts.contains_key(*name), "{name} is not among {counts:?}");
    }
}

#[test]
fn training_on_digits_is_all_operations() {
    let counts = walk(|device| {
        let mut generator = Generator::new(1);
        let mut init = Init::new(DType::F32, device, &mut generator);
        let mut model = Sequential::new()
            .add(Conv2d::new(1, 8, [3, 3], Conv2dConfig::default(), &mut init)?)
            .add(BatchNorm2d::new(8, Default::default(), &mut init)?)
            .add(Relu)
            .add(MaxPool2d::new([2, 2], [2, 2], [0, 0])?)
            .add(Flatten::default())
            .add(Linear::new(72, 10, &mut init)?);
        model.train();
        let mut adam = AdamW::new(model.named_parameters(), AdamConfig { weight_decay: 0.01, ..Default::default() })?;
        let loader = DataLoader::new(gradus::data::digits::load()?, device).batch_size(32).shuffle(1).build()?;
        for batch in loader.epoch(0)?.take(3) {
            let (x, y) = batch?;
            adam.step(&model.forward(&x)?.cross_entropy(&y)?.backward()?)?;
        }
        model.eval();
        let unseen = Tensor::rand([2, 1, 8, 8], DType::F32, device, &mut generator)?;
        let _ = no_grad(|| model.forward(&unseen)?.argmax(1, false))?;
        Ok(())
    });
    // Three steps update six parameters each.
    assert_eq!(counts["adamw"], 18);
    ran(
        &counts,
        &["conv2d", "conv2d_backward_weight", "batch_norm", "max_pool2d", "cross_entropy_backward", "argmax", "random"],
    );
}

/// A GPT block with dropout.
struct Block {
    norm: LayerNorm,
    attention: MultiheadAttention,
    up: Linear,
    down: Linear,
    dropout: Dropout,
}

impl Block {
    fn new(d: usize, init: &mut Init<'_>, generator: &mut Generator) -> Result<Block> {
        Ok(Block {
            norm: LayerNorm::new([d], LayerNormConfig::default(), init)?,
            attention: MultiheadAttention::new(d, 2, MultiheadAttentionConfig::default(), init)?,
            up: Linear::new(d, 4 * d, init)?,
            down: Linear::new(4 * d, d, init)?,
            dropout: Dropout::new(0.1, generator)?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let n = self.norm.forward(x)?;
        let x = x.add(&self.dropout.forward(&self.attention.forward(&n)?)?)?;
        x.add(&self.dropout.forward(&self.down.forward(&self.up.forward(&x)?.gelu()?)?)?)
    }

    fn parameters(&self) -> Vec<(String, Parameter)> {
        let of = |prefix: &str, named: Vec<(String, Parameter)>| {
            named.into_iter().map(|(name, p)| (format!("{prefix}.{name}"), p)).collect::<Vec<_>>()
        };
        [
            of("norm", self.norm.named_parameters()),
            of("attention", self.attention.named_parameters()),
            of("up", self.up.named_parameters()),
            of("down", self.down.named_parameters()),
        ]
        .concat()
    }
}

#[test]
fn a_step_of_a_gpt_with_dropout_checkpoints_and_hooks_is_all_operations() {
    let counts = walk(|device| {
        let (mut generator, mut masks) = (Generator::new(1), Generator::new(2));
        let mut init = Init::new(DType::F32, device, &mut generator);
        let table = Embedding::new(11, 8, None, &mut init)?;
        let blocks = [Block::new(8, &mut init, &mut masks)?, Block::new(8, &mut init, &mut masks)?];
        let head = Linear::without_bias(8, 11, &mut init)?;
        let mut parameters = table.named_parameters();
        for (i, block) in blocks.iter().enumerate() {
            parameters.extend(block.parameters().into_iter().map(|(name, p)| (format!("{i}.{name}"), p)));
        }
        let mut sgd = Sgd::new(parameters, SgdConfig { momentum: 0.9, nesterov: true, ..Default::default() })?;
        let ids = Tensor::randint(0, 11, [2, 6], DType::I64, device, &mut generator)?;
        let mut x = blocks[0].forward(&table.forward(&ids)?)?;
        let _hook = x.register_hook(|g| Ok(Some(g.clamp(-1.0, 1.0)?)))?;
        let mut draws = Generator::new(3);
        x = checkpoint_with(|x, draws| x[0].gelu_tanh()?.dropout(0.2, draws), &[&x], &mut draws)?;
        x = blocks[1].forward(&x)?;
        let logits = head.forward(&x)?.reshape([12, 11])?;
        let gradients = logits.cross_entropy(&ids.reshape([12])?)?.backward()?;
        sgd.step(&gradients)
    });
    // One embedding and ten parameters in each of two blocks; the head is not counted. The checkpointed region runs
    // twice.
    assert_eq!((counts["sgd_nesterov"], counts["gelu_tanh"], counts["clamp"]), (21, 2, 1));
    ran(&counts, &["embedding_backward", "layer_norm", "normalize_affine_backward", "dropout", "random"]);
    ran(&counts, &["scaled_dot_product_attention", "scaled_dot_product_attention_backward", "slice_backward"]);
}

#[test]
fn gradients_of_gradients_are_all_operations() {
    let counts = walk(|device| {
        let mut generator = Generator::new(4);
        let mut leaf = |shape: &[usize]| Tensor::randn(shape, DType::F64, device, &mut generator)?.with_grad();
        let (x, w, c) = (leaf(&[2, 3, 6, 6])?, leaf(&[4, 3, 3, 3])?, leaf(&[6])?);
        let penalty = |x: &Tensor| {
            let y = x.layer_norm(&[6], Some(&c), Some(&c), 1e-5)?.conv2d(&w, None, ConvOptions::new())?;
            let y = y.softmax(-1)?.avg_pool2d([2, 2], PoolOptions::new(), true)?.cumprod(2)?.logsumexp(&[1], false)?;
            let first = grad(&[&y.sum_all()?], &[x], None, BackwardOptions::new().create_graph())?;
            first[0].as_ref().map_or_else(|| y.sum_all(), |g| g.square()?.sum_all())
        };
        grad(&[&penalty(&x)?], &[&x, &w, &c], None, BackwardOptions::new())?;
        let _ = hvp(|x| x[0].tanh()?.matmul(&x[0].transpose(-2, -1)?)?.sum_all(), &[&x.detach()], &[&x.detach()])?;
        Ok(())
    });
    ran(
        &counts,
        &["softmax", "conv2d_backward_input", "avg_pool2d_backward", "layer_norm", "matmul", "cumprod", "sum"],
    );
}

#[test]
fn writes_draws_and_what_has_no_gradient_are_operations() {
    static AVERAGE: UpdateFn = UpdateFn::new("average", |x| vec![x[2] * x[0] + (1.0 - x[2]) * x[1]]);
    let counts = walk(|device| {
        let mut generator = Generator::new(5);
        let x = Tensor::randn([4, 4], DType::F32, device, &mut generator)?;
        let y = x.copy()?;
        let index = Tensor::from_vec([0i64, 2], [2], device)?;
        x.add_(&y)?;
        x.mul_(2)?;
        x.clamp_(-1.0, 1.0)?;
        x.narrow(0, 1, 2)?.copy_(&y.narrow(1, 0, 2)?.t()?)?;
        x.narrow(1, 0, 1)?.zero_()?;
        x.index_add_(0, &index, &y.narrow(0, 0, 2)?)?;
        x.index_assign_((0, 1..), 5.0)?;
        x.masked_fill_(&y.gt(0.0)?, 1.0)?;
        AVERAGE.apply(&[&x], &[&x, &y], &[0.9])?;
        Gemm::new(4, 4, 4).run_(&y, &y, &x)?;
        let bytes = y.to_dtype(DType::I8)?;
        let _ = bytes.matmul_i32(&bytes)?;
        let panels = y.reshape([4, 2, 2])?.transpose(0, 1)?;
        let _ = LinearPanels { n: 4 }.apply(&x, &panels, None)?;
        let _ = LinearPanels { n: 3 }.apply(&x, &panels, Some(&x.select(0, 0)?.narrow(0, 0, 3)?))?;
        let w = x.to_dtype(DType::I8)?.reshape([1, 4, 4])?.repeat(&[2, 3, 1])?;
        let [state, vector] =
            [Tensor::zeros([2, 1, 3], DType::F32, device)?, Tensor::ones([2, 12], DType::F32, device)?];
        let (sums, r) = (Tensor::zeros([2, 12], DType::I32, device)?, w.narrow(2, 0, 3)?);
        let _ = LstmI8 { reverse: [false, true].into_iter().collect() }.apply([
            &x.reshape([4, 1, 4])?,
            &state,
            &state,
            &w,
            &vector,
            &sums,
            &r,
            &vector,
            &sums,
            &vector,
            &vector,
        ])?;
        for (values, indices) in
            [x.sort(0, true)?, x.topk(2, 1, true, true)?, x.cummax(0)?, x.max_with_indices(1, true)?]
        {
            assert_eq!(values.shape(), indices.shape());
        }
        let _ = Tensor::randperm(7, device, &mut generator)?;
        let _ = x.abs()?.multinomial(3, true, &mut generator)?;
        Ok(())
    });
    ran(
        &counts,
        &[
            "add",
            "mul",
            "clamp",
            "contiguous",
            "full",
            "average",
            "gemm",
            "linear_panels",
            "lstm_i8",
            "matmul_i32",
            "sort",
            "cummax",
            "argmax",
            "random",
        ],
    );
}
