//! Pipelines beside one process: the same bits for any number of stages, few activations, and the errors.
#![allow(clippy::unwrap_used)]

use std::ops::Range;
use std::sync::Arc;

use gradus_cpu::CpuBackend;
use gradus_dist::{ColumnLinear, DataParallel, Mesh, Options, Pipeline, RowLinear, Stage, cut_evenly, divide, threads};
use gradus_models::{Gpt2, Gpt2Config, ResNet, ResNetConfig};
use gradus_nn::{
    AdamConfig, AdamW, AdaptiveAvgPool2d, Flatten, Forward, Init, Linear, Module, Optimizer, Parameter, Relu,
    Sequential, Strict, clip_grad_norm,
};
use gradus_tensor::{DType, Device, Generator, Result, Tensor};

const STEPS: usize = 3;

fn device() -> Result<Device> {
    Ok(Device::from_backend(Arc::new(CpuBackend::new()?)))
}

fn gpt_config(dropout: f64) -> Gpt2Config {
    let (resid_pdrop, embd_pdrop, attn_pdrop) = (dropout, dropout, dropout);
    let sizes =
        Gpt2Config { vocab_size: 17, n_positions: 6, n_embd: 8, n_layer: 2, n_head: 2, ..Gpt2Config::default() };
    Gpt2Config { resid_pdrop, embd_pdrop, attn_pdrop, ..sizes }
}

/// A GPT-2 as four modules; the head has a weight of its own.
fn gpt(device: &Device, dropout: f64) -> Result<Sequential> {
    let mut generator = Generator::new(5);
    let mut init = Init::new(DType::F32, device, &mut generator);
    (0..4).map(|i| Gpt2::part(&gpt_config(dropout), i, &mut init)).collect()
}

/// Tokens of a step and those that follow.
fn text(device: &Device, rows: usize, step: usize) -> Result<(Tensor, Tensor)> {
    let text = Tensor::randint(0, 17, [rows, 7], DType::I64, device, &mut Generator::new(50 + step as u64))?;
    Ok((text.narrow(1, 0, 6)?.contiguous()?, text.narrow(1, 1, 6)?.contiguous()?))
}

/// The first half of a ResNet and a head, as seven modules.
fn resnet(device: &Device) -> Result<Sequential> {
    let config = ResNetConfig {
        layers: [1; 4],
        num_classes: 17,
        in_channels: 1,
        width: 4,
        small_images: true,
        ..ResNetConfig::resnet18()
    };
    let model = ResNet::new(config, &mut Init::new(DType::F32, device, &mut Generator::new(5)))?;
    let mut all = Sequential::new().add(model.conv1).add(model.bn1).add(Relu);
    model.layer1.into_iter().chain(model.layer2).for_each(|block| all.push(block));
    let fc = Linear::new(8, 17, &mut Init::new(DType::F32, device, &mut Generator::new(6)))?;
    Ok(all.add(Sequential::new().add(AdaptiveAvgPool2d::new([1, 1])?).add(Flatten::default())).add(fc))
}

fn pictures(device: &Device, rows: usize, step: usize) -> Result<(Tensor, Tensor)> {
    let mut generator = Generator::new(70 + step as u64);
    let x = Tensor::randn([rows, 1, 8, 8], DType::F32, device, &mut generator)?;
    Ok((x, Tensor::randint(0, 17, [rows], DType::I64, device, &mut generator)?))
}

type Batch = fn(&Device, usize, usize) -> Result<(Tensor, Tensor)>;
type Make<'a> = &'a (dyn Fn(&Device) -> Result<Sequential> + Sync);

fn cut_rows(x: &Tensor, rows: &Range<usize>) -> Result<Tensor> {
    x.narrow(0, rows.start, rows.len())
}

fn mean_loss(output: &Tensor, targets: &Tensor) -> Result<Tensor> {
    let classes = output.size(-1)?;
    output.reshape([targets.numel(), classes])?.cross_entropy(&targets.reshape([targets.numel()])?)
}

fn adam(model: &impl Module) -> Result<AdamW> {
    AdamW::new(model.named_parameters(), AdamConfig { lr: 0.02, ..AdamConfig::default() })
}

/// Names and bytes of the parameters and buffers of a model, in their order, and the losses of all steps.
type Trained = (Vec<(String, Vec<u8>)>, Vec<f32>);

fn bytes(model: &impl Module) -> Result<Vec<(String, Vec<u8>)>> {
    model.state_dict()?.iter().map(|(name, tensor)| Ok((name.to_owned(), tensor.to_bytes()?))).collect()
}

/// The training of the whole model on one rank.
fn whole(make: Make<'_>, batch: Batch, rows: usize, micro_batches: usize) -> Trained {
    let mut all = threads(1, Options::default(), |comm| {
        let device = device()?;
        let model = make(&device)?;
        let parallel = DataParallel::with_shards(comm.clone(), micro_batches)?;
        let (mut optimizer, mut losses) = (adam(&model)?, vec![]);
        for step in 0..STEPS {
            let (x, y) = batch(&device, rows, step)?;
            let (loss, gradients) = parallel.backward(&model, rows, |rows| {
                mean_loss(&model.forward(&cut_rows(&x, &rows)?)?, &cut_rows(&y, &rows)?)
            })?;
            optimizer.step(&gradients)?;
            losses.push(loss.item()? as f32);
        }
        Ok((bytes(&model)?, losses))
    });
    all.as_mut().unwrap().remove(0)
}

/// The training in `pipelines` pipelines of `stages` stages.
fn piped(make: Make<'_>, batch: Batch, rows: usize, micro_batches: usize, stages: usize, pipelines: usize) -> Trained {
    let all = threads(stages * pipelines, Options::default(), |comm| {
        let device = device()?;
        let mesh = Mesh::new(comm, [("data", pipelines), ("pipe", stages)])?;
        let line = mesh.axis("pipe")?;
        let model = make(&device)?;
        let costs: Vec<usize> = model.iter().map(|layer| layer.num_parameters()).collect();
        let model = Stage::of(&line, model, &cut_evenly(&costs, stages)?)?;
        let data = DataParallel::with_shards(mesh.axis("data")?, micro_batches);
        let pipeline = match pipelines {
            1 => Pipeline::new(&line, micro_batches, &device)?,
            _ => Pipeline::with_data(&line, &data?, &device)?,
        };
        let (mut optimizer, mut losses) = (adam(&model)?, vec![]);
        for step in 0..STEPS {
            let (x, y) = batch(&device, rows, step)?;
            let input = |rows: Range<usize>| cut_rows(&x, &rows);
            let loss = |output: &Tensor, rows: Range<usize>| mean_loss(output, &cut_rows(&y, &rows)?);
            let (loss, gradients) = pipeline.backward(&model, rows, input, loss)?;
            optimizer.step(&gradients)?;
            losses.push(loss.item()? as f32);
        }
        Ok((bytes(&model)?, losses))
    });
    let all = all.unwrap();
    assert!(all.iter().all(|(_, losses)| *losses == all[0].1), "ranks have different losses");
    let (first, others) = all.split_at(stages);
    assert!(others.chunks(stages).all(|other| other == first), "pipelines have different weights");
    (first.iter().flat_map(|(bytes, _)| bytes.clone()).collect(), first[0].1.clone())
}

#[test]
fn a_gpt_has_the_same_bits_on_any_number_of_stages() {
    let make: Make<'_> = &|device| gpt(device, 0.2);
    let expected = whole(make, text, 24, 8);
    for stages in [1, 2, 3, 4] {
        assert!(piped(make, text, 24, 8, stages, 1) == expected, "{stages} stages");
    }
    assert!(piped(make, text, 24, 8, 2, 2) == expected, "2 pipelines of 2 stages");
}

#[test]
fn a_resnet_has_the_same_bits_on_any_number_of_stages() {
    let expected = whole(&resnet, pictures, 24, 8);
    assert!(expected.0.iter().any(|(name, _)| name.ends_with("running_mean")));
    for stages in [1, 2, 4, 7] {
        assert!(piped(&resnet, pictures, 24, 8, stages, 1) == expected, "{stages} stages");
    }
    assert!(piped(&resnet, pictures, 24, 8, 2, 4) == expected, "4 pipelines of 2 stages");
}

#[test]
fn micro_batches_may_be_few_uneven_or_empty() {
    let make: Make<'_> = &|device| gpt(device, 0.0);
    for (rows, micro_batches) in [(6, 1), (7, 2), (3, 8), (5, 4)] {
        let expected = whole(make, text, rows, micro_batches);
        for stages in [2, 4] {
            let found = piped(make, text, rows, micro_batches, stages, 1);
            assert!(found == expected, "{rows} rows, {micro_batches} micro-batches, {stages} stages");
        }
    }
    // Numbers that are no power of two: the same for any number of stages.
    let expected = piped(make, text, 20, 6, 1, 1);
    assert!(piped(make, text, 20, 6, 4, 1) == expected);
}

#[test]
fn parameters_that_are_frozen_or_not_reached_have_no_gradient() {
    threads(3, Options::default(), |comm| {
        let device = device()?;
        let layer = |i: u64| Linear::new(3, 3, &mut Init::new(DType::F32, &device, &mut Generator::new(i)));
        let x = Tensor::randn([8, 3], DType::F32, &device, &mut Generator::new(1))?;
        let input = |rows: Range<usize>| cut_rows(&x, &rows);
        let pipeline = Pipeline::new(comm, 4, &device)?;
        // The first stage is frozen.
        let mut stage = Stage::new(comm, &[0..1, 1..2, 2..3], |i| layer(i as u64))?;
        if comm.rank() == 0 {
            stage.freeze();
        }
        let (_, gradients) = pipeline.backward(&stage, 8, input, |y, _| y.square()?.mean_all())?;
        assert_eq!(gradients.len(), if comm.rank() == 0 { 0 } else { 2 });
        stage.unfreeze();
        // The loss depends on the last stage only, through its own weight.
        let own = stage.parameters()[0].clone();
        let (_, gradients) =
            pipeline.backward(&stage, 8, input, |y, _| y.detach().square()?.mean_all()?.add(&own.sum_all()?))?;
        assert_eq!(gradients.len(), usize::from(comm.rank() == 2));
        assert!(comm.rank() != 2 || gradients.get(&own).is_some());
        Ok(())
    })
    .unwrap();
}

/// The table of tokens and the weight of the head.
const TIED: [&str; 2] = ["0.wte.weight", "3.lm_head.weight"];

#[test]
fn tied_weights_get_the_sum_of_their_gradients_and_count_once_in_the_norm() {
    // One process, in which they are one parameter.
    let rows = 16;
    let (x, y) = text(&device().unwrap(), rows, 0).unwrap();
    let one = {
        let device = x.device().clone();
        let mut generator = Generator::new(5);
        let model = Gpt2::new(gpt_config(0.0), &mut Init::new(DType::F32, &device, &mut generator)).unwrap();
        let mut optimizer = adam(&model).unwrap();
        let mut norms = vec![];
        for _ in 0..STEPS {
            let loss = mean_loss(&model.forward(&x).unwrap(), &y).unwrap();
            let mut gradients = loss.backward().unwrap();
            norms.push(clip_grad_norm(&mut gradients, &model.parameters(), 0.2).unwrap());
            optimizer.step(&gradients).unwrap();
        }
        (model.transformer.wte.weight.values().to_vec::<f32>().unwrap(), norms)
    };
    let mut first = None;
    for stages in [1, 2, 4] {
        let mut all = threads(stages, Options::default(), |comm| {
            let device = device()?;
            let (x, y) = (x.to_device(&device)?, y.to_device(&device)?);
            let cut = cut_evenly(&[1; 4], stages)?;
            let stage = Stage::of(comm, gpt(&device, 0.0)?, &cut)?;
            let mut pipeline = Pipeline::new(comm, 4, &device)?;
            pipeline.tie(&stage, TIED)?;
            let (mut optimizer, mut norms) = (adam(&stage)?, vec![]);
            for _ in 0..STEPS {
                let input = |rows: Range<usize>| cut_rows(&x, &rows);
                let loss = |output: &Tensor, rows: Range<usize>| mean_loss(output, &cut_rows(&y, &rows)?);
                let (_, mut gradients) = pipeline.backward(&stage, rows, input, loss)?;
                norms.push(pipeline.clip_grad_norm(&mut gradients, &stage.parameters(), 0.2)?);
                optimizer.step(&gradients)?;
            }
            let tied = stage.named_parameters().into_iter().filter(|(name, _)| TIED.contains(&name.as_str()));
            Ok((bytes(&stage)?, norms, tied.map(|(_, p)| p.values().to_vec::<f32>()).collect::<Result<Vec<_>>>()?))
        })
        .unwrap();
        assert!(all.iter().all(|(_, norms, _)| *norms == all[0].1), "ranks have different norms");
        let norms = all[0].1.clone();
        assert!(norms.iter().zip(&one.1).all(|(a, b)| *b > 0.2 && (a / b - 1.0).abs() < 1e-5), "{norms:?} {:?}", one.1);
        let tied: Vec<Vec<f32>> = all.iter_mut().flat_map(|(.., tied)| std::mem::take(tied)).collect();
        assert!(tied.len() == 2 && tied[0] == tied[1]);
        assert!(tied[0].iter().zip(&one.0).all(|(a, b)| (a - b).abs() < 1e-4));
        let found = (all.into_iter().flat_map(|(bytes, ..)| bytes).collect::<Vec<_>>(), norms);
        assert!(*first.get_or_insert_with(|| found.clone()) == found, "{stages} stages");
    }
}

#[test]
fn the_norm_over_stages_has_the_bits_of_that_of_the_whole_model() {
    for scale in [1.0, 1e-30, 1e30] {
        let of = |stages: usize| {
            let all = threads(stages, Options::default(), |comm| {
                let device = device()?;
                let (x, y) = text(&device, 16, 0)?;
                let stage = Stage::of(comm, gpt(&device, 0.0)?, &cut_evenly(&[1; 4], stages)?)?;
                let input = |rows: Range<usize>| cut_rows(&x, &rows);
                let loss = |output: &Tensor, rows: Range<usize>| mean_loss(output, &cut_rows(&y, &rows)?)?.mul(scale);
                let pipeline = Pipeline::new(comm, 4, &device)?;
                let (_, mut gradients) = pipeline.backward(&stage, 16, input, loss)?;
                let (theirs, parameters) = (gradients.clone(), stage.parameters());
                let norm = pipeline.clip_grad_norm(&mut gradients, &parameters, 0.5 * scale)?;
                let mut there = theirs.clone();
                let other = pipeline.clip_grad_norm_on_device(&mut there, &parameters, 0.5 * scale)?;
                assert_eq!(other.item()?, norm);
                for p in &parameters {
                    assert_eq!(there.get(p).unwrap().to_bytes()?, gradients.get(p).unwrap().to_bytes()?);
                }
                let mut whole = theirs;
                if stages == 1 {
                    assert_eq!(clip_grad_norm(&mut whole, &parameters, 0.5 * scale)?, norm);
                }
                let bytes =
                    parameters.iter().map(|p| gradients.get(p).unwrap().to_bytes()).collect::<Result<Vec<_>>>()?;
                Ok((norm, bytes))
            });
            let all = all.unwrap();
            (all[0].0, all.into_iter().flat_map(|(_, bytes)| bytes).collect::<Vec<_>>())
        };
        let one = of(1);
        assert!(one.0 > 0.5 * scale && of(2) == one && of(4) == one);
    }
}

#[test]
fn outputs_without_gradients_are_those_of_the_whole_model() {
    for stages in [1, 3, 4] {
        threads(stages, Options::default(), |comm| {
            let device = device()?;
            let (x, _) = text(&device, 10, 0)?;
            let model = gpt(&device, 0.0)?;
            let expected = model.forward(&x)?;
            let stage = Stage::of(comm, model, &cut_evenly(&[1; 4], stages)?)?;
            let pipeline = Pipeline::new(comm, 5, &device)?;
            for batch in [10, 10] {
                let found = pipeline.forward(&stage, batch, |rows| cut_rows(&x, &rows))?;
                assert_eq!(found.is_some(), comm.rank() == stages - 1);
                if let Some(found) = found {
                    assert!(!found.requires_grad());
                    assert_eq!(found.to_vec::<f32>()?, expected.to_vec::<f32>()?);
                }
            }
            Ok(())
        })
        .unwrap();
    }
}

#[test]
fn an_even_cut_counts_parameters_and_its_files_are_read_at_another_cut() {
    let folder = tempfile::tempdir().unwrap();
    let counts = threads(2, Options::default(), |comm| {
        let device = device()?;
        let make = |i: usize| {
            let mut generator = Generator::new(9).fork(i as u64);
            Linear::new(2 + i, 3 + i, &mut Init::new(DType::F32, &device, &mut generator))
        };
        // Modules of 9, 16, 25 and 36 elements.
        let even = Stage::even(comm, 4, make)?;
        let names: Vec<String> = even.named_parameters().into_iter().map(|(name, _)| name).collect();
        let expected = if comm.rank() == 0 { 0..3 } else { 3..4 };
        let expected: Vec<String> = expected.flat_map(|i| [format!("{i}.weight"), format!("{i}.bias")]).collect();
        assert_eq!(names, expected);
        // The files of both stages have all that another cut needs.
        for parameter in even.parameters() {
            parameter.set(&parameter.values().mul(3.0)?)?;
        }
        let file = |rank: usize| folder.path().join(format!("stage-{rank}.safetensors"));
        even.save_safetensors(file(comm.rank()))?;
        comm.barrier(&device)?;
        let mut other = Stage::new(comm, &[0..1, 1..4], make)?;
        for rank in 0..2 {
            let _ = other.load_safetensors(file(rank), &device, Strict::No)?;
        }
        for (i, layer) in (0..4).map(|i| (i, make(i))) {
            let name = format!("{i}.weight");
            if let Some((_, parameter)) = other.named_parameters().into_iter().find(|(known, _)| *known == name) {
                let expected = layer?.weight.values().mul(3.0)?.to_vec::<f32>()?;
                assert_eq!(parameter.values().to_vec::<f32>()?, expected, "{name}");
            }
        }
        Ok(other.named_parameters().len())
    });
    assert_eq!(counts.unwrap(), [2, 6]);
}

#[test]
fn the_largest_stage_of_an_even_cut_is_as_small_as_possible() {
    /// The least worst cost of any cut.
    fn least(costs: &[usize], stages: usize) -> usize {
        if stages == 1 {
            return costs.iter().sum();
        }
        let at = |i: usize| least(&costs[i..], stages - 1).max(costs[..i].iter().sum());
        (1..=costs.len() - (stages - 1)).map(at).min().unwrap()
    }
    for (seed, stages) in [(1usize, 1), (2, 2), (3, 3), (4, 4), (5, 5), (6, 3), (7, 9)] {
        let costs: Vec<usize> = (0..9).map(|i| (i * i * seed * 7919 + seed * 31) % 23).collect();
        let cut = cut_evenly(&costs, stages).unwrap();
        assert!(cut.len() == stages && cut.iter().all(|range| !range.is_empty()));
        assert!(cut[0].start == 0 && cut.windows(2).all(|pair| pair[0].end == pair[1].start));
        assert_eq!(cut[stages - 1].end, 9);
        let worst = cut.iter().map(|range| costs[range.clone()].iter().sum::<usize>()).max().unwrap();
        assert_eq!(worst, least(&costs, stages), "{costs:?} in {stages}: {cut:?}");
    }
    assert_eq!(cut_evenly(&[1; 8], 4).unwrap(), [0..2, 2..4, 4..6, 6..8]);
}

/// A pair of layers of which a rank has a part.
#[derive(Module)]
struct Pair {
    up: ColumnLinear,
    down: RowLinear,
}

impl Forward for Pair {
    fn compute(&self, x: &Tensor) -> Result<Tensor> {
        self.down.forward(&self.up.forward(x)?.gelu()?)
    }
}

#[test]
fn pipelines_of_divided_layers_that_share_a_batch_have_the_gradients_of_the_whole_model() {
    threads(8, Options::default(), |comm| {
        let device = device()?;
        let layers = |i: usize| -> Result<[Linear; 2]> {
            let mut generator = Generator::new(5).fork(i as u64);
            let mut init = Init::new(DType::F64, &device, &mut generator);
            Ok([Linear::new(4, 6, &mut init)?, Linear::new(6, 4, &mut init)?])
        };
        let mesh = Mesh::new(comm, [("data", 2), ("pipe", 2), ("tensor", 2)])?;
        let (pipe, tensor) = (mesh.axis("pipe")?, mesh.axis("tensor")?);
        let stage = Stage::new(&pipe, &[0..1, 1..2], |i| {
            let [up, down] = layers(i)?;
            Ok(Pair { up: ColumnLinear::of(&up, &tensor)?, down: RowLinear::of(&down, &tensor)? })
        })?;
        let data = DataParallel::with_shards(mesh.axis("data")?, 4)?;
        let pipeline = Pipeline::with_data(&pipe, &data, &device)?;
        let x = Tensor::randn([8, 4], DType::F64, &device, &mut Generator::new(6))?;
        let input = |rows: Range<usize>| cut_rows(&x, &rows);
        let loss = |y: &Tensor| y.square()?.mean_all();
        let (value, gradients) = pipeline.backward(&stage, 8, input, |y, _| loss(y))?;

        let whole = [layers(0)?, layers(1)?];
        let mut y = x.clone();
        for [up, down] in &whole {
            y = down.forward(&up.forward(&y)?.gelu()?)?;
        }
        let expected = loss(&y)?;
        assert!((value.item()? - expected.item()?).abs() < 1e-6);
        let theirs = expected.backward()?;
        let part = |p: &Parameter, axis: isize| theirs.get(p).unwrap().narrow(axis, 3 * tensor.rank(), 3);
        let [up, down] = &whole[pipe.rank()];
        let bias = theirs.get(down.bias.as_ref().unwrap()).unwrap().clone();
        let all = [part(&up.weight, 0)?, part(up.bias.as_ref().unwrap(), 0)?, part(&down.weight, 1)?, bias];
        assert_eq!(stage.parameters().len(), all.len());
        for (parameter, expected) in stage.parameters().iter().zip(&all) {
            let off = gradients.get(parameter).unwrap().sub(expected)?.abs()?.max_all()?.item()?;
            assert!(off < 1e-9 && expected.abs()?.max_all()?.item()? > 1e-3, "{off}");
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn stages_with_divided_layers_are_clipped_by_the_norm_of_the_whole_model() {
    threads(4, Options::default(), |comm| {
        let device = device()?;
        let (x, y) = text(&device, 8, 0)?;
        let config = gpt_config(0.0);
        let model = Gpt2::new(config, &mut Init::new(DType::F64, &device, &mut Generator::new(5)))?;
        let mut theirs = mean_loss(&model.forward(&x)?, &y)?.backward()?;
        let expected = clip_grad_norm(&mut theirs, &model.parameters(), 0.1)?;

        let mesh = Mesh::new(comm, [("pipe", 2), ("tensor", 2)])?;
        let (pipe, tensor) = (mesh.axis("pipe")?, mesh.axis("tensor")?);
        let mut generator = Generator::new(5);
        let mut init = Init::new(DType::F64, &device, &mut generator);
        let mut parts = (0..4).map(|i| Gpt2::part(&config, i, &mut init)).collect::<Result<Vec<_>>>()?;
        parts.iter_mut().try_for_each(|part| divide(part, Gpt2::TENSOR_PARALLEL, &tensor))?;
        let stage = Stage::of(&pipe, parts.into_iter().collect(), &[0..2, 2..4])?;
        let mut pipeline = Pipeline::new(&pipe, 4, &device)?;
        pipeline.tie(&stage, TIED)?;
        let input = |rows: Range<usize>| cut_rows(&x, &rows);
        let loss = |output: &Tensor, rows: Range<usize>| mean_loss(output, &cut_rows(&y, &rows)?);
        let (_, mut gradients) = pipeline.backward(&stage, 8, input, loss)?;
        let norm = pipeline.clip_grad_norm(&mut gradients, &stage.parameters(), 0.1)?;
        assert!((norm / expected - 1.0).abs() < 1e-12 && norm > 0.2, "{norm} {expected}");
        let all = comm.all_gather(&Tensor::from_vec(vec![norm], [1], &device)?)?.to_vec::<f64>()?;
        assert!(all.iter().all(|other| other.to_bits() == norm.to_bits()), "{all:?}");
        if let Some((_, table)) = stage.named_parameters().into_iter().find(|(name, _)| TIED.contains(&name.as_str())) {
            let rows = [0..8, 8..17][tensor.rank()].clone();
            let expected = cut_rows(theirs.get(&model.transformer.wte.weight).unwrap(), &rows)?;
            let off = gradients.get(&table).unwrap().sub(&expected)?.abs()?.max_all()?.item()?;
            assert!(off < 1e-12, "{off}");
        }
        Ok(())
    })
    .unwrap();
}
