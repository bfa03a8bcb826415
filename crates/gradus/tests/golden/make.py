"""Makes values.safetensors: what PyTorch says, in f64, of every operation that Gradus shares with it.

    pip install torch==2.15.0 numpy safetensors
    cargo xtask bless --python python

A case is a name, inputs and a function; `record.py` says what the file holds of it. The samples of `samples.rs`, of which
the one argument is a JSON file, each have a case of their name; the other cases are below. `main.rs` has the same names
with the Gradus calls, and fails on a name that only one side has.
"""

import json
import keyword
import pathlib
import sys
import zlib

import numpy as np
import torch
import torch.nn.functional as F
from record import Record
from safetensors.torch import save_file

torch.set_default_dtype(torch.float64)
torch.set_num_threads(1)
rng = np.random.default_rng(20261121)
record = Record()
record.meta |= {"torch": torch.__version__, "numpy": np.__version__}


def randn(*shape):
    return torch.from_numpy(rng.standard_normal(shape))


def positive(*shape):
    return torch.from_numpy(rng.uniform(0.2, 3.0, shape))


def unit(*shape):
    return torch.from_numpy(rng.uniform(-0.9, 0.9, shape))


def ints(low, high, *shape):
    return torch.from_numpy(rng.integers(low, high, shape))


def bools(*shape):
    return torch.from_numpy(rng.random(shape) < 0.5)


def tensor(values, dtype=None):
    return torch.tensor(values, dtype=dtype)


def case(name, inputs, f, order=2, frozen=(), loose=0):
    """order: how often it is differentiated. frozen: float inputs that are not. loose: digits of accuracy given up."""
    leaves = [i for i, x in enumerate(inputs) if x.is_floating_point() and i not in frozen]
    stopped = record.case(name, inputs, leaves, f, order, loose)
    # PyTorch itself has no second derivative of a few.
    assert stopped is None or ("not implemented" in stopped and order == 2), stopped


nan, inf, tiny = float("nan"), float("inf"), 5e-324
SPECIAL = tensor([nan, inf, -inf, 0.0, -0.0, tiny, -tiny, 1e-310, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 710.0, -750.0, 1e300, -1e300, 3e-8])


# Gradus differs on purpose, and these are left out: sign(NaN) and slopes at NaN are NaN, PyTorch's are 0; silu and gelu of
# -inf are -0, PyTorch's NaN; relu(-0) is 0, PyTorch's -0; the larger of 0 and -0 is 0, as in IEEE 754, PyTorch's either;
# fmod is exact for a tiny divisor, PyTorch's NaN.
def without(values, *left_out):
    return torch.stack([v for v in values if str(v.item()) not in left_out])


def evaluated(sample):
    """The function that the sample's expression is."""
    names = {f"{n}_" if keyword.iskeyword(n) else n: v for n, v in sample["scalars"].items()}
    code = compile(sample["torch"], "torch", "eval")
    return lambda *x: eval(code, {"torch": torch, "F": F, **names, **dict(zip("abcd", x))})


SAMPLES = json.loads(pathlib.Path(sys.argv[1]).read_text())
CALLS = {name: evaluated(sample) for name, sample in SAMPLES.items()}
# Digits that are lost because PyTorch has constants of these in single precision.
LOOSE = dict.fromkeys(["celu", "hardsigmoid", "hardswish"], 6)


def samples():
    for name, sample in SAMPLES.items():
        # By its name, so that a new one changes no other.
        own = np.random.default_rng(zlib.crc32(name.encode()))
        draw = lambda kind, shape, *ends: own.uniform(*ends, shape) if kind == "floats" else own.random(shape) < 0.5
        inputs = [torch.from_numpy(np.asarray(draw(*i))) for i in sample["inputs"]]
        order = 2 if CALLS[name](*inputs).is_floating_point() else 0
        case(name, inputs, CALLS[name], order=order, loose=LOOSE.get(name, 0))
        record.meta[name] += f" sample={json.dumps(sample)}"


def special(name, *left_out, order=1):
    case(f"{name}/special", [without(SPECIAL, *left_out)], CALLS[name], order=order)


def elementwise():
    """Special values, ties and integers, beside what `samples` has."""
    for name in "neg sin cos tan exp expm1 erf sigmoid tanh square sqrt rsqrt log log1p recip floor ceil round trunc".split():
        special(name)
    special("abs", "nan")
    special("relu", "-0.0")
    special("sign", "nan", "-0.0")
    special("silu", "-inf", "inf")
    special("leaky_relu")
    special("clamp", "nan", "1.0", "-1.0")
    for name in "gelu gelu_tanh".split():
        special(name, "-inf", order=0)
    others = "sinh cosh atan asinh exp2 erfc asin acos atanh acosh log2 log10 frac isnan isfinite isinf signbit softplus"
    for name in others.split():
        special(name, order=0)
    left = SPECIAL.repeat(len(SPECIAL), 1)
    right = left.t().contiguous()
    for name in "add sub mul div".split():
        case(f"{name}/special", [left, right], CALLS[name], order=1)
    one_zero = without(SPECIAL, "-0.0")
    rows = one_zero.repeat(len(one_zero), 1)
    for name, order in {"maximum": 1, "minimum": 1, "fmax": 0, "fmin": 0}.items():
        case(f"{name}/special", [rows, rows.t().contiguous()], CALLS[name], order=order)
    plain = without(SPECIAL, "5e-324", "-5e-324", "1e-310")
    for name in "floor_div fmod remainder".split():
        case(f"{name}/special", [plain.repeat(len(plain), 1), plain.unsqueeze(1)], CALLS[name], order=0)
        case(f"{name}/integers", [tensor([7, -7, 7, -7]), tensor([3, 3, -3, -3])], CALLS[name], order=0)
    case("floor_div/python", [tensor([1.0, -1.0, 5.0, 0.7, 6.0]), tensor([0.1, 0.1, -0.3, 0.1, 2.0])], torch.floor_divide, order=0)
    case("pow/special", [left, right], torch.pow, order=0)
    case("pow/integer_exponents", [positive(4, 5) * torch.sign(randn(4, 5)), tensor([-2.0, 0.0, 1.0, 2.0, 3.0])], torch.pow, frozen=(1,))
    ties = tensor([1.0, 2.0, 3.0])
    for name in "maximum minimum".split():
        case(f"{name}/ties", [ties, tensor([1.0, 5.0, 0.0])], CALLS[name], order=1)
    for name in "eq ne lt le gt ge".split():
        case(f"{name}/special", [left, right], CALLS[name], order=0)
        case(f"{name}/integers", [ints(-2, 3, 4, 5), ints(-2, 3, 5)], CALLS[name], order=0)
    case("add/integers", [ints(-9, 9, 3, 4), ints(-9, 9, 4)], torch.add, order=0)
    case("mul/wraps", [tensor([2**62, -(2**63)]), tensor([4, -1])], torch.mul, order=0)
    case("div/integers", [ints(-9, 9, 3), tensor([2, 3, 4])], lambda a, b: (a.to(torch.float32) / b.to(torch.float32)), order=0)
    case("xlogy/zero", [tensor([0.0, 0.0, 1.0, 2.0]), tensor([0.0, nan, 0.0, 3.0])], torch.xlogy, order=0)
    case("round_half_away/half", [tensor([0.5, -0.5, 1.5, 2.5, -2.5])], CALLS["round_half_away"], order=0)
    case("cast/to_i64", [tensor([1.9, -1.9, 0.0, 2.0**40])], lambda x: x.to(torch.int64), order=0)
    case("cast/to_bool", [tensor([0.0, -0.0, 0.1, nan])], lambda x: x.to(torch.bool), order=0)
    case("nan_to_num", [tensor([nan, 1.0, -2.5])], torch.nan_to_num, order=1)
    case("nan_to_num/special", [SPECIAL], torch.nan_to_num, order=0)
    case("dropout", [randn(3, 5) * 2], lambda x: F.dropout(x, 0.0))
    case("lerp", [randn(3, 1, 4), randn(4), unit(5, 1)], torch.lerp)
    case("prelu", [randn(2, 3, 4), unit(3)], F.prelu)
    case("glu", [randn(3, 6)], lambda x: F.glu(x, 1))


def reductions():
    x = randn(3, 4, 5)
    for name, f in {
        "sum": lambda x: x.sum((0, 2)),
        "sum/keepdim": lambda x: x.sum((1,), keepdim=True),
        "sum/all": lambda x: x.sum(),
        "mean": lambda x: x.mean((0, -1)),
        "max": lambda x: x.amax((0, 2)),
        "min": lambda x: x.amin((1,)),
        "var": lambda x: x.var((0, 2)),
        "var/biased": lambda x: x.var((1,), correction=0, keepdim=True),
    }.items():
        case(name, [x], f)
    ties = tensor([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0], [nan, 1.0, nan]])
    case("max/ties", [ties[:2]], lambda x: x.amax((1,)), order=1)
    case("min/ties", [ties[:2]], lambda x: x.amin((1,)), order=1)
    case("max/nan", [ties], lambda x: x.amax((1,)), order=0)
    case("argmax", [ties], lambda x: x.argmax(1), order=0)
    case("argmin", [ties], lambda x: x.argmin(1), order=0)
    case("sum/empty", [torch.zeros(2, 0, 3)], lambda x: x.sum((1,)), order=1)
    case("mean/empty", [torch.zeros(2, 0)], lambda x: x.mean((1,)), order=0)
    case("sum/special", [SPECIAL[1:9].reshape(2, 4)], lambda x: x.sum((1,)), order=1)
    case("sum/bool", [bools(3, 4)], lambda x: x.sum((1,)), order=0)
    case("var/one", [randn(3, 1)], lambda x: x.var((1,)), order=0)


def products():
    case("matmul", [randn(3, 4), randn(4, 5)], torch.matmul)
    case("matmul/batched", [randn(2, 1, 3, 4), randn(5, 4, 2)], torch.matmul)
    case("matmul/vector_left", [randn(4), randn(2, 4, 3)], torch.matmul)
    case("matmul/vector_right", [randn(2, 3, 4), randn(4)], torch.matmul)
    case("matmul/dot", [randn(4), randn(4)], torch.matmul)
    case("matmul/transposed", [randn(4, 3), randn(5, 4)], lambda a, b: a.t() @ b.t())
    case("matmul/empty", [randn(3, 0), randn(0, 2)], torch.matmul)
    case("matmul/nan", [tensor([[0.0, 1.0]]), tensor([[inf], [1.0]])], torch.matmul, order=1)
    case("matmul/integers", [ints(-9, 9, 3, 4), ints(-9, 9, 4, 2)], torch.matmul, order=0)
    case("linear", [randn(2, 3, 4), randn(5, 4), randn(5)], F.linear)
    case("linear/plain", [randn(3, 4), randn(5, 4)], F.linear)


def layers():
    x, w, b = randn(2, 3, 7, 6), randn(4, 3, 3, 2), randn(4)
    case("conv2d", [x, w, b], F.conv2d)
    case("conv2d/stride_padding", [x, w, b], lambda x, w, b: F.conv2d(x, w, b, stride=(2, 1), padding=(1, 2)))
    case("conv2d/dilation", [x, w], lambda x, w: F.conv2d(x, w, dilation=(2, 3), padding=2))
    case("conv2d/groups", [randn(2, 4, 5, 5), randn(6, 2, 3, 3), randn(6)], lambda x, w, b: F.conv2d(x, w, b, groups=2))
    case("conv2d/depthwise", [randn(1, 3, 5, 5), randn(3, 1, 3, 3)], lambda x, w: F.conv2d(x, w, groups=3, padding=1))
    case("max_pool2d", [x], lambda x: F.max_pool2d(x, 2))
    case("max_pool2d/overlap", [x], lambda x: F.max_pool2d(x, 3, stride=2, padding=1))
    case("max_pool2d/nan", [tensor([nan, 1.0, 2.0, inf, -inf, -inf, -inf, -inf]).reshape(1, 1, 2, 4)], lambda x: F.max_pool2d(x, 2), order=0)
    case("avg_pool2d", [x], lambda x: F.avg_pool2d(x, 2))
    case("avg_pool2d/padding", [x], lambda x: F.avg_pool2d(x, 3, stride=2, padding=1))
    case("avg_pool2d/exclude", [x], lambda x: F.avg_pool2d(x, 3, stride=2, padding=1, count_include_pad=False))
    case("softmax", [randn(3, 4, 5)], lambda x: F.softmax(x, 1))
    case("log_softmax", [randn(3, 4, 5)], lambda x: F.log_softmax(x, -1))
    case("softmax/special", [tensor([[inf, 1.0], [-inf, 1.0], [-inf, -inf], [1000.0, -1000.0], [nan, 1.0]])], lambda x: F.softmax(x, 1), order=0)
    case("log_softmax/special", [tensor([[inf, 1.0], [-inf, 1.0], [-inf, -inf], [1000.0, -1000.0], [nan, 1.0]])], lambda x: F.log_softmax(x, 1), order=0)
    case("layer_norm", [randn(3, 4, 5), randn(4, 5), randn(4, 5)], lambda x, w, b: F.layer_norm(x, (4, 5), w, b))
    case("layer_norm/plain", [randn(3, 5)], lambda x: F.layer_norm(x, (5,), eps=1e-3))
    bn = [randn(4, 3, 2, 2), positive(3), randn(3)]
    case("batch_norm/train", bn, lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True))
    case("batch_norm_eval", [*bn, randn(3), positive(3)], lambda x, w, b, m, v: F.batch_norm(x, m, v, w, b, training=False), frozen=(3, 4))
    case("embedding", [ints(0, 6, 3, 4), randn(6, 5)], F.embedding)
    case("embedding/padding", [ints(0, 6, 3, 4), randn(6, 5)], lambda i, w: F.embedding(i, w, padding_idx=2))


def losses():
    x, t = randn(6, 5), ints(0, 5, 6)
    case("cross_entropy", [x, t], F.cross_entropy)
    case("cross_entropy/sum", [x, t], lambda x, t: F.cross_entropy(x, t, reduction="sum"))
    case("cross_entropy/none", [x, t], lambda x, t: F.cross_entropy(x, t, reduction="none"))
    case("cross_entropy/smoothing", [x, t], lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1))
    ignoring = t.clone()
    ignoring[1] = -100
    case("cross_entropy/ignore", [x, ignoring], lambda x, t: F.cross_entropy(x, t, ignore_index=-100))
    case("cross_entropy/all_ignored", [x[:2], tensor([-100, -100])], lambda x, t: F.cross_entropy(x, t), order=0)
    case("mse_loss", [randn(3, 4), randn(3, 4)], F.mse_loss)
    case("mse_loss/none", [randn(3, 4), randn(3, 4)], lambda a, b: F.mse_loss(a, b, reduction="none"))


def movement():
    x = randn(2, 3, 4)
    for name, f in {
        "reshape": lambda x: x.reshape(4, 6),
        "reshape/strided": lambda x: x.transpose(0, 2).reshape(6, 4),
        "flatten": lambda x: x.flatten(1),
        "permute": lambda x: x.permute(2, 0, 1),
        "transpose": lambda x: x.transpose(0, -1),
        "narrow": lambda x: x.narrow(2, 1, 2),
        "select": lambda x: x.select(1, -1),
        "slice": lambda x: x[:, :, 1:4:2],
        "squeeze": lambda x: x[:, :1].squeeze(1),
        "unsqueeze": lambda x: x.unsqueeze(-1),
        "expand": lambda x: x[:, :1].expand(2, 5, 4),
        "flip": lambda x: x.flip(1),
    }.items():
        case(name, [x], lambda x, f=f: f(x).sin())
    case("cat", [randn(2, 3), randn(2, 1), randn(2, 0)], lambda *x: torch.cat(x, 1).sin())
    case("stack", [randn(2, 3), randn(2, 3)], lambda *x: torch.stack(x, 1).sin())
    index = ints(0, 3, 2, 6, 4)
    case("gather", [x, index], lambda x, i: x.gather(1, i).sin())
    case("index_select", [x, tensor([2, 0, 2])], lambda x, i: x.index_select(1, i).sin())


def more_reductions():
    x = randn(3, 4, 5)
    case("prod", [x], lambda x: x.prod(1))
    zeros = x.clone()
    zeros[0, 1, 2] = zeros[1, 0, 0] = zeros[1, 3, 0] = 0.0
    case("prod/zeros", [zeros], lambda x: x.prod(1))
    case("any", [bools(3, 4)], lambda x: x.any(1), order=0)
    case("all", [bools(3, 4)], lambda x: x.all(1), order=0)
    case("std", [x], lambda x: x.std((0, 2)))
    case("logsumexp", [x], lambda x: x.logsumexp((1,)))
    case("logsumexp/special", [tensor([[-inf, -inf], [inf, 1.0], [1e3, 1e3], [-inf, 0.0]])], lambda x: x.logsumexp((1,)), order=0)
    for p, name in [(1, "one"), (2, "two"), (3, "three"), (inf, "inf"), (-inf, "lowest"), (0, "zero")]:
        case(f"norm/{name}", [x], lambda x: torch.linalg.vector_norm(x, p, dim=(1,)), order=1 if abs(p) == inf else (2 if p else 0))
    case("norm/at_zero", [torch.zeros(2, 3)], lambda x: torch.linalg.vector_norm(x, 2, dim=(1,)), order=1)
    case("cumsum", [x], lambda x: x.cumsum(1))
    case("cumprod", [x], lambda x: x.cumprod(1))
    case("cumprod/zeros", [zeros], lambda x: x.cumprod(1), order=1)
    case("logcumsumexp", [x], lambda x: x.logcumsumexp(1))
    case("cummax", [x], lambda x: x.cummax(1), order=1)
    case("cummin", [x], lambda x: x.cummin(1), order=1)
    ties = tensor([[2.0, 1.0, 2.0, nan, -inf], [0.0, 5.0, 0.0, 3.0, 5.0]])
    case("sort", [x], lambda x: x.sort(1))
    case("sort/ties", [ties], lambda x: x.sort(dim=1, stable=True), order=0)
    case("sort/descending", [ties], lambda x: x.sort(dim=1, descending=True, stable=True), order=0)
    case("argsort", [ties], lambda x: x.argsort(dim=1, stable=True), order=0)
    case("topk", [x], lambda x: x.topk(2, 1))
    case("topk/smallest", [x], lambda x: x.topk(2, 1, largest=False))
    case("kthvalue", [x], lambda x: x.kthvalue(2, 1))
    case("searchsorted", [tensor([1.0, 3.0, 3.0, 7.0]), tensor([0.0, 3.0, 5.0, 9.0])], torch.searchsorted, order=0)
    case("searchsorted/right", [tensor([1.0, 3.0, 3.0, 7.0]), tensor([0.0, 3.0, 5.0, 9.0])], lambda s, v: torch.searchsorted(s, v, right=True), order=0)
    case("bucketize", [tensor([0.0, 3.0, 5.0, 9.0]), tensor([1.0, 3.0, 3.0, 7.0])], torch.bucketize, order=0)
    case("aminmax", [x], lambda x: x.aminmax(dim=1))
    case("max_with_indices", [x], lambda x: x.max(1))
    case("min_with_indices", [x], lambda x: x.min(1))
    case("var_mean", [x], lambda x: torch.var_mean(x, (0, 2)))
    case("softmin", [x], lambda x: F.softmin(x, 1))
    case("round_decimals", [x], lambda x: x.round(decimals=1))
    case("bincount", [ints(0, 6, 20)], torch.bincount, order=0)
    case("unique", [ints(0, 6, 20)], lambda x: torch.unique(x, return_inverse=True, return_counts=True), order=0)


def more_products():
    case("einsum/matmul", [randn(3, 4), randn(4, 5)], lambda a, b: torch.einsum("ij,jk->ik", a, b))
    case("einsum/implicit", [randn(3, 4), randn(4, 5)], lambda a, b: torch.einsum("ij,jk", a, b))
    case("einsum/trace", [randn(4, 4)], lambda a: torch.einsum("ii", a))
    case("einsum/diagonal", [randn(4, 4)], lambda a: torch.einsum("ii->i", a))
    case("einsum/batched", [randn(2, 3, 4), randn(2, 4, 5)], lambda a, b: torch.einsum("bij,bjk->bik", a, b))
    case("einsum/ellipsis", [randn(2, 3, 4), randn(4, 5)], lambda a, b: torch.einsum("...j,jk->...k", a, b))
    case("einsum/three", [randn(3, 4), randn(4, 5), randn(5, 3)], lambda a, b, c: torch.einsum("ij,jk,ki->j", a, b, c))
    case("einsum/outer", [randn(3), randn(4)], lambda a, b: torch.einsum("i,j->ji", a, b))
    case("cross", [randn(2, 3), randn(2, 3)], lambda a, b: torch.linalg.cross(a, b, dim=1))
    case("kron", [randn(2, 3), randn(3, 2)], torch.kron)
    case("outer", [randn(3), randn(4)], torch.outer)
    case("tensordot", [randn(3, 4, 5), randn(5, 4, 2)], lambda a, b: torch.tensordot(a, b, dims=([1, 2], [1, 0])))
    case("cdist", [randn(2, 3, 4), randn(2, 5, 4)], torch.cdist)
    case("cdist/one", [randn(3, 4), randn(5, 4)], lambda a, b: torch.cdist(a, b, p=1.0), order=1)
    case("cdist/three", [randn(3, 4), randn(5, 4)], lambda a, b: torch.cdist(a, b, p=3.0), order=1)
    case("dot", [randn(4), randn(4)], torch.dot)
    case("addmm", [randn(3, 5), randn(3, 4), randn(4, 5)], lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=2.0))
    case("baddbmm", [randn(2, 3, 5), randn(2, 3, 4), randn(2, 4, 5)], lambda c, a, b: torch.baddbmm(c, a, b, beta=0.5, alpha=2.0))
    case("pairwise_distance", [randn(3, 4), randn(3, 4)], lambda a, b: F.pairwise_distance(a, b, 2.0, 1e-6))
    case("cosine_similarity", [randn(3, 4), randn(3, 4)], lambda a, b: F.cosine_similarity(a, b, dim=1))


def indexing():
    x, mask = randn(3, 4, 5), bools(3, 4, 5)
    case("masked_fill", [x, mask], lambda x, m: x.masked_fill(m, 7.0).sin())
    case("masked_select", [x, mask], lambda x, m: x.masked_select(m).sin())
    case("nonzero", [ints(0, 2, 3, 4)], torch.nonzero, order=0)
    index = torch.from_numpy(np.argsort(rng.random((3, 4, 5)), axis=1)[:, :3].copy())
    case("scatter", [x, index, randn(3, 3, 5)], lambda x, i, s: x.scatter(1, i, s).sin())
    repeated = ints(0, 4, 3, 6, 5)
    case("scatter_add", [x, repeated, randn(3, 6, 5)], lambda x, i, s: x.scatter_add(1, i, s).sin())
    for name in "sum prod mean amax amin".split():
        order = {"prod": 1, "amax": 1, "amin": 1}.get(name, 2)
        case(f"scatter_reduce/{name}", [x, repeated, randn(3, 6, 5)], lambda x, i, s: x.scatter_reduce(1, i, s, name).sin(), order=order)
    case("index_add", [x, tensor([0, 2, 0]), randn(3, 3, 5)], lambda x, i, s: x.index_add(1, i, s).sin())
    case("one_hot", [ints(0, 5, 3, 4)], lambda x: F.one_hot(x, 5), order=0)
    case("tril", [x], lambda x: x.tril(1).sin())
    case("triu", [x], lambda x: x.triu(-1).cos())
    case("diag/vector", [randn(4)], lambda x: x.diag(1).sin())
    case("diag/matrix", [randn(4, 5)], lambda x: x.diag(-1).sin())
    case("diagonal", [x], lambda x: x.diagonal(1, 0, 2).sin())
    case("trace", [randn(4, 4)], lambda x: x.sin().trace())
    case("roll", [x], lambda x: x.roll((1, -2), (0, 2)).sin())
    case("repeat", [randn(2, 3)], lambda x: x.repeat(2, 1, 3).sin())
    case("tile", [randn(2, 3)], lambda x: x.tile((2,)).sin())
    case("repeat_interleave", [randn(2, 3)], lambda x: x.repeat_interleave(2, 1).sin())
    y = randn(1, 2, 4, 5)
    case("pad/constant", [y], lambda x: F.pad(x, (1, 2, 0, 1), value=3.0).sin())
    case("pad/crop", [y], lambda x: F.pad(x, (-1, 2, 1, -1)).sin())
    for mode in "reflect replicate circular".split():
        case(f"pad/{mode}", [y], lambda x: F.pad(x, (1, 2, 2, 1), mode=mode).sin())
    case("unfold_axis", [randn(3, 7)], lambda x: x.unfold(1, 3, 2).sin())
    case("diag_embed", [randn(2, 3)], lambda x: torch.diag_embed(x, 1).sin())
    case("index_copy", [x, tensor([2, 0]), randn(3, 2, 5)], lambda x, i, s: x.index_copy(1, i, s).sin())
    case("index_fill", [x, tensor([2, 0])], lambda x, i: x.index_fill(1, i, 3.0).sin())
    case("count_nonzero", [ints(0, 2, 3, 4)], lambda x: x.count_nonzero(1), order=0)
    case("unflatten", [x], lambda x: x.unflatten(1, (2, 2)).sin())
    case("movedim", [x], lambda x: x.movedim((0, 2), (1, 0)).sin())
    case("split", [x], lambda x: [y.sin() for y in x.split(2, 2)])
    case("split_with_sizes", [x], lambda x: [y.sin() for y in x.split((1, 3), 1)])
    case("chunk", [x], lambda x: [y.sin() for y in x.chunk(2, 2)])
    case("unbind", [x], lambda x: [y.sin() for y in x.unbind(1)])
    case("meshgrid", [randn(2), randn(3)], lambda a, b: [y.sin() for y in torch.meshgrid(a, b, indexing="ij")])
    case("broadcast_tensors", [randn(2, 1), randn(3)], lambda a, b: [y.sin() for y in torch.broadcast_tensors(a, b)])
    rows, columns = tensor([0, 2, 0]), tensor([1, -1, 1])
    case("index", [x], lambda x: x[..., 1:4:2].sin())
    case("index/integer", [x], lambda x: x[-1, None, :, 2].sin())
    case("index/tensors", [x, rows, columns], lambda x, i, j: x[i, :, j].sin())
    case("index/adjacent", [x, rows, columns], lambda x, i, j: x[i, j].sin())
    case("index/mask", [x, bools(3, 4)], lambda x, m: x[m].sin())
    case("index_put", [x, rows, columns, randn(3, 5)], lambda x, i, j, v: x.index_put((i, j), v, accumulate=True).sin())

    def assigned(x, v):
        y = x.clone()
        y[1:, :, 0] = v
        return y.sin()

    case("index_assign", [x, randn(2, 4)], assigned)
    case("rot90", [randn(3, 4)], lambda x: x.rot90(1, (0, 1)).sin())


def more_layers():
    case("conv1d", [randn(2, 3, 8), randn(4, 3, 3), randn(4)], lambda x, w, b: F.conv1d(x, w, b, stride=2, padding=1))
    case("conv3d", [randn(1, 2, 4, 5, 4), randn(3, 2, 2, 3, 2), randn(3)], lambda x, w, b: F.conv3d(x, w, b, padding=(1, 0, 1)))
    case("conv_transpose1d", [randn(2, 3, 5), randn(3, 4, 3), randn(4)], lambda x, w, b: F.conv_transpose1d(x, w, b, stride=2, padding=1, output_padding=1))
    case("conv_transpose2d", [randn(2, 4, 4, 3), randn(4, 3, 3, 2), randn(6)], lambda x, w, b: F.conv_transpose2d(x, w, b, stride=(2, 1), groups=2))
    case("conv_transpose2d/dilation", [randn(1, 2, 4, 3), randn(2, 3, 3, 2)], lambda x, w: F.conv_transpose2d(x, w, dilation=(2, 3), padding=1))
    case("conv_transpose3d", [randn(1, 2, 3, 2, 3), randn(2, 2, 2, 3, 2)], F.conv_transpose3d)
    case("unfold", [randn(2, 3, 5, 6)], lambda x: F.unfold(x, (3, 2), padding=1, stride=2))
    case("fold", [randn(2, 18, 12)], lambda x: F.fold(x, (5, 6), (3, 2), padding=1, stride=2))
    x1, x3 = randn(2, 3, 9), randn(1, 2, 5, 4, 6)
    case("max_pool1d", [x1], lambda x: F.max_pool1d(x, 3, stride=2, padding=1))
    case("max_pool3d", [x3], lambda x: F.max_pool3d(x, 2))
    case("avg_pool1d", [x1], lambda x: F.avg_pool1d(x, 3, stride=2, padding=1))
    case("avg_pool3d", [x3], lambda x: F.avg_pool3d(x, 2))
    x2 = randn(2, 3, 7, 6)
    case("max_pool2d_with_indices", [x2], lambda x: F.max_pool2d(x, 3, stride=2, padding=1, return_indices=True))
    case("max_pool2d/ceil", [x2], lambda x: F.max_pool2d(x, 3, stride=2, ceil_mode=True))
    case("max_pool2d/dilation", [x2], lambda x: F.max_pool2d(x, 2, dilation=2))
    case("avg_pool2d/ceil", [x2], lambda x: F.avg_pool2d(x, 3, stride=2, padding=1, ceil_mode=True))
    case("adaptive_avg_pool1d", [x1], lambda x: F.adaptive_avg_pool1d(x, 4))
    case("adaptive_avg_pool2d", [x2], lambda x: F.adaptive_avg_pool2d(x, (3, 4)))
    case("adaptive_avg_pool3d", [x3], lambda x: F.adaptive_avg_pool3d(x, (2, 3, 4)))
    case("adaptive_max_pool1d", [x1], lambda x: F.adaptive_max_pool1d(x, 4))
    case("adaptive_max_pool3d", [x3], lambda x: F.adaptive_max_pool3d(x, (2, 3, 4)))
    case("adaptive_max_pool2d", [x2], lambda x: F.adaptive_max_pool2d(x, (3, 4)))
    case("group_norm", [randn(3, 4, 5), randn(4), randn(4)], lambda x, w, b: F.group_norm(x, 2, w, b))
    case("instance_norm", [randn(3, 4, 5)], F.instance_norm)
    case("rms_norm", [randn(3, 5), randn(5)], lambda x, w: F.rms_norm(x, (5,), w, eps=1e-6))
    case("normalize", [randn(3, 5)], lambda x: F.normalize(x, dim=1))
    q, k, v = randn(2, 4, 3, 5), randn(2, 4, 6, 5), randn(2, 4, 6, 7)
    math = torch.nn.attention.SDPBackend.MATH

    def attention(*args, **kwargs):
        with torch.nn.attention.sdpa_kernel(math):
            return F.scaled_dot_product_attention(*args, **kwargs)

    case("scaled_dot_product_attention", [q, k, v], attention)
    case("scaled_dot_product_attention/scale", [q, k, v], lambda q, k, v: attention(q, k, v, scale=0.7))
    keep = bools(3, 6)
    keep[:, 0] = True
    case("scaled_dot_product_attention/mask", [q, k, v, keep], lambda q, k, v, m: attention(q, k, v, attn_mask=m))
    case("scaled_dot_product_attention/bias", [q, k, v, randn(4, 3, 6)], lambda q, k, v, m: attention(q, k, v, attn_mask=m))
    k3, v3 = randn(2, 4, 3, 5), randn(2, 4, 3, 5)
    case("scaled_dot_product_attention/causal", [q, k3, v3], lambda q, k, v: attention(q, k, v, is_causal=True))
    case("scaled_dot_product_attention/grouped", [q, randn(2, 2, 6, 5), randn(2, 2, 6, 5)], lambda q, k, v: attention(q, k, v, enable_gqa=True))
    scores, keep = randn(3, 5), bools(3, 5)
    keep[0] = False
    case("masked_softmax", [scores, keep], lambda x, m: F.softmax(x.masked_fill(~m, -1e300), 1) * m)
    case("attention_with_lse", [q, k, v], lambda q, k, v: (attention(q, k, v), (q @ k.mT / 5**0.5).logsumexp(-1)))
    case("local_response_norm", [randn(2, 5, 3)], lambda x: F.local_response_norm(x, 3, 1e-1, 0.75, 2.0))
    theta = randn(2, 2, 3)
    case("affine_grid", [theta], lambda t: F.affine_grid(t, (2, 1, 3, 4), align_corners=False))
    x = randn(1, 2, 4, 5)
    for mode in "nearest nearest-exact bilinear bicubic".split():
        case(f"interpolate/{mode}", [x], lambda x: F.interpolate(x, (6, 3), mode=mode))
    case("interpolate/align_corners", [x], lambda x: F.interpolate(x, (6, 3), mode="bilinear", align_corners=True))
    case("interpolate/antialias", [x], lambda x: F.interpolate(x, (2, 3), mode="bilinear", antialias=True))
    case("interpolate/antialias_bicubic", [x], lambda x: F.interpolate(x, (2, 3), mode="bicubic", antialias=True))
    case("interpolate/linear", [randn(1, 2, 5)], lambda x: F.interpolate(x, 8, mode="linear"))
    case("interpolate/trilinear", [randn(1, 1, 2, 3, 2)], lambda x: F.interpolate(x, (3, 2, 4), mode="trilinear"))
    grid = torch.from_numpy(rng.uniform(-1.2, 1.2, (1, 3, 4, 2)))
    for mode in "bilinear nearest bicubic".split():
        for padding in "zeros border reflection".split():
            case(f"grid_sample/{mode}_{padding}", [x, grid], lambda x, g: F.grid_sample(x, g, mode=mode, padding_mode=padding, align_corners=False), order=1)


def more_losses():
    x, t, w = randn(6, 5), ints(0, 5, 6), positive(5)
    case("cross_entropy/weight", [x, t, w], lambda x, t, w: F.cross_entropy(x, t, w), frozen=(2,))
    case("cross_entropy/weight_smoothing", [x, t, w], lambda x, t, w: F.cross_entropy(x, t, w, label_smoothing=0.2), frozen=(2,))
    case("cross_entropy/probabilities", [x, F.softmax(randn(6, 5), 1)], F.cross_entropy)
    case("cross_entropy/spatial", [randn(2, 5, 3), ints(0, 5, 2, 3)], F.cross_entropy)
    case("nll_loss", [F.log_softmax(x, 1), t], F.nll_loss)
    case("nll_loss/weight", [F.log_softmax(x, 1), t, w], lambda x, t, w: F.nll_loss(x, t, w), frozen=(2,))
    y01 = torch.from_numpy(rng.random((6, 5)))
    case("bce_with_logits", [x, y01], F.binary_cross_entropy_with_logits)
    case("bce_with_logits/pos_weight", [x, y01, w], lambda x, y, w: F.binary_cross_entropy_with_logits(x, y, pos_weight=w), frozen=(1, 2))
    case("binary_cross_entropy", [torch.sigmoid(x), y01], F.binary_cross_entropy, frozen=(1,), loose=2)
    a, b = randn(3, 4), randn(3, 4)
    case("l1_loss", [a, b], F.l1_loss)
    case("smooth_l1_loss", [a, b], lambda a, b: F.smooth_l1_loss(a, b, beta=0.7))
    case("huber_loss", [a, b], lambda a, b: F.huber_loss(a, b, delta=0.7))
    case("kl_div", [F.log_softmax(a, 1), F.softmax(b, 1)], lambda a, b: F.kl_div(a, b, reduction="sum"))
    case("kl_div_batch_mean", [F.log_softmax(a, 1), F.softmax(b, 1)], lambda a, b: F.kl_div(a, b, reduction="batchmean"))
    case("kl_div/log_target", [F.log_softmax(a, 1), F.log_softmax(b, 1)], lambda a, b: F.kl_div(a, b, reduction="sum", log_target=True))
    signs = tensor([1.0, -1.0, 1.0])
    case("cosine_embedding_loss", [a, b, signs], lambda a, b, y: F.cosine_embedding_loss(a, b, y, margin=0.1), frozen=(2,))
    case("triplet_margin_loss", [a, b, randn(3, 4)], F.triplet_margin_loss)
    case("margin_ranking_loss", [randn(3), randn(3), signs], lambda a, b, y: F.margin_ranking_loss(a, b, y, margin=0.3), frozen=(2,))
    case("soft_margin_loss", [a, torch.sign(b)], F.soft_margin_loss, frozen=(1,))
    case("hinge_embedding_loss", [a, torch.sign(b)], lambda a, y: F.hinge_embedding_loss(a, y, margin=0.5), frozen=(1,))
    case("poisson_nll_loss", [a, positive(3, 4)], lambda a, t: F.poisson_nll_loss(a, t), frozen=(1,))
    case("gaussian_nll_loss", [a, b, positive(3, 4)], lambda a, b, v: F.gaussian_nll_loss(a, b, v))
    # The gradient that PyTorch gives is that of the logits.
    targets = tensor([[1, 2, 2], [3, 1, 0]])
    for reduction in ("mean", "sum"):
        case(f"ctc_loss/{reduction}", [randn(7, 2, 4), targets], lambda x, t: F.ctc_loss(F.log_softmax(x, 2), t, (7, 6), (3, 2), reduction=reduction), order=1)


def indices():
    x1, x2, x3 = randn(2, 3, 9), randn(2, 3, 7, 6), randn(1, 2, 5, 4, 6)
    case("max_pool1d_with_indices", [x1], lambda x: F.max_pool1d(x, 3, stride=2, padding=1, return_indices=True))
    case("max_pool3d_with_indices", [x3], lambda x: F.max_pool3d(x, 2, return_indices=True))
    case("adaptive_max_pool1d_with_indices", [x1], lambda x: F.adaptive_max_pool1d(x, 4, return_indices=True))
    case("adaptive_max_pool2d_with_indices", [x2], lambda x: F.adaptive_max_pool2d(x, (3, 4), return_indices=True))
    case("adaptive_max_pool3d_with_indices", [x3], lambda x: F.adaptive_max_pool3d(x, (2, 3, 4), return_indices=True))


def operands():
    """Scalars along an axis, sizes that stretch, orders below 0."""
    x, scalar = randn(3, 4), randn()
    case("norm/negative", [x], lambda x: torch.linalg.vector_norm(x, -1.5, 1))
    case("normalize/negative", [x], lambda x: F.normalize(x, p=-2.0, dim=1))
    case("normalize/zero", [x], lambda x: F.normalize(x, p=0.0, dim=1))
    case("sum/scalar", [scalar], lambda x: x.sin().sum(0))
    case("softmax/scalar", [scalar], lambda x: F.softmax(x, -1))
    case("cumsum/scalar", [scalar], lambda x: x.sin().cumsum(0))
    case("sort/scalar", [scalar], lambda x: x.sin().sort(0))
    case("max_with_indices/scalar", [scalar], lambda x: x.sin().max(-1, keepdim=True))
    case("gather/scalar", [scalar, tensor([0])], lambda x, i: x.gather(0, i).sin())
    case("gather/scalar_index", [randn(3), tensor(2)], lambda x, i: x.gather(0, i).sin())
    case("index_select/scalar_index", [x, tensor(2)], lambda x, i: x.index_select(1, i).sin())
    case("scatter_add/scalar", [scalar, tensor(0), randn()], lambda x, i, s: x.scatter_add(0, i, s).sin())
    case("index_add/scalar", [scalar, tensor(0), randn()], lambda x, i, s: x.index_add(0, i, s).sin())
    case("gather/i32", [x, ints(0, 4, 3, 2).to(torch.int32)], lambda x, i: x.gather(1, i).sin())
    case("nll_loss/u8", [F.log_softmax(x, 1), ints(0, 4, 3).to(torch.uint8)], F.nll_loss)
    case("linear/one_output", [randn(2, 3, 4), randn(4)], F.linear)
    case("linear/one_output_bias", [randn(2, 3, 4), randn(4), randn()], F.linear)
    case("tensordot/stretched", [randn(2, 1, 3), randn(4, 3, 5)], lambda a, b: torch.tensordot(a, b, dims=([1, 2], [0, 1])))
    case("cross/stretched", [randn(1, 4, 3), randn(2, 1, 3)], lambda a, b: torch.linalg.cross(a, b, dim=-1))
    case("gaussian_nll_loss/rows", [x, randn(3, 4), positive(3)], F.gaussian_nll_loss)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        stretched = [randn(2, 4, 5), randn(3, 1, 6, 5), randn(3, 2, 6, 7)]
        case("scaled_dot_product_attention/stretched", stretched, F.scaled_dot_product_attention)


def tails():
    """Far out, where a second derivative is small and its formula may cancel. PyTorch's may be wrong (higher.py).

    Not gelu and bce_with_logits: far out PyTorch's first gradient is only rounding, or 0."""
    forty = {"sigmoid": torch.sigmoid, "tanh": torch.tanh, "softplus": F.softplus, "log_sigmoid": F.logsigmoid, "silu": F.silu, "mish": F.mish}
    eight = {"erf": torch.erf, "erfc": torch.erfc}
    for far, functions in (40.0, forty), (8.0, eight):
        for name, f in functions.items():
            case(f"{name}/far_right", [tensor([far])], f, order=1)
            case(f"{name}/far_left", [tensor([-far])], f, order=1)


def recurrent():
    def operands(cell):
        states = [randn(2, 3) for _ in range(2 if cell == "lstm" else 1)]
        rows = {"lstm": 12, "gru": 9}.get(cell, 3)
        return [randn(4, 2, 2), *states, randn(rows, 2), randn(rows, 3), randn(rows), randn(rows)]

    def run(cell, x, *rest):
        states, weights = [h[None] for h in rest[:-4]], rest[-4:]
        states = tuple(states) if cell == "lstm" else states[0]
        y, *ends = getattr(torch, cell)(x, states, weights, True, 1, 0.0, False, False, False)
        return [y, *(h[0] for h in ends)]

    def reverse(cell, x, *rest):
        y, *ends = run(cell, x.flip(0), *rest)
        return [y.flip(0), *ends]

    def lengths(cell, x, *rest):
        long = run(cell, x[:, :1], *(h[:1] for h in rest[:-4]), *rest[-4:])
        short = run(cell, x[:2, 1:], *(h[1:] for h in rest[:-4]), *rest[-4:])
        y = torch.cat([long[0], torch.cat([short[0], torch.zeros(2, 1, 3)])], 1)
        return [y, *(torch.cat([a, b]) for a, b in zip(long[1:], short[1:]))]

    for cell in "rnn_tanh", "rnn_relu", "lstm", "gru":
        case(f"recurrent/{cell}", operands(cell), lambda *x: run(cell, *x))
    case("recurrent/lstm_reverse", operands("lstm"), lambda *x: reverse("lstm", *x))
    case("recurrent/gru_lengths", operands("gru"), lambda *x: lengths("gru", *x))


def integers():
    numbers = [ints(-128, 128, *shape).to(torch.int8) for shape in ((2, 4, 9), (9, 3))]
    case("matmul_i32", numbers, lambda a, b: a.to(torch.int32) @ b.to(torch.int32), order=0)


SECTIONS = [samples, elementwise, reductions, more_reductions, products, more_products, layers, more_layers]
SECTIONS += [losses, more_losses, movement, indexing, indices, operands, tails, recurrent, integers]


def main():
    for section in SECTIONS:
        section()
    path = pathlib.Path(__file__).with_name("values.safetensors")
    save_file(record.tensors, path, metadata=record.meta)
    print(f"{len(record.meta) - 2} cases, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
