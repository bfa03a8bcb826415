"""Writes tables.json: what pandas and scikit-learn make of ../data/penguins.csv, for `tests/tables.rs`.
Run: python tables.py (needs pandas and scikit-learn)."""

import json
import pathlib

import pandas as pd
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import LabelEncoder, OneHotEncoder, OrdinalEncoder, StandardScaler

here = pathlib.Path(__file__).parent
table = pd.read_csv(here.parent / "data" / "penguins.csv")
target = LabelEncoder().fit_transform(table["species"])
features = table.drop(columns=["species"])
train, test = features.iloc[::2], features.iloc[1::2]
numbers = ["bill_length_mm", "bill_depth_mm", "flipper_length_mm", "body_mass_g", "year"]
categories = ["island", "sex"]


def transformed(impute, scale, encoder):
    number = make_pipeline(SimpleImputer(strategy=impute), *([StandardScaler()] if scale else []))
    category = make_pipeline(SimpleImputer(strategy="most_frequent"), encoder)
    both = ColumnTransformer([("n", number, numbers), ("c", category, categories)])
    return both.fit(train).transform(test)[::8].tolist()


one_hot = OneHotEncoder(sparse_output=False, handle_unknown="ignore")
result = {
    "missing": {c: int(table[c].isna().sum()) for c in table.columns},
    "labels": target[::8].tolist(),
    "mean_scaled": transformed("mean", True, one_hot),
    "median_plain": transformed("median", False, one_hot),
    "ordinal": transformed("mean", True, OrdinalEncoder()),
}
(here / "tables.json").write_text(json.dumps(result) + "\n")
