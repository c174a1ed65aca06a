"""A watch over real optimizers: what it finds, and that it leaves training alone."""

from __future__ import annotations

import gc
import io
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import nn
from torch.optim import SGD, Adadelta, Adafactor, Adagrad, Adam, AdamW, NAdam, Optimizer, RAdam, RMSprop
from torch.utils._python_dispatch import TorchDispatchMode

import roundoff
from roundoff import metrics
from roundoff.delivery.sample import Sample
from roundoff.metrics import ROW
from roundoff.optim import CollageAdamW
from roundoff.watch.report import print_report
from roundoff.wire import Layer

BF16 = torch.bfloat16
Make = Callable[[Any], Optimizer]

OPTIMIZERS: dict[str, Make] = {
    "AdamW loop": lambda p: AdamW(p, lr=1e-3, foreach=False),
    "AdamW foreach": lambda p: AdamW(p, lr=1e-3, foreach=True),
    "AdamW fused": lambda p: AdamW(p, lr=1e-3, fused=True),
    "AdamW amsgrad": lambda p: AdamW(p, lr=1e-3, amsgrad=True),
    "AdamW capturable lr": lambda p: AdamW(p, lr=torch.tensor(1e-3), foreach=False),
    "Adam": lambda p: Adam(p, lr=1e-3, weight_decay=0.1),
    "NAdam": lambda p: NAdam(p, lr=1e-3),
    "RAdam": lambda p: RAdam(p, lr=1e-3),
    "SGD": lambda p: SGD(p, lr=1e-2),
    "SGD momentum": lambda p: SGD(p, lr=1e-2, momentum=0.9, nesterov=True, weight_decay=1e-2),
    "Adafactor": lambda p: Adafactor(p, lr=1e-3),
    "RMSprop": lambda p: RMSprop(p, lr=1e-3),
    "Adagrad": lambda p: Adagrad(p, lr=1e-2),
    "Adadelta": lambda p: Adadelta(p, lr=1.0),
    "CollageAdamW none": lambda p: CollageAdamW(p, strategy="none"),
    "CollageAdamW plus": lambda p: CollageAdamW(p, strategy="plus"),
    "CollageAdamW master": lambda p: CollageAdamW(p, strategy="fp32-master"),
}


class Collected:
    """A sink that keeps what it is given."""

    def __init__(self) -> None:
        self.layers: list[Layer] = []
        self.samples: list[Sample] = []

    def declare(self, layers: Sequence[Layer]) -> None:
        self.layers.extend(layers)

    def sample(self, sample: Sample) -> None:
        self.samples.append(sample)


def model_of(dtype: torch.dtype = BF16) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.Dropout(0.1), nn.Linear(32, 16)).to(dtype)


def train(model: nn.Module, optimizer: Optimizer, steps: int) -> list[float]:
    losses = []
    dtype = next(model.parameters()).dtype
    for _ in range(steps):
        x = torch.randn(8, 16).to(dtype)
        loss = (model(x) - x.flip(1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("dtype", [BF16, torch.float32], ids=str)
@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_training_is_bit_identical_with_and_without(make: Make, dtype: torch.dtype) -> None:
    results = []
    for watched in (False, True):
        model = model_of(dtype)
        optimizer = make(model.parameters())
        if watched:
            roundoff.watch(model, optimizer, every=2, sink=Collected())
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            losses = train(model, optimizer, 12)
        state = [v for s in optimizer.state.values() for v in s.values() if isinstance(v, torch.Tensor)]
        results.append(
            (losses, [p.detach().clone() for p in model.parameters()], state, torch.get_rng_state())
        )
    assert results[0][0] == results[1][0]
    for a, b in zip(results[0][1] + results[0][2], results[1][1] + results[1][2], strict=True):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)
    assert torch.equal(results[0][3], results[1][3])


def collected(make: Make, steps: int = 12, every: int = 2, dtype: torch.dtype = BF16) -> Collected:
    model = model_of(dtype)
    optimizer = make(model.parameters())
    sink = Collected()
    with roundoff.watch(model, optimizer, every=every, sink=sink):
        train(model, optimizer, steps)
    return sink


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_every_layer_is_measured_at_every_sampled_step(make: Make) -> None:
    sink = collected(make)
    assert [sample.step for sample in sink.samples] == [0, 2, 4, 6, 8, 10]
    assert [layer.name for layer in sink.layers] == [
        "0.weight",
        "0.bias",
        "1.weight",
        "1.bias",
        "3.weight",
        "3.bias",
    ]
    numel, attempted = ROW.index("numel"), ROW.index("attempted")
    for sample in sink.samples:
        rows = sample.sums.tolist()
        assert [row[numel] for row in rows] == [layer.numel for layer in sink.layers]
        assert all(row[attempted] > 0 for row in rows)


def formula(
    w: torch.Tensor, g: torch.Tensor, state: dict[str, torch.Tensor], lr: float, decay: float
) -> torch.Tensor:
    """u of AdamW by hand in binary64: numerics §3, not the difference of two weights."""
    w, g = w.double(), g.double()
    count = float(state["step"]) + 1 if state else 1.0
    m = 0.9 * (state["exp_avg"].double() if state else 0.0) + (1 - 0.9) * g
    v = 0.999 * (state["exp_avg_sq"].double() if state else 0.0) + (1 - 0.999) * g * g
    return -lr * (m / (1 - 0.9**count) / ((v / (1 - 0.999**count)).sqrt() + 1e-8) + decay * w)


@pytest.mark.parametrize("lr", [1e-3, 2e-8])
def test_the_shadow_of_torch_adamw_intends_what_the_formula_says(lr: float) -> None:
    """At lr 2e-8 a shadow in binary32 would intend nothing at all for weights at 1.0."""
    torch.manual_seed(0)
    model = nn.Linear(64, 64, bias=False).to(BF16)
    with torch.no_grad():
        model.weight[:32] = 1.0
    optimizer = AdamW(model.parameters(), lr=lr, weight_decay=0.1)
    sink = Collected()
    roundoff.watch(model, optimizer, every=1, sink=sink)
    for _ in range(3):
        model.weight.grad = torch.randn(64, 64).to(BF16)
        before = model.weight.detach().clone()
        state = {name: value.clone() for name, value in optimizer.state[model.weight].items()}
        u = formula(before, model.weight.grad, state, lr, 0.1)
        optimizer.step()
        expected = roundoff.watch.measure(before, model.weight.detach(), u)
        row = dict(zip(ROW, sink.samples[-1].sums.tolist()[0], strict=True))
        assert row["attempted"] == 4096
        for name in ("attempted", "lost", "invisible", "unchanged", "underflowed"):
            assert row[name] == getattr(expected, name), name
        for name in metrics.SUMS:
            assert row[name] == pytest.approx(getattr(expected, name), rel=1e-6, abs=1e-30), name


def test_flame_47_norm_weights_stall_while_the_model_looks_well() -> None:
    sink = collected(lambda p: AdamW(p, lr=1e-3), steps=60)
    model = model_of()
    optimizer = AdamW(model.parameters(), lr=1e-3)
    watch = roundoff.watch(model, optimizer, every=2, sink=Collected())
    train(model, optimizer, 60)
    worst = watch.history.lines()[0]
    assert (worst.name, worst.state, worst.lost_fraction) == ("1.weight", "stalling", 1.0)
    assert metrics.descent_efficiency(watch.history.window) > 0.9
    verdict = watch.verdict()
    assert verdict.state == "stalling"
    assert "1.weight" in verdict.explanation
    frozen, of = ROW.index("frozen"), ROW.index("frozen_of")
    last = sink.samples[-1].sums.tolist()
    assert last[2][frozen] == last[2][of] == 32
    assert last[0][frozen] < last[0][of]


def test_the_same_model_under_collage_is_healthy() -> None:
    model = model_of()
    optimizer = CollageAdamW(model.parameters(), lr=1e-3)
    watch = roundoff.watch(model, optimizer, every=2, sink=Collected())
    train(model, optimizer, 60)
    assert watch.verdict().state == "healthy"
    assert {line.state for line in watch.history.lines()} == {"healthy"}


def test_float32_models_are_watched_in_float64() -> None:
    sink = collected(lambda p: SGD(p, lr=1e-7), steps=6, dtype=torch.float32)
    lost = ROW.index("lost")
    assert all(row[lost] > 0 for row in sink.samples[-1].sums.tolist()[2:3])


class Counted(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "make", [OPTIMIZERS["AdamW loop"], OPTIMIZERS["CollageAdamW plus"]], ids=["shadow", "own"]
)
def test_an_unsampled_step_adds_no_tensor_operation(make: Make) -> None:
    calls = []
    for watched in (False, True):
        model = model_of()
        optimizer = make(model.parameters())
        if watched:
            roundoff.watch(model, optimizer, every=10, sink=Collected())
        train(model, optimizer, 3)
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        with Counted() as counted:
            optimizer.step()
        calls.append(counted.calls)
    assert calls[0]
    assert calls[0] == calls[1]


def test_detached_nothing_stays_behind() -> None:
    model = model_of()
    optimizer = AdamW(model.parameters(), lr=1e-3)
    keys = set(optimizer.__dict__)
    for _ in range(100):
        watch = roundoff.watch(model, optimizer, every=1, sink=Collected())
        watch.detach()
    with roundoff.watch(model, optimizer, every=1, sink=Collected()):
        train(model, optimizer, 2)
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks
    assert set(optimizer.__dict__) == keys
    last = weakref.ref(roundoff.watch(model, optimizer, every=1, sink=Collected()))
    last().detach()  # type: ignore[union-attr]
    gc.collect()
    assert last() is None


def test_numbering_goes_on_after_a_resume() -> None:
    model = model_of()
    optimizer = AdamW(model.parameters(), lr=1e-3)
    train(model, optimizer, 7)
    sink = Collected()
    roundoff.watch(model, optimizer, every=5, sink=sink)
    train(model, optimizer, 10)
    assert [sample.step for sample in sink.samples] == [10, 15]


def test_a_failure_inside_is_said_once_and_training_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any) -> None:
        raise ZeroDivisionError("no such thing")

    monkeypatch.setattr("roundoff.watch.watching.replay", broken)
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

    monkeypatch.setattr("roundoff.watch.watching.replay", broken)
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
    assert not sink.samples


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


def test_a_replay_that_was_not_faithful_is_not_recorded() -> None:
    model = model_of()
    optimizer = Normed(model.parameters(), lr=1.0)
    sink = Collected()
    roundoff.watch(model, optimizer, every=1, sink=sink)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        train(model, optimizer, 2)
    assert any("did not give what the optimizer then did" in str(one.message) for one in said)
    assert not sink.samples


def test_a_layer_without_gradient_attempts_nothing_and_a_late_one_is_named() -> None:
    model = model_of()
    optimizer = AdamW(model.parameters(), lr=1e-3)
    sink = Collected()
    roundoff.watch(model, optimizer, every=1, sink=sink)
    train(model, optimizer, 1)
    model[0].bias.grad = None
    optimizer.step()
    row = dict(zip(ROW, sink.samples[-1].sums.tolist()[1], strict=True))
    assert (row["numel"], row["attempted"]) == (32, 0)
    late = nn.Parameter(torch.ones(2, dtype=BF16))
    optimizer.add_param_group({"params": [late]})
    late.grad = torch.ones_like(late)
    with pytest.warns(UserWarning, match="added after the watch began"):
        optimizer.step()


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
        optimizer = CollageAdamW(model.parameters())
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

    monkeypatch.setattr("roundoff.watch.watching.replay", broken)
    model = model_of()
    optimizer = AdamW(model.parameters(), lr=1e-3)
    roundoff.watch(model, optimizer, every=1, sink=Collected())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(model, optimizer, 2)
    assert "no such thing" in caplog.text


def test_a_closure_cannot_be_replayed_and_this_is_said_once() -> None:
    model = model_of()
    optimizer = SGD(model.parameters(), lr=1e-3)
    sink = Collected()
    roundoff.watch(model, optimizer, every=1, sink=sink)

    def closure() -> float:
        optimizer.zero_grad()
        loss = model(torch.ones(2, 16, dtype=BF16)).square().mean()
        loss.backward()
        return loss.item()

    with pytest.warns(UserWarning, match="closure"):
        optimizer.step(closure)
    with warnings.catch_warnings(record=True) as said_again:
        optimizer.step(closure)
    assert not said_again
    assert not sink.samples


def test_bad_input_is_named() -> None:
    model, other = model_of(), model_of()
    with pytest.raises(ValueError, match="every must be 1 or larger, got 0"):
        roundoff.watch(model, AdamW(model.parameters()), every=0)
    with pytest.raises(ValueError, match="do not belong together: none of the optimizer's 6 parameters"):
        roundoff.watch(model, AdamW(other.parameters()))
    stray = nn.Parameter(torch.ones(3, 4))
    with pytest.raises(
        ValueError, match=r"1 parameters of the optimizer have no name in the model: shape \(3, 4\)"
    ):
        roundoff.watch(model, AdamW([*model.parameters(), stray]))
    named = AdamW([*model.named_parameters(), ("stray", stray)])
    assert roundoff.watch(model, named, sink=Collected()).layers[-1].name == "stray"


def test_tied_weights_count_once_and_frozen_ones_not() -> None:
    model = nn.ModuleDict(
        {"embed": nn.Embedding(8, 4), "head": nn.Linear(4, 8, bias=False), "off": nn.Linear(2, 2)}
    )
    model["head"].weight = model["embed"].weight
    model["off"].requires_grad_(False)
    watch = roundoff.watch(model, AdamW(model.parameters()), sink=Collected())
    assert [layer.name for layer in watch.layers] == ["embed.weight"]


def test_the_report_names_the_layer_and_the_numbers() -> None:
    model = model_of()
    optimizer = AdamW(model.parameters(), lr=1e-3)
    watch = roundoff.watch(model, optimizer, every=2, sink=Collected())
    out = io.StringIO()
    print_report(watch.history, Console(file=out, width=100))
    assert "No verdict yet." in out.getvalue()
    train(model, optimizer, 60)
    out = io.StringIO()
    print_report(watch.history, Console(file=out, width=100))
    text = out.getvalue()
    assert "Stalling. 1 of 6 layers loses most of its updates to rounding." in text
    assert "1.weight" in text
    assert "100 %" in text
    assert "30 samples, last at step 58" in text
