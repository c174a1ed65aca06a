"""A budget for a sampled step: large tensors measured by some of their rows, and which optimizers allow it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from foreign import FOREIGN, model_of, train
from torch import Tensor, nn
from torch.optim import SGD, Adafactor, AdamW, Muon, Optimizer
from trainings import BF16, Collected

import roundoff
from roundoff.metrics import COUNTS, EVIDENCE, HEADROOM_BINS, ROW
from roundoff.watch.rows import Rows

BUDGET = 16 * 2552
"""A matrix of `model_of` has 16,384 bytes, and each is left 2,552; its vectors have 128 to 256."""
pytestmark = pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning")  # of torch.compile
LOST, ATTEMPTED, NUMEL = (ROW.index(name) for name in ("lost", "attempted", "numel"))

EQUAL_ROWS: dict[str, Callable[[Any], Optimizer]] = {
    "AdamW": lambda p: AdamW(p, lr=1e-3, weight_decay=0.1),
    "AdamW fused": lambda p: AdamW(p, lr=1e-3, fused=True),
    "SGD": lambda p: SGD(p, lr=1e-2, momentum=0.9),
}


class Rowwise(nn.Module):
    """120 rows that are all the same and get the same gradients: any of them stands for all."""

    def __init__(self) -> None:
        super().__init__()
        row = torch.linspace(-2.0, 2.0, 64)
        self.weight = nn.Parameter(row.repeat(120, 1).to(BF16))
        self.gain = nn.Parameter(torch.ones(8, dtype=BF16))


def stepped(
    make: Callable[[Any], Optimizer], budget: int | None, steps: int = 12
) -> tuple[Collected, Rowwise]:
    torch.manual_seed(1)
    model, sink = Rowwise(), Collected()
    optimizer = make(model.parameters())
    with roundoff.watch(model, optimizer, every=1, headroom_every=1, budget=budget, sink=sink):
        for _ in range(steps):
            model.weight.grad = torch.randn(64).repeat(120, 1).to(BF16)
            model.gain.grad = torch.randn(8).to(BF16)
            optimizer.step()
    return sink, model


@pytest.mark.parametrize("name", EQUAL_ROWS)
def test_rows_that_stand_for_all_give_the_figures_of_all(name: str) -> None:
    whole, trained = stepped(EQUAL_ROWS[name], None)
    some, also_trained = stepped(EQUAL_ROWS[name], 16 * 984)
    assert torch.equal(trained.weight, also_trained.weight)
    strategies = [(layer.name, layer.strategy) for layer in some.layers]
    assert strategies[-1] == ("weight", f"sampled-{name.split()[0]}"), "declared again, marked"
    evidence = ROW.index(EVIDENCE)
    for all_rows, few_rows in zip(whole.samples, some.samples, strict=True):
        full, estimate = torch.as_tensor(all_rows.sums), torch.as_tensor(few_rows.sums)
        assert torch.equal(estimate[:, : len(COUNTS)], full[:, : len(COUNTS)]), "rows stand for all of them"
        sums = slice(len(COUNTS), evidence)
        torch.testing.assert_close(estimate[:, sums], full[:, sums], rtol=1e-6, atol=0)
        # 15,360 bytes cut to 984: every 17th of 120 rows, 8 of them. What was seen is not scaled up.
        torch.testing.assert_close(estimate[0, evidence], full[0, evidence] * 8 / 120)
        torch.testing.assert_close(estimate[1], full[1])
        bins, full_bins = torch.as_tensor(few_rows.headroom), torch.as_tensor(all_rows.headroom)
        assert torch.equal(bins[:, :HEADROOM_BINS], full_bins[:, :HEADROOM_BINS])
        torch.testing.assert_close(bins, full_bins)


def figures(name: str, budget: int | None) -> tuple[list[float], dict[str, list[Tensor]], dict[str, str]]:
    """Losses; rows by layer; and how each was measured in the end."""
    model = model_of()
    optimizer = FOREIGN[name].make(model)
    sink = Collected()
    with roundoff.watch(model, optimizer, every=1, budget=budget, sink=sink) as watch:
        torch.manual_seed(1)
        losses = train(model, optimizer, 8)
        strategies = {layer.name: layer.strategy for layer in watch.layers}
    rows: dict[str, list[Tensor]] = {}
    names = {layer.index: layer.name for layer in sink.layers}
    for sample in sink.samples:
        for index, row in zip(sample.layers, torch.as_tensor(sample.sums), strict=True):
            rows.setdefault(names[index], []).append(row)
    return losses, rows, strategies


BY_ROWS = [
    "torch AdamW", "torch AdamW fused", "torch SGD momentum", "torch Adamax", "optimi AdamW", "optimi Lion",
    "pytorch_optimizer ScheduleFreeAdamW", "pytorch_optimizer AdaBelief", "torchao _AdamW bf16_stochastic_round",
]  # fmt: skip
AS_A_WHOLE = [
    "torch Muon",
    "torch Adafactor",
    "pytorch_optimizer Lamb",
    "pytorch_optimizer SOAP",
    "torchao AdamW8bit",
]


@pytest.mark.parametrize("name", BY_ROWS)
def test_large_tensors_are_estimated_from_rows(name: str) -> None:
    assert name in FOREIGN
    losses, rows, strategies = figures(name, None)
    same_losses, some, marked = figures(name, BUDGET)
    assert losses == same_losses
    for layer in ("0.weight", "3.weight"):
        assert marked[layer] == f"sampled-{strategies[layer]}"
        assert len(some[layer]) >= len(rows[layer]) - 1
        for full, estimate in zip(rows[layer][-6:], some[layer][-6:], strict=True):
            assert estimate[NUMEL] == full[NUMEL]
            share = float(full[LOST] / full[ATTEMPTED])
            assert float(estimate[LOST] / estimate[ATTEMPTED]) == pytest.approx(share, abs=0.06)
    for layer in set(rows) - {"0.weight", "3.weight"}:
        assert marked[layer] == strategies[layer]


@pytest.mark.parametrize("name", AS_A_WHOLE)
def test_what_looks_at_whole_tensors_is_measured_whole(name: str) -> None:
    losses, rows, strategies = figures(name, None)
    same_losses, some, marked = figures(name, BUDGET)
    assert losses == same_losses
    assert marked == strategies, "nothing is estimated"
    for layer in rows:
        assert all(torch.equal(a, b) for a, b in zip(rows[layer][2:], some[layer][-6:], strict=True)), layer


def test_the_budget_is_shared_out() -> None:
    sizes = [10, 20, 400, 4000]
    held = {size: torch.empty(size, dtype=torch.int8) for size in sizes}
    rows = Rows(sizes, 2010)
    # 2010 - 10 - 20 - 400 leaves 1580 for the last, which may take a sixteenth of all: 125.
    assert [rows.every(t, t) for t in held.values()] == [1, 1, 5, 33]
    # With thirty more like it each of the large ones is left 1980 / 32 = 61.
    many = Rows([*sizes, *[4000] * 30], 2010)
    assert [many.every(t, t) for t in held.values()] == [1, 1, 7, 67]
    rows.keep(held[4000])
    assert rows.every(held[4000], held[4000]) == 1
    everything = Rows(sizes, 16 * 4000)
    assert all(everything.every(t, t) == 1 for t in held.values())
    assert all(Rows(sizes, None).every(t, t) == 1 for t in held.values())
    wide, scalar = torch.empty(2, 4000, dtype=torch.int8), torch.empty((), dtype=torch.float64)
    assert Rows([8000], 10).every(wide, wide) == 2, "one row at least"
    assert Rows([8], 1).every(scalar, scalar) == 1


def test_a_parameter_whose_gradient_turns_sparse_is_measured_whole() -> None:
    model = nn.Embedding(64, 32, sparse=True).to(BF16)
    optimizer = torch.optim.SparseAdam(list(model.parameters()), lr=1e-2)
    sink = Collected()
    with roundoff.watch(model, optimizer, every=1, budget=16 * 512, sink=sink) as watch:
        for said in (True, False, False):
            model(torch.arange(8)).square().sum().backward()
            with pytest.warns(UserWarning, match="only dense gradients") if said else nullcontext():
                optimizer.step()
            optimizer.zero_grad()
        assert watch.layers[0].strategy == "visible-SparseAdam"
        assert watch.verdict().state is None, "nothing is known of what it lost"


def test_a_budget_of_nothing_is_refused() -> None:
    model = Rowwise()
    with pytest.raises(ValueError, match="budget must be 1 byte or more"):
        roundoff.watch(model, AdamW(model.parameters()), budget=0)


def test_muon_and_adafactor_step_more_than_rows() -> None:
    for make in (lambda p: Muon(p, lr=1e-2), lambda p: Adafactor(p, lr=1e-2)):
        sink = Collected()
        model = nn.Linear(64, 64, bias=False).to(BF16)
        optimizer = make(model.parameters())
        with roundoff.watch(model, optimizer, every=1, budget=16 * 1000, sink=sink) as watch:
            for _ in range(3):
                model(torch.randn(8, 64, dtype=BF16)).square().mean().backward()
                optimizer.step()
            assert not watch.layers[0].strategy.startswith("sampled-")
        assert len(sink.samples) >= 2


def test_advice_and_forecast_from_rows_are_those_from_all_of_them() -> None:
    told = []
    for budget in (None, 16 * 1000):
        torch.manual_seed(1)
        model = Rowwise()
        optimizer = AdamW(model.parameters(), lr=1e-3)
        with roundoff.watch(
            model, optimizer, every=1, headroom_every=1, budget=budget, sink=Collected()
        ) as watch:
            for _ in range(20):
                model.weight.grad = torch.randn(64).repeat(120, 1).to(BF16)
                model.gain.grad = torch.randn(8).to(BF16)
                optimizer.step()
            told.append(
                (watch.advise(), watch.forecast({20: 1e-3, 30: 1e-4, 40: 1e-6}), watch.verdict().state)
            )
    (advice, ahead, state), (estimated, ahead_too, state_too) = told
    assert advice.used == estimated.used == ("AdamW",)
    assert advice.layers.keys() == estimated.layers.keys()
    for ours, theirs in zip(advice.options, estimated.options, strict=True):
        assert (ours.strategy, ours.against, ours.holds) == (theirs.strategy, theirs.against, theirs.holds)
        assert ours.lost_fraction == pytest.approx(theirs.lost_fraction, rel=1e-6)
    assert (str(ahead), state) == (str(ahead_too), state_too)


def test_there_is_no_advice_on_what_is_only_visible() -> None:
    model = nn.Linear(16, 16).to(BF16)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=1e-2, max_iter=2)
    sink = Collected()

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = model(torch.ones(4, 16, dtype=BF16)).square().mean()
        loss.backward()
        return loss

    with roundoff.watch(model, optimizer, every=1, headroom_every=1, sink=sink) as watch:
        with pytest.warns(UserWarning, match="only the visible change"):
            optimizer.step(closure)
        for _ in range(14):
            optimizer.step(closure)
        assert {layer.strategy for layer in watch.layers} == {"visible-LBFGS"}
        assert watch.history.observed() == []
        with pytest.raises(ValueError, match="nothing to compare"):
            watch.advise()
        assert watch.verdict().state is None
        watch.report()
