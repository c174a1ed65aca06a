"""Thousands of steps of a weight at 1.0, against exact rational arithmetic: where each strategy ends up."""

from __future__ import annotations

from dataclasses import fields
from fractions import Fraction
from functools import cache

import pytest
import torch
from rules import BF16, F32, FLOAT32, KEEPERS, ONE_WORD, PAIRS, STRATEGIES, Weights, backends, by, plans, run
from torch import Tensor, nn

from rationals import exact, nearest
from roundoff.kernels import Step
from roundoff.metrics import Sums, Totals, decay_lost_fraction, descent_efficiency, judge, lost_fraction
from roundoff.numerics import FORMATS, join_master, mix_key, split_master
from roundoff.optim import CollageAdamW
from roundoff.watch import measure
from roundoff.watch.statistics import Meter

CPU = torch.device("cpu")


def constant(u: float) -> Fraction:
    """u as float32 holds it."""
    return exact(torch.tensor(u))


def rounded(q: Fraction, dtype: torch.dtype) -> Fraction:
    """RN(q), which does not overflow here."""
    result = nearest(q, dtype)
    assert result is not None
    return result


class ByHand:
    """A weight under one strategy in rational arithmetic, every rounding of numerics §2 and §3 written out."""

    def __init__(self, strategy: str, dtype: torch.dtype) -> None:
        self.strategy, self.dtype = strategy, dtype
        self.hi, self.lo = Fraction(1), Fraction(0)

    def add(self, u: Fraction) -> None:
        if self.strategy in FLOAT32:
            self.hi = rounded(self.hi + u, F32)
        elif self.strategy == "kahan":
            y = rounded(u + self.lo, F32)
            new = rounded(rounded(self.hi + y, F32), self.dtype)
            change = rounded(new - self.hi, F32)
            self.hi, self.lo = new, rounded(rounded(y - change, F32), self.dtype)
        elif self.strategy in PAIRS:
            total = rounded(self.hi + rounded(self.lo + u, F32), F32)
            self.hi = rounded(total, self.dtype)
            self.lo = rounded(total - self.hi, self.dtype)
        else:
            self.hi = rounded(rounded(self.hi + u, F32), self.dtype)


@cache
def by_hand(strategy: str, dtype: torch.dtype, u: float, steps: int) -> list[Fraction]:
    """Everything stored after each step by u, the same for every backend."""
    weight, stored = ByHand(strategy, dtype), []
    for _ in range(steps):
        weight.add(constant(u))
        stored.append(weight.hi + weight.lo)
    return stored


@backends
@pytest.mark.parametrize("u", [-1e-6, 3e-5, -1e-4, 2.5e-3])
@plans([name for name in STRATEGIES if name != "stochastic"])
def test_every_step_is_the_one_of_rational_arithmetic(
    strategy: str, dtype: torch.dtype, backend: str, u: float
) -> None:
    w = Weights(strategy, torch.ones(3, dtype=dtype), backend=backend)
    # The smallest step is stored 383 times before a pair stands still; of the larger ones fewer tell as much.
    steps = 450 if abs(u) < 1e-5 else 200
    for expected in by_hand(strategy, dtype, u, steps):
        w.step(*by(u))
        assert exact(w.stored[1]) == expected
    assert (w.stored == w.stored[0]).all()
    displacement = exact(w.stored[0]) - 1
    intended = steps * constant(u)
    if strategy in FLOAT32:
        assert abs(displacement / intended - 1) < Fraction(1, 20)
    elif strategy in ("none", "fp32-state") and abs(u) < 2.0 ** -(FORMATS[dtype].precision + 1):
        assert displacement == 0


def float32_loop(u: float, steps: int) -> Tensor:
    """Adding u to 1.0 in float32, which is what a float32 weight would do."""
    numpy = pytest.importorskip("numpy")
    w, step = numpy.float32(1.0), numpy.float32(u)
    for _ in range(steps):
        w = w + step
    return torch.tensor(float(w))


@backends
@pytest.mark.parametrize("strategy", FLOAT32)
def test_pairs_are_not_fp32_and_exact_equals_a_float32_loop_bit_for_bit(strategy: str, backend: str) -> None:
    w = Weights(strategy, torch.ones(1, dtype=BF16), backend=backend)
    steps = 2000 if backend == "reference" else 20_000
    for _ in range(steps):
        w.step(*by(-1e-6))
    assert w.stored.item() == float32_loop(-1e-6, steps).item()
    if strategy == "exact":
        u, hi, rest = torch.tensor(-1e-6), w.param, w.state["remainder"]
        for _ in range(20_000 - steps):  # the slow kernel's way of storing, without the rest of its step
            hi, rest = split_master(join_master(hi, rest) + u)
        wanted = float32_loop(-1e-6, 20_000)
        assert join_master(hi, rest).item() == wanted.item() == pytest.approx(0.9797, abs=5e-5)
        assert hi.item() == wanted.to(BF16).item()


def repeated(first: Sums, last: Sums, times: int) -> Sums:
    """The counts and sums of `first` and of as many steps like `last`."""
    names = [field.name for field in fields(Sums) if not field.name.startswith("headroom")]
    return Sums(**{name: getattr(first, name) + times * getattr(last, name) for name in names})


@backends
@pytest.mark.parametrize("strategy", PAIRS)
def test_pairs_are_not_fp32_stored_for_383_steps_and_then_never(strategy: str, backend: str) -> None:
    w, meter = Weights(strategy, torch.ones(4, dtype=BF16), backend=backend), Meter(CPU)
    for _ in range(383):
        w.step(*by(-1e-6), meter=meter)
    first = meter.sums()
    assert (first.attempted, first.lost, first.unchanged) == (4 * 383, 0, 4 * 383)
    before, last = w.words(), Meter(CPU)
    w.step(*by(-1e-6), meter=last)
    assert all(torch.equal(words, before[name]) for name, words in w.words().items()), "and so for ever"
    whole = repeated(first, last.sums(), 20_000 - 383)
    assert lost_fraction(whole) == pytest.approx(0.98, abs=0.002)
    assert descent_efficiency(whole) < 0.03
    assert w.param[0].item() == 1.0
    assert judge(
        Totals(20_000, whole.numel, 0, whole.attempted, whole.lost, 0, whole.sum_uu, whole.sum_ua, 1e3)
    ) == ("stalling")


@backends
@plans(["none", "fp32-state", "stochastic"])
def test_the_displacement_of_one_word_under_tiny_steps(
    strategy: str, dtype: torch.dtype, backend: str
) -> None:
    n, steps, u = 8192, 300, -1e-5
    w, meter = Weights(strategy, torch.ones(n, dtype=dtype), backend=backend), Meter(CPU)
    for step in range(steps):
        w.step(*by(u), meter=meter, key=mix_key(0, step, 0))
    moved, sums = w.stored - 1.0, meter.sums()
    if strategy == "stochastic":
        gap = 2.0 ** -FORMATS[dtype].precision
        assert moved.mean().item() == pytest.approx(steps * u, abs=4 * (gap * -u * steps / n) ** 0.5)
        assert descent_efficiency(sums) == pytest.approx(1.0, abs=0.1)
        assert lost_fraction(sums) == pytest.approx(1 + u / gap, abs=0.01)
    else:
        assert not moved.any()
        assert (lost_fraction(sums), descent_efficiency(sums)) == (1.0, 0.0)


def decayed(
    strategy: str, dtype: torch.dtype, backend: str, rate: float, steps: int, n: int = 1
) -> tuple[Weights, Sums]:
    w, meter = Weights(strategy, torch.ones(n, dtype=dtype), backend=backend), Meter(CPU)
    for step in range(steps):
        w.step(0.0, Step(step + 1, rate, 0.9, 0.999, 1e-8, 1.0), meter=meter, key=mix_key(7, step, 0))
    return w, meter.sums()


@backends
@plans(KEEPERS)
def test_a_decay_only_run_follows_the_exact_power(strategy: str, dtype: torch.dtype, backend: str) -> None:
    rate, steps = 1e-4, 400
    w, sums = decayed(strategy, dtype, backend, rate, steps)
    hand = ByHand(strategy, dtype)
    for _ in range(steps):
        stored = rounded(hand.hi + hand.lo, F32)
        hand.add(rounded(stored * -constant(rate), F32))
    assert exact(w.stored[0]) == hand.hi + hand.lo
    power = (1 - constant(rate)) ** steps
    assert abs(exact(w.stored[0]) / power - 1) < (
        Fraction(1, 10**6) if strategy in FLOAT32 else Fraction(1, 10**3)
    )
    assert sums.lost == sums.decay_lost == sums.nonfinite == 0
    assert sums.zero_grad == sums.decay_attempted == sums.attempted == steps


@backends
@plans(ONE_WORD)
def test_a_decay_only_run_in_one_word(strategy: str, dtype: torch.dtype, backend: str) -> None:
    rate, steps, n = 1e-4, 200, 4096
    w, sums = decayed(strategy, dtype, backend, rate, steps, n)
    assert sums.decay_attempted == n * steps
    if strategy == "stochastic":
        gap = 2.0 ** -FORMATS[dtype].precision
        noise = 5 * (gap * rate * steps / n) ** 0.5
        assert w.stored.mean().item() == pytest.approx((1 - rate) ** steps, abs=noise)
        assert descent_efficiency(sums) == pytest.approx(1.0, abs=0.1)
    else:
        assert (w.stored == 1.0).all()
        assert decay_lost_fraction(sums) == lost_fraction(sums) == 1.0


@backends
@pytest.mark.parametrize("strategy", PAIRS)
def test_torchdistx_58_a_hundred_steps_that_one_word_cannot_take(strategy: str, backend: str) -> None:
    w = Weights(strategy, torch.ones(1, dtype=BF16), backend=backend)
    for _ in range(100):
        before = w.stored
        w.step(*by(-1e-4))
        assert not torch.equal(before, w.stored)
    assert w.param.item() == 0.98828125
    assert w.state["lo"].item() == pytest.approx(0.0018, abs=1e-4)
    assert w.stored.item() == pytest.approx(0.99, abs=1e-4)


@backends
def test_apex_1842_a_tie_is_packed_away_from_zero_and_is_not_lost(backend: str) -> None:
    w, meter = Weights("exact", torch.ones(4, dtype=BF16), backend=backend), Meter(CPU)
    w.step(*by(2.0**-8), meter=meter)
    assert w.stored[0].item() == torch.tensor([0x3F808000], dtype=torch.int32).view(F32).item()
    assert (w.param[0].item(), w.state["remainder"][0].item()) == (1.0078125, -(1 << 15))
    sums = meter.sums()
    assert (sums.attempted, sums.lost, sums.invisible) == (4, 0, 0)
    assert descent_efficiency(sums) == 1.0
    assert lost_fraction(measure(*after_tie())) == 0.0


def after_tie() -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The arguments of `measure` for the step from 1.0 onto the tie above it."""
    hi, hi_after = torch.ones(1, dtype=BF16), torch.tensor([1.0078125], dtype=BF16)
    rest, rest_after = torch.zeros(1, dtype=torch.int16), torch.tensor([-(1 << 15)], dtype=torch.int16)
    return hi, hi_after, torch.tensor([2.0**-8]), rest, rest_after


@backends
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_ml_by_hand_85_norm_weights_that_only_a_second_word_moves(strategy: str, backend: str) -> None:
    norm = nn.Parameter(torch.ones(768, dtype=BF16))
    options = {"lr": 6e-4, "weight_decay": 0.0, "betas": (0.0, 0.999)}
    optimizer = CollageAdamW([norm], strategy=strategy, backend=backend, **options)
    generator, total = torch.Generator().manual_seed(0), Sums()
    for _ in range(100):
        norm.grad = (torch.randint(0, 2, (768,), generator=generator) * 2 - 1).to(BF16)
        optimizer.meters = {}
        optimizer.step()
        total += optimizer.meters[norm].sums()
    moved = int((optimizer.stored_value(norm) != 1.0).sum())
    window = Totals(100, total.numel, 0, total.attempted, total.lost, 0, total.sum_uu, total.sum_ua, 1e3)
    if strategy in ("none", "fp32-state"):
        assert moved == 0
        assert (lost_fraction(total), descent_efficiency(total)) == (1.0, 0.0)
        assert judge(window) == "stalling"
    else:
        assert moved > 650
        assert descent_efficiency(total) == pytest.approx(1.0, abs=0.05)
        assert judge(window) == "healthy"


@backends
def test_onetrainer_996_decay_is_reported_apart_under_stochastic_rounding(backend: str) -> None:
    # Each decay of 1e-6 is below half the gap under 1 and would round away, stochastic or not most of the time.
    w = nn.Parameter(torch.ones(4096, dtype=BF16))
    optimizer = CollageAdamW([w], lr=1e-4, weight_decay=0.01, strategy="stochastic", backend=backend)
    alone = run(optimizer, w, 0.0, 3)
    assert decay_lost_fraction(alone) == 1.0
    assert alone.decay_attempted == alone.attempted == alone.numel
    both = run(optimizer, w, 1.0, 3)
    assert decay_lost_fraction(both) == 1.0
    assert descent_efficiency(both) == pytest.approx(1.0, abs=0.2), "the gradient's share arrives"


@backends
def test_the_same_seed_gives_the_same_bits_and_another_seed_others(backend: str) -> None:
    def final(seed: int) -> list[Tensor]:
        params = [nn.Parameter(torch.ones(500, dtype=BF16)) for _ in range(2)]
        optimizer = CollageAdamW(params, lr=1e-4, strategy="stochastic", seed=seed, backend=backend)
        for _ in range(20):
            for p in params:
                p.grad = torch.ones_like(p)
            optimizer.step()
        return [p.detach() for p in params]

    one, same, other = final(3), final(3), final(4)
    assert all(torch.equal(a, b) for a, b in zip(one, same, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    assert not torch.equal(one[0], one[1]), "two parameters do not share their bits"
