"""Steps with a closure: measured with the gradients that it computes, called as often as without the watch."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import LBFGS, SGD, AdamW, Optimizer
from trainings import BF16, Collected, model_of

import roundoff
from roundoff.metrics import ROW

Step = Callable[[Optimizer, Callable[[], Any]], Any]

STEPS: dict[str, Step] = {
    "positional": lambda optimizer, closure: optimizer.step(closure),
    "keyword": lambda optimizer, closure: optimizer.step(closure=closure),
    "none": lambda optimizer, closure: (closure(), optimizer.step())[0],  # type: ignore[func-returns-value]
}


def trained(step: Step, watched: bool) -> tuple[list[Tensor], list[float], int, Collected]:
    """Weights, losses, calls of the closure, and what was measured."""
    model, sink = model_of(), Collected()
    optimizer = AdamW(model.parameters(), lr=1e-3)
    if watched:
        roundoff.watch(model, optimizer, every=2, sink=sink)
    calls, losses = 0, []

    def closure() -> float:
        nonlocal calls
        calls += 1
        optimizer.zero_grad()
        loss = model(torch.randn(8, 16).to(BF16)).square().mean()
        loss.backward()
        return loss.item()

    for _ in range(5):
        losses.append(step(optimizer, closure))
    return [param.detach().clone() for param in model.parameters()], losses, calls, sink


@pytest.mark.parametrize("kind", STEPS)
def test_training_with_a_closure_is_bit_identical_and_measured(kind: str) -> None:
    bare, losses, calls, _ = trained(STEPS[kind], watched=False)
    weights, same_losses, same_calls, sink = trained(STEPS[kind], watched=True)
    assert all(torch.equal(a, b) for a, b in zip(bare, weights, strict=True))
    assert (losses, calls) == (same_losses, same_calls) == (losses, 5)
    assert [sample.step for sample in sink.samples] == [0, 2, 4]
    *_, outside = trained(STEPS["none"], watched=True)
    for inside, plain in zip(sink.samples, outside.samples, strict=True):
        assert torch.equal(inside.sums, plain.sums)  # type: ignore[arg-type]


def test_what_a_closure_raises_is_raised_and_the_watch_goes_on() -> None:
    model, sink = model_of(), Collected()
    optimizer = SGD(model.parameters(), lr=1e-3)
    roundoff.watch(model, optimizer, every=1, sink=sink)

    def failing() -> float:
        raise LookupError("no batch left")

    with pytest.raises(LookupError, match="no batch left"):
        optimizer.step(failing)
    model(torch.ones(2, 16, dtype=BF16)).sum().backward()
    optimizer.step(lambda: 1.0)
    assert len(sink.samples) == 1


class Climbing(SGD):
    """Steps away first and evaluates there, as sharpness-aware optimizers do."""

    def step(self, closure: Any = None) -> Any:
        with torch.no_grad():
            for param in self.param_groups[0]["params"]:
                param.add_(1.0)
        with torch.enable_grad():
            closure()
        return super().step()


def test_an_optimizer_that_moves_before_its_closure_is_not_measured() -> None:
    model, sink = nn.Linear(4, 4, bias=False), Collected()
    optimizer = Climbing(model.parameters(), lr=0.1)
    roundoff.watch(model, optimizer, every=1, sink=sink)
    with pytest.warns(UserWarning, match="Climbing moves weights before its closure"):
        optimizer.step(lambda: model(torch.ones(1, 4)).sum().backward())
    assert not sink.samples


def test_of_a_line_search_only_what_is_visible_is_measured_and_this_is_said_once() -> None:
    model, sink = nn.Linear(4, 4), Collected()
    optimizer = LBFGS(model.parameters(), max_iter=3)
    roundoff.watch(model, optimizer, every=1, sink=sink)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(2, 4)).square().mean()
        loss.backward()
        return loss

    with pytest.warns(
        UserWarning, match="only the visible change of all layers is measured: a step with a closure"
    ):
        optimizer.step(closure)
    with warnings.catch_warnings(record=True) as said_again:
        optimizer.step(closure)
    assert not said_again
    assert len(sink.samples) == 2
    assert {layer.strategy for layer in sink.layers[2:]} == {"visible-float32"}
    attempted, seen = ROW.index("attempted"), ROW.index("sum_ss")
    assert all(row[attempted] == 0 and row[seen] > 0 for row in sink.samples[0].sums.tolist())
