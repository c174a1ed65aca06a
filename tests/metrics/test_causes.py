"""What takes the updates of a window, told apart, and the words for it."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest
import torch

from roundoff.metrics import Sums, Totals, Track, causes, layer_verdict, run_verdict
from roundoff.metrics.causes import Cause
from roundoff.watch import measure, measure_moment

BF16, F16 = torch.bfloat16, torch.float16


def window(samples: int = 10, **figures: float) -> Totals:
    """Of a layer of 1,000 that tried to move all of itself; `figures` say what else."""
    known = {"numel": 1000, "attempted": 1000, "sum_uu": 1.0, "expected_roundings": 500.0}
    return Totals(samples=samples, **(known | figures))  # type: ignore[arg-type]


def test_underflow_and_rounding_share_the_lost_updates() -> None:
    """Of float16 weights at 1.0 three of four updates are lost, one because it is no number of the format."""
    u = torch.tensor([1e-9, 1e-4, -1e-4, 1e-2])
    w = torch.ones(4, dtype=F16)
    sums = measure(w, (w.float() + u).to(F16), u)
    assert (sums.lost, sums.underflowed) == (3, 1)
    found = causes(sums)
    assert found.rounding == pytest.approx(2 / 3)
    assert found.underflow == pytest.approx(1 / 3)
    assert found.dominant == "rounding"
    assert "67 % were rounded away and 33 % below the range of the format" in str(found)


def test_below_the_range_is_no_cause_where_a_float32_number_is_kept() -> None:
    told = window(lost=100, underflowed=400)
    assert causes(told, strategy="none").underflow == 1.0
    assert causes(told, strategy="fp32-master").underflow == 0.0
    assert causes(told, strategy="exact").rounding == 1.0


def test_the_second_moment_that_stays_too_high() -> None:
    v = torch.full((10,), 1.0, dtype=BF16)
    grad = torch.cat([torch.zeros(4), torch.full((6,), 1e-20)]).to(BF16)
    found = causes(measure_moment(v, v, grad, 0.999) + Sums(numel=10))
    assert (found.v_stuck, found.v_high) == (1.0, 1.0)
    assert found.v_underflow == 1.0
    assert str(found).startswith("The second moment is stuck for 100 %, too high for 100 %")


def test_decay_without_a_gradient() -> None:
    told = causes(window(lost=900, zero_grad=800, decay_attempted=1000, decay_lost=1000, sum_ua=0.1))
    assert told.decay_only == pytest.approx(800 / 900)
    assert told.decay == 1.0
    assert told.dominant == "decay"
    assert "up to 89 % of them are weight decay alone" in str(told)


def test_nothing_happened() -> None:
    assert causes(window()).dominant is None
    assert str(causes(window())) == ""
    assert str(causes(Totals())) == ""


def test_skipped_steps_and_numbers_that_are_not_finite_are_causes_of_their_own() -> None:
    found = causes(window(nonfinite=10, skipped=3))
    assert (found.nonfinite, found.skipped, found.lost) == (0.01, 3, 0)
    assert str(found) == (
        "1.0 % of the elements are not finite; a loss scaler skipped 3 tensor steps, which are not lost."
    )


STALLS: dict[Cause, tuple[Totals, str, str]] = {
    "rounding": (window(lost=900, sum_ua=0.1), "of its updates to rounding", "precision is the cause"),
    "underflow": (
        window(lost=900, underflowed=800, sum_ua=0.1),
        "of its updates below the range of the format",
        "float32 does",
    ),
    "decay": (
        window(lost=900, zero_grad=999, decay_attempted=1000, decay_lost=1000, sum_ua=0.1),
        "of its weight decay to rounding",
        "The gradients are zero there",
    ),
    "second-moment": (
        # Steps of 1e-5 under lr = 1e-3, where Adam's are about 3e-4 long.
        window(lost=900, v_attempted=1000, v_stuck=990, v_stuck_high=980, sum_uu=1e-7, sum_ua=1e-8),
        "its second moment is stuck too high",
        "far shorter than the learning rate",
    ),
}


@pytest.mark.parametrize("cause", STALLS)
def test_a_stall_names_what_takes_most(cause: Cause) -> None:
    total, headline, why = STALLS[cause]
    assert causes(total, lr=1e-3).dominant == cause
    layer = layer_verdict("stalling", total, lr=1e-3, remedy="Do this.")
    assert headline in layer.headline
    assert why in layer.explanation
    assert (
        "Only 10 % of the intended descent is stored, 90 % of the element updates are lost."
        in layer.explanation
    )
    assert layer.explanation.endswith(" Do this.")
    run = run_verdict("healthy", window(sum_ua=0.95), ["norm"], [], 9, hurt=total, lr=1e-3)
    assert headline in run.headline
    assert run.headline.startswith("1 of 9 layers ")
    assert "still stores 95 %" in run.explanation
    whole = run_verdict("stalling", total, ["a", "b"], [], 9, 70, lr=1e-3, remedy="Do this.")
    assert whole.explanation.startswith("Since step 70: only 10 %")
    assert why in whole.explanation
    assert whole.explanation.endswith("Worst: a and b. Do this.")
    assert headline.replace("its", "their") in whole.headline


def test_updates_far_below_lr_are_no_sign_of_v_where_it_does_not_stick() -> None:
    told = window(lost=900, v_attempted=1000, v_stuck=100, v_stuck_high=90, sum_uu=1e-7, sum_ua=1e-8)
    assert causes(told, lr=1e-3).dominant == "rounding"


@pytest.mark.parametrize(
    ("total", "lr", "median", "reason", "words"),
    [
        (window(lost=1000), 0.0, None, "lr", "The learning rate is 0"),
        (window(zero_grad=1000), 1e-3, None, "gradient", "No gradient arrives"),
        (window(attempted=0, sum_uu=0.0), 1e-3, None, "gradient", "No gradient arrives"),
        (window(attempted=0, sum_uu=0.0, skipped=10), 1e-3, None, "skipped", "A loss scaler skips"),
        (window(sum_uu=1e-9), 1e-3, 1.0, "updates", "The updates are 1e-05 of what they usually are"),
    ],
)
def test_why_it_is_idle(total: Totals, lr: float, median: float | None, reason: str, words: str) -> None:
    track = Track(previous=total)
    if median:
        track.norms = {0: 10}
    assert track.state(lr) == "idle"
    assert track.idle_reason(lr) == reason
    told = layer_verdict("idle", total, reason=track.idle_reason(lr), median_norm=median)
    assert told.explanation.startswith(words)
    assert run_verdict("idle", total, [], [], 3, reason=track.idle_reason(lr)).state == "idle"


def test_a_healthy_track_is_not_idle_for_any_reason() -> None:
    assert Track(previous=window(sum_ua=1.0)).idle_reason(1e-3) is None


def test_samples_that_come_quietly_say_why() -> None:
    track = Track()
    for _ in range(5):
        track.add(window(attempted=0, sum_uu=0.0, skipped=1))
    assert (track.state(1e-3), track.idle_reason(1e-3)) == ("idle", "skipped")
    assert track.silent.skipped == 5
    track.add(window(sum_ua=1.0))
    assert (track.state(1e-3), track.silent) == ("healthy", Totals())


def test_broken_says_how_many() -> None:
    told = layer_verdict("broken", window(nonfinite=70, numel=10_000))
    assert "70 of 10,000 element updates in the last 10 samples are" in told.explanation
    assert (
        "70 of 10,000" in run_verdict("broken", window(nonfinite=70, numel=10_000), [], ["x"], 3).explanation
    )


def test_look_alikes_are_healthy_and_say_so() -> None:
    deferred = layer_verdict("healthy", window(lost=2, invisible=990, sum_ua=1.0), strategy="plus")
    assert "99 % are deferred" in deferred.explanation
    by_chance = layer_verdict("healthy", window(lost=800, invisible=800, sum_ua=1.01), strategy="stochastic")
    assert "moves the others further" in by_chance.explanation
    assert layer_verdict("healthy", window(lost=1, invisible=1, sum_ua=1.0)).explanation.endswith("lost.")
    assert layer_verdict(None, Totals()).headline == "No verdict yet."


def test_a_track_that_was_stored_before_causes_were_kept_still_loads() -> None:
    half = {
        "samples": 5, "numel": 5000, "zero_grad": 0, "attempted": 5000, "lost": 4500, "nonfinite": 0,
        "sum_uu": 1.0, "sum_ua": 0.1, "expected_roundings": 100.0,
    }  # fmt: skip
    old = {"previous": half, "current": half, "norms": {"-2": 10}, "quiet": 0}
    track = Track.from_dict(json.loads(json.dumps(old)))
    assert track.state(1e-3) == "stalling"
    assert (track.window.lost, track.window.underflowed, track.silent) == (9000, 0, Totals())
    silent = Track.from_dict(old | {"quiet": 5})
    assert (silent.state(), silent.idle_reason()) == ("idle", "gradient")
    assert Track.from_dict(json.loads(json.dumps(track.to_dict()))) == track


def test_totals_of_a_row_and_of_sums_are_the_same_columns() -> None:
    u = torch.full((100,), 1e-3)
    w = torch.ones(100, dtype=BF16)
    sums = measure(w, (w.float() + u).to(BF16), u)
    total = Totals.of_sums(sums)
    assert (total.samples, total.attempted, total.lost, total.invisible) == (1, 100, 100, 100)
    assert total.expected_roundings == pytest.approx(100 * 2.0**-2.5)
    assert Totals.from_dict(asdict(total)) == total
    assert (total + total).lost == 200
