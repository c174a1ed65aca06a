"""Step many tensors in one call of the compiled library."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence

import torch
from torch import Tensor

from roundoff.metrics import HEADROOM_BINS, ROW

from ..reference import step_fp32
from ..step import Update
from .jobs import JOB_SIZE, pack, tensors_of
from .library import Library, library, unavailable

_forked = False


def _after_fork() -> None:
    global _forked
    _forked = True


if hasattr(os, "register_at_fork"):
    # OpenMP's threads do not live on in a forked child, and starting a parallel region there hangs.
    os.register_at_fork(after_in_child=_after_fork)


def threads() -> int:
    """How many threads a step may use."""
    return 1 if _forked else torch.get_num_threads()


def rows_and_bins(total: int, *, headroom: bool) -> tuple[Tensor, Tensor | None]:
    """Zeros for the sums of `total` tensors to be added to, in the order of `metrics.ROW`, and for histograms."""
    rows = torch.zeros(total, len(ROW), dtype=torch.float64)
    return rows, torch.zeros(total, 2, HEADROOM_BINS, dtype=torch.float64) if headroom else None


def step_cpu(updates: Sequence[Update]) -> None:
    """AdamW steps in C with binary32 arithmetic; see `kernels.step.Kernel`."""
    step_with(library(), updates)


def step_with(lib: Library, updates: Sequence[Update]) -> None:
    """The same with a library of one's choice. What it does not take is stepped by the reference."""
    mine: list[tuple[Update, list[Tensor | None]]] = []
    others: list[Update] = []
    for update in updates:
        tensors = tensors_of(update, has_float16=lib.has_float16)
        if tensors is None:
            others.append(update)
        else:
            mine.append((update, tensors))
    if mine:
        _step(lib, mine)
    if others:
        step_fp32(others)


def words_in_memory(param: Tensor) -> bytes | None:
    """A few words of a parameter as bytes; None where the library cannot look at them in place."""
    if param.device.type != "cpu" or not param.is_contiguous() or param.element_size() not in (2, 4):
        return None
    if unavailable() is not None:
        return None
    return library().sample(param.data_ptr(), param.element_size(), param.numel())


def _step(lib: Library, work: list[tuple[Update, list[Tensor | None]]]) -> None:
    meters = [update.meter for update, _ in work]
    measured = any(meter is not None for meter in meters)
    headroom = any(meter is not None and meter.headroom for meter in meters)
    rows, bins = rows_and_bins(len(work) if measured else 0, headroom=headroom)
    jobs = (ctypes.c_char * (JOB_SIZE * len(work)))()
    for number, (update, tensors) in enumerate(work):
        row = rows[number].data_ptr() if update.meter is not None else 0
        pack(
            jobs,
            number * JOB_SIZE,
            update,
            tensors,
            row,
            bins[number].data_ptr() if bins is not None and row else 0,
        )
    lib.step(ctypes.addressof(jobs), len(work), threads(), bins=headroom)
    for number, meter in enumerate(meters):
        if meter is not None:
            meter.take(rows[number], None if bins is None else bins[number])
