"""Writes files/: files of NumPy and PyTorch for `tests/array_files.rs` and `tests/torch_files.rs`, and files.json with the
values in them. Run: python files.py (needs torch and numpy). The files `evil_*` are never loaded here."""

import collections
import json
import os
import pathlib
import pickle
import zipfile

import numpy as np
import torch

here = pathlib.Path(__file__).parent
folder = here / "files"
folder.mkdir(exist_ok=True)
for old in folder.iterdir():
    old.unlink()
expected = {}


def plain(array):
    array = np.asarray(array)
    return {"dtype": str(array.dtype), "shape": list(array.shape), "values": array.ravel().astype(float).tolist()}


def torch_plain(tensor):
    values = tensor.detach().contiguous().flatten().to(torch.float64).tolist()
    return {"dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape), "values": values}


def npy(name, array):
    np.save(folder / name, array)
    expected[name] = {"": plain(array)}


base = np.arange(-3, 9).reshape(3, 4)
for dtype in ["f8", "f4", "f2", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1", "?"]:
    array = (base * 1.25 if dtype[0] == "f" else base % 2 if dtype == "?" else base + 3).astype(dtype)
    npy(f"{array.dtype}.npy", array)
npy("fortran.npy", np.asfortranarray(np.arange(24, dtype="f4").reshape(2, 3, 4)))
npy("big.npy", base.astype(">i4"))
npy("big_fortran.npy", np.asfortranarray(base.astype(">f8")))
npy("scalar.npy", np.float32(2.5))
npy("one_axis.npy", np.arange(5))
npy("empty.npy", np.zeros((0, 3), "f4"))
with open(folder / "version_2.npy", "wb") as file:
    np.lib.format.write_array(file, base, version=(2, 0))
with open(folder / "version_3.npy", "wb") as file:
    np.lib.format.write_array(file, base, version=(3, 0))
expected["version_2.npy"] = expected["version_3.npy"] = {"": plain(base)}
np.save(folder / "refused_complex.npy", np.ones(2, "c8"))
np.save(folder / "refused_text.npy", np.array(["ab", "c"]))
np.save(folder / "refused_object.npy", np.array([None, "c"]), allow_pickle=True)
np.save(folder / "refused_struct.npy", np.zeros(2, [("a", "f4"), ("b", "i4")]))
for name, save in [("stored.npz", np.savez), ("deflated.npz", np.savez_compressed)]:
    arrays = {"a": base, "weights": np.zeros((50, 20), "f4"), "flag": np.array(True)}
    save(folder / name, **arrays)
    expected[name] = {key: plain(value) for key, value in arrays.items()}

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))
model[2].bias = torch.nn.Parameter(model[2].weight[:, 0].detach())
whole = torch.arange(24.0).reshape(2, 3, 4)
dtypes = ["float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool", "uint16", "uint32", "uint64"]
shared = torch.arange(6.0)
saved = {
    "state.pt": model.state_dict(),
    "dtypes.pt": {d: torch.tensor([0, 1, 1, 0]).to(getattr(torch, d)) for d in dtypes},
    "views.pt": {
        "transposed": whole.transpose(0, 2),
        "permuted": whole.permute(1, 2, 0)[1:],
        "row": whole[1],
        "column": whole[:, :, 1],
        "steps": whole[:, ::2, ::3],
        "expanded": torch.tensor([[1.0], [2.0]]).expand(2, 3),
        "scalar": torch.tensor(7.0),
        "empty": torch.zeros(0, 3),
        "windows": torch.arange(5.0).unfold(0, 3, 1),
    },
    "shared.pt": {"a": shared, "b": shared, "part": shared[2:4], "parameter": torch.nn.Parameter(shared)},
    "nested.pt": {
        "model": collections.OrderedDict(weight=torch.ones(2)),
        "epoch": 3,
        "big": 2**40,
        "negative": -5,
        "loss": 0.25,
        "note": "naïve",
        "done": True,
        "nothing": None,
        "list": [1, (2.5, torch.zeros(1))],
        "size": torch.Size([2, 3]),
        "dtype": torch.bfloat16,
        "device": torch.device("cpu"),
        7: "seven",
        "counts": collections.Counter({5: 2}),
    },
    "optimizer.pt": torch.optim.Adam(model.parameters(), lr=0.5, eps=0.125).state_dict(),
    "single.pt": torch.arange(3),
}
plains = {}


def flatten(value, name, tensors, values):
    join = lambda key: f"{name}.{key}" if name else str(key)
    if isinstance(value, torch.Tensor):
        tensors[name] = torch_plain(value)
    elif isinstance(value, dict):
        for key, inner in value.items():
            flatten(inner, join(key), tensors, values)
    elif isinstance(value, (list, tuple)):
        for i, inner in enumerate(value):
            flatten(inner, join(i), tensors, values)
    else:
        values[name] = str(value)


for name, value in saved.items():
    tensors, values = {}, {}
    flatten(value, "", tensors, values)
    torch.save(value, folder / name)
    expected[name], plains[name] = tensors, values
    if name != "dtypes.pt":
        old = name.replace(".pt", ".old.pth")
        torch.save(value, folder / old, _use_new_zipfile_serialization=False)
        expected[old], plains[old] = tensors, values
for protocol in [3, 4, 5]:
    name = f"protocol_{protocol}.pt"
    torch.save(saved["nested.pt"], folder / name, pickle_protocol=protocol)
    expected[name], plains[name] = expected["nested.pt"], plains["nested.pt"]
(here / "files.json").write_text(json.dumps({"tensors": expected, "values": plains}) + "\n")


class Call:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def evil(name, payload, protocol=2, compression=zipfile.ZIP_STORED):
    data = payload if isinstance(payload, bytes) else pickle.dumps(payload, protocol)
    with zipfile.ZipFile(folder / f"evil_{name}.pt", "w", compression) as archive:
        archive.writestr("archive/data.pkl", data)
        archive.writestr("archive/byteorder", "little")
        archive.writestr("archive/data/0", b"\0" * 16)
        archive.writestr("archive/version", "3\n")


class Stateful:
    def __setstate__(self, state):
        raise SystemExit


attack = "touch /tmp/gradus-was-attacked"
evil("system", Call(os.system, attack))
evil("system_4", Call(os.system, attack), 4)
evil("eval", Call(eval, "__import__('os').system('touch /tmp/gradus-was-attacked')"))
evil("nested", {"model": [torch.Size([1]), {"a": (Call(exec, "raise SystemExit"),)}]})
evil("getattr", Call(getattr, "text", "upper"))
evil("load", Call(torch.load, "other.pt"))
evil("state", Stateful())
evil("inst", b"\x80\x02(X\x04\x00\x00\x00truei" + b"os\nsystem\n.")
evil("object", b"\x80\x02cos\nsystem\nX\x04\x00\x00\x00true\x85\x81.")
evil("extension", b"\x80\x02\x82\x01.")
evil("parts", b"\x80\x02ccollections\nOrderedDict.system\n)R.")
evil("call_text", b"\x80\x02X\x02\x00\x00\x00os)R.")
evil("call_storage", b"\x80\x02ctorch\nFloatStorage\n)R.")
# A list of ten lists of ten lists ..: ten thousand million values in a few hundred bytes.
value = "lol"
for _ in range(10):
    value = [value] * 10
evil("laughs", value)
# A list that holds itself, and a dict.
evil("self", b"\x80\x02]q\x00h\x00a.")
evil("self_dict", b"\x80\x02}q\x00X\x01\x00\x00\x00ah\x00s.")
evil("deep", b"\x80\x02" + b"]" * 60_000 + b"a" * 59_999 + b".")
evil("tuples", b"\x80\x02)" + b"\x85" * 60_000 + b".")
evil("marks", b"\x80\x02" + b"(" * 60_000 + b".")
evil("copies", b"\x80\x02ccollections\nOrderedDict\nq\x00}q\x01(" + b"K\x01N" * 4_000 + b"u" + b"h\x00h\x01\x85R" * 4_000 + b".")
# A dict whose thousands of keys are empty, held in thousands of places.
evil("empty_keys", b"\x80\x02X\x00\x00\x00\x00q\x00(" + b"h\x00N" * 4_000 + b"dq\x01(" + b"h\x01" * 4_000 + b"l.")
evil("compressed", b"\x80\x02" + b"N" * 1_000_000 + b".", compression=zipfile.ZIP_DEFLATED)
torch.save(torch._neg_view(torch.arange(3.0)), folder / "evil_negative_view.pt")
evil("long_text", b"\x80\x02X\xff\xff\xff\x7fabc.")
evil("bytes_8", b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7fabc.")
evil("frame", b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\xffN.")
evil("memo", b"\x80\x02j\xff\xff\xff\xff.")
evil("pops", b"\x80\x02N000.")
evil("no_end", b"\x80\x02N")


def tensor(offset, size, stride, count=4, kind=b"FloatStorage"):
    number = lambda n: b"\x8a\x08" + n.to_bytes(8, "little", signed=True)
    numbers = lambda ns: b"(" + b"".join(map(number, ns)) + b"t"
    storage = b"(X\x07\x00\x00\x00storagectorch\n" + kind + b"\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpu" + number(count) + b"tQ"
    call = b"(" + storage + number(offset) + numbers(size) + numbers(stride) + b"\x89ccollections\nOrderedDict\n)Rt"
    return b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n" + call + b"R."


evil("outside", tensor(1, [4], [1]))
evil("negative", tensor(-1, [4], [1]))
evil("negative_stride", tensor(3, [4], [-1]))
evil("overflow", tensor(0, [2**62, 4], [2**62, 1]))
evil("huge_repeat", tensor(0, [2**20, 2**20], [0, 0]))
window = tensor(0, [2, 2, 2, 2, 2, 2, 2], [0, 1, 1, 0, 1, 0, 0])
evil("huge_window", b"\x80\x02(" + window[2:-1] * 3 + b"l.")
evil("axes", tensor(0, [1] * 60, [1] * 60))
evil("strides", tensor(0, [2, 2], [1]))
evil("promise", tensor(0, [4], [1], 2**40))
evil("wider", tensor(0, [4], [1], 4, b"DoubleStorage"))
evil("bools", tensor(0, [4], [1], 16, b"BoolStorage"))
print(sum(f.stat().st_size for f in folder.iterdir()), "bytes in", len(list(folder.iterdir())), "files")
