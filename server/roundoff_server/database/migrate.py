"""Bring a database to the schema that this version knows, or say why that cannot be."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

from .engine import Database, explained
from .errors import DatabaseUnusableError

ADVISORY_LOCK = 0x726F756E646F6666
"""Key of the PostgreSQL lock under which servers migrate one after the other: `roundoff` in ASCII."""


def alembic_config() -> Config:
    """Where the migrations are; put an open connection into its `attributes` before a command."""
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    return config


def known_revision() -> str:
    """The newest revision that this version knows."""
    return str(ScriptDirectory.from_config(alembic_config()).get_current_head())


def _revision(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


def _refuse_unknown(database: Database, revision: str | None) -> None:
    known = {script.revision for script in ScriptDirectory.from_config(alembic_config()).walk_revisions()}
    if revision is not None and revision not in known:
        raise DatabaseUnusableError(
            f"{database.name} has schema {revision}, which this version does not know (newest: "
            f"{known_revision()}). A newer roundoff wrote it: upgrade roundoff, or give another database "
            f"with --database"
        )


@contextmanager
def _alone(database: Database) -> Iterator[Connection]:
    """A connection in a transaction that no other process can migrate beside."""
    with database.engine.connect() as connection:
        if database.is_sqlite:
            # WAL is set outside a transaction; it stays with the file.
            raw = connection.connection.driver_connection
            assert raw is not None
            raw.execute("PRAGMA journal_mode = WAL")
        with connection.begin():
            if not database.is_sqlite:
                connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": ADVISORY_LOCK})
            yield connection


def upgrade(database: Database) -> tuple[str | None, str]:
    """Migrate to the newest known schema under a lock. Returns the revision before and after.

    Raises `DatabaseUnusableError` for a database that cannot be opened or written, or has a newer schema.
    """
    if database.is_sqlite:
        folder = Path(str(database.url.database)).expanduser().absolute().parent
        with explained(database):
            folder.mkdir(parents=True, exist_ok=True)
    with explained(database), _alone(database) as connection:
        before = _revision(connection)
        _refuse_unknown(database, before)
        config = alembic_config()
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
    return before, known_revision()


def require_current(database: Database) -> None:
    """Raise `DatabaseUnusableError` unless the schema is exactly the newest known one. Changes nothing."""
    if database.is_sqlite and not Path(str(database.url.database)).expanduser().is_file():
        raise DatabaseUnusableError(
            f"{database.name} does not exist; start a server with `roundoff serve`, or name another file"
        )
    with explained(database), database.read() as session:
        revision = _revision(session.connection())
    _refuse_unknown(database, revision)
    if revision != known_revision():
        state = f"has the older schema {revision}" if revision else "holds no roundoff data"
        raise DatabaseUnusableError(f"{database.name} {state}; run `roundoff db upgrade --database …` first")
