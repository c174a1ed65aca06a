"""What can be set, asked for and run is written down, and what is written down works."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main

from roundoff.cli.application import application
from roundoff.metrics import METRICS
from roundoff.optim import STRATEGIES
from roundoff.settings import Settings
from roundoff_server.app import create_app
from roundoff_server.database import Database
from roundoff_server.settings import ServerSettings

ROOT = Path(__file__).parent.parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", [*Settings.model_fields, *ServerSettings.model_fields])
def test_every_setting_is_documented(name: str) -> None:
    assert re.search(rf"^\| `{name}` \| `ROUNDOFF_{name.upper()}` \|", text("docs/settings.md"), re.MULTILINE)


@pytest.mark.parametrize("name", METRICS)
def test_every_metric_is_documented(name: str) -> None:
    assert f"| `{name}` |" in text("docs/settings.md")


@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)
def test_every_strategy_is_in_the_readme_with_its_price(strategy) -> None:  # type: ignore[no-untyped-def]
    assert re.search(
        rf"^\| `{strategy.name}` \|.*\| {strategy.bytes_per_parameter} \|$", text("README.md"), re.MULTILINE
    )


def test_every_route_is_documented(tmp_path: Path) -> None:
    page = text("docs/settings.md")
    app = create_app(Database(f"sqlite:///{tmp_path / 'roundoff.db'}"))
    for path, methods in app.openapi()["paths"].items():
        for method in methods:
            assert f"`{method.upper()} {path.removeprefix('/api/v1')}`" in page, (method, path)


def test_every_command_is_documented() -> None:
    page = text("docs/settings.md")
    group = typer.main.get_command(application([]))
    for name, command in group.commands.items():  # type: ignore[attr-defined]
        inner = getattr(command, "commands", None)
        for words in [f"{name} {sub}" for sub in inner] if inner else [name]:
            assert f"| `roundoff {words}` |" in page, words


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name}: {target}"


BEFORE = """
import torch
model = torch.nn.Linear(4, 4).to(torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters())
loss = torch.tensor(1.0)
def steps():
    for _ in range(30):
        model(torch.ones(1, 4, dtype=torch.bfloat16)).sum().backward()
        optimizer.step()
        yield None
batches = steps()
"""


def test_the_python_of_the_readme_runs(tmp_path: Path) -> None:
    """Its blocks in their order as one script, around a model of the reader's own; no server answers."""
    blocks = re.findall(r"```python\n(.*?)```", text("README.md"), re.DOTALL)
    assert len(blocks) == 3
    script = tmp_path / "train.py"
    script.write_text("\n".join([BEFORE, *blocks, "print(type(optimizer).__name__)"]), encoding="utf-8")
    env = {**os.environ, "ROUNDOFF_SERVER": "http://127.0.0.1:9"}
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, check=False, env=env, cwd=tmp_path
    )
    assert (done.returncode, done.stdout) == (0, "CollageAdamW\n"), done.stderr
    assert "no server at http://127.0.0.1:9" in done.stderr
    assert "30 samples, last at step 29" in done.stderr
    assert (
        "before the first step: bfloat16 weights with nothing that keeps what rounding drops" in done.stderr
    )
    assert "Traceback" not in done.stderr
