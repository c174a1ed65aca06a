"""Exported rows as bytes: CSV, NDJSON and Parquet, each made while it is sent."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Iterator
from typing import Any

from pydantic_core import to_json

from .exporting import Columns, Exported
from .problems import FieldError

FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""What a text must not begin with in a cell, for a spreadsheet would calculate it."""


def as_csv(table: Exported, parts: Iterable[Columns]) -> Iterator[bytes]:
    """A line of names, then one for each row. Lists are JSON in a cell."""
    yield _lines([list(table.columns)])
    for part in parts:
        columns = [[_cell(value, kind) for value in part[name]] for name, kind in table.columns.items()]
        yield _lines(zip(*columns, strict=True))


def _lines(rows: Iterable[Iterable[Any]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def _cell(value: Any, kind: str) -> Any:
    if kind == "text":
        return f"'{value}" if value.startswith(FORMULA) else value
    if kind == "float":
        return _number(value)
    return to_json(value, inf_nan_mode="strings").decode() if kind in ("ints", "floats") else value


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return repr(value) if math.isfinite(value) else "Infinity" if value > 0 else "-Infinity"


def as_ndjson(table: Exported, parts: Iterable[Columns]) -> Iterator[bytes]:
    """One JSON object a line; floats that JSON cannot hold are the strings NaN, Infinity and -Infinity."""
    names = list(table.columns)
    for part in parts:
        rows = zip(*(part[name] for name in names), strict=True)
        yield b"".join(
            to_json(dict(zip(names, row, strict=True)), inf_nan_mode="strings") + b"\n" for row in rows
        )


class _Sent(io.RawIOBase):
    """What a writer has written since it was last taken."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._at = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        part = bytes(data)
        self._parts.append(part)
        self._at += len(part)
        return len(part)

    def tell(self) -> int:
        return self._at

    def taken(self) -> bytes:
        parts, self._parts = self._parts, []
        return b"".join(parts)


def as_parquet(table: Exported, parts: Iterable[Columns]) -> Iterator[bytes]:
    """One row group for each part, compressed by zstd. Raises `FieldError` where pyarrow is not installed."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError:
        raise FieldError("format", "parquet needs, on the server: pip install 'roundoff[parquet]'") from None
    kinds = {
        "int": pyarrow.int64(),
        "float": pyarrow.float64(),
        "text": pyarrow.string(),
        "ints": pyarrow.list_(pyarrow.int64()),
        "floats": pyarrow.list_(pyarrow.float64()),
    }
    schema = pyarrow.schema([(name, kinds[kind]) for name, kind in table.columns.items()])
    return _row_groups(pyarrow, schema, parts)


def _row_groups(pyarrow: Any, schema: Any, parts: Iterable[Columns]) -> Iterator[bytes]:
    sent = _Sent()
    with pyarrow.parquet.ParquetWriter(sent, schema, compression="zstd") as writer:
        for part in parts:
            writer.write_table(pyarrow.table(part, schema=schema))
            yield sent.taken()
    yield sent.taken()


FORMATS = {
    "csv": (as_csv, "text/csv; charset=utf-8"),
    "ndjson": (as_ndjson, "application/x-ndjson"),
    "parquet": (as_parquet, "application/vnd.apache.parquet"),
}
"""Format → what makes it, and its media type."""
