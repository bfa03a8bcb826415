"""What the Python peers share: the jobs, their inputs, and the way to measure. The Rust peers' side is `harness/`."""

import gc
import json
import math
import os
import statistics
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


def jobs(table="jobs.txt"):
    lines = Path(__file__).with_name(table).read_text().splitlines()
    return [Job(line) for line in lines if not line.startswith("#")]


def ticks(cores):
    """Of these cores, all and the busy ones, and those of this process; see `harness/src/usage.rs`. `None` where the
    system does not tell."""
    if not cores:
        return None
    try:
        lines = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
        own = sum(int(time) for time in Path("/proc/self/stat").read_text().rpartition(")")[2].split()[11:15])
    except OSError:
        return None
    names = {f"cpu{core}" for core in cores}
    times = np.sum([[int(time) for time in line[1:9]] for line in lines if line[0] in names], axis=0)
    return int(times.sum()), int(times.sum() - times[3] - times[4]), own


def cores():
    """The numbers of the cores that this process may use; none where the system does not tell."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()


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
        used = cores()
        then, start = ticks(used), time.perf_counter()
        while len(self.times) < FEWEST or time.perf_counter() - start < self.seconds:
            call = time.perf_counter()
            self.finish(job())
            self.times.append((time.perf_counter() - call) / self.repeats)
        if then is not None:
            all, busy, own = (now - before for now, before in zip(ticks(used), then))
            if all > 0:
                self.cores, self.others = own / all * len(used), max((busy - own) / all, 0.0)

    def line(self):
        return json.dumps({
            "median": statistics.median(self.times) if self.times else None, "least": min(self.times, default=None),
            "samples": len(self.times), "probes": self.probes, "absent": self.missing,
            "cores": self.cores, "others": self.others,
        })


def peak_kb():
    """The most memory that this process held, where the system says so."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), None)


def is_done(run, job, finish):
    """Does a job a few times, untimed and without copies of its result. What fails is told where it is measured."""
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
    job = next((job for job in jobs() + jobs("classes.txt") if job.name == name), None)
    if job is None:
        sys.exit(f"there is no job {name}")
    if job.kind == "all":
        done = sum(is_done(run, job, finish) for job in jobs() if job.kind != "all")
        print(json.dumps({"peak_kb": peak_kb(), "done": done}))
        return
    bench = Bench(job, seconds, finish, 0 if seconds == 0 else WARM_UP)
    run(job, bench)
    print(bench.line())
