"""Bring a checkpoint's state into the layout of a strategy without losing a bit that fits.

PyTorch's own loading casts float state to the parameter's dtype, which turns float32 moments and masters
into 16 bit silently (numerics §3, rule 7); this starts from the saved tensors instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from .strategies import Strategy

OWN = ("lo", "master")
"""State that belongs to the weight and can start again from it."""


def adopt_state(param: Tensor, saved: Mapping[str, Any], plan: Strategy) -> tuple[dict[str, Any], set[str]]:
    """The state for `param` under `plan`, and the names of what the checkpoint lacked.

    Raises KeyError if a moment is missing and TypeError where an integer tensor was saved as floats or the
    other way round.
    """
    state: dict[str, Any] = {"step": _step(saved.get("step", 0))}
    lacking: set[str] = set()
    for tensor in plan.state:
        name, dtype = tensor.name, tensor.dtype_for(param.dtype)
        if name in saved:
            state[name] = _fit(name, saved[name], param, dtype)
        elif name in OWN:
            state[name] = _from_weight(name, param, saved, dtype)
            if not _keeps_weight(saved):
                lacking.add(name)
        elif name == "exp_avg_sq_lo":
            state[name] = _second_word(saved["exp_avg_sq"], param, dtype)
        else:
            raise KeyError(f"the checkpoint holds no {name!r} for a parameter of shape {tuple(param.shape)}")
    _fold_second_words(state, saved, plan)
    return state, lacking


def dropped_by(saved: Mapping[str, Any], plan: Strategy) -> set[str]:
    """Names of what a checkpoint keeps of the weight and `plan` has no place for, in any form."""
    kept = {name for name in OWN if name in saved}
    return set() if any(plan.keeps(name) for name in OWN) else kept


def _step(value: Any) -> Tensor:
    return torch.as_tensor(value, dtype=torch.float32).detach().clone().cpu()


def _fit(name: str, value: Tensor, param: Tensor, dtype: torch.dtype) -> Tensor:
    if value.shape != param.shape:
        raise ValueError(
            f"{name!r} in the checkpoint has shape {tuple(value.shape)}, the parameter {tuple(param.shape)}"
        )
    if value.is_floating_point() != dtype.is_floating_point:
        raise TypeError(f"{name!r} was saved as {value.dtype} where {dtype} belongs; a cast would damage it")
    fitted = torch.empty_like(param, dtype=dtype, memory_format=torch.preserve_format)
    return fitted.copy_(value.detach())


def _second_word(value: Tensor, param: Tensor, dtype: torch.dtype) -> Tensor:
    """What of a wider moment its first word does not hold; 0 where the checkpoint kept no more."""
    wide = value.detach().to(device=param.device, dtype=torch.float32)
    return (wide - wide.to(dtype).to(torch.float32)).to(dtype)


def _keeps_weight(saved: Mapping[str, Any]) -> bool:
    return any(name in saved for name in OWN)


def _from_weight(name: str, param: Tensor, saved: Mapping[str, Any], dtype: torch.dtype) -> Tensor:
    """lo from a saved master, a master from a saved lo, either from the weight alone where there is neither."""
    weight = param.detach().to(torch.float32)
    if name == "lo":
        master = saved.get("master")
        exact = weight if master is None else master.detach().to(param.device)
        return (exact - weight).to(dtype)
    lo = saved.get("lo")
    return weight.clone() if lo is None else weight + lo.detach().to(param.device).to(torch.float32)


def _fold_second_words(state: dict[str, Any], saved: Mapping[str, Any], plan: Strategy) -> None:
    """A second word of v that this layout has no place for is added to a wider first word."""
    if "exp_avg_sq_lo" not in saved or plan.keeps("exp_avg_sq_lo"):
        return
    v = state["exp_avg_sq"]
    both = saved["exp_avg_sq"].detach().to(torch.float32) + saved["exp_avg_sq_lo"].detach().to(torch.float32)
    v.copy_(both)
