"""Writes golden.tfevents with TensorBoard's own messages and record writer, and reads it back with its reader.

Run with tensorboard and numpy: python events.py

`python events.py FILE` only reads a file, and prints what TensorBoard finds in it.
"""

import os
import shutil
import sys
import tempfile

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, tensor_shape_pb2
from tensorboard.summary.writer.record_writer import RecordWriter

HERE = os.path.dirname(os.path.abspath(__file__))
TIME = 1_700_000_000.5
PNG = open(os.path.join(HERE, "pixel.png"), "rb").read()


def limits():
    positive, limit = [], 1e-12
    while limit < 1e20:
        positive.append(limit)
        limit *= 1.1
    positive.append(sys.float_info.max)
    return [-x for x in reversed(positive)] + [0.0] + positive


def histogram(values):
    every = limits()
    counts = [0.0] * len(every)
    for value in values:
        counts[next(i for i, limit in enumerate(every) if limit > value)] += 1
    first = next(i for i, count in enumerate(counts) if count)
    last = max(i for i, count in enumerate(counts) if count)
    kept = slice(max(first - 1, 0), last + 1)
    return summary_pb2.HistogramProto(
        min=min(values), max=max(values), num=len(values), sum=sum(values), sum_squares=sum(v * v for v in values),
        bucket_limit=every[kept], bucket=counts[kept])


def events():
    def value(step, **fields):
        return event_pb2.Event(wall_time=TIME, step=step, summary=summary_pb2.Summary(
            value=[summary_pb2.Summary.Value(**fields)]))

    yield event_pb2.Event(wall_time=TIME, file_version="brain.Event:2")
    yield value(0, tag="score", simple_value=0.0)
    yield value(10**12, tag="score", simple_value=-1.5)
    yield value(3, tag="weights", histo=histogram([-1.0, 0.0, 0.5, 2.0, 2.0]))
    yield value(4, tag="digit", image=summary_pb2.Summary.Image(
        height=1, width=1, colorspace=1, encoded_image_string=PNG))
    shape = tensor_shape_pb2.TensorShapeProto(dim=[tensor_shape_pb2.TensorShapeProto.Dim(size=1)])
    plugin = summary_pb2.SummaryMetadata.PluginData(plugin_name="text")
    yield value(5, tag="note", metadata=summary_pb2.SummaryMetadata(plugin_data=plugin),
                tensor=tensor_pb2.TensorProto(dtype=7, tensor_shape=shape, string_val=["an *é*".encode()]))
    yield event_pb2.Event(wall_time=TIME, step=7, session_log=event_pb2.SessionLog(status=event_pb2.SessionLog.START))
    for tag, number in [("train/loss", 0.25), ("train/lr", 0.5), ("train/grad_norm", 2.0), ("epoch/loss", 0.25),
                        ("epoch/accuracy", 1.0), ("validation/loss", 0.75), ("validation/accuracy", 0.5)]:
        yield value(7, tag=tag, simple_value=number)


def read(path):
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(path, os.path.join(folder, "events.out.tfevents.1"))
        found = EventAccumulator(folder, size_guidance={"scalars": 0, "histograms": 0, "images": 0, "tensors": 0})
        found.Reload()
    return found


if len(sys.argv) > 1:
    found = read(sys.argv[1])
    tags = found.Tags()
    for tag in tags["scalars"]:
        print(tag, [(event.step, event.value) for event in found.Scalars(tag)])
    for kind in ("histograms", "images", "tensors"):
        print(kind, tags[kind])
    sys.exit()

path = os.path.join(HERE, "golden.tfevents")
with open(path, "wb") as file:
    writer = RecordWriter(file)
    for event in events():
        writer.write(event.SerializeToString())
found = read(path)
tags = found.Tags()
assert [(e.step, e.value) for e in found.Scalars("train/loss")] == [(7, 0.25)]
assert [(e.step, e.value) for e in found.Scalars("score")] == [(0, 0.0)], "the session that starts at 7 purges later steps"
histogram = found.Histograms("weights")[0].histogram_value
assert (histogram.min, histogram.max, histogram.num, histogram.sum) == (-1, 2, 5, 3.5)
assert found.Images("digit")[0].encoded_image_string == PNG
assert found.Tensors("note")[0].tensor_proto.string_val[0].decode() == "an *é*"
print(os.path.getsize(path), "bytes, read back with", sorted(tags["scalars"]))
