"""Every backend against the reference, bit for bit, over one table of strategies, options, sizes and layouts.

A backend joins when `roundoff.kernels.KERNELS` names it. The reference itself is compared with the reference
in small chunks, which must not show either.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from cases import STRATEGY_DTYPES, Item, assert_same_sums, assert_same_words, item, run

from roundoff.kernels import KERNELS, Kernel, Noise, Step, unavailable
from roundoff.optim import STRATEGIES

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
SIZES = (0, 1, 2, 7, 15, 16, 17, 1000, 1024, 1025, 4099, 70_000)
SMALL_CHUNK = 100
"""Elements that the reference takes at a time where it is compared with itself."""

OPTIONS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "without decay": {"weight_decay": 0.0},
    "amsgrad": {"amsgrad": True},
    "maximize": {"maximize": True},
    "scaled": {"gradient_scale": 1 / 1024},
    "all of them": {"amsgrad": True, "maximize": True, "gradient_scale": 1 / 3},
    "large steps": {"lr": 0.3, "weight_decay": 0.5},
    "tiny steps": {"lr": 1e-7},
    "standing still": {"lr": 0.0},
    "no eps": {"eps": 0.0},
    "no momentum": {"beta1": 0.0, "beta2": 0.0},
    "slow": {"beta1": 0.95, "beta2": 0.9999, "eps": 1e-15},
}
"""Options of a step, by what they are about; the rest as in DEFAULTS."""

DEFAULTS = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.1}
COUNTS = (1, 2, 1000)
EDGES = (1, 7, 16, 17, 1025, 4099)
"""Sizes with a whole vector and a whole block in them and something left over."""

ITSELF = ("defaults", "all of them")
"""Options with which the reference is compared with itself, on a few small tensors."""


def paths(*, storage: bool = True, itself: bool = True, strategies: Any = STRATEGIES) -> list[Any]:
    """Backend, arithmetic, strategy and dtype of everything that is compared, for `parametrize`.

    `storage`: with the arithmetic of that name, where a backend has its own; `itself`: with the reference
    against itself.
    """
    return [
        pytest.param(
            backend, arithmetic, strategy, dtype, id=f"{backend}-{arithmetic}-{strategy}-{str(dtype)[6:]}"
        )
        for (backend, arithmetic), (strategy, dtype) in product(KERNELS, STRATEGY_DTYPES)
        if unavailable(backend) is None
        if strategy in strategies
        if arithmetic == "fp32" or (storage and STRATEGIES[strategy].storage_arithmetic and dtype != F32)
        if (itself if backend == "reference" else is_its_own(backend, arithmetic))
    ]


def is_its_own(backend: str, arithmetic: str) -> bool:
    """Whether a backend does this itself and does not hand it to the reference."""
    return KERNELS[backend, arithmetic] is not KERNELS["reference", arithmetic]


PATH = ("backend", "arithmetic", "strategy", "dtype")


def steps(**options: Any) -> list[Step]:
    return [Step(count, **{**DEFAULTS, **options}) for count in COUNTS]


@pytest.fixture
def kernels(
    backend: str, arithmetic: str, strategy: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> tuple[Kernel, Kernel]:
    """The reference and what is compared with it."""
    reference, other = KERNELS["reference", arithmetic], KERNELS[backend, arithmetic]
    if backend != "reference":
        return reference, other

    def in_small_chunks(updates: Any) -> None:
        with monkeypatch.context() as patched:
            patched.setattr("roundoff.kernels.reference.CHUNK", SMALL_CHUNK)
            other(updates)

    return reference, in_small_chunks


def assert_agree(kernels: tuple[Kernel, Kernel], items: list[Item], some: list[Step]) -> None:
    before = [one.copy() for one in items]
    others = [one.copy() for one in items]
    for one, other in zip(before, others, strict=True):
        assert_same_words(one, other, one)
    expected = run(kernels[0], items, some)
    got = run(kernels[1], others, some)
    for one, other, start in zip(items, others, before, strict=True):
        assert_same_words(one, other, start)
    for one, mine, theirs in zip(items, expected, got, strict=True):
        assert_same_sums(mine, theirs, f"{one.plan.name} {one.name}")


def parameters(strategy: str, dtype: torch.dtype, sizes: tuple[int, ...], **how: Any) -> list[Item]:
    """Every size twice: aligned and measured the first time for one size, the second time for the next."""
    return [
        item(strategy, dtype, size, seed, odd=bool(seed), measured=bool(seed) == bool(number % 2), **how)
        for number, size in enumerate(sizes)
        for seed in range(2)
    ]


@pytest.mark.parametrize(
    (*PATH, "options"),
    [
        pytest.param(*path.values, options, id=f"{path.id}-{options}")
        for path, options in product(paths(), OPTIONS)
        if path.values[0] != "reference" or options in ITSELF
    ],
)
def test_every_tensor_and_every_count(
    kernels: tuple[Kernel, Kernel], backend: str, strategy: str, dtype: torch.dtype, options: str
) -> None:
    chosen = OPTIONS[options]
    # Where a tensor ends does not depend on the numbers in a step, but for the code that options choose.
    sizes = SIZES if options == "defaults" else EDGES
    if options in ("without decay", "scaled", "maximize"):
        sizes = SIZES[:-1]
    if backend == "reference":
        sizes = (1, 150)
    assert_agree(
        kernels,
        parameters(strategy, dtype, sizes, amsgrad=chosen.get("amsgrad", False)),
        steps(**chosen),
    )


@pytest.mark.parametrize(PATH, paths(itself=False))
def test_every_combination_of_options(
    kernels: tuple[Kernel, Kernel], strategy: str, dtype: torch.dtype
) -> None:
    axes = (False, True), (False, True), (0.0, 0.1), (None, 0.125), (None, F32)
    for second in product((0, 1), repeat=len(axes)):
        amsgrad, maximize, decay, scale, grad_dtype = (
            axis[at] for axis, at in zip(axes, second, strict=True)
        )
        # The compiled step hands amsgrad and gradients of another dtype to the reference: what it does itself is
        # all here. Of the rest, an even number of second values holds every combination of any four axes.
        if (amsgrad or grad_dtype) and sum(second) % 2:
            continue
        items = parameters(strategy, dtype, (17, 333), amsgrad=amsgrad, grad_dtype=grad_dtype)
        some = steps(amsgrad=amsgrad, maximize=maximize, weight_decay=decay, gradient_scale=scale)
        assert_agree(kernels, items, some)


@pytest.mark.parametrize("grad_dtype", [BF16, F16, F32, torch.float64], ids=str)
@pytest.mark.parametrize(PATH, paths(storage=False))
def test_gradients_of_any_float_dtype_are_only_read(
    kernels: tuple[Kernel, Kernel], strategy: str, dtype: torch.dtype, grad_dtype: torch.dtype
) -> None:
    items = parameters(strategy, dtype, (17, 1025), grad_dtype=grad_dtype)
    assert_agree(kernels, items, steps()[:1])
    fresh = parameters(strategy, dtype, (17, 1025), grad_dtype=grad_dtype)
    run(kernels[1], fresh, steps()[:1])
    for one, other in zip(items, fresh, strict=True):
        assert_same_words(
            Item("grad", one.plan, {"grad": one.tensors["grad"]}),
            Item("grad", one.plan, {"grad": other.tensors["grad"]}),
            one,
        )


@pytest.mark.parametrize("found", [0.0, 1.0])
@pytest.mark.parametrize(PATH, paths(storage=False))
def test_what_a_loss_scaler_found(
    kernels: tuple[Kernel, Kernel], strategy: str, dtype: torch.dtype, found: float
) -> None:
    items = parameters(strategy, dtype, (1, 17, 1025))
    before = [one.copy() for one in items]
    assert_agree(kernels, items, steps(found_inf=torch.tensor(found)))
    if found:
        for one, start in zip(items, before, strict=True):
            start.tensors["grad"] = one.tensors["grad"]
            assert_same_words(start, one, start)


def turned(one: Item, layout: str) -> Item:
    """The tensors of an item in another layout; all but `grad`, which keeps what autograd may leave."""
    make = {
        "transposed": lambda words: words.reshape(12, 10).t(),
        "every other": lambda words: words.repeat_interleave(2)[::2],
        "channels last": lambda words: words.reshape(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "scalar": lambda words: words[0].clone(),
        "cube": lambda words: words.reshape(2, 3, 20),
        "expanded gradient": lambda words: words.reshape(12, 10),
    }[layout]
    tensors = {name: make(words) for name, words in one.tensors.items()}
    grad = one.tensors["grad"]
    if layout == "channels last":
        tensors["grad"] = grad.reshape(2, 3, 4, 5)
    elif layout == "expanded gradient":
        tensors["grad"] = grad[:10].expand(12, 10)
    return Item(layout, one.plan, tensors, one.noise)


@pytest.mark.parametrize(
    "layout", ["transposed", "every other", "channels last", "scalar", "cube", "expanded gradient"]
)
@pytest.mark.parametrize(PATH, paths(storage=False))
def test_any_layout(kernels: tuple[Kernel, Kernel], strategy: str, dtype: torch.dtype, layout: str) -> None:
    before = turned(item(strategy, dtype, 120, 2), layout)
    one, other = before.copy(), before.copy()
    for step in steps():
        kernels[0]([one.update(step)])
        kernels[1]([other.update(step)])
    assert_same_words(one, other, before)


@pytest.mark.parametrize("noise", [Noise(1 << 63, first=2**32 - 60), Noise(7, first=5 * 2**40)], ids=str)
@pytest.mark.parametrize(PATH, paths(strategies=["stochastic"]))
def test_random_bits_of_far_elements_and_of_shards(
    kernels: tuple[Kernel, Kernel], strategy: str, dtype: torch.dtype, noise: Noise
) -> None:
    followed = item(strategy, dtype, 1025, 3)
    followed.noise = noise
    scattered = item(strategy, dtype, 1025, 3)
    scattered.noise = Noise(noise.key, index=torch.arange(1025) + noise.first)
    strided = item(strategy, dtype, 1025, 3)
    strided.noise = Noise(noise.key, index=torch.arange(1025) * 37 + noise.first)
    assert_agree(kernels, [followed, scattered, strided], steps())
    assert_same_words(followed, scattered, followed)


@pytest.mark.parametrize(PATH, paths(strategies=["light"])[::2])
def test_parameters_of_all_kinds_in_one_call(kernels: tuple[Kernel, Kernel], arithmetic: str) -> None:
    plans = [
        (name, dtype)
        for name, dtype in STRATEGY_DTYPES
        if arithmetic == "fp32" or (STRATEGIES[name].storage_arithmetic and dtype != F32)
    ]
    items = [item(name, dtype, size, 4) for name, dtype in plans for size in (3, 150)]
    assert_agree(kernels, items, steps())


@pytest.mark.parametrize(PATH, paths(storage=False))
def test_scalars_may_be_tensors(kernels: tuple[Kernel, Kernel], strategy: str, dtype: torch.dtype) -> None:
    numbers = parameters(strategy, dtype, (17, 1025))
    tensors = [one.copy() for one in numbers]
    wrapped = {"lr": torch.tensor(1e-3, dtype=torch.float64), "eps": torch.tensor(1e-8, dtype=torch.float64)}
    run(kernels[0], numbers, steps())
    run(kernels[1], tensors, steps(**wrapped))
    for one, other in zip(numbers, tensors, strict=True):
        assert_same_words(one, other, one)
