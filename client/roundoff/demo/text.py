"""The text: CPython's own language reference, as `help()` prints it, by character."""

from __future__ import annotations

from dataclasses import dataclass
from pydoc_data.topics import topics

import torch
from torch import Tensor

VALIDATION_SHARE = 0.1
"""The last part of the text, by position, that no training batch sees."""


@dataclass(frozen=True, slots=True)
class Text:
    """Training and validation text as int64 indices into `vocabulary`, the characters in order."""

    vocabulary: str
    train: Tensor
    validation: Tensor


def load_text() -> Text:
    """The whole text, about 465,000 characters, split by position."""
    text = "\n\n".join(topics[name] for name in sorted(topics))
    vocabulary = "".join(sorted(set(text)))
    index = {character: number for number, character in enumerate(vocabulary)}
    numbers = torch.tensor([index[character] for character in text])
    cut = int(len(numbers) * (1 - VALIDATION_SHARE))
    return Text(vocabulary, numbers[:cut], numbers[cut:])


def draw_batch(text: Tensor, size: int, context: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Inputs and targets, both (size, context): random stretches, and the same shifted by one character."""
    starts = torch.randint(len(text) - context, (size, 1), generator=generator)
    stretches = text[starts + torch.arange(context + 1)]
    return stretches[:, :-1], stretches[:, 1:]
