"""NVIDIA DLFramework Inspect: its tensor statistics (of Transformer Engine, for instance) in a roundoff run."""

from __future__ import annotations

from typing import Any

import roundoff

try:
    from nvdlfw_inspect.logging import BaseLogger
except ImportError as error:
    raise ImportError(
        "roundoff.integrations.dlfw_inspect needs NVIDIA DLFramework Inspect: pip install nvdlfw-inspect"
    ) from error


class RoundoffLogger(BaseLogger):  # type: ignore[misc]
    """Logs every scalar into `run` under its own name, `iteration` being the step.

        run = roundoff.init("my project")
        nvdlfw_inspect.api.initialize(config_file="…", statistics_logger=RoundoffLogger(run))

    Start its count where the run's is (`initialize(init_training_step=…)`), so that its figures stand beside the
    losses of the same step. Never raises: what is not a number is dropped and counted by the run.
    """

    def __init__(self, run: roundoff.Run) -> None:
        super().__init__()
        self._run = run

    def log_scalar(self, name: str, value: float | int, iteration: int, **kwargs: Any) -> None:  # noqa: ARG002
        """Log one number."""
        self._run.log({name: value}, step=iteration)
