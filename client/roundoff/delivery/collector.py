"""The collector: reads what was handed over, as plain numbers, and puts it into the store. Runs in one thread."""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterable, Mapping

from .counters import Ledger
from .notices import Notices
from .queue import LAYER_ROWS, Handed, Inbox, unpacked
from .records import Declared, Dropped, Ended, Found, Logged, Record, Scalar, rows_of
from .sender import EARLY_RECORDS, Phase
from .spool import FORKED_CALLS as FORKED, Spool
from .store import Store
from .wake import Wake

COLLECT_S = 0.05
"""How long something handed over waits until it is read, unless there is much of it."""

STRETCH_S, STRETCH_RECORDS, BREATH_S = 0.0002, 16, 0.0005
"""For so long, and so many records, are read at a stretch; then they are written and the interpreter lock is left to
the training thread: a thread that wants the lock waits up to 5 ms for one that keeps it."""

URGENT_S, URGENT_STRETCH_S = 0.1, 0.002
"""What has waited for longer than this is read at longer stretches and without such a pause. A thread that never waits
keeps the lock for 5 ms each time, and hands over some 2,000 calls in it; they must be read before it gets it back."""

JOINED = 64
"""With more than so many things waiting, log calls that have the same names are written as one record."""

UNREADABLE = "points (could not be read)"
BAD_VALUE = "values (not a number)"


class Collector:
    """Writes what is in the inbox until the phase is `closing` and nothing is left."""

    def __init__(
        self,
        inbox: Inbox,
        store: Store,
        spool: Spool | None,
        ledger: Ledger,
        phase: Phase,
        wake: Wake,
        notices: Notices,
    ) -> None:
        self._inbox, self._store, self._spool = inbox, store, spool
        self._ledger, self._phase, self._wake, self._notices = ledger, phase, wake, notices
        self._noted: dict[str, int] = {}
        self._forked_calls = 0

    def run(self) -> None:
        """Collect, at once when called and else every 50 ms."""
        while not self._store.closed:
            closing = self._phase.closing.is_set()
            self._drain()
            if self._store.unread >= EARLY_RECORDS:
                self._phase.more.call()
            if closing and not len(self._inbox):
                break
            self._wake.wait(COLLECT_S)
        self._phase.complete.set()
        self._phase.more.call()

    def _drain(self) -> None:
        """Write what is there, a few records at a time."""
        self._note_dropped()
        join = len(self._inbox) > JOINED
        chunk: list[Record] = []
        series: dict[tuple[str, ...], Logged] = {}
        began = time.monotonic()
        for item in self._inbox.drain():
            if isinstance(item, tuple):
                taken_at, step, names, values = unpacked(item)
                if not (join and names in series and series[names].extend(step, values)):
                    logged = self._logged(step, zip(names, values, strict=True), taken_at)
                    if logged is not None:
                        series = _with(logged, series)
                        chunk.append(logged)
            else:
                taken_at, record = item.taken_at, self._read(item)
                if record is not None:
                    chunk.append(record)
            now = time.monotonic()
            urgent = now - taken_at > URGENT_S or self._phase.closing.is_set()
            full = len(chunk) >= STRETCH_RECORDS and not urgent
            if full or now - began > (URGENT_STRETCH_S if urgent else STRETCH_S):
                if not self._store.put(chunk):
                    return
                if not (urgent or self._inbox.half_full):
                    time.sleep(BREATH_S)
                chunk, series, began = [], {}, time.monotonic()
        if chunk:
            self._store.put(chunk)

    def _note_dropped(self) -> None:
        """Let the counts travel with the data."""
        if self._spool is not None:
            forked = self._spool.forked()
            self._ledger.collector.drop(FORKED, forked - self._forked_calls)
            self._forked_calls = forked
        dropped = self._ledger.dropped()
        if dropped != self._noted:
            self._noted = dropped
            self._store.put([Dropped(dropped)])

    def _read(self, handed: Handed) -> Record | None:
        what = handed.what
        if isinstance(what, Declared | Found | Ended):
            if isinstance(what, Ended):
                self._note_dropped()
            what.taken_at = handed.taken_at
            return what
        try:
            rows = rows_of(what, handed.taken_at)
            if not handed.keep_rows:
                self._ledger.collector.drop(LAYER_ROWS, rows.shed_healthy())
        except Exception as error:  # noqa: BLE001 - whatever a device raises
            self._drop_unreadable(error)
            return None
        return rows

    def _logged(
        self, step: int, values: Iterable[tuple[str, float | Scalar]], taken_at: float
    ) -> Logged | None:
        numbers = array("d")
        names = []
        for name, value in values:
            try:
                numbers.append(value if isinstance(value, float) else float(value.item()))
            except (TypeError, ValueError, AttributeError) as error:
                self._ledger.collector.drop(BAD_VALUE)
                self._notices.warn_once(
                    "value", f"the value of {name!r} is not a number and is dropped: {error}"
                )
            except Exception as error:  # noqa: BLE001 - whatever a device or a caller's object raises
                self._drop_unreadable(error)
            else:
                names.append(name)
        return Logged(array("q", [step]), tuple(names), numbers, taken_at) if names else None

    def _drop_unreadable(self, error: Exception) -> None:
        self._ledger.collector.drop(UNREADABLE)
        self._notices.warn_once("unreadable", f"a point could not be read and is dropped: {error}")


def _with(record: Logged, series: Mapping[tuple[str, ...], Logged]) -> dict[tuple[str, ...], Logged]:
    """The records that calls may be added to: of each name only the last, so that its values stay in order."""
    if len(series) >= STRETCH_RECORDS:
        return {record.names: record}
    others = {names: one for names, one in series.items() if set(names).isdisjoint(record.names)}
    return {**others, record.names: record}
