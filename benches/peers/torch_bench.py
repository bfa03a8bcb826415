"""PyTorch's side of the comparison: `torch_bench.py --job NAME --seconds S [--compile | --reference]`.

`--compile` is a peer of its own, for the jobs where `torch.compile` has something to fuse. `--reference` works in f64:
what the results of all peers are compared with.
"""

import os
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

from torch_networks import Bert, Lstm, ResNet18, ViTTiny
from harness import SEED, Parameters, conv2d_shape, integers, main, values

torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
reference, compiles = ("--reference" in sys.argv, "--compile" in sys.argv)
dtype = torch.float64 if reference else torch.float32
torch.set_default_dtype(dtype)
# A product, a sum, a convolution and attention are one call of the library either way; a compiled chain is no chain.
FUSED = ("silu_mul", "silu_mul_backward", "gelu_tanh", "softmax", "softmax_backward", "layer_norm",
         "layer_norm_backward", "sum_rows", "train_mlp", "train_cnn", "train_gpt", "forward_gpt",
         "elementwise10", "conv_norm_relu", "train_resnet18", "forward_resnet18", "train_vit", "train_bert")


def tensor(array):
    return torch.from_numpy(array).to(dtype)


def leaf(stream, shape):
    return tensor(values(stream, shape)).requires_grad_()


def read(result):
    results = result if isinstance(result, (tuple, list)) else [result]
    return [r.detach().to(torch.float64).contiguous().numpy() for r in results]


def compiled(f):
    return torch.compile(f) if compiles else f


def forward(bench, f):
    """Times `f` without gradients."""
    f = compiled(f)

    def call():
        with torch.inference_mode():
            return f()
    bench.time(call, read)


def backward(bench, f, leaves, shape):
    """Times `f`, whose result has this shape, and its gradients for a given gradient of the result."""
    f, seed = compiled(f), tensor(values(SEED, shape))

    def call():
        y = f()
        return (y, *torch.autograd.grad(y, leaves, seed))
    bench.time(call, read)


def chain(x, b, n):
    for _ in range(n):
        x = x + b
    return x


class Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.n1, self.qkv, self.proj = nn.LayerNorm(d), nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.n2, self.up, self.down = nn.LayerNorm(d), nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (z.view(b, t, self.heads, d // self.heads).transpose(1, 2) for z in self.qkv(self.n1(x)).split(d, 2))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d)
        x = x + self.proj(a)
        return x + self.down(F.gelu(self.up(self.n2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, vocab=256, context=256, d=384, layers=6, heads=6):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, d), nn.Embedding(context, d)
        self.blocks = nn.ModuleList([Block(d, heads) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, vocab, bias=False)

    def forward(self, ids):
        x = self.tok(ids) + self.pos(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def filled(model):
    """The model with the parameters that all peers have: a weight of rank 1 and its bias are those of a normalisation."""
    source, fan_in, is_norm = Parameters(), 1, False
    with torch.no_grad():
        for module in model.modules():
            for name, parameter in module.named_parameters(recurse=False):
                if not name.startswith("bias"):
                    is_norm = parameter.dim() == 1
                    fan_in = 4 if isinstance(module, nn.Embedding) else parameter[0].numel()
                if not is_norm:
                    parameter.copy_(tensor(source.next(list(parameter.shape), fan_in)))
    return model


def train(bench, model, optimizer, x, y, classes):
    loss_of = compiled(lambda x, y: F.cross_entropy(model(x).view(-1, classes), y.view(-1)))

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(x, y)
        loss.backward()
        optimizer.step()
        return loss.detach()
    bench.train(step)


def ten(a, b):
    """Ten elementwise operations."""
    y = F.relu(a * 1.5 + b) * a - 0.25
    return torch.clamp((y * b).abs() + a, -3, 3) * 0.5


def run(job, bench):
    # A captured step of Gradus is compared with what PyTorch does for the same step.
    kind, sizes = job.kind.removesuffix("_captured"), job.sizes
    if compiles and kind not in FUSED:
        bench.absent("there is nothing to fuse")
    elif kind in ("gemm_f32", "gemm_bf16", "matmul_bf16"):
        m, k, n = sizes if kind == "matmul_bf16" else sizes * 3
        a, b = tensor(values(1, [m, k])), tensor(values(2, [k, n]))
        if kind != "gemm_f32":
            a, b = a.bfloat16(), b.bfloat16()
            if reference:
                a, b = a.double(), b.double()
        forward(bench, lambda: a @ b)
    elif kind == "chain":
        a, b = (tensor(values(s, [sizes[0]])) for s in (1, 2))
        forward(bench, lambda: chain(a, b, sizes[1]))
    elif kind == "chain_backward":
        w, b = leaf(1, [sizes[0]]), tensor(values(2, [sizes[0]]))
        backward(bench, lambda: chain(w, b, sizes[1]), [w], sizes[:1])
    elif kind in ("add", "silu_mul", "gelu_tanh", "exp", "sum"):
        a, b = (tensor(values(s, sizes)) for s in (1, 2))
        forward(bench, {
            "add": lambda: a + b,
            "silu_mul": lambda: F.silu(a) * b,
            "gelu_tanh": lambda: F.gelu(a, approximate="tanh"),
            "exp": lambda: a.exp(),
            "sum": lambda: a.sum(),
        }[kind])
    elif kind == "elementwise10":
        a, b = (tensor(values(s, sizes)) for s in (1, 2))
        forward(bench, lambda: ten(a, b))
    elif kind == "conv_norm_relu":
        n, c, h, o, k, s = sizes
        m = filled(nn.Conv2d(c, o, k, stride=s, padding=k // 2))
        m, x = nn.Sequential(m, nn.BatchNorm2d(o), nn.ReLU()).eval(), tensor(values(1, [n, c, h, h]))
        forward(bench, lambda: m(x))
    elif kind == "silu_mul_backward":
        a, b = leaf(1, sizes), leaf(2, sizes)
        backward(bench, lambda: F.silu(a) * b, [a, b], sizes)
    elif kind == "sum_rows":
        x = tensor(values(1, sizes))
        forward(bench, lambda: x.sum(-1))
    elif kind in ("softmax", "softmax_backward"):
        x = leaf(1, sizes)
        softmax = lambda: torch.softmax(x, -1)
        forward(bench, softmax) if kind == "softmax" else backward(bench, softmax, [x], sizes)
    elif kind in ("layer_norm", "layer_norm_backward"):
        x, w, b = leaf(1, sizes), leaf(2, sizes[1:]), leaf(3, sizes[1:])
        norm = lambda: F.layer_norm(x, sizes[1:], w, b)
        forward(bench, norm) if kind == "layer_norm" else backward(bench, norm, [x, w, b], sizes)
    elif kind in ("attention", "attention_backward"):
        q, k, v = (leaf(s, sizes) for s in (1, 2, 3))
        sdpa = lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True)
        forward(bench, sdpa) if kind == "attention" else backward(bench, sdpa, [q, k, v], sizes)
    elif kind in ("conv2d", "conv2d_backward"):
        n, c, h, o, k, s = sizes
        m, x = filled(nn.Conv2d(c, o, k, stride=s, padding=k // 2)), tensor(values(1, [n, c, h, h]))
        if kind == "conv2d":
            forward(bench, lambda: m(x))
        else:
            x.requires_grad_()
            backward(bench, lambda: m(x), [x, m.weight, m.bias], conv2d_shape(sizes))
    elif kind == "train_mlp":
        n, d, w, classes = sizes
        m = filled(nn.Sequential(nn.Linear(d, w), nn.ReLU(), nn.Linear(w, w), nn.ReLU(), nn.Linear(w, classes)))
        x, y = tensor(values(5, [n, d])), torch.from_numpy(integers(2, [n], classes))
        train(bench, m, torch.optim.Adam(m.parameters(), fused=True), x, y, classes)
    elif kind == "train_cnn":
        n, side = sizes
        m = filled(nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
                                 nn.Flatten(), nn.Linear(9216, 128), nn.ReLU(), nn.Linear(128, 10)))
        x, y = tensor(values(1, [n, 1, side, side])), torch.from_numpy(integers(2, [n], 10))
        train(bench, m, torch.optim.Adam(m.parameters(), fused=True), x, y, 10)
    elif kind in ("train_gpt", "forward_gpt"):
        m, (ids, y) = filled(Gpt()), (torch.from_numpy(integers(s, sizes, 256)) for s in (1, 2))
        if kind == "train_gpt":
            train(bench, m, torch.optim.AdamW(m.parameters(), fused=True), ids, y, 256)
        else:
            forward(bench, lambda: m(ids))
    elif kind in ("train_resnet18", "forward_resnet18", "train_vit"):
        n, side, classes = sizes
        m = filled(ViTTiny(side, classes) if kind == "train_vit" else ResNet18(classes))
        x, y = tensor(values(1, [n, 3, side, side])), torch.from_numpy(integers(2, [n], classes))
        if kind == "forward_resnet18":
            m.eval()
            forward(bench, lambda: m(x))
        else:
            train(bench, m, torch.optim.AdamW(m.parameters(), fused=True), x, y, classes)
    elif kind == "train_bert":
        m, ids = filled(Bert()), torch.from_numpy(integers(1, sizes, 30522))
        train(bench, m, torch.optim.AdamW(m.parameters(), fused=True), ids, torch.from_numpy(integers(2, sizes[:1], 768)), 768)
    elif kind == "train_lstm":
        n, steps, width, classes = sizes
        m = filled(Lstm(width, width, 2, classes))
        x, y = tensor(values(1, [n, steps, width])), torch.from_numpy(integers(2, [n], classes))
        train(bench, m, torch.optim.AdamW(m.parameters(), fused=True), x, y, classes)
    else:
        bench.absent(f"the kind {kind} is not there")


main(run)
