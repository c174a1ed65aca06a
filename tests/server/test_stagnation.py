"""The rule as a state machine, without a database."""

from __future__ import annotations

from types import SimpleNamespace

import sending as s

from roundoff_server.services.stagnation import CLEAR_EFFICIENCY, FOR_SAMPLES, Watched, headline


def sample(efficiency: float = 0.0, lost: int = 990, evidence: float = 100.0) -> SimpleNamespace:
    row = {
        **s.STALLED,
        "sum_ua": 4.0 * efficiency,
        "lost": lost,
        "expected_roundings": evidence,
        "nonfinite": 0,
    }
    return SimpleNamespace(**row)


def follow(watched: Watched, *samples: SimpleNamespace, lr: float | None = 1e-3) -> list[bool]:
    seen = []
    for row in samples:
        watched.advance(watched.last_step + 1, row, lr)
        seen.append(watched.firing)
    return seen


def test_fires_on_the_fifth_stalling_sample_and_not_before() -> None:
    watched = Watched(1)
    assert follow(watched, *[sample()] * FOR_SAMPLES) == [False] * (FOR_SAMPLES - 1) + [True]
    assert (watched.since_step, watched.streak) == (0, 5)


def test_a_healthy_sample_starts_the_count_again() -> None:
    watched = Watched(1)
    follow(watched, *[sample()] * 4)
    assert watched.pending
    follow(watched, sample(efficiency=4.0))
    assert (watched.health, watched.pending, watched.since_step) == ("healthy", False, None)


def test_clears_only_above_the_clear_threshold() -> None:
    watched = Watched(1)
    follow(watched, *[sample()] * 10)
    between = follow(watched, *[sample(0.6, lost=100)] * 12)
    assert (watched.health, set(between)) == ("healthy", {True}), "between the thresholds it goes on firing"
    assert watched.efficiency is not None
    assert watched.efficiency < CLEAR_EFFICIENCY
    follow(watched, *[sample(0.9, lost=100)] * 12)
    assert (watched.firing, watched.streak, watched.since_step) == (False, 0, None)
    assert follow(watched, *[sample(-0.5)] * 20)[-1], "it may fire again"


def test_what_looks_like_a_stall_and_is_none() -> None:
    for lr, row in (
        (0.0, sample()),
        (1e-3, sample(evidence=0.1)),
        (1e-3, sample(efficiency=0.92)),
        (1e-3, sample(lost=400)),
        (
            1e-3,
            SimpleNamespace(**{**vars(sample()), "attempted": 0, "lost": 0, "sum_uu": 0.0, "sum_ua": 0.0}),
        ),
        (1e-3, SimpleNamespace(**{**vars(sample()), "nonfinite": 1})),
    ):
        assert not any(follow(Watched(1), *[row] * 20, lr=lr)), row


def test_words() -> None:
    model, layer = Watched(0), Watched(1)
    follow(model, *[sample(0.29, lost=890)] * 5)
    follow(layer, *[sample(0.01)] * 5)
    model.since_step = 1200
    assert "rounding. Stalling, the first of them since step 300: 1 of 52" in headline(
        model, True, [layer], ["head"], 52, 300
    )
    assert headline(model, True, [layer], ["head"], 52, 1200) == (
        "Since step 1,200 only 29 % of the intended descent is stored; 89 % of the element updates are lost to "
        "rounding. Stalling: 1 of 52 layers: head."
    )
    follow(model, *[sample(0.95)] * 20)
    assert headline(model, False, [layer] * 4, ["a", "b", "c"], 52, 10) == (
        "Since step 10 rounding takes 99 % of the element updates in 4 of 52 layers: a, b, c and 1 more. They "
        "store 1.0 % of their descent; the model as a whole stores 95 %."
    )
