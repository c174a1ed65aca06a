"""Two server processes on one PostgreSQL: what one takes, the browsers of the other hear of."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import psycopg
import pytest
import sending as s

from roundoff.wire import Event
from roundoff_server.database import Database
from roundoff_server.services.events import Bus
from roundoff_server.services.relay import Relay

pytestmark = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)


def next_event(lines: Iterator[str]) -> dict[str, Any]:
    return next(json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: "))


def test_an_event_reaches_the_browsers_of_the_other_process(database_url: str, start_server: Any) -> None:
    with (
        start_server(database_url) as one,
        start_server(database_url) as other,
        httpx.Client(timeout=10, trust_env=False) as http,
        http.stream("GET", f"{other.url}/api/v1/events") as stream,
    ):
        lines = stream.iter_lines()
        assert next(lines).startswith("retry:")
        time.sleep(0.2)  # the listener is there once the first line has come and it has got its turn
        began = time.monotonic()
        http.put(f"{one.url}/api/v1/runs/r1", content=s.start().model_dump_json()).raise_for_status()
        assert next_event(lines)["run_id"] == "r1"
        assert time.monotonic() - began < 1
        answer = http.post(
            f"{one.url}/api/v1/runs/r1/batches",
            content=s.packed(s.batch(**s.steps_of(range(3), s.HEALTHY))),
            headers={"Content-Encoding": "gzip"},
        )
        assert answer.json()["status"] == "accepted"
        assert next_event(lines) == {"run_id": "r1", "kind": "samples", "step": 2}


def test_it_hears_again_after_its_connection_broke(database_url: str) -> None:
    database = Database(database_url)
    heard: list[Event] = []

    class Noting(Bus):
        def publish(self, events: Any) -> None:
            heard.extend(events)

    here, there = Relay(database, Noting()), Relay(database, Bus())
    here.start()
    there.start()
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"
        )
    deadline = time.monotonic() + 20
    while not heard and time.monotonic() < deadline:
        there.tell([Event(run_id="r1", kind="run")])
        time.sleep(0.2)
    assert heard[0].run_id == "r1"
    count = len(heard)
    here.tell([Event(run_id="mine", kind="run")])
    time.sleep(0.5)
    assert all(event.run_id == "r1" for event in heard[count:]), "its own events do not come back"
    here.stop()
    there.stop()
    database.dispose()
