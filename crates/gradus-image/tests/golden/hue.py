"""Makes hue.json: the inputs of values.json with another hue, by Python's colorsys in f64. They are compared with what
torchvision 0.29.2 gives, which computes in f32.

    pip install torch==2.15.0 torchvision==0.29.2
    python hue.py, in this folder
"""
import colorsys
import json

import torch
from torchvision.transforms.functional import adjust_hue

inputs = json.load(open("values.json"))["inputs"]
cases = []
for name in ("crop", "pixel"):
    shape = inputs[name]["shape"]
    x = torch.tensor(inputs[name]["values"], dtype=torch.float64).reshape(shape)
    for turn in (-0.5, -0.31, 0.07, 1 / 3, 0.5):
        pixels = []
        for pixel in x.reshape(3, -1).T.tolist():
            h, s, v = colorsys.rgb_to_hsv(*pixel)
            pixels.append(colorsys.hsv_to_rgb((h + turn) % 1, s, v))
        y = torch.tensor(pixels, dtype=torch.float64).T.reshape(shape)
        assert (y - adjust_hue(x, turn)).abs().max() < 1e-6
        cases.append({"input": name, "turn": turn, "values": [float(f"{v:.9g}") for v in y.ravel().tolist()]})
with open("hue.json", "w") as f:
    json.dump(cases, f, separators=(",", ":"))
    f.write("\n")
