"""Runs as a list and one by one: state, health, filters, pages."""

from __future__ import annotations

import itertools

import sending as s
from calling import Api


def test_silence_is_stale_and_data_heals_it(api: Api) -> None:
    api.put(s.start(promise_s=30))
    api.post(s.batch(0, promise_s=30))
    api.clock.now += 30
    assert api.get("runs/r1")["state"] == "running"
    api.clock.now += 1
    assert api.get("runs/r1")["state"] == "stale"
    assert [run["id"] for run in api.get("runs", state="stale")["runs"]] == ["r1"]
    assert api.get("runs", state="running")["runs"] == []
    api.post(s.batch(1, promise_s=60))
    assert api.get("runs/r1")["state"] == "running"
    assert len(api.get("runs", state="running")["runs"]) == 1
    api.clock.now += 61
    assert api.get("runs/r1")["state"] == "stale"
    api.post(s.batch(2, end="finished"))
    api.clock.now += 10**6
    assert api.get("runs/r1")["state"] == "finished"


def test_what_an_earlier_attempt_left_is_no_promise_of_the_present_one(api: Api) -> None:
    api.put(s.start("t1", promise_s=60))
    api.put(s.start("t2", first_step=9, promise_s=600))
    api.post(s.batch(0, "w2", attempt=2, promise_s=600))
    api.clock.now += 100
    api.put(s.start("t1", promise_s=1))
    api.post(s.batch(0, "w1", attempt=1, promise_s=1))
    api.clock.now += 499
    assert api.get("runs/r1")["state"] == "running"
    api.post(s.batch(1, "w1", attempt=1, promise_s=10_000))
    api.clock.now += 2
    assert api.get("runs/r1")["state"] == "stale"


def test_a_run_ends_when_all_its_writers_have(api: Api) -> None:
    api.put(s.start(world_size=2))
    api.post(s.batch(0, "w0"))
    api.post(s.batch(0, "w1", rank=1))
    api.post(s.batch(1, "w0", end="finished"))
    assert api.get("runs/r1")["state"] == "running"
    api.post(s.batch(1, "w1", rank=1, end="finished"))
    assert api.get("runs/r1")["state"] == "finished"
    api.put(s.start("t2", first_step=9))
    assert api.get("runs/r1")["state"] == "running"
    api.post(s.batch(0, "w2", attempt=2))
    api.post(s.batch(0, "w3", attempt=2, rank=1, end="crashed"))
    assert api.get("runs/r1")["state"] == "crashed"
    api.post(s.batch(1, "w2", attempt=2, end="finished"))
    assert api.get("runs/r1")["state"] == "crashed", "what crashed has not finished"
    api.post(s.batch(2, "w0", attempt=1, end="preempted"))
    assert api.get("runs/r1")["state"] == "crashed", "an earlier attempt does not speak for the run"


def test_list_newest_first_in_pages(api: Api) -> None:
    for index in range(7):
        api.put(s.start(project=f"p{index % 2}", name=f"Name {index}"), f"run-{index}")
    first = api.get("runs", limit=3)
    assert [run["id"] for run in first["runs"]] == ["run-6", "run-5", "run-4"]
    api.put(s.start(), "run-7")
    second = api.get("runs", limit=3, cursor=first["next_cursor"])
    assert [run["id"] for run in second["runs"]] == ["run-3", "run-2", "run-1"]
    last = api.get("runs", limit=3, cursor=second["next_cursor"])
    assert ([run["id"] for run in last["runs"]], last["next_cursor"]) == (["run-0"], None)
    assert [run["id"] for run in api.get("runs", project="p1")["runs"]] == ["run-5", "run-3", "run-1"]
    assert [run["id"] for run in api.get("runs", q="name 4")["runs"]] == ["run-4"]
    assert [run["id"] for run in api.get("runs", q="RUN-2")["runs"]] == ["run-2"]
    assert api.get("runs", q="Name_4")["runs"] == []


def test_summary(api: Api) -> None:
    api.put(s.start(config={"lr": 1e-3}, tags=["x"]))
    names = [f"layer.{index}" for index in range(8)]
    declared = s.layers(*names)
    declared[7] = declared[7].model_copy(update={"strategy": "plus"})
    rows = [{**s.STALLED, "sum_ua": 0.1 * index} for index in range(8)]
    api.post(
        s.batch(
            0,
            layers=declared,
            dropped={"queue full": 3},
            scalars=s.scalars([("loss", step, 5.0 - step / 10) for step in range(30)]),
            **s.steps_of(range(30), s.HEALTHY, *rows),
        )
    )
    api.post(s.batch(0, "w2", dropped={"queue full": 2, "spool": 1}))
    run = api.get("runs/r1")
    assert (run["health"], run["layers"], run["layers_stalling"]) == ("stalling", 8, 8)
    assert run["headline"].startswith("8 of 8 layers")
    assert "layer.0, layer.1, layer.2 and 5 more" in run["explanation"]
    assert [layer["name"] for layer in run["worst_layers"]] == names[:5]
    assert run["strategy"] == "none+plus"
    assert run["dropped"] == {"queue full": 5, "spool": 1}
    assert (run["step"], run["lr"], run["loss"]) == (29, 1e-3, 2.1)
    assert run["effective_lr"] == 1e-3 * run["descent_efficiency"]
    assert (run["config"], run["tags"], run["page"]) == ({"lr": 1e-3}, ["x"], "/runs/r1")
    assert run["spark"] == [5.0 - step / 10 for step in range(30)]
    assert api.get("runs")["runs"] == [run]
    assert [layer["health"] for layer in api.get("runs/r1/layers")] == ["stalling"] * 8


def test_the_small_loss_line_stays_small(api: Api) -> None:
    api.put(s.start())
    for seq in range(10):
        values = [("loss", step, float(step)) for step in range(100 * seq, 100 * seq + 100)]
        api.post(s.batch(seq, scalars=s.scalars(values)))
    spark = api.get("runs/r1")["spark"]
    gaps = {b - a for a, b in itertools.pairwise(spark)}
    assert 24 <= len(spark) <= 48
    assert len(gaps) == 1
    assert spark[0] == 0.0


def test_broken_is_not_stalling(api: Api) -> None:
    api.put(s.start())
    broken = {**s.HEALTHY, "nonfinite": 3}
    api.post(s.batch(layers=s.layers("a", "b"), **s.steps_of(range(20), broken, broken, s.HEALTHY)))
    run = api.get("runs/r1")
    assert (run["health"], run["layers_stalling"]) == ("broken", 0)
    assert run["headline"] == "Non-finite values in 1 of 2 layers."
    assert api.get("alerts")["alerts"] == []


def test_late_data_does_not_turn_the_newest_values_back(api: Api) -> None:
    api.put(s.start())
    api.post(s.batch(1, scalars=s.scalars([("loss", 9, 1.0)]), **s.steps_of([9], s.HEALTHY, lr=1e-4)))
    api.post(s.batch(0, scalars=s.scalars([("loss", 4, 2.0)]), **s.steps_of([4], s.HEALTHY, lr=5e-4)))
    run = api.get("runs/r1")
    assert (run["step"], run["lr"], run["loss"]) == (9, 1e-4, 1.0)


def test_a_window_may_hold_infinity(api: Api) -> None:
    api.put(s.start())
    overflowed = {**s.HEALTHY, "sum_ua": float("-inf")}
    for seq in range(2):
        steps = range(10 + seq, 11 + seq)
        api.post(s.batch(seq, layers=s.layers("a"), **s.steps_of(steps, overflowed, overflowed)))
    assert [layer["descent_efficiency"] for layer in api.get("runs/r1/layers")] == ["-Infinity"]
    assert api.get("runs/r1")["descent_efficiency"] == "-Infinity"
