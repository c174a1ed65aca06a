"""Options of a parameter group: checked before anything changes, and made into the scalars of one step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from roundoff.kernels import Step

from .float8 import grad_dtype_of
from .strategies import FLOAT8_DTYPES, Strategy, strategy_for

STRUCTURE = ("strategy", "arithmetic", "amsgrad")
"""Group options that say how state is laid out: they stay as constructed when a checkpoint is loaded."""


def check_options(options: dict[str, Any]) -> None:
    """Raise ValueError for a group option out of range, naming it."""
    for name in ("lr", "eps", "weight_decay"):
        value = options[name]
        if isinstance(value, Tensor) and value.numel() != 1:
            raise ValueError(f"{name} must be a number or a 0-dim tensor, got shape {tuple(value.shape)}")
        if not float(value) >= 0:
            raise ValueError(f"{name} must be 0 or larger, got {float(value)}")
    if len(options["betas"]) != 2:
        raise ValueError(f"betas must be two numbers, got {options['betas']!r}")
    for name, beta in zip(("betas[0]", "betas[1]"), options["betas"], strict=True):
        if not 0 <= float(beta) < 1:
            raise ValueError(f"{name} must be in [0, 1), got {float(beta)}")
    strategy_for(options["strategy"], torch.float32)


def plan_of(param: Tensor, group: dict[str, Any]) -> Strategy:
    """The strategy for one parameter of a group.

    Raises TypeError for a dtype that it does not store, ValueError for arithmetic that it does not have.
    """
    plan = strategy_for(group["strategy"], param.dtype)
    if group["arithmetic"] == "storage" and param.dtype in FLOAT8_DTYPES:
        raise ValueError(
            f"arithmetic='storage' has no meaning for {param.dtype} parameters: in 8 bit a learning rate, 1 − β2 and "
            "eps round to zero. Use arithmetic='fp32'."
        )
    if group["arithmetic"] == "storage" and (not plan.storage_arithmetic or param.dtype == torch.float32):
        raise ValueError(
            f"arithmetic='storage' rounds every operation to 16 bit; it has no meaning for strategy "
            f"{group['strategy']!r} with {param.dtype} parameters. Use arithmetic='fp32'."
        )
    return plan


def check_gradient(param: Tensor) -> None:
    """Raise RuntimeError for a sparse gradient and TypeError for one of 8 bit, before anything changes."""
    grad: Tensor = param.grad  # type: ignore[assignment]
    if grad.is_sparse:
        raise RuntimeError(
            "CollageAdamW does not take sparse gradients; build the embedding with sparse=False"
        )
    if grad.dtype.itemsize == 1:
        raise TypeError(
            f"the gradient of a parameter of shape {tuple(param.shape)} is {grad.dtype}, as PyTorch makes it for a "
            f"float8 parameter: what is small is zero in it, and two of them cannot be added up; {grad_dtype_of(param)}"
        )


def step_of(
    group: dict[str, Any], count: float | Tensor, grad_scale: Tensor | None, found_inf: Tensor | None
) -> Step:
    """The scalars of one step of a group whose parameters have stepped `count` times, this one included."""
    beta1, beta2 = (float(beta) for beta in group["betas"])
    return Step(
        count,
        group["lr"],
        beta1,
        beta2,
        group["eps"],
        float(group["weight_decay"]),
        maximize=group["maximize"],
        amsgrad=group["amsgrad"],
        gradient_scale=None if grad_scale is None else _inverse(grad_scale),
        found_inf=found_inf,
    )


class Scalars:
    """The scalars of one step of an optimizer, made once per group and count.

    `grad_scale` is a loss scaler's, None without one.
    """

    def __init__(self, grad_scale: Tensor | None) -> None:
        self.grad_scale = grad_scale
        self._made: dict[tuple[int, float], Step] = {}

    def of(self, group: dict[str, Any], count: float) -> Step:
        """Those of a group whose parameters have stepped `count` times, this one included."""
        key = id(group), count
        step = self._made.get(key)
        if step is None:
            step = self._made[key] = step_of(group, int(count), self.grad_scale, None)
        return step


def _inverse(scale: Tensor) -> float | Tensor:
    return 1.0 / float(scale) if scale.device.type == "cpu" else scale.to(torch.float64).reciprocal()
