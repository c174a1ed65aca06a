"""The life of an alert, in the database: every transition exactly once."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import sending as s
from calling import Api

from roundoff.metrics import WARMUP_STEPS
from roundoff.wire import Batch, Event

RECOVERED = {**s.HEALTHY, "sum_ua": 4.0, "lost": 0}


def begin(api: Api, strategy: str = "none") -> None:
    api.put(s.start())
    api.post(s.batch(0, layers=s.layers("norm.weight", "head.weight", strategy=strategy)))


def feed(api: Api, first: int, count: int, model: s.Row, *layers: s.Row, **batch: Any) -> Any:
    """Batches of up to five steps, numbered by their first."""
    for start in range(first, first + count, 5):
        steps = range(start, min(start + 5, first + count))
        api.post(s.batch(start + 1, **batch, **s.steps_of(steps, model, *layers)))
    return alerts(api)


def alerts(api: Api) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = api.get("alerts")["alerts"]
    return found


def test_life_cycle(api: Api) -> None:
    begin(api)
    assert feed(api, 0, WARMUP_STEPS, s.HEALTHY, s.STALLED, s.HEALTHY) == [], "the warm-up is left out"
    [pending] = feed(api, 10, 4, s.HEALTHY, s.STALLED, s.HEALTHY)
    assert (pending["state"], pending["since_step"], pending["fired_step"]) == ("pending", 10, None)
    assert api.get("runs/r1")["alerts_firing"] == 0
    api.clock.now += 100
    [firing] = feed(api, 14, 1, s.HEALTHY, s.STALLED, s.HEALTHY)
    assert (firing["id"], firing["state"], firing["severity"]) == (pending["id"], "firing", "warning")
    assert (firing["since_step"], firing["fired_step"], firing["model"]) == (10, 14, False)
    assert (firing["layers"], firing["layer_count"]) == (["norm.weight"], 1)
    assert (firing["rule"], firing["project"], firing["run_name"]) == ("precision-stagnation", "demo", "bf16")
    assert firing["fired_at"] == "2027-01-15T08:01:40Z"
    assert firing["cure"] == (
        'Collage-plus keeps what rounding drops: CollageAdamW(…, strategy="plus"), 12 bytes per parameter instead of 8.'
    )
    assert api.get("runs/r1")["alerts_firing"] == 1
    [resolved] = feed(api, 15, 30, RECOVERED, RECOVERED, RECOVERED)
    assert (resolved["id"], resolved["state"]) == (firing["id"], "resolved")
    assert (resolved["fired_step"], resolved["layers"]) == (14, ["norm.weight"])
    assert resolved["resolved_step"] in range(16, 26)
    assert "clear" in resolved["reason"]
    again, first = feed(api, 45, 30, s.STALLED, s.STALLED, s.STALLED)
    assert first == resolved
    assert (again["state"], again["severity"], again["model"], again["layer_count"]) == (
        "firing",
        "critical",
        True,
        2,
    )
    assert again["headline"].startswith(f"Since step {again['since_step']} only")
    feed(api, 75, 1, s.STALLED, s.STALLED, s.STALLED)
    assert len(alerts(api)) == 2, "one alert, however long it lasts"


def test_pending_that_does_not_fire_leaves_nothing(api: Api) -> None:
    begin(api)
    assert len(feed(api, 10, 4, s.HEALTHY, s.STALLED, s.HEALTHY)) == 1
    burst = {**s.HEALTHY, "sum_ua": 40.0}
    assert feed(api, 14, 1, s.HEALTHY, burst, s.HEALTHY) == []
    feed(api, 15, 30, s.HEALTHY, {**s.STALLED, "sum_ua": -4.0}, s.HEALTHY)
    assert [(alert["id"], alert["state"]) for alert in alerts(api)] == [("r1.1", "firing")]


def test_fire_and_clear_inside_one_batch(api: Api) -> None:
    begin(api)
    model = s.model_samples({step: s.STALLED if step < 20 else RECOVERED for step in range(60)})
    api.post(s.batch(1, model=model))
    [alert] = alerts(api)
    assert (alert["state"], alert["fired_step"], alert["model"], alert["layers"]) == (
        "resolved",
        14,
        True,
        [],
    )


def test_a_restart_neither_loses_nor_repeats(api: Api) -> None:
    script = [
        (10, s.STALLED),
        (12, s.STALLED),
        (15, s.STALLED),
        (20, RECOVERED),
        (40, RECOVERED),
        (60, s.STALLED),
    ]
    begin(api)
    seen = []
    for first, row in script:
        api = api.restart()
        feed(api, first, 12 if first >= 20 else 2, row, row, row)
        seen.append([(alert["id"], alert["state"]) for alert in alerts(api.restart())])
    assert seen[:3] == [[("r1.1", "pending")], [("r1.1", "pending")], [("r1.1", "firing")]]
    assert seen[4] == [("r1.1", "resolved")]
    assert seen[5] == [("r1.2", "firing"), ("r1.1", "resolved")]


def test_replayed_data_does_not_fire_again(api: Api) -> None:
    begin(api)
    feed(api, 10, 10, s.STALLED, s.STALLED, s.STALLED)
    before = feed(api, 20, 30, RECOVERED, RECOVERED, RECOVERED)
    assert [alert["state"] for alert in before] == ["resolved"]
    feed(api, 10, 10, s.STALLED, s.STALLED, s.STALLED)
    assert alerts(api) == before, "the same batches"
    api.post(s.batch(900, **s.steps_of(range(10, 20), s.STALLED, s.STALLED, s.STALLED)))
    assert alerts(api) == before, "the same steps in a new batch"
    old = s.steps_of(range(10, 40), s.STALLED)
    api.post(s.batch(0, "another-writer", **old))
    assert alerts(api) == before, "the same steps from another writer"


def test_no_data_is_not_resolved_and_an_end_is(api: Api) -> None:
    begin(api)
    feed(api, 10, 8, s.HEALTHY, s.STALLED, s.HEALTHY)
    api.clock.now += 10**6
    assert api.get("runs/r1")["state"] == "stale"
    assert [alert["state"] for alert in alerts(api)] == ["firing"]
    api.post(s.batch(500, end="finished"))
    [closed] = alerts(api)
    assert (closed["state"], closed["reason"], closed["resolved_step"]) == ("resolved", "run finished", 17)
    assert (closed["fired_step"], closed["layers"]) == (14, ["norm.weight"])
    run = api.get("runs/r1")
    assert (run["health"], run["alerts_firing"]) == ("stalling", 0)
    assert "Since step 10" in run["explanation"]


def test_rows_and_end_in_one_batch(api: Api) -> None:
    begin(api)
    api.post(s.batch(1, end="crashed", **s.steps_of(range(20), s.STALLED, s.STALLED, s.HEALTHY)))
    [alert] = alerts(api)
    assert (alert["state"], alert["reason"], alert["fired_step"]) == ("resolved", "run crashed", 14)


def test_a_pending_alert_ends_with_its_run(api: Api) -> None:
    begin(api)
    assert len(feed(api, 10, 3, s.HEALTHY, s.STALLED, s.HEALTHY)) == 1
    api.post(s.batch(500, end="finished"))
    assert alerts(api) == []


def test_a_preempted_run_goes_on_where_it_was(api: Api) -> None:
    begin(api)
    feed(api, 10, 8, s.HEALTHY, s.STALLED, s.HEALTHY)
    api.post(s.batch(500, end="preempted"))
    [firing] = alerts(api)
    assert (api.get("runs/r1")["state"], firing["state"]) == ("preempted", "firing")
    api.put(s.start("t2", first_step=15))
    tables = s.steps_of(range(15, 18), s.HEALTHY, s.STALLED, s.HEALTHY)
    api.post(s.batch(0, "w2", 2, layers=s.layers("norm.weight", "head.weight"), **tables))
    assert [(alert["id"], alert["fired_step"]) for alert in alerts(api)] == [(firing["id"], 14)]
    late = s.steps_of(range(18, 60), RECOVERED, RECOVERED, RECOVERED)
    api.post(s.batch(501, "w1", 1, **late))
    assert [alert["state"] for alert in alerts(api)] == ["firing"], (
        "the first attempt does not speak any more"
    )


def test_a_restart_from_the_beginning_is_watched_from_there(api: Api) -> None:
    begin(api)
    feed(api, 0, 100, s.HEALTHY, s.HEALTHY, s.HEALTHY)
    api.put(s.start("t2", first_step=0))
    tables = s.steps_of(range(30), s.STALLED, s.STALLED, s.STALLED)
    api.post(s.batch(0, "w2", 2, layers=s.layers("norm.weight", "head.weight"), **tables))
    assert [alert["fired_step"] for alert in alerts(api)] != []


def test_ranks_are_added_before_they_are_judged(api: Api) -> None:
    """One rank's shard stalls, the layer as a whole does not; one rank runs ahead, the other comes in any order."""
    halves = ({**s.STALLED, "sum_uu": 0.1, "sum_ua": 0.001, "lost": 900}, {**s.HEALTHY, "lost": 0})

    def sent(rank: int, step: int) -> Batch:
        tables = s.steps_of([step], halves[rank], halves[rank])
        return s.batch(step, f"w{rank}", rank=rank, layers=s.layers("a") if step == 9 else [], **tables)

    api.put(s.start(world_size=2))
    for rank, step in ((0, 9), (1, 9), *((0, step) for step in range(10, 30))):
        api.post(sent(rank, step))
    assert alerts(api) == []
    assert api.get("runs/r1")["health"] is None, "no step after the warm-up is complete"
    late = list(range(10, 30))
    random.Random(1).shuffle(late)
    for step in late:
        api.post(sent(1, step))
        assert alerts(api) == []
    [layer] = api.get("runs/r1/layers")
    assert (layer["health"], layer["descent_efficiency"] > 0.9) == ("healthy", True)


def test_worst_layers_first_and_all_counted(api: Api) -> None:
    api.put(s.start())
    names = [f"l{index:03}" for index in range(300)]
    rows = [{**s.STALLED, "sum_ua": 1.5 - index / 1000} for index in range(300)]
    tables = s.steps_of(range(10, 15), s.HEALTHY, *rows)
    api.post(s.batch(0, layers=s.layers(*names), **tables))
    [alert] = alerts(api)
    assert alert["layer_count"] == 300
    assert alert["layers"] == names[::-1][:50]
    assert "300 of 300 layers: l299, l298, l297 and 297 more" in alert["headline"]


def test_collage_is_sent_to_a_master(api: Api) -> None:
    begin(api, "plus")
    [alert] = feed(api, 10, 5, s.HEALTHY, s.STALLED, s.HEALTHY)
    assert "fp32-master" in alert["cure"]


def test_a_zero_learning_rate_is_no_stall(api: Api) -> None:
    begin(api)
    api.post(s.batch(1, **s.steps_of(range(10, 30), s.STALLED, s.STALLED, s.STALLED, lr=0.0)))
    assert alerts(api) == []
    assert api.get("runs/r1")["health"] == "idle"


def test_lists_filter_and_page(api: Api) -> None:
    for index in range(5):
        api.clock.now += index % 2
        api.put(s.start(project=f"p{index % 2}"), f"run{index}")
        api.post(s.batch(model=s.model_samples(dict.fromkeys(range(30), s.STALLED))), f"run{index}")
    api.post(s.batch(1, end="finished"), "run3")
    order, cursor = [], {}
    while True:
        page = api.get("alerts", limit=2, **cursor)
        order += [alert["run_id"] for alert in page["alerts"]]
        if page["next_cursor"] is None:
            break
        cursor = {"cursor": page["next_cursor"]}
    assert order == ["run4", "run3", "run2", "run1", "run0"]
    assert [alert["run_id"] for alert in api.get("alerts", project="p1")["alerts"]] == ["run3", "run1"]
    assert [alert["run_id"] for alert in api.get("alerts", state="resolved")["alerts"]] == ["run3"]
    assert [alert["run_id"] for alert in api.get("alerts", run_id="run2")["alerts"]] == ["run2"]
    assert api.http.get("/api/v1/alerts", params={"run_id": "none"}).status_code == 404


def test_listeners_hear_what_changed_and_only_that(api: Api) -> None:
    bus = api.app.state.service.bus
    begin(api)
    api.post(s.batch(1, **s.steps_of(range(20), s.HEALTHY, s.STALLED, s.HEALTHY)))
    api.post(s.batch(1, **s.steps_of(range(20), s.HEALTHY, s.STALLED, s.HEALTHY)))
    api.send(s.batch(2, attempt=7))
    api.post(s.batch(3, **s.steps_of(range(20, 22), s.HEALTHY, s.STALLED, s.HEALTHY)))
    api.post(s.batch(4, end="finished"))

    async def heard() -> list[Event]:
        found = []
        async for sent in bus.listen("an-older-1", heartbeat_s=0.01):
            if sent is None:
                bus.close()
            else:
                found.append(sent.event)
        return found

    kept = asyncio.run(heard())
    assert [(event.kind, event.step) for event in kept] == [
        ("run", None),
        ("samples", 19),
        ("alert", 19),
        ("samples", 21),
        ("alert", 21),
        ("run", 21),
    ]
