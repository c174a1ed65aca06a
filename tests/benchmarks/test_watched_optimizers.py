"""The table of watched optimizers: a short form of it, and what makes it fail."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import watched_optimizers
from watched.contenders import CONTENDERS
from watched.memory import peak_of

SOME = ["torch AdamW, fused", "torch SGD, momentum", "torch LBFGS", "roundoff CollageAdamW, plus"]


def test_a_short_form(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "report.json"
    arguments = ["--only", *SOME, "--steps", "30", "--rounds", "2", "--json", str(path)]
    assert watched_optimizers.main([*arguments, "--check"]) == 1, "four are too few for the table"
    cases = {case["label"]: case for case in json.loads(path.read_text())["cases"]}
    assert list(cases) == SOME
    assert all(case["identical"] for case in cases.values())
    assert [case["measured"] for case in cases.values()] == [
        "replay", "replay", "visible change only", "by itself",
    ]  # fmt: skip
    plain, _, unknown, kept = cases.values()
    assert plain["lost"] > 0.5 > 0.05 > kept["lost"]
    assert plain["efficiency"] < 0.7
    assert kept["efficiency"] == pytest.approx(1.0, abs=0.02)
    assert unknown["lost"] is None
    assert plain["memory"] > 5 > kept["memory"] >= 0
    shown = capsys.readouterr().out
    assert "| torch AdamW, fused | replay | yes | " in shown
    assert "- torch LBFGS: only the visible change of all layers is measured" in shown
    assert watched_optimizers.main(["--read", str(path)]) == 0


def test_the_table_fails_where_a_training_changed(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    watched_optimizers.main(["--only", SOME[0], "--steps", "22", "--rounds", "2", "--json", str(path)])
    report = watched_optimizers.Report.model_validate_json(path.read_text())
    many = report.model_copy(update={"cases": report.cases * 15})
    assert many.passed
    changed = report.cases[0].model_copy(update={"identical": False})
    assert not many.model_copy(update={"cases": (*many.cases, changed)}).passed
    assert "**no**" in watched_optimizers.markdown(many.model_copy(update={"cases": (changed,)}))


def test_names_are_told_apart() -> None:
    labels = [one.label for one in CONTENDERS]
    assert len(labels) == len(set(labels)) >= 30
    assert {one.library for one in CONTENDERS} >= {
        "torch", "optimi", "torchao", "heavyball", "pytorch_optimizer", "bitsandbytes",
    }  # fmt: skip


def test_memory_is_that_of_what_lives_at_once() -> None:
    assert peak_of(lambda: torch.zeros(1000) + 1) == 8000
    assert peak_of(lambda: [torch.zeros(1000).sum() for _ in range(5)]) < 4100
