"""The one table of strategies: the optimizer, the docs, the advice and the tests read it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from roundoff.numerics import LOWER_WORDS

WORD_BYTES = 2
"""Bytes of a 16-bit storage word."""

BFLOAT16, FLOAT16 = torch.bfloat16, torch.float16
STORAGE_DTYPES = (BFLOAT16, FLOAT16)
"""Parameter dtypes of 16 bit."""

FLOAT8_DTYPES = (torch.float8_e4m3fn, torch.float8_e5m2)
"""Parameter dtypes of 8 bit, an experimental extension (docs/float8.md)."""

SECOND_MOMENT = "exp_avg_sq"


@dataclass(frozen=True, slots=True)
class StateTensor:
    """One tensor kept between steps, of the parameter's shape. `dtype` None: the parameter's own.

    `beside_float8` is the dtype beside an 8-bit parameter, where it is another one: moments have neither the digits
    nor the range that they need in 8 bit.
    """

    name: str
    dtype: torch.dtype | None = None
    beside_float8: torch.dtype | None = None

    def dtype_for(self, storage: torch.dtype) -> torch.dtype:
        """The dtype of this tensor beside a parameter of dtype `storage`."""
        if self.beside_float8 is not None and storage in FLOAT8_DTYPES:
            return self.beside_float8
        return storage if self.dtype is None else self.dtype

    @property
    def bytes(self) -> int:
        """Bytes per element beside a 16-bit parameter."""
        return WORD_BYTES if self.dtype is None else self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Strategy:
    """How weights and moments are stored (numerics §3). `paper` is the letter in [Collage], if it has one.

    `dtypes` are the parameter dtypes that it stores; `storage_arithmetic` says whether it has the mode in which
    every operation is rounded to 16 bit, which a strategy that keeps float32 has not. `float8` says whether it stores
    the dtypes of 8 bit too.
    """

    name: str
    label: str
    paper: str | None
    state: tuple[StateTensor, ...]
    source: str
    dtypes: tuple[torch.dtype, ...] = STORAGE_DTYPES
    storage_arithmetic: bool = True
    float8: bool = False

    @property
    def bytes_per_parameter(self) -> int:
        """Weight + gradient + everything kept between steps, in bytes, without amsgrad.

        For 16-bit storage; for 8-bit storage where that is all that this strategy stores.
        """
        return self.bytes_for((*self.dtypes, *FLOAT8_DTYPES)[0])

    def bytes_for(self, storage: torch.dtype) -> int:
        """The same for parameters of dtype `storage`; the gradient of an 8-bit one is bfloat16."""
        gradient = BFLOAT16 if storage in FLOAT8_DTYPES else storage
        state = sum(tensor.dtype_for(storage).itemsize for tensor in self.state)
        return storage.itemsize + gradient.itemsize + state

    def stores(self, dtype: torch.dtype) -> bool:
        """Whether it stores parameters of this dtype."""
        return dtype in self.dtypes or (self.float8 and dtype in FLOAT8_DTYPES)

    def keeps(self, name: str) -> bool:
        """Whether this strategy keeps the state tensor of that name."""
        return any(tensor.name == name for tensor in self.state)

    def tensors(self, *, amsgrad: bool = False) -> tuple[StateTensor, ...]:
        """Every state tensor; with `amsgrad` also the largest second moment so far, kept as v itself is."""
        if not amsgrad:
            return self.state
        largest = (
            replace(tensor, name=f"max_{tensor.name}")
            for tensor in self.state
            if tensor.name.startswith(SECOND_MOMENT)
        )
        return (*self.state, *largest)

    @property
    def keeps_more_than_the_word(self) -> bool:
        """Whether something beside the visible word belongs to the weight, and is stale if that is changed."""
        return any(self.keeps(name) for name in WEIGHT_WORDS)


WEIGHT_WORDS = (*LOWER_WORDS, "remainder", "master")
"""State that belongs to the weight: a second and a third word, the rest of an exact master, a master."""

_M, _V = (StateTensor(name, beside_float8=BFLOAT16) for name in ("exp_avg", SECOND_MOMENT))
_M32, _V32 = StateTensor("exp_avg", torch.float32), StateTensor(SECOND_MOMENT, torch.float32)
_LO, _V_LO = StateTensor("lo"), StateTensor("exp_avg_sq_lo", beside_float8=BFLOAT16)
_LO2 = StateTensor("lo2")
_MASTER = StateTensor("master", torch.float32)
_REST, _V_REST = StateTensor("remainder", torch.int16), StateTensor("exp_avg_sq_remainder", torch.int16)

STRATEGIES: dict[str, Strategy] = {
    strategy.name: strategy
    for strategy in (
        Strategy("none", "plain 16-bit", "A", (_M, _V), "the baseline that loses", float8=True),
        Strategy("light", "Collage-light", "B", (_M, _V, _LO), "[Collage] algorithm 2, light", float8=True),
        Strategy(
            "plus", "Collage-plus", "C", (_M, _V, _LO, _V_LO), "[Collage] algorithm 2, plus", float8=True
        ),
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
"""Every strategy for 16 bit by name; those with `float8` take 8-bit weights as well."""

EXPERIMENTAL: dict[str, Strategy] = {
    strategy.name: strategy
    for strategy in (
        Strategy(
            "light-3",
            "three words",
            None,
            (_M, _V, _LO, _LO2),
            "[Collage] §3, an expansion of length 3",
            dtypes=(),
            storage_arithmetic=False,
            float8=True,
        ),
        Strategy(
            "plus-3",
            "three words, two of the second moment",
            None,
            (_M, _V, _LO, _LO2, _V_LO),
            "[Collage] §3, an expansion of length 3",
            dtypes=(),
            storage_arithmetic=False,
            float8=True,
        ),
    )
}
"""Strategies for 8-bit weights alone (docs/float8.md)."""


def strategy_for(name: str, dtype: torch.dtype) -> Strategy:
    """The strategy for one parameter: float32 weights are their own master, so they are updated plainly.

    Raises ValueError for a name that is none and TypeError for a dtype that the strategy does not store.
    """
    table = STRATEGIES | EXPERIMENTAL
    if name not in table:
        raise ValueError(f"unknown strategy {name!r}; choose one of {', '.join(map(repr, table))}")
    if dtype == torch.float32:
        return STRATEGIES["none"]
    plan = table[name]
    if plan.stores(dtype):
        return plan
    able = [repr(other.name) for other in table.values() if other.stores(dtype)]
    if not able:
        raise TypeError(
            f"no strategy supports {dtype} parameters; use bfloat16, float16 or float32 (model.to(torch.bfloat16), "
            "or roundoff.to_low_precision); float8_e4m3fn and float8_e5m2 are experimental"
        )
    takes = ", ".join(str(one) for one in (*plan.dtypes, *(FLOAT8_DTYPES if plan.float8 else ())))
    raise TypeError(
        f"strategy {name!r} stores {takes}, not {dtype}; cast the model, or choose one of {', '.join(able)} for "
        "this group"
    )
