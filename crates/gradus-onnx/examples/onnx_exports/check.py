"""Runs what `onnx_exports FOLDER` wrote by ONNX Runtime, and compares.

    pip install onnx==1.23.2 onnxruntime==1.32.0 safetensors numpy
    python check.py FOLDER

The last line is `exports: N of M`: how many models `onnx.checker` accepts, and ONNX Runtime computes with logits that differ
by at most 1e-5 of the largest, for all sizes.
"""
import glob
import os
import sys

import numpy as np
import onnx
import onnxruntime as ort
from safetensors.numpy import load_file

folder = sys.argv[1]
passed = total = 0
for path in sorted(glob.glob(os.path.join(folder, "*.onnx"))):
    name = os.path.basename(path)[:-5]
    total += 1
    try:
        onnx.checker.check_model(path, full_check=True)
        options = ort.SessionOptions()
        options.log_severity_level = 3
        session = ort.InferenceSession(path, options)
        cases = sorted(glob.glob(os.path.join(folder, name + ".*.safetensors")))
        assert len(cases) >= 2, "fewer than two sizes"
        worst = 0.0
        for case in cases:
            saved = load_file(case)
            feeds = {key[3:]: value for key, value in saved.items() if key.startswith("in.")}
            for i, found in enumerate(session.run(None, feeds)):
                wanted = saved[f"out.{i}"]
                assert found.shape == wanted.shape and found.dtype == wanted.dtype, (found.shape, wanted.shape)
                scale = np.abs(wanted).max()
                varies = wanted.shape[0] == 1 or np.ptp(wanted, axis=0).max() > 1e-3 * scale
                assert np.isfinite(wanted).all() and varies, "these outputs test nothing"
                error = np.abs(found.astype(np.float64) - wanted).max() / scale
                worst = max(worst, float(error))
        assert worst <= 1e-5, f"differs by {worst:.1e}"
        opset = onnx.load(path, load_external_data=False).opset_import[0].version
        print(f"{name}: opset {opset}, {len(cases)} sizes, differs by {worst:.1e}")
        passed += 1
    except Exception as error:  # noqa: BLE001, each failure is counted
        print(f"{name}: {type(error).__name__}: {str(error)[:600]}")
print(f"exports: {passed} of {total}")
sys.exit(passed != total)
