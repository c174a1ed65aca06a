"""Tensors to step in the tests of kernels: ordinary numbers with every kind of special word among them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from roundoff.kernels import Kernel, Noise, Step, Update
from roundoff.metrics import COUNTS, EVIDENCE, ROW, SUMS, Sums, expected_roundings
from roundoff.numerics import ulp
from roundoff.optim import STRATEGIES, Strategy
from roundoff.watch.statistics import Meter

BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
SCALES = {"param": 0.05, "grad": 0.01, "exp_avg": 0.01, "exp_avg_sq": 1e-4, "master": 0.05}
"""How large ordinary numbers are."""

STRATEGY_DTYPES = [
    (name, dtype)
    for name, plan in STRATEGIES.items()
    for dtype in (*plan.dtypes, *((torch.float32,) if name == "none" else ()))
]
"""Every strategy with every dtype that it stores; float32 weights are updated as `none` does."""


def bits_of(words: Tensor) -> Tensor:
    """The words as integers of their width."""
    return words.contiguous().view(BITS[words.element_size()])


@dataclass(slots=True)
class Item:
    """One parameter to step: its tensors by the names that kernels know, and what goes with them."""

    name: str
    plan: Strategy
    tensors: dict[str, Tensor]
    noise: Noise | None = None
    measured: bool = False
    renew: Callable[[Tensor, int], Tensor] | None = None
    """The gradient of a step, from the last one and the number of the step; None: one of any words."""
    meter: Meter | None = None

    def update(self, step: Step) -> Update:
        state = {name: words for name, words in self.tensors.items() if name not in ("param", "grad")}
        return Update(
            self.tensors["param"], self.tensors["grad"], state, self.plan, step, self.meter, self.noise
        )

    def copy(self) -> Item:
        """The same numbers in memory of its own, laid out alike, down to the alignment."""
        return replace(self, tensors={name: same_layout(words) for name, words in self.tensors.items()})


def same_layout(words: Tensor) -> Tensor:
    """A copy with the strides and the offset of the original in storage of its own."""
    storage = torch.empty_like(
        torch.as_strided(words, (words.untyped_storage().nbytes() // words.element_size(),), (1,), 0)
    )
    storage.copy_(torch.as_strided(words, storage.shape, (1,), 0))
    return torch.as_strided(storage, words.shape, words.stride(), words.storage_offset())


def specials(dtype: torch.dtype) -> Tensor:
    """Zeros, ones, infinities, NaN, subnormals, the smallest and the largest numbers, of both signs."""
    info = torch.finfo(dtype)
    subnormal = info.smallest_normal
    tiny = [info.smallest_normal, subnormal * 0.5, subnormal * info.eps, subnormal * (1 - info.eps)]
    huge = [info.max, info.max / 2, math.sqrt(info.max)]
    values = torch.tensor([0.0, 1.0, 0.5, math.inf, *tiny, *huge], dtype=torch.float64).to(dtype)
    # NaN with every bit set, which rounding by adding to the pattern would turn into a zero.
    most = (1 << (8 * dtype.itemsize - 1)) - 1
    nan = torch.tensor([most, -1], dtype=BITS[dtype.itemsize]).view(dtype)
    return torch.cat((values, -values, nan, nan, torch.tensor([math.nan], dtype=dtype)))


def mixed(dtype: torch.dtype, size: int, scale: float, generator: torch.Generator) -> Tensor:
    """`size` words: three quarters ordinary, an eighth special, an eighth of any bit pattern."""
    ordinary = (torch.randn(size, generator=generator) * scale).to(dtype)
    width = 8 * dtype.itemsize
    patterns = torch.randint(-(2 ** (width - 1)), 2 ** (width - 1) - 1, (size,), generator=generator)
    anything = patterns.to(BITS[dtype.itemsize]).view(dtype)
    known = specials(dtype)
    special = known[torch.randint(0, known.numel(), (size,), generator=generator)]
    kind = torch.randint(0, 8, (size,), generator=generator)
    return torch.where(kind == 0, special, torch.where(kind == 1, anything, ordinary))


def second_word(hi: Tensor, generator: torch.Generator) -> Tensor:
    """What may stand below `hi`: at most half a unit of it, and now and then a stale word of any size."""
    share = torch.rand(hi.shape, generator=generator, dtype=torch.float64) - 0.5
    lo = (ulp(hi) * share).to(torch.float32).to(hi.dtype)
    stale = torch.rand(hi.shape, generator=generator) < 0.03
    lo = torch.where(stale, mixed(hi.dtype, hi.numel(), 1.0, generator), lo)
    return torch.where(lo.isfinite(), lo, 0.0)


def words_of(name: str, known: dict[str, Tensor], dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """The words of one state tensor of a parameter whose other tensors are `known`."""
    w = known["param"]
    if name.endswith("remainder"):
        return torch.randint(-(1 << 15), 1 << 15, w.shape, generator=generator).to(torch.int16)
    if name.endswith("lo"):
        return second_word(w if name == "lo" else known[name.removesuffix("_lo")], generator)
    if name == "master":
        near = w.to(torch.float32) * (1 + (torch.rand(w.shape, generator=generator) - 0.5) / 256)
        stray = torch.rand(w.shape, generator=generator) < 0.03
        return torch.where(stray, mixed(torch.float32, w.numel(), 1.0, generator), near)
    words = mixed(dtype, w.numel(), SCALES[name.removeprefix("max_")], generator)
    return words.abs() if "exp_avg_sq" in name else words


def misaligned(words: Tensor, offset: int) -> Tensor:
    """The same words as a view that starts `offset` elements into its storage."""
    storage = torch.zeros(words.numel() + offset, dtype=words.dtype)
    storage[offset:] = words
    return storage[offset:]


def item(
    strategy: str,
    dtype: torch.dtype,
    size: int,
    seed: int,
    *,
    amsgrad: bool = False,
    grad_dtype: torch.dtype | None = None,
    odd: bool = False,
    measured: bool = False,
) -> Item:
    """One flat parameter of `size` elements with its state; `odd`: no tensor starts where its storage does."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + size)
    plan = STRATEGIES[strategy]
    tensors = {"param": mixed(dtype, size, SCALES["param"], generator)}
    tensors["grad"] = gradient(grad_dtype or dtype, size, generator)
    for tensor in plan.tensors(amsgrad=amsgrad):
        tensors[tensor.name] = words_of(tensor.name, tensors, tensor.dtype_for(dtype), generator)
    if odd:
        tensors = {name: misaligned(words, 2 * n + 1) for n, (name, words) in enumerate(tensors.items())}
    noise = Noise(0x1234_5678_9ABC_DEF0 + seed, first=seed * 3) if strategy == "stochastic" else None
    return Item(f"{size}{' odd' if odd else ''} seed {seed}", plan, tensors, noise, measured)


def gradient(dtype: torch.dtype, size: int, generator: torch.Generator) -> Tensor:
    return mixed(dtype, size, SCALES["grad"], generator)


def new_gradients(items: Iterable[Item], seed: int) -> None:
    """Other gradients, in place, the same for items of one size."""
    for one in items:
        grad = one.tensors["grad"]
        if one.renew is not None:
            grad.copy_(one.renew(grad, seed))
            continue
        generator = torch.Generator().manual_seed(seed * 1_000_003 + grad.numel())
        grad.copy_(gradient(grad.dtype, grad.numel(), generator).reshape(grad.shape))


def run(
    kernel: Kernel, items: Sequence[Item], steps: Sequence[Step], *, measured: bool = False
) -> list[Sums]:
    """Step all items together, with other gradients each time; returns the sums of those that are measured.

    With `measured` that is all of them.
    """
    totals = [Sums()] * len(items)
    for number, step in enumerate(steps):
        new_gradients(items, number)
        for one in items:
            one.meter = Meter(torch.device("cpu")) if measured or one.measured else None
        kernel([one.update(step) for one in items])
        for index, one in enumerate(items):
            if one.meter is not None:
                totals[index] += sums_of(one.meter)
    return totals


def sums_of(meter: Meter) -> Sums:
    """What a meter holds, after its evidence for a verdict was compared with its histogram."""
    if meter.error is not None:
        raise meter.error
    sums = meter.sums()
    evidence = float(meter.row()[ROW.index(EVIDENCE)])
    # A verdict asks for 30 of them: what is far below one does not count.
    assert abs(evidence - expected_roundings(sums)) <= 1e-5 * evidence + 1e-3
    return sums


def assert_same_words(expected: Item, got: Item, before: Item) -> None:
    """Every tensor bit for bit, NaN being NaN whatever its bits; names the first element that differs."""
    for name, words in expected.tensors.items():
        other = got.tensors[name]
        assert other.dtype == words.dtype, name
        nan = (
            words.isnan() & other.isnan()
            if words.is_floating_point()
            else torch.zeros_like(words, dtype=torch.bool)
        )
        wrong = ((bits_of(words) != bits_of(other)) & ~nan).reshape(-1)
        if bool(wrong.any()):
            at = int(wrong.nonzero()[0])
            inputs = {key: _shown(value, at) for key, value in before.tensors.items()}
            raise AssertionError(
                f"{expected.plan.name} {expected.name}: {name}[{at}] is {_shown(other, at)}, the reference has "
                f"{_shown(words, at)} ({int(wrong.sum())} of {wrong.numel()} differ). Before the first step: {inputs}"
            )


def _shown(words: Tensor, at: int) -> str:
    pattern = int(bits_of(words).reshape(-1)[at]) & ((1 << (8 * words.element_size())) - 1)
    return f"{words.reshape(-1)[at].item()!r} (0x{pattern:0{2 * words.element_size()}X})"


def assert_same_sums(expected: Sums, got: Sums, label: str, within: float = 1e-5) -> None:
    """Counts and bins equal; sums within a share of what was added up, the rounding of blocks in float32."""
    for name in COUNTS:
        assert getattr(got, name) == getattr(expected, name), f"{label}: {name}"
    assert got.headroom == expected.headroom, label
    sizes = magnitudes(expected)
    for name in SUMS:
        one, two = getattr(expected, name), getattr(got, name)
        assert abs(one - two) <= within * sizes[name], (
            f"{label}: {name} is {two!r}, the reference has {one!r}"
        )
    for one, two in zip(expected.headroom_energy, got.headroom_energy, strict=True):
        assert abs(one - two) <= within * one, f"{label}: headroom_energy {two!r}, the reference has {one!r}"


def magnitudes(sums: Sums) -> dict[str, float]:
    """What each sum's error is measured by: itself, or for mixed products ‖x‖·‖y‖, since those may cancel."""
    sizes: dict[str, Any] = {name: getattr(sums, name) for name in SUMS}
    sizes["sum_ua"] = math.sqrt(sums.sum_uu) * math.sqrt(sums.sum_aa)
    sizes["sum_us"] = math.sqrt(sums.sum_uu) * math.sqrt(sums.sum_ss)
    return sizes
