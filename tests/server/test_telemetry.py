"""The server's own figures and logs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
import sending as s
from calling import Api
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy.exc import OperationalError

from roundoff_server.database import Database
from roundoff_server.services.ingest import Taken


def figures(api: Api) -> dict[tuple[str, ...], float]:
    """Samples of /metrics by name and label values."""
    text = api.http.get("/metrics").text
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_batches_and_rows_are_counted_by_what_became_of_them(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.put(s.start())
    first = s.batch(layers=s.layers("a"), samples=s.layer_samples({(0, 0): s.HEALTHY, (0, 1): s.HEALTHY}))
    rows = api.post(first)["rows"]
    api.post(first)
    assert api.send(s.batch(seq=1, attempt=7)).status_code == 422
    assert api.send(s.batch(seq=1), run_id="nobody").status_code == 404

    def broken(*_: Any) -> Taken:
        raise OperationalError("INSERT", {}, Exception("the disk is gone"))

    with monkeypatch.context() as patch:
        patch.setattr("roundoff_server.services.intake.take", broken)
        assert api.send(s.batch(seq=2)).status_code == 503
        patch.setattr("roundoff_server.services.intake.WAITING_BYTES", -1)
        patch.setattr(api.app.state.service.intake, "_bytes", 1)
        assert api.send(s.batch(seq=3)).status_code == 429
    found = figures(api)
    outcomes = {
        name: found["roundoff_batches_total", name]
        for name in ("accepted", "duplicate", "refused", "failed", "busy")
    }
    assert outcomes == {"accepted": 1, "duplicate": 1, "refused": 2, "failed": 1, "busy": 1}
    assert found["roundoff_rows_total",] == rows > 0


def test_requests_are_timed_by_route_not_by_address(api: Api) -> None:
    for run in ("r1", "r2", "r3"):
        api.put(s.start(), run_id=run)
    api.http.get("/no/such/page/1")
    found = figures(api)
    assert found["roundoff_request_seconds_count", "PUT", "/api/v1/runs/{run_id}", "200"] == 3
    assert found["roundoff_request_seconds_count", "GET", "", "404"] == 1
    assert not any("r1" in label for key in found for label in key)
    assert {("roundoff_waiting_batches",), ("roundoff_waiting_bytes",), ("roundoff_lag_seconds",)} <= set(
        found
    )
    assert {("roundoff_event_listeners",), ("roundoff_database_connections",)} <= set(found)


def test_an_open_stream_is_counted_while_it_is_open(start_server: Any, tmp_path: Path) -> None:
    with start_server(str(tmp_path / "x.db")) as running:

        def listeners() -> str:
            shown = httpx.get(f"{running.url}/metrics").text.splitlines()
            return next(line for line in shown if line.startswith("roundoff_event_listeners")).split()[1]

        assert listeners() == "0.0"
        with httpx.stream("GET", f"{running.url}/api/v1/events") as stream:
            lines = stream.iter_lines()  # the stream ends with it
            next(lines)
            until = time.monotonic() + 5
            while listeners() == "0.0" and time.monotonic() < until:
                time.sleep(0.02)
            assert listeners() == "1.0"


@pytest.mark.parametrize(
    ("sent", "kept"), [("abc-1.2_3", True), ("a b", False), ("x" * 129, False), ("", False)]
)
def test_an_answer_names_its_request(api: Api, sent: str, kept: bool) -> None:
    answer = api.http.get("/healthz", headers={"X-Request-ID": sent})
    assert (answer.headers["X-Request-ID"] == sent) is kept
    assert answer.headers["X-Request-ID"]


def test_a_fault_says_which_line_of_the_log(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(api.source, "runs", broken)
    answer = api.http.get("/api/v1/runs", headers={"X-Request-ID": "mine"})
    assert (answer.status_code, "as request mine" in answer.json()["detail"]) == (500, True)


def test_not_ready_without_the_schema_or_the_database(
    api: Api, database: Database, database_url: str
) -> None:
    assert api.http.get("/readyz").json() == {"ready": True}
    with database.write() as session:
        session.connection().exec_driver_sql("UPDATE alembic_version SET version_num = '0001'")
    assert api.http.get("/readyz").status_code == 503
    take_away(database, database_url)
    answer = api.http.get("/readyz")
    assert (answer.status_code, str(database.url.database) in answer.text) == (503, False)


def take_away(database: Database, url: str) -> None:
    """Remove a database, whoever uses it."""
    if database.is_sqlite:
        Path(str(database.url.database)).unlink()
        return
    name = str(database.url.database)
    with psycopg.connect(url.replace(f"/{name}?", "/postgres?"), autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")  # type: ignore[arg-type]


def test_logs_are_objects_a_line_and_hold_no_token(tmp_path: Path) -> None:
    token = "a long enough token"
    database, log = str(tmp_path / "x.db"), tmp_path / "log"
    environment = {
        "ROUNDOFF_ADMIN_TOKEN": token,
        "ROUNDOFF_LOG_FORMAT": "json",
        "ROUNDOFF_LOG_LEVEL": "info",
    }
    with log.open("w") as err:
        command = [sys.executable, "-m", "roundoff_server", "--port", "0", "--database", database]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=err, text=True, env={**os.environ, **environment}
        )
        assert process.stdout is not None
        url = process.stdout.readline().split(" at ")[1].split()[0]
        headers = {"Authorization": f"Bearer {token}", "X-Request-ID": "r-7"}
        httpx.get(f"{url}/api/v1/runs?q=x", headers=headers)
        httpx.delete(f"{url}/api/v1/runs/nobody", headers=headers)
        httpx.post(f"{url}/login", data={"token": token})
        httpx.get(f"{url}/api/v1/runs", headers={"Authorization": "Bearer some-wrong-token"})
        process.terminate()
        assert process.wait(10) in (0, -15)
        process.stdout.close()
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    got = next(line for line in lines if line["message"].startswith("GET /api/v1/runs 200"))
    assert (got["logger"], got["level"], got["request"], got["status"]) == (
        "roundoff.requests",
        "INFO",
        "r-7",
        200,
    )
    audit = next(line for line in lines if line["logger"] == "roundoff.audit")
    assert (audit["message"], audit["token_name"]) == (
        "DELETE /api/v1/runs/nobody 404",
        "ROUNDOFF_ADMIN_TOKEN",
    )
    assert token not in log.read_text()
    assert "some-wrong-token" not in log.read_text()
