"""Compare the compiled step with the reference on a few words, before this process relies on it."""

from __future__ import annotations

import torch
from torch import Tensor

from ..reference import step_fp32
from ..step import Noise, Step, Update
from .library import Library

NUMEL = 77
"""Elements: more than one vector of any instruction set, and an end that does not fill one."""


def first_difference(lib: Library) -> str | None:
    """The first strategy and tensor whose words differ after two steps; None if there is none."""
    from roundoff.optim.strategies import STRATEGIES

    from .run import step_with

    for strategy in STRATEGIES.values():
        for dtype in strategy.dtypes:
            results = []
            for compiled in (False, True):
                update = _example(strategy.name, dtype)
                for _ in range(2):
                    step_with(lib, [update]) if compiled else step_fp32([update])
                results.append({"the weight": update.param, **update.state})
            for name, wanted in results[0].items():
                if not torch.equal(_bits(wanted), _bits(results[1][name])):
                    return f"{name} of strategy {strategy.name!r} in {dtype}"
    return None


def _example(strategy: str, dtype: torch.dtype) -> Update:
    from roundoff.optim.strategies import strategy_for

    plan = strategy_for(strategy, dtype)
    i = torch.arange(NUMEL, dtype=torch.float32)
    param, grad = torch.cos(i).to(dtype), (torch.sin(3 * i) * 1e-2).to(dtype)
    state = {tensor.name: torch.zeros(NUMEL, dtype=tensor.dtype_for(dtype)) for tensor in plan.state}
    if "master" in state:
        state["master"].copy_(param)
    noise = Noise(0x123456789ABCDEF0, 5) if strategy == "stochastic" else None
    return Update(param, grad, state, plan, Step(3, 1e-2, 0.9, 0.999, 1e-8, 0.1), noise=noise)


def _bits(tensor: Tensor) -> Tensor:
    return tensor.view(torch.int16 if tensor.element_size() == 2 else torch.int32)
