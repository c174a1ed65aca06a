"""What the tests of float8 weights share: parameters, steps of a given size, and the same in rational numbers."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from torch import Tensor, nn

from rationals import nearest
from roundoff.metrics import Sums
from roundoff.numerics import round_to
from roundoff.optim import EXPERIMENTAL, STRATEGIES, CollageAdamW
from roundoff.optim.strategies import FLOAT8_DTYPES

E4M3, E5M2 = FLOAT8_DTYPES
PLANS = {name: plan for name, plan in (STRATEGIES | EXPERIMENTAL).items() if plan.float8}
WORDS = {"none": 1, "light": 2, "plus": 2, "light-3": 3, "plus-3": 3}
"""Words of a weight by strategy."""

needs_grad_dtype = pytest.mark.skipif(
    not hasattr(torch.Tensor, "grad_dtype"),
    reason="this PyTorch gives float8 parameters float8 gradients only",
)
every_plan = pytest.mark.parametrize(
    ("strategy", "dtype"),
    [pytest.param(n, d, id=f"{n}-{str(d)[13:]}") for n in PLANS for d in FLOAT8_DTYPES],
)


def weights(
    value: float | Tensor, dtype: torch.dtype, gradient: torch.dtype = torch.bfloat16
) -> nn.Parameter:
    """A parameter of 8 bit whose gradient is not."""
    w = nn.Parameter(round_to(torch.as_tensor(value), dtype))
    w.grad_dtype = gradient
    return w


def words_of(optimizer: CollageAdamW, w: nn.Parameter) -> list[Tensor]:
    """The words of a weight, largest first, as float64."""
    state = optimizer.state[w]
    return [w.detach().double(), *(state[name].double() for name in ("lo", "lo2") if name in state)]


def steps_by(
    u: float, strategy: str, dtype: torch.dtype, steps: int, start: float
) -> tuple[list[float], Sums]:
    """The words of a weight after `steps` steps that intend exactly u each, and what they measured."""
    w = weights(torch.full((3,), start), dtype)
    optimizer = CollageAdamW([w], lr=abs(u), betas=(0.0, 0.0), eps=0.0, weight_decay=0.0, strategy=strategy)
    total = Sums()
    for _ in range(steps):
        w.grad = torch.full((3,), -1.0 if u > 0 else 1.0, dtype=torch.bfloat16)
        optimizer.meters = {}
        optimizer.step()
        assert optimizer.meters[w].error is None
        total += optimizer.meters[w].sums()
    return [float(word[0]) for word in words_of(optimizer, w)], total


def grown(kept: list[Fraction], u: Fraction, dtype: torch.dtype) -> list[Fraction]:
    """Words after one addition in rational numbers: each the nearest to what the ones before left of the sum."""
    left, words = sum(kept, u), []
    for _ in kept:
        rounded = nearest(left, dtype)
        assert rounded is not None
        words.append(rounded)
        left -= rounded
    return words


def words_by_hand(u: float, words: int, dtype: torch.dtype, steps: int, start: float) -> list[Fraction]:
    """What `steps_by` has to give."""
    kept = [Fraction(start), *[Fraction(0)] * (words - 1)]
    for _ in range(steps):
        kept = grown(kept, Fraction(u), dtype)
    return kept
