"""A loss and its gradients under torch.autocast, bf16, as PyTorch 2.15 computes them on the CPU.

    python3 autocast.py > autocast.txt

Autocast on the CPU does not cast softmax and layer norm to f32 as it does on CUDA, so they are not in this network.
"""

import torch
import torch.nn.functional as F


def values(shape, phase):
    n = torch.Size(shape).numel()
    return (torch.arange(n, dtype=torch.float64) * 1.7 + phase).sin().float().reshape(shape)


def main():
    x = values([2, 3, 6, 6], 0.1)
    kernel, shift = values([4, 3, 3, 3], 0.2) / 3, values([4], 0.3)
    weight, bias = values([5, 16], 0.4) / 4, values([5], 0.5)
    mixing = values([5, 5], 0.6) / 2
    parameters = [kernel, shift, weight, bias, mixing]
    for p in parameters:
        p.requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        y = F.conv2d(x, kernel, shift, stride=2).relu()
        y = F.linear(y.flatten(1), weight, bias).tanh() @ mixing
        assert y.dtype == torch.bfloat16
        loss = F.cross_entropy(y, torch.tensor([1, 4]))
    assert loss.dtype == torch.float32
    loss.backward()
    found = [("logits", y.float()), ("loss", loss)] + [("gradient", p.grad) for p in parameters]
    print("[")
    for name, t in found:
        print(f'    ("{name}", &[{", ".join(repr(v) for v in t.flatten().tolist())}]),')
    print("]")


main()
