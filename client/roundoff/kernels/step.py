"""What one update step takes, whatever the backend: scalars of the step, and the backend's signature."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

if TYPE_CHECKING:
    from roundoff.optim.strategies import Strategy
    from roundoff.watch.statistics import Meter

Scalar = float | Tensor
"""A number or a 0-dim tensor."""


@dataclass(frozen=True, slots=True)
class Step:
    """Scalars of one AdamW step. `count` is t, 1 for the first step; `lr` and `eps` may be 0-dim tensors."""

    count: int
    lr: Scalar
    beta1: float
    beta2: float
    eps: Scalar
    weight_decay: float
    maximize: bool = False

    @property
    def correction1(self) -> float:
        """1 − β1ᵗ."""
        return 1.0 - self.beta1**self.count

    @property
    def correction2(self) -> float:
        """1 − β2ᵗ."""
        return 1.0 - self.beta2**self.count


class Kernel(Protocol):
    """One AdamW step on one parameter tensor, in place; the same signature for every backend.

    `param` and `grad` have one shape, `grad` any float dtype and it is only read; `state` holds the tensors
    that `strategy` names. With a `meter` the statistics of numerics §4 are added up in the same pass.
    """

    def __call__(
        self,
        param: Tensor,
        grad: Tensor,
        state: Mapping[str, Tensor],
        strategy: Strategy,
        step: Step,
        meter: Meter | None = None,
    ) -> None: ...
