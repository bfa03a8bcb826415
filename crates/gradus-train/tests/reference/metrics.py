"""Writes metrics.json: outputs, targets and the values that scikit-learn computes from them.

Run with scikit-learn and numpy: python metrics.py > metrics.json
"""

import json
import warnings

import numpy as np
import sklearn
from scipy.special import logsumexp
from sklearn import metrics as m

warnings.filterwarnings("ignore")
rng = np.random.default_rng(7)


def softmax(x):
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def ece(p, y, bins):
    confidence, right = p.max(axis=1), p.argmax(axis=1) == y
    edges = np.linspace(0, 1, bins + 1)
    total = 0.0
    for low, high in zip(edges[:-1], edges[1:]):
        inside = (confidence > low) & (confidence <= high)
        if inside.any():
            total += inside.mean() * abs(right[inside].mean() - confidence[inside].mean())
    return total


def classes(x, y):
    predicted, every = x.argmax(axis=1), list(range(x.shape[1]))
    values = {
        "accuracy": m.accuracy_score(y, predicted),
        # log_loss of scikit-learn clips probabilities, so the logarithm is computed here.
        "perplexity": np.exp(np.mean(logsumexp(x, axis=1) - x[range(len(y)), y])),
        "calibration_error": ece(softmax(x), y, 15),
        "confusion": m.confusion_matrix(y, predicted, labels=every).tolist(),
    }
    for k in (1, 2, 3):
        values[f"top_{k}"] = m.top_k_accuracy_score(y, x, k=k, labels=every)
    for average in ("micro", "macro"):
        values[f"precision_{average}"] = m.precision_score(y, predicted, average=average, zero_division=0)
        values[f"recall_{average}"] = m.recall_score(y, predicted, average=average, zero_division=0)
        values[f"f1_{average}"] = m.f1_score(y, predicted, average=average, zero_division=0)
    return {"shape": x.shape, "outputs": x.ravel().tolist(), "targets": y.tolist(), "values": values}


def ranking(x, y):
    values = {"average_precision": m.average_precision_score(y, x) if y.any() else None}
    values["roc_auc"] = m.roc_auc_score(y, x) if 0 < y.sum() < len(y) else None
    return {"shape": x.shape, "outputs": x.tolist(), "targets": y.tolist(), "values": values}


def regression(x, y):
    values = {
        "mae": m.mean_absolute_error(y, x),
        "mse": m.mean_squared_error(y, x),
        "rmse": m.root_mean_squared_error(y, x),
        "r2": m.r2_score(y, x) if len(y) > 1 else None,
    }
    return {"shape": x.shape, "outputs": x.ravel().tolist(), "targets": y.ravel().tolist(), "values": values}


few = rng.integers(0, 2, 50)
print(json.dumps({
    "made_with": f"scikit-learn {sklearn.__version__}, numpy {np.__version__}",
    "classes": {
        "random": classes(rng.normal(size=(60, 5)) * 2, rng.integers(0, 5, 60)),
        "ties": classes(np.round(rng.normal(size=(60, 4))), rng.integers(0, 4, 60)),
        "a class that never occurs": classes(np.round(rng.normal(size=(30, 4))) - [0, 0, 9, 0], rng.integers(0, 2, 30)),
        "one class only": classes(rng.normal(size=(20, 4)), np.full(20, 2)),
        "one sample": classes(rng.normal(size=(1, 4)), np.array([3])),
        "large logits": classes(rng.normal(size=(20, 4)) * 300, rng.integers(0, 4, 20)),
    },
    "ranking": {
        "random": ranking(rng.normal(size=80), rng.integers(0, 2, 80)),
        "ties": ranking(np.round(rng.normal(size=80)), rng.integers(0, 2, 80)),
        "all equal": ranking(np.zeros(50), few),
        "perfect": ranking(few * 1.0, few),
        "zeros of both signs": ranking(np.where(few, 0.0, -0.0), few),
        "positive only": ranking(rng.normal(size=10), np.ones(10, dtype=int)),
        "negative only": ranking(rng.normal(size=10), np.zeros(10, dtype=int)),
    },
    "regression": {
        "random": regression(rng.normal(size=70), rng.normal(size=70)),
        "columns": regression(rng.normal(size=(40, 3)) * [1, 5, 0.1], rng.normal(size=(40, 3))),
        "far from zero": regression(1e6 + rng.normal(size=50), 1e6 + rng.normal(size=50)),
        "equal targets": regression(rng.normal(size=10), np.full(10, 3.0)),
        "equal targets and outputs": regression(np.full(10, 3.0), np.full(10, 3.0)),
        "one sample": regression(np.array([1.0]), np.array([3.0])),
    },
}))
