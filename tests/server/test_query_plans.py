"""How the databases find rows: by the whole key, whatever is read of however long a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sending as s
from calling import Api
from sqlalchemy import event

from roundoff_server.database import Database

LARGE = (
    "layer_samples",
    "model_samples",
    "blocks",
    "strips",
    "scalars",
    "group_samples",
    "headroom",
    "batches",
)
Statement = tuple[str, Any]


@contextmanager
def listening(database: Database) -> Iterator[list[Statement]]:
    """What is asked of the database in the block: statements with their parameters."""
    seen: list[Statement] = []

    def note(_: Any, __: Any, statement: str, parameters: Any, *___: Any) -> None:
        seen.append((statement, parameters))

    engines = {database._readers, database._writers}
    for engine in engines:
        event.listen(engine, "before_cursor_execute", note)
    yield seen
    for engine in engines:
        event.remove(engine, "before_cursor_execute", note)


def plans(database: Database, statements: list[Statement]) -> dict[str, list[str]]:
    """The lines of each statement's plan that speak of a large table."""
    found: dict[str, list[str]] = {}
    with database.engine.connect() as connection:
        if not database.is_sqlite:
            # The tables of a test are so small that reading all of one is cheapest.
            connection.exec_driver_sql("SET LOCAL enable_seqscan = off")
        for statement, parameters in statements:
            if not statement.lstrip("( ").startswith(("SELECT", "WITH")) or not any(
                t in statement for t in LARGE
            ):
                continue
            explain = "EXPLAIN QUERY PLAN " if database.is_sqlite else "EXPLAIN "
            rows = connection.exec_driver_sql(explain + statement, parameters).all()
            found[statement] = [str(row[-1]).strip() for row in rows]
    return found


@pytest.fixture
def filled(api: Api) -> Api:
    api.put(s.start("t1"))
    tables = {
        "layers": s.layers("a", "b.c", "b.d"),
        "scalars": s.scalars([("loss", i, 1.0) for i in range(900)]),
    }
    api.post(s.batch(0, **tables, **s.steps_of(range(900), s.HEALTHY, s.HEALTHY, s.STALLED, s.HEALTHY)))
    api.put(s.start("t2", first_step=800))
    again = s.steps_of(range(800, 2000), s.HEALTHY, s.HEALTHY, s.STALLED, s.HEALTHY)
    histograms = s.headroom([(layer, step) for step in (900, 1000, 1900) for layer in range(3)])
    api.post(s.batch(0, "w2", 2, layers=s.layers("a", "b.c", "b.d"), headroom=histograms, **again))
    return api


def read_all(api: Api) -> None:
    for metric in ("descent_efficiency", "effective_lr", "lr", "scalar:loss"):
        for layer in ({}, {"layer": "a"}, {"layer": "b"}):
            for points in (40, 20_000):
                api.get("runs/r1/series", metric=metric, max_points=points, **layer)
                api.get(
                    "runs/r1/series", metric=metric, max_points=points, from_step=500, to_step=1500, **layer
                )
    api.get("runs/r1/heatmap")
    api.get("runs/r1/layers")
    for asked in ({}, {"layer": "a"}, {"step": 1500}):
        api.get("runs/r1/headroom", **asked)
    api.get("runs/r1/forecast")
    api.get("runs/r1/advice")
    api.get("runs")
    api.get("alerts")


def ingest(api: Api) -> None:
    late = s.steps_of(range(1990, 2200), s.HEALTHY, s.HEALTHY, s.STALLED, s.HEALTHY)
    api.post(s.batch(1, "w2", 2, **late))
    api.post(s.batch(0, "w3", 2, rank=1, layers=s.layers("a", "b.c", "b.d"), **late))


@pytest.mark.parametrize("work", [read_all, ingest])
def test_rows_are_found_by_their_key(filled: Api, database: Database, work: Callable[[Api], None]) -> None:
    with listening(database) as statements:
        work(filled)
    found = plans(database, statements)
    assert len(found) > 4
    for statement, lines in found.items():
        for line in lines:
            if database.is_sqlite:
                assert_sqlite(statement, line)
            else:
                assert not any(f"Seq Scan on {table}" in line for table in LARGE), (statement, line)


def assert_sqlite(statement: str, line: str) -> None:
    words = line.split()
    if words[0] not in ("SCAN", "SEARCH") or not any(table in line or words[1] == "s" for table in LARGE):
        return
    if words[1] in ("layer_samples", "model_samples", "s"):
        assert words[0] == "SEARCH", (statement, line)
        assert "attempt=?" in line, (statement, line)
        assert "rank=?" in line, (statement, line)
    elif words[1] in LARGE:
        assert words[0] == "SEARCH", (statement, line)
        if words[1] == "headroom" and "DISTINCT" not in statement:
            assert "step=?" in line, (statement, line)


def test_a_plan_without_the_key_would_be_seen(filled: Api, database: Database) -> None:
    bad: list[Statement] = [("SELECT sum(lost) FROM layer_samples WHERE step = 3", ())]
    (lines,) = plans(database, bad).values()
    if database.is_sqlite:
        with pytest.raises(AssertionError):
            assert_sqlite("", lines[0])
    else:
        assert any("Index Cond: (step" in line or "Seq Scan" in line for line in lines)
