"""Databases of every released revision, with data in them, brought to the newest one."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
import sending as s
from alembic import command
from alembic.config import Config
from calling import Api, Clock
from sqlalchemy import text

from roundoff.metrics import COUNTS, ROW
from roundoff_server.database import Database, known_revision, upgrade
from roundoff_server.database.migrate import alembic_config
from roundoff_server.services.check import findings

STEPS = range(0, 300, 3)


def at_revision(database: Database, revision: str) -> None:
    config: Config = alembic_config()
    with database.engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, revision)


def insert(database: Database, table: str, **values: Any) -> None:
    names = ", ".join(f'"{name}"' for name in values)
    marks = ", ".join(f":{name}" for name in values)
    with database.engine.begin() as connection:
        connection.execute(text(f"INSERT INTO {table} ({names}) VALUES ({marks})"), values)


def sums(step: int, layer: int) -> dict[str, float]:
    counts: dict[str, float] = dict.fromkeys(COUNTS, 0)
    return counts | dict.fromkeys(ROW[len(COUNTS) :], 1.0) | {"attempted": 100, "lost": (step + layer) % 100}


def fill_first_light(database: Database) -> None:
    """A run as revision 0001 keeps it."""
    run = {
        "id": "r1",
        "project": "p",
        "name": "n",
        "config": "{}",
        "tags": "[]",
        "client": "",
        "state": "running",
    }
    times = {"created_at": 1.0, "heard_at": 1.0, "promise_s": 60.0}
    insert(database, "runs", run=1, **run, **times, spark="[]", spark_stride=1, spark_seen=0)
    attempt = {"token": "t1", "first_step": 0, "world_size": 1, "state": "running", "started_at": 1.0}
    insert(database, "attempts", run=1, number=1, **attempt)
    insert(database, "writers", run=1, writer="w1", attempt=1, rank=0, sampled_step=STEPS[-1], dropped="{}")
    for layer, name in enumerate(("a", "b"), 1):
        shape = {"shape": "[9]", "numel": 9, "dtype": "bfloat16", "group_index": 0, "strategy": "none"}
        digest = hashlib.sha256(name.encode()).digest()
        insert(
            database, "layers", run=1, layer=layer, name=name, digest=digest, **shape, placement="replicated"
        )
        insert(database, "declarations", run=1, writer="w1", layer_index=layer - 1, layer=layer)
    for step in STEPS:
        key = {"run": 1, "attempt": 1, "rank": 0, "step": step}
        insert(database, "model_samples", **key, **sums(step, 0))
        for layer in (1, 2):
            insert(database, "layer_samples", layer=layer, **key, **sums(step, layer))


@pytest.mark.parametrize("revision", ["0001"])
def test_data_of_a_released_revision_stays_and_can_be_added_to(
    database_url: str, clock: Clock, revision: str
) -> None:
    database = Database(database_url)
    at_revision(database, revision)
    fill_first_light(database)
    assert upgrade(database) == (revision, known_revision())
    api = Api(database, clock)
    for layer, number in ((None, 0), ("a", 1), ("2", 2)):
        asked = {"metric": "lost_fraction", **({"layer": layer} if layer else {})}
        found = api.get("runs/r1/series", **asked)
        assert found["steps"] == list(STEPS)
        assert found["values"] == [(step + number) % 100 / 100 for step in STEPS]
    assert api.get("runs/r1/heatmap")["steps"] == list(STEPS)
    api.post(s.batch(1, "w1", **s.steps_of([300], s.HEALTHY, s.HEALTHY, s.HEALTHY)))
    heat = api.get("runs/r1/heatmap")
    assert heat["steps"] == [*STEPS, 300]
    assert findings(database) == []
    database.dispose()


def test_the_rewritten_tables_keep_their_layout(tmp_path: Any) -> None:
    database = Database(str(tmp_path / "old.db"))
    at_revision(database, "0001")
    upgrade(database)
    with database.read() as session:
        sql = dict(session.execute(text("SELECT name, sql FROM sqlite_master WHERE type = 'table'")).all())
    for name in ("layer_samples", "model_samples"):
        assert "WITHOUT ROWID" in sql[name]
    database.dispose()
