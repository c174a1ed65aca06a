"""What any optimizer intends: the same class stepped on copies, in wider numbers and in the real ones.

One tensor at a time, in the hook before the real step, so memory is bounded by a few copies of the largest
tensor and training is bit-identical with and without the watch (numerics §5).
"""

from __future__ import annotations

import copy
from collections import OrderedDict, defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from roundoff.numerics import format_of

from .statistics import CHUNK, Meter
from .stored import Plain

_DECOUPLED = ("AdamW", "Adafactor", "Muon")
"""Classes of torch.optim that subtract lr·wd·w from the weight itself whatever the group says."""


@dataclass(frozen=True, slots=True)
class Replay:
    """One parameter stepped on copies: the words and state after the step in the real dtypes, and u."""

    after: Tensor
    state: Mapping[str, Any]
    intended: Tensor


def refusal(optimizer: Optimizer) -> str | None:
    """Why this optimizer cannot be replayed on copies, None if it can."""
    if (
        getattr(optimizer, "found_inf", None) is not None
        or getattr(optimizer, "grad_scale", None) is not None
    ):
        return "a loss scaler drives the step from inside the optimizer"
    for name, value in vars(optimizer).items():
        if isinstance(value, Optimizer):
            return f"{type(optimizer).__name__} steps another optimizer ({name}); watch that one instead"
    return None


def replay(optimizer: Optimizer, group: Mapping[str, Any], index: int) -> Replay:
    """Step copies of the group's parameter number `index`; the optimizer, its state and RNG stay untouched.

    Whatever the optimizer's class raises on the copies is raised here.
    """
    param = group["params"][index]
    with torch.random.fork_rng(devices=_cuda_devices(param)):
        intended, _ = _stepped(optimizer, group, index, torch.float64)
    # The difference in binary64: in binary32 it would be a multiple of the weight's own spacing there.
    intended.sub_(param.detach())
    if param.dtype != torch.float32:
        intended = intended.to(torch.float32)
    with torch.random.fork_rng(devices=_cuda_devices(param)):
        after, state = _stepped(optimizer, group, index, None)
    return Replay(after, state, intended)


def measure_replay(
    meter: Meter, optimizer: Optimizer, group: Mapping[str, Any], index: int, done: Replay
) -> None:
    """Add one replayed parameter to a meter, in chunks, with its decay and second moment where it has them."""
    param, grad = group["params"][index].detach(), group["params"][index].grad
    state = optimizer.state.get(group["params"][index], {})
    stored = Plain(format_of(param.dtype))
    decay = _decay_rate(optimizer, group)
    v, beta2 = _second_moment(group, state, done.state, coupled_decay=decay is None)
    hi, hi_after, u, g = (x.reshape(-1) for x in (param, done.after, done.intended, grad))
    for start in range(0, hi.numel(), CHUNK):
        part = slice(start, start + CHUNK)
        term = None if decay is None else hi[part].to(torch.float32) * -decay
        counted = meter.update(hi[part], hi_after[part], u[part], stored, term)
        if v is not None:
            meter.moment(v[0][part], v[1][part], g[part], beta2, counted=counted)


def _stepped(
    optimizer: Optimizer, group: Mapping[str, Any], index: int, dtype: torch.dtype | None
) -> tuple[Tensor, Mapping[str, Any]]:
    """The copy of one parameter after a step, and its state; in `dtype`, or in the real one for None."""
    param = group["params"][index]
    twin = torch.nn.Parameter(_copy(param.detach(), dtype), requires_grad=param.requires_grad)
    twin.grad = _copy(param.grad, dtype)
    clone = object.__new__(type(optimizer))
    for name, value in vars(optimizer).items():
        if name not in ("param_groups", "state"):
            clone.__dict__[name] = OrderedDict() if name.endswith("_hooks") else _copy(value, None)
    clone.param_groups = [_copy_group(group, index, twin)]
    clone.state = defaultdict(dict)
    if param in optimizer.state:
        clone.state[twin] = {
            # A step count stays what it is: fused kernels read it as binary32.
            key: _copy(value, None if key == "step" else dtype)
            for key, value in optimizer.state[param].items()
        }
    # Unwrapped, so that neither global hooks nor a scheduler's call counter see this step.
    step = getattr(type(optimizer).step, "__wrapped__", type(optimizer).step)
    with torch.no_grad():
        step(clone)
    return twin.detach(), clone.state[twin]


def _copy(value: Any, dtype: torch.dtype | None) -> Any:
    """A copy of tensors and of containers that hold them; floats in `dtype` if that is wider."""
    if isinstance(value, Tensor):
        if dtype is None or not value.is_floating_point() or value.dtype.itemsize >= dtype.itemsize:
            return value.detach().clone()
        return value.detach().to(dtype)
    if isinstance(value, dict):
        copied = copy.copy(value)  # keeps a subclass and its default factory
        copied.update({key: _copy(item, dtype) for key, item in value.items()})
        return copied
    if isinstance(value, list | set | deque):
        return type(value)(_copy(item, dtype) for item in value)
    if type(value) is tuple:
        return tuple(_copy(item, dtype) for item in value)
    return value


def _copy_group(group: Mapping[str, Any], index: int, twin: Tensor) -> dict[str, Any]:
    copied = {key: _copy(value, None) for key, value in group.items() if key not in ("params", "param_names")}
    if "param_names" in group:
        copied["param_names"] = [group["param_names"][index]]
    return {**copied, "params": [twin]}


def _cuda_devices(param: Tensor) -> list[int]:
    return [param.device.index or 0] if param.device.type == "cuda" else []


def _decay_rate(optimizer: Optimizer, group: Mapping[str, Any]) -> float | None:
    """lr·wd where the class shrinks the weight itself, else None: then decay cannot be told from the rest."""
    decay = float(group.get("weight_decay", 0.0))
    decoupled = group.get("decoupled_weight_decay", False) or type(optimizer).__name__ in _DECOUPLED
    return float(group["lr"]) * decay if decay and decoupled else None


def _second_moment(
    group: Mapping[str, Any], before: Mapping[str, Any], after: Mapping[str, Any], *, coupled_decay: bool
) -> tuple[tuple[Tensor, Tensor] | None, float]:
    """Flat v before and after, and β2, where the state has an Adam-like second moment of the gradient.

    Where decay is added to the gradient, v follows the sum of both and is not measured.
    """
    v_after, betas = after.get("exp_avg_sq"), group.get("betas")
    if not isinstance(v_after, Tensor) or betas is None or (coupled_decay and group.get("weight_decay")):
        return None, 0.0
    v = before.get("exp_avg_sq", torch.zeros_like(v_after))
    return (v.reshape(-1), v_after.reshape(-1)), float(betas[1])
