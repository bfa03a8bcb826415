"""Weights and inputs that `tests/pytorch/formula.rs` makes too, from names and shapes alone, so that no file holds them.

Element i of a tensor is drawn from an integer hash of i and of the tensor's name.
"""

import numpy as np
import torch


def draw(name, count):
    """`count` numbers from -1 to 1."""
    seed = 0x811C9DC5
    for byte in name.encode():
        seed = ((seed ^ byte) * 0x01000193) & 0xFFFFFFFF
    x = (np.arange(count, dtype=np.uint64) * np.uint64(2654435761) + np.uint64(seed)) & np.uint64(0xFFFFFFFF)
    x ^= x >> np.uint64(16)
    x = (x * np.uint64(0x45D9F3B)) & np.uint64(0xFFFFFFFF)
    x ^= x >> np.uint64(16)
    return x.astype(np.float64) / 2**31 - 1


def weight(name, shape):
    """A parameter or buffer. Weights keep the size of what goes through them."""
    if name.endswith("num_batches_tracked"):
        return torch.tensor(3)
    count = int(np.prod(shape))
    if count > 1 << 24:
        raise ValueError(f"{name} is too large")
    u = draw(name, count)
    if name.endswith("running_var"):
        values = 1 + 0.5 * u
    elif name.endswith("running_mean") or name.endswith("bias"):
        values = 0.2 * u
    elif len(shape) >= 2:
        values = u * np.sqrt(3 / np.prod(shape[1:]))
    else:
        values = 1 + 0.3 * u
    return torch.from_numpy(values).reshape(shape)


def fill(model):
    """Sets every parameter and buffer of a model, which is then in f64. A shared parameter has that of its first name."""
    model.double()
    names = [name for name, _ in model.named_parameters()] + [name for name, _ in model.named_buffers()]
    state = {name: weight(name, t.shape) for name, t in model.state_dict().items() if name in names}
    model.load_state_dict(state, strict=False)
    return model


def floats(name, *shape):
    """An input of numbers from -1.5 to 1.5."""
    return torch.from_numpy(1.5 * draw(name, int(np.prod(shape)))).reshape(shape)


def ids(name, most, *shape):
    """An input of tokens below `most`."""
    u = draw(name, int(np.prod(shape)))
    return torch.from_numpy(np.floor((u + 1) / 2 * most).astype(np.int64)).reshape(shape)


def digest(t):
    """What a file keeps of a tensor: its product with a wave, its norm, and six of its elements."""
    flat = t.detach().double().flatten().numpy()
    count = len(flat)
    wave = np.cos(0.9 * np.arange(count))
    return [float(flat @ wave), float(np.sqrt(flat @ flat))] + [float(flat[k * count // 6]) for k in range(6)]
