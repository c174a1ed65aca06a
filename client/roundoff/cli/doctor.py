"""`roundoff doctor`: what this installation can do, what it lacks, and how its data fares."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import httpx
import typer

from roundoff._version import __version__
from roundoff.delivery.disk import network_type, room
from roundoff.delivery.spool import writers
from roundoff.delivery.transmitter import is_loopback
from roundoff.settings import DEFAULT_SERVER, load
from roundoff.wire import WIRE_VERSION

from .source import Json, Server, Token
from .terminal import print_json

PROBE_S = 3.0


def doctor(server: Server = None, token: Token = None, as_json: Json = False) -> None:
    """Look at this installation: kernel backends, the server and its version, and the spool.

    Exit code 1 where data cannot be kept, or the server that was named does not answer or does not fit.
    """
    settings = load(server=server, token=token)
    found = {
        "roundoff": __version__,
        "python": platform.python_version(),
        **_kernels(),
        "server": _server(settings.server or DEFAULT_SERVER, settings.token),
        "spool": _spool(settings.spool_folder),
    }
    if as_json:
        print_json(found)
    else:
        for line in _lines(found):
            typer.echo(line)
    named = settings.server is not None
    if found["spool"]["problem"] or (named and found["server"]["problem"]):
        raise typer.Exit(1)


def _kernels() -> dict[str, Any]:
    try:
        import torch
    except ImportError:
        return {"torch": None, "backend": None, "backends": []}
    from roundoff.kernels import BACKENDS, run_canary, unavailable
    from roundoff.kernels.cpu import instruction_set
    from roundoff.kernels.reference import step_fp32
    from roundoff.optim import STRATEGIES

    run_canary(step_fp32, STRATEGIES["plus"], torch.device("cpu"), torch.bfloat16)
    why = {name: unavailable(name) for name in BACKENDS}
    return {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "backend": "cpu" if why["cpu"] is None else "reference",
        "instruction_set": instruction_set(),
        "backends": [{"name": name, "unavailable": reason} for name, reason in why.items()],
    }


def _server(address: str, token: str | None) -> dict[str, Any]:
    """Whether it answers, speaks the same version, and lets the token in."""
    found: dict[str, Any] = {"address": address, "version": None, "problem": None}
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        with httpx.Client(headers=headers, timeout=PROBE_S, trust_env=not is_loopback(address)) as http:
            health = http.get(f"{address}/healthz")
            said = health.json() if health.is_success else {}
            if not isinstance(said, dict) or said.get("name") != "roundoff":
                found["problem"] = f"what answers there ({health.status_code}) is not a roundoff server"
                return found
            found["version"] = said.get("version")
            allowed = http.get(f"{address}/api/v1/runs", params={"limit": 1}).status_code
    except (httpx.HTTPError, ValueError) as error:
        found["problem"] = f"no roundoff server answers: {error}"
        return found
    wire = said.get("wire")
    if wire not in (WIRE_VERSION, WIRE_VERSION + 1):
        found["problem"] = f"it speaks version {wire}, this client {WIRE_VERSION}; use matching versions"
    elif allowed in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
        found["problem"] = "it does not accept the token" if token else "it asks for a token, and none is set"
    return found


def _spool(folder: Path) -> dict[str, Any]:
    """Where it is, whether it can be written, and what waits in it."""
    waiting = writers(folder)
    used = sum(path.stat().st_size for writer in waiting for path in writer.glob("*.spool"))
    above = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    problem = None
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        problem = f"{above} cannot be written"
    elif room(above) <= 0:
        problem = "the disk is full"
    return {
        "folder": str(folder),
        "runs": len({writer.parent for writer in waiting}),
        "writers": len(waiting),
        "bytes": used,
        "network": network_type(above),
        "problem": problem,
    }


def _lines(found: dict[str, Any]) -> list[str]:
    torch = f"torch {found['torch']}" if found["torch"] else "no torch"
    lines = [f"roundoff {found['roundoff']}, Python {found['python']}, {torch}"]
    if found["torch"]:
        lines.append("roundings of the reference: as they must be")
        for one in found["backends"]:
            extra = (
                f" ({found['instruction_set']}, {found['threads']} threads)" if one["name"] == "cpu" else ""
            )
            why = f"not usable, {one['unavailable']}" if one["unavailable"] else f"usable{extra}"
            lines.append(f"backend {one['name']}: {why}")
        lines.append(f'backend="auto" on a CPU takes {found["backend"]}')
    server, spool = found["server"], found["spool"]
    state = server["problem"] or f"answers, version {server['version']}, same wire version"
    lines.append(f"server {server['address']}: {state}")
    lines.append(
        f"spool {spool['folder']}: {spool['problem'] or 'can be written'}; "
        f"{spool['bytes'] / 2**20:.1f} MiB of {spool['runs']} runs wait in it"
        + (", send them with `roundoff sync`" if spool["writers"] else "")
    )
    if spool["network"]:
        lines.append(
            f"spool: on a network file system ({spool['network']}); set ROUNDOFF_SPOOL to a local folder"
        )
    return lines
