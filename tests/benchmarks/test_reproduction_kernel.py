"""The study's kernel for storage arithmetic: quick, and the reference's results bit for bit."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from reproduction.kernel import _add_once, _multiply, step_native
from reproduction.recipe import BETAS2
from roundoff.kernels import KERNELS
from roundoff.metrics import Sums
from roundoff.numerics import multiply, round_to
from roundoff.optim import STRATEGIES, CollageAdamW

BF16 = torch.bfloat16
STORAGE = [name for name, strategy in STRATEGIES.items() if strategy.storage_arithmetic]


@pytest.mark.parametrize("beta2", BETAS2)
@pytest.mark.parametrize("strategy", STORAGE)
def test_the_quick_kernel_equals_the_reference_bit_for_bit(
    strategy: str, beta2: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    strict = KERNELS["reference", "storage"]
    states = []
    for kernel in (strict, step_native):
        monkeypatch.setitem(KERNELS, ("reference", "storage"), kernel)
        states.append(_trained(strategy, beta2))
    assert states[0][0] == states[1][0]
    for name, words in states[0][1].items():
        assert torch.equal(words, states[1][1][name]), name


def _trained(strategy: str, beta2: float) -> tuple[Sums, dict[str, Tensor]]:
    """The sums and the words after some steps on weights and gradients of many magnitudes."""
    draw = torch.Generator().manual_seed(0)
    spread = torch.exp2(torch.randint(-24, 4, (2000,), generator=draw).float())
    param = nn.Parameter((torch.randn(2000, generator=draw) * spread).to(BF16))
    optimizer = CollageAdamW(
        [param], lr=1e-3, betas=(0.9, beta2), weight_decay=0.1,
        strategy=strategy, arithmetic="storage", backend="reference",
    )  # fmt: skip
    sums = Sums()
    for step in range(16):
        optimizer.param_groups[0]["lr"] = 1e-2 / (1 + step)
        scale = spread.roll(step) if step % 3 else torch.ones(())
        param.grad = (torch.randn(2000, generator=draw) * scale).to(BF16)
        optimizer.meters = {}
        optimizer.step()
        sums += optimizer.meters[param].sums()
    state = optimizer.state[param]
    return sums, {"param": param.detach(), **{name: state[name] for name in state if name != "step"}}


def test_a_sum_in_two_steps_is_rounded_once() -> None:
    draw = torch.Generator().manual_seed(1)
    a = torch.exp2(torch.randint(-4, 4, (200_000,), generator=draw).float()) * (1 + 2**-8)
    a = a * torch.where(torch.rand(200_000, generator=draw) < 0.5, 1, -1)
    b = a.abs() * torch.exp2(-torch.randint(16, 40, (200_000,), generator=draw).float())
    b = b * torch.where(torch.rand(200_000, generator=draw) < 0.5, 1, -1)
    once = round_to(a.double() + b.double(), BF16)
    assert torch.equal(_add_once(a, b), once)
    assert not torch.equal((a + b).to(BF16), once)


def test_a_pair_is_multiplied_as_the_reference_does_it() -> None:
    draw = torch.Generator().manual_seed(2)

    def words(low: int, high: int) -> Tensor:
        size = torch.exp2(torch.randint(low, high, (400_000,), generator=draw).float())
        return (torch.randn(400_000, generator=draw) * size).to(BF16)

    hi, lo, c_hi, c_lo = words(-20, 4), words(-40, -8), words(-1, 1), words(-24, -8)
    for ours, theirs in zip(_multiply(hi, lo, c_hi, c_lo), multiply(hi, lo, c_hi, c_lo), strict=True):
        assert torch.equal(ours, theirs)


def test_pytorch_rounds_every_bfloat16_root_once() -> None:
    words = torch.arange(0, 0x7F80, dtype=torch.int16).view(BF16)
    assert torch.equal(words.sqrt(), round_to(words.double().sqrt(), BF16))


@pytest.mark.parametrize("options", [{"amsgrad": True}, {"maximize": True}])
def test_the_quick_kernel_refuses_what_it_does_not_know(
    options: dict[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(KERNELS, ("reference", "storage"), step_native)
    with pytest.raises(ValueError, match="plain AdamW only"):
        _step(BF16, **options)
    with pytest.raises(TypeError, match=r"takes bfloat16, got torch\.float16"):
        _step(torch.float16)


def _step(dtype: torch.dtype, *, amsgrad: bool = False, maximize: bool = False) -> None:
    param = nn.Parameter(torch.ones(4, dtype=dtype))
    param.grad = torch.ones(4, dtype=dtype)
    CollageAdamW(
        [param], arithmetic="storage", backend="reference", amsgrad=amsgrad, maximize=maximize
    ).step()
