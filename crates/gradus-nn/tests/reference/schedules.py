"""Learning rates of PyTorch 2.15's schedulers, step by step, and the scales of its GradScaler.

    python3 schedules.py > schedules.json

`schedules` has, for each name, the factors on the initial learning rate; `plateau` the factors after each metric;
`scaler` the scales after each update, for gradients that are finite (0) or not (1); `momenta` the momentum of each step
and the parameters after it, with the momentum cycled.
"""

import json
import warnings

import torch
from torch.optim import lr_scheduler as lr

warnings.filterwarnings("ignore")
torch.set_default_dtype(torch.float64)
BASE = 0.1
STEPS = 45


def sgd(rate=BASE):
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=rate, momentum=0.9)


def factors(make, base=BASE, steps=STEPS):
    optimizer = sgd()
    scheduler, found = make(optimizer), []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"] / base)
        optimizer.step()
        scheduler.step()
    return found


def one_cycle(**options):
    return factors(lambda o: lr.OneCycleLR(o, BASE, **options), steps=options["total_steps"])


def cyclic(**options):
    return factors(lambda o: lr.CyclicLR(o, BASE, BASE * 5, **options))


def sequential(o):
    return lr.SequentialLR(o, [lr.LinearLR(o, 0.1, 1.0, 6), lr.CosineAnnealingLR(o, 30, BASE * 0.2),
                               lr.ConstantLR(o, 0.2, 100)], [6, 36])


def chained(o):
    return lr.ChainedScheduler([lr.LinearLR(o, 0.25, 1.0, 8), lr.ExponentialLR(o, 0.9), lr.StepLR(o, 10, 0.5)])


def swa(**options):
    return factors(lambda o: torch.optim.swa_utils.SWALR(o, swa_lr=BASE * 0.05, **options))


def momenta(make, kind, steps):
    """The momentum (or beta1) of each step, and the parameters after it."""
    p = torch.nn.Parameter(torch.tensor([0.7, -1.3]))
    optimizer = {
        "adam": lambda: torch.optim.Adam([p], lr=BASE),
        "rmsprop": lambda: torch.optim.RMSprop([p], lr=BASE, momentum=0.9),
        "sgd": lambda: torch.optim.SGD([p], lr=BASE, momentum=0.9),
    }[kind]()
    scheduler, found = make(optimizer), []
    for step in range(steps):
        group = optimizer.param_groups[0]
        momentum = group["betas"][0] if kind == "adam" else group["momentum"]
        p.grad = (torch.arange(2) * 0.7 + step).sin()
        optimizer.step()
        scheduler.step()
        found.append([momentum, *p.tolist()])
    return found


MOMENTA = {
    f"{name}_{kind}": momenta(make, kind, 30)
    for name, make in {
        "one_cycle": lambda o: lr.OneCycleLR(o, BASE, total_steps=40),
        "one_cycle_three": lambda o: lr.OneCycleLR(o, BASE, total_steps=41, pct_start=0.35, three_phase=True,
                                                   base_momentum=0.7, max_momentum=0.97),
        "cyclic": lambda o: lr.CyclicLR(o, BASE, BASE * 5, step_size_up=6),
        "cyclic_exp_range": lambda o: lr.CyclicLR(o, BASE, BASE * 5, step_size_up=5, step_size_down=3, gamma=0.95,
                                                  mode="exp_range", base_momentum=0.5, max_momentum=0.95),
    }.items()
    for kind in ("adam", "sgd", "rmsprop")
}


SCHEDULES = {
    "constant_for": lambda: factors(lambda o: lr.ConstantLR(o, 0.25, 7)),
    "linear": lambda: factors(lambda o: lr.LinearLR(o, 1 / 3, 0.75, 11)),
    "step": lambda: factors(lambda o: lr.StepLR(o, 7, 0.3)),
    "multi_step": lambda: factors(lambda o: lr.MultiStepLR(o, [3, 11, 11, 20], 0.5)),
    "exponential": lambda: factors(lambda o: lr.ExponentialLR(o, 0.93)),
    "polynomial": lambda: factors(lambda o: lr.PolynomialLR(o, 31, 1.7)),
    "cosine": lambda: factors(lambda o: lr.CosineAnnealingLR(o, 40, BASE * 0.1), steps=41),
    "cosine_restarts": lambda: factors(lambda o: lr.CosineAnnealingWarmRestarts(o, 5, 2, BASE * 0.05)),
    "cosine_restarts_equal": lambda: factors(lambda o: lr.CosineAnnealingWarmRestarts(o, 9, 1, 0.0)),
    "function": lambda: factors(lambda o: lr.LambdaLR(o, lambda step: 0.95**step + 0.1)),
    "one_cycle": lambda: one_cycle(total_steps=40),
    "one_cycle_linear": lambda: one_cycle(total_steps=37, pct_start=0.4, anneal_strategy="linear", div_factor=10.0,
                                          final_div_factor=100.0),
    "one_cycle_three": lambda: one_cycle(total_steps=41, pct_start=0.35, three_phase=True),
    "cyclic": lambda: cyclic(step_size_up=6),
    "cyclic_triangular2": lambda: cyclic(step_size_up=4, step_size_down=7, mode="triangular2"),
    "cyclic_exp_range": lambda: cyclic(step_size_up=5, step_size_down=3, mode="exp_range", gamma=0.95),
    "sequential": lambda: factors(sequential),
    "chained": lambda: factors(chained),
    "swa": lambda: swa(anneal_epochs=10),
    "swa_linear": lambda: swa(anneal_epochs=7, anneal_strategy="linear"),
}

PLATEAU = [
    dict(patience=2, factor=0.5),
    dict(patience=1, factor=0.1, cooldown=3, threshold=0.05, threshold_mode="abs"),
    dict(patience=0, factor=0.5, min_lr=0.2),
    dict(mode="max", patience=2, factor=0.3, threshold=0.1),
    dict(mode="max", patience=1, factor=0.9, threshold=0.2, threshold_mode="abs", eps=0.05),
]


def plateau():
    torch.manual_seed(0)
    metrics = (torch.linspace(2.0, 0.5, 40) + 0.3 * torch.rand(40)).tolist()
    metrics[7] = float("nan")
    cases = []
    for options in PLATEAU:
        optimizer = sgd(1.0)
        scheduler, found = lr.ReduceLROnPlateau(optimizer, **options), []
        for metric in metrics:
            scheduler.step(metric)
            found.append(optimizer.param_groups[0]["lr"])
        cases.append({"options": options, "factors": found})
    metrics[7] = None
    return {"metrics": metrics, "cases": cases}


def scaler():
    cases = []
    for options in [dict(init_scale=65536.0, growth_interval=3), dict(init_scale=8.0, growth_factor=3.0,
                    backoff_factor=0.25, growth_interval=2), dict(init_scale=2.0**126, growth_interval=1)]:
        scaler, found = torch.amp.GradScaler("cpu", **options), []
        bad = [0, 0, 0, 0, 1, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0]
        for infinite in bad:
            p = torch.nn.Parameter(torch.ones(1, dtype=torch.float32))
            optimizer = torch.optim.SGD([p], lr=0.1)
            scaler.scale((p * 0.0).sum())
            p.grad = torch.full((1,), float("inf") if infinite else 1.0, dtype=torch.float32)
            scaler.step(optimizer)
            scaler.update()
            found.append(scaler.get_scale())
        cases.append({"options": options, "bad": bad, "scales": found})
    return cases


schedules = {name: make() for name, make in SCHEDULES.items()}
print(json.dumps({"schedules": schedules, "plateau": plateau(), "scaler": scaler(), "momenta": MOMENTA}))
