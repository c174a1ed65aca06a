"""Where records wait for the server: in the spool, and in memory what the disk does not take."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from roundoff.wire import Layer

from .counters import Counts
from .notices import Notices
from .queue import Backlog
from .records import Declared, Record, Rows
from .spool import Spool

HISTOGRAMS = "histograms (spool full)"
LAYER_ROWS = "layer rows (spool full)"

HISTOGRAM_SHARE, LAYER_ROW_SHARE = 0.5, 0.9
"""Histograms are written into this share of the spool, rows of layers that are well into this one; the rest is for
model rows, values and rows that an alert could come from."""

MARK_S = 1.0
"""The age of the oldest record is known to this."""

AGAIN_S = 5.0
"""How long a disk that took nothing is left alone."""


class Store:
    """One thread calls `put`; one `take`, `seal`, `acknowledge` and `refuse`. Nothing here raises because of a disk.

    While the disk takes everything the memory is empty; otherwise it fills, and sheds as it does. What is in memory
    goes to the disk, in its order, as soon as that takes it.
    """

    def __init__(self, spool: Spool | None, backlog: Backlog, counts: Counts, notices: Notices) -> None:
        self.spool, self._backlog, self._counts, self._notices = spool, backlog, counts, notices
        self._marks: deque[tuple[int, float]] = deque()
        self._looking = threading.RLock()
        self._putting = threading.Lock()
        self.closed = False
        """Whether nothing is put any more."""
        self._again = 0.0
        self._seq = -1
        self._declared: dict[int, Layer] = {}

    def renew_lock(self) -> None:
        """In a forked child: another thread of the parent may have held the lock at that moment."""
        self._looking, self._putting = threading.RLock(), threading.Lock()

    @property
    def unread(self) -> int:
        """How many of the records that were put were not taken yet."""
        return len(self._backlog) + (self.spool.unread if self.spool is not None else 0)

    @property
    def spooled(self) -> int:
        """Logged values and sampled steps on disk that the server lacks."""
        return self.spool.points if self.spool is not None else 0

    def put(self, records: Sequence[Record]) -> bool:
        """Records in the order in which they were handed over; False, and none is taken, once the store is shut."""
        with self._putting:
            if not self.closed:
                self._put(records)
            return not self.closed

    def shut(self, patience_s: float) -> None:
        """Take nothing more. What is being written is waited for, unless the disk hangs for longer than that."""
        finished = self._putting.acquire(timeout=patience_s)
        self.closed = True
        if finished:
            self._putting.release()

    def take(self, records: int, size: int) -> list[Record]:
        """The next records that the server lacks, from the disk first; empty if there are none."""
        taken = self.spool.take(records, size) if self.spool is not None else []
        if not taken:
            taken = self._backlog.take(records, size)
            layers = [layer for record in taken if isinstance(record, Declared) for layer in record.layers]
            self._declared.update((layer.index, layer) for layer in layers)
        return taken

    def seal(self, records: Sequence[Record], *, part: bool = False) -> int:
        """The number of the batch of these records, which were taken and are about to be sent.

        `part`: of the last one more is to come.
        """
        if self.spool is not None:
            return self.spool.seal(_on_disk(records), part=part)
        self._seq += 1
        return self._seq

    def acknowledge(self, records: Sequence[Record]) -> None:
        """The sealed batch of these records has come to its end."""
        if self.spool is not None:
            self.spool.acknowledge(_on_disk(records))

    @property
    def damaged(self) -> int:
        """Records that were on disk and cannot be read."""
        return self.spool.damaged if self.spool is not None else 0

    def refuse(self, records: Sequence[Record], why: str) -> Path | None:
        """The server will never take these records; returns where they are kept, None if they are not."""
        return self.spool.refuse(records, why) if self.spool is not None else None

    def declared(self) -> list[Layer]:
        """The layers of all records that were taken."""
        known = self._declared if self.spool is None else self.spool.declared | self._declared
        return list(known.values())

    def lag(self, in_flight: Sequence[Record], handed_over: float | None = None) -> float:
        """Age of the oldest record that is not acknowledged, in seconds; 0 if there is none.

        `handed_over`: when the oldest was that was not put yet.
        """
        times = [record.taken_at for record in in_flight if record.taken_at]
        times += [oldest for oldest in (self._backlog.oldest(), handed_over) if oldest is not None]
        if self.spool is not None:
            times += self._oldest_on_disk(self.spool)
        return max(0.0, time.monotonic() - min(times)) if times else 0.0

    def _oldest_on_disk(self, spool: Spool) -> list[float]:
        with self._looking:
            while len(self._marks) > 1 and self._marks[1][0] <= spool.start:
                self._marks.popleft()
            return [self._marks[0][1]] if spool.points and self._marks else []

    def _put(self, records: Sequence[Record]) -> None:
        now = time.monotonic()
        behind = self.spool is None or (len(self._backlog) and not self._write_backlog(now))
        if behind or not self._write(records, now):
            for record in records:
                self._backlog.put(record)

    def _write(self, records: Sequence[Record], now: float) -> bool:
        """Append to the spool; whether it took them."""
        if self.spool is None or now < self._again:
            return False
        for record in records:
            if isinstance(record, Rows):
                self._thin(record, self.spool)
        number = self.spool.next
        try:
            self.spool.append(records)
        except OSError as error:
            self._again = now + AGAIN_S
            self._notices.warn_once(
                "spool",
                f"the spool {self.spool.folder} takes nothing more ({error.strerror or error}); what the server does "
                "not take in time is dropped and counted",
            )
            return False
        if records and (not self._marks or now - self._marks[-1][1] > MARK_S):
            self._marks.append((number, records[0].taken_at or now))
        return True

    def _write_backlog(self, now: float) -> bool:
        """Move what is in memory to the disk, whether all of it."""
        while self._again <= now and (records := self._backlog.take(64, 2**20)):
            if not self._write(records, now):
                self._backlog.put_back(records)
                return False
        return not len(self._backlog)

    def _thin(self, rows: Rows, spool: Spool) -> None:
        """Leave out what there will soon be no room for."""
        share = (spool.used + rows.cost) / spool.limit
        if share > LAYER_ROW_SHARE:
            self._counts.drop(HISTOGRAMS, rows.shed_histograms())
            self._counts.drop(LAYER_ROWS, rows.shed_healthy())
        elif share > HISTOGRAM_SHARE:
            self._counts.drop(HISTOGRAMS, rows.shed_histograms())


def _on_disk(records: Sequence[Record]) -> list[Record]:
    return [record for record in records if record.number >= 0]
