"""Who is watched: every parameter of an optimizer, under the name that the user's model gives it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from roundoff.metrics.cures import FLOAT8
from roundoff.wire import Layer

from .wrappers import own_optimizer, own_parameters


@dataclass(frozen=True, slots=True)
class Member:
    """One watched parameter tensor."""

    name: str
    param: Tensor
    group: int
    strategy: str

    def declared(self, index: int) -> Layer:
        """As it is declared to a server."""
        return Layer(
            index=index,
            name=self.name,
            shape=list(self.param.shape),
            numel=self.param.numel(),
            dtype=str(self.param.dtype).removeprefix("torch."),
            group=self.group,
            strategy=self.strategy,
        )


def roster(model: nn.Module, optimizer: Optimizer) -> list[Member]:
    """The optimizer's parameters in model order, each once.

    Raises ValueError if the optimizer has none in common with the model, or one without a name in it.
    """
    optimizer = own_optimizer(optimizer)
    names: dict[Tensor, str] = {param: name for name, param in own_parameters(model)}
    found, unnamed = {}, []
    for number, group in enumerate(optimizer.param_groups):
        declared = group.get("strategy") or type(optimizer).__name__
        for param, own_name in _with_names(group):
            name = names.get(param, own_name)
            if name is None:
                unnamed.append(f"shape {tuple(param.shape)} in group {number}")
            elif param.requires_grad:
                strategy = "float32" if param.dtype == torch.float32 else declared
                if param.dtype.itemsize == 1:
                    strategy = f"{FLOAT8}{declared}"  # the same name costs and keeps less than in 16 bit
                found[param] = Member(name, param, number, strategy)
    if not any(param in names for param in found):
        raise ValueError(
            f"optimizer and model do not belong together: none of the optimizer's {_count(optimizer)} parameters "
            f"is among the model's {len(names)}. Build the optimizer from this model's parameters, after "
            "casting, compiling or sharding it."
        )
    if unnamed:
        raise ValueError(
            f"{len(unnamed)} parameters of the optimizer have no name in the model: {'; '.join(unnamed[:3])}. "
            "Pass the module that holds them all, or give the optimizer (name, parameter) pairs."
        )
    order: dict[Tensor, int] = {param: position for position, param in enumerate(names)}
    return sorted(found.values(), key=lambda member: order.get(member.param, len(order)))


def _with_names(group: dict[str, Any]) -> Iterator[tuple[Tensor, str | None]]:
    names = group.get("param_names") or [None] * len(group["params"])
    return zip(group["params"], names, strict=True)


def _count(optimizer: Optimizer) -> int:
    return sum(len(group["params"]) for group in optimizer.param_groups)
