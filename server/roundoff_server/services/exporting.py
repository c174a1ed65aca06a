"""Everything that is kept of a run, table by table, some rows at a time, however many there are."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sqlalchemy import select, tuple_

from roundoff.metrics import COUNTS, HEADROOM_BINS, ROW

from ..database import Database
from ..models import (
    GroupSample,
    HeadroomSample,
    LayerRow,
    LayerSample,
    ModelSample,
    ScalarName,
    ScalarValue,
)
from .runs import find_run

ROWS = 10_000
"""Rows that are in memory at a time."""

Columns = dict[str, list[Any]]
"""Column name → values: integers, floats, texts, or lists of numbers."""


Stored = dict[str, Sequence[Any]]
"""Columns as they are stored."""


@dataclass(frozen=True, slots=True)
class Exported:
    """One table as it is exported: its columns by name and kind (`int`, `float`, `text`, `ints`, `floats`)."""

    model: Any
    columns: dict[str, str]
    convert: Callable[[Stored, dict[int, str]], Columns]


def _sums(stored: Stored, _: dict[int, str]) -> Columns:
    found: Columns = {}
    for name in ROW:
        missing = 0 if name in COUNTS else math.nan
        found[name] = [missing if value is None else value for value in stored[name]]
    return found


def _layer_sums(stored: Stored, names: dict[int, str]) -> Columns:
    return {"layer": [names[layer] for layer in stored["layer"]]} | _sums(stored, names)


def _scalars(stored: Stored, names: dict[int, str]) -> Columns:
    bits = np.array(stored["bits"], dtype="i8")
    return {"name": [names[scalar] for scalar in stored["scalar"]], "value": bits.view("f8").tolist()}


def _groups(stored: Stored, _: dict[int, str]) -> Columns:
    found: Columns = {"group": list(stored["group_index"])}
    for name in ("lr", "weight_decay"):
        found[name] = [math.nan if value is None else value for value in stored[name]]
    return found


def _headroom(stored: Stored, names: dict[int, str]) -> Columns:
    return {
        "layer": [names[layer] for layer in stored["layer"]],
        "counts": [np.frombuffer(counts, "<i8", HEADROOM_BINS).tolist() for counts in stored["counts"]],
        "energy": [np.frombuffer(energy, "<f8", HEADROOM_BINS).tolist() for energy in stored["energy"]],
    }


_PLACE = {"attempt": "int", "rank": "int", "step": "int"}
_SUMS = {name: "int" if name in COUNTS else "float" for name in ROW}

TABLES: dict[str, Exported] = {
    "samples": Exported(LayerSample, {"layer": "text", **_PLACE, **_SUMS}, _layer_sums),
    "model": Exported(ModelSample, {**_PLACE, **_SUMS}, _sums),
    "scalars": Exported(ScalarValue, {"name": "text", **_PLACE, "value": "float"}, _scalars),
    "groups": Exported(
        GroupSample, {"group": "int", **_PLACE, "lr": "float", "weight_decay": "float"}, _groups
    ),
    "headroom": Exported(
        HeadroomSample, {"layer": "text", **_PLACE, "counts": "ints", "energy": "floats"}, _headroom
    ),
}
"""What can be exported of a run by name."""


def read_table(database: Database, run_id: str, name: str) -> Iterator[Columns]:
    """The rows of a table in key order, `ROWS` at a time. Raises LookupError for the run, before any is read.

    Each part is read by itself, so that no transaction is as long as the reader is slow.
    """
    with database.read() as session:
        run = find_run(session, run_id).run
    return _parts(database, run, name)


def _parts(database: Database, run: int, name: str) -> Iterator[Columns]:
    table = TABLES[name]
    key = [column for column in table.model.__table__.primary_key if column.name != "run"]
    columns = [column for column in table.model.__table__.columns if column.name != "run"]
    last: tuple[Any, ...] | None = None
    while True:
        query = select(*columns).where(table.model.run == run).order_by(*key).limit(ROWS)
        if last is not None:
            query = query.where(tuple_(*key) > last)
        with database.read() as session:
            rows = session.execute(query).all()
            names = _names(session, run, name) if rows else {}
        if not rows:
            return
        stored = dict(zip((column.name for column in columns), zip(*rows, strict=True), strict=True))
        found = table.convert(stored, names)
        for place in _PLACE:
            found[place] = list(stored[place])
        yield {column: found[column] for column in table.columns}
        last = tuple(getattr(rows[-1], column.name) for column in key)


def _names(session: Any, run: int, table: str) -> dict[int, str]:
    if table == "scalars":
        query = select(ScalarName.scalar, ScalarName.name).where(ScalarName.run == run)
    else:
        query = select(LayerRow.layer, LayerRow.name).where(LayerRow.run == run)
    return {number: text for number, text in session.execute(query)}  # noqa: C416
