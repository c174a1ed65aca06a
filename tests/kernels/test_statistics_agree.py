"""The counts and sums of every backend against the reference, on numbers for which it may take short cuts.

`test_backends_agree` mixes special words into everything, so a backend that looks at whole blocks sees no block
of ordinary numbers there. Here are those: whole blocks of one kind.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from cases import SCALES, STRATEGY_DTYPES, Item, assert_same_sums, assert_same_words, run
from torch import Tensor

from roundoff.kernels import BACKENDS, KERNELS, Noise, Step, unavailable
from roundoff.numerics import split_master, ulp
from roundoff.optim import STRATEGIES

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
BLOCK = 1024
SIZES = (BLOCK, 4 * BLOCK + 77)
"""One block alone; several, over which the faint and the violent fade and grow, and a part of one."""
COMPARED = [backend for backend in BACKENDS if backend != "reference" and unavailable(backend) is None]


def ordinary(size: int, scale: float, generator: torch.Generator) -> Tensor:
    """Numbers that are not small against `scale`, a few of them powers of two."""
    x = torch.randn(size, generator=generator)
    x = (x + x.sign() * 0.1) * scale
    x[::11] = 2.0 ** torch.frexp(x[::11]).exponent
    return x


def signs(size: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 2, (size,), generator=generator) * 2.0 - 1.0


class Kind:
    """How the numbers of one kind are made: weights, gradients and moments, float32."""

    def weights(self, size: int, generator: torch.Generator) -> Tensor:
        w = ordinary(size, SCALES["param"], generator)
        w[::7] = 1.0
        return w

    def gradients(self, size: int, generator: torch.Generator) -> Tensor:
        return ordinary(size, SCALES["grad"], generator)

    def second(self, grad: Tensor, generator: torch.Generator) -> Tensor:
        return grad.square() * (0.5 + torch.rand(grad.shape, generator=generator))

    def first(self, grad: Tensor, generator: torch.Generator) -> Tensor:
        return grad * (0.5 + torch.rand(grad.shape, generator=generator))


class Calm(Kind):
    """Nothing special at all."""


class Sparse(Kind):
    """Every third element has had no gradient yet, every hundredth weight is 0."""

    def weights(self, size: int, generator: torch.Generator) -> Tensor:
        w = super().weights(size, generator)
        w[5::100] = 0.0
        return w

    def gradients(self, size: int, generator: torch.Generator) -> Tensor:
        g = super().gradients(size, generator)
        g[::3] = 0.0
        return g


class Level(Kind):
    """The second moment is where it would stand still, or a little beside."""

    def second(self, grad: Tensor, generator: torch.Generator) -> Tensor:
        beside = torch.tensor([0.0, 0.0, 1e-5, -1e-5, 1e-4, -1e-4, 1e-3, -1e-2])
        pick = torch.randint(0, beside.numel(), grad.shape, generator=generator)
        return grad.square() * (1 + beside[pick])


class Faint(Kind):
    """Gradients and weights that fade out, block by block, to where squares leave the range of float32."""

    def weights(self, size: int, generator: torch.Generator) -> Tensor:
        return super().weights(size, generator) * 10.0 ** -(torch.arange(size) // BLOCK * 7).double()

    def gradients(self, size: int, generator: torch.Generator) -> Tensor:
        return super().gradients(size, generator) * 10.0 ** -(torch.arange(size) // BLOCK * 5).double()


class Violent(Kind):
    """Numbers whose squares overflow in float32, block by block."""

    def weights(self, size: int, generator: torch.Generator) -> Tensor:
        return super().weights(size, generator) * 10.0 ** (torch.arange(size) // BLOCK * 9).double()


class Opposed(Kind):
    """Every update undoes the decay, so that u itself is 0 or close to it now and then."""

    def weights(self, size: int, generator: torch.Generator) -> Tensor:
        return torch.full((size,), 0.5)

    def gradients(self, size: int, generator: torch.Generator) -> Tensor:
        g = torch.zeros(size)
        g[::2] = -0.01
        return g


KINDS = {kind.__name__.lower(): kind() for kind in (Calm, Sparse, Level, Faint, Violent, Opposed)}


def second_word(whole: Tensor, dtype: torch.dtype, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """hi and lo of a float32 value; every fifth lo is 0 and every ninth at half a unit of hi."""
    hi = whole.to(dtype)
    lo = torch.where(hi.isfinite(), whole - hi.float(), 0.0)
    lo[::5] = 0.0
    lo[::9] = (ulp(hi[::9]) / 2).float()
    return hi, lo.to(dtype)


def made(kind: Kind, strategy: str, dtype: torch.dtype, size: int, seed: int) -> Item:
    generator = torch.Generator().manual_seed(seed * 1_000_003 + size)
    plan = STRATEGIES[strategy]
    grad = kind.gradients(size, generator).to(dtype)
    whole = kind.weights(size, generator).to(F32)
    first = kind.first(grad.to(F32), generator)
    second = kind.second(grad.to(F32), generator)
    tensors = {"param": whole.to(dtype), "grad": grad}
    for tensor in plan.state:
        kept = tensor.dtype_for(dtype)
        value = whole if tensor.name in ("lo", "remainder", "master") else second
        if tensor.name == "exp_avg":
            tensors[tensor.name] = first.to(kept)
        elif tensor.name in ("lo", "exp_avg_sq_lo"):
            hi, tensors[tensor.name] = second_word(value, dtype, generator)
            tensors["param" if tensor.name == "lo" else "exp_avg_sq"] = hi
        elif tensor.name.endswith("remainder"):
            hi, tensors[tensor.name] = split_master(value)
            tensors["param" if tensor.name == "remainder" else "exp_avg_sq"] = hi
        else:
            tensors[tensor.name] = value.to(kept)

    def same_size_other_signs(last: Tensor, step: int) -> Tensor:
        return last.abs() * signs(size, step).to(last.dtype)

    noise = Noise(99 + seed, first=seed) if strategy == "stochastic" else None
    renew = None if isinstance(kind, Opposed) else same_size_other_signs
    return Item(
        f"{type(kind).__name__} {size}", plan, tensors, noise, True, renew or (lambda last, step: last)
    )


DEFAULTS = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.1}
STEPS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "without decay": {"weight_decay": 0.0},
    "standing still": {"lr": 0.0},
    "all but still": {"lr": 1e-30},
    "scaled": {"gradient_scale": 1 / 3},
    "scaled and up": {"gradient_scale": 0.125, "maximize": True},
    "tiny": {"lr": 1e-7},
    "large": {"lr": 0.3},
    "forgetting": {"beta1": 0.0, "beta2": 0.0},
    "remembering": {"beta2": 0.9999},
    "no eps": {"eps": 0.0},
}


@pytest.mark.parametrize("options", STEPS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("strategy", "dtype"), STRATEGY_DTYPES, ids=str)
@pytest.mark.parametrize("backend", COMPARED)
def test_whole_blocks_of_one_kind(
    backend: str, strategy: str, dtype: torch.dtype, kind: str, options: str
) -> None:
    steps = [Step(count, **{**DEFAULTS, **STEPS[options]}) for count in (1, 100)]
    before = [made(KINDS[kind], strategy, dtype, size, seed) for seed, size in enumerate(SIZES)]
    compare(backend, before, steps)


V_COUNTS = ("v_attempted", "v_stuck", "v_stuck_high")


def compare(backend: str, before: list[Item], steps: list[Step]) -> None:
    theirs, mine = ([one.copy() for one in before] for _ in range(2))
    expected = run(KERNELS["reference", "fp32"], theirs, steps)
    got = run(KERNELS[backend, "fp32"], mine, steps)
    for start, one, other in zip(before, theirs, mine, strict=True):
        assert_same_words(one, other, start)
    for start, one, other in zip(before, expected, got, strict=True):
        if start.tensors["grad"].dtype == F32:
            # The square of a float32 gradient is exact in the reference alone: a v next to it may count as level.
            other = replace(other, **{name: getattr(one, name) for name in V_COUNTS})
        assert_same_sums(one, other, f"{start.plan.name} {start.name}")


RATES = [2.0**-k * factor for k, factor in product(range(6, 22), (0.75, 1.0, 1.25))] + [
    2.0**-24,
    2.0**-25,
    3e-8,
]


@pytest.mark.parametrize(("strategy", "dtype"), STRATEGY_DTYPES, ids=str)
@pytest.mark.parametrize("backend", COMPARED)
def test_decay_near_the_rate_at_which_it_begins_to_be_lost(
    backend: str, strategy: str, dtype: torch.dtype
) -> None:
    for rate in RATES:
        before = [made(KINDS[kind], strategy, dtype, BLOCK, 1) for kind in ("calm", "sparse")]
        compare(backend, before, [Step(1, rate, 0.9, 0.999, 1e-8, 1.0)])


@pytest.mark.parametrize("backend", COMPARED)
def test_a_zero_that_changes_its_sign_did_not_change(backend: str) -> None:
    """hi = −0 with all of the weight in lo: a step of −lo leaves hi = +0."""
    lr = 2.0**-10
    start = made(KINDS["calm"], "light", BF16, BLOCK, 1)
    start.tensors["param"].fill_(-0.0)
    start.tensors["lo"].fill_(lr)
    start.tensors["grad"].fill_(0.5)
    step = Step(1, lr, 0.0, 0.0, 0.0, 0.0)
    one, other = start.copy(), start.copy()
    (expected,) = run(KERNELS["reference", "fp32"], [one], [step])
    (got,) = run(KERNELS[backend, "fp32"], [other], [step])
    assert expected.unchanged == expected.invisible > BLOCK // 3
    assert_same_sums(expected, got, "−0")


@pytest.mark.parametrize(("strategy", "dtype"), STRATEGY_DTYPES, ids=str)
@pytest.mark.parametrize("backend", COMPARED)
def test_a_second_moment_that_is_infinite_alone(backend: str, strategy: str, dtype: torch.dtype) -> None:
    """Every step is finite there, so nothing else sends the block the exact way."""
    start = made(KINDS["calm"], strategy, dtype, BLOCK, 1)
    start.tensors["exp_avg_sq"][5] = torch.inf
    for name in ("exp_avg_sq_lo", "exp_avg_sq_remainder"):
        if name in start.tensors:
            start.tensors[name][5] = 0
    one, other = start.copy(), start.copy()
    step = Step(3, **DEFAULTS)
    (expected,) = run(KERNELS["reference", "fp32"], [one], [step])
    (got,) = run(KERNELS[backend, "fp32"], [other], [step])
    assert expected.nonfinite == 0
    assert expected.v_attempted <= BLOCK - 1
    assert_same_sums(expected, got, f"{strategy} {dtype}")
