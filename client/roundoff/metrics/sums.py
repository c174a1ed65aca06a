"""The additive statistics of one tensor, one step: everything that is measured, sent and stored.

Layers, shards, ranks and time buckets aggregate by `+`; every ratio in `figures` is derived when read.
Nothing here imports torch, so the server and the query side use it as it is.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from operator import add

HEADROOM_LOW = -24
"""Exponent k of the first headroom bin; values below it are counted there."""

HEADROOM_HIGH = 8
"""Exponent k of the last headroom bin; values above it are counted there."""

HEADROOM_BINS = HEADROOM_HIGH - HEADROOM_LOW + 1

COUNTS = (
    "numel",
    "attempted",
    "lost",
    "invisible",
    "unchanged",
    "decay_attempted",
    "decay_lost",
    "v_attempted",
    "v_stuck",
    "v_stuck_high",
    "underflowed",
    "v_underflowed",
    "nonfinite",
    "zero_grad",
    "skipped",
    "frozen",
    "frozen_of",
)
"""Names of the integer fields of `Sums`: elements, except `skipped`, which counts steps."""

SUMS = ("sum_uu", "sum_ua", "sum_aa", "sum_us", "sum_ss", "sum_ww")
"""Names of the float64 fields of `Sums`, in squared units of the weight."""

EVIDENCE = "expected_roundings"
"""Name of the stored column that holds `figures.expected_roundings` of a sample: additive like the sums."""

ROW = (*COUNTS, *SUMS, EVIDENCE)
"""The columns of one stored sample row, in their order on the wire and in the tables."""

_NO_BINS = (0,) * HEADROOM_BINS
_NO_ENERGY = (0.0,) * HEADROOM_BINS


@dataclass(frozen=True, slots=True)
class Sums:
    """Statistics of one parameter tensor at one optimizer step, numerics §4; 0 where not measured.

    u is the intended update, a the applied one (change of everything stored), s the seen one (change of
    the word that the forward pass reads), w the stored weight before the step.

    Counts are elements (`skipped`: steps):

    - `numel`, `attempted` (u ≠ 0), `lost` (u ≠ 0, a = 0), `invisible` (u ≠ 0, s = 0), `unchanged` (s = 0)
    - `decay_attempted`, `decay_lost`: the decay term alone is non-zero; alone it would change nothing
    - `v_attempted`, `v_stuck`, `v_stuck_high`: second moment should move; did not; did not shrink
    - `underflowed`, `v_underflowed`: below the range of the storage format, not rounding
    - `nonfinite`, `zero_grad`, `frozen` of `frozen_of`

    `sum_xy` is Σ x·y in float64. `headroom[k + 24]` counts elements with k = floor(log2(|u| / r)),
    r being the resolution of what is stored; `headroom_energy` holds Σ u² of the same bins.
    """

    numel: int = 0
    attempted: int = 0
    lost: int = 0
    invisible: int = 0
    unchanged: int = 0
    decay_attempted: int = 0
    decay_lost: int = 0
    v_attempted: int = 0
    v_stuck: int = 0
    v_stuck_high: int = 0
    underflowed: int = 0
    v_underflowed: int = 0
    nonfinite: int = 0
    zero_grad: int = 0
    skipped: int = 0
    frozen: int = 0
    frozen_of: int = 0
    sum_uu: float = 0.0
    sum_ua: float = 0.0
    sum_aa: float = 0.0
    sum_us: float = 0.0
    sum_ss: float = 0.0
    sum_ww: float = 0.0
    headroom: tuple[int, ...] = _NO_BINS
    headroom_energy: tuple[float, ...] = _NO_ENERGY

    def __add__(self, other: Sums) -> Sums:
        if not isinstance(other, Sums):
            return NotImplemented
        values: dict[str, object] = {}
        for field in fields(self):
            mine, theirs = getattr(self, field.name), getattr(other, field.name)
            values[field.name] = tuple(map(add, mine, theirs)) if isinstance(mine, tuple) else mine + theirs
        return Sums(**values)  # type: ignore[arg-type]

    def __radd__(self, other: int) -> Sums:
        """Let `sum(list_of_sums)` start from 0."""
        return self if other == 0 else NotImplemented
