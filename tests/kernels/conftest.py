"""Triton decides when it is loaded whether it interprets kernels, so its tests run in a process of their own.

Here they are reported one by one, as what that process says of each. Where there is a GPU they run on it, in
this process.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

INTERPRETED = Path(__file__).with_name("test_triton.py")
_REPORTS = pytest.StashKey[dict[str, ElementTree.Element]]()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Take the other process's word for a test of `INTERPRETED`."""
    if pyfuncitem.path != INTERPRETED or os.environ.get("TRITON_INTERPRET") or torch.cuda.is_available():
        return None
    stash = pyfuncitem.session.stash
    if _REPORTS not in stash:
        items = [item for item in pyfuncitem.session.items if item.path == INTERPRETED]
        stash[_REPORTS] = _run(items, pyfuncitem.config.rootpath)
    if pyfuncitem.name not in stash[_REPORTS]:
        pytest.fail("the process with the interpreter did not run this", pytrace=False)
    for verdict in stash[_REPORTS][pyfuncitem.name]:
        if verdict.tag == "skipped":
            pytest.skip(verdict.get("message", ""))
        if verdict.tag in ("failure", "error"):
            pytest.fail(verdict.text or verdict.get("message", ""), pytrace=False)
    return True


def _run(items: list[pytest.Item], root: Path) -> dict[str, ElementTree.Element]:
    """Run tests where Triton interprets; what JUnit's report says of each, by its name."""
    folder = items[0].config._tmp_path_factory.mktemp("triton")  # type: ignore[attr-defined]
    report = folder / "report.xml"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--junit-xml={report}"]
        + [f"{INTERPRETED}::{item.name}" for item in items],
        cwd=root,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    if not report.exists():
        pytest.fail(f"the process with the interpreter ended without a report:\n{done.stdout}{done.stderr}")
    return {case.get("name", ""): case for case in ElementTree.parse(report).iter("testcase")}
