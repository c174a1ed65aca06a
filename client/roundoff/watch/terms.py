"""What parts of an update are: the weight decay in it, and the second moment of the gradient behind it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

_DECOUPLED = ("Adafactor", "Muon")
"""Classes of torch.optim, beside those called AdamW or Lion, that subtract lr·wd·w whatever the group says."""

SECOND_MOMENT = "exp_avg_sq"


def decay_rate(optimizer: Optimizer, group: Mapping[str, Any]) -> float | None:
    """The share of w that the class subtracts from the weight itself, None where decay is part of the rest.

    Read off the options of PyTorch, torchao, optimi and pytorch-optimizer and the names that all libraries share.
    """
    decay = float(group.get("weight_decay") or 0.0)
    if not decay:
        return None
    lr = float(group["lr"])
    first_lr = group.get("max_lr") or group.get("initial_lr")
    if group.get("decouple_lr") and first_lr:
        return decay * lr / float(first_lr)
    if group.get("weight_decouple"):
        return decay * (1.0 if group.get("fixed_decay") else lr)
    name = type(optimizer).__name__.lstrip("_")
    decoupled = group.get("decoupled_weight_decay") or group.get("decouple_wd")
    if decoupled or name in _DECOUPLED or name.startswith(("AdamW", "Lion")):
        return decay * lr
    return None


def unscaled(optimizer: Optimizer, grad: Tensor) -> Tensor:
    """The gradient that a step takes: where a loss scaler works from inside, the step itself divides by its scale."""
    scale = getattr(optimizer, "grad_scale", None)
    return grad / scale.to(grad.device) if isinstance(scale, Tensor) else grad


def does_nothing(optimizer: Optimizer) -> bool:
    """Whether a loss scaler makes this step do nothing; waits for the device, where there is a scaler inside."""
    found_inf = getattr(optimizer, "found_inf", None)
    return isinstance(found_inf, Tensor) and bool(found_inf)


def beta2_of(group: Mapping[str, Any]) -> Any:
    """The second of the group's betas, as it stands there; None for a class that has no two of them."""
    betas = group.get("betas")
    return betas[1] if isinstance(betas, tuple | list) and len(betas) > 1 else None


def moment_of(group: Mapping[str, Any], before: Mapping[Any, Any], after: Mapping[Any, Any]) -> Moment | None:
    """The second moment that a parameter's state may hold, by its usual name: v before and after, and β2."""
    v_after, beta2 = after.get(SECOND_MOMENT), beta2_of(group)
    if type(v_after) is not Tensor or beta2 is None or not v_after.is_floating_point():
        return None
    v = before.get(SECOND_MOMENT)
    return (torch.zeros_like(v_after) if v is None else v), v_after, float(beta2)


Moment = tuple[Tensor, Tensor, float]
"""v before and after, as stored and in one shape, and β2."""


def follows_squares(moment: Moment, grad: Tensor) -> bool | None:
    """Whether v' = β2·v + (1 − β2)·g², in wide numbers; None where the gradient is zero and nothing can be told.

    It does not where decay was added to the gradient, or β2 is not what the group says. Waits for the device.
    """
    v, v_after, beta2 = moment
    if v.shape != grad.shape:
        return False
    expected = beta2 * v.to(torch.float64) + (1.0 - beta2) * grad.to(torch.float64).square()
    if not bool(grad.any()):
        return None
    return bool(((v_after.to(torch.float64) - expected).abs() <= 1e-5 * expected).all())
