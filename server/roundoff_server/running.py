"""Run the server on a socket, say when it is ready, and stop in time."""

from __future__ import annotations

import errno
import signal
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn
from fastapi import FastAPI

STOP_S = 3
"""Seconds that requests have to end when the server stops."""

BACKLOG = 2048


class AddressError(OSError):
    """The address cannot be used; the message names it and the flag that changes it."""


def open_socket(host: str, port: int) -> socket.socket:
    """A listening socket. Raises `AddressError`."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise AddressError(
            f"host {host!r} is no address of this machine ({error.strerror}); choose one with --host"
        ) from None
    listener = socket.socket(family, kind, protocol)
    # Only against sockets that are closing: on these systems it does not let two servers share a port.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise AddressError(_why(host, port, error)) from None
    return listener


def _why(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is taken; stop the program that has it, or choose another with --port"
    if error.errno == errno.EACCES:
        return f"port {port} needs more rights than you have; choose one above 1023 with --port"
    return f"cannot listen on {host}:{port}: {error.strerror}; choose another address with --host and --port"


def address(host: str, listener: socket.socket) -> str:
    """Where a browser on this machine finds the server."""
    port = listener.getsockname()[1]
    if host in ("0.0.0.0", "::"):
        return f"http://127.0.0.1:{port}"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class _Server(uvicorn.Server):
    def __init__(
        self, config: uvicorn.Config, ready: Callable[[], None], stopping: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self._ready = ready
        self._stopping = stopping

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End event streams first: they would never end by themselves. A second Ctrl-C does not wait."""
        del frame
        if self.should_exit and sig == signal.SIGINT:
            self.force_exit = True
        self.should_exit = True
        self._stopping()


def run(app: FastAPI, listener: socket.socket, ready: Callable[[], None], proxies: str) -> None:
    """Serve until SIGINT or SIGTERM, then stop within about `STOP_S` seconds.

    `proxies` are the addresses, joined by commas, whose X-Forwarded-For and X-Forwarded-Proto are believed.
    """
    config = uvicorn.Config(
        app,
        lifespan="off",
        access_log=False,
        log_level="warning",
        server_header=False,
        forwarded_allow_ips=proxies,
        timeout_graceful_shutdown=STOP_S,
        timeout_keep_alive=65,
    )
    _Server(config, ready, app.state.service.bus.close).run(sockets=[listener])
