"""Real processes joined by gloo on this machine's CPU: each runs what a test asks of it, and stays for the next."""

from __future__ import annotations

import contextlib
import io
import os
import time
import traceback
import warnings
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

PATIENCE = 120.0
"""Seconds that a test waits for its ranks."""

LOADED = ("torch.distributed.checkpoint.state_dict", "torch.distributed.fsdp", "torch.distributed.tensor")

GRACE = 2.0
"""Seconds that the others are given to fail as well once one rank has."""


class Ranks:
    """`world` processes of one process group; leave the `with` block, or `close`, to end them."""

    def __init__(self, world: int, folder: Path) -> None:
        # Forked by one process that has loaded this and no more: what is loaded here takes each rank seconds.
        context = mp.get_context("forkserver")
        context.set_forkserver_preload([*LOADED, "roundoff.optim"])
        self.world = world
        self._ends: list[Connection] = []
        self._processes: list[Any] = []
        for rank in range(world):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve, args=(rank, world, str(folder / f"store{world}"), theirs), daemon=True
            )
            process.start()
            theirs.close()
            self._ends.append(ours)
            self._processes.append(process)

    def run(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """What `function(*args)` returns on each rank, in their order. It is a function of a test's module.

        Raises AssertionError with the tracebacks of the ranks that failed, or where one does not answer in time.
        """
        for end in self._ends:
            end.send_bytes(_packed((function.__module__, function.__name__, args)))
        answers: dict[int, Any] = {}
        until = time.monotonic() + PATIENCE
        troubles: list[str] = []
        while len(answers) < self.world and until > time.monotonic():
            for end in wait(self._ends, max(0.0, until - time.monotonic())):
                rank = self._ends.index(end)
                trouble, answers[rank] = _unpacked(end.recv_bytes())
                if trouble:
                    troubles.append(f"rank {rank} of {self.world}: {trouble}")
                    until = min(until, time.monotonic() + GRACE)
        if len(answers) < self.world and not troubles:
            troubles.append(
                f"{self.world - len(answers)} of {self.world} ranks did not answer in {PATIENCE} s"
            )
        if troubles:
            self.close()  # those that wait in a collective for the others would wait for ever
            raise AssertionError("\n".join(troubles))
        return [answers[rank] for rank in range(self.world)]

    @property
    def alive(self) -> bool:
        """Whether all of them can run something."""
        return all(process.is_alive() for process in self._processes)

    def close(self) -> None:
        """End the processes."""
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.close()
        for process in self._processes:
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()


def _serve(rank: int, world: int, store: str, end: Connection) -> None:
    """One rank: join the others, then run what comes through the pipe until it is closed."""
    import importlib

    os.environ["RANK"], os.environ["WORLD_SIZE"] = str(rank), str(world)
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(store, world),
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=PATIENCE),
    )
    with contextlib.suppress(EOFError):
        while True:
            module, name, args = _unpacked(end.recv_bytes())
            trouble, answer = "", None
            try:
                answer = getattr(importlib.import_module(module), name)(*args)
            except Exception:  # noqa: BLE001 (the test that asked shows it)
                trouble = traceback.format_exc()
            end.send_bytes(_packed((trouble, answer)))
    dist.destroy_process_group()


def _packed(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)  # by value: nothing of a tensor is shared between the processes
    return buffer.getvalue()


def _unpacked(data: bytes) -> Any:
    return torch.load(io.BytesIO(data), weights_only=False)
