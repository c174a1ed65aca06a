"""One sample out of the meters of one step: rows stacked on the device, nothing waited for."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
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
    rows, bins, numbers = [], [], []
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
        row = meter.row()  # not the meter, which another watch may read as well
        row[_FROZEN] = torch.count_nonzero(sampled_words(part) == watched.start)
        row[_FROZEN_OF] = watched.start.numel()
        rows.append(row)
        numbers.append(watched.number)
        if headroom:
            bins.append(meter.bins.flatten())
    if not meters or not rows:
        return None
    return Sample(step, numbers, _at_home(rows), _at_home(bins) if headroom else None, settings)


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
