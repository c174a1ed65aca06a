"""Servers that are killed and come back, and programs that are."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from faults import Between, between
from programs import Programs


class Server:
    """A real server on one port and one database, through any number of lives."""

    def __init__(self, start: Any, database: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.port = listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._start, self._database = start, database
        self._life: Any = None
        self._running: Any = None

    def up(self) -> None:
        self._life = self._start(self._database, "--port", str(self.port))
        self._running = self._life.__enter__()

    def kill(self) -> None:
        """As the machine's loss would."""
        self._running.stop(signal.SIGKILL)
        self.down()

    def down(self) -> None:
        if self._life is not None:
            life, self._life = self._life, None
            life.__exit__(None, None, None)

    def signal(self, number: int) -> None:
        os.kill(self._running.process.pid, number)


@pytest.fixture
def revivable(start_server: Any, tmp_path: Path) -> Iterator[Server]:
    """A server that is up, and can be killed and brought up again."""
    server = Server(start_server, f"sqlite:///{tmp_path / 'served.db'}")
    server.up()
    yield server
    server.down()


@pytest.fixture
def mortal(start_server: Any, database_url: str) -> Iterator[Server]:
    """The same on SQLite and on PostgreSQL."""
    server = Server(start_server, database_url)
    server.up()
    yield server
    server.down()


@pytest.fixture
def faulty(server: str) -> Iterator[Between]:
    """The way to a real server, on which things go wrong."""
    with between(server) as place:
        yield place


@pytest.fixture
def nobody() -> str:
    """An address where nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
def black_hole() -> Iterator[str]:
    """An address that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[Programs]:
    made = Programs(tmp_path)
    yield made
    made.close()
