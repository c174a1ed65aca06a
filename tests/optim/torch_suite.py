"""What PyTorch's own optimizer tests run over: its inputs, schedules and error cases, and a small problem."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.testing._internal.common_optimizers import (
    ErrorOptimizerInput,
    OptimizerInfo,
    OptimizerInput,
    optim_db,
    optim_error_inputs_func_adamw,
    optim_inputs_func_adamw,
)

from roundoff.optim import CollageAdamW

ADAM = next(info for info in optim_db if info.optim_cls is torch.optim.Adam)
"""Its schedules are the widest choice, and AdamW takes the same."""


def inputs(device: str, dtype: torch.dtype | None = None) -> list[OptimizerInput]:
    """AdamW's own, and tensor learning rates, which it lists for accelerators only."""
    more = [
        OptimizerInput(params=None, kwargs={"lr": torch.tensor(0.001)}, desc="tensor lr"),
        OptimizerInput(
            params=None,
            kwargs={"lr": torch.tensor([0.01]), "amsgrad": True, "maximize": True, "weight_decay": 0.1},
            desc="tensor lr of one dimension, amsgrad, maximize",
        ),
        OptimizerInput(params=None, kwargs={"weight_decay": 0.0, "betas": (0.0, 0.5)}, desc="no decay"),
    ]
    return [*optim_inputs_func_adamw(device, dtype), *more]


def error_inputs(device: str, dtype: torch.dtype) -> list[ErrorOptimizerInput]:
    """AdamW's own, without switches that are not ours and without mixed betas, which are read as numbers."""
    ours = []
    for case in optim_error_inputs_func_adamw(device, dtype):
        kwargs = case.optimizer_error_input.kwargs
        mixed = any(torch.is_tensor(beta) for beta in kwargs.get("betas", ()))
        if mixed or "foreach" in kwargs or "fused" in kwargs:
            continue
        case.error_regex = {  # the same errors in words of our own
            "Invalid beta parameter at index 0: 1.0": r"betas\[0\] must be in \[0, 1\), got 1\.0",
            "Invalid weight_decay value: -1": "weight_decay must be 0 or larger, got -1",
            "Tensor lr must be 1-element": r"lr must be a number or a 0-dim tensor, got shape \(2,\)",
        }.get(case.error_regex, case.error_regex)
        ours.append(case)
    return ours


INFO = OptimizerInfo(
    CollageAdamW,
    optim_inputs_func=inputs,
    scheduler_inputs=([], *ADAM.scheduler_inputs),
    optim_error_inputs_func=error_inputs,
    supported_impls=(),
    not_og_supported_flags=("maximize",),
    supports_complex=False,
)

INPUTS = INFO.optim_inputs_func("cpu")
SCHEDULES = INFO.scheduler_inputs


def ingredients(contiguous: bool = True) -> tuple[Parameter, Parameter, Tensor]:
    """A weight, a bias and an input."""
    torch.manual_seed(0)
    if contiguous:
        return Parameter(torch.randn(10, 5)), Parameter(torch.randn(10)), torch.randn(5)
    return Parameter(torch.randn(10, 5, 2)[..., 0]), Parameter(torch.randn(10, 2)[..., 0]), torch.randn(5)


def closure_of(optimizer: Optimizer, weight: Tensor, bias: Tensor, x: Tensor) -> Callable[[], Tensor]:
    """What evaluates the loss and its gradients."""

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = (weight.mv(x) + bias).pow(2).sum()
        loss.backward()
        return loss

    return closure


def layouts(weight: Parameter, bias: Parameter, *, names: bool = False) -> Iterator[list[Any]]:
    """The same parameters in one group, in two, and only some of them."""
    w, b = (("w", weight), ("b", bias)) if names else (weight, bias)
    yield [w, b]
    yield [{"params": [w]}, {"params": [b], "lr": 1e-2, "weight_decay": 0.01}]
    yield [{"params": [b], "lr": 1e-2}]


def advance(optimizer: Optimizer, schedulers: list[Any], closure: Callable[[], Tensor], steps: int) -> None:
    """Steps of the optimizer and of its schedules."""
    for _ in range(steps):
        loss = optimizer.step(closure)
        for scheduler in schedulers:
            scheduler.step(loss.detach()) if isinstance(scheduler, ReduceLROnPlateau) else scheduler.step()
