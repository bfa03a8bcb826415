"""Makes pytorch.txt: the slopes that PyTorch takes at the kinks of table.rs.

    pip install torch==2.15.0 numpy
    python crates/gradus/tests/kinks/pytorch.py

A line is a name, the operands, and their slopes; `-` where PyTorch has no such operation or refuses.
"""

import pathlib

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


two = [[2.0], [2.0]]
three = [[1.0, 3.0, 3.0]]
same = [[1.0, 2.0], [1.0, 2.0]]
KINKS = {
    "abs": ([[0.0, -0.0]], torch.abs),
    "relu": ([[0.0, -0.0]], F.relu),
    "relu_mul": ([[0.0], [3.0]], lambda a, b: F.relu(a) * b),
    "leaky_relu": ([[0.0]], lambda x: F.leaky_relu(x, 0.1)),
    "prelu": ([[0.0], [0.25]], F.prelu),
    "elu": ([[0.0]], lambda x: F.elu(x, 0.7)),
    "selu": ([[0.0]], F.selu),
    "celu": ([[0.0]], lambda x: F.celu(x, 1.3)),
    "softsign": ([[0.0]], F.softsign),
    "relu6": ([[0.0, 6.0]], F.relu6),
    "hardtanh": ([[-1.0, 1.0]], F.hardtanh),
    "clamp": ([[-1.0, 1.0]], lambda x: x.clamp(-1, 1)),
    "hardsigmoid": ([[-3.0, 3.0]], F.hardsigmoid),
    "hardswish": ([[-3.0, 3.0]], F.hardswish),
    "hardshrink": ([[-0.5, 0.5]], F.hardshrink),
    "softshrink": ([[-0.5, 0.5]], F.softshrink),
    "threshold": ([[0.1]], lambda x: F.threshold(x, 0.1, 20.0)),
    "copysign": ([[0.0, 0.0], [1.0, -1.0]], lambda a, b: torch.copysign(a, b.detach())),
    "nan_to_num": ([[nan, inf, -inf]], torch.nan_to_num),
    "where_": ([[nan], [2.0]], lambda a, b: torch.where(a == 0, a, b)),
    "where_/steep": ([[0.0]], lambda x: torch.where(x > 0, x.sqrt(), x)),
    "grid_sample/bilinear": ([[1.0]], lambda x: pixel(x, "bilinear", "zeros")),
    "grid_sample/border": ([[0.0, 2.0]], lambda x: pixel(x, "bilinear", "border")),
    "maximum": (two, torch.maximum),
    "minimum": (two, torch.minimum),
    "fmax": (two, torch.fmax),
    "fmin": (two, torch.fmin),
    "max": (three, lambda x: x.amax(0)),
    "min": ([[1.0, 1.0, 3.0]], lambda x: x.amin(0)),
    "aminmax": ([[2.0, 2.0]], lambda x: (lambda r: r.min + 2 * r.max)(x.aminmax(dim=0))),
    "max_with_indices": (three, lambda x: x.max(0).values),
    "min_with_indices": ([[1.0, 1.0, 3.0]], lambda x: x.min(0).values),
    "sort": ([[2.0, 1.0, 2.0]], lambda x: counted(x.sort(stable=True).values)),
    "topk": ([[3.0, 3.0, 3.0]], lambda x: counted(x.topk(2).values)),
    "kthvalue": ([[3.0, 3.0, 3.0]], lambda x: x.kthvalue(2).values),
    "unique": ([[2.0, 2.0]], None),
    "cummax": ([[2.0, 2.0, 1.0]], lambda x: counted(x.cummax(0).values)),
    "cummin": ([[1.0, 1.0, 2.0]], lambda x: counted(x.cummin(0).values)),
    "max_pool1d": (three, lambda x: F.max_pool1d(spatial(x, 1), 3)),
    "max_pool2d": (three, lambda x: F.max_pool2d(spatial(x, 2), (1, 3))),
    "max_pool2d_with_indices": (three, lambda x: F.max_pool2d(spatial(x, 2), (1, 3), return_indices=True)[0]),
    "max_pool1d_with_indices": (three, lambda x: F.max_pool1d(spatial(x, 1), 3, return_indices=True)[0]),
    "max_pool3d_with_indices": (three, lambda x: F.max_pool3d(spatial(x, 3), (1, 1, 3), return_indices=True)[0]),
    "adaptive_max_pool1d_with_indices": (three, lambda x: F.adaptive_max_pool1d(spatial(x, 1), 1, return_indices=True)[0]),
    "adaptive_max_pool2d_with_indices": (three, lambda x: F.adaptive_max_pool2d(spatial(x, 2), 1, return_indices=True)[0]),
    "adaptive_max_pool3d_with_indices": (three, lambda x: F.adaptive_max_pool3d(spatial(x, 3), 1, return_indices=True)[0]),
    "max_pool3d": (three, lambda x: F.max_pool3d(spatial(x, 3), (1, 1, 3))),
    "adaptive_max_pool1d": (three, lambda x: F.adaptive_max_pool1d(spatial(x, 1), 1)),
    "adaptive_max_pool2d": (three, lambda x: F.adaptive_max_pool2d(spatial(x, 2), 1)),
    "adaptive_max_pool3d": (three, lambda x: F.adaptive_max_pool3d(spatial(x, 3), 1)),
    "scatter_reduce/amax": ([[2.0, 1.0], [2.0, 2.0]], lambda x, s: reduced(x, s, "amax")),
    "scatter_reduce/amin": ([[2.0, 1.0], [2.0, 2.0]], lambda x, s: reduced(x, s, "amin")),
    "norm/zero": ([[0.0, 2.0]], norm(0)),
    "norm/half": ([[0.0, 4.0]], norm(0.5)),
    "norm/one": ([[0.0, 2.0]], norm(1)),
    "norm/two": ([[0.0, 0.0]], norm(2)),
    "norm/three": ([[0.0, 0.0]], norm(3)),
    "norm/inf": ([[0.0, 0.0]], norm(inf)),
    "norm/inf_ties": ([[3.0, -3.0, 1.0]], norm(inf)),
    "norm/lowest": ([[0.0, 3.0]], norm(-inf)),
    "std": ([[2.0, 2.0]], lambda x: x.std()),
    "hypot": ([[0.0], [0.0]], torch.hypot),
    "atan2": ([[0.0], [0.0]], torch.atan2),
    "cdist/one": ([[0.0, 0.0], [0.0, 2.0]], cdist(1.0)),
    "cdist/two": (same, cdist(2.0)),
    "cdist/three": (same, cdist(3.0)),
    "cdist/inf": (same, cdist(inf)),
    "pairwise_distance": (same, lambda a, b: F.pairwise_distance(a, b, 2.0, 0.0)),
    "cosine_similarity": ([[0.0, 0.0], [3.0, 4.0]], lambda a, b: F.cosine_similarity(a, b, 0, 0.1)),
    "normalize/two": ([[0.0, 0.0]], lambda x: counted(F.normalize(x, 2.0, 0, 0.1))),
    "normalize/inf": ([[3.0, 3.0]], lambda x: counted(F.normalize(x, inf, 0, 0.1))),
    "sign": ([[0.0, 1.5]], torch.sign),
    "floor": ([[1.0, 1.5]], torch.floor),
    "ceil": ([[1.0, 1.5]], torch.ceil),
    "round": ([[0.5, 1.2]], torch.round),
    "round_half_away": ([[0.5, 1.2]], None),
    "round_decimals": ([[0.25, 1.22]], lambda x: x.round(decimals=1)),
    "trunc": ([[1.0, 1.5]], torch.trunc),
    "frac": ([[1.0, 1.5]], torch.frac),
    "floor_div": ([[6.0], [3.0]], torch.floor_divide),
    "trunc_div": ([[6.0], [3.0]], lambda a, b: torch.div(a, b, rounding_mode="trunc")),
    "fmod": ([[6.0, -7.0], [3.0, 3.0]], torch.fmod),
    "remainder": ([[6.0, -7.0], [3.0, 3.0]], torch.remainder),
    "grid_sample/nearest": ([[0.5]], lambda x: pixel(x, "nearest", "zeros")),
    "sqrt": ([[0.0]], torch.sqrt),
    "rsqrt": ([[0.0]], torch.rsqrt),
    "recip": ([[0.0, -0.0]], torch.reciprocal),
    "log": ([[0.0]], torch.log),
    "log2": ([[0.0]], torch.log2),
    "log10": ([[0.0]], torch.log10),
    "log1p": ([[-1.0]], torch.log1p),
    "asin": ([[-1.0, 1.0]], torch.asin),
    "acos": ([[-1.0, 1.0]], torch.acos),
    "acosh": ([[1.0]], torch.acosh),
    "atanh": ([[-1.0, 1.0]], torch.atanh),
    "div": ([[1.0], [0.0]], torch.div),
    "pow/square": ([[0.0], [2.0]], torch.pow),
    "pow/one": ([[0.0], [1.0]], torch.pow),
    "pow/half": ([[0.0], [0.5]], torch.pow),
    "pow/zero": ([[0.0], [0.0]], torch.pow),
    "pow/negative": ([[-2.0], [2.0]], torch.pow),
    "xlogy/zero": ([[0.0], [0.0]], torch.xlogy),
    "xlogy/one": ([[0.0], [2.0]], torch.xlogy),
    "l1_loss": ([[1.0], [1.0]], F.l1_loss),
    "smooth_l1_loss": ([[1.5], [1.0]], lambda a, b: F.smooth_l1_loss(a, b, beta=0.5)),
    "smooth_l1_loss/zero": ([[1.0], [1.0]], lambda a, b: F.smooth_l1_loss(a, b, beta=0.0)),
    "huber_loss": ([[1.5], [1.0]], lambda a, b: F.huber_loss(a, b, delta=0.5)),
    "margin_ranking_loss": ([[1.5], [1.0]], lambda a, b: F.margin_ranking_loss(a, b, label(1.0), 0.5)),
    "hinge_embedding_loss": ([[0.5]], lambda a: F.hinge_embedding_loss(a, label(-1.0), 0.5)),
    "cosine_embedding_loss": ([[1.0, 0.0], [0.0, 1.0]], lambda a, b: F.cosine_embedding_loss(a[None], b[None], label(-1.0))),
    "triplet_margin_loss": ([[0.0], [1.0], [2.0]], lambda a, p, n: F.triplet_margin_loss(a, p, n, p=1.0)),
    "binary_cross_entropy": ([[0.0, 1.0]], lambda x: F.binary_cross_entropy(x, label(1.0, 0.0), reduction="sum")),
    "gaussian_nll_loss": ([[1.0], [0.01]], lambda a, v: F.gaussian_nll_loss(a, torch.zeros(1), v, eps=0.1)),
    "kl_div": ([[-1.0], [0.0]], lambda a, t: F.kl_div(a, t, reduction="sum")),
    "kl_div_batch_mean": ([[-1.0], [0.0]], lambda a, t: F.kl_div(a, t, reduction="batchmean")),
    "poisson_nll_loss": ([[0.0]], lambda a: F.poisson_nll_loss(a, torch.zeros(1), log_input=False, eps=0.0)),
    "ctc_loss": ([[-0.5, -0.9]], lambda x: F.ctc_loss(spatial(x, 1), torch.tensor([[1, 1]]), (1,), (2,), reduction="sum")),
    "logaddexp/nothing": ([[-inf], [-inf]], torch.logaddexp),
    "logaddexp/infinite": ([[inf], [inf]], torch.logaddexp),
    "logaddexp/one": ([[-inf], [0.0]], torch.logaddexp),
    "logsumexp/nothing": ([[-inf, -inf]], lambda x: x.logsumexp(0)),
    "logsumexp/infinite": ([[inf, inf, 1.0]], lambda x: x.logsumexp(0)),
    "logcumsumexp": ([[-inf, 0.0]], lambda x: x.logcumsumexp(0)),
    "masked_softmax": ([[1.0, 2.0]], lambda x: counted(F.softmax(x[None].masked_fill(x[None] <= 9, -inf), 1))),
    "scaled_dot_product_attention": ([[1.0], [2.0], [3.0]], attention),
    "attention_with_lse": ([[1.0], [2.0], [3.0]], attention),
    "prod": ([[0.0, 2.0, 3.0], [0.0, 0.0, 3.0]], lambda a, b: a.prod() + b.prod()),
    "cumprod": ([[2.0, 0.0, 3.0]], lambda x: x.cumprod(0)),
}

def text(lists):
    return "; ".join(" ".join(repr(v) for v in values) for values in lists)


lines = [f"# PyTorch {torch.__version__}"]
for name, (inputs, f) in KINKS.items():
    points = [torch.tensor(v, requires_grad=True) for v in inputs]
    slopes = "-"
    if f is not None:
        try:
            y = f(*points).sum()
            found = torch.autograd.grad(y, points, allow_unused=True)
            slopes = text([[0.0] * len(v) if g is None else g.tolist() for v, g in zip(inputs, found)])
        except RuntimeError as e:
            print(name, e)
    lines.append(f"{name} | {text(inputs)} | {slopes}")
pathlib.Path(__file__).with_name("pytorch.txt").write_text("\n".join(lines) + "\n")
