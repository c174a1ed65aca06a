"""Forecasts from one histogram against what rounding then does."""

from __future__ import annotations

import math

import pytest
import torch

from roundoff.metrics import Sums, descent_efficiency, lost_fraction
from roundoff.metrics.forecast import Crossing, Part, crossings, efficiency_at, lost_fraction_at
from roundoff.watch import measure

BF16 = torch.bfloat16


def step(factor: float, *, pair: bool = False) -> Sums:
    """One step of a layer of 200,000 weights whose updates span three orders of magnitude, times `factor`."""
    generator = torch.Generator().manual_seed(3)
    hi = (torch.randn(200_000, generator=generator) * 0.05).to(BF16)
    u = torch.randn(200_000, generator=generator) * 1e-4
    u = u * 10 ** (torch.rand(200_000, generator=generator) * 2 - 1) * factor
    if not pair:
        return measure(hi, (hi.float() + u).to(BF16), u)
    gap = torch.exp2(torch.frexp(hi.float()).exponent - 8.0)
    lo = ((torch.rand(200_000, generator=generator) - 0.5) * gap).to(BF16)
    u = u * 2.0**-9
    total = hi.float() + (lo.float() + u)
    after = total.to(BF16)
    return measure(hi, after, u, lo=lo, lo_after=(total - after.float()).to(BF16))


FACTORS = [2.0, 1.0, 0.7, 0.5, 0.3, 0.1, 0.03, 0.01]


@pytest.mark.parametrize("factor", FACTORS)
def test_a_word_at_another_learning_rate(factor: float) -> None:
    now, then = step(1.0), step(factor)
    assert lost_fraction_at(now, factor) == pytest.approx(lost_fraction(then), abs=0.01)
    # Within a bin the energy is taken to be even in the logarithm, which it is not quite.
    assert efficiency_at(now, factor) == pytest.approx(descent_efficiency(then), abs=0.05)


@pytest.mark.parametrize("factor", FACTORS)
def test_a_pair_at_another_learning_rate(factor: float) -> None:
    now, then = step(1.0, pair=True), step(factor, pair=True)
    assert lost_fraction_at(now, factor, "pair") == pytest.approx(lost_fraction(then), abs=0.1)


def test_without_a_change_the_lost_fraction_is_the_measured_one() -> None:
    now = step(1.0)
    assert lost_fraction_at(now, 1.0) == lost_fraction(now)


def histogram(**bins: float) -> Sums:
    """`m3=5` is 5 elements in bin −3, each of energy 1."""
    counts = [0.0] * 33
    for name, count in bins.items():
        counts[int(name[1:]) * (-1 if name[0] == "m" else 1) + 24] = count
    return Sums(headroom=tuple(int(n) for n in counts), headroom_energy=tuple(counts))


def test_bins_shift_by_the_binary_logarithm() -> None:
    sums = histogram(m2=1, m1=1, p0=2)
    assert lost_fraction_at(sums, 1.0) == 0.25
    assert lost_fraction_at(sums, 0.5) == 0.5
    assert lost_fraction_at(sums, 0.25) == 1.0
    assert lost_fraction_at(sums, 2.0) == 0.0
    assert lost_fraction_at(sums, 2.0**-0.5) == 0.375  # half of the bin that straddles


def test_what_is_rounded_up_counts_as_more_than_was_meant() -> None:
    assert efficiency_at(histogram(m1=1), 1.0) == pytest.approx(4 / 3)
    assert efficiency_at(histogram(m2=1), 1.0) == 0.0
    assert efficiency_at(histogram(p0=1), 1.0) == pytest.approx(1.0)
    assert efficiency_at(histogram(p8=1), 4.0) == 1.0


@pytest.mark.parametrize(("k", "share"), [(-1, 0.0), (-2, 0.0), (-3, 0.5), (-4, 0.75)])
def test_bins_of_a_pair(k: int, share: float) -> None:
    assert lost_fraction_at(histogram(**{f"m{-k}": 10}), 1.0, "pair") == share


def test_nothing_tried_is_no_share() -> None:
    assert lost_fraction_at(Sums(), 0.5) is None
    assert efficiency_at(Sums(), 0.5) is None
    assert crossings([Part(Sums(), 1e-3, {0: 1e-3, 1: 1e-4})]) == []


def test_crossings_on_a_schedule() -> None:
    schedule = {n: 1e-3 * (1 + math.cos(math.pi * n / 1000)) / 2 for n in range(1001)}
    sums = step(1.0)
    found = crossings([Part(sums, 1e-3, schedule)])
    assert [one.step for one in found] == sorted(one.step for one in found)
    for one in (one for one in found if one.step > 0):
        before = schedule[one.step - 1] / 1e-3
        value = lost_fraction_at if one.figure == "lost_fraction" else efficiency_at
        then, earlier = value(sums, one.lr / 1e-3), value(sums, before)
        assert then is not None
        assert earlier is not None
        assert (then >= one.level > earlier) or (then < one.level <= earlier)
    assert {(one.figure, one.level) for one in found} >= {("lost_fraction", 0.9), ("descent_efficiency", 0.5)}
    assert all(one.lr > 0 for one in found)


def test_what_is_past_already_is_named_with_the_first_step() -> None:
    found = crossings([Part(histogram(m5=10), 1e-3, {7: 1e-3, 8: 1e-4})])
    assert found[0] == Crossing("lost_fraction", 0.1, 7, 1e-3)


def test_a_pair_is_told_no_efficiency() -> None:
    found = crossings([Part(histogram(m1=10), 1.0, {0: 1.0, 1: 0.1, 2: 0.01}, "pair")])
    assert {one.figure for one in found} == {"lost_fraction"}


@pytest.mark.parametrize("lr", [0.0, -1.0, math.nan])
def test_a_sample_without_a_learning_rate_says_so(lr: float) -> None:
    with pytest.raises(ValueError, match="learning rate above 0"):
        crossings([Part(histogram(m1=1), lr, {0: 1.0})])


def test_a_factor_of_0_says_so() -> None:
    with pytest.raises(ValueError, match="tries nothing"):
        lost_fraction_at(histogram(m1=1), 0.0)


def test_parts_with_learning_rates_of_their_own_count_together() -> None:
    still, falling = {0: 1.0, 1: 1.0, 2: 1.0}, {0: 1.0, 1: 0.5, 2: 0.0}
    parts = [Part(histogram(m1=30), 1.0, still), Part(histogram(m1=10), 1.0, falling)]
    assert crossings(parts) == [
        Crossing("lost_fraction", 0.1, 1, 1.0)
    ]  # 10 of 40; at step 2 they are not tried
    with pytest.raises(ValueError, match="the same steps"):
        crossings([parts[0], Part(histogram(m1=1), 1.0, {0: 1.0})])


def test_a_long_schedule_is_halved_down_to_the_step() -> None:
    schedule = {n: 2.0 ** (-(n + 0.5) / 10_000) for n in range(100_000)}
    found = {
        one.level: one.step
        for one in crossings([Part(histogram(m1=1), 1.0, schedule)])
        if one.figure[0] == "l"
    }
    assert found == {0.1: 1000, 0.5: 5000, 0.9: 9000}
