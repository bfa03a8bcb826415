"""Reference trajectories of the optimisers, computed by PyTorch 2.15 in f64.

    python3 optimizers.py > optimizers.json

Each of `cases` has the kind, its hyper-parameters, and the values after each step from `start` with `gradients`. LAMB
and Lion are not in PyTorch: `lamb` and `lion` below are their papers' algorithms, in NumPy. `muon` has matrices, and
`lbfgs` a loss instead of gradients.
"""

import json
import math
import sys

import numpy as np
import torch

torch.set_default_dtype(torch.float64)


def lamb(p, gradients, lr, beta1, beta2, eps, weight_decay):
    """You et al., 2020, algorithm 2, where the ratio of the norms is 1 if either is 0."""
    m, v, path = np.zeros_like(p), np.zeros_like(p), []
    for t, g in enumerate(gradients, start=1):
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g**2
        u = m / (1 - beta1**t) / (np.sqrt(v / (1 - beta2**t)) + eps) + weight_decay * p
        norms = np.linalg.norm(p), np.linalg.norm(u)
        ratio = norms[0] / norms[1] if norms[0] > 0 and norms[1] > 0 else 1.0
        p = p - lr * ratio * u
        path.append(p.tolist())
    return path


def lion(p, gradients, lr, beta1, beta2, weight_decay):
    """Chen et al., 2023, algorithm 2."""
    m, path = np.zeros_like(p), []
    for g in gradients:
        c = beta1 * m + (1 - beta1) * g
        p = p - lr * (np.sign(c) + weight_decay * p)
        m = beta2 * m + (1 - beta2) * g
        path.append(p.tolist())
    return path


def steps(make, start, gradients):
    p = torch.nn.Parameter(torch.tensor(start))
    optimizer, path = make([p]), []
    for g in gradients:
        p.grad = torch.tensor(g)
        optimizer.step()
        path.append(p.detach().tolist())
    return path


def with_betas(make):
    return lambda p, beta1, beta2, **config: make(p, betas=(beta1, beta2), **config)


KINDS = {
    "sgd": torch.optim.SGD,
    "adam": with_betas(torch.optim.Adam),
    "adamw": with_betas(torch.optim.AdamW),
    "rmsprop": torch.optim.RMSprop,
    "adagrad": torch.optim.Adagrad,
    "adadelta": torch.optim.Adadelta,
    "adamax": with_betas(torch.optim.Adamax),
    "nadam": with_betas(torch.optim.NAdam),
    "radam": with_betas(torch.optim.RAdam),
}

OURS = {"lamb": lamb, "lion": lion}


def variants(**lists):
    """One configuration for each position of the lists; a single value stands for all of them."""
    n = max(len(v) for v in lists.values() if isinstance(v, list))
    return [{k: v[i] if isinstance(v, list) else v for k, v in lists.items()} for i in range(n)]


CASES = {
    "sgd": variants(
        lr=0.05,
        momentum=[0.0, 0.0, 0.9, 0.9, 0.9, 0.5, 0.9, 0.8],
        dampening=[0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.3, 1.5],
        nesterov=[False, False, False, False, True, True, False, False],
        weight_decay=[0.0, 0.1, 0.0, 0.01, 0.0, 0.2, 0.0, 0.1],
        maximize=[False, False, False, False, False, True, False, True],
    ),
    "adam": variants(
        lr=[0.01, 0.1, 0.02, 0.05, 0.05],
        beta1=[0.9, 0.8, 0.0, 0.9, 0.7],
        beta2=[0.999, 0.95, 0.5, 0.6, 0.9],
        eps=[1e-8, 1e-3, 1e-8, 1e-8, 1e-6],
        weight_decay=[0.0, 0.05, 0.3, 0.0, 0.2],
        amsgrad=[False, False, False, True, True],
        maximize=[False, False, True, False, False],
    ),
    "rmsprop": variants(
        lr=0.02,
        alpha=[0.99, 0.9, 0.9, 0.8, 0.99, 0.5, 0.9, 1.0],
        eps=[1e-8, 1e-4, 1e-8, 1e-8, 1e-8, 1e-6, 1e-8, 1e-2],
        weight_decay=[0.0, 0.1, 0.0, 0.1, 0.0, 0.1, 0.0, 0.3],
        momentum=[0.0, 0.0, 0.9, 0.9, 0.0, 0.0, 0.8, 0.5],
        centered=[False, False, False, False, True, True, True, True],
    ),
    "adagrad": variants(
        lr=[0.01, 0.1, 0.1],
        lr_decay=[0.0, 0.1, 0.0],
        weight_decay=[0.0, 0.2, 0.0],
        initial_accumulator_value=[0.0, 0.0, 0.7],
        eps=[1e-10, 1e-10, 1e-2],
    ),
    "adadelta": variants(lr=[1.0, 0.5], rho=[0.9, 0.7], eps=[1e-6, 1e-3], weight_decay=[0.0, 0.2]),
    "adamax": variants(
        lr=[2e-3, 0.1], beta1=[0.9, 0.5], beta2=[0.999, 0.6], eps=[1e-8, 1e-2], weight_decay=[0.0, 0.2]
    ),
    "nadam": variants(
        lr=[2e-3, 0.1, 0.1],
        beta1=[0.9, 0.8, 0.8],
        beta2=[0.999, 0.9, 0.9],
        eps=[1e-8, 1e-4, 1e-4],
        weight_decay=[0.0, 0.2, 0.2],
        momentum_decay=[4e-3, 0.1, 0.1],
        decoupled_weight_decay=[False, False, True],
    ),
    "radam": variants(
        lr=[1e-3, 0.1, 0.1],
        beta1=[0.9, 0.8, 0.8],
        beta2=[0.999, 0.9, 0.9],
        eps=[1e-8, 1e-4, 1e-4],
        weight_decay=[0.0, 0.2, 0.2],
        decoupled_weight_decay=[False, False, True],
    ),
    "lamb": variants(
        lr=[0.01, 0.1], beta1=[0.9, 0.8], beta2=[0.999, 0.9], eps=[1e-6, 1e-3], weight_decay=[0.0, 0.2]
    ),
    "lion": variants(lr=[1e-2, 0.1], beta1=[0.9, 0.5], beta2=[0.99, 0.7], weight_decay=[0.0, 0.2]),
}
CASES["adamw"] = CASES["adam"]


def muon():
    cases = []
    configs = variants(
        lr=[0.1, 0.05, 0.1],
        weight_decay=[0.1, 0.0, 0.3],
        momentum=[0.95, 0.8, 0.9],
        nesterov=[True, False, True],
        ns_steps=[5, 3, 5],
        adjust_lr_fn=["original", "match_rms_adamw", "spectral_unclamped"],
    )
    for shape in ([3, 5], [6, 4]):
        start = (torch.arange(math.prod(shape)).reshape(shape) * 0.37).sin()
        gradients = [(torch.arange(math.prod(shape)).reshape(shape) * 0.7 + t).cos() * (t + 1) for t in range(4)]
        for config in configs:
            path = steps(lambda p: torch.optim.Muon(p, **config), start.tolist(), [g.tolist() for g in gradients])
            cases.append({"config": config, "start": start.tolist(), "gradients": [g.tolist() for g in gradients],
                          "path": path})
    return cases


def lbfgs():
    """sum of 10 (x[i+1] - x[i]^2)^2 + (1 - x[i])^2, from two tensors of 2 and 3 elements."""
    cases = []
    for config in variants(
        lr=[0.05, 1.0, 1.0, 0.5, 1.0, 0.02],
        max_iter=[20, 20, 4, 6, 20, 3],
        max_eval=[None, None, None, 5, 7, None],
        history_size=[100, 100, 2, 100, 3, 1],
        line_search_fn=[None, "strong_wolfe", "strong_wolfe", "strong_wolfe", "strong_wolfe", None],
        maximize=[False, False, False, False, True, False],
    ):
        p = [torch.nn.Parameter(torch.tensor([-1.2, 0.8])), torch.nn.Parameter(torch.tensor([0.3, -0.5, 1.4]))]
        optimizer, path = torch.optim.LBFGS(p, **config), []

        def closure():
            optimizer.zero_grad()
            x = torch.cat(p)
            loss = (10 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()
            loss = -loss if config["maximize"] else loss
            loss.backward()
            return loss

        for _ in range(6):
            loss = optimizer.step(closure).item()
            state = optimizer.state[p[0]]
            path.append({"loss": loss, "values": torch.cat(p).tolist(), "counts": [state["n_iter"], state["func_evals"]]})
        cases.append({"config": config, "path": path})
    return cases


def main():
    start = [0.7, -1.3, 2.1, 0.05]
    gradients = [[math.sin(1.3 * t + 0.7 * i) * 10 ** (i - 2) for i in range(4)] for t in range(12)]
    cases = []
    for kind, configs in CASES.items():
        for config in configs:
            if kind in OURS:
                path = OURS[kind](np.array(start), [np.array(g) for g in gradients], **config)
            else:
                path = steps(lambda p: KINDS[kind](p, **config), start, gradients)
            cases.append({"kind": kind, "config": config, "path": path})
    all_of_it = {"start": start, "gradients": gradients, "cases": cases, "muon": muon(), "lbfgs": lbfgs()}
    json.dump(all_of_it, sys.stdout, separators=(",", ":"))
    print()


main()
