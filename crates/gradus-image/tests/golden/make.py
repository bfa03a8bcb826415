"""Makes values.json: what numpy 2.4.6, scipy 1.17.1, scikit-image 0.26.0 and Pillow 13.0.0 give for small images.

Run from this folder: python make.py. The picture is a section of NASA's portrait of Eileen Collins (public domain), which
scikit-image brings along as `data.astronaut()`.
"""
import json

import numpy as np
import scipy.ndimage as nd
from PIL import Image
from skimage import data, transform

crop = data.astronaut()[96:112, 200:216]  # [16, 16, 3], u8
unit = crop.astype(np.float64) / 255.0
rng = np.random.default_rng(1)
inputs = {
    "crop": unit.transpose(2, 0, 1),
    "dot": np.pad(np.ones((1, 1, 1)), ((0, 0), (2, 3), (3, 1))),
    "row": rng.random((1, 1, 7)),
    "pixel": np.full((3, 1, 1), 0.4),
}
cases = []


def case(op, name, result, **arguments):
    result = np.asarray(result, dtype=np.float64)
    assert result.ndim == 3
    values = [float(f"{v:.9g}") for v in result.ravel()]
    cases.append({"op": op, "input": name, "shape": list(result.shape), "values": values, **arguments})


def luma(x):
    return (x * np.array([0.299, 0.587, 0.114])[:, None, None]).sum(0, keepdims=True) if len(x) == 3 else x


def planes(f, x):
    return np.stack([f(p) for p in x])


def pillow(x, h, w, how):
    return planes(lambda p: np.array(Image.fromarray(p.astype(np.float32)).resize((w, h), how)), x)


borders = {"replicate": "nearest", "zero": "constant", "reflect": "mirror"}
for name, x in inputs.items():
    for sigma, radius in [(0.8, None), (2.0, None), (1.0, 1)]:
        for border, mode in borders.items():
            if name == "crop" and sigma != 2.0 and border != "replicate":
                continue
            r = int(np.ceil(3 * sigma)) if radius is None else radius
            y = planes(lambda p: nd.gaussian_filter(p, sigma, mode=mode, radius=r), x)
            case("gaussian_blur", name, y, sigma=sigma, radius=radius, border=border)
    l = luma(x)[0]
    strength = np.hypot(nd.sobel(l, 0, mode="nearest"), nd.sobel(l, 1, mode="nearest"))
    case("sobel", name, np.stack([strength] * len(x)))
    case("sobel", name, np.stack([strength >= 0.5] * len(x)), threshold=0.5)
    kernel = np.array([[0, -1, 0], [-1, 5, -1], [0, -1, 0]])
    case("sharpen", name, planes(lambda p: nd.convolve(p, kernel, mode="nearest"), x))
    case("grayscale", name, luma(x))
    for h, w in [(5, 7), (20, 3)]:
        case("resize_bilinear", name, pillow(x, h, w, Image.BILINEAR), tolerance=1e-5)
        case("resize_bicubic", name, pillow(x, h, w, Image.BICUBIC), tolerance=1e-5)
case("resize_plain", "crop", planes(lambda p: transform.resize(p, (9, 23), order=1, mode="edge", anti_aliasing=False), inputs["crop"]))
for angle in [30.0, -77.5, 200.0]:
    y = planes(lambda p: transform.rotate(p, angle, order=1, mode="constant", cval=0.0, clip=False), inputs["crop"])
    case("rotate", "crop", y, degrees=angle)

out = {"inputs": {k: {"shape": list(v.shape), "values": [float(f"{x:.9g}") for x in v.ravel()]} for k, v in inputs.items()}}
out["cases"] = cases
with open("values.json", "w") as f:
    json.dump(out, f, separators=(",", ":"))
    f.write("\n")
