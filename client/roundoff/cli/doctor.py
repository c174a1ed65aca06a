"""`roundoff doctor`: what this installation can do, and what it lacks."""

from __future__ import annotations

import platform

import typer

from roundoff._version import __version__

from .source import Json
from .terminal import print_json


def doctor(as_json: Json = False) -> None:
    """Look at this installation: which kernel backends can be used here, and if not, why not."""
    import torch

    from roundoff.kernels import BACKENDS, run_canary, unavailable
    from roundoff.kernels.cpu import instruction_set
    from roundoff.kernels.reference import step_fp32
    from roundoff.optim import STRATEGIES

    run_canary(step_fp32, STRATEGIES["plus"], torch.device("cpu"), torch.bfloat16)
    why = {name: unavailable(name) for name in BACKENDS}
    chosen = "cpu" if why["cpu"] is None else "reference"
    if as_json:
        print_json(
            {
                "roundoff": __version__,
                "python": platform.python_version(),
                "torch": torch.__version__,
                "threads": torch.get_num_threads(),
                "backend": chosen,
                "instruction_set": instruction_set(),
                "backends": [{"name": name, "unavailable": reason} for name, reason in why.items()],
            }
        )
        return
    typer.echo(f"roundoff {__version__}, Python {platform.python_version()}, torch {torch.__version__}")
    typer.echo("roundings of the reference: as they must be")
    for name, reason in why.items():
        extra = f" ({instruction_set()}, {torch.get_num_threads()} threads)" if name == "cpu" else ""
        typer.echo(f"backend {name}: {f'usable{extra}' if reason is None else f'not usable, {reason}'}")
    typer.echo(f'backend="auto" on a CPU takes {chosen}')
