"""Run id, attempt token and rank out of a launcher's environment."""

from __future__ import annotations

import re

import pytest

from roundoff.delivery.launcher import identify, uuid7

TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "job-7",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "RANK": "0",
    "WORLD_SIZE": "8",
}
SLURM = {"SLURM_JOB_ID": "991", "SLURM_STEP_ID": "0", "SLURM_PROCID": "3", "SLURM_NTASKS": "4"}
KUBERNETES = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": "2", "HOSTNAME": "train-2-x7k9p"}


def test_given_beats_environment_beats_launcher() -> None:
    env = {**TORCHRUN, "ROUNDOFF_RUN_ID": "from-environment"}
    assert identify("given", "p", "n", 0, env).run_id == "given"
    assert identify(None, "p", "n", 0, env).run_id == "from-environment"
    assert re.fullmatch(r"[0-9a-f]{32}", identify(None, "p", "n", 0, TORCHRUN).run_id)


def test_without_a_launcher_every_run_is_new() -> None:
    first, second = identify(None, "p", "n", 0, {}), identify(None, "p", "n", 0, {})
    assert first.run_id != second.run_id
    assert first.token != second.token
    assert (first.rank, first.world_size) == (0, 1)


@pytest.mark.parametrize(
    ("env", "other_rank"),
    [
        (TORCHRUN, {"RANK": "5"}),
        ({**TORCHRUN, "TORCHELASTIC_RUN_ID": "none"}, {"RANK": "5"}),
        (SLURM, {"SLURM_PROCID": "1"}),
    ],
)
def test_ranks_agree_without_talking(env: dict[str, str], other_rank: dict[str, str]) -> None:
    one, other = identify(None, "p", "n", 0, env), identify(None, "p", "n", 0, {**env, **other_rank})
    assert (one.run_id, one.token) == (other.run_id, other.token)
    assert one.rank != other.rank
    assert one.world_size == other.world_size > 1


def test_pods_of_an_indexed_job_agree() -> None:
    other = {**KUBERNETES, "JOB_COMPLETION_INDEX": "0", "HOSTNAME": "train-0"}
    assert identify(None, "p", "n", 0, KUBERNETES).run_id == identify(None, "p", "n", 0, other).run_id


def test_a_restart_is_the_same_run_and_another_attempt() -> None:
    for env, restarted in (
        (TORCHRUN, {**TORCHRUN, "TORCHELASTIC_RESTART_COUNT": "1"}),
        (SLURM, {**SLURM, "SLURM_RESTART_COUNT": "1"}),
    ):
        before, after = identify(None, "p", "n", 0, env), identify(None, "p", "n", 0, restarted)
        assert before.run_id == after.run_id
        assert before.token != after.token


def test_two_programs_of_one_batch_script_are_two_attempts() -> None:
    env = {"SLURM_JOB_ID": "991"}
    assert identify(None, "p", "n", 0, env).token != identify(None, "p", "n", 0, env).token


def test_two_runs_of_one_process_are_two_runs() -> None:
    first, second = identify(None, "p", "n", 0, TORCHRUN), identify(None, "p", "n", 1, TORCHRUN)
    assert first.run_id != second.run_id
    assert first.token != second.token


@pytest.mark.parametrize("run_id", ["", "a b", "a/b", "-a", "x" * 129, "ü"])
def test_an_id_that_cannot_stand_in_a_path_is_named(run_id: str) -> None:
    with pytest.raises(ValueError, match="cannot be used: 1 to 128 letters"):
        identify(run_id, "p", "n", 0, {})


def test_uuid7_sorts_by_time() -> None:
    ids = [uuid7(now) for now in (0, 1, 10**12, 2**48 - 1)]
    assert ids == sorted(ids)
    assert all(
        re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", i) for i in ids
    )
