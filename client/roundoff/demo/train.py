"""One training run of the demo."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

import roundoff

from .model import Decoder, Shape
from .text import Text, draw_batch

LR = 1e-3
LAST_LR_SHARE = 0.1
BATCH = 8
VALIDATION_BATCHES = 8
VALIDATE_EVERY = 50

NAMES = {
    "none": "plain bf16 (none)",
    "light": "Collage light",
    "plus": "Collage plus",
    "fp32-master": "fp32-master",
}
"""What the runs of the demo are called, by strategy; another strategy is called by its own name."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """What all runs of one demo have in common. The same seed gives the same weights and batches."""

    steps: int = 400
    seed: int = 0

    @property
    def warmup(self) -> int:
        """Steps of linear warm-up."""
        return max(1, min(100, self.steps // 10 if self.steps < 300 else self.steps // 4))

    @property
    def every(self) -> int:
        """Every how many steps the statistics are measured."""
        return 2 if self.steps < 300 else 5

    def lr_factor(self, step: int) -> float:
        """Share of the peak learning rate at `step`: linear warm-up, then half a cosine down to a tenth."""
        if step < self.warmup:
            return (step + 1) / self.warmup
        done = (step - self.warmup) / max(1, self.steps - self.warmup)
        return LAST_LR_SHARE + (1 - LAST_LR_SHARE) * (1 + math.cos(math.pi * min(1.0, done))) / 2


def train(
    strategy: str, recipe: Recipe, text: Text, run: roundoff.Run, tell: Callable[[int, float], None]
) -> float:
    """Train with CollageAdamW in bfloat16; `tell(step, loss)` after each step. Returns the validation loss."""
    torch.manual_seed(recipe.seed)
    shape = Shape(len(text.vocabulary))
    model = Decoder(shape).to(torch.bfloat16)
    optimizer = roundoff.CollageAdamW(
        model.named_parameters(), lr=LR, betas=(0.9, 0.999), weight_decay=0.1, strategy=strategy
    )
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, recipe.lr_factor)
    run.watch(model, optimizer, every=recipe.every)
    batches = torch.Generator().manual_seed(recipe.seed)
    held_out = torch.Generator().manual_seed(recipe.seed + 1)
    validation = [
        draw_batch(text.validation, BATCH, shape.context, held_out) for _ in range(VALIDATION_BATCHES)
    ]
    for step in range(recipe.steps):
        loss = _loss(model, *draw_batch(text.train, BATCH, shape.context, batches))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        scheduler.step()
        value = loss.item()
        run.log({"loss": value}, step=step)
        tell(step, value)
        if (step + 1) % VALIDATE_EVERY == 0 and step + 1 < recipe.steps:
            run.log({"val_loss": _validate(model, validation)}, step=step)
    final = _validate(model, validation)
    run.log({"val_loss": final}, step=recipe.steps - 1)
    return final


def _loss(model: Decoder, inputs: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy in nats per character."""
    return functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


@torch.no_grad()
def _validate(model: Decoder, batches: list[tuple[Tensor, Tensor]]) -> float:
    return sum(_loss(model, *batch).item() for batch in batches) / len(batches)
