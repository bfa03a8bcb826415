//! Every Rust line in the tables of `docs/book/src/from-pytorch.md`, compiled and run, and the differences in meaning that the
//! page lists.
#![cfg(feature = "cpu")]
#![allow(clippy::unwrap_used, clippy::float_cmp)]

#[path = "from_pytorch/layers.rs"]
mod layers;
#[path = "from_pytorch/models.rs"]
mod models;

use gradus::autograd::gradcheck;
use gradus::nn::NonFinite;
use gradus::prelude::*;
use gradus::{Strided, hessian, jacobian, jvp, vmap};

fn setup() -> Result<(Device, Generator)> {
    Ok((Device::cpu()?, Generator::new(0)))
}

fn vector(values: &[f32]) -> Tensor {
    Tensor::from_vec(values, [values.len()], &Device::cpu().unwrap()).unwrap()
}

#[test]
fn tensors() -> Result<()> {
    let (device, _) = setup()?;
    let x = Tensor::from_vec(vec![1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], [2, 3], &device)?;
    let y = Tensor::scalar(3.0f32, &device)?;
    assert_eq!((x.shape(), y.rank(), y.item()?), (&[2, 3][..], 0, 3.0));
    assert_eq!(Tensor::zeros([2, 3], DType::F32, &device)?.to_vec::<f32>()?, [0.0; 6]);
    assert_eq!(Tensor::full([2, 3], 7.0, DType::F32, &device)?.sum_all()?.item()?, 42.0);
    assert_eq!(Tensor::arange(0, 10, 2, DType::I64, &device)?.to_vec::<i64>()?, [0, 2, 4, 6, 8]);
    assert_eq!(Tensor::linspace(0.0, 1.0, 5, DType::F32, &device)?.to_vec::<f32>()?, [0.0, 0.25, 0.5, 0.75, 1.0]);
    assert_eq!(Tensor::eye(3, DType::F32, &device)?.sum_all()?.item()?, 3.0);
    assert_eq!((x.zeros_like()?.shape(), x.ones_like()?.shape()), (x.shape(), x.shape()));
    assert_eq!((x.shape(), x.size(-1)?, x.rank(), x.numel()), (&[2, 3][..], 3, 2, 6));
    assert_eq!(x.to_vec::<f32>()?, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    assert_eq!(x.select(0, 0)?.select(0, 1)?.item()?, 2.0);
    assert_eq!(x.reshape([3, INFER])?.shape(), [3, 2]);
    assert_eq!(x.flatten(0, -1)?.shape(), [6]);
    assert_eq!(x.t()?.shape(), [3, 2]);
    assert_eq!(x.transpose(0, 1)?.shape(), [3, 2]);
    assert_eq!(x.permute(&[1, 0])?.shape(), [3, 2]);
    assert_eq!(x.unsqueeze(0)?.expand([4, 2, 3])?.shape(), [4, 2, 3]);
    let copy = x.copy()?;
    copy.add_(1.0)?;
    assert_eq!((x.sum_all()?.item()?, copy.sum_all()?.item()?), (21.0, 27.0));
    Ok(())
}

#[test]
fn arithmetic() -> Result<()> {
    let (device, _) = setup()?;
    let a = Tensor::from_vec(vec![1.0f32, 2.0, 3.0, 4.0], [2, 2], &device)?;
    let b = Tensor::from_vec(vec![0.5f32, -1.0, 2.0, 0.0], [2, 2], &device)?;
    assert_eq!((&a + &b * 2.0)?.to_vec::<f32>()?, [2.0, 0.0, 7.0, 4.0]);
    assert_eq!((1.0 - &a)?.to_vec::<f32>()?, [0.0, -1.0, -2.0, -3.0]);
    assert_eq!(a.matmul(&b)?.to_vec::<f32>()?, [4.5, -1.0, 9.5, -3.0]);
    assert_eq!((a.exp()? + b.tanh()?)?.shape(), [2, 2]);
    assert_eq!((a.pow(2.0)?.sum_all()?.item()?, a.sqrt()?.square()?.max_all()?.item()?), (30.0, 4.0));
    assert_eq!(b.clamp(0.0, 1.0)?.to_vec::<f32>()?, [0.5, 0.0, 1.0, 0.0]);
    let mask = b.gt(0.0)?;
    assert_eq!(mask.to_vec::<bool>()?, [true, false, true, false]);
    assert_eq!(mask.where_(&a, &b)?.to_vec::<f32>()?, [1.0, -1.0, 3.0, 0.0]);
    assert_eq!(a.sum_all()?.item()?, 10.0);
    assert_eq!(a.sum(&[1], true)?.shape(), [2, 1]);
    assert_eq!(a.mean(&[0, 1], false)?.item()?, 2.5);
    let (values, indices) = a.max_with_indices(1, false)?;
    assert_eq!((values.to_vec::<f32>()?, indices.to_vec::<i64>()?), (vec![2.0, 4.0], vec![1, 1]));
    assert_eq!(a.argmax(1, false)?.to_vec::<i64>()?, [1, 1]);
    assert!((a.std(&[0, 1], 1, false)?.item()? - 1.290_994).abs() < 1e-5);
    assert_eq!(a.var(&[0], 0, false)?.to_vec::<f32>()?, [1.0, 1.0]);
    assert_eq!(a.softmax(-1)?.sum_all()?.item()?, 2.0);
    assert_eq!((a.gelu()?.shape(), a.gelu_tanh()?.shape()), (a.shape(), a.shape()));
    let (top, _) = a.topk(1, -1, true, true)?;
    assert_eq!(top.to_vec::<f32>()?, [2.0, 4.0]);
    let (sorted, order) = b.sort(-1, true)?;
    assert_eq!((sorted.to_vec::<f32>()?, order.to_vec::<i64>()?), (vec![0.5, -1.0, 2.0, 0.0], vec![0, 1, 0, 1]));
    assert_eq!(Tensor::cat(&[&a, &b], 0)?.shape(), [4, 2]);
    assert_eq!(Tensor::stack(&[&a, &b], 0)?.shape(), [2, 2, 2]);
    assert_eq!(a.chunk(2, 1)?.len(), 2);
    let product = Tensor::einsum("ij,kj->ik", &[&a, &b])?;
    assert_eq!(product.to_vec::<f32>()?, a.matmul(&b.t()?)?.to_vec::<f32>()?);
    a.add_(1.0)?;
    assert_eq!(a.sum_all()?.item()?, 14.0);
    Ok(())
}

#[test]
fn indexing() -> Result<()> {
    let (device, _) = setup()?;
    let x = Tensor::arange(0, 12, 1, DType::F32, &device)?.reshape([3, 4])?;
    assert_eq!(x.index(0)?.to_vec::<f32>()?, [0.0, 1.0, 2.0, 3.0]);
    assert_eq!(x.index((.., 1))?.to_vec::<f32>()?, [1.0, 5.0, 9.0]);
    assert_eq!(x.index((0, 1..3))?.to_vec::<f32>()?, [1.0, 2.0]);
    assert_eq!(x.index((Ellipsis, -1))?.to_vec::<f32>()?, [3.0, 7.0, 11.0]);
    assert_eq!(x.index((.., NewAxis))?.shape(), [3, 1, 4]);
    let every_second = Strided { start: None, end: None, step: 2 };
    assert_eq!(x.index((.., every_second))?.shape(), [3, 2]);
    let mask = x.gt(9.0)?;
    assert_eq!(x.index(&mask)?.to_vec::<f32>()?, [10.0, 11.0]);
    let rows = Tensor::from_vec(vec![2i64, 0], [2], &device)?;
    assert_eq!(x.index(&rows)?.to_vec::<f32>()?[..1], [8.0]);
    assert_eq!(x.index_select(0, &rows)?.shape(), [2, 4]);
    let columns = Tensor::from_vec(vec![3i64, 0, 1], [3, 1], &device)?;
    assert_eq!(x.gather(1, &columns)?.to_vec::<f32>()?, [3.0, 4.0, 9.0]);
    assert_eq!(x.scatter_add(1, &columns, &Tensor::ones([3, 1], DType::F32, &device)?)?.sum_all()?.item()?, 69.0);
    assert_eq!(x.masked_fill(&mask, 0.0)?.max_all()?.item()?, 9.0);
    let y = x.index_assign(0, 5.0)?;
    assert_eq!((y.index((0, 0))?.item()?, x.index((0, 0))?.item()?), (5.0, 0.0));
    x.index_assign_((1, 2..4), -1.0)?;
    assert_eq!(x.index((1, 2..))?.to_vec::<f32>()?, [-1.0, -1.0]);
    Ok(())
}

#[test]
fn autograd() -> Result<()> {
    let x = vector(&[1.0, 2.0]).with_grad()?;
    let loss = x.square()?.sum_all()?;
    let gradients = loss.backward()?;
    assert_eq!(gradients.get(&x).unwrap().to_vec::<f32>()?, [2.0, 4.0]);
    let f = |x: &Tensor| x.square();
    let y = no_grad(|| f(&x))?;
    let z = inference(|| f(&x))?;
    assert!(!y.requires_grad() && !z.requires_grad());
    let y = x.pow(3.0)?.sum_all()?;
    let first = grad(&[&y], &[&x], None, BackwardOptions::new().create_graph())?;
    let second = grad(&[&first[0].as_ref().unwrap().sum_all()?], &[&x], None, BackwardOptions::new())?;
    assert_eq!(second[0].as_ref().unwrap().to_vec::<f32>()?, [6.0, 12.0]);
    let y = x.square()?.sum_all()?;
    let gradients = y.backward_with(BackwardOptions::new().retain_graph())?;
    assert_eq!((gradients.len(), y.backward()?.len()), (1, 1));
    assert!(!x.detach().requires_grad());
    let hook = x.register_hook(|g| Ok(Some(g.clamp(-1.0, 1.0)?)))?;
    let y = x.square()?.sum_all()?;
    assert_eq!(y.backward()?.get(&x).unwrap().to_vec::<f32>()?, [1.0, 1.0]);
    hook.remove();
    let y = checkpoint(|x| x[0].exp()?.sum_all(), &[&x])?;
    assert!(y.requires_grad());
    let (y, along) = jvp(|x| x[0].square(), &[&x], &[&vector(&[1.0, 0.0])])?;
    assert_eq!((y.numel(), along.to_vec::<f32>()?), (2, vec![2.0, 0.0]));
    let j = jacobian(|x| x[0].square(), &[&x])?;
    let h = hessian(|x| x.square()?.sum_all(), &x)?;
    assert_eq!((j[0].shape(), h.to_vec::<f32>()?), (&[2, 2][..], vec![2.0, 0.0, 0.0, 2.0]));
    let each = vmap(|x| x[0].square(), &[&x], &[Some(0)], &[0])?;
    assert_eq!(each.to_vec::<f32>()?, [1.0, 4.0]);
    let x = x.detach().to_dtype(DType::F64)?;
    gradcheck(|x| x[0].sin(), &[x])
}

#[test]
fn optimizers() -> Result<()> {
    let (device, mut rng) = setup()?;
    let mut init = Init::new(DType::F32, &device, &mut rng);
    let model = Linear::new(4, 2, &mut init)?;
    let config = AdamConfig { lr: 1e-3, weight_decay: 0.01, ..Default::default() };
    let mut optimizer = AdamW::new(model.named_parameters(), config)?;
    let sgd = SgdConfig { lr: 0.1, momentum: 0.9, ..Default::default() };
    let mut other = Sgd::new(model.named_parameters(), sgd)?;
    let (weights, biases): (Vec<_>, Vec<_>) = model.named_parameters().into_iter().partition(|(_, p)| p.rank() > 1);
    let matrices = weights.clone();
    let groups = [Group::new(weights), Group::new(biases).weight_decay(0.0)];
    assert_eq!(AdamW::with_groups(groups, config)?.lr().len(), 2);
    let x = Tensor::ones([3, 4], DType::F32, &device)?;
    let loss = model.forward(&x)?.square()?.mean_all()?;
    optimizer.step(&loss.backward()?)?;
    let mut gradients = model.forward(&x)?.square()?.mean_all()?.backward()?;
    let norm = clip_grad_norm(&mut gradients, &model.parameters(), 1.0)?;
    let host = norm;
    let norm = clip_grad_norm_on_device(&mut gradients, &model.parameters(), 1.0)?;
    assert!(norm.item()? <= host.min(1.0) + 1e-6);
    let mut fast = model.compiled(&x)?;
    assert_eq!(fast.forward(&x)?.to_vec::<f32>()?, model.forward(&x)?.to_vec::<f32>()?);
    assert!(host > 0.0);
    other.step(&gradients)?;
    let schedule = Schedule::cosine(100, 0.0)?.after_warmup(10);
    let step = 10;
    schedule.apply(step, &mut optimizer)?;
    assert_eq!(optimizer.lr(), [1e-3]);
    optimizer.set_lr(0, 1e-4)?;
    assert_eq!(optimizer.lr(), [1e-4]);
    RmsProp::new(model.named_parameters(), RmsPropConfig::default())?;
    let (params, y) = (model.named_parameters(), Tensor::ones([3, 2], DType::F32, &device)?);
    let mut up = Sgd::new(params.clone(), SgdConfig { lr: 0.1, ..Default::default() })?.maximize();
    up.step(&gradients)?;
    let config = LbfgsConfig { line_search_fn: Some(LineSearch::StrongWolfe), ..Default::default() };
    let first = Lbfgs::new(params, config)?.step(|| model.forward(&x)?.mse_loss(&y, Reduction::Mean))?;
    assert!(model.forward(&x)?.mse_loss(&y, Reduction::Mean)?.item()? < 1e-6 * first);
    let schedule = Schedule::sequential([Schedule::linear(5, 0.1, 1.0)?, Schedule::exponential(0.9)?], [5])?;
    assert_eq!([schedule.factor(0), schedule.factor(6)], [0.1, 0.9]);
    assert_eq!(Schedule::one_cycle(100, OneCycleConfig::default())?.factor(29), 1.0);
    let cycle = OneCycleConfig { momentum: Some([0.85, 0.95]), ..Default::default() };
    assert_eq!(Schedule::one_cycle(100, cycle)?.momentum(29), Some(0.85));
    assert!((Schedule::cosine(10, 0.05)?.factor(10) - Schedule::linear(10, 1.0, 0.05)?.factor(10)).abs() < 1e-12);
    let mut plateau = ReduceLrOnPlateau::new(PlateauConfig::default())?;
    let metric = first;
    optimizer.set_lr_factor(plateau.step(metric))?;
    let weights = matrices;
    Muon::new(weights, MuonConfig::default())?;
    assert_eq!(Schedule::function(|step| 1.0 / (step as f64 + 1.0)).factor(1), 0.5);
    let parts: Vec<Tensor> = (0..4).map(|_| x.clone()).collect();
    let loss = |x: Tensor| model.forward(&x)?.square()?.mean_all();
    let mut total = Gradients::default();
    for x in parts {
        total.add(loss(x)?.backward()?)?;
    }
    total.scale(0.25)?;
    optimizer.step(&total)?;
    Ok(())
}

#[test]
fn averages() -> Result<()> {
    let (device, mut rng) = setup()?;
    let mut model = Linear::new(4, 2, &mut Init::new(DType::F32, &device, &mut rng))?;
    let x = Tensor::ones([3, 4], DType::F32, &device)?;
    let batches = [Ok(x.clone())];
    let mut ema = AveragedModel::ema(&model, 0.999)?;
    ema.update(&model)?;
    let y = ema.within(&mut model, |m| {
        update_bn(m, batches, |m, x| m.forward(x).map(|_| ()))?;
        m.forward(&x)
    })?;
    assert_eq!(y.to_vec::<f32>()?, model.forward(&x)?.to_vec::<f32>()?);
    Ok(())
}

#[test]
fn mixed_precision() -> Result<()> {
    let (device, mut rng) = setup()?;
    let model = Linear::new(4, 2, &mut Init::new(DType::F32, &device, &mut rng))?;
    let mut optimizer = Sgd::new(model.named_parameters(), SgdConfig::default())?;
    let (x, y) = (Tensor::ones([3, 4], DType::F32, &device)?, Tensor::ones([3, 2], DType::F32, &device)?);
    let loss = autocast(DType::BF16, || model.forward(&x)?.mse_loss(&y, Reduction::Mean))?;
    autocast(DType::BF16, || {
        let y = no_autocast(|| model.forward(&x))?;
        assert_eq!(y.dtype(), DType::F32);
        Ok(())
    })?;
    let mut scaler = GradScaler::new(GradScalerConfig::default())?;
    let stepped = scaler.step(&mut optimizer, scaler.scale(&loss)?.backward()?)?;
    assert!(stepped);
    let scaled = scaler.scale(&model.forward(&x)?.mean_all()?)?.backward()?;
    if let Some(mut gradients) = scaler.unscale(&optimizer, scaled)? {
        clip_grad_norm(&mut gradients, &model.parameters(), 1.0)?;
    }
    scaler.update()?;
    Ok(())
}

#[test]
fn a_skipped_step_is_told() -> Result<()> {
    let (device, _) = setup()?;
    let p = Parameter::new(Tensor::ones([1], DType::F32, &device)?)?;
    let mut sgd = Sgd::new([("p".to_owned(), p.clone())], SgdConfig::default())?;
    let mut scaler = GradScaler::new(GradScalerConfig::default())?;
    assert!(!scaler.step(&mut sgd, p.mul(f64::INFINITY)?.sum_all()?.backward()?)?);
    assert_eq!((scaler.skipped_steps(), p.item()?), (1, 1.0));
    Ok(())
}

#[test]
fn autocast_keeps_softmax_in_f32() -> Result<()> {
    let (device, _) = setup()?;
    let x = Tensor::ones([2, 2], DType::BF16, &device)?;
    assert_eq!(autocast(DType::BF16, || x.softmax(-1))?.dtype(), DType::F32);
    Ok(())
}

#[test]
fn data() -> Result<()> {
    let (device, mut rng) = setup()?;
    let x = Tensor::randn([10, 3], DType::F32, &device, &mut rng)?;
    let y = Tensor::zeros([10], DType::I64, &device)?;
    let dataset = TensorDataset::new(x, y)?;
    let parts = gradus::data::split::random(dataset.len(), 0.2, 0)?;
    assert_eq!((parts.train.len(), parts.test.len()), (8, 2));
    let train = dataset.subset(parts.train)?;
    let loader = DataLoader::new(train, &device).batch_size(3).shuffle(0).workers(2).drop_last(true).build()?;
    assert_eq!(loader.len(), 2);
    let epoch = 0;
    for batch in loader.epoch(epoch)? {
        let (x, y) = batch?;
        assert_eq!((x.shape(), y.shape()), (&[3, 3][..], &[3][..]));
    }
    Ok(())
}

#[test]
fn data_of_other_kinds() -> Result<()> {
    let (device, mut rng) = setup()?;
    let dir = std::env::temp_dir().join(format!("gradus-from-pytorch-data-{}", std::process::id()));
    let folder = dir.join("photos");
    std::fs::create_dir_all(folder.join("cat")).unwrap();
    let data = TensorDataset::new(vector(&[0.0; 10]), vector(&[0.0; 10]))?;
    let weights = vec![1.0; 10];
    let sampler = Sampler::Weighted { weights, samples: 100 };
    assert_eq!(DataLoader::new(data.clone(), &device).batch_size(3).sampler(sampler, 0).build()?.samples(), 100);
    let rank = 3;
    let loader = DataLoader::new(data, &device).shuffle(0).shard(rank, 4).build()?;
    let mut batches = loader.epoch(0)?;
    assert_eq!(batches.next().unwrap()?.0.shape(), [3]);
    let position = batches.position();
    let rest = loader.resume(position)?;
    assert_eq!(rest.count(), 0);
    let sequences = vec![Sequence::new(vec![1i64, 2]), Sequence::new(vec![3])];
    let padded = Sequence::collate(sequences, &device)?;
    assert_eq!(padded.values.to_vec::<i64>()?, [1, 2, 3, 0]);
    let folds = gradus::data::folds::k_fold(10, 5, None)?;
    assert_eq!(folds[1].test, [2, 3]);

    let path = dir.join("t.csv");
    std::fs::write(&path, "a,b\n1,x\n3,y\n").unwrap();
    let table = Table::read_csv(&path, &CsvOptions::default())?;
    let rows = table.len();
    let table = Table::read(&path, &CsvOptions::default())?;
    assert_eq!(table.len(), rows);
    let preprocessor = Preprocessor::fit(&table, PreprocessOptions::default())?;
    let features = preprocessor.transform(&table, &device)?;
    assert_eq!(features.to_vec::<f32>()?, [-1.0, 1.0, 0.0, 1.0, 0.0, 1.0]);
    let (npy, npz) = (dir.join("x.npy"), dir.join("all.npz"));
    gradus::data::npy::save(&npy, &features)?;
    gradus::data::npy::save_npz(&npz, [("x", &features)])?;
    let (one, all) = (gradus::data::npy::load(&npy, &device)?, gradus::data::npy::load_npz(&npz, &device)?);
    assert_eq!(one.to_vec::<f32>()?, all["x"].to_vec::<f32>()?);
    let rows = gradus::data::npy::Rows::open(&npy, &device)?;
    assert_eq!(rows.len(), one.shape()[0]);

    let pixels = Tensor::ones([3, 2, 2], DType::U8, &device)?;
    gradus::image::save(folder.join("cat/1.png"), &pixels, gradus::image::SaveOptions::default())?;
    let photos = ImageFolder::open(&folder, Channels::Rgb, &device)?;
    let (photo, label) = photos.get(0)?;
    assert_eq!(
        (label, gradus::image::augment::random_flip_horizontal(&photo, 0.5, &mut rng)?.shape()),
        (0, &[3, 2, 2][..])
    );
    let loader = DataLoader::new(photos.photos(), &device).batch_size(32).workers(2);
    assert_eq!(loader.build()?.epoch(0)?.next().unwrap()?.0.shape(), [1, 3, 2, 2]);
    let bpe = gradus::data::text::Bpe::train(["to be or not to be"], 300, &[])?;
    use gradus::data::text::Tokenizer;
    let tokens = bpe.encode("to be")?;
    assert_eq!(bpe.decode(&tokens)?, "to be");
    {
        use gradus::models::{GenerateOptions, Gpt2, Gpt2Config, Sampling, generate};
        let config =
            Gpt2Config { vocab_size: 300, n_positions: 8, n_embd: 8, n_layer: 1, n_head: 2, ..Default::default() };
        let mut init = Init::new(DType::F32, &device, &mut rng);
        let mut gpt2 = Gpt2::new(config, &mut init)?;
        let sampling = Sampling { top_k: Some(20), ..Sampling::default() };
        let options = GenerateOptions { max_new_tokens: 4, sampling, ..GenerateOptions::default() };
        let written = generate(&mut gpt2, &tokens, &device, options)?;
        assert_eq!(written.count(), 4);
    }
    std::fs::remove_dir_all(&dir).unwrap();

    // The weights of torch.nn.Sequential(Linear(3, 4), BatchNorm1d(4), Linear(4, 2)): the norms have the same names.
    let mut init = Init::new(DType::F32, &device, &mut rng);
    let norm = BatchNorm2d::new(4, BatchNormConfig::default(), &mut init)?;
    let mut network = Sequential::new().add(Linear::new(3, 4, &mut init)?).add(norm).add(Linear::new(4, 2, &mut init)?);
    let pt = concat!(env!("CARGO_MANIFEST_DIR"), "/../gradus-data/tests/reference/files/state.pt");
    let weights: StateDict = gradus::data::pt::load(pt, &device)?.tensors.into_iter().collect();
    network.load_state_dict(&weights, Strict::Yes)?;
    Ok(())
}

#[derive(Sample)]
struct Labelled {
    image: Tensor,
    name: String,
}

#[test]
fn a_struct_is_a_sample_through_the_facade() -> Result<()> {
    let samples = vec![Labelled { image: vector(&[1.0]), name: "a".into() }];
    let LabelledBatch { image, name } = Labelled::collate(samples, &Device::cpu()?)?;
    assert_eq!((image.shape(), &name[..]), (&[1, 1][..], &["a".to_owned()][..]));
    Ok(())
}

#[test]
fn saving() -> Result<()> {
    let (device, mut rng) = setup()?;
    let mut model = Linear::new(4, 2, &mut Init::new(DType::F32, &device, &mut rng))?;
    let path = std::env::temp_dir().join(format!("gradus-from-pytorch-{}.safetensors", std::process::id()));
    model.save_safetensors(&path)?;
    model.load_safetensors(&path, &device, Strict::Yes)?;
    let report = model.load_safetensors(&path, &device, Strict::No)?;
    assert!(report.is_complete());
    let state = model.state_dict()?;
    assert_eq!(state.iter().map(|(name, _)| name).collect::<Vec<_>>(), ["bias", "weight"]);
    model.load_state_dict(&state, Strict::Yes)?;
    std::fs::remove_file(path).unwrap();
    Ok(())
}

#[test]
fn devices_and_dtypes() -> Result<()> {
    let device = Device::cpu()?;
    assert_eq!(Device::open("cpu")?, device);
    assert!(gradus::devices().iter().any(|(name, _)| name == "cpu"));
    let x = Tensor::ones([2], DType::F32, &device)?;
    let x = x.to_device(&device)?;
    assert_eq!(x.device(), &device);
    device.synchronize()?;
    assert_eq!(x.to_dtype(DType::F16)?.dtype(), DType::F16);
    assert!(x.to_dtype(DType::BF16)?.dtype().is_float());
    assert_eq!((&x + x.to_dtype(DType::F64)?)?.dtype(), DType::F64);
    Ok(())
}

#[test]
fn randomness() -> Result<()> {
    let device = Device::cpu()?;
    let mut rng = Generator::new(0);
    let x = Tensor::randn([2, 3], DType::F32, &device, &mut rng)?;
    let u = Tensor::rand([2, 3], DType::F32, &device, &mut rng)?;
    let i = Tensor::randint(0, 10, [5], DType::I64, &device, &mut rng)?;
    let order = Tensor::randperm(10, &device, &mut rng)?;
    assert_eq!((u.shape(), i.numel(), order.sum_all()?.item()?), (&[2, 3][..], 5, 45.0));
    let noise = x.randn_like(&mut rng)?;
    let coins = u.bernoulli_like(&mut rng)?;
    let kept = x.dropout(0.5, &mut rng)?;
    assert_eq!((noise.shape(), coins.shape(), kept.shape()), (x.shape(), x.shape(), x.shape()));
    let (seed, offset) = (rng.seed(), rng.offset());
    let again = Generator::at(seed, offset);
    assert_eq!(again, rng);
    Ok(())
}

#[test]
fn gradients_are_returned_and_do_not_add_up() -> Result<()> {
    let x = vector(&[1.0, 2.0]).with_grad()?;
    let first = x.square()?.sum_all()?.backward()?;
    let second = x.square()?.sum_all()?.backward()?;
    assert_eq!(first.get(&x).unwrap().to_vec::<f32>()?, second.get(&x).unwrap().to_vec::<f32>()?);
    Ok(())
}

#[test]
fn a_clone_is_the_same_tensor() -> Result<()> {
    let x = vector(&[1.0, 2.0]);
    let (clone, copy) = (x.clone(), x.copy()?);
    x.fill_(0.0)?;
    assert_eq!((clone.to_vec::<f32>()?, copy.to_vec::<f32>()?), (vec![0.0, 0.0], vec![1.0, 2.0]));
    Ok(())
}

#[test]
fn a_write_is_not_recorded() -> Result<()> {
    let x = vector(&[1.0, 2.0]).with_grad()?;
    let y = x.square()?;
    assert!(y.add_(&x).is_err() && x.add_(1.0).is_err());
    no_grad(|| x.add_(1.0))?;
    assert_eq!(x.to_vec::<f32>()?, [2.0, 3.0]);
    // The gradient of the square reads x, which was overwritten.
    assert!(y.sum_all()?.backward().is_err());
    Ok(())
}

#[test]
fn a_write_to_other_elements_is_no_error() -> Result<()> {
    let buffer = vector(&[1.0, 2.0, 3.0, 4.0]);
    let x = vector(&[1.0, 1.0]).with_grad()?;
    let y = (&x * buffer.narrow(0, 0, 2)?)?;
    buffer.narrow(0, 2, 2)?.fill_(0.0)?;
    assert_eq!(y.sum_all()?.backward()?.get(&x).unwrap().to_vec::<f32>()?, [1.0, 2.0]);
    Ok(())
}

#[test]
fn an_empty_list_of_axes_is_no_axis() -> Result<()> {
    let x = vector(&[1.0, 2.0]);
    assert_eq!((x.sum(&[], false)?.shape(), x.sum_all()?.rank()), (&[2][..], 0));
    Ok(())
}

#[test]
fn adamw_decays_only_when_told() -> Result<()> {
    let p = Parameter::new(vector(&[1.0]))?;
    let mut optimizer = AdamW::new([("p".into(), p.clone())], AdamConfig { lr: 0.5, ..Default::default() })?;
    optimizer.step(&(p.tensor() * 0.0)?.sum_all()?.backward()?)?;
    assert_eq!(p.item()?, 1.0);
    Ok(())
}

#[test]
fn masks_keep_where_they_are_true() -> Result<()> {
    let (device, mut rng) = setup()?;
    let mut init = Init::new(DType::F32, &device, &mut rng);
    let attention = MultiheadAttention::new(4, 1, MultiheadAttentionConfig::default(), &mut init)?;
    let x = Tensor::randn([1, 3, 4], DType::F32, &device, &mut rng)?;
    let first = Tensor::from_vec(vec![true, false, false], [1, 1, 1, 3], &device)?;
    let masked = attention.attend(&x, &x, &x, Some(&first), Causal::No)?;
    let key = x.narrow(1, 0, 1)?;
    let alone = attention.attend(&x, &key, &key, None, Causal::No)?;
    assert!((masked - alone)?.abs()?.max_all()?.item()? < 1e-6);
    Ok(())
}

#[test]
fn attention_takes_the_batch_first() -> Result<()> {
    let (device, mut rng) = setup()?;
    let mut init = Init::new(DType::F32, &device, &mut rng);
    let mut config = MultiheadAttentionConfig::default();
    let first = MultiheadAttention::new(4, 1, config, &mut init)?;
    config.batch_first = false;
    let mut second = MultiheadAttention::new(4, 1, config, &mut init)?;
    second.load_state_dict(&first.state_dict()?, Strict::Yes)?;
    let x = Tensor::randn([2, 3, 4], DType::F32, &device, &mut rng)?;
    let y = second.forward(&x.transpose(0, 1)?)?.transpose(0, 1)?;
    assert!((first.forward(&x)? - y)?.abs()?.max_all()?.item()? < 1e-6);
    let rnn =
        Rnn::new(4, 4, Nonlinearity::Tanh, RecurrentConfig::default(), &mut Init::new(DType::F32, &device, &mut rng))?;
    // Three sequences of two steps.
    assert_eq!(rnn.run(&x, None, None)?.1.shape(), [1, 3, 4]);
    Ok(())
}

#[test]
fn causal_attention_names_its_alignment() -> Result<()> {
    let (device, _) = setup()?;
    let q = Tensor::zeros([1, 2, 1], DType::F32, &device)?;
    let k = Tensor::zeros([1, 3, 1], DType::F32, &device)?;
    let v = Tensor::from_vec(vec![1.0f32, 2.0, 3.0], [1, 3, 1], &device)?;
    let attend = |causal| -> Result<Vec<f32>> {
        q.scaled_dot_product_attention(&k, &v, AttentionOptions::new().causal(causal))?.to_vec()
    };
    assert_eq!((attend(Causal::TopLeft)?, attend(Causal::BottomRight)?), (vec![1.0, 1.5], vec![1.5, 2.0]));
    Ok(())
}

#[test]
fn a_query_that_sees_nothing_gives_zero() -> Result<()> {
    let (device, _) = setup()?;
    let q = Tensor::ones([1, 2, 4], DType::F32, &device)?;
    let none = Tensor::zeros([2, 2], DType::Bool, &device)?;
    let y = q.scaled_dot_product_attention(&q, &q, AttentionOptions::new().mask(&none))?;
    assert_eq!(y.to_vec::<f32>()?, [0.0; 8]);
    Ok(())
}

#[test]
fn losses_broadcast_nothing() -> Result<()> {
    let x = Tensor::ones([3, 1], DType::F32, &Device::cpu()?)?;
    assert!(x.mse_loss(&x.squeeze(1)?, Reduction::Mean).is_err());
    Ok(())
}

#[test]
fn ranges_lie_within_their_axis() {
    assert!(vector(&[1.0, 2.0]).index(0..3).is_err());
}

#[test]
fn booleans_are_no_numbers() -> Result<()> {
    let mask = vector(&[1.0, -1.0]).gt(0.0)?;
    assert!((&mask + &mask).is_err());
    assert_eq!(mask.sum_all()?.dtype(), DType::I64);
    Ok(())
}

#[test]
fn a_fraction_does_not_go_into_integers() -> Result<()> {
    let (device, _) = setup()?;
    assert!(Tensor::full([2], 2.5, DType::I64, &device).is_err());
    assert!(Tensor::zeros([2], DType::I64, &device)?.fill_(2.5).is_err());
    Ok(())
}

#[test]
fn the_mean_of_integers_is_a_float() -> Result<()> {
    assert_eq!(Tensor::arange(0, 4, 1, DType::I64, &Device::cpu()?)?.mean_all()?.item()?, 1.5);
    Ok(())
}

#[test]
fn the_order_of_an_epoch_is_decided_by_its_number() -> Result<()> {
    let (device, _) = setup()?;
    let x = Tensor::arange(0, 10, 1, DType::F32, &device)?;
    let loader = DataLoader::new(TensorDataset::new(x.clone(), x)?, &device).batch_size(10).shuffle(3).build()?;
    let order = |epoch| -> Result<Vec<f32>> { loader.epoch(epoch)?.next().unwrap()?.0.to_vec() };
    assert!(order(4)? == order(4)? && order(4)? != order(5)?);
    Ok(())
}

#[test]
fn a_norm_that_is_not_finite_is_an_error() -> Result<()> {
    let p = Parameter::new(vector(&[f32::INFINITY]))?;
    let mut gradients = p.square()?.sum_all()?.backward()?;
    assert!(clip_grad_norm(&mut gradients, std::slice::from_ref(&p), 1.0).is_err());
    let mut optimizer = AdamW::new([("p".into(), p.clone())], AdamConfig::default())?.non_finite(NonFinite::Skip);
    optimizer.step(&gradients)?;
    assert_eq!(optimizer.skipped_steps(), 1);
    Ok(())
}

/// Code without white space, and without the trailing commas that formatting adds to lists.
fn squeezed(code: &str) -> String {
    let dense: String = code.chars().filter(|c| !c.is_whitespace()).collect();
    [")", "]", "}"].iter().fold(dense, |code, end| code.replace(&format!(",{end}"), end))
}

/// The code snippets in the cells under `| PyTorch | Gradus |`.
fn lines_of(page: &str) -> Vec<String> {
    let mut lines = Vec::new();
    for table in page.split("| PyTorch | Gradus |").skip(1) {
        for row in table.lines().skip(2).take_while(|line| line.starts_with('|')) {
            let row = row.replace("\\|", "\u{1}");
            let cells: Vec<&str> = row.trim_matches('|').split('|').collect();
            assert_eq!(cells.len(), 2, "{row}");
            let code = cells[1].split('`').skip(1).step_by(2).map(|code| code.replace('\u{1}', "|"));
            lines.extend(code);
        }
    }
    lines
}

#[test]
fn every_line_of_the_page_is_here() {
    let here = concat!(
        include_str!("from_pytorch.rs"),
        include_str!("from_pytorch/layers.rs"),
        include_str!("from_pytorch/models.rs")
    );
    let code: String = here.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    let (code, lines) = (squeezed(&code), lines_of(include_str!("../../../docs/book/src/from-pytorch.md")));
    assert!(lines.len() > 100, "{}", lines.len());
    let absent: Vec<&String> = lines.iter().filter(|line| !code.contains(&squeezed(line))).collect();
    assert!(absent.is_empty(), "docs/book/src/from-pytorch.md has lines that nothing compiles: {absent:#?}");
}

#[test]
fn every_difference_names_its_test() {
    let (page, here) = (include_str!("../../../docs/book/src/from-pytorch.md"), include_str!("from_pytorch.rs"));
    let (_, section) = page.split_once("## What means something else").unwrap();
    let rows: Vec<&str> = section.lines().filter(|l| l.starts_with("| ") && !l.starts_with("| PyTorch does")).collect();
    assert!(rows.len() > 12, "{}", rows.len());
    for row in rows {
        let test = row.trim_end_matches([' ', '|', '`']).rsplit('`').next().unwrap_or_default();
        assert!(here.contains(&format!("#[test]\nfn {test}()")), "no test for {row}");
    }
}
#[test]
fn an_error_reads_as_its_page_says() -> Result<()> {
    let (device, _) = setup()?;
    let (a, b) = (Tensor::zeros([32, 784], DType::F32, &device)?, Tensor::zeros([512, 784], DType::F32, &device)?);
    let text = a.matmul(&b).unwrap_err().to_string();
    // The lines with the location of the call are not compared.
    let is_place = |line: &&str| line.starts_with("  in ") || line.starts_with("  at ");
    let page = include_str!("../../gradus-backend/src/error.rs").lines().filter_map(|line| line.strip_prefix("/// "));
    let (text, page): (Vec<_>, Vec<_>) =
        (text.lines().filter(|line| !is_place(line)).collect(), page.filter(|line| !is_place(line)).collect());
    assert!(page.join("\n").contains(&text.join("\n")), "{text:?}");
    Ok(())
}
