"""Notice a checkpoint whose optimizer state comes back as another dtype than it was saved with.

`torch.optim.Optimizer.load_state_dict` casts floating state to the parameter's dtype: float32 moments beside bfloat16
weights are bfloat16 afterwards, and nothing says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from roundoff.metrics import name_some

from .preflight_checks import Warned


def notice_loads(
    optimizer: Optimizer, names: Mapping[Tensor, str], tell: Callable[[Warned], None]
) -> list[RemovableHandle]:
    """From now on compare what `optimizer` loads with what it then keeps; `tell` is called once per pair of dtypes.

    `names` are those of the parameters. Neither hook changes anything, and none raises. Remove the handles to end it.
    """
    saved: list[tuple[Tensor, str, Tensor]] = []

    def before(_: Optimizer, state_dict: Mapping[str, Any]) -> None:
        with suppress(
            Exception
        ):  # a watch never hurts the run it watches; what is wrong here fails in the load
            saved[:] = _saved(optimizer, state_dict)

    def after(_: Optimizer) -> None:
        with suppress(Exception):
            for found in changed_dtypes(optimizer, saved, names):
                tell(found)
        saved.clear()

    return [
        optimizer.register_load_state_dict_pre_hook(before),
        optimizer.register_load_state_dict_post_hook(after),
    ]


def changed_dtypes(
    optimizer: Optimizer, saved: list[tuple[Tensor, str, Tensor]], names: Mapping[Tensor, str]
) -> Iterator[Warned]:
    """One finding per pair of dtypes, with the first value that is no longer what was saved.

    `saved` holds a parameter of the optimizer, the name of its state and the tensor as it was in the checkpoint.
    """
    changed: dict[tuple[torch.dtype, torch.dtype], list[tuple[str, Tensor, Tensor]]] = {}
    for param, key, old in saved:
        new = optimizer.state.get(param, {}).get(key)
        if isinstance(new, Tensor) and new.dtype != old.dtype:
            changed.setdefault((old.dtype, new.dtype), []).append(
                (f"{names.get(param, '?')} ({key})", old, new)
            )
    for (was, now), some in changed.items():
        where = tuple(name for name, _, _ in some)
        yield Warned(
            "loaded-state",
            f"{_short(was)} state is {_short(now)} since the load",
            f"the optimizer casts what it loads to the dtype of its weights; {_example(some)}",
            "put the saved tensors back into optimizer.state after load_state_dict, or use CollageAdamW, whose load "
            "gives back every tensor bit for bit",
            where,
        )


def _saved(optimizer: Optimizer, state_dict: Mapping[str, Any]) -> list[tuple[Tensor, str, Tensor]]:
    """The floating tensors of a checkpoint beside the parameters that they are of; the step counter is no state."""
    groups = state_dict.get("param_groups", [])
    numbers = chain.from_iterable(group.get("params", []) for group in groups)
    params = chain.from_iterable(group["params"] for group in optimizer.param_groups)
    state: Mapping[Any, Any] = state_dict.get("state", {})
    return [
        (param, key, value)
        for number, param in zip(numbers, params, strict=False)  # another number is the load's own error
        for key, value in state.get(number, {}).items()
        if isinstance(value, Tensor) and value.is_floating_point() and key != "step"
    ]


def _example(some: list[tuple[str, Tensor, Tensor]]) -> str:
    for name, old, new in some:
        flat, kept = old.detach().reshape(-1), new.detach().reshape(-1)
        moved = flat.to(kept.device, torch.float64) != kept.to(torch.float64)
        if bool(moved.any()):
            at = int(moved.to(torch.uint8).argmax())
            return f"{float(flat[at]):.5g} in {name} has become {float(kept[at]):.5g}"
    return f"no value of {name_some([name for name, _, _ in some])} has changed yet, but new ones are rounded to it"


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
