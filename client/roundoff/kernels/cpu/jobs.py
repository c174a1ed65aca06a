"""Pack an update into the structure that source/block.h declares, if the C code takes it."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from roundoff.numerics import format_of

from ..step import Step, Update

if TYPE_CHECKING:
    from roundoff.optim.strategies import Strategy

SCALARS = "9f2I4xQd"
"""struct scalars."""

PACKED = struct.Struct(f"=9Qq4i{SCALARS}")
"""struct job: pointers, size, kinds, scalars."""

JOB_SIZE = PACKED.size

FORMATS = {torch.bfloat16: 0, torch.float16: 1, torch.float32: 2}
"""enum format of block.h."""

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

WORDS = (
    ("exp_avg",),
    ("exp_avg_sq",),
    ("lo", "remainder"),
    ("exp_avg_sq_lo", "exp_avg_sq_remainder"),
    ("master",),
)
"""The names that m, v, lo, v_lo and master of the C code have in the state."""


def tensors_of(update: Update, *, has_float16: bool) -> list[Tensor | None] | None:
    """param, m, v, lo, v_lo, master and grad as the C code reads them; None if it does not take this update."""
    param, grad, state, step = update.param, update.grad, update.state, update.step
    dtype = param.dtype
    if param.device.type != "cpu" or dtype not in FORMATS or grad.dtype != dtype:
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
    return [param, *(next((found[name] for name in names if name in found), None) for names in WORDS), grad]


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
    kinds = kinds_of(update.param, update.strategy)
    noise = update.noise
    PACKED.pack_into(
        buffer,
        at,
        *(0 if tensor is None else tensor.data_ptr() for tensor in tensors),
        row,
        bins,
        update.param.numel(),
        kinds.format,
        kinds.weight,
        kinds.second,
        int(bool(update.step.weight_decay)),
        *scalars_of(update.step, kinds.smallest, noise.key if noise else 0, noise.first if noise else 0),
    )


@dataclass(frozen=True, slots=True)
class Kinds:
    """How one tensor is stored, in the numbers of block.h; `smallest` is what v can hold, above 0."""

    format: int
    weight: int
    second: int
    smallest: float


def kinds_of(param: Tensor, strategy: Strategy) -> Kinds:
    """How a parameter is stored that `tensors_of` takes."""
    wide = param.dtype == torch.float32
    second = 0 if wide else _SECONDS.get(strategy.name, 0)
    smallest = format_of(torch.float32 if wide or second in (2, 3) else param.dtype).smallest
    return Kinds(FORMATS[param.dtype], _WEIGHTS[strategy.name], second, smallest)


def scalars_of(step: Step, smallest: float, key: int = 0, first: int = 0) -> tuple[float, ...]:
    """The fields of block.h's scalars; `key` and `first` are those of the random bits."""
    scale = 1.0 if step.gradient_scale is None else float(step.gradient_scale)
    return (
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
        first,
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
