"""The bus between ingest and the browsers that listen: in this process, nothing ever waits for a listener."""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field

from roundoff.wire import Event

KEPT = 1000
"""Events that a listener can catch up on after a broken connection, and that may wait for a slow one."""


@dataclass(frozen=True, slots=True)
class Sent:
    """An event with its id: this process's mark and a number."""

    id: str
    event: Event


@dataclass(eq=False, slots=True)
class _Listener:
    loop: asyncio.AbstractEventLoop
    waiting: deque[Sent] = field(default_factory=lambda: deque(maxlen=KEPT))
    wake: asyncio.Event = field(default_factory=asyncio.Event)

    def nudge(self) -> None:
        self.loop.call_soon_threadsafe(self.wake.set)


class Bus:
    """`publish` from any thread, `listen` in an event loop, `close` ends every stream at once."""

    def __init__(self) -> None:
        self._mark = secrets.token_hex(4)
        self._count = 0
        self._kept: deque[Sent] = deque(maxlen=KEPT)
        self._listeners: set[_Listener] = set()
        self._lock = threading.Lock()
        self._closed = False

    @property
    def listeners(self) -> int:
        """Open streams."""
        return len(self._listeners)

    def publish(self, events: Iterable[Event]) -> None:
        """Send events to every listener; call it after the commit."""
        with self._lock:
            for event in events:
                self._count += 1
                sent = Sent(f"{self._mark}-{self._count}", event)
                self._kept.append(sent)
                for listener in self._listeners:
                    listener.waiting.append(sent)
            for listener in self._listeners:
                listener.nudge()

    async def listen(self, after: str | None = None, heartbeat_s: float = 15.0) -> AsyncIterator[Sent | None]:
        """Events from now on, first those after the id `after`; None as a heartbeat when nothing comes."""
        listener = _Listener(asyncio.get_running_loop())
        with self._lock:
            listener.waiting.extend(self._since(after))
            self._listeners.add(listener)
        try:
            while not self._closed:
                listener.wake.clear()
                while listener.waiting:
                    yield listener.waiting.popleft()
                if self._closed:
                    return
                try:
                    async with asyncio.timeout(heartbeat_s):
                        await listener.wake.wait()
                except TimeoutError:
                    yield None
        finally:
            with self._lock:
                self._listeners.discard(listener)

    def _since(self, after: str | None) -> list[Sent]:
        """What was sent after `after`; all that is kept if the id is older or of another process."""
        if after is None:
            return []
        mark, _, number = after.rpartition("-")
        if mark != self._mark or not number.isdecimal():
            return list(self._kept)
        return [sent for sent in self._kept if int(sent.id.rpartition("-")[2]) > int(number)]

    def close(self) -> None:
        """End every stream, so that a server can stop while browsers listen."""
        self._closed = True
        with self._lock:
            for listener in self._listeners:
                listener.nudge()
