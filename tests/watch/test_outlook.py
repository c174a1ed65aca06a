"""The forecast of a watched run, and the learning rates that a scheduler will set."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer, lr_scheduler as schedulers

import roundoff
from roundoff.watch.schedule import learning_rates

BF16 = torch.bfloat16


def two_groups() -> Optimizer:
    groups: list[dict[str, Any]] = [
        {"params": [nn.Parameter(torch.zeros(3))]},
        {"params": [nn.Parameter(torch.zeros(3))], "lr": 1e-2},
    ]
    return torch.optim.AdamW(groups, lr=1e-3)


SCHEDULERS: dict[str, Callable[[Optimizer], Any]] = {
    "cosine": lambda o: schedulers.CosineAnnealingLR(o, 50),
    "lambda": lambda o: schedulers.LambdaLR(o, [lambda s: 1 / (s + 1), lambda s: 0.9**s]),
    "steps": lambda o: schedulers.StepLR(o, 7),
    "sequence": lambda o: schedulers.SequentialLR(
        o, [schedulers.LinearLR(o, 0.1, 1, 10), schedulers.CosineAnnealingLR(o, 40)], [10]
    ),
    "chain": lambda o: schedulers.ChainedScheduler(
        [schedulers.ExponentialLR(o, 0.99), schedulers.StepLR(o, 9)]
    ),
    "one cycle": lambda o: schedulers.OneCycleLR(o, max_lr=[1e-2, 2e-2], total_steps=60),
    "cycles": lambda o: schedulers.CyclicLR(o, 1e-4, 1e-2, step_size_up=5, cycle_momentum=False),
    "restarts": lambda o: schedulers.CosineAnnealingWarmRestarts(o, 11),
    "polynomial": lambda o: schedulers.PolynomialLR(o, 40),
    "milestones": lambda o: schedulers.MultiStepLR(o, [5, 20]),
    "multiplied": lambda o: schedulers.MultiplicativeLR(o, lambda s: 0.97),
    "constant": lambda o: schedulers.ConstantLR(o, 0.5, 10),
}


@pytest.mark.filterwarnings("ignore:.*epoch parameter.*")
@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduler_tells_what_it_then_does(name: str) -> None:
    optimizer = two_groups()
    scheduler = SCHEDULERS[name](optimizer)
    for _ in range(3):
        optimizer.step()
        scheduler.step()
    told = learning_rates(scheduler, 40)
    assert learning_rates(scheduler, 40) == told
    for rates in told:
        assert rates == [group["lr"] for group in optimizer.param_groups]
        optimizer.step()
        scheduler.step()


def test_a_scheduler_that_goes_by_the_loss_is_refused() -> None:
    with pytest.raises(ValueError, match="give a table of learning rates"):
        learning_rates(schedulers.ReduceLROnPlateau(two_groups()), 10)
    with pytest.raises(ValueError, match="1 or larger"):
        learning_rates(schedulers.StepLR(two_groups(), 3), 0)


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.near_one = nn.Parameter(torch.ones(512, dtype=BF16))
        self.small = nn.Parameter(torch.full((512,), 0.01, dtype=BF16))


def train(strategy: str | None, steps: int) -> tuple[Two, Optimizer, Any, roundoff.watch.Watch]:
    torch.manual_seed(0)
    model = Two()
    optimizer: Optimizer = (
        torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0)
        if strategy is None
        else roundoff.CollageAdamW(model.parameters(), lr=1e-2, weight_decay=0, strategy=strategy)
    )
    scheduler = schedulers.LambdaLR(optimizer, lambda step: 0.5 ** (step / 10))
    watching = roundoff.watch(model, optimizer, every=1, headroom_every=1)
    run(model, optimizer, scheduler, steps)
    return model, optimizer, scheduler, watching


def run(model: Two, optimizer: Optimizer, scheduler: Any, steps: int) -> None:
    for _ in range(steps):
        for param in model.parameters():
            param.grad = torch.ones_like(param)
        optimizer.step()
        scheduler.step()


def test_layers_cross_when_the_forecast_says() -> None:
    """Every step is lr long: at 1 it is lost below 2^-9, at 0.01 below 2^-16."""
    model, optimizer, scheduler, watching = train(None, 5)
    told = watching.forecast(scheduler, steps=200)
    assert told.step == 4
    lost = {
        name: [one for one in found if one.figure == "lost_fraction"] for name, found in told.layers.items()
    }
    assert set(lost) == {"near_one", "small"}
    assert lost["near_one"][-1].lr == pytest.approx(2.0**-9, rel=0.5)
    assert lost["small"][0].step > lost["near_one"][-1].step
    run(model, optimizer, scheduler, 200)
    with watching:
        lines = {line.name: line.lost_fraction for line in watching.history.lines()}
    assert lines["near_one"] == 1.0
    assert "near_one: " in str(told)
    assert "the model: 10 % of updates lost from step" in str(told)
    first = told.model[0]
    assert str(told).endswith(
        f"What would have to change: a learning rate that stays above {first.lr:.2g}, which step {first.step:,} has, "
        'or CollageAdamW(…, strategy="plus"), 12 bytes per parameter instead of 8.'
    )


def test_what_is_lost_from_the_first_step_on_is_not_put_down_to_the_schedule() -> None:
    *_, watching = train(None, 5)
    with watching:
        told = watching.forecast({10: 1e-6, 11: 1e-7})
        none = watching.forecast({10: 1e-1, 11: 1e-1})
    assert told.change.startswith("What would have to change: CollageAdamW(")
    assert (none.model, none.change) == ((), "")


def test_a_table_of_learning_rates() -> None:
    *_, watching = train(None, 5)
    with watching:
        told = watching.forecast({10: 1e-2, 11: 1e-5, 12: 1e-9})
    assert {one.step for one in told.layers["near_one"]} == {11}
    assert told.model[0].step in (11, 12)


def test_pairs_are_told_later_and_exact_masters_nothing() -> None:
    *_, light = train("light", 5)
    *_, exact = train("exact", 5)
    with light, exact:
        table = {n: 1e-2 * 0.5**n for n in range(1, 40)}
        pair, master = light.forecast(table), exact.forecast(table)
    assert {one.figure for one in pair.model} == {"lost_fraction"}
    assert min(one.step for one in pair.layers["near_one"]) > 8
    assert master.model == ()
    assert master.layers == {}
    assert 'strategy="exact"' in pair.change
    assert str(master) == "the model: no level is crossed on this schedule"


def test_what_a_forecast_needs() -> None:
    model = Two()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)
    watching = roundoff.watch(model, optimizer, every=1, headroom_every=1)
    scheduler = schedulers.LambdaLR(optimizer, lambda step: 1.0)
    with pytest.raises(ValueError, match="needs a sample"):
        watching.forecast({0: 1.0})
    run(model, optimizer, scheduler, 1)
    with pytest.raises(ValueError, match="at a learning rate of 0"):
        watching.forecast({0: 1.0})
    with pytest.raises(ValueError, match="how many steps"):
        watching.forecast(scheduler)
    watching.detach()
    assert watching.history.newest is None  # nothing stays on the device
    with pytest.raises(ValueError, match=r"before detach\(\)"):
        watching.forecast({0: 1.0})
