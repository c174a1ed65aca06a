"""A sharded optimizer as this process sees it: the same class over the parts that it holds, and nothing of the rest.

Stepping copies of a DTensor would send and wait, and one rank that fails would leave the others waiting. A part is a
plain tensor: what a class does with every element alone it does with a part as well, and where it looks at the whole,
sampled words tell after the real step that the parts were not stepped so.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from .shards import is_sharded, local


class Parts:
    """An optimizer over the parts of its parameters; the optimizer itself as long as none of them is sharded."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._whole = optimizer
        self._parts: dict[Tensor, Tensor] = {}
        self._wholes: dict[Tensor, Tensor] = {}
        self.optimizer = optimizer
        """Steps the parts; to be looked at after `refresh`, and never to be stepped itself."""
        if any(is_sharded(param) for param in self._params()):
            self.optimizer = object.__new__(type(optimizer))
            self.refresh()

    def refresh(self) -> None:
        """Take over groups, gradients and state as they are now. Nothing is copied and nothing sent."""
        if self.optimizer is self._whole:
            return
        own = vars(self.optimizer)
        own.clear()
        own.update(vars(self._whole))
        own["param_groups"] = [
            {**group, "params": [self._with_gradient(param) for param in group["params"]]}
            for group in self._whole.param_groups
        ]
        own["state"] = defaultdict(dict)
        for key, kept in self._whole.state.items():
            own["state"][self.part(key) if isinstance(key, Tensor) else key] = _localised(kept)

    def part(self, param: Tensor) -> Tensor:
        """The part of a parameter held here: the same tensor, in the same memory, each time."""
        if not is_sharded(param):
            return param
        if param not in self._parts:
            part = Parameter(local(param.detach()), param.requires_grad)
            self._parts[param], self._wholes[part] = part, param
        return self._parts[param]

    def whole(self, part: Tensor) -> Tensor:
        """The parameter that a part is of."""
        return self._wholes.get(part, part)

    def names(self, names: Mapping[Tensor, str]) -> Mapping[Tensor, str]:
        """Names by part, for names by parameter that may still grow."""
        return _Names(self, names)

    def _params(self) -> Iterable[Tensor]:
        return (param for group in self._whole.param_groups for param in group["params"])

    def _with_gradient(self, param: Tensor) -> Tensor:
        part = self.part(param)
        if part is param:
            return param
        part.requires_grad_(param.requires_grad)
        grad = None if param.grad is None else local(param.grad)
        if grad is not None and (grad.shape != part.shape or grad.dtype != part.dtype):
            # It lies otherwise over the ranks: no part of it belongs here, and words will tell that it did not.
            grad = torch.zeros_like(part)
        part.grad = grad
        return part


class _Names(Mapping[Tensor, str]):
    def __init__(self, parts: Parts, names: Mapping[Tensor, str]) -> None:
        self._parts, self._names = parts, names

    def __getitem__(self, part: Tensor) -> str:
        return self._names[self._parts.whole(part)]

    def __iter__(self) -> Any:
        return (self._parts.part(param) for param in self._names)

    def __len__(self) -> int:
        return len(self._names)


def _localised(value: Any) -> Any:
    """The parts of all tensors in a state; containers are made anew, tensors are not copied."""
    if isinstance(value, Tensor):
        return local(value.detach()) if is_sharded(value) else value
    if isinstance(value, dict):
        return {key: _localised(item) for key, item in value.items()}
    return value
