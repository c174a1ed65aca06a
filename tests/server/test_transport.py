"""A database read as if a server answered."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest
import sending as s
from calling import Api, Clock

from roundoff_server.database import Database, DatabaseUnusableError
from roundoff_server.transport import open_database


def test_it_answers_as_the_server_does(database: Database, database_url: str, clock: Clock) -> None:
    api = Api(database, clock)
    api.put(s.start())
    api.post(s.batch(layers=s.layers("a"), **s.steps_of(range(30), s.HEALTHY, s.STALLED)))
    with httpx.Client(transport=open_database(database_url), base_url="http://roundoff.invalid") as http:
        for path in ("runs/r1/layers", "runs/r1/heatmap", "alerts"):
            assert http.get(f"/api/v1/{path}").json() == api.get(path)
        assert http.get("/api/v1/runs/none").status_code == 404
        refused = http.put("/api/v1/runs/r2", content=s.start().model_dump_json())
        assert (refused.status_code, "reading only" in refused.text) == (403, True)

        async def inside_a_loop() -> int:
            return http.get("/api/v1/runs").status_code

        assert asyncio.run(inside_a_loop()) == 200
    assert len(api.get("runs")["runs"]) == 1


def test_it_reads_beside_a_running_server(server: str, tmp_path: Path) -> None:
    httpx.put(f"{server}/api/v1/runs/r1", content=s.start().model_dump_json()).raise_for_status()
    with httpx.Client(transport=open_database(str(tmp_path / "served.db")), base_url="http://x") as http:
        assert len(http.get("/api/v1/runs").json()["runs"]) == 1
        httpx.put(f"{server}/api/v1/runs/r2", content=s.start().model_dump_json()).raise_for_status()
        assert len(http.get("/api/v1/runs").json()["runs"]) == 2


def test_a_missing_file_is_named_and_not_made(tmp_path: Path) -> None:
    with pytest.raises(DatabaseUnusableError, match=r"none\.db does not exist; start a server"):
        open_database(str(tmp_path / "none.db"))
    with pytest.raises(OSError, match="does not exist"):
        open_database()
    assert list(tmp_path.iterdir()) == []
