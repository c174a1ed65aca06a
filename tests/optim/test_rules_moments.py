"""Rules 2 and 3 of numerics §3: bias correction, the denominator, and a second moment that keeps moving."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from itertools import islice

import pytest
import torch
from rules import (
    BF16,
    F16,
    F32,
    FLOAT32,
    LONG_V,
    PAIRS,
    STRATEGIES,
    Weights,
    backends,
    ones,
    plans,
    run,
    unchanged,
)

from roundoff.kernels import Step
from roundoff.metrics import Sums
from roundoff.numerics import FORMATS, split_master
from roundoff.optim import CollageAdamW
from roundoff.watch.statistics import Meter

BETAS = (0.95, 0.99, 0.999, 0.9999)
SHORT_V = tuple(name for name in STRATEGIES if name not in LONG_V)
FAR = 10**6
"""A step count at which no correction is left."""


def second_words(strategy: str, v: float, dtype: torch.dtype, prefix: str = "") -> dict[str, torch.Tensor]:
    """The words that hold v under a strategy, by name."""
    name, value = f"{prefix}exp_avg_sq", torch.tensor([v])
    if strategy == "exact":
        hi, rest = split_master(value)
        return {name: hi, f"{name}_remainder": rest}
    if strategy == "plus":
        return {name: value.to(dtype), f"{name}_lo": (value - value.to(dtype).float()).to(dtype)}
    return {name: value if strategy.startswith("fp32") else value.to(dtype)}


@backends
@pytest.mark.parametrize("amsgrad", [False, True], ids=["", "amsgrad"])
@plans(LONG_V)
def test_rule_2_the_denominator_uses_everything_stored_of_v(
    strategy: str, dtype: torch.dtype, backend: str, amsgrad: bool
) -> None:
    moved = []
    for v in (1.0, 1.0 + 2.0 ** -(FORMATS[dtype].precision + 1)):
        state = second_words(strategy, 0.0 if amsgrad else v, dtype)
        if amsgrad:
            state |= second_words(strategy, v, dtype, "max_")
        w = Weights(
            strategy, torch.zeros(1, dtype=dtype), backend=backend, amsgrad=amsgrad, exp_avg=1.0, **state
        )
        w.step(0.0, Step(FAR, 2.0**-4, 0.5, 1 - 2.0**-20, 0.0, 0.0, amsgrad=amsgrad))
        moved.append(w.stored.item())
    kept = 2 * FORMATS[dtype].precision if strategy in PAIRS else 8 if strategy == "fp32-state" else 22
    expected = math.sqrt(1 + 2.0 ** -(FORMATS[dtype].precision + 1))
    assert moved[0] / moved[1] == pytest.approx(expected, rel=2.0 ** -min(kept, 15))
    assert moved[0] != moved[1] or strategy == "fp32-state"


@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
def test_rule_2_the_denominator_uses_both_words_in_storage_arithmetic(dtype: torch.dtype) -> None:
    # Where hi is the odd neighbour below a tie, hi + lo rounds to the other word, and the root sees that.
    hi = torch.tensor([1.0 + 2.0 ** -(FORMATS[dtype].precision - 1)]).to(dtype)
    roots = []
    for lo in (0.0, 2.0 ** -FORMATS[dtype].precision):
        w = Weights(
            "plus",
            torch.zeros(1, dtype=dtype),
            arithmetic="storage",
            exp_avg=1.0,
            exp_avg_sq=hi,
            exp_avg_sq_lo=lo,
        )
        w.step(0.0, Step(FAR, 1.0, 0.5, 1 - 2.0**-30, 0.0, 0.0))
        roots.append(w.stored.item())
    assert roots[0] != roots[1]


@backends
@pytest.mark.parametrize("count", [1, 2, 255, 256, 257, 1000, 65_537, 1_000_000])
@plans()
def test_rule_2_bias_correction_does_not_drift_with_the_count(
    strategy: str, dtype: torch.dtype, backend: str, count: int
) -> None:
    lr, beta1, beta2, eps = 2.0**-6, 0.9, 0.999, 1e-8
    w = Weights(strategy, torch.zeros(4, dtype=dtype), backend=backend, exp_avg=0.5, exp_avg_sq=0.25)
    w.step(0.5, Step(count, lr, beta1, beta2, eps, 0.0))
    one, two = (1 - Fraction(beta) ** count if count <= 1000 else 1 - beta**count for beta in (beta1, beta2))
    expected = -lr * (0.5 / float(one)) / (math.sqrt(0.25 / float(two)) + eps)
    last_bit = 2.0 ** -(FORMATS[dtype].precision - 1)  # stochastic rounding may take either neighbour
    within = 2.0**-15 if strategy in (*PAIRS, *FLOAT32) else last_bit
    assert w.stored[0].item() == pytest.approx(expected, rel=within)


@pytest.mark.parametrize("beta", BETAS)
def test_rule_2_the_corrections_are_those_of_rational_numbers(beta: float) -> None:
    for count in (1, 2, 10, 255, 256, 257, 1000, 3000):
        step = Step(count, 1.0, beta, beta, 0.0, 0.0)
        exact = 1 - Fraction(beta) ** count
        for value in (step.correction1, step.correction2):
            assert isinstance(value, float)
            assert abs(Fraction(value) / exact - 1) < Fraction(1, 10**11)
        assert step.step_size == pytest.approx(-1 / float(exact), rel=1e-11)
        assert step.root_scale == pytest.approx(1 / math.sqrt(exact), rel=1e-11)


@backends
@plans()
def test_rule_2_the_counter_is_no_16_bit_number(strategy: str, dtype: torch.dtype, backend: str) -> None:
    w = ones(dtype)
    optimizer = CollageAdamW([w], lr=1e-3, strategy=strategy, backend=backend)
    run(optimizer, w, 1.0, 1)
    for start in (256.0, 2048.0, 65_536.0):
        optimizer.state[w]["step"].fill_(start)
        run(optimizer, w, 1.0, 3)
        assert optimizer.state[w]["step"].item() == start + 3
    optimizer.load_state_dict(optimizer.state_dict())
    assert optimizer.state[w]["step"].dtype == F32
    assert optimizer.state[w]["step"].item() == 65_539.0


def half_life(w: Weights, beta2: float, limit: int = 8000) -> float:
    """Steps with zero gradients until v has halved, the last one in part; infinite where v stands still."""
    step = Step(FAR, 0.0, 0.9, beta2, 1e-8, 0.0)
    first = last = w.v[0].item()
    for count in range(1, limit):
        w.step(0.0, step)
        now = w.v[0].item()
        if now <= first / 2:
            return count - math.log(first / 2 / now) / math.log(last / now)
        if now == last:
            before = w.words()
            w.step(0.0, step)
            assert unchanged(before, w.words()), "the same words give the same words for ever"
            return math.inf
        last = now
    return math.inf


def decaying(strategy: str, dtype: torch.dtype, v: float = 1.0, **how: str) -> Weights:
    words = second_words(strategy, v, dtype)
    return Weights(strategy, torch.zeros(1, dtype=dtype), **how, **words)  # type: ignore[arg-type]


WITHIN = {0.95: 1, 0.99: 1, 0.999: 2, 0.9999: 15}
LONG_RUNS = [
    (name, beta2) for name in LONG_V for beta2 in BETAS if beta2 < 0.9999 or name in ("plus", "exact")
]


@backends
@pytest.mark.parametrize(("strategy", "beta2"), LONG_RUNS)
def test_rule_3_half_life_of_v_without_gradients(strategy: str, beta2: float, backend: str) -> None:
    exact = math.log(0.5) / math.log(beta2)
    # Nothing but β2 itself is rounded in float32, and 6931 steps are one less by that.
    within = WITHIN[beta2] if strategy == "plus" else 1.5
    assert half_life(decaying(strategy, BF16, backend=backend), beta2) == pytest.approx(exact, abs=within)


@backends
@pytest.mark.parametrize("v", [1.0, 1.7, 3e-9, 5e8])
def test_rule_3_the_half_life_depends_little_on_the_mantissa_and_not_on_the_size(
    v: float, backend: str
) -> None:
    assert half_life(decaying("plus", BF16, v, backend=backend), 0.999) == pytest.approx(692.8, abs=2)


@backends
def test_rule_3_half_life_in_float16_while_v_is_far_above_its_range(backend: str) -> None:
    assert half_life(decaying("plus", F16, 1.0, backend=backend), 0.999) == pytest.approx(692.8, abs=2)
    assert half_life(decaying("plus", F16, 2.0**-16, backend=backend), 0.999) == math.inf


def test_rule_3_half_life_in_storage_arithmetic_with_beta2_as_a_pair() -> None:
    w, steps = decaying("plus", BF16, arithmetic="storage"), 200
    for _ in range(steps):
        w.step(0.0, Step(FAR, 0.0, 0.9, 0.999, 1e-8, 0.0))
    assert steps * math.log(0.5) / math.log(w.v.item()) == pytest.approx(692.8, abs=2)


@backends
@pytest.mark.parametrize("strategy", SHORT_V)
def test_rule_3_v_in_one_word_never_decays_at_0_999(strategy: str, backend: str) -> None:
    assert half_life(decaying(strategy, BF16, backend=backend), 0.999) == math.inf
    assert half_life(decaying(strategy, BF16, backend=backend), 0.95) < 100


@pytest.mark.parametrize("strategy", [name for name in SHORT_V if STRATEGIES[name].storage_arithmetic])
def test_rule_3_nor_in_storage_arithmetic_where_beta2_is_one(strategy: str) -> None:
    assert torch.tensor(0.999).to(BF16).item() == 1.0
    assert half_life(decaying(strategy, BF16, arithmetic="storage"), 0.999) == math.inf


@backends
@pytest.mark.parametrize("strategy", LONG_V)
def test_rule_3_the_largest_v_stays_while_v_itself_decays(strategy: str, backend: str) -> None:
    words = second_words(strategy, 1.0, BF16)
    w = Weights(strategy, torch.zeros(1, dtype=BF16), backend=backend, amsgrad=True, **words)
    w.step(0.0, Step(FAR, 0.0, 0.9, 0.999, 1e-8, 0.0, amsgrad=True))
    largest = {name: words.clone() for name, words in w.state.items() if name.startswith("max_")}
    for _ in range(50):
        w.step(0.0, Step(FAR, 0.0, 0.9, 0.999, 1e-8, 0.0, amsgrad=True))
    assert w.v.item() == pytest.approx(0.999**51, rel=1e-3)
    assert unchanged(largest, {name: w.state[name] for name in largest})


def pairs_of_v(grads: torch.Tensor, beta2: float) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """v as `plus` stores it under constant gradients, step by step from zero: the formula without a kernel."""
    hi = lo = torch.zeros_like(grads)
    share = (grads.float() * grads.float()) * (1.0 - beta2)
    while True:
        v = (hi.float() + lo.float()) * beta2 + share
        hi = v.to(BF16)
        lo = (v - hi.float()).to(BF16)
        yield hi, lo


@backends
@pytest.mark.parametrize(("beta2", "low", "high"), [(0.999, 0.992, 0.998), (0.9999, 0.925, 0.97)])
def test_rule_3_plus_levels_off_below_g_squared(beta2: float, low: float, high: float, backend: str) -> None:
    grads = (1 + torch.arange(0, 64) / 32).sqrt().to(BF16)  # squares over two binades
    w = Weights("plus", torch.zeros_like(grads), backend=backend)
    stored = pairs_of_v(grads, beta2)
    for hi, lo in islice(stored, 500):
        w.step(grads, Step(FAR, 0.0, 0.9, beta2, 1e-8, 0.0))
        assert torch.equal(w.state["exp_avg_sq"], hi)
        assert torch.equal(w.state["exp_avg_sq_lo"], lo)
    last = None
    for hi, lo in islice(stored, 0, 60_000, 500):
        if last is not None and torch.equal(last[0], hi) and torch.equal(last[1], lo):
            break
        last = hi, lo
    levels = (hi.double() + lo.double()) / grads.double() ** 2
    assert low <= levels.min().item()
    assert levels.max().item() <= high


@pytest.mark.parametrize("beta2", [0.999, 0.9999])
def test_rule_3_exact_comes_within_six_ten_thousandths(beta2: float) -> None:
    # The kernel first, against a loop in float32; then the loop alone, which is far quicker, to the end.
    w = Weights("exact", torch.zeros(1, dtype=BF16))
    numpy = pytest.importorskip("numpy")
    v, keep, add = numpy.float32(0), numpy.float32(beta2), numpy.float32(1.0 - beta2)
    step = Step(FAR, 0.0, 0.9, beta2, 1e-8, 0.0)
    for _ in range(1500):
        w.step(1.0, step)
        v = v * keep + add
    assert w.v.item() == float(v)
    last = None
    while v != last:
        last, v = v, v * keep + add
    assert float(v) == pytest.approx(1.0, abs=6e-4)


def measured(w: Weights, grad: float, step: Step) -> Sums:
    meter = Meter(torch.device("cpu"))
    w.step(grad, step, meter=meter)
    return meter.sums()


@pytest.mark.parametrize(
    ("strategy", "arithmetic", "stops_at"),
    [*((name, "fp32", 0.25) for name in SHORT_V if name != "fp32-state"), ("none", "storage", 0.5)],
)
def test_halo_30_v_in_one_word_stops_at_a_quarter_or_a_half(
    strategy: str, arithmetic: str, stops_at: float
) -> None:
    w = Weights(strategy, torch.zeros(4, dtype=BF16), arithmetic=arithmetic)
    step = Step(FAR, 0.0, 0.9, 0.999, 1e-8, 0.0)
    for _ in range(510):
        w.step(1.0, step)
    assert (w.v == stops_at).all()
    sums = measured(w, 1.0, step)
    assert (sums.v_attempted, sums.v_stuck, sums.v_stuck_high) == (4, 4, 0)


@backends
@pytest.mark.parametrize("strategy", SHORT_V)
def test_halo_30_a_v_that_should_shrink_and_does_not_is_counted_apart(strategy: str, backend: str) -> None:
    w = Weights(strategy, torch.zeros(4, dtype=BF16), backend=backend, exp_avg_sq=1.0)
    sums = measured(w, 0.0, Step(FAR, 0.0, 0.9, 0.999, 1e-8, 0.0))
    assert (sums.v_attempted, sums.v_stuck, sums.v_stuck_high) == (4, 4, 4)
    assert sums.zero_grad == 4


@backends
@pytest.mark.parametrize("strategy", [name for name in STRATEGIES if not name.startswith("fp32")])
def test_squares_below_the_range_of_bfloat16_are_counted_apart_from_rounding(
    strategy: str, backend: str
) -> None:
    w = Weights(strategy, torch.zeros(4, dtype=BF16), backend=backend)
    sums = measured(w, 1e-20, Step(1, 1e-3, 0.9, 0.999, 1e-8, 0.0))
    if strategy == "exact":  # float32 has 16 binades more
        assert (sums.v_underflowed, sums.v_stuck) == (0, 0)
        assert (w.v > 0).all()
    else:
        assert (sums.v_underflowed, sums.v_stuck) == (4, 4)
        assert (w.v == 0).all()
    assert sums.zero_grad == 0
