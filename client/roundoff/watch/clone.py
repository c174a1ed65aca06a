"""Stepping one parameter of an optimizer on copies: a clone of the optimizer that holds nothing but that parameter.

The clone is made without the class's constructor and without copy protocols, which drop attributes. Groups and
attributes are copied as well, since many classes count steps or keep running values there.
"""

from __future__ import annotations

import copy
import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import MethodType
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

Path = tuple[Any, ...]
"""Where in the state of a parameter a tensor lies: the keys that lead to it."""

SPARE = 1 << 20
"""Bytes of tensors in an optimizer's attributes that are copied with every parameter whatever its size."""

_FLAGS = (bool, int, float, str)


class Refused(Exception):  # noqa: N818 (no error: it says why a parameter cannot be stepped on copies)
    """Why, in words that complete "nothing is claimed about what this layer lost: …"."""


@dataclass(frozen=True, slots=True)
class Twin:
    """A clone after or before its step, and the copy of the one parameter that it holds."""

    optimizer: Optimizer
    param: Parameter

    @property
    def state(self) -> dict[Any, Any]:
        """What the class keeps for the parameter; empty if nothing."""
        kept = self.optimizer.state.get(self.param)
        return kept if isinstance(kept, dict) else {}

    def step(self) -> None:
        """The step of the class itself: neither hooks of any kind nor a scheduler's call counter see it."""
        step = type(self.optimizer).step
        if getattr(step, "hooked", False):
            step = getattr(step, "__wrapped__", step)
        with torch.no_grad():
            step(self.optimizer)


@dataclass(frozen=True, slots=True)
class _Attribute:
    """One attribute: what is copied for every parameter, and the entries of a dict that belong to one of them."""

    common: Any
    own: Mapping[int, Mapping[Any, Any]] = field(default_factory=dict)


class Cloner:
    """Makes clones of an optimizer as it is now; make a new one for every step that is replayed.

    Raises Refused where the attributes hold more than can be copied for each of the parameters.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        params = [param for group in optimizer.param_groups for param in group["params"]]
        self._params = {id(param) for param in params}
        self._attributes = {
            name: self._attribute(value)
            for name, value in vars(optimizer).items()
            # A scheduler puts its own `step` on the instance.
            if name not in ("param_groups", "state", "step") and not name.endswith("_hooks")
        }
        self._hooks = [name for name in vars(optimizer) if name.endswith("_hooks")]
        shared = {key: value for key, value in optimizer.state.items() if not isinstance(key, Tensor)}
        self._shared_state: dict[Any, Any] = shared
        kept = sum(_bytes(one.common) for one in self._attributes.values()) + _bytes(shared)
        if kept > SPARE + max((param.numel() * param.element_size() for param in params), default=0):
            raise Refused(f"{type(optimizer).__name__} keeps {kept:,} bytes of tensors outside of its state")

    def twin(
        self,
        group: Mapping[str, Any],
        index: int,
        dtype: torch.dtype | None = None,
        *,
        weight: Tensor | None = None,
        gradient: Tensor | None = None,
        replaced: Mapping[Path, Tensor | None] | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> Twin:
        """A clone with the group's parameter number `index` alone, its gradient and its state, not yet stepped.

        Floats are cast to `dtype` if that is wider; None leaves all as they are. `weight` and
        `gradient` are taken instead of the parameter's; `replaced` takes places in the state, None taking one
        away, and `settings` those of the group. Raises Refused where the state refers to other parameters.
        """
        param: Parameter = group["params"][index]
        twin = Parameter(_copy(param.detach() if weight is None else weight, dtype), param.requires_grad)
        vars(twin).update({name: flag for name, flag in vars(param).items() if isinstance(flag, _FLAGS)})
        _set_gradient(twin, param.grad if gradient is None else gradient, dtype)
        copier = _Copier(self._params, param, twin)
        clone = object.__new__(type(self.optimizer))
        for name, attribute in self._attributes.items():
            value = copier.copy(attribute.common, None)
            if attribute.own:
                value.update(copier.copy(dict(attribute.own.get(id(param), {})), None))
            clone.__dict__[name] = (
                MethodType(value.__func__, clone) if _is_method_of(value, self.optimizer) else value
            )
        clone.__dict__.update({name: OrderedDict() for name in self._hooks})
        clone.param_groups = [{**_copied_group(copier, group, index, twin), **(settings or {})}]
        clone.state = defaultdict(dict, copier.copy(self._shared_state, None))
        if param in self.optimizer.state:
            clone.state[twin] = copier.copy(self.optimizer.state[param], dtype)
            for path, tensor in (replaced or {}).items():
                _put(clone.state[twin], path, tensor)
        return Twin(clone, twin)

    def _attribute(self, value: Any) -> _Attribute:
        if type(value) is not dict and not isinstance(value, defaultdict | OrderedDict):
            return _Attribute(value)
        common = value.copy()
        own: dict[int, dict[Any, Any]] = {}
        for key, item in value.items():
            whose = _first_of((key, item), self._params)
            if whose is not None:
                own.setdefault(whose, {})[key] = common.pop(key)
        return _Attribute(common, own or {0: {}} if len(common) < len(value) else {})


class _Copier:
    """Copies what an optimizer keeps for one parameter, and puts the twin where the parameter is meant."""

    def __init__(self, params: set[int], param: Tensor, twin: Tensor) -> None:
        self._params, self._param, self._twin = params, param, twin

    def copy(self, value: Any, dtype: torch.dtype | None) -> Any:
        """Tensors and the containers that hold them; anything else is shared. Raises Refused as `Cloner.twin`.

        A step count stays what it is: fused kernels read it as binary32.
        """
        if isinstance(value, Tensor):
            if value is self._param:
                return self._twin
            if id(value) in self._params:
                raise Refused("what is kept for one parameter refers to another")
            return _copy(value, dtype)
        if isinstance(value, dict):
            copied = copy.copy(value)  # keeps a subclass and its default factory
            copied.clear()
            for key, item in value.items():
                at = self._twin if key is self._param else key
                copied[at] = self.copy(item, None if key == "step" else dtype)
            return copied
        if isinstance(value, deque):
            return deque((self.copy(item, dtype) for item in value), value.maxlen)
        if type(value) in (list, set):
            return type(value)(self.copy(item, dtype) for item in value)
        if type(value) is tuple:
            return tuple(self.copy(item, dtype) for item in value)
        return value


def tensors_in(state: Mapping[Any, Any], at: Path = ()) -> Iterator[tuple[Path, Tensor]]:
    """Every tensor in a state, also in dicts within it, and where it lies."""
    for key, value in state.items():
        if isinstance(value, Tensor):
            yield (*at, key), value
        elif isinstance(value, dict):
            yield from tensors_in(value, (*at, key))


def tensor_at(state: Mapping[Any, Any], path: Path) -> Tensor | None:
    """The tensor at a place of a state, None if there is none."""
    value: Any = state
    for key in path:
        if not isinstance(value, dict) or key not in value:
            return None
        value = value[key]
    return value if isinstance(value, Tensor) else None


@contextmanager
def without_compiling() -> Iterator[None]:
    """Run what an optimizer compiles as it is written: nobody should wait for kernels of a step on copies."""
    with ExitStack() as stack:
        if "torch._dynamo" in sys.modules:
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        yield


def _copy(tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    """A copy, in `dtype` if it is a float and that is wider; words of several parts are copied part by part."""
    value = tensor.detach()
    if is_traceable_wrapper_subclass(value) and not hasattr(value, "to_local"):
        names, context = value.__tensor_flatten__()
        parts = {name: _copy(getattr(value, name), None) for name in names}
        made: Tensor = type(value).__tensor_unflatten__(parts, context, value.shape, None)
        return made
    if dtype is None or not value.is_floating_point() or value.dtype.itemsize >= dtype.itemsize:
        return value.clone()
    return value.to(dtype)


def _set_gradient(twin: Parameter, gradient: Tensor | None, dtype: torch.dtype | None) -> None:
    if gradient is None:
        return
    grad = _copy(gradient, dtype)
    if grad.dtype != twin.dtype and hasattr(twin, "grad_dtype"):
        twin.grad_dtype = None
    twin.grad = grad


def _copied_group(copier: _Copier, group: Mapping[str, Any], index: int, twin: Tensor) -> dict[str, Any]:
    copied = {
        key: copier.copy(value, None) for key, value in group.items() if key not in ("params", "param_names")
    }
    if "param_names" in group:
        copied["param_names"] = [group["param_names"][index]]
    return {**copied, "params": [twin]}


def _put(state: dict[Any, Any], path: Path, tensor: Tensor | None) -> None:
    place: Any = state
    for key in path[:-1]:
        if not isinstance(place, dict) or key not in place:
            return
        place = place[key]
    if tensor is not None:
        place[path[-1]] = tensor
    else:
        place.pop(path[-1], None)


def _first_of(value: Any, params: set[int]) -> int | None:
    """The id of a parameter that a value holds or is, None if it has none."""
    if isinstance(value, Tensor):
        return id(value) if id(value) in params else None
    items = [*value, *value.values()] if isinstance(value, dict) else value
    if isinstance(items, list | tuple | set | deque):
        return next((found for item in items if (found := _first_of(item, params)) is not None), None)
    return None


def _bytes(value: Any) -> int:
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, dict):
        return sum(_bytes(item) for item in value.values())
    return sum(_bytes(item) for item in value) if isinstance(value, list | tuple | set | deque) else 0


def _is_method_of(value: Any, optimizer: Optimizer) -> bool:
    return isinstance(value, MethodType) and value.__self__ is optimizer
