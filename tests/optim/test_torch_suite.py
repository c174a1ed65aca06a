"""PyTorch's own optimizer tests on float32 parameters: its inputs, schedules and error cases, and what it asks.

`torch.testing._internal.common_optimizers` ships what PyTorch's test file runs over; the file itself is not in the
wheel, so what its cases assert is written anew, here and in `test_torch_suite_states`. Left out, and why:

- `foreach`, `fused`, `capturable`, `differentiable`, and the comparisons and memory peaks that belong to them:
  CollageAdamW has no such switches; it picks a kernel itself, and float32 follows `torch.optim.AdamW` below.
- complex and sparse parameters and gradients: refused, which is tested.
- float64: refused (a strategy stores 16 bit, or takes float32 as its own master).
- devices other than the CPU, and parameters on several: there is none here.
- tensor betas: read as numbers; PyTorch lists them for `capturable` only.
- closures that must be given, and the cases of other optimizers.
"""

from __future__ import annotations

import functools
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch.nn import Parameter
from torch.optim import AdamW
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.testing import assert_close
from torch.testing._internal.common_optimizers import ErrorOptimizerInput, OptimizerErrorEnum, OptimizerInput
from torch_suite import INFO, INPUTS, SCHEDULES, advance, closure_of, ingredients, layouts

from roundoff.optim import CollageAdamW

every_input = pytest.mark.parametrize("given", INPUTS, ids=lambda given: given.desc)


@pytest.mark.parametrize(
    "case",
    INFO.optim_error_inputs_func("cpu", torch.float32),
    ids=lambda case: case.optimizer_error_input.desc,
)
def test_errors(case: ErrorOptimizerInput) -> None:
    given = case.optimizer_error_input
    assert case.error_on is OptimizerErrorEnum.CONSTRUCTION_ERROR
    params = given.params if given.params is not None else [Parameter(torch.randn(1))]
    with pytest.raises(case.error_type, match=case.error_regex):
        CollageAdamW(params, **given.kwargs)


@pytest.mark.parametrize("contiguous", [True, False])
@every_input
def test_goes_right_direction(given: OptimizerInput, contiguous: bool) -> None:
    for makers in SCHEDULES:
        weight, bias, x = ingredients(contiguous)
        optimizer = CollageAdamW([weight, bias], **deepcopy(given.kwargs))
        schedulers = [make(optimizer) for make in makers]
        closure = closure_of(optimizer, weight, bias, x)
        before = closure().item()
        advance(optimizer, schedulers, closure, 20)
        change = closure().item() - before
        assert change > 0 if given.kwargs.get("maximize") else change < 0


def run(made: Any, given: OptimizerInput, makers: Any, contiguous: bool, layout: int) -> list[Any]:
    """Weights, state and learning rates after steps with given gradients."""
    weight, bias, _ = ingredients(contiguous)
    optimizer = made(list(layouts(weight, bias))[layout], **deepcopy(given.kwargs))
    schedulers = [make(optimizer) for make in makers]
    generator = torch.Generator().manual_seed(1)
    for _ in range(15):  # the slowest schedule changes the rate after 12
        for p in (weight, bias):
            p.grad = torch.randn(p.shape, generator=generator)
        optimizer.step()
        for scheduler in schedulers:
            scheduler.step(1.0) if isinstance(scheduler, ReduceLROnPlateau) else scheduler.step()
    rates = [float(group["lr"]) for group in optimizer.param_groups]
    return [weight.detach(), bias.detach(), optimizer.state_dict()["state"], rates]


@pytest.mark.parametrize("layout", range(3), ids=["one group", "two groups", "fewer parameters"])
@pytest.mark.parametrize("contiguous", [True, False], ids=["contiguous", "strided"])
@every_input
def test_matches_adamw(given: OptimizerInput, contiguous: bool, layout: int) -> None:
    """As the plain loop of `torch.optim.AdamW` does it, under every schedule."""
    for makers in SCHEDULES:
        ours = run(CollageAdamW, given, makers, contiguous, layout)
        theirs = run(functools.partial(AdamW, foreach=False), given, makers, contiguous, layout)
        assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("makers", SCHEDULES)
def test_tensor_lr(makers: Any) -> None:
    weights = []
    for lr in (1e-3, torch.tensor(1e-3), torch.tensor([1e-3])):
        weight, bias, x = ingredients()
        optimizer = CollageAdamW([weight, bias], lr=lr)
        schedulers = [make(optimizer) for make in makers]
        advance(optimizer, schedulers, closure_of(optimizer, weight, bias, x), 10)
        if isinstance(lr, torch.Tensor):
            assert optimizer.param_groups[0]["lr"] is lr
        weights.append(weight.detach())
    assert_close(weights[1], weights[0])
    assert torch.equal(weights[1], weights[2])


@pytest.mark.parametrize("gradients", ["none", "zero"])
@every_input
def test_step_is_noop(given: OptimizerInput, gradients: str) -> None:
    param = Parameter(torch.randn(5, 1))
    before = param.detach().clone()
    if gradients == "zero":
        param.grad = torch.zeros_like(param)
    optimizer = CollageAdamW([param], **{**deepcopy(given.kwargs), "weight_decay": 0.0})
    optimizer.step()
    assert torch.equal(param, before)
    assert len(optimizer.state) == (gradients == "zero")


@every_input
def test_empty_grad(given: OptimizerInput) -> None:
    """Parameters of no elements, among others."""
    empty, param = Parameter(torch.empty(0, 4)), Parameter(torch.ones(3))
    optimizer = CollageAdamW([empty, param], **deepcopy(given.kwargs))
    for p in (empty, param):
        p.grad = torch.ones_like(p)
    optimizer.step()
    assert tuple(empty.shape) == (0, 4)
    assert not (param == 1.0).any()


def test_complex_and_sparse_are_refused() -> None:
    with pytest.raises(TypeError, match=r"no strategy supports torch\.complex64"):
        CollageAdamW([Parameter(torch.randn(2, dtype=torch.complex64))])
    param = Parameter(torch.ones(2))
    param.grad = torch.ones(2).to_sparse()
    with pytest.raises(RuntimeError, match="sparse"):
        CollageAdamW([param]).step()


@every_input
def test_optimizer_can_be_printed(given: OptimizerInput) -> None:
    assert "strategy: plus" in repr(CollageAdamW([Parameter(torch.randn(2))], **given.kwargs))


@pytest.mark.parametrize("capturable", [True, False])
def test_switches_that_are_not_ours_are_named_by_python(capturable: bool) -> None:
    for switch in ("foreach", "fused", "capturable", "differentiable"):
        with pytest.raises(TypeError, match=switch):
            CollageAdamW([Parameter(torch.ones(2))], **{switch: capturable})
