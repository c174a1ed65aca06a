"""Headroom, forecast, advice and comparison over REST: the same as from the numbers that were sent."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import sending as s
import torch
from calling import Api

import roundoff
from roundoff.metrics import HEADROOM_BINS, HEADROOM_LOW, Sums
from roundoff.metrics.forecast import Part, crossings
from roundoff.wire import Column, Finding, Headroom

STEPS = range(0, 60, 2)


def histogram(centre: int, elements: int = 1000) -> tuple[np.ndarray, np.ndarray]:
    """Counts and energies around a headroom, as updates of a layer have them."""
    k = np.arange(HEADROOM_BINS) + HEADROOM_LOW
    share = np.exp2(-np.abs(k - centre).astype("f8"))
    counts = np.floor(elements * share / share.sum()).astype("i8")
    return counts, counts * np.exp2(2.0 * k)


def headroom(steps: range, centres: dict[int, int]) -> Headroom:
    """The same histograms at each step, by declared layer."""
    keys = [(step, layer) for step in steps for layer in centres]
    parts = [histogram(centres[layer]) for _, layer in keys]
    return Headroom(
        step=Column.ints(step for step, _ in keys),
        layer=Column.ints(layer for _, layer in keys),
        counts=Column.ints(np.concatenate([counts for counts, _ in parts]).tolist()),
        energy=Column.floats(np.concatenate([energy for _, energy in parts]).tolist()),
    )


@pytest.fixture
def told(api: Api) -> Api:
    """A run of two layers, one that stalls and one that is well, with histograms and a learning rate."""
    api.put(s.start())
    rows = {(0, step): s.STALLED for step in STEPS} | {(1, step): s.HEALTHY for step in STEPS}
    api.post(
        s.batch(
            layers=s.layers("blocks.0.norm", "blocks.0.mlp"),
            model=s.model_samples(dict.fromkeys(STEPS, s.STALLED)),
            samples=s.layer_samples(rows),
            headroom=headroom(STEPS, {0: -4, 1: 6}),
            groups=s.groups(dict.fromkeys(STEPS, 1e-3)),
        )
    )
    return api


def test_histograms_are_added_up_over_layers(told: Api) -> None:
    one = told.get("runs/r1/headroom", layer="blocks.0.norm", max_steps=5)
    assert one["steps"] == [0, 14, 28, 44, 58] or (one["steps"][-1] == 58 and len(one["steps"]) == 5)
    assert (one["low"], one["lr"]) == (HEADROOM_LOW, [1e-3] * 5)
    counts, energy = histogram(-4)
    assert one["counts"][0] == counts.tolist()
    assert one["energy"][0] == energy.tolist()
    both = told.get("runs/r1/headroom", step=31)
    assert both["steps"] == [30]
    assert both["counts"][0] == (counts + histogram(6)[0]).tolist()
    assert told.get("runs/r1/headroom", layer="blocks.0", step=31)["counts"] == both["counts"]
    assert told.get("runs/r1/headroom", max_steps=1000)["steps"] == list(STEPS)


def test_a_run_without_histograms_has_none(api: Api) -> None:
    api.put(s.start())
    api.post(s.batch(layers=s.layers("a"), samples=s.layer_samples({(0, 0): s.HEALTHY})))
    assert api.get("runs/r1/headroom")["steps"] == []
    for path in ("forecast", "advice"):
        answer = api.http.get(f"/api/v1/runs/r1/{path}")
        assert (answer.status_code, "no histograms" in answer.json()["detail"]) == (404, True)
    assert api.http.get("/api/v1/runs/r1/headroom", params={"layer": "nothing"}).status_code == 404


def test_the_forecast_is_that_of_the_histograms(told: Api) -> None:
    found = told.get("runs/r1/forecast")
    assert (found["step"], found["lr"]) == (58, 1e-3)
    assert [layer["name"] for layer in found["layers"]] == ["blocks.0.norm", "blocks.0.mlp"]
    for layer, centre in (("blocks.0.norm", -4), ("blocks.0.mlp", 6)):
        counts, energy = histogram(centre)
        sums = Sums(headroom=tuple(counts.tolist()), headroom_energy=tuple(energy.tolist()))
        falling = {number: 1e-3 * 2 ** (-number / 8) for number in range(320)}
        expected = [(one.figure, one.level, one.lr) for one in crossings([Part(sums, 1e-3, falling)])]
        shown = next(one for one in found["layers"] if one["name"] == layer)
        assert [(one["figure"], one["level"], one["lr"]) for one in shown["crossed"]] == expected
        assert expected
    lost = {
        one["level"]: one["lr"] for one in found["layers"][1]["crossed"] if one["figure"] == "lost_fraction"
    }
    assert 1e-3 > lost[0.1] > lost[0.5] > lost[0.9]
    assert math.log2(1e-3 / lost[0.5]) == pytest.approx(6 + 1, abs=1.5), (
        "half of the resolution is what rounds away"
    )


def test_advice_is_that_of_the_newest_samples(told: Api) -> None:
    found = told.get("runs/r1/advice")
    assert (found["step"], found["samples"], found["used"]) == (58, 4, ["none"])
    by_name = {one["strategy"]: one for one in found["options"]}
    assert by_name["none"]["measured"]
    assert by_name["none"]["lost_fraction"] == pytest.approx((990 + 10) / 2000, abs=1e-3)
    assert by_name["plus"]["holds"]
    assert found["recommended"] in by_name
    assert found["recommended"] != "none"
    assert found["needing"][0] == "blocks.0.norm"
    assert found["recommended"] in found["text"]


def finding(kind: str = "eps", **fields: Any) -> Finding:
    return Finding(kind=kind, what="eps is 0", why="0 / 0", cure="set eps", **fields)


def test_findings_of_all_ranks_are_kept_once_and_go_with_the_attempt(api: Api) -> None:
    api.put(s.start(world_size=2))
    api.put(s.start(rank=1, world_size=2))
    api.post(s.batch(findings=[finding(), finding("decay", layers=["a"])]))
    api.post(s.batch(writer="w2", rank=1, findings=[finding(), finding("counter")]))
    assert [one["kind"] for one in api.get("runs/r1/findings")] == ["eps", "decay", "counter"]
    assert api.get("runs/r1/findings")[1]["layers"] == ["a"]
    api.put(s.start(token="t2", first_step=5))
    assert api.get("runs/r1/findings") == []
    assert api.http.get("/api/v1/runs/no/findings").status_code == 404


def test_a_client_sends_what_its_preflight_finds(server: str) -> None:
    model = torch.nn.Linear(4, 4).bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, betas=(0.9, 0.9999))
    run = roundoff.init("p", server=server)
    watch = run.watch(model, optimizer)
    run.finish()
    assert watch is not None
    assert watch.findings
    with roundoff.Client(server) as client:
        sent = client.findings(run.id)
    assert [(one.kind, one.why) for one in sent] == [(found.kind, found.why) for found in watch.findings]


def test_two_runs_side_by_side(told: Api) -> None:
    told.put(s.start(token="other"), "r2")
    told.post(s.batch(layers=s.layers("a"), model=s.model_samples(dict.fromkeys(STEPS, s.HEALTHY))), "r2")
    found = told.get("compare", runs="r2,r1", metric="lost_fraction")
    assert [one["run_id"] for one in found["runs"]] == ["r2", "r1"]
    assert found["runs"][1]["values"] == told.get("runs/r1/series", metric="lost_fraction")["values"]
    for runs, status in (
        ("r1", 422),
        ("r1,r1", 422),
        (",".join(f"r{n}" for n in range(11)), 422),
        ("r1,no", 404),
    ):
        assert told.http.get("/api/v1/compare", params={"runs": runs, "metric": "edq"}).status_code == status


def test_a_run_is_called_something_else(told: Api) -> None:
    answer = told.http.patch("/api/v1/runs/r1", json={"name": "new", "tags": ["x", "ü"]})
    assert answer.status_code == 200
    shown = told.get("runs/r1")
    assert (shown["project"], shown["name"], shown["tags"]) == ("demo", "new", ["x", "ü"])
    assert answer.json() == shown
    assert told.http.patch("/api/v1/runs/r1", json={"state": "finished"}).status_code == 422
    assert told.http.patch("/api/v1/runs/r1", json={"name": ""}).status_code == 422
    assert told.http.patch("/api/v1/runs/no", json={}).status_code == 404
    assert told.get("runs/r1") == shown


def test_runs_by_tag_and_in_every_order(api: Api, clock: object) -> None:
    for number, (name, tags, row) in enumerate(
        [
            ("b", ["x"], s.HEALTHY),
            ("A", ["x", "y z"], s.STALLED),
            ("c", [], {**s.HEALTHY, "sum_ua": 3.0}),
            ("a", ["xx"], None),
        ]
    ):
        run_id = f"r{number}"
        api.put(s.start(token=run_id, name=name, tags=tags), run_id)
        if row is not None:
            model = s.model_samples(dict.fromkeys(range(0, 60), row))
            api.post(s.batch(writer=run_id, layers=s.layers("a"), model=model), run_id)

    def listed(**asked: object) -> list[str]:
        found, cursor = [], None
        while True:
            page = api.get("runs", limit=1, **asked, **({"cursor": cursor} if cursor else {}))
            found += [run["id"] for run in page["runs"]]
            cursor = page["next_cursor"]
            if cursor is None:
                return found

    assert listed() == listed(sort="newest") == ["r3", "r2", "r1", "r0"]
    assert listed(sort="oldest") == ["r0", "r1", "r2", "r3"]
    assert listed(sort="name")[-2:] == ["r0", "r2"]
    assert sorted(listed(sort="seen")) == ["r0", "r1", "r2", "r3"]
    assert listed(sort="efficiency") == ["r1", "r2", "r0", "r3"]
    assert listed(tag="x", sort="oldest") == ["r0", "r1"]
    assert listed(tag="y z") == ["r1"]
    assert listed(tag="nothing") == []
    assert api.http.get("/api/v1/runs", params={"sort": "best"}).status_code == 422
    for cursor in ("x", "W10", "WzEsMV0x!", "bnVsbA"):
        answer = api.http.get("/api/v1/runs", params={"cursor": cursor})
        assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "cursor"), cursor
