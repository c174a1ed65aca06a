"""The step benchmark: a short run of the script, and that what it says of a run is so."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

from optimizer_step import main
from roundoff.kernels import BACKENDS, kernel_for
from roundoff.optim import STRATEGIES
from timing.bars import judge
from timing.contenders import BASELINE, Contender, choose, ours
from timing.kept import ignore_what_lives, living_bytes
from timing.machine import this_machine
from timing.measuring import Bench, Pace
from timing.results import Case, Figure, Report, Timing
from timing.tables import BEGIN, END, markdown, write_between_marks
from timing.turns import Runner, alternate, quartiles, ratios
from timing.workloads import gpt_tensors, one_tensor, parse_size, size_name

ROOT = Path(__file__).parent.parent.parent
SCRIPT, PAGE = ROOT / "benchmarks" / "optimizer_step.py", ROOT / "docs" / "performance.md"
CPU = torch.device("cpu")
PACE = Pace(limit=10.0, rounds=2)


@pytest.fixture(autouse=True, scope="module")
def little_to_walk() -> Iterator[None]:
    """What other tests have left need not be walked through for every count."""
    ignore_what_lives()
    yield
    gc.unfreeze()


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report that the script wrote, every contender in it, and a page that it put its tables into."""
    folder = tmp_path_factory.mktemp("report")
    (folder / "page.md").write_text(PAGE.read_text(encoding="utf-8"), encoding="utf-8")
    command = [sys.executable, SCRIPT, "--quick", "--sizes", "1k", "--widths", "--limit", "20"]
    command += ["--json", folder / "report.json", "--markdown", folder / "page.md"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env, timeout=120)
    assert done.returncode == 0, done.stderr
    return folder


def report_in(folder: Path) -> Report:
    return Report.model_validate_json((folder / "report.json").read_text(encoding="utf-8"), strict=True)


def usable(backend: str) -> bool:
    try:
        kernel_for(backend, "fp32")
    except RuntimeError:
        return False
    return True


def test_a_quick_run_times_every_strategy_with_every_backend_that_runs_here(quick: Path) -> None:
    cases = [case for case in report_in(quick).cases if case.strategy is not None]
    assert {(case.strategy, case.backend) for case in cases} == {
        (name, backend) for name in STRATEGIES for backend in BACKENDS
    }
    for case in cases:
        if case.backend == "triton" or not usable(case.backend or ""):
            assert case.status == "absent", case
            continue
        assert case.status == "measured", case
        assert {timing.statistics for timing in case.timings} >= {"off", "histograms"}
        assert case.writes_gradients is False
        # What is kept once per tensor, a counter and a few dozen words, counts as well.
        table = STRATEGIES[case.strategy or ""].bytes_per_parameter
        assert 0 <= (case.bytes_per_parameter or 0.0) - table < 0.5


def test_a_quick_run_tells_of_everybody_else_whether_installed_or_not(quick: Path) -> None:
    report = report_in(quick)
    others = {case.contender: case for case in report.cases if case.strategy is None}
    assert others[BASELINE.name].bytes_per_parameter == pytest.approx(16, abs=0.01)
    assert len(others) == 12
    for case in others.values():
        assert case.status in ("measured", "absent", "skipped"), case
        assert case.status == "measured" or case.reason


def test_the_report_says_where_and_when(quick: Path) -> None:
    report = report_in(quick)
    assert (datetime.now(UTC) - report.finished).total_seconds() < 600
    assert report.machine.threads == 1
    assert report.machine.torch == torch.__version__
    assert report.machine.instruction_set == torch.backends.cpu.get_cpu_capability()
    assert report.machine.memory > 1 << 28
    assert report.machine.cpu


def test_the_tables_stand_between_the_marks_of_the_page_and_nothing_else_changes(quick: Path) -> None:
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    page = (quick / "page.md").read_text(encoding="utf-8")
    assert page == f"{before}{BEGIN}\n\n{markdown(report_in(quick))}\n\n{END}{rest.split(END)[1]}"
    for name in STRATEGIES:
        assert f"| {name} (reference) |" in page
    assert f"| {BASELINE.name} | 16.00 |" in page


def test_a_report_read_again_gives_the_same_page(quick: Path, tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(f"{BEGIN}\nold\n{END}", encoding="utf-8")
    read = ["--read", str(quick / "report.json"), "--markdown", str(tmp_path / "page.md")]
    assert main(read) == 0
    assert main([*read, "--check"]) == 1  # nothing in it is large enough for a bar
    written = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert written == f"{BEGIN}\n\n{markdown(report_in(quick))}\n\n{END}"


def test_a_page_without_its_marks_is_refused(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(f"{BEGIN} {BEGIN} {END}", encoding="utf-8")
    with pytest.raises(ValueError, match="once each"):
        write_between_marks(tmp_path / "page.md", "text")


def test_they_take_turns_and_the_ratio_is_the_median_of_the_rounds() -> None:
    """The clock is ours: how the machine drifts cannot be chosen. It makes everything slower round by round."""
    calls: list[str] = []
    seconds = {"one": iter([1.0, 2.0, 40.0]), "two": iter([3.0, 4.0, 200.0])}

    def clock(call: object, repeats: int) -> float:
        assert callable(call)
        call()
        return next(seconds[calls[-1]]) * repeats

    runners = {
        name: Runner(lambda name=name: calls.append(name), lambda name=name: calls.append(f"before {name}"))
        for name in ("one", "two")
    }
    samples = alternate(runners, {"one": 2, "two": 5}, 3, clock)
    assert calls == ["before one", "one", "before two", "two"] * 3
    assert samples == {"one": [1.0, 2.0, 40.0], "two": [3.0, 4.0, 200.0]}
    assert quartiles(ratios(samples["two"], samples["one"])) == Figure(middle=3.0, low=2.5, high=4.0)


class Sgd(torch.optim.SGD):
    """With a buffer where nobody looks for it; can be told to spoil things."""

    def __init__(self, params: list[Parameter], spoil: str = "") -> None:
        super().__init__(params, lr=0.1)
        self.spoil = spoil
        self.hidden = {"deep": [torch.zeros_like(params[0])]}
        self.found: list[bool] = []

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        (param,) = self.param_groups[0]["params"]
        if self.spoil == "idle":
            return
        if self.spoil == "fault":
            raise ValueError("no kernel for this\nand a second line")
        super().step()
        self.found.append(param.grad is not None and bool(param.grad.any()))
        if self.spoil == "gradients":
            param.grad.zero_()
        if self.spoil == "nan":
            with torch.no_grad():
                param.fill_(float("nan"))
        if self.spoil == "drop":
            param.grad = None


def case_of(spoil: str = "", package: str | None = None, made: list[Sgd] | None = None) -> Case:
    def build(params: list[Parameter]) -> Sgd:
        optimizer = Sgd(params, spoil)
        if made is not None:
            made.append(optimizer)
        return optimizer

    contender = Contender("sgd", torch.float32, build, package=package)
    return Bench(one_tensor(4096), CPU, PACE).case(contender)


def test_bytes_are_counted_wherever_they_are_kept() -> None:
    case = case_of()
    assert (case.status, case.bytes_per_parameter, case.writes_gradients) == ("measured", 12.0, False)


def test_memory_that_two_tensors_share_counts_once_and_freed_memory_not() -> None:
    before = living_bytes()
    one: Tensor | None = torch.zeros(1000)
    view = one[10:]
    assert living_bytes() - before == 4000
    del one, view
    assert living_bytes() == before


def test_a_step_that_writes_to_the_gradients_is_told_of_and_gets_them_back() -> None:
    made: list[Sgd] = []
    case = case_of("gradients", made=made)
    assert (case.status, case.writes_gradients) == ("measured", True)
    assert sum(made[0].found) == 1 + PACE.rounds  # the first step of all, and the first of every turn


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        ("fault", "ValueError: no kernel for this"),
        ("idle", "RuntimeError: the weights did not move, or are no longer finite"),
        ("nan", "RuntimeError: the weights did not move, or are no longer finite"),
        ("drop", "RuntimeError: the optimizer dropped the gradients"),
    ],
)
def test_what_goes_wrong_is_a_reason_and_no_end(spoil: str, reason: str) -> None:
    case = case_of(spoil)
    assert (case.status, case.reason, case.timings) == ("failed", reason, ())


def test_an_absent_package_is_reported() -> None:
    case = case_of(package="no-such-distribution")
    assert (case.status, case.reason) == ("absent", "no-such-distribution is not installed")


def test_a_case_that_takes_too_long_is_skipped() -> None:
    contender = Contender("sgd", torch.float32, lambda params: Sgd(params))
    case = Bench(one_tensor(4096), CPU, Pace(limit=0.0, rounds=2)).case(contender)
    assert case.status == "skipped"
    assert "2 rounds would take" in (case.reason or "")


def test_after_the_budget_nothing_is_begun(tmp_path: Path) -> None:
    assert main(["--quick", "--budget", "0", "--json", str(tmp_path / "report.json")]) == 0
    report = report_in(tmp_path)
    assert {case.reason for case in report.cases} == {"the budget was spent"}
    assert {case.workload for case in report.cases} == {"1k", "256k", "GPT 216k"}


@pytest.mark.parametrize("backend", [name for name in BACKENDS if name != "triton" and usable(name)])
def test_statistics_are_measured_only_when_chosen(backend: str) -> None:
    contender = next(one for one in ours(torch.bfloat16) if one.name == f"plus ({backend})")
    param = Parameter(torch.ones(64, dtype=torch.bfloat16))
    param.grad = torch.full_like(param, 1e-3)
    optimizer = contender.build([param])
    for statistics in contender.statistics:
        choose(optimizer, statistics)
        optimizer.step()
        meters = optimizer.meters  # type: ignore[attr-defined]
        assert (meters is None) == (statistics == "off")
        if meters is not None:
            sums = meters[param].sums()
            assert sums.attempted == 64
            assert any(sums.headroom) == (statistics == "histograms")


def test_the_gpt_has_150_tensors_and_at_full_width_gpt2s_size() -> None:
    full = gpt_tensors(768)
    assert full.tensors == 150
    assert full.numel - 2 * 768 == 124_439_808
    assert sum(piece.mean == 1.0 for piece in full.pieces) == 26
    assert gpt_tensors(224).numel == pytest.approx(full.numel * (224 / 768) ** 2, rel=0.01)


@pytest.mark.parametrize(("text", "numel"), [("1k", 1024), ("16M", 1 << 24), ("128M", 1 << 27), ("7", 7)])
def test_a_size_is_read_as_it_is_written(text: str, numel: int) -> None:
    assert parse_size(text) == numel
    assert size_name(numel) == text


@pytest.mark.parametrize("text", ["", "0", "-1M", "1.5M", "4G", "M"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a size is a number"):
        parse_size(text)


def timed(numel: int, ratio: float, added: float, *, strategy: str = "plus", tensors: int = 1) -> Case:
    def flat(value: float) -> Figure:
        return Figure(middle=value, low=value, high=value)

    figures = {
        "off": (ratio, None),
        "sums": (ratio * (1 + added), flat(added)),
        "histograms": (9.9, flat(9.0)),
    }
    return Case(
        contender=f"{strategy} (cpu)",
        package=None,
        strategy=strategy,
        backend="cpu",
        dtype="bfloat16",
        workload=f"{size_name(numel)} in {tensors}",
        numel=numel,
        tensors=tensors,
        status="measured",
        bytes_per_parameter=STRATEGIES[strategy].bytes_per_parameter + 1e-4,
        timings=tuple(
            Timing(statistics=name, seconds=flat(1.0), ratio=flat(value), ratio_of_medians=value, added=more)
            for name, (value, more) in figures.items()  # type: ignore[arg-type]
        ),
    )


def verdicts(*cases: Case, strategy: str = "plus") -> dict[str, bool]:
    report = Report(
        finished=datetime.now(UTC),
        seconds=1.0,
        machine=this_machine(CPU),
        baseline=BASELINE.name,
        cases=cases,
    )
    return {bar.what: bar.passed for bar in judge(report) if bar.strategy == strategy}


SMALL, FOUR, LARGE = 1 << 20, 1 << 22, 1 << 27
GOOD = (timed(FOUR, 1.05, 0.45), timed(LARGE, 0.90, 0.25), timed(FOUR, 1.0, 9.0, tensors=150))


def test_figures_at_their_bars_pass() -> None:
    assert verdicts(*GOOD) == {
        "step, 128M": True,
        "step, from 4M up": True,
        "step, many tensors": True,
        "sums add, 128M": True,
        "sums add, from 4M up": True,
        "bytes off the table": True,
    }


@pytest.mark.parametrize(
    ("case", "missed"),
    [
        (timed(FOUR, 1.051, 0.0), {"step, from 4M up"}),
        (timed(FOUR, 1.0, 0.451), {"sums add, from 4M up"}),
        (timed(LARGE, 0.901, 0.0), {"step, 128M"}),
        (timed(LARGE, 0.9, 0.251), {"sums add, 128M"}),
        (timed(SMALL, 1.001, 0.0, tensors=150), {"step, many tensors"}),
        (timed(SMALL, 3.0, 3.0), set()),
        (timed(FOUR, 1.0, 0.0).model_copy(update={"bytes_per_parameter": 12.02}), {"bytes off the table"}),
        (
            timed(FOUR, 1.0, 0.0).model_copy(update={"status": "skipped", "timings": ()}),
            {"step, from 4M up", "sums add, from 4M up"},
        ),
    ],
)
def test_one_figure_above_its_bar_misses_it(case: Case, missed: set[str]) -> None:
    found = verdicts(*GOOD, case)
    assert {what for what, passed in found.items() if not passed} == missed


def test_what_was_not_measured_has_not_passed() -> None:
    assert not any(verdicts().values())


@pytest.mark.parametrize(("strategy", "limit"), [("light", 0.75), ("plus", 0.90), ("exact", 0.95)])
def test_each_strategy_has_its_bar_at_128_million(strategy: str, limit: float) -> None:
    at, above = (timed(LARGE, limit + more, 0.1, strategy=strategy) for more in (0.0, 1e-6))
    assert verdicts(at, strategy=strategy)["step, 128M"]
    assert not verdicts(above, strategy=strategy)["step, 128M"]


def test_strategies_with_float32_state_are_only_told_of() -> None:
    report = Report(finished=datetime.now(UTC), seconds=1.0, machine=this_machine(CPU), baseline="", cases=())
    free = {bar.strategy for bar in judge(report) if not bar.binding}
    assert free == {"fp32-state", "fp32-master"}
