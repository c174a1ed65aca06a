"""What is trained: the grid of strategies, arithmetic modes, β2 and seeds, and what all its runs have in common."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass

from roundoff.optim import STRATEGIES

BETAS2 = (0.95, 0.99, 0.999)
SEEDS = (0, 1, 2)
REFERENCE = "fp32-master"
"""The strategy that the others are compared with: D of [Collage]."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """What all runs have in common. The same seed gives the same float32 weights and the same batches.

    `lr` is the peak of a linear warm-up over a tenth of the steps, followed by half a cosine down to 0: the late
    phase with its tiny steps is where 16 bit loses most. `measured` steps are measured, evenly spread.
    """

    steps: int = 1000
    lr: float = 1e-3
    beta1: float = 0.9
    eps: float = 1e-8
    weight_decay: float = 0.1
    layers: int = 2
    width: int = 64
    heads: int = 4
    context: int = 48
    batch: int = 8
    measured: int = 25
    validation: int | None = None
    """Stretches of `context` characters that the loss is validated on; None takes the whole held-out text."""

    @property
    def fingerprint(self) -> str:
        """Names the recipe; results of another are not mixed with its own."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:12]

    @property
    def warmup(self) -> int:
        """Steps of linear warm-up."""
        return max(1, self.steps // 10)

    def lr_at(self, step: int) -> float:
        """The learning rate at `step`, 0 for the first."""
        if step < self.warmup:
            return self.lr * (step + 1) / self.warmup
        done = (step - self.warmup) / max(1, self.steps - self.warmup)
        return self.lr * (1 + math.cos(math.pi * done)) / 2

    def is_measured(self, step: int) -> bool:
        """Whether the optimizer's step `step` is measured: the last of every `steps / measured`."""
        every = max(1, self.steps // self.measured)
        return step % every == every - 1


TINY = Recipe(steps=6, layers=1, width=16, heads=2, context=16, batch=2, measured=3, validation=8)
"""A recipe to see in seconds that everything works; its losses mean nothing."""


@dataclass(frozen=True, slots=True)
class Case:
    """One training run of the grid."""

    strategy: str
    arithmetic: str
    beta2: float
    seed: int

    @property
    def name(self) -> str:
        """Also the name of its file."""
        return f"{self.strategy}-{self.arithmetic}-{self.beta2}-seed{self.seed}"


def grid(strategies: Iterable[str] = STRATEGIES, seeds: Iterable[int] = SEEDS) -> Iterator[Case]:
    """Every case, seed by seed, so that what is finished after a while can be compared.

    A strategy that keeps float32 has no storage arithmetic: its run in float32 arithmetic stands for both.
    """
    chosen = list(strategies)
    for seed in seeds:
        for beta2 in BETAS2:
            for name in chosen:
                for arithmetic in ("fp32", "storage") if STRATEGIES[name].storage_arithmetic else ("fp32",):
                    yield Case(name, arithmetic, beta2, seed)
