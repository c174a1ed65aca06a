"""A watch over real optimizers: what it finds, and that it leaves training alone."""

from __future__ import annotations

import gc
import io
import warnings
import weakref
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import nn
from torch.optim import SGD, AdamW
from torch.utils._python_dispatch import TorchDispatchMode
from trainings import BF16, OPTIMIZERS, Collected, Make, model_of, train

import roundoff
from roundoff import metrics
from roundoff.metrics import ROW
from roundoff.optim import CollageAdamW
from roundoff.watch.report import print_report


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
