"""How many pictures a PyTorch DataLoader with Pillow prepares in a second, beside `image_rate` of gradus-data.

    python image_loader.py make FOLDER PICTURE [COUNT]   writes COUNT (256) JPEG files of 500 x 375 in four classes: sections of
                                                         PICTURE, with noise, in quality 88
    python image_loader.py rate FOLDER [WORKERS [EPOCHS]]

with torch, torchvision and Pillow at hand. Both programs cut a random section, resize it to 224 x 224, mirror half of them,
normalise, and make batches of 32. Run them in turn with the same number of workers:

    cargo run --release -p gradus-data --example image_rate FOLDER [WORKERS [EPOCHS]]
"""

import sys
import time
from pathlib import Path


def make(folder, picture, count):
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(0)
    source = Image.open(picture).convert("RGB")
    width, height = source.size
    for i in range(count):
        w = int(min(width, height * 4 / 3) * rng.uniform(0.6, 1.0))
        h = int(w * 3 / 4)
        x, y = rng.integers(0, width - w + 1), rng.integers(0, height - h + 1)
        section = source.resize((500, 375), Image.BICUBIC, box=(x, y, x + w, y + h))
        pixels = np.asarray(section).astype(np.int16) + rng.normal(0, 3, (375, 500, 3))
        path = Path(folder) / f"class{i % 4}" / f"{i:04}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(path, quality=88)


def rate(folder, workers, epochs):
    import torch
    from torchvision import datasets, transforms

    torch.set_num_threads(1)
    transform = transforms.Compose([
        transforms.RandomResizedCrop(224),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    ])
    data = datasets.ImageFolder(folder, transform)
    loader = torch.utils.data.DataLoader(data, 32, shuffle=True, num_workers=workers, persistent_workers=workers > 0)
    for epoch in range(epochs):
        start, count = time.perf_counter(), 0
        for x, _ in loader:
            count += len(x)
        print(f"epoch {epoch}: {count / (time.perf_counter() - start):.0f} images/s")


if __name__ == "__main__":
    what, folder, *rest = sys.argv[1:]
    if what == "make":
        make(folder, rest[0], int(rest[1]) if len(rest) > 1 else 256)
    else:
        rate(folder, *map(int, (rest + ["2", "3"][len(rest):])))
