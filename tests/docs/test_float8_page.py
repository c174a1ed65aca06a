"""The page about 8-bit weights: its tables are what the code gives, and its example runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn

from roundoff.numerics import round_to
from roundoff.optim import EXPERIMENTAL, STRATEGIES, CollageAdamW
from roundoff.optim.strategies import FLOAT8_DTYPES

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "float8.md").read_text(encoding="utf-8")
FORMATS = dict(zip(("e4m3", "e5m2"), FLOAT8_DTYPES, strict=True))
SUPERSCRIPT = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")

needs_grad_dtype = pytest.mark.skipif(not hasattr(torch.Tensor, "grad_dtype"), reason="no Tensor.grad_dtype")


def test_every_strategy_of_the_table_is_there_with_its_price() -> None:
    plans = {name: plan for name, plan in (STRATEGIES | EXPERIMENTAL).items() if plan.float8}
    rows = dict(re.findall(r"^\| `([^`]+)` \|.*\| (\d+) \|$", PAGE, re.MULTILINE))
    for dtype in FLOAT8_DTYPES:
        assert rows == {name: str(plan.bytes_for(dtype)) for name, plan in plans.items()}


@needs_grad_dtype
def test_a_hundred_steps_go_as_far_as_it_says() -> None:
    rows = re.findall(r"^\| (e\dm\d) \| (\S+) \|(.*)\|$", PAGE, re.MULTILINE)
    assert len(rows) == 7
    for name, step, cells in rows:
        power = step.removeprefix("2").translate(SUPERSCRIPT)
        u = 2.0 ** int(power) if power.startswith("-") else float(step)
        moved = [100 * u]
        for strategy in ("none", "light", "light-3"):
            w = nn.Parameter(round_to(torch.ones(1), FORMATS[name]))
            w.grad_dtype = torch.bfloat16
            optimizer = CollageAdamW([w], u, (0.0, 0.0), 0.0, 0.0, strategy=strategy)
            for _ in range(100):
                w.grad = -torch.ones(1, dtype=torch.bfloat16)
                optimizer.step()
            moved.append(optimizer.stored_value(w).item() - 1.0)
        assert [cell.strip() for cell in cells.split("|")] == [f"{value:.4g}" for value in moved]


@needs_grad_dtype
def test_the_example_runs() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, object] = {}
    exec(code, names)
    optimizer, layer = names["optimizer"], names["layer"]
    assert isinstance(optimizer, CollageAdamW)
    assert isinstance(layer, nn.Module)
    assert set(optimizer.state[layer.weight]) == {"step", "exp_avg", "exp_avg_sq", "lo", "lo2"}
