"""Delivery of one run: inbox → collector → store → sender, each bounded, the two threads daemons.

The training thread only appends to the inbox. The collector turns what it finds there into numbers and puts them
into the store, on disk if that takes them, whether or not a server answers. The sender talks to the server; an offline
run has none, and its spool is sent later.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence

from roundoff.wire import Finding, Layer, RunStarted

from .collector import Collector
from .counters import Delivery, Ledger
from .forking import belongs_here
from .notices import Notices
from .queue import BACKLOG_BYTES, INBOX_BYTES, Backlog, Inbox
from .records import Declared, End, Ended, Found, Scalar
from .sample import Sample
from .sender import Phase, Sender, Source
from .spool import Spool
from .store import Store
from .transmitter import Transmitter
from .wake import Wake

LAST_S = 1.0
"""The collector gets this long at the end to write what it has, whatever the time that was given."""

LET_GO_S = 0.1
"""A sender that only waits is gone by then, and lets go of the spool."""

UNSENT = "points (not sent before the end)"


class Pipeline:
    """Takes what a run hands over and sees to its delivery. Only `finish` waits, and no call raises.

    Without a `transmitter` records go to the spool only.
    """

    def __init__(
        self,
        transmitter: Callable[[], Transmitter] | None,
        source: Source,
        spool: Spool | None,
        notices: Notices,
        *,
        inbox_bytes: int = INBOX_BYTES,
        backlog_bytes: int = BACKLOG_BYTES,
    ) -> None:
        self.ledger = Ledger()
        self._notices, self._spool = notices, spool
        self._inbox = Inbox(self.ledger.callers, inbox_bytes)
        self._store = Store(
            spool, Backlog(self.ledger.collector, backlog_bytes), self.ledger.collector, notices
        )
        self._phase, self._wake = Phase(), Wake()
        self._open, self._forked = True, False
        self._sender = None
        collector = Collector(self._inbox, self._store, spool, self.ledger, self._phase, self._wake, notices)
        works = [(collector.run, "roundoff-collector")]
        if transmitter is not None:
            self._sender = Sender(transmitter, source, self._store, self.ledger, self._phase, notices)
            works.append((self._sender.run, "roundoff-sender"))
        self._users = len(works)
        self._leaving = threading.Lock()
        self._threads = [
            threading.Thread(target=self._work, args=(work,), name=name, daemon=True) for work, name in works
        ]
        belongs_here(self)
        for thread in self._threads:
            thread.start()

    @property
    def open(self) -> bool:
        """Whether anything is still taken: false after `finish`, and in a forked child."""
        return self._open

    @property
    def started(self) -> RunStarted | None:
        """The server's answer to the start of the run, None before it."""
        return self._sender.started if self._sender is not None else None

    def wait_for_contact(self, seconds: float) -> bool:
        """Whether the first attempt at the server has an outcome within `seconds`."""
        return self._sender is not None and self._sender.contact.wait(seconds)

    def be_patient(self, seconds: float) -> None:
        """Tell the server that nothing may be heard of this process for `seconds`."""
        if self._open and self._sender is not None:
            self._sender.be_patient(seconds)

    def declare(self, layers: Sequence[Layer]) -> None:
        """Layers, before the first sample that holds them."""
        if self._open:
            self._inbox.put(Declared(tuple(layers)), time.monotonic())

    def report(self, findings: Sequence[Finding]) -> None:
        """What was found before the first step."""
        if self._open and findings:
            self._inbox.put(Found(tuple(findings)), time.monotonic())

    def sample(self, sample: Sample) -> None:
        """One sampled step."""
        if self._open:
            self._inbox.sample(sample, time.monotonic())
            if self._inbox.half_full:
                self._wake.call()

    def log(self, step: int, values: Mapping[str, float | Scalar]) -> None:
        """Values of one step; those that are still on a device are read by the collector."""
        if self._open:
            self._inbox.log(step, values, time.monotonic())
            if self._inbox.half_full:
                self._wake.call()

    def announce(self, end: End) -> None:
        """Tell the server how this attempt is about to end, while it goes on."""
        if self._open:
            self._inbox.put(Ended(end), time.monotonic())
            self._wake.call()

    def refuse_forked(self) -> None:
        """A call that comes after `open` turned false: in a forked child it is counted, by the parent's writer."""
        if self._forked:
            if self._spool is not None:
                self._spool.note_forked()
            self._notices.warn_once(
                "forked",
                "this process was forked from one with a run, which it cannot write to: its calls are dropped and "
                "counted. Start a run of its own in it with roundoff.init",
            )

    def state(self) -> Delivery:
        """The counters now."""
        ledger = self.ledger
        queued = max(0, ledger.taken - ledger.sent - ledger.points_dropped())
        in_flight = self._sender.in_flight if self._sender is not None else ()
        return Delivery(
            taken=ledger.taken,
            queued=queued,
            spooled=min(queued, self._store.spooled),
            sent=ledger.sent,
            dropped=ledger.dropped(),
            lag_s=self._store.lag(in_flight, self._inbox.oldest()),
            problem=self._sender.problem if self._sender is not None else None,
        )

    def finish(self, end: End | None, timeout: float) -> bool:
        """Take no more, send what is left, and come back within `timeout` seconds.

        `end` closes the attempt; None leaves it open. Returns whether everything was delivered, the end included; what
        was not waits in the spool, or is counted as dropped where that did not take it.
        """
        if not self._open:
            return not self.state().queued
        self._open = False
        now = time.monotonic()
        deadline = now + max(0.0, timeout)
        self._inbox.put(Ended(end), now)
        self._phase.closing.set()
        self._wake.call()
        try:
            for thread, until in zip(self._threads, (max(deadline, now + LAST_S), deadline), strict=False):
                thread.join(max(0.0, until - time.monotonic()))
        finally:
            self._phase.stopped.set()
            self._phase.more.call()
        self._store.shut(LET_GO_S)
        self._threads[-1].join(LET_GO_S)
        state = self.state()
        self.ledger.callers.drop(UNSENT, state.queued - state.spooled)
        sent = self._sender is not None and not self._threads[-1].is_alive() and not self._sender.problem
        return sent and not state.queued

    def disown(self) -> None:
        """In a forked child: the threads, the spool and the data belong to the parent."""
        if self._open:
            self._open, self._forked = False, True
        self.ledger.renew_locks()
        self._store.renew_lock()
        if self._spool is not None:
            self._spool.disown()

    def _work(self, work: Callable[[], None]) -> None:
        """One thread's work; the last to end lets go of the spool."""
        try:
            work()
        finally:
            with self._leaving:
                self._users -= 1
                last = not self._users
            if last and self._spool is not None:
                self._spool.close()
