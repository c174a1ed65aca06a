"""Delivery of one run: inbox → collector → backlog → sender, each bounded, the two threads daemons.

The training thread only appends to the inbox. The collector turns what it finds there into numbers whether
or not a server answers, so nothing of the device is held for long; a spool will take its place between the
two. The sender talks to the server.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from array import array
from collections.abc import Mapping, Sequence

from roundoff.wire import Layer, RunStart, RunStarted

from .batches import End
from .counters import Counts, Delivery
from .notices import Notices
from .queue import BACKLOG_BYTES, INBOX_BYTES, Backlog, Handed, Inbox
from .records import Declared, Logged, Record, Scalar, rows_of
from .sample import Sample
from .sender import UNSENT, Phase, Sender

COLLECT_S = 0.1
"""How long something handed over waits until it is read, unless there is much of it."""

BREATH_RECORDS, BREATH_S = 32, 0.0005
"""So many records are read at a stretch, then the interpreter lock is left to the training thread: a thread
that wants the lock waits up to 5 ms for one that keeps it."""

UNREADABLE = "points (could not be read)"
BAD_VALUE = "values (not a number)"

_alive: weakref.WeakSet[Pipeline] = weakref.WeakSet()


class Pipeline:
    """Takes what a run hands over and sees to its delivery. Only `finish` waits, and no call raises."""

    def __init__(
        self,
        server: str,
        token: str | None,
        run_id: str,
        start: RunStart,
        notices: Notices,
        *,
        inbox_bytes: int = INBOX_BYTES,
        backlog_bytes: int = BACKLOG_BYTES,
    ) -> None:
        self.counts = Counts()
        self._notices = notices
        self._inbox = Inbox(self.counts, inbox_bytes)
        self._backlog = Backlog(self.counts, backlog_bytes)
        self._phase = Phase(threading.Event(), threading.Event())
        self._wake, self._more, self._complete = threading.Event(), threading.Event(), threading.Event()
        self._sender = Sender(server, token, run_id, start, self._backlog, self.counts, self._phase, notices)
        self._open = True
        self._threads = [
            threading.Thread(target=self._collect, name="roundoff-collector", daemon=True),
            threading.Thread(
                target=self._sender.run,
                args=(self._more, self._complete),
                name="roundoff-sender",
                daemon=True,
            ),
        ]
        _alive.add(self)
        for thread in self._threads:
            thread.start()

    @property
    def open(self) -> bool:
        """Whether anything is still taken: false after `finish`, and in a forked child."""
        return self._open

    @property
    def started(self) -> RunStarted | None:
        """The server's answer to the start of the run, None before it."""
        return self._sender.started

    def wait_for_contact(self, seconds: float) -> bool:
        """Whether the first attempt at the server has an outcome within `seconds`."""
        return self._sender.contact.wait(seconds)

    def declare(self, layers: Sequence[Layer]) -> None:
        """Layers, before the first sample that holds them."""
        if self._open:
            self._inbox.declare(Declared(tuple(layers)), time.monotonic())

    def sample(self, sample: Sample) -> None:
        """One sampled step."""
        if self._open:
            self._inbox.sample(sample, time.monotonic())
            if self._inbox.half_full:
                self._wake.set()

    def log(self, step: int, values: Mapping[str, float | Scalar]) -> None:
        """Values of one step; those that are still on a device are read by the collector."""
        if self._open:
            self._inbox.log(step, dict(values), time.monotonic())
            if self._inbox.half_full:
                self._wake.set()

    def state(self) -> Delivery:
        """The counters now."""
        dropped, taken, sent = self.counts.dropped(), self.counts.taken, self.counts.sent
        lost = sum(number for reason, number in dropped.items() if reason.startswith(("points", "values")))
        in_flight = self._sender.in_flight
        oldest = in_flight[0].taken_at if in_flight else self._backlog.oldest()
        lag = 0.0 if not oldest else time.monotonic() - oldest
        return Delivery(taken, max(0, taken - sent - lost), sent, dropped, lag, self._sender.problem)

    def finish(self, end: End | None, timeout: float) -> bool:
        """Take no more, send what is left, and come back within `timeout` seconds.

        `end` closes the attempt; None leaves it open. Returns whether everything was delivered; what was
        not is counted as dropped.
        """
        if not self._open:
            return not self._left()
        self._open = False
        deadline = time.monotonic() + max(0.0, timeout)
        self._phase.end = end
        self._phase.closing.set()
        self._wake.set()
        self._more.set()
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._phase.stopped.set()
        self.counts.drop(UNSENT, self._left())
        return self._sender.started is not None and self._sender.problem is None and not self._left()

    def disown(self) -> None:
        """In a forked child: the threads and the data belong to the parent."""
        self._open = False
        self.counts.renew_lock()

    def _left(self) -> int:
        return self.state().queued

    def _collect(self) -> None:
        while True:
            closing = self._phase.closing.is_set()
            for number, handed in enumerate(self._inbox.drain(), 1):
                record = self._read(handed)
                if record is not None:
                    self._backlog.put(record)
                if not (number % BREATH_RECORDS or self._phase.closing.is_set() or self._inbox.half_full):
                    time.sleep(BREATH_S)
            if len(self._backlog) >= 256:
                self._more.set()
            if closing and not len(self._inbox):
                break
            self._wake.wait(COLLECT_S)
            self._wake.clear()
        self._complete.set()
        self._more.set()

    def _read(self, handed: Handed) -> Record | None:
        what = handed.what
        if isinstance(what, Declared):
            what.taken_at = handed.taken_at
            return what
        try:
            if isinstance(what, Sample):
                rows = rows_of(what, handed.taken_at)
                if not handed.keep_rows:
                    rows.sums = None
                return rows
            step, values = what
            return self._logged(step, values, handed.taken_at)
        except Exception as error:  # noqa: BLE001 - whatever a device or a caller's object raises
            points = 1 if isinstance(what, Sample) else len(what[1])
            self.counts.drop(UNREADABLE, points)
            self._notices.warn_once("unreadable", f"a point could not be read and is dropped: {error}")
            return None

    def _logged(self, step: int, values: Mapping[str, float | Scalar], taken_at: float) -> Logged | None:
        numbers = array("d")
        names = []
        for name, value in values.items():
            try:
                numbers.append(value if isinstance(value, float) else float(value.item()))
            except (TypeError, ValueError, AttributeError) as error:
                self.counts.drop(BAD_VALUE)
                self._notices.warn_once(
                    "value", f"the value of {name!r} is not a number and is dropped: {error}"
                )
            else:
                names.append(name)
        return Logged(step, tuple(names), numbers, taken_at) if names else None


def _disown_all() -> None:
    for pipeline in list(_alive):
        pipeline.disown()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_disown_all)
