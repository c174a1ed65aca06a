"""Hugging Face Accelerate: a tracker for `Accelerator(log_with=…)` that also watches what `prepare` gave back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.optim import Optimizer

import roundoff
from roundoff.watch import Watch

try:
    from accelerate import PartialState
    from accelerate.tracking import GeneralTracker
except ImportError as error:
    raise ImportError("roundoff.integrations.accelerate needs accelerate: pip install accelerate") from error


class RoundoffTracker(GeneralTracker):  # type: ignore[misc]
    """A run on a roundoff server as one of an `Accelerator`'s trackers.

        tracker = RoundoffTracker("my project", name="first")
        accelerator = Accelerator(log_with=tracker)
        accelerator.init_trackers("my project", config={…})
        model, optimizer = accelerator.prepare(model, optimizer)
        tracker.watch(model, optimizer)
        …
        accelerator.log({"loss": loss}, step=step)               # step counts optimizer steps from 0
        accelerator.end_training()                               # finishes the run

    Args:
        project: where the run is shown.
        settings: further settings of `roundoff.init`, such as `name`, `server`, `first_step`, `run_id`.

    Only the main process has a run: replicas are alike. The run is made by `store_init_configuration`, which
    `init_trackers` calls where it is given a config, else by the first use of it; it raises there what
    `roundoff.init` raises. For sharded training (FSDP) make a run on every process with `roundoff.init` instead.
    """

    name = "roundoff"
    requires_logging_directory = False
    main_process_only = True

    def __init__(self, project: str, **settings: Any) -> None:
        super().__init__()
        self._project, self._settings = project, settings
        self._run: roundoff.Run | None = None

    @property
    def tracker(self) -> roundoff.Run | None:
        """The run; None in all processes but the main one."""
        if self._run is None and PartialState().is_main_process:
            self._run = roundoff.init(self._project, **self._settings)
        return self._run

    def store_init_configuration(self, values: Mapping[str, Any]) -> None:
        """Begin the run with `values` as its config, unless it has begun."""
        self._settings.setdefault("config", dict(values))
        _ = self.tracker

    def log(self, values: Mapping[str, Any], step: int | None = None, **kwargs: Any) -> None:  # noqa: ARG002
        """Log numbers at `step`, by default one more than at the last call."""
        run = self.tracker
        if run is not None:
            run.log(values, step=step)

    def watch(
        self, model: nn.Module, optimizer: Optimizer, *, every: int = 10, **options: Any
    ) -> Watch | None:
        """Watch a prepared model and optimizer under the model's own names; as `Run.watch`.

        None in all processes but the main one, and where a warning says why.
        """
        run = self.tracker
        return None if run is None else run.watch(model, optimizer, every=every, **options)

    def finish(self) -> None:
        """Finish the run; `Accelerator.end_training` calls it."""
        if self._run is not None:
            self._run.finish()
