"""Deleting runs and thinning them: what goes, what stays, and that a crash between is mended."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import sending as s
from calling import Api, Clock
from sqlalchemy import func, select, text

from roundoff_server.database import Database
from roundoff_server.models import Base, LayerSample, Removal, Run
from roundoff_server.services import blocks, removal
from roundoff_server.services.check import findings
from roundoff_server.services.removal import remove, sweep
from roundoff_server.services.retention import DAY_S, thin_old

NAMES = ("a", "b.c", "b.d")


def fill(api: Api, run_id: str = "r1", steps: range = range(0, 3000, 5)) -> None:
    api.put(s.start(run_id), run_id)
    layers = s.layers(*NAMES)
    for seq, begin in enumerate(range(0, len(steps), 100)):
        part = steps[begin : begin + 100]
        tables = s.steps_of(part, s.HEALTHY, *(row(layer) for layer in range(3)))
        loss = s.scalars([("loss", step, 1.0) for step in part])
        extra = {"headroom": s.headroom([(0, part[0])])} if not seq else {}
        api.post(s.batch(seq, f"w-{run_id}", layers=layers, scalars=loss, **tables, **extra), run_id)


def row(layer: int) -> dict[str, float]:
    return {**s.HEALTHY, "lost": 100 * (layer + 1)}


def rows(database: Database, run: int) -> dict[str, int]:
    """Table → rows of a run, where there are any."""
    found = {}
    with database.read() as session:
        for table in Base.metadata.sorted_tables:
            if "run" not in table.c:
                continue
            count = session.scalar(select(func.count()).select_from(table).where(table.c.run == run))
            if count:
                found[table.name] = count
    return found


def test_a_deleted_run_leaves_nothing_and_takes_nothing_with_it(api: Api, database: Database) -> None:
    fill(api, "r1")
    fill(api, "r2")
    before = rows(database, 2)
    assert {"blocks", "strips", "layer_samples", "headroom", "scalars"} <= set(rows(database, 1))
    answer = api.http.delete("/api/v1/runs/r1")
    assert (answer.status_code, answer.content) == (204, b"")
    assert [run["id"] for run in api.get("runs")["runs"]] == ["r2"]
    assert api.http.get("/api/v1/runs/r1").status_code == 404
    assert api.http.delete("/api/v1/runs/r1").status_code == 404
    assert api.send(s.batch(99, "w-r1")).status_code == 404
    assert rows(database, 1) == {}
    assert rows(database, 2) == before
    assert findings(database) == []


def test_rows_go_a_few_at_a_time(api: Api, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(api)
    small = tuple((table, 7 if at_once < removal.ROWS else 500) for table, at_once in removal.LARGE)
    monkeypatch.setattr(removal, "LARGE", small)
    writes: list[int] = []
    real = Database.write

    def noted(self: Database) -> Any:
        writes.append(1)
        return real(self)

    monkeypatch.setattr(Database, "write", noted)
    with database.write() as session:
        remove(session, "r1")
    assert sweep(database) == 1
    assert len(writes) > 10
    assert rows(database, 1) == {}


def test_what_a_crash_leaves_is_swept(api: Api, database: Database) -> None:
    fill(api)
    with database.write() as session:
        remove(session, "r1")
    assert "layer_samples" in rows(database, 1)
    assert findings(database) == [], "its rows are on their way out"
    fill(api, "r1")
    with database.read() as session:
        assert session.scalars(select(Run.run)).all() == [2], "the same name is another run"
    assert sweep(database) == 1
    assert sweep(database) == 0
    assert rows(database, 1) == {}
    assert api.get("runs/r1/series", metric="lost_fraction")["steps"] == list(range(0, 3000, 5))
    with database.read() as session:
        assert session.scalar(select(func.count()).select_from(Removal)) == 0


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BUCKETS", 16)
    monkeypatch.setattr(blocks, "FACTOR", 2)


def test_a_thinned_run_keeps_its_charts(api: Api, database: Database, clock: Clock, small: None) -> None:
    fill(api)
    reads: list[dict[str, Any]] = [
        {"layer": "a", "max_points": 50},
        {"layer": "b", "max_points": 10},
        {"layer": "b.d", "max_points": 60, "from_step": 640, "to_step": 2559},
        {"max_points": 2000},
    ]
    before = [api.get("runs/r1/series", metric="lost_fraction", **asked) for asked in reads]
    heat = api.get("runs/r1/heatmap")
    assert thin_old(database, 1, clock.now) == []
    assert thin_old(database, 1, clock.now + 2 * DAY_S) == ["r1"]
    assert thin_old(database, 1, clock.now + 2 * DAY_S) == []
    with database.read() as session:
        assert session.scalar(select(func.count()).select_from(LayerSample)) == 0
    for asked, wanted in zip(reads, before, strict=True):
        found = api.get("runs/r1/series", metric="lost_fraction", **asked)
        for band in ("low", "high"):  # binary32 once they come from roll-ups
            assert found.pop(band) == pytest.approx(wanted.pop(band), rel=1e-6)
        assert found == wanted
    assert api.get("runs/r1/heatmap") == heat
    fine = api.get("runs/r1/series", metric="lost_fraction", layer="a", max_points=20_000)
    assert fine["sampled"]
    assert set(fine["values"]) == {0.1}
    assert sum(fine["bucket"] for _ in fine["steps"]) >= 3000
    assert findings(database) == []


def test_a_thinned_run_can_go_on(api: Api, database: Database, clock: Clock, small: None) -> None:
    fill(api)
    thin_old(database, 0, clock.now + 1)
    more = range(3000, 5000, 5)
    for seq, begin in enumerate(range(0, len(more), 50), 500):
        part = more[begin : begin + 50]
        api.post(s.batch(seq, "w-r1", **s.steps_of(part, s.HEALTHY, *(row(layer) for layer in range(3)))))
    late = s.steps_of([1001, 1002], s.HEALTHY, *(row(layer) for layer in range(3)))
    api.post(s.batch(900, "w-r1", **late))
    for layer, share in (("a", 0.1), ("b.d", 0.3)):
        found = api.get("runs/r1/series", metric="lost_fraction", layer=layer, max_points=40)
        assert found["steps"] == list(range(0, 5000, found["bucket"]))
        assert found["values"] == pytest.approx([share] * len(found["steps"]))
    assert api.get("runs/r1/heatmap")["steps"][-1] >= 4900


def command(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "roundoff", "db", *words], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_file_shrinks_and_a_copy_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    command("upgrade", "--database", str(path))
    database = Database(str(path))
    clock = Clock()
    clock.now = 1_600_000_000.0
    api = Api(database, clock)
    fill(api, "r1", range(0, 10_000, 2))
    fill(api, "r2")
    copy = tmp_path / "copy.db"
    command("backup", str(copy), "--database", str(path))
    api.http.delete("/api/v1/runs/r1")
    database.dispose()
    assert "MB (before" in command("vacuum", "--database", str(path))
    assert path.stat().st_size < 0.4 * copy.stat().st_size
    assert "nothing wrong" in command("check", "--database", str(path))
    assert "nothing wrong" in command("check", "--database", str(copy))
    assert "thinned r2" in command("thin", "--days", "1", "--database", str(path))
    kept = Database(str(copy), read_only=True)
    with kept.read() as session:
        assert session.scalars(select(Run.id)).all() == ["r1", "r2"]
        assert session.execute(text("SELECT count(*) FROM layer_samples")).scalar() == 3 * 5600
    kept.dispose()
