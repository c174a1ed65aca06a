"""The collector: many log calls become few records, whatever comes in between, and what is shut takes nothing more."""

from __future__ import annotations

import math
import random
import threading
import time
from collections import defaultdict
from pathlib import Path

import pytest
from samples import layers, sample

import roundoff
from roundoff.delivery.collector import BAD_VALUE, UNREADABLE, Collector
from roundoff.delivery.counters import Ledger
from roundoff.delivery.notices import Notices
from roundoff.delivery.queue import Backlog, Inbox
from roundoff.delivery.records import MOST_CALLS, MOST_VALUES, Declared, Logged, Record, Rows, Scalar
from roundoff.delivery.sender import Phase
from roundoff.delivery.store import Store
from roundoff.delivery.sync import send_left
from roundoff.delivery.wake import Wake


class Desk:
    """A collector without threads: hand over, then `collect`."""

    def __init__(self) -> None:
        self.ledger, self.phase = Ledger(), Phase()
        self.inbox = Inbox(self.ledger.callers)
        self.store = Store(None, Backlog(self.ledger.collector), self.ledger.collector, Notices())
        self.collector = Collector(
            self.inbox, self.store, None, self.ledger, self.phase, Wake(), Notices(quiet=True)
        )

    def log(self, step: int, **values: float | Scalar) -> None:
        self.inbox.log(step, values, time.monotonic())

    def collect(self) -> list[Record]:
        self.phase.closing.set()
        self.collector.run()
        return self.store.take(10**9, 2**40)


def series(records: list[Record]) -> dict[str, list[tuple[int, float]]]:
    """Step and value by name, in the order of the records."""
    found = defaultdict(list)
    for record in records:
        if isinstance(record, Logged):
            for call, step in enumerate(record.steps):
                for place, name in enumerate(record.names):
                    found[name].append((step, record.values[call * len(record.names) + place]))
    return dict(found)


class Broken:
    """A number on a device that went away."""

    def item(self) -> float:
        raise RuntimeError("the device is gone")


class Text:
    def item(self) -> float:
        return float("no number")


def test_many_calls_become_few_records() -> None:
    desk = Desk()
    for step in range(10_000):
        desk.log(step, loss=step / 7)
        desk.log(step, lr=step / 3, norm=-step / 9)
    records = desk.collect()
    assert len(records) <= 2 * (10_000 // MOST_CALLS + 2) + 40  # a stretch may end anywhere
    assert series(records) == {
        "loss": [(step, step / 7) for step in range(10_000)],
        "lr": [(step, step / 3) for step in range(10_000)],
        "norm": [(step, -step / 9) for step in range(10_000)],
    }


def test_few_calls_are_a_record_each() -> None:
    """What a damaged spool loses with one record is then one call."""
    desk = Desk()
    for step in range(20):
        desk.log(step, loss=1.0)
    assert [list(record.steps) for record in desk.collect() if isinstance(record, Logged)] == [
        [step] for step in range(20)
    ]


def test_a_record_has_an_end() -> None:
    desk = Desk()
    for step in range(1000):
        desk.log(step, **{f"v{number}": float(number) for number in range(100)})
    records = [record for record in desk.collect() if isinstance(record, Logged)]
    assert max(record.points for record in records) < MOST_VALUES + 100
    assert sum(record.points for record in records) == 100_000


@pytest.mark.parametrize("seed", range(5))
def test_whatever_is_mixed_comes_out_in_order(seed: int) -> None:
    """Names in any order and number, values on a device, some that cannot be read, samples in between."""
    draw, desk = random.Random(seed), Desk()
    expected: dict[str, list[tuple[int, float]]] = defaultdict(list)
    bad = defaultdict(int)
    desk.inbox.put(Declared(tuple(layers(2))), time.monotonic())
    for step in range(3000):
        names = draw.choice([["a"], ["a"], ["b", "c"], ["a", "d"], draw.sample("abcde", 3)])
        values: dict[str, float | Scalar] = {
            name: draw.choice([math.inf, -0.0, draw.random()]) for name in names
        }
        for name, value in values.items():
            assert isinstance(value, float)
            expected[name].append((step, value))
        if step % 97 == 0:
            values |= {"gone": Broken(), "text": Text()}
            bad[UNREADABLE] += 1
            bad[BAD_VALUE] += 1
        desk.log(step, **values)
        if step % 500 == 0:
            desk.inbox.sample(sample(step), time.monotonic())
    records = desk.collect()
    assert series(records) == expected
    assert [record.step for record in records if isinstance(record, Rows)] == list(range(0, 3000, 500))
    assert desk.ledger.dropped() == bad


def test_a_store_that_is_shut_takes_nothing_and_the_collector_ends() -> None:
    desk = Desk()
    desk.log(0, loss=1.0)
    desk.store.shut(1.0)
    assert desk.collect() == []
    assert desk.phase.complete.is_set()


def test_shutting_waits_for_a_write_under_way_but_not_for_a_disk_that_hangs() -> None:
    store = Desk().store
    store._putting.acquire()
    began = time.monotonic()
    store.shut(0.2)
    assert 0.15 < time.monotonic() - began < 2
    assert store.closed
    other = Desk().store
    other._putting.acquire()
    threading.Timer(0.1, other._putting.release).start()
    other.shut(5.0)
    assert other._putting.acquire(blocking=False)


def test_what_finish_had_no_time_for_is_either_in_the_spool_or_dropped(
    server: str, nobody: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The collector still has much to write when the time is over: counted once, and sync sends just the rest."""
    monkeypatch.setattr("roundoff.delivery.pipeline.LAST_S", 0.0)
    run = roundoff.init("p", server=nobody, spool=tmp_path)
    for step in range(60_000):
        run.log({"loss": float(step)}, step=step)
    run.finish(timeout=0)
    state = run.delivery
    assert state.taken == 60_000 == state.spooled + sum(state.dropped.values())
    assert state.dropped, "the collector was too fast for this test"
    time.sleep(0.5)
    (writer,) = [path.parent for path in tmp_path.rglob("lock")]
    left = send_left(writer, server, None, 30.0, Notices())
    assert (left.state, left.sent) == ("sent", state.spooled)
