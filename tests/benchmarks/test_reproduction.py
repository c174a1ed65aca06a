"""The comparison of [Collage]: the whole path in a very short form, and the parts that its numbers rest on."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from dataclasses import asdict, replace
from datetime import date
from pathlib import Path

import pytest
import torch
from plotly.offline import get_plotlyjs
from torch import Tensor, nn
from torch.nn import functional

import reproduce_collage
from reproduction.figures import COLORS, curves, differences, losses
from reproduction.model import Decoder, Linear, mean_loss
from reproduction.page import DATA, PAGE, render, write_report
from reproduction.recipe import BETAS2, REFERENCE, TINY, Case, Recipe, grid
from reproduction.results import Curve, Result, load, save
from reproduction.summary import FIGURES, Study, summarise
from reproduction.tables import markdown
from reproduction.training import build, held_out, train
from roundoff.demo.model import Shape
from roundoff.demo.text import Text, load_text
from roundoff.kernels import KERNELS
from roundoff.optim import STRATEGIES
from roundoff_dashboards.figures import THEMES

ROOT = Path(__file__).parent.parent.parent
BF16 = torch.bfloat16
SIX = replace(TINY, steps=6, measured=6)
"""Every step measured."""
STORAGE = [name for name, strategy in STRATEGIES.items() if strategy.storage_arithmetic]


@pytest.fixture(scope="module")
def text() -> Text:
    return load_text()


def study(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    script = ROOT / "benchmarks" / "reproduce_collage.py"
    always = ["--tiny", "--steps", "40", "--seeds", "0", "--strategies", "none,fp32-master"]
    return subprocess.Popen(
        [sys.executable, "-W", "error", script, *always, "--resume-from", folder, *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def test_a_study_that_was_killed_goes_on_where_it_was_and_becomes_a_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    results, report = tmp_path / "results", tmp_path / "report"
    killed = study(results, "--jobs", "2")
    assert killed.stdout is not None
    assert killed.stdout.readline() == "9 runs of 40 steps, 9 to train\n"
    assert ": 4." in killed.stdout.readline()
    killed.send_signal(signal.SIGTERM)
    killed.communicate(timeout=60)
    assert killed.returncode == 128 + signal.SIGTERM
    done = len(list(results.iterdir()))
    assert 1 <= done < 9
    monkeypatch.setitem(KERNELS, ("reference", "storage"), KERNELS["reference", "storage"])
    grid = {"strategies": "none,fp32-master", "seeds": "0", "tiny": True, "steps": 40}
    reproduce_collage.main(**grid, resume_from=results)
    assert capsys.readouterr().out.startswith(f"9 runs of 40 steps, {9 - done} to train\n")
    assert len(list(results.iterdir())) == 9
    reproduce_collage.main(**grid, resume_from=results, report=report)
    told = capsys.readouterr().out
    assert told.startswith("All 9 runs, 1 seed, ")
    assert "Plotly.react" in (report / PAGE).read_text("utf-8")


def test_the_page_needs_nothing_from_elsewhere(sample: Study) -> None:
    page = render(sample)
    assert get_plotlyjs() in page
    own = page.replace(get_plotlyjs(), "")
    assert re.findall(r'(?:src|href)="([^"]+)"', own) == ["../reproduction.md", "results.json"]


@pytest.fixture(scope="module")
def master(text: Text) -> Result:
    return train(Case(REFERENCE, "fp32", 0.99, 3), SIX, text)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_trains_from_the_same_weights_on_the_same_batches(
    strategy: str, text: Text, master: Result
) -> None:
    first, last = [], []
    for case in grid([strategy], seeds=[3]):
        if case.beta2 != 0.99:
            continue
        result = train(case, SIX, text)
        first.append(result.curve.train_loss[0])
        last.append(result.loss)
        assert result.curve.step == [0, 1, 2, 3, 4, 5]
        for curve in (result.curve.descent_efficiency, result.curve.norm_efficiency):
            assert curve[0] is not None
            assert 0 <= curve[0] < 4
        assert 0.5 < (result.curve.descent_efficiency[0] or 0) < 1.5
        assert all(len(getattr(result.curve, name)) == 6 for name in Curve.model_fields)
    assert first == [master.curve.train_loss[0]] * len(first)
    assert last == pytest.approx([master.loss] * len(last), abs=0.02)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_the_cast_drops_is_kept_from_the_start(strategy: str, text: Text) -> None:
    model, optimizer = build(Case(strategy, "fp32", 0.99, 0), TINY, text)
    torch.manual_seed(0)
    shape = Shape(len(text.vocabulary), TINY.layers, TINY.width, TINY.heads, TINY.context)
    start = Decoder(shape)
    kept = {"none": 2**-8, "stochastic": 2**-8, "fp32-state": 2**-8, "fp32-master": 0, "exact": 0}
    for param, exact in zip(model.parameters(), start.parameters(), strict=True):
        assert param.dtype == BF16
        error = (optimizer.stored_value(param) - exact).abs() / exact.abs().clamp_min(1e-20)
        assert error.max() <= kept.get(strategy, 2**-16)
        assert (
            strategy not in ("none", "stochastic", "fp32-state") or error.max() > 2**-16 or exact.eq(1).all()
        )


def test_a_run_comes_out_the_same_again(text: Text) -> None:
    case = Case("stochastic", "storage", 0.99, 3)
    once, again = train(case, TINY, text), train(case, TINY, text)
    assert once.loss == again.loss
    assert once.curve == again.curve
    assert once.loss != train(Case("stochastic", "storage", 0.99, 4), TINY, text).loss


def test_the_learning_rate_warms_up_and_ends_near_nothing() -> None:
    recipe = Recipe()
    rates = [recipe.lr_at(step) for step in range(recipe.steps)]
    assert max(rates) == recipe.lr == rates[recipe.warmup - 1] == rates[recipe.warmup]
    assert rates[0] == recipe.lr / recipe.warmup
    assert 0 < rates[-1] < 1e-5 * recipe.lr
    assert sum(map(recipe.is_measured, range(recipe.steps))) == recipe.measured
    assert recipe.is_measured(recipe.steps - 1)


def test_the_whole_held_out_text_is_validated_once(text: Text) -> None:
    recipe = Recipe()
    pairs = list(held_out(text, recipe))
    inputs = torch.cat([inputs.reshape(-1) for inputs, _ in pairs])
    targets = torch.cat([targets.reshape(-1) for _, targets in pairs])
    assert len(inputs) > len(text.validation) - 1 - recipe.context
    assert torch.equal(inputs, text.validation[: len(inputs)])
    assert torch.equal(targets, text.validation[1 : len(inputs) + 1])


def test_the_grid_has_every_case_once_and_the_seeds_one_after_the_other() -> None:
    cases = list(grid())
    assert len(cases) == len(set(cases)) == (len(STRATEGIES) + len(STORAGE)) * len(BETAS2) * 3
    assert [case.seed for case in cases] == sorted(case.seed for case in cases)
    assert {case.strategy for case in cases if case.arithmetic == "storage"} == set(STORAGE)


def test_all_that_passes_between_the_parts_of_the_model_is_bfloat16(text: Text) -> None:
    model, _ = build(Case("none", "fp32", 0.99, 0), TINY, text)
    seen: list[torch.dtype] = []

    def watch(module: nn.Module, inputs: tuple[Tensor, ...], out: Tensor) -> None:
        seen.append(out.dtype)
        out.register_hook(lambda gradient: seen.append(gradient.dtype))

    for module in model.modules():
        module.register_forward_hook(watch)
    mean_loss(model, *next(iter(held_out(text, TINY)))).backward()
    assert len(seen) == 2 * sum(1 for module in model.modules() if not isinstance(module, nn.ModuleList))
    assert {*seen, *(param.grad.dtype for param in model.parameters() if param.grad is not None)} == {BF16}
    assert all(param.grad is not None for param in model.parameters())


def test_a_product_is_rounded_once_as_pytorch_rounds_it_in_bfloat16() -> None:
    torch.manual_seed(0)
    layer = Linear(64, 48, 0.1).to(BF16)
    x = torch.randn(256, 64).to(BF16).requires_grad_()
    ours, theirs = layer(x), functional.linear(x, layer.weight)
    toward = torch.randn(256, 48).to(BF16)
    pairs = [
        (ours.detach(), theirs.detach()),
        *zip(
            torch.autograd.grad(ours, [x, layer.weight], toward),
            torch.autograd.grad(theirs, [x, layer.weight], toward),
            strict=True,
        ),
    ]
    for mine, native in pairs:
        assert mine.dtype == BF16
        apart = (mine.view(torch.int16).int() - native.view(torch.int16).int()).abs()
        assert float((apart > 0).float().mean()) < 2e-3
        wide = mine.double() - native.double()
        assert float((wide.abs() / native.double().abs().clamp_min(1e-2)).max()) <= 2**-7


def made(case: Case, loss: float, recipe: Recipe = TINY) -> Result:
    curve = Curve(step=[1, 3, 5], train_loss=[3.0, 2.0, 1.0], update_norm=[1.0, 1.0, 1.0])
    for name in (*FIGURES, "invisible_fraction"):
        getattr(curve, name).extend([1.0, 0.5 + case.seed, None])
    return Result(
        strategy=case.strategy, arithmetic=case.arithmetic, beta2=case.beta2, seed=case.seed,
        recipe=recipe.fingerprint, parameters=100, loss=loss, curve=curve, seconds=2.0,
    )  # fmt: skip


LOSSES = {"none": (3.0, 3.4), "plus": (2.11, 2.13), "light": (1.9, 2.0), "fp32-master": (2.1, 2.2)}


@pytest.fixture
def sample() -> Study:
    results = [
        made(case, LOSSES[case.strategy][case.seed])
        for case in grid(LOSSES, seeds=(0, 1))
        if case.arithmetic == "fp32" or case.strategy != "light"
    ]
    return summarise(TINY, results, wanted=50, made=date(2026, 1, 2))


def test_a_row_says_how_far_it_is_from_the_master(sample: Study) -> None:
    none, plus, light, master = (sample.row(name, "fp32", 0.99) for name in LOSSES)
    assert none is not None
    assert plus is not None
    assert light is not None
    assert master is not None
    assert (none.mean, none.within) == (pytest.approx(3.2), False)
    assert none.spread == pytest.approx(0.4 / 2**0.5)
    assert none.differences == pytest.approx([0.9, 1.2])
    assert plus.within
    assert not light.within
    assert none.curves["edq"] == [1.0, 1.0, None]
    stand_in = sample.row("fp32-master", "storage", 0.99)
    assert stand_in is not None
    assert stand_in.stands_in
    assert stand_in.losses == master.losses
    assert not none.stands_in
    assert sample.row("light", "storage", 0.99) is None


def test_seeds_that_the_master_lacks_or_has_alone_give_no_verdict() -> None:
    results = [made(Case(REFERENCE, "fp32", 0.99, seed), 2.0 + seed / 10) for seed in (0, 1, 2)]
    results += [made(Case("plus", "fp32", 0.99, seed), 2.0 + seed / 10) for seed in (0, 1)]
    study = summarise(TINY, results, wanted=6, made=date(2026, 1, 2))
    row, master = study.row("plus", "fp32", 0.99), study.row(REFERENCE, "fp32", 0.99)
    assert row is not None
    assert master is not None
    assert row.differences == [0, 0]
    assert row.within is None
    assert row.curves["edq"] == master.curves["edq"] == [1.0, 1.0, None]


def test_the_tables_say_the_same_in_words(sample: Study) -> None:
    page = markdown(sample)
    assert page.startswith("36 of 50 runs, 2 seeds, 100 parameters, 6 steps")
    assert "| 0.99 | none (A) | 2 | 3.2000 | 0.2828 | +1.0500 (+0.9000 … +1.2000) | outside |" in page
    assert "| 0.99 | light (B) | 2 | 1.9500 | 0.0707 | −0.2000 (−0.2000 … −0.2000) | better |" in page
    assert "| 0.99 | plus (C) | 2 | 2.1200 | 0.0141 | −0.0300 (−0.0700 … +0.0100) | within |" in page
    assert "| 0.99 | fp32-master (D) | 2 | 2.1500 | 0.0707 |  |  |" in page.partition("Storage arithmetic")[2]


@pytest.mark.parametrize("theme", THEMES)
def test_the_figures_show_every_row_in_its_panel(sample: Study, theme: str) -> None:
    for name in FIGURES:
        figure = curves(sample, name, theme)  # type: ignore[arg-type]
        assert len(figure.data) == len(sample.rows)
        assert {trace.line.color for trace in figure.data} == {COLORS[theme][one] for one in LOSSES}  # type: ignore[index]
        assert sorted(trace.name for trace in figure.data if trace.showlegend) == sorted(LOSSES)
        assert len({trace.xaxis for trace in figure.data}) == 6
    for make, values, span in (
        (losses, [list(row.losses.values()) for row in sample.rows], (2.1, 2.2)),
        (differences, [row.differences for row in sample.rows], (-0.05, 0.05)),
    ):
        figure = make(sample, theme)  # type: ignore[operator]
        strokes = [trace for trace in figure.data if trace.marker.symbol == "line-ns-open"]
        points = [trace for trace in figure.data if trace not in strokes]
        assert [list(trace.x) for trace in points] == values
        assert [trace.x[0] for trace in strokes] == [sum(some) / len(some) for some in values]
        assert len(figure.layout.shapes) == 6
        assert {(round(shape.x0, 9), round(shape.x1, 9)) for shape in figure.layout.shapes} == {span}


def test_a_strategy_that_lacks_seeds_shows_no_mean() -> None:
    results = [made(Case(REFERENCE, "fp32", 0.99, seed), 2.0) for seed in (0, 1)]
    results.append(made(Case("plus", "fp32", 0.99, 0), 2.0))
    figure = losses(summarise(TINY, results, wanted=6, made=date(2026, 1, 2)))
    assert {trace.y[0] for trace in figure.data if trace.marker.symbol == "line-ns-open"} == {REFERENCE}


def test_every_strategy_has_a_colour_of_its_own() -> None:
    for colors in COLORS.values():
        assert colors.keys() == STRATEGIES.keys()
        assert len(set(colors.values())) == len(STRATEGIES)


def test_results_of_another_recipe_are_refused_and_half_written_ones_are_not_seen(tmp_path: Path) -> None:
    result = made(Case("plus", "fp32", 0.99, 0), float("nan"))
    save(result, tmp_path)
    (tmp_path / "none-fp32-0.99-seed0.77.part").write_text('{"strategy": "no', encoding="utf-8")
    found = load(tmp_path, TINY)
    assert list(found) == [result.case]
    assert found[result.case].loss != found[result.case].loss
    with pytest.raises(ValueError, match=r"holds runs of another recipe, such as plus-fp32-0\.99-seed0"):
        load(tmp_path, Recipe())


def test_the_page_in_the_docs_is_made_from_its_data(tmp_path: Path) -> None:
    folder = ROOT / "docs" / "reproduction"
    kept = Study.model_validate_json((folder / DATA).read_text("utf-8"))
    assert kept.recipe == asdict(Recipe())
    (tmp_path / DATA).write_text((folder / DATA).read_text("utf-8"), "utf-8")
    tables = write_report(tmp_path, Recipe(), [], wanted=0)
    assert tables in (ROOT / "docs" / "reproduction.md").read_text("utf-8")
    fresh, page = ((place / PAGE).read_text("utf-8") for place in (tmp_path, folder))
    head, tail = fresh.split(get_plotlyjs())  # another version of the library may draw the same figures
    again = "make the page again: --report docs/reproduction"
    assert page.startswith(head), again
    assert hash(page[-len(tail) :]) == hash(tail), again  # pytest would take minutes to show the difference
