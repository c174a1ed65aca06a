"""Bring a checkpoint's state into the layout of a strategy without losing a bit that fits.

PyTorch's own loading casts float state to the parameter's dtype, which turns float32 moments and masters
into 16 bit silently (numerics §3, rule 7); this starts from the saved tensors instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from roundoff.numerics import join_master, split_master

from .shards import local
from .state import stored_weight
from .strategies import SECOND_MOMENT, WEIGHT_WORDS, StateTensor, Strategy


def adopt_state(
    param: Tensor, saved: Mapping[str, Any], plan: Strategy, *, amsgrad: bool = False
) -> tuple[dict[str, Any], set[str]]:
    """The state for `param` under `plan`, and the names of what the checkpoint lacked.

    Raises KeyError if a moment is missing, ValueError for another shape and TypeError where an integer tensor
    was saved as floats or the other way round.
    """
    state: dict[str, Any] = {"step": _step(saved.get("step", 0))}
    lacking: set[str] = set()
    for group in _moments(plan, amsgrad=amsgrad):
        state |= _adopt_moment(group, param, saved)
    for tensor in plan.state:
        name = tensor.name
        if name not in WEIGHT_WORDS:
            continue
        state[name] = _empty(param, tensor)
        if name in saved:
            _copy(state[name], saved[name], name, param)
            continue
        exact = stored_weight(
            local(param), {k: _checked(k, saved, param) for k in WEIGHT_WORDS if k in saved}
        )
        _fill_weight_word(local(state[name]), name, local(param).detach(), exact)
        if not any(word in saved for word in WEIGHT_WORDS):
            lacking.add(name)
    return state, lacking


def dropped_by(saved: Mapping[str, Any], plan: Strategy) -> set[str]:
    """Names of what a checkpoint keeps of the weight and `plan` has no place for, in any form."""
    kept = {name for name in WEIGHT_WORDS if name in saved}
    return set() if plan.keeps_more_than_the_word else kept


def _moments(plan: Strategy, *, amsgrad: bool) -> list[list[StateTensor]]:
    """The moments of a plan, each with its words: the first, the second, and the largest second if kept."""
    tensors = [tensor for tensor in plan.tensors(amsgrad=amsgrad) if tensor.name not in WEIGHT_WORDS]
    starts = ("exp_avg", SECOND_MOMENT, f"max_{SECOND_MOMENT}")
    found = []
    for start in starts:
        words = [
            t for t in tensors if t.name == start or (t.name.startswith(f"{start}_") and start != "exp_avg")
        ]
        if words:
            found.append(words)
    return found


def _adopt_moment(words: list[StateTensor], param: Tensor, saved: Mapping[str, Any]) -> dict[str, Tensor]:
    """One moment: bit for bit where it was saved in the same words, else by its value."""
    first = words[0].name
    source = first
    if first not in saved:
        source = first.removeprefix("max_")  # amsgrad switched on at the resume: the maximum starts at v
        if source not in saved:
            raise KeyError(f"the checkpoint holds no {first!r} for a parameter of shape {tuple(param.shape)}")
    state = {tensor.name: _empty(param, tensor) for tensor in words}
    known = {f"{source}{suffix}" for suffix in ("", "_lo", "_remainder") if f"{source}{suffix}" in saved}
    if known == set(state):
        for name, tensor in state.items():
            _copy(tensor, saved[name], name, param)
        return state
    hi = _checked(source, saved, param)
    if f"{source}_remainder" in saved:
        value = join_master(hi, _checked(f"{source}_remainder", saved, param))
    elif f"{source}_lo" in saved:
        value = hi.to(torch.float32) + _checked(f"{source}_lo", saved, param).to(torch.float32)
    else:
        value = hi.to(torch.float32)
    if f"{first}_remainder" in state:
        high, rest = split_master(value)
        local(state[first]).copy_(high)
        local(state[f"{first}_remainder"]).copy_(rest)
        return state
    word = local(state[first]).copy_(value)
    if f"{first}_lo" in state:
        left = value - word.to(torch.float32)
        local(state[f"{first}_lo"]).copy_(torch.where(left.isfinite(), left, 0.0))
    return state


def _fill_weight_word(word: Tensor, name: str, weight: Tensor, exact: Tensor) -> None:
    """What one kind of second word holds beside a weight whose full value is `exact`, float32."""
    if name == "master":
        word.copy_(exact)
    elif name == "lo":
        left = exact - weight.to(torch.float32)
        word.copy_(torch.where(left.isfinite(), left, 0.0))
    else:
        # The visible word stays as it was loaded, so on an exact tie the remainder is one short of its reach.
        wide = exact.view(torch.int32).to(torch.int64)
        left = wide - weight.to(torch.float32).view(torch.int32).to(torch.int64)
        word.copy_(torch.where(weight.isfinite(), left.clamp(-(1 << 15), (1 << 15) - 1), 0))


def _step(value: Any) -> Tensor:
    return torch.as_tensor(value, dtype=torch.float32).detach().clone().cpu()


def _empty(param: Tensor, tensor: StateTensor) -> Tensor:
    dtype = tensor.dtype_for(param.dtype)
    return torch.empty_like(param, dtype=dtype, memory_format=torch.preserve_format, requires_grad=False)


def _checked(name: str, saved: Mapping[str, Any], param: Tensor) -> Tensor:
    """A saved tensor, where the parameter lives, after its shape was looked at."""
    value: Tensor = saved[name]
    if value.shape != param.shape:
        raise ValueError(
            f"{name!r} in the checkpoint has shape {tuple(value.shape)}, the parameter {tuple(param.shape)}"
        )
    if value.is_floating_point() == name.endswith("remainder"):
        wanted = "torch.int16" if name.endswith("remainder") else param.dtype
        raise TypeError(f"{name!r} was saved as {value.dtype} where {wanted} belongs; a cast would damage it")
    return local(value.detach()).to(local(param).device)


def _copy(word: Tensor, value: Tensor, name: str, param: Tensor) -> None:
    local(word).copy_(_checked(name, {name: value}, param))
