"""Makes the pictures of this folder: `python make.py` with numpy, Pillow and cjpeg (libjpeg-turbo) at hand.

All show the same 24 x 16 pixels: red grows to the right, green downwards, blue is their mean turned round.
"""

import subprocess

import numpy as np
from PIL import Image

y, x = np.mgrid[0:16, 0:24]
pixels = np.stack([20 + 9 * x, 30 + 12 * y, 240 - 4 * x - 6 * y], -1).astype(np.uint8)
picture = Image.fromarray(pixels)
kinds = {
    "baseline": dict(subsampling=2),
    "baseline-422": dict(subsampling=1),
    "restart": dict(subsampling=0, restart_marker_blocks=2),
    "progressive": dict(subsampling=2, progressive=True),
    "progressive-restart": dict(subsampling=2, progressive=True, restart_marker_blocks=1),
}
for name, options in kinds.items():
    picture.save(f"{name}.jpg", quality=90, optimize="restart" not in name, **options)
picture.convert("L").save("grey.jpg", quality=90, optimize=True)
picture.convert("L").save("grey-progressive.jpg", quality=90, progressive=True)
picture.convert("CMYK").save("cmyk.jpg", quality=90, optimize=True)
picture.save("pixels.ppm")
for name, scans, sampling in [("separate", "0;1;2;", "1x1"), ("separate-420", "0;1;2;", "2x2")]:
    with open("scans.txt", "w") as file:
        file.write(scans)
    options = ["-quality", "90", "-sample", sampling, "-scans", "scans.txt", "-outfile", f"{name}.jpg", "pixels.ppm"]
    subprocess.run(["cjpeg", *options], check=True)
options = ["-quality", "90", "-sample", "1x1,2x2", "-outfile", "fine-chroma.jpg", "pixels.ppm"]
subprocess.run(["cjpeg", *options], check=True)
frames = [Image.fromarray(np.roll(pixels, k, 0)) for k in range(3)]
frames[0].save("animated.png", save_all=True, append_images=frames[1:])
Image.fromarray(pixels).quantize(16).save("palette.png", transparency=3, optimize=True)
