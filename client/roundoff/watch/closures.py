"""Steps that are given a closure: it computes the gradients inside the step, as Lightning does by default."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""What a step is called with: the optimizer and positional arguments, keyword arguments."""


def closure_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], Any] | None:
    """The closure that a step was given, None if it was given none."""
    given: Callable[[], Any] | None = args[1] if len(args) > 1 else kwargs.get("closure")
    return given


def searches(optimizer: Optimizer) -> bool:
    """Whether the optimizer cannot step without a closure: it evaluates it more than once, as LBFGS does."""
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


def followed_by(then: Callable[[], None], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
    """The same arguments with a closure after whose first evaluation `then` is called once. `then` must not raise.

    The optimizer calls the closure as often and when it would have; what it returns or raises is passed on.
    """
    closure = closure_of(args, kwargs)
    assert closure is not None
    due = True

    def followed() -> Any:
        nonlocal due
        loss = closure()
        if due:
            due = False
            then()
        return loss

    if len(args) > 1:
        return (args[0], followed, *args[2:]), kwargs
    return args, {**kwargs, "closure": followed}
