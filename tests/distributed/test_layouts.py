"""Stochastic rounding draws the same bits for an element wherever in a mesh it lies."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_every_layout_on_two_dimensions_draws_the_bits_of_the_whole() -> None:
    script = Path(__file__).with_name("layouts.py")
    command = [sys.executable, "-W", "error", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
