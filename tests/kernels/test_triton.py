"""The Triton backend against the reference, bit for bit, in Triton's interpreter or on a GPU: see conftest.py."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch
from cases import (
    STRATEGY_DTYPES,
    Item,
    assert_same_sums,
    assert_same_words,
    item,
    new_gradients,
    specials,
)
from torch import Tensor

from roundoff.kernels import Noise, Step, run_canary
from roundoff.kernels.reference import step_fp32
from roundoff.kernels.triton_step import BLOCK, available, step_triton
from roundoff.metrics import ROW
from roundoff.numerics import (
    add_compensated,
    add_to_pair,
    join_master,
    random_words,
    round_stochastic,
    split_master,
)
from roundoff.optim import STRATEGIES
from roundoff.watch import Meter

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")

CPU, DEVICE = torch.device("cpu"), torch.device("cuda" if torch.cuda.is_available() else "cpu")
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
FORMS = [pytest.param("bfloat16", BF16, id="bfloat16"), pytest.param("float16", F16, id="float16")]
PLANS = [pytest.param(*plan, id=f"{plan[0]}-{str(plan[1])[6:]}") for plan in STRATEGY_DTYPES]
OPTIONS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "everything": {"amsgrad": True, "maximize": True, "gradient_scale": 1 / 3, "lr": 0.3, "count": 1000},
    "bare": {"weight_decay": 0.0, "lr": 1e-7, "eps": 0.0, "count": 7},
}


@pytest.fixture(autouse=True)
def interpreting() -> Iterator[None]:
    """NumPy, which interprets, does not warn of infinities; and Triton does not lose nine tenths of its time.

    It replaces the functions of its language anew for every device function that is called; once for a kernel
    is enough, and leaves it to the kernel to put them back.
    """
    if not os.environ.get("TRITON_INTERPRET"):
        yield
        return
    from triton.runtime import interpreter

    patch, scopes = interpreter._patch_lang, []

    def patch_once(function: Any) -> Any:
        if scopes:
            return None
        scope = patch(function)
        scopes.append(scope)
        restore = scope.restore
        scope.restore = lambda: (scopes.clear(), restore())
        return scope

    interpreter._patch_lang = patch_once
    with np.errstate(all="ignore"):
        yield
    interpreter._patch_lang = patch


def step(**options: Any) -> Step:
    """Scalars of a step, those that differ from the defaults given."""
    return Step(
        **{"count": 1, "lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.1, **options}
    )


def placed(words: Tensor) -> Tensor:
    """A copy on the device, as far from the start of its storage as the original."""
    offset = words.storage_offset()
    storage = torch.empty(words.numel() + offset, dtype=words.dtype, device=DEVICE)
    storage[offset:] = words.to(DEVICE)
    return storage[offset:]


def on_device(one: Item) -> Item:
    noise = one.noise
    if noise is not None and noise.index is not None:
        noise = replace(noise, index=noise.index.to(DEVICE))
    return replace(one, tensors={name: placed(words) for name, words in one.tensors.items()}, noise=noise)


def assert_agree(one: Item, scalars: Step, *, measured: bool = True, on_gpu: Step | None = None) -> None:
    """Step `one` by the reference and by Triton; every word, count and bin is equal, and every sum nearly."""
    start, other = one.copy(), on_device(one)
    meters = [Meter(CPU), Meter(DEVICE)] if measured else [None, None]
    for item_, meter, kernel, numbers in zip(
        (one, other), meters, (step_fp32, step_triton), (scalars, on_gpu or scalars), strict=True
    ):
        item_.meter = meter
        kernel([item_.update(numbers)])
    back = replace(other, tensors={name: words.to(CPU) for name, words in other.tensors.items()})
    assert_same_words(one, back, start)
    mine, theirs = meters
    if mine is None or theirs is None:
        return
    for meter in (mine, theirs):
        if meter.error is not None:
            raise meter.error
    assert_same_sums(mine.sums(), theirs.sums(), one.name, within=1e-12)
    evidence = ROW.index("expected_roundings")
    assert float(theirs.row()[evidence]) == pytest.approx(float(mine.row()[evidence]), rel=1e-12)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize(("strategy", "dtype"), PLANS)
def test_every_strategy(strategy: str, dtype: torch.dtype, options: str) -> None:
    chosen = OPTIONS[options]
    one = item(strategy, dtype, 1000, len(options), amsgrad=chosen.get("amsgrad", False), odd=bool(chosen))
    assert_agree(one, step(**chosen))


def powers_and_neighbours() -> Tensor:
    """Every power of two of float32, and the numbers beside it, of both signs."""
    bits = torch.cat((torch.arange(255) << 23, 1 << torch.arange(23))).to(torch.int32)
    sizes = torch.cat((bits - 1, bits, bits + 1)).clamp_min(0).view(F32)
    return torch.cat((sizes, -sizes))


@pytest.mark.parametrize(
    ("strategy", "dtype"),
    [
        plan
        for plan in PLANS
        if plan.id in ("fp32-state-bfloat16", "fp32-state-float16", "fp32-master-bfloat16", "light-float16")
    ],
)
def test_statistics_where_a_power_of_two_decides(strategy: str, dtype: torch.dtype) -> None:
    # m' = m / 2, a denominator of 1 and a step size of −2: u = −m, to the bit.
    intended = powers_and_neighbours()
    one = item(strategy, dtype, intended.numel(), 1)
    generator = torch.Generator().manual_seed(2)
    weights = intended[torch.randperm(intended.numel(), generator=generator)]
    for name, values in (("exp_avg", intended), ("param", weights), ("master", weights)):
        if name in one.tensors:
            one.tensors[name].copy_(values)
    for name in ("exp_avg_sq", "grad"):
        one.tensors[name].zero_()
    assert_agree(one, step(lr=1.0, beta1=0.5, eps=1.0, weight_decay=0.0))


@pytest.mark.parametrize("strategy", ["plus", "exact"])
@pytest.mark.parametrize("size", [0, 1, BLOCK - 1, BLOCK, 2 * BLOCK + 1])
def test_every_size(strategy: str, size: int) -> None:
    assert_agree(item(strategy, BF16, size, 1), step())


@pytest.mark.parametrize("amsgrad", [False, True])
def test_several_steps_without_a_meter(amsgrad: bool) -> None:
    one = item("plus", BF16, 300, 5, amsgrad=amsgrad)
    for count in range(1, 6):
        new_gradients([one], count)
        assert_agree(one, step(count=count, amsgrad=amsgrad), measured=False)


@pytest.mark.parametrize("dtype", [BF16, F16, F32, torch.float64], ids=str)
def test_gradients_of_any_float_dtype(dtype: torch.dtype) -> None:
    one = item("plus", BF16, 400, 2, grad_dtype=dtype)
    assert_agree(one, step(gradient_scale=0.1))


@pytest.mark.parametrize(
    ("strategy", "found"), [*((name, 1.0) for name in STRATEGIES), ("plus", 0.0), ("plus", float("nan"))]
)
def test_nothing_is_stored_where_a_loss_scaler_found_infinities(strategy: str, found: float) -> None:
    one = item(strategy, BF16, 200, 4, amsgrad=True)
    start = one.copy()
    scalars = [step(amsgrad=True, found_inf=torch.tensor([found], device=where)) for where in (CPU, DEVICE)]
    assert_agree(one, scalars[0], on_gpu=scalars[1])
    if found:
        assert_same_words(start, one, start)


def test_scalars_that_the_device_alone_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no other device, tensors on the CPU are taken for such: there they would be read."""
    monkeypatch.setattr("roundoff.kernels.triton_step._READABLE", "nowhere")
    eps, scale = torch.tensor(1e-3, device=DEVICE), torch.tensor(1 / 3, dtype=torch.float64, device=DEVICE)
    one = item("light", BF16, 500, 3)
    assert_agree(one, step(eps=1e-3, gradient_scale=1 / 3), on_gpu=step(eps=eps, gradient_scale=scale))


NOISES = {
    "beyond 32 bits": Noise(0x8000_0001_FFFF_FFFF, first=(1 << 32) - 50),
    "far": Noise(0x7FFF_FFFF_8000_0000, first=(1 << 40) + 12345),
    "a shard's indices": Noise(
        0xFEDC_BA98_7654_3210, index=(torch.arange(1500) * 0x9_8765_4321 + 7) % (1 << 45)
    ),
}


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
def test_random_bits_follow_key_and_index(dtype: torch.dtype, noise: str) -> None:
    one = item("stochastic", dtype, 1500, 1)
    one.noise = NOISES[noise]
    assert_agree(one, step(), measured=False)


@pytest.mark.parametrize(("strategy", "dtype"), PLANS)
def test_the_canary_lives(strategy: str, dtype: torch.dtype) -> None:
    run_canary(step_triton, STRATEGIES[strategy], DEVICE, dtype)


@pytest.mark.skipif(DEVICE.type == "cpu", reason="there is no GPU to wait for")
def test_nothing_waits_for_the_device() -> None:
    one = on_device(item("stochastic", BF16, 3000, 1, amsgrad=True))
    options = {"amsgrad": True, "eps": torch.tensor(1e-8, device=DEVICE)}
    for mode in ("default", "error"):  # compiled the first time, and loaded, which waits
        torch.cuda.set_sync_debug_mode(mode)
        try:
            for found in (None, torch.zeros((), device=DEVICE)):
                one.meter = Meter(DEVICE)
                step_triton([one.update(step(found_inf=found, **options))])
                one.meter.row()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert one.meter.error is None


def test_what_the_kernel_does_not_take_goes_to_the_reference() -> None:
    flat = item("plus", BF16, 120, 6)
    turned = replace(flat, tensors={name: words.reshape(12, 10).t() for name, words in flat.tensors.items()})
    expected, got = turned.copy(), turned.copy()
    other = item("none", F32, 33, 6)
    expected_other, got_other = other.copy(), other.copy()
    for kernel, items in ((step_fp32, (expected, expected_other)), (step_triton, (got, got_other))):
        kernel([one.update(step()) for one in items])
    assert_same_words(expected, got, turned)
    assert_same_words(expected_other, got_other, other)


def test_autograd_learns_that_the_weight_changed() -> None:
    one = on_device(item("none", BF16, 5, 1))
    before = one.tensors["param"]._version
    step_triton([one.update(step())])
    assert one.tensors["param"]._version > before


def test_sums_without_histograms() -> None:
    one, bare = item("plus", BF16, 1500, 8), item("plus", BF16, 1500, 8)
    rows = []
    for some, headroom in ((one, True), (bare, False)):
        other = on_device(some)
        other.meter = Meter(DEVICE, headroom=headroom)
        step_triton([other.update(step())])
        rows.append(other.meter.row())
        assert bool(other.meter.bins.any()) == headroom
    assert torch.equal(*rows)


class FullMeter(Meter):
    """A meter on a device without memory left."""

    def take(self, row: Tensor, bins: Tensor | None) -> None:
        raise torch.OutOfMemoryError("no memory")


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_meter_that_fails_does_not_stop_the_step(when: str) -> None:
    one = on_device(item("none", BF16, 5, 1))
    expected = one.copy()
    one.meter = FullMeter(DEVICE)
    if when == "before":
        one.meter.error = RuntimeError("no room")
    step_triton([one.update(step())])
    step_fp32([expected.update(step())])
    assert_same_words(expected, one, expected)
    assert str(one.meter.error) == {"before": "no room", "after": "no memory"}[when]
    assert int(one.meter.row().count_nonzero()) == 0


def test_it_says_whether_it_can_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert available() is None
    monkeypatch.setattr("roundoff.kernels.triton_step.find_spec", lambda name: None)
    assert available() == "the package triton is not installed"


def near_words(dtype: torch.dtype) -> Tensor:
    """Every word of a 16-bit format as float32, the midpoint to the next, and the float32 beside both."""
    words = torch.arange(-(1 << 15), 1 << 15).to(torch.int16).view(dtype)
    value = words.to(torch.float32)
    following = (words.view(torch.int16) + 1).to(torch.int16).view(dtype).to(torch.float32)
    middle = ((value.double() + following.double()) / 2).to(torch.float32)
    # Beyond the largest word the next one would be the power of two that overflows.
    largest = torch.finfo(dtype).max
    edge = torch.tensor([largest, -largest], dtype=torch.float64) * (1 + torch.finfo(dtype).eps / 4)
    middle = torch.cat((middle, edge.to(torch.float32)))
    bits = torch.cat((value.view(torch.int32), middle.view(torch.int32)))
    return torch.cat([bits + beside for beside in (-1, 0, 1)]).view(torch.float32)


def same(one: Tensor, other: Tensor) -> bool:
    """Equal bit for bit, NaN being NaN."""
    nan = one.isnan() & other.isnan()
    width = {2: torch.int16, 4: torch.int32}[one.element_size()]
    return bool(((one.view(width) == other.view(width)) | nan).all())


@pytest.mark.parametrize(("form", "dtype"), FORMS)
def test_every_word_and_every_tie_is_rounded_to_nearest_even(form: str, dtype: torch.dtype) -> None:
    from word_kernels import launch, narrow_kernel, widen_kernel

    x = near_words(dtype).to(DEVICE)
    words = torch.empty(x.shape, dtype=torch.int16, device=DEVICE)
    launch(narrow_kernel, x, words, form=form)
    assert same(words.view(dtype).cpu(), x.cpu().to(dtype))
    every = torch.arange(-(1 << 15), 1 << 15).to(torch.int16).to(DEVICE)
    wide = torch.empty(every.shape, device=DEVICE)
    launch(widen_kernel, every, wide, form=form)
    assert same(wide.cpu(), every.cpu().view(dtype).to(torch.float32))


@pytest.mark.parametrize(("form", "dtype"), FORMS)
def test_rounding_by_chance(form: str, dtype: torch.dtype) -> None:
    from word_kernels import chance_kernel, launch

    x = near_words(dtype)
    generator = torch.Generator().manual_seed(1)
    noise = torch.randint(0, 1 << 16, x.shape, generator=generator).to(torch.int32)
    edges = torch.tensor([0, 1, 7, 8, 32767, 32768, 65528, 65535], dtype=torch.int32)
    x, noise = torch.cat((x, x)), torch.cat((noise, edges.repeat(-(-x.numel() // 8))[: x.numel()]))
    words = torch.empty(x.shape, dtype=torch.int16, device=DEVICE)
    launch(chance_kernel, x.to(DEVICE), noise.to(DEVICE), words, form=form)
    assert same(words.view(dtype).cpu(), round_stochastic(x, dtype, noise))


def test_masters_are_split_and_joined() -> None:
    from word_kernels import join_kernel, launch, split_kernel

    x = near_words(BF16)
    hi, rest, joined = (torch.empty(x.shape, dtype=d, device=DEVICE) for d in (torch.int16, torch.int16, F32))
    launch(split_kernel, x.to(DEVICE), hi, rest, joined)
    expected_hi, expected_rest = split_master(x)
    assert torch.equal(hi.cpu(), expected_hi.view(torch.int16))
    assert torch.equal(rest.cpu(), expected_rest)
    assert same(joined.cpu(), x)
    every = torch.arange(-(1 << 15), 1 << 15).to(torch.int16)
    for remainder in (-(1 << 15), -1, 0, 1, (1 << 15) - 1):
        rests = torch.full_like(every, remainder)
        out = torch.empty(every.shape, device=DEVICE)
        launch(join_kernel, every.to(DEVICE), rests.to(DEVICE), out)
        assert same(out.cpu(), join_master(every.view(BF16), rests))


@pytest.mark.parametrize("kahan", [False, True])
@pytest.mark.parametrize(("form", "dtype"), FORMS)
def test_pairs_at_the_ends_of_the_range(form: str, dtype: torch.dtype, kahan: bool) -> None:
    from word_kernels import launch, pair_kernel

    w, lo, u = (
        words.flatten()
        for words in torch.meshgrid(
            torch.arange(specials(dtype).numel()),
            torch.arange(specials(dtype).numel()),
            torch.arange(specials(F32).numel()),
            indexing="ij",
        )
    )
    hi, low, update = specials(dtype)[w], specials(dtype)[lo], specials(F32)[u]
    low = torch.where(low.isfinite(), low, 0.0)
    words = [tensor.view(torch.int16).to(DEVICE, copy=True) for tensor in (hi, low)]
    launch(pair_kernel, *words, update.to(DEVICE), form=form, kahan=kahan)
    expected = (add_compensated if kahan else add_to_pair)(hi, low, update)
    for got, wanted in zip(words, expected, strict=True):
        assert same(got.cpu().view(dtype), wanted)


@pytest.mark.parametrize("high", [5, 0xFFFF_FFFF])
@pytest.mark.parametrize("low", [0, 1, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF])
def test_random_words(low: int, high: int) -> None:
    from word_kernels import launch, random_kernel

    ends = torch.tensor([0, 1, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, 1 << 40, (1 << 62) + 3])
    index = torch.cat((ends, torch.arange(1000) * 0x1_2345_6789))
    out = torch.empty(index.shape, dtype=torch.int32, device=DEVICE)
    signed = [word - (1 << 32) if word >> 31 else word for word in (low, high)]
    launch(random_kernel, index.to(DEVICE), out, numbers=signed)
    assert torch.equal(out.cpu(), random_words(high << 32 | low, index))
