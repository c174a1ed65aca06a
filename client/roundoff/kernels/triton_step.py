"""The GPU backend: one pass over a tensor, one launch per tensor, no wait for the device.

Where it does not apply (a tensor that is not on a GPU, not contiguous, or of a dtype that the kernel does not
know), the reference takes the step. With `TRITON_INTERPRET=1` in the environment before Triton is loaded,
Triton interprets the kernel, and it runs on the CPU: slowly, for tests.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from roundoff.metrics import HEADROOM_BINS, ROW
from roundoff.numerics import format_of

from .reference import step_fp32
from .step import Noise, Step, Update

if TYPE_CHECKING:
    from roundoff.watch.statistics import Meter

BLOCK = 1024
"""Elements per program; with statistics one row of partial sums each."""

FORMS = {torch.bfloat16: "bfloat16", torch.float16: "float16", torch.float32: "float32"}
GRADIENTS = (*FORMS, torch.float64)

_READABLE = "cpu"
"""The kind of device whose tensors are read without waiting."""


def available() -> str | None:
    """None where this backend can be used, else why not."""
    if find_spec("triton") is None:
        return "the package triton is not installed"
    if not _interpreted() and not torch.cuda.is_available():
        return "there is no CUDA device"
    return None


def step_triton(updates: Sequence[Update]) -> None:
    """AdamW steps with binary32 arithmetic in one Triton kernel; see `kernels.step.Kernel`."""
    scalars: dict[tuple[int, torch.device], _Scalars] = {}
    for update in updates:
        if not _fits(update):
            step_fp32([update])
        elif update.param.numel():
            key = id(update.step), update.param.device
            if key not in scalars:
                scalars[key] = _Scalars.of(update.step, update.param.device)
            _step(update, scalars[key])


def _interpreted() -> bool:
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on", "yes", "y")


def _fits(update: Update) -> bool:
    """Whether the kernel takes these tensors."""
    param, grad = update.param, update.grad
    names = [tensor.name for tensor in update.strategy.tensors(amsgrad=update.step.amsgrad)]
    kept = [param, *(update.state[name] for name in names)]
    return (
        (param.is_cuda or (_interpreted() and param.device.type == "cpu"))
        and param.dtype in FORMS
        and grad.dtype in GRADIENTS
        and grad.device == param.device
        and all(tensor.device == param.device and tensor.is_contiguous() for tensor in kept)
    )


@dataclass(frozen=True, slots=True)
class _Scalars:
    """The scalars of one step as the kernel takes them: numbers, or float32 on the device if it alone knows one.

    `values` are step_size, root_scale, eps, decay and what gradients are multiplied by.
    """

    values: tuple[float | None, ...]
    tensor: Tensor | None
    found_inf: Tensor | None

    @classmethod
    def of(cls, step: Step, device: torch.device) -> _Scalars:
        scale = 1.0 if step.gradient_scale is None else step.gradient_scale
        given = (step.step_size, step.root_scale, step.eps, step.decay, scale)
        found = step.found_inf
        if found is not None:
            found = found.to(device, torch.float32, non_blocking=True)
        numbers = [None if isinstance(x, Tensor) and x.device.type != _READABLE else float(x) for x in given]
        if None not in numbers:
            return cls(tuple(numbers), None, found)
        # A number gets to the device as a fill; a copy would wait.
        words = [
            x.to(device, torch.float32).reshape(())
            if isinstance(x, Tensor)
            else torch.full((), x, dtype=torch.float32, device=device)
            for x in given
        ]
        return cls((None,) * len(words), torch.stack(words), found)


def _step(update: Update, scalars: _Scalars) -> None:
    """Launch the kernel on one tensor, and hand its partial sums to the meter."""
    from .triton_kernel import step_kernel

    param, step = update.param, update.step
    programs = -(-param.numel() // BLOCK)
    partial = _partial_sums(update.meter, programs, param.device)
    with torch.cuda.device(param.device) if param.is_cuda else nullcontext():
        step_kernel[(programs,)](
            *_tensors(update),
            param.numel(),
            *scalars.values,
            scalars.tensor,
            *(step.beta1, 1.0 - step.beta1, step.beta2, 1.0 - step.beta2),
            scalars.found_inf,
            *_places(update.noise),
            *partial,
            _square_limit(update),
            **_choices(update),
            block=BLOCK,
            # Neither contracted to fused operations nor checked for the wrap-around that hashing is made of.
            enable_fp_fusion=False,
            sanitize_overflow=False,
        )
    # PyTorch has not seen the kernel write.
    torch.autograd.graph.increment_version(param)
    _hand_over(update.meter, *partial)


def _tensors(update: Update) -> tuple[Tensor | None, ...]:
    """What the kernel reads and writes, in its order; None where the strategy keeps none."""
    state = update.state
    names = {tensor.name for tensor in update.strategy.tensors(amsgrad=update.step.amsgrad)}

    def second(*kinds: str) -> Tensor | None:
        return next((state[name] for name in kinds if name in names), None)

    largest = state["max_exp_avg_sq"] if update.step.amsgrad else None
    return (
        update.param,
        second("lo", "remainder", "master"),
        update.grad.contiguous(),
        state["exp_avg"],
        state["exp_avg_sq"],
        second("exp_avg_sq_lo", "exp_avg_sq_remainder"),
        largest,
        second("max_exp_avg_sq_lo", "max_exp_avg_sq_remainder"),
    )


def _choices(update: Update) -> dict[str, str | bool]:
    """What the kernel is compiled for."""
    plan, step = update.strategy, update.step
    stored = {"lo": "pair", "remainder": "exact", "master": "master"}
    moments = {"exp_avg_sq_lo": "pair", "exp_avg_sq_remainder": "exact"}
    rule = "kahan" if plan.name == "kahan" else "nearest" if update.noise is None else "chance"
    return {
        "form": FORMS[update.param.dtype],
        "state": FORMS[update.state["exp_avg"].dtype],
        "stored": next((kind for name, kind in stored.items() if plan.keeps(name)), "plain"),
        "rule": rule,
        "moment": next((kind for name, kind in moments.items() if plan.keeps(name)), "plain"),
        "scaled": step.gradient_scale is not None,
        "maximize": step.maximize,
        "decays": bool(step.weight_decay),
    }


def _places(noise: Noise | None) -> tuple[Tensor | None, int, int, int]:
    """Where random bits come from: indices if there are any, the key in two signed words, the first index."""
    if noise is None:
        return None, 0, 0, 0
    return noise.index, _signed(noise.key), _signed(noise.key >> 32), noise.first


def _signed(word: int) -> int:
    """The low 32 bits as a signed number, so that Triton takes every key for the same type."""
    return ((word & 0xFFFFFFFF) ^ (1 << 31)) - (1 << 31)


def _square_limit(update: Update) -> float:
    """The largest g² whose share (1 − β2)·g² rounds to 0 in what v is stored in."""
    exact = update.strategy.keeps("exp_avg_sq_remainder")
    form = format_of(torch.float32 if exact else update.state["exp_avg_sq"].dtype)
    beta2 = update.step.beta2
    return form.smallest / 2 / (1.0 - beta2) if beta2 < 1 else math.inf


def _partial_sums(
    meter: Meter | None, programs: int, device: torch.device
) -> tuple[Tensor | None, Tensor | None]:
    """Room for a row and a histogram per program, if they are to be measured and there is memory for them."""
    if meter is None or meter.error is not None:
        return None, None
    try:
        rows = torch.zeros(programs, len(ROW), dtype=torch.float64, device=device)
        if not meter.headroom:
            return rows, None
        return rows, torch.empty(programs, 2, HEADROOM_BINS, dtype=torch.float64, device=device)
    except RuntimeError as error:
        meter.error = error
        return None, None


def _hand_over(meter: Meter | None, rows: Tensor | None, bins: Tensor | None) -> None:
    """Give the meter the sums over all programs. Never raises into the step."""
    if meter is None or rows is None:
        return
    try:
        meter.take(rows.sum(0), None if bins is None else bins.sum(0))
    except Exception as error:  # noqa: BLE001 (a half-finished step would be worse than an unmeasured one)
        meter.error = error
