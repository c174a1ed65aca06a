"""Every example as its reader runs it, in short form: with a server, and without one."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
PATIENCE = 240.0
"""Seconds that a test waits for an example, most of them imports on a busy machine."""

STALLS = "layers lose most of their updates to rounding"
TWO = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2")

COMMANDS: dict[str, tuple[tuple[str, ...], str, str]] = {
    "own_loop.py": ((), "own loop, plain bf16", "stalling"),
    "own_loop.py --cure": ((), "own loop, Collage", "healthy"),
    "hf_trainer.py": ((), "HF Trainer", "stalling"),
    "lightning_module.py": ((), "Lightning", "stalling"),
    "lora.py": ((), "LoRA, float32 adapters", "healthy"),
    "lora.py --bf16-adapters": ((), "LoRA, bf16 adapters", "stalling"),
    "ddp.py": (TWO, "two processes", "stalling"),
}
"""Command → what launches it, the run's name, and its verdict."""


def run(command: str, launcher: tuple[str, ...], folder: Path, server: str) -> str:
    """Run it to its end; what it wrote to standard error."""
    script, *flags = command.split()
    words = [*(["-m", *launcher] if launcher else []), str(EXAMPLES / script), "--steps", "40", *flags]
    env = {**os.environ, "ROUNDOFF_SERVER": server, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    process = subprocess.Popen(
        [sys.executable, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=env,
        cwd=folder,
    )
    try:
        _, err = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        process.terminate()  # not killed: a launcher then ends what it has started
        process.communicate(timeout=30)
        raise
    assert process.returncode == 0, err
    assert "Traceback" not in err
    return err


@pytest.fixture(scope="session")
def shared_server(start_server: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with start_server(f"sqlite:///{tmp_path_factory.mktemp('examples') / 'served.db'}") as running:
        yield running.url


def test_every_example_is_run_here_and_says_how_it_is_run() -> None:
    files = {path.name for path in EXAMPLES.glob("*.py")}
    assert files == {command.split()[0] for command in COMMANDS}
    for name in files:
        assert f"examples/{name} [--steps" in (EXAMPLES / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("command", COMMANDS)
def test_with_a_server_the_run_and_its_verdict_are_there(
    command: str, tmp_path: Path, shared_server: str
) -> None:
    launcher, name, health = COMMANDS[command]
    said = run(command, launcher, tmp_path, shared_server)
    assert (STALLS in said) == (health == "stalling")
    listing = [sys.executable, "-m", "roundoff", "runs", "--json", "--server", shared_server, "-q", name]
    listed = json.loads(subprocess.run(listing, capture_output=True, text=True, check=True).stdout)
    [shown] = [one for one in listed if one["name"] == name]
    assert (shown["project"], shown["state"], shown["health"], shown["step"]) == (
        "examples",
        "finished",
        health,
        39,
    )
    assert shown["loss"] is not None
    assert shown["dropped"] == {}
    assert f"at {shared_server}/runs/{shown['id']}" in said


@pytest.mark.parametrize("command", COMMANDS)
def test_without_a_server_the_verdict_is_in_the_terminal(command: str, tmp_path: Path) -> None:
    launcher, name, health = COMMANDS[command]
    said = run(command, launcher, tmp_path, "http://127.0.0.1:9")
    verdict = STALLS if health == "stalling" else "Precision is not hurting this run"
    assert re.search(rf"roundoff: examples/{re.escape(name)}: .*{verdict}", said)
    assert "no server at http://127.0.0.1:9" in said
    assert not list(tmp_path.iterdir())  # nothing is left behind
