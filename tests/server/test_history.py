"""Series and heatmaps: the database's sums are Python's sums, and nothing odd vanishes."""

from __future__ import annotations

import math
import random
from types import SimpleNamespace
from typing import Any

import pytest
import sending as s
from calling import Api

from roundoff.metrics import COUNTS, METRICS, ROW

STEPS = range(0, 600, 2)
NAMES = ("head.weight", "blocks.0.a", "blocks.0.b", "blocks.00.c")


def _row(draw: random.Random) -> dict[str, float]:
    counts: dict[str, float] = {name: draw.randrange(1000) for name in COUNTS}
    return counts | {name: draw.random() for name in ROW if name not in COUNTS}


def _history() -> dict[tuple[int, int, int], dict[str, float]]:
    """(rank, layer, step) → row; layer -1 is the model."""
    draw = random.Random(7)
    return {(rank, layer, step): _row(draw) for rank in (0, 1) for layer in range(-1, 4) for step in STEPS}


HISTORY = _history()


@pytest.fixture
def filled(api: Api) -> Api:
    api.put(s.start(world_size=2))
    for rank in (0, 1):
        model = {step: row for (r, layer, step), row in HISTORY.items() if r == rank and layer < 0}
        rows = {(layer, step): row for (r, layer, step), row in HISTORY.items() if r == rank and layer >= 0}
        tables = {
            "model": s.model_samples(model),
            "samples": s.layer_samples(rows),
            "layers": s.layers(*NAMES),
        }
        rates = s.groups({step: 1e-3 * (1 + step) for step in STEPS})
        api.post(s.batch(0, f"w{rank}", rank=rank, groups=rates, **tables))
    return api


def expected(metric: str, layers: tuple[int, ...], first: int, width: int) -> float | None:
    rows = [
        row for (_, layer, step), row in HISTORY.items() if layer in layers and first <= step < first + width
    ]
    total = SimpleNamespace(**{name: sum(row[name] for row in rows) for name in ROW})
    return METRICS[metric].figure(total)  # type: ignore[no-any-return]


ASKED: list[tuple[str | None, tuple[int, ...]]] = [
    (None, (-1,)),
    ("head.weight", (0,)),
    ("3", (2,)),
    ("blocks", (1, 2, 3)),
    ("blocks.0", (1, 2)),
]


def test_bucket_sums_are_those_of_python(filled: Api) -> None:
    for layer, members in ASKED:
        for metric in METRICS:
            for points, width in ((2000, 1), (100, 8), (20, 32)):
                params: dict[str, Any] = {"metric": metric, "max_points": points}
                found = filled.get("runs/r1/series", **params, **({"layer": layer} if layer else {}))
                assert (found["bucket"], found["sampled"]) == (width, width > 1)
                assert found["steps"] == sorted({step - step % width for step in STEPS})
                for step, value in list(zip(found["steps"], found["values"], strict=True))[::7]:
                    assert value == pytest.approx(expected(metric, members, step, width), rel=1e-12)


def test_a_part_of_the_steps_and_points_that_stay(filled: Api) -> None:
    whole = filled.get("runs/r1/series", metric="edq", max_points=100)
    part = filled.get("runs/r1/series", metric="edq", from_step=100, to_step=199)
    assert part["steps"] == list(range(100, 200, 2))
    filled.post(s.batch(1, "w0", **s.steps_of([600, 602], s.HEALTHY)))
    later = filled.get("runs/r1/series", metric="edq", max_points=100)
    assert later["bucket"] == whole["bucket"]
    assert later["steps"][:-1] == whole["steps"]
    assert later["values"][:-2] == pytest.approx(whole["values"][:-1], rel=1e-12)


def test_learning_rates(filled: Api) -> None:
    lr = filled.get("runs/r1/series", metric="lr", layer="blocks")
    assert lr["values"] == [1e-3 * (1 + step) for step in STEPS]
    lr = filled.get("runs/r1/series", metric="lr", max_points=20)
    assert dict(zip(lr["steps"], lr["values"], strict=True))[32] == 1e-3 * 63
    effective = filled.get("runs/r1/series", metric="effective_lr", max_points=20)
    efficiency = filled.get("runs/r1/series", metric="descent_efficiency", max_points=20)
    products = [a * b for a, b in zip(lr["values"], efficiency["values"], strict=True)]
    assert effective["values"] == pytest.approx(products, rel=1e-12)


def test_heatmap(filled: Api) -> None:
    found = filled.get("runs/r1/heatmap", metric="lost_fraction", max_steps=20)
    assert (found["bucket"], found["steps"]) == (32, sorted({step - step % 32 for step in STEPS}))
    for name, values in zip(found["layers"], found["values"], strict=True):
        layer = NAMES.index(name)
        wanted = [expected("lost_fraction", (layer,), step, 32) for step in found["steps"]]
        assert values == pytest.approx(wanted, rel=1e-12)
    last = {name: expected("lost_fraction", (i,), 580, 100) for i, name in enumerate(NAMES)}
    by_step = filled.get("runs/r1/heatmap", metric="lost_fraction", max_layers=3)
    assert by_step["layers"] == sorted(NAMES, key=lambda name: -(last[name] or 0))[:3]
    last = {name: expected("descent_efficiency", (i,), 580, 100) for i, name in enumerate(NAMES)}
    low_first = filled.get("runs/r1/heatmap", metric="descent_efficiency")["layers"]
    assert low_first == sorted(NAMES, key=lambda name: last[name] or 0)
    assert filled.get("runs/r1/heatmap", metric="edq")["layers"] == list(NAMES)


def test_undefined_and_non_finite_are_two_things(api: Api) -> None:
    api.put(s.start())
    rows: dict[int, dict[str, float]] = {
        0: {"sum_uu": 1.0, "sum_ua": 0.5},
        1: {},
        2: {"sum_uu": 1.0, "sum_ua": math.nan},
        3: {"sum_uu": math.inf, "sum_ua": math.inf},
        4: {"sum_uu": 1.0, "sum_ua": -math.inf},
        5: {"sum_uu": 1e308, "sum_ua": 1e308},
        6: {"sum_uu": 1.0, "sum_ua": math.nan},
        7: {"sum_uu": 1.0, "sum_ua": 0.5},
    }
    api.post(
        s.batch(layers=s.layers("a"), samples=s.layer_samples({(0, step): row for step, row in rows.items()}))
    )
    values = api.get("runs/r1/series", metric="descent_efficiency", layer="a")["values"]
    assert values == [0.5, None, "NaN", "NaN", "-Infinity", "NaN", "NaN", 0.5]
    heat = api.get("runs/r1/heatmap", metric="descent_efficiency")["values"]
    assert heat == [values]
    bucketed = api.get("runs/r1/series", metric="descent_efficiency", layer="a", max_points=4)
    assert (bucketed["steps"], bucketed["values"]) == ([0, 2, 4, 6], [0.5, "NaN", "NaN", "NaN"])
    api.post(s.batch(1, groups=s.groups({0: 0.0, 1: math.nan, 2: math.inf}), model=s.model_samples(rows)))
    assert api.get("runs/r1/series", metric="lr")["values"] == [0.0, "NaN", "Infinity"]
    assert api.get("runs/r1/series", metric="effective_lr")["values"][:3] == [0.0, None, "NaN"]


def test_no_spike_of_a_scalar_vanishes(api: Api) -> None:
    draw = random.Random(3)
    values = {step: draw.gauss(0, 1) for step in range(5000)}
    values |= {1234: 1e300, 2345: -1e300, 3456: math.nan, 4000: math.inf}
    api.put(s.start())
    api.post(s.batch(scalars=s.scalars([("x", step, value) for step, value in values.items()])))
    found = api.get("runs/r1/series", metric="scalar:x", max_points=400)
    points = dict(zip(found["steps"], found["values"], strict=True))
    assert found["sampled"]
    assert len(points) <= 400 + 2
    assert found["steps"] == sorted(points)
    width = found["bucket"]
    for start in range(0, 5000, width):
        inside = {step: value for step, value in values.items() if start <= step < start + width}
        finite = {step: value for step, value in inside.items() if math.isfinite(value)}
        kept = {step: value for step, value in points.items() if start <= step < start + width}
        numbers = [value for value in kept.values() if not isinstance(value, str)]
        assert (min(numbers), max(numbers)) == (min(finite.values()), max(finite.values()))
        assert {min(inside), max(inside)} <= set(kept)
    assert (points[3456], points[4000]) == ("NaN", "Infinity")
    assert all(str(values[step]) in (str(value), "nan", "inf") for step, value in points.items())


def test_the_scalar_edq_is_not_the_figure(api: Api) -> None:
    api.put(s.start())
    api.post(s.batch(scalars=s.scalars([("edq", 3, 7.0)]), **s.steps_of([3], s.HEALTHY)))
    assert api.get("runs/r1/series", metric="scalar:edq")["values"] == [7.0]
    assert api.get("runs/r1/series", metric="edq")["values"] == [pytest.approx(1.95)]


def test_a_later_attempt_cuts_the_earlier(api: Api) -> None:
    api.put(s.start("t1"))
    loss = s.scalars([("loss", step, float(step)) for step in range(213)])
    api.post(s.batch(0, scalars=loss, **s.steps_of(range(213), s.HEALTHY)))
    assert api.get("runs/r1")["step"] == 212
    api.put(s.start("t2", first_step=200))
    assert api.get("runs/r1")["step"] == 199
    assert api.get("runs/r1/series", metric="scalar:loss")["steps"][-1] == 199
    again = s.scalars([("loss", i, -1.0) for i in range(195, 230)])
    api.post(s.batch(0, "w2", 2, scalars=again, **s.steps_of(range(195, 230), s.STALLED)))
    line = api.get("runs/r1/series", metric="scalar:loss")
    assert line["steps"] == list(range(230))
    assert line["values"] == [*map(float, range(200)), *[-1.0] * 30]
    lost = api.get("runs/r1/series", metric="lost_fraction")["values"]
    assert lost == [0.01] * 200 + [0.99] * 30
    run = api.get("runs/r1")
    assert (run["step"], run["loss"], run["attempts"]) == (229, -1.0, 2)
    api.put(s.start("t3", first_step=100))
    assert api.get("runs/r1/series", metric="scalar:loss")["steps"] == list(range(100))


def test_what_does_not_exist(filled: Api) -> None:
    for path, params in (
        ("runs/none", {}),
        ("runs/none/layers", {}),
        ("runs/none/series", {"metric": "edq"}),
        ("runs/r1/series", {"metric": "no_such"}),
        ("runs/r1/series", {"metric": "scalar:none"}),
        ("runs/r1/series", {"metric": "edq", "layer": "block"}),
        ("runs/r1/series", {"metric": "edq", "layer": "99"}),
        ("runs/r1/heatmap", {"metric": "lr"}),
        ("nowhere", {}),
    ):
        answer = filled.http.get(f"/api/v1/{path}", params=params)
        assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")
    bad: list[tuple[str, dict[str, str], str]] = [
        ("runs/r1/series", {}, "metric"),
        ("runs/r1/series", {"metric": "edq", "max_points": "0"}, "max_points"),
        ("runs/r1/series", {"metric": "edq", "from_step": "x"}, "from_step"),
        ("runs/r1/series", {"metric": "edq", "layer": "a\x00"}, "layer"),
        ("runs/r1/series", {"metric": "scalar:\x00"}, "metric"),
        ("runs", {"limit": "9999"}, "limit"),
        ("runs", {"state": "asleep"}, "state"),
        ("runs", {"q": "\x00"}, "q"),
        ("runs", {"cursor": "x"}, "cursor"),
        ("alerts", {"cursor": "1_2_x"}, "cursor"),
        ("alerts", {"state": "acute"}, "state"),
        ("alerts", {"project": "\x00"}, "project"),
    ]
    for path, params, field in bad:
        answer = filled.http.get(f"/api/v1/{path}", params=params)
        assert answer.status_code == 422, (path, params, answer.text)
        assert [error["field"] for error in answer.json()["errors"]] == [field]
    answer = filled.http.post("/api/v1/alerts")
    assert (answer.status_code, answer.headers["content-type"]) == (405, "application/problem+json")


def test_a_run_without_data(api: Api) -> None:
    api.put(s.start())
    assert api.get("runs/r1/series", metric="edq")["steps"] == []
    assert api.get("runs/r1/series", metric="lr")["steps"] == []
    assert api.get("runs/r1/heatmap", metric="lost_fraction")["values"] == []
    assert api.get("runs/r1")["health"] is None


def test_attempts_and_ranks_apart(api: Api) -> None:
    api.put(s.start("t1", world_size=2))
    for rank, row in ((0, s.HEALTHY), (1, s.STALLED)):
        tables = s.steps_of(range(100), row, row)
        loss = s.scalars([("loss", step, float(rank)) for step in range(100)])
        api.post(s.batch(0, f"w{rank}", rank=rank, layers=s.layers("a"), scalars=loss, **tables))
    api.put(s.start("t2", first_step=60))
    api.post(s.batch(0, "w9", 2, layers=s.layers("a"), **s.steps_of(range(60, 80), s.HEALTHY, s.HEALTHY)))

    def read(metric: str = "lost_fraction", **asked: Any) -> dict[int, float]:
        found = api.get("runs/r1/series", metric=metric, **asked)
        return dict(zip(found["steps"], found["values"], strict=True))

    for layer in ({}, {"layer": "a"}):
        assert read(**layer) == {step: 0.5 if step < 60 else 0.01 for step in range(80)}
        assert read(attempt=1, **layer) == dict.fromkeys(range(100), 0.5)
        assert read(attempt=1, rank=1, **layer) == dict.fromkeys(range(100), 0.99)
        assert read(rank=0, **layer) == dict.fromkeys(range(80), 0.01)
        assert read(attempt=2, rank=1, **layer) == {}
    assert read("scalar:loss", rank=1) == dict.fromkeys(range(60), 1.0)
    assert read("scalar:loss", attempt=1) == dict.fromkeys(range(100), 0.0)
    answer = api.http.get("/api/v1/runs/r1/series", params={"metric": "edq", "attempt": 3})
    assert answer.status_code == 404


def test_what_is_known_is_not_sent_again(api: Api) -> None:
    api.put(s.start())
    api.post(s.batch(0, layers=s.layers("a"), **s.steps_of(range(20), s.HEALTHY, s.HEALTHY)))
    for path in ("series?metric=edq", "heatmap", "layers"):
        first = api.http.get(f"/api/v1/runs/r1/{path}")
        known = {"If-None-Match": first.headers["etag"]}
        again = api.http.get(f"/api/v1/runs/r1/{path}", headers=known)
        assert (again.status_code, again.content) == (304, b"")
        api.post(s.batch(0, layers=s.layers("a")))
        assert api.http.get(f"/api/v1/runs/r1/{path}", headers=known).status_code == 304, "a batch sent again"
    for change in (
        lambda: api.post(s.batch(1, **s.steps_of([20], s.STALLED, s.STALLED))),
        lambda: api.put(s.start("t2", first_step=10)),
    ):
        before = api.http.get("/api/v1/runs/r1/heatmap")
        change()
        known = {"If-None-Match": before.headers["etag"]}
        after = api.http.get("/api/v1/runs/r1/heatmap", headers=known)
        assert after.status_code == 200
        assert after.json() != before.json()
