"""What has been seen so far, in constant memory: one track per layer and one for the model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace

from roundoff.delivery.sample import Sample
from roundoff.metrics import (
    ROW,
    WARMUP_STEPS,
    Advice,
    Observed,
    State,
    Totals,
    Track,
    Verdict,
    advise,
    descent_efficiency,
    layer_verdict,
    lost_fraction,
    run_verdict,
)
from roundoff.metrics.counsel import headline
from roundoff.metrics.cures import is_judged, unmarked
from roundoff.wire import Layer

from .histograms import Histograms


@dataclass(frozen=True, slots=True)
class LayerLine:
    """One layer as it stands: verdict and figures over its window, None where undefined."""

    name: str
    state: State | None
    lost_fraction: float | None
    descent_efficiency: float | None


class History:
    """Follows the samples of a run for the verdict in the terminal and for the advice.

    The newest sample is read one sample later, when the device has long finished it, so that taking one
    does not wait.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self.layers: list[Layer] = []
        """As they were declared last."""
        self._groups: list[int] = []
        self._used_groups: set[int] = set()
        self.samples = 0
        self.last_step: int | None = None
        self._lr: dict[int, float] = {}
        self._beta2: dict[int, float] = {}
        self._model = Track()
        self._tracks: list[Track] = []
        self._states: list[State | None] = []
        self._histograms = Histograms()
        self._waiting: Sample | None = None
        self.newest: Sample | None = None
        """The last sample taken with histograms; it may still be on the device."""

    def extend(self, layers: Sequence[Layer]) -> None:
        """Follow these layers as well: theirs are the next numbers."""
        self.names += [layer.name for layer in layers]
        self.layers += layers
        self._groups += [layer.group for layer in layers]
        self._used_groups.update(layer.group for layer in layers)
        self._tracks += [Track() for _ in layers]
        self._states += [None for _ in layers]
        self._histograms.extend(len(layers))

    def declare_again(self, layers: Sequence[Layer]) -> None:
        """These are measured otherwise than before."""
        for layer in layers:
            self.layers[layer.index] = layer

    def has_changed(self) -> bool:
        """Whether a verdict became another one in the samples that were read since this was last asked."""
        states = [self._state(index) for index in range(len(self.names))]
        # The first verdict of a layer is news, not a change.
        changed = any(old is not None and new != old for old, new in zip(self._states, states, strict=True))
        self._states = states
        return changed

    def take(self, sample: Sample) -> None:
        """Take a sample; the one before it is read now."""
        self._read()
        self._waiting = sample
        if sample.headroom is not None:
            self.newest = sample

    def lines(self) -> list[LayerLine]:
        """Every layer as it stands, worst first: stalling before the rest, least efficient first."""
        self._read()
        lines = [self._line(index) for index in range(len(self.names))]
        rank: dict[State | None, int] = {"broken": 0, "stalling": 1}
        return sorted(lines, key=lambda line: (rank.get(line.state, 2), _or_last(line.descent_efficiency)))

    @property
    def window(self) -> Totals:
        """The model's sums over the present window."""
        self._read()
        return self._model.window

    @property
    def lr(self) -> float | None:
        """The highest learning rate of any group at the newest sample read; None before the first."""
        return max(self._lr.values(), default=None)

    def verdict(self) -> Verdict:
        """The verdict on the run so far."""
        lines = self.lines()
        stalling = [line.name for line in lines if line.state == "stalling"]
        broken = [line.name for line in lines if line.state == "broken"]
        state = self._model.state(self.lr)
        advice = self.advice() if stalling or state == "stalling" else None
        return run_verdict(
            state,
            self.window,
            stalling,
            broken,
            len(self.names),
            hurt=sum((self._tracks[self.names.index(name)].window for name in stalling), Totals()),
            reason=self._model.idle_reason(self.lr),
            lr=self.lr,
            remedy="" if advice is None else headline(advice),
        )

    def layer_verdict(self, name: str) -> Verdict:
        """The verdict on one layer. Raises ValueError for a name that is none."""
        self._read()
        index = self.names.index(name)
        track, lr = self._tracks[index], self._lr.get(self._groups[index])
        return layer_verdict(
            track.state(lr),
            track.window,
            strategy=unmarked(self.layers[index].strategy),
            lr=lr,
            reason=track.idle_reason(lr),
            median_norm=track.median_norm,
        )

    def observed(self) -> list[Observed]:
        """Every layer over its window, for the advice; empty before the first sample after the warm-up."""
        self._read()
        if not self._model.window.samples:
            return []
        return [
            self._observed(layer, self._tracks[layer.index].window, *self._histograms.of(layer.index))
            for layer in self.layers
        ]

    def advice(self) -> Advice | None:
        """What every strategy would have lost over the window; None where there is nothing to compare yet."""
        found = self.observed()
        return advise(found, self.last_step) if any(layer.concerned for layer in found) else None

    def _observed(
        self, layer: Layer, totals: Totals, counts: Sequence[float], energy: Sequence[float]
    ) -> Observed:
        return Observed(
            layer.name,
            layer.strategy,
            layer.dtype,
            totals,
            counts,
            energy,
            self._lr.get(layer.group),
            self._beta2.get(layer.group),
        )

    def _line(self, index: int) -> LayerLine:
        track = self._tracks[index]
        return LayerLine(
            self.names[index],
            self._state(index),
            lost_fraction(track.window),
            descent_efficiency(track.window),
        )

    def _read(self) -> None:
        sample, self._waiting = self._waiting, None
        if sample is None:
            return
        self.samples += 1
        self.last_step = sample.step
        used = [setting for setting in sample.groups if setting.group in self._used_groups]
        self._lr = {setting.group: setting.lr for setting in used}
        self._beta2 = {setting.group: setting.beta2 for setting in used if not math.isnan(setting.beta2)}
        if sample.step < WARMUP_STEPS:
            return
        rows = sample.sums.tolist()
        turned = []
        judged = [
            (index, row)
            for index, row in zip(sample.layers, rows, strict=True)
            if is_judged(self.layers[index].strategy)
        ]
        for index, row in judged:
            track = self._tracks[index]
            before = track.previous
            track.add(_named(row))
            if track.previous is not before:
                turned.append(index)
        if judged:
            self._model.add(_named([sum(column) for column in zip(*(row for _, row in judged), strict=True)]))
        self._histograms.turn(turned)
        if sample.headroom is not None:
            self._histograms.add(sample.layers, sample.headroom)

    def _state(self, index: int) -> State | None:
        return self._tracks[index].state(self._lr.get(self._groups[index]))


def _named(row: Sequence[float]) -> SimpleNamespace:
    return SimpleNamespace(**dict(zip(ROW, row, strict=True)))


def _or_last(value: float | None) -> float:
    return float("inf") if value is None else value
