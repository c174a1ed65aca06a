"""The public run: what a training script holds. After `init` nothing here raises or waits, except as said."""

from __future__ import annotations

import atexit
import itertools
import operator
import sys
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from ._version import __version__
from .delivery import Delivery, Identity, Notices, Pipeline, Sink, Tee, identify, presentable
from .delivery.batches import End
from .delivery.pipeline import BAD_VALUE
from .delivery.records import Scalar
from .delivery.values import flat, number as as_number, short
from .settings import DEFAULT_SERVER, Settings, load
from .wire import Layer, RunStart

if TYPE_CHECKING:
    import torch

    from .delivery import Sample
    from .watch import Watch
    from .watch.cadence import Every
    from .wire import Alert

CONTACT_S = 1.0
"""How long `init` waits to hear from the server, so that it can print the link."""

FINISH_S = 10.0
"""How long `finish` may take to send what is left."""

UNCONFIGURED_FINISH_S = 1.0
"""The same if no server was named and none has ever answered."""

STEP_BACK = "values (step went back)"
SAMPLE_BACK = "points (step went back)"
MANY_NAMES = "values (too many names)"
MAX_NAMES = 10_000
MAX_STEP = 2**63 - 1

_ordinals = itertools.count()


def init(
    project: str = "default",
    name: str | None = None,
    config: object = None,
    *,
    server: str | None = None,
    token: str | None = None,
    mode: str | None = None,
    run_id: str | None = None,
    tags: Sequence[str] = (),
    first_step: int = 0,
) -> Run:
    """Start a run, or a new attempt of one.

    `config` is a mapping, dataclass or namespace that is shown with the run; values that look secret are
    masked before they leave. `server` and `token` come from `ROUNDOFF_SERVER` and `ROUNDOFF_TOKEN` or the
    settings file if not given; without any server one is looked for on the default address. `run_id` makes
    a restart continue the same run, `first_step` being the step at which it continues. `mode="disabled"`
    makes every call a no-op. Waits about a second for the server at most and goes on without it.

    Raises `SettingsError` (a ValueError) for a setting that cannot be used, ValueError for a run id, name or
    step that cannot be.
    """
    settings = load(server=server, token=token, mode=mode)
    identity = identify(run_id, project, name, next(_ordinals))
    start = RunStart(
        project=project,
        name=name if name is not None else f"run {identity.run_id[-8:]}",
        config=presentable(config),
        tags=list(tags),
        token=identity.token,
        first_step=first_step,
        rank=identity.rank,
        world_size=identity.world_size,
        client=f"roundoff {__version__}, Python {sys.version.split()[0]}",
    )
    return Run(identity, start, settings)


class Run:
    """One training run as its script sees it. Made by `init`; also a context manager.

    Leaving the `with` block, or the program, finishes the run: `crashed` after an exception, else
    `finished`.
    """

    def __init__(self, identity: Identity, start: RunStart, settings: Settings) -> None:
        self._identity, self._start, self._settings = identity, start, settings
        self._notices = Notices(quiet=identity.rank != 0)
        self._server = settings.server or DEFAULT_SERVER
        self._steps: dict[str, int] = {}
        self._next_step = start.first_step
        self._watch: Watch | None = None
        self._over = False
        self._failure = getattr(sys, "last_value", None)
        self._pipeline = self._connect() if settings.mode == "online" else None
        if self._pipeline is not None:
            atexit.register(self._at_exit)

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
        if self._pipeline is None or self._over:
            return None
        if self._watch is not None:
            self._notices.warn(
                "this run watches an optimizer already; the second one is not watched. "
                "Start another run for it with roundoff.init"
            )
            return None
        try:
            from .watch import watch

            sink: Sink = _RunSink(self) if mirror is None else Tee(_RunSink(self), mirror)
            self._watch = watch(model, optimizer, every=every, sink=sink, **options)
        except Exception as error:  # noqa: BLE001 - a mistake here must not end a training
            self._notices.warn(f"the optimizer is not watched: {error}")
        return self._watch

    def log(self, values: Mapping[str, Any], step: int | None = None) -> None:
        """Log numbers at `step`, by default one more than at the last call.

        Values are numbers or one-element tensors; a mapping inside becomes `outer/inner`. Values on a device
        are read later, without waiting for it. What is not a number is dropped, counted and warned of once.
        """
        pipeline = self._pipeline
        if pipeline is None or not pipeline.open:
            return
        kept: dict[str, float | Scalar] = {}
        try:
            at = self._next_step if step is None else operator.index(step)
            if not 0 <= at < MAX_STEP:
                raise ValueError(f"a step is 0 or more, not {at}")
            for name, value in flat(values):
                self._keep(kept, name, value, at)
        except Exception as error:  # noqa: BLE001 - whatever a caller's object raises
            pipeline.counts.take(len(kept) + 1)
            pipeline.counts.drop(BAD_VALUE, len(kept) + 1)
            self._notices.warn_once("log", f"log({short(values)}, step={short(step)}) is dropped: {error}")
            return
        self._next_step = max(self._next_step, at + 1)
        if kept:
            pipeline.log(at, kept)

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
        self._end("finished" if clean else "crashed", FINISH_S)

    def __repr__(self) -> str:
        return f"<roundoff.Run {self.project}/{self.name} {self.id}>"

    def _connect(self) -> Pipeline | None:
        try:
            pipeline = Pipeline(self._server, self._settings.token, self.id, self._start, self._notices)
        except RuntimeError as error:  # no thread can be started
            self._notices.warn(f"nothing is sent: {error}")
            return None
        pipeline.wait_for_contact(CONTACT_S)
        shown = f"{self.project}/{self.name}"
        if pipeline.started is not None:
            self._notices.say(f"{shown} at {self._server}/{pipeline.started.page.lstrip('/')}")
        elif self._settings.server:
            why = pipeline.state().problem or "no answer yet"
            self._notices.say(
                f"{shown}: no server at {self._server} ({why}). Training goes on, data waits in memory."
            )
        else:
            self._notices.say(
                f"{shown}: no server configured and none at {self._server}. Training goes on, data waits in "
                "memory; start one with `roundoff serve`, or name it in ROUNDOFF_SERVER."
            )
        return pipeline

    def _keep(self, kept: dict[str, float | Scalar], name: str, value: object, step: int) -> None:
        """Put one value into `kept`, or count why it is not."""
        assert self._pipeline is not None
        counts = self._pipeline.counts
        last = self._steps.get(name, -1)
        if step < last:
            counts.take(1)
            counts.drop(STEP_BACK)
            self._notices.warn_once("step", _went_back(f"the step of {name!r}", last, step))
            return
        number = as_number(value)
        if number is None or not 0 < len(name) <= 1024:
            counts.take(1)
            counts.drop(BAD_VALUE)
            text = f"{name[:100]!r} is {short(value)} ({type(value).__name__}), not a number; it is dropped"
            self._notices.warn_once("value", f"log: {text}")
        elif last < 0 and len(self._steps) >= MAX_NAMES:
            counts.take(1)
            counts.drop(MANY_NAMES)
            self._notices.warn_once(
                "names",
                f"more than {MAX_NAMES:,} names are logged; {name[:100]!r} and other new ones are dropped",
            )
        else:
            self._steps[name] = step
            kept[name] = number

    def _end(self, end: End | None, timeout: float) -> None:
        pipeline = self._pipeline
        if self._over or pipeline is None or not pipeline.open:
            return
        self._over = True
        atexit.unregister(self._at_exit)
        began = time.monotonic()
        if self._settings.server is None and pipeline.started is None:
            timeout = min(timeout, UNCONFIGURED_FINISH_S)
        verdict = self._let_go()
        delivered = pipeline.finish(end, timeout - (time.monotonic() - began))
        if verdict:
            self._notices.say(verdict)
        if delivered:
            self._notices.say(f"{self.project}/{self.name} at {self.page}")
        else:
            self._say_what_is_missing(pipeline.state())

    def _say_what_is_missing(self, state: Delivery) -> None:
        lost = sum(number for reason, number in state.dropped.items() if reason.startswith("points"))
        why = f" ({state.problem})" if state.problem else ""
        if lost:
            self._notices.say(
                f"{lost:,} of {state.taken:,} points were not delivered to {self._server}{why}."
            )
        else:
            self._notices.say(f"the end of the run was not delivered to {self._server}{why}.")

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
        self._end("crashed" if crashed else "finished", FINISH_S)


class _RunSink:
    """Where the watch of a run puts what it measures. Neither call blocks or raises."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._last = -1

    def declare(self, layers: Sequence[Layer]) -> None:
        if (pipeline := self._run._pipeline) is not None:
            pipeline.declare(layers)

    def sample(self, sample: Sample) -> None:
        pipeline = self._run._pipeline
        if pipeline is None or not pipeline.open:
            return
        if sample.step <= self._last:
            pipeline.counts.take(1)
            pipeline.counts.drop(SAMPLE_BACK)
            self._run._notices.warn_once(
                "sample", _went_back("the optimizer's step", self._last, sample.step)
            )
            return
        self._last = sample.step
        pipeline.sample(sample)


def _went_back(what: str, last: int, step: int) -> str:
    return (
        f"{what} went back from {last} to {step}; what is older than {last} is dropped. After loading a "
        f"checkpoint begin a new attempt: roundoff.init(run_id=..., first_step={step})"
    )
