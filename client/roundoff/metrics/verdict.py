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
from .totals import Totals

State = Literal["healthy", "stalling", "idle", "broken"]

IdleReason = Literal["lr", "gradient", "skipped", "updates"]
"""Why a scope is idle: lr = 0, no gradient, a loss scaler skips its steps, or ‖u‖ far below its own median."""

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


def judge(window: Totals, *, lr: float | None = None, median_norm: float | None = None) -> State:
    """The verdict on one window of one scope.

    `lr` is the learning rate now, None if unknown. `median_norm` is the scope's own median of ‖u‖ since
    warm-up, None if unknown. A small learning rate with full efficiency is healthy.
    """
    if window.nonfinite:
        return "broken"
    if idle_reason(window, lr=lr, median_norm=median_norm) is not None:
        return "idle"
    lost, efficiency = lost_fraction(window), descent_efficiency(window)
    enough = window.expected_roundings >= STALL_EVIDENCE
    return "stalling" if enough and lost > STALL_LOST and efficiency < STALL_EFFICIENCY else "healthy"


def may_alert(sample: Totals) -> bool:
    """Whether one sample could be a reason for an alert: it is broken, or it stalls, on however little evidence."""
    if sample.nonfinite:
        return True
    lost, efficiency = lost_fraction(sample), descent_efficiency(sample)
    stalls: bool = (lost or 0.0) > STALL_LOST and (efficiency or 0.0) < STALL_EFFICIENCY
    return stalls


def idle_reason(
    window: Totals, *, lr: float | None = None, median_norm: float | None = None
) -> IdleReason | None:
    """Why nothing worth speaking of is attempted in this window; None if something is. Arguments as of `judge`."""
    if lr == 0:
        return "lr"
    if window.skipped and not window.attempted:
        return "skipped"
    no_gradient = window.numel > 0 and window.zero_grad >= window.numel
    if no_gradient or not window.attempted or not window.sum_uu:
        return "gradient"
    share = quiet_share(window, median_norm)
    return "updates" if share is not None and share < IDLE_NORM else None


def quiet_share(window: Totals, median_norm: float | None) -> float | None:
    """‖u‖ of this window's samples over the scope's own median since warm-up; None where either is unknown."""
    if not median_norm or not window.samples:
        return None
    return math.sqrt(window.sum_uu / window.samples) / median_norm


@dataclass(slots=True)
class Track:
    """One scope followed sample by sample: a window in two halves, and how large its updates usually are.

    The window is `previous + current`. `current` becomes `previous` once it holds `WINDOW_SAMPLES` samples
    and `STALL_EVIDENCE` expected roundings: where evidence is plentiful the window spans 5 to 10 samples,
    where it is scarce it grows until it is enough. `norms` counts samples by floor(log2 ‖u‖): a median
    within a factor √2, in constant space. Samples in which nothing was attempted (no gradient) stay out of
    the window; `quiet` counts how many of them came last, and `silent` adds them up.
    """

    previous: Totals = field(default_factory=Totals)
    current: Totals = field(default_factory=Totals)
    norms: dict[int, int] = field(default_factory=dict)
    quiet: int = 0
    silent: Totals = field(default_factory=Totals)

    def add(self, row: Any) -> None:
        """Take one sample after the warm-up: anything with the attributes of a stored row (`sums.ROW`)."""
        totals = Totals.of(row)
        if not totals.attempted and not totals.nonfinite:
            self.quiet, self.silent = self.quiet + 1, self.silent + totals
            return
        if self.quiet:
            self.quiet, self.silent = 0, Totals()
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
        window = self.window
        return judge(window, lr=lr, median_norm=self.median_norm) if window.samples else None

    def idle_reason(self, lr: float | None = None) -> IdleReason | None:
        """Why the verdict now is *idle*; None if it is another one."""
        if self.state(lr) != "idle":
            return None
        if self.quiet >= WINDOW_SAMPLES:
            # Of a track that was stored before `silent` was kept, nothing more is known.
            return idle_reason(self.silent, lr=lr) or "gradient"
        return idle_reason(self.window, lr=lr, median_norm=self.median_norm)

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON data, for storage."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Track:
        """The inverse of `to_dict`, also after a trip through JSON, which makes strings of the keys.

        What an earlier version did not store yet is 0.
        """
        norms = {int(exponent): int(count) for exponent, count in data["norms"].items()}
        previous, current, silent = (
            Totals.from_dict(data.get(name, {})) for name in ("previous", "current", "silent")
        )
        return cls(previous, current, norms, int(data.get("quiet", 0)), silent)
