"""The server as a real process: start, live events, stop."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
import sending as s
import typer
from typer.testing import CliRunner

from roundoff_server.commands import serve

STOPPED_S = 5.0


def read_events(lines: Any, wanted: int) -> list[dict[str, Any]]:
    """The next messages of a stream."""
    found: list[dict[str, Any]] = []
    for line in lines:
        if line.startswith("data: "):
            found.append(json.loads(line.removeprefix("data: ")))
            if len(found) == wanted:
                break
    return found


def test_from_start_to_a_live_event(start_server: Any, database_url: str) -> None:
    with start_server(database_url) as running, httpx.Client(base_url=running.url) as http:
        assert http.get("/healthz").json()["name"] == "roundoff"
        assert http.get("/readyz").json() == {"ready": True}
        api, packed = "/api/v1/runs/r1", {"Content-Encoding": "gzip"}
        began = time.monotonic()
        with http.stream("GET", "/api/v1/events") as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            lines = stream.iter_lines()
            assert next(lines).startswith("retry: ")
            assert time.monotonic() - began < 1
            with httpx.Client(base_url=running.url) as writer:
                writer.put(api, content=s.start().model_dump_json()).raise_for_status()
                body = s.packed(s.batch(**s.steps_of(range(20), s.STALLED)))
                writer.post(f"{api}/batches", content=body, headers=packed).raise_for_status()
                assert read_events(lines, 3) == [
                    {"run_id": "r1", "kind": "run", "step": None},
                    {"run_id": "r1", "kind": "samples", "step": 19},
                    {"run_id": "r1", "kind": "alert", "step": 19},
                ]
        assert http.get(api).json()["health"] == "stalling"
        assert http.get("/runs/r1").status_code == 200
        assert running.stop() == 0
    with start_server(database_url) as running, httpx.Client(base_url=running.url) as http:
        assert http.get("/api/v1/alerts").json()["alerts"][0]["state"] == "firing", (
            "acknowledged means committed"
        )


def test_last_event_id_catches_up(start_server: Any, database_url: str) -> None:
    with start_server(database_url) as running, httpx.Client(base_url=f"{running.url}/api/v1") as http:
        for name in ("a", "b", "c"):
            http.put(f"runs/{name}", content=s.start().model_dump_json()).raise_for_status()
        with http.stream("GET", "events", headers={"Last-Event-ID": "before-1"}) as stream:
            lines = [line for _, line in zip(range(11), stream.iter_lines(), strict=False)]
        ids = [line.removeprefix("id: ") for line in lines if line.startswith("id: ")]
        assert [json.loads(line[6:])["run_id"] for line in lines if line.startswith("data: ")] == [
            "a",
            "b",
            "c",
        ]
        with http.stream("GET", "events", headers={"Last-Event-ID": ids[1]}) as stream:
            [event] = read_events(stream.iter_lines(), 1)
        assert event["run_id"] == "c"


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])
def test_it_stops_in_time_with_streams_open(start_server: Any, database_url: str, sig: int) -> None:
    with start_server(database_url) as running, ExitStack() as stack:
        http = stack.enter_context(
            httpx.Client(base_url=running.url, limits=httpx.Limits(max_connections=100))
        )
        streams = [stack.enter_context(http.stream("GET", "/api/v1/events")) for _ in range(50)]
        lines = [stream.iter_lines() for stream in streams]
        for one in lines:
            next(one)
        ended: list[int] = []
        readers = [threading.Thread(target=lambda one=one: ended.append(len(list(one)))) for one in lines]
        for reader in readers:
            reader.start()
        began = time.monotonic()
        assert running.stop(sig) == 0
        assert time.monotonic() - began < STOPPED_S
        for reader in readers:
            reader.join(5)
        assert len(ended) == 50, "every stream ended in order, none was cut"
        assert running.process.stderr.read() == ""


def test_a_taken_port_is_named(start_server: Any, tmp_path: Path) -> None:
    with start_server(str(tmp_path / "x.db")) as running:
        port = running.url.rpartition(":")[2]
        command = [
            sys.executable,
            "-m",
            "roundoff_server",
            "--port",
            port,
            "--database",
            str(tmp_path / "y.db"),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr == (
        f"error: port {port} on 127.0.0.1 is taken; stop the program that has it, or choose another with --port\n"
    )
    assert not (tmp_path / "y.db").exists()


def test_what_cannot_start_says_so_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no database" * 100)
    app = typer.Typer()
    app.command()(serve)
    cases: list[tuple[list[str], dict[str, str], str]] = [
        (["--insecure"], {"ROUNDOFF_ADMIN_TOKEN": "12345678"}, "insecure and admin_token are both set"),
        (["--host", "no.such.invalid"], {"ROUNDOFF_ADMIN_TOKEN": "12345678"}, "choose one with --host"),
        (["--database", str(tmp_path / "text")], {}, "not a database"),
        (["--database", "mysql://x/y"], {}, "only sqlite and postgresql"),
        ([], {"ROUNDOFF_PORT": "many"}, "setting port = 'many'"),
        ([], {"ROUNDOFF_ADMIN_TOKEN": "short"}, "setting admin_token = …"),
    ]
    for arguments, environment, message in cases:
        done = CliRunner().invoke(app, arguments, env={"ROUNDOFF_PORT": "0", **environment})
        assert done.exit_code == 1, (arguments, done.output)
        assert message in done.stderr
        assert (done.stderr.count("\n"), done.stdout) == (1, ""), done.stderr


def test_beyond_this_machine_the_first_token_is_shown_once(start_server: Any, database_url: str) -> None:
    with start_server(database_url, "--host", "0.0.0.0") as running:
        assert httpx.get(f"{running.url}/api/v1/runs").status_code == 401
        token = running.process.stdout.readline().removeprefix("First admin token, shown this once: ").strip()
        headers = {"Authorization": f"Bearer {token}"}
        assert httpx.get(f"{running.url}/api/v1/tokens", headers=headers).json()[0]["name"] == "first"
    with start_server(database_url) as running:
        assert httpx.get(f"{running.url}/api/v1/runs").status_code == 401
        assert httpx.get(f"{running.url}/api/v1/runs", headers=headers).status_code == 200


def test_beyond_this_machine_with_a_token(start_server: Any, tmp_path: Path) -> None:
    token = "a long enough token"
    with start_server(str(tmp_path / "x.db"), "--host", "0.0.0.0", ROUNDOFF_ADMIN_TOKEN=token) as running:
        assert httpx.get(f"{running.url}/api/v1/runs").status_code == 401
        opened = httpx.get(f"{running.url}/api/v1/runs", headers={"Authorization": f"Bearer {token}"})
        assert opened.status_code == 200


@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGTERM])
def test_ended_in_the_middle_keeps_what_it_answered(start_server: Any, database_url: str, sig: int) -> None:
    answered = -1
    with start_server(database_url) as running, httpx.Client(base_url=f"{running.url}/api/v1/runs/") as http:
        http.put("r1", content=s.start().model_dump_json())
        timer = threading.Timer(0.7, running.process.send_signal, [sig])
        timer.start()
        try:
            for seq in range(10_000):
                body = s.packed(s.batch(seq, **s.steps_of([seq], s.HEALTHY)))
                http.post("r1/batches", content=body, headers={"Content-Encoding": "gzip"}).raise_for_status()
                answered = seq
        except httpx.HTTPError:
            timer.join()
    assert answered > 0
    with start_server(database_url) as running:
        found = httpx.get(
            f"{running.url}/api/v1/runs/r1/series", params={"metric": "edq", "max_points": 20_000}
        )
        assert set(range(answered + 1)) <= set(found.json()["steps"])


def test_writers_and_readers_of_two_processes_share_a_database(start_server: Any, database_url: str) -> None:
    faults: list[str] = []
    with start_server(database_url) as one, start_server(database_url) as two:
        httpx.put(f"{one.url}/api/v1/runs/r1", content=s.start().model_dump_json()).raise_for_status()

        def write(url: str, writer: str) -> None:
            with httpx.Client(base_url=url, timeout=30) as http:
                for seq in range(6):
                    body = s.packed(s.batch(seq, writer, **s.steps_of([seq], s.HEALTHY)))
                    answer = http.post(
                        "/api/v1/runs/r1/batches", content=body, headers={"Content-Encoding": "gzip"}
                    )
                    if answer.status_code != 200:
                        faults.append(answer.text)
                    if http.get("/api/v1/runs").status_code != 200:
                        faults.append("a read failed")

        asked = [(url, f"{number} to {url}") for number in range(3) for url in (one.url, two.url)]
        threads = [threading.Thread(target=write, args=pair) for pair in asked]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert faults == []
