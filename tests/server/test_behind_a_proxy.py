"""Two servers on one PostgreSQL behind the proxy of the compose file: they look like one, and one may die."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import sending as s

CADDY = shutil.which("caddy")
CADDYFILE = Path(__file__).parent.parent.parent / "deploy" / "Caddyfile"
TOKEN = "long enough for a test"
HEARD_S = 1.0

pytestmark = [
    pytest.mark.parametrize("database_url", ["postgresql"], indirect=True),
    pytest.mark.skipif(CADDY is None, reason="needs the command caddy (Debian: apt install caddy)"),
]


@contextmanager
def proxy(folder: Path, *servers: str) -> Iterator[str]:
    """The proxy of the compose file in front of these servers, which here have no common name."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    addresses = " ".join(server.removeprefix("http://") for server in servers)
    text, found = re.subn(r"dynamic a \{.*?\}", f"to {addresses}", CADDYFILE.read_text(), flags=re.DOTALL)
    assert found == 1
    config = folder / "Caddyfile"
    config.write_text(text)
    home = {"HOME": str(folder), "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
    with (folder / "caddy.log").open("w") as log:
        process = subprocess.Popen(
            [str(CADDY), "run", "--adapter", "caddyfile", "--config", str(config)],
            stderr=log,
            env={**os.environ, **home, "ROUNDOFF_SITE": url},
        )
        try:
            wait_for(url)
            yield url
        finally:
            process.terminate()
            process.wait(10)


def wait_for(url: str) -> None:
    until = time.monotonic() + 10
    while True:
        try:
            httpx.get(f"{url}/healthz").raise_for_status()
        except httpx.HTTPError:
            assert time.monotonic() < until, "the proxy does not answer"
            time.sleep(0.05)
        else:
            return


def test_two_servers_look_like_one(database_url: str, start_server: Any, tmp_path: Path) -> None:
    token = {"ROUNDOFF_ADMIN_TOKEN": TOKEN, "ROUNDOFF_PROXIES": "*"}
    with (
        start_server(database_url, **token) as one,
        start_server(database_url, **token) as two,
        proxy(tmp_path, one.url, two.url) as url,
        httpx.Client(base_url=url, timeout=10) as browser,
        httpx.Client(base_url=url, timeout=10, headers={"Authorization": f"Bearer {TOKEN}"}) as training,
    ):
        signed_in = browser.post("/login", data={"token": TOKEN})
        assert (signed_in.status_code, "httponly" in signed_in.headers["set-cookie"].lower()) == (303, True)
        with browser.stream("GET", "/api/v1/events") as stream:
            lines = stream.iter_lines()
            next(lines)
            time.sleep(0.2)  # the listener is there once the first line has come and it has got its turn
            for number in range(6):  # some through either server
                began = time.monotonic()
                training.put(
                    f"/api/v1/runs/r{number}", content=s.start().model_dump_json()
                ).raise_for_status()
                data = next(line for line in lines if line.startswith("data: "))
                assert json.loads(data.removeprefix("data: "))["run_id"] == f"r{number}"
                assert time.monotonic() - began < HEARD_S
        assert {browser.get("/api/v1/runs").status_code for _ in range(20)} == {200}
        told = [httpx.get(f"{server.url}/metrics", headers=training.headers).text for server in (one, two)]
        assert all('route="/api/v1/runs",status="200"' in text for text in told), "both have worked"
        one.process.send_signal(signal.SIGKILL)
        one.process.wait()
        assert {browser.get("/api/v1/runs").status_code for _ in range(20)} == {200}
        batch = s.packed(s.batch(**s.steps_of(range(3), s.HEALTHY)))
        answer = training.post("/api/v1/runs/r0/batches", content=batch, headers={"Content-Encoding": "gzip"})
        assert answer.json()["status"] == "accepted"
