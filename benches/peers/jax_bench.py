"""JAX's side of the comparison, compiled by `jit`: `jax_bench.py --job NAME --seconds S`. Chains of additions run
eagerly, as there the cost of one operation is asked for. Adam is written out, as JAX has no optimisers of its own."""

import jax
import jax.numpy as jnp
from jax import lax, nn

from harness import SEED, Parameters, conv2d_shape, integers, main, values


def tensor(stream, shape):
    return jnp.asarray(values(stream, shape))


def read(result):
    results = result if isinstance(result, (tuple, list)) else [result]
    return [r.astype(jnp.float32) for r in results]


def measure(bench, f, *inputs):
    """Times `f`, compiled."""
    compiled = jax.jit(f)
    bench.time(lambda: compiled(*inputs), read)


def both(f):
    """The result of `f` and its gradients for a given gradient of the result, which is the first argument. Where the
    gradients do not need the result, the compiler would leave it out if it were not asked for."""
    def of(seed, *inputs):
        y, pull = jax.vjp(f, *inputs)
        return (y, *pull(seed))
    return of


def gradient(bench, f, shape, *inputs):
    """Times `f`, whose result has this shape, and its gradients, compiled."""
    compiled, seed = jax.jit(both(f)), tensor(SEED, shape)
    bench.time(lambda: compiled(seed, *inputs), read)


def chain(x, b, n):
    for _ in range(n):
        x = x + b
    return x


def ten(a, b):
    """Ten elementwise operations."""
    y = nn.relu(a * 1.5 + b) * a - 0.25
    return jnp.clip(jnp.abs(y * b) + a, -3, 3) * 0.5


def linear(x, p):
    return x @ p["w"].T + p["b"]


def conv2d(x, p, stride=1, padding=0):
    dimensions = ("NCHW", "OIHW", "NCHW")
    y = lax.conv_general_dilated(x, p["w"], (stride, stride), [(padding, padding)] * 2, dimension_numbers=dimensions)
    return y + p["b"][:, None, None]


def layer_norm(x, p):
    x = x - x.mean(-1, keepdims=True)
    return x * lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-5) * p["w"] + p["b"]


def attention(q, k, v):
    """Over [batch, heads, time, width]."""
    q, k, v = (z.transpose(0, 2, 1, 3) for z in (q, k, v))
    return nn.dot_product_attention(q, k, v, is_causal=True).transpose(0, 2, 1, 3)


def cross_entropy(logits, y):
    return -jnp.take_along_axis(nn.log_softmax(logits), y[:, None], 1).mean()


class Source:
    """Layers with the parameters that all peers have."""

    def __init__(self):
        self.parameters = Parameters()

    def next(self, shape, fan_in):
        return jnp.asarray(self.parameters.next(shape, fan_in))

    def linear(self, inputs, outputs):
        return {"w": self.next([outputs, inputs], inputs), "b": self.next([outputs], inputs)}

    def conv(self, inputs, outputs, k):
        return {"w": self.next([outputs, inputs, k, k], inputs * k * k), "b": self.next([outputs], inputs * k * k)}

    def norm(self, d):
        return {"w": jnp.ones(d), "b": jnp.zeros(d)}


def gpt_parameters(vocab=256, context=256, d=384, layers=6):
    s = Source()
    tok, pos = s.next([vocab, d], 4), s.next([context, d], 4)
    blocks = [{"n1": s.norm(d), "qkv": s.linear(d, 3 * d), "proj": s.linear(d, d),
               "n2": s.norm(d), "up": s.linear(d, 4 * d), "down": s.linear(4 * d, d)} for _ in range(layers)]
    return {"tok": tok, "pos": pos, "blocks": blocks, "norm": s.norm(d), "head": s.next([vocab, d], d)}


def gpt(p, ids, heads=6):
    x = p["tok"][ids] + p["pos"][: ids.shape[1]]
    b, t, d = x.shape
    for block in p["blocks"]:
        qkv = jnp.split(linear(layer_norm(x, block["n1"]), block["qkv"]), 3, -1)
        q, k, v = (z.reshape(b, t, heads, d // heads) for z in qkv)
        a = nn.dot_product_attention(q, k, v, is_causal=True).reshape(b, t, d)
        x = x + linear(a, block["proj"])
        x = x + linear(nn.gelu(linear(layer_norm(x, block["n2"]), block["up"]), approximate=True), block["down"])
    return layer_norm(x, p["norm"]) @ p["head"].T


def train(bench, parameters, loss, batch, weight_decay):
    """Times steps of AdamW; without decay it is Adam. The batch is an argument, or it would be a constant."""
    def step(state, batch):
        parameters, m, v, t = state
        value, gradients = jax.value_and_grad(loss)(parameters, *batch)
        t = t + 1
        m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, gradients)
        v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, v, gradients)
        scale_m, scale_v = 1 / (1 - 0.9**t), 1 / (1 - 0.999**t)

        def update(p, m, v):
            return p - 1e-3 * weight_decay * p - 1e-3 * (m * scale_m) / (jnp.sqrt(v * scale_v) + 1e-8)
        return (jax.tree.map(update, parameters, m, v), m, v, t), value

    compiled = jax.jit(step, donate_argnums=0)
    zeros = lambda: jax.tree.map(jnp.zeros_like, parameters)
    state = (parameters, zeros(), zeros(), jnp.zeros(()))

    def call():
        nonlocal state
        state, value = compiled(state, batch)
        jax.block_until_ready(state)
        return value
    bench.train(call)


def run(job, bench):
    # A captured step of Gradus is compared with what JAX does for the same step.
    kind, sizes = job.kind.removesuffix("_captured"), job.sizes
    if kind in ("gemm_f32", "gemm_bf16", "matmul_bf16"):
        dtype = jnp.float32 if kind == "gemm_f32" else jnp.bfloat16
        m, k, n = sizes if kind == "matmul_bf16" else sizes * 3
        measure(bench, lambda a, b: a @ b, *(tensor(s, sides).astype(dtype) for s, sides in ((1, [m, k]), (2, [k, n]))))
    elif kind == "chain":
        a, b = tensor(1, sizes[:1]), tensor(2, sizes[:1])
        bench.time(lambda: chain(a, b, sizes[1]), read)
    elif kind == "chain_backward":
        w, b, seed = (tensor(stream, sizes[:1]) for stream in (1, 2, SEED))
        differentiated = both(lambda w: chain(w, b, sizes[1]))
        bench.time(lambda: differentiated(seed, w), read)
    elif kind in ("add", "silu_mul", "gelu_tanh", "exp", "sum"):
        a, b = tensor(1, sizes), tensor(2, sizes)
        if kind in ("add", "silu_mul"):
            measure(bench, (lambda a, b: a + b) if kind == "add" else (lambda a, b: nn.silu(a) * b), a, b)
        else:
            gelu = lambda a: nn.gelu(a, approximate=True)
            measure(bench, {"gelu_tanh": gelu, "exp": jnp.exp, "sum": jnp.sum}[kind], a)
    elif kind == "elementwise10":
        measure(bench, ten, tensor(1, sizes), tensor(2, sizes))
    elif kind == "conv_norm_relu":
        n, c, h, o, k, s = sizes
        p, x = Source().conv(c, o, k), tensor(1, [n, c, h, h])
        # A normalisation whose running mean is 0, and variance 1.
        f = lambda x, w, b: nn.relu(conv2d(x, {"w": w, "b": b}, s, k // 2) * (1 + 1e-5) ** -0.5)
        measure(bench, f, x, p["w"], p["b"])
    elif kind == "silu_mul_backward":
        gradient(bench, lambda a, b: nn.silu(a) * b, sizes, tensor(1, sizes), tensor(2, sizes))
    elif kind == "sum_rows":
        measure(bench, lambda x: x.sum(-1), tensor(1, sizes))
    elif kind == "softmax":
        measure(bench, lambda x: nn.softmax(x, axis=-1), tensor(1, sizes))
    elif kind == "softmax_backward":
        gradient(bench, lambda x: nn.softmax(x, axis=-1), sizes, tensor(1, sizes))
    elif kind in ("layer_norm", "layer_norm_backward"):
        inputs = tensor(1, sizes), tensor(2, sizes[1:]), tensor(3, sizes[1:])
        norm = lambda x, w, b: layer_norm(x, {"w": w, "b": b})
        measure(bench, norm, *inputs) if kind == "layer_norm" else gradient(bench, norm, sizes, *inputs)
    elif kind == "attention":
        measure(bench, attention, *(tensor(s, sizes) for s in (1, 2, 3)))
    elif kind == "attention_backward":
        gradient(bench, attention, sizes, *(tensor(s, sizes) for s in (1, 2, 3)))
    elif kind in ("conv2d", "conv2d_backward"):
        n, c, h, o, k, s = sizes
        p, x = Source().conv(c, o, k), tensor(1, [n, c, h, h])
        f = lambda x, w, b: conv2d(x, {"w": w, "b": b}, s, k // 2)
        if kind == "conv2d":
            measure(bench, f, x, p["w"], p["b"])
        else:
            gradient(bench, f, conv2d_shape(sizes), x, p["w"], p["b"])
    elif kind == "train_mlp":
        n, d, w, classes = sizes
        s, x, y = Source(), tensor(5, [n, d]), jnp.asarray(integers(2, [n], classes))
        layers = [s.linear(d, w), s.linear(w, w), s.linear(w, classes)]
        predict = lambda p, x: linear(nn.relu(linear(nn.relu(linear(x, p[0])), p[1])), p[2])
        train(bench, layers, lambda p, x, y: cross_entropy(predict(p, x), y), (x, y), 0.0)
    elif kind == "train_cnn":
        n, side = sizes
        s, x, y = Source(), tensor(1, [n, 1, side, side]), jnp.asarray(integers(2, [n], 10))
        layers = [s.conv(1, 32, 3), s.conv(32, 64, 3), s.linear(9216, 128), s.linear(128, 10)]

        def predict(p, x):
            z = nn.relu(conv2d(nn.relu(conv2d(x, p[0])), p[1]))
            z = lax.reduce_window(z, -jnp.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID").reshape(n, -1)
            return linear(nn.relu(linear(z, p[2])), p[3])
        train(bench, layers, lambda p, x, y: cross_entropy(predict(p, x), y), (x, y), 0.0)
    elif kind in ("train_gpt", "forward_gpt"):
        p, (ids, y) = gpt_parameters(), (jnp.asarray(integers(s, sizes, 256)) for s in (1, 2))
        if kind == "train_gpt":
            loss = lambda p, ids, y: cross_entropy(gpt(p, ids).reshape(-1, 256), y.ravel())
            train(bench, p, loss, (ids, y), 0.01)
        else:
            measure(bench, gpt, p, ids)
    else:
        bench.absent(f"the kind {kind} is not there")


main(run, finish=jax.block_until_ready)
