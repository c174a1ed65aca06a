"""`torch.amp.GradScaler`: a skipped step changes nothing and is counted as skipped, read on the host or not."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import pytest
import torch
from simple import BF16, F16, F32, assert_equal, everything, give_gradients, model_of
from torch import Tensor, nn
from torch.amp import GradScaler

from roundoff.metrics import Sums
from roundoff.optim import STRATEGIES, CollageAdamW

STEPS = (1.0, math.inf, 1.0, math.nan, 1.0)
"""Factors on the gradients: the second and the fourth step overflow."""
ALL = [(plan.name, dtype) for plan in STRATEGIES.values() for dtype in plan.dtypes]


def tensor(value: float | Tensor) -> Any:
    """What `Step` and the options do with a tensor that is not on the CPU."""
    return value.to(torch.float64) if isinstance(value, Tensor) else value


@pytest.fixture(params=["host", "device"])
def where(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Patched, because there is no accelerator here: on "device" the CPU's tensors are treated as one's.

    Then `found_inf`, the step count and the scalars that follow from it stay tensors and nothing reads them.
    """
    if request.param == "device":
        monkeypatch.setattr("roundoff.optim.adamw._on_host", lambda _: False)
        monkeypatch.setattr("roundoff.optim.options._inverse", lambda scale: scale.double().reciprocal())
        monkeypatch.setattr("roundoff.kernels.step._wide", tensor)
    return str(request.param)


def scaled(strategy: str, dtype: torch.dtype, factors: tuple[float, ...], **options: Any) -> Any:
    """A training whose gradients a scaler scales; returns what is kept and each step's sums."""
    model = model_of(dtype)
    optimizer = CollageAdamW(model.parameters(), lr=1e-2, strategy=strategy, **options)
    scaler = GradScaler("cpu", init_scale=256.0, growth_interval=1000)
    measured = []
    for step, factor in enumerate(factors):
        scale = scaler.scale(torch.ones(()))
        give_gradients(model, step, float(scale) * factor)
        optimizer.meters = {}
        scaler.step(optimizer)
        scaler.update()
        measured.append(sum((meter.sums() for meter in optimizer.meters.values()), Sums()))
    return everything(model, optimizer), measured


def unscaled(strategy: str, dtype: torch.dtype, **options: Any) -> Any:
    """The same without a scaler, and without the steps that it skips."""
    model = model_of(dtype)
    optimizer = CollageAdamW(model.parameters(), lr=1e-2, strategy=strategy, **options)
    measured = []
    for step, factor in enumerate(STEPS):
        if math.isfinite(factor):
            give_gradients(model, step)
            optimizer.meters = {}
            optimizer.step()
            measured.append(sum((meter.sums() for meter in optimizer.meters.values()), Sums()))
    return everything(model, optimizer), measured


@pytest.mark.parametrize("amsgrad", [False, True], ids=["", "amsgrad"])
@pytest.mark.parametrize(("strategy", "dtype"), ALL, ids=str)
def test_skipped_steps_change_nothing_and_are_counted(
    where: str, strategy: str, dtype: torch.dtype, amsgrad: bool
) -> None:
    kept, measured = scaled(strategy, dtype, STEPS, amsgrad=amsgrad)
    wanted, steps = unscaled(strategy, dtype, amsgrad=amsgrad)
    assert_equal(kept, wanted)
    assert [sums.skipped for sums in measured] == [0, 6, 0, 6, 0]
    skipped = Sums(numel=steps[0].numel, skipped=6)
    assert measured[1] == measured[3] == skipped, "not lost, not attempted, not non-finite"
    for sums, same in zip((measured[0], measured[2], measured[4]), steps, strict=True):
        # Counts exactly; another backend adds the sums up in another order.
        assert asdict(sums) == {name: pytest.approx(value, rel=1e-12) for name, value in asdict(same).items()}


@pytest.mark.parametrize("arithmetic", ["fp32", "storage"])
def test_storage_arithmetic_skips_as_well(where: str, arithmetic: str) -> None:
    kept, _ = scaled("plus", BF16, STEPS, arithmetic=arithmetic)
    assert_equal(kept, unscaled("plus", BF16, arithmetic=arithmetic)[0])


def test_a_first_step_that_is_skipped_leaves_no_state() -> None:
    """So that weights may still be cast and seeded after it."""
    model = model_of()
    optimizer = CollageAdamW(model.parameters())
    optimizer.found_inf, optimizer.grad_scale = torch.ones(()), torch.ones(())
    give_gradients(model, 0)
    optimizer.step()
    assert not optimizer.state
    assert not any(name.startswith("0.weight/") for name in everything(model, optimizer))


def train(scale: float, dtype: torch.dtype, grad_dtype: torch.dtype, *, clip: bool) -> dict[str, Tensor]:
    """Training with clipping, through `unscale_`; without a scaler where the scale is 0."""
    model = model_of(dtype)
    for param in model.parameters():
        param.grad_dtype = grad_dtype
    optimizer = CollageAdamW(model.parameters(), lr=1e-2)
    scaler = GradScaler("cpu", init_scale=scale or 1.0, enabled=bool(scale), growth_interval=1000)
    for step in range(6):
        x = torch.randn(4, 6, generator=torch.Generator().manual_seed(step)).to(dtype)
        optimizer.zero_grad()
        scaler.scale(model(x).square().mean() * (math.inf if step == 3 and scale else 1.0)).backward()
        if step == 3 and not scale:
            continue
        if clip:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.05, error_if_nonfinite=False)
        scaler.step(optimizer)
        scaler.update(scale or None)
    return everything(model, optimizer)


@pytest.mark.parametrize("clip", [False, True])
def test_with_and_without_unscaling_and_clipping(where: str, clip: bool) -> None:
    """A power of two as the scale changes no bit of bfloat16 gradients."""
    assert_equal(train(1024.0, BF16, BF16, clip=clip), train(0.0, BF16, BF16, clip=clip))


def test_float16_gradients_are_unscaled_here_but_not_by_the_scaler() -> None:
    """PyTorch refuses `unscale_` on float16 gradients; wider gradients beside float16 weights are the way."""
    assert_equal(train(1024.0, F16, F32, clip=True), train(0.0, F16, F32, clip=True))
    with pytest.raises(ValueError, match="Attempting to unscale FP16 gradients"):
        train(1024.0, F16, F16, clip=True)


def test_after_the_scaler_is_gone_steps_go_on(where: str) -> None:
    model = model_of()
    optimizer = CollageAdamW(model.parameters(), lr=1e-2)
    scaler = GradScaler("cpu", init_scale=4.0)
    scaler.scale(torch.ones(()))  # it starts up when something is scaled
    for step in range(4):
        give_gradients(model, step)
        if step < 2:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
    assert {float(state["step"]) for state in optimizer.state.values()} == {4.0}
