"""What would stop the loss, its price and the code, by what the run uses now."""

from __future__ import annotations

from dataclasses import dataclass

BYTES = {"none": 8, "stochastic": 8, "light": 10, "kahan": 10, "plus": 12, "exact": 12, "fp32-state": 12}
"""Bytes per parameter: weight, gradient and everything kept between steps."""


@dataclass(frozen=True, slots=True)
class Cure:
    """One line: what to do, what it costs, the code."""

    sentence: str
    code: str


def cure(strategy: str, health: str | None) -> Cure | None:
    """The cure for a stalling run, None where there is nothing to cure. `strategy` as in `RunSummary`."""
    if health != "stalling":
        return None
    now = max((BYTES.get(part, 8) for part in strategy.split("+")), default=8)
    if any(part in ("light", "kahan", "plus") for part in strategy.split("+")):
        return Cure(
            f"A float32 master keeps what two 16-bit words cannot: 16 bytes per parameter instead of {now}.",
            'CollageAdamW(…, strategy="fp32-master")',
        )
    return Cure(
        f"Collage-plus keeps what rounding drops: 12 bytes per parameter instead of {now}.",
        'CollageAdamW(…, strategy="plus")',
    )
