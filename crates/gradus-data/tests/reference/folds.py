"""Writes folds.json: the folds of scikit-learn 1.x for `tests/folds.rs`. Run: python folds.py (needs scikit-learn)."""

import json
import pathlib

import numpy as np
from sklearn.model_selection import GroupKFold, KFold, StratifiedKFold

cases = []
rng = np.random.default_rng(0)
for n, k in [(10, 2), (10, 3), (11, 4), (7, 7), (103, 5)]:
    cases.append({"kind": "k_fold", "n": n, "k": k, "tests": [t.tolist() for _, t in KFold(k).split(np.zeros(n))]})
for n, k, classes in [(20, 2, 2), (23, 3, 3), (101, 5, 4), (50, 10, 2)]:
    labels = rng.permutation(np.concatenate([np.arange(classes).repeat(k), rng.integers(0, classes, n - k * classes)]))
    tests = [t.tolist() for _, t in StratifiedKFold(k).split(np.zeros(n), labels)]
    cases.append({"kind": "stratified_k_fold", "labels": labels.tolist(), "k": k, "tests": tests})
for k, sizes in [(2, [5, 3, 2, 1]), (3, [9, 7, 6, 4, 2, 1]), (4, [20, 13, 11, 10, 7, 5, 4, 2])]:
    # Groups of different sizes: scikit-learn does not say which of two equal ones comes first.
    groups = rng.permutation(np.concatenate([[10 * i] * s for i, s in enumerate(sizes)]))
    tests = [t.tolist() for _, t in GroupKFold(k).split(np.zeros(len(groups)), groups=groups)]
    cases.append({"kind": "group_k_fold", "groups": groups.tolist(), "k": k, "tests": tests})
text = "[\n" + ",\n".join(json.dumps(c) for c in cases) + "\n]\n"
pathlib.Path(__file__).with_suffix(".json").write_text(text)
