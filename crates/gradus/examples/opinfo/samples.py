"""Draws the samples of PyTorch's OpInfo database, and records what PyTorch says of each: `cargo xtask opinfo` runs this.

    pip install torch==2.15.0 numpy safetensors expecttest
    python crates/gradus/examples/opinfo/samples.py OUT.safetensors [NAME ..]

A sample is a case of `tests/golden/record.py` named `ENTRY|DTYPE|NUMBER`, whose words end with its arguments as JSON:
`[args, kwargs]`, in which `{"in": i}` is the tensor `in{i}`. The samples are those in f64, with two gradients, and those in
i64 and bool, with values only. `ENTRY|error|NUMBER` is a call that PyTorch refuses; its words end with the message.
"""

import json
import pathlib
import random
import sys
import warnings
import zlib

import numpy as np
import torch
from safetensors.torch import save_file
from torch.testing._internal.common_methods_invocations import op_db

sys.path.append(str(pathlib.Path(__file__).parents[2] / "tests" / "golden"))
from record import Record  # noqa: E402

warnings.filterwarnings("ignore")
torch.set_num_threads(1)

# Elements of all tensors of a sample above which it is left out.
LARGEST = 200_000
MAX_RANK = 8
# What safetensors and Gradus have.
DTYPES = "float64 float32 float16 bfloat16 int64 int32 int16 int8 uint64 uint32 uint16 uint8 bool"
DTYPES = {getattr(torch, name) for name in DTYPES.split()}


class Inexpressible(Exception):
    """An argument that no file of tensors and JSON holds."""


def encode(value, tensors):
    """A value as JSON; tensors go to the list."""
    if isinstance(value, torch.Tensor):
        if value.dtype not in DTYPES or value.layout != torch.strided or value.device.type != "cpu":
            raise Inexpressible(f"a tensor of {value.dtype}, {value.layout}, {value.device.type}")
        if value.dim() > MAX_RANK:
            raise Inexpressible(f"a tensor of more than {MAX_RANK} axes")
        tensors.append(value)
        return {"in": len(tensors) - 1}
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if np.isfinite(value) else {"float": str(value)}
    if isinstance(value, (list, tuple)):
        return [encode(v, tensors) for v in value]
    if isinstance(value, dict):
        return {k: encode(v, tensors) for k, v in value.items()}
    if isinstance(value, slice):
        return {"slice": [encode(v, tensors) for v in (value.start, value.stop, value.step)]}
    if value is Ellipsis:
        return {"ellipsis": True}
    if isinstance(value, (torch.dtype, torch.layout, torch.device, torch.memory_format)):
        return {"torch": str(value).removeprefix("torch.")}
    raise Inexpressible(type(value).__name__)


def decode(value, tensors):
    """The inverse of encode, with the tensors of the list."""
    if isinstance(value, list):
        return [decode(v, tensors) for v in value]
    if not isinstance(value, dict):
        return value
    match value:
        case {"in": i}:
            return tensors[i]
        case {"float": text}:
            return float(text)
        case {"slice": ends}:
            return slice(*decode(ends, tensors))
        case {"ellipsis": _}:
            return Ellipsis
        case {"torch": name}:
            return torch.device(name) if name == "cpu" else getattr(torch, name)
    return {k: decode(v, tensors) for k, v in value.items()}


def index(value):
    """What stands in the brackets of x[..], with its lists as the tensors that PyTorch makes of them."""
    if isinstance(value, tuple):
        return tuple(map(index, value))
    return torch.tensor(value) if isinstance(value, list) else value


def outputs(result):
    """The tensors of a result, numbers too."""
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, (bool, int, float)):
        return [torch.tensor(result, dtype=torch.float64 if isinstance(result, float) else None)]
    return [t for part in result for t in outputs(part)]


def seeded(name):
    """One seed for all generators, from a name."""
    seed = zlib.crc32(name.encode())
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    return np.random.default_rng(seed)


def call(op, sample, words):
    """The sample as tensors, JSON and a function of the tensors."""
    tensors, given = [], [sample.input, *sample.args]
    if op.name == "__getitem__":
        given[1:] = map(index, given[1:])
    text = json.dumps(encode([given, sample.kwargs], tensors))
    if sum(t.numel() for t in tensors) > LARGEST:
        raise Inexpressible(f"a sample of more than {LARGEST} elements")

    def f(*tensors):
        args, kwargs = decode(json.loads(text), tensors)
        # JSON has lists only; some functions want tuples.
        result = op(*(tuple(a) if isinstance(b, tuple) else a for a, b in zip(args, given)), **kwargs)
        found = outputs(result)
        if any(t.dtype not in DTYPES or t.layout != torch.strided for t in found):
            raise Inexpressible("a result of another dtype or layout")
        return found

    return tensors, f, f"{words} {text}"


def entry(record, op):
    """Records all samples of an entry; counts what is left out, by reason."""
    name = op.name + ("/" + op.variant_test_name if op.variant_test_name else "")
    left = {}

    def note(reason):
        left[reason] = left.get(reason, 0) + 1

    for dtype in (torch.float64, torch.int64, torch.bool):
        if dtype not in op.dtypes:
            continue
        order = 2 if dtype == torch.float64 and op.supports_autograd else 0
        record.rng = seeded(f"{name} {dtype}")
        for i, sample in enumerate(op.sample_inputs("cpu", dtype, requires_grad=order > 0)):
            case = f"{name}|{str(dtype).removeprefix('torch.')}|{i}"
            before = set(record.tensors)
            try:
                tensors, f, words = call(op, sample, "")
                leaves = [k for k, t in enumerate(tensors) if t.requires_grad]
                stopped = record.case(case, tensors, leaves, f, order, loose=1)
                first = record.tensors.get(f"{case}/out0")
                if first is not None and first.dtype == torch.float32:
                    record.meta[case] = record.meta[case].replace("loose=1", "loose=6")
                if stopped:
                    note(f"PyTorch has no gradient: {stopped.splitlines()[0][:80]}")
                record.meta[case] += words
            except Exception as e:
                for key in set(record.tensors) - before:
                    del record.tensors[key]
                note(str(e) if isinstance(e, Inexpressible) else f"PyTorch fails: {str(e).splitlines()[0][:80]}")
    if op.error_inputs_func is None:
        return name, left
    seeded(name)
    for i, error in enumerate(op.error_inputs("cpu")):
        try:
            tensors, f, words = call(op, error.sample_input, "error")
            tensors = [t.detach() for t in tensors]
            f(*tensors)
        except Inexpressible as e:
            note(str(e))
        except Exception as e:
            message = str(e).strip() or type(e).__name__
            for k, t in enumerate(tensors):
                record.put(f"{name}|error|{i}/in{k}", t)
            record.meta[f"{name}|error|{i}"] = f"{words}\n{message.splitlines()[0]}"
        else:
            note("an error input that PyTorch accepts")
    return name, left


def main(out, *wanted):
    record = Record()
    left_out = {}
    for op in op_db:
        if wanted and op.name not in wanted:
            continue
        name, left = entry(record, op)
        left_out[name] = left
    record.meta |= {"torch": torch.__version__, "left out": json.dumps(left_out)}
    record.meta["entries"] = json.dumps(list(left_out))
    save_file(record.tensors, out, metadata=record.meta)
    print(f"{len(record.meta) - 3} samples of {len(left_out)} entries, {pathlib.Path(out).stat().st_size} bytes")


if __name__ == "__main__":
    main(*sys.argv[1:])
