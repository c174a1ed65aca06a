"""`roundoff check`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from roundoff.metrics import name_some

from .source import Json
from .terminal import output, print_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from roundoff.watch.preflight_checks import Settings, Warned


def check(
    dtype: Annotated[str, typer.Option(help="Storage of the weights: bfloat16 or float16.")] = "bfloat16",
    lr: Annotated[float, typer.Option(min=0.0, help="Learning rate.")] = 1e-3,
    beta1: Annotated[float, typer.Option(min=0.0, max=1.0)] = 0.9,
    beta2: Annotated[float, typer.Option(min=0.0, max=1.0)] = 0.999,
    eps: Annotated[float, typer.Option(min=0.0)] = 1e-8,
    weight_decay: Annotated[float, typer.Option(min=0.0, help="Decoupled weight decay.")] = 0.01,
    strategy: Annotated[
        str, typer.Option(help="Of CollageAdamW, or AdamW for an optimizer that keeps plain words.")
    ] = "AdamW",
    checkpoint: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Weights to look at, as `roundoff scan` takes them.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Say before a run what its numbers come to in 16 bit. Exit code 1 if something is bound to go wrong."""
    from roundoff.watch.preflight_checks import describe, preflight_settings

    settings = _settings(dtype, lr, (beta1, beta2), eps, weight_decay, strategy)
    found = list(preflight_settings(settings))
    if checkpoint is not None:
        found += _weights(settings, checkpoint)
    if as_json:
        print_json(describe(found))
    for one in [] if as_json else found:
        where = f"{name_some(one.layers)}: " if one.layers else ""
        output.print(
            Text(where + one.what, style="bold"), Text(f"{one.why}. {one.cure}."), sep="\n  ", soft_wrap=True
        )
    if not found and not as_json:
        output.print("Nothing stands out.")
    if found:
        raise typer.Exit(1)


def _settings(
    dtype: str, lr: float, betas: tuple[float, float], eps: float, weight_decay: float, strategy: str
) -> Settings:
    import torch

    from roundoff.optim import STRATEGIES
    from roundoff.watch.preflight_checks import Settings

    known = {"bfloat16": torch.bfloat16, "float16": torch.float16}
    if dtype not in known:
        raise ValueError(f"--dtype is {' or '.join(known)}, not {dtype!r}")
    if strategy not in (*STRATEGIES, "AdamW"):
        raise ValueError(f"--strategy is AdamW or one of {', '.join(STRATEGIES)}, not {strategy!r}")
    return Settings(known[dtype], lr, betas, eps, weight_decay, strategy)


def _weights(settings: Settings, path: Path) -> Iterator[Warned]:
    """The findings about the weights of a checkpoint, read in pieces."""
    from roundoff.scan import open_checkpoint
    from roundoff.scan.look import FLOATS, look
    from roundoff.watch.preflight_checks import predicted_lost, small_steps, stuck_at_one

    tensors = [
        (tensor, tensor.dtype)
        for name, tensor in open_checkpoint(path).tensors.items()
        if tensor.dtype is not None and tensor.dtype in FLOATS and not name.startswith("optimizer.")
    ]
    yield from stuck_at_one(
        settings, [one.name for one, _ in tensors if len(one.shape) == 1 and look(one).ones == one.numel]
    )
    counts = [predicted_lost((part.view(dtype) for part in one.chunks()), settings) for one, dtype in tensors]
    yield from small_steps(settings, sum(lost for lost, _ in counts), sum(numel for _, numel in counts))
