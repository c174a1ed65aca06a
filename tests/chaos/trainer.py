"""A small training in a process of its own: the same losses from the same seed, whatever becomes of its run.

    python trainer.py --out losses.txt [--server URL] [--spool DIR] [--steps N] [--pace SECONDS]

Writes one line per step: the loss, bit for bit, and when it was handed over. Without a server it does not import
roundoff.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--server")
    parser.add_argument("--spool")
    parser.add_argument("--run-id")
    parser.add_argument("--first-step", type=int, default=0)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--pace", type=float, default=0.0)
    parser.add_argument("--patience", type=float, default=2.0)
    return parser.parse_args()


def begin(options: argparse.Namespace, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    import roundoff

    run = roundoff.init(
        "chaos",
        "trainer",
        server=options.server,
        spool=options.spool,
        run_id=options.run_id,
        first_step=options.first_step,
    )
    run.watch(model, optimizer, every=1, first_step=options.first_step)
    return run


def main() -> None:
    options = parse()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 16)).bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    run = begin(options, model, optimizer) if options.server else None
    with options.out.open("w", buffering=1) as out:
        for step in range(options.first_step, options.first_step + options.steps):
            x = torch.randn(8, 16).bfloat16()
            loss = functional.mse_loss(model(x), x)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            value = loss.item()
            if run is not None:
                run.log({"loss": value}, step=step)
            out.write(f"{step} {value.hex()} {time.monotonic()}\n")
            time.sleep(options.pace)
    if run is not None:
        run.finish(options.patience)


if __name__ == "__main__":
    main()
