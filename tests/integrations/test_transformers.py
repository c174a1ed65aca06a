"""The callback in a real Trainer, over a random Llama of a few thousand weights."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from reading import Stored
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

import roundoff
from roundoff.integrations.transformers import RoundoffCallback, shown


def model_of(dtype: torch.dtype = torch.bfloat16) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2
    )
    return LlamaForCausalLM(config).to(dtype)


def trainer_of(folder: Path, *callbacks: TrainerCallback, model: Any = None, **arguments: Any) -> Trainer:
    settings = {
        "max_steps": 16, "learning_rate": 2e-5, "per_device_train_batch_size": 2, "logging_steps": 4,
        "save_strategy": "no", "report_to": [], "use_cpu": True, "disable_tqdm": True, **arguments,
    }  # fmt: skip
    rows = torch.randint(64, (64, 8), generator=torch.Generator().manual_seed(1))
    return Trainer(
        model or model_of(),
        TrainingArguments(str(folder), **settings),
        train_dataset=[{"input_ids": row, "labels": row} for row in rows],
        callbacks=list(callbacks),
    )


def trained(folder: Path, *callbacks: TrainerCallback) -> tuple[list[Tensor], list[Any], Tensor]:
    """Weights and moments, what the Trainer logged, and the random numbers afterwards."""
    trainer = trainer_of(folder, *callbacks, gradient_accumulation_steps=2, max_grad_norm=0.5)
    trainer.train()
    state = [value for one in trainer.optimizer.state.values() for value in one.values()]
    losses = [
        {k: v for k, v in line.items() if "loss" in k or "grad" in k} for line in trainer.state.log_history
    ]
    return [*trainer.model.parameters(), *state], losses, torch.get_rng_state()


def test_training_is_bit_identical_with_and_without(tmp_path: Path) -> None:
    bare, losses, rng = trained(tmp_path)
    watched, same_losses, same_rng = trained(tmp_path, RoundoffCallback(every=3))
    assert all(torch.equal(a, b) for a, b in zip(bare, watched, strict=True))
    assert losses == same_losses
    assert torch.equal(rng, same_rng)


def test_samples_and_losses_stand_at_their_optimizer_steps(tmp_path: Path, shared_server: str) -> None:
    callback = RoundoffCallback("steps", every=5, server=shared_server, name="accumulating")
    trainer = trainer_of(tmp_path, callback, gradient_accumulation_steps=3)
    trainer.train()
    stored = Stored(shared_server)
    [run] = stored.runs("steps")
    assert (run.name, run.state, run.health, run.attempts) == ("accumulating", "finished", "stalling", 1)
    assert list(stored.series(run.id, "lost_fraction")) == [0, 5, 10, 15]
    history = [line for line in trainer.state.log_history if "loss" in line]
    assert [line["step"] for line in history] == [4, 8, 12, 16]
    assert stored.series(run.id, "scalar:loss") == {line["step"] - 1: line["loss"] for line in history}
    assert stored.series(run.id, "scalar:grad_norm") == {
        line["step"] - 1: line["grad_norm"] for line in history
    }
    assert stored.series(run.id, "scalar:lr") == {line["step"] - 1: line["learning_rate"] for line in history}
    assert run.config["learning_rate"] == 2e-5
    assert run.config["gradient_accumulation_steps"] == 3
    assert "hub_token" not in run.config
    assert set(stored.layers(run.id)) == {name for name, _ in model_of().named_parameters()}
    assert not trainer.optimizer.optimizer._optimizer_step_pre_hooks


class Failing(TrainerCallback):
    """Ends the training with an exception, the first time that it comes to a step."""

    def __init__(self, at: int) -> None:
        self.at = at

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.at:
            self.at = -1
            raise LookupError("the disk is full")


def test_a_training_resumed_from_a_checkpoint_goes_on_with_its_run(
    tmp_path: Path, shared_server: str
) -> None:
    stored = Stored(shared_server)
    options = {"save_strategy": "steps", "save_steps": 8, "logging_steps": 1}
    callback = RoundoffCallback("resumed", every=2, server=shared_server)
    trainer = trainer_of(tmp_path / "first run", callback, Failing(at=11), **options)
    with pytest.raises(LookupError, match="disk is full"):
        trainer.train()
    callback.training.fail(LookupError())  # as the end of the program does
    [run] = stored.runs("resumed")
    assert (run.name, run.state, run.step, run.attempts) == ("first run", "crashed", 10, 1)

    callback = RoundoffCallback("resumed", every=2, server=shared_server)
    trainer_of(tmp_path / "first run", callback, **options).train(resume_from_checkpoint=True)
    [run] = stored.runs("resumed")
    assert (run.state, run.step, run.attempts) == ("finished", 15, 2)
    assert list(stored.series(run.id, "lost_fraction")) == [0, 2, 4, 6, 8, 10, 12, 14]
    assert list(stored.series(run.id, "scalar:loss")) == list(range(16))

    trainer_of(tmp_path / "first run", RoundoffCallback("resumed", server=shared_server), **options).train()
    assert len(stored.runs("resumed")) == 2  # from the beginning: another run


def test_a_training_that_never_ended_has_crashed_when_the_next_one_begins(
    tmp_path: Path, shared_server: str
) -> None:
    trainer = trainer_of(
        tmp_path, RoundoffCallback("again", server=shared_server), Failing(at=3), max_steps=5
    )
    with pytest.raises(LookupError):
        trainer.train()
    trainer.train()
    assert [run.state for run in Stored(shared_server).runs("again")] == ["finished", "crashed"]


CAUGHT = """
import sys
sys.path[:0] = [{tests!r}]
from pathlib import Path
from test_transformers import Failing, RoundoffCallback, trainer_of
trainer = trainer_of(Path({folder!r}), RoundoffCallback("caught", every=2), Failing(at=13))
try:
    trainer.train()
except LookupError:
    print("caught")
"""


def test_an_exception_that_somebody_catches_is_a_crash_all_the_same(
    tmp_path: Path, shared_server: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text(CAUGHT.format(tests=str(Path(__file__).parent), folder=str(tmp_path)), encoding="utf-8")
    env = {**os.environ, "ROUNDOFF_SERVER": shared_server, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False, env=env)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "caught"), done.stderr
    assert "lose most of their updates to rounding" in done.stderr
    [run] = Stored(shared_server).runs("caught")
    assert (run.state, run.step) == ("crashed", 12)


def test_without_a_project_a_table_is_printed_when_training_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    callback = RoundoffCallback(every=2)
    trainer_of(tmp_path, callback).train()
    assert "Stalling." in capsys.readouterr().err
    assert callback.training.run is None
    trainer_of(tmp_path, callback, max_steps=2).train()  # the same callback once more: another table
    assert capsys.readouterr().err.count("1 samples, last at step 0") == 1


def test_a_run_of_the_users_stays_open(tmp_path: Path, shared_server: str) -> None:
    with roundoff.init("given", server=shared_server) as run:
        trainer = trainer_of(tmp_path, RoundoffCallback(run=run, every=4), eval_strategy="no")
        trainer.train()
        trainer.eval_dataset = trainer.train_dataset
        trainer.evaluate()
    stored = Stored(shared_server)
    assert stored.run(run.id).state == "finished"
    assert list(stored.series(run.id, "lost_fraction")) == [0, 4, 8, 12]
    assert list(stored.series(run.id, "scalar:eval/loss")) == [15]


def test_float32_weights_under_autocast_lose_nothing(tmp_path: Path, shared_server: str) -> None:
    callback = RoundoffCallback("autocast", every=2, server=shared_server)
    trainer_of(tmp_path, callback, model=model_of(torch.float32), bf16=True).train()
    [run] = Stored(shared_server).runs("autocast")
    assert run.health == "healthy"
    assert run.lost_fraction is not None
    assert run.lost_fraction < 0.01


def test_only_the_process_that_speaks_for_all_measures(tmp_path: Path, shared_server: str) -> None:
    callback = RoundoffCallback("second rank", server=shared_server)
    trainer = trainer_of(tmp_path, max_steps=1)
    trainer.train()
    trainer.state.is_world_process_zero = False
    callback.on_train_begin(
        trainer.args, trainer.state, trainer.control, model=trainer.model, optimizer=trainer.optimizer
    )
    callback.on_log(trainer.args, trainer.state, trainer.control, logs={"loss": 1.0})
    callback.on_train_end(trainer.args, trainer.state, trainer.control)
    assert callback.training.watch is None
    assert Stored(shared_server).runs("second rank") == []


def test_the_mark_of_a_checkpoint_is_a_line_of_json_and_no_secret(tmp_path: Path, shared_server: str) -> None:
    callback = RoundoffCallback("marks", server=shared_server, token="t0p-secret")
    trainer_of(tmp_path, callback, max_steps=2, save_strategy="steps", save_steps=2).train()
    [run] = Stored(shared_server).runs("marks")
    mark = tmp_path / "checkpoint-2" / "roundoff.json"
    assert json.loads(mark.read_text(encoding="utf-8")) == {"run_id": run.id}


def test_settings_that_cannot_be_are_refused() -> None:
    with pytest.raises(TypeError, match="unknown setting 'sever'"):
        RoundoffCallback("p", sever="http://127.0.0.1:1")
    with pytest.raises(ValueError, match="name its project"):
        RoundoffCallback(name="first")
    with pytest.raises(ValueError, match="not both"):
        RoundoffCallback("p", run=roundoff.init(mode="disabled"))


def test_what_is_shown_of_the_arguments_bears_on_precision(tmp_path: Path) -> None:
    found = shown(TrainingArguments(str(tmp_path), adam_beta2=0.95, report_to=[], use_cpu=True))
    assert {"learning_rate", "adam_beta2", "adam_epsilon", "bf16", "optim", "use_cpu"} <= set(found)
    assert found["adam_beta2"] == 0.95
    assert not {"output_dir", "hub_token", "fsdp_config", "do_train"} & set(found)
