"""The page about frameworks: its lines, pasted one after the other, are a program that runs."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

from roundoff.integrations import mirror

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "integrations.md").read_text(encoding="utf-8")


def test_the_lines_of_every_section_run(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 7
    end = "mirror.close()\nprint(sorted(table))\n"
    script = tmp_path / "page.py"
    script.write_text("\n".join([*blocks[:6], STEP, blocks[6], end]), encoding="utf-8")
    env = {
        **os.environ,
        "ROUNDOFF_SERVER": "http://127.0.0.1:9",
        "HF_HUB_OFFLINE": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    done = subprocess.run(
        [sys.executable, script],
        capture_output=True,
        text=True,
        check=False,
        env=env,
        cwd=tmp_path,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[60]"  # the optimizer has 40 + 20 steps behind it
    for name in ("a loop of my own", "HF Trainer", "Accelerate", "Lightning"):
        assert re.search(rf"roundoff: docs/{name}: .*lose most of their updates to rounding", done.stderr), (
            name
        )
    assert re.search(r"docs/inspected: no server", done.stderr)
    assert "Traceback" not in done.stderr


STEP = "model(rows).square().mean().backward()\noptimizer.step()\n"
"""A step for the section about other trackers, whose training is the reader's own."""


def test_every_function_of_the_mirror_is_on_the_page() -> None:
    functions = [
        name for name, one in inspect.getmembers(mirror, inspect.isfunction) if name.startswith("mirror_to")
    ]
    assert len(functions) == 4
    for name in functions:
        assert f"| `{name}(" in PAGE
