"""What a step is timed on: one tensor of a given size, or the tensors of a GPT; weights and gradients for both."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod

import torch
from torch import Tensor
from torch.nn import Parameter

UNITS = {"": 1, "k": 1 << 10, "M": 1 << 20}
"""Sizes are powers of 1024, as tensors' sizes are."""

BLOCK = 1 << 20
"""Values are drawn once and repeated: drawing 128 M of them for every contender would take minutes."""

WEIGHT_STD = 0.02
GRADIENT_STD = {torch.float16: 1.0}
"""Else 1e-3, as in a real run: the square of that is nothing in float16, where losses are scaled up for it."""

GPT2_WIDTH, GPT2_BLOCKS, GPT2_VOCABULARY, GPT2_POSITIONS = 768, 12, 50257, 1024


@dataclass(frozen=True, slots=True)
class Piece:
    """One tensor: its shape and the mean of its weights, which is 1 for the weight of a norm."""

    shape: tuple[int, ...]
    mean: float = 0.0


@dataclass(frozen=True, slots=True)
class Workload:
    """The parameters of one optimizer."""

    name: str
    pieces: tuple[Piece, ...]

    @property
    def numel(self) -> int:
        """Parameters altogether."""
        return sum(prod(piece.shape) for piece in self.pieces)

    @property
    def tensors(self) -> int:
        """How many tensors they are in."""
        return len(self.pieces)


def parse_size(text: str) -> int:
    """`64k`, `16M` or a plain number, in parameters. Raises ValueError for anything else."""
    found = re.fullmatch(r"(\d+) ?([kM]?)", text.strip())
    if not found or not int(found[1]):
        raise ValueError(f"a size is a number with k or M (powers of 1024), as 64k or 16M; got {text!r}")
    return int(found[1]) * UNITS[found[2]]


def size_name(numel: int) -> str:
    """The other way: `16M`; rounded if it is no whole number of the largest unit that fits."""
    unit = next(unit for unit in ("M", "k", "") if numel >= UNITS[unit])
    return f"{round(numel / UNITS[unit])}{unit}"


def one_tensor(numel: int) -> Workload:
    """All parameters in one flat tensor."""
    return Workload(size_name(numel), (Piece((numel,)),))


def gpt_tensors(width: int) -> Workload:
    """The 150 tensors of a GPT-2 small with a normed embedding, its vocabulary scaled with its width.

    2 embeddings, 2 norms of 2 tensors, 12 blocks of 12; 768 is the real width and has 124 M parameters.
    """
    norm = (Piece((width,), mean=1.0), Piece((width,)))
    vocabulary = GPT2_VOCABULARY * width // GPT2_WIDTH
    ends = (Piece((vocabulary, width)), Piece((GPT2_POSITIONS * width // GPT2_WIDTH, width)), *norm)
    block = (
        *norm,
        *_linear(width, 3 * width),
        *_linear(width, width),
        *norm,
        *_linear(width, 4 * width),
        *_linear(4 * width, width),
    )
    pieces = (*ends, *block * GPT2_BLOCKS, *norm)
    numel = sum(prod(piece.shape) for piece in pieces)
    return Workload(f"GPT {size_name(numel)}", pieces)


def _linear(inputs: int, outputs: int) -> tuple[Piece, Piece]:
    return Piece((outputs, inputs)), Piece((outputs,))


def parameters_of(workload: Workload, dtype: torch.dtype, device: torch.device) -> list[Parameter]:
    """New parameters like those of a trained model, with gradients."""
    made = []
    for piece in workload.pieces:
        weight = torch.empty(piece.shape, dtype=dtype, device=device)
        _fill(weight, WEIGHT_STD, piece.mean, seed=1)
        param = Parameter(weight)
        param.grad = torch.empty_like(weight)
        made.append(param)
    refill_gradients(made)
    return made


def refill_gradients(params: Iterable[Parameter]) -> None:
    """Give every parameter the gradient that it started with, in place."""
    for grad in gradients_of(params):
        _fill(grad, GRADIENT_STD.get(grad.dtype, 1e-3), 0.0, seed=2)


def gradients_differ(params: Sequence[Parameter]) -> bool:
    """Whether a step has written to the gradients; looks at the first stretch of each."""
    for grad in gradients_of(params):
        start = grad.view(-1)[:BLOCK]
        fresh = torch.empty_like(start)
        _fill(fresh, GRADIENT_STD.get(grad.dtype, 1e-3), 0.0, seed=2)
        if not torch.equal(start, fresh):
            return True
    return False


def weights_moved(params: Sequence[Parameter], workload: Workload) -> bool:
    """Whether steps have changed the weights, and left them finite."""
    if not all(bool(param.isfinite().all()) for param in params):
        return False
    first = params[0].detach().view(-1)[:BLOCK]
    fresh = torch.empty_like(first)
    _fill(fresh, WEIGHT_STD, workload.pieces[0].mean, seed=1)
    return not torch.equal(first, fresh)


def gradients_of(params: Iterable[Parameter]) -> Iterator[Tensor]:
    """The gradients. Raises RuntimeError where one is gone: the next step would have nothing to do."""
    for param in params:
        if param.grad is None:
            raise RuntimeError("the optimizer dropped the gradients")
        yield param.grad


def _fill(tensor: Tensor, std: float, mean: float, seed: int) -> None:
    values, flat = _normals(tensor.device, seed), tensor.view(-1)
    for start in range(0, flat.numel(), BLOCK):
        stretch = flat[start : start + BLOCK]
        stretch.copy_(values[: stretch.numel()] * std + mean)


@cache
def _normals(device: torch.device, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(BLOCK, generator=generator).to(device)
