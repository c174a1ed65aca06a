"""The columns of many scopes against one scope after another."""

from __future__ import annotations

import math
import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from pydantic_core import from_json, to_json

from roundoff.metrics import COUNTS
from roundoff_server.services.stagnation import Watched
from roundoff_server.services.tracks import NAMES, Evidence, Tracks

LAYERS = 12
READ = [name for name in NAMES if name != "samples"]


def sample(draw: random.Random, mood: float) -> dict[str, float]:
    """Any sample that can occur; `mood` decides how much is lost, so that a scope stalls for a while and recovers."""
    kind = draw.random()
    numel = draw.choice([1, 50, 10_000, 2**40])
    attempted = 0 if kind < 0.1 else draw.randrange(1, numel + 1)
    efficiency = max(0.0, draw.gauss(1 - mood, 0.1))
    energy = draw.choice([1e-200, 4.0**-20, 1e-6, 3.0] * 9 + [0.0, math.inf])
    return {
        **dict.fromkeys(READ, 0),
        "numel": numel,
        "attempted": attempted,
        "zero_grad": numel if kind < 0.15 else numel - attempted,
        "lost": int(attempted * min(1.0, max(0.0, draw.gauss(mood, 0.1)))),
        "nonfinite": draw.choice([0] * 60 + [3]),
        "skipped": draw.choice([0, 0, 0, 1]),
        "sum_uu": energy,
        "sum_ua": energy * efficiency,
        "expected_roundings": draw.choice([0.5, 12.0, 29.9, 30.0, 1e4]),
    }


@pytest.mark.parametrize("seed", range(6))
def test_columns_do_what_one_scope_does(seed: int) -> None:
    draw = random.Random(seed)
    single = [Watched(layer) for layer in range(LAYERS + 1)]
    tracks = Tracks(LAYERS)
    seen: set[tuple[str | None, bool]] = set()
    for step in range(400):
        layers = sorted(draw.sample(range(LAYERS + 1), draw.randrange(1, LAYERS + 2)))
        mood = 0.5 + 0.5 * math.sin(step / 30)
        rows = [sample(draw, mood) for _ in layers]
        rates = [draw.choice([1e-3] * 20 + [0.0, math.nan]) for _ in layers]
        at = step - draw.choice([0] * 20 + [3])  # now and then a step that is known already
        for layer, row, lr in zip(layers, rows, rates, strict=True):
            if at > single[layer].last_step:
                single[layer].advance(at, SimpleNamespace(**row), None if math.isnan(lr) else lr)
        columns = {
            name: np.array([row[name] for row in rows], dtype="i8" if name in COUNTS else "f8")
            for name in READ
        }
        tracks.advance(Evidence(at, np.array(layers), columns, np.array(rates)))
        everything = np.ones(LAYERS + 1, dtype=bool)
        assert as_json(tracks.watched(everything)) == as_json(single)
        seen |= {(scope.health, scope.firing) for scope in single}
        if step % 50 == 0:
            tracks = again(tracks)
    assert {health for health, _ in seen} == {None, "healthy", "stalling", "idle", "broken"}
    assert {("stalling", True), ("healthy", True)} <= seen


def as_json(scopes: list[Watched]) -> list[Any]:
    return [
        from_json(
            to_json(
                [
                    s.layer,
                    s.track.to_dict(),
                    s.last_step,
                    s.health,
                    s.streak,
                    s.since_step,
                    s.firing,
                    s.lost,
                    s.efficiency,
                ],
                inf_nan_mode="strings",
            )
        )
        for s in scopes
    ]


def again(tracks: Tracks) -> Tracks:
    """Stored as JSON and read back."""
    stored = from_json(to_json(list(tracks.stored(np.arange(LAYERS + 1))), inf_nan_mode="strings"))
    fresh = Tracks(LAYERS)
    fresh.load([SimpleNamespace(**row) for row in stored], [row["track"] for row in stored])
    return fresh
