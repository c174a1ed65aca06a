"""Optimizers of other libraries under a watch: training stays as it is, and what they lose is what they lose."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from foreign import FOREIGN, Foreign, model_of, train
from torch import Tensor
from trainings import Collected

import roundoff
from roundoff import metrics
from roundoff.metrics import ROW, Totals
from roundoff.watch.clone import tensors_in


@pytest.fixture(autouse=True, scope="module")
def heavyball_as_it_is_written() -> Iterator[None]:
    """heavyball compiles for a minute; its steps are the same as they are written."""
    if find_spec("heavyball") is None:
        yield
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import heavyball.utils
    before, heavyball.utils.compile_mode = heavyball.utils.compile_mode, None
    yield
    heavyball.utils.compile_mode = before


def trained(one: Foreign, *, watched: bool, steps: int = 10) -> tuple[list[Any], Collected, Any]:
    """Everything that a training leaves, a sink and the watch, if there was one."""
    sink, watch = Collected(), None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = model_of()
        optimizer = one.make(model)
        if watched:
            watch = roundoff.watch(model, optimizer, every=2, sink=sink)
        losses = train(model, optimizer, steps)
    left: list[Any] = [losses, torch.get_rng_state()]
    for param in model.parameters():
        left.append(param.detach().clone())
        left.append(None if param.grad is None else param.grad.clone())
        left += [bits(tensor) for _, tensor in tensors_in(optimizer.state.get(param, {}))]
    numbers = [group.items() for group in optimizer.param_groups]
    left.append([(key, float(value)) for items in numbers for key, value in items if is_number(value)])
    return left, sink, watch


def is_number(value: object) -> bool:
    return isinstance(value, int | float) or (isinstance(value, Tensor) and value.numel() == 1)


def bits(tensor: Tensor) -> Tensor:
    """A plain copy, also of words that a library keeps in parts."""
    return tensor.dequantize() if hasattr(tensor, "codes") else tensor.detach().to(torch.float64)


@pytest.mark.parametrize("one", FOREIGN.values(), ids=FOREIGN)
def test_training_is_bit_identical_with_and_without(one: Foreign) -> None:
    without, _, _ = trained(one, watched=False)
    with_it, sink, watch = trained(one, watched=True)
    assert watch is not None
    assert sink.samples
    assert len(without) == len(with_it)
    for a, b in zip(without, with_it, strict=True):
        assert torch.equal(a, b) if isinstance(a, Tensor) else a == b


@pytest.mark.parametrize("one", FOREIGN.values(), ids=FOREIGN)
def test_what_is_lost_is_what_the_class_loses(one: Foreign) -> None:
    _, sink, watch = trained(one, watched=True, steps=14)
    shadow = watch._shadow
    modes = {shadow.mode(param) for param in watch._layers.watched}
    total = sum((Totals.of(row) for row in rows(sink, after=4)), Totals())
    assert {layer for sample in sink.samples[2:] for layer in sample.layers} == {
        layer.index for layer in sink.layers
    }
    if one.keeps == "nothing known":
        assert modes == {"visible"}
        now = {layer.index: layer.strategy for layer in sink.layers}
        assert all(strategy.startswith("visible-") for strategy in now.values())
        assert total.attempted == total.lost == total.sum_uu == 0
        return
    assert "visible" not in modes
    lost, efficiency = metrics.lost_fraction(total), metrics.descent_efficiency(total)
    assert total.attempted > 0.6 * total.numel  # Rprop and a cautious step leave elements out
    assert modes == {"replay"} or one.keeps != "words"
    if one.keeps == "second words":
        assert lost < 0.02
        assert efficiency == pytest.approx(1.0, abs=0.01)
    elif one.keeps == "at random":
        assert 0.3 < lost < 0.99
        assert efficiency == pytest.approx(1.0, abs=0.2)
    else:
        assert 0.05 < lost < 0.99


def rows(sink: Collected, after: int = 0) -> Iterator[Any]:
    for sample in sink.samples:
        for numbers in sample.sums.tolist():
            if sample.step >= after:
                yield type("Row", (), dict(zip(ROW, numbers, strict=True)))
