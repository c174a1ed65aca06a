"""The one table of strategies: the optimizer, the docs, the advice and the tests read it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

WORD_BYTES = 2
"""Bytes of a 16-bit storage word."""


@dataclass(frozen=True, slots=True)
class StateTensor:
    """One tensor kept between steps, of the parameter's shape. `dtype` None: the parameter's own."""

    name: str
    dtype: torch.dtype | None = None

    def dtype_for(self, storage: torch.dtype) -> torch.dtype:
        """The dtype of this tensor beside a parameter of dtype `storage`."""
        return storage if self.dtype is None else self.dtype

    @property
    def bytes(self) -> int:
        """Bytes per element beside a 16-bit parameter."""
        return WORD_BYTES if self.dtype is None else self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Strategy:
    """How weights and moments are stored (numerics §3). `paper` is the letter in [Collage], if it has one."""

    name: str
    label: str
    paper: str | None
    state: tuple[StateTensor, ...]
    source: str

    @property
    def bytes_per_parameter(self) -> int:
        """Weight + gradient + everything kept between steps, in bytes, for 16-bit storage."""
        return 2 * WORD_BYTES + sum(tensor.bytes for tensor in self.state)

    def keeps(self, name: str) -> bool:
        """Whether this strategy keeps the state tensor of that name."""
        return any(tensor.name == name for tensor in self.state)


_M, _V = StateTensor("exp_avg"), StateTensor("exp_avg_sq")
_M32, _V32 = StateTensor("exp_avg", torch.float32), StateTensor("exp_avg_sq", torch.float32)
_LO, _V_LO = StateTensor("lo"), StateTensor("exp_avg_sq_lo")
_MASTER = StateTensor("master", torch.float32)

STRATEGIES: dict[str, Strategy] = {
    strategy.name: strategy
    for strategy in (
        Strategy("none", "plain 16-bit", "A", (_M, _V), "the baseline that loses"),
        Strategy("light", "Collage-light", "B", (_M, _V, _LO), "[Collage] algorithm 2, light"),
        Strategy("plus", "Collage-plus", "C", (_M, _V, _LO, _V_LO), "[Collage] algorithm 2, plus"),
        Strategy("fp32-master", "float32 master", "D", (_M32, _V32, _MASTER), "mixed precision as usual"),
    )
}
"""Every strategy by name."""

STORAGE_DTYPES = (torch.bfloat16, torch.float16)
"""Parameter dtypes that every strategy supports."""


def strategy_for(name: str, dtype: torch.dtype) -> Strategy:
    """The strategy for one parameter: float32 weights are their own master, so they are updated plainly.

    Raises ValueError for a name that is none and TypeError for a dtype that no strategy supports.
    """
    if name not in STRATEGIES:
        raise ValueError(f"unknown strategy {name!r}; choose one of {', '.join(map(repr, STRATEGIES))}")
    if dtype == torch.float32:
        return STRATEGIES["none"]
    if dtype not in STORAGE_DTYPES:
        raise TypeError(
            f"no strategy supports {dtype} parameters; use bfloat16, float16 or float32 "
            "(model.to(torch.bfloat16), or roundoff.to_low_precision)"
        )
    return STRATEGIES[name]
