"""The callback in a real Lightning Trainer, under both of its names."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import lightning
import pytest
import pytorch_lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from reading import Kept, Stored
from torch import Tensor, nn
from torch.utils.data import DataLoader

import roundoff
from roundoff.integrations.lightning import RoundoffCallback


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.Linear(32, 16))


class Training(lightning.LightningModule):
    """Automatic optimization."""

    def __init__(self, lr: float = 1e-4, fails_at: int = -1) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = net()
        self.losses: list[float] = []
        self.fails_at = fails_at

    def training_step(self, batch: Tensor, index: int) -> Tensor:
        if len(self.losses) == self.fails_at:
            raise LookupError("no batch left")
        loss: Tensor = (self.net(batch) - batch).float().square().mean()
        self.losses.append(loss.item())
        return loss

    def validation_step(self, batch: Tensor, index: int) -> None:
        self.log("val_loss", (self.net(batch) - batch).float().square().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-4)


class Manual(Training):
    """Manual optimization: two optimizers, the second of which steps every other time."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.critic = nn.Linear(16, 1)

    def training_step(self, batch: Tensor, index: int) -> Tensor:
        first, second = self.optimizers()  # type: ignore[misc]
        loss = super().training_step(batch, index)
        first.zero_grad()
        self.manual_backward(loss)
        first.step()
        if index % 2:
            second.zero_grad()
            self.manual_backward(self.critic(batch).square().mean())
            second.step()
        return loss.detach()

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:  # type: ignore[override]
        return [torch.optim.AdamW(part.parameters(), lr=1e-4) for part in (self.net, self.critic)]


def batches() -> DataLoader[Tensor]:
    rows = torch.randn(64, 16, generator=torch.Generator().manual_seed(1)).bfloat16()
    return DataLoader(rows, batch_size=4)  # type: ignore[arg-type]


def trainer_of(folder: Path, *callbacks: Any, of: Any = lightning, **settings: Any) -> Any:
    settings = {"max_steps": 16, "precision": "bf16-true", "enable_checkpointing": False, **settings}
    return of.Trainer(
        accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
        default_root_dir=folder, callbacks=list(callbacks), **settings,
    )  # fmt: skip


def trained(folder: Path, module: Training, *callbacks: Any) -> tuple[list[Tensor], list[float], Tensor]:
    clipped = {} if isinstance(module, Manual) else {"gradient_clip_val": 0.1, "accumulate_grad_batches": 2}
    trainer = trainer_of(folder, *callbacks, **clipped)
    torch.manual_seed(2)
    trainer.fit(module, batches())
    state = [
        value
        for optimizer in trainer.optimizers
        for one in optimizer.state.values()
        for value in one.values()
    ]
    return [*module.parameters(), *state], module.losses, torch.get_rng_state()


@pytest.mark.parametrize("kind", [Training, Manual])
@pytest.mark.filterwarnings("ignore:roundoff. of the 2 optimizers:UserWarning")
def test_training_is_bit_identical_with_and_without(tmp_path: Path, kind: type[Training]) -> None:
    bare, losses, rng = trained(tmp_path, kind())
    callback = RoundoffCallback(every=3)
    watched, same_losses, same_rng = trained(tmp_path, kind(), callback)
    assert callback.training.watch is not None
    assert callback.training.watch.history.samples > 3
    assert all(torch.equal(a, b) for a, b in zip(bare, watched, strict=True))
    assert losses == same_losses
    assert torch.equal(rng, same_rng)


def test_what_is_measured_inside_a_step_is_what_a_plain_loop_measures(tmp_path: Path) -> None:
    """Lightning clips the gradients inside the optimizer's step, before the update."""
    kept = Kept()
    module = Training()
    callback = RoundoffCallback(every=4, options={"sink": kept})
    trainer_of(tmp_path, callback, gradient_clip_val=0.1).fit(module, batches())

    plain, alone = Kept(), Training().bfloat16()
    optimizer = alone.configure_optimizers()
    roundoff.watch(alone, optimizer, every=4, sink=plain)
    for batch in batches():
        optimizer.zero_grad()
        (alone.net(batch) - batch).float().square().mean().backward()
        nn.utils.clip_grad_norm_(alone.parameters(), 0.1)
        optimizer.step()
    assert (
        [sample.step for sample in kept.samples] == [sample.step for sample in plain.samples] == [0, 4, 8, 12]
    )
    assert [layer.name for layer in kept.layers] == [layer.name for layer in plain.layers]
    for ours, theirs in zip(kept.samples, plain.samples, strict=True):
        assert torch.equal(ours.sums, theirs.sums)  # type: ignore[arg-type]


def test_samples_losses_and_validations_stand_at_their_optimizer_steps(
    tmp_path: Path, shared_server: str
) -> None:
    module = Training()
    callback = RoundoffCallback("steps", every=5, server=shared_server, name="accumulating")
    trainer_of(tmp_path, callback, accumulate_grad_batches=2, max_epochs=2, num_sanity_val_steps=1).fit(
        module, batches(), batches()
    )
    stored = Stored(shared_server)
    [run] = stored.runs("steps")
    assert (run.name, run.state, run.health) == ("accumulating", "finished", "stalling")
    assert list(stored.series(run.id, "lost_fraction")) == [0, 5, 10, 15]
    losses = stored.series(run.id, "scalar:loss")
    assert list(losses) == list(range(16))
    pairs = zip(module.losses[::2], module.losses[1::2], strict=True)
    assert list(losses.values()) == pytest.approx([(one + other) / 2 for one, other in pairs], rel=1e-6)
    assert list(stored.series(run.id, "scalar:val_loss")) == [7, 15]
    assert (run.config["precision"], run.config["lr"]) == ("bf16-true", 1e-4)
    assert list(stored.layers(run.id)) == [name for name, _ in Training().named_parameters()]


def test_of_several_optimizers_the_first_is_watched_and_one_warning_says_so(
    tmp_path: Path, shared_server: str
) -> None:
    module = Manual()
    callback = RoundoffCallback("two", every=4, server=shared_server)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        trainer_of(tmp_path, callback, max_steps=24).fit(module, batches())
    about = [str(one.message) for one in said if "roundoff" in str(one.message)]
    assert about == [
        "roundoff: of the 2 optimizers the first is watched, AdamW; for each of the others start a run of its own with "
        "roundoff.init and watch it there"
    ]
    stored = Stored(shared_server)
    [run] = stored.runs("two")
    assert list(stored.layers(run.id)) == [f"net.{name}" for name, _ in net().named_parameters()]
    assert list(stored.series(run.id, "lost_fraction")) == [0, 4, 8, 12]
    assert stored.series(run.id, "scalar:loss") == pytest.approx(dict(enumerate(module.losses)))


def test_an_exception_marks_the_run_crashed_and_a_checkpoint_continues_it(
    tmp_path: Path, shared_server: str
) -> None:
    def checkpoints() -> ModelCheckpoint:
        return ModelCheckpoint(tmp_path, every_n_train_steps=8, save_top_k=-1, filename="{step}")

    callback = RoundoffCallback("resumed", every=2, server=shared_server)
    with pytest.raises(LookupError, match="no batch left"):
        trainer_of(tmp_path, callback, checkpoints(), enable_checkpointing=True).fit(
            Training(fails_at=11), batches()
        )
    stored = Stored(shared_server)
    [run] = stored.runs("resumed")
    assert (run.state, run.step, run.attempts) == ("crashed", 10, 1)

    callback = RoundoffCallback("resumed", every=2, server=shared_server)
    trainer_of(tmp_path, callback, checkpoints(), enable_checkpointing=True).fit(
        Training(), batches(), ckpt_path=str(tmp_path / "step=8.ckpt"), weights_only=False
    )
    [run] = stored.runs("resumed")
    assert (run.state, run.step, run.attempts) == ("finished", 15, 2)
    assert list(stored.series(run.id, "lost_fraction")) == [0, 2, 4, 6, 8, 10, 12, 14]
    assert list(stored.series(run.id, "scalar:loss")) == list(range(16))

    trainer_of(tmp_path, RoundoffCallback("resumed", server=shared_server)).fit(Training(), batches())
    assert len(stored.runs("resumed")) == 2  # from the beginning: another run


class Older(pytorch_lightning.LightningModule):
    """A module of `pytorch_lightning`, whose classes are not those of `lightning`."""

    def __init__(self) -> None:
        super().__init__()
        self.net = net()

    def training_step(self, batch: Tensor, index: int) -> Tensor:
        loss: Tensor = (self.net(batch) - batch).float().square().mean()
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-4)


def test_it_works_under_the_older_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    callback = RoundoffCallback(every=2)
    assert isinstance(callback, pytorch_lightning.Callback)
    assert isinstance(callback, lightning.Callback)
    trainer_of(tmp_path, callback, of=pytorch_lightning).fit(Older(), batches())
    assert "Stalling." in capsys.readouterr().err
