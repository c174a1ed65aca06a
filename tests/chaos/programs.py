"""Programs that a test starts, kills and reads, and none of which outlives it."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

TRAINER = Path(__file__).parent / "trainer.py"


class Programs:
    """Starts programs and sees that none outlives the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.spool = folder / "spool"
        self._started: list[subprocess.Popen[str]] = []

    def start(self, *words: str, **environment: str) -> subprocess.Popen[str]:
        env = {**os.environ, "ROUNDOFF_SPOOL": str(self.spool), **environment}
        process = subprocess.Popen(
            [sys.executable, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
        )
        self._started.append(process)
        return process

    def script(self, text: str, **environment: str) -> subprocess.Popen[str]:
        """A program given as text; it finds nothing but itself."""
        return self.start("-c", textwrap.dedent(text), **environment)

    def train(self, out: str, *flags: str, **environment: str) -> subprocess.Popen[str]:
        return self.start(str(TRAINER), "--out", str(self.folder / out), *flags, **environment)

    def trained(self, out: str) -> dict[int, tuple[float, float]]:
        """Step → loss and the moment of its hand-over, of whole lines."""
        text = (self.folder / out).read_text() if (self.folder / out).exists() else ""
        rows = [line.split() for line in text.splitlines(keepends=True) if line.endswith("\n")]
        return {int(step): (float.fromhex(loss), float(at)) for step, loss, at in rows}

    def close(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.communicate()


def finished(process: subprocess.Popen[str], timeout: float = 120.0) -> str:
    """Wait for its end; what it wrote to standard error. It must end well."""
    _, errors = process.communicate(timeout=timeout)
    assert process.returncode == 0, errors
    return errors


def eventually(holds: Callable[[], bool], seconds: float = 20.0) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not come to be in time"
        time.sleep(0.02)


def say(text: str) -> None:
    """A figure, shown by `pytest -s` or `-rP`."""
    print(text)  # noqa: T201
