"""Measure in C a step that somebody else took: the words before and after it, and the intended update."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from roundoff.numerics import format_of
from roundoff.watch.statistics import Meter

from .jobs import FORMATS, PACKED
from .library import library, unavailable
from .run import rows_and_bins, threads

_PLAIN, _PAIR, _MASTER = 0, 1, 5
_ONE_WORD, _WIDE, _UNSEEN = 0, 3, 4
"""enum weight and enum second of block.h."""

TAKEN = struct.Struct("=6Q")
"""struct taken."""


def measure_words(
    meter: Meter,
    before: Mapping[str, Tensor],
    after: Mapping[str, Tensor],
    intended: Tensor,
    *,
    decay: float | None = None,
    grad: Tensor | None = None,
    beta2: float = 0.0,
) -> bool:
    """Add to `meter` what `Meter.update` and `Meter.moment` would; False, and nothing is added, if C cannot.

    Args:
        before, after: flat words named `param` and, if kept, `lo` or `master`; and `exp_avg_sq`, where the second
            moment is to be measured with `grad` (the parameter's dtype) and `beta2`.
        intended: u, float32 or float64, flat; it is measured as float32.
        decay: −lr·wd, where the optimizer takes that part of the weight away by itself.
    """
    kinds = _kinds(before, beta2)
    tensors = [*before.values(), *after.values(), *([] if grad is None else [grad])]
    if kinds is None or unavailable() is not None or not _side_by_side(before["param"], tensors, grad):
        return False
    u = intended.to(torch.float32).contiguous()
    if intended.dtype != torch.float32 and torch.count_nonzero(u) != torch.count_nonzero(intended):
        return False  # something is below binary32's range, and no zero
    rows, bins = rows_and_bins(1, headroom=meter.headroom)
    words = ("param", "m", "exp_avg_sq", "lo", "v_lo", "master")
    job = PACKED.pack(
        *(_address(after.get(name)) for name in words),
        _address(grad if "exp_avg_sq" in before else None),
        _address(rows),
        _address(bins),
        u.numel(),
        *kinds,
        int(decay is not None),
        *_scalars(decay or 0.0, beta2, before.get("exp_avg_sq")),
    )
    taken = TAKEN.pack(
        *(_address(before.get(name)) for name in ("param", "lo", "master", "exp_avg_sq", "v_lo")), _address(u)
    )
    library().measure(job, taken, 1, threads(), bins=bins is not None)
    meter.take(rows[0], None if bins is None else bins[0])
    return True


def _kinds(before: Mapping[str, Tensor], beta2: float) -> tuple[int, int, int] | None:
    """Numbers of the format, of how the weight and of how the second moment is kept; None for what C does not know."""
    dtype = before["param"].dtype
    form = FORMATS.get(dtype)
    if form is None or (dtype == torch.float16 and unavailable() is None and not library().has_float16):
        return None
    weight = _PLAIN
    if "lo" in before:
        if before["lo"].dtype != dtype or dtype == torch.float32:
            return None
        weight = _PAIR
    elif "master" in before:
        if before["master"].dtype != torch.float32 or dtype == torch.float32:
            return None
        weight = _MASTER
    if "exp_avg_sq" not in before:
        return form, weight, _UNSEEN
    if beta2 >= 1:
        return None
    kept = before["exp_avg_sq"].dtype
    return (form, weight, _ONE_WORD if kept == dtype else _WIDE) if kept in (dtype, torch.float32) else None


def _side_by_side(param: Tensor, tensors: Iterable[Tensor], grad: Tensor | None) -> bool:
    """Whether all are flat, of one length, dense and on the CPU, and the gradient is of the parameter's dtype."""
    alike = all(
        x.device.type == "cpu" and x.dim() == 1 and x.is_contiguous() and x.numel() == param.numel()
        for x in tensors
    )
    return alike and (grad is None or grad.dtype == param.dtype)


def _scalars(decay: float, beta2: float, v: Tensor | None) -> tuple[float, ...]:
    """The fields of block.h's scalars that a measurement reads; the others are 0."""
    limit = 0.0 if v is None else format_of(v.dtype).smallest / 2 / (1.0 - beta2)
    return (1.0, 0.0, 0.0, beta2, 1.0 - beta2, 0.0, 0.0, 0.0, decay, 0, 0, 0, limit)


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()
