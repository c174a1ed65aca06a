"""Optimizers whose step calls the step of the class that they extend: PyTorch runs the hooks of both."""

from __future__ import annotations

import sys
from types import FrameType

from torch.optim import Optimizer

_WRAPPER = Optimizer.profile_hook_step(lambda: None).__code__
"""What PyTorch puts around `step` to run the hooks; its `self` is the optimizer."""


def is_nested(optimizer: Optimizer) -> bool:
    """Whether the hook that asks was run by a step within another step of the same optimizer."""
    frame: FrameType | None = sys._getframe(1)
    found = 0
    while frame is not None and found < 2:
        if frame.f_code is _WRAPPER and frame.f_locals.get("self") is optimizer:
            found += 1
        frame = frame.f_back
    return found > 1
