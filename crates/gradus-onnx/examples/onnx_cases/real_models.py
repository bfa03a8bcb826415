"""Makes folders in the layout of ONNX's backend tests from models of PyPI packages, with what ONNX Runtime gives.

    pip install onnx==1.22.0 onnxruntime==1.32.0 numpy
    pip download --no-deps rapidocr-onnxruntime==1.4.4 silero-vad==6.2.3, and unpack the wheels into FOLDER
    python real_models.py FOLDER OUT
"""
import os
import shutil
import sys

import numpy as np
import onnx
import onnxruntime as ort
from onnx import numpy_helper

source, out = sys.argv[1:]
rng = np.random.default_rng(1)


def image(*shape):
    # Smooth pictures, as the networks expect them: noise in [-1, 1] at a quarter of the size, enlarged.
    small = rng.uniform(-1, 1, (shape[0], shape[1], shape[2] // 4, shape[3] // 4)).astype(np.float32)
    return small.repeat(4, 2).repeat(4, 3)


def sound(*shape):
    t = np.arange(shape[-1]) / 16000
    tone = 0.3 * np.sin(2 * np.pi * 220 * t) * np.sin(2 * np.pi * 3 * t) + 0.02 * rng.standard_normal(shape)
    return tone.astype(np.float32)


state = np.zeros((2, 1, 128), np.float32)
MODELS = {
    "ch_PP-OCRv4_det_infer": {"x": image(1, 3, 160, 224)},
    "ch_PP-OCRv4_rec_infer": {"x": image(2, 3, 48, 160)},
    "ch_ppocr_mobile_v2.0_cls_infer": {"x": image(3, 3, 48, 192)},
    "silero_vad": {"input": sound(1, 576), "state": state, "sr": np.array(16000)},
    "silero_vad_16k_op15": {"input": sound(1, 576), "state": state, "sr": np.array(16000)},
    "silero_vad_16k_sequence": {"input": sound(9, 576), "h": state[:1], "c": state[:1]},
    "silero_vad_half": {"input": sound(1, 576), "state": state},
    "silero_vad_op18_ifless": {"input": sound(1, 576), "sr": np.array(16000), "state": state},
    "silero_vad_openvino_16k": {"input": sound(1, 576), "state": state},
}
for root, _, files in os.walk(source):
    for name in files:
        stem, end = os.path.splitext(name)
        if end != ".onnx" or stem not in MODELS:
            continue
        session = ort.InferenceSession(os.path.join(root, name))
        feeds = MODELS[stem]
        results = session.run(None, feeds)
        data = os.path.join(out, stem, "test_data_set_0")
        os.makedirs(data, exist_ok=True)
        shutil.copy(os.path.join(root, name), os.path.join(out, stem, "model.onnx"))
        for i, given in enumerate(session.get_inputs()):
            onnx.save_tensor(numpy_helper.from_array(feeds[given.name], given.name), f"{data}/input_{i}.pb")
        for i, result in enumerate(results):
            onnx.save_tensor(numpy_helper.from_array(np.asarray(result)), f"{data}/output_{i}.pb")
        print(stem, [r.shape for r in results])
