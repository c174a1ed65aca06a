"""Pack an update into the structure that source/block.h declares, if the C code takes it."""

from __future__ import annotations

import math
import struct
from typing import Any

import torch
from torch import Tensor

from roundoff.numerics import format_of

from ..step import Update

PACKED = struct.Struct("=9Qq4i9f2I4xQd")
"""struct job: pointers, size, kinds, scalars."""

JOB_SIZE = PACKED.size

_FORMATS = {torch.bfloat16: 0, torch.float16: 1, torch.float32: 2}
_WEIGHTS = {
    "none": 0,
    "light": 1,
    "plus": 1,
    "kahan": 2,
    "stochastic": 3,
    "exact": 4,
    "fp32-state": 0,
    "fp32-master": 5,
}
_SECONDS = {"plus": 1, "exact": 2, "fp32-state": 3, "fp32-master": 3}
_SECOND_WORDS = ("lo", "remainder")
_V_WORDS = ("exp_avg_sq_lo", "exp_avg_sq_remainder")


def tensors_of(update: Update, *, has_float16: bool) -> list[Tensor | None] | None:
    """param, m, v, lo, v_lo, master and grad as the C code reads them; None if it does not take this update."""
    param, grad, state, step = update.param, update.grad, update.state, update.step
    dtype = param.dtype
    if param.device.type != "cpu" or dtype not in _FORMATS or grad.dtype != dtype:
        return None
    if step.amsgrad or step.found_inf is not None or (dtype == torch.float16 and not has_float16):
        return None
    if update.strategy.name not in _WEIGHTS or (update.noise is not None and _no_noise(update)):
        return None
    found: dict[str, Tensor] = {}
    for tensor in update.strategy.state:
        kept = state[tensor.name]
        if kept.dtype != tensor.dtype_for(dtype):
            return None
        found[tensor.name] = kept
    if not _same_layout(param, found):
        return None
    if grad.stride() != param.stride():
        if not param.is_contiguous():
            return None
        grad = grad.contiguous()
    return [
        param,
        found["exp_avg"],
        found["exp_avg_sq"],
        next((found[name] for name in _SECOND_WORDS if name in found), None),
        next((found[name] for name in _V_WORDS if name in found), None),
        found.get("master"),
        grad,
    ]


def _no_noise(update: Update) -> bool:
    """Whether the random bits of an update are beyond the C code, which counts elements in the order of memory."""
    counted = update.noise is not None and update.noise.index is None and update.param.is_contiguous()
    return not counted or update.param.dtype != torch.bfloat16


def _same_layout(param: Tensor, state: dict[str, Tensor]) -> bool:
    """Whether every tensor is dense in one order of memory, so that they can be walked side by side."""
    if param.is_contiguous():
        return all(tensor.is_contiguous() and tensor.shape == param.shape for tensor in state.values())
    if any(tensor.stride() != param.stride() or tensor.shape != param.shape for tensor in state.values()):
        return False
    expected = 1
    for size, stride in sorted(zip(param.shape, param.stride(), strict=True), key=lambda pair: pair[1]):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def pack(buffer: Any, at: int, update: Update, tensors: list[Tensor | None], row: int, bins: int) -> None:
    """Write one job into `buffer`; `row` and `bins` are addresses of float64 to add to, 0 to measure nothing."""
    step, name = update.step, update.strategy.name
    second = _SECONDS.get(name, 0) if update.param.dtype != torch.float32 else 0
    scale = 1.0 if step.gradient_scale is None else float(step.gradient_scale)
    noise = update.noise
    key = 0 if noise is None else noise.key
    exact_v = second in (2, 3) or update.param.dtype == torch.float32
    smallest = format_of(torch.float32 if exact_v else update.param.dtype).smallest
    PACKED.pack_into(
        buffer,
        at,
        *(0 if tensor is None else tensor.data_ptr() for tensor in tensors),
        row,
        bins,
        update.param.numel(),
        _FORMATS[update.param.dtype],
        _WEIGHTS[name],
        second,
        int(bool(step.weight_decay)),
        -scale if step.maximize else scale,
        step.beta1,
        1.0 - step.beta1,
        step.beta2,
        1.0 - step.beta2,
        _single(step.step_size),
        _single(step.root_scale),
        _single(step.eps),
        _single(step.decay),
        key & 0xFFFFFFFF,
        key >> 32,
        0 if noise is None else noise.first,
        smallest / 2 / (1.0 - step.beta2),
    )


def _single(value: float | Tensor) -> float:
    """A scalar that fits binary32; beyond its range ±infinity, as PyTorch makes of it."""
    number = float(value)
    return (
        number
        if abs(number) < 3.4028235677973366e38 or math.isnan(number)
        else math.copysign(math.inf, number)
    )
