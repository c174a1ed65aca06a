"""What became of everything that was handed over."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Delivery:
    """State of a run's delivery. A point is one logged value, or one sampled step of the whole model.

    `taken` = `queued` + `sent` + the points among `dropped`. `dropped` counts by reason, and each reason
    names what it counts; histograms and layer rows that were shed are details of points that went on.
    `lag_s` is the age of the oldest point that the server has not acknowledged, `problem` what stands in
    the way at present.
    """

    taken: int = 0
    queued: int = 0
    sent: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    lag_s: float = 0.0
    problem: str | None = None


class Counts:
    """Counters that several threads add to."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._dropped: dict[str, int] = {}
        self.taken = 0
        self.sent = 0

    def renew_lock(self) -> None:
        """In a forked child: another thread of the parent may have held the lock at that moment."""
        self._lock = threading.Lock()

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
        """A copy: number by reason."""
        with self._lock:
            return dict(self._dropped)
