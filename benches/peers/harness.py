"""What the Python peers share: the jobs, their inputs, and the way to measure. The Rust peers' side is `harness/`."""

import json
import math
import resource
import sys
import time
from pathlib import Path

import numpy as np

STEPS, WARM_UP, FEWEST = 4, 2, 3


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
    return ((word(stream, math.prod(shape)).astype(np.uint64) * np.uint64(below)) >> np.uint64(32)).astype(np.int64).reshape(shape)


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
    def __init__(self, name):
        for line in Path(__file__).with_name("jobs.txt").read_text().splitlines():
            cells = [cell.strip() for cell in line.split("|")]
            if cells[0] == name:
                self.name, self.kind, self.sizes = cells[0], cells[1], [int(size) for size in cells[2].split()]
                return
        sys.exit(f"there is no job {name}")


class Bench:
    """Takes the measurements of one job; `finish` waits until what a call gives is computed."""

    def __init__(self, job, seconds, finish=lambda result: None):
        self.seconds, self.finish, self.times, self.probes, self.missing = seconds, finish, [], [], None
        self.repeats = job.sizes[1] if job.kind.startswith("chain") else 1

    def time(self, job, read):
        """Compares by `read`, which gives the list of arrays of a call, then times the job."""
        self.probes = [probe(array) for array in read(job())]
        self.repeat(job)

    def train(self, step):
        """Compares the losses of the first steps, then times a step."""
        self.probes = [probe([float(step()) for _ in range(STEPS)])]
        self.repeat(step)

    def absent(self, reason):
        self.missing = reason

    def repeat(self, job):
        if self.seconds == 0:
            return
        for _ in range(WARM_UP):
            self.finish(job())
        start = time.perf_counter()
        while len(self.times) < FEWEST or time.perf_counter() - start < self.seconds:
            call = time.perf_counter()
            self.finish(job())
            self.times.append((time.perf_counter() - call) / self.repeats)

    def line(self):
        median = sorted(self.times)[len(self.times) // 2] if self.times else None
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return json.dumps({"median": median, "samples": len(self.times), "probes": self.probes, "absent": self.missing, "peak_kb": peak})


def arguments():
    """The job, the seconds and the other arguments."""
    if len(sys.argv) < 5 or (sys.argv[1], sys.argv[3]) != ("--job", "--seconds"):
        sys.exit("usage: --job NAME --seconds S")
    return Job(sys.argv[2]), float(sys.argv[4]), sys.argv[5:]
