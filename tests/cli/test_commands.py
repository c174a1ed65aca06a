"""The command line as its user meets it: help, tables, JSON, errors in one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import platformdirs
import pytest
import typer

import roundoff
from roundoff.cli import application
from roundoff.delivery import GroupSetting, Sample
from roundoff.metrics import HEADROOM_BINS, ROW
from roundoff.wire import Layer


class Rows(list[list[float]]):
    """Rows of numbers as a tensor hands them over."""

    def tolist(self) -> list[list[float]]:
        return list(self)


def fill(server: str) -> None:
    """Two runs: `good`, and `bad [x]` whose only layer loses everything."""
    for name, stored in (("good", 1.0), ("bad [x]", 0.0)):
        run = roundoff.init("shop", name, server=server)
        assert run._pipeline is not None
        run._pipeline.declare([Layer(index=0, name="norm.weight", shape=[100], numel=100, dtype="bfloat16")])
        values = {
            "numel": 100.0,
            "attempted": 100.0,
            "lost": 100 * (1 - stored),
            "sum_uu": 1.0,
            "sum_ua": stored,
        }
        row = [{**values, "expected_roundings": 50.0}.get(column, 0.0) for column in ROW]
        for step in range(30):
            bins = Rows([[0.0] * 2 * HEADROOM_BINS])
            run._pipeline.sample(Sample(step, [0], Rows([row]), bins, [GroupSetting(0, 1e-3, 0.0)]))
            run.log({"loss": 2.5}, step=step)
        run.finish()


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory, start_server: Any) -> Iterator[tuple[str, Path]]:
    """Address and database file of a server that holds two runs."""
    path = tmp_path_factory.mktemp("cli") / "filled.db"
    with start_server(f"sqlite:///{path}") as running:
        fill(running.url)
        yield running.url, path


def call(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """`roundoff …` in a process of its own, its terminal 120 columns wide."""
    return subprocess.run(
        [sys.executable, "-m", "roundoff", *words],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "COLUMNS": "120", **environment},
    )


def in_process(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of `roundoff …`, without a new process."""
    with pytest.raises(SystemExit) as ended:
        application.main(words)
    code = ended.value.code
    captured = capsys.readouterr()
    return int(code) if isinstance(code, int) else 1 if code else 0, captured.out, captured.err


def test_help_lists_every_command() -> None:
    done = call("--help")
    assert done.returncode == 0
    for name in ("version", "runs", "alerts", "demo", "doctor", "serve", "db"):
        assert f" {name} " in done.stdout
    assert "Not available here" not in done.stdout


@pytest.mark.parametrize("name", ["version", "runs", "alerts", "demo", "doctor", "serve"])
def test_every_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = in_process(capsys, name, "--help")
    assert code == 0
    assert f"Usage: roundoff {name}" in out


def test_doctor_says_which_backends_can_be_used_and_why_not(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = json.loads(in_process(capsys, "doctor", "--json")[1])
    assert {one["name"] for one in found["backends"]} == {"cpu", "reference", "triton"}
    assert found["backend"] == "cpu"
    assert found["instruction_set"] in ("avx512", "avx2", "baseline")
    # Only a machine without a compiler has this reason.
    monkeypatch.setattr("roundoff.kernels.cpu_unavailable", lambda: "it was not built")
    _, out, _ = in_process(capsys, "doctor")
    assert "backend cpu: not usable, it was not built" in out
    assert 'backend="auto" on a CPU takes reference' in out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert in_process(capsys, "version")[1].strip() == roundoff.__version__
    assert in_process(capsys, "--version")[1].strip() == roundoff.__version__
    shown = json.loads(in_process(capsys, "version", "--json")[1])
    assert shown["roundoff"] == roundoff.__version__
    assert shown["packages"]["torch"]


@pytest.mark.parametrize("place", ["server", "database"])
def test_lists_as_json(place: str, filled: tuple[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    where = (f"--{place}", filled[0] if place == "server" else str(filled[1]))
    code, out, err = in_process(capsys, "alerts", "--json", *where)
    assert (code, err) == (0, "")
    (alert,) = json.loads(out)
    assert (alert["project"], alert["run_name"], alert["layers"]) == ("shop", "bad [x]", ["norm.weight"])
    assert {"run_id", "rule", "state"} <= alert.keys()
    runs = json.loads(in_process(capsys, "runs", "--json", *where)[1])
    assert [(run["name"], run["health"]) for run in runs] == [("bad [x]", "stalling"), ("good", "healthy")]


def test_filters(filled: tuple[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    server = ("--server", filled[0], "--json")
    for words, names in (
        (("--limit", "1"), ["bad [x]"]),
        (("--project", "other"), []),
        (("--state", "finished"), ["bad [x]", "good"]),
        (("--state", "running"), []),
        (("--search", "good"), ["good"]),
    ):
        assert [run["name"] for run in json.loads(in_process(capsys, "runs", *words, *server)[1])] == names
    for words, number in (
        (("--project", "shop"), 1),
        (("--project", "other"), 0),
        (("--state", "pending"), 0),
    ):
        assert len(json.loads(in_process(capsys, "alerts", *words, *server)[1])) == number


def test_tables(filled: tuple[str, Path]) -> None:
    runs = call("runs", "--server", filled[0])
    assert runs.returncode == 0, runs.stderr
    assert "shop/bad [x]" in runs.stdout
    assert "stalling" in runs.stdout
    alerts = call("alerts", "--server", filled[0])
    assert "shop/bad [x]" in alerts.stdout
    assert "norm.weight" in alerts.stdout
    assert "No alerts." in call("alerts", "--server", filled[0], "--project", "other").stdout


def test_the_default_server_is_asked_if_it_answers(
    filled: tuple[str, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("roundoff.cli.source.DEFAULT_SERVER", filled[0])
    monkeypatch.setattr("roundoff.query.DEFAULT_SERVER", filled[0])
    assert len(json.loads(in_process(capsys, "runs", "--json")[1])) == 2


def test_else_the_default_database_is_read(
    filled: tuple[str, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("roundoff.cli.source.DEFAULT_SERVER", "http://127.0.0.1:1")
    code, out, err = in_process(capsys, "runs")
    assert (code, out) == (1, "")
    assert "does not exist" in err
    assert not platformdirs.user_data_path("roundoff").exists()
    monkeypatch.setenv("ROUNDOFF_DATABASE_URL", f"sqlite:///{filled[1]}")
    assert len(json.loads(in_process(capsys, "runs", "--json")[1])) == 2


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("alerts", "--server", "http://127.0.0.1:1"), 1, "no roundoff server answers at http://127.0.0.1:1"),
        (("alerts", "--server", "gopher://x"), 1, "begins with http"),
        (("runs", "--server", "http://x", "--database", "y"), 2, "not both"),
        (("runs", "--limit", "many"), 2, "--limit"),
        (("runs", "--limit", "0"), 2, "--limit"),
        (("rusn",), 2, "rusn"),
        (
            ("demo", "--strategies", "plsu", "--exit"),
            1,
            "unknown strategy 'plsu': choose from none, light, plus",
        ),
        (("demo", "--steps", "0"), 2, "--steps"),
    ],
)
def test_errors_are_one_line_and_say_what_is_wrong(
    words: tuple[str, ...], code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ended, out, err = in_process(capsys, *words)
    assert (ended, out) == (code, "")
    assert says in " ".join(err.split())
    assert "Traceback" not in err
    if code == 1:
        assert err.count("\n") == 1


def test_a_command_whose_extra_is_missing_stays_visible(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # What an empty environment without the server's packages looks like cannot be had in this one.
    broken = EntryPoint("serve", "package_that_is_not_there:serve", application.COMMANDS)
    monkeypatch.setattr(application, "entry_points", lambda group: [broken])
    assert "pip install 'roundoff[server]'" in " ".join(in_process(capsys, "--help")[1].split())
    code, _, err = in_process(capsys, "serve", "--port", "1")
    assert code == 1
    assert "package_that_is_not_there" in err
    assert "pip install 'roundoff[server]'" in err


def test_a_plug_in_may_be_a_command_or_a_group(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    group = typer.Typer()

    @group.command("inner")
    def inner() -> None:
        typer.echo("inside")

    @group.command("other")
    def other() -> None: ...

    class Found:
        def __init__(self, name: str, command: object) -> None:
            self.name, self.load = name, lambda: command

    plugs = [Found("group", group), Found("single", lambda: typer.echo("alone"))]
    monkeypatch.setattr(application, "entry_points", lambda group: plugs)
    assert in_process(capsys, "group", "inner")[1] == "inside\n"
    assert in_process(capsys, "single")[1] == "alone\n"


def test_show_says_what_is_wrong_with_a_run(
    filled: tuple[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    url, path = filled
    with roundoff.Client(url) as client:
        found = {run.name: run.id for run in client.runs().runs}
    shown = call("show", found["bad [x]"], "--server", url).stdout
    assert "shop/bad [x]" in shown
    assert "stalling" in shown
    assert "norm.weight" in shown
    assert "100 %" in shown
    assert "precision stagnation" in shown.lower() or "Cure:" in shown
    assert "dropped by delivery" in shown
    code, out, _ = in_process(capsys, "show", found["bad [x]"], "--json", "--database", str(path))
    document = json.loads(out)
    assert code == 0
    assert (document["run"]["health"], document["layers"][0]["name"]) == ("stalling", "norm.weight")
    assert document["alerts"][0]["state"] in ("firing", "resolved")
    code, _, err = in_process(capsys, "show", "nobody", "--server", url)
    assert (code, "there is no run 'nobody'" in err) == (1, True)
