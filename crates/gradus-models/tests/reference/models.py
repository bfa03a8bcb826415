#!/usr/bin/env python3
"""Writes `models.safetensors` and `names.txt`: every network beside the one of torchvision, timm or transformers.

    pip install --no-deps torchvision timm transformers   # and what these import
    python crates/gradus-models/tests/reference/models.py

In `models.safetensors`, each case is a small network in f64 with the weights of `formula.py`. The metadata of a case lists
the names and shapes of its state. `CASE/train` is the output in training, with all probabilities of dropout 0;
`CASE/gradients` has a digest for each parameter, in the order of their names, for the sum of the output times
cos(0.9 i); `CASE/buffers` has a digest for each buffer after this step; `CASE/eval` is the output in evaluation after it.
`first/NAME` describes the parameters of a new network.

`names.txt` lists the names and shapes of the state of networks in full size, which have no weights here.
"""

import pathlib

import numpy as np
import timm
import torch
import torchvision
import transformers
from safetensors.numpy import save_file
from timm.models.vision_transformer import VisionTransformer
from torchvision.models.convnext import CNBlockConfig, ConvNeXt
from torchvision.models.resnet import BasicBlock, Bottleneck
from transformers.models.llama import modeling_llama
from transformers.models.t5 import modeling_t5

from formula import digest, fill, floats, ids
from unet import UNet

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


def rms_norm(self, x):
    return torch.nn.functional.rms_norm(x, self.weight.shape, self.weight, self.variance_epsilon)


def rotary(self, x, position_ids):
    size = self.config.head_dim
    angles = self.config.rope_parameters["rope_theta"] ** (-torch.arange(0, size, 2) / size)
    angles = position_ids[..., None] * torch.cat([angles, angles])
    return angles.cos(), angles.sin()


# What transformers computes in f32, whatever the dtype of the model.
modeling_llama.LlamaRMSNorm.forward = rms_norm
modeling_llama.LlamaRotaryEmbedding.forward = rotary
modeling_t5.T5LayerNorm.forward = rms_norm


def language():
    tokens = ids("tokens", 20, 2, 7)
    mask = torch.tensor([[1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0, 0]])
    types = ids("types", 2, 2, 7)
    shape = {"vocab_size": 20, "hidden_size": 12, "intermediate_size": 16, "num_hidden_layers": 2}
    config = transformers.BertConfig(
        **shape,
        num_attention_heads=3,
        max_position_embeddings=9,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=5,
    )

    def both(model):
        out = model(tokens, mask, types)
        return torch.cat([out.last_hidden_state.flatten(), out.pooler_output.flatten()])

    def sentences(model):
        weights = mask[..., None].double()
        mean = (model(tokens, mask).last_hidden_state * weights).sum(1) / weights.sum(1)
        return torch.nn.functional.normalize(mean)

    case("bert", transformers.BertModel(config), both)
    case("bert_sentences", transformers.BertModel(config, add_pooling_layer=False), sentences)
    classifier = transformers.BertForSequenceClassification(config)
    case("bert_classifier", classifier, lambda m: m(tokens, mask, types).logits)

    llama = transformers.LlamaConfig(**shape, num_attention_heads=6, num_key_value_heads=2, max_position_embeddings=30)
    case("llama", transformers.LlamaForCausalLM(llama), lambda m: m(tokens).logits)
    model = fill(transformers.LlamaForCausalLM(llama)).eval()
    written = model.generate(tokens[:1], max_new_tokens=12, do_sample=False, eos_token_id=None, pad_token_id=0)
    arrays["llama/written"] = written[0, 7:].double().numpy()
    tied = transformers.LlamaConfig(
        **shape,
        num_attention_heads=3,
        head_dim=6,
        tie_word_embeddings=True,
        attention_bias=True,
        mlp_bias=True,
        rms_norm_eps=1e-3,
        rope_parameters={"rope_type": "default", "rope_theta": 100.0},
    )
    case("llama_tied", transformers.LlamaForCausalLM(tied), lambda m: m(tokens).logits)

    answer = ids("answer", 20, 2, 26)
    shape = {"vocab_size": 20, "d_model": 12, "d_kv": 4, "d_ff": 16, "num_heads": 2, "dropout_rate": 0.0}
    logits = lambda m: m(tokens, mask, decoder_input_ids=answer).logits
    t5 = transformers.T5Config(**shape, num_layers=2, num_decoder_layers=3)
    case("t5", transformers.T5ForConditionalGeneration(t5), logits)
    model = fill(transformers.T5ForConditionalGeneration(t5)).eval()
    # Its cache has no room for more layers of the decoder than of the encoder.
    settings = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None, "pad_token_id": 0, "use_cache": False}
    written = model.generate(tokens[1:], attention_mask=mask[1:], decoder_start_token_id=0, **settings)
    arrays["t5/written"] = written[0, 1:].double().numpy()
    gated = transformers.T5Config(
        **shape,
        num_layers=2,
        feed_forward_proj="gated-gelu",
        tie_word_embeddings=False,
        relative_attention_num_buckets=8,
        relative_attention_max_distance=20,
    )
    model = transformers.T5ForConditionalGeneration(gated)
    # Transformers shares the table even here; the files of such models have one of its own for the head.
    model.lm_head.weight = torch.nn.Parameter(torch.empty(20, 12))
    case("t5_gated", model, logits)


def segmentation():
    image = floats("image", 2, 3, 40, 33)
    case("unet", UNet(3, 2, 4), lambda m: m(image))
    case("unet_bilinear", UNet(3, 2, 4, bilinear=True), lambda m: m(image))


def first_values():
    """New parameters: mean, standard deviation and fourth moment of each, in the order of their names."""
    stages = [CNBlockConfig(16, 24, 1), CNBlockConfig(24, 32, 1), CNBlockConfig(32, 40, 1), CNBlockConfig(40, None, 1)]
    shape = {"vocab_size": 200, "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 1}
    t5 = {"vocab_size": 200, "d_model": 48, "d_kv": 16, "d_ff": 96, "num_heads": 4, "num_layers": 1}
    yield "resnet", torchvision.models.ResNet(BasicBlock, [1, 1, 1, 1], 40)
    yield "mobilenet_v2", torchvision.models.mobilenet_v2(width_mult=0.2, num_classes=40)
    yield "mobilenet_v3", torchvision.models.mobilenet_v3_small(width_mult=0.5, num_classes=40)
    yield "convnext", ConvNeXt(stages, num_classes=40)
    yield "vit", VisionTransformer((32, 32), 4, 3, 40, embed_dim=48, depth=1, num_heads=3)
    yield "bert", transformers.BertForSequenceClassification(transformers.BertConfig(**shape, num_labels=30))
    yield "llama", transformers.LlamaForCausalLM(transformers.LlamaConfig(**shape, num_attention_heads=4))
    yield "t5", transformers.T5ForConditionalGeneration(transformers.T5Config(**t5))
    yield "unet", UNet(3, 2, 4)


def moments(p):
    values = p.detach().flatten()
    mean = values.mean().item()
    spread = values - mean
    std = spread.square().mean().sqrt().item()
    return [mean, std, ((spread / std) ** 4).mean().item() if std > 0 else 0.0]


def full_size():
    with torch.device("meta"):
        models = torchvision.models
        for name in ["resnet18", "resnet50", "mobilenet_v2", "mobilenet_v3_small", "mobilenet_v3_large", "convnext_tiny"]:
            yield name, getattr(models, name)()
        yield "vit_tiny", timm.create_model("vit_tiny_patch16_224")
        yield "bert-base", transformers.BertModel(transformers.BertConfig())
        yield "gpt2", transformers.GPT2LMHeadModel(transformers.GPT2Config())
        yield "t5-small", transformers.T5ForConditionalGeneration(transformers.T5Config())
        # The shape of the smallest models of this kind; the layers of larger ones have the same names.
        small = transformers.LlamaConfig(
            hidden_size=768, intermediate_size=3072, num_hidden_layers=12, num_attention_heads=12, num_key_value_heads=4
        )
        yield "llama", transformers.LlamaForCausalLM(small)
        yield "unet", UNet(3, 2)


def main():
    torch.set_default_dtype(torch.float64)
    vision()
    language()
    segmentation()
    torch.manual_seed(0)
    for name, model in first_values():
        rows = {key: moments(p) for key, p in model.named_parameters()}
        arrays[f"first/{name}"] = np.array([rows[key] for key in sorted(rows)])
    save_file(arrays, HERE / "models.safetensors", metadata=listed)
    lines = []
    for name, model in full_size():
        lines.append(f"[{name}]")
        lines += [f"{key} {','.join(str(n) for n in t.shape)}".rstrip() for key, t in model.state_dict().items()]
    (HERE / "names.txt").write_text("\n".join(lines) + "\n")
    print(f"{len(listed)} cases, {sum(a.nbytes for a in arrays.values())} bytes, {len(lines)} names")


if __name__ == "__main__":
    main()
