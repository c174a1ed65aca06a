"""The demo as its user meets it, in short form: a real server, a real training, the verdict."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


@contextmanager
def begun(*words: str) -> Iterator[subprocess.Popen[str]]:
    """`roundoff demo …` with the server's data in the test's own folder; it and its server end with the block."""
    # A shell that runs the tests in the background has SIGINT ignored, which the demo would inherit.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(
        [sys.executable, "-m", "roundoff", "demo", "--no-open", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "120"},
        start_new_session=True,
    )
    signal.signal(signal.SIGINT, before)
    with process:
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def listed(database: str) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "roundoff", "runs", "--json", "--database", database]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def answering(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/healthz", timeout=5) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def test_a_short_demo_ends_with_the_verdict_and_leaves_nothing_running(tmp_path: Path) -> None:
    database = str(tmp_path / "demo.db")
    with socket.create_server(("127.0.0.1", 0)) as taken:  # a port that something else has
        port = taken.getsockname()[1]
        words = ["--steps", "14", "--strategies", "none,plus", "--database", database, "--port", str(port)]
        with begun(*words, "--exit") as process:
            out, err = process.communicate(timeout=280)
    assert process.returncode == 0, err
    assert err == ""
    address = re.search(r"roundoff is at (http://127\.0\.0\.1:(\d+)) \(started\)", out)
    assert address
    assert int(address[2]) != port
    assert not answering(address[1])
    last = out.strip().splitlines()[-8:]
    assert any(re.match(r"plain bf16 \(none\) +\d\.\d{3} +\d", line) for line in last)
    assert any(re.match(r"Collage plus +\d\.\d{3} +\d", line) for line in last)
    assert "At the end plain bfloat16 stored" in out
    runs = listed(database)
    assert [(run["project"], run["name"], run["state"]) for run in runs] == [
        ("demo", "Collage plus", "finished"),
        ("demo", "plain bf16 (none)", "finished"),
    ]
    for run in runs:
        assert run["layers"] == 28
        assert run["step"] == 13
        assert run["dropped"] == {}
        assert run["lost_fraction"] is not None
    assert runs[0]["lost_fraction"] < 0.01 < runs[1]["lost_fraction"]


def test_the_default_leaves_the_server_up_and_the_next_demo_uses_it(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    address = f"http://127.0.0.1:{port}"
    database = str(tmp_path / "demo.db")
    with begun("--steps", "1", "--strategies", "plus", "--database", database, "--port", port) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        for line in process.stdout:
            if "The pages stay up at" in line:
                break
        assert answering(address), process.stderr.read()

        with begun("--steps", "1", "--strategies", "light", "--exit", "--port", port) as another:
            out, err = another.communicate(timeout=240)
        assert another.returncode == 0, err
        assert f"roundoff is at {address} (running already)" in out
        assert [run["name"] for run in listed(database)] == ["Collage light", "Collage plus"]
        assert answering(address)

        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0, process.stderr.read()
        assert not answering(address)


def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    nowhere = tmp_path / "file"
    nowhere.write_text("not a folder")
    with begun("--steps", "1", "--exit", "--database", f"sqlite:///{nowhere}/x.db") as process:
        out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (1, "")
    assert err.startswith("error: the server did not start: ")
    assert "x.db" in err
    assert "Traceback" not in err
