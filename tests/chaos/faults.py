"""Between client and real server: what networks and proxies do to requests, on demand."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

Fault = Callable[["Request"], bool]
"""Does something to a request; returns whether that was all."""


@dataclass
class Request:
    """One request on its way, and how many of its method came before it."""

    handler: BaseHTTPRequestHandler
    body: bytes
    before: int

    @property
    def method(self) -> str:
        return self.handler.command

    def answer(self, status: int, body: bytes, **headers: str) -> None:
        self.handler.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.handler.send_header(name.replace("_", "-"), value)
        self.handler.end_headers()
        self.handler.wfile.write(body)

    def hang_up(self) -> None:
        self.handler.close_connection = True


@dataclass
class Between:
    """The address that a client is given, and what happens there; None lets everything through."""

    target: str
    url: str = ""
    fault: Fault | None = None
    seen: list[tuple[str, int]] = field(default_factory=list)
    """Method and size of every request."""

    def forward(self, request: Request) -> tuple[int, bytes]:
        """What the server says; raises OSError where there is none."""
        handler = request.handler
        connection = http.client.HTTPConnection(urlsplit(self.target).netloc, timeout=30)
        try:
            kept = ("content-type", "content-encoding", "authorization")
            headers = {k: v for k, v in handler.headers.items() if k.lower() in kept}
            connection.request(handler.command, handler.path, request.body, headers)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def take(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
        before = sum(method == handler.command for method, _ in self.seen)
        self.seen.append((handler.command, len(body)))
        request = Request(handler, body, before)
        if self.fault is not None and self.fault(request):
            return
        try:
            status, answer = self.forward(request)
        except OSError:
            request.answer(502, b"nobody there")
        else:
            request.answer(status, answer, Content_Type="application/json")


def status(code: int, **headers: str) -> Fault:
    """Answers so instead of the server."""

    def fault(request: Request) -> bool:
        body = json.dumps({"title": "refused", "status": code, "detail": "as the test wants it"}).encode()
        request.answer(code, body, **headers)
        return True

    return fault


def garbage(request: Request) -> bool:
    """Answers with something that is no HTTP."""
    request.handler.wfile.write(b"\x16\x03\x01\x02\x00" * 20)
    request.hang_up()
    return True


def html(request: Request) -> bool:
    """Answers as a captive portal does."""
    request.answer(200, b"<html>please log in</html>", Content_Type="text/html")
    return True


def silence(request: Request) -> bool:
    """Takes the request and never answers."""
    time.sleep(60)
    return True


def endless(request: Request) -> bool:
    """Answers, and does not stop."""
    request.handler.send_response(200)
    request.handler.end_headers()
    try:
        while True:
            request.handler.wfile.write(bytes(2**16))
    except OSError:  # the client has hung up
        request.hang_up()
    return True


def closed(request: Request) -> bool:
    """Hangs up instead of an answer."""
    request.hang_up()
    return True


def slow(seconds: float) -> Fault:
    """Lets everything through, later."""

    def fault(request: Request) -> bool:
        time.sleep(seconds)
        return False

    return fault


def lost_answer(between: Between) -> Fault:
    """The server takes the request, and half of its answer arrives."""

    def fault(request: Request) -> bool:
        _, answer = between.forward(request)
        request.handler.send_response(200)
        request.handler.send_header("Content-Length", str(len(answer)))
        request.handler.end_headers()
        request.handler.wfile.write(answer[: len(answer) // 2])
        request.hang_up()
        return True

    return fault


def first(number: int, fault: Fault, method: str | None = None) -> Fault:
    """Only the first requests (of a method)."""

    def limited(request: Request) -> bool:
        meant = method is None or request.method == method
        return meant and request.before < number and fault(request)

    return limited


@contextmanager
def between(target: str) -> Iterator[Between]:
    """A place in front of `target` where things can go wrong."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            place.take(self)

        do_PUT = do_POST = do_GET  # noqa: N815 - the base class names them

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's word
            pass

    class Listener(ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False

        def handle_error(self, request: object, client_address: object) -> None:
            """A client that was killed hangs up in the middle."""

    listener = Listener(("127.0.0.1", 0), Handler)
    place = Between(target, f"http://127.0.0.1:{listener.server_address[1]}")
    thread = threading.Thread(target=listener.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield place
    finally:
        listener.shutdown()
        listener.server_close()
        thread.join()
