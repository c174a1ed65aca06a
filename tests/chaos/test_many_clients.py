"""Many trainings and readers at once on one SQLite file: nobody sees an error, and nobody waits long."""

from __future__ import annotations

import json
import time
from itertools import chain
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import load
import pytest
from arrived import points
from programs import Programs, say

PROGRAM = str(Path(load.__file__))
PACE_S = 1.0
"""Between two batches of one training; a client sends two a second at most."""

LOOK_S = 0.25
"""Between two reads of one reader."""


@pytest.mark.parametrize(
    ("writers", "readers", "seconds", "bar_s"),
    [(4, 1, 4, 5.0), pytest.param(32, 4, 120, 1.0, marks=[pytest.mark.chaos, pytest.mark.timeout(400)])],
)
def test_no_error_reaches_anybody(
    programs: Programs, server: str, writers: int, readers: int, seconds: int, bar_s: float
) -> None:
    """`bar_s` is what 99 of 100 batches must be committed within; other tests may run beside the short form."""
    at = time.time() + 2 + 0.4 * (writers + readers)  # when all of them have started
    begun = [
        programs.start(PROGRAM, "write", server, f"run{number}", str(at), str(seconds), str(PACE_S))
        for number in range(writers)
    ]
    begun += [
        programs.start(PROGRAM, "read", server, "run0", str(at + 2), str(seconds - 2), str(LOOK_S))
        for _ in range(readers)
    ]
    told: list[dict[str, Any]] = []
    for process in begun:
        out, errors = process.communicate(timeout=at - time.time() + seconds + 60)
        assert process.returncode == 0, errors
        told.append(json.loads(out))
    assert list(chain.from_iterable(one["faults"] for one in told)) == []
    ingest = list(chain.from_iterable(one["took"] for one in told[:writers]))
    reads = list(chain.from_iterable(one["took"] for one in told[writers:]))
    p99 = quantiles(ingest, n=100)[98]
    say(
        f"{writers} writers, {readers} readers, {seconds} s: {len(ingest)} batches of "
        f"{load.LAYERS * load.STEPS} layer samples, median {1e3 * median(ingest):.0f} ms, p99 {1e3 * p99:.0f} ms, "
        f"longest {1e3 * max(ingest):.0f} ms; {len(reads)} reads, median {1e3 * median(reads):.0f} ms, "
        f"longest {1e3 * max(reads):.0f} ms"
    )
    assert p99 < bar_s
    for number, one in enumerate(told[:writers]):
        steps = load.STEPS * len(one["took"])
        assert points(server, f"run{number}", steps) == {step: load.loss(step) for step in range(steps)}
