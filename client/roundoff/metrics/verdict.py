"""Is precision hurting this layer? The verdict of numerics §4, on sums over a window of samples.

`Track` follows one scope (a layer or the whole model) sample by sample in constant memory. The server
keeps one per scope beside the run, the client keeps them for the table in the terminal; both ask the same
`judge`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from .figures import descent_efficiency, lost_fraction

State = Literal["healthy", "stalling", "idle", "broken"]

WARMUP_STEPS = 10
"""Optimizer steps at the start of a run that no verdict and no alert reads."""

STALL_LOST = 0.5
"""A scope stalls when its lost fraction is above this …"""

STALL_EFFICIENCY = 0.5
"""… and its descent efficiency below this …"""

STALL_EVIDENCE = 30.0
"""… on at least this many expected roundings, so that neither a tiny layer nor chance decides."""

IDLE_NORM = 1e-3
"""A scope is idle when its ‖u‖ is below this share of its own median since warm-up."""

WINDOW_SAMPLES = 5
"""Samples in one half of the window; a half grows beyond it until it holds enough evidence."""


@dataclass(frozen=True, slots=True)
class Totals:
    """The sums that a verdict reads, added up over `samples` samples."""

    samples: int = 0
    numel: int = 0
    zero_grad: int = 0
    attempted: int = 0
    lost: int = 0
    nonfinite: int = 0
    sum_uu: float = 0.0
    sum_ua: float = 0.0
    expected_roundings: float = 0.0

    @classmethod
    def of(cls, row: Any) -> Totals:
        """One sample: anything with the attributes of a stored row (`sums.ROW`)."""
        return cls(
            1,
            int(row.numel),
            int(row.zero_grad),
            int(row.attempted),
            int(row.lost),
            int(row.nonfinite),
            float(row.sum_uu),
            float(row.sum_ua),
            float(row.expected_roundings),
        )

    def __add__(self, other: Totals) -> Totals:
        return Totals(
            self.samples + other.samples,
            self.numel + other.numel,
            self.zero_grad + other.zero_grad,
            self.attempted + other.attempted,
            self.lost + other.lost,
            self.nonfinite + other.nonfinite,
            self.sum_uu + other.sum_uu,
            self.sum_ua + other.sum_ua,
            self.expected_roundings + other.expected_roundings,
        )


def judge(window: Totals, *, lr: float | None = None, median_norm: float | None = None) -> State:
    """The verdict on one window of one scope.

    `lr` is the learning rate now, None if unknown. `median_norm` is the scope's own median of ‖u‖ since
    warm-up, None if unknown. A small learning rate with full efficiency is healthy.
    """
    if window.nonfinite:
        return "broken"
    no_gradient = window.numel > 0 and window.zero_grad >= window.numel
    if lr == 0 or no_gradient or not window.attempted or not window.sum_uu or _is_quiet(window, median_norm):
        return "idle"
    lost, efficiency = lost_fraction(window), descent_efficiency(window)
    enough = window.expected_roundings >= STALL_EVIDENCE
    return "stalling" if enough and lost > STALL_LOST and efficiency < STALL_EFFICIENCY else "healthy"


def _is_quiet(window: Totals, median_norm: float | None) -> bool:
    if median_norm is None or not window.samples:
        return False
    return math.sqrt(window.sum_uu / window.samples) < IDLE_NORM * median_norm


@dataclass(slots=True)
class Track:
    """One scope followed sample by sample: a window in two halves, and how large its updates usually are.

    The window is `previous + current`. `current` becomes `previous` once it holds `WINDOW_SAMPLES` samples
    and `STALL_EVIDENCE` expected roundings: where evidence is plentiful the window spans 5 to 10 samples,
    where it is scarce it grows until it is enough. `norms` counts samples by floor(log2 ‖u‖): a median
    within a factor √2, in constant space. Samples in which nothing was attempted (no gradient) stay out of
    the window; `quiet` counts how many of them came last.
    """

    previous: Totals = field(default_factory=Totals)
    current: Totals = field(default_factory=Totals)
    norms: dict[int, int] = field(default_factory=dict)
    quiet: int = 0

    def add(self, row: Any) -> None:
        """Take one sample after the warm-up: anything with the attributes of a stored row (`sums.ROW`)."""
        totals = Totals.of(row)
        if not totals.attempted and not totals.nonfinite:
            self.quiet += 1
            return
        self.quiet = 0
        if self.current.samples >= WINDOW_SAMPLES and self.current.expected_roundings >= STALL_EVIDENCE:
            self.previous, self.current = self.current, Totals()
        self.current = self.current + totals
        if totals.sum_uu > 0 and math.isfinite(totals.sum_uu):
            exponent = math.floor(math.log2(totals.sum_uu) / 2)
            self.norms[exponent] = self.norms.get(exponent, 0) + 1

    @property
    def window(self) -> Totals:
        """The sums over the window."""
        return self.previous + self.current

    @property
    def median_norm(self) -> float | None:
        """Median of ‖u‖ over all samples taken, within a factor √2; None before the first."""
        half = sum(self.norms.values()) / 2
        seen = 0
        for exponent in sorted(self.norms):
            seen += self.norms[exponent]
            if seen >= half:
                return math.ldexp(math.sqrt(2.0), exponent)
        return None

    def state(self, lr: float | None = None) -> State | None:
        """The verdict now; None before the first sample after the warm-up."""
        if self.quiet >= WINDOW_SAMPLES:
            return "idle"
        if not self.window.samples:
            return None
        return judge(self.window, lr=lr, median_norm=self.median_norm)

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON data, for storage."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Track:
        """The inverse of `to_dict`, also after a trip through JSON, which makes strings of the keys."""
        norms = {int(exponent): int(count) for exponent, count in data["norms"].items()}
        return cls(Totals(**data["previous"]), Totals(**data["current"]), norms, int(data.get("quiet", 0)))
