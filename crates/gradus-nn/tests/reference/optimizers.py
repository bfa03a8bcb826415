"""Reference trajectories of the optimisers, in f64, from the formulas in PyTorch's documentation.

    python3 optimizers.py > optimizers.json

Each case has hyper-parameters, start values, the gradient of each step and the values after each step. The formulas are
those of torch.optim.SGD, Adam and AdamW (https://docs.pytorch.org/docs/2.7/optim.html), written out for lists of floats.
"""

import json
import math
import sys


def sgd(p, gradients, lr, momentum, nesterov, weight_decay):
    buffer, path = None, []
    for g in gradients:
        g = [gi + weight_decay * pi for gi, pi in zip(g, p)]
        if momentum != 0:
            # The first buffer is the gradient itself (dampening 0).
            buffer = g if buffer is None else [momentum * b + gi for b, gi in zip(buffer, g)]
            g = [gi + momentum * b for gi, b in zip(g, buffer)] if nesterov else buffer
        p = [pi - lr * gi for pi, gi in zip(p, g)]
        path.append(p)
    return path


def adam(p, gradients, lr, beta1, beta2, eps, weight_decay, decoupled):
    m, v, path = [0.0] * len(p), [0.0] * len(p), []
    for t, g in enumerate(gradients, start=1):
        if decoupled:
            p = [pi - lr * weight_decay * pi for pi in p]
        else:
            g = [gi + weight_decay * pi for gi, pi in zip(g, p)]
        m = [beta1 * mi + (1 - beta1) * gi for mi, gi in zip(m, g)]
        v = [beta2 * vi + (1 - beta2) * gi * gi for vi, gi in zip(v, g)]
        m_hat = [mi / (1 - beta1**t) for mi in m]
        v_hat = [vi / (1 - beta2**t) for vi in v]
        p = [pi - lr * mi / (math.sqrt(vi) + eps) for pi, mi, vi in zip(p, m_hat, v_hat)]
        path.append(p)
    return path


def main():
    start = [0.7, -1.3, 2.1, 0.05]
    gradients = [[math.sin(1.3 * t + 0.7 * i) * 10 ** (i - 2) for i in range(4)] for t in range(12)]
    cases = []

    def case(kind, f, **config):
        names = ("momentum", "nesterov", "weight_decay") if kind == "sgd" else ("beta1", "beta2", "eps", "weight_decay")
        arguments = {"lr": config["lr"], **{n: config[n] for n in names}}
        if kind != "sgd":
            arguments["decoupled"] = kind == "adamw"
        cases.append({"kind": kind, **config, "path": f(start, gradients, **arguments)})

    for momentum, nesterov, weight_decay in [
        (0.0, False, 0.0), (0.0, False, 0.1), (0.9, False, 0.0), (0.9, False, 0.01), (0.9, True, 0.0), (0.5, True, 0.2),
    ]:
        case("sgd", sgd, lr=0.05, momentum=momentum, nesterov=nesterov, weight_decay=weight_decay)
    for kind in ("adam", "adamw"):
        for lr, beta1, beta2, eps, weight_decay in [
            (0.01, 0.9, 0.999, 1e-8, 0.0), (0.1, 0.8, 0.95, 1e-3, 0.05), (0.02, 0.0, 0.5, 1e-8, 0.3),
        ]:
            case(kind, adam, lr=lr, beta1=beta1, beta2=beta2, eps=eps, weight_decay=weight_decay)
    json.dump({"start": start, "gradients": gradients, "cases": cases}, sys.stdout, indent=1)
    print()


main()
