"""Steps that somebody else took, measured in C: the counts and sums of `Meter`, whatever was kept of the weight."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from cases import assert_same_sums, mixed, sums_of
from test_statistics_agree import BLOCK, KINDS, SIZES, made
from torch import Tensor

from roundoff.kernels import unavailable
from roundoff.numerics import add_to_pair, narrow
from roundoff.watch.statistics import Meter
from roundoff.watch.stored import stored_between

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
CPU = torch.device("cpu")
pytestmark = pytest.mark.skipif(unavailable("cpu") is not None, reason=str(unavailable("cpu")))
if unavailable("cpu") is None:
    from roundoff.kernels.cpu.measuring import measure_words

KEPT = [("none", BF16), ("none", F16), ("none", F32), ("plus", BF16), ("plus", F16), ("fp32-master", BF16)]
"""Strategies whose words are made: plain, a pair without the second word of v, a master with v in float32."""

Words = dict[str, Tensor]


def taken(
    kind: str, strategy: str, dtype: torch.dtype, size: int, beta2: float
) -> tuple[Words, Words, Tensor, Tensor]:
    """Words before and after a step, u and the gradient."""
    tensors = made(KINDS[kind], strategy, dtype, size, 3).tensors
    before = {name: tensors[name] for name in ("param", "lo", "master", "exp_avg_sq") if name in tensors}
    grad, w = tensors["grad"], before["param"].to(F32)
    u = (-1e-2 * grad.to(F32) / (grad.to(F32).abs().mean() + 1e-3) * w.abs()).to(F32)
    u[::13] = 0.0
    u[::17] *= 1e-6
    return before, after_step(before, u, grad, beta2), u, grad


def after_step(before: Words, u: Tensor, grad: Tensor, beta2: float) -> Words:
    after = {}
    dtype = before["param"].dtype
    if "lo" in before:
        after["param"], after["lo"] = add_to_pair(before["param"], before["lo"], u)
    elif "master" in before:
        after["master"] = before["master"] + u
        after["param"] = narrow(after["master"], dtype)
    else:
        after["param"] = narrow(before["param"].to(F32) + u, dtype)
    v = before["exp_avg_sq"]
    after["exp_avg_sq"] = narrow(beta2 * v.double() + (1 - beta2) * grad.double() ** 2, v.dtype)
    return after


def by_meter(
    before: Words, after: Words, u: Tensor, grad: Tensor | None, decay: float | None, beta2: float
) -> Meter:
    meter = Meter(CPU)
    hi = before["param"]
    stored = stored_between(before, after)
    term = None
    if decay is not None:
        term = (stored.value(hi).to(F32) if "lo" in before else before.get("master", hi).to(F32)) * decay
        if "lo" in before:
            term = (hi.to(F32) + before["lo"].to(F32)) * decay
    counted = meter.update(hi, after["param"], u, stored, term)
    if grad is not None:
        meter.moment(before["exp_avg_sq"], after["exp_avg_sq"], grad, beta2, counted=counted)
    return meter


def compare(before: Words, after: Words, u: Tensor, grad: Tensor | None, **options: Any) -> None:
    got = Meter(CPU)
    if grad is None:
        before, after = ({k: v for k, v in words.items() if k != "exp_avg_sq"} for words in (before, after))
    copies = [x.clone() for words in (before, after) for x in words.values()]
    assert measure_words(got, before, after, u, grad=grad, **options)
    expected = by_meter(before, after, u, grad, options.get("decay"), options.get("beta2", 0.0))
    one, other = sums_of(expected), sums_of(got)
    if before["param"].dtype == F32:
        # As between the backends: the square of a float32 gradient is exact in the reference alone.
        names = ("v_attempted", "v_stuck", "v_stuck_high")
        other = replace(other, **{name: getattr(one, name) for name in names})
    assert_same_sums(one, other, str(options))
    for copy, words in zip(copies, [*before.values(), *after.values()], strict=True):
        assert torch.equal(copy.view(torch.uint8), words.view(torch.uint8))


@pytest.mark.parametrize("size", [*SIZES, 1, 77])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("strategy", "dtype"), KEPT, ids=str)
def test_the_figures_are_those_of_the_meter(strategy: str, dtype: torch.dtype, kind: str, size: int) -> None:
    words = taken(kind, strategy, dtype, size, 0.999)
    compare(*words, decay=-1e-4, beta2=0.999)
    compare(*words, decay=-0.01, beta2=0.999)
    compare(*words[:3], None)


@pytest.mark.parametrize(("strategy", "dtype"), KEPT, ids=str)
def test_among_words_of_every_kind(strategy: str, dtype: torch.dtype) -> None:
    """NaN, infinities, zeros of both signs, subnormals, the largest and the smallest, in every operand."""
    generator = torch.Generator().manual_seed(5)
    before, after, u, grad = taken("calm", strategy, dtype, 3 * BLOCK + 5, 0.9)
    for words in (before, after):
        for name, tensor in words.items():
            where = torch.rand(tensor.shape, generator=generator) < 0.1
            tensor[where] = mixed(tensor.dtype, tensor.numel(), 1.0, generator)[where]
            if name == "exp_avg_sq":
                tensor.abs_()
    u[torch.rand(u.shape, generator=generator) < 0.02] = float("inf")
    grad[torch.rand(grad.shape, generator=generator) < 0.05] = float("nan")
    compare(before, after, u, grad, decay=-0.01, beta2=0.9)


def test_an_update_in_float64_is_rounded_once() -> None:
    before, after, u, _ = taken("calm", "none", F32, BLOCK, 0.999)
    got, expected = Meter(CPU), Meter(CPU)
    assert measure_words(
        got, {"param": before["param"]}, {"param": after["param"]}, u.double() * (1 + 2.0**-40)
    )
    assert measure_words(expected, {"param": before["param"]}, {"param": after["param"]}, u)
    assert sums_of(got) == sums_of(expected)


def test_what_c_cannot_measure_is_left_to_the_meter() -> None:
    before, after, u, grad = taken("calm", "none", BF16, BLOCK, 0.999)
    meter = Meter(CPU)

    def refused(one: Words, other: Words, intended: Tensor, **options: Any) -> bool:
        return not measure_words(meter, one, other, intended, **options)

    assert refused(before, after, u, grad=grad, beta2=1.0)
    assert refused(before, after, u, grad=grad.float(), beta2=0.9)
    assert refused(before, {**after, "param": after["param"][:-1]}, u, grad=grad, beta2=0.9)
    assert refused({"param": before["param"].float(), "lo": before["param"]}, after, u)
    assert refused({"param": before["param"][::2]}, {"param": after["param"][::2]}, u[::2])
    assert refused({"param": torch.ones(4).to(torch.float8_e4m3fn)}, {"param": torch.ones(4)}, torch.ones(4))
    assert refused({"param": before["param"]}, {"param": after["param"]}, u.double() * 1e-300)
    assert meter.sums().numel == 0


@pytest.mark.parametrize("dtype", [BF16, F32], ids=str)
def test_histograms_are_left_out_if_nobody_wants_them(dtype: torch.dtype) -> None:
    before, after, u, grad = taken("calm", "none", dtype, BLOCK, 0.999)
    with_bins, without = Meter(CPU), Meter(CPU, headroom=False)
    for meter in (with_bins, without):
        assert measure_words(meter, before, after, u, grad=grad, beta2=0.999)
    assert torch.equal(with_bins.row(), without.row())
    assert with_bins.bins.sum() > 0
    assert without.bins.sum() == 0
