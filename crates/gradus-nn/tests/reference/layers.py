"""What PyTorch's layers and losses compute, in f64, for `layers_pytorch.rs`.

    python3 layers.py layers.safetensors

Each case is one tensor: its parts one after the other, flat. The file's metadata has, for each case, the names and
shapes of its parts, in order:

    state:NAME   an entry of the state dict before the call
    out          the output of the call in training
    grad:K       the gradient of sum(out * projection) with respect to input number K
    grad:NAME    the same with respect to a parameter
    after:NAME   a buffer after the call
    eval         the output of a second call, in evaluation

Inputs and projections are not stored: element i of input k is 1.5 sin(1.7 i + k + 0.3), of the projection cos(0.9 i).
Parameters are random.
"""

import sys

import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn.utils import parametrizations

torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
cases, parts_of = {}, {}


def value(*shape, k=0):
    n = torch.Size(shape).numel()
    return (1.5 * torch.sin(1.7 * torch.arange(n) + k + 0.3)).reshape(shape)


def add(name, function, inputs, state=None, parameters=(), after=None, module=None):
    """A case: `function` of the inputs, of which the floats get gradients."""
    assert name not in cases, name
    parts = [(f"state:{n}", t.detach().clone()) for n, t in (state or {}).items()]
    inputs = [x.detach().clone().requires_grad_() if x.is_floating_point() else x for x in inputs]
    y = function(*inputs)
    parts.append(("out", y))
    if y.requires_grad:
        (y * torch.cos(0.9 * torch.arange(y.numel())).reshape(y.shape)).sum().backward()
        parts += [(f"grad:{i}", x.grad) for i, x in enumerate(inputs) if x.is_floating_point() and x.grad is not None]
        parts += [(f"grad:{n}", p.grad) for n, p in parameters if p.grad is not None]
    if module is not None:
        parts += [(f"after:{n}", b.clone()) for n, b in module.named_buffers()]
        if any(True for _ in module.named_buffers()) or isinstance(module, (nn.Dropout, nn.RReLU)):
            module.eval()
            parts.append(("eval", function(*inputs)))
    cases[name] = torch.cat([t.detach().double().reshape(-1) for _, t in parts])
    parts_of[name] = " ".join(f"{n}={','.join(map(str, t.shape))}" for n, t in parts)


def layer(name, module, *inputs, call=None):
    """A case of a module, whose parameters and statistics become random first."""
    with torch.no_grad():
        for n, p in module.named_parameters():
            p.copy_(torch.randn_like(p) * 0.7)
        for n, b in module.named_buffers():
            if n.endswith("running_mean"):
                b.copy_(torch.randn_like(b))
            elif n.endswith("running_var"):
                b.copy_(torch.rand_like(b) + 0.5)
    module.zero_grad()
    f = (lambda *x: call(module, *x)) if call else module
    add(name, f, inputs, module.state_dict(), list(module.named_parameters()), module=module)


# Activations. The alpha of CELU is a power of two: the gradient of PyTorch takes its inverse as an f32.
x = value(3, 4)
for name in "ReLU ReLU6 GELU SiLU Mish Sigmoid LogSigmoid Hardswish Tanh Tanhshrink Softsign SELU".split():
    layer(f"act/{name}", getattr(nn, name)(), x * 3)
# The gradient of PyTorch's own hardsigmoid takes 1 / 6 as an f32.
add("act/Hardsigmoid", lambda x: nn.functional.relu6(x + 3) / 6, [x * 3])
layer("act/GELUTanh", nn.GELU("tanh"), x)
for name, settings in {
    "LeakyReLU": [{}, {"negative_slope": 0.2}], "ELU": [{}, {"alpha": 0.4}], "CELU": [{}, {"alpha": -0.5}],
    "Softplus": [{}, {"beta": 2.5, "threshold": 3.0}], "Hardtanh": [{}, {"min_val": -0.5, "max_val": 0.2}],
    "Hardshrink": [{}, {"lambd": 0.9}], "Softshrink": [{}, {"lambd": 0.9}], "GLU": [{}, {"dim": 1}],
    "Threshold": [{"threshold": 0.3, "value": 7.0}],
}.items():
    for i, kw in enumerate(settings):
        layer(f"act/{name}{i}", getattr(nn, name)(**kw), value(3, 4, 2))
for name in "Softmax Softmin LogSoftmax".split():
    layer(f"act/{name}", getattr(nn, name)(dim=-1), x)
    layer(f"act/{name}1", getattr(nn, name)(dim=1), value(2, 3, 2))
layer("act/Softmax2d", nn.Softmax2d(), value(2, 3, 2, 2))
layer("act/Softmax2d3", nn.Softmax2d(), value(3, 2, 2))
layer("act/PReLU1", nn.PReLU(), x)
layer("act/PReLU4", nn.PReLU(4), value(2, 4, 3))
add("act/RReLU", nn.RReLU(0.1, 0.4).eval(), [x])

# Convolutions.
sizes = {1: [9], 2: [7, 6], 3: [4, 5, 3]}
for n in (1, 2, 3):
    conv, transpose = getattr(nn, f"Conv{n}d"), getattr(nn, f"ConvTranspose{n}d")
    k = [3, 2, 3][:n]
    layer(f"conv/{n}", conv(2, 3, k), value(2, 2, *sizes[n]))
    layer(f"conv/{n}full", conv(4, 2, k, stride=2, padding=1, dilation=1, groups=2, bias=False), value(1, 4, *sizes[n]))
    layer(f"conv/{n}dilated", conv(2, 2, k, dilation=[2, 3, 1][:n], padding=[2, 1, 1][:n]), value(1, 2, *sizes[n]))
    layer(f"conv/{n}same", conv(2, 2, [4, 2, 3][:n], padding="same", dilation=[1, 2, 1][:n]), value(1, 2, *sizes[n]))
    layer(f"conv/{n}valid", conv(1, 2, k, padding="valid"), value(1, 1, *sizes[n]))
    for mode in ("reflect", "replicate", "circular"):
        layer(f"conv/{n}{mode}", conv(1, 2, k, stride=2, padding=[2, 1, 1][:n], padding_mode=mode), value(1, 1, *sizes[n]))
        layer(f"conv/{n}{mode}same", conv(1, 2, [4, 2, 3][:n], padding="same", padding_mode=mode), value(1, 1, *sizes[n]))
    layer(f"conv/{n}t", transpose(2, 3, k), value(2, 2, *[3, 2, 2][:n]))
    layer(
        f"conv/{n}tfull",
        transpose(4, 2, k, stride=[2, 3, 2][:n], padding=1, output_padding=[1, 2, 0][:n], groups=2, bias=False,
                  dilation=[1, 1, 2][:n]),
        value(1, 4, *[3, 2, 2][:n]),
    )
    sized = [[7, 5, 5], [8, 6, 5]][n % 2][:n]
    layer(f"conv/{n}tsized", transpose(2, 1, k, stride=[2, 3, 2][:n]), value(1, 2, *[3, 2, 2][:n]),
          call=lambda m, x: m(x, output_size=sized))

# Pooling.
for n in (1, 2, 3):
    s, k, st, p = sizes[n], [3, 2, 2][:n], [2, 2, 1][:n], [1, 1, 0][:n]
    max_, avg, lp = (getattr(nn, f"{name}Pool{n}d") for name in ("Max", "Avg", "LP"))
    x, lp_k = value(2, 2, *s), k if n > 1 else k[0]
    for ceil in (False, True):
        layer(f"pool/max{n}{ceil}", max_(k, st, p, ceil_mode=ceil), x)
        layer(f"pool/max{n}dilated{ceil}", max_(k, st, p, dilation=[2, 1, 2][:n], ceil_mode=ceil), x)
        layer(f"pool/avg{n}{ceil}", avg(k, st, p, ceil_mode=ceil), x)
        layer(f"pool/avg{n}nopad{ceil}", avg(k, st, p, ceil_mode=ceil, count_include_pad=False), x)
        if n > 1:
            layer(f"pool/avg{n}divisor{ceil}", avg(k, st, p, ceil_mode=ceil, divisor_override=3), x)
        layer(f"pool/lp{n}{ceil}", lp(2.0, lp_k, st, ceil_mode=ceil), x)
    layer(f"pool/lp{n}odd", lp(3.0, lp_k, st), x.abs())
    out = [4, 3, 2][:n]
    layer(f"pool/aavg{n}", getattr(nn, f"AdaptiveAvgPool{n}d")(out), x)
    layer(f"pool/amax{n}", getattr(nn, f"AdaptiveMaxPool{n}d")(out), x)
    pool = max_(k, k, return_indices=True)
    unpool = getattr(nn, f"MaxUnpool{n}d")(k, k)
    add(f"pool/unpool{n}", lambda x: unpool(*pool(x)), [value(2, 2, *[2 * size for size in k])])
    add(f"pool/unpool{n}sized", lambda x: unpool(*pool(x), output_size=s), [x])

# Normalisation.
for n, shape in {1: [4, 3, 5], 2: [2, 3, 2, 2], 3: [2, 3, 1, 2, 2]}.items():
    bn, inorm = getattr(nn, f"BatchNorm{n}d"), getattr(nn, f"InstanceNorm{n}d")
    x = value(*shape)
    layer(f"norm/batch{n}", bn(3), x)
    layer(f"norm/batch{n}settings", bn(3, eps=0.1, momentum=0.7, bias=False), x)
    layer(f"norm/instance{n}", inorm(3), x)
    layer(f"norm/instance{n}affine", inorm(3, eps=0.1, affine=True), x)
    layer(f"norm/instance{n}tracked", inorm(3, affine=True, momentum=0.3, track_running_stats=True), x)
layer("norm/batch_vectors", nn.BatchNorm1d(3), value(5, 3))
layer("norm/batch_cumulative", nn.BatchNorm1d(3, momentum=None), value(5, 3))
layer("norm/batch_untracked", nn.BatchNorm1d(3, track_running_stats=False), value(5, 3))
layer("norm/batch_plain", nn.BatchNorm1d(3, affine=False), value(5, 3))
layer("norm/group", nn.GroupNorm(2, 4), value(2, 4, 3))
layer("norm/group_settings", nn.GroupNorm(4, 4, eps=0.1, bias=False), value(2, 4, 2, 2))
layer("norm/group_plain", nn.GroupNorm(1, 4, affine=False), value(2, 4, 3))
layer("norm/layer", nn.LayerNorm([3, 2]), value(2, 3, 2))
layer("norm/layer_settings", nn.LayerNorm(4, eps=0.1, bias=False), value(3, 4))
layer("norm/layer_plain", nn.LayerNorm(4, elementwise_affine=False), value(3, 4))
layer("norm/rms", nn.RMSNorm([4], eps=1e-6), value(3, 4))
layer("norm/rms_plain", nn.RMSNorm([3, 2], eps=0.1, elementwise_affine=False), value(2, 3, 2))
layer("norm/response", nn.LocalResponseNorm(2), value(2, 4, 3))
layer("norm/response_settings", nn.LocalResponseNorm(3, alpha=0.5, beta=0.4, k=2.0), value(1, 5, 2, 2))

# Linear layers and tables.
layer("linear/linear", nn.Linear(4, 3), value(2, 3, 4))
layer("linear/plain", nn.Linear(4, 3, bias=False), value(2, 4))
layer("linear/bilinear", nn.Bilinear(3, 2, 4), value(2, 3, 3), value(2, 3, 2, k=1))
layer("linear/bilinear_plain", nn.Bilinear(3, 2, 4, bias=False), value(5, 3), value(5, 2, k=1))
index = torch.tensor([[1, 2, 2], [4, 0, 3]])
layer("linear/embedding", nn.Embedding(5, 3), index)
layer("linear/embedding_padding", nn.Embedding(5, 3, padding_idx=2), index)
flat, offsets = torch.tensor([1, 2, 2, 4, 0, 3, 1]), torch.tensor([0, 3, 3, 5])
ends = torch.tensor([0, 3, 3, 7])
for mode in ("sum", "mean", "max"):
    layer(f"linear/bag_{mode}", nn.EmbeddingBag(5, 3, mode=mode), index)
    layer(f"linear/bag_{mode}_offsets", nn.EmbeddingBag(5, 3, mode=mode), flat, offsets)
    layer(f"linear/bag_{mode}_padding", nn.EmbeddingBag(5, 3, mode=mode, padding_idx=2), flat, offsets)
    layer(f"linear/bag_{mode}_last", nn.EmbeddingBag(5, 3, mode=mode, include_last_offset=True), flat, ends)
bag = lambda m, i, o, w: m(i, o, per_sample_weights=w)
layer("linear/bag_weighted", nn.EmbeddingBag(5, 3, mode="sum"), flat, offsets, value(7), call=bag)
layer("linear/bag_weighted_padding", nn.EmbeddingBag(5, 3, mode="sum", padding_idx=1), flat, offsets, value(7), call=bag)
layer("linear/bag_weighted_equal", nn.EmbeddingBag(5, 3, mode="sum"), index, value(2, 3),
      call=lambda m, i, w: m(i, per_sample_weights=w))
for name, make, x in [
    ("linear", lambda: nn.Linear(4, 3), value(2, 4)), ("conv", lambda: nn.Conv1d(2, 3, 2, padding=1), value(1, 2, 4)),
    ("transpose", lambda: nn.ConvTranspose1d(2, 3, 2), value(1, 2, 4)), ("embedding", lambda: nn.Embedding(5, 3), index),
]:
    layer(f"linear/weight_norm_{name}", parametrizations.weight_norm(make()), x)
    layer(f"linear/spectral_norm_{name}", parametrizations.spectral_norm(make()), x)
layer("linear/weight_norm_axis", parametrizations.weight_norm(nn.Conv1d(2, 3, 2), dim=1), value(1, 2, 4))
layer("linear/weight_norm_whole", parametrizations.weight_norm(nn.Linear(4, 3), dim=None), value(2, 4))
layer("linear/spectral_norm_steps", parametrizations.spectral_norm(nn.Linear(4, 3), n_power_iterations=3), value(2, 4))

# Layers that move elements, and comparisons.
for n in (1, 2, 3):
    x = value(1, 2, *[3, 4, 3][:n])
    pads = [1, 2, 0, 1, 2, 1][: 2 * n]
    for name in ("Zero", "Reflection", "Replication", "Circular"):
        layer(f"move/{name}Pad{n}", getattr(nn, f"{name}Pad{n}d")(tuple(pads)), x)
    layer(f"move/ConstantPad{n}", getattr(nn, f"ConstantPad{n}d")(tuple(-p if p == 2 else p for p in pads), 3.5), x)
layer("move/PixelShuffle", nn.PixelShuffle(2), value(2, 8, 2, 1))
layer("move/PixelUnshuffle", nn.PixelUnshuffle(2), value(2, 2, 4, 2))
layer("move/ChannelShuffle", nn.ChannelShuffle(3), value(2, 6, 2, 1))
layer("move/Unfold", nn.Unfold((2, 3), dilation=(1, 2), padding=(1, 2), stride=(2, 1)), value(1, 2, 4, 3))
layer("move/Fold", nn.Fold((4, 5), (2, 3), padding=(1, 0), stride=(2, 1)), value(1, 12, 9))
layer("move/Flatten", nn.Flatten(), value(2, 3, 2))
layer("move/Unflatten", nn.Unflatten(1, (2, 3)), value(2, 6))
layer("move/Identity", nn.Identity(), value(2, 3))
for mode, n in [("nearest", 1), ("nearest", 2), ("nearest", 3), ("linear", 1), ("bilinear", 2), ("trilinear", 3), ("bicubic", 2),
                ("area", 2)]:
    x = value(1, 2, *[4, 3, 2][:n])
    layer(f"move/{mode}{n}to", nn.Upsample(size=tuple([6, 2, 3][:n]), mode=mode), x)
    if mode != "area":
        layer(f"move/{mode}{n}by", nn.Upsample(scale_factor=tuple([1.5, 2.0, 2.0][:n]), mode=mode), x)
    if mode in ("linear", "bilinear", "trilinear", "bicubic"):
        layer(f"move/{mode}{n}corners", nn.Upsample(scale_factor=tuple([2.0] * n), mode=mode, align_corners=True), x)
a, b = value(3, 4), value(3, 4, k=1)
layer("move/CosineSimilarity", nn.CosineSimilarity(), a, b)
layer("move/CosineSimilarity0", nn.CosineSimilarity(dim=0, eps=1e-3), a, b)
layer("move/PairwiseDistance", nn.PairwiseDistance(), a, b)
layer("move/PairwiseDistance1", nn.PairwiseDistance(1.0, eps=0.1, keepdim=True), a, b)

# Losses.
every = ("none", "mean", "sum")
c, sign = value(4, k=2).abs(), torch.tensor([1.0, -1.0, 1.0, -1.0])
sign = sign.long()  # Integers get no gradient.
p, q = torch.sigmoid(value(3, 4)), torch.sigmoid(value(3, 4, k=1))
pw, w = value(4, k=3).abs(), value(4, k=4).abs()
classes, some = torch.tensor([2, 0, 3]), torch.tensor([2, -100, 3])
images = torch.tensor([[[1, 0], [2, 2]], [[0, 1], [1, 2]]])
sparse = torch.tensor([[1, 3, -1, 0], [0, -1, 1, 2], [3, 2, 0, 1]])
lengths = ((5, 4, 3), (3, 2, 0))
targets = torch.tensor([[1, 2, 2], [3, 1, 1], [1, 1, 1]])
logp = value(5, 3, 4).log_softmax(2)
for r in every:
    def loss(name, module, *inputs, call=None):
        layer(f"loss/{name}_{r}", module, *inputs, call=call)

    loss("L1", nn.L1Loss(reduction=r), a, b)
    loss("MSE", nn.MSELoss(reduction=r), a, b)
    loss("SmoothL1", nn.SmoothL1Loss(reduction=r), a, b)
    loss("SmoothL1_beta", nn.SmoothL1Loss(reduction=r, beta=0.3), a, b)
    loss("Huber", nn.HuberLoss(reduction=r), a, b)
    loss("Huber_delta", nn.HuberLoss(reduction=r, delta=0.3), a, b)
    loss("BCE", nn.BCELoss(reduction=r), p, q)
    loss("BCE_weight", nn.BCELoss(weight=w, reduction=r), p, q)
    loss("BCEWithLogits", nn.BCEWithLogitsLoss(reduction=r), a, q)
    loss("BCEWithLogits_weights", nn.BCEWithLogitsLoss(weight=w, pos_weight=pw, reduction=r), a, q)
    loss("SoftMargin", nn.SoftMarginLoss(reduction=r), value(4), sign)
    loss("KLDiv", nn.KLDivLoss(reduction=r), a.log_softmax(1), b.softmax(1))
    loss("KLDiv_log", nn.KLDivLoss(reduction=r, log_target=True), a.log_softmax(1), b.log_softmax(1))
    loss("PoissonNLL", nn.PoissonNLLLoss(reduction=r), a, b.abs() * 2)
    loss("PoissonNLL_rate", nn.PoissonNLLLoss(log_input=False, full=True, eps=0.1, reduction=r), a.abs(), b.abs() * 2)
    loss("GaussianNLL", nn.GaussianNLLLoss(reduction=r), a, b, value(3, 4, k=2).abs() + 0.1)
    loss("GaussianNLL_full", nn.GaussianNLLLoss(full=True, eps=0.5, reduction=r), a, b, value(3, 1, k=2).abs())
    loss("HingeEmbedding", nn.HingeEmbeddingLoss(reduction=r), c, sign)
    loss("HingeEmbedding_margin", nn.HingeEmbeddingLoss(0.4, reduction=r), c, sign)
    loss("MarginRanking", nn.MarginRankingLoss(reduction=r), value(4), value(4, k=1), sign)
    loss("MarginRanking_margin", nn.MarginRankingLoss(0.7, reduction=r), value(4), value(4, k=1), sign)
    loss("CosineEmbedding", nn.CosineEmbeddingLoss(reduction=r), value(4, 3), value(4, 3, k=1), sign)
    loss("CosineEmbedding_margin", nn.CosineEmbeddingLoss(0.2, reduction=r), value(4, 3), value(4, 3, k=1), sign)
    d = value(3, 4, k=2)
    loss("TripletMargin", nn.TripletMarginLoss(reduction=r), a, b, d)
    loss("TripletMargin_swap", nn.TripletMarginLoss(2.0, p=3.0, swap=True, reduction=r), a, b, d)
    loss("TripletDistance", nn.TripletMarginWithDistanceLoss(reduction=r), a, b, d)
    city = lambda x, y: (x - y).abs().sum(-1)
    loss("TripletDistance_swap", nn.TripletMarginWithDistanceLoss(distance_function=city, margin=3.0, swap=True, reduction=r),
         a, b, d)
    loss("CrossEntropy", nn.CrossEntropyLoss(reduction=r), a, classes)
    loss("CrossEntropy_ignored", nn.CrossEntropyLoss(reduction=r), a, some)
    loss("CrossEntropy_settings", nn.CrossEntropyLoss(w, ignore_index=3, label_smoothing=0.2, reduction=r), a, classes)
    loss("CrossEntropy_images", nn.CrossEntropyLoss(reduction=r), value(2, 3, 2, 2), images)
    loss("CrossEntropy_soft", nn.CrossEntropyLoss(w, label_smoothing=0.2, reduction=r), a, b.softmax(1))
    loss("NLL", nn.NLLLoss(reduction=r), a.log_softmax(1), some)
    loss("NLL_settings", nn.NLLLoss(w, ignore_index=3, reduction=r), a.log_softmax(1), classes)
    loss("MultiMargin", nn.MultiMarginLoss(reduction=r), a, classes)
    loss("MultiMargin_settings", nn.MultiMarginLoss(2, margin=2.0, weight=w, reduction=r), a, classes)
    loss("MultiMargin_one", nn.MultiMarginLoss(reduction=r), value(4), torch.tensor(2))
    loss("MultiLabelMargin", nn.MultiLabelMarginLoss(reduction=r), a, sparse)
    loss("MultiLabelMargin_one", nn.MultiLabelMarginLoss(reduction=r), value(4), sparse[0])
    loss("MultiLabelSoftMargin", nn.MultiLabelSoftMarginLoss(reduction=r), a, (b > 0).double().long())
    loss("MultiLabelSoftMargin_weight", nn.MultiLabelSoftMarginLoss(w, reduction=r), a, (b > 0).double().long())
    # PyTorch's CTC gradient is that of logits, so the case begins there.
    loss("CTC", nn.CTCLoss(reduction=r), value(5, 3, 4), call=lambda m, x: m(x.log_softmax(2), targets, *lengths))
    loss("CTC_zero", nn.CTCLoss(blank=3, zero_infinity=True, reduction=r), value(5, 3, 4),
         call=lambda m, x: m(x.log_softmax(2), torch.tensor([1, 2, 0, 0, 0]), (5, 4, 2), (2, 0, 3)))
layer("loss/KLDiv_batchmean", nn.KLDivLoss(reduction="batchmean"), a.log_softmax(1), b.softmax(1))

# Behind the layers above, since each layer takes the next random parameters.
for n in (2, 3):
    s, k, out = {2: [7, 6], 3: [6, 7, 5]}[n], [2, 3, 2][:n], {2: [4, 3], 3: [4, 4, 3]}[n]
    x = value(2, 2, *s)
    u = (value(2, 2, n, k=5) / 3.1 + 0.5).detach()
    pool = getattr(nn, f"FractionalMaxPool{n}d")
    add(f"pool/fractional{n}", lambda x: pool(k, out, _random_samples=u)(x), [x])
    add(f"pool/fractional{n}places", lambda x: pool(k, out, _random_samples=u, return_indices=True)(x)[1].double(), [x])
    add(f"pool/fractional{n}ratio", lambda x: pool(k, output_ratio=(0.5, 0.4, 0.6)[:n], _random_samples=u)(x), [x])
    add(f"pool/fractional{n}one", lambda x: pool(k, [1] * n, _random_samples=u)(x), [x])
classes = torch.tensor([0, 5, 2, 9, 3, 3])
for name, settings in {"": {}, "_bias": {"div_value": 2.0, "head_bias": True}}.items():
    adaptive = nn.AdaptiveLogSoftmaxWithLoss(8, 10, [3, 6] if name else [4], **settings)
    layer(f"linear/adaptive{name}", adaptive, value(6, 8), classes, call=lambda m, x, y: m(x, y).output)
    layer(f"linear/adaptive{name}_loss", adaptive, value(6, 8), classes, call=lambda m, x, y: m(x, y).loss)
    layer(f"linear/adaptive{name}_all", adaptive, value(6, 8), call=lambda m, x: m.log_prob(x))
    layer(f"linear/adaptive{name}_predict", adaptive, value(6, 8), call=lambda m, x: m.predict(x))
    layer(f"linear/adaptive{name}_one", adaptive, value(8), torch.tensor(7), call=lambda m, x, y: m(x, y).output)

save_file(cases, sys.argv[1], metadata=parts_of)
