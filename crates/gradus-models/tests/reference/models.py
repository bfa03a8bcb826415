#!/usr/bin/env python3
"""Writes `models.safetensors` and `names.txt`: every network beside the one of torchvision, timm or transformers.

    pip install --no-deps torchvision timm transformers   # and what these import
    python crates/gradus-models/tests/reference/models.py

In `models.safetensors`, each case is a small network in f64 with the weights of `formula.py`. The metadata of a case lists
the names and shapes of its state. `CASE/train` is the output in training, with all probabilities of dropout 0;
`CASE/gradients` has a digest for each parameter, in the order of their names, for the sum of the output times
cos(0.9 i); `CASE/buffers` has a digest for each buffer after this step; `CASE/eval` is the output in evaluation after it.

`names.txt` lists the names and shapes of the state of networks in full size, which have no weights here.
"""

import pathlib

import numpy as np
import timm
import torch
import torchvision
from safetensors.numpy import save_file
from timm.models.vision_transformer import VisionTransformer
from torchvision.models.convnext import CNBlockConfig, ConvNeXt
from torchvision.models.resnet import BasicBlock, Bottleneck

from formula import digest, fill, floats, ids

HERE = pathlib.Path(__file__).parent

arrays = {}
listed = {}


def described(state):
    return " ".join(f"{name}={','.join(str(n) for n in t.shape)}" for name, t in state.items())


def case(name, model, call):
    """`call(model)` gives the output."""
    fill(model)
    listed[name] = described(model.state_dict())
    model.train()
    out = call(model)
    (out * torch.cos(0.9 * torch.arange(out.numel())).reshape(out.shape)).sum().backward()
    arrays[f"{name}/train"] = out.detach().numpy().copy()
    # A shared parameter counts once, under its first name.
    rows = {key: digest(p.grad if p.grad is not None else torch.zeros_like(p)) for key, p in model.named_parameters()}
    arrays[f"{name}/gradients"] = np.array([rows[key] for key in sorted(rows)])
    buffers = {key: b for key, b in model.named_buffers() if key in model.state_dict()}
    if buffers:
        arrays[f"{name}/buffers"] = np.array([digest(buffers[key]) for key in sorted(buffers)])
    model.eval()
    with torch.no_grad():
        arrays[f"{name}/eval"] = call(model).numpy().copy()


class NarrowResNet(torchvision.models.ResNet):
    """torchvision's network with fewer channels than it can be told."""

    def __init__(self, block, layers, width, classes, small_images=False):
        super().__init__(block, layers, classes)
        self.inplanes = width
        self.conv1 = torch.nn.Conv2d(3, width, 7, 2, 3, bias=False)
        if small_images:
            self.conv1 = torch.nn.Conv2d(3, width, 3, 1, 1, bias=False)
            self.maxpool = torch.nn.Identity()
        self.bn1 = torch.nn.BatchNorm2d(width)
        for i in range(4):
            stage = self._make_layer(block, width << i, layers[i], stride=1 if i == 0 else 2)
            setattr(self, f"layer{i + 1}", stage)
        self.fc = torch.nn.Linear(width * 8 * block.expansion, classes)


class Hardsigmoid(torch.nn.Module):
    """The function whose gradient PyTorch computes with 1/6 rounded to f32, even in f64."""

    def forward(self, x):
        return torch.nn.functional.relu6(x + 3) / 6


def precise(model):
    """The model with all of its `Hardsigmoid`s in f64."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, torch.nn.Hardsigmoid):
                setattr(module, name, Hardsigmoid())
    return model


def vision():
    image = floats("image", 2, 3, 40, 33)
    case("resnet", NarrowResNet(BasicBlock, [1, 2, 1, 1], 4, 5), lambda m: m(image))
    case("resnet_small_images", NarrowResNet(BasicBlock, [1, 1, 1, 1], 4, 5, True), lambda m: m(image[..., :16, :13]))
    case("resnet_bottleneck", NarrowResNet(Bottleneck, [1, 1, 2, 1], 4, 5), lambda m: m(image))
    narrow = torchvision.models.mobilenet_v2(width_mult=0.2, num_classes=5, dropout=0.0)
    case("mobilenet_v2", narrow, lambda m: m(image))
    for size in ["small", "large"]:
        make = getattr(torchvision.models, f"mobilenet_v3_{size}")
        model = precise(make(width_mult=0.2, num_classes=5, dropout=0.0))
        case(f"mobilenet_v3_{size}", model, lambda m: m(image))
    stages = [CNBlockConfig(4, 6, 1), CNBlockConfig(6, 8, 1), CNBlockConfig(8, 10, 2), CNBlockConfig(10, None, 1)]
    case("convnext", ConvNeXt(stages, num_classes=5), lambda m: m(image))
    vit = VisionTransformer((8, 12), 4, 3, 5, embed_dim=12, depth=2, num_heads=3, mlp_ratio=2)
    case("vit", vit, lambda m: m(image[..., :8, :12]))


def full_size():
    with torch.device("meta"):
        models = torchvision.models
        for name in ["resnet18", "resnet50", "mobilenet_v2", "mobilenet_v3_small", "mobilenet_v3_large", "convnext_tiny"]:
            yield name, getattr(models, name)()
        yield "vit_tiny", timm.create_model("vit_tiny_patch16_224")


def main():
    torch.set_default_dtype(torch.float64)
    vision()
    save_file(arrays, HERE / "models.safetensors", metadata=listed)
    lines = []
    for name, model in full_size():
        lines.append(f"[{name}]")
        lines += [f"{key} {','.join(str(n) for n in t.shape)}".rstrip() for key, t in model.state_dict().items()]
    (HERE / "names.txt").write_text("\n".join(lines) + "\n")
    print(f"{len(listed)} cases, {sum(a.nbytes for a in arrays.values())} bytes, {len(lines)} names")


if __name__ == "__main__":
    main()
