"""Makes pytorch.txt: the slopes that PyTorch takes at all kinks.

    pip install torch==2.15.0 numpy
    cargo xtask bless --python python

The one argument is a JSON file with the points, which the test writes.

A line is a name, the operands, and their slopes; `-` where PyTorch has no such operation or refuses.
"""

import json
import keyword
import pathlib
import sys

import torch
import torch.nn.functional as F

torch.set_default_dtype(torch.float64)
inf, nan = float("inf"), float("nan")


def counted(y):
    return y * torch.arange(1.0, y.numel() + 1).reshape(y.shape)


def spatial(x, rank):
    return x.reshape(*([1] * (rank + 1)), -1)


def pixel(x, mode, padding):
    image = torch.tensor([0.0, 1.0, 4.0]).reshape(1, 1, 1, 3)
    along = x.reshape(1, 1, -1, 1) - 1
    grid = torch.cat([along, torch.zeros_like(along)], 3)
    return F.grid_sample(image, grid, mode=mode, padding_mode=padding, align_corners=True)


def reduced(x, s, how):
    return x.scatter_reduce(0, torch.tensor([0, 0]), s, how)


def attention(q, k, v):
    q, k, v = spatial(q, 2), spatial(k, 2), spatial(v, 2)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=q > 9)


def norm(p):
    return lambda x: torch.linalg.vector_norm(x, p)


def cdist(p):
    return lambda a, b: torch.cdist(a[None], b[None], p=p, compute_mode="donot_use_mm_for_euclid_dist")


def label(*values):
    return torch.tensor(values)


def evaluated(point):
    names = {f"{n}_" if keyword.iskeyword(n) else n: v for n, v in point["scalars"].items()}
    code = compile(point["torch"], "torch", "eval")
    return lambda *x: eval(code, {**globals(), **names, **dict(zip("abcd", x))})


def text(lists):
    return "; ".join(" ".join(repr(v) for v in values) for values in lists)


lines = [f"# PyTorch {torch.__version__}"]
for name, point in json.loads(pathlib.Path(sys.argv[1]).read_text()).items():
    inputs, slopes = point["inputs"], "-"
    points = [torch.tensor(v, requires_grad=True) for v in inputs]
    if point["torch"]:
        try:
            y = evaluated(point)(*points).sum()
            found = torch.autograd.grad(y, points, allow_unused=True)
            slopes = text([[0.0] * len(v) if g is None else g.tolist() for v, g in zip(inputs, found)])
        except RuntimeError as e:
            print(name, e)
    lines.append(f"{name} | {text(inputs)} | {slopes}")
pathlib.Path(__file__).with_name("pytorch.txt").write_text("\n".join(lines) + "\n")
