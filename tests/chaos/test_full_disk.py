"""Spools that take nothing, or stop taking: training goes on, what can be sent is, and the rest is counted."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from arrived import only_run, points, sync
from programs import Programs, eventually, finished

import roundoff


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("file systems cannot be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_and_no_server(small_disk: Path, nobody: str, start_server: Any, tmp_path: Path) -> None:
    run = roundoff.init("chaos", server=nobody, spool=small_disk)
    (small_disk / "checkpoint").write_bytes(bytes(9 * 2**20))  # by now the training needs the room itself
    names = [f"value/{number}" for number in range(100)]
    for step in range(4000):
        run.log(dict.fromkeys(names, float(step)), step=step)
    eventually(lambda: run.delivery.problem == "connection refused")
    with start_server(f"sqlite:///{tmp_path / 'late.db'}", "--port", nobody.rpartition(":")[2]) as running:
        run.finish(timeout=120)
        state = run.delivery
        assert (state.taken, state.sent, state.dropped) == (400_000, 400_000, {})
        assert points(running.url, run.id, 4000, "scalar:value/7") == {s: float(s) for s in range(4000)}


def test_a_full_disk_to_the_end_is_counted(small_disk: Path, nobody: str, server: str, caplog: Any) -> None:
    run = roundoff.init("chaos", server=nobody, spool=small_disk)
    (small_disk / "checkpoint").write_bytes(bytes(5 * 2**20))
    names = [f"value/{number}" for number in range(100)]
    for step in range(20_000):
        run.log(dict.fromkeys(names, float(step)), step=step)
    run.finish(timeout=2)
    state = run.delivery
    assert caplog.text.count("takes nothing more") == 1
    assert 0 < state.spooled < state.taken
    assert state.spooled + state.dropped["points (not sent before the end)"] == state.taken == 2_000_000
    (small_disk / "checkpoint").unlink()
    (left,) = sync(small_disk, server)
    assert (left.state, left.sent) == ("sent", state.spooled)


@pytest.mark.parametrize("kind", ["a file", "read-only"])
def test_no_spool_at_all(programs: Programs, server: str, tmp_path: Path, kind: str) -> None:
    place = tmp_path / "place"
    if kind == "a file":
        place.write_text("this is no folder")
    else:
        place.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(place)]
        if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
            pytest.skip("file systems cannot be mounted here")
    try:
        training = programs.train("with", "--server", server, "--steps", "50", "--spool", str(place))
        assert f"no spool at {place}" in finished(training)
    finally:
        subprocess.run(["umount", "-l", str(place)], capture_output=True, check=False)
    run = only_run(server)
    assert points(server, run.id, 50) == {s: loss for s, (loss, _) in programs.trained("with").items()}
    assert run.state == "finished"


def test_offline_without_a_spool_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    place = tmp_path / "place"
    place.write_text("this is no folder")
    run = roundoff.init("chaos", mode="offline", spool=place)
    run.log({"loss": 1.0})
    run.finish()
    assert "nothing is kept" in caplog.text
