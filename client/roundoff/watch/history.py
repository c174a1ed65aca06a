"""What has been seen so far, in constant memory: one track per layer and one for the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace

from roundoff.delivery.sample import Sample
from roundoff.metrics import (
    ROW,
    WARMUP_STEPS,
    State,
    Totals,
    Track,
    Verdict,
    descent_efficiency,
    lost_fraction,
    run_verdict,
)
from roundoff.wire import Layer


@dataclass(frozen=True, slots=True)
class LayerLine:
    """One layer as it stands: verdict and figures over its window, None where undefined."""

    name: str
    state: State | None
    lost_fraction: float | None
    descent_efficiency: float | None


class History:
    """Follows the samples of a run for the verdict in the terminal.

    The newest sample is read one sample later, when the device has long finished it, so that taking one
    does not wait.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self._groups: list[int] = []
        self._used_groups: set[int] = set()
        self.samples = 0
        self.last_step: int | None = None
        self._lr: dict[int, float] = {}
        self._model = Track()
        self._layers: list[Track] = []
        self._states: list[State | None] = []
        self._changed = False
        self._waiting: Sample | None = None
        self.newest: Sample | None = None
        """The last sample taken with histograms; it may still be on the device."""

    def extend(self, layers: Sequence[Layer]) -> None:
        """Follow these layers as well: theirs are the next numbers."""
        self.names += [layer.name for layer in layers]
        self._groups += [layer.group for layer in layers]
        self._used_groups.update(layer.group for layer in layers)
        self._layers += [Track() for _ in layers]
        self._states += [None for _ in layers]

    def take(self, sample: Sample) -> None:
        """Take a sample; the one before it is read now."""
        self._read()
        self._waiting = sample
        if sample.headroom is not None:
            self.newest = sample

    def has_changed(self) -> bool:
        """Whether a verdict became another one in the samples that were read since this was last asked."""
        changed, self._changed = self._changed, False
        return changed

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

    def verdict(self) -> Verdict:
        """The verdict on the run so far."""
        lines = self.lines()
        stalling = [line.name for line in lines if line.state == "stalling"]
        broken = [line.name for line in lines if line.state == "broken"]
        state = self._model.state(max(self._lr.values(), default=None))
        return run_verdict(state, self.window, stalling, broken, len(self.names))

    def _line(self, index: int) -> LayerLine:
        track = self._layers[index]
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
        self._lr = {
            setting.group: setting.lr for setting in sample.groups if setting.group in self._used_groups
        }
        if sample.step < WARMUP_STEPS:
            return
        rows = sample.sums.tolist()
        for index, row in zip(sample.layers, rows, strict=True):
            self._layers[index].add(_named(row))
        self._model.add(_named([sum(column) for column in zip(*rows, strict=True)]))
        states = [self._state(index) for index in range(len(self.names))]
        # The first verdict of a layer is news, not a change.
        self._changed |= any(
            old is not None and new != old for old, new in zip(self._states, states, strict=True)
        )
        self._states = states

    def _state(self, index: int) -> State | None:
        return self._layers[index].state(self._lr.get(self._groups[index]))


def _named(row: Sequence[float]) -> SimpleNamespace:
    return SimpleNamespace(**dict(zip(ROW, row, strict=True)))


def _or_last(value: float | None) -> float:
    return float("inf") if value is None else value
