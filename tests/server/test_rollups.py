"""Roll-ups against sums made in Python: every level, any cut, ranks, attempts, and rows that come late or twice."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import sending as s
from calling import Api
from sqlalchemy import func, select

from roundoff.metrics import COUNTS, METRICS, ROW
from roundoff_server.database import Database
from roundoff_server.database.packing import pack, unpack
from roundoff_server.models import Block, LayerRow, Strip
from roundoff_server.services import blocks, sealing
from roundoff_server.services.buckets import window
from roundoff_server.services.history import open_history
from roundoff_server.services.runs import find_run

NAMES = ("a", "b.c", "b.d")
History = dict[tuple[int, int, int], dict[str, float]]
"""(layer, rank, step) → row; layer 0 is the model."""


def row(draw: random.Random) -> dict[str, float]:
    counts: dict[str, float] = {name: draw.randrange(1, 100_000) for name in COUNTS if name != "frozen"}
    return counts | {name: draw.lognormvariate(0, 3) for name in ROW if name not in COUNTS}


def history(steps: Iterable[int], ranks: Iterable[int] = (0,), seed: int = 1) -> History:
    draw = random.Random(seed)
    numbers = range(len(NAMES) + 1)
    return {(layer, rank, step): row(draw) for step in steps for rank in ranks for layer in numbers}


def tables(rows: History, rank: int, steps: Iterable[int]) -> dict[str, Any]:
    inside = set(steps)
    mine = {key: value for key, value in rows.items() if key[1] == rank and key[2] in inside}
    return {
        "layers": s.layers(*NAMES),
        "model": s.model_samples({step: r for (layer, _, step), r in mine.items() if not layer}),
        "samples": s.layer_samples({(layer - 1, step): r for (layer, _, step), r in mine.items() if layer}),
    }


def post(api: Api, rows: History, steps: range, each: int, rank: int = 0, attempt: int = 1) -> None:
    writer = f"w{attempt}.{rank}"
    for seq, begin in enumerate(range(0, len(steps), each)):
        part = steps[begin : begin + each]
        api.post(s.batch(seq, writer, attempt, rank=rank, **tables(rows, rank, part)))


def expected(
    rows: History, layers: Iterable[int], metric: str, width: int, first: int, last: int
) -> dict[int, float]:
    buckets: dict[int, dict[str, float]] = {}
    for (layer, _, step), values in rows.items():
        if layer in layers and first <= step <= last:
            bucket = buckets.setdefault(step - step % width, dict.fromkeys(ROW, 0.0))
            for name in ROW:
                bucket[name] += values.get(name, 0.0)
    return {b: METRICS[metric].figure(SimpleNamespace(**sums)) for b, sums in sorted(buckets.items())}


def assert_series(api: Api, rows: History, layer: str | None, layers: Iterable[int], **asked: Any) -> Any:
    params = {"metric": "edq", "max_points": 100} | asked
    found = api.get("runs/r1/series", **params, **({"layer": layer} if layer else {}))
    first, last = params.get("from_step", 0), params.get("to_step", 10**9)
    wanted = expected(rows, layers, str(params["metric"]), found["bucket"], first, last)
    assert found["steps"] == list(wanted)
    assert found["values"] == pytest.approx(list(wanted.values()), rel=1e-9)
    return found


def count(database: Database, table: Any, *conditions: Any) -> int:
    with database.read() as session:
        return session.scalar(select(func.count()).select_from(table).where(*conditions)) or 0


def all_reads(api: Api, rows: History, last: int) -> None:
    """Series of the model, a layer and a module at every width, whole and cut where no bucket ends."""
    for layer, layers in ((None, [0]), ("a", [1]), ("b", [2, 3])):
        for points in (7, 50, 400, 5000):
            assert_series(api, rows, layer, layers, max_points=points)
        assert_series(api, rows, layer, layers, max_points=40, from_step=777, to_step=last - 333)
    for max_steps in (16, 200):
        heat = api.get("runs/r1/heatmap", metric="lost_fraction", max_steps=max_steps)
        assert sorted(heat["layers"]) == sorted(NAMES)
        for name, values in zip(heat["layers"], heat["values"], strict=True):
            layer = NAMES.index(name) + 1
            wanted = expected(rows, [layer], "lost_fraction", heat["bucket"], 0, 10**9)
            assert heat["steps"] == list(wanted)
            assert values == pytest.approx(list(wanted.values()), rel=1e-9)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks so small that a short history has several levels of them."""
    monkeypatch.setattr(blocks, "BUCKETS", 16)
    monkeypatch.setattr(blocks, "FACTOR", 2)


def test_every_level_is_the_sum_of_its_samples(api: Api, database: Database, small: None) -> None:
    steps = range(0, 12_000, 5)
    rows = history(steps)
    api.put(s.start())
    post(api, rows, steps, 37)
    for level in (1, 2, 3, 4):
        assert count(database, Block, Block.level == level, Block.layer == 2), level
    all_reads(api, rows, steps[-1])


def test_rows_that_come_late_or_again(api: Api, database: Database, small: None) -> None:
    steps = range(0, 6000, 5)
    rows = history(steps)
    left_out = range(2000, 2100, 5)
    api.put(s.start())
    post(api, {key: value for key, value in rows.items() if key[2] not in left_out}, steps, 50)
    api.post(s.batch(900, "w1.0", **tables(rows, 0, left_out)))
    all_reads(api, rows, steps[-1])
    again = history(range(3000, 3050, 5), seed=2)
    rows |= again
    api.post(s.batch(901, "w1.0", **tables(rows, 0, range(3000, 3050, 5))))
    all_reads(api, rows, steps[-1])


def test_one_row_twice_in_a_batch(api: Api) -> None:
    api.put(s.start())
    rows = history([3])
    sent = tables(rows, 0, [3])
    twice = s.layer_samples({(0, 3): rows[1, 0, 3]})
    doubled = {
        "step": s.Column.ints([3, 3]),
        "layer": s.Column.ints([0, 0]),
        "sums": {
            name: type(column)(type=column.type, data=_twice(column)) for name, column in twice.sums.items()
        },
    }
    api.post(s.batch(layers=sent["layers"], model=sent["model"], samples=s.LayerSamples(**doubled)))
    heat = api.get("runs/r1/heatmap", metric="update_norm")
    assert heat["values"] == [[pytest.approx(math.sqrt(rows[1, 0, 3]["sum_uu"]))]]


def _twice(column: s.Column) -> str:
    import base64

    return base64.b64encode(column.raw() * 2).decode()


def test_ranks_are_added_up_before_extremes_are_taken(api: Api, database: Database, small: None) -> None:
    steps = range(0, 4000, 4)
    rows = history(steps, ranks=(0, 1))
    api.put(s.start(world_size=2))
    for begin in range(0, 1000, 100):
        for rank in (0, 1):
            part = steps[begin : begin + 100]
            api.post(s.batch(begin, f"w1.{rank}", rank=rank, **tables(rows, rank, part)))
    assert count(database, Block, Block.level == 2)
    all_reads(api, rows, steps[-1])
    found = assert_series(api, rows, "a", [1], max_points=20)
    assert_band(rows, 1, found)


def assert_band(rows: History, layer: int, found: Mapping[str, Any]) -> None:
    """`low` and `high` are the extremes over single steps, to the rounding of binary32, and never inside them."""
    singles = expected(rows, [layer], found["metric"], 1, 0, 10**9)
    for step, low, high in zip(found["steps"], found["low"], found["high"], strict=True):
        inside = [value for at, value in singles.items() if step <= at < step + found["bucket"]]
        assert low <= min(inside) <= max(inside) <= high
        assert (low, high) == pytest.approx((min(inside), max(inside)), rel=2e-7)


def test_a_spike_and_a_nan_survive_every_width(api: Api, small: None) -> None:
    steps = range(0, 9000, 3)
    rows = {key: s.HEALTHY | {"sum_ww": 1.0} for key in history(steps)}
    spike, broken = 3 * 777, 3 * 1500
    rows[1, 0, spike] = {**s.HEALTHY, "lost": 1000}
    rows[1, 0, broken] = {**s.HEALTHY, "sum_ua": math.nan}
    rows[2, 0, broken] = {**s.HEALTHY, "sum_ua": -math.inf}
    api.put(s.start())
    post(api, rows, steps, 100)
    for points in (10, 100, 1000):
        found = api.get("runs/r1/series", metric="lost_fraction", layer="a", max_points=points)
        place = found["steps"].index(spike - spike % found["bucket"])
        assert found["high"][place] == 1.0
        assert found["low"][place] == pytest.approx(0.01)
        for layer, value in (("a", "NaN"), ("b.c", "-Infinity")):
            found = api.get("runs/r1/series", metric="descent_efficiency", layer=layer, max_points=points)
            place = found["steps"].index(broken - broken % found["bucket"])
            assert found["values"][place] == value
            assert found["low"][place] == pytest.approx(0.975)
            assert [v for i, v in enumerate(found["values"]) if i != place] == pytest.approx(
                [0.975] * (len(found["values"]) - 1)
            )


def test_attempts_are_cut_in_every_roll_up(api: Api, database: Database, small: None) -> None:
    first, second = range(0, 5000, 5), range(2503, 7000, 5)
    rows = history(first)
    api.put(s.start("t1"))
    post(api, rows, first, 50)
    api.put(s.start("t2", first_step=2503))
    merged = {key: value for key, value in rows.items() if key[2] < 2503}
    all_reads(api, merged, 2500)
    more = history(second, seed=5)
    post(api, more, second, 50, attempt=2)
    all_reads(api, merged | more, 6998)
    late = {key: {**value, "lost": 1} for key, value in history([2501, 4001], seed=6).items()}
    api.post(s.batch(700, "w1.0", **tables(late, 0, [2501, 4001])))
    all_reads(api, merged | more | {key: value for key, value in late.items() if key[2] == 2501}, 6998)


def test_kept_points_do_not_move(api: Api, small: None) -> None:
    steps = range(0, 4000, 2)
    rows = history(steps)
    api.put(s.start())
    seen: dict[int, dict[int, float]] = {}
    for begin in range(0, 2000, 100):
        part = steps[begin : begin + 100]
        api.post(s.batch(begin, "w1.0", **tables(rows, 0, part)))
        found = api.get("runs/r1/series", metric="edq", layer="a", max_points=50)
        whole = dict(list(zip(found["steps"], found["values"], strict=True))[:-1])
        before = seen.get(found["bucket"], {})
        assert {step: whole[step] for step in before} == pytest.approx(before, rel=1e-12)
        seen[found["bucket"]] = whole
    assert len(seen) > 3


def test_what_a_long_series_reads(api: Api, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the edges come from samples: never more of them than two blocks have."""
    monkeypatch.setattr(sealing, "ROWS_AT_LEAST", 100_000)
    steps = range(0, 40_000, 5)
    rows = {
        key: {"attempted": 10, "lost": key[2] % 7, "numel": 10} for key in history(steps) if key[0] in (0, 1)
    }
    api.put(s.start())
    post(api, rows, steps, 500)
    read: list[int] = []
    from roundoff_server.services import history as reading

    real = reading.read_samples

    def noted(*arguments: Any) -> Any:
        found = real(*arguments)
        read.append(len(found))
        return found

    monkeypatch.setattr(reading, "read_samples", noted)
    found = api.get("runs/r1/series", metric="lost_fraction", layer="a", max_points=2000)
    assert found["bucket"] == 32
    assert len(found["steps"]) == 40_000 // 32
    assert sum(read) < 2 * blocks.BUCKETS * 32 // 5


def test_strips_stay_between_four_and_eight_hundred(api: Api, database: Database) -> None:
    steps = range(0, 9000, 3)
    rows = {key: {"attempted": 10, "lost": 3} for key in history(steps) if key[0] < 2}
    api.put(s.start())
    for begin in range(0, 3000, 150):
        api.post(s.batch(begin, "w1.0", **tables(rows, 0, steps[begin : begin + 150])))
        kept = count(database, Strip, Strip.name == "samples")
        assert min(begin + 150, 200) <= kept < 800
    heat = api.get("runs/r1/heatmap", metric="lost_fraction", max_steps=2000)
    assert heat["values"] == [[0.3] * len(heat["steps"])]
    assert heat["bucket"] in (8, 16, 32)


def test_a_run_that_an_earlier_version_has_stored(api: Api, database: Database, small: None) -> None:
    """Without roll-ups it is read from its samples; the next batch makes them."""
    steps = range(0, 3000, 5)
    rows = history(steps)
    api.put(s.start())
    post(api, rows, steps, 100)
    with database.write() as session:
        for table in ("strips", "blocks", "block_marks", "resolutions"):
            session.connection().exec_driver_sql(f"DELETE FROM {table}")
    all_reads(api, rows, steps[-1])
    more = range(3000, 3500, 5)
    rows |= history(more, seed=3)
    for begin in range(0, 100, 10):
        api.post(s.batch(800 + begin, "w1.0", **tables(rows, 0, more[begin : begin + 10])))
    all_reads(api, rows, more[-1])
    assert count(database, Block)
    assert count(database, Strip)


def test_blocks_give_back_what_the_samples_are(api: Api, database: Database) -> None:
    steps = range(0, 1000)
    rows = history(steps)
    api.put(s.start())
    post(api, rows, steps, 100)
    with database.read() as session:
        run = find_run(session, "r1")
        assert session.scalar(select(func.count()).select_from(LayerRow)) == len(NAMES)
        for names in (ROW, ("lost", "sum_ww")):
            found = open_history(session, window(session, run), names).read(2, 8)
            assert found.samples.tolist() == [8] * 125
            for name in names:
                wanted = [sum(rows[2, 0, 8 * b + i].get(name, 0) for i in range(8)) for b in range(125)]
                assert found.sums[name].tolist() == pytest.approx(wanted, rel=1e-12)


def test_packed_columns_come_back_bit_for_bit() -> None:
    odd = np.array([0.0, -0.0, math.nan, math.inf, -math.inf, 5e-324, 1e308])
    columns = [
        np.zeros(7, dtype="i8"),
        np.arange(7),
        np.array([0, 255, 256, 3, 4, 5, 6]),
        np.array([0, 2**32 - 1, 1, 2, 3, 4, 5]),
        np.array([-1, 2**62, 1, 2, 3, 4, 5]),
        odd,
        odd[:6].astype("f4").repeat(2)[:7],
        np.array([-0.0] * 7),
    ]
    back = unpack(pack(columns), len(columns), range(len(columns)))
    for before, after in zip(columns, back, strict=True):
        assert after.astype(before.dtype).tobytes() == before.tobytes()
    assert len(pack([np.zeros(1000)])) == 5
    assert unpack(pack(columns), len(columns), [3])[0].tolist() == columns[3].tolist()
    assert unpack(pack([]), 0, []) == []
