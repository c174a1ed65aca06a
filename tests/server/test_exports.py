"""A run as a file: every row, exact, in each format; texts that a spreadsheet would calculate are text."""

from __future__ import annotations

import csv
import io
import json
import math
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
import sending as s
from calling import Api

from roundoff.metrics import COUNTS, ROW
from roundoff_server.services import exporting

NAMES = ["=cmd()", 'a,b\n"c"', "<script>", "plain"]
ODD = [math.nan, math.inf, -math.inf, -0.0, 5e-324, 1e308, 0.1]


@pytest.fixture
def filled(api: Api, monkeypatch: pytest.MonkeyPatch) -> Api:
    """13 steps of four layers, and a value of each odd kind; read seven rows at a time."""
    monkeypatch.setattr(exporting, "ROWS", 7)
    api.put(s.start())
    rows = s.steps_of(range(1, 14), s.HEALTHY, *([s.STALLED] * 4))
    values = [("=loss", step, value) for step, value in enumerate(ODD)]
    api.post(
        s.batch(
            layers=s.layers(*NAMES), scalars=s.scalars(values), headroom=s.headroom([(0, 1), (3, 1)]), **rows
        )
    )
    return api


def export(api: Api, form: str, table: str) -> bytes:
    answer = api.http.get("/api/v1/runs/r1/export", params={"format": form, "table": table})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-disposition"] == f'attachment; filename="r1-{table}.{form}"'
    return answer.content


def test_csv_holds_every_row_and_no_formula(filled: Api) -> None:
    rows = list(csv.DictReader(io.StringIO(export(filled, "csv", "samples").decode(), newline="")))
    assert len(rows) == 13 * 4
    assert {row["layer"] for row in rows} == {"'=cmd()", *NAMES[1:]}
    assert [(row["step"], row["lost"], row["sum_uu"]) for row in rows[:2]] == [
        ("1", "990", "4.0"),
        ("2", "990", "4.0"),
    ]
    scalars = list(csv.DictReader(io.StringIO(export(filled, "csv", "scalars").decode(), newline="")))
    assert [row["value"] for row in scalars] == [
        "NaN",
        "Infinity",
        "-Infinity",
        "-0.0",
        "5e-324",
        "1e+308",
        "0.1",
    ]
    assert all(np.float64(row["value"]).tobytes() == np.float64(value).tobytes() or math.isnan(value)
               for row, value in zip(scalars, ODD, strict=True))  # fmt: skip


def test_ndjson_is_one_object_a_line(filled: Api) -> None:
    lines = [json.loads(line) for line in export(filled, "ndjson", "samples").splitlines()]
    assert len(lines) == 13 * 4
    assert list(lines[0]) == ["layer", "attempt", "rank", "step", *ROW]
    assert {line["layer"] for line in lines} == set(NAMES)
    headroom = [json.loads(line) for line in export(filled, "ndjson", "headroom").splitlines()]
    assert [(line["layer"], line["counts"][1], line["energy"][1]) for line in headroom] == [
        (NAMES[0], 1, 1.0), (NAMES[3], 34, 34.0),
    ]  # fmt: skip
    values = [json.loads(line)["value"] for line in export(filled, "ndjson", "scalars").splitlines()]
    assert values[:3] == ["NaN", "Infinity", "-Infinity"]
    assert math.copysign(1, values[3]) == -1


@pytest.mark.parametrize(("table", "count"), [("samples", 52), ("model", 13), ("scalars", 7), ("groups", 13)])
def test_parquet_reads_back(filled: Api, table: str, count: int) -> None:
    read: Any = pyarrow.parquet.read_table(io.BytesIO(export(filled, "parquet", table)))
    assert read.num_rows == count
    columns = read.to_pydict()
    if table == "samples":
        assert set(columns["layer"]) == set(NAMES)
        assert set(columns["lost"]) == {990}
        assert all(isinstance(columns[name][0], int) for name in COUNTS)
    if table == "scalars":
        assert [np.float64(x).tobytes() for x in columns["value"]][1:] == [
            np.float64(x).tobytes() for x in ODD
        ][1:]


def test_what_cannot_be_exported_is_named(api: Api) -> None:
    assert api.http.get("/api/v1/runs/nobody/export").status_code == 404
    api.put(s.start())
    assert api.http.get("/api/v1/runs/r1/export", params={"format": "xls"}).status_code == 422
    assert export(api, "csv", "samples").decode().count("\n") == 1, "a header and nothing else"
