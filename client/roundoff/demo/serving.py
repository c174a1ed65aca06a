"""The demo's server: one that runs already, or a second process that ends with the demo."""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from roundoff.cli.source import answers

HOST = "127.0.0.1"
DEFAULT_PORT = 8765
PORTS_TRIED = 50
STOP_S = 10.0


@contextmanager
def serving(port: int | None, database: str | None) -> Iterator[tuple[str, subprocess.Popen[str] | None]]:
    """Address of a server on this machine, and its process if it was started here; it ends with the block.

    A roundoff server that answers on `port` is used as it is, unless `database` names one of its own. A port
    that something else has taken is passed over for the next free one. Raises ChildProcessError with the server's
    own words if it does not start.
    """
    wanted = DEFAULT_PORT if port is None else port
    there = f"http://{HOST}:{wanted}"
    if database is None and answers(there):
        yield there, None
        return
    with tempfile.TemporaryFile("w+", encoding="utf-8") as complaints:
        command = [
            sys.executable,
            "-m",
            "roundoff",
            "serve",
            "--host",
            HOST,
            "--port",
            str(free_port(wanted)),
        ]
        command += ["--database", database] if database else []
        # In a session of its own, so that Ctrl-C reaches the demo alone, which then stops it in order.
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=complaints, text=True, start_new_session=True
        )
        try:
            assert process.stdout is not None
            words = process.stdout.readline().partition(" at ")[2].split()
            if not words:
                process.wait(STOP_S)
                complaints.seek(0)
                said = complaints.read().strip().splitlines() or ["it said nothing"]
                raise ChildProcessError(f"the server did not start: {said[-1].removeprefix('error: ')}")
            yield words[0], process
        finally:
            stop(process)


def stop(process: subprocess.Popen[str]) -> None:
    """End the server in order, and by force if it does not within `STOP_S` seconds."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    if process.stdout is not None:
        process.stdout.close()


def free_port(wanted: int) -> int:
    """`wanted` if nothing listens there, else the next port that is free. Raises OSError if none is."""
    last = min(wanted + PORTS_TRIED, 65535)
    for port in range(wanted, last + 1):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return port
    raise OSError(f"no port from {wanted} to {last} is free; choose another with --port")
