"""What one update step takes, whatever the backend: scalars of the step, the tensors, and the signature."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

if TYPE_CHECKING:
    from roundoff.optim.strategies import Strategy
    from roundoff.watch.statistics import Meter

Scalar = float | Tensor
"""A number or a 0-dim tensor."""


@dataclass(frozen=True, slots=True)
class Step:
    """Scalars of one AdamW step, shared by the parameters of a group that have stepped equally often.

    `count` is t, 1 for the first step; it, `lr` and `eps` may be 0-dim tensors, which then stay on their
    device. `gradient_scale` is what gradients are multiplied by first (1 / loss scale); `found_inf`, a 0-dim
    tensor, is not 0 where a loss scaler wants nothing to change; both are None without one.
    """

    count: Scalar
    lr: Scalar
    beta1: float
    beta2: float
    eps: Scalar
    weight_decay: float
    maximize: bool = False
    amsgrad: bool = False
    gradient_scale: Scalar | None = None
    found_inf: Tensor | None = None
    step_size: Scalar = field(init=False)
    """−lr / (1 − β1ᵗ)."""
    root_scale: Scalar = field(init=False)
    """1 / √(1 − β2ᵗ)."""
    decay: Scalar = field(init=False)
    """−lr·wd."""

    def __post_init__(self) -> None:
        lr = _wide(self.lr)
        object.__setattr__(self, "step_size", -lr / self.correction1)
        corrected = self.correction2
        root = corrected.rsqrt() if isinstance(corrected, Tensor) else 1.0 / math.sqrt(corrected)
        object.__setattr__(self, "root_scale", root)
        object.__setattr__(self, "decay", -lr * self.weight_decay)

    @property
    def correction1(self) -> Scalar:
        """1 − β1ᵗ, binary64."""
        return 1.0 - self.beta1 ** _wide(self.count)

    @property
    def correction2(self) -> Scalar:
        """1 − β2ᵗ, binary64."""
        return 1.0 - self.beta2 ** _wide(self.count)


def _wide(value: Scalar) -> Scalar:
    """A tensor in binary64; on the CPU, where nothing waits, a number."""
    if not isinstance(value, Tensor):
        return value
    return float(value) if value.device.type == "cpu" else value.to(torch.float64)


@dataclass(frozen=True, slots=True)
class Noise:
    """Where the random bits of one tensor come from: its key, and the index of its first element.

    `index` overrides `first` where the elements of a shard do not follow each other in the whole tensor: int64,
    flat, one per element.
    """

    key: int
    first: int = 0
    index: Tensor | None = None


@dataclass(slots=True)
class Update:
    """One parameter tensor to be stepped, in place.

    `param` and `grad` have one shape, `grad` any float dtype and it is only read; `state` holds the tensors
    that `strategy` names. With a `meter` the statistics of numerics §4 are added up in the same pass.
    """

    param: Tensor
    grad: Tensor
    state: Mapping[str, Tensor]
    strategy: Strategy
    step: Step
    meter: Meter | None = None
    noise: Noise | None = None


class Kernel(Protocol):
    """One AdamW step on many parameter tensors, in place; the same signature for every backend."""

    def __call__(self, updates: Sequence[Update]) -> None: ...
