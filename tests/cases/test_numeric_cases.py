"""What people hit in 16 bit, one test per public report, each with the report's own numbers.

The reports are of other projects; the same kinds of fault are tested in depth where each belongs.
"""

from __future__ import annotations

import copy
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from following import follow, window
from sharded_steps import STRATEGIES as SHARDED, stepped
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import AdamW
from weights import BF16, F32, by, moved, one_parameter, second_moment, state_of, step

from roundoff.metrics import (
    Sums,
    causes,
    cure,
    decay_lost_fraction,
    descent_efficiency,
    imprecision,
    invisible_fraction,
    judge,
    lost_fraction,
)
from roundoff.numerics import add_to_pair, join_master, mix_key, random_words, round_stochastic, split_master
from roundoff.optim import CollageAdamW, full_precision_state_dict, to_low_precision
from roundoff.scan import scan
from roundoff.watch import measure, measure_moment, preflight


@pytest.mark.parametrize("strategy", ["none", "fp32-state", "fp32-master"])
def test_ml_by_hand_85_norm_weights_at_one_under_steps_of_6e_4(strategy: str) -> None:
    model, w = one_parameter(1.0, 768)
    options = {"betas": (0.0, 0.999), "weight_decay": 0.0}
    optimizer = CollageAdamW(model.named_parameters(), lr=6e-4, strategy=strategy, **options)
    watch, told = follow(model, optimizer)
    generator = torch.Generator().manual_seed(0)
    for _ in range(100):
        w.grad = (torch.randint(0, 2, (768,), generator=generator) * 2 - 1).to(BF16)
        optimizer.step()
    figures = lost_fraction(told.total("weight")), descent_efficiency(told.total("weight"))
    if strategy == "fp32-master":
        assert int((optimizer.stored_value(w) != 1.0).sum()) > 700
        assert (watch.verdict().state, told.alert) == ("healthy", "")
        assert figures == (0.0, pytest.approx(1.0, abs=1e-4))
    else:
        assert int((w != 1.0).sum()) == 0
        assert figures == (1.0, 0.0)
        assert watch.verdict().state == "stalling"
        assert "1 of 1 layers: weight" in told.alert


def test_flame_47_and_speculators_765_norms_stall_and_the_model_looks_well(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 32), nn.RMSNorm(32), nn.Linear(32, 32)).to(BF16)
    optimizer = AdamW(model.parameters(), lr=1e-3)
    watch, told = follow(model, optimizer)
    for _ in range(60):
        x = torch.randn(8, 32).to(BF16)
        (model(x) - x.flip(1)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert (model[1].weight == 1).all()
    assert told.firing == ["1.weight"]
    assert not told.model.firing
    assert descent_efficiency(watch.history.window) > 0.9, "model-wide all looks well"
    assert "1 of 5 layers: 1.weight" in told.alert
    assert watch.verdict().headline == "1 of 5 layers loses most of its updates to rounding."
    torch.save(model.state_dict(), tmp_path / "model.pt")
    (finding,) = scan(tmp_path / "model.pt").findings
    assert (finding.kind, finding.tensors) == ("ones", ("1.weight",))
    assert "100 % of entries are exactly 1.0" in finding.says


def test_onetrainer_996_decay_rounds_to_one_for_ever_stochastic_or_not() -> None:
    assert torch.tensor(1 - 1e-6).to(BF16) == 1.0
    model, w = one_parameter(1.0, 4096)
    optimizer = CollageAdamW(model.named_parameters(), lr=1e-4, weight_decay=0.01, strategy="stochastic")
    alone = step(optimizer, w, 0.0)
    assert decay_lost_fraction(alone) == 1.0
    found = causes(step(optimizer, w, 1.0), strategy="stochastic")
    assert found.decay == 1.0
    assert "of the weight decay 100 % is lost when added alone" in str(found)
    assert found.dominant == "rounding", "what the gradient wants is reported apart"


def test_optimi_7_a_cast_before_the_optimizer_exists() -> None:
    model, _ = one_parameter(1.001, 3, F32)
    optimizer = CollageAdamW(model.named_parameters(), strategy="plus")
    dropped = to_low_precision(model, BF16, optimizer=optimizer)
    rest = torch.tensor(1.001) - 1.0
    assert dropped == {"weight": pytest.approx(0.001 / 1.001, rel=1e-3)}, "how much was dropped at the cast"
    assert (model.weight == 1.0).all()
    assert optimizer.state[model.weight]["lo"][0] == rest.to(BF16), "the leading 8 bits of the rest"
    whole = CollageAdamW((cast := one_parameter(1.001, 3, F32)[0]).named_parameters(), strategy="exact")
    to_low_precision(cast, BF16, optimizer=whole)
    assert full_precision_state_dict(cast, whole)["weight"][0] == torch.tensor(1.001)


def test_torchdistx_58_a_hundred_steps_in_a_pair_and_a_resume() -> None:
    model, w = one_parameter(1.0, 4)
    optimizer = by(model, 1e-4, "plus")
    for _ in range(100):
        step(optimizer, w)
    assert w[0].item() == 0.98828125
    assert optimizer.state[w]["lo"][0].item() == pytest.approx(0.0018, abs=1e-4)
    saved = copy.deepcopy(optimizer.state_dict())
    resumed = by(model, 1e-4, "plus")
    resumed.load_state_dict(copy.deepcopy(saved))
    for name, value in optimizer.state[w].items():
        assert torch.equal(resumed.state[w][name], value), name
    del saved["state"][0]["lo"]
    poorer = by(model, 1e-4, "plus")
    with pytest.warns(UserWarning, match="the checkpoint holds no lo"):
        poorer.load_state_dict(saved)
    assert not poorer.state[w]["lo"].any()
    for name in ("exp_avg", "exp_avg_sq"):
        assert torch.equal(poorer.state[w][name], optimizer.state[w][name])


def test_opentau_184_float32_moments_that_a_load_makes_bfloat16() -> None:
    """Also fairscale 50, torchtitan 4615, Megatron 1359."""
    model, w = one_parameter(1.0, 4)
    ours = CollageAdamW(model.named_parameters(), strategy="fp32-state")
    step(ours, w)
    ours.state[w]["exp_avg"].fill_(0.0012345)
    resumed = CollageAdamW(model.named_parameters(), strategy="fp32-state")
    resumed.load_state_dict(copy.deepcopy(ours.state_dict()))
    assert torch.equal(resumed.state[w]["exp_avg"], torch.full((4,), 0.0012345))

    theirs = AdamW(model.parameters())
    theirs.step()
    saved = copy.deepcopy(theirs.state_dict())
    saved["state"][0]["exp_avg"] = torch.full((4,), 0.0012345)
    follow(model, theirs)
    with pytest.warns(UserWarning, match="float32 state is bfloat16 since the load") as said:
        theirs.load_state_dict(saved)
    assert theirs.state[w]["exp_avg"][0].item() == 0.0012359619140625
    assert "0.0012345 in weight (exp_avg) has become 0.001236" in str(said[0].message)


def test_megatron_4222_a_remainder_restored_through_a_float_buffer_is_refused() -> None:
    model, w = one_parameter(1.0, 4)
    optimizer = CollageAdamW(model.named_parameters(), strategy="exact")
    step(optimizer, w)
    saved = copy.deepcopy(optimizer.state_dict())
    saved["state"][0]["remainder"] = saved["state"][0]["remainder"].to(F32)
    with pytest.raises(TypeError, match=r"saved as torch\.float32 where.*int16"):
        CollageAdamW(model.named_parameters(), strategy="exact").load_state_dict(saved)


def test_apex_1842_a_tie_is_packed_away_from_zero_and_is_not_lost() -> None:
    tie = torch.tensor([0x3F808000], dtype=torch.int32).view(F32)
    hi, rest = split_master(tie)
    assert tie.to(BF16).item() == 1.0, "ties to even"
    assert (hi.item(), rest.item()) == (1.0078125, -(1 << 15))
    assert join_master(hi, rest).item() == tie.item()
    one, nothing = torch.ones(1, dtype=BF16), torch.zeros(1, dtype=torch.int16)
    sums = measure(one, hi, torch.tensor([2.0**-8]), nothing, rest)
    assert (sums.attempted, sums.lost, descent_efficiency(sums)) == (1, 0, 1.0)


def test_jax_23007_a_compiled_addition_that_returns_no_error_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also pytorch 176565 and 183761. The real compiler removes the rounding; the canary goes through what it made."""
    import torch._dynamo

    # Inductor's imports warn about what they use themselves.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        words = (torch.ones(64, dtype=BF16), torch.zeros(64, dtype=BF16), torch.full((64,), -1e-4))
        compiled = torch.compile(add_to_pair)
        kept = add_to_pair(*words)[1]
        assert kept[0] != 0
        assert not compiled(*words)[1].any(), "the second word is gone"
        monkeypatch.setattr("roundoff.kernels.reference.add_to_pair", compiled)
        with pytest.raises(RuntimeError, match="emulate_precision_casts"):
            CollageAdamW([nn.Parameter(torch.ones(64, dtype=BF16))], strategy="plus", backend="reference")
        torch._dynamo.reset()
        with torch._inductor.config.patch(emulate_precision_casts=True):
            repaired = torch.compile(add_to_pair)
            assert torch.equal(repaired(*words)[1], kept)
            monkeypatch.setattr("roundoff.kernels.reference.add_to_pair", repaired)
            CollageAdamW([nn.Parameter(torch.ones(64, dtype=BF16))], strategy="plus", backend="reference")
        torch._dynamo.reset()


def test_areal_1292_after_the_repair_the_tuned_learning_rate_is_too_large() -> None:
    """A plateau in plain bfloat16: the weights learn at a fraction of the set rate, and the advice says so before."""
    generator = torch.Generator().manual_seed(0)
    model, w = one_parameter(0.05, 4096)
    with torch.no_grad():
        w.copy_((torch.randn(4096, generator=generator) * 0.05).to(BF16))
    optimizer = AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.0)
    watch, told = follow(model, optimizer)
    for _ in range(40):
        w.grad = (torch.randn(4096, generator=generator) + 0.2).to(BF16)
        optimizer.step()
    advice = watch.advise()
    efficiency = descent_efficiency(watch.history.window)
    assert 0.2 < efficiency < 0.5
    assert advice.effective_lr == pytest.approx(1e-4 * efficiency)
    assert advice.rise == pytest.approx(1 / efficiency)
    assert f"learning at {efficiency:.2g} of the set rate" in str(advice)
    assert f"takes steps {1 / efficiency:.2g} times larger" in str(advice)
    assert f"start from lr ≈ {1e-4 * efficiency:.2g}" in str(advice)
    assert told.alert.startswith("Since step ")


def test_nemo_rl_2865_a_falling_loss_is_no_evidence() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.Linear(64, 64)).to(BF16)
    optimizer = AdamW(model.parameters(), lr=6e-6)
    watch, told = follow(model, optimizer)
    x, y = torch.randn(16, 64).to(BF16), torch.randn(16, 64).to(BF16)
    losses = []
    for n in range(20):
        loss = (model(x) - y).float().square().mean()
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
        if n == 0:  # by layer, from the first sampled step on
            told_first = told.rows[0]
            assert all(
                row["lost"] > 0.8 * row["attempted"] for name, row in told_first.items() if "weight" in name
            )
            assert watch.advise().layers["0.weight"][0].lost_fraction > 0.8
    assert losses[-1] < losses[0], "and the overfit looks fine"
    assert lost_fraction(told.total("0.weight")) > 0.8
    assert lost_fraction(told.total("1.weight")) == 1.0


def test_hf_pulse_almost_all_words_unchanged_under_a_master_is_deferred_and_no_alarm() -> None:
    model, w = one_parameter(0.019, 4096)
    optimizer = CollageAdamW(model.named_parameters(), lr=3e-6, weight_decay=0.0, strategy="fp32-master")
    watch, told = follow(model, optimizer)
    generator = torch.Generator().manual_seed(0)
    for _ in range(60):
        w.grad = torch.randn(4096, generator=generator).to(BF16)
        optimizer.step()
    total = told.total("weight")
    assert imprecision(total) > 0.95
    assert invisible_fraction(total) > 0.95
    assert lost_fraction(total) < 0.01
    assert (watch.verdict().state, told.alert) == ("healthy", "")
    assert "are deferred" in watch.history.layer_verdict("weight").explanation


def test_optimisers_jl_215_and_keras_21238_beta2_that_is_one() -> None:
    assert torch.tensor(0.999, dtype=torch.float64).to(BF16) == 1.0
    model, _ = one_parameter(0.5, 4)
    found = {one.kind: one for one in preflight(model, AdamW(model.parameters(), betas=(0.9, 0.999)))}
    assert "β2 = 0.999 is 1 in bfloat16" in found["second-moment"].why
    for strategy in ("plus", "exact"):
        state, count = state_of(strategy, 1, exp_avg_sq=1.0), 0
        while second_moment(state) > 0.5:
            moved(strategy, state, 0.0)
            count += 1
        assert count == pytest.approx(693, abs=2), strategy


def test_torchao_4915_a_counter_that_stops_at_256() -> None:
    counter = torch.zeros((), dtype=BF16)
    for _ in range(300):
        counter += 1
    assert counter == 256
    model, w = one_parameter(0.5, 4)
    theirs = AdamW(model.parameters())
    w.grad = torch.ones_like(w)
    theirs.step()
    theirs.state[w]["step"] = theirs.state[w]["step"].to(BF16)
    (found,) = [one for one in preflight(model, theirs) if one.kind == "counter"]
    assert "bfloat16 cannot count past 256" in found.why
    ours = CollageAdamW(model.named_parameters(), lr=0.0)
    for _ in range(300):
        step(ours, w)
    assert ours.state[w]["step"].item() == 300


def test_halo_30_a_second_moment_that_stops_at_a_quarter_or_a_half_of_its_limit() -> None:
    for arithmetic, stops_at in (("fp32", 0.25), ("storage", 0.5)):
        state = state_of("none", 4)
        for _ in range(600):
            before = state["exp_avg_sq"].clone()
            moved("none", state, 1.0, arithmetic)
        assert (state["exp_avg_sq"] == stops_at).all()
        stuck = measure_moment(before, state["exp_avg_sq"], torch.ones(4, dtype=BF16), 0.999)
        assert (stuck.v_attempted, stuck.v_stuck, stuck.v_stuck_high) == (4, 4, 0)
    state = state_of("none", 4, exp_avg_sq=1.0)
    before = state["exp_avg_sq"].clone()
    moved("none", state, 0.0)
    stuck = measure_moment(before, state["exp_avg_sq"], torch.zeros(4, dtype=BF16), 0.999)
    assert (stuck.v_attempted, stuck.v_stuck, stuck.v_stuck_high) == (4, 4, 4)


def test_bf16_v_squares_below_the_range_are_apart_from_rounding() -> None:
    state = state_of("none", 4)
    before = state["exp_avg_sq"].clone()
    moved("none", state, 1e-20)
    assert not state["exp_avg_sq"].any()
    g = torch.full((4,), 1e-20, dtype=BF16)
    sums = measure_moment(before, state["exp_avg_sq"], g, 0.999)
    assert (sums.v_underflowed, sums.v_stuck, sums.zero_grad) == (4, 4, 0)
    assert causes(sums + Sums(numel=4)).v_underflow == 1.0


def test_gorse_1240_and_tilelang_2481_nan_stays_nan() -> None:
    odd = torch.tensor([0x7FFFFFFF, 0x7F800000, -0x800000, 0x7F800001], dtype=torch.int32).view(F32)
    assert ((odd[:1].view(torch.int32) + 0xFFFF) & ~0xFFFF).view(F32).item() == 0.0, (
        "what adding and masking makes"
    )
    rounded = round_stochastic(odd, BF16, torch.full((4,), 0xFFFF, dtype=torch.int32))
    assert rounded.isnan().tolist() == [True, False, False, True]
    assert rounded[1:3].tolist() == [float("inf"), float("-inf")]
    drawn = round_stochastic(odd, BF16, random_words(mix_key(0, 1, 2), torch.arange(4)))
    assert drawn.isnan().tolist() == [True, False, False, True]
    model, w = one_parameter(1.0, 4)
    optimizer = CollageAdamW(model.named_parameters(), strategy="stochastic")
    sums = step(optimizer, w, torch.tensor([float("nan"), float("inf"), 1.0, 1.0]))
    assert w.isnan().tolist() == [True, True, False, False]
    assert sums.nonfinite == 2
    assert judge(window(sums, 10)) == "broken"


@pytest.mark.parametrize("world", [1, 2])
def test_ao_3266_sharded_tensors_on_one_rank_and_on_two(world: int, tmp_path: Path) -> None:
    ranks = [
        subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("sharded_steps.py")), str(rank), str(world),
             str(tmp_path / "store"), str(tmp_path / f"out{rank}")]
        )
        for rank in range(world)
    ]  # fmt: skip
    assert [rank.wait(120) for rank in ranks] == [0] * world
    alone: dict[str, Tensor] = {}
    for strategy in SHARDED:
        alone |= stepped(strategy, sharded=False)
    for rank in range(world):
        found = torch.load(tmp_path / f"out{rank}")
        assert found.keys() == alone.keys()
        for name, value in alone.items():
            assert torch.equal(found[name], value), name


@pytest.mark.parametrize("strategy", ["plus", "exact", "fp32-master"])
def test_deeperspeed_56_weights_written_from_outside_are_not_moved_back(strategy: str) -> None:
    model, w = one_parameter(1.0, 64)
    optimizer = CollageAdamW(model.named_parameters(), lr=1e-3, weight_decay=0.0, strategy=strategy)
    for _ in range(3):
        step(optimizer, w)
    with torch.no_grad():
        w.fill_(2.0)  # averages swapped in
    optimizer.param_groups[0]["lr"] = 0.0
    with pytest.warns(UserWarning, match="changed outside the optimizer"):
        step(optimizer, w)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        step(optimizer, w)
    assert not said, "once is enough"
    assert (optimizer.stored_value(w) == 2.0).all()


def test_pytorch_127176_a_step_that_a_loss_scaler_skips() -> None:
    model, w = one_parameter(1.0, 64)
    optimizer = CollageAdamW(model.named_parameters(), lr=1e-3, strategy="none")
    watch, told = follow(model, optimizer)
    scaler = GradScaler("cpu", init_scale=2.0, growth_interval=1000)
    for _ in range(40):
        scaler.scale(torch.ones(()))
        w.grad = torch.full_like(w, float("inf"))
        scaler.step(optimizer)
        scaler.update()
    total = told.total("weight")
    assert (total.skipped, total.attempted, total.lost, total.nonfinite) == (40, 0, 0, 0)
    assert (w == 1.0).all()
    assert told.alert == ""
    assert watch.verdict().state == "idle"
    assert "A loss scaler skips the steps" in watch.verdict().explanation


def test_pairs_are_not_fp32_and_exact_is() -> None:
    """w = 1 and u = −1e-6, 20,000 times: a float32 loop ends at 0.9797."""
    for strategy in ("kahan", "light", "plus"):
        model, w = one_parameter(1.0, 1)
        optimizer = by(model, 1e-6, strategy)
        kept = [step(optimizer, w) for _ in range(400)]
        assert [sums.lost for sums in kept] == [0] * 383 + [1] * 17, (
            "and so for ever: the same words, the same step"
        )
        assert w.item() == 1.0
        overall = (20_000 - 383) / 20_000
        assert overall == pytest.approx(0.98, abs=0.002)
        assert judge(window(kept[-1], 2000)) == "stalling"
        advice = cure([strategy])
        assert advice is not None
        assert 'strategy="exact"' in advice.code
    model, w = one_parameter(1.0, 1)
    optimizer, wanted = by(model, 1e-6, "exact"), np.float32(1.0)
    w.grad = torch.ones_like(w)
    for _ in range(20_000):
        optimizer.step()
        wanted = wanted - np.float32(1e-6)
    assert optimizer.stored_value(w).item() == float(wanted) == pytest.approx(0.9797, abs=5e-5)
