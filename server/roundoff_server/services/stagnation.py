"""The rule *precision stagnation* as a pure state machine, one scope at a time, and its words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from roundoff.metrics import State, Totals, Track, descent_efficiency, lost_fraction, name_some, percent

RULE = "precision-stagnation"

FOR_SAMPLES = 5
"""Consecutive *stalling* samples before a scope fires."""

CLEAR_EFFICIENCY = 0.7
"""A firing scope clears when its window stores more than this share of its descent."""


@dataclass(slots=True)
class Watched:
    """One scope: its track, the last step it has read, and how long it has been stalling."""

    layer: int
    track: Track = field(default_factory=Track)
    last_step: int = -1
    health: State | None = None
    streak: int = 0
    since_step: int | None = None
    firing: bool = False

    def advance(self, step: int, row: object, lr: float | None) -> None:
        """Read one sample after the warm-up, steps ascending."""
        self.last_step = step
        self.track.add(row)
        self.health = self.track.state(lr)
        if self.firing:
            efficiency = self.efficiency
            if efficiency is not None and efficiency > CLEAR_EFFICIENCY:
                self.firing, self.streak, self.since_step = False, 0, None
        elif self.health == "stalling":
            if not self.streak:
                self.since_step = step
            self.streak += 1
            self.firing = self.streak >= FOR_SAMPLES
        else:
            self.streak, self.since_step = 0, None

    @classmethod
    def of_stored(cls, row: Mapping[str, Any]) -> Watched:
        """From a row of `scopes`, its track as `Track.to_dict` gives it."""
        return cls(
            row["layer"],
            Track.from_dict(row["track"]),
            row["last_step"],
            row["health"],
            row["streak"],
            row["since_step"],
            bool(row["firing"]),
        )

    @property
    def pending(self) -> bool:
        """Stalling, but not yet for long enough."""
        return self.streak > 0 and not self.firing

    @property
    def efficiency(self) -> float | None:
        """Descent efficiency over the window, None where undefined."""
        value: float | None = descent_efficiency(self.track.window)
        return value

    @property
    def lost(self) -> float | None:
        """Lost fraction over the window, None where undefined."""
        value: float | None = lost_fraction(self.track.window)
        return value

    @property
    def badness(self) -> tuple[float, float, int]:
        """Sorts the worst scope first."""
        efficiency = self.efficiency
        return (1.0 if efficiency is None else efficiency, -(self.lost or 0.0), self.layer)


def headline(
    model: Watched | None,
    model_stalls: bool,
    layers: Sequence[Watched],
    named: Sequence[str],
    total: int,
    since: int,
) -> str:
    """What stalls, since when, in numbers. `layers` are the affected ones, `named` the worst of their names."""
    rest = [*named, *[""] * (len(layers) - len(named))]
    where = f"{len(layers)} of {total} layers: {name_some(rest)}" if layers else ""
    if model_stalls and model is not None:
        # The first layers may have stalled long before the whole.
        began = since if model.since_step is None else model.since_step
        text = (
            f"Since step {began:,} only {percent(model.efficiency)} of the intended descent is stored; "
            f"{percent(model.lost)} of the element updates are lost to rounding."
        )
        earlier = f", the first of them since step {since:,}" if since < began else ""
        return f"{text} Stalling{earlier}: {where}." if where else text
    window = sum((scope.track.window for scope in layers), Totals())
    text = (
        f"Since step {since:,} rounding takes {percent(lost_fraction(window))} of the element updates in {where}. "
        f"They store {percent(descent_efficiency(window))} of their descent"
    )
    whole = None if model is None else model.efficiency
    return f"{text}." if whole is None else f"{text}; the model as a whole stores {percent(whole)}."
