"""What is kept beside a weight: how it starts, what it amounts to, and how it starts again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from roundoff.numerics import LOWER_WORDS, join_master, join_words, narrow, split_master

from .strategies import Strategy


def initial_state(param: Tensor, plan: Strategy, *, amsgrad: bool = False) -> dict[str, Tensor]:
    """The state before the first step: zeros of the parameter's shape, and a master that equals the weight."""
    state = {"step": torch.zeros((), dtype=torch.float32)}
    for tensor in plan.tensors(amsgrad=amsgrad):
        dtype = tensor.dtype_for(param.dtype)
        state[tensor.name] = torch.zeros_like(param, dtype=dtype, memory_format=torch.preserve_format)
    if "master" in state:
        state["master"].copy_(param)
    return state


def stored_weight(param: Tensor, state: Mapping[str, Any]) -> Tensor:
    """Everything that is stored of a weight, as new float32 of its shape."""
    if "master" in state:
        return state["master"].to(torch.float32, copy=True)  # type: ignore[no-any-return]
    word = param.detach()
    if "remainder" in state:
        return join_master(word, state["remainder"])
    words = [word.to(torch.float32, copy=True), *(state[name] for name in LOWER_WORDS if name in state)]
    return join_words(words)


def seed_weight(param: Tensor, state: dict[str, Any], exact: Tensor) -> None:
    """Make everything that is stored of a weight hold `exact`, float32, as closely as it can, in place."""
    if "master" in state:
        state["master"].copy_(exact)
        param.copy_(exact)
    elif "remainder" in state:
        hi, rest = split_master(exact)
        param.copy_(hi)
        state["remainder"].copy_(rest)
    else:
        param.copy_(narrow(exact, param.dtype))
        fill_lower_words(state, exact - param.to(torch.float32))


def fill_lower_words(state: Mapping[str, Tensor], left: Tensor) -> None:
    """Make the words below the visible one, those that there are, hold what it left over, float32, in place."""
    for name in LOWER_WORDS:
        if name in state:
            left = torch.where(left.isfinite(), left, 0.0)
            state[name].copy_(left)
            left = left - state[name].to(torch.float32)


def resync(param: Tensor, state: dict[str, Any]) -> None:
    """Take the visible weight as it is: lower words and remainder ← 0, master ← w."""
    for name in (*LOWER_WORDS, "remainder"):
        if name in state:
            state[name].zero_()
    if "master" in state:
        state["master"].copy_(param)
