"""Makes folders in the layout of ONNX's backend tests from models of PyPI packages, with what ONNX Runtime gives.

    pip install onnx==1.22.0 onnxruntime==1.32.0 numpy pillow
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
from PIL import Image, ImageDraw, ImageFont

source, out = sys.argv[1:]
rng = np.random.default_rng(1)


def image(*shape):
    """Lines of text, a different one in each picture, from -1 to 1."""
    pictures = []
    for i in range(shape[0]):
        page = Image.new("L", (shape[3], shape[2]), 255)
        draw = ImageDraw.Draw(page)
        for top in range(8, shape[2] - 24, 48):
            draw.text((8, top), f"Gradus {i} reads {top}", fill=0, font=ImageFont.load_default(24))
        pictures.append(np.asarray(page, np.float32) / 127.5 - 1)
    return np.stack(pictures)[:, None].repeat(3, 1) + 0.01 * rng.standard_normal(shape).astype(np.float32)


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
