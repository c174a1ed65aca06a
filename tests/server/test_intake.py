"""Batches in line: one commit for several, each with its own answer, and an end to how many may wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import sending as s
import zstandard
from calling import Api
from sqlalchemy import event, func, select

from roundoff_server.api import body, ingest
from roundoff_server.database import Database
from roundoff_server.models import ModelSample
from roundoff_server.services import intake
from roundoff_server.services.intake import Intake, TooBusyError
from roundoff_server.services.runs import find_run


@contextmanager
def busy(database: Database) -> Iterator[None]:
    """Somebody else is writing to the run."""
    begun, end = threading.Event(), threading.Event()

    def write() -> None:
        with database.write() as session:
            find_run(session, "r1", lock=True)
            begun.set()
            end.wait(20)

    writer = threading.Thread(target=write)
    writer.start()
    begun.wait(20)
    try:
        yield
    finally:
        end.set()
        writer.join()


def one_step(step: int, **fields: Any) -> Any:
    return s.batch(step, model=s.model_samples({step: s.HEALTHY}), **fields)


def test_several_in_one_commit_and_a_bad_one_apart(local: Database, api_local: Api) -> None:
    api = api_local
    api.put(s.start())
    line: Intake = api.app.state.service.intake
    commits: list[int] = []
    event.listen(local.engine, "commit", lambda _: commits.append(1))
    with busy(local):
        first = line.submit("r1", one_step(0), 10)
        while line.waiting:
            pass  # the first is on its way, alone
        waiting = [line.submit("r1", one_step(step), 10) for step in range(1, 10)]
        bad = line.submit("r1", one_step(50, attempt=7), 10)
        other = line.submit("nowhere", one_step(51), 10)
        again = line.submit("r1", one_step(3), 10)
    assert [answer.result(20).status for answer in [first, *waiting]] == ["accepted"] * 10
    assert "attempt" in str(bad.exception(20))
    assert isinstance(other.exception(20), LookupError)
    assert again.result(20).status == "duplicate"
    assert len(commits) == 3, "one of who was busy, one of the first batch, one of all the rest"
    assert rows(local) == 10


def rows(database: Database) -> int:
    with database.read() as session:
        return session.scalar(select(func.count()).select_from(ModelSample)) or 0


@pytest.fixture
def api_local(local: Database, clock: Any) -> Api:
    return Api(local, clock)


def test_a_client_that_has_gone_takes_nobody_with_it(database: Database, api: Api) -> None:
    api.put(s.start())
    line: Intake = api.app.state.service.intake
    with busy(database):
        first = 1 if database.is_sqlite else intake.WRITERS
        for step in range(first):
            line.submit("r1", one_step(step), 10)
        while line.waiting:
            pass  # nobody is left to begin with what comes now
        gone: Future[Any] = line.submit("r1", one_step(first), 10)
        stays = line.submit("r1", one_step(first + 1), 10)
        assert gone.cancel()
    assert stays.result(20).status == "accepted"
    until = time.monotonic() + 20
    while rows(database) < first + 1 and time.monotonic() < until:
        time.sleep(0.02)
    assert rows(database) == first + 1


def test_more_than_can_wait_is_asked_to_come_back(
    database: Database, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.put(s.start())
    monkeypatch.setattr(intake, "WAITING_BYTES", 2000)
    line: Intake = api.app.state.service.intake
    with busy(database):
        kept = [line.submit("r1", one_step(step), 900) for step in range(2)]
        with pytest.raises(TooBusyError):
            line.submit("r1", one_step(2), 900)
        answer = api.send(one_step(2))
        assert answer.status_code == 429
        assert int(answer.headers["retry-after"]) >= 1
        assert answer.headers["content-type"] == "application/problem+json"
    assert [answer.result(20).status for answer in kept] == ["accepted"] * 2
    assert api.post(one_step(2))["status"] == "accepted"


def test_a_large_batch_is_taken_when_nothing_else_waits(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    api.put(s.start())
    monkeypatch.setattr(intake, "WAITING_BYTES", 1)
    assert api.post(one_step(0))["status"] == "accepted"
    assert api.post(one_step(1))["status"] == "accepted"


def test_many_at_once(api: Api) -> None:
    api.put(s.start())
    clients = [api.another_client() for _ in range(8)]

    def send(writer: int) -> int:
        return sum(
            clients[writer].post(one_step(10 * seq + writer, writer=f"w{writer}", rank=writer))["rows"]
            for seq in range(10)
        )

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(send, range(8))) == 80
    assert rows(api.database) == 80


def test_zstd_bodies(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    api.put(s.start())
    path, zstd = "/api/v1/runs/r1/batches", {"Content-Encoding": "zstd"}
    packed = zstandard.compress(one_step(0).model_dump_json(exclude_none=True).encode())
    assert api.http.post(path, content=packed, headers=zstd).json()["rows"] == 1
    assert api.http.post(path, content=packed[:-9], headers=zstd).status_code == 400
    assert api.http.post(path, content=b"no zstd", headers=zstd).status_code == 400
    monkeypatch.setattr(ingest, "MAX_DECOMPRESSED", 2**22)
    bomb = zstandard.compress(b" " * (2**22 + 1))
    assert len(bomb) < 2**13
    assert api.http.post(path, content=bomb, headers=zstd).status_code == 413
    far = zstandard.ZstdCompressionParameters(window_log=27, write_content_size=False)
    wide = zstandard.ZstdCompressor(compression_params=far).compressobj()
    body_bytes = wide.compress(b" " * 100) + wide.flush()
    assert api.http.post(path, content=body_bytes, headers=zstd).status_code in (400, 422)
    assert body.ZSTD_WINDOW < 2**27
