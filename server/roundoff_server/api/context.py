"""What every route works with."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from ..database import Database
from ..services.events import Bus
from ..services.intake import Intake
from ..services.query import Query


@dataclass(slots=True)
class Service:
    """The database, its reads, what comes in, the bus, and the clock."""

    database: Database
    clock: Callable[[], float] = time.time
    heartbeat_s: float = 15.0
    bus: Bus = field(default_factory=Bus)
    query: Query = field(init=False)
    intake: Intake = field(init=False)

    def __post_init__(self) -> None:
        self.query = Query(self.database, self.clock)
        self.intake = Intake(self.database, self.clock, self.bus.publish)
