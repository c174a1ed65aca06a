"""What every route works with."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from roundoff.wire import Event

from ..database import Database
from ..services.events import Bus
from ..services.intake import Intake
from ..services.query import Query
from ..services.relay import Relay


@dataclass(slots=True)
class Service:
    """The database, its reads, what comes in, the bus, and the clock."""

    database: Database
    clock: Callable[[], float] = time.time
    heartbeat_s: float = 15.0
    bus: Bus = field(default_factory=Bus)
    relay: Relay | None = None
    query: Query = field(init=False)
    intake: Intake = field(init=False)

    def __post_init__(self) -> None:
        self.query = Query(self.database, self.clock)
        self.intake = Intake(self.database, self.clock, self.publish)

    def publish(self, events: Sequence[Event]) -> None:
        """Tell every listener, also those of other processes; call it after the commit."""
        self.bus.publish(events)
        if self.relay is not None:
            self.relay.tell(events)

    def start_relay(self) -> None:
        """Share events with other processes on the same database, where there can be any."""
        if not self.database.is_sqlite:
            self.relay = Relay(self.database, self.bus)
            self.relay.start()

    def close(self) -> None:
        """End the threads beside those of requests, once what waits is committed."""
        self.intake.close()
        if self.relay is not None:
            self.relay.stop()
            self.relay = None
