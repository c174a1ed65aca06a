"""The rule's state of every scope of a run as columns, moved on by one step of all of them at a time.

`stagnation.Watched` says the same of one scope; the tests hold one against the other.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roundoff.metrics import (
    STALL_EFFICIENCY,
    STALL_EVIDENCE,
    STALL_LOST,
    Totals,
    descent_efficiency,
    lost_fraction,
)
from roundoff.metrics.verdict import IDLE_NORM, WINDOW_SAMPLES

from .binned import Floats, Ints
from .stagnation import CLEAR_EFFICIENCY, FOR_SAMPLES, Watched

REALS = ("sum_uu", "sum_ua", "expected_roundings")
NAMES = tuple(field.name for field in fields(Totals))
HEALTH = (None, "healthy", "stalling", "idle", "broken")
_HEALTHY, _STALLING, _IDLE, _BROKEN = range(1, 5)
_LEAST, _MOST = -540, 515
"""Exponents floor(log2 ‖u‖) that a finite Σu² in binary64 can have."""

Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Evidence:
    """One step's samples: which scopes (`layer`, 0 is the model), and their columns by the names of `Totals`."""

    step: int
    layer: Ints
    columns: dict[str, NDArray[Any]]
    lr: Floats
    """NaN where unknown."""


class Added:
    """`Totals` of many scopes: one array for each of its fields."""

    def __init__(self, size: int) -> None:
        self.of = {name: np.zeros(size, dtype="f8" if name in REALS else "i8") for name in NAMES}

    def load(self, where: Ints, totals: Sequence[dict[str, Any]]) -> None:
        """Set scopes to stored totals; what an earlier version did not store is 0."""
        for name, column in self.of.items():
            column[where] = np.array([stored.get(name, 0) for stored in totals], dtype=column.dtype)

    def clear(self, where: Ints) -> None:
        """Set scopes to 0."""
        for column in self.of.values():
            column[where] = 0

    def add(self, where: Ints, columns: dict[str, NDArray[Any]], rows: Flags) -> None:
        """Add one sample to scopes, each named once: those `rows` of `columns`."""
        self.of["samples"][where] += 1
        for name, column in columns.items():
            self.of[name][where] += column[rows]

    def take(self, where: Ints, other: Added) -> None:
        """Become what `other` is."""
        for name, column in self.of.items():
            column[where] = other.of[name][where]

    def stored(self, where: Ints) -> list[dict[str, Any]]:
        """Scopes as `Totals` are stored."""
        columns = [column[where].tolist() for column in self.of.values()]
        return [dict(zip(NAMES, values, strict=True)) for values in zip(*columns, strict=True)]


class Tracks:
    """The scopes of a run by layer id. Columns of `Watched`, and of `Track`, which holds its window."""

    def __init__(self, layers: int) -> None:
        size = layers + 1
        self.previous, self.current, self.silent = Added(size), Added(size), Added(size)
        self.quiet = np.zeros(size, dtype="i8")
        self.norms = np.zeros((size, _MOST - _LEAST), dtype="i8")
        self.range = (_MOST, _LEAST)
        self.last_step = np.full(size, -1, dtype="i8")
        self.health = np.zeros(size, dtype="i8")
        self.streak = np.zeros(size, dtype="i8")
        self.since = np.full(size, -1, dtype="i8")
        self.firing = np.zeros(size, dtype=bool)
        self.touched = np.zeros(size, dtype=bool)

    @property
    def pending(self) -> Flags:
        """Scopes that stall, but not yet for long enough."""
        waiting: Flags = (self.streak > 0) & ~self.firing
        return waiting

    def load(self, rows: Sequence[Any], tracks: Sequence[dict[str, Any]]) -> None:
        """Rows of `scopes` and what their column `track` holds."""
        if not rows:
            return
        where = np.array([row.layer for row in rows], dtype="i8")
        for name in ("previous", "current", "silent"):
            getattr(self, name).load(where, [track.get(name, {}) for track in tracks])
        self.quiet[where] = [track.get("quiet", 0) for track in tracks]
        for layer, track in zip(where.tolist(), tracks, strict=True):
            for exponent, count in track["norms"].items():
                self._count(np.array([layer]), np.array([int(exponent)]), count)
        self.last_step[where] = [row.last_step for row in rows]
        self.health[where] = [HEALTH.index(row.health) for row in rows]
        self.streak[where] = [row.streak for row in rows]
        self.since[where] = [-1 if row.since_step is None else row.since_step for row in rows]
        self.firing[where] = [bool(row.firing) for row in rows]

    def advance(self, evidence: Evidence) -> None:
        """Read the samples of one step, steps ascending; scopes that have read it already stay."""
        fresh = evidence.step > self.last_step[evidence.layer]
        layer, lr = evidence.layer[fresh], evidence.lr[fresh]
        columns = {name: column[fresh] for name, column in evidence.columns.items()}
        self.last_step[layer], self.touched[layer] = evidence.step, True
        with np.errstate(all="ignore"):
            self._add(layer, columns)
            window = self.window(layer)
            self.health[layer] = self._judged(layer, window, lr)
            self._count_stalling(layer, evidence.step, window)

    def window(self, layer: Ints) -> SimpleNamespace:
        """The sums over the window of some scopes, by name."""
        previous, current = self.previous.of, self.current.of
        return SimpleNamespace(**{name: previous[name][layer] + current[name][layer] for name in NAMES})

    def watched(self, which: Flags) -> list[Watched]:
        """Scopes one by one, in order of their ids."""
        layers = np.flatnonzero(which)
        return [Watched.of_stored(row) for row in self.stored(layers)]

    def stored(self, layers: Ints) -> Iterable[dict[str, Any]]:
        """Rows of `scopes` but for the run."""
        window = self.window(layers)
        with np.errstate(all="ignore"):
            lost, efficiency = lost_fraction(window), descent_efficiency(window)
        tracks = zip(
            *(part.stored(layers) for part in (self.previous, self.current, self.silent)),
            self.quiet[layers].tolist(),
            (self._norms(layer) for layer in layers.tolist()),
            strict=True,
        )
        columns = (self.last_step, self.health, self.streak, self.since, self.firing)
        for layer, track, share, arrived, values in zip(
            layers.tolist(),
            tracks,
            _or_none(lost, window.attempted),
            _or_none(efficiency, window.sum_uu),
            zip(*(column[layers].tolist() for column in columns), strict=True),
            strict=True,
        ):
            previous, current, silent, quiet, norms = track
            last_step, health, streak, since, firing = values
            yield {
                "layer": layer,
                "track": {
                    "previous": previous,
                    "current": current,
                    "norms": norms,
                    "quiet": quiet,
                    "silent": silent,
                },
                "last_step": last_step,
                "health": HEALTH[health],
                "lost_fraction": share,
                "efficiency": arrived,
                "streak": streak,
                "since_step": None if since < 0 else since,
                "firing": firing,
            }

    def _add(self, layer: Ints, columns: dict[str, NDArray[Any]]) -> None:
        silent = (columns["attempted"] == 0) & (columns["nonfinite"] == 0)
        self.quiet[layer[silent]] += 1
        self.silent.add(layer[silent], columns, silent)
        heard = layer[~silent]
        self.silent.clear(heard[self.quiet[heard] > 0])
        self.quiet[heard] = 0
        half = self.current.of
        enough = half["expected_roundings"][heard] >= STALL_EVIDENCE
        full = heard[(half["samples"][heard] >= WINDOW_SAMPLES) & enough]
        self.previous.take(full, self.current)
        self.current.clear(full)
        self.current.add(heard, columns, ~silent)
        energy = columns["sum_uu"][~silent]
        sized = (energy > 0) & np.isfinite(energy)
        _, exponent = np.frexp(energy[sized])
        self._count(heard[sized], (exponent.astype("i8") - 1) // 2, 1)

    def _count(self, layer: Ints, exponent: Ints, count: int) -> None:
        if len(layer):
            self.norms[layer, exponent - _LEAST] += count
            low, high = self.range
            self.range = (min(low, int(exponent.min())), max(high, int(exponent.max())))

    def _norms(self, layer: int) -> dict[int, int]:
        low, high = self.range
        counts = self.norms[layer, low - _LEAST : high + 1 - _LEAST]
        used = np.flatnonzero(counts)
        return dict(zip((used + low).tolist(), counts[used].tolist(), strict=True))

    def _median_norm(self, layer: Ints) -> Floats:
        """As `Track.median_norm`; NaN before the first."""
        low, high = self.range
        if low > high:
            return np.full(len(layer), math.nan)
        seen = self.norms[layer, low - _LEAST : high + 1 - _LEAST].cumsum(axis=1)
        exponent = low + (seen >= seen[:, -1:] / 2).argmax(axis=1)
        return np.where(seen[:, -1] > 0, np.ldexp(math.sqrt(2.0), exponent), math.nan)

    def _judged(self, layer: Ints, window: SimpleNamespace, lr: Floats) -> Ints:
        """As `Track.state`, as numbers of `HEALTH`."""
        ratio = np.sqrt(window.sum_uu / window.samples) / self._median_norm(layer)
        idle = (
            (lr == 0)
            | ((window.skipped > 0) & (window.attempted == 0))
            | ((window.numel > 0) & (window.zero_grad >= window.numel))
            | (window.attempted == 0)
            | (window.sum_uu == 0)
            | (ratio < IDLE_NORM)
        )
        stalling = (
            (window.expected_roundings >= STALL_EVIDENCE)
            & (lost_fraction(window) > STALL_LOST)
            & (descent_efficiency(window) < STALL_EFFICIENCY)
        )
        return np.select(
            [self.quiet[layer] >= WINDOW_SAMPLES, window.samples == 0, window.nonfinite != 0, idle, stalling],
            [_IDLE, 0, _BROKEN, _IDLE, _STALLING],
            _HEALTHY,
        )

    def _count_stalling(self, layer: Ints, step: int, window: SimpleNamespace) -> None:
        """As `Watched.advance`, after the verdict."""
        firing = self.firing[layer]
        stalls = ~firing & (self.health[layer] == _STALLING)
        ends = np.where(firing, descent_efficiency(window) > CLEAR_EFFICIENCY, ~stalls)
        begins = stalls & (self.streak[layer] == 0)
        self.since[layer[begins]] = step
        self.streak[layer[stalls]] += 1
        self.firing[layer] = firing | (stalls & (self.streak[layer] >= FOR_SAMPLES))
        ended = layer[ends]
        self.firing[ended], self.streak[ended], self.since[ended] = False, 0, -1


def _or_none(values: Floats, denominator: NDArray[Any]) -> list[float | None]:
    """None where the denominator is 0."""
    return [
        value if there else None
        for value, there in zip(values.tolist(), (denominator != 0).tolist(), strict=True)
    ]
