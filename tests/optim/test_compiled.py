"""A training step compiled with Inductor: it breaks once, at the optimizer, and its bits are those of eager."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._dynamo
from simple import BF16, assert_equal, everything, model_of
from torch import Tensor, nn
from torch._dynamo.utils import counters

from roundoff.optim import STRATEGIES, CollageAdamW

# Inductor's imports warn about what they use themselves, and Dynamo looks at .grad of whatever it comes across.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*torch.jit.*is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
]


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    """What Dynamo compiled and counted belongs to one test."""
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def training_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[list[Tensor]], Tensor]:
    """A step with given gradients: those of a loss would differ, as a compiled forward pass rounds otherwise."""

    def step(gradients: list[Tensor]) -> Tensor:
        for param, gradient in zip(model.parameters(), gradients, strict=True):
            param.grad = gradient * 2
        optimizer.step()
        return sum((param.float().sum() for param in model.parameters()), torch.zeros(()))

    return step


def gradients(number: int) -> list[list[Tensor]]:
    generator = torch.Generator().manual_seed(0)
    params = list(model_of().parameters())
    return [[torch.randn(p.shape, generator=generator).to(BF16) for p in params] for _ in range(number)]


def made(strategy: str, **options: Any) -> tuple[nn.Module, CollageAdamW]:
    model = model_of()
    return model, CollageAdamW(model.parameters(), lr=1e-2, strategy=strategy, **options)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_compiled_training_step_has_the_bits_of_an_eager_one(strategy: str) -> None:
    results = []
    for compiled in (False, True):
        model, optimizer = made(strategy)
        step = training_step(model, optimizer)
        if compiled:
            step = torch.compile(step)
        totals = [step(one) for one in gradients(5)]
        results.append(everything(model, optimizer))
        assert all(total.isfinite() for total in totals)
    assert_equal(*results)
    assert sum(counters["graph_break"].values()) == 1
    assert counters["stats"]["unique_graphs"] == 2, "before the optimizer, and after it"


def test_the_one_break_is_the_optimizers_step() -> None:
    model, optimizer = made("plus")
    explained = torch._dynamo.explain(training_step(model, optimizer))(gradients(1)[0])
    assert (explained.graph_count, explained.graph_break_count) == (2, 1)
    assert "CollageAdamW.step" in str(explained.break_reasons[0].reason)


def test_nothing_is_compiled_again_as_steps_are_counted_and_the_learning_rate_moves() -> None:
    model, optimizer = made("plus")
    step = torch.compile(training_step(model, optimizer))
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
    for number, one in enumerate(gradients(6)):
        step(one)
        scheduler.step()
        if number == 1:
            graphs = counters["stats"]["unique_graphs"]
    assert counters["stats"]["unique_graphs"] == graphs


def test_hooks_and_measurements_run_outside_the_graph() -> None:
    model, optimizer = made("plus")
    compiling: list[bool] = []
    optimizer.register_step_pre_hook(lambda *_: compiling.append(torch.compiler.is_compiling()))
    optimizer.register_step_post_hook(lambda *_: compiling.append(torch.compiler.is_compiling()))
    step = torch.compile(training_step(model, optimizer))
    optimizer.meters = {}
    for one in gradients(2):
        step(one)
    assert compiling == [False] * 4
    assert sum(meter.sums().lost for meter in optimizer.meters.values()) == 0
    assert sum(counters["graph_break"].values()) == 1


def test_a_loss_and_its_backward_pass_compile_around_the_optimizer() -> None:
    model, optimizer = made("exact")

    @torch.compile
    def step(x: Tensor) -> Tensor:
        loss = model(x).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    x = torch.randn(16, 6, generator=torch.Generator().manual_seed(0)).to(BF16)
    losses = [float(step(x).detach()) for _ in range(30)]
    assert losses[-1] < 0.5 * losses[0]
    ours = [reason for reason in counters["graph_break"] if "CollageAdamW" in reason]
    assert len(ours) == 1
