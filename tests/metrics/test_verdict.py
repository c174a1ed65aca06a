"""The verdict, and every look-alike that must not be called a stall."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import pytest

from roundoff.metrics import Totals, Track, judge, name_some, percent, run_verdict
from roundoff.metrics.verdict import STALL_EVIDENCE, WINDOW_SAMPLES


def row(
    lost: float = 0.9, efficiency: float = 0.1, norm: float = 1.0, evidence: float = 100.0, nonfinite: int = 0
):  # type: ignore[no-untyped-def]
    return SimpleNamespace(
        numel=1000, zero_grad=0, attempted=1000, lost=int(1000 * lost), nonfinite=nonfinite, sum_uu=norm**2,
        sum_ua=efficiency * norm**2, expected_roundings=evidence,
    )  # fmt: skip


def judged(n: int = 20, lr: float | None = 1e-3, **kw: float) -> str | None:
    track = Track()
    for _ in range(n):
        track.add(row(**kw))  # type: ignore[arg-type]
    return track.state(lr)


def test_the_four_states() -> None:
    assert judged() == "stalling"
    assert judged(lost=0.1, efficiency=0.99) == "healthy"
    assert judged(nonfinite=1) == "broken"
    assert judged(lr=0.0) == "idle"
    assert judged(n=0) is None


def test_lost_fraction_alone_is_no_damage() -> None:
    """Half of all element updates lost while 92 % of the descent arrived: healthy."""
    assert judged(lost=0.6, efficiency=0.92) == "healthy"


def test_low_efficiency_without_losses_is_no_stall() -> None:
    assert judged(lost=0.2, efficiency=0.3) == "healthy"


def test_a_small_learning_rate_with_full_efficiency_is_healthy() -> None:
    assert judged(lr=1e-12, lost=0.0, efficiency=1.0) == "healthy"


def test_nothing_attempted_is_idle() -> None:
    assert judge(Totals(samples=5)) == "idle"


def test_all_zero_gradients_are_idle_though_decay_is_lost() -> None:
    dead = Totals(
        samples=10, numel=100, zero_grad=100, attempted=100, lost=100, sum_uu=1.0, expected_roundings=99.0
    )
    assert judge(dead) == "idle"


def test_a_stalled_layer_whose_gradients_stop_is_idle_and_comes_back() -> None:
    track = Track()
    for _ in range(20):
        track.add(row())
    assert track.state() == "stalling"
    nothing = row()
    nothing.attempted = 0
    for _ in range(WINDOW_SAMPLES):
        track.add(nothing)
    assert track.state() == "idle"
    track.add(row())
    assert track.state() == "stalling"


def test_too_little_evidence_decides_nothing_until_it_has_added_up() -> None:
    per_sample = 1.0
    needed = math.ceil(STALL_EVIDENCE / per_sample)
    assert judged(n=needed - 1, evidence=per_sample) == "healthy"
    assert judged(n=needed, evidence=per_sample) == "stalling"


def test_updates_far_below_the_layers_own_are_idle() -> None:
    track = Track()
    for _ in range(50):
        track.add(row(norm=1.0, lost=0.0, efficiency=1.0))
    for _ in range(2 * WINDOW_SAMPLES):
        track.add(row(norm=1e-4))
    assert track.state(1e-9) == "idle"
    assert track.median_norm == pytest.approx(1.0, rel=0.5)


def test_the_window_forgets_within_two_halves() -> None:
    track = Track()
    for _ in range(200):
        track.add(row(lost=0.0, efficiency=1.0))
    taken = 0
    while track.state() != "stalling":
        track.add(row(lost=1.0, efficiency=0.0))
        taken += 1
    assert WINDOW_SAMPLES // 2 < taken <= 2 * WINDOW_SAMPLES
    assert track.window.samples <= 2 * WINDOW_SAMPLES


def test_a_track_survives_json() -> None:
    track = Track()
    for n in range(23):
        track.add(row(norm=10.0 ** (n % 5 - 2)))
    back = Track.from_dict(json.loads(json.dumps(track.to_dict())))
    assert back == track
    assert back.state() == track.state()


def test_overflowed_sums_do_not_break_a_track() -> None:
    track = Track()
    track.add(row(norm=math.inf))
    track.add(row(norm=1.0))
    assert track.median_norm is not None


def test_the_sentences() -> None:
    window = Totals(10, 1000, 0, 1000, 850, 0, 1.0, 0.38, 500.0)
    told = run_verdict("stalling", window, ["a.weight", "b", "c", "d"], [], 53, 500)
    assert told.headline == "4 of 53 layers lose most of their updates to rounding."
    assert told.explanation.startswith("Since step 500: only 38 % of the intended descent is stored, 85 % ")
    assert told.explanation.endswith("Worst: a.weight, b, c and 1 more.")
    alone = run_verdict("healthy", Totals(10, 1000, 0, 1000, 10, 0, 1.0, 0.92, 500.0), ["norm"], [], 53)
    assert alone.state == "stalling"
    assert alone.headline == "1 of 53 layers loses most of its updates to rounding."
    assert "still stores 92 %" in alone.explanation
    assert run_verdict("healthy", window, [], [], 3).headline == "Precision is not hurting this run."
    assert run_verdict("healthy", window, [], ["x"], 3).state == "broken"
    assert run_verdict("idle", window, [], [], 3).state == "idle"
    assert run_verdict(None, Totals(), [], [], 3).state is None


@pytest.mark.parametrize(
    ("share", "text"),
    [(None, "n/a"), (0.0, "0 %"), (0.003, "0.3 %"), (0.714, "71 %"), (0.994, "99.4 %"), (1.0, "100 %")],
)
def test_percent(share: float | None, text: str) -> None:
    assert percent(share) == text


def test_name_some() -> None:
    assert name_some(["a"]) == "a"
    assert name_some(["a", "b"]) == "a and b"
    assert name_some(list("abcde")) == "a, b, c and 2 more"
