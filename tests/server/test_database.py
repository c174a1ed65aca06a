"""Opening, migrating and refusing databases."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import sending as s
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from calling import Api, Clock
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from roundoff.metrics import ROW
from roundoff_server.database import Database, DatabaseUnusableError, known_revision, require_current, upgrade
from roundoff_server.database.engine import parse_url
from roundoff_server.models import Base, SumColumns
from roundoff_server.services.check import findings


def test_the_migrations_make_the_models(database: Database) -> None:
    with database.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, Base.metadata) == []


def test_every_key_begins_with_the_run_and_the_sums_are_those_of_the_wire() -> None:
    for name, table in Base.metadata.tables.items():
        if name == "tokens":  # of the server, not of a run
            continue
        assert next(iter(table.primary_key)).name == "run", table.name
    assert tuple(name for name in SumColumns.__annotations__) == ROW
    for name in ("layer_samples", "model_samples"):
        columns = [column.name for column in Base.metadata.tables[name].columns if not column.primary_key]
        assert tuple(columns) == ROW


def test_upgrading_twice_changes_nothing(database_url: str) -> None:
    database = Database(database_url)
    assert upgrade(database) == (None, known_revision())
    assert upgrade(database) == (known_revision(), known_revision())
    require_current(database)
    database.dispose()


def test_sample_rows_lie_in_key_order(database: Database) -> None:
    if not database.is_sqlite:
        pytest.skip("a SQLite layout")
    with database.read() as session:
        sql = dict(session.execute(text("SELECT name, sql FROM sqlite_master WHERE type = 'table'")).all())
        mode = session.execute(text("PRAGMA journal_mode")).scalar()
    assert mode == "wal"
    for name in ("layer_samples", "model_samples", "headroom", "group_samples", "scalars", "batches"):
        assert "WITHOUT ROWID" in sql[name], name


def test_a_newer_schema_is_refused(database: Database) -> None:
    with database.write() as session:
        session.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    for call in (upgrade, require_current):
        with pytest.raises(DatabaseUnusableError, match=r"9999.*newer roundoff wrote it: upgrade roundoff"):
            call(database)
    with database.read() as session:
        assert session.execute(text("SELECT version_num FROM alembic_version")).scalar() == "9999"


def test_an_empty_database_is_not_made_by_reading(database_url: str) -> None:
    database = Database(database_url, read_only=True)
    with pytest.raises(DatabaseUnusableError, match=r"does not exist|holds no roundoff data"):
        require_current(database)
    if database.is_sqlite:
        assert not Path(str(database.url.database)).exists()
    database.dispose()


def test_read_only_writes_nothing(database_url: str, database: Database) -> None:
    reader = Database(database_url, read_only=True)
    require_current(reader)
    with pytest.raises(PermissionError, match="reading only"), reader.write():
        pass
    with pytest.raises(DBAPIError, match=r"(?i)read.?only"), reader.engine.begin() as connection:
        connection.execute(text("DELETE FROM runs"))
    reader.dispose()


@pytest.mark.parametrize("kind", ["a folder", "below a file", "no database"])
def test_a_file_that_cannot_be_one_is_refused_in_words(tmp_path: Path, kind: str) -> None:
    (tmp_path / "file").write_text("this is a text and no database, as anyone can see " * 30)
    path = {
        "a folder": tmp_path,
        "below a file": tmp_path / "file" / "x.db",
        "no database": tmp_path / "file",
    }[kind]
    database = Database(f"sqlite:///{path}")
    with pytest.raises(DatabaseUnusableError, match=f"(?s)cannot open sqlite:///{path}: .*--database"):
        upgrade(database)
    database.dispose()


def test_a_file_that_may_not_be_written_is_refused_in_words(tmp_path: Path) -> None:
    made = Database(str(tmp_path / "x.db"))
    upgrade(made)
    with made.engine.connect() as connection:
        raw: Any = connection.connection.driver_connection
        raw.execute("PRAGMA journal_mode = DELETE")
    made.dispose()
    # Rights do not bind root, so the file is opened read-only instead.
    locked = Database(str(tmp_path / "x.db"), read_only=True)
    with pytest.raises(DatabaseUnusableError, match=r"readonly.*may write to it"):
        upgrade(locked)
    locked.dispose()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("mysql://host/x", "only sqlite and postgresql"),
        ("sqlite://", "names no file"),
        ("sqlite:///:memory:", "names no file"),
        ("://", "no database URL"),
        ("nonsense://", "only sqlite and postgresql"),
    ],
)
def test_other_urls_are_refused_in_words(url: str, message: str) -> None:
    with pytest.raises(DatabaseUnusableError, match=message):
        parse_url(url)


def test_urls_are_read_kindly_and_shown_without_password() -> None:
    assert parse_url("/a/b.db").render_as_string() == "sqlite:////a/b.db"
    assert parse_url("postgres://u:secret@h/d").drivername == "postgresql+psycopg"
    assert "secret" not in Database("postgresql://u:secret@localhost:1/d").name


def test_a_postgresql_that_is_not_there_is_refused_in_words() -> None:
    database = Database("postgresql://u:secret@127.0.0.1:1/d")
    with pytest.raises(
        DatabaseUnusableError, match=r"(?s)cannot open postgresql.*check that the server runs"
    ) as caught:
        upgrade(database)
    assert "secret" not in str(caught.value)


def test_processes_that_migrate_at_once(database_url: str) -> None:
    code = "import sys; from roundoff_server.database import *; upgrade(Database(sys.argv[1]))"
    command = [sys.executable, "-c", code, database_url]
    running = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    for process in running:
        _, said = process.communicate(timeout=60)
        assert (process.returncode, said) == (0, "")
    database = Database(database_url)
    require_current(database)
    database.dispose()


def test_check_finds_what_does_not_belong(database: Database, clock: Clock) -> None:
    api = Api(database, clock)
    api.put(s.start())
    tables = s.steps_of([1], s.HEALTHY, s.HEALTHY)
    api.post(s.batch(layers=s.layers("a"), scalars=s.scalars([("x", 1, 1.0)]), **tables))
    assert findings(database) == []
    with database.write() as session:
        session.execute(text("DELETE FROM scalar_names"))
        session.execute(text("UPDATE model_samples SET run = 77"))
    assert findings(database) == [
        "1 rows of model_samples belong to no run",
        "1 rows of scalars have no name",
    ]
