"""Makes models.json: small models with what ONNX Runtime gives for them, and a gradient by NumPy.

    pip install onnx==1.22.0 onnxruntime==1.32.0 numpy
    python models.py

Each entry holds the model and its tensors as hexadecimal protobuf messages.
"""
import json
import os

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

F, I, B = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
rng = np.random.default_rng(0)
out = {}


def random(*shape):
    return rng.standard_normal(shape).astype(np.float32)


def info(name, array):
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)


def free(name, elem=F):
    return helper.make_tensor_value_info(name, elem, None)


def case(name, nodes, inputs, outputs, weights={}, opset=17, functions=(), domains=(), shuffled=False):
    graph = helper.make_graph(nodes, name, [info(k, v) for k, v in inputs.items()], [free(n, e) for n, e in outputs],
                              [numpy_helper.from_array(v, k) for k, v in weights.items()])
    opsets = [helper.make_opsetid("", opset)] + [helper.make_opsetid(d, 1) for d in domains]
    model = helper.make_model(graph, opset_imports=opsets, functions=list(functions), ir_version=8)
    results = ort.InferenceSession(model.SerializeToString()).run(None, inputs)
    if shuffled:
        model.graph.node.reverse()  # ONNX Runtime had them in order; the values do not depend on it
    out[name] = {
        "model": model.SerializeToString().hex(),
        "inputs": [numpy_helper.from_array(v, k).SerializeToString().hex() for k, v in inputs.items()],
        "outputs": [numpy_helper.from_array(v).SerializeToString().hex() for v in results],
    }


node = helper.make_node
x = random(2, 3, 4)
case("mlp", [node("Gemm", ["x", "w1", "b1"], ["a"], transB=1), node("Relu", ["a"], ["h"]),
             node("Gemm", ["h", "w2"], ["z"], alpha=0.5), node("Softmax", ["z"], ["y"])],
     {"x": random(4, 3)}, [("y", F)], {"w1": random(5, 3), "b1": random(5), "w2": random(5, 2)})
case("softmax_before_13", [node("Softmax", ["x"], ["y"])], {"x": x}, [("y", F)], opset=11)
case("softmax_from_13", [node("Softmax", ["x"], ["y"])], {"x": x}, [("y", F)], opset=13)
case("clip_by_attributes", [node("Clip", ["x"], ["y"], min=-0.5, max=0.25)], {"x": x}, [("y", F)], opset=7)
case("clip_by_inputs", [node("Clip", ["x", "", "hi"], ["y"])], {"x": x}, [("y", F)], {"hi": np.float32(0.25)})
case("sum_by_attribute", [node("ReduceSum", ["x"], ["y"], axes=[1], keepdims=0)], {"x": x}, [("y", F)], opset=11)
case("sum_by_input", [node("ReduceSum", ["x", "a"], ["y"], keepdims=0)], {"x": x}, [("y", F)], {"a": np.array([-1])})
case("slice_by_attributes", [node("Slice", ["x"], ["y"], starts=[1, -3], ends=[2, 100], axes=[1, 2])], {"x": x},
     [("y", F)], opset=9)
case("slice_backwards", [node("Slice", ["x", "s", "e", "a", "t"], ["y"])], {"x": x}, [("y", F)],
     {"s": np.array([-1]), "e": np.array([-10]), "a": np.array([2]), "t": np.array([-2])})
case("split_unevenly", [node("Split", ["x"], ["p", "q"], axis=2, num_outputs=2)],
     {"x": random(2, 5, 5)[:, :, :5]}, [("p", F), ("q", F)], opset=18)
case("upsample", [node("Upsample", ["x", "s"], ["y"], mode="nearest")], {"x": random(1, 2, 2, 3)}, [("y", F)],
     {"s": np.array([1, 1, 2, 1.5], np.float32)}, opset=9)
case("resize_cubic", [node("Resize", ["x", "", "", "n"], ["y"], mode="cubic", antialias=0)],
     {"x": random(1, 1, 5, 6)}, [("y", F)], {"n": np.array([1, 1, 7, 3])}, opset=18)
case("images", [node("Conv", ["x", "w", "b"], ["c"], pads=[1, 0, 1, 2], strides=[1, 2]),
                node("BatchNormalization", ["c", "g", "h", "m", "v"], ["n"]), node("Relu", ["n"], ["r"]),
                node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1),
                node("AveragePool", ["p"], ["y"], kernel_shape=[2, 2], auto_pad="SAME_UPPER")],
     {"x": random(2, 3, 7, 9)}, [("y", F)],
     {"w": random(4, 3, 3, 3), "b": random(4), "g": random(4), "h": random(4), "m": random(4), "v": random(4) ** 2})
case("reshape_by_shapes", [node("Shape", ["x"], ["s"]), node("Gather", ["s", "i"], ["n"]),
                           node("Unsqueeze", ["n", "zero"], ["u"]), node("Concat", ["u", "m"], ["t"], axis=0),
                           node("Reshape", ["x", "t"], ["y"])],
     {"x": x}, [("y", F)], {"i": np.array(1), "zero": np.array([0]), "m": np.array([-1])})
case("quantised", [node("QuantizeLinear", ["x", "s", "z"], ["q"]),
                   node("QLinearMatMul", ["q", "s", "z", "w", "ws", "wz", "ys", "z"], ["p"]),
                   node("DequantizeLinear", ["p", "ys", "z"], ["y"])],
     {"x": random(3, 4)}, [("y", F)],
     {"s": np.float32(0.02), "z": np.uint8(120), "w": rng.integers(-100, 100, (4, 5)).astype(np.int8),
      "ws": np.float32(0.01), "wz": np.int8(3), "ys": np.float32(0.05)})
case("lstm", [node("LSTM", ["x", "w", "r", "b", "n"], ["y", "h", "c"], hidden_size=3, direction="bidirectional")],
     {"x": random(4, 2, 5)}, [("y", F), ("h", F), ("c", F)],
     {"w": random(2, 12, 5), "r": random(2, 12, 3), "b": random(2, 24), "n": np.array([4, 2], np.int32)})

then = helper.make_graph([node("Add", ["x", "x"], ["t"])], "then", [], [free("t")])
other = helper.make_graph([node("Neg", ["x"], ["e"])], "else", [], [free("e")])
choice = [node("ReduceSum", ["x"], ["s"], keepdims=0), node("Greater", ["s", "zero"], ["c"]),
          node("If", ["c"], ["y"], then_branch=then, else_branch=other)]
case("if_positive", choice, {"x": np.abs(x)}, [("y", F)], {"zero": np.float32(0)})
case("if_negative", choice, {"x": -np.abs(x)}, [("y", F)], {"zero": np.float32(0)})
inner_then = helper.make_graph([node("Mul", ["v", "factor"], ["it"])], "then", [], [free("it")])
inner_else = helper.make_graph([node("Add", ["v", "x"], ["ie"])], "else", [], [free("ie")])
body = helper.make_graph(
    [node("Mod", ["i", "two"], ["odd"]), node("Cast", ["odd"], ["c"], to=B),
     node("If", ["c"], ["w"], then_branch=inner_then, else_branch=inner_else), node("Identity", ["go"], ["on"]),
     node("Identity", ["w"], ["kept"])],
    "body", [info("i", np.array(0)), info("go", np.array(True)), free("v")], [free("on", B), free("w"), free("kept")])
case("loop_with_a_branch", [node("Loop", ["n", "", "x"], ["y", "all"], body=body)], {"x": x}, [("y", F), ("all", F)],
     {"n": np.array(5), "two": np.array(2), "factor": np.float32(-0.5)})
step = helper.make_graph([node("Add", ["s", "v"], ["t"]), node("Mul", ["t", "t"], ["u"])], "step",
                         [free("s"), free("v")], [free("t"), free("u")])
case("scan_backwards", [node("Scan", ["zero", "x"], ["last", "y"], body=step, num_scan_inputs=1,
                             scan_input_axes=[1], scan_input_directions=[1], scan_output_axes=[1])],
     {"x": x}, [("last", F), ("y", F)], {"zero": np.zeros((2, 4), np.float32)})

scale = helper.make_function("own", "Scaled", ["a"], ["b"],
                             [node("Constant", [], ["k"]), node("Mul", ["a", "k"], ["b"])],
                             [helper.make_opsetid("", 17)], ["by"])
reference = scale.node[0].attribute.add()
reference.name, reference.ref_attr_name, reference.type = "value_float", "by", onnx.AttributeProto.FLOAT
twice = helper.make_function("own", "Twice", ["a"], ["d"],
                             [node("Scaled", ["a"], ["m"], domain="own", by=3.0),
                              node("Scaled", ["m"], ["d"], domain="own", by=0.5)],
                             [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)])
case("functions", [node("Twice", ["x"], ["m"], domain="own"), node("Scaled", ["m"], ["y"], domain="own", by=-2.0)],
     {"x": x}, [("y", F)], functions=[scale, twice], domains=["own"])
case("nodes_out_of_order", [node("Exp", ["x"], ["a"]), node("Add", ["a", "x"], ["b"]), node("Sqrt", ["a"], ["c"]),
                            node("Mul", ["b", "c"], ["y"])], {"x": x}, [("y", F)], shuffled=True)

# The gradient of sum(tanh(x w + b)^2), by NumPy.
xs, w, b = random(4, 3), random(3, 2), random(2)
case("trained", [node("MatMul", ["x", "layer.w"], ["p"]), node("Add", ["p", "layer.b"], ["z"]), node("Tanh", ["z"], ["y"])],
     {"x": xs}, [("y", F)], {"layer.w": w, "layer.b": b})
y = np.tanh(xs @ w + b)
dz = 2 * y * (1 - y * y)
out["trained"]["gradients"] = [(xs.T @ dz).ravel().tolist(), dz.sum(0).tolist()]

# Sizes that are inputs.
case("sizes_as_inputs", [node("ConstantOfShape", ["shape"], ["zeros"]), node("Cos", ["zeros"], ["ones"]),
                         node("Add", ["zeros", "ones"], ["y"])], {"shape": np.array([3, 2])}, [("y", F)])
# What the optimisations of graphs recognise.
image, row = random(2, 3, 6, 5), random(1, 4, 1, 1)
case("convolution_and_norm",
     [node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1]),
      node("BatchNormalization", ["c", "scale", "shift", "mean", "var"], ["n"], epsilon=1e-3), node("Relu", ["n"], ["y"])],
     {"x": image}, [("y", F)],
     {"w": random(4, 3, 3, 3), "b": random(4), "scale": random(4), "shift": random(4), "mean": random(4),
      "var": random(4) ** 2})
case("convolution_and_affine_maps",
     [node("Conv", ["x", "w"], ["c"], pads=[1, 0, 0, 1], group=1), node("Reshape", ["flat", "shape"], ["factor"]),
      node("Mul", ["factor", "c"], ["m"]), node("Add", ["m", "shift"], ["a"]), node("Sub", ["a", "two"], ["s"]),
      node("Div", ["s", "row"], ["d"]), node("Sub", ["two", "d"], ["y"])],
     {"x": image}, [("y", F)],
     {"w": random(4, 3, 2, 2), "flat": random(4), "shape": np.array([4, 1, 1]), "shift": row, "two": np.float32(2),
      "row": row + 3})
case("transposed_convolution_and_norm",
     [node("ConvTranspose", ["x", "w"], ["c"], strides=[2, 2]),
      node("BatchNormalization", ["c", "scale", "shift", "mean", "var"], ["y"])],
     {"x": image}, [("y", F)],
     {"w": random(3, 4, 2, 2), "scale": random(4), "shift": random(4), "mean": random(4), "var": random(4) ** 2})
case("a_map_that_is_not_of_channels", [node("Conv", ["x", "w"], ["c"]), node("Mul", ["c", "f"], ["y"])],
     {"x": random(1, 3, 5, 5)}, [("y", F)], {"w": random(5, 3, 1, 1), "f": random(5)})
case("product_and_bias", [node("MatMul", ["x", "w"], ["p"]), node("Add", ["b", "p"], ["z"]), node("Gelu", ["z"], ["y"])],
     {"x": x}, [("y", F)], {"w": random(4, 5), "b": random(5)}, opset=20)
bytes_of = lambda *shape: rng.integers(0, 256, shape).astype(np.uint8)  # noqa: E731
integers = TensorProto.INT32
case("integer_product", [node("MatMulInteger", ["x", "w", "xz", "wz"], ["y"])], {"x": bytes_of(3, 40)}, [("y", integers)],
     {"w": bytes_of(40, 5), "xz": np.array(7, np.uint8), "wz": bytes_of(5)})
case("long_integer_product", [node("MatMulInteger", ["x", "w"], ["y"])], {"x": bytes_of(2, 600)}, [("y", integers)],
     {"w": bytes_of(600, 3) | 192})
case("integer_convolution", [node("ConvInteger", ["x", "w", "xz", "wz"], ["y"], pads=[1, 1, 1, 1])],
     {"x": bytes_of(1, 3, 5, 4)}, [("y", integers)],
     {"w": bytes_of(4, 3, 3, 3), "xz": np.array(7, np.uint8), "wz": np.array(128, np.uint8)})
case("long_integer_convolution", [node("ConvInteger", ["x", "w"], ["y"])], {"x": bytes_of(1, 40, 5, 4)}, [("y", integers)],
     {"w": bytes_of(4, 40, 3, 3) | 192})
sequence = random(5, 2, 3)
case("lstm_both_ways", [node("LSTM", ["x", "w", "r", "b", "", "h", "c"], ["y", "yh", "yc"], hidden_size=4,
                             direction="bidirectional")],
     {"x": sequence, "h": random(2, 2, 4), "c": random(2, 2, 4)}, [("y", F), ("yh", F), ("yc", F)],
     {"w": random(2, 16, 3), "r": random(2, 16, 4), "b": random(2, 32)})
case("gru_backwards", [node("GRU", ["x", "w", "r", "b"], ["y", "yh"], hidden_size=4, linear_before_reset=1,
                            direction="reverse")],
     {"x": sequence}, [("y", F), ("yh", F)], {"w": random(1, 12, 3), "r": random(1, 12, 4), "b": random(1, 24)})
case("gru_without_bias", [node("GRU", ["x", "w", "r"], ["y", ""], hidden_size=4)], {"x": sequence}, [("y", F)],
     {"w": random(1, 12, 3), "r": random(1, 12, 4)})
case("shapes_and_constants",
     [node("Shape", ["x"], ["s"]), node("Gather", ["s", "zero"], ["n"]), node("Unsqueeze", ["n", "zeros"], ["n1"]),
      node("Concat", ["n1", "rest"], ["to"], axis=0), node("Reshape", ["x", "to"], ["flat"]),
      node("Exp", ["k"], ["e"]), node("Mul", ["flat", "e"], ["m"]), node("Log", ["m"], ["unused"]),
      node("Tanh", ["m"], ["y"])],
     {"x": x}, [("y", F)], {"zero": np.array(0), "zeros": np.array([0]), "rest": np.array([-1]), "k": random(12)})
case("products_with_a_larger_matrix",
     [node("MatMul", ["x", "w"], ["p"]), node("MatMul", ["x", "w"], ["q"]), node("Add", ["q", "b"], ["sum"]),
      node("Gemm", ["flat", "w", "b"], ["g"]), node("Gemm", ["flat", "w", "one"], ["h"]),
      node("Gemm", ["flat", "w", "b"], ["scaled"], alpha=0.5), node("MatMul", ["row", "w"], ["r"])],
     {"x": random(2, 3, 32), "flat": random(7, 32), "row": random(32)},
     [(name, F) for name in ("p", "sum", "g", "h", "scaled", "r")],
     {"w": random(32, 64), "b": random(64), "one": random(1)})

lengths = np.array([5, 1, 3], np.int32)
for direction in ("forward", "reverse", "bidirectional"):
    d = 2 if direction == "bidirectional" else 1
    case(f"gru_of_lengths_{direction}", [node("GRU", ["x", "w", "r", "b", "n", "h"], ["y", "yh"], hidden_size=4,
                                              linear_before_reset=1, direction=direction)],
         {"x": random(5, 3, 2), "n": lengths, "h": random(d, 3, 4)}, [("y", F), ("yh", F)],
         {"w": random(d, 12, 2), "r": random(d, 12, 4), "b": random(d, 24)})
case("gru_of_lengths_from_zero", [node("GRU", ["x", "w", "r", "", "n"], ["y", "yh"], hidden_size=4, linear_before_reset=1)],
     {"x": random(5, 3, 2), "n": lengths}, [("y", F), ("yh", F)], {"w": random(1, 12, 2), "r": random(1, 12, 4)})
case("product_with_a_column_too_many", [node("Gemm", ["x", "w", "b"], ["y"], transB=1)], {"x": random(3, 40)}, [("y", F)],
     {"w": random(129, 40), "b": random(129)})
case("expanded_to_computed_sizes",
     [node("Shape", ["x"], ["s"]), node("ConstantOfShape", ["three"], ["ones"], value=numpy_helper.from_array(np.array([1]))),
      node("Mul", ["ones", "minus"], ["all"]), node("Equal", ["to", "all"], ["is"]), node("Where", ["is", "s", "to"], ["sizes"]),
      node("Expand", ["row", "sizes"], ["e"]), node("Add", ["x", "e"], ["y"])],
     {"x": x}, [("y", F)], {"three": np.array([3]), "minus": np.array(-1), "to": np.array([-1, 3, -1]), "row": random(1, 1, 4)})
case("resized_by_factors", [node("Resize", ["x", "", "scales"], ["y"], mode="linear")], {"x": random(1, 2, 3, 4)}, [("y", F)],
     {"scales": np.array([1, 1, 2, 1.5], np.float32)})
case("sizes_from_folded_floats",
     [node("Pow", ["nine", "half"], ["p"]), node("Cast", ["p"], ["c"], to=I), node("Unsqueeze", ["c", "zero"], ["n"]),
      node("Concat", ["rest", "n"], ["to"], axis=0), node("Reshape", ["x", "to"], ["y"])],
     {"x": x}, [("y", F)],
     {"nine": np.float32(9), "half": np.float32(0.5), "zero": np.array([0]), "rest": np.array([-1])})

path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "models.json")
with open(path, "w") as f:
    json.dump(out, f, indent=0)
print(len(out), "models,", os.path.getsize(path), "bytes")
