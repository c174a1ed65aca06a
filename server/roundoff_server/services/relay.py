"""Events from one server process to the others that share a PostgreSQL, by LISTEN and NOTIFY."""

from __future__ import annotations

import json
import logging
import secrets
import threading
from collections.abc import Iterable

import psycopg
from sqlalchemy import func, select
from sqlalchemy.exc import SQLAlchemyError

from roundoff.wire import Event

from ..database import Database
from .events import Bus

CHANNEL = "roundoff_events"

AGAIN_S = 1.0
"""Seconds between two attempts to listen after the connection broke."""

LOOK_S = 0.5
"""Seconds after which a listener looks whether it should stop."""

log = logging.getLogger(__name__)


class Relay:
    """Tells other processes of this one's events, and this one's listeners of theirs. Call `start` and `stop`.

    What is said while a connection is broken is lost to the other processes; pages ask again now and then.
    """

    def __init__(self, database: Database, bus: Bus) -> None:
        self._database = database
        self._bus = bus
        self._mark = secrets.token_hex(8)
        self._stopping = threading.Event()
        self._listening = threading.Event()
        self._thread = threading.Thread(target=self._run, name="roundoff-relay", daemon=True)

    def start(self, timeout: float = 5.0) -> None:
        """Listen from now on; waits until it does, at most `timeout` seconds."""
        self._thread.start()
        self._listening.wait(timeout)

    def stop(self) -> None:
        """Listen no more."""
        self._stopping.set()
        self._thread.join(2 * LOOK_S + AGAIN_S)

    def tell(self, events: Iterable[Event]) -> None:
        """Tell the other processes; call it after the commit."""
        said = [json.dumps({"from": self._mark, "event": event.model_dump()}) for event in events]
        if not said:
            return
        try:
            with self._database.write() as session:
                for text in said:
                    session.execute(select(func.pg_notify(CHANNEL, text)))
        except SQLAlchemyError as error:
            log.warning("other server processes were not told of an event: %s", error)

    def _run(self) -> None:
        url = self._database.url.set(drivername="postgresql").render_as_string(hide_password=False)
        while not self._stopping.is_set():
            try:
                with psycopg.connect(url, autocommit=True) as connection:
                    connection.execute(f"LISTEN {CHANNEL}")
                    self._listening.set()
                    self._listen(connection)
            except psycopg.Error as error:
                log.warning("cannot hear other server processes, trying again: %s", error)
                self._stopping.wait(AGAIN_S)

    def _listen(self, connection: psycopg.Connection) -> None:
        while not self._stopping.is_set():
            for notice in connection.notifies(timeout=LOOK_S):
                said = json.loads(notice.payload)
                if said["from"] != self._mark:
                    self._bus.publish([Event.model_validate(said["event"])])
