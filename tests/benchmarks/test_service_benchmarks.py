"""The benchmarks of the service run as documented, on a small run; their figures mean nothing here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import service
import service_upkeep


def test_fill_measure_export_thin_and_delete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "SMALL_RUNS", 10)
    monkeypatch.setattr(service, "BATCHES", 2)
    folder = tmp_path / "filled"
    small = ["--folder", str(folder), "--databases", "sqlite"]
    service.main([*small, "--rows", "200000", "--json", str(tmp_path / "service.json")])
    found = json.loads((tmp_path / "service.json").read_text())
    (measured,) = found["measured"]
    assert [one["rows"] for one in measured["reads"]] == [20_000, 200_000]
    assert 100 < measured["kept"]["bytes_per_row"] < 2000
    report = tmp_path / "upkeep.json"
    code = service_upkeep.main([*small, "--json", str(report), "--check"])
    upkeep = service_upkeep.Report.model_validate_json(report.read_text())
    (one,) = upkeep.measured
    assert one.export_rows == one.rows > 200_000
    assert one.read_errors == 0
    assert one.after_vacuum < one.before_vacuum
    assert code == int(not upkeep.passed)
    assert "Parquet: rows in the file" in service_upkeep.markdown(upkeep)
