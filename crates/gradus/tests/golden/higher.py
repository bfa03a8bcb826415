"""Makes higher.txt: whether PyTorch's second derivatives are right, in each combination of forward and reverse mode.

    pip install torch==2.15.0 numpy safetensors
    cargo xtask bless --python python

The cases are those of `make.py`. A line is a case and what PyTorch gives in reverse over reverse, forward over reverse,
reverse over forward and forward over forward: `right`, the relative error (`nan`, `inf`), or `refused`. `higher.rs` does the same with
Gradus: the losses, directions and errors are computed here as there.
"""

import collections
import pathlib
import warnings

import make
import torch
import torch.nn.functional as F
from record import Record
from torch.func import grad, jvp

TOLERANCE = 1e-6
STEPS = (1e-3, 1e-4, 1e-5)


def wave(like, salt):
    i = torch.arange(like.numel(), dtype=torch.float64)
    return torch.sin((i + 7 * salt) * 1.7 + 0.9).reshape(like.shape)


def irregular(like, salt):
    return 0.3 + wave(like, salt)


def weight(like, salt):
    w = wave(like, salt)
    return w + torch.copysign(torch.tensor(0.5), w)


def losses(f, inputs, leaves):
    """Of the call as it is, and of the sine of its outputs, which also bends what is linear."""

    def loss(bend):
        def phi(*points):
            x = list(inputs)
            for i, p in zip(leaves, points):
                x[i] = p
            outs = f(*x)
            total = 0.0 * sum(p.sum() for p in points)
            for i, y in enumerate([outs] if isinstance(outs, torch.Tensor) else outs):
                if y.is_floating_point():
                    total = total + (weight(y, i) * bend(y)).sum()
            return total

        return phi

    return loss(lambda y: y), loss(lambda y: torch.sin(y + irregular(y, 11)))


def modes(phi, x, u, v):
    """Each a call that gives the product of the second derivatives with u, as a list, or the last with u and v.

    The first is by `torch.autograd`, which does that for more operations, the others are by `torch.func`."""
    numbers = tuple(range(len(x)))
    along = lambda *p: jvp(phi, p, u)[1]
    return [
        lambda: reverse_over_reverse(phi, x, u),
        lambda: jvp(grad(phi, argnums=numbers), x, u)[1],
        lambda: grad(along, argnums=numbers)(*x),
        lambda: [jvp(along, x, v)[1]],
    ]


def gradient(phi, x, **options):
    points = [p.detach().requires_grad_(True) for p in x]
    return points, torch.autograd.grad(phi(*points), points, materialize_grads=True, **options)


def reverse_over_reverse(phi, x, u):
    points, found = gradient(phi, x, create_graph=True)
    total = sum((g * d).sum() for g, d in zip(found, u))
    if not total.requires_grad:
        return [torch.zeros_like(p) for p in points]
    return torch.autograd.grad(total, points, materialize_grads=True)


def flat(tensors):
    return torch.cat([t.reshape(-1) for t in tensors]) if tensors else torch.zeros(0)


def largest(t):
    return t.abs().max().item() if t.numel() else 0.0


def error(got, want, scale):
    off = largest(got - want)
    return 0.0 if off == 0 else off / scale if scale > 0 else float("inf")


def errors(phi, x, u, v):
    """The errors of the four modes against differences of the gradient along u, the least over the steps.

    An error is None where PyTorch refuses; nothing at all where the value or the gradient is no number."""
    at = lambda k: flat(gradient(phi, [p + k * d for p, d in zip(x, u)])[1])
    g, across = at(0.0), flat(v)
    if not (phi(*x).isfinite() and g.isfinite().all()):
        return None
    found, wants = [], []
    for h in STEPS:
        a, b, c, d = (at(k * h) for k in (-2, -1, 1, 2))
        wants.append((8 * (c - b) - (d - a)) / (12 * h))
    for n, mode in enumerate(modes(phi, x, u, v)):
        try:
            got = flat(mode())
        except (RuntimeError, NotImplementedError):
            found.append(None)
            continue
        if n < 3:
            found.append(min(error(got, w, max(largest(w), 1e-3 * largest(g))) for w in wants))
        else:
            sums = [(across * w).abs().sum().item() for w in wants]
            floor = 1e-3 * (across * g).abs().sum().item()
            found.append(min(error(got, (across * w).sum(), max(s, floor)) for w, s in zip(wants, sums)))
    return found


def word(pair):
    if None in pair:
        return "refused"
    worst = max(pair, key=lambda e: (e != e, e))  # NaN is the worst
    return "right" if worst <= TOLERANCE else f"{worst:.2g}"


class Verdicts(Record):
    """Draws what `make.py` draws, and differentiates each case in the four modes."""

    def __init__(self):
        super().__init__()
        self.lines, self.inputs = {}, {}

    def case(self, name, inputs, leaves, f, order, loose=0):
        stopped = super().case(name, inputs, leaves, f, order, loose)
        self.inputs[name] = inputs
        self.verdict(name, inputs, leaves, f)
        return stopped

    def verdict(self, name, inputs, leaves, f):
        words = self.words([x.detach().clone() for x in inputs], leaves, f) if leaves else None
        if words:
            self.lines[name] = words

    def words(self, inputs, leaves, f):
        """None where the output is a constant, or no number."""
        outs = f(*(t.requires_grad_(i in leaves) for i, t in enumerate(inputs)))
        if not any(y.requires_grad for y in ([outs] if isinstance(outs, torch.Tensor) else outs)):
            return None
        inputs = [t.detach() for t in inputs]
        x = tuple(inputs[i] for i in leaves)
        u, v = (tuple(irregular(inputs[i], i + salt) for i in leaves) for salt in (3, 5))
        try:
            both = [errors(phi, x, u, v) for phi in losses(f, inputs, leaves)]
        except (RuntimeError, NotImplementedError):
            return ["refused"] * 4  # not even a gradient
        return None if None in both else [word(pair) for pair in zip(*both)]


def ctc_lengths(x, t):
    return F.ctc_loss(F.log_softmax(x, 2), t.clamp(min=1), [len(x)] * len(t), [t.shape[1]] * len(t), reduction="sum", zero_infinity=True)


# The calls that `orders.rs` makes beside those of the file, with the case whose inputs they take.
MORE = {
    "cast/f64": ("abs", lambda x: x.to(torch.float64).sin()),
    "nan_to_num/numbers": ("abs", torch.nan_to_num),
    "unique/float": ("abs", lambda x: torch.unique(x).sin()),
    "bincount/weights": ("diag/vector", lambda x: torch.bincount(torch.tensor([2, 0, 2, 1]), x).sin()),
    "reshape/inferred": ("sum", lambda x: x.reshape(-1).sin()),
    "expand/leading": ("sum", lambda x: x.expand(2, *x.shape).sin()),
    "ctc_loss/lengths": ("ctc_loss/mean", ctc_lengths),
    "cdist/inf": ("cdist/one", lambda a, b: torch.cdist(a, b, p=float("inf"))),
    "normalize/one": ("normalize", lambda x: F.normalize(x, 1.0, 1)),
    "normalize/inf": ("normalize", lambda x: F.normalize(x, float("inf"), 1)),
    "var/nothing": ("var", lambda x: x.var((0, 1, 2), correction=0)),
    "layer_norm/no_bias": ("layer_norm", lambda x, w, _: F.layer_norm(x, (4, 5), w)),
}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    make.record = Verdicts()
    for section in make.SECTIONS:
        section()
    for name, (of, f) in MORE.items():
        inputs = make.record.inputs[of]
        make.record.verdict(name, inputs, [i for i, x in enumerate(inputs) if x.is_floating_point()], f)
    path = pathlib.Path(__file__).with_name("higher.txt")
    lines = [f"{name} | {' '.join(words)}" for name, words in make.record.lines.items()]
    path.write_text("\n".join([f"# PyTorch {torch.__version__}", *lines]) + "\n")
    for n in range(4):
        count = lambda w: w if w in ("right", "refused") else "wrong"
        print(collections.Counter(count(words[n]) for words in make.record.lines.values()))
