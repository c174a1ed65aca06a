"""What takes the updates of a run, and why one is idle, in the words of a run's summary."""

from __future__ import annotations

from typing import Any

import pytest
import sending as s
from calling import Api
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from roundoff_server.models import Scope

SKIPPED: s.Row = {"numel": 1000, "skipped": 1}
SILENT: s.Row = {"numel": 1000}


def run(api: Api, model: s.Row, *layers: s.Row, **settings: Any) -> dict[str, Any]:
    """The summary of a run whose steps 10 to 29 all look like this."""
    api.put(s.start())
    api.post(s.batch(0, layers=s.layers("norm.weight", "head.weight")))
    for first in range(10, 30, 5):
        api.post(s.batch(first, **s.steps_of(range(first, first + 5), model, *layers, **settings)))
    found: dict[str, Any] = api.get("runs/r1")
    return found


@pytest.mark.parametrize(
    ("figures", "headline"),
    [
        ({}, "lose most of their updates to rounding."),
        ({"underflowed": 900}, "lose most of their updates below the range of the format."),
        (
            {"zero_grad": 950, "decay_attempted": 1000, "decay_lost": 1000},
            "lose most of their weight decay to rounding, where no gradient arrives.",
        ),
        (
            {"v_attempted": 1000, "v_stuck": 990, "v_stuck_high": 900, "sum_uu": 1e-9, "sum_ua": 0.0},
            "take steps too small to store: their second moment is stuck too high.",
        ),
    ],
)
def test_a_stall_names_its_cause(api: Api, figures: dict[str, float], headline: str) -> None:
    stalled = {**s.STALLED, **figures}
    whole = run(api, stalled, stalled, stalled)
    assert whole["headline"] == f"2 of 2 layers {headline}"


def test_of_layers_alone_their_own_sums_say_the_cause(api: Api) -> None:
    stalled = {**s.STALLED, "underflowed": 900}
    told = run(api, s.HEALTHY, stalled, s.HEALTHY)
    assert told["headline"] == "1 of 2 layers loses most of its updates below the range of the format."
    assert "91 % below the range of the format (underflow)" in told["explanation"]


@pytest.mark.parametrize(
    ("row", "lr", "words"),
    [
        (SKIPPED, 1e-3, "A loss scaler skips the steps"),
        (SILENT, 1e-3, "No gradient arrives"),
        (s.STALLED, 0.0, "The learning rate is 0"),
    ],
)
def test_why_a_run_is_idle(api: Api, row: s.Row, lr: float, words: str) -> None:
    told = run(api, row, row, row, lr=lr)
    assert told["health"] == "idle"
    assert told["explanation"].startswith(words)


def test_tracks_that_an_earlier_version_stored_go_on(api: Api) -> None:
    """Without the columns and the silent samples that causes are told from."""
    run(api, s.STALLED, s.STALLED, s.HEALTHY)
    with Session(api.database.engine) as session:
        for scope in session.scalars(select(Scope)).all():
            old = {name: value for name, value in scope.track.items() if name != "silent"}
            for half in ("previous", "current"):
                names = list(old[half])[:9]  # up to expected_roundings
                old[half] = {name: old[half][name] for name in names}
            where = (Scope.run == scope.run) & (Scope.layer == scope.layer)
            session.execute(update(Scope).where(where).values(track=old))
        session.commit()
    later = api.restart()
    later.post(s.batch(30, **s.steps_of(range(30, 35), s.STALLED, s.STALLED, s.HEALTHY)))
    assert later.get("runs/r1")["health"] == "stalling"


def test_nothing_is_said_of_layers_of_which_only_the_visible_change_is_known(api: Api) -> None:
    api.put(s.start())
    both = s.layers("norm.weight", "head.weight", strategy="sampled-AdamW")
    seen = [*s.layers("norm.weight", strategy="visible-Prodigy"), both[1]]
    api.post(s.batch(0, layers=seen))
    for first in range(10, 30, 5):
        rows = s.steps_of(range(first, first + 5), s.STALLED, SILENT, s.STALLED)
        api.post(s.batch(first, **rows))
    found = api.get("runs/r1")
    assert (found["health"], found["layers_stalling"]) == ("stalling", 1)
    assert found["strategy"] == "Prodigy+AdamW"
    layers = {layer["name"]: (layer["strategy"], layer["health"]) for layer in api.get("runs/r1/layers")}
    assert layers == {
        "norm.weight": ("visible-Prodigy", None), "head.weight": ("sampled-AdamW", "stalling"),
    }  # fmt: skip


def test_there_is_no_verdict_on_a_run_of_which_only_the_visible_change_is_known(api: Api) -> None:
    api.put(s.start())
    api.post(s.batch(0, layers=s.layers("norm.weight", "head.weight", strategy="visible-LBFGS")))
    for first in range(10, 30, 5):
        api.post(s.batch(first, **s.steps_of(range(first, first + 5), SILENT, SILENT, SILENT)))
    found = api.get("runs/r1")
    assert (found["health"], found["headline"]) == (None, "No verdict yet.")
