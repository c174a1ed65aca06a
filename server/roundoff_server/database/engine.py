"""The engine: one writer and readers apart on SQLite, a pool on PostgreSQL, the same two calls on both."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pydantic_core
from sqlalchemy import URL, Engine, create_engine, event, make_url, text
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError
from sqlalchemy.orm import Session
from sqlalchemy.pool import QueuePool

from .errors import DatabaseUnusableError

BUSY_MS = 30_000
"""How long SQLite waits for a writer in another process."""

CACHE_KIB = 64 * 1024
"""Pages that one connection to SQLite keeps in memory, in KiB."""

CHECKPOINT_PAGES = 16_384
"""Pages of SQLite's log before it is carried over: a batch touches every layer's last page, the next one again."""


def parse_url(url: str) -> URL:
    """A SQLAlchemy URL with the driver that is installed, from `sqlite:///file`, `postgresql://…` or a file's path.

    Raises `DatabaseUnusableError` for anything else.
    """
    if "://" not in url:
        return URL.create("sqlite", database=url)
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise DatabaseUnusableError(
            f"{url!r} is no database URL; write sqlite:////absolute/path.db or postgresql://user@host/name"
        ) from None
    if parsed.drivername in ("postgres", "postgresql"):
        return parsed.set(drivername="postgresql+psycopg")
    if parsed.get_backend_name() not in ("sqlite", "postgresql"):
        raise DatabaseUnusableError(f"{shown(parsed)}: only sqlite and postgresql are supported")
    if parsed.get_backend_name() == "sqlite" and parsed.database in (None, "", ":memory:"):
        raise DatabaseUnusableError(f"{url!r} names no file; write sqlite:////absolute/path.db")
    return parsed


def shown(url: URL) -> str:
    """The URL for messages and logs, without its password."""
    return url.render_as_string(hide_password=True)


def _strict_json(value: Any) -> str:
    """JSON that every database takes: non-finite floats as strings."""
    return pydantic_core.to_json(value, inf_nan_mode="strings").decode()


class Database:
    """`write()` and `read()` give a session inside one transaction that commits when the block ends.

    On SQLite all writes of this process go through one connection, one at a time, each begun as a writer, so
    that no transaction fails half-way on a lock; other processes wait for each other. With `read_only`
    nothing is ever created or changed.
    """

    def __init__(self, url: str, *, read_only: bool = False) -> None:
        self.url = parse_url(url)
        self.read_only = read_only
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        if self.is_sqlite:
            self._readers = _sqlite_engine(self.url, "BEGIN", read_only=read_only)
            self._writers = self._readers if read_only else _sqlite_engine(self.url, "BEGIN IMMEDIATE")
        else:
            self._readers = self._writers = _postgresql_engine(self.url, read_only=read_only)
        self._one_writer = threading.Lock() if self.is_sqlite else nullcontext()

    @property
    def name(self) -> str:
        """The URL without its password."""
        return shown(self.url)

    @property
    def engine(self) -> Engine:
        """The engine that writes, for migrations."""
        return self._writers

    @contextmanager
    def write(self) -> Iterator[Session]:
        """A session whose transaction commits at the end of the block. Raises PermissionError if read-only."""
        if self.read_only:
            raise PermissionError(f"{self.name} is opened for reading only")
        with self._one_writer, Session(self._writers, expire_on_commit=False) as session, session.begin():
            yield session

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A session that sees one consistent state and changes nothing."""
        with Session(self._readers, expire_on_commit=False, autoflush=False) as session:
            yield session

    def maintain(self, statement: str) -> None:
        """Run a statement that cannot stand in a transaction, such as VACUUM. Raises PermissionError if read-only."""
        if self.read_only:
            raise PermissionError(f"{self.name} is opened for reading only")
        if not self.is_sqlite:
            with self._writers.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                connection.exec_driver_sql(statement)
            return
        with self._one_writer, closing(self._writers.raw_connection()) as connection:
            raw = connection.driver_connection
            assert raw is not None
            raw.execute(statement).fetchall()

    def size(self) -> int:
        """Bytes on disk: the file, or all of the database on its server."""
        if self.is_sqlite:
            return Path(str(self.url.database)).expanduser().stat().st_size
        with self.read() as session:
            return int(session.scalar(text("SELECT pg_database_size(current_database())")))

    def copy_to(self, target: Path) -> None:
        """Copy a SQLite file as of now. Raises `DatabaseUnusableError` for PostgreSQL, and FileExistsError."""
        if not self.is_sqlite:
            raise DatabaseUnusableError(f"{self.name} is on a server of its own: copy it with pg_dump")
        if target.exists():
            raise FileExistsError(f"{target} is there already; name a file that is not")
        with closing(self._readers.raw_connection()) as connection:
            raw = connection.driver_connection
            assert raw is not None
            raw.execute("VACUUM INTO ?", (str(target),))

    @property
    def connections(self) -> int:
        """Connections in use."""
        pools = {engine.pool for engine in (self._readers, self._writers)}
        return sum(pool.checkedout() for pool in pools if isinstance(pool, QueuePool))

    def dispose(self) -> None:
        """Close every connection."""
        self._readers.dispose()
        self._writers.dispose()


def _sqlite_engine(url: URL, begin: str, *, read_only: bool = False) -> Engine:
    path = Path(str(url.database)).expanduser()

    def connect() -> sqlite3.Connection:
        mode = "ro" if read_only else "rwc"
        if read_only and not _can_share(path):
            mode += "&immutable=1"
        connection = sqlite3.connect(
            f"file:{quote(str(path.absolute()))}?mode={mode}",
            uri=True,
            timeout=BUSY_MS / 1000,
            isolation_level=None,
            check_same_thread=False,
        )
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
        return connection

    engine = create_engine(
        "sqlite://",
        creator=connect,
        poolclass=QueuePool,
        json_serializer=_strict_json,
        json_deserializer=json.loads,
    )

    @event.listens_for(engine, "begin")
    def _begin(connection: Any) -> None:
        connection.exec_driver_sql(begin)

    return engine


def _can_share(path: Path) -> bool:
    """Whether a reader may create the files beside a WAL database, or they are there already."""
    import os

    return os.access(path.parent, os.W_OK) or path.with_name(path.name + "-wal").exists()


def _postgresql_engine(url: URL, *, read_only: bool) -> Engine:
    options = "-c timezone=UTC" + (" -c default_transaction_read_only=on" if read_only else "")
    return create_engine(
        url,
        pool_pre_ping=True,
        pool_size=10,
        max_overflow=20,
        json_serializer=_strict_json,
        connect_args={"options": options, "connect_timeout": 10},
    )


@contextmanager
def explained(database: Database) -> Iterator[None]:
    """Turn a driver's complaint while opening into a `DatabaseUnusableError` that names the database and a cure."""
    try:
        yield
    except DatabaseUnusableError:
        raise
    except NoSuchModuleError as error:
        raise DatabaseUnusableError(f"{database.name}: {error}") from None
    except (DBAPIError, sqlite3.Error, OSError) as error:
        reason = str(error.orig if isinstance(error, DBAPIError) else error).strip()
        cure = (
            "check that its folder exists and that you may write to it, or give another with --database"
            if database.is_sqlite
            else "check that the server runs and that user, password and database name are right"
        )
        raise DatabaseUnusableError(f"cannot open {database.name}: {reason}; {cure}") from None
