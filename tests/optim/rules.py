"""What the tests of the rules share: every strategy with its dtypes, and weights stepped without a model."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from roundoff.kernels import BACKENDS, KERNELS, Noise, Step, Update, unavailable
from roundoff.metrics import Sums
from roundoff.numerics import join_master
from roundoff.optim import STRATEGIES, CollageAdamW
from roundoff.optim.state import initial_state
from roundoff.watch.statistics import Meter

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
PAIRS = ("light", "plus", "kahan")
"""Strategies that hold a weight in two words."""

FLOAT32 = ("fp32-master", "exact")
"""Strategies that hold a weight as a float32 number."""

KEEPERS = (*PAIRS, *FLOAT32)
"""Strategies that hold more of a weight than the visible word."""

ONE_WORD = ("none", "fp32-state", "stochastic")
"""Strategies that hold the visible word alone."""

LONG_V = ("plus", "exact", "fp32-state", "fp32-master")
"""Strategies that hold more than 16 bits of the second moment."""

assert {*KEEPERS, *ONE_WORD} == set(STRATEGIES), "a new strategy needs a place in these tests"

backends = pytest.mark.parametrize("backend", [name for name in BACKENDS if unavailable(name) is None])


def plans(strategies: Sequence[str] = tuple(STRATEGIES)) -> Any:
    """Parametrise over `strategy` and `dtype`: these strategies with each 16-bit dtype that they store."""
    rows = [
        pytest.param(name, dtype, id=f"{name}-{str(dtype)[6:]}")
        for name in strategies
        for dtype in STRATEGIES[name].dtypes
    ]
    return pytest.mark.parametrize(("strategy", "dtype"), rows)


class Weights:
    """A few weights under one strategy and the state beside them, stepped by a kernel alone."""

    def __init__(
        self,
        strategy: str,
        start: Tensor,
        *,
        backend: str = "reference",
        arithmetic: str = "fp32",
        amsgrad: bool = False,
        **state: float | Tensor,
    ) -> None:
        self.plan = STRATEGIES[strategy]
        self.param = start.clone()
        self.state = initial_state(self.param, self.plan, amsgrad=amsgrad)
        del self.state["step"]
        for name, value in state.items():
            self.state[name].copy_(torch.as_tensor(value))
        self._kernel = KERNELS[backend, arithmetic]

    def step(self, grad: float | Tensor, step: Step, *, meter: Meter | None = None, key: int = 0) -> None:
        """One step with a gradient that broadcasts; `key` is of the random bits, where there are any."""
        g = torch.as_tensor(grad).to(self.param.dtype).expand_as(self.param).contiguous()
        noise = Noise(key) if self.plan.name == "stochastic" else None
        self._kernel([Update(self.param, g, self.state, self.plan, step, meter, noise)])
        if meter is not None and meter.error is not None:
            raise meter.error

    @property
    def stored(self) -> Tensor:
        """Everything that is stored of the weights, as float64."""
        if "master" in self.state:
            return self.state["master"].double()
        if "remainder" in self.state:
            return join_master(self.param, self.state["remainder"]).double()
        return self.param.double() + (self.state["lo"].double() if "lo" in self.state else 0.0)

    @property
    def v(self) -> Tensor:
        """Everything that is stored of the second moment, as float64."""
        hi = self.state["exp_avg_sq"]
        if "exp_avg_sq_remainder" in self.state:
            return join_master(hi, self.state["exp_avg_sq_remainder"]).double()
        return hi.double() + (self.state["exp_avg_sq_lo"].double() if "exp_avg_sq_lo" in self.state else 0.0)

    def words(self) -> dict[str, Tensor]:
        """A copy of every tensor that is kept."""
        return {name: words.clone() for name, words in {"param": self.param, **self.state}.items()}


def unchanged(before: dict[str, Tensor], after: dict[str, Tensor]) -> bool:
    """Whether two copies of what is kept are the same, bit for bit but for NaN."""
    return all(torch.equal(words, after[name]) for name, words in before.items())


def by(u: float) -> tuple[float, Step]:
    """A gradient and a step that intend exactly u, a float32 number, whatever is kept: lr is |u|, the rest 0."""
    return (-1.0 if u > 0 else 1.0), Step(1, abs(u), 0.0, 0.0, 0.0, 0.0)


@contextmanager
def nothing_said() -> Iterator[None]:
    """Fails where a warning comes. A filter "error" would not do: roundoff's warnings turn into log lines there."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        yield
    assert [str(warning.message) for warning in said] == []


def ones(dtype: torch.dtype = BF16, n: int = 64) -> nn.Parameter:
    return nn.Parameter(torch.ones(n, dtype=dtype))


def run(optimizer: CollageAdamW, w: nn.Parameter, grad: float, steps: int) -> Sums:
    """Steps with one gradient for all elements; returns what was measured."""
    total = Sums()
    for _ in range(steps):
        w.grad = torch.full_like(w, grad)
        optimizer.meters = {}
        optimizer.step()
        total += optimizer.meters[w].sums()
    return total
