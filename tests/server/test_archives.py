"""A run moves from one database to another with nothing lost, all of it or nothing."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sending as s
from calling import OPENED, Api, Clock
from sqlalchemy import select, text

from roundoff.cli import main
from roundoff_server.database import Database, upgrade
from roundoff_server.models import Base, Run
from roundoff_server.services.archive import TABLES, read_archive, write_archive
from roundoff_server.services.archive_parts import ArchiveError
from roundoff_server.services.check import findings


@pytest.fixture
def other(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Database]:
    """A second database, of the other kind."""
    database = request.getfixturevalue("database")
    if database.is_sqlite:
        target = Database(request.getfixturevalue("another_postgresql"))
    else:
        target = Database(str(tmp_path / "other.db"))
    upgrade(target)
    yield target
    target.dispose()


def everything(database: Database, run_id: str) -> dict[str, list[Any]]:
    """All rows of a run by table, without its key; what NULL reads as in its place."""
    found = {}
    with database.read() as session:
        run = session.scalar(select(Run.run).where(Run.id == run_id))
        for table in Base.metadata.sorted_tables:
            if "run" not in table.c or table.name == "removals":
                continue
            key = [column for column in table.primary_key if column.name != "run"]
            columns = [column for column in table.columns if column.name != "run"]
            rows = session.execute(select(*columns).where(table.c.run == run).order_by(*key)).all()
            found[table.name] = [tuple(map(comparable, columns, row)) for row in rows]
    return found


def comparable(column: Any, value: Any) -> Any:
    if column.table.name == "scopes" and column.name == "efficiency" and value is None:
        value = math.nan  # SQLite has no other word for it; what is broken is told by its track
    if column.table.name in ("layer_samples", "model_samples", "group_samples"):
        value = (0 if column.type.python_type is int else math.nan) if value is None else value
    return "NaN" if isinstance(value, float) and math.isnan(value) else value


STEPS = range(0, 3000, 2)


def filled(api: Api) -> None:
    """A run with everything: attempts, ranks, layers, histograms, scalars, groups, roll-ups, an alert."""
    api.put(s.start(tags=["a", "b"], config={"lr": 0.1, "deep": {"x": [1, None]}}))
    rows = {(0, step): s.STALLED for step in STEPS} | {(1, step): s.HEALTHY for step in STEPS}
    odd = {"sum_uu": math.inf, "sum_ua": math.nan, "sum_ww": -0.0}
    api.post(
        s.batch(
            layers=s.layers("größe/[0]", "b" * 1024),
            model=s.model_samples(dict.fromkeys(STEPS, s.STALLED)),
            samples=s.layer_samples(rows | {(1, 2999): {**s.HEALTHY, **odd}}),
            headroom=s.headroom([(0, 0), (1, 0)]),
            groups=s.groups({0: 1e-3, 500: math.nan}),
            scalars=s.scalars(
                [("loss", step, step / 7) for step in range(50)] + [("odd", 0, math.nan), ("odd", 1, -0.0)]
            ),
            dropped={"points (queue full)": 3},
        )
    )
    api.put(s.start(token="t2", first_step=2900))
    api.post(
        s.batch(
            writer="w2",
            attempt=2,
            layers=s.layers("größe/[0]"),
            samples=s.layer_samples({(0, 2900): s.HEALTHY}),
        )
    )


def test_nothing_is_lost(api: Api, database: Database, other: Database) -> None:
    filled(api)
    done = write_archive(other, read_archive(database, "r1"))
    there = everything(other, "r1")
    assert there == everything(database, "r1")
    assert all(
        there[name]
        for name in ("attempts", "writers", "batches", "layers", "blocks", "strips", "alerts", "headroom")
    )
    assert done.rows == sum(len(rows) for name, rows in there.items() if name != "runs")
    assert findings(other) == []


def test_all_tables_of_a_run_are_carried() -> None:
    carried = {model.__tablename__ for model, _ in TABLES}
    of_runs = {table.name for table in Base.metadata.sorted_tables if "run" in table.c}
    assert carried == of_runs - {"runs", "removals"}


def test_the_run_goes_on_where_it_came_to(
    api: Api, database: Database, other: Database, clock: Clock
) -> None:
    filled(api)
    write_archive(other, read_archive(database, "r1"))
    moved = Api(other, clock)
    OPENED.append(moved.app.state.service)
    again = s.batch(
        writer="w2", attempt=2, layers=s.layers("größe/[0]"), samples=s.layer_samples({(0, 2900): s.HEALTHY})
    )
    assert moved.post(again)["status"] == "duplicate"
    more = s.batch(seq=1, writer="w2", attempt=2, samples=s.layer_samples({(0, 2902): s.STALLED}))
    assert moved.post(more)["rows"] == api.post(more)["rows"]
    for path in ("runs/r1", "runs/r1/layers", "runs/r1/heatmap", "alerts"):
        assert moved.get(path) == api.get(path), path


def test_a_run_that_is_there_is_left_alone(api: Api, database: Database) -> None:
    filled(api)
    before = everything(database, "r1")
    archive = list(read_archive(database, "r1"))
    with pytest.raises(ArchiveError, match="is there already, nothing was changed"):
        write_archive(database, archive)
    assert everything(database, "r1") == before


def test_what_is_torn_or_damaged_leaves_nothing(api: Api, database: Database, other: Database) -> None:
    filled(api)
    whole = b"".join(read_archive(database, "r1"))
    torn = [whole[:length] for length in (0, 5, 19, 25, 200, len(whole) // 2, len(whole) - 9, len(whole) - 1)]
    flipped = [
        whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :]
        for at in range(0, len(whole), max(1, len(whole) // 40))
    ]
    for archive in (*torn, *flipped, b"PK\x03\x04 no archive", b"roundoff archive 1\n" + bytes(100)):
        with pytest.raises(ArchiveError):
            write_archive(other, [archive[:7], archive[7:]])
    with other.read() as session:
        for table in Base.metadata.sorted_tables:
            if "run" in table.c:
                assert session.execute(select(table).limit(1)).all() == [], table.name


def test_another_schema_is_named(api: Api, database: Database, other: Database, monkeypatch: Any) -> None:
    filled(api)
    archive = list(read_archive(database, "r1"))
    monkeypatch.setattr("roundoff_server.services.archive.known_revision", lambda: "0099")
    with pytest.raises(ArchiveError, match=r"the archive has schema \d+, this database 0099"):
        write_archive(other, archive)


def test_what_is_written_meanwhile_is_not_half_in_it(api: Api, database: Database, other: Database) -> None:
    """As of one moment: the batch that comes while the archive is read is not in it at all."""
    filled(api)
    before = everything(database, "r1")
    parts = read_archive(database, "r1")
    begun = [next(parts), next(parts, b"")]
    api.post(
        s.batch(
            seq=5,
            writer="w9",
            attempt=2,
            layers=s.layers("new"),
            samples=s.layer_samples({(0, 2950): s.HEALTHY}),
        )
    )
    write_archive(other, itertools.chain(begun, parts))
    carried = everything(other, "r1")
    assert carried in (before, everything(database, "r1"))


def test_over_rest_and_on_the_command_line(
    tmp_path: Path, start_server: Any, database: Database, api: Api, capsys: pytest.CaptureFixture[str]
) -> None:
    filled(api)
    url = database.url.render_as_string(hide_password=False)
    file, second = tmp_path / "r1.roundoff", tmp_path / "again.roundoff"

    def run(*words: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            main([*words])
        out = capsys.readouterr()
        return int(ended.value.code or 0), out.out + out.err

    assert run("db", "archive", "r1", str(file), "--database", url)[0] == 0
    code, said = run("db", "archive", "r1", str(file), "--database", url)
    assert (code, "is there already" in said) == (1, True)
    with start_server(f"sqlite:///{tmp_path / 'target.db'}") as running:
        assert run("import", str(file), "--server", running.url)[0] == 0
        code, said = run("import", str(file), "--server", running.url)
        assert (code, "is there already, nothing was changed" in said) == (1, True)
        assert run("export", "r1", "--format", "archive", "-o", str(second), "--server", running.url)[0] == 0
        code, said = run("import", str(tmp_path / "nothing"), "--server", running.url)
        assert (code, "nothing" in said) == (1, True)
    back = Database(str(tmp_path / "back.db"))
    upgrade(back)
    assert run("db", "restore", str(second), "--database", str(tmp_path / "back.db"))[0] == 0
    assert everything(back, "r1") == everything(database, "r1")
    with back.write() as session:
        session.execute(text("DELETE FROM runs"))
    back.dispose()
