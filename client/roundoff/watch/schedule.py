"""The learning rates that a scheduler is going to set, found by stepping a copy of it."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import torch
from torch.nn import Parameter
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau


def learning_rates(scheduler: LRScheduler, steps: int) -> list[list[float]]:
    """The learning rate of every parameter group for the next `steps` steps, the present one first.

    The scheduler, its optimizer and the random state are left as they are. Raises ValueError for a scheduler that goes
    by a measured figure, whose future nobody knows, and for `steps` below 1.
    """
    if isinstance(scheduler, ReduceLROnPlateau):
        raise ValueError(
            "ReduceLROnPlateau goes by a measured loss: give a table of learning rates by step instead"
        )
    if steps < 1:
        raise ValueError(f"steps must be 1 or larger, got {steps}")
    stand_in = _stand_in(scheduler.optimizer)
    twin = _twin(scheduler, stand_in)
    found = []
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is stepped without its optimizer
        for _ in range(steps):
            found.append([float(group["lr"]) for group in stand_in.param_groups])
            twin.step()
    return found


def _stand_in(optimizer: Optimizer) -> Optimizer:
    """An optimizer of the same groups and settings that holds one number each."""
    groups: list[dict[str, Any]] = []
    for group in optimizer.param_groups:
        kept = {k: copy.deepcopy(v) for k, v in group.items() if k not in ("params", "param_names")}
        groups.append({**kept, "params": [Parameter(torch.zeros(()))]})
    made = SGD([{"params": group["params"], "lr": 1.0} for group in groups], lr=1.0)
    for mine, theirs in zip(made.param_groups, groups, strict=True):
        mine.update({key: value for key, value in theirs.items() if key != "params"})
    made.defaults.update(copy.deepcopy(optimizer.defaults))
    return made


def _twin(scheduler: Any, stand_in: Optimizer) -> Any:
    twin = object.__new__(type(scheduler))
    for name, value in vars(scheduler).items():
        if name == "optimizer":
            twin.__dict__[name] = stand_in
        elif name == "_schedulers":  # of a scheduler of schedulers
            twin.__dict__[name] = [_twin(one, stand_in) for one in value]
        else:
            twin.__dict__[name] = copy.deepcopy(value)
    return twin
