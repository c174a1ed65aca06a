"""One training that a framework runs: the run it belongs to, its watch, and how it ends."""

from __future__ import annotations

import atexit
import inspect
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn
from torch.optim import Optimizer

import roundoff
from roundoff.optim.shards import is_sharded
from roundoff.telling import warn
from roundoff.watch import Watch, watch
from roundoff.watch.watching import _steps_taken as steps_taken


@dataclass(frozen=True, slots=True)
class Where:
    """Where the measurements of a training go.

    To `run`, which its user made and ends; else to a run of the training's own in `project`, made by `roundoff.init`
    with `settings`; else, with neither, into a table in the terminal when training ends. `options` go to the watch.
    Raises TypeError for a setting that `roundoff.init` does not have, ValueError for a run and a project at once.
    """

    run: roundoff.Run | None = None
    project: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        known = inspect.signature(roundoff.init).parameters
        if unknown := [name for name in self.settings if name not in known or name == "first_step"]:
            raise TypeError(f"unknown setting {unknown[0]!r}: further settings are those of roundoff.init")
        if self.run is not None and (self.project is not None or self.settings):
            raise ValueError("give either a run or the settings of a new one, not both")
        if self.settings and self.project is None:
            raise ValueError(f"{next(iter(self.settings))!r} belongs to a run: name its project as well")


@dataclass(frozen=True, slots=True)
class Start:
    """How a training begins.

    `first_step` is the number of the next optimizer step, counted from 0, None to read it off the optimizer; `leads`
    says whether this is the process that speaks for all replicas. `run_id` is the run that the checkpoint it resumes
    from belongs to; like `name` and `config` it counts where the user has said nothing else.
    """

    first_step: int | None
    leads: bool = True
    name: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    run_id: str | None = None


class Training:
    """What a framework's callback holds while it trains.

    `begin` raises what `roundoff.init` raises, before the first step; after it nothing raises. A training of its own
    run that begins and neither ends nor fails until the next one or the end of the program has crashed, whoever caught
    the exception.
    """

    def __init__(self, where: Where) -> None:
        self._where = where
        self._own: roundoff.Run | None = None
        self._under_way = False
        self.watch: Watch | None = None
        """The watch of this training or, after its end, of the last one; None where nothing is watched."""

    @property
    def run(self) -> roundoff.Run | None:
        """The run that it belongs to; None where there is none, and after the end of its own."""
        return self._where.run or self._own

    @property
    def own_run_id(self) -> str | None:
        """Id of its own run, for a checkpoint; None while there is none."""
        return self._own.id if self._own is not None else None

    @property
    def newest_step(self) -> int | None:
        """Number of the last optimizer step taken, as samples have it; None before the first, and unwatched."""
        return self.watch.step - 1 if self.watch is not None and self.watch.step else None

    def begin(self, model: nn.Module, optimizer: Optimizer, start: Start) -> None:
        """Make the run and the watch. Replicas are alike, so one process measures them; of shards each has its own."""
        self.fail(RuntimeError("the training before this one did not come to its end"))
        self.watch = None
        if not (start.leads or _holds_shards(optimizer)):
            return
        self._under_way = True
        first = steps_taken(optimizer) if start.first_step is None else start.first_step
        if self._where.run is None and self._where.project is not None:
            self._own = roundoff.init(self._where.project, first_step=first, **self._settings(start))
            atexit.register(self._at_exit)
        options = {"first_step": first, **self._where.options}
        if self.run is not None:
            self.watch = self.run.watch(model, optimizer, **options)
            return
        try:
            self.watch = watch(model, optimizer, **options)
        except Exception as error:  # noqa: BLE001 - a mistake here must not end a training
            warn(f"the optimizer is not watched: {error}")

    def log(self, values: Mapping[str, Any], step: int) -> None:
        """Log numbers of optimizer step `step`, counted from 0."""
        if self.run is not None:
            self.run.log(values, step=step)

    def end(self) -> None:
        """The training came to its end: finish its own run, or print the table; a run that was given stays open."""
        self._let_go(None)

    def fail(self, error: BaseException) -> None:
        """The training, if one is under way, ended with an exception."""
        self._let_go(error)

    def _settings(self, start: Start) -> dict[str, Any]:
        settings = {"name": start.name, "config": start.config, **self._where.settings}
        if start.run_id and not os.environ.get("ROUNDOFF_RUN_ID"):
            settings.setdefault("run_id", start.run_id)
        return settings

    def _let_go(self, error: BaseException | None) -> None:
        under_way, self._under_way = self._under_way, False
        own, self._own = self._own, None
        if own is not None:
            atexit.unregister(self._at_exit)
            own.__exit__(None if error is None else type(error), error, None)
        elif under_way and self.watch is not None:
            if self._where.run is None:
                self.watch.report()
            self.watch.detach()

    def _at_exit(self) -> None:
        self.fail(RuntimeError("the program ended before the training did"))


def _holds_shards(optimizer: Optimizer) -> bool:
    return any(is_sharded(param) for group in optimizer.param_groups for param in group["params"])
