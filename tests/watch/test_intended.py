"""u of an optimizer that is not ours is what the class would add without rounding: against loops in binary64."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from foreign import FOREIGN, Foreign
from torch import Tensor, nn
from torch.optim import SGD, Adafactor, AdamW, Optimizer
from trainings import BF16, Collected

import roundoff
from roundoff import metrics
from roundoff.metrics import ROW

Update = Callable[[Tensor, Tensor, dict[str, Any], int], Tensor]
"""u in binary64 from weight, gradient, state (all before the step) and the number of the step, from 1."""


def before(state: dict[str, Any], key: str, like: Tensor) -> Tensor:
    value = state.get(key)
    return torch.zeros_like(like) if value is None else value.double()


def adamw(w: Tensor, g: Tensor, state: dict[str, Any], step: int) -> Tensor:
    m = 0.9 * before(state, "exp_avg", w) + (1 - 0.9) * g
    v = 0.999 * before(state, "exp_avg_sq", w) + (1 - 0.999) * g * g
    hat = m / (1 - 0.9**step), v / (1 - 0.999**step)
    return -1e-3 * (hat[0] / (hat[1].sqrt() + 1e-8) + 0.1 * w)


def momentum(w: Tensor, g: Tensor, state: dict[str, Any], step: int) -> Tensor:
    g = g + 1e-2 * w
    buffer = g if step == 1 else 0.9 * before(state, "momentum_buffer", w) + g
    return -1e-2 * (g + 0.9 * buffer)


def lion(w: Tensor, g: Tensor, state: dict[str, Any], step: int) -> Tensor:
    m = before(state, "exp_avg", w)
    return -1e-4 * ((0.9 * m + (1 - 0.9) * g).sign() + 0.1 * w)


def adafactor(w: Tensor, g: Tensor, state: dict[str, Any], step: int) -> Tensor:
    """PyTorch's, whose eps is the resolution of the dtype where none is given."""
    eps, share = torch.finfo(BF16).eps, step**-0.8
    decayed = w * (1 - 1e-2 * 0.1)
    alpha = max(1e-3, math.sqrt(w.square().mean())) * min(1e-2, step**-0.5)
    if w.dim() > 1:
        rows, columns = ((g * g).mean(dim=dim, keepdim=True) for dim in (-1, -2))
        rows = before(state, "row_var", rows) * (1 - share) + share * rows
        columns = before(state, "col_var", columns) * (1 - share) + share * columns
        variance = rows @ columns / rows.mean(dim=-2, keepdim=True).clamp(min=eps)
    else:
        variance = before(state, "variance", w) * (1 - share) + share * g * g
    update = g / variance.clamp(min=eps * eps).sqrt()
    return decayed - w - alpha * update / max(1.0, math.sqrt(update.square().mean()))


def kahan(w: Tensor, g: Tensor, state: dict[str, Any], step: int) -> Tensor:
    """optimi's AdamW in words that are one number: its betas are debiased, its decay multiplies the weight."""
    one, two = ((beta**step - beta) / (beta**step - 1) for beta in (0.9, 0.99))
    m = before(state, "exp_avg", w) * one + (1 - one) * g
    v = before(state, "exp_avg_sq", w) * two + (1 - two) * g * g
    return -1e-4 * m / (v.sqrt() + 1e-6) - 1e-4 * 0.1 * (w + before(state, "kahan_comp", w))


CASES: dict[str, tuple[Callable[[nn.Module], Optimizer], Update]] = {
    "AdamW": (lambda m: AdamW(m.parameters(), lr=1e-3, weight_decay=0.1), adamw),
    "AdamW fused": (lambda m: AdamW(m.parameters(), lr=1e-3, weight_decay=0.1, fused=True), adamw),
    "SGD momentum": (
        lambda m: SGD(m.parameters(), lr=1e-2, momentum=0.9, nesterov=True, weight_decay=1e-2),
        momentum,
    ),
    "Adafactor": (lambda m: Adafactor(m.parameters(), lr=1e-2, weight_decay=0.1), adafactor),
    "Lion": (lambda m: library(m, "pytorch_optimizer Lion", weight_decay=0.1), lion),
    "AdamW rounding at random": (
        lambda m: library(m, "torchao _AdamW bf16_stochastic_round", lr=1e-3, weight_decay=0.1),
        adamw,
    ),
    "AdamW Kahan": (lambda m: library(m, "optimi AdamW", weight_decay=0.1), kahan),
}


def library(model: nn.Module, name: str, **options: Any) -> Optimizer:
    one = FOREIGN[name]
    return Foreign(one.module, one.name, {**one.options, **options}).make(model)


@pytest.mark.filterwarnings("ignore")  # of torch.compile, which torchao's classes use
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("shape", [(48, 32), (64,)])
def test_the_shadow_intends_what_a_loop_in_binary64_says(name: str, shape: tuple[int, ...]) -> None:
    make, update = CASES[name]
    torch.manual_seed(0)
    model = nn.Module()
    model.weight = nn.Parameter((0.1 * torch.randn(shape)).to(BF16))
    with torch.no_grad():
        model.weight[: shape[0] // 2] = 1.0
    optimizer = make(model)
    sink = Collected()
    roundoff.watch(model, optimizer, every=1, headroom_every=1, sink=sink)
    for step in range(1, 5):
        model.weight.grad = (0.02 * torch.randn(shape)).to(BF16)
        w, g = model.weight.detach().double(), model.weight.grad.double()
        state = dict(optimizer.state.get(model.weight, {}))
        kept = {key: value.clone() if isinstance(value, Tensor) else value for key, value in state.items()}
        u = update(w, g, kept, step)
        optimizer.step()
        if len(sink.samples) < step:
            continue  # rounded at random: the outcome is waited for from now on
        row = dict(zip(ROW, sink.samples[-1].sums.tolist()[0], strict=True))
        assert row["attempted"] == torch.count_nonzero(u)
        exact = roundoff.watch.measure(model.weight.detach(), model.weight.detach(), u)
        # torchao computes in float32 whatever it is given, and so a weight of 1 has its spacing there.
        assert row["sum_uu"] == pytest.approx(exact.sum_uu, rel=1e-4 if "at random" in name else 2e-6)
        headroom = [int(count) for count in sink.samples[-1].headroom.tolist()[0][: metrics.HEADROOM_BINS]]
        assert sum(headroom) == row["attempted"]
    assert len(sink.samples) >= 3
