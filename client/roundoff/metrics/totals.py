"""The sums that a verdict, its causes and the advice read, added up over a window of samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from operator import add, attrgetter
from typing import Any

from .figures import expected_roundings
from .sums import Sums


@dataclass(frozen=True, slots=True)
class Totals:
    """Columns of `sums.ROW` added up over `samples` samples; counts of elements, sums in squared units of the weight.

    Those after `expected_roundings` came later: a stored total or a row without them reads as 0.
    """

    samples: int = 0
    numel: int = 0
    zero_grad: int = 0
    attempted: int = 0
    lost: int = 0
    nonfinite: int = 0
    sum_uu: float = 0.0
    sum_ua: float = 0.0
    expected_roundings: float = 0.0
    invisible: int = 0
    underflowed: int = 0
    decay_attempted: int = 0
    decay_lost: int = 0
    v_attempted: int = 0
    v_stuck: int = 0
    v_stuck_high: int = 0
    v_underflowed: int = 0
    skipped: int = 0

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
            *(int(getattr(row, name, 0)) for name in _LATER),
        )

    @classmethod
    def of_sums(cls, sums: Sums) -> Totals:
        """One sample with its histogram, from which the evidence is derived."""
        named = {name: getattr(sums, name) for name in _NAMES if hasattr(sums, name)}
        return cls(**named, samples=1, expected_roundings=expected_roundings(sums))

    def __add__(self, other: Totals) -> Totals:
        return Totals(*map(add, _VALUES(self), _VALUES(other)))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Totals:
        """The inverse of `dataclasses.asdict`, also of totals that were stored before a column was added."""
        return cls(**{name: data[name] for name in _NAMES if name in data})


_NAMES = tuple(field.name for field in fields(Totals))
_LATER = _NAMES[_NAMES.index("expected_roundings") + 1 :]
_VALUES = attrgetter(*_NAMES)
