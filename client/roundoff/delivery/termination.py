"""SIGTERM: what a scheduler sends before it takes the machine. Runs are told, then all goes as without us."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import Any, Protocol

from .forking import belongs_here


class Preemptible(Protocol):
    """Something that wants to know that this process will be ended."""

    def _preempt(self, at_once: bool) -> None:
        """The process ends now, or, where `at_once` is false, when its own handler of the signal says so."""


class Termination:
    """One handler for all runs of the process, in front of the one that was there; it leaves with the last run.

    It is set from the main thread only, and not where SIGTERM is ignored or handled outside Python.
    """

    def __init__(self) -> None:
        self._runs: list[Preemptible] = []
        self._before: Any = None
        self._ending = False
        belongs_here(self)

    def attend(self, run: Preemptible) -> None:
        """Tell `run` of a SIGTERM from now on."""
        self._runs.append(run)
        if self._before is None and threading.current_thread() is threading.main_thread():
            before = signal.getsignal(signal.SIGTERM)
            if before is signal.SIG_DFL or callable(before):
                # Someone may have kept ours and set it again.
                self._before = signal.SIG_DFL if before == self._handle else before
                signal.signal(signal.SIGTERM, self._handle)

    def dismiss(self, run: Preemptible) -> None:
        """Tell it no more."""
        self._runs = [other for other in self._runs if other is not run]
        if not self._runs:
            self._restore()

    def disown(self) -> None:
        """In a forked child, which `Pool.terminate` and data loaders end by SIGTERM: as if there had been no run."""
        self._runs = []
        self._restore()

    def _restore(self) -> None:
        in_main = threading.current_thread() is threading.main_thread()
        # Whoever has set a handler since may call ours, which then only calls the one before.
        if self._before is not None and in_main and signal.getsignal(signal.SIGTERM) == self._handle:
            signal.signal(signal.SIGTERM, self._before)
            self._before = None

    def _handle(self, number: int, frame: FrameType | None) -> None:
        runs = [] if self._ending else list(self._runs)
        default = not callable(self._before)
        self._ending = default
        for run in runs:
            run._preempt(at_once=default)
        if callable(self._before):
            self._before(number, frame)
        else:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)


termination = Termination()
