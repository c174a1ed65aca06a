"""What became of everything that was handed over."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Delivery:
    """State of a run's delivery. A point is one logged value, or one sampled step of the whole model.

    `taken` = `queued` + `sent` + the points among `dropped`. `queued` waits for the server; `spooled` of it is on
    disk and outlives the process. `dropped` counts by reason, and each reason names what it counts; histograms and
    layer rows that were shed are details of points that went on. `lag_s` is the age of the oldest point that the
    server has not acknowledged, `problem` what stands in the way at present.
    """

    taken: int = 0
    queued: int = 0
    spooled: int = 0
    sent: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    lag_s: float = 0.0
    problem: str | None = None


class Counts:
    """What one party counts: the callers, or one thread of ours."""

    def __init__(self) -> None:
        # Callers are several threads, and a signal's handler may call while its own thread is in here.
        self._lock = threading.RLock()
        self._dropped: dict[str, int] = {}
        self.taken = 0
        self.sent = 0

    def renew_lock(self) -> None:
        """In a forked child: another thread of the parent may have held the lock at that moment."""
        self._lock = threading.RLock()

    def take(self, points: int) -> None:
        """Points that a caller handed over."""
        with self._lock:
            self.taken += points

    def send(self, points: int) -> None:
        """Points that the server has acknowledged."""
        with self._lock:
            self.sent += points

    def drop(self, reason: str, number: int = 1) -> None:
        """Something that was dropped, under the reason that the run page will show."""
        if number:
            with self._lock:
                self._dropped[reason] = self._dropped.get(reason, 0) + number

    def dropped(self) -> dict[str, int]:
        """A copy: number by reason. Takes no lock: a party never waits for one who only looks."""
        return dict(self._dropped)


class Ledger:
    """The counts of the three parties, and what earlier processes had dropped. No party ever waits for another."""

    def __init__(self, before: Callable[[], Mapping[str, int]] = dict) -> None:
        self.callers, self.collector, self.sender = Counts(), Counts(), Counts()
        self._before = before

    @property
    def taken(self) -> int:
        """Points that callers handed over."""
        return self.callers.taken

    @property
    def sent(self) -> int:
        """Points that the server has acknowledged."""
        return self.sender.sent

    def renew_locks(self) -> None:
        """In a forked child."""
        for party in (self.callers, self.collector, self.sender):
            party.renew_lock()

    def dropped(self) -> dict[str, int]:
        """Number by reason, over all parties."""
        total = Counter(self._before())
        for party in (self.callers, self.collector, self.sender):
            total.update(party.dropped())
        return dict(total)

    def points_dropped(self) -> int:
        """How many of the points that callers handed over to this process were dropped."""
        parties = (self.callers, self.collector, self.sender)
        return sum(points_among(party.dropped()) for party in parties)


def points_among(dropped: dict[str, int]) -> int:
    """Points among what was dropped: reasons begin with what they count."""
    return sum(number for reason, number in dropped.items() if reason.startswith(("points", "values")))
