"""An optimizer as a sampled step looks at it: the same class over what is measured, and nothing of the rest.

A part is what this process holds of a sharded tensor, and of a large one the rows that a budget leaves. Stepping copies
of a DTensor would send and wait, and one rank that fails would leave the others waiting. A part is a plain tensor: what
a class does with every element alone it does with a part as well, and where it looks at the whole, sampled words tell
after the real step that the parts were not stepped so.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from types import MethodType
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from .rows import Rows
from .shards import is_sharded, local


class Parts:
    """An optimizer over parts of its parameters; the optimizer itself where all are plain tensors and whole.

    `budget`: bytes of the parts of all parameters together, None for no limit.
    """

    def __init__(self, optimizer: Optimizer, budget: int | None = None) -> None:
        self._whole = optimizer
        held = [local(param.detach()) for param in self._params()]
        self._rows = Rows((part.numel() * part.element_size() for part in held), budget)
        self._parts: dict[Tensor, Tensor] = {}
        self._wholes: dict[Tensor, Tensor] = {}
        self._groups: list[dict[str, Any]] = []
        self.optimizer = optimizer
        """Steps the parts; to be looked at after `refresh`, and never to be stepped itself."""
        if any(self.part(param) is not param for param in self._params()):
            self.optimizer = object.__new__(type(optimizer))
            self.refresh()

    def refresh(self) -> None:
        """Take over groups, gradients and state as they are now. Nothing is copied and nothing sent."""
        if self.optimizer is self._whole:
            return
        own = vars(self.optimizer)
        own.clear()
        own.update({name: self._bound(value) for name, value in vars(self._whole).items()})
        own["param_groups"] = self._groups
        self._groups += [{} for _ in self._whole.param_groups[len(self._groups) :]]
        del self._groups[len(self._whole.param_groups) :]
        for group, real in zip(self._groups, self._whole.param_groups, strict=True):
            # The same dict each time: who has it from before a step reads what the step has left in it.
            group.clear()
            group.update(real, params=[self._with_gradient(param) for param in real["params"]])
        own["state"] = defaultdict(dict)
        for key, kept in self._whole.state.items():
            if isinstance(key, Tensor):
                own["state"][self.part(key)] = self._parts_of(kept, key)
            else:
                own["state"][key] = kept

    def part(self, param: Tensor) -> Tensor:
        """The part of a parameter that is measured here: the same tensor, in the same memory, each time; of a part,
        that part itself."""
        if param in self._wholes and self._wholes[param] is not param:
            return param
        if param not in self._parts:
            held = local(param.detach())
            cut = self.cut(held, param)
            part = param if cut is held and not is_sharded(param) else Parameter(cut, param.requires_grad)
            self._parts[param], self._wholes[part] = part, param
        return self._parts[param]

    def whole(self, part: Tensor) -> Tensor:
        """The parameter that a part is of."""
        return self._wholes.get(part, part)

    def share(self, part: Tensor) -> float:
        """The measured share of what this process holds of a parameter."""
        held = local(self.whole(part).detach())
        return part.numel() / held.numel() if held.numel() else 1.0

    def cut(self, tensor: Tensor, param: Tensor) -> Tensor:
        """The measured rows of a tensor in the shape of what is held of a parameter; of another shape as it is."""
        held = local(param.detach())
        every = self._rows.every(param, held) if tensor.shape == held.shape else 1
        return tensor if every == 1 else tensor[::every]

    def keep_whole(self, part: Tensor) -> None:
        """Measure all of a parameter that is here, from the next `refresh` on."""
        param = self.whole(part)
        self._rows.keep(param)
        self._parts.pop(param, None)

    def names(self, names: Mapping[Tensor, str]) -> Mapping[Tensor, str]:
        """Names by part, for names by parameter that may still grow."""
        return _Names(self, names)

    def _bound(self, value: Any) -> Any:
        """A method that the optimizer keeps of itself would step the optimizer."""
        own = isinstance(value, MethodType) and value.__self__ is self._whole
        return MethodType(value.__func__, self.optimizer) if own else value

    def _params(self) -> Iterable[Tensor]:
        return (param for group in self._whole.param_groups for param in group["params"])

    def _with_gradient(self, param: Tensor) -> Tensor:
        if param.grad is not None and param.grad.layout != torch.strided:
            self.keep_whole(self.part(param))
        part = self.part(param)
        if part is param:
            return param
        part.requires_grad_(param.requires_grad)
        grad = None if param.grad is None else self.cut(local(param.grad), param)
        if grad is not None and (grad.shape != part.shape or grad.dtype != part.dtype):
            # It lies otherwise over the ranks: no part of it belongs here, and words will tell that it did not.
            grad = torch.zeros_like(part)
        part.grad = grad
        return part

    def _parts_of(self, value: Any, param: Tensor) -> Any:
        """The parts of all tensors in what is kept for a parameter; containers are made anew, tensors not copied."""
        if isinstance(value, Tensor):
            held = local(value.detach()) if is_sharded(value) else value
            return self.cut(held, param) if type(held) is Tensor else held
        if isinstance(value, dict):
            return {key: self._parts_of(item, param) for key, item in value.items()}
        return value


class _Names(Mapping[Tensor, str]):
    def __init__(self, parts: Parts, names: Mapping[Tensor, str]) -> None:
        self._parts, self._names = parts, names

    def __getitem__(self, part: Tensor) -> str:
        return self._names[self._parts.whole(part)]

    def __iter__(self) -> Iterator[Tensor]:
        return (self._parts.part(param) for param in self._names)

    def __len__(self) -> int:
        return len(self._names)
