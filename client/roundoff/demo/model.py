"""A plain decoder of about 2 million parameters.

Its weights may be stored in 16 bit; it computes in float32, as tensor cores accumulate. So the rounding to
be seen is that of the optimizer alone, and the demo is as quick on a CPU without 16-bit arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class Shape:
    """Size of the decoder."""

    vocabulary: int
    layers: int = 4
    width: int = 192
    heads: int = 6
    context: int = 96


class Linear(nn.Linear):
    """A linear map without bias."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(…, inputs) → (…, outputs), float32."""
        return functional.linear(x, self.weight.float())


class Norm(nn.LayerNorm):
    """Layer norm with a weight only."""

    def __init__(self, width: int) -> None:
        super().__init__(width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(…, width) → the same, float32."""
        return functional.layer_norm(x, self.normalized_shape, self.weight.float())


class Embedding(nn.Embedding):
    """A table of vectors."""

    def forward(self, index: Tensor) -> Tensor:
        """(…) → (…, width), float32."""
        return functional.embedding(index, self.weight.float())


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.qkv = Linear(shape.width, 3 * shape.width)
        self.out = Linear(shape.width, shape.width)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, width) → the same."""
        batch, length, width = x.shape
        parts = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind()
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))  # type: ignore[no-any-return]


class Perceptron(nn.Module):
    """Two linear maps with GELU between them, four times as wide inside."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.up = Linear(shape.width, 4 * shape.width)
        self.down = Linear(4 * shape.width, shape.width)

    def forward(self, x: Tensor) -> Tensor:
        """(…, width) → the same."""
        return self.down(functional.gelu(self.up(x)))  # type: ignore[no-any-return]


class Block(nn.Module):
    """Attention and perceptron, each behind a norm and beside a residual."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.norm1 = Norm(shape.width)
        self.attn = Attention(shape)
        self.norm2 = Norm(shape.width)
        self.mlp = Perceptron(shape)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, width) → the same."""
        mixed: Tensor = x + self.attn(self.norm1(x))
        out: Tensor = mixed + self.mlp(self.norm2(mixed))
        return out


class Decoder(nn.Module):
    """Characters in, logits of the next character out."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embed = Embedding(shape.vocabulary, shape.width)
        self.position = Embedding(shape.context, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = Norm(shape.width)
        self.head = Linear(shape.width, shape.vocabulary)

    def forward(self, characters: Tensor) -> Tensor:
        """(batch, length) indices → (batch, length, vocabulary)."""
        places = torch.arange(characters.shape[1], device=characters.device)
        x = self.embed(characters) + self.position(places)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits
