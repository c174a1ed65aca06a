"""Second words are recognised by what a class does with them, and nothing else is taken for one."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer
from trainings import BF16, Collected

import roundoff
from roundoff.metrics import ROW
from roundoff.numerics import join_master, split_master
from roundoff.watch.recognise import Second
from roundoff.watch.shadow import Shadow


class Keeping(Optimizer):
    """SGD whose weight has a second word, of a kind that no name gives away."""

    kind = "plus"

    def __init__(self, params: Any, lr: float = 1e-4) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["momentum"] = torch.zeros_like(p)  # it is none: the name must not tell
                    state["exp_avg"] = self.start(p)
                state["momentum"].lerp_(p.grad, 0.1)
                self.update(p, state, -group["lr"] * p.grad.float())

    def start(self, p: Tensor) -> Tensor:
        return torch.zeros_like(p)

    def update(self, p: Tensor, state: dict[str, Tensor], u: Tensor) -> None:
        state["exp_avg"].add_(u)
        before = p.clone()
        p.add_(state["exp_avg"])
        state["exp_avg"].add_(before.sub_(p))


class Subtracting(Keeping):
    kind = "minus"

    def update(self, p: Tensor, state: dict[str, Tensor], u: Tensor) -> None:
        """As in [Zamirai]: what was added too much is kept, and subtracted at the next step."""
        y = (u - state["exp_avg"].float()).to(p.dtype)
        after = p + y
        state["exp_avg"].copy_((after - p) - y)
        p.copy_(after)


class WithMaster(Keeping):
    kind = "master"

    def start(self, p: Tensor) -> Tensor:
        return p.float().clone()

    def update(self, p: Tensor, state: dict[str, Tensor], u: Tensor) -> None:
        state["exp_avg"].add_(u)
        p.copy_(state["exp_avg"])


class WithBits(Keeping):
    kind = "bits"

    def start(self, p: Tensor) -> Tensor:
        return torch.zeros_like(p, dtype=torch.int16)

    def update(self, p: Tensor, state: dict[str, Tensor], u: Tensor) -> None:
        if p.dtype != BF16:  # a copy in wider numbers
            p.add_(u)
            return
        hi, remainder = split_master(join_master(p.detach(), state["exp_avg"]) + u)
        p.copy_(hi)
        state["exp_avg"].copy_(remainder)


KEEPING = [Keeping, Subtracting, WithMaster, WithBits]


class Beside(Optimizer):
    """SGD that writes something about its weights beside them, and never reads it."""

    def __init__(self, params: Any, lr: float = 1e-4) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                before = p.clone()
                p.add_(p.grad, alpha=-group["lr"])
                self.write(self.state[p], p.detach(), before)

    def write(self, state: dict[str, Tensor], p: Tensor, before: Tensor) -> None:
        raise NotImplementedError


class Averaging(Beside):
    """A float32 average of the weights, which is as close to them as a master, at first even equal."""

    def write(self, state: dict[str, Tensor], p: Tensor, before: Tensor) -> None:
        state.setdefault("average", before.float()).lerp_(p.float(), 0.1)


class Copying(Beside):
    """A float32 copy of the weights."""

    def write(self, state: dict[str, Tensor], p: Tensor, before: Tensor) -> None:
        state["copy"] = p.float()


class Looking(Beside):
    """The last step, a small word of the weight's dtype."""

    def write(self, state: dict[str, Tensor], p: Tensor, before: Tensor) -> None:
        state["last"] = p - before


class Counting(Beside):
    """A count of the steps for every element, in a few bits."""

    def write(self, state: dict[str, Tensor], p: Tensor, before: Tensor) -> None:
        state.setdefault("count", torch.zeros_like(p, dtype=torch.int16)).add_(1)


class Marking(Beside):
    """A mark for every element, made once."""

    def write(self, state: dict[str, Tensor], p: Tensor, before: Tensor) -> None:
        state.setdefault("mark", torch.ones_like(p, dtype=torch.int8))


def measured(
    optimizer: Optimizer, model: nn.Module, grads: list[Tensor]
) -> tuple[list[Second | None], list[dict[str, float]]]:
    """The second word that is assumed, and the row, after each of some steps with the gradients given."""
    sink = Collected()
    watch = roundoff.watch(model, optimizer, every=1, sink=sink)
    shadow = watch._shadow
    assert shadow is not None
    found = []
    for grad in grads:
        for p in model.parameters():
            p.grad = grad.to(p.dtype).reshape(p.shape).clone()
        optimizer.step()
        found.append(next(iter(shadow._replayer._seconds.values()), None))
        assert {shadow.mode(p) for p in model.parameters()} == {"replay"}
    rows = [dict(zip(ROW, sample.sums.tolist()[0], strict=True)) for sample in sink.samples]
    return found, rows


def ones() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Linear(32, 32, bias=False).to(BF16)
    with torch.no_grad():
        model.weight.fill_(1.0)
    return model


def noise(scale: float, steps: int = 4) -> list[Tensor]:
    torch.manual_seed(1)
    return [scale * torch.randn(32, 32) for _ in range(steps)]


@pytest.mark.parametrize("make", KEEPING)
@pytest.mark.parametrize("weights", ["at one", "as initialised", "zero"])
def test_second_words_of_every_kind_are_found_at_the_first_step(make: type[Keeping], weights: str) -> None:
    model = ones()
    with torch.no_grad():
        if weights == "as initialised":
            model.weight.uniform_(-0.1, 0.1)
        elif weights == "zero":
            model.weight.zero_()
    found, rows = measured(make(model.parameters()), model, noise(1.0))
    assert {second and second.kind for second in found} == {make.kind}
    assert {second and second.path for second in found} == {("exp_avg",)}
    for row in rows:
        assert row["attempted"] == 1024
        assert row["lost"] <= 10
        assert row["sum_ua"] / row["sum_uu"] == pytest.approx(1.0, abs=0.01)
    if weights == "at one":
        assert all(row["invisible"] > 1000 for row in rows[:2])


@pytest.mark.parametrize("make", KEEPING)
def test_a_gradient_of_zero_hides_nothing(make: type[Keeping]) -> None:
    model = ones()
    found, rows = measured(make(model.parameters()), model, [torch.zeros(32, 32), *noise(1.0, 3)])
    assert {second and second.kind for second in found[1:]} == {make.kind}
    assert rows[0]["attempted"] == 0
    assert rows[1]["lost"] == 0


def sgd(**options: Any) -> Callable[[Any], Optimizer]:
    return lambda params: SGD(params, **options)


MOMENTA = {
    f"SGD {lr} {momentum} {nesterov}": sgd(lr=lr, momentum=momentum, nesterov=nesterov)
    for lr, momentum, nesterov in itertools.product((0.4, 0.7, 1.0, 2.0), (0.3, 0.5, 0.9, 1.0), (False, True))
}
"""With lr = 1 a first momentum is what the update has not yet stored, to the last bit; with lr·β/(1 − β) = 1 the
momentum always is what still has to be added."""

NONE: dict[str, Callable[[Any], Optimizer]] = {
    **MOMENTA,
    "SGD dampened": sgd(lr=1.0, momentum=0.9, dampening=0.9),
    "SGD without": sgd(lr=1e-4),
    "Adam": lambda p: Adam(p, lr=1e-4),
    "AdamW fused": lambda p: AdamW(p, lr=1e-4, fused=True),
    "average": lambda p: Averaging(p, lr=1e-4),
    "copy": lambda p: Copying(p, lr=1e-4),
    "count": lambda p: Counting(p, lr=1e-4),
    "mark": lambda p: Marking(p, lr=1e-4),
    "last step": lambda p: Looking(p, lr=1e-4),
}


@pytest.mark.parametrize("make", NONE.values(), ids=NONE)
@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e-4, 1.0])
def test_nothing_else_is_taken_for_one(make: Callable[[Any], Optimizer], scale: float) -> None:
    model = ones()
    found, rows = measured(make(model.parameters()), model, noise(scale))
    assert set(found) == {None}
    for row in rows:  # plain words: what is invisible is lost
        assert row["lost"] == row["invisible"]
    if 0 < scale < 1e-3:
        assert rows[0]["lost"] == rows[0]["attempted"]


def test_a_word_that_stops_being_a_second_word_is_noticed() -> None:
    class Turning(Keeping):
        plain = False

        def update(self, p: Tensor, state: dict[str, Tensor], u: Tensor) -> None:
            if self.plain:
                p.add_(u)
                state["exp_avg"].fill_(3.0)
            else:
                super().update(p, state, u)

    model = ones()
    optimizer = Turning(model.parameters())
    sink = Collected()
    watch = roundoff.watch(model, optimizer, every=1, sink=sink)
    for step in range(6):
        optimizer.plain = step >= 2
        model.weight.grad = noise(1.0, 1)[0].to(BF16)
        optimizer.step()
    assert isinstance(watch._shadow, Shadow)
    lost = [dict(zip(ROW, sample.sums.tolist()[0], strict=True))["lost"] for sample in sink.samples]
    steps = [sample.step for sample in sink.samples]
    assert steps == [0, 1, 3, 4, 5]  # the row that would have been wrong is not there
    assert lost[:2] == [0, 0]
    assert min(lost[2:]) > 1000
