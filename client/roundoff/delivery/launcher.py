"""Which run, attempt and rank this process belongs to, read from what the launcher left in the environment.

All ranks of a job must come to one answer without talking to each other.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import socket
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass

_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._~-]{0,127}")


@dataclass(frozen=True, slots=True)
class Job:
    """A launcher's job: its id, and the number of this start, None where the launcher does not count."""

    id: str
    start: str | None


@dataclass(frozen=True, slots=True)
class Identity:
    """Where this process's data belongs. `token` names its process life; ranks started together share it."""

    run_id: str
    token: str
    rank: int
    world_size: int


def identify(
    run_id: str | None,
    project: str,
    name: str | None,
    ordinal: int,
    env: Mapping[str, str] | None = None,
    saved: str | None = None,
) -> Identity:
    """The identity of the `ordinal`-th run (from 0) that this process starts.

    The run id, in this order: `run_id`, `ROUNDOFF_RUN_ID`, `saved` from a checkpoint, a hash of the launcher's job id,
    a new UUIDv7.
    Raises ValueError for an id that cannot stand in a path.
    """
    env = os.environ if env is None else env
    job = find_job(env)
    chosen = run_id if run_id is not None else env.get("ROUNDOFF_RUN_ID") or saved
    if chosen is not None and not _RUN_ID.fullmatch(chosen):
        raise ValueError(
            f"run id {chosen!r} cannot be used: 1 to 128 letters, digits, '.', '_', '~' or '-', "
            "the first one a letter or digit"
        )
    if chosen is None and job is not None:
        chosen = _digest("run", job.id, project, name or "", str(ordinal))
    if job is not None and job.start is not None:
        token = _digest("start", job.id, job.start, str(ordinal))
    else:
        token = uuid.uuid4().hex
    rank, world_size = find_rank(env)
    return Identity(chosen or uuid7(), token, rank, world_size)


def find_job(env: Mapping[str, str]) -> Job | None:
    """The job of torchrun, Slurm or a Kubernetes indexed job that this process runs in."""
    if torchrun := env.get("TORCHELASTIC_RUN_ID"):
        if torchrun == "none":  # torchrun's default, the same for everyone: name its agent instead
            torchrun = f"{_agent(env)}"
        return Job(f"torchrun:{torchrun}", env.get("TORCHELASTIC_RESTART_COUNT", "0"))
    if slurm := env.get("SLURM_JOB_ID"):
        step = env.get("SLURM_STEP_ID")
        start = env.get("SLURM_RESTART_COUNT", "0")
        # Without srun a batch script may start one program after another: then only the process tells starts.
        return Job(f"slurm:{env.get('SLURM_CLUSTER_NAME', '')}:{slurm}:{step}", start if step else None)
    if "KUBERNETES_SERVICE_HOST" in env and (index := env.get("JOB_COMPLETION_INDEX")):
        pod = env.get("HOSTNAME") or socket.gethostname()
        return Job(f"kubernetes:{re.sub(rf'-{re.escape(index)}(-[a-z0-9]+)?$', '', pod)}", None)
    return None


def find_rank(env: Mapping[str, str]) -> tuple[int, int]:
    """Rank and world size: `RANK` and `WORLD_SIZE`, else Open MPI's or Slurm's words, else 0 of 1."""
    pairs = [("RANK", "WORLD_SIZE"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")]
    if "SLURM_STEP_ID" in env:
        pairs.append(("SLURM_PROCID", "SLURM_NTASKS"))
    for rank_name, world_name in pairs:
        rank, world = env.get(rank_name, ""), env.get(world_name, "1")
        if rank.isdecimal() and world.isdecimal():
            return int(rank), max(int(world), int(rank) + 1)
    return 0, 1


def uuid7(now_ms: int | None = None) -> str:
    """A UUID of version 7 (RFC 9562): milliseconds since 1970 in front, so ids sort by time."""
    stamp = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    word = (stamp & (2**48 - 1)) << 80 | 0x7 << 76 | secrets.randbits(12) << 64 | 0b10 << 62
    return str(uuid.UUID(int=word | secrets.randbits(62)))


def _agent(env: Mapping[str, str]) -> str:
    """The torchrun agent above this process: host, its process, and when that one started."""
    parent = os.getppid()
    try:
        with open(f"/proc/{parent}/stat", encoding="ascii", errors="replace") as stat:  # noqa: PTH123
            started = stat.read().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        started = env.get("MASTER_PORT", "")
    return f"{socket.gethostname()}:{parent}:{started}"


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
