"""Both queues stay within their bounds, shed the finest detail first, and count everything."""

from __future__ import annotations

import threading

from samples import layers, sample

from roundoff.delivery.counters import Counts
from roundoff.delivery.queue import HISTOGRAMS, LAYER_ROWS, POINTS, Backlog, Handed, Inbox
from roundoff.delivery.records import Declared, Logged, Rows, array, rows_of


def rows(step: int, count: int = 10) -> Rows:
    """A step of layers that are well."""
    return rows_of(sample(step, count, nonfinite=0.0), 0.0)


def logged(step: int) -> Logged:
    return Logged(array("q", [step]), ("loss",), array("d", [1.0]), 0.0)


def test_the_backlog_sheds_histograms_then_layer_rows_then_points() -> None:
    counts = Counts()
    full, without, bare = rows(0), rows(0), rows(0)
    without.headroom = None
    bare.headroom = bare.sums = None
    backlog = Backlog(counts, limit=3 * full.cost)
    for step in range(3):
        backlog.put(rows(step))
    assert counts.dropped() == {}

    backlog.put(rows(3))
    assert counts.dropped() == {HISTOGRAMS: 20}  # the two oldest: one is not enough

    backlog = Backlog(counts := Counts(), limit=2 * without.cost + 2 * bare.cost)
    for step in range(4):
        backlog.put(rows(step))
    assert counts.dropped() == {HISTOGRAMS: 40, LAYER_ROWS: 20}
    kept = backlog.take(10, 10**9)
    assert [record.step for record in kept if isinstance(record, Rows)] == [0, 1, 2, 3]
    assert [record.sums is None for record in kept if isinstance(record, Rows)] == [True, True, False, False]
    assert all(record.model[0] == 55.0 for record in kept if isinstance(record, Rows))

    backlog = Backlog(counts := Counts(), limit=bare.cost + logged(0).cost)
    backlog.put(Declared(layers(10)))
    backlog._limit += Declared(layers(10)).cost
    backlog.put(logged(0))
    backlog.put(rows(1))
    backlog.put(logged(2))
    assert counts.dropped() == {HISTOGRAMS: 10, LAYER_ROWS: 10, POINTS: 1}
    assert [type(record) for record in backlog.take(10, 10**9)] == [Declared, Rows, Logged]


def test_what_the_backlog_holds_is_what_it_says() -> None:
    backlog = Backlog(Counts(), limit=10 * rows(0).cost)
    for step in range(100):
        backlog.put(rows(step))
        backlog.put(logged(step))
        if step % 7 == 0:
            backlog.take(3, 10**9)
        assert backlog.cost == sum(record.cost for record in backlog._records) <= 10 * rows(0).cost
        assert backlog.points == sum(record.points for record in backlog._records)


def test_rows_that_an_alert_could_come_from_are_kept() -> None:
    stalling, well = {"lost": 90.0, "sum_ua": 0.01}, {"lost": 1.0, "sum_ua": 1.0}
    numbers = {"attempted": 100.0, "nonfinite": 0.0, "sum_uu": 1.0}
    record = rows_of(sample(0, 4, **numbers, **well), 0.0)
    sick = rows_of(sample(0, 1, **numbers, **stalling), 0.0)
    broken = rows_of(sample(0, 1, **{**numbers, **well, "nonfinite": 1.0}), 0.0)
    assert record.sums is not None
    assert sick.sums is not None
    assert broken.sums is not None
    record.sums[24:48], record.sums[72:96] = sick.sums, broken.sums
    model = record.model[:]
    assert record.shed_healthy() == 2
    assert record.layers.tolist() == [1, 3]
    assert record.sums == sick.sums + broken.sums
    assert (record.model, record.headroom) == (model, None)


def test_what_is_put_back_comes_again_first() -> None:
    backlog = Backlog(Counts())
    for step in range(4):
        backlog.put(rows(step))
    cost, points = backlog.cost, backlog.points
    backlog.put_back(backlog.take(3, 10**9))
    assert (backlog.cost, backlog.points) == (cost, points)
    assert [record.step for record in backlog.take(10, 10**9) if isinstance(record, Rows)] == [0, 1, 2, 3]


def test_take_stops_at_records_and_bytes_but_gives_one() -> None:
    backlog = Backlog(Counts())
    for step in range(5):
        backlog.put(rows(step))
    assert len(backlog.take(2, 10**9)) == 2
    assert len(backlog.take(10, 1)) == 1
    assert len(backlog.take(10, 10**9)) == 2
    assert backlog.take(10, 10**9) == []
    assert backlog.cost == backlog.points == 0


def test_a_full_inbox_keeps_model_rows_and_values_longest() -> None:
    counts = Counts()
    one = 400 + 8 * 10 * (24 + 66)
    inbox = Inbox(counts, limit=2 * one)
    for step in range(3):
        inbox.sample(sample(step, 10), 0.0)
    assert counts.dropped()[HISTOGRAMS] == 10
    for step in range(3, 100):
        inbox.sample(sample(step, 10), 0.0)
        inbox.log(step, {"loss": 1.0}, 0.0)
    dropped = counts.dropped()
    items = list(inbox.drain())
    samples = [item for item in items if isinstance(item, Handed)]
    assert any(not item.keep_rows for item in samples)
    assert len(items) + dropped[POINTS] == counts.taken
    assert sum(item.cost for item in samples) <= 3 * one
    inbox.sample(sample(100, 10), 0.0)
    assert counts.dropped() == dropped  # drained, so there is room again


def test_many_threads_hand_over_and_nothing_is_lost() -> None:
    counts = Counts()
    inbox = Inbox(counts)

    def hand_over() -> None:
        for step in range(2000):
            inbox.log(step, {"x": 1.0}, 0.0)

    threads = [threading.Thread(target=hand_over) for _ in range(4)]
    for thread in threads:
        thread.start()
    found = 0
    while any(thread.is_alive() for thread in threads):
        found += sum(1 for _ in inbox.drain())
    found += sum(1 for _ in inbox.drain())
    assert found == 8000 == counts.taken
    assert inbox._put == inbox._drained
