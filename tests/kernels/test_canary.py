"""The canary: one known step through the very code that will be used, before it is used."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from roundoff.kernels import KERNELS, Step, Update, run_canary, unavailable
from roundoff.optim import STRATEGIES, CollageAdamW

BF16 = torch.bfloat16


def ones() -> nn.Parameter:
    return nn.Parameter(torch.ones(64, dtype=BF16))


def test_it_sees_a_rounding_that_was_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    # What a compiler may make of the addition is put in its place by hand.
    def lossy(hi: Tensor, lo: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        new_hi = (hi.float() + (lo.float() + u)).to(hi.dtype)
        return new_hi, torch.zeros_like(lo)

    with monkeypatch.context() as patched:
        for add in ("add_to_pair", "add_compensated"):
            patched.setattr(f"roundoff.kernels.reference.{add}", lossy)
        message = r"second word of w in torch\.bfloat16 on cpu.*emulate_precision_casts"
        for strategy in ("light", "plus", "kahan"):
            with pytest.raises(RuntimeError, match=message):
                CollageAdamW([ones()], strategy=strategy, backend="reference")
        CollageAdamW([ones()], strategy="exact", backend="reference")
    CollageAdamW([ones()], backend="reference")


def test_it_looks_at_the_second_word_of_v_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    def one_word(chunk: dict[str, Tensor], m: Tensor, v: Tensor, step: Step) -> None:
        chunk["exp_avg"].copy_(m)
        chunk["exp_avg_sq"].copy_(v)

    monkeypatch.setattr("roundoff.kernels.reference.store_moments", one_word)
    for strategy in ("plus", "exact"):
        with pytest.raises(RuntimeError, match="second word of v"):
            CollageAdamW([ones()], strategy=strategy, backend="reference")
    CollageAdamW([ones()], strategy="light", backend="reference")


def test_it_sees_a_remainder_that_was_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_remainder(w32: Tensor) -> tuple[Tensor, Tensor]:
        hi = w32.to(BF16)
        return hi, torch.zeros_like(hi, dtype=torch.int16)

    monkeypatch.setattr("roundoff.kernels.reference.split_master", without_remainder)
    with pytest.raises(RuntimeError, match="second word of w"):
        CollageAdamW([ones()], strategy="exact", backend="reference")


@pytest.mark.parametrize(
    ("backend", "arithmetic", "strategy", "dtype"),
    [
        pytest.param(
            backend, arithmetic, plan.name, dtype, id=f"{backend}-{arithmetic}-{plan.name}-{str(dtype)[6:]}"
        )
        for backend, arithmetic in KERNELS
        if unavailable(backend) is None
        for plan in STRATEGIES.values()
        if arithmetic == "fp32" or plan.storage_arithmetic
        for dtype in plan.dtypes
    ],
)
def test_it_passes_where_nothing_is_removed(
    backend: str, arithmetic: str, strategy: str, dtype: torch.dtype
) -> None:
    calls: list[int] = []

    def counted(updates: list[Update]) -> None:
        calls.append(len(updates))
        KERNELS[backend, arithmetic](updates)

    run_canary(counted, STRATEGIES[strategy], torch.device("cpu"), dtype, arithmetic)
    assert calls, "it goes through the kernel"
