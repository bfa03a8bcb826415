"""Makes the files of this folder: `python make.py`, with numpy and Pillow 13.0.0 (libjpeg-turbo 3.2.0) at hand.

Each JPEG file has beside it what Pillow decodes it to (`NAME.png`) and what torchvision's `RandomResizedCrop` makes of a
section of it (`NAME.HEIGHTxWIDTH.png`): `Image.resize` of Pillow, bilinear, with `box` at whole pixels.
"""

from pathlib import Path

import numpy as np
from PIL import Image

here = Path(__file__).parent
source = Image.open(here / "../../../../../shared/data/chelsea.png").convert("RGB")
cases = {
    "420": ((61, 45), dict(subsampling=2)),
    "422": ((50, 33), dict(subsampling=1)),
    "444": ((33, 17), dict(subsampling=0)),
    "restarts": ((40, 40), dict(subsampling=2, restart_marker_blocks=2)),
    "grey": ((45, 30), {}),
    "narrow": ((3, 40), dict(subsampling=2)),
    "progressive": ((44, 31), dict(subsampling=2, progressive=True)),
}
for name, (size, options) in cases.items():
    picture = source.resize(size, Image.BICUBIC, box=(90, 40, 310, 220))
    if name == "grey":
        picture = picture.convert("L")
    picture.save(here / f"{name}.jpg", quality=85, **options)
    decoded = Image.open(here / f"{name}.jpg")
    decoded.save(here / f"{name}.png", optimize=True)
    width, height = size
    section = decoded.crop((width // 4, height // 5, width - width // 8, height - 1))
    for h, w in [(12, 9), (50, 61)]:
        section.resize((w, h), Image.BILINEAR).save(here / f"{name}.{h}x{w}.png", optimize=True)
