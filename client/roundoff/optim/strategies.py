"""The one table of strategies: the optimizer, the docs, the advice and the tests read it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

WORD_BYTES = 2
"""Bytes of a 16-bit storage word."""

BFLOAT16, FLOAT16 = torch.bfloat16, torch.float16
STORAGE_DTYPES = (BFLOAT16, FLOAT16)
"""Parameter dtypes of 16 bit."""

SECOND_MOMENT = "exp_avg_sq"


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
    """How weights and moments are stored (numerics §3). `paper` is the letter in [Collage], if it has one.

    `dtypes` are the parameter dtypes that it stores; `storage_arithmetic` says whether it has the mode in which
    every operation is rounded to 16 bit, which a strategy that keeps float32 has not.
    """

    name: str
    label: str
    paper: str | None
    state: tuple[StateTensor, ...]
    source: str
    dtypes: tuple[torch.dtype, ...] = STORAGE_DTYPES
    storage_arithmetic: bool = True

    @property
    def bytes_per_parameter(self) -> int:
        """Weight + gradient + everything kept between steps, in bytes, for 16-bit storage, without amsgrad."""
        return 2 * WORD_BYTES + sum(tensor.bytes for tensor in self.state)

    def keeps(self, name: str) -> bool:
        """Whether this strategy keeps the state tensor of that name."""
        return any(tensor.name == name for tensor in self.state)

    def tensors(self, *, amsgrad: bool = False) -> tuple[StateTensor, ...]:
        """Every state tensor; with `amsgrad` also the largest second moment so far, kept as v itself is."""
        if not amsgrad:
            return self.state
        largest = (
            StateTensor(f"max_{tensor.name}", tensor.dtype)
            for tensor in self.state
            if tensor.name.startswith(SECOND_MOMENT)
        )
        return (*self.state, *largest)

    @property
    def keeps_more_than_the_word(self) -> bool:
        """Whether something beside the visible word belongs to the weight, and is stale if that is changed."""
        return any(self.keeps(name) for name in WEIGHT_WORDS)


WEIGHT_WORDS = ("lo", "remainder", "master")
"""State that belongs to the weight: a second word, the rest of an exact master, a master."""

_M, _V = StateTensor("exp_avg"), StateTensor(SECOND_MOMENT)
_M32, _V32 = StateTensor("exp_avg", torch.float32), StateTensor(SECOND_MOMENT, torch.float32)
_LO, _V_LO = StateTensor("lo"), StateTensor("exp_avg_sq_lo")
_MASTER = StateTensor("master", torch.float32)
_REST, _V_REST = StateTensor("remainder", torch.int16), StateTensor("exp_avg_sq_remainder", torch.int16)

STRATEGIES: dict[str, Strategy] = {
    strategy.name: strategy
    for strategy in (
        Strategy("none", "plain 16-bit", "A", (_M, _V), "the baseline that loses"),
        Strategy("light", "Collage-light", "B", (_M, _V, _LO), "[Collage] algorithm 2, light"),
        Strategy("plus", "Collage-plus", "C", (_M, _V, _LO, _V_LO), "[Collage] algorithm 2, plus"),
        Strategy("kahan", "Kahan summation", None, (_M, _V, _LO), "[Zamirai] algorithm 3; lo is its c"),
        Strategy("stochastic", "stochastic rounding", None, (_M, _V), "[Zamirai] algorithm 2"),
        Strategy(
            "fp32-state", "float32 state", "D−MW", (_M32, _V32), "[Collage] §5", storage_arithmetic=False
        ),
        Strategy(
            "fp32-master",
            "float32 master",
            "D",
            (_M32, _V32, _MASTER),
            "mixed precision as usual",
            storage_arithmetic=False,
        ),
        Strategy(
            "exact",
            "exact in two words",
            None,
            (_M, _V, _REST, _V_REST),
            "ours: the other half of a float32 master",
            dtypes=(BFLOAT16,),
            storage_arithmetic=False,
        ),
    )
}
"""Every strategy by name."""


def strategy_for(name: str, dtype: torch.dtype) -> Strategy:
    """The strategy for one parameter: float32 weights are their own master, so they are updated plainly.

    Raises ValueError for a name that is none and TypeError for a dtype that the strategy does not store.
    """
    if name not in STRATEGIES:
        raise ValueError(f"unknown strategy {name!r}; choose one of {', '.join(map(repr, STRATEGIES))}")
    if dtype == torch.float32:
        return STRATEGIES["none"]
    plan = STRATEGIES[name]
    if dtype in plan.dtypes:
        return plan
    known = sorted({str(one).removeprefix("torch.") for plan in STRATEGIES.values() for one in plan.dtypes})
    if str(dtype).removeprefix("torch.") not in known:
        raise TypeError(
            f"no strategy supports {dtype} parameters; use {', '.join(known)} or float32 "
            "(model.to(torch.bfloat16), or roundoff.to_low_precision)"
        )
    takes = ", ".join(str(one) for one in plan.dtypes)
    able = ", ".join(repr(other.name) for other in STRATEGIES.values() if dtype in other.dtypes)
    raise TypeError(
        f"strategy {name!r} stores {takes}, not {dtype}; cast the model, or choose one of {able} for this group"
    )
