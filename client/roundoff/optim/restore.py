"""Bring a checkpoint's state into the layout of a strategy without losing a bit that fits.

PyTorch's own loading casts float state to the parameter's dtype, which turns float32 moments and masters
into 16 bit silently (numerics §3, rule 7); this starts from the saved tensors instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from roundoff.numerics import LOWER_WORDS, join_master, split_master

from .shards import local, part_of
from .state import fill_lower_words, stored_weight
from .strategies import SECOND_MOMENT, WEIGHT_WORDS, StateTensor, Strategy


@dataclass(frozen=True, slots=True)
class Adopted:
    """The state for one parameter made from a checkpoint's.

    `lacking` names what the checkpoint did not hold in any form. `words` is what it kept of the weight where that
    had to be converted, which takes the weight itself: if that is loaded afterwards, `convert_weight` does it
    again. None where the words were taken as they are.
    """

    state: dict[str, Any]
    lacking: set[str]
    words: dict[str, Tensor] | None


def adopt_state(param: Tensor, saved: Mapping[str, Any], plan: Strategy, *, amsgrad: bool = False) -> Adopted:
    """The state for `param` under `plan`, from the state that a checkpoint holds for it.

    Raises KeyError if a moment is missing, ValueError for another shape and TypeError where an integer tensor
    was saved as floats or the other way round.
    """
    state: dict[str, Any] = {"step": _step(saved.get("step", 0))}
    for group in _moments(plan, amsgrad=amsgrad):
        state |= _adopt_moment(group, param, saved)
    words = {name: _checked(name, saved, param) for name in WEIGHT_WORDS if name in saved}
    own = [tensor for tensor in plan.state if tensor.name in WEIGHT_WORDS]
    state |= {tensor.name: _empty(param, tensor) for tensor in own}
    widths = {tensor.name: tensor.dtype_for(param.dtype).itemsize for tensor in own}
    # In more words, or words of another width, the same value is written otherwise.
    if not own or widths == {name: word.dtype.itemsize for name, word in words.items()}:
        for tensor in own:
            local(state[tensor.name]).copy_(words[tensor.name])
        return Adopted(state, set(), None)
    convert_weight(param, state, words)
    return Adopted(state, set() if words else {tensor.name for tensor in own}, words)


def convert_weight(param: Tensor, state: Mapping[str, Tensor], words: Mapping[str, Tensor]) -> None:
    """Make the second word or master in `state` hold what `words` of another strategy keep of the weight."""
    weight = local(param).detach()
    exact = stored_weight(weight, words)
    lower = {name: local(state[name]) for name in LOWER_WORDS if name in state}
    fill_lower_words(lower, exact - weight.to(torch.float32))
    for name in ("remainder", "master"):
        if name in state:
            _fill_weight_word(local(state[name]), name, weight, exact)


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
    if known == set(state) and all(saved[name].dtype == tensor.dtype for name, tensor in state.items()):
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
    is_remainder = name.endswith("remainder")
    if value.dtype != torch.int16 if is_remainder else not value.is_floating_point():
        wanted = torch.int16 if is_remainder else param.dtype
        raise TypeError(f"{name!r} was saved as {value.dtype} where {wanted} belongs; a cast would damage it")
    return part_of(value.detach(), param).to(local(param).device)


def _copy(word: Tensor, value: Tensor, name: str, param: Tensor) -> None:
    local(word).copy_(_checked(name, {name: value}, param))
