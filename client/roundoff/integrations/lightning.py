"""Lightning: one callback in `Trainer(callbacks=[…])`, of `lightning` or of `pytorch_lightning`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from torch import Tensor, nn

import roundoff
from roundoff.telling import warn

from .training import Start, Training, Where

PACKAGES = ("lightning.pytorch", "pytorch_lightning")


def _callback_class() -> type:
    """The `Callback` of whichever Lightning the program has imported, of both if both; else of the one that is there.

    Raises ImportError if none is installed.
    """
    found = [sys.modules[name].Callback for name in PACKAGES if name in sys.modules]
    for name in PACKAGES:
        if not found:
            try:
                found = [import_module(name).Callback]
            except ModuleNotFoundError as error:
                if error.name not in (name, name.split(".")[0]):
                    raise
    if not found:
        raise ImportError("roundoff.integrations.lightning needs Lightning: pip install lightning")
    return type("Callback", tuple(found), {})


_Callback: Any = _callback_class()


class RoundoffCallback(_Callback):  # type: ignore[misc]
    """Watches the optimizer of a Lightning `Trainer`, and logs its losses and validation metrics.

        Trainer(…, callbacks=[RoundoffCallback()])               # a table in the terminal when training ends
        Trainer(…, callbacks=[RoundoffCallback("my project")])   # a run on a server, made by roundoff.init
        Trainer(…, callbacks=[RoundoffCallback(run=run)])        # a run of yours, which you finish

    Args:
        project: makes a run of this training's own, with the module's hyperparameters. It ends with `fit`, crashed
            after an exception; a `fit` that resumes from a checkpoint goes on with the run of that checkpoint.
        run: a run that you made.
        every: optimizer steps from one sample to the next.
        options: further options of `roundoff.watch`.
        settings: further settings of `roundoff.init`, such as `name`, `server`, `tags`.

    Works with automatic and with manual optimization. Of several optimizers the first is watched, and a warning says
    so. Steps are those of the watched optimizer, counted from 0. Raises TypeError and ValueError for settings that
    cannot be, and at the begin of training what `roundoff.init` raises.
    """

    def __init__(
        self,
        project: str | None = None,
        *,
        run: roundoff.Run | None = None,
        every: int = 10,
        options: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__()
        self.training = Training(Where(run, project, {"every": every, **(options or {})}, settings))
        self._resumed: str | None = None
        self._loss: Any = 0.0
        self._logged: int | None = None

    def on_train_start(self, trainer: Any, pl_module: nn.Module) -> None:
        """The optimizers exist and, on a resume, their state is loaded."""
        resumed, self._resumed = self._resumed, None
        self._loss, self._logged = 0.0, None
        optimizers = trainer.optimizers
        if not optimizers:
            return
        if len(optimizers) > 1 and trainer.is_global_zero:
            warn(
                f"of the {len(optimizers)} optimizers the first is watched, {type(optimizers[0]).__name__}; "
                "for each of the others start a run of its own with roundoff.init and watch it there"
            )
        start = Start(
            first_step=_steps_of(trainer),
            leads=trainer.is_global_zero,
            config={**_settings(trainer), **dict(getattr(pl_module, "hparams", {}))},
            run_id=resumed if trainer.global_step else None,
        )
        self.training.begin(pl_module, optimizers[0], start)

    def on_train_batch_end(
        self,
        trainer: Any,  # noqa: ARG002 - Lightning's signature
        pl_module: Any,
        outputs: Any,
        batch: Any,  # noqa: ARG002
        batch_idx: int,  # noqa: ARG002
    ) -> None:
        """The loss of each optimizer step: of the batches it accumulates, whose parts Lightning has scaled, the sum."""
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if isinstance(loss, Tensor):
            self._loss = self._loss + loss.detach() if pl_module.automatic_optimization else loss.detach()
        step = self.training.newest_step
        if step is None or step == self._logged:
            return
        if isinstance(self._loss, Tensor):
            self.training.log({"loss": self._loss}, step)
        self._loss, self._logged = 0.0, step

    def on_validation_end(self, trainer: Any, pl_module: nn.Module) -> None:  # noqa: ARG002
        """What the module has logged, each time that a validation ends."""
        if not trainer.sanity_checking and trainer.is_global_zero:
            self.training.log(trainer.callback_metrics, self.training.newest_step or 0)

    def on_train_end(self, trainer: Any, pl_module: nn.Module) -> None:  # noqa: ARG002
        """Training came to its end."""
        self.training.end()

    def on_exception(self, trainer: Any, pl_module: nn.Module, exception: BaseException) -> None:  # noqa: ARG002
        """Training, if it was under way, ended with an exception or Ctrl-C."""
        self.training.fail(exception)

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint: the run that it belongs to, so that a training resumed from it goes on with the run."""
        run_id = self.training.own_run_id
        return {} if run_id is None else {"run_id": run_id}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """From a checkpoint."""
        self._resumed = state_dict.get("run_id")


def _steps_of(trainer: Any) -> int | None:
    """Steps taken so far; None, to be read off the optimizer, where Lightning's count is that of several."""
    return trainer.global_step if len(trainer.optimizers) == 1 else None


def _settings(trainer: Any) -> dict[str, Any]:
    return {
        "precision": str(trainer.precision),
        "accumulate_grad_batches": trainer.accumulate_grad_batches,
        "gradient_clip_val": trainer.gradient_clip_val,
        "max_epochs": trainer.max_epochs,
        "max_steps": trainer.max_steps,
        "world_size": trainer.world_size,
    }
