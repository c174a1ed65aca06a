"""The Triton kernel compiled for a GPU that is not here: what its instructions must and must not be."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")

SCRIPT = Path(__file__).with_name("compile_triton.py")


@pytest.fixture(scope="module")
def assembly(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """PTX by case; each was compiled once for all scalars, keys and places, and assembled to a binary."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path_factory.mktemp("triton-cache"))
    done = subprocess.run(
        [sys.executable, SCRIPT], env=environment, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


def test_nothing_is_contracted_or_flushed_to_zero(assembly: dict[str, str]) -> None:
    assert len(assembly) > 5
    for name, ptx in assembly.items():
        assert not re.findall(r"\b(?:fma|mad)\.\S*f\d\d", ptx), name
        assert ".ftz" not in ptx, name
        assert ".approx" not in ptx, name


def test_every_operation_is_rounded_to_nearest(assembly: dict[str, str]) -> None:
    for name, ptx in assembly.items():
        operations = set(re.findall(r"\b((?:add|sub|mul|div|sqrt|rcp|rsqrt)\.\S*f(?:32|64))\b", ptx))
        assert {"div.rn.f32", "sqrt.rn.f32"} <= operations, name
        assert all(".rn." in operation for operation in operations), (name, operations)


def test_no_word_is_rounded_by_a_cast(assembly: dict[str, str]) -> None:
    """A compiler may take a cast to storage and back for a detour; integer arithmetic it may not."""
    for name, ptx in assembly.items():
        assert not re.findall(r"cvt\.\S*\.b?f16x?2?\.f32", ptx), name


def test_scalars_stay_exact(assembly: dict[str, str]) -> None:
    """The limit of underflow is a float64, the others float32; the random bits' key is of one type."""
    measured = assembly["plus bfloat16, measured"]
    assert len(re.findall(r"\.param \.f64 step_kernel_param", measured)) == 1
    assert len(re.findall(r"\.param \.f32 step_kernel_param", measured)) == 9


def test_tensors_are_read_and_written_16_bytes_at_a_time(assembly: dict[str, str]) -> None:
    """Weight, remainder, gradient, m, v and its maximum with their remainders; all but the gradient written."""
    ptx = assembly["exact bfloat16, everything, measured"]
    assert len(re.findall(r"\bld\.global\.v4\.b32", ptx)) == 8
    assert len(re.findall(r"\bst\.global\.v4\.b32", ptx)) == 7
    assert not re.findall(r"\b(?:ld|st)\.global\.b16", ptx)
