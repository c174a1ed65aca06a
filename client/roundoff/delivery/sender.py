"""The sending side: starts the attempt, posts batches in order, tries again for as long as it may."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception_type, wait_random_exponential

from roundoff.wire import Layer, RunStart, RunStarted

from .batches import End, build_batch, encode
from .counters import Counts
from .notices import Notices
from .queue import Backlog
from .records import Declared, Logged, Record, Rows
from .transmitter import (
    NotTakenError,
    RefusedError,
    TooLargeError,
    Transmitter,
    UnavailableError,
    UnknownRunError,
)

BATCH_RECORDS = 256
BATCH_BYTES = 2**20
BATCH_S = 0.5
"""A batch leaves when it has this many records or bytes, or after this time."""

PROMISE_S = 60.0
"""When the server will next hear from this process, at the latest."""

HEARTBEAT_S = PROMISE_S / 3
BACKOFF_S = 30.0
CLOSING_BACKOFF_S = 1.0
RETRY_AFTER_S = 300.0
"""Longest pause that a server's Retry-After is followed for."""

REFUSED = "points (refused by the server)"
UNSENT = "points (not sent before the end)"

_T = TypeVar("_T")


class _StoppedError(Exception):
    """The time to send is over."""


@dataclass(slots=True)
class Phase:
    """What the run has come to: `closing` once nothing more comes, `stopped` once nothing more is sent."""

    closing: threading.Event
    stopped: threading.Event
    end: End | None = None


class Sender:
    """Takes records from the backlog, makes them batches and delivers them. Runs in one thread.

    A batch keeps its number and its bytes until the server has answered, so that sending it again after a
    lost answer changes nothing. `contact` is set as soon as the first attempt at the server has an outcome.
    """

    def __init__(
        self,
        server: str,
        token: str | None,
        run_id: str,
        start: RunStart,
        backlog: Backlog,
        counts: Counts,
        phase: Phase,
        notices: Notices,
    ) -> None:
        self._server, self._token = server, token
        self._run_id, self._start = run_id, start
        self._backlog, self._counts, self._phase, self._notices = backlog, counts, phase, notices
        self._writer = uuid.uuid4().hex
        self._seq = 0
        self._declared: list[Layer] = []
        self._heard = time.monotonic()
        self._transmitter: Transmitter | None = None
        self.started: RunStarted | None = None
        self.contact = threading.Event()
        self.problem: str | None = None
        self.in_flight: Sequence[Record] = ()

    def run(self, more: threading.Event, complete: threading.Event) -> None:
        """Send until the run is closing, `complete` says that the backlog is, and it is empty."""
        try:
            self._transmitter = Transmitter(self._server, self._token)
            self._begin()
            self._send_all(more, complete)
            if self._phase.end is not None:
                self._deliver([], self._phase.end)
        except _StoppedError:
            pass
        except Exception as error:  # noqa: BLE001 - a fault of ours must not reach the training
            self.problem = f"{type(error).__name__}: {error}"
            self._notices.warn_once("sender", f"sending stopped by an internal fault ({self.problem})")
        finally:
            self.contact.set()
            if self._transmitter is not None:
                self._transmitter.close()

    def _send_all(self, more: threading.Event, complete: threading.Event) -> None:
        while True:
            last = complete.is_set()
            records = self._backlog.take(BATCH_RECORDS, BATCH_BYTES)
            if records:
                self._deliver(records)
            elif last:
                return
            elif time.monotonic() - self._heard > HEARTBEAT_S:
                self._deliver([])
            if not self._phase.closing.is_set() and len(self._backlog) < BATCH_RECORDS:
                more.wait(BATCH_S)
                more.clear()

    def _begin(self) -> None:
        """Create or resume the run, for as long as it takes."""
        transmitter = self._connection()
        try:
            self.started = self._insist(lambda: transmitter.start(self._run_id, self._start))
        except NotTakenError as error:
            self.problem = str(error)
            self._notices.warn_once("start", f"the run cannot be created, its data is dropped: {error}")
            self._give_up()

    def _give_up(self) -> None:
        """Nothing can be delivered: count what comes until the end."""
        self.contact.set()
        while not self._phase.stopped.is_set():
            self._backlog.drop_all(REFUSED)
            if self._phase.closing.wait(BATCH_S):
                break
        raise _StoppedError

    def _deliver(self, records: Sequence[Record], end: End | None = None) -> None:
        """Send `records` as one batch, as several if that is too large, and count what is refused."""
        self.in_flight = records
        body = self._encode(records, end)
        transmitter = self._connection()
        try:
            self._insist(lambda: transmitter.post(self._run_id, body))
        except TooLargeError as error:
            self._split(records, end, str(error))
        except UnknownRunError:
            self._start_again(records, end)
        except RefusedError as error:
            self._refuse(records, str(error))
        else:
            self._declared += [layer for r in records if isinstance(r, Declared) for layer in r.layers]
            self._counts.send(_points(records))
        self._heard = time.monotonic()
        self.in_flight = ()

    def _encode(self, records: Sequence[Record], end: End | None) -> bytes:
        assert self.started is not None
        batch = build_batch(
            records,
            writer=self._writer,
            seq=self._seq,
            attempt=self.started.attempt,
            rank=self._start.rank,
            promise_s=PROMISE_S,
            dropped=self._counts.dropped(),
            end=end,
        )
        self._seq += 1
        return encode(batch)

    def _split(self, records: Sequence[Record], end: End | None, why: str) -> None:
        if len(records) > 1:
            half = len(records) // 2
            self._deliver(records[:half])
            self._deliver(records[half:], end)
        elif records and isinstance(only := records[0], Rows) and only.headroom is not None:
            self._counts.drop("histograms (too large for the server)", len(only.layers))
            only.headroom = None
            self._deliver(records, end)
        elif records and isinstance(only := records[0], Rows) and only.sums is not None:
            self._counts.drop("layer rows (too large for the server)", len(only.layers))
            only.sums = None
            self._deliver(records, end)
        else:
            self._refuse(records, why)

    def _start_again(self, records: Sequence[Record], end: End | None) -> None:
        """The server lost the run, for instance with its database: create it and declare its layers again."""
        self._notices.warn_once("lost", "the server does not know this run any more; it is created again")
        self._begin()
        known, self._declared = self._declared, []
        declared: list[Record] = [Declared(known)] if known else []
        body = self._encode([*declared, *records], end)
        transmitter = self._connection()
        try:
            self._insist(lambda: transmitter.post(self._run_id, body))
        except NotTakenError as error:
            self._refuse(records, str(error))
        else:
            self._declared = known + [y for r in records if isinstance(r, Declared) for y in r.layers]
            self._counts.send(_points(records))

    def _refuse(self, records: Sequence[Record], why: str) -> None:
        self._counts.drop(REFUSED, _points(records))
        self._notices.warn_once("refused", f"data was refused and is dropped: {why}")

    def _insist(self, call: Callable[[], _T]) -> _T:
        """Call until it is answered: full jitter, the server's Retry-After honoured."""
        retrying = Retrying(
            retry=retry_if_exception_type(UnavailableError),
            wait=self._pause,
            sleep=self._sleep,
            before_sleep=self._note,
            stop=lambda _: self._phase.stopped.is_set(),
            reraise=True,
        )
        try:
            answer: _T = retrying(call)
        except UnavailableError as error:
            self.problem = str(error)
            raise _StoppedError from None
        self.problem = None
        self.contact.set()
        return answer

    def _note(self, state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        self.problem = str(error)
        self.contact.set()

    def _pause(self, state: RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome else None
        if isinstance(error, UnavailableError) and error.retry_after_s is not None:
            return min(error.retry_after_s, RETRY_AFTER_S)
        return min(_back_off(state), CLOSING_BACKOFF_S if self._phase.closing.is_set() else BACKOFF_S)

    def _sleep(self, seconds: float) -> None:
        """Pause; cut short when the run begins to close, since then there is little time left."""
        closing = self._phase.closing.is_set()
        (self._phase.stopped if closing else self._phase.closing).wait(seconds)

    def _connection(self) -> Transmitter:
        assert self._transmitter is not None
        return self._transmitter


_back_off = wait_random_exponential(multiplier=0.5, max=BACKOFF_S)


def _points(records: Sequence[Record]) -> int:
    return sum(record.points for record in records if isinstance(record, Logged | Rows))
