"""The advisor's decisions on given histograms; what it foretells is measured in tests/watch/test_advisor.py."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from roundoff.metrics import Observed, Totals, advise
from roundoff.metrics.advice import against_moment
from roundoff.metrics.bins import (
    chance_noise,
    over_spacings,
    pair_loses,
    word_loses,
    word_loses_energy,
    word_stores,
)
from roundoff.metrics.counsel import headline, rows, table, warning
from roundoff.metrics.cures import BYTES_PER_PARAMETER
from roundoff.metrics.storages import PRECISION, SMALLEST, losses
from roundoff.numerics import FORMATS
from roundoff.optim import STRATEGIES


def layer(
    name: str = "w", strategy: str = "none", dtype: str = "bfloat16", *, beta2: float | None = 0.95,
    lr: float | None = 1e-3, size: float = 1e-4, bins: dict[int, int] | None = None, **figures: Any,
) -> Observed:  # fmt: skip
    """A layer with updates of one size in these bins, `efficiency` and `lost` as they were measured."""
    counts = [0.0] * 33
    for k, count in (bins or {-6: 1000}).items():
        counts[k + 24] = count
    total = int(sum(counts))
    efficiency = figures.pop("efficiency", 0.0)
    known = {
        "samples": 8, "numel": total, "attempted": total, "lost": total, "sum_uu": total * size**2,
        "sum_ua": efficiency * total * size**2, "v_attempted": total,
    }  # fmt: skip
    energy = [count * size**2 for count in counts]
    return Observed(name, strategy, dtype, Totals(**(known | figures)), counts, energy, lr, beta2)


def test_tables_agree_with_the_formats_and_the_optimizer() -> None:
    for name, precision in PRECISION.items():
        form = FORMATS[getattr(torch, name)]
        assert (precision, 2.0 ** SMALLEST[name]) == (form.precision, form.smallest)
    assert {one.strategy for one in advise([layer()]).options} == set(STRATEGIES)
    assert all(BYTES_PER_PARAMETER[name] == plan.bytes_per_parameter for name, plan in STRATEGIES.items())


@pytest.mark.parametrize("low", [-5.0, -2.5, -2.0, -1.3, -1.0, -0.5, 0.0, 1.7])
def test_figures_of_a_bin_are_those_of_many_updates(low: float) -> None:
    x = torch.exp2(torch.linspace(low, low + 1, 200_001, dtype=torch.float64))
    energy = x * x
    lost = x < 0.5
    assert word_loses(low) == pytest.approx(float(lost.double().mean()), abs=1e-4)
    assert word_loses_energy(low) == pytest.approx(float(energy[lost].sum() / energy.sum()), abs=1e-4)
    assert word_stores(low) == pytest.approx(float((x * torch.round(x)).sum() / energy.sum()), abs=1e-4)
    part = x - torch.floor(x)
    noise = float((part * (1 - part)).sum() / energy.sum())
    assert chance_noise(low) == pytest.approx(noise, rel=1e-4 if low <= -1 else 0.2)


def test_a_pair_loses_what_the_mean_over_its_spacings_says() -> None:
    for k in range(-9, 1):
        assert over_spacings(word_loses, k) == pytest.approx(pair_loses(k))
    assert over_spacings(word_loses, -3, finest=0) == 1.0


def test_storages_shift_the_bins() -> None:
    """A pair's resolution is 2^-8 of the word's, float32's 2^-16: what is lost in one is nothing in the other."""
    one = layer(bins={-10: 100})
    assert losses(one, "bfloat16", "word", "word").lost == 100
    assert losses(one, "bfloat16", "word", "pair").lost == 0
    assert losses(one, "bfloat16", "pair", "word").lost == 100
    assert losses(one, "bfloat16", "pair", "pair").lost == pytest.approx(100 * (1 - 2.0**-8))
    assert losses(one, "bfloat16", "pair", "float32").lost == 100
    assert losses(layer(bins={-9: 100}), "bfloat16", "pair", "float32").lost == 0
    assert losses(one, "bfloat16", "float32", "pair").lost == pytest.approx(100 * (1 - 2.0**-16))
    # Both end bins are open: below, everything is lost anyway; above, only what is finer can tell.
    lowest = layer(bins={-24: 100})
    assert losses(lowest, "bfloat16", "word", "float32").lost == 100
    highest = losses(layer(bins={8: 100}), "bfloat16", "float32", "word")
    assert (highest.lost, highest.lost_at_most) == (0, 100)
    assert losses(layer(bins={8: 100}), "bfloat16", "pair", "word").lost_at_most == 0
    with pytest.raises(ValueError, match="nothing is known of rounding to float64"):
        losses(one, "float64", "word", "word")


def test_a_pair_of_float16_runs_out_of_range() -> None:
    """At 1e-6 a second word takes updates from 2^-25 on; at 1e-9 none, however far below the weight's gap."""
    assert losses(layer(bins={-9: 100}, size=1e-6), "float16", "word", "pair").lost == 0
    assert losses(layer(bins={-9: 100}, size=1e-9), "float16", "word", "pair").lost == 100
    assert losses(layer(bins={-9: 100}, size=1e-9), "float16", "word", "float32").lost == 0
    unclear = losses(layer(bins={2: 100}, size=2.0**-21.5), "float16", "pair", "word")
    assert (unclear.lost, unclear.lost_at_most) == (0, 100), (
        "lo stands at 2^-24, the word's gap anywhere above"
    )


def test_a_second_word_at_its_coarsest_is_the_bound() -> None:
    """An eighth of a pair's resolution: half of all second words take it, and those that have grown take none."""
    found = losses(layer(bins={-3: 100}, size=1.0), "bfloat16", "pair", "pair")
    assert (found.lost, found.lost_at_most) == (50, 100)
    assert found.energy_at_most == pytest.approx(100)
    assert found.arrives > 50
    assert losses(layer(bins={-2: 100}), "bfloat16", "pair", "pair").lost_at_most == 0


def test_layers_count_by_what_they_do_in_one_sample() -> None:
    """One needed ten times as many samples for its evidence: it is not ten times as much of the model."""
    short = layer("short", bins={3: 1000}, lost=0, efficiency=1.0, samples=8)
    long = layer("long", bins={-6: 10_000}, samples=80)
    told = advise([short, long])
    assert told.efficiency == pytest.approx(0.5)
    assert told.option("none").lost_descent == pytest.approx(0.5)
    assert told.option("none").lost_fraction == pytest.approx(0.5)


def test_stochastic_rounding_is_taken_at_its_mean() -> None:
    unlucky = advise([layer("w", "stochastic", efficiency=0.6, lost=900)]).option("stochastic")
    assert unlucky.measured
    assert (unlucky.lost_fraction, unlucky.lost_descent, unlucky.holds) == (0.9, 0.0, True)


def test_all_layers_together_and_each() -> None:
    told = advise([layer("large", bins={3: 10_000}, lost=0, efficiency=1.0), layer("norm", bins={-6: 100})])
    assert told.recommended == "stochastic"
    assert told.needing == ("norm",)
    assert told.least == "none"
    assert told.layers["large"][0].holds
    assert not told.layers["norm"][0].holds
    assert "norm needs it; none would do for the other 1." in str(told)


def test_the_second_moment_rules_strategies_out() -> None:
    by_beta = advise([layer(beta2=0.999)])
    assert by_beta.recommended == "plus"
    assert by_beta.option("light").against == "β2 = 0.999 is 1 in bfloat16: v never decays"
    assert by_beta.option("plus").against == ""
    # 0.998046875 is the smallest β2 that rounds to 1 in bfloat16: half of its gap below 1.
    assert against_moment(layer(beta2=1 - 2.0**-9), "light") == "beta2"
    assert against_moment(layer(beta2=1 - 1.01 * 2.0**-9), "light") is None
    assert against_moment(layer(dtype="float16", beta2=0.999), "light") is None
    assert against_moment(layer(dtype="float16", beta2=0.9999), "light") == "beta2"
    measured = advise([layer(v_stuck=900)])
    assert measured.option("kahan").against == "v is stuck for 90 %"
    assert measured.recommended == "plus"
    assert advise([layer("w", "plus", v_stuck=900)]).option("kahan").against == "", "that was of a pair"
    small = advise([layer(dtype="float16", v_underflowed=600)])
    assert small.option("plus").against == "(1−β2)g² is below the range of float16 for 60 %"
    assert small.recommended == "fp32-master"
    assert against_moment(layer(beta2=None, v_attempted=0), "light") is None, "no second moment at all"


def test_what_is_stored_so_already_is_measured_and_not_foretold() -> None:
    """A pair in which constant steps have run out of digits: evenly spread it would do, and it does not (rule 9)."""
    stuck = layer("w", "plus", bins={-3: 1000}, efficiency=0.02, lost=980)
    told = advise([stuck])
    assert told.option("light").measured
    assert told.option("light").lost_fraction == 0.98
    assert told.option("plus").lost_descent == pytest.approx(0.98)
    assert told.recommended == "stochastic"
    assert advise([layer("w", "plus", bins={-3: 1000}, efficiency=0.02, beta2=0.999)]).recommended == "exact"


def test_a_plain_optimizer_of_torch_is_the_strategy_none() -> None:
    told = advise([layer("w", "AdamW", beta2=0.999)])
    assert (told.used, told.now, told.changes) == (("AdamW",), 8, True)
    assert rows(told)[0][0] == "none (now)"
    assert (
        headline(told)
        == 'Cheapest cure: CollageAdamW(…, strategy="plus"), 12 bytes per parameter instead of 8.'
    )


def test_the_learning_rate_that_arrived() -> None:
    told = advise([layer(efficiency=0.37, beta2=0.999)])
    assert told.effective_lr == pytest.approx(3.7e-4)
    assert told.rise == pytest.approx(2.7, abs=0.01)
    assert "learning at 0.37 of the set rate" in warning(told)
    assert "steps 2.7 times larger" in warning(told)
    assert "start from lr ≈ 0.00037" in warning(told)
    assert "next to nothing has arrived" in warning(advise([layer(efficiency=0.0)]))
    assert warning(advise([layer(efficiency=0.95)])) == ""
    mixed = advise([layer("a", efficiency=0.37), layer("b", lr=1e-4, efficiency=0.37)])
    assert mixed.effective_lr is None
    assert "start from the same fraction of it" in warning(mixed)


def test_nothing_has_to_change() -> None:
    fine = layer("w", "none", bins={3: 1000}, lost=0, efficiency=1.0)
    told = advise([fine])
    assert (told.recommended, told.changes) == ("none", False)
    assert str(told).startswith("Keep none: it loses 0 % of the descent")
    assert "is the cheapest that loses less" in headline(told)
    over = advise([layer("w", "fp32-master", bins={6: 1000}, lost=0, efficiency=1.0, beta2=0.999)])
    assert str(over).startswith(
        "Nothing has to change: fp32-master loses 0 % of the descent. The cheapest that"
    )
    assert warning(over) == ""


def test_no_strategy_holds() -> None:
    tiny = layer(dtype="float16", bins={-24: 10}, beta2=0.9999)
    told = advise([tiny, layer("v", dtype="float16", bins={4: 10}, lost=0, efficiency=1.0)])
    assert told.recommended is None
    assert told.needing == ("w",)
    assert str(told).startswith("No strategy loses less than 1.0 % of every layer's descent, because of w.")
    assert headline(told).startswith("No strategy")


def test_what_cannot_be_compared_is_left_out_and_named() -> None:
    others = [
        layer("f32", "float32", "float32"),
        layer("eight", "float8-plus", "float8_e4m3fn"),
        layer("still", bins={0: 0}),
    ]
    told = advise([layer(), *others])
    assert told.left_out == ("f32", "eight", "still")
    assert set(told.layers) == {"w"}
    assert "f32, eight and still" in str(told)
    with pytest.raises(ValueError, match="nothing to compare"):
        advise(others)


def test_dtypes_of_both_kinds_have_the_strategies_that_both_have() -> None:
    told = advise([layer("a"), layer("b", dtype="float16")])
    assert "exact" not in {one.strategy for one in told.options}


def test_stochastic_rounding_says_its_noise() -> None:
    told = str(advise([layer(bins={-6: 1000})]))
    noise = math.sqrt(chance_noise(-6))
    assert f"noise {noise:.2g} times as long as the update" in told
    assert "Without that noise: light, 10 bytes." in told


def test_seen_updates_bound_what_one_word_would_lose() -> None:
    """Of a master's histogram only the open end bin is filled; that 1 % of the updates is seen says the rest."""
    told = advise([layer("w", "fp32-master", bins={8: 1000}, lost=0, efficiency=1.0, invisible=990)])
    assert told.option("stochastic").lost_fraction == pytest.approx(0.99)
    none = told.option("none")
    assert (none.lost_fraction, none.lost_at_most) == (pytest.approx(0.98), 1.0)
    assert none.descent_at_most > 0.99


def test_the_table() -> None:
    lines = table(advise([layer(beta2=0.999)])).splitlines()
    assert lines[0].split() == ["strategy", "bytes", "updates", "lost", "descent", "lost", "second", "moment"]
    assert len(lines) == 1 + len(STRATEGIES)
    assert lines[1].startswith("none (now)       8         100 %         100 %  β2 = 0.999 is 1")
    assert all(line == line.rstrip() for line in lines)
