"""Writes the files of the folder columnar, and columnar.json: what pandas reads from them. For `tests/columnar.rs`.

    pip install pyarrow pandas
    python3 columnar.py
"""

import decimal
import json
import math
import pathlib

import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq

here = pathlib.Path(__file__).parent
out = here / "columnar"
out.mkdir(exist_ok=True)
n = 30
some = lambda values: [None if i % 7 == 3 else v for i, v in enumerate(values)]
columns = {}
for bits in (8, 16, 32, 64):
    columns[f"int{bits}"] = pa.array(some([(-1) ** i * i * 4 for i in range(n)]), getattr(pa, f"int{bits}")())
    columns[f"uint{bits}"] = pa.array(some([i * 8 for i in range(n)]), getattr(pa, f"uint{bits}")())
columns["float16"] = pa.array(some([i / 8 for i in range(n)]), pa.float16())
columns["float32"] = pa.array(some([math.sin(i) for i in range(n)]), pa.float32())
columns["float64"] = pa.array(some([math.cos(i) if i % 5 else math.nan for i in range(n)]), pa.float64())
columns["decimal"] = pa.array(some([decimal.Decimal(i * 37 - 100).scaleb(-2) for i in range(n)]), pa.decimal128(9, 2))
columns["bool"] = pa.array(some([i % 3 == 0 for i in range(n)]), pa.bool_())
columns["few"] = pa.array(some([["cat", "dog, or so", "ü"][i % 3] for i in range(n)]), pa.string())
columns["many"] = pa.array(some([f"text {i}" for i in range(n)]), pa.large_string())
columns["view"] = pa.array(some([f"a text of more than 12 bytes {i % 2}" for i in range(n)]), pa.string_view())
columns["dictionary"] = pa.array(some([f"name {i}" for i in range(n)])).dictionary_encode()
columns["null"] = pa.nulls(n)
table = pa.table(columns)
without_view = table.set_column(table.schema.get_field_index("view"), "view", table["view"].cast(pa.string()))

pq.write_table(without_view, out / "snappy.parquet", compression="snappy", row_group_size=11)
pq.write_table(without_view, out / "gzip.parquet", compression="gzip", data_page_version="2.0", use_dictionary=False)
pq.write_table(without_view, out / "lz4.parquet", compression="lz4")
pq.write_table(without_view, out / "plain.parquet", compression="none")
pa.feather.write_feather(table, str(out / "lz4.feather"), compression="lz4", chunksize=11)
pa.feather.write_feather(table, str(out / "plain.arrow"), compression="uncompressed")
with pa.OSFile(str(out / "refused_stream.ipc"), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
    writer.write_table(table, max_chunksize=11)

small = pa.table({"x": [1.0, 2.0], "when": pa.array([0, 1], pa.timestamp("s"))})
pq.write_table(small, out / "refused_date.parquet")
pq.write_table(pa.table({"x": [[1.0], [2.0]]}), out / "refused_list.parquet")
pq.write_table(pa.table([pa.array([1]), pa.array([2])], names=["x", "x"]), out / "refused_twice.parquet")
pq.write_table(pa.table({"x": pa.array([], pa.float64())}), out / "refused_empty.parquet")
pq.write_table(pa.table({"x": [1.0, 2.0]}), out / "refused_zstd.parquet", compression="zstd")

penguins = pd.read_csv(here.parent / "data" / "penguins.csv")
penguins.index = penguins.index + 1000
penguins.to_parquet(out / "penguins.parquet")


def shown(value):
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    return float(value) if isinstance(value, decimal.Decimal) else value


frame = pd.read_parquet(out / "plain.parquet", dtype_backend="pyarrow")
expected = {name: [shown(v) for v in frame[name].astype(object).where(frame[name].notna(), None)] for name in frame}
expected["view"] = [shown(v) for v in table["view"].to_pylist()]
(here / "columnar.json").write_text(json.dumps(expected) + "\n")
