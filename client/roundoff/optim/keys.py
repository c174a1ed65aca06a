"""Keys of the random bits of stochastic rounding: (seed, step, parameter), so that a resumed run draws the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from roundoff.numerics import mix_key


class Keys:
    """Those of one optimizer. A parameter counts by its position among all of them, which a resumed run shares."""

    def __init__(self, seed: int) -> None:
        self._seed = int(seed)
        self._numbers: dict[Tensor, int] = {}

    def of(self, param: Tensor, count: float, groups: Sequence[dict[str, Any]]) -> int:
        """For step number `count` of a parameter in one of the groups."""
        if len(self._numbers) != sum(len(group["params"]) for group in groups):
            params = (p for group in groups for p in group["params"])
            self._numbers = {p: number for number, p in enumerate(params)}
        return mix_key(self._seed, int(count), self._numbers[param])
