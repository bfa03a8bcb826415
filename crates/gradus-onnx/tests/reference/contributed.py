"""Makes contributed.json: operators of com.microsoft and ai.onnx.ml with what ONNX Runtime gives for them.

    pip install onnx==1.23.2 onnxruntime==1.32.0 numpy
    python contributed.py

Each entry holds a model of one node and its tensors as hexadecimal protobuf messages. `allowed` is how far a result may
be off: for operators whose results are quantised one step, and otherwise a part of the largest magnitude.
"""
import json
import os

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

rng = np.random.default_rng(0)
out = {}
MS, ML = "com.microsoft", "ai.onnx.ml"


def normal(*shape):
    return rng.standard_normal(shape).astype(np.float32)


def small(kind, *shape):
    info = np.iinfo(kind)
    return rng.integers(info.min, info.max + 1, shape).astype(kind)


def f32(value):
    return np.array(value, np.float32)


def info(name, array):
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)


def case(name, op, inputs, outputs=1, domain=MS, constants=(), allowed=2e-5, version=1, **attributes):
    """`inputs` are arrays or None, in order; those at the positions `constants` are initialisers."""
    names = ["" if v is None else f"i{i}" for i, v in enumerate(inputs)]
    given = {n: v for i, (n, v) in enumerate(zip(names, inputs)) if n and i not in constants}
    weights = {n: v for i, (n, v) in enumerate(zip(names, inputs)) if n and i in constants}
    results = [f"o{i}" if i in (outputs if isinstance(outputs, (list, tuple)) else range(outputs)) else ""
               for i in range(max(outputs) + 1 if isinstance(outputs, (list, tuple)) else outputs)]
    node = helper.make_node(op, names, results, domain=domain, **attributes)
    # ONNX Runtime infers the types of the results.
    free = [helper.make_empty_tensor_value_info(n) for n in results if n]
    graph = helper.make_graph([node], name, [info(n, v) for n, v in given.items()], free,
                              [numpy_helper.from_array(v, n) for n, v in weights.items()])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(MS, 1), helper.make_opsetid(ML, 3)]
    if domain == ML:
        opsets[2] = helper.make_opsetid(ML, version)
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    # Several threads round the parts of a batch apart.
    options.intra_op_num_threads = 1
    values = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"]).run(None, given)
    del graph.output[:]
    for n, v in zip([n for n in results if n], values):
        array = np.asarray(v)
        kind = TensorProto.STRING if array.dtype == object else helper.np_dtype_to_tensor_dtype(array.dtype)
        graph.output.append(helper.make_tensor_value_info(n, kind, None))
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    out[name] = {
        "model": model.SerializeToString().hex(),
        "inputs": [numpy_helper.from_array(v, n).SerializeToString().hex() for n, v in given.items()],
        "outputs": [numpy_helper.from_array(np.asarray(v)).SerializeToString().hex() for v in values],
        "allowed": allowed,
    }


x = normal(2, 3, 4)
case("gelu", "Gelu", [x])
case("bias_gelu", "BiasGelu", [x, normal(4)])
case("fast_gelu", "FastGelu", [x, normal(4)], allowed=5e-5)
case("quick_gelu", "QuickGelu", [x], alpha=1.5)
case("fused_mat_mul", "FusedMatMul", [normal(2, 4, 3), normal(2, 5, 4)], transA=1, transB=1, alpha=0.5)
case("fused_mat_mul_batches", "FusedMatMul", [normal(3, 2, 4), normal(4, 2, 5)], transBatchA=1, transBatchB=1)
case("fused_mat_mul_batches_swapped", "FusedMatMul", [normal(4, 2, 3), normal(2, 4, 5)], transBatchA=1, transA=1)
case("fused_gemm", "FusedGemm", [normal(3, 4), normal(5, 4), normal(5)], transB=1, alpha=0.5, beta=2.0,
     activation="LeakyRelu", activation_alpha=0.2)
image, kernel = normal(2, 4, 6, 5), normal(6, 2, 3, 3)
case("fused_conv", "FusedConv", [image, kernel, normal(6)], group=2, pads=[1, 1, 1, 1], strides=[2, 1], activation="Relu")
case("fused_conv_sum", "FusedConv", [image, kernel, normal(6), normal(2, 6, 4, 3)], group=2, activation="Clip",
     activation_params=[-0.5, 1.5])
case("fused_conv_sigmoid", "FusedConv", [image, kernel], group=2, activation="HardSigmoid", activation_params=[0.3, 0.4])

# Normalisations.
state = normal(2, 3, 8)
norm = [state, normal(2, 3, 8), normal(8), normal(8), normal(8)]
case("skip_layer_norm", "SkipLayerNormalization", norm, [0, 3], epsilon=1e-5)
case("skip_layer_norm_plain", "SkipLayerNormalization", norm[:3])
case("skip_rms_norm", "SkipSimplifiedLayerNormalization", [norm[0], norm[1], norm[2], norm[4]], [0, 3], epsilon=1e-6)
case("rms_norm", "SimplifiedLayerNormalization", [state, normal(8)], domain="", epsilon=1e-6, axis=-1)
ids = rng.integers(0, 9, (2, 3)).astype(np.int32)
tables = [normal(9, 8), normal(5, 8), normal(2, 8), normal(8), normal(8)]
mask = np.array([[1, 1, 1], [1, 1, 0]], np.int32)
case("embed_layer_norm", "EmbedLayerNormalization", [ids, ids % 2, *tables, mask], [0, 1, 2])
case("embed_layer_norm_plain", "EmbedLayerNormalization", [ids, None, tables[0], tables[1], None, tables[3], tables[4]],
     [0, 1], epsilon=1e-5)

# Attention.
wide = [normal(2, 3, 8), normal(8, 24), normal(24)]
case("attention", "Attention", wide, num_heads=2)
case("attention_mask", "Attention", [*wide, mask], num_heads=2)
case("attention_lengths", "Attention", [*wide, np.array([3, 2], np.int32)], num_heads=2, unidirectional=1)
case("attention_ranges", "Attention", [*wide, np.array([3, 2, 1, 0], np.int32)], num_heads=2)
case("attention_past", "Attention", [*wide, None, normal(2, 2, 2, 4, 4)], 2, num_heads=2, unidirectional=1)
case("attention_bias", "Attention", [*wide, None, None, normal(2, 2, 3, 3)], num_heads=2, scale=0.3)
case("attention_sizes", "Attention", [wide[0], normal(8, 20), normal(20)], num_heads=2, qkv_hidden_sizes=[8, 8, 4])
qkv = [normal(2, 3, 8), normal(2, 5, 8), normal(2, 5, 8)]
case("multi_head", "MultiHeadAttention", qkv, num_heads=2)
case("multi_head_bias", "MultiHeadAttention", [*qkv, normal(24), np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], np.int32)],
     num_heads=2)
case("multi_head_past", "MultiHeadAttention",
     [normal(2, 3, 8), normal(2, 3, 8), normal(2, 3, 8), normal(24), None, normal(1, 2, 3, 7), normal(2, 2, 4, 4),
      normal(2, 2, 4, 4)], 3, num_heads=2, unidirectional=1)
case("multi_head_heads", "MultiHeadAttention", [normal(2, 3, 8), normal(2, 2, 5, 4), normal(2, 2, 5, 4)], num_heads=2)
angle = normal(10, 4)
cos, sin = np.cos(angle), np.sin(angle)
case("rotary", "RotaryEmbedding", [normal(2, 3, 16), rng.integers(0, 10, (2, 3)), cos, sin])
case("rotary_offset", "RotaryEmbedding", [normal(2, 2, 3, 8), np.array([4]), cos, sin], interleaved=1)
case("rotary_part", "RotaryEmbedding", [normal(2, 3, 20), rng.integers(0, 10, (2, 3)), cos, sin], num_heads=2,
     rotary_embedding_dim=8)
group = dict(num_heads=4, kv_num_heads=2)
total = lambda n: np.array(n, np.int32)  # noqa: E731
prompt = [normal(2, 3, 64), normal(2, 3, 32), normal(2, 3, 32)]
angle = normal(10, 8)
cos, sin = np.cos(angle), np.sin(angle)
case("group_query_prompt", "GroupQueryAttention", [*prompt, None, None, total([2, 2]), total(3)], 3, **group)
cache = [normal(2, 2, 6, 16), normal(2, 2, 6, 16)]
one = [normal(2, 1, 64), normal(2, 1, 32), normal(2, 1, 32)]
case("group_query_step", "GroupQueryAttention", [*one, *cache, total([6, 6]), total(7)], 3, **group, scale=0.2)
case("group_query_rotary", "GroupQueryAttention", [*one, *cache, total([6, 6]), total(7), cos, sin], 3, **group,
     do_rotary=1)
case("group_query_packed", "GroupQueryAttention", [normal(2, 3, 128), None, None, None, None, total([2, 2]), total(3), cos,
                                                   sin], 3, **group, do_rotary=1, rotary_interleaved=1)
case("group_query_window", "GroupQueryAttention", [*prompt, None, None, total([2, 2]), total(3)], 3, **group,
     local_window_size=2)

# Quantised numbers. ONNX Runtime saturates the sums of two products of unsigned and signed 8-bit numbers on processors
# without VNNI, so the signed matrices have 7 bits.
seven = lambda *shape: rng.integers(-64, 64, shape).astype(np.int8)  # noqa: E731
quarter = lambda kind, *shape: [small(kind, *shape), f32(0.05), np.array(3, kind)]  # noqa: E731
for kind in (np.uint8, np.int8):
    k = np.dtype(kind).name
    a, b = quarter(kind, 2, 3, 4, 4), quarter(kind, 2, 3, 4, 4)
    end = [f32(0.11), np.array(9, kind)]
    case(f"add_{k}", "QLinearAdd", [*a, *b, *end], allowed=1)
    case(f"add_{k}_spread", "QLinearAdd", [*a, *quarter(kind, 3, 1, 1), *end], allowed=1)
    case(f"mul_{k}", "QLinearMul", [*a, *b, *end], allowed=1)
    case(f"concat_{k}", "QLinearConcat", [*end, *a, small(kind, 2, 1, 4, 4), f32(0.2), np.array(0, kind)], axis=1,
         allowed=1, constants=(0, 1, 3, 4, 6, 7))
    case(f"leaky_relu_{k}", "QLinearLeakyRelu", [*a, *end], alpha=0.2, allowed=1, constants=(1, 2, 3, 4))
    case(f"sigmoid_{k}", "QLinearSigmoid", [*a, f32(1 / 256), np.array(np.iinfo(kind).min, kind)], allowed=1,
         constants=(1, 2, 3, 4))
    case(f"global_pool_{k}", "QLinearGlobalAveragePool", [*a, *end], allowed=1)
    case(f"average_pool_{k}", "QLinearAveragePool", [*a, *end], kernel_shape=[2, 3], strides=[1, 2], pads=[0, 1, 0, 1],
         allowed=1)
case("global_pool_last", "QLinearGlobalAveragePool", [*a, *end], channels_last=1, allowed=1)
case("softmax_uint8", "QLinearSoftmax", [*quarter(np.uint8, 3, 8), f32(1 / 256), np.array(0, np.uint8)], axis=-1, opset=13,
     allowed=1, constants=(1, 2, 3, 4))
case("where_uint8", "QLinearWhere", [rng.integers(0, 2, (3, 4)).astype(bool), *quarter(np.uint8, 3, 4),
                                     *quarter(np.uint8, 3, 4), *[f32(0.11), np.array(9, np.uint8)]], allowed=1,
     constants=(2, 3, 5, 6, 7, 8))
long = 700
case("integers_to_float", "MatMulIntegerToFloat",
     [small(np.uint8, 2, 3, long), seven(long, 5), f32(0.02), f32(0.1) * (1 + np.arange(5, dtype=np.float32)),
      np.array(120, np.uint8), np.array([0] * 5, np.int8), normal(5)])
case("dynamic_product", "DynamicQuantizeMatMul", [normal(3, long), small(np.uint8, long, 5), f32([0.1]),
                                                  np.array([128], np.uint8), normal(5)], constants=(1, 2, 3, 4))
case("dynamic_product_signed", "DynamicQuantizeMatMul", [normal(3, 20), seven(20, 5), f32([0.1])], constants=(1, 2))
for bits, zero in ((4, False), (4, True), (8, False)):
    rows, columns, block = 6, 80, 32
    blocks = -(-columns // block)
    packed = small(np.uint8, rows, blocks, block * bits // 8)
    ends = small(np.uint8, rows * -(-blocks * bits // 8)) if zero else None
    case(f"mat_mul_{bits}_bits" + "_zero" * zero, "MatMulNBits",
         [normal(2, 3, columns), packed, np.abs(normal(rows * blocks)), ends], K=columns, N=rows, bits=bits,
         block_size=block, constants=(1, 2, 3), accuracy_level=0)
case("q_gemm", "QGemm", [small(np.uint8, 3, 8), f32(0.02), np.array(120, np.uint8), seven(5, 8), f32(0.1),
                         np.array(0, np.int8), rng.integers(-99, 99, 5).astype(np.int32), f32(0.5), np.array(7, np.uint8)],
     transB=1, allowed=1)
case("q_gemm_float", "QGemm", [small(np.uint8, 3, 8), f32(0.02), np.array(120, np.uint8), seven(8, 5), f32(0.1),
                               np.array(0, np.int8)], alpha=0.5)

# ai.onnx.ml.
rows = normal(5, 3)
letters = np.array([["a", "b"], ["c", "z"]], object)
for norm in ("MAX", "L1", "L2"):
    case(f"normalizer_{norm}", "Normalizer", [np.abs(rows)], domain=ML, norm=norm)
case("one_hot_strings", "OneHotEncoder", [letters], domain=ML, cats_strings=["c", "a", "b"])
case("one_hot_integers", "OneHotEncoder", [np.array([3, 1, 9, 3])], domain=ML, cats_int64s=[1, 3, 4])
holes = rows.copy()
holes[1, 2] = holes[3, 0] = np.nan
case("imputer_nan", "Imputer", [holes], domain=ML, imputed_value_floats=[1.0, 2.0, 3.0],
     replaced_value_float=float("nan"))
case("imputer_integers", "Imputer", [np.array([[1, 0], [0, 2]])], domain=ML, imputed_value_int64s=[7],
     replaced_value_int64=0)
case("feature_vectorizer", "FeatureVectorizer", [rows, normal(5, 2)], domain=ML, inputdimensions=[3, 2])
case("category_to_integer", "CategoryMapper", [letters], domain=ML, cats_strings=["a", "b", "c"], cats_int64s=[4, 5, 6],
     default_int64=-3)
case("category_to_string", "CategoryMapper", [np.array([5, 9])], domain=ML, cats_strings=["a", "b", "c"],
     cats_int64s=[4, 5, 6], default_string="none")
weights = normal(3, 3).ravel().tolist()
for transform in ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"):
    case(f"linear_classifier_{transform}", "LinearClassifier", [rows], 2, domain=ML, coefficients=weights,
         intercepts=[0.1, -0.2, 0.3], classlabels_ints=[10, 20, 30], post_transform=transform)
    case(f"linear_classifier_two_{transform}", "LinearClassifier", [rows], 2, domain=ML, coefficients=weights[:3],
         intercepts=[0.1], classlabels_strings=["no", "yes"], post_transform=transform)
case("linear_regressor", "LinearRegressor", [rows], domain=ML, coefficients=weights[:6], intercepts=[0.5, -0.5], targets=2)
vectors = normal(6, 3).ravel().tolist()
for kernel, parameters in (("LINEAR", [0.0, 0.0, 0.0]), ("RBF", [0.5, 0.0, 3.0]), ("POLY", [0.5, 1.0, 2.0]),
                           ("SIGMOID", [0.3, 0.1, 0.0])):
    case(f"svm_regressor_{kernel}", "SVMRegressor", [rows], domain=ML, coefficients=normal(6).tolist(),
         support_vectors=vectors, n_supports=6, rho=[0.3], kernel_type=kernel, kernel_params=parameters)
    case(f"svm_classifier_{kernel}", "SVMClassifier", [rows], 2, domain=ML, coefficients=normal(12).tolist(),
         support_vectors=vectors, vectors_per_class=[1, 2, 3], rho=[0.1, -0.2, 0.3], kernel_type=kernel,
         kernel_params=parameters, classlabels_ints=[0, 1, 2])
case("svm_classifier_chances", "SVMClassifier", [rows], 2, domain=ML, coefficients=normal(12).tolist(),
     support_vectors=vectors, vectors_per_class=[1, 2, 3], rho=[0.1, -0.2, 0.3], kernel_type="RBF",
     kernel_params=[0.5, 0.0, 3.0], classlabels_strings=["a", "b", "c"], prob_a=[-1.0, -1.5, -0.5], prob_b=[0.1, 0.2, 0.3],
     allowed=1e-3)
two = dict(coefficients=normal(6).tolist(), support_vectors=vectors, vectors_per_class=[3, 3], rho=[0.2],
           kernel_type="RBF", kernel_params=[0.5, 0.0, 3.0], classlabels_ints=[5, 6])
case("svm_classifier_two", "SVMClassifier", [rows], 2, domain=ML, **two)
case("svm_classifier_two_chances", "SVMClassifier", [rows], 2, domain=ML, **two, prob_a=[-1.0], prob_b=[0.1], allowed=1e-3)
case("svm_classifier_linear", "SVMClassifier", [rows], 2, domain=ML, coefficients=weights, rho=[0.0], kernel_type="LINEAR",
     kernel_params=[0.0, 0.0, 0.0], classlabels_ints=[0, 1, 2])
# Two trees of depth two and one.
tree = dict(nodes_treeids=[0, 0, 0, 0, 0, 1, 1, 1], nodes_nodeids=[0, 1, 2, 3, 4, 0, 1, 2],
            nodes_featureids=[0, 1, 0, 0, 0, 2, 0, 0], nodes_values=[0.1, -0.2, 0, 0, 0, 0.3, 0, 0],
            nodes_modes=["BRANCH_LEQ", "BRANCH_LEQ", "LEAF", "LEAF", "LEAF", "BRANCH_LEQ", "LEAF", "LEAF"],
            nodes_truenodeids=[1, 3, 0, 0, 0, 1, 0, 0], nodes_falsenodeids=[2, 4, 0, 0, 0, 2, 0, 0],
            nodes_missing_value_tracks_true=[1, 0, 0, 0, 0, 0, 0, 0])
leaves = dict(treeids=[0, 0, 0, 1, 1], nodeids=[2, 3, 4, 1, 2])
named = lambda of, **more: {f"{of}_{k}": v for k, v in {**leaves, **more}.items()}  # noqa: E731
values = [0.5, -1.0, 2.0, 0.25, -0.75]
for how in ("SUM", "AVERAGE", "MIN", "MAX"):
    case(f"tree_regressor_{how}", "TreeEnsembleRegressor", [holes], domain=ML, **tree,
         **named("target", ids=[0, 1, 0, 1, 0], weights=values), n_targets=2, aggregate_function=how, base_values=[0.1, 0.2])
for transform in ("NONE", "SOFTMAX", "LOGISTIC"):
    case(f"tree_classifier_{transform}", "TreeEnsembleClassifier", [rows], 2, domain=ML, **tree,
         **named("class", ids=[0, 1, 2, 1, 0], weights=values), classlabels_int64s=[7, 8, 9], post_transform=transform)
    case(f"tree_classifier_two_{transform}", "TreeEnsembleClassifier", [rows], 2, domain=ML, **tree,
         **named("class", ids=[0, 1, 0, 1, 0], weights=values), classlabels_strings=["a", "b"], post_transform=transform)
    case(f"tree_classifier_one_{transform}", "TreeEnsembleClassifier", [rows], 2, domain=ML, **tree,
         **named("class", ids=[0] * 5, weights=values), classlabels_int64s=[0, 1], post_transform=transform)
    case(f"tree_classifier_one_positive_{transform}", "TreeEnsembleClassifier", [rows], 2, domain=ML, **tree,
         **named("class", ids=[0] * 5, weights=[0.1, 0.4, 0.3, 0.2, 0.35]), classlabels_int64s=[0, 1],
         post_transform=transform)
for sign, weights in (("mixed", values), ("positive", [0.1, 0.4, 0.3, 0.2, 0.35])):
    case(f"tree_classifier_base_{sign}", "TreeEnsembleClassifier", [rows], 2, domain=ML, **tree,
         **named("class", ids=[0] * 5, weights=weights), classlabels_int64s=[0, 1], base_values=[0.4])
    case(f"tree_classifier_two_{sign}", "TreeEnsembleClassifier", [rows], 2, domain=ML, **tree,
         **named("class", ids=[0, 1, 0, 1, 0], weights=weights), classlabels_int64s=[0, 1])
case("tree_classifier_base_3", "TreeEnsembleClassifier", [rows], 2, domain=ML, **tree,
     **named("class", ids=[0, 1, 2, 1, 0], weights=values), classlabels_int64s=[7, 8, 9], base_values=[0.1, 0.2, 0.3])
for sign, weights in (("mixed", values), ("positive", [0.1, 0.4, 0.3, 0.2, 0.35])):
    for transform in ("NONE", "LOGISTIC", "SOFTMAX"):
        case(f"tree_classifier_second_{sign}_{transform}", "TreeEnsembleClassifier", [rows], 2, domain=ML, **tree,
             **named("class", ids=[1] * 5, weights=weights), classlabels_int64s=[0, 1], post_transform=transform)
for count, base in ((1, [0.5]), (1, []), (2, [])):
    case(f"tree_regressor_{count}_{len(base)}", "TreeEnsembleRegressor", [rows], domain=ML, **tree,
         **named("target", ids=[i % count for i in range(5)], weights=values), n_targets=count, **({"base_values": base} if base else {}))

# Weights of 7 bits, of which no processor saturates sums.
def quantised_lstm(name, directions, each, kind, zero):
    size, hidden = 20, 6
    gates = (directions, 4 * hidden) if each else (directions,)
    weights = [rng.integers(0 if zero else -64, 128 if zero else 64, (directions, n, 4 * hidden)).astype(kind) for n in (size, hidden)]
    scales = [f32(0.01) * (1 + rng.random(gates).astype(np.float32)) for _ in range(2)]
    zeros = [np.full(gates, zero, kind) for _ in range(2)]
    case(f"quantised_lstm_{name}", "DynamicQuantizeLSTM",
         [normal(5, 2, size), *weights, normal(directions, 8 * hidden), None, normal(directions, 2, hidden),
          normal(directions, 2, hidden), None, scales[0], zeros[0], scales[1], zeros[1]], 3, constants=(1, 2, 3, 8, 9, 10, 11),
         hidden_size=hidden, direction="bidirectional" if directions == 2 else "forward")


quantised_lstm("1", 1, False, np.int8, 0)
quantised_lstm("2", 2, False, np.uint8, 70)
quantised_lstm("2_each", 2, True, np.int8, 0)

# Constant matrices that leave 8 bits without their zero points, and others. ONNX Runtime takes a first operand of i8 only with a
# matrix of i8.
for name, rows, kind, zero, w_zero in (
    ("", (3, 5), np.uint8, 7, np.uint8(119)), ("_signed", (3, 5), np.uint8, 200, np.int8(-90)), ("_plain", (4, 5), np.uint8, 0, None),
    ("_each", (3, 5), np.uint8, 130, small(np.uint8, 9)), ("_batch", (2, 3, 5), np.uint8, 255, np.int8(3)),
    ("_both_signed", (3, 5), np.int8, -5, np.int8(100)),
):
    w_kind = np.int8 if w_zero is None else np.asarray(w_zero).dtype
    case(f"integer_product{name}", "MatMulInteger",
         [small(kind, *rows), small(w_kind, 5, 9), np.array(zero, kind), None if w_zero is None else np.asarray(w_zero)],
         domain="", constants=(1, 3), allowed=0)

# A vector, and several matrices. Then weights of an LSTM that leave 8 bits without their zero points.
for name, rows, columns in (("vector", (5,), (5, 9)), ("matrices", (2, 3, 5), (2, 5, 9))):
    case(f"integer_product_{name}", "MatMulInteger", [small(np.uint8, *rows), small(np.uint8, *columns), np.array(7, np.uint8), np.array(119, np.uint8)],
         domain="", constants=(1, 3), allowed=0)
quantised_lstm("wide", 1, False, np.uint8, 200)

path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "contributed.json")
with open(path, "w") as f:
    json.dump(out, f, indent=0)
print(len(out), "models,", os.path.getsize(path), "bytes")
