"""The compiled step: every instruction set that this processor has, threads, forks, and what it refuses to use."""

from __future__ import annotations

import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from cases import STRATEGY_DTYPES, assert_same_sums, assert_same_words, item, run

from roundoff.kernels import Step, kernel_for, unavailable
from roundoff.kernels.cpu import build, library
from roundoff.kernels.cpu.check import first_difference
from roundoff.kernels.cpu.run import step_with
from roundoff.kernels.reference import step_fp32
from roundoff.optim import CollageAdamW

STEPS = [Step(count, 1e-3, 0.9, 0.999, 1e-8, 0.1) for count in (1, 2, 3)]


def instruction_sets() -> list[str]:
    found = []
    for name in library.INSTRUCTION_SETS:
        try:
            library.load(name)
        except library.UnavailableError:
            continue
        found.append(name)
    return found


def test_it_was_built_and_is_used() -> None:
    assert unavailable("cpu") is None
    assert "baseline" in instruction_sets()
    assert kernel_for("auto", "storage") is kernel_for("reference", "storage")
    with pytest.raises(ValueError, match="'cpu' has no arithmetic='storage'; the reference has"):
        CollageAdamW([torch.nn.Parameter(torch.ones(2))], backend="cpu", arithmetic="storage")


@pytest.mark.parametrize("name", instruction_sets())
@pytest.mark.parametrize(("strategy", "dtype"), STRATEGY_DTYPES, ids=str)
def test_every_instruction_set_gives_the_same_bits_and_counts(
    name: str, strategy: str, dtype: torch.dtype
) -> None:
    started = [item(strategy, dtype, size, seed, measured=True) for seed, size in enumerate((33, 1031, 4096))]
    theirs, mine = ([one.copy() for one in started] for _ in range(2))
    expected = run(step_fp32, theirs, STEPS, measured=True)
    got = run(partial(step_with, library.load(name)), mine, STEPS, measured=True)
    for before, one, other in zip(started, theirs, mine, strict=True):
        assert_same_words(one, other, before)
    for one, other in zip(expected, got, strict=True):
        assert_same_sums(one, other, strategy)


@pytest.mark.parametrize("parallel", ["openmp", "own"])
def test_any_number_of_threads_gives_the_same_bits_of_words_and_sums(parallel: str) -> None:
    lib = library.load()
    if parallel == "own":
        lib = library.Library(lib.handle, lib.instruction_set, lib.kernels, lib.has_float16, None)
    else:
        assert lib.parallel is not None, "PyTorch's OpenMP was not found"
    results = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            optimizer = _optimizer_over(300_000)
            optimizer.meters = {}
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr("roundoff.optim.adamw.kernel_for", lambda *_: partial(step_with, lib))
                optimizer.step()
            (param,) = optimizer.param_groups[0]["params"]
            meter = optimizer.meters[param]
            results.append([param.detach().clone(), optimizer.state[param]["lo"], meter.row(), meter.bins])
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        for first, second in zip(results[0], other, strict=True):
            assert torch.equal(first, second)


def _optimizer_over(numel: int) -> CollageAdamW:
    torch.manual_seed(0)
    param = torch.nn.Parameter(torch.randn(numel).to(torch.bfloat16))
    param.grad = torch.randn(numel).to(torch.bfloat16)
    return CollageAdamW([param])


def test_without_the_histograms_the_rest_is_the_same() -> None:
    rows = []
    for headroom in (True, False):
        optimizer = _optimizer_over(5_000)
        optimizer.meters, optimizer.headroom = {}, headroom
        optimizer.step()
        (meter,) = optimizer.meters.values()
        assert bool(meter.bins.any()) == headroom
        rows.append(meter.row())
    assert torch.equal(rows[0], rows[1])


def test_a_forked_child_steps_after_its_parent_did() -> None:
    code = """
import os, torch
from roundoff.optim import CollageAdamW
torch.set_num_threads(2)
param = torch.nn.Parameter(torch.ones(1_000_000, dtype=torch.bfloat16))
param.grad = torch.ones_like(param)
optimizer = CollageAdamW([param], backend="cpu")
optimizer.step()
child = os.fork()
if child == 0:
    optimizer.step()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, timeout=60)


def test_a_library_of_another_source_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "source_hash", lambda: "another")
    with pytest.raises(library.UnavailableError, match="made from another version of its source; install"):
        library.load()
    with pytest.raises(library.UnavailableError, match="was not built when roundoff was installed"):
        library.load(path=tmp_path / "none.so")
    monkeypatch.undo()
    short = tmp_path / "short.so"
    short.write_bytes(build.LIBRARY.read_bytes()[:1000])
    with pytest.raises(library.UnavailableError, match=r"short\.so was made from another version"):
        library.load(path=short)
    other = tmp_path / "other.so"
    other.write_bytes(build.source_hash().encode())
    with pytest.raises(library.UnavailableError, match=r"other\.so cannot be loaded"):
        library.load(path=other)


def test_one_that_gives_other_bits_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert first_difference(library.load()) is None
    # There is no wrong library to load, so the reference is made to disagree.
    monkeypatch.setattr("roundoff.kernels.reference.add_to_pair", lambda hi, lo, u: (hi, lo))
    assert first_difference(library.load()) == "the weight of strategy 'light' in torch.bfloat16"


def test_without_it_the_reference_steps_and_a_wish_for_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    stepped = []
    # The reference is replaced to see that it is called; what it does is tested elsewhere.
    monkeypatch.setattr("roundoff.kernels.step_fp32", stepped.extend)
    monkeypatch.setattr("roundoff.kernels.cpu_unavailable", lambda: "there was no C compiler")
    update = item("plus", torch.bfloat16, 5, 0).update(STEPS[0])
    kernel_for("auto", "fp32")([update])
    assert stepped == [update]
    with pytest.raises(RuntimeError, match="'cpu' cannot be used: there was no C compiler; backend='auto'"):
        kernel_for("cpu", "fp32")


def test_it_is_built_again_only_when_its_source_has_changed(tmp_path: Path) -> None:
    target = tmp_path / build.LIBRARY.name
    shutil.copy(build.LIBRARY, target)
    before = target.stat().st_mtime_ns
    assert build.build(target) == target
    assert target.stat().st_mtime_ns == before
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("CC", str(tmp_path / "no-compiler"))
        target.write_bytes(b"older")
        with pytest.raises(build.CannotBuildError, match="no-compiler cannot be run"):
            build.build(target)
    assert target.read_bytes() == b"older"
    assert not list(tmp_path.glob(".build*"))
