"""The benchmark of delivery in its short form, and the page it writes."""

from __future__ import annotations

from pathlib import Path

import pytest

import delivery
import marks


def test_it_measures_and_writes_its_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "delivery.md"
    page.write_text("before\n<!-- delivery: begin -->\n<!-- delivery: end -->\nafter\n")
    monkeypatch.setattr(delivery, "DOCS", tmp_path)
    monkeypatch.setenv("ROUNDOFF_SPOOL", str(tmp_path / "spool"))
    report = tmp_path / "report.json"
    assert delivery.main(["--quick", "--json", str(report)]) == 0
    assert delivery.main(["--read", str(report), "--markdown"]) == 0
    written = page.read_text()
    assert "| `run.log`, without pause | 5,000 |" in written
    assert written.startswith("before\n")
    assert written.endswith("after\n")
    read = delivery.Report.model_validate_json(report.read_text())
    assert 16 <= read.value_bytes < 80  # the less the faster they came
    assert 8 * 24 < read.layer_bytes < 8 * 24 + 30
    assert read.values_sent_per_s > 100
    slow = read.calls[0].model_copy(update={"p999": 0.002})
    assert not read.model_copy(update={"calls": (slow,)}).passed
    report.write_text(read.model_copy(update={"calls": (slow,)}).model_dump_json())
    assert delivery.main(["--read", str(report), "--check"]) == 1
    assert marks.DOCS.name == "docs"
