"""Every figure derived from the sums, one function each (numerics §4).

Each function takes a `Sums`, a row with the same attribute names, or columns of them: with numbers it
returns a float, or None where the figure is undefined; with numpy arrays it returns a float64 array of the
same shape, NaN where undefined. numpy is needed for columns only; `expected_roundings` takes one row.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .sums import HEADROOM_LOW

Figure = Any
"""float | None for numbers, a float64 array for columns."""


def share(numerator: Any, denominator: Any) -> Figure:
    """numerator / denominator; None, in columns NaN, where the denominator is 0."""
    if hasattr(denominator, "__array__"):
        import numpy as np

        top, bottom = np.broadcast_arrays(np.asarray(numerator, "f8"), np.asarray(denominator, "f8"))
        return np.divide(top, bottom, out=np.full(bottom.shape, math.nan), where=bottom != 0)
    return numerator / denominator if denominator else None


def _root(value: Any) -> Any:
    if hasattr(value, "__array__"):
        import numpy as np

        return np.sqrt(np.asarray(value, "f8"))
    return math.sqrt(value)


def lost_fraction(sums: Any) -> Figure:
    """lost / attempted: 0 nothing lost, 1 nothing stored. [Collage] §3.2, elementwise and pair-aware."""
    return share(sums.lost, sums.attempted)


def invisible_fraction(sums: Any) -> Figure:
    """invisible / attempted: share of the updates that the forward pass does not see yet. Never a fault."""
    return share(sums.invisible, sums.attempted)


def edq(sums: Any) -> Figure:
    """Effective descent quality Σu·a / √Σu², in units of the update. [Collage] §3.2."""
    return share(sums.sum_ua, _root(sums.sum_uu))


def descent_efficiency(sums: Any) -> Figure:
    """Σu·a / Σu² = edq / ‖u‖: 1 everything arrived on balance, 0 stalled; rounding up can lift it above 1."""
    return share(sums.sum_ua, sums.sum_uu)


def seen_efficiency(sums: Any) -> Figure:
    """Σu·s / Σu²: as `descent_efficiency`, for the word that the forward pass reads. Not an alarm."""
    return share(sums.sum_us, sums.sum_uu)


def imprecision(sums: Any) -> Figure:
    """unchanged / numel, what the released code of [Collage] logs; kept for comparison."""
    return share(sums.unchanged, sums.numel)


def update_ratio(sums: Any) -> Figure:
    """√Σu² / √Σw²: size of the intended update relative to the weight."""
    return share(_root(sums.sum_uu), _root(sums.sum_ww))


def update_norm(sums: Any) -> Figure:
    """‖u‖ = √Σu², in units of the weight."""
    return _root(sums.sum_uu)


def decay_lost_fraction(sums: Any) -> Figure:
    """decay_lost / decay_attempted: share of the weight decay that rounds away when added alone."""
    return share(sums.decay_lost, sums.decay_attempted)


def v_stuck_fraction(sums: Any) -> Figure:
    """v_stuck / v_attempted: share of the second moment that should have moved and did not."""
    return share(sums.v_stuck, sums.v_attempted)


def effective_lr(sums: Any, lr: Any) -> Figure:
    """lr · descent_efficiency: the learning rate that arrives; None where either is unknown."""
    efficiency = descent_efficiency(sums)
    return None if efficiency is None or lr is None else lr * efficiency


def expected_roundings(sums: Any) -> float:
    """Σ min(1, |u| / r), read off the headroom histogram with 2^(k+½) for bin k: the evidence for a verdict.

    It is the number of elements that would move on average under unbiased rounding, so it is small for a
    tiny layer and for tiny steps, where a lost fraction of 1 may be chance.
    """
    counts = sums.headroom
    return float(
        sum(n * min(1.0, 2.0 ** (index + HEADROOM_LOW + 0.5)) for index, n in enumerate(counts) if n)
    )


@dataclass(frozen=True, slots=True)
class Metric:
    """A derived figure as pages and routes know it.

    `worst` says which end is bad: "high", "low", or None for a figure that is never a fault.
    `percent` figures are shares shown as per cent.
    """

    name: str
    label: str
    sentence: str
    figure: Callable[[Any], Figure]
    worst: str | None = None
    percent: bool = False


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric(
            "lost_fraction",
            "Lost arithmetic",
            "Share of the attempted element updates after which nothing stored had changed.",
            lost_fraction,
            "high",
            True,
        ),
        Metric(
            "descent_efficiency",
            "Descent efficiency",
            "Share of the intended descent that was stored; 1 is lossless, 0 is stalled.",
            descent_efficiency,
            "low",
        ),
        Metric(
            "invisible_fraction",
            "Invisible updates",
            "Share of the attempted updates that the forward pass does not see yet; under Collage normal.",
            invisible_fraction,
            None,
            True,
        ),
        Metric(
            "seen_efficiency",
            "Seen efficiency",
            "Share of the intended descent that the forward pass sees at this step; bursts under Collage.",
            seen_efficiency,
        ),
        Metric(
            "edq",
            "Effective descent quality",
            "Projection of the applied update on the intended one, in units of the update.",
            edq,
        ),
        Metric(
            "imprecision",
            "Imprecision",
            "Share of all weights whose visible word did not change.",
            imprecision,
            None,
            True,
        ),
        Metric("update_norm", "Update norm", "Euclidean norm of the intended update.", update_norm),
        Metric(
            "update_ratio",
            "Update ratio",
            "Norm of the intended update over the weight's norm.",
            update_ratio,
        ),
        Metric(
            "decay_lost_fraction",
            "Weight decay lost",
            "Share of the weight decay terms that, added alone, would change nothing stored.",
            decay_lost_fraction,
            "high",
            True,
        ),
        Metric(
            "v_stuck_fraction",
            "Second moment stuck",
            "Share of the second moment that should have moved and did not.",
            v_stuck_fraction,
            "high",
            True,
        ),
    )
}
"""Every figure that can be asked for by name; docs, routes and pages read this table."""
