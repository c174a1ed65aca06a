"""The end of a run: what its threads do while `finish` waits, and what a start that failed leaves."""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any, Self

import pytest
from scripted_server import Scripted

import roundoff
from roundoff.delivery import spool
from roundoff.delivery.spool import writers
from roundoff.delivery.store import Store


class Late:
    """A number on a device that takes its time."""

    class device:  # noqa: N801 - a tensor has an attribute of this name
        type = "late"

    def detach(self) -> Self:
        return self

    clone = detach

    def numel(self) -> int:
        return 1

    def is_complex(self) -> bool:
        return False

    def item(self) -> float:
        time.sleep(1.5)
        return 1.0


def test_the_sender_sleeps_while_the_collector_waits_for_a_device(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, take = [], Store.take

    def counted(store: Store, records: int, size: int) -> Any:
        looks.append(time.monotonic())
        return take(store, records, size)

    monkeypatch.setattr(Store, "take", counted)
    run = roundoff.init("p", server=scripted.url)
    run.log({"loss": Late()})
    began = time.monotonic()
    run.finish()
    assert time.monotonic() - began > 1
    assert len(looks) < 20
    assert scripted.scalars() == [(0, "loss", 1.0)]


def test_a_spool_that_cannot_be_begun_leaves_nothing(
    tmp_path: Path, nobody: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(path: Path) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(spool, "Cursor", full)
    opened = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(OSError, match="No space"):
        spool.Spool.create(
            tmp_path, spool.Opening(run_id="r", writer="w", server=None, start=_start()), 2**20
        )
    assert len(list(Path("/proc/self/fd").iterdir())) == opened
    run = roundoff.init("p", server=nobody, spool=tmp_path)
    run.finish(timeout=0)
    assert "no spool" in caplog.text
    assert writers(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_a_spool_that_cannot_be_listed_is_a_warning(
    tmp_path: Path, nobody: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object, **__: object) -> Any:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(Path, "rglob", broken)
    monkeypatch.setattr(Path, "mkdir", broken)
    roundoff.init("p", server=nobody, spool=tmp_path / "spool").finish(timeout=0)
    assert "no spool" in caplog.text


def test_a_forked_child_can_look_at_the_counters(nobody: str) -> None:
    """Also where another thread of the parent was looking when it was forked."""
    run = roundoff.init("p", server=nobody)
    run.log({"loss": 1.0})
    store = run._pipeline._store  # type: ignore[union-attr]
    held, over = threading.Event(), threading.Event()

    def look() -> None:
        with store._looking:
            held.set()
            over.wait(30)

    thread = threading.Thread(target=look)
    thread.start()
    assert held.wait(5)
    child = os.fork()
    if not child:
        signal.alarm(5)
        _ = run.delivery
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    over.set()
    thread.join()
    run.finish(timeout=0)
    assert status == 0


def _start() -> Any:
    return roundoff.wire.RunStart(project="p", name="n", token="t")
