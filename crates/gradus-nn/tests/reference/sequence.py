"""Makes sequence.safetensors: what PyTorch says, in f64, of its sequence layers.

    pip install torch==2.15.0 safetensors
    python3 sequence.py sequence.safetensors

A case has the state dict of the layer (`case/param/NAME`), float inputs (`case/in/N`), further arguments (`case/arg/NAME`),
outputs (`case/out/N`), random weights of these (`case/weight/N`), and the gradients of the weighted sum of all outputs by
each input and parameter (`case/din/N`, `case/dparam/NAME`). Bool masks are stored as Gradus takes them: true keeps.
"""

import math
import sys

import torch
from safetensors.torch import save_file
from torch import nn

torch.set_default_dtype(torch.float64)
torch.set_num_threads(1)
torch.manual_seed(20261124)
found = {}


def case(name, layer, inputs, run, args=()):
    inputs = [x.clone().requires_grad_() for x in inputs]
    if layer is not None:
        layer.zero_grad()
        for p in layer.parameters():
            with torch.no_grad():
                p.copy_(torch.randn_like(p) * 0.5)
        found.update({f"{name}/param/{k}": v.clone() for k, v in layer.state_dict().items()})
    outputs = run(*inputs)
    outputs = [outputs] if torch.is_tensor(outputs) else list(outputs)
    weights = [torch.randn_like(y) for y in outputs]
    sum((y * w).sum() for y, w in zip(outputs, weights)).backward()
    for i, x in enumerate(inputs):
        found[f"{name}/in/{i}"], found[f"{name}/din/{i}"] = x, x.grad
    for i, (y, w) in enumerate(zip(outputs, weights)):
        found[f"{name}/out/{i}"], found[f"{name}/weight/{i}"] = y, w
    if layer is not None:
        for k, p in layer.named_parameters():
            if p.grad is not None:
                found[f"{name}/dparam/{k}"] = p.grad
    found.update({f"{name}/arg/{k}": v for k, v in dict(args).items()})


def flat(y):
    """Output and states of a recurrent layer as one list."""
    output, states = y
    return [output, *states] if isinstance(states, tuple) else [output, states]


def packed(layer, x, lengths, states):
    x = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=layer.batch_first)
    y, states = layer(x, states)
    return flat((nn.utils.rnn.pad_packed_sequence(y, batch_first=layer.batch_first)[0], states))


def recurrent():
    makers = {
        "rnn_tanh": lambda *a, **k: nn.RNN(*a, **k),
        "rnn_relu": lambda *a, **k: nn.RNN(*a, nonlinearity="relu", **k),
        "lstm": lambda *a, **k: nn.LSTM(*a, **k),
        "gru": lambda *a, **k: nn.GRU(*a, **k),
    }
    cells = {
        "rnn_tanh": lambda bias: nn.RNNCell(3, 2, bias),
        "rnn_relu": lambda bias: nn.RNNCell(3, 2, bias, nonlinearity="relu"),
        "lstm": lambda bias: nn.LSTMCell(3, 2, bias),
        "gru": lambda bias: nn.GRUCell(3, 2, bias),
    }
    for name, make in makers.items():
        states = lambda shape: [torch.randn(*shape) for _ in range(2 if name == "lstm" else 1)]
        given = lambda s: tuple(s) if name == "lstm" else s[0]
        both = make(3, 2, num_layers=2, bidirectional=True)
        case(f"{name}/both", both, [torch.randn(4, 3, 3), *states((4, 3, 2))], lambda x, *s: flat(both(x, given(s))))
        batch = make(3, 2, num_layers=2, bidirectional=True, batch_first=True)
        case(f"{name}/lengths", batch, [torch.randn(3, 4, 3), *states((4, 3, 2))], lambda x, *s: packed(batch, x, [4, 2, 1], given(s)))
        plain = make(3, 2, bias=False)
        case(f"{name}/one_sequence", plain, [torch.randn(4, 3)], lambda x: flat(plain(x)))
        cell = cells[name](True)
        several = lambda y: list(y) if isinstance(y, tuple) else [y]
        case(f"{name}_cell/batch", cell, [torch.randn(3, 3), *states((3, 2))], lambda x, *s: several(cell(x, given(s))))
        bare = cells[name](False)
        case(f"{name}_cell/alone", bare, [torch.randn(3)], lambda x: several(bare(x)))


def attention():
    x, memory = torch.randn(2, 3, 4), torch.randn(2, 5, 4)
    keep = torch.rand(3, 5) < 0.6
    keep[:, 0] = True
    keys = torch.tensor([[True] * 5, [True, True, True, False, False]])
    bias, key_bias = torch.randn(3, 5), torch.randn(2, 5)
    layer = nn.MultiheadAttention(4, 2, batch_first=True)
    case("attention/self", layer, [x], lambda x: layer(x, x, x))
    case("attention/masks", layer, [x, memory], lambda x, m: layer(x, m, m, attn_mask=~keep, key_padding_mask=~keys), {"mask": keep, "keys": keys})
    case("attention/biases", layer, [x, memory, bias, key_bias], lambda x, m, b, k: layer(x, m, m, attn_mask=b, key_padding_mask=k))
    case("attention/mixed", layer, [x, memory, bias], lambda x, m, b: layer(x, m, m, attn_mask=b, key_padding_mask=torch.zeros(2, 5).masked_fill(~keys, -math.inf)), {"keys": keys})
    square = nn.Transformer.generate_square_subsequent_mask(3)
    case("attention/causal", layer, [x], lambda x: layer(x, x, x, attn_mask=square, is_causal=True, need_weights=False)[0])
    case("attention/causal_weights", layer, [x], lambda x: layer(x, x, x, attn_mask=square))
    case("attention/alone", layer, [x[0], memory[0]], lambda x, m: layer(x, m, m))
    sizes = nn.MultiheadAttention(4, 2, bias=False, kdim=3, vdim=5, batch_first=True)
    case("attention/sizes", sizes, [x, torch.randn(2, 5, 3), torch.randn(2, 5, 5)], lambda q, k, v: sizes(q, k, v))
    time = nn.MultiheadAttention(4, 2)
    case("attention/time_first", time, [torch.randn(3, 2, 4), torch.randn(5, 2, 4)], lambda x, m: time(x, m, m))
    more = nn.MultiheadAttention(4, 2, add_bias_kv=True, add_zero_attn=True, batch_first=True)
    case("attention/added", more, [x, memory], lambda x, m: more(x, m, m, attn_mask=~keep, key_padding_mask=~keys), {"mask": keep, "keys": keys})
    case("attention/added_causal", more, [x], lambda x: more(x, x, x, attn_mask=square)[0])


def transformers():
    config = {"dim_feedforward": 6, "dropout": 0.0, "batch_first": True}
    x, memory = torch.randn(2, 3, 4), torch.randn(2, 5, 4)
    keys = torch.tensor([[True] * 3, [True, True, False]])
    memory_keys = torch.tensor([[True] * 5, [True, False, True, True, False]])
    square = nn.Transformer.generate_square_subsequent_mask(3)
    post = nn.TransformerEncoderLayer(4, 2, **config)
    case("encoder_layer/post", post, [x], lambda x: post(x, src_mask=square, src_key_padding_mask=torch.zeros(2, 3).masked_fill(~keys, -math.inf)), {"keys": keys})
    first = nn.TransformerEncoderLayer(4, 2, activation="gelu", norm_first=True, bias=False, layer_norm_eps=1e-3, **config)
    case("encoder_layer/norm_first", first, [x], first)
    encoder = nn.TransformerEncoder(post, 2, nn.LayerNorm(4))
    case("encoder", encoder, [x], lambda x: encoder(x, mask=square))
    post = nn.TransformerDecoderLayer(4, 2, **config)
    case("decoder_layer/post", post, [x, memory], lambda x, m: post(x, m, tgt_mask=square, memory_key_padding_mask=~memory_keys), {"keys": memory_keys})
    first = nn.TransformerDecoderLayer(4, 2, activation="gelu", norm_first=True, **config)
    case("decoder_layer/norm_first", first, [x, memory], first)
    decoder = nn.TransformerDecoder(post, 2)
    case("decoder", decoder, [x, memory], lambda x, m: decoder(x, m, tgt_mask=square))
    model = nn.Transformer(4, 2, 1, 1, **config)
    case("transformer", model, [memory, x], lambda s, t: model(s, t, tgt_mask=square, src_key_padding_mask=~memory_keys, memory_key_padding_mask=~memory_keys), {"keys": memory_keys})


def positions():
    def angles(first, length, dim):
        return torch.outer(torch.arange(first, first + length).double(), 10000.0 ** (-torch.arange(0, dim, 2) / dim))

    def interleaved(x):  # RoFormer: a pair is a complex number
        turns = torch.polar(torch.ones(5, 2), angles(7, 5, 4))
        return torch.view_as_real(torch.view_as_complex(x.reshape(2, 3, 5, 2, 2)) * turns).flatten(-2)

    def half_split(x):  # rotate_half of Hugging Face's Llama
        a = angles(7, 5, 4)
        cos, sin = torch.cat([a.cos(), a.cos()], -1), torch.cat([a.sin(), a.sin()], -1)
        turned, rest = x[..., :4], x[..., 4:]
        half = torch.cat([-turned[..., 2:], turned[..., :2]], -1)
        return torch.cat([turned * cos + half * sin, rest], -1)

    case("rotary/interleaved", None, [torch.randn(2, 3, 5, 4)], interleaved)
    case("rotary/half_split", None, [torch.randn(2, 3, 5, 6)], half_split)
    # The table of the tutorial "Language Modeling with nn.Transformer".
    pe = torch.zeros(6, 8)
    position, div_term = torch.arange(6).unsqueeze(1), torch.exp(torch.arange(0, 8, 2) * (-math.log(10000.0) / 8))
    pe[:, 0::2], pe[:, 1::2] = torch.sin(position * div_term), torch.cos(position * div_term)
    found["sinusoidal/out/0"] = pe

    def slopes(n):  # the published code of ALiBi
        def power_of_2(n):
            start = 2 ** (-(2 ** -(math.log2(n) - 3)))
            return [start * start**i for i in range(n)]

        if math.log2(n).is_integer():
            return power_of_2(n)
        closest = 2 ** math.floor(math.log2(n))
        return power_of_2(closest) + slopes(2 * closest)[0::2][: n - closest]

    distance = -(torch.arange(3).unsqueeze(1) + 2 - torch.arange(5)).abs()
    found["alibi/out/0"] = torch.tensor(slopes(6)).reshape(6, 1, 1) * distance


def lora():
    layer = nn.ModuleDict({"base_layer": nn.Linear(4, 3), "lora_A": nn.Linear(4, 2, bias=False), "lora_B": nn.Linear(2, 3, bias=False)})
    layer["base_layer"].requires_grad_(False)
    case("lora", layer, [torch.randn(5, 4)], lambda x: layer["base_layer"](x) + 6.0 / 2 * layer["lora_B"](layer["lora_A"](x)))


def projected():
    states = lambda layers: (torch.randn(layers, 3, 2), torch.randn(layers, 3, 4))
    both = nn.LSTM(3, 4, num_layers=2, bidirectional=True, proj_size=2)
    case("lstm_projected/both", both, [torch.randn(5, 3, 3), *states(4)], lambda x, *s: flat(both(x, s)))
    batch = nn.LSTM(3, 4, num_layers=2, bidirectional=True, batch_first=True, proj_size=2)
    case("lstm_projected/lengths", batch, [torch.randn(3, 4, 3), *states(4)], lambda x, *s: packed(batch, x, [4, 2, 1], s))
    plain = nn.LSTM(3, 4, bias=False, proj_size=1)
    case("lstm_projected/one_sequence", plain, [torch.randn(4, 3)], lambda x: flat(plain(x)))


recurrent()
attention()
transformers()
positions()
lora()
projected()
save_file({k: v.detach().contiguous().clone() for k, v in found.items()}, sys.argv[1], {"torch": torch.__version__})
