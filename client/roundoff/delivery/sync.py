"""Send what runs have left in a spool, by the same sender that they have."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

from roundoff.settings import DEFAULT_SERVER

from .counters import Ledger
from .notices import Notices
from .queue import Backlog
from .sender import Phase, Sender, Source
from .spool import FORKED_CALLS, REFUSED, Spool
from .store import Store
from .transmitter import Transmitter

PROMISE_S = 1.0
"""Nothing more is heard of an attempt that was sent from its spool."""

State = Literal["sent", "waiting", "in use", "unreadable"]


@dataclass(slots=True)
class Left:
    """What one writer had left and what became of it: points sent, and what was dropped meanwhile, by reason.

    *in use* means that its process still runs and sends it itself. `kept` is where refused records are.
    """

    folder: Path
    state: State = "waiting"
    run_id: str = ""
    name: str = ""
    server: str = ""
    sent: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    problem: str | None = None
    kept: Path | None = None


def send_left(
    folder: Path, server: str | None, token: str | None, patience_s: float, notices: Notices
) -> Left:
    """Send what one writer has left, to `server` or to that of its run; gives up after `patience_s` without an answer.

    Doing it again changes nothing. What the server has is removed. Does not raise.
    """
    left = Left(folder, run_id=folder.parent.name)
    try:
        spool = Spool.reopen(folder)
    except BlockingIOError:
        left.state, left.problem = "in use", "its process still runs"
        return left
    except (OSError, ValueError) as error:
        left.state, left.problem = "unreadable", str(error)
        return left
    opening = spool.opening
    left.run_id, left.name = opening.run_id, f"{opening.start.project}/{opening.start.name}"
    left.server = server or opening.server or DEFAULT_SERVER
    try:
        if spool.has_more():
            _send(spool, left, token, patience_s, notices)
        else:
            left.state = "sent"
        left.kept = folder / REFUSED if (folder / REFUSED).exists() else None
    except OSError as error:
        left.state, left.problem = "unreadable", str(error)
    finally:
        spool.close()
    return left


def _send(spool: Spool, left: Left, token: str | None, patience_s: float, notices: Notices) -> None:
    forked = spool.forked()
    ledger = Ledger(lambda: {**spool.dropped, **({FORKED_CALLS: forked} if forked else {})})
    store = Store(spool, Backlog(ledger.collector), ledger.collector, notices)
    phase = Phase(patience_s=patience_s)
    phase.complete.set()
    phase.closing.set()
    start = spool.opening.start.model_copy(update={"promise_s": PROMISE_S})
    source = Source(spool.opening.run_id, start, spool.opening.writer)
    sender = Sender(partial(Transmitter, left.server, token), source, store, ledger, phase, notices)
    sender.run()
    left.sent, left.dropped, left.problem = ledger.sent, ledger.sender.dropped(), sender.problem
    left.state = "waiting" if sender.problem else "sent"
