"""PyTorch's side of `gradus train text`, and both in turn.

    python train_text.py FILE [--steps N]                      # train in PyTorch: time a step, validation loss
    python train_text.py FILE --gradus PATH [--rounds N]       # a few steps of both in turn: the ratio of their times

The model, the batches, the optimiser and the schedule are those of `gradus train text`: a GPT-2 of characters with a tied
head, sections of the text side by side in random order, AdamW, gradients clipped to a norm of 1. The defaults are the
10.8 M parameters of nanoGPT's `shakespeare-char`. Both take the whole time of their loops, warm-up included, with the
same number of threads, and validation not.
"""

import argparse
import csv
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time


def arguments():
    p = argparse.ArgumentParser()
    p.add_argument("file")
    p.add_argument("--gradus", help="the command to compare with")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--steps", type=int, help="steps; by default those that cover the text once, or 6 to compare")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--batch-size", type=int, default=4)
    p.add_argument("--lr", type=float, default=1e-3)
    for name, size in {"layers": 6, "heads": 6, "width": 384, "context": 256}.items():
        p.add_argument("--" + name, type=int, default=size)
    p.add_argument("--dropout", type=float, default=0.2)
    p.add_argument("--no-validation", action="store_true")
    return p.parse_args()


def train(a):
    import torch
    import torch.nn as nn
    import torch.nn.functional as F

    torch.set_num_threads(a.threads)
    torch.manual_seed(0)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            d = a.width
            self.ln_1, self.attn, self.proj = nn.LayerNorm(d), nn.Linear(d, 3 * d), nn.Linear(d, d)
            self.ln_2, self.up, self.down = nn.LayerNorm(d), nn.Linear(d, 4 * d), nn.Linear(4 * d, d)
            self.drop = nn.Dropout(a.dropout)

        def forward(self, x):
            b, t, d = x.shape
            heads = (z.view(b, t, a.heads, -1).transpose(1, 2) for z in self.attn(self.ln_1(x)).split(d, 2))
            dropout = a.dropout if self.training else 0.0
            y = F.scaled_dot_product_attention(*heads, is_causal=True, dropout_p=dropout)
            x = x + self.drop(self.proj(y.transpose(1, 2).reshape(b, t, d)))
            return x + self.drop(self.down(F.gelu(self.up(self.ln_2(x)), approximate="tanh")))

    class Gpt(nn.Module):
        def __init__(self, vocabulary):
            super().__init__()
            self.wte, self.wpe = nn.Embedding(vocabulary, a.width), nn.Embedding(a.context, a.width)
            self.drop, self.ln_f = nn.Dropout(a.dropout), nn.LayerNorm(a.width)
            self.h = nn.ModuleList([Block() for _ in range(a.layers)])
            for name, p in self.named_parameters():
                if p.dim() > 1:
                    down = name.endswith(("proj.weight", "down.weight"))
                    nn.init.normal_(p, std=0.02 / math.sqrt(2 * a.layers) if down else 0.02)
                elif name.endswith("bias"):
                    nn.init.zeros_(p)

        def forward(self, ids):
            x = self.drop(self.wte(ids) + self.wpe(torch.arange(ids.shape[1])))
            for block in self.h:
                x = block(x)
            return F.linear(self.ln_f(x), self.wte.weight)

    text = open(a.file, encoding="utf-8").read()
    characters = sorted(set(text))
    tokens = torch.tensor([characters.index(c) for c in text])
    cut = len(text) - len(text) // 10
    training, held_out = tokens[:cut], tokens[cut:]
    model = Gpt(len(characters))
    groups = [{"params": [p for p in model.parameters() if (p.dim() > 1) == matrix], "weight_decay": decay}
              for matrix, decay in ((True, 0.1), (False, 0.0))]
    optimizer = torch.optim.AdamW(groups, lr=a.lr, betas=(0.9, 0.99), fused=True)
    loss_of = lambda x: F.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
    sections = (len(training) - 1) // a.context - 1
    steps = a.steps or -(-sections // a.batch_size)
    warm, order, first, losses = steps // 20, [], 0, []
    start = time.perf_counter()
    for step in range(steps):
        if len(order) < a.batch_size:
            order, first = torch.randperm(sections).tolist(), torch.randint(a.context, ()).item()
        picked = [first + order.pop() * a.context for _ in range(a.batch_size)]
        x = torch.stack([training[i : i + a.context + 1] for i in picked])
        done = (step - warm) / max(1, steps - warm)
        factor = (step + 1) / warm if step < warm else 0.1 + 0.45 * (1 + math.cos(math.pi * done))
        for group in optimizer.param_groups:
            group["lr"] = a.lr * factor
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(x)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    seconds = time.perf_counter() - start
    found = {"seconds": seconds, "steps": steps, "step_ms": seconds / steps * 1e3, "loss": statistics.mean(losses[-20:])}
    if not a.no_validation:
        model.eval()
        with torch.inference_mode():
            count = (len(held_out) - 1) // a.context
            rows = torch.stack([held_out[i * a.context : (i + 1) * a.context + 1] for i in range(count)])
            parts = [loss_of(part).item() * len(part) for part in rows.split(a.batch_size)]
        found["validation_loss"] = sum(parts) / count
    print(json.dumps(found))


def compare(a):
    steps = a.steps or 6
    # With a text of this length, an epoch of `gradus train text` has that many steps.
    text = open(a.file, encoding="utf-8").read()
    learned = ((steps * a.batch_size + 1) * a.context + 1) * 10 // 9 + 10 * a.context
    shared = [f"--{name}={getattr(a, name.replace('-', '_'))}"
              for name in ("layers", "heads", "width", "context", "dropout", "lr", "threads", "batch-size")]
    times = {"gradus": [], "torch": []}
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "text.txt")
        open(path, "w", encoding="utf-8").write(text[:learned])
        gradus = [a.gradus, "train", "text", path, "--epochs=1", "--json", "--force", "--out", folder + "/out", *shared]
        torch = [sys.executable, __file__, path, f"--steps={steps}", "--no-validation", *shared]
        for _ in range(a.rounds):
            for name, command in (("gradus", gradus), ("torch", torch)):
                out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                done = json.loads(out.strip().splitlines()[-1])
                if name == "gradus":
                    rows = csv.DictReader(open(folder + "/out/metrics.csv", newline=""))
                    done["step_ms"] = done["seconds"] / sum(int(row["steps"]) for row in rows) * 1e3
                times[name].append(done["step_ms"])
    ratios = [t / g for g, t in zip(times["gradus"], times["torch"])]
    for name, all_times in times.items():
        print(f"{name:7} {statistics.median(all_times):8.1f} ms a step  ({', '.join(f'{t:.0f}' for t in all_times)})")
    print(f"torch / gradus: {statistics.median(ratios):.2f}  ({', '.join(f'{r:.2f}' for r in ratios)})")


if __name__ == "__main__":
    options = arguments()
    compare(options) if options.gradus else train(options)
