"""The files of predictions: a line or row for each row of the input."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any


def encoded(lines: Iterable[Mapping[str, Any]], form: str) -> bytes:
    """Rows of predictions as a file of this format: `jsonl` or `parquet`."""
    if form == "jsonl":
        return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode()
    import pyarrow as pa
    from pyarrow import parquet

    def text(value: Any) -> str | None:
        return None if value is None else json.dumps(value, ensure_ascii=False)

    columns = {
        "name": [line["name"] for line in lines],
        "input": [text(line["input"]) for line in lines],
        "prediction": [text(line["prediction"]) for line in lines],
        "error": [line.get("error") for line in lines],
    }
    # strings, so that all blocks have one schema
    table = pa.table({name: pa.array(values, pa.string()) for name, values in columns.items()})
    sink = pa.BufferOutputStream()
    parquet.write_table(table, sink)
    return bytes(sink.getvalue())
