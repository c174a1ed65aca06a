"""float8 weights in one, two and three words: what is stored of their steps, against rational numbers."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from float8_weights import (
    E4M3,
    E5M2,
    PLANS,
    WORDS,
    every_plan,
    grown,
    needs_grad_dtype,
    steps_by,
    weights,
    words_by_hand,
    words_of,
)

from rationals import exact
from roundoff.kernels import Step, Update
from roundoff.kernels.reference import step_fp32
from roundoff.metrics import descent_efficiency, lost_fraction
from roundoff.numerics import FORMATS, round_to
from roundoff.optim import STRATEGIES, CollageAdamW
from roundoff.optim.state import initial_state
from roundoff.optim.strategies import FLOAT8_DTYPES, Strategy

pytestmark = needs_grad_dtype
formats = pytest.mark.parametrize("dtype", FLOAT8_DTYPES, ids=str)

HUNDRED = {
    # (format, u): how far 100 steps of u take a weight of 1.0 in one, two and three words
    (E4M3, 2.0**-9): (0.0, 2.0**-5, 100 * 2.0**-9),
    (E4M3, -(2.0**-9)): (0.0, -100 * 2.0**-9, -100 * 2.0**-9),
    (E4M3, 0.001): (0.0, 2.0**-5, 100 * 2.0**-9),  # rounded up to 2⁻⁹ each time
    (E4M3, 2.0**-10): (0.0, 0.0, 0.0),
    (E5M2, 2.0**-7): (0.0, 2.0**-4, 100 * 2.0**-7),
    (E5M2, 2.0**-10): (0.0, 2.0**-7, 100 * 2.0**-10),
    (E5M2, -(2.0**-10)): (0.0, -(2.0**-7), -100 * 2.0**-10),
    (E5M2, 0.001): (0.0, 2.0**-6, 0.0986328125),
    (E5M2, 2.0**-13): (0.0, 2.0**-10, 100 * 2.0**-13),
}


@pytest.mark.parametrize(("dtype", "u"), HUNDRED, ids=str)
@pytest.mark.parametrize("strategy", PLANS)
def test_a_hundred_small_steps_from_one(strategy: str, dtype: torch.dtype, u: float) -> None:
    single = torch.tensor(u).item()  # lr as float32 arithmetic takes it
    got, sums = steps_by(u, strategy, dtype, 100, 1.0)
    assert got == [float(word) for word in words_by_hand(single, WORDS[strategy], dtype, 100, 1.0)]
    moved = sum(got) - 1.0
    assert moved == HUNDRED[dtype, u][WORDS[strategy] - 1]
    assert sums.attempted == 300
    if moved == 0:
        assert lost_fraction(sums) == 1.0
    arrived = descent_efficiency(sums)
    assert arrived is not None
    assert arrived == pytest.approx(moved / (100 * single), abs=1e-6)


@pytest.mark.parametrize(
    ("dtype", "start"), [(E4M3, 0.0625), (E4M3, 40.0), (E5M2, 0.0625), (E5M2, 3.5)], ids=str
)
@pytest.mark.parametrize("strategy", ["none", "light", "light-3"])
@pytest.mark.parametrize("share", [0.3, -0.07, 0.011, -0.0017])
def test_other_weights_too(strategy: str, dtype: torch.dtype, start: float, share: float) -> None:
    u = torch.tensor(start * share, dtype=torch.float32).item()
    start = round_to(torch.tensor(start), dtype).item()
    got, _ = steps_by(u, strategy, dtype, 12, start)
    assert got == [float(word) for word in words_by_hand(u, WORDS[strategy], dtype, 12, start)]


@pytest.mark.parametrize("strategy", ["light-3", "plus-3"])
@formats
def test_below_half_of_the_smallest_number_no_word_helps(strategy: str, dtype: torch.dtype) -> None:
    half = FORMATS[dtype].smallest / 2
    for start in (0.0, 2.0**-5, 1.0, 100.0):
        words, sums = steps_by(half, strategy, dtype, 5, round_to(torch.tensor(start), dtype).item())
        assert words[1:] == [0.0, 0.0]
        assert (sums.lost, sums.attempted, sums.underflowed) == (15, 15, 15)


@every_plan
def test_statistics_are_those_of_rational_numbers(strategy: str, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(4)
    start = torch.randn(60, generator=generator) * 2.0 ** torch.randint(-6, 4, (60,), generator=generator)
    w = weights(start, dtype)
    optimizer = CollageAdamW([w], lr=2.0**-7, betas=(0.0, 0.0), eps=0.0, weight_decay=0.25, strategy=strategy)
    optimizer.seed(w, start)
    for _ in range(3):
        before = words_of(optimizer, w)
        w.grad = torch.where(torch.rand(60, generator=generator) < 0.5, -1.0, 1.0).to(torch.bfloat16)
        sign = -w.grad.double()
        stored = sum(before)
        decay = stored * -(2.0**-9)
        u = (sign * 2.0**-7 + decay).float().double()
        optimizer.meters = {}
        optimizer.step()
        meter = optimizer.meters[w]
        assert meter.error is None
        sums, after = meter.sums(), words_of(optimizer, w)
        moved = [new - old for new, old in zip(after, before, strict=True)]
        applied = [sum(exact(part[n]) for part in moved) for n in range(60)]
        assert sums.lost == sum(a == 0 for a in applied)
        assert sums.invisible == int((moved[0] == 0).sum())
        assert sums.sum_ua == pytest.approx(float(sum(exact(u[n]) * applied[n] for n in range(60))), rel=1e-6)
        assert sums.sum_ww == pytest.approx(float((stored * stored).sum()), rel=1e-12)
        words = [[exact(part[n]) for part in before] for n in range(60)]
        kept = [words[n] == grown(words[n], exact(decay[n]), dtype) for n in range(60) if decay[n] != 0]
        assert (sums.decay_attempted, sums.decay_lost) == (len(kept), sum(kept))
    assert sum(sums.headroom) == 60


def test_a_finer_resolution_moves_the_headroom() -> None:
    bins = {}
    for strategy in ("none", "light", "light-3"):
        _, sums = steps_by(2.0**-8, strategy, E5M2, 1, 1.0)
        (bins[strategy],) = (k - 24 for k, count in enumerate(sums.headroom) if count)
    # gap(1, u) = 2⁻²; every word is worth p = 3 bits of it.
    assert bins == {"none": -6, "light": -3, "light-3": 0}
    _, sums = steps_by(2.0**-8, "light-3", E4M3, 1, 1.0)
    assert sums.headroom[24 + 1] == 3, "2⁻⁸ over 2⁻⁹, where e4m3 ends"


@formats
def test_overflow_is_counted_and_propagates(dtype: torch.dtype) -> None:
    largest = FORMATS[dtype].largest
    w = weights(torch.tensor([largest, 1.0]), dtype)
    optimizer = CollageAdamW(
        [w], lr=largest / 2, betas=(0.0, 0.0), eps=0.0, weight_decay=0.0, strategy="light-3"
    )
    w.grad = torch.tensor([-1.0, -1.0], dtype=torch.bfloat16)
    optimizer.meters = {}
    optimizer.step()
    hi, lo, lo2 = words_of(optimizer, w)
    assert not hi[0].isfinite()
    assert hi[0].isnan().item() == (dtype == E4M3)
    assert (lo[0].item(), lo2[0].item()) == (0.0, 0.0)
    assert hi[1].isfinite()
    assert optimizer.meters[w].sums().nonfinite == 1


def stored_moment(plan: Strategy, dtype: torch.dtype, grads: list[float]) -> list[float]:
    """v after each step of one weight, with the moments as `plan` keeps them."""
    param = torch.ones(1).to(dtype)
    state = initial_state(param, plan)
    del state["step"]
    values = []
    for number, g in enumerate(grads):
        step = Step(number + 1, 2.0**-6, 0.9, 0.999, 1e-8, 0.0)
        step_fp32([Update(param, torch.full((1,), g), state, plan, step)])
        values.append(sum(float(state[name]) for name in ("exp_avg_sq", "exp_avg_sq_lo") if name in state))
    return values


@formats
def test_moments_need_more_than_eight_bits(dtype: torch.dtype) -> None:
    in_place = replace(
        PLANS["light"], state=tuple(replace(tensor, beside_float8=None) for tensor in PLANS["light"].state)
    )
    start, zeros = [64.0], [0.0] * 700
    eight, sixteen, pair = (
        stored_moment(plan, dtype, start + zeros) for plan in (in_place, PLANS["light"], PLANS["plus"])
    )
    assert eight[-1] == eight[0] > 0, "in 8 bit v never decays at β2 = 0.999"
    assert sixteen[-1] == sixteen[0], "nor does it in one word of bfloat16"
    half_life = next(step for step, v in enumerate(pair) if v <= pair[0] / 2)
    assert abs(half_life - 692.8) <= 3
    # And a gradient has to be large to be seen at all.
    seen = {E4M3: 1.0, E5M2: 0.09}[dtype]
    assert stored_moment(in_place, dtype, [seen * 0.95])[0] == 0.0
    assert stored_moment(in_place, dtype, [seen])[0] > 0.0
    assert stored_moment(PLANS["light"], dtype, [1e-4])[0] > 0.0


def test_words_and_table_agree() -> None:
    assert {name: 1 + plan.keeps("lo") + plan.keeps("lo2") for name, plan in PLANS.items()} == WORDS
    assert {name for name in PLANS if name in STRATEGIES} == {"none", "light", "plus"}
    assert math.isclose(FORMATS[E5M2].overflow, 61440.0)
