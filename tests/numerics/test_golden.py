"""Every value of the golden file that concerns the transforms, bit for bit.

The file was computed with rational arithmetic and shares no code with any tensor library.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from roundoff import numerics

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parent.parent / "golden" / "numerics.json").read_text())
DTYPES = {
    name: getattr(torch, name) for name in ("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "float32")
}


def word(value: float, case: dict[str, Any]) -> Tensor:
    """The golden value in the case's format; the golden values are representable, and this checks it."""
    tensor = torch.tensor(value, dtype=torch.float64).to(torch.float32).to(DTYPES[case["format"]])
    assert tensor.to(torch.float64).item() == value
    return tensor


def same(actual: Tensor, expected: float, case: dict[str, Any]) -> None:
    assert actual.dtype == DTYPES[case["format"]]
    assert actual.to(torch.float64).item() == expected, case


def cases(kind: str) -> list[Any]:
    return [pytest.param(case, id=f"{kind}-{n}") for n, case in enumerate(GOLDEN[kind])]


def test_the_file_holds_what_these_tests_cover() -> None:
    lists = {kind: len(value) for kind, value in GOLDEN.items() if isinstance(value, list)}
    assert lists == {
        "ulp": 20, "gap": 64, "round_to": 240, "expand": 28, "two_sum": 180, "grow": 120, "multiply": 120,
        "split_master": 75, "add_to_pair": 140, "statistics": 10, "moment": 4,
    }  # fmt: skip


@pytest.mark.parametrize("case", cases("ulp"))
def test_ulp(case: dict[str, Any]) -> None:
    result = numerics.ulp(word(case["x"], case))
    assert result.dtype == torch.float64
    assert result.item() == case["ulp"]


@pytest.mark.parametrize("case", cases("gap"))
def test_gap(case: dict[str, Any]) -> None:
    x = word(case["x"], case)
    u = torch.tensor(-1.0 if (case["x"] > 0) == case["toward_zero"] else 1.0)
    assert numerics.gap(x, u).item() == case["gap"]


@pytest.mark.parametrize("case", cases("round_to"))
def test_round_to(case: dict[str, Any]) -> None:
    x = torch.tensor(case["x"], dtype=torch.float64)
    same(numerics.round_to(x, DTYPES[case["format"]]), case["rounded"], case)


@pytest.mark.parametrize("case", cases("expand"))
def test_expand(case: dict[str, Any]) -> None:
    words = numerics.expand(case["value"], DTYPES[case["format"]], components=len(case["components"]))
    for actual, expected in zip(words, case["components"], strict=True):
        same(actual, expected, case)


@pytest.mark.parametrize("case", cases("two_sum"))
def test_two_sum(case: dict[str, Any]) -> None:
    s, e = numerics.two_sum(word(case["a"], case), word(case["b"], case))
    same(s, case["sum"], case)
    same(e, case["error"], case)


@pytest.mark.parametrize("case", cases("grow"))
def test_grow(case: dict[str, Any]) -> None:
    hi, lo = numerics.grow(*(word(case[key], case) for key in ("hi", "lo", "x")))
    same(hi, case["hi_out"], case)
    same(lo, case["lo_out"], case)


@pytest.mark.parametrize("case", cases("multiply"))
def test_multiply(case: dict[str, Any]) -> None:
    factor = numerics.expand(case["factor"], DTYPES[case["format"]])
    hi, lo = numerics.multiply(word(case["hi"], case), word(case["lo"], case), *factor)
    same(hi, case["hi_out"], case)
    same(lo, case["lo_out"], case)


@pytest.mark.parametrize("case", cases("add_to_pair"))
def test_add_to_pair(case: dict[str, Any]) -> None:
    u = torch.tensor(case["u"], dtype=torch.float32)
    assert u.item() == case["u"]
    hi, lo = numerics.add_to_pair(word(case["hi"], case), word(case["lo"], case), u)
    same(hi, case["hi_out"], case)
    same(lo, case["lo_out"], case)


def bits32(patterns: list[int]) -> Tensor:
    return torch.tensor([p - (1 << 32) if p >= 1 << 31 else p for p in patterns], dtype=torch.int32)


def unsigned16(words: Tensor) -> list[int]:
    return [int(b) & 0xFFFF for b in words.view(torch.int16)]


def test_split_and_join_master() -> None:
    rows = GOLDEN["split_master"]
    w32 = bits32([row["fp32_bits"] for row in rows]).view(torch.float32)
    hi, remainder = numerics.split_master(w32)
    assert unsigned16(hi) == [row["bf16_bits"] for row in rows]
    assert remainder.tolist() == [row["remainder"] for row in rows]
    assert torch.equal(numerics.join_master(hi, remainder).view(torch.int32), w32.view(torch.int32))


def test_split_master_nan() -> None:
    rows = GOLDEN["split_master_nan"]
    hi, remainder = numerics.split_master(bits32(rows["fp32_bits"]).view(torch.float32))
    assert unsigned16(hi) == rows["bf16_bits"]
    assert remainder.tolist() == [0] * len(rows["bf16_bits"])
    assert numerics.join_master(hi, remainder).isnan().all()
