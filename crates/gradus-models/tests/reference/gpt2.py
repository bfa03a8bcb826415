"""What transformers' GPT-2 computes in f64: writes `gpt2.safetensors` beside this file, for `tests/gpt2.rs`.

Run with PyTorch, transformers and safetensors at hand:  python gpt2.py
Parameters come from a formula that the test has too: element `j` of parameter `i`, in the order of `named_parameters`, is
`((37 j + 59 i + 11) mod 101 - 50) / 250`, plus 1 for the weight of a layer norm.
"""

from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.generation import (
    RepetitionPenaltyLogitsProcessor, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper)

torch.set_default_dtype(torch.float64)
TOKENS = [[3, 1, 4, 1, 5, 9, 2], [6, 5, 3, 5, 8, 12, 0]]
TARGETS = [[1, 4, 1, 5, 9, 2, 6], [5, 3, 5, 8, 12, 0, 7]]
out = {}
for case, settings in {
    "gelu_new": {},
    "relu": {"n_inner": 12, "activation_function": "relu", "layer_norm_epsilon": 1e-3, "n_layer": 1},
    "gelu": {"n_inner": 12, "activation_function": "gelu", "n_layer": 1, "n_head": 4},
}.items():
    config = GPT2Config(**{"vocab_size": 13, "n_positions": 8, "n_embd": 8, "n_layer": 2, "n_head": 2, **settings})
    model = GPT2LMHeadModel(config).double().eval()
    with torch.no_grad():
        for i, (name, p) in enumerate(model.named_parameters()):
            j = torch.arange(p.numel())
            values = ((37 * j + 59 * i + 11) % 101 - 50).double() / 250
            p.copy_(values.reshape(p.shape) + (1 if ".ln_" in name and name.endswith("weight") else 0))
    logits = model(torch.tensor(TOKENS)).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.tensor(TARGETS).flatten())
    loss.backward()
    out[f"{case}/logits"], out[f"{case}/loss"] = logits.detach(), loss.detach()
    for name, p in model.named_parameters():
        out[f"{case}/gradient/{name}"] = p.grad
    names = {name: list(t.shape) for name, t in model.state_dict().items()}
    for name, shape in names.items():
        out[f"{case}/shape/{name}"] = torch.tensor(shape)

logits = ((torch.arange(40) * 37 % 41).double() - 20) / 7
seen = torch.tensor([[5, 7, 7, 30]])
for case, steps in {
    "plain": [],
    "temperature": [TemperatureLogitsWarper(0.7)],
    "top_k": [TopKLogitsWarper(5)],
    "top_p": [TopPLogitsWarper(0.6)],
    "penalty": [RepetitionPenaltyLogitsProcessor(1.3)],
    "all": [RepetitionPenaltyLogitsProcessor(1.3), TemperatureLogitsWarper(1.5), TopKLogitsWarper(20),
            TopPLogitsWarper(0.8)],
}.items():
    scores = logits[None].clone()
    for step in steps:
        scores = step(seen, scores)
    out[f"sampling/{case}"] = scores.softmax(-1)[0]

save_file({name: t.contiguous() for name, t in out.items()}, Path(__file__).with_suffix(".safetensors"))
