#!/usr/bin/env python3
"""PyTorch's side of the speeds on a GPU: the rows of crates/gradus/examples/gpu_rows.rs, as lines of JSON.

    scripts/gpu_torch.py [PARTS OF ROWS' NAMES]
    scripts/gpu_torch.py --compare GRADUS.jsonl TORCH.jsonl     a table with the ratios
"""
import json
import sys
import time


def compare(ours, theirs):
    read = lambda path: {row["row"]: row for row in map(json.loads, open(path))}
    ours, theirs = read(ours), read(theirs)
    print(f"{'row':24} {'Gradus':>12} {'PyTorch':>12} {'compiled':>12} {'unit':10} Gradus / PyTorch")
    for name, row in ours.items():
        if "error" in row:
            print(f"{name:24} {row['error'].splitlines()[0]}")
            continue
        eager, compiled = (theirs.get(name + end) for end in ("", "_compiled"))
        rate = lambda row: f"{row['rate']:12.1f}" if row and "rate" in row else f"{'-':>12}"
        ratio = f"{row['rate'] / eager['rate']:.2f}" if eager and "rate" in eager else "-"
        print(f"{name:24} {rate(row)} {rate(eager)} {rate(compiled)} {row['unit']:10} {ratio}")


if sys.argv[1:2] == ["--compare"]:
    compare(*sys.argv[2:4])
    sys.exit()

import torch
import torch.nn as nn
import torch.nn.functional as F

wanted = sys.argv[1:] or [""]
device, bf16 = "cuda", torch.bfloat16
torch.manual_seed(0)


def measure(job, runs=20):
    for _ in range(3):
        job()
    torch.cuda.synchronize()
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        for _ in range(runs):
            job()
        torch.cuda.synchronize()
        best = min(best, (time.perf_counter() - start) / runs)
    return best


def row(name, work, unit, job):
    if not any(part in name for part in wanted):
        return
    try:
        seconds = job()
        print(json.dumps({"row": name, "seconds": seconds, "rate": work / seconds, "unit": unit}), flush=True)
    except Exception as error:  # a row that fails is a row too
        print(json.dumps({"row": name, "error": str(error)}), flush=True)
    torch.cuda.empty_cache()


def randn(*shape, grad=False):
    return torch.randn(*shape, device=device, dtype=torch.float32).to(bf16).requires_grad_(grad)


@torch.no_grad()
def memory():
    n, width = 1 << 29, 4096
    gb = 2 * n / 1e9
    x, y = randn(n), randn(n)
    row("copy_bf16", 2 * gb, "GB/s", lambda: measure(lambda: x.clone()))
    row("add_bf16", 3 * gb, "GB/s", lambda: measure(lambda: x + y))
    silu_mul = torch.compile(lambda a, b: F.silu(a) * b)
    row("silu_mul_bf16", 3 * gb, "GB/s", lambda: measure(lambda: F.silu(x) * y))
    row("silu_mul_bf16_compiled", 3 * gb, "GB/s", lambda: measure(lambda: silu_mul(x, y)))
    rows, w, b = x.view(-1, width), randn(width), randn(width)
    row("layer_norm_bf16", 2 * gb, "GB/s", lambda: measure(lambda: F.layer_norm(rows, (width,), w, b)))


def products():
    n = 8192
    a, b = randn(n, n), randn(n, n)
    with torch.no_grad():
        row("matmul_bf16", 2 * n**3 / 1e12, "TFLOP/s", lambda: measure(lambda: a @ b))
        a, b = a.float(), b.float()
        row("matmul_f32", 2 * n**3 / 1e12, "TFLOP/s", lambda: measure(lambda: a @ b))
    gpt2_products()
    for d in (64, 128):
        batch, heads, length = 16, 16, 4096
        flops = 2 * 2 * batch * heads * length * length * d / 2 / 1e12
        q, k, v = (randn(batch, heads, length, d, grad=True) for _ in range(3))
        seed = randn(batch, heads, length, d)
        attend = lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True)
        with torch.no_grad():
            row(f"attention_d{d}_forward", flops, "TFLOP/s", lambda: measure(attend))
        both = lambda: torch.autograd.grad(attend(), (q, k, v), seed)
        row(f"attention_d{d}_both", 3.5 * flops, "TFLOP/s", lambda: measure(both))


@torch.no_grad()
def gpt2_products():
    tokens, width, words, heads, length, head = 16 * 1024, 768, 50257, 256, 1024, 64
    for name, a, b, swap_a, swap_b in (
        ("up", (tokens, width), (width, 4 * width), False, False),
        ("up_input", (tokens, 4 * width), (width, 4 * width), False, True),
        ("up_weight", (tokens, width), (tokens, 4 * width), True, False),
        ("logits", (tokens, width), (words, width), False, True),
        ("logits_plain", (tokens, width), (width, words), False, False),
        ("heads", (heads, length, head), (heads, head, length), False, False),
    ):
        x, y = randn(*a), randn(*b)
        x, y = x.mT if swap_a else x, y.mT if swap_b else y
        flops = 2 * x.numel() * y.shape[-1] / 1e12
        row(f"matmul_bf16_{name}", flops, "TFLOP/s", lambda: measure(lambda: x @ y))


def mlp():
    model = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    x, y = torch.randn(128, 784, device=device), torch.arange(128, device=device) % 10

    def step():
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    row("train_mlp", 1, "steps/s", lambda: measure(step))
    row("train_mlp_captured", 1, "steps/s", lambda: measure(step))


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


class Gpt2(nn.Module):
    def __init__(self, vocab=50257, context=1024, d=768, layers=12, heads=12):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, d), nn.Embedding(context, d)
        self.blocks = nn.ModuleList(Block(d, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(d)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, ids):
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.norm(x) @ self.wte.weight.T


def gpt2(batch, compiled):
    model = Gpt2().to(device).to(bf16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.01, fused=True)
    tokens = torch.randint(0, 50257, (batch, 1025), device=device)
    x, y = tokens[:, :-1].contiguous(), tokens[:, 1:].reshape(-1)
    loss_of = lambda x, y: F.cross_entropy(model(x).flatten(0, 1), y)
    if compiled:
        loss_of = torch.compile(loss_of)

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(x, y)
        loss.backward()
        optimizer.step()
        return loss.detach()
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    start, steps = time.perf_counter(), 20
    for _ in range(steps):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / steps


print(f"PyTorch {torch.__version__} on {torch.cuda.get_device_name()}", flush=True)
memory()
products()
mlp()
for batch in (16, 32, 64):
    for compiled in (False, True):
        name = f"train_gpt2_b{batch}" + ("_compiled" if compiled else "")
        row(name, batch * 1024, "tokens/s", lambda: gpt2(batch, compiled))
