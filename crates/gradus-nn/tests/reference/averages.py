"""Averages of weights, statistics of batch normalisation, norms and clipped gradients, as PyTorch 2.15 computes them.

    python3 averages.py > averages.json
"""

import json

import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn

torch.set_default_dtype(torch.float64)


def values(shape, phase):
    n = torch.Size(shape).numel()
    return ((torch.arange(n) * 1.7 + phase).sin() * 1.5).reshape(shape)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(3)
        with torch.no_grad():
            self.norm.weight.copy_(values([3], 0.0))

    def forward(self, x):
        return self.norm(x)


def averages(use_buffers, **options):
    model = Model()
    average = AveragedModel(model, use_buffers=use_buffers, **options)
    found = []
    for step in range(5):
        model(values([4, 3], step))
        with torch.no_grad():
            model.norm.weight.copy_(values([3], step * 0.3))
        average.update_parameters(model)
        norm = average.module.norm
        found.append([norm.weight.tolist(), norm.running_mean.tolist(), norm.running_var.tolist()])
    update_bn([values([4, 3], 10.0 + step) for step in range(3)], average)
    norm = average.module.norm
    return {"path": found, "statistics": [norm.running_mean.tolist(), norm.running_var.tolist()],
            "batches": norm.num_batches_tracked.item()}


def clipping():
    cases = []
    for norm_type in [1.0, 2.0, 2.5, float("inf")]:
        a, b = torch.zeros(3, requires_grad=True), torch.zeros(2, requires_grad=True)
        a.grad, b.grad = torch.tensor([1.0, -2.0, 0.5]), torch.tensor([4.0, 3.0])
        norm = torch.nn.utils.clip_grad_norm_([a, b], 1.5, norm_type)
        cases.append({"norm_type": str(norm_type), "norm": norm.item(), "clipped": a.grad.tolist() + b.grad.tolist()})
    return cases


ema = dict(multi_avg_fn=get_ema_multi_avg_fn(0.8))
found = {"ema": averages(False, **ema), "ema_buffers": averages(True, **ema), "swa": averages(False),
         "clipping": clipping()}
print(json.dumps(found))
