"""What any optimizer intends: the same class stepped on copies, in wider numbers and in the real ones.

One tensor at a time, in the hook before the real step, so memory is bounded by a few copies of the largest
tensor and training is bit-identical with and without the watch (numerics §5).
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
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


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype that shows what `dtype` rounds away: float64 for float32, float32 for anything narrower."""
    return torch.float64 if dtype == torch.float32 else torch.float32


def replay(optimizer: Optimizer, group: Mapping[str, Any], index: int) -> Replay:
    """Step copies of the group's parameter number `index`; the optimizer, its state and RNG stay untouched.

    Whatever the optimizer's class raises on the copies is raised here.
    """
    param = group["params"][index]
    wide = wide_dtype(param.dtype)
    with torch.random.fork_rng(devices=_cuda_devices(param)):
        before = param.detach().to(wide)
        intended, _ = _stepped(optimizer, group, index, wide)
    intended.sub_(before)
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
    v, beta2 = _second_moment(group, state, done.state)
    hi, hi_after, u, g = (x.reshape(-1) for x in (param, done.after, done.intended, grad))
    for start in range(0, hi.numel(), CHUNK):
        part = slice(start, start + CHUNK)
        term = None if decay is None else hi[part].to(torch.float32) * -decay
        meter.update(hi[part], hi_after[part], u[part], stored, term)
        if v is not None:
            meter.moment(v[0][part], v[1][part], g[part], beta2)


def _stepped(
    optimizer: Optimizer, group: Mapping[str, Any], index: int, dtype: torch.dtype | None
) -> tuple[Tensor, Mapping[str, Any]]:
    """The copy of one parameter after a step, and its state; in `dtype`, or in the real one for None."""
    param = group["params"][index]
    copy = torch.nn.Parameter(_copy(param.detach(), dtype), requires_grad=param.requires_grad)
    copy.grad = _copy(param.grad, dtype)
    clone = object.__new__(type(optimizer))
    clone.__dict__.update(optimizer.__dict__)
    clone.__dict__.update({name: OrderedDict() for name in clone.__dict__ if name.endswith("_hooks")})
    clone.param_groups = [_copy_group(group, index, copy)]
    clone.state = defaultdict(dict)
    if param in optimizer.state:
        clone.state[copy] = {key: _copy(value, dtype) for key, value in optimizer.state[param].items()}
    # Unwrapped, so that neither global hooks nor a scheduler's call counter see this step.
    step = getattr(type(optimizer).step, "__wrapped__", type(optimizer).step)
    with torch.no_grad():
        step(clone)
    return copy.detach(), clone.state[copy]


def _copy(value: Any, dtype: torch.dtype | None) -> Any:
    if not isinstance(value, Tensor):
        return value
    if dtype is None or not value.is_floating_point() or value.dtype.itemsize >= dtype.itemsize:
        return value.detach().clone()
    return value.detach().to(dtype)


def _copy_group(group: Mapping[str, Any], index: int, copy: Tensor) -> dict[str, Any]:
    copied = {key: _copy(value, None) for key, value in group.items() if key not in ("params", "param_names")}
    if "param_names" in group:
        copied["param_names"] = [group["param_names"][index]]
    return {**copied, "params": [copy]}


def _cuda_devices(param: Tensor) -> list[int]:
    return [param.device.index or 0] if param.device.type == "cuda" else []


def _decay_rate(optimizer: Optimizer, group: Mapping[str, Any]) -> float | None:
    """lr·wd where the class shrinks the weight itself, else None: then decay cannot be told from the rest."""
    decay = float(group.get("weight_decay", 0.0))
    decoupled = group.get("decoupled_weight_decay", False) or type(optimizer).__name__ in _DECOUPLED
    return float(group["lr"]) * decay if decay and decoupled else None


def _second_moment(
    group: Mapping[str, Any], before: Mapping[str, Any], after: Mapping[str, Any]
) -> tuple[tuple[Tensor, Tensor] | None, float]:
    """Flat v before and after, and β2, where the state has an Adam-like second moment."""
    v_after, betas = after.get("exp_avg_sq"), group.get("betas")
    if not isinstance(v_after, Tensor) or betas is None:
        return None, 0.0
    v = before.get("exp_avg_sq", torch.zeros_like(v_after))
    return (v.reshape(-1), v_after.reshape(-1)), float(betas[1])
