"""What takes the updates of a window: rounding, range, decay, a second moment that sticks, NaN, skipped steps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from .figures import decay_lost_fraction, share, v_stuck_fraction
from .words import percent

Cause = Literal["rounding", "underflow", "decay", "second-moment"]

MASTERS = frozenset({"fp32-master", "exact"})
"""Strategies that keep a float32 number beside 16-bit words, whose range is then no bound."""

MOST = 0.5
"""A cause dominates from this share on."""

SMALL_STEPS = 0.05
"""√(Σu²/attempted) below this share of lr: steps that Adam makes only over a second moment far too large.

Adam's element updates have a root mean square of about 0.2 to 0.4 lr.
"""


@dataclass(frozen=True, slots=True)
class Causes:
    """Shares of one window, None where nothing was tried that they could be a share of.

    - `rounding`, `underflow`, `decay_only`: of the lost updates, those rounded away, those below the range of the
      storage format, and at most how many had no gradient, so that decay alone was meant to move them. The first two
      add up to 1; the third cuts across them.
    - `decay`: of the weight decay terms, those that change nothing when added alone.
    - `v_stuck`, `v_high`: of the second moment that should have moved, what stayed; and what stayed too high.
    - `v_underflow`: of the elements with a gradient, those whose (1−β2)g² is below the range of the stored v.
    - `nonfinite`: of all elements.

    `skipped` counts tensor steps that a loss scaler made do nothing: they are not lost. `small_steps` says that the
    updates are far shorter than lr while the second moment is stuck too high.
    """

    lost: int
    rounding: float | None
    underflow: float | None
    decay_only: float | None
    decay: float | None
    v_stuck: float | None
    v_high: float | None
    v_underflow: float | None
    nonfinite: float | None
    skipped: int
    small_steps: bool

    @property
    def dominant(self) -> Cause | None:
        """What takes most of the lost updates; None where none are lost."""
        if not self.lost:
            return None
        if _most(self.underflow):
            return "underflow"
        if _most(self.decay_only):
            return "decay"
        return "second-moment" if self.small_steps else "rounding"

    def __str__(self) -> str:
        """In one sentence, without what did not happen; empty where nothing did."""
        told = [*self._of_the_lost(), *self._of_the_rest()]
        text = "; ".join(told)
        return f"{text[0].upper()}{text[1:]}." if text else ""

    def _of_the_lost(self) -> list[str]:
        if not self.lost:
            return []
        parts = [
            (self.rounding, "rounded away"),
            (self.underflow, "below the range of the format (underflow)"),
        ]
        told = [
            f"{percent(value)} {'were ' * (not n)}{what}" for n, (value, what) in enumerate(parts) if value
        ]
        text = f"of the lost updates {' and '.join(told)}"
        if self.decay_only:
            text += f"; up to {percent(self.decay_only)} of them are weight decay alone, without a gradient"
        return [text]

    def _of_the_rest(self) -> list[str]:
        told = []
        if self.decay:
            told.append(f"of the weight decay {percent(self.decay)} is lost when added alone")
        if self.v_stuck:
            told.append(f"the second moment is stuck for {percent(self.v_stuck)}")
            if self.v_high:
                told[-1] += f", too high for {percent(self.v_high)}"
        if self.v_underflow:
            told.append(f"for {percent(self.v_underflow)} the squared gradient is below the range of v")
        if self.nonfinite:
            told.append(f"{percent(self.nonfinite)} of the elements are not finite")
        if self.skipped:
            told.append(f"a loss scaler skipped {self.skipped:,} tensor steps, which are not lost")
        return told


def causes(window: Any, *, strategy: str = "", lr: float | None = None) -> Causes:
    """The causes in a window: a `Totals`, a `Sums`, or whatever has their columns.

    `strategy` tells what is stored: where a float32 number is, an update below the range of the 16-bit words is not
    lost for that. `lr` is the learning rate of the window, None if unknown.
    """
    lost, attempted = window.lost, window.attempted
    # Of a word or a pair, what is below the format's range changes nothing, so it is among the lost.
    underflowed = 0 if strategy in MASTERS else min(window.underflowed, lost)
    high = share(window.v_stuck_high, window.v_attempted)
    length = math.sqrt(window.sum_uu / attempted) if attempted and window.sum_uu >= 0 else math.nan
    return Causes(
        lost=lost,
        rounding=share(lost - underflowed, lost),
        underflow=share(underflowed, lost),
        decay_only=share(min(window.zero_grad, window.decay_lost, lost), lost),
        decay=decay_lost_fraction(window),
        v_stuck=v_stuck_fraction(window),
        v_high=high,
        v_underflow=share(window.v_underflowed, window.numel - window.zero_grad - window.nonfinite),
        nonfinite=share(window.nonfinite, window.numel),
        skipped=window.skipped,
        small_steps=bool(lr) and _most(high) and length < SMALL_STEPS * float(lr or 0.0),
    )


def _most(value: float | None) -> bool:
    return value is not None and value > MOST
