"""The demo's text, model and recipe."""

from __future__ import annotations

import pytest
import torch

from roundoff.demo.model import Decoder, Shape
from roundoff.demo.text import draw_batch, load_text
from roundoff.demo.train import Recipe, _loss as loss_of


def test_the_text_is_split_by_position() -> None:
    text = load_text()
    size = len(text.train) + len(text.validation)
    assert 400_000 < size < 600_000
    assert len(text.validation) == pytest.approx(0.1 * size, rel=0.01)
    assert int(torch.cat([text.train, text.validation]).max()) == len(text.vocabulary) - 1
    words = "".join(text.vocabulary[i] for i in text.train.tolist())
    assert "The assert statement" in words or "The ``assert`` statement" in words or "assert" in words


def test_targets_are_the_next_characters() -> None:
    text = torch.arange(1000)
    inputs, targets = draw_batch(text, 4, 7, torch.Generator().manual_seed(0))
    assert inputs.shape == targets.shape == (4, 7)
    assert torch.equal(inputs + 1, targets)
    again, _ = draw_batch(text, 4, 7, torch.Generator().manual_seed(0))
    assert torch.equal(inputs, again)


def test_the_model_is_as_described() -> None:
    model = Decoder(Shape(103)).to(torch.bfloat16)
    names = [name for name, _ in model.named_parameters()]
    for name in ("embed.weight", "position.weight", "blocks.0.attn.qkv.weight", "blocks.3.mlp.up.weight", "norm.weight",
                 "head.weight"):  # fmt: skip
        assert name in names
    assert 1.7e6 < sum(p.numel() for p in model.parameters()) < 2.1e6
    assert all(p.dtype == torch.bfloat16 for p in model.parameters())
    assert model(torch.zeros(2, 96, dtype=torch.int64)).shape == (2, 96, 103)


def test_the_model_does_not_see_the_future() -> None:
    torch.manual_seed(0)
    model = Decoder(Shape(20, layers=1, width=24, heads=2, context=8))
    one, other = torch.zeros(1, 8, dtype=torch.int64), torch.zeros(1, 8, dtype=torch.int64)
    other[0, 5:] = 7
    assert torch.equal(model(one)[0, :5], model(other)[0, :5])
    assert not torch.equal(model(one)[0, 5:], model(other)[0, 5:])


def test_the_model_learns() -> None:
    torch.manual_seed(0)
    model = Decoder(Shape(4, layers=1, width=24, heads=2, context=8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    inputs = torch.arange(9).remainder(4).repeat(2, 1)
    first = last = 0.0
    for step in range(40):
        loss = loss_of(model, inputs[:, :-1], inputs[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        first, last = first if step else loss.item(), loss.item()
    assert last < 0.1 < 1.0 < first


@pytest.mark.parametrize(
    ("steps", "warmup", "every"), [(20, 2, 2), (150, 15, 2), (300, 75, 5), (400, 100, 5)]
)
def test_the_schedule(steps: int, warmup: int, every: int) -> None:
    recipe = Recipe(steps)
    assert (recipe.warmup, recipe.every) == (warmup, every)
    factors = [recipe.lr_factor(step) for step in range(steps)]
    assert factors[warmup - 1] == max(factors) == pytest.approx(1.0)
    assert factors[:warmup] == sorted(factors[:warmup])
    assert factors[warmup:] == sorted(factors[warmup:], reverse=True)
    assert recipe.lr_factor(steps) == pytest.approx(0.1)
