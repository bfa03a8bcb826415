"""Runs what `onnx_exports FOLDER` wrote by ONNX Runtime, and compares.

    pip install onnx==1.23.2 onnxruntime==1.32.0 safetensors numpy
    python check.py FOLDER

The last line is `exports: N of M`: how many networks `onnx.checker` accepts, and ONNX Runtime computes with logits that differ
by at most 1e-5 of the largest, for all sizes. The line before it is the same for elementwise operations, `map.NAME.DTYPE.OPSET`:
what ONNX Runtime has no kernel for is only checked.
"""
import glob
import os
import sys

import numpy as np
import onnx
import onnxruntime as ort
from safetensors.numpy import load_file

ACCURACY = {"float64": 1e-5, "float32": 1e-5, "float16": 2e-3}


def session(path):
    options = ort.SessionOptions()
    options.log_severity_level = 3
    return ort.InferenceSession(path, options)


def differences(session, case):
    """For each output, the largest difference as a part of the largest magnitude."""
    saved = load_file(case)
    feeds = {key[3:]: value for key, value in saved.items() if key.startswith("in.")}
    for i, found in enumerate(session.run(None, feeds)):
        wanted = saved[f"out.{i}"]
        assert found.shape == wanted.shape and found.dtype == wanted.dtype, (found.shape, wanted.shape, found.dtype)
        found, given = found.astype(np.float64), wanted.astype(np.float64)
        same = (found == given) | (np.isnan(found) & np.isnan(given))
        scale = np.abs(given[np.isfinite(given)]).max(initial=0.0)
        error = np.abs(found - given)[~same].max(initial=0.0) / max(scale, np.finfo(np.float64).tiny)
        yield wanted, scale, float(error)


def network(path, cases):
    assert len(cases) >= 2, "fewer than two sizes"
    run, worst = session(path), 0.0
    for case in cases:
        for wanted, scale, error in differences(run, case):
            varies = wanted.shape[0] == 1 or np.ptp(wanted, axis=0).max() > 1e-3 * scale
            assert np.isfinite(wanted).all() and varies, "these outputs test nothing"
            worst = max(worst, error)
    assert worst <= 1e-5, f"differs by {worst:.1e}"
    opset = onnx.load(path, load_external_data=False).opset_import[0].version
    print(f"{os.path.basename(path)[:-5]}: opset {opset}, {len(cases)} sizes, differs by {worst:.1e}")


def operation(path, cases):
    """Whether ONNX Runtime has kernels for it."""
    try:
        run = session(path)
    except ort.capi.onnxruntime_pybind11_state.NotImplemented:
        return False
    for case in cases:
        for wanted, _, error in differences(run, case):
            assert error <= ACCURACY.get(str(wanted.dtype), 0.0), f"differs by {error:.1e}"
    return len(cases) > 0


def main(folder):
    networks, operations, ran = [], [], 0
    for path in sorted(glob.glob(os.path.join(folder, "*.onnx"))):
        name = os.path.basename(path)[:-5]
        is_operation = name.startswith("map.")
        passed = operations if is_operation else networks
        passed.append(False)
        try:
            onnx.checker.check_model(path, full_check=True)
            cases = sorted(glob.glob(os.path.join(folder, name + ".[0-9].safetensors")))
            if is_operation:
                ran += operation(path, cases)
            else:
                network(path, cases)
            passed[-1] = True
        except Exception as error:  # noqa: BLE001, each failure is counted
            print(f"{name}: {type(error).__name__}: {str(error)[:600]}")
    print(f"elementwise operations: {sum(operations)} of {len(operations)}, of which ONNX Runtime ran {ran}")
    print(f"exports: {sum(networks)} of {len(networks)}")
    return all(networks + operations) and bool(networks) and bool(operations)


sys.exit(not main(sys.argv[1]))
