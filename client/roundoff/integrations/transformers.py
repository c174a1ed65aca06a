"""Hugging Face `Trainer`: one callback in `Trainer(callbacks=[…])`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

import roundoff

from .training import Start, Training, Where

try:
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
except ImportError as error:
    raise ImportError(
        "roundoff.integrations.transformers needs transformers and accelerate: pip install 'transformers[torch]'"
    ) from error

MARK = "roundoff.json"
"""File in each checkpoint that says which run it belongs to."""

SHOWN = (
    "learning_rate", "lr_scheduler_type", "warmup_steps", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon",
    "optim", "max_grad_norm", "bf16", "fp16", "per_device_train_batch_size", "gradient_accumulation_steps",
    "max_steps", "num_train_epochs", "seed",
)  # fmt: skip
"""Training arguments that are always shown with the run; of the others those that are not at their default."""

HIDDEN = ("disable_tqdm", "hub_token", "output_dir", "project", "push_to_hub_token", "run_name")
"""Arguments that say nothing about the training."""


class RoundoffCallback(TrainerCallback):  # type: ignore[misc]
    """Watches the optimizer of a `Trainer`, and logs its losses, learning rates and gradient norms.

        Trainer(…, callbacks=[RoundoffCallback()])               # a table in the terminal when training ends
        Trainer(…, callbacks=[RoundoffCallback("my project")])   # a run on a server, made by roundoff.init
        Trainer(…, callbacks=[RoundoffCallback(run=run)])        # a run of yours, which you finish

    Args:
        project: makes a run of this training's own, named after the training arguments and showing them. It ends with
            the training, crashed if that did not come to its end; a training that is resumed from a checkpoint in the
            same folder goes on with the run of that checkpoint.
        run: a run that you made.
        every: optimizer steps from one sample to the next.
        options: further options of `roundoff.watch`.
        settings: further settings of `roundoff.init`, such as `name`, `server`, `tags`.

    Steps are optimizer steps counted from 0, so what the Trainer logs after step n belongs to step n − 1. Raises
    TypeError and ValueError for settings that cannot be, and at the begin of training what `roundoff.init` raises.
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
        self.training = Training(Where(run, project, {"every": every, **(options or {})}, settings))

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,  # noqa: ARG002 - the Trainer's signature
        model: nn.Module | None = None,
        optimizer: Optimizer | None = None,
        **kwargs: Any,  # noqa: ARG002
    ) -> None:
        """The optimizer exists and, on a resume, its state is loaded."""
        if model is None or optimizer is None:
            return
        start = Start(
            first_step=state.global_step,
            leads=state.is_world_process_zero,
            name=args.run_name or Path(args.output_dir).name or None,
            config=shown(args),
            run_id=_run_of_checkpoint(args, state.global_step),
        )
        self.training.begin(model, optimizer, start)

    def on_log(
        self,
        args: TrainingArguments,  # noqa: ARG002
        state: TrainerState,
        control: TrainerControl,  # noqa: ARG002
        logs: Mapping[str, Any] | None = None,
        **kwargs: Any,  # noqa: ARG002
    ) -> None:
        """What the Trainer logs, at the last step that it counts in; not its summary of times at the end."""
        if not logs or not state.is_world_process_zero or "train_runtime" in logs:
            return
        values = {_name(key): value for key, value in logs.items() if isinstance(value, int | float)}
        self.training.log(values, max(0, state.global_step - 1))

    def on_save(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,  # noqa: ARG002
        **kwargs: Any,  # noqa: ARG002
    ) -> None:
        """Leave the run's id in the checkpoint, so that a training resumed from it goes on with the run."""
        run_id = self.training.own_run_id
        folder = _checkpoint(args, state.global_step)
        if run_id is not None and state.is_world_process_zero and folder.is_dir():
            try:
                (folder / MARK).write_text(json.dumps({"run_id": run_id}), encoding="utf-8")
            except OSError:
                return  # a full disk will be the Trainer's trouble as well; it must not be ours

    def on_train_end(
        self,
        args: TrainingArguments,  # noqa: ARG002
        state: TrainerState,  # noqa: ARG002
        control: TrainerControl,  # noqa: ARG002
        **kwargs: Any,  # noqa: ARG002
    ) -> None:
        """Training came to its end."""
        self.training.end()


def shown(args: TrainingArguments) -> dict[str, Any]:
    """The training arguments worth a look: those that bear on precision, and what is not at its default."""
    defaults = {one.name: one.default for one in dataclasses.fields(args)}
    return {
        key: value
        for key, value in args.to_dict().items()
        if key in SHOWN or (key in defaults and key not in HIDDEN and _is_set(value, defaults[key]))
    }


def _is_set(value: Any, default: Any) -> bool:
    plain = isinstance(value, bool | int | float | str)
    return plain and value != default and bool(value or default)


def _name(key: str) -> str:
    if key == "learning_rate":
        return "lr"
    return f"eval/{key.removeprefix('eval_')}" if key.startswith("eval_") else key


def _checkpoint(args: TrainingArguments, step: int) -> Path:
    return Path(args.output_dir) / f"checkpoint-{step}"


def _run_of_checkpoint(args: TrainingArguments, step: int) -> str | None:
    """The run that the checkpoint of `step` belongs to; None for a training that begins anew."""
    if not step:
        return None
    try:
        run_id = json.loads((_checkpoint(args, step) / MARK).read_text(encoding="utf-8"))["run_id"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return run_id if isinstance(run_id, str) else None
