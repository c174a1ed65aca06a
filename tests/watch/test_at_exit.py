"""Two lines in somebody's script, no server and no settings: a verdict when the program ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import torch, roundoff
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.LayerNorm(64), torch.nn.Linear(64, 16)).bfloat16()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
{watch}
for step in range(80):
    x = torch.randn(8, 16).bfloat16()
    (model(x) - x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
print("trained")
{end}
"""


def run(tmp_path: Path, watch: str, end: str = "") -> subprocess.CompletedProcess[str]:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(watch=watch, end=end), encoding="utf-8")
    return subprocess.run([sys.executable, script], capture_output=True, text=True, check=False, cwd=tmp_path)


def test_the_verdict_table_is_printed_at_the_end(tmp_path: Path) -> None:
    done = run(tmp_path, "roundoff.watch(model, optimizer)")
    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert "Stalling. 1 of 6 layers loses most of its updates to rounding." in done.stderr
    row = next(line for line in done.stderr.splitlines() if line.startswith("1.weight"))
    assert row.split() == ["1.weight", "stalling", "100", "%", "0.000"]


def test_what_is_known_before_the_first_step_is_said_first(tmp_path: Path) -> None:
    said = run(tmp_path, "roundoff.watch(model, optimizer)").stderr.splitlines()
    first = [line for line in said if line.startswith("roundoff: ")]
    assert first == said[: len(first)]
    assert "before the first step: bfloat16 weights with nothing that keeps what rounding drops" in first[0]
    assert "β2 = 0.999 is 1 in bfloat16" in first[1]
    assert [line.startswith("roundoff: what to do: ") for line in first] == [False] * (len(first) - 1) + [
        True
    ]
    kept = run(tmp_path, "w = roundoff.watch(model, roundoff.CollageAdamW(model.parameters()))", "w.detach()")
    assert kept.stderr == ""


def test_it_is_printed_when_model_and_optimizer_are_gone(tmp_path: Path) -> None:
    body = SCRIPT.format(watch="roundoff.watch(model, optimizer)", end="").replace("\n", "\n    ")
    script = tmp_path / "train.py"
    script.write_text(f"import gc\ndef main():{body}\nmain()\ngc.collect()\n", encoding="utf-8")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert "Stalling. 1 of 6 layers loses" in done.stderr


def test_it_is_printed_after_an_error_too_and_not_after_detach(tmp_path: Path) -> None:
    failed = run(tmp_path, "roundoff.watch(model, optimizer)", "raise SystemExit(3)")
    assert failed.returncode == 3
    assert "Stalling." in failed.stderr
    detached = run(tmp_path, "watch = roundoff.watch(model, optimizer)", "watch.detach()")
    assert "Stalling." not in detached.stderr
