"""What the optimizer's tests share: a small model, given gradients, every bit of what is kept."""

from __future__ import annotations

import zlib
from typing import Any

import torch
from torch import Tensor, nn

from roundoff.optim import STRATEGIES, CollageAdamW

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
KEEPING = [plan.name for plan in STRATEGIES.values() if plan.keeps_more_than_the_word]
"""Strategies that keep something beside the visible word."""

_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def model_of(dtype: torch.dtype = BF16, seed: int = 0) -> nn.Sequential:
    """Two linear layers around a norm."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 9), nn.LayerNorm(9), nn.Linear(9, 3)).to(dtype)


def give_gradients(model: nn.Module, step: int, scale: float = 1.0) -> None:
    """The gradients of a step, which follow from its number and the parameter's name."""
    for name, param in model.named_parameters():
        generator = torch.Generator().manual_seed(zlib.crc32(f"{name} {step}".encode()))
        param.grad = (torch.randn(param.shape, generator=generator) * scale).to(param.dtype)


def advance(model: nn.Module, optimizer: CollageAdamW, first: int, last: int) -> None:
    """Steps number `first` to `last`."""
    for step in range(first, last + 1):
        give_gradients(model, step)
        optimizer.step()


def everything(model: nn.Module, optimizer: CollageAdamW) -> dict[str, Tensor]:
    """Every bit that is kept, as integers: weights by name, state by `name/word`."""
    kept: dict[str, Tensor] = {}
    for name, param in model.named_parameters():
        kept[name] = param.detach()
        kept |= {f"{name}/{word}": value for word, value in optimizer.state.get(param, {}).items()}
    return {name: bits(value) for name, value in kept.items()}


def bits(value: Tensor) -> Tensor:
    """A copy as integers of its width: NaN equals itself, and −0.0 is not 0.0."""
    return value.detach().contiguous().view(_BITS[value.element_size()]).clone()


def assert_equal(one: dict[str, Any], two: dict[str, Any]) -> None:
    """The same names, dtypes and bits."""
    assert one.keys() == two.keys()
    for name, value in one.items():
        assert value.dtype == two[name].dtype, name
        assert torch.equal(value, two[name]), name
