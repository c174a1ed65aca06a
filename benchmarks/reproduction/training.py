"""One training run of the study."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from roundoff import CollageAdamW, to_low_precision
from roundoff.demo.model import Shape
from roundoff.demo.text import Text, draw_batch
from roundoff.metrics import Sums, descent_efficiency, edq, invisible_fraction, lost_fraction, update_norm

from .model import Decoder, mean_loss
from .recipe import Case, Recipe
from .results import Curve, Result

AT_ONCE = 32
"""Stretches validated at once."""


def train(case: Case, recipe: Recipe, text: Text) -> Result:
    """Train one case in bfloat16 and validate the words that its forward pass reads."""
    start = time.process_time()
    model, optimizer = build(case, recipe, text)
    batches = torch.Generator().manual_seed(case.seed)
    curve = Curve()
    losses: list[float] = []
    for step in range(recipe.steps):
        for group in optimizer.param_groups:
            group["lr"] = recipe.lr_at(step)
        loss = mean_loss(model, *draw_batch(text.train, recipe.batch, recipe.context, batches))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        losses.append(loss.item())
        optimizer.meters = {} if recipe.is_measured(step) else None
        optimizer.step()
        if optimizer.meters is not None:
            sums = {name: optimizer.meters[param].sums() for name, param in model.named_parameters()}
            record(curve, step, math.fsum(losses) / len(losses), sums)
            losses.clear()
    return Result(
        **{name: getattr(case, name) for name in ("strategy", "arithmetic", "beta2", "seed")},
        recipe=recipe.fingerprint,
        parameters=sum(param.numel() for param in model.parameters()),
        loss=validate(model, recipe, text),
        curve=curve,
        seconds=round(time.process_time() - start, 1),
    )


def build(case: Case, recipe: Recipe, text: Text) -> tuple[Decoder, CollageAdamW]:
    """The model in bfloat16 and its optimizer; what the cast drops starts in lo, remainder or master.

    The optimizer is built after the cast, since storage arithmetic has no meaning for float32 parameters.
    """
    torch.manual_seed(case.seed)
    model = Decoder(Shape(len(text.vocabulary), recipe.layers, recipe.width, recipe.heads, recipe.context))
    exact = [param.detach().clone() for param in model.parameters()]
    to_low_precision(model)
    optimizer = CollageAdamW(
        model.named_parameters(),
        lr=recipe.lr,
        betas=(recipe.beta1, case.beta2),
        eps=recipe.eps,
        weight_decay=recipe.weight_decay,
        strategy=case.strategy,
        arithmetic=case.arithmetic,
        backend="reference",
        seed=case.seed,
    )
    for param, value in zip(model.parameters(), exact, strict=True):
        optimizer.seed(param, value)
    return model, optimizer


def record(curve: Curve, step: int, loss: float, layers: Mapping[str, Sums]) -> None:
    """Add one measured step from the sums by parameter name; `loss` is the mean since the one before."""
    model = sum(layers.values(), Sums())
    norms = sum((sums for name, sums in layers.items() if "norm" in name), Sums())
    curve.step.append(step)
    curve.train_loss.append(loss)
    curve.edq.append(edq(model))
    curve.update_norm.append(update_norm(model))
    curve.descent_efficiency.append(descent_efficiency(model))
    curve.lost_fraction.append(lost_fraction(model))
    curve.invisible_fraction.append(invisible_fraction(model))
    curve.norm_efficiency.append(descent_efficiency(norms))


@torch.no_grad()
def validate(model: Decoder, recipe: Recipe, text: Text) -> float:
    """Mean loss in nats per character over the held-out text, cut into stretches; the same for every run."""
    stretches = list(held_out(text, recipe))
    summed = math.fsum(mean_loss(model, *pair).item() * len(pair[0]) for pair in stretches)
    return summed / sum(len(inputs) for inputs, _ in stretches)


def held_out(text: Text, recipe: Recipe) -> Iterator[tuple[Tensor, Tensor]]:
    """Inputs and targets, (≤ AT_ONCE, context) each: stretches of the held-out text side by side, in order."""
    count = (len(text.validation) - 1) // recipe.context
    if recipe.validation is not None:
        count = min(count, recipe.validation)
    length = count * recipe.context
    inputs = text.validation[:length].view(count, recipe.context)
    targets = text.validation[1 : length + 1].view(count, recipe.context)
    return zip(torch.split(inputs, AT_ONCE), torch.split(targets, AT_ONCE), strict=True)
