"""One sample out of the meters of one step: rows stacked on the device, nothing waited for."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from functools import lru_cache
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from roundoff.delivery.sample import GroupSetting, Sample
from roundoff.metrics import ROW

from .layers import Layers
from .statistics import Meter
from .terms import beta2_of
from .words import sampled_words

_FROZEN, _FROZEN_OF = ROW.index("frozen"), ROW.index("frozen_of")


def sample_of(
    step: int,
    layers: Layers,
    meters: Mapping[Tensor, Meter],
    settings: Sequence[GroupSetting],
    *,
    stepped: Set[Tensor],
    headroom: bool,
) -> Sample | None:
    """The sample of an optimizer step that was measured into `meters`, with histograms or without; None for none.

    A watched parameter that is not among the `stepped` has attempted nothing; one that is and has no meter could not
    be measured, and has no row. Raises what went wrong in a meter.
    """
    rows, bins, numbers, parts, starts = [], [], [], [], []
    for param, watched in layers.watched.items():
        meter = meters.get(param)
        if meter is None and param in stepped:
            continue
        part = watched.part
        if meter is None:
            meter = Meter(part.device)
            meter.add(numel=part.numel())
        elif meter.error is not None:
            raise meter.error
        rows.append(meter.row())
        parts.append(part)
        starts.append(watched.start)
        numbers.append(watched.number)
        if headroom:
            bins.append(meter.bins.flatten())
    if not meters or not rows:
        return None
    sums = _at_home(rows)
    sums[:, _FROZEN] = _unmoved(parts, starts).to(sums)
    sums[:, _FROZEN_OF] = _limits(tuple(start.numel() for start in starts), sums.device).diff().to(sums)
    return Sample(step, numbers, sums, _at_home(bins) if headroom else None, settings)


def _unmoved(parts: Sequence[Tensor], starts: Sequence[Tensor]) -> Tensor:
    """(tensors,) float64 on the first one's device: how many sampled words of each are what they were at the start."""
    home = starts[0].device
    same = [sampled_words(part) == start for part, start in zip(parts, starts, strict=True)]
    together = torch.cat([one.to(home, non_blocking=True) for one in same]).to(torch.float64).cumsum(0)
    limits = _limits(tuple(start.numel() for start in starts), home)
    return torch.cat((together.new_zeros(1), together))[limits].diff()


@lru_cache(maxsize=16)
def _limits(lengths: tuple[int, ...], device: torch.device) -> Tensor:
    """Where each of several pieces begins, and where the last one ends; kept, as a copy to a device is waited for."""
    return torch.tensor([0, *accumulate(lengths)], device=device)


def _at_home(rows: Sequence[Tensor]) -> Tensor:
    home = rows[0].device
    return torch.stack([row.to(home, non_blocking=True) for row in rows])


def settings_of(optimizer: Optimizer) -> list[GroupSetting]:
    """What its groups are set to now; NaN where one has no such setting or finds its own."""
    return [
        GroupSetting(
            number,
            _number(group.get("lr")),
            _number(group.get("weight_decay", 0.0)),
            _number(beta2_of(group)),
        )
        for number, group in enumerate(optimizer.param_groups)
    ]


def _number(value: Any) -> float:
    """A setting as a float; NaN where an optimizer has none or finds its own."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan
