"""The two queues in memory, both bounded in bytes.

`Inbox` is what the training thread sees: it hands over references and never waits. `Backlog` holds plain
numbers that the disk does not take, and sheds the finest detail first when it is full.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from .counters import Counts
from .records import OVERHEAD, Declared, Ended, Found, Logged, Record, Rows, Scalar, expected_cost
from .sample import Sample

INBOX_BYTES = 32 * 2**20
"""Handed over and not read yet; reached only when the collector cannot keep up with the training thread."""

BACKLOG_BYTES = 64 * 2**20
"""Read, and neither on disk nor acknowledged; reached after a long time without a disk and a server."""

HISTOGRAMS = "histograms (queue full)"
LAYER_ROWS = "layer rows (queue full)"
POINTS = "points (queue full)"


@dataclass(slots=True)
class Handed:
    """One thing as it was handed over. `keep_rows` false leaves only the rows that an alert could come from."""

    what: Sample | Declared | Found | Ended
    taken_at: float
    cost: int
    keep_rows: bool = True


Called = tuple[float | str | Scalar, ...]
"""A log call as it was handed over: when, its step, its names, its values, in one flat tuple, because Python's garbage
collector lets go of one that holds plain numbers and text. However many wait, they then cause no full collection,
which would hold up the training for a tenth of a second."""


def packed(now: float, step: int, values: Mapping[str, float | Scalar]) -> Called:
    """A call; values may still be on a device."""
    return (now, step, *values, *values.values())


def unpacked(call: Called) -> tuple[float, int, tuple[str, ...], tuple[float | Scalar, ...]]:
    """When, step, names and values of a call."""
    middle = 1 + len(call) // 2
    return call[0], call[1], call[2:middle], call[middle:]  # type: ignore[return-value] # as `packed` has put them


class Inbox:
    """Bounded hand-over. Callers append and never wait for the collector; one collector drains."""

    def __init__(self, counts: Counts, limit: int = INBOX_BYTES) -> None:
        self._counts = counts
        self._limit = limit
        self._items: deque[Handed | Called] = deque()
        self._callers = threading.RLock()
        self._put = 0
        self._drained = 0

    def __len__(self) -> int:
        return len(self._items)

    @property
    def half_full(self) -> bool:
        """Whether the collector should be woken."""
        return 2 * (self._put - self._drained) > self._limit

    def oldest(self) -> float | None:
        """When the oldest thing in here was handed over."""
        try:
            oldest = self._items[0]
        except IndexError:
            return None
        return unpacked(oldest)[0] if isinstance(oldest, tuple) else oldest.taken_at

    def put(self, what: Declared | Found | Ended, now: float) -> None:
        """Layers are always taken: their number is that of the model's parameters. So are findings and the end."""
        self._append(Handed(what, now, what.cost), what.cost)

    def log(self, step: int, values: Mapping[str, float | Scalar], now: float) -> None:
        """Logged values; dropped and counted when even the reserve for them is used up."""
        self._counts.take(len(values))
        cost = _cost_of_call(len(values))
        if self._free() + self._limit // 2 < cost:
            self._counts.drop(POINTS, len(values))
        else:
            self._append(packed(now, step, values), cost)

    def sample(self, sample: Sample, now: float) -> None:
        """A sampled step; when full, without its histograms, then without the rows of layers that are well."""
        self._counts.take(1)
        sums, histograms = expected_cost(sample)
        free = self._free()
        if histograms and free < sums + histograms:
            self._counts.drop(HISTOGRAMS, len(sample.layers))
            sample, histograms = replace(sample, headroom=None), 0
        if free + self._limit // 2 < sums:
            self._counts.drop(POINTS)
        else:
            cost = sums + histograms
            self._append(Handed(sample, now, cost, keep_rows=free >= sums), cost)

    def drain(self) -> Iterator[Handed | Called]:
        """Everything that is there now, oldest first."""
        for _ in range(len(self._items)):
            item = self._items.popleft()
            self._drained += _cost_of_call(len(item) // 2 - 1) if isinstance(item, tuple) else item.cost
            yield item

    def _free(self) -> int:
        return self._limit - (self._put - self._drained)

    def _append(self, item: Handed | Called, cost: int) -> None:
        # Only callers share this lock, and nothing under it waits: the collector reads without it. A signal's handler
        # may come in between and log in the same thread.
        with self._callers:
            self._put += cost
            self._items.append(item)


def _cost_of_call(values: int) -> int:
    return OVERHEAD + 100 * values


class Backlog:
    """Records in order of arrival. `put` and `take` may be called from different threads."""

    def __init__(self, counts: Counts, limit: int = BACKLOG_BYTES) -> None:
        self._counts = counts
        self._limit = limit
        self._lock = threading.Lock()
        self._records: deque[Record] = deque()
        self._with_headroom: deque[Rows] = deque()
        self._with_rows: deque[Rows] = deque()
        self._cost = 0
        self._points = 0

    def __len__(self) -> int:
        return len(self._records)

    @property
    def points(self) -> int:
        """Logged values and sampled steps in here."""
        return self._points

    @property
    def cost(self) -> int:
        """Bytes that the records are taken to occupy."""
        return self._cost

    def oldest(self) -> float | None:
        """When the oldest record was handed over."""
        try:
            return self._records[0].taken_at
        except IndexError:
            return None

    def put(self, record: Record) -> None:
        """Append, and shed as much as needed to stay within the limit."""
        with self._lock:
            self._records.append(record)
            self._cost += record.cost
            self._points += record.points
            if isinstance(record, Rows):
                if record.headroom is not None:
                    self._with_headroom.append(record)
                if record.sums is not None:
                    self._with_rows.append(record)
            while self._cost > self._limit and self._shed():
                pass

    def put_back(self, records: Sequence[Record]) -> None:
        """Undo a `take` that came to nothing."""
        with self._lock:
            for record in reversed(records):
                self._records.appendleft(record)
                self._cost += record.cost
                self._points += record.points
                if isinstance(record, Rows):
                    if record.headroom is not None:
                        self._with_headroom.appendleft(record)
                    if record.sums is not None:
                        self._with_rows.appendleft(record)

    def take(self, records: int, cost: int) -> list[Record]:
        """Remove and return the oldest: at most `records` of them and `cost` bytes, at least one."""
        taken: list[Record] = []
        with self._lock:
            while self._records and len(taken) < records:
                if taken and cost < self._records[0].cost:
                    break
                record = self._records.popleft()
                cost -= record.cost
                self._forget(record)
                taken.append(record)
        return taken

    def _forget(self, record: Record) -> None:
        self._cost -= record.cost
        self._points -= record.points
        if self._with_headroom and self._with_headroom[0] is record:
            self._with_headroom.popleft()
        if self._with_rows and self._with_rows[0] is record:
            self._with_rows.popleft()

    def _shed(self) -> bool:
        """Drop one piece of the finest detail there is, oldest first; False if nothing can go."""
        if self._with_headroom:
            rows = self._with_headroom.popleft()
            self._cost -= rows.cost
            self._counts.drop(HISTOGRAMS, rows.shed_histograms())
            self._cost += rows.cost
        elif self._with_rows:
            rows = self._with_rows.popleft()
            self._cost -= rows.cost
            self._counts.drop(LAYER_ROWS, rows.shed_healthy())
            self._cost += rows.cost
        else:
            return self._drop_oldest()
        return True

    def _drop_oldest(self) -> bool:
        """Drop the oldest value or sampled step; declared layers stay, later records refer to them."""
        for index, record in enumerate(self._records):
            if isinstance(record, Logged | Rows):
                del self._records[index]
                self._cost -= record.cost
                self._points -= record.points
                self._counts.drop(POINTS, record.points)
                return True
        return False
