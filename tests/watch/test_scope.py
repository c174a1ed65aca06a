"""What a watch looks at: layers by name, steps by cadence, histograms now and then, and what appears later."""

from __future__ import annotations

import gc
import logging
import weakref

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW
from trainings import BF16, OPTIMIZERS, Collected, Make, model_of, train

import roundoff
from roundoff.metrics import ROW

NUMEL = ROW.index("numel")
OWN_AND_SHADOW = pytest.mark.parametrize(
    "make", [OPTIMIZERS["AdamW loop"], OPTIMIZERS["CollageAdamW plus"]], ids=["shadow", "own"]
)


@OWN_AND_SHADOW
@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        ("*.weight", ["0.weight", "1.weight", "3.weight"]),
        (["0.*", "3.bias"], ["0.weight", "0.bias", "3.bias"]),
        (["*", "!1.*"], ["0.weight", "0.bias", "3.weight", "3.bias"]),
        ("!*.bias", ["0.weight", "1.weight", "3.weight"]),
    ],
)
def test_layers_are_chosen_by_name(make: Make, patterns: str | list[str], names: list[str]) -> None:
    model = model_of()
    optimizer = make(model.parameters())
    sink = Collected()
    with roundoff.watch(model, optimizer, every=1, layers=patterns, sink=sink):
        train(model, optimizer, 2)
    assert [layer.name for layer in sink.layers] == names
    assert [layer.index for layer in sink.layers] == list(range(len(names)))
    numel = {name: param.numel() for name, param in model.named_parameters()}
    for sample in sink.samples:
        assert list(sample.layers) == list(range(len(names)))
        assert [row[NUMEL] for row in sample.sums.tolist()] == [numel[name] for name in names]


def test_a_pattern_that_leaves_nothing_is_refused_with_names_near_it() -> None:
    model = model_of()
    with pytest.raises(ValueError, match=r"leaves none of the 6 parameters; names are such as .*0\.weight"):
        roundoff.watch(model, AdamW(model.parameters()), layers="0.weigth", sink=Collected())
    with pytest.raises(TypeError, match="must be a pattern or several, got 3"):
        roundoff.watch(model, AdamW(model.parameters()), layers=3, sink=Collected())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="headroom_every must be 1 or larger, got 0"):
        roundoff.watch(model, AdamW(model.parameters()), headroom_every=0, sink=Collected())


def test_by_itself_a_watch_measures_each_of_the_first_steps_then_every_tenth() -> None:
    model = model_of()
    optimizer = AdamW(model.parameters(), lr=1e-3)
    sink = Collected()
    with roundoff.watch(model, optimizer, sink=sink):
        train(model, optimizer, 60)
    assert [sample.step for sample in sink.samples] == [*range(33), 40, 50]


@OWN_AND_SHADOW
def test_histograms_come_at_their_own_cadence(make: Make) -> None:
    model = model_of()
    optimizer = make(model.parameters())
    often, seldom = Collected(), Collected()
    roundoff.watch(model, optimizer, every=2, headroom_every=1, sink=often)
    roundoff.watch(model, optimizer, every=1, headroom_every=3, sink=seldom)
    train(model, optimizer, 8)
    assert [one.step for one in often.samples if one.headroom is not None] == [0, 2, 4, 6]
    assert [one.step for one in seldom.samples] == list(range(8))
    assert [one.step for one in seldom.samples if one.headroom is not None] == [0, 3, 6]
    binned = seldom.samples[6].headroom
    assert binned is not None
    assert binned.tolist() == often.samples[3].headroom.tolist()  # type: ignore[union-attr]
    attempted, evidence = ROW.index("attempted"), ROW.index("expected_roundings")
    for sample in seldom.samples:
        assert all(0 < row[evidence] <= row[attempted] for row in sample.sums.tolist())


def test_a_forecast_is_made_from_the_last_sample_with_histograms() -> None:
    model = model_of()
    optimizer = AdamW(model.parameters(), lr=1e-3)
    with roundoff.watch(model, optimizer, every=1, headroom_every=4, sink=Collected()) as watch:
        train(model, optimizer, 7)
        assert watch.forecast({7: 1e-3, 8: 1e-9}).step == 4


@OWN_AND_SHADOW
def test_groups_that_are_added_and_parameters_that_are_thawed_join(make: Make) -> None:
    model = nn.ModuleDict({name: nn.Linear(4, 4, bias=False) for name in ("first", "frozen", "late")}).to(
        BF16
    )
    model["frozen"].requires_grad_(False)
    optimizer = make([*model["first"].parameters(), *model["frozen"].parameters()])
    sink = Collected()
    watch = roundoff.watch(model, optimizer, every=1, sink=sink)

    def step() -> list[int]:
        for param in model.parameters():
            param.grad = torch.ones_like(param) if param.requires_grad else None
        optimizer.step()
        return list(sink.samples[-1].layers)

    assert step() == [0]
    model["frozen"].requires_grad_(True)
    assert step() == [0, 1]
    optimizer.add_param_group({"params": list(model["late"].parameters())})
    assert step() == [0, 1, 2]
    assert [layer.name for layer in sink.layers] == ["first.weight", "frozen.weight", "late.weight"]
    assert [layer.group for layer in sink.layers] == [0, 0, 1]
    assert [line.name for line in watch.history.lines()] == ["first.weight", "frozen.weight", "late.weight"]
    model["first"].requires_grad_(False)
    assert step() == [0, 1, 2]
    assert sink.samples[-1].sums.tolist()[0][ROW.index("attempted")] == 0


def test_what_is_added_without_a_name_is_left_out_and_named_once(caplog: pytest.LogCaptureFixture) -> None:
    model = model_of()
    optimizer = AdamW(model.parameters(), lr=1e-3)
    sink = Collected()
    roundoff.watch(model, optimizer, every=1, sink=sink)
    late = nn.Parameter(torch.ones(2, dtype=BF16))
    optimizer.add_param_group({"params": [late]})
    with caplog.at_level(logging.WARNING, "roundoff"):
        for _ in range(3):
            late.grad = torch.ones_like(late)
            train(model, optimizer, 1)
    said = [record.message for record in caplog.records if "added later" in record.message]
    assert len(said) == 1
    assert "shape (2,) in group 1" in said[0]
    assert len(sink.samples) == 3


def test_only_one_of_several_replicas_measures() -> None:
    model = model_of()
    optimizer = AdamW(model.parameters(), lr=1e-3)
    sinks = [Collected(), Collected()]
    for replica, sink in enumerate(sinks):
        roundoff.watch(model, optimizer, every=1, replica=replica, sink=sink)
    train(model, optimizer, 2)
    assert [len(sink.samples) for sink in sinks] == [2, 0]
    assert [len(sink.layers) for sink in sinks] == [6, 0]


def test_detached_late_parameters_are_let_go_of_as_well() -> None:
    model = model_of()
    optimizer = SGD(model.parameters(), lr=1e-3)
    watch = roundoff.watch(model, optimizer, every=1, sink=Collected())
    model.register_parameter("late", nn.Parameter(torch.ones(2, dtype=BF16)))
    optimizer.add_param_group({"params": [model.late]})
    train(model, optimizer, 1)
    gone = weakref.ref(model.late)
    watch.detach()
    names = [layer.name for layer in watch.layers]
    del model, optimizer
    gc.collect()
    assert gone() is None
    assert names[-1] == "late"


def test_a_machine_that_leaves_roundings_out_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a compiler takes float32 → bfloat16 → float32 for nothing."""
    from roundoff.watch import canary

    monkeypatch.setattr(canary, "narrow", lambda value, dtype: value)
    canary._wrong.cache_clear()
    model = model_of()
    with pytest.raises(
        RuntimeError, match=r"statistics of torch.bfloat16 on cpu are wrong \(lost is 0, must be 1\)"
    ):
        roundoff.watch(model, AdamW(model.parameters()), sink=Collected())
    monkeypatch.undo()
    canary._wrong.cache_clear()
    roundoff.watch(model, AdamW(model.parameters()), sink=Collected()).detach()
