"""Servers for the client: a real one, one whose answers a test decides, and none at all."""

from __future__ import annotations

import gzip
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from scripted_server import Scripted


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
