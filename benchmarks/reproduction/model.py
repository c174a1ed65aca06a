"""A small GPT that computes in bfloat16: weights, activations and gradients are bfloat16 between operations.

A matrix product takes bfloat16 operands, adds up in float32 and rounds its result once, as tensor cores do; so do
the products of its backward pass. A CPU without bfloat16 instructions is ten times slower at that than at float32,
so the product is done by float32 matrices that hold the bfloat16 values: the same roundings at the same places,
another order of the sum (three results in 100,000 differ from `functional.linear` in bfloat16, by one ulp).
Attention's inside stays in float32 from its bfloat16 operands to its bfloat16 result, as in fused kernels.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from roundoff.demo.model import Shape

GPT2_STD, GPT2_WIDTH = 0.02, 768
"""Initial standard deviation of GPT-2's weights, and its width; a narrower model starts wider by 1/√width."""


class Linear(nn.Module):
    """A linear map without bias."""

    def __init__(self, inputs: int, outputs: int, std: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs) * std)

    def forward(self, x: Tensor) -> Tensor:
        """(…, inputs) → (…, outputs) in the dtype of `x`, rounded once, and so are both gradients."""
        return functional.linear(x.float(), self.weight.float()).to(x.dtype)


class Norm(nn.LayerNorm):
    """Layer norm with a weight only, which starts at 1."""

    def __init__(self, width: int) -> None:
        super().__init__(width, bias=False)


class Block(nn.Module):
    """Causal self-attention and a perceptron, each behind a norm and beside a residual."""

    def __init__(self, shape: Shape, std: float) -> None:
        super().__init__()
        width, last = shape.width, std / math.sqrt(2 * shape.layers)
        self.heads = shape.heads
        self.norm1, self.norm2 = Norm(width), Norm(width)
        self.qkv, self.out = Linear(width, 3 * width, std), Linear(width, width, last)
        self.up, self.down = Linear(width, 4 * width, std), Linear(4 * width, width, last)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, width) → the same."""
        x = x + self.out(self._attend(self.qkv(self.norm1(x))))
        out: Tensor = x + self.down(functional.gelu(self.up(self.norm2(x))))
        return out

    def _attend(self, qkv: Tensor) -> Tensor:
        batch, length, width = qkv.shape
        parts = qkv.view(batch, length, 3, self.heads, width // (3 * self.heads)).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind()
        wide = functional.scaled_dot_product_attention(
            query.float(), key.float(), value.float(), is_causal=True
        )
        return wide.to(qkv.dtype).transpose(1, 2).reshape(batch, length, width // 3)


class Decoder(nn.Module):
    """Characters in, logits of the next character out, in the dtype of the weights."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        std = GPT2_STD * math.sqrt(GPT2_WIDTH / shape.width)
        self.embed = nn.Parameter(torch.randn(shape.vocabulary, shape.width) * std)
        self.position = nn.Parameter(torch.randn(shape.context, shape.width) * std)
        self.blocks = nn.ModuleList(Block(shape, std) for _ in range(shape.layers))
        self.norm = Norm(shape.width)
        self.head = Linear(shape.width, shape.vocabulary, std)

    def forward(self, characters: Tensor) -> Tensor:
        """(batch, length) indices → (batch, length, vocabulary)."""
        x = functional.embedding(characters, self.embed) + self.position[: characters.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


def mean_loss(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy in nats per character, float32; the logits are rounded as the model rounds them."""
    return functional.cross_entropy(model(inputs).float().flatten(0, 1), targets.flatten())
