"""A call to a thread that pauses, which a signal's handler may make while its own thread is making it."""

from __future__ import annotations

import threading
from contextlib import suppress


class Wake:
    """One thread waits, any may call; a call that comes early is kept, and several are one.

    `threading.Event` takes a lock in Python code: a handler that interrupts it there, and calls as well, never returns.
    Here a call is one operation of the interpreter.
    """

    def __init__(self) -> None:
        self._asleep = threading.Lock()
        self._asleep.acquire()

    def call(self) -> None:
        """Wake the thread that waits, or the next time it is about to."""
        with suppress(RuntimeError):  # called already
            self._asleep.release()

    def wait(self, seconds: float) -> None:
        """Pause until there is a call, at most so long."""
        self._asleep.acquire(timeout=seconds)
