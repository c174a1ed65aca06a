"""When the layers of a watched run will lose their updates, from the newest sample and the schedule (numerics §6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from roundoff.delivery.sample import Sample
from roundoff.metrics import HEADROOM_BINS, Sums
from roundoff.metrics.cures import cure
from roundoff.metrics.forecast import LOST_LEVELS, Crossing, Part, crossings, storage_of
from roundoff.wire import Layer

if TYPE_CHECKING:
    from torch.optim.lr_scheduler import LRScheduler

Schedule = Mapping[int, float]
"""Learning rate by optimizer step."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """A forecast made from the sample at `step`. `layers` holds every layer that it can be made for, by name.

    `change` says what would have to change for it not to come true, "" where no level is crossed.
    """

    step: int
    model: tuple[Crossing, ...]
    layers: Mapping[str, tuple[Crossing, ...]]
    change: str = ""

    def __str__(self) -> str:
        lines = [_sentence("the model", self.model)]
        lines += [_sentence(name, found) for name, found in self.layers.items() if found]
        return "\n".join([*lines, *([self.change] if self.change else [])])


def outlook(
    sample: Sample,
    layers: Sequence[Layer],
    schedules: Mapping[int, Schedule],
    levels: Sequence[float] = LOST_LEVELS,
) -> Outlook:
    """The forecast from one sample with histograms; `schedules` by parameter group, `levels` of the lost fraction.

    Raises ValueError for a sample without histograms, and where its learning rate was 0.
    """
    if sample.headroom is None:
        raise ValueError("this sample has no histograms of headroom to forecast from")
    rates = {setting.group: setting.lr for setting in sample.groups}
    known = {layer.index: layer for layer in layers}
    parts: dict[str, Part] = {}
    for index, bins in zip(sample.layers, sample.headroom.tolist(), strict=True):
        layer = known[index]
        storage = storage_of(layer.strategy)
        if storage is None or not rates[layer.group] > 0:
            continue
        sums = Sums(
            headroom=tuple(int(count) for count in bins[:HEADROOM_BINS]),
            headroom_energy=tuple(bins[HEADROOM_BINS:]),
        )
        parts[layer.name] = Part(sums, rates[layer.group], schedules[layer.group], storage)
    if parts or all(storage_of(known[index].strategy) is None for index in sample.layers):
        found = {name: tuple(crossings([part], levels)) for name, part in parts.items()}
        model = tuple(crossings(list(parts.values()), levels))
        crossing = [layer.strategy for layer in layers if found.get(layer.name)]
        return Outlook(sample.step, model, found, _change(model, list(parts.values()), crossing))
    raise ValueError(
        "the newest sample was taken at a learning rate of 0, where nothing can be forecast from"
    )


def schedules_of(
    schedule: Schedule | LRScheduler, groups: Sequence[int], first: int, steps: int | None
) -> dict[int, Schedule]:
    """Learning rates by group and step, from a table for all groups or from a scheduler and a number of steps."""
    if isinstance(schedule, Mapping):
        return dict.fromkeys(groups, schedule)
    from .schedule import learning_rates

    if steps is None:
        raise ValueError("say how many steps of the scheduler to look at: forecast(scheduler, steps=…)")
    found = learning_rates(schedule, steps)
    return {group: {first + n: rates[group] for n, rates in enumerate(found)} for group in groups}


def _change(model: Sequence[Crossing], parts: Sequence[Part], strategies: Sequence[str]) -> str:
    """What to do about the first level that the model crosses, or about the layers that cross one; "" for none."""
    if not strategies:
        return ""
    ways = []
    one_schedule = all(part.schedule == parts[0].schedule for part in parts)
    if model and one_schedule and model[0].step > min(parts[0].schedule):
        ways.append(f"a learning rate that stays above {model[0].lr:.2g}, which step {model[0].step:,} has")
    if (found := cure(strategies)) is not None:
        ways.append(f"{found.code}, {found.price}")
    return f"What would have to change: {', or '.join(ways)}." if ways else ""


def _sentence(name: str, found: Sequence[Crossing]) -> str:
    if not found:
        return f"{name}: no level is crossed on this schedule"
    said = [
        f"{100 * one.level:.0f} % of updates lost from step {one.step:,}"
        if one.figure == "lost_fraction"
        else f"descent efficiency below {one.level:g} from step {one.step:,}"
        for one in found
    ]
    return f"{name}: {', '.join(said)}"
