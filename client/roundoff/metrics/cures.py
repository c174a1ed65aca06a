"""What would stop the loss, its price and the code: the same on a page, in an alert and in the terminal."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

BYTES_PER_PARAMETER = {
    "none": 8,
    "stochastic": 8,
    "light": 10,
    "kahan": 10,
    "plus": 12,
    "exact": 12,
    "fp32-state": 12,
    "fp32-master": 16,
}
"""Weight, gradient and everything kept between steps, by strategy (numerics §3), in bytes."""

PAIRS = frozenset({"light", "kahan", "plus"})
"""Strategies that keep a weight in two 16-bit words."""

FLOAT32 = frozenset({"float32", "fp32-master", "exact"})
"""Strategies under which a weight is a float32 number, whatever the forward pass reads."""

MOMENT_WORD = frozenset({"none", "stochastic", "light", "kahan"})
"""Strategies that keep the second moment in one 16-bit word."""

FLOAT8 = "float8-"
"""What the strategy of layers with 8-bit weights begins with; no table of bytes here is theirs."""

VISIBLE_ONLY = "visible-"
"""What the strategy of a layer begins with whose rows say nothing of attempts, losses and arrivals."""

BY_ROWS = "sampled-"
"""What the strategy of a layer begins with whose figures are estimates from some of its rows."""


def is_judged(strategy: str) -> bool:
    """Whether the rows of a layer say what was attempted and lost, so that there can be a verdict."""
    return not strategy.startswith(VISIBLE_ONLY)


def unmarked(strategy: str) -> str:
    """A strategy without what says how it is measured."""
    return strategy.removeprefix(VISIBLE_ONLY).removeprefix(BY_ROWS)


@dataclass(frozen=True, slots=True)
class Cure:
    """What to do and why, its price, and the code to paste."""

    sentence: str
    price: str
    code: str

    @property
    def text(self) -> str:
        """All three in one line."""
        return f"{self.sentence}: {self.code}, {self.price}."


def cure(strategies: Iterable[str]) -> Cure | None:
    """The cure for layers that stall under `strategies`; a name not in §3 is a plain 16-bit optimizer.

    None where a layer is updated in float32 already: nothing here keeps more.
    """
    used = {unmarked(one) for one in strategies}
    if any(one.startswith(FLOAT8) for one in used):
        return Cure(
            "Pairs of 16-bit words keep what lies below the range of 8-bit words, however many (experimental)",
            f"{BYTES_PER_PARAMETER['plus']} bytes per parameter",
            'model.to(torch.bfloat16), CollageAdamW(…, strategy="plus")',
        )
    if used & FLOAT32:
        return None
    kept = max((BYTES_PER_PARAMETER.get(one, BYTES_PER_PARAMETER["none"]) for one in used), default=8)
    if used & PAIRS:
        better = "exact"
        sentence = (
            "An exact master in two words keeps what a pair cannot (bfloat16; for float16, fp32-master)"
        )
    else:
        better, sentence = "plus", "Collage-plus keeps what rounding drops"
    price = f"{BYTES_PER_PARAMETER[better]} bytes per parameter instead of {kept}"
    return Cure(sentence, price, f'CollageAdamW(…, strategy="{better}")')
