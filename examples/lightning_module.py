"""Lightning: one callback. precision="bf16-true" stores the weights in bfloat16.

pip install lightning
python examples/lightning_module.py [--steps 100]        (a server, if you like: roundoff serve --open)
"""

import argparse

import lightning
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader

from roundoff.integrations.lightning import RoundoffCallback


class Cipher(lightning.LightningModule):
    """Learns which character stands for which."""

    def __init__(self, lr: float = 1e-4) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Embedding(64, 64), nn.LayerNorm(64), nn.Linear(64, 64))

    def training_step(self, characters: Tensor, index: int) -> Tensor:
        return functional.cross_entropy(self.net(characters).float(), (7 * characters + 3) % 64)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.hparams["lr"])


def main(steps: int) -> None:
    lightning.seed_everything(0)
    trainer = lightning.Trainer(
        max_steps=steps,
        precision="bf16-true",
        callbacks=[RoundoffCallback("examples", name="Lightning", every=5)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(Cipher(), DataLoader(torch.randint(64, (65536,)), batch_size=256))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    main(**vars(parser.parse_args()))
