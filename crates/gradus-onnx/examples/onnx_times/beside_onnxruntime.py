"""Runs Gradus and ONNX Runtime in turns on real models, and prints the table of speeds of `docs/onnx.md`.

    python crates/gradus-onnx/examples/onnx_cases/real_models.py fetch FOLDER
    python crates/gradus-onnx/examples/onnx_cases/real_models.py make FOLDER OUT
    cargo build --release -p gradus-onnx --example onnx_times
    python beside_onnxruntime.py target/release/examples/onnx_times OUT [PART OF A NAME ..]

Each model has one process of Gradus and one of ONNX Runtime (all optimisations), both with two threads. They run in
turns, so that other work on the machine slows both down. A ratio is the median over the turns of how many times as
fast Gradus is; above 1, Gradus is faster. The times are medians too. ONNX Runtime optimises a model while it loads it,
and Gradus in the first run, so the first result is measured as well: the time to load and to run once. The memory is
the peak of the process after the model was run, minus what it had before the model was loaded.
"""
import glob
import math
import os
import statistics
import subprocess
import sys
import time

THREADS = 2
TURNS, SECONDS = 15, 6.0


def serve():
    """The process of ONNX Runtime, which obeys the commands of the example `onnx_times`."""
    import onnx
    import onnxruntime as ort
    from onnx import numpy_helper

    options = ort.SessionOptions()
    options.intra_op_num_threads = THREADS
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = 3
    # Threads that wait for work in a loop would take the other process's time.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    print("ready", flush=True)
    for line in sys.stdin:
        match line.rstrip("\n").split("\t"):
            case ["load", model, data]:
                start = time.perf_counter()
                session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
                print(time.perf_counter() - start, flush=True)
                feeds = {}
                for i, port in enumerate(session.get_inputs()):
                    path = os.path.join(data, f"input_{i}.pb")
                    if os.path.exists(path):
                        feeds[port.name] = numpy_helper.to_array(onnx.load_tensor(path))
            case ["run", times]:
                start = time.perf_counter()
                for _ in range(int(times)):
                    session.run(None, feeds)
                print(time.perf_counter() - start, flush=True)


class Process:
    def __init__(self, command):
        environment = os.environ | {"GRADUS_NUM_THREADS": str(THREADS)}
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)
        self.read()
        self.before = self.memory("VmRSS")

    def read(self):
        line = self.process.stdout.readline().strip()
        if not line:
            raise RuntimeError(f"{self.process.args} has ended")
        return line

    def ask(self, *words):
        self.process.stdin.write("\t".join(words) + "\n")
        self.process.stdin.flush()
        return float(self.read())

    def memory(self, what):
        with open(f"/proc/{self.process.pid}/status") as status:
            return next(int(line.split()[1]) / 1024 for line in status if line.startswith(what))

    def end(self):
        peak = self.memory("VmHWM") - self.before
        self.process.stdin.close()
        self.process.wait()
        return peak


def measure(program, case):
    ours, theirs = pair = [Process([program]), Process([sys.executable, __file__, "serve"])]
    load = [p.ask("load", os.path.join(case, "model.onnx"), os.path.join(case, "test_data_set_0")) for p in pair]
    first = [time + p.ask("run", "1") for p, time in zip(pair, load)]
    for p in pair:
        p.ask("run", "2")
    once = max(p.ask("run", "1") for p in pair)
    count = max(1, min(1000, int(0.05 / once)))
    turns, until = [], time.monotonic() + SECONDS
    while len(turns) < TURNS and (len(turns) < 3 or time.monotonic() < until):
        turns.append([p.ask("run", str(count)) / count for p in pair])
    ratio = statistics.median(b / a for a, b in turns)
    times = [statistics.median(t) for t in zip(*turns)] + load + first
    return ratio, *(1e3 * t for t in times), ours.end(), theirs.end()


def main(program, folder, *parts):
    ratios, loads, firsts, peaks = [], [], [], []
    print("| model | package | ratio | Gradus ms | ONNX Runtime ms | load ms | | first result ms | | memory MB | |\n"
          + "|---" * 11 + "|")
    for case in sorted(glob.glob(os.path.join(folder, "*@*"))):
        package, model = os.path.basename(case).split("@")
        if parts and not any(part in case for part in parts):
            continue
        try:
            ratio, a, b, load_a, load_b, first_a, first_b, peak_a, peak_b = measure(program, case)
        except RuntimeError as error:
            print(f"{case}: {error}", file=sys.stderr)
            continue
        ratios.append(ratio)
        loads.append(load_b / load_a)
        firsts.append(first_b / first_a)
        peaks.append(peak_b / peak_a)
        name = f"| `{model.split('|')[-1]}` | {package.replace('==', ' ')} |"
        print(f"{name} {ratio:.2f} | {a:.3g} | {b:.3g} | {load_a:.3g} | {load_b:.3g} | {first_a:.3g} | {first_b:.3g} "
              f"| {peak_a:.0f} | {peak_b:.0f} |", flush=True)
    mean = lambda values: math.exp(statistics.fmean(map(math.log, values)))  # noqa: E731
    print(f"\n{len(ratios)} models: geometric means: speed {mean(ratios):.2f}, load {mean(loads):.2f}, "
          f"first result {mean(firsts):.2f}, memory {mean(peaks):.2f}; slowest {min(ratios):.2f}; "
          f"{sum(r < 0.6 for r in ratios)} below 0.6")


if __name__ == "__main__":
    serve() if sys.argv[1] == "serve" else main(*sys.argv[1:])
