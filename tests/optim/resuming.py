"""A training that stops and goes on in another process: `python resuming.py FOLDER` goes on with all of them."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR

from roundoff.optim import STRATEGIES, CollageAdamW

STEPS, MORE = 5, 10
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of training."""

    strategy: str
    dtype: torch.dtype
    amsgrad: bool = False
    arithmetic: str = "fp32"

    @property
    def name(self) -> str:
        """What tests and files are called after."""
        words = [self.strategy, str(self.dtype).removeprefix("torch."), self.arithmetic]
        return "-".join([*words, "amsgrad"] if self.amsgrad else words)


CASES = [
    Case(plan.name, dtype, amsgrad, arithmetic)
    for plan in STRATEGIES.values()
    for dtype in plan.dtypes
    for amsgrad in (False, True)
    for arithmetic in (("fp32", "storage") if plan.storage_arithmetic and not amsgrad else ("fp32",))
]


class Training:
    """A model, its optimizer and a schedule; data follow from the step's number."""

    def __init__(self, case: Case) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(16, 33), nn.LayerNorm(33), nn.GELU(), nn.Linear(33, 8))
        self.model.to(case.dtype)
        # Two groups, the second joined by name, so that the parameters' numbers cross a group's border.
        named = list(self.model.named_parameters())
        self.optimizer = CollageAdamW(
            [{"params": named[:3]}, {"params": named[3:], "weight_decay": 0.0}],
            lr=3e-3,
            weight_decay=0.1,
            strategy=case.strategy,
            arithmetic=case.arithmetic,
            amsgrad=case.amsgrad,
            seed=7,
        )
        self.scheduler = CosineAnnealingLR(self.optimizer, STEPS + MORE)
        self.dtype = case.dtype

    def advance(self, first: int, last: int) -> None:
        """Steps number `first` to `last`."""
        for step in range(first, last + 1):
            generator = torch.Generator().manual_seed(step)
            x = torch.randn(8, 16, generator=generator).to(self.dtype)
            self.optimizer.zero_grad()
            self.model(x).square().mean().backward()
            self.optimizer.step()
            self.scheduler.step()

    def saved(self) -> dict[str, Any]:
        """What a checkpoint holds."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
        }

    def load(self, saved: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.scheduler.load_state_dict(saved["scheduler"])

    def everything(self) -> dict[str, Tensor]:
        """Every bit that is kept, as integers."""
        kept: dict[str, Tensor] = {}
        for name, param in self.model.named_parameters():
            kept[name] = param.detach()
            kept |= {f"{name}/{word}": value for word, value in self.optimizer.state[param].items()}
        return {name: bits(value) for name, value in kept.items()}


def bits(value: Tensor) -> Tensor:
    """A copy as integers of its width: NaN equals itself, and −0.0 is not 0.0."""
    return value.detach().contiguous().view(_BITS[value.element_size()]).clone()


def go_on(folder: Path) -> None:
    """Take up every training whose checkpoint lies there, and leave what it becomes."""
    for case in CASES:
        training = Training(case)
        training.load(torch.load(folder / f"{case.name}.pt", weights_only=True))
        loaded = training.everything()
        training.advance(STEPS + 1, STEPS + MORE)
        torch.save([loaded, training.everything()], folder / f"{case.name}.after.pt")


if __name__ == "__main__":
    torch.set_num_threads(1)
    go_on(Path(sys.argv[1]))
