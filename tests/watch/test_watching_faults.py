"""What goes wrong in or around a watch stays there: training goes on, and it is said once."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW, Optimizer
from trainings import BF16, OPTIMIZERS, Collected, model_of, train

import roundoff
from roundoff.metrics import ROW
from roundoff.optim import CollageAdamW


def test_a_failure_inside_is_said_once_and_training_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any) -> None:
        raise ZeroDivisionError("no such thing")

    monkeypatch.setattr("roundoff.watch.shadow.measure_replay", broken)
    model = model_of()
    optimizer = AdamW(model.parameters(), lr=1e-3)
    roundoff.watch(model, optimizer, every=1, sink=Collected())
    with pytest.warns(
        UserWarning, match=r"training goes on unwatched \(ZeroDivisionError: no such thing\)"
    ) as said:
        train(model, optimizer, 5)
    assert len(said) == 1


def test_a_failing_watch_does_not_break_the_hooks_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any) -> None:
        raise ZeroDivisionError("no such thing")

    monkeypatch.setattr("roundoff.watch.shadow.measure_replay", broken)
    model = model_of()
    optimizer = AdamW(model.parameters(), lr=1e-3)
    watch = roundoff.watch(model, optimizer, every=1, sink=Collected())
    seen: list[int] = []
    optimizer.register_step_pre_hook(lambda *args: seen.append(1))
    with pytest.warns(UserWarning, match="training goes on unwatched"):
        train(model, optimizer, 3)
    assert seen == [1, 1, 1]
    watch.detach()
    assert len(optimizer._optimizer_step_pre_hooks) == 1


def assert_only_visible(sink: Collected, **figures: float) -> None:
    """Every row says what was seen and claims nothing of attempts."""
    assert sink.samples
    for sample in sink.samples:
        for numbers in sample.sums.tolist():
            row = dict(zip(ROW, numbers, strict=True))
            assert all(row[name] == 0 for name in ("attempted", "lost", "invisible", "sum_uu", "sum_ua"))
            assert row["expected_roundings"] == 0
            assert {name: row[name] for name in figures} == figures


class Lookahead(Optimizer):
    """Steps another optimizer, as many wrappers do."""

    def __init__(self, base: Optimizer) -> None:
        self.base = base
        super().__init__([p for group in base.param_groups for p in group["params"]], {"lr": 0.1})

    def step(self, closure: Any = None) -> None:
        self.base.step()


class Remembering(SGD):
    """Keeps lists in attributes and in state, and scales by their length."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, lr=0.1)
        self.log: list[int] = []

    def step(self, closure: Any = None) -> None:
        self.log.append(1)
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p].setdefault("seen", []).append(1)
                with torch.no_grad():
                    p.sub_(p.grad * 0.1 * len(self.log) * len(self.state[p]["seen"]))


def test_an_optimizer_that_steps_another_is_refused_and_left_alone() -> None:
    model = nn.Linear(4, 1, bias=False).to(BF16)
    with torch.no_grad():
        model.weight.fill_(1.0)
    optimizer = Lookahead(SGD(model.parameters(), lr=0.125))
    sink = Collected()
    roundoff.watch(model, optimizer, every=1, sink=sink)
    model.weight.grad = torch.ones_like(model.weight)
    with pytest.warns(
        UserWarning, match=r"Lookahead steps another optimizer \(base\); watch that one instead"
    ):
        optimizer.step()
    assert torch.equal(model.weight, torch.full_like(model.weight, 0.875))
    assert_only_visible(sink, numel=4, unchanged=0, sum_ss=4 * 0.125**2, sum_ww=4.0)


def test_containers_that_an_optimizer_keeps_are_copied_for_the_replay() -> None:
    results = []
    for watched in (False, True):
        model = nn.Linear(4, 1, bias=False)
        with torch.no_grad():
            model.weight.fill_(1.0)
        optimizer = Remembering(model.parameters())
        if watched:
            roundoff.watch(model, optimizer, every=1, sink=Collected())
        for _ in range(3):
            model.weight.grad = torch.full_like(model.weight, 0.1)
            optimizer.step()
        results.append(
            (model.weight.detach().clone(), len(optimizer.log), optimizer.state[model.weight]["seen"])
        )
    assert torch.equal(results[0][0], results[1][0])
    assert results[0][1:] == results[1][1:] == (3, [1, 1, 1])


class Normed(SGD):
    """Couples its tensors: every step has the same global norm, so one tensor alone cannot be replayed."""

    def step(self, closure: Any = None) -> None:
        grads = [p.grad for group in self.param_groups for p in group["params"]]
        norm = torch.stack([g.float().norm() for g in grads]).norm()
        for group in self.param_groups:
            for p in group["params"]:
                with torch.no_grad():
                    p.sub_(p.grad / norm)


def test_a_replay_that_was_not_faithful_is_not_recorded_and_only_the_visible_change_from_then_on() -> None:
    model = model_of()
    optimizer = Normed(model.parameters(), lr=1.0)
    sink = Collected()
    roundoff.watch(model, optimizer, every=1, sink=sink)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        train(model, optimizer, 1)
        assert not sink.samples
        train(model, optimizer, 1)
    assert sum("did not give what the optimizer then did" in str(one.message) for one in said) == 1
    assert_only_visible(sink)


def test_a_layer_without_gradient_attempts_nothing() -> None:
    model = model_of()
    optimizer = AdamW(model.parameters(), lr=1e-3)
    sink = Collected()
    roundoff.watch(model, optimizer, every=1, sink=sink)
    train(model, optimizer, 1)
    model[0].bias.grad = None
    optimizer.step()
    row = dict(zip(ROW, sink.samples[-1].sums.tolist()[1], strict=True))
    assert (row["numel"], row["attempted"]) == (32, 0)


def test_each_layer_is_judged_by_the_learning_rate_of_its_own_group() -> None:
    model = model_of()
    groups = [{"params": [model[0].weight], "lr": 0.0}, {"params": [model[1].weight], "lr": 1e-3}]
    optimizer = AdamW(groups)
    watch = roundoff.watch(model, optimizer, every=2, sink=Collected())
    train(model, optimizer, 60)
    assert {line.name: line.state for line in watch.history.lines()} == {
        "0.weight": "idle",
        "1.weight": "stalling",
    }
    assert watch.verdict().state == "stalling"


def test_two_watches_on_one_optimizer_see_the_same() -> None:
    for make in (OPTIMIZERS["CollageAdamW plus"], OPTIMIZERS["AdamW loop"]):
        model = model_of()
        optimizer = make(model.parameters())
        sinks = [Collected(), Collected()]
        for sink in sinks:
            roundoff.watch(model, optimizer, every=2, sink=sink)
        train(model, optimizer, 4)
        first, second = ([sample.sums.tolist() for sample in sink.samples] for sink in sinks)
        assert first == second
        assert len(first) == 2


def test_a_meter_that_fails_leaves_the_step_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any, **kwargs: Any) -> None:
        raise MemoryError("no room")

    steps = []
    for fails in (False, True):
        model = model_of()
        torch.manual_seed(1)
        optimizer = CollageAdamW(model.parameters(), backend="reference")
        roundoff.watch(model, optimizer, every=1, sink=Collected())
        if fails:
            monkeypatch.setattr("roundoff.watch.statistics.Meter.update", broken)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            train(model, optimizer, 3)
        assert len(said) == int(fails)
        assert optimizer.meters is None
        steps.append([p.detach().clone() for p in model.parameters()])
    for a, b in zip(*steps, strict=True):
        assert torch.equal(a, b)


def test_an_optimizer_without_a_learning_rate_is_watched() -> None:
    model = model_of()
    optimizer = SGD(model.parameters(), lr=1e-2)
    sink = Collected()
    roundoff.watch(model, optimizer, every=1, sink=sink)
    optimizer.param_groups[0]["lr"] = 1e-2
    optimizer.state["note"] = 3  # type: ignore[index,assignment]
    roundoff.watch(model, optimizer, every=1, sink=Collected()).detach()
    train(model, optimizer, 1)
    assert len(sink.samples) == 1


def test_where_warnings_are_errors_a_step_still_does_not_raise(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*args: Any) -> None:
        raise ZeroDivisionError("no such thing")

    monkeypatch.setattr("roundoff.watch.shadow.measure_replay", broken)
    model = model_of()
    optimizer = AdamW(model.parameters(), lr=1e-3)
    roundoff.watch(model, optimizer, every=1, sink=Collected())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(model, optimizer, 2)
    assert "no such thing" in caplog.text


class Extending(AdamW):
    """Calls the step of the class that it extends, for which PyTorch runs the hooks once more."""

    fail = False

    def step(self, closure: Any = None) -> Any:
        done = super().step(closure)
        if self.fail:
            raise ArithmeticError("after the step")
        return done


def test_a_step_within_a_step_is_one_step() -> None:
    sinks = []
    for make in (AdamW, Extending):
        model = model_of()
        optimizer = make(model.parameters(), lr=1e-3)
        sink = Collected()
        watch = roundoff.watch(model, optimizer, every=2, sink=sink)
        train(model, optimizer, 5)
        assert watch.step == 5
        sinks.append(sink)
    plain, extended = sinks
    assert [one.step for one in extended.samples] == [0, 2, 4]
    for one, other in zip(plain.samples, extended.samples, strict=True):
        assert torch.equal(one.sums, other.sums)  # type: ignore[arg-type]


def test_after_a_step_that_failed_steps_are_counted_as_ever() -> None:
    model = model_of()
    optimizer = Extending(model.parameters(), lr=1e-3)
    sink = Collected()
    watch = roundoff.watch(model, optimizer, every=1, sink=sink)
    train(model, optimizer, 2)
    optimizer.fail = True
    with pytest.raises(ArithmeticError):
        train(model, optimizer, 1)
    optimizer.fail = False
    train(model, optimizer, 2)
    assert watch.step == 4
    assert [one.step for one in sink.samples] == [0, 1, 2, 3]


class OneBeta(Optimizer):
    """Signs of a running mean; its group has a single beta."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 1e-3, "betas": (0.9,)})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for param in group["params"]:
                mean = self.state[param].setdefault("exp_avg", torch.zeros_like(param))
                mean.lerp_(param.grad, 1 - group["betas"][0])
                param.add_(mean.sign(), alpha=-group["lr"])


def test_a_group_with_one_beta_is_measured() -> None:
    model, sink = model_of(), Collected()
    optimizer = OneBeta(model.parameters())
    with roundoff.watch(model, optimizer, every=1, sink=sink):
        train(model, optimizer, 3)
    assert [sample.step for sample in sink.samples] == [0, 1, 2]
    assert all(torch.as_tensor(sample.sums)[:, ROW.index("attempted")].gt(0).all() for sample in sink.samples)
