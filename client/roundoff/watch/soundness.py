"""Whether what was done on copies is what was really done: the checks without which no replay is believed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from roundoff.numerics import format_of

from .clone import Path, tensors_in
from .statistics import CHUNK
from .stored import gap_exponent
from .words import sampled_words

INEXACT = 1 / 8
"""By so much of itself an update may differ where its arithmetic is rounded at every operation."""

MOST = 0.9
"""Share of the telling elements that has to agree."""


def sampled_step(word: Tensor, state: Mapping[Any, Any]) -> dict[Path, Tensor]:
    """A few words of a parameter and of every plain tensor of its state: what a step leaves, by place."""
    sampled: dict[Path, Tensor] = {(): sampled_words(word)}
    for path, tensor in tensors_in(state):
        if type(tensor) is Tensor and not tensor.is_complex() and tensor.layout == torch.strided:
            sampled[path] = sampled_words(tensor)
    return sampled


def numbers_of(optimizer: Optimizer, group: Mapping[str, Any]) -> dict[str, float]:
    """Floating-point numbers that a class keeps in a group or in itself, for all parameters together, by name."""
    numbers = {name: value for name, value in vars(optimizer).items() if _is_number(value)}
    numbers.update({name: value for name, value in group.items() if _is_number(value)})
    return {name: float(value) for name, value in numbers.items() if not math.isnan(float(value))}


def agrees(word: Tensor, after: Tensor, applied: Tensor | None, u: Tensor, *, at_random: bool) -> bool | None:
    """Whether an update in wide numbers is that of a step in the real ones; None where rounding hides it.

    Words before and after a step on a copy, what it changed of everything stored (None: the words are all), and u,
    all in one shape. Where a word moves or u is a spacing or more, one is the other but for rounding. Waits for the
    device.
    """
    form = format_of(word.dtype)
    telling = torch.zeros((), dtype=torch.int64, device=word.device)
    wrong = torch.zeros((), dtype=torch.int64, device=word.device)
    flat = [x.detach().reshape(-1) for x in (word, after, u)]
    flat_applied = None if applied is None else applied.reshape(-1)
    # Where a whole matrix is worked on in few bits, what is small in it is as inexact as what is large.
    usual = INEXACT * flat[2].to(torch.float64).nan_to_num(0.0, 0.0, 0.0).square().mean().sqrt()
    for start in range(0, flat[0].numel(), CHUNK):
        part = slice(start, start + CHUNK)
        w, new, step = (x[part].to(torch.float64) for x in flat)
        seen = new - w
        a = seen if flat_applied is None else flat_applied[part]
        larger = torch.maximum(w.abs(), new.abs()).to(torch.float32)
        spacing = torch.exp2(gap_exponent(larger, torch.ones_like(larger), form).to(torch.float64))
        tells = ((seen != 0) | (step.abs() >= spacing) | ~step.isfinite()) & new.isfinite()
        allowed = spacing * (1.1 if at_random else 0.6) + (step.abs() * INEXACT).clamp_min(usual)
        opposite = (a * step <= 0) & ((a - step).abs() > usual)
        telling += torch.count_nonzero(tells)
        same = ((a - step).abs() <= allowed) & ~opposite
        wrong += torch.count_nonzero(tells & ~same)
    counts = torch.stack((telling, wrong)).tolist()
    return None if not counts[0] else counts[1] <= (1 - MOST) * counts[0]


def alike(u: Tensor, other: Tensor) -> bool:
    """Whether two intended updates are one but for what is done in few bits on the way; waits for the device.

    Muon's iteration runs in bfloat16 whatever it is given, and magnifies the difference of its inputs.
    """
    difference = (u.to(torch.float64) - other.to(torch.float64)).norm()
    return bool(difference <= 0.25 * u.to(torch.float64).norm())


def explains(before: Tensor, after: Tensor, u: Tensor) -> Tensor:
    """Whether u is what the real step was about, 0-dim: nearly every word is where u leads, or beside it.

    Rounding in any direction moves a word by less than a spacing from w + u; what a second word has gathered moves
    it by half a spacing more.
    """
    form = format_of(before.dtype)
    good = torch.zeros((), dtype=torch.float64, device=before.device)
    flat = [x.detach().reshape(-1) for x in (before, after, u)]
    for start in range(0, flat[0].numel(), CHUNK):
        part = slice(start, start + CHUNK)
        w, new, step = (x[part].to(torch.float64) for x in flat)
        larger = torch.maximum(w.abs(), new.abs()).to(torch.float32)
        spacing = torch.exp2(gap_exponent(larger, torch.ones_like(larger), form).to(torch.float64))
        allowed = 1.5 * spacing + step.abs() * INEXACT
        good += torch.count_nonzero(((new - w - step).abs() <= allowed) | ~new.isfinite())
    return good >= MOST * flat[0].numel()


def together(flags: Sequence[Tensor]) -> list[bool]:
    """0-dim flags as truth values, with one wait for a device, not one a flag."""
    if not flags:
        return []
    home = flags[0].device
    answers: list[bool] = torch.stack([flag.to(home) for flag in flags]).tolist()
    return answers


def _is_number(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.numel() == 1 and value.is_floating_point() and value.device.type == "cpu"
    return isinstance(value, float)
