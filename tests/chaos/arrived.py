"""What a server holds of a run, point by point, and what a spool on disk still has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import roundoff
from roundoff.delivery.codec import OPENING, decode
from roundoff.delivery.frames import unpack
from roundoff.delivery.notices import Notices
from roundoff.delivery.records import Logged
from roundoff.delivery.segments import segments_in
from roundoff.delivery.spool import writers
from roundoff.delivery.sync import Left, send_left
from roundoff.wire import RunSummary

WINDOW = 10_000


def summary(server: str, run_id: str) -> RunSummary:
    with roundoff.Client(server) as client:
        return client.run(run_id)


def only_run(server: str) -> RunSummary:
    with roundoff.Client(server) as client:
        (run,) = client.runs().runs
        return run


def points(server: str, run_id: str, steps: int, metric: str = "scalar:loss") -> dict[int, float | None]:
    """Every point of a figure, none of them down-sampled."""
    found: dict[int, float | None] = {}
    with roundoff.Client(server) as client:
        for begin in range(0, steps, WINDOW):
            series = client.series(
                run_id, metric, from_step=begin, to_step=begin + WINDOW - 1, max_points=2 * WINDOW
            )
            assert not series.sampled
            found |= dict(zip(series.steps, series.values, strict=True))
    return found


def sync(spool: Path, server: str | None = None, patience_s: float = 20.0) -> list[Left]:
    """What `roundoff sync` does."""
    return [send_left(writer, server, None, patience_s, Notices()) for writer in writers(spool)]


def spooled_steps(spool: Path) -> Iterator[int]:
    """Steps of the logged values in all files of a spool, acknowledged or not."""
    for writer in writers(spool):
        for segment in segments_in(writer):
            for frame in unpack(segment.path.read_bytes()):
                record = decode(frame.kind, frame.payload) if frame.kind != OPENING else None
                if isinstance(record, Logged):
                    yield from record.steps
