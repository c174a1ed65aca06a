"""Batches on their way to the database: in line, several in one commit where only one can write, and not too many."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from roundoff.wire import Batch, BatchTaken, Event

from ..database import Database
from .ingest import Taken, take

WAITING_BYTES = 256 * 2**20
"""Bytes of batches that may wait; beyond them a client is asked to come back."""

AT_ONCE = 32
"""Batches in one commit on SQLite."""

WRITERS = 4
"""Batches that PostgreSQL takes side by side from one process; those of one run wait for each other there."""


log = logging.getLogger(__name__)


class TooBusyError(Exception):
    """Too much waits already; `retry_after_s` says when it should have gone."""

    def __init__(self, retry_after_s: int) -> None:
        super().__init__(
            "more data waits than the server can hold; nothing of this batch was stored, send it again"
        )
        self.retry_after_s = retry_after_s


@dataclass(slots=True)
class _Waiting:
    run_id: str
    batch: Batch
    size: int
    answer: Future[BatchTaken] = field(default_factory=Future)
    since: float = field(default_factory=time.monotonic)


def _nobody(outcome: str, rows: int) -> None:
    del outcome, rows


class Intake:
    """`submit` from any thread. An answer is there once its batch is committed and listeners have heard of it.

    `on_taken` is told what became of each batch: *accepted*, *duplicate*, *refused*, *busy* or *failed*, and its rows.
    """

    def __init__(
        self, database: Database, clock: Callable[[], float], publish: Callable[[list[Event]], None]
    ) -> None:
        self._database = database
        self._clock = clock
        self._publish = publish
        self._group = AT_ONCE if database.is_sqlite else 1
        self._workers = ThreadPoolExecutor(1 if database.is_sqlite else WRITERS, "roundoff-intake")
        self._line: deque[_Waiting] = deque()
        self._bytes = 0
        self._speed = 10e6
        self._lock = threading.Lock()
        self.on_taken: Callable[[str, int], None] = _nobody

    @property
    def waiting(self) -> int:
        """Batches in line."""
        return len(self._line)

    @property
    def waiting_bytes(self) -> int:
        """Bytes of batches that are not committed yet."""
        return self._bytes

    @property
    def lag_s(self) -> float:
        """For how long the first in line has waited."""
        with self._lock:
            return time.monotonic() - self._line[0].since if self._line else 0.0

    def submit(self, run_id: str, batch: Batch, size: int) -> Future[BatchTaken]:
        """Get in line with a batch whose body had `size` bytes. Raises `TooBusyError` if the line is too long.

        The answer raises what `ingest.take` does.
        """
        waiting = _Waiting(run_id, batch, size)
        with self._lock:
            if self._bytes and self._bytes + size > WAITING_BYTES:
                self.on_taken("busy", 0)
                raise TooBusyError(max(1, round(self._bytes / self._speed)))
            self._line.append(waiting)
            self._bytes += size
        self._workers.submit(self._work)
        return waiting.answer

    def close(self) -> None:
        """Take no more, and come back when what waits is committed."""
        self._workers.shutdown()

    def _work(self) -> None:
        with self._lock:
            popped = [self._line.popleft() for _ in range(min(self._group, len(self._line)))]
        # A client that has gone no longer waits; from here on it cannot go unnoticed.
        group = [waiting for waiting in popped if waiting.answer.set_running_or_notify_cancel()]
        began = time.monotonic()
        taken: list[Taken | Exception]
        try:
            taken = self._commit(group)
        except Exception as error:  # noqa: BLE001 - whoever waits must hear of it, whatever it is
            taken = [error] * len(group)
        with self._lock:  # before anybody hears of it: who sends the next batch at once finds the room
            self._bytes -= sum(waiting.size for waiting in popped)
            if group:
                taken_bytes = sum(waiting.size for waiting in group)
                self._speed = taken_bytes / max(1e-3, time.monotonic() - began)
        for waiting, done in zip(group, taken, strict=True):
            self._tell(waiting, done)

    def _tell(self, waiting: _Waiting, done: Taken | Exception) -> None:
        if isinstance(done, Taken):
            self._publish(done.events)
            self.on_taken(done.answer.status, done.answer.rows)
            if done.replaced and not self._database.is_sqlite:
                self._workers.submit(self._tidy)
            waiting.answer.set_result(done.answer)
        else:
            self.on_taken("refused" if isinstance(done, (LookupError, ValueError)) else "failed", 0)
            waiting.answer.set_exception(done)

    def _tidy(self) -> None:
        """Have PostgreSQL take the place of strips that were replaced for the next ones, not more of the disk."""
        try:
            self._database.maintain("VACUUM strips")
        except SQLAlchemyError as error:  # it does so by itself, later
            log.warning("the place of old strips is not free yet: %s", error)

    def _commit(self, group: list[_Waiting]) -> list[Taken | Exception]:
        if not group:
            return []
        with self._database.write() as session:
            if len(group) == 1:
                return [take(session, group[0].run_id, group[0].batch, self._clock())]
            return [self._apart(session, waiting) for waiting in group]

    def _apart(self, session: Session, waiting: _Waiting) -> Taken | Exception:
        """One of several in a transaction: what is wrong with it must not undo the others."""
        try:
            with session.begin_nested():
                return take(session, waiting.run_id, waiting.batch, self._clock())
        except SQLAlchemyError:
            raise
        except Exception as error:  # noqa: BLE001
            return error
