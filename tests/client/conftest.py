"""A small HTTP server whose answers a test decides, for what the real one does not do on demand."""

from __future__ import annotations

import gzip
import json
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from roundoff.wire import Batch

Answer = tuple[int, dict[str, str], bytes]


def problem(status: int, detail: str = "as the test wants it", **headers: str) -> Answer:
    """An error as the real server words it."""
    body = json.dumps({"title": "refused", "status": status, "detail": detail}).encode()
    return status, {"Content-Type": "application/problem+json", **headers}, body


@dataclass
class Scripted:
    """Takes runs and batches like the real server; `script` answers first, None meaning: do as usual.

    `batches` holds what was taken, `seen` every request's method, path and body as it came.
    """

    url: str
    script: Callable[[str, bytes], Answer | None] = lambda method, body: None
    batches: list[Batch] = field(default_factory=list)
    starts: list[dict[str, Any]] = field(default_factory=list)
    seen: list[tuple[str, str, bytes]] = field(default_factory=list)

    def answer(self, method: str, path: str, body: bytes) -> Answer:
        self.seen.append((method, path, body))
        scripted = self.script(method, body)
        if scripted is not None:
            return scripted
        if method == "PUT":
            self.starts.append(json.loads(body))
            run_id = path.rsplit("/", 1)[1]
            answer: dict[str, Any] = {"run_id": run_id, "attempt": 1, "page": f"/runs/{run_id}"}
        else:
            batch = Batch.model_validate_json(body)
            known = any((b.writer, b.seq) == (batch.writer, batch.seq) for b in self.batches)
            if not known:
                self.batches.append(batch)
            answer = {"status": "duplicate" if known else "accepted", "rows": 0}
        return 200, {"Content-Type": "application/json"}, json.dumps(answer).encode()

    def scalars(self) -> list[tuple[int, str, float]]:
        """Every logged value that was taken: step, name, value."""
        return [
            (step, batch.scalars.names[int(name)], value)
            for batch in self.batches
            if batch.scalars
            for step, name, value in zip(
                batch.scalars.step.values(),
                batch.scalars.name.values(),
                batch.scalars.value.values(),
                strict=True,
            )
        ]


@pytest.fixture(scope="session")
def shared_server(start_server: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a real server for tests that look at their own run only."""
    path = tmp_path_factory.mktemp("shared") / "served.db"
    with start_server(f"sqlite:///{path}") as running:
        yield running.url


@pytest.fixture
def scripted() -> Iterator[Scripted]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_PUT(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            status, headers, content = server.answer(self.command, self.path, body)
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PUT  # noqa: N815 - the base class names them

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's word
            pass

    listener = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    listener.daemon_threads = True
    server = Scripted(f"http://127.0.0.1:{listener.server_address[1]}")
    thread = threading.Thread(target=listener.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield server
    listener.shutdown()
    listener.server_close()
    thread.join()


@pytest.fixture
def black_hole() -> Iterator[str]:
    """An address that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
def nobody() -> str:
    """An address where nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}"
