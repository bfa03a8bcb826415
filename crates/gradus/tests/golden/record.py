"""Records calls of PyTorch: inputs, outputs, first and second gradients, as named tensors.

A case `NAME` has the inputs `NAME/in0..`, the outputs `NAME/out0..`, for differentiable ones vectors `NAME/v0..` with the
gradients `NAME/g0..` of sum(v * outputs), and vectors `NAME/u0..` with the gradients `NAME/gg0..` of sum(u * g), and the
words `order=.. leaves=.. loose=..`. `compare.rs` beside this file reads them.
"""

import zlib

import numpy as np
import torch


class Record:
    def __init__(self):
        self.tensors, self.meta = {}, {}

    def put(self, name, t):
        self.tensors[name] = t.detach().resolve_neg().clone(memory_format=torch.contiguous_format)

    def randn(self, *shape):
        return torch.from_numpy(self.rng.standard_normal(shape))

    def case(self, name, inputs, leaves, f, order, loose=0):
        """Calls f with the inputs and differentiates it `order` times with respect to the leaves, if it can be.

        Returns why it stopped before."""
        assert f"{name}/out0" not in self.tensors, name
        # By its name, so that a new case changes no other.
        self.rng = np.random.default_rng(zlib.crc32(f"vectors of {name}".encode()))
        inputs = [x.detach().clone() for x in inputs]
        leaves = leaves if order else []
        for i in leaves:
            inputs[i].requires_grad_(True)
        outs = f(*inputs)
        outs = [outs] if isinstance(outs, torch.Tensor) else list(outs)
        for i, x in enumerate(inputs):
            self.put(f"{name}/in{i}", x)
        for i, y in enumerate(outs):
            self.put(f"{name}/out{i}", y)
        reached, stopped = 0, None
        try:
            for reached in self.gradients(name, [inputs[i] for i in leaves], leaves, outs, order):
                pass
        except (RuntimeError, NotImplementedError) as e:
            stopped = str(e)
        self.meta[name] = f"order={reached} leaves={','.join(map(str, leaves))} loose={loose}"
        return stopped

    def gradients(self, name, points, leaves, outs, order):
        """Yields the order that was reached."""
        total = 0
        for i, y in enumerate(outs):
            if order and y.is_floating_point() and y.requires_grad:
                v = self.randn(*y.shape)
                self.put(f"{name}/v{i}", v)
                total = total + (v * y).sum()
        if not order:
            return
        first = self.grad(total, points, create_graph=order > 1)
        again = 0
        for i, g in zip(leaves, first):
            self.put(f"{name}/g{i}", g)
            if order > 1:
                u = self.randn(*g.shape)
                self.put(f"{name}/u{i}", u)
                again = again + (u * g).sum()
        yield 1
        if order > 1:
            for i, g in zip(leaves, self.grad(again, points)):
                self.put(f"{name}/gg{i}", g)
            yield 2

    def grad(self, total, points, **options):
        if not (isinstance(total, torch.Tensor) and total.requires_grad):
            return [torch.zeros_like(x) for x in points]
        found = torch.autograd.grad(total, points, allow_unused=True, **options)
        return [torch.zeros_like(x) if g is None else g for x, g in zip(points, found)]
