"""From a run's settings to its pipeline: the spool it writes, the server it talks to, and a line on both."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from roundoff.settings import DEFAULT_SERVER, Settings
from roundoff.wire import RunStart

from .codec import Opening
from .disk import network_type
from .launcher import uuid7
from .notices import Notices
from .pipeline import Pipeline
from .sender import Source
from .spool import Spool, read_opening, writers
from .transmitter import Transmitter

CONTACT_S = 1.0
"""How long `init` waits to hear from the server, so that it can print the link."""


def open_pipeline(settings: Settings, run_id: str, start: RunStart, notices: Notices) -> Pipeline | None:
    """The pipeline of a new attempt; None, and a warning, where nothing could be kept or sent at all."""
    server = settings.server or DEFAULT_SERVER
    source = Source(run_id, start, uuid7(), _earlier(settings.spool_folder / run_id, start.token))
    spool = _open_spool(settings, source, notices)
    offline = settings.mode == "offline"
    if offline and spool is None:
        return None
    try:
        connect = None if offline else partial(Transmitter, server, settings.token)
        pipeline = Pipeline(connect, source, spool, notices)
    except RuntimeError as error:  # no thread can be started
        notices.warn(f"nothing is sent: {error}")
        return None
    pipeline.wait_for_contact(CONTACT_S)
    _greet(settings, pipeline, start, notices, spool)
    return pipeline


def _earlier(folder: Path, token: str) -> tuple[RunStart, ...]:
    """The starts of earlier attempts whose data waits in the spool: the server numbers attempts as it hears of them."""
    found: dict[str, RunStart] = {}
    try:
        waiting = writers(folder)
    except OSError:  # then no spool can be begun there either, which is said
        return ()
    for writer in waiting:
        try:
            start = read_opening(writer).start
        except (OSError, ValueError):
            continue
        if start.token != token:
            found.setdefault(start.token, start)
    return tuple(found.values())


def _open_spool(settings: Settings, source: Source, notices: Notices) -> Spool | None:
    root = settings.spool_folder
    offline = settings.mode == "offline"
    try:
        opening = Opening(
            run_id=source.run_id, writer=source.writer, server=settings.server, start=source.start
        )
        spool = Spool.create(root.absolute(), opening, settings.spool_mib * 2**20)
    except OSError as error:
        then = (
            "nothing is kept" if offline else "what the server does not take in time is lost with the process"
        )
        notices.warn(
            f"no spool at {root} ({error.strerror or error}): {then}. Set ROUNDOFF_SPOOL to another folder"
        )
        return None
    if (kind := network_type(spool.folder)) is not None:
        notices.warn_first(
            f"the spool {root} is on a network file system ({kind}), which may be slow or away when the training "
            "needs it not to be; set ROUNDOFF_SPOOL to a folder of this machine"
        )
    return spool


def _greet(
    settings: Settings, pipeline: Pipeline, start: RunStart, notices: Notices, spool: Spool | None
) -> None:
    """One line: where the run is seen, or why not, and what becomes of its data."""
    shown = f"{start.project}/{start.name}"
    server = settings.server or DEFAULT_SERVER
    kept = "data waits in memory" if spool is None else f"data is kept in {settings.spool_folder}"
    if settings.mode == "offline":
        notices.say(f"{shown}: offline, {kept}; send it with `roundoff sync`.")
    elif pipeline.started is not None:
        notices.say(f"{shown} at {server}/{pipeline.started.page.lstrip('/')}")
    elif settings.server:
        why = pipeline.state().problem or "no answer yet"
        notices.say(f"{shown}: no server at {server} ({why}). Training goes on, {kept}.")
    else:
        notices.say(
            f"{shown}: no server configured and none at {server}. Training goes on, {kept}; "
            "start one with `roundoff serve`, or name it in ROUNDOFF_SERVER."
        )
