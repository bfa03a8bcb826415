"""PyTorch's side of `gradus train images` on a folder of IDX files, and both in turn.

    python train_images.py DIR [--epochs N]                    # train in PyTorch: time a step, accuracy on the test set
    python train_images.py DIR --gradus PATH [--rounds N]      # some steps of both in turn: the ratio of their times

The network, the optimiser, the schedule and the changes of pictures (shifted by up to two pixels, half of them mirrored)
are those of `gradus train images` for small pictures. PyTorch's pictures lie ready in one tensor and are changed a batch at
a time, which is faster than a `DataLoader`. Both take the whole time of their loops with the same number of threads, and
validation not.
"""

import argparse
import csv
import gzip
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time

PARTS = {"train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
         "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")}


def arguments():
    p = argparse.ArgumentParser()
    p.add_argument("dir")
    p.add_argument("--gradus", help="the command to compare with")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--steps", type=int, help="steps; by default those of all epochs, or 40 to compare")
    p.add_argument("--epochs", type=int, default=8)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--batch-size", type=int, default=128)
    p.add_argument("--lr", type=float, default=4e-3)
    return p.parse_args()


def read(path):
    """The bytes of an IDX file without its header, and its header."""
    opened = open(path, "rb") if os.path.exists(path) else gzip.open(path + ".gz")
    with opened as f:
        data = f.read()
    header = 4 + 4 * data[3]
    return data[:header], data[header:]


def train(a):
    import torch
    import torch.nn as nn
    import torch.nn.functional as F

    torch.set_num_threads(a.threads)
    torch.manual_seed(0)

    def part(name):
        x, y = (bytearray(read(os.path.join(a.dir, file))[1]) for file in PARTS[name])
        return torch.frombuffer(x, dtype=torch.uint8).view(-1, 1, 28, 28), torch.frombuffer(y, dtype=torch.uint8).long()

    def unit(from_, to):
        return [nn.Conv2d(from_, to, 3, padding=1, bias=False), nn.BatchNorm2d(to), nn.ReLU()]

    model = nn.Sequential(*unit(1, 32), nn.MaxPool2d(2), *unit(32, 64), nn.MaxPool2d(2), *unit(64, 128), *unit(128, 128),
                          nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(128, 10))
    model = model.to(memory_format=torch.channels_last)
    (images, labels), count = part("train"), 0
    mean, std = images.float().mean() / 255, images.float().std() / 255
    normalize = lambda x: (x.float() / 255 - mean) / std
    optimizer = torch.optim.AdamW(model.parameters(), lr=a.lr, weight_decay=0.02, fused=True)
    steps = a.steps or a.epochs * -(-len(labels) // a.batch_size)
    warm, order, losses = steps // 10, [], []
    start = time.perf_counter()
    for step in range(steps):
        if not len(order):
            order = torch.randperm(len(labels))
        picked, order = order[: a.batch_size], order[a.batch_size :]
        n = len(picked)
        rows = torch.arange(28) + torch.randint(5, (n, 1))
        columns = torch.arange(28) + torch.randint(5, (n, 1))
        columns = torch.where(torch.rand(n, 1) < 0.5, columns.flip(1), columns)
        x = F.pad(images[picked, 0], (2, 2, 2, 2))[torch.arange(n)[:, None, None], rows[:, :, None], columns[:, None, :]]
        x = normalize(x)[:, None].contiguous(memory_format=torch.channels_last)
        done = (step - warm) / max(1, steps - warm)
        factor = (step + 1) / warm if step < warm else 0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * done))
        for group in optimizer.param_groups:
            group["lr"] = a.lr * factor
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(model(x), labels[picked], label_smoothing=0.05)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        count += n
    seconds = time.perf_counter() - start
    found = {"seconds": seconds, "steps": steps, "images_per_second": count / seconds, "loss": statistics.mean(losses[-20:])}
    if not a.steps:
        model.eval()
        with torch.inference_mode():
            x, y = part("test")
            right = sum((model(normalize(b)).argmax(1) == t).sum().item() for b, t in zip(x.split(500), y.split(500)))
        found["accuracy"] = right / len(y)
    print(json.dumps(found))


def compare(a):
    steps = a.steps or 40
    images = steps * a.batch_size
    rates = {"gradus": [], "torch": []}
    with tempfile.TemporaryDirectory() as folder:
        for name, files in PARTS.items():
            count = images if name == "train" else 100
            for file, bytes_each in zip(files, (28 * 28, 1)):
                header, data = read(os.path.join(a.dir, file))
                with open(os.path.join(folder, file), "wb") as f:
                    f.write(header[:4] + count.to_bytes(4, "big") + header[8:] + data[: count * bytes_each])
        shared = [f"--threads={a.threads}", f"--batch-size={a.batch_size}", f"--lr={a.lr}", "--epochs=1"]
        gradus = [a.gradus, "train", "images", folder, "--json", "--force", "--out", folder + "/out", *shared]
        torch = [sys.executable, __file__, folder, f"--steps={steps}", *shared]
        for _ in range(a.rounds):
            for name, command in (("gradus", gradus), ("torch", torch)):
                out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                if name == "gradus":
                    row = next(csv.DictReader(open(folder + "/out/metrics.csv", newline="")))
                    rates[name].append(float(row["samples_per_second"]))
                else:
                    rates[name].append(json.loads(out.strip().splitlines()[-1])["images_per_second"])
    ratios = [g / t for g, t in zip(rates["gradus"], rates["torch"])]
    for name, all_rates in rates.items():
        print(f"{name:7} {statistics.median(all_rates):8.0f} images/s  ({', '.join(f'{r:.0f}' for r in all_rates)})")
    print(f"gradus / torch: {statistics.median(ratios):.2f}  ({', '.join(f'{r:.2f}' for r in ratios)})")


if __name__ == "__main__":
    options = arguments()
    compare(options) if options.gradus else train(options)
