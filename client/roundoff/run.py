"""The public run: what a training script holds. After `init` nothing here raises or waits, except as said."""

from __future__ import annotations

import atexit
import itertools
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from ._version import __version__
from .delivery import Delivery, Identity, Intake, Notices, Sink, Tee, identify, presentable, termination
from .delivery.counters import points_among
from .delivery.opening import open_pipeline
from .delivery.records import End
from .settings import DEFAULT_SERVER, Settings, load
from .wire import RunStart

if TYPE_CHECKING:
    import torch

    from .watch import Watch
    from .watch.cadence import Every
    from .wire import Alert

FINISH_S = 10.0
"""How long `finish` may take to send what is left."""

UNCONFIGURED_FINISH_S = 1.0
"""The same if no server was named and none has ever answered."""

PREEMPTED_S = 1.0
"""How long a SIGTERM is held up, so that the run can be marked."""

_ordinals = itertools.count()


def init(
    project: str = "default",
    name: str | None = None,
    config: object = None,
    *,
    server: str | None = None,
    token: str | None = None,
    mode: str | None = None,
    spool: str | PathLike[str] | None = None,
    run_id: str | None = None,
    resume: Mapping[str, Any] | None = None,
    tags: Sequence[str] = (),
    first_step: int | None = None,
) -> Run:
    """Start a run, or a new attempt of one.

    `config` is a mapping, dataclass or namespace that is shown with the run; values that look secret are
    masked before they leave. `server`, `token` and `spool` come from `ROUNDOFF_SERVER`, `ROUNDOFF_TOKEN` and
    `ROUNDOFF_SPOOL` or the settings file if not given; without any server one is looked for on the default address.
    `mode="offline"` keeps everything in the spool for `roundoff sync`, `mode="disabled"` makes every call a no-op.
    Waits about a second for the server at most and goes on without it.

    `resume` is what `Run.state_dict` gave, from a checkpoint, or None if there is none yet: the restart goes on with
    that run where the checkpoint was saved. `run_id` and `first_step` say the same by hand, and come first.

    Raises `SettingsError` (a ValueError) for a setting that cannot be used, ValueError for a run id, name, step or
    state that cannot be.
    """
    settings = load(server=server, token=token, mode=mode, spool=spool)
    saved = _resumed(resume)
    identity = identify(run_id, project, name, next(_ordinals), saved=saved.get("run_id"))
    start = RunStart(
        project=project,
        name=name if name is not None else f"run {identity.run_id[-8:]}",
        config=presentable(config),
        tags=list(tags),
        token=identity.token,
        first_step=first_step if first_step is not None else saved.get("step", 0),
        rank=identity.rank,
        world_size=identity.world_size,
        client=f"roundoff {__version__}, Python {sys.version.split()[0]}",
    )
    return Run(identity, start, settings)


def _resumed(state: Mapping[str, Any] | None) -> Mapping[str, Any]:
    if state is None:
        return {}
    if not isinstance(state.get("run_id"), str) or not isinstance(state.get("step"), int):
        raise ValueError(f"resume takes what Run.state_dict() gave, a run_id and a step, not {state!r:.200}")
    return state


class Run:
    """One training run as its script sees it. Made by `init`; also a context manager.

    Leaving the `with` block, or the program, finishes the run: `crashed` after an exception, else
    `finished`.
    """

    def __init__(self, identity: Identity, start: RunStart, settings: Settings) -> None:
        self._identity, self._start, self._settings = identity, start, settings
        self._notices = Notices(quiet=identity.rank != 0)
        self._server = settings.server or DEFAULT_SERVER
        self._watch: Watch | None = None
        self._over = self._preempted = False
        self._failure = getattr(sys, "last_value", None)
        enabled = settings.mode != "disabled"
        self._pipeline = open_pipeline(settings, identity.run_id, start, self._notices) if enabled else None
        self._intake: Intake | None = None
        if self._pipeline is not None:
            self._intake = Intake(self._pipeline, self._notices, start.first_step)
            atexit.register(self._at_exit)
            termination.attend(self)

    @property
    def id(self) -> str:
        """The run's id; all ranks of a job share it."""
        return self._identity.run_id

    @property
    def project(self) -> str:
        """The project it belongs to."""
        return self._start.project

    @property
    def name(self) -> str:
        """The name it is shown by."""
        return self._start.name

    @property
    def page(self) -> str | None:
        """Address of the run's page, None until the server has answered."""
        started = self._pipeline.started if self._pipeline else None
        return f"{self._server}/{started.page.lstrip('/')}" if started else None

    @property
    def delivery(self) -> Delivery:
        """What became of the points handed over so far."""
        return self._pipeline.state() if self._pipeline else Delivery()

    def watch(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        every: Every = "auto",
        mirror: Sink | None = None,
        **options: Any,
    ) -> Watch | None:
        """Measure steps of `optimizer`, every `every`-th or as many as a run of any length needs, and send them.

        `every` and `options` are those of `roundoff.watch`; `mirror` is given all samples as well
        (`roundoff.integrations.mirror` makes some for other trackers). A watch that cannot be made is a warning that
        says why, and None is returned; so it is when the run is disabled.
        """
        if self._intake is None or self._pipeline is None or self._over:
            return None
        if self._watch is not None:
            self._notices.warn(
                "this run watches an optimizer already; the second one is not watched. "
                "Start another run for it with roundoff.init"
            )
            return None
        try:
            from .watch import watch

            sink: Sink = self._intake if mirror is None else Tee(self._intake, mirror)
            self._watch = watch(model, optimizer, every=every, sink=sink, **options)
            self._pipeline.report([found.to_wire() for found in self._watch.findings])
        except Exception as error:  # noqa: BLE001 - a mistake here must not end a training
            self._notices.warn(f"the optimizer is not watched: {error}")
        return self._watch

    def log(self, values: Mapping[str, Any], step: int | None = None) -> None:
        """Log numbers at `step`, by default one more than at the last call.

        Values are numbers or one-element tensors; a mapping inside becomes `outer/inner`. Values on a device
        are read later, without waiting for it. What is not a number is dropped, counted and warned of once.
        """
        if self._intake is not None:
            self._intake.log(values, step)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs so that a restart goes on with this run: `init(resume=…)`. Plain JSON data.

        `step` is the one after the last that was logged or taken, where the restart begins.
        """
        logged = self._intake.next_step if self._intake is not None else self._start.first_step
        taken = self._watch.step if self._watch is not None else 0
        return {"run_id": self.id, "step": max(logged, taken)}

    def expect_pause(self, seconds: float) -> None:
        """Say before a long checkpoint or evaluation that this process may not be heard of for `seconds`.

        The server then takes the run for stale that much later, this once; a process that lives is heard of three
        times a minute by itself, so only what stops all its threads needs this.
        """
        if self._pipeline is not None:
            self._pipeline.be_patient(seconds)

    def alerts(self) -> list[Alert]:
        """The alerts of this run that are pending or firing, asked from the server (waits up to 5 s).

        An empty list, and a warning, if the server does not answer.
        """
        if self._pipeline is None:
            return []
        try:
            from .query import Client

            with Client(self._server, self._settings.token, timeout=5.0) as client:
                return [a for a in client.alerts(run_id=self.id).alerts if a.state != "resolved"]
        except Exception as error:  # noqa: BLE001 - the training does not depend on the answer
            self._notices.warn_once("alerts", f"the alerts of this run are not known: {error}")
            return []

    def finish(self, timeout: float = FINISH_S) -> None:
        """End the run: send what is left, within `timeout` seconds, and print the verdict and the link."""
        self._end("finished", timeout)

    def close(self, timeout: float = FINISH_S) -> None:
        """Let go of the run without ending it: another process may go on with it."""
        self._end(None, timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        clean = kind is None or (isinstance(error, SystemExit) and error.code in (None, 0))
        try:
            self._end("finished" if clean else "crashed", FINISH_S)
        except KeyboardInterrupt:
            if error is None:
                raise

    def __repr__(self) -> str:
        return f"<roundoff.Run {self.project}/{self.name} {self.id}>"

    def __reduce__(self) -> tuple[Any, ...]:
        # A worker that is spawned gets what it was given pickled: for it this is a run that does nothing.
        settings = self._settings.model_copy(update={"mode": "disabled", "token": None})
        return Run, (self._identity, self._start, settings)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def _preempt(self, at_once: bool) -> None:
        """Mark the run: SIGTERM has come. Called by the handler, between two lines of the training."""
        if self._pipeline is None or self._over:
            return
        self._preempted = True
        if at_once:
            self._over = True
            self._pipeline.finish("preempted", PREEMPTED_S)
        else:
            self._pipeline.announce("preempted")

    def _end(self, end: End | None, timeout: float) -> None:
        """End or close the run. Raises KeyboardInterrupt if that comes meanwhile, with everything in the spool."""
        pipeline = self._pipeline
        if self._over or pipeline is None or not pipeline.open:
            return
        self._over = True
        atexit.unregister(self._at_exit)
        began = time.monotonic()
        if self._settings.server is None and pipeline.started is None:
            timeout = min(timeout, UNCONFIGURED_FINISH_S)
        delivered = False
        try:
            verdict = self._let_go()
            delivered = pipeline.finish(
                "preempted" if end and self._preempted else end, timeout - (time.monotonic() - began)
            )
            if verdict:
                self._notices.say(verdict)
        finally:
            termination.dismiss(self)
            self._say_where_it_is(delivered, pipeline.state())

    def _say_where_it_is(self, delivered: bool, state: Delivery) -> None:
        shown = f"{self.project}/{self.name}"
        if delivered:
            self._notices.say(f"{shown} at {self.page}")
            return
        why = f" ({state.problem})" if state.problem else ""
        lost = points_among(state.dropped)
        if state.spooled:
            self._notices.say(
                f"{state.spooled:,} of {state.taken:,} points wait in {self._settings.spool_folder}{why}; "
                "send them with `roundoff sync`."
            )
        elif not lost:
            self._notices.say(f"the end of {shown} was not delivered to {self._server}{why}.")
        if lost:
            self._notices.say(f"{lost:,} of {state.taken:,} points were dropped: {_listed(state.dropped)}.")

    def _let_go(self) -> str:
        """Detach the watch; its verdict in a line or two."""
        if self._watch is None:
            return ""
        try:
            verdict = self._watch.verdict()
            self._watch.detach()
        except Exception as error:  # noqa: BLE001 - the end of a training is no place for a fault of ours
            return f"no verdict: {error}"
        return f"{self.project}/{self.name}: {verdict.headline} {verdict.explanation}"

    def _at_exit(self) -> None:
        failure = getattr(sys, "last_value", None)
        crashed = failure is not None and failure is not self._failure
        with suppress(KeyboardInterrupt):
            self._end("crashed" if crashed else "finished", FINISH_S)


def _listed(dropped: Mapping[str, int]) -> str:
    return ", ".join(f"{number:,} {reason}" for reason, number in dropped.items())
