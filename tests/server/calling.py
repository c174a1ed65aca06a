"""Call the application in this process by name, with a clock that tests turn."""

from __future__ import annotations

from typing import Any

import httpx
from fastapi import FastAPI
from sending import packed

from roundoff.wire import Batch, RunStart
from roundoff_server.api.context import Service
from roundoff_server.app import create_app
from roundoff_server.database import Database
from roundoff_server.services.query import Query
from roundoff_server.transport import InProcess

OPENED: list[Service] = []
"""Services whose threads end with the test."""


class Clock:
    """The server's time, in seconds since 1970."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


class Api:
    """Calls by name; `http` for everything else."""

    def __init__(self, database: Database, clock: Clock, app: FastAPI | None = None) -> None:
        self.database = database
        self.clock = clock
        if app is None:
            app = create_app(database, local_only=False, clock=clock)
            OPENED.append(app.state.service)
        self.app = app
        self.http = httpx.Client(transport=InProcess(self.app), base_url="http://127.0.0.1")
        self.source: Query = self.app.state.service.query

    def put(self, body: RunStart, run_id: str = "r1") -> Any:
        answer = self.http.put(f"/api/v1/runs/{run_id}", content=body.model_dump_json())
        assert answer.status_code == 200, answer.text
        return answer.json()

    def send(self, body: Batch, run_id: str = "r1") -> httpx.Response:
        headers = {"Content-Encoding": "gzip"}
        return self.http.post(f"/api/v1/runs/{run_id}/batches", content=packed(body), headers=headers)

    def post(self, body: Batch, run_id: str = "r1") -> Any:
        answer = self.send(body, run_id)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def get(self, path: str, **params: Any) -> Any:
        answer = self.http.get(f"/api/v1/{path}", params=params)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def restart(self) -> Api:
        """Another process's view: nothing is kept but the database."""
        return Api(self.database, self.clock)

    def another_client(self) -> Api:
        """Calls the same application at the same time."""
        return Api(self.database, self.clock, self.app)
