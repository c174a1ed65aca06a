"""The sending side: starts the attempt, posts batches in order, tries again for as long as it may."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception_type, wait_random_exponential

from roundoff.wire import RunStart, RunStarted

from .batches import build_batch, encode
from .counters import Ledger
from .notices import Notices
from .records import Declared, Ended, Logged, Record, Rows, points_of
from .store import Store
from .transmitter import NotTakenError, TooLargeError, Transmitter, UnavailableError, UnknownRunError
from .wake import Wake

BATCH_RECORDS = 1024
BATCH_BYTES = 2**20
BATCH_S = 0.5
"""A batch leaves when it has this many records or bytes, or after this time."""

EARLY_RECORDS = 256
"""With so many records waiting, the next batch leaves at once."""

HEARTBEAT_S = 20.0
"""A third of what is promised by default (`RunStart.promise_s`): two of them may be lost."""

BACKOFF_S = 30.0
CLOSING_BACKOFF_S = 1.0
RETRY_AFTER_S = 300.0
"""Longest pause that a server's Retry-After is followed for."""

REFUSED = "points (refused by the server)"
DAMAGED = "records (spool damaged)"

_T = TypeVar("_T")


class _StoppedError(Exception):
    """The time to send is over."""


class Source(NamedTuple):
    """Whose records are sent: the run, the start of its attempt, and the writer within it.

    `earlier` are attempts of the run that the server may not have heard of yet; they are started first.
    """

    run_id: str
    start: RunStart
    writer: str
    earlier: tuple[RunStart, ...] = ()


@dataclass(slots=True)
class Phase:
    """What the sending has come to.

    `more` wakes the sender, `complete` says that nothing more is put, `closing` that little time is left, `stopped`
    that none is. A server that does not answer is waited for without end, or for `patience_s` seconds.
    """

    more: Wake = field(default_factory=Wake)
    complete: threading.Event = field(default_factory=threading.Event)
    closing: threading.Event = field(default_factory=threading.Event)
    stopped: threading.Event = field(default_factory=threading.Event)
    patience_s: float | None = None


class Sender:
    """Takes records from the store, makes them batches and delivers them. Runs in one thread.

    A batch keeps its number and its bytes until the server has answered, so that sending it again after a
    lost answer changes nothing. `contact` is set as soon as the first attempt at the server has an outcome.
    """

    def __init__(
        self,
        transmitter: Callable[[], Transmitter],
        source: Source,
        store: Store,
        ledger: Ledger,
        phase: Phase,
        notices: Notices,
    ) -> None:
        self._make_transmitter, self._source, self._store = transmitter, source, store
        self._ledger, self._counts, self._phase, self._notices = ledger, ledger.sender, phase, notices
        self._most_records, self._most_bytes = BATCH_RECORDS, BATCH_BYTES
        self._damaged = 0
        self._heard = self._patient_until = time.monotonic()
        self._transmitter: Transmitter | None = None
        self.started: RunStarted | None = None
        self.contact = threading.Event()
        self.problem: str | None = None
        self.in_flight: Sequence[Record] = ()

    def run(self) -> None:
        """Send until the store is complete and empty, or the time to send is over."""
        try:
            self._transmitter = self._make_transmitter()
            self._begin()
            self._send_all()
        except _StoppedError:
            pass
        except Exception as error:  # noqa: BLE001 - a fault of ours must not reach the training
            self.problem = f"{type(error).__name__}: {error}"
            self._notices.warn_once("sender", f"sending stopped by an internal fault ({self.problem})")
        finally:
            self.contact.set()
            if self._transmitter is not None:
                self._transmitter.close()

    def be_patient(self, seconds: float) -> None:
        """Promise the server to be heard of within `seconds`, for once, and let it know now."""
        self._patient_until = time.monotonic() + seconds
        self._heard = -HEARTBEAT_S
        self._phase.more.call()

    def _send_all(self) -> None:
        phase = self._phase
        while not phase.stopped.is_set():
            last = phase.complete.is_set()
            records = self._store.take(self._most_records, self._most_bytes)
            self._count_damage()
            if records:
                self._deliver(records)
            elif last:
                return
            elif time.monotonic() - self._heard > HEARTBEAT_S:
                self._deliver([])
            hurried = phase.closing.is_set() or self._store.unread >= EARLY_RECORDS
            if not (
                records and hurried
            ):  # nothing is there: the collector calls when that changes, or at its end
                phase.more.wait(BATCH_S)

    def _count_damage(self) -> None:
        damaged = self._store.damaged
        self._counts.drop(DAMAGED, damaged - self._damaged)
        self._damaged = damaged

    def _begin(self) -> None:
        """Create or resume the run, for as long as it takes."""
        transmitter, source = self._connection(), self._source
        try:
            for start in (*source.earlier, source.start):
                self.started = self._insist(lambda start=start: transmitter.start(source.run_id, start))  # type: ignore[misc]
        except NotTakenError as error:
            self.problem = str(error)
            self._notices.warn_once("start", f"the run cannot be created, nothing of it is sent: {error}")
            raise _StoppedError from None

    def _deliver(self, records: Sequence[Record], *, part: bool = False) -> None:
        """Send `records` as one batch, as several if that is too large, and keep apart what is refused.

        `part`: of the last one more is to come.
        """
        self.in_flight = records
        seq = self._store.seal(records, part=part)
        try:
            self._post(seq, records)
        except TooLargeError as error:
            self._split(records, str(error), part=part)
        except NotTakenError as error:
            self._refuse(records, str(error))
        else:
            self._counts.send(points_of(records))
            self._store.acknowledge(records)
        self._heard = time.monotonic()
        self.in_flight = ()

    def _post(self, seq: int, records: Sequence[Record]) -> None:
        body, transmitter, run_id = self._encode(seq, records), self._connection(), self._source.run_id
        try:
            self._insist(lambda: transmitter.post(run_id, body))
        except UnknownRunError:
            # The server lost the run, for instance with its database.
            self._notices.warn_once("lost", "the server does not know this run any more; it is created again")
            self._begin()
            known = self._store.declared()
            again = self._encode(seq, [Declared(known), *records] if known else records)
            self._insist(lambda: transmitter.post(run_id, again))

    def _encode(self, seq: int, records: Sequence[Record]) -> bytes:
        assert self.started is not None
        promise = max(self._source.start.promise_s, self._patient_until - time.monotonic())
        batch = build_batch(
            records,
            writer=self._source.writer,
            seq=seq,
            attempt=self.started.attempt,
            rank=self._source.start.rank,
            promise_s=promise,
            dropped=self._ledger.dropped(),
            end=next((record.how for record in records if isinstance(record, Ended)), None),
        )
        return encode(batch)

    def _split(self, records: Sequence[Record], why: str, *, part: bool) -> None:
        if len(records) > 1:
            half = len(records) // 2
            self._most_records = max(1, min(self._most_records, half))
            self._deliver(records[:half])
            self._deliver(records[half:], part=part)
        elif records and isinstance(only := records[0], Logged) and len(only.steps) > 1:
            earlier, later = only.halves()
            self._deliver([earlier], part=True)
            self._deliver([later], part=part)
        elif records and isinstance(only := records[0], Rows) and only.headroom is not None:
            self._counts.drop("histograms (too large for the server)", only.shed_histograms())
            self._deliver(records)
        elif records and isinstance(only := records[0], Rows) and only.sums is not None:
            self._counts.drop("layer rows (too large for the server)", len(only.layers))
            only.sums = None
            self._deliver(records)
        else:
            self._refuse(records, why)

    def _refuse(self, records: Sequence[Record], why: str) -> None:
        self._counts.drop(REFUSED, points_of(records))
        place = self._store.refuse(records, why)
        kept = f"is kept in {place}" if place else "is dropped"
        self._notices.warn_once("refused", f"data was refused and {kept}: {why}")
        self._store.acknowledge(records)

    def _insist(self, call: Callable[[], _T]) -> _T:
        """Call until it is answered: full jitter, the server's Retry-After honoured."""
        retrying = Retrying(
            retry=retry_if_exception_type(UnavailableError),
            wait=self._pause,
            sleep=self._sleep,
            before_sleep=self._note,
            stop=self._is_over,
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

    def _is_over(self, state: RetryCallState) -> bool:
        patience = self._phase.patience_s
        impatient = patience is not None and (state.seconds_since_start or 0.0) > patience
        return impatient or self._phase.stopped.is_set()

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
