"""The application in this process, on a migrated database of each kind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from calling import OPENED, Api, Clock

from roundoff_server.database import Database, upgrade


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """No thread of an application outlives its test."""
    yield
    while OPENED:
        OPENED.pop().close()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    store = Database(database_url)
    upgrade(store)
    yield store
    store.dispose()


@pytest.fixture
def api(database: Database, clock: Clock) -> Api:
    return Api(database, clock)


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Database]:
    """A migrated SQLite file, where the kind of database does not matter."""
    store = Database(str(tmp_path / "local.db"))
    upgrade(store)
    yield store
    store.dispose()
