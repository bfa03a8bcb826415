"""What the Python peers share: the jobs, their inputs, and the way to measure. The Rust peers' side is `harness/`."""

import gc
import json
import math
import sys
import time
import traceback
from pathlib import Path

import numpy as np

STEPS, WARM_UP, FEWEST = 4, 2, 3
# The stream of the gradient that a backward pass begins with.
SEED = 4


def word(stream, n):
    with np.errstate(over="ignore"):
        x = np.arange(n, dtype=np.uint32) + np.uint32(stream * 0x9E3779B9 & 0xFFFFFFFF)
        x = (x ^ (x >> np.uint32(16))) * np.uint32(0x85EBCA6B)
        x = (x ^ (x >> np.uint32(13))) * np.uint32(0xC2B2AE35)
        return x ^ (x >> np.uint32(16))


def unit(stream, n):
    """Numbers in [-2, 2), multiples of 2**-22."""
    return (word(stream, n) >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-22) - np.float32(2.0)


def values(stream, shape, scale=1.0):
    return (unit(stream, math.prod(shape)) * np.float32(scale)).reshape(shape)


def integers(stream, shape, below):
    wide = word(stream, math.prod(shape)).astype(np.uint64) * np.uint64(below)
    return (wide >> np.uint64(32)).astype(np.int64).reshape(shape)


def conv2d_shape(sizes):
    """Of the result of a convolution of these sizes, as the jobs give them."""
    n, _, h, o, k, s = sizes
    side = (h + k // 2 * 2 - k) // s + 1
    return [n, o, side, side]


class Parameters:
    """The parameters of a model in the order of PyTorch's `named_parameters`; see `harness/src/inputs.rs`."""

    def __init__(self):
        self.stream = 10

    def next(self, shape, fan_in):
        self.stream += 1
        return values(self.stream - 1, shape, np.float32(0.5 / math.sqrt(fan_in)))


def probe(array):
    v = np.asarray(array, dtype=np.float64).ravel()
    return [float(v.size), float(np.sqrt(v @ v)), float(v @ unit(1000, v.size)), float(v @ unit(1001, v.size))]


class Job:
    def __init__(self, line):
        cells = [cell.strip() for cell in line.split("|")]
        self.name, self.kind, self.sizes = cells[0], cells[1], [int(size) for size in cells[2].split()]


def jobs():
    lines = Path(__file__).with_name("jobs.txt").read_text().splitlines()
    return [Job(line) for line in lines if not line.startswith("#")]


def ticks():
    """Of all cores, of those the busy ones, of this process, and how many cores; see `harness/src/usage.rs`."""
    lines = Path("/proc/stat").read_text().splitlines()
    user, nice, system, idle, waiting, interrupts, soft, stolen = (int(word) for word in lines[0].split()[1:9])
    busy = user + nice + system + interrupts + soft + stolen
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    cores = sum(line.startswith("cpu") and not line.startswith("cpu ") for line in lines)
    return busy + idle + waiting, busy, int(fields[11]) + int(fields[12]), cores


class Bench:
    """Takes the measurements of one job; `finish` waits until what a call gives is computed."""

    def __init__(self, job, seconds, finish, warm_up, compares=True):
        self.seconds, self.finish, self.warm_up, self.compares = seconds, finish, warm_up, compares
        self.times, self.probes, self.missing, self.cores, self.others = [], [], None, None, None
        self.repeats = job.sizes[1] if job.kind.startswith("chain") else 1

    def time(self, job, read):
        """Compares by `read`, which gives the list of arrays of a call, then times the job."""
        result = job()
        self.finish(result)
        if self.compares:
            self.probes = [probe(array) for array in read(result)]
        del result
        self.repeat(job)

    def train(self, step):
        """Compares the losses of the first steps, then times a step."""
        self.probes = [probe([float(step()) for _ in range(STEPS)])]
        self.repeat(step)

    def absent(self, reason):
        self.missing = reason

    def repeat(self, job):
        for _ in range(self.warm_up):
            self.finish(job())
        if self.seconds == 0:
            return
        then, start = ticks(), time.perf_counter()
        while len(self.times) < FEWEST or time.perf_counter() - start < self.seconds:
            call = time.perf_counter()
            self.finish(job())
            self.times.append((time.perf_counter() - call) / self.repeats)
        all, busy, own, cores = (a - b for a, b in zip(ticks(), (*then[:3], 0)))
        if all > 0:
            self.cores, self.others = own / all * cores, max((busy - own) / all, 0.0)

    def line(self):
        median = sorted(self.times)[len(self.times) // 2] if self.times else None
        return json.dumps({"median": median, "least": min(self.times, default=None), "samples": len(self.times), "probes": self.probes, "absent": self.missing,
                           "cores": self.cores, "others": self.others})


def peak_kb():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def is_done(run, job, finish):
    """Does a job a few times, untimed and without copies of its result. What fails here is told where the job is measured."""
    bench = Bench(job, 0, finish, WARM_UP, compares=False)
    try:
        run(job, bench)
    except Exception:
        traceback.print_exc()
        return False
    finally:
        gc.collect()
    return bench.missing is None


def main(run, finish=lambda result: None):
    """A peer's whole program: `--job NAME --seconds S`, then what the peer has of its own."""
    if len(sys.argv) < 5 or (sys.argv[1], sys.argv[3]) != ("--job", "--seconds"):
        sys.exit("usage: --job NAME --seconds S")
    name, seconds = sys.argv[2], float(sys.argv[4])
    job = next((job for job in jobs() if job.name == name), None)
    if job is None:
        sys.exit(f"there is no job {name}")
    if job.kind == "all":
        done = sum(is_done(run, job, finish) for job in jobs() if job.kind != "all")
        print(json.dumps({"peak_kb": peak_kb(), "done": done}))
        return
    bench = Bench(job, seconds, finish, 0 if seconds == 0 else WARM_UP)
    run(job, bench)
    print(bench.line())
