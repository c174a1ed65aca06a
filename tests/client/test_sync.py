"""What one process leaves in its spool, another one sends: once, all of it, by the same path."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from samples import layers, sample
from scripted_server import Answer, Scripted, problem

import roundoff
from roundoff.cli import main
from roundoff.delivery.frames import MAGIC
from roundoff.delivery.notices import Notices
from roundoff.delivery.spool import writers
from roundoff.delivery.sync import Left, send_left


def sync(spool: Path, server: str | None = None, patience_s: float = 5.0) -> list[Left]:
    return [send_left(writer, server, None, patience_s, Notices()) for writer in writers(spool)]


def offline(spool: Path, count: int = 10, server: str | None = None, **settings: Any) -> roundoff.Run:
    """A run that is over, with its samples, values and something dropped in the spool."""
    run = roundoff.init("p", "n", mode="offline", spool=spool, server=server, **settings)
    assert run._pipeline is not None
    run._pipeline.declare(layers(2))
    for step in range(count):
        run._pipeline.sample(sample(step))
        run.log({"loss": float(step)}, step=step)
    run.log({"name": "not a number"})
    run.finish()
    return run


def test_offline_and_sync_are_what_online_is(scripted: Scripted, tmp_path: Path) -> None:
    run = offline(tmp_path)
    assert (run.delivery.taken, run.delivery.spooled, run.page) == (21, 20, None)
    assert scripted.seen == []
    (left,) = sync(tmp_path, scripted.url)
    assert (left.state, left.sent, left.run_id) == ("sent", 20, run.id)
    assert scripted.scalars() == [(step, "loss", float(step)) for step in range(10)]
    assert [s for b in scripted.batches if b.model for s in b.model.step.values()] == list(range(10))
    assert [layer.name for b in scripted.batches for layer in b.layers] == ["layer.0", "layer.1"]
    assert scripted.batches[-1].end == "finished"
    assert scripted.batches[-1].dropped == {"values (not a number)": 1}
    assert list(tmp_path.iterdir()) == []
    assert sync(tmp_path, scripted.url) == []


def test_an_answer_that_was_lost_is_no_second_delivery(scripted: Scripted, tmp_path: Path) -> None:
    offline(tmp_path, 2000)
    lost = threading.Event()

    def script(method: str, body: bytes) -> Answer | None:
        if method == "POST" and len(scripted.batches) == 2:
            lost.set()
            scripted.script = lambda *_: None
            scripted.answer(method, "/", body)
            scripted.script = script
            return problem(503)
        return problem(503) if lost.is_set() else None

    scripted.script = script
    (left,) = sync(tmp_path, scripted.url, patience_s=0.0)
    assert left.state == "waiting"
    assert 0 < left.sent < 4000
    scripted.script = lambda *_: None
    (again,) = sync(tmp_path, scripted.url)
    assert again.sent + left.sent == 4000
    assert [value for _, _, value in scripted.scalars()] == [float(step) for step in range(2000)]
    assert [s for b in scripted.batches if b.model for s in b.model.step.values()] == list(range(2000))
    seqs = [batch.seq for batch in scripted.batches]
    assert seqs == sorted(set(seqs))


def test_it_goes_to_the_server_of_the_run_unless_another_is_named(scripted: Scripted, tmp_path: Path) -> None:
    offline(tmp_path, 1, server=scripted.url)
    (left,) = sync(tmp_path)
    assert (left.state, left.server) == ("sent", scripted.url)


def test_what_a_running_program_writes_is_left_to_it(nobody: str, tmp_path: Path, scripted: Scripted) -> None:
    run = roundoff.init("p", server=nobody, spool=tmp_path)
    run.log({"x": 1.0})
    time.sleep(0.3)
    (left,) = sync(tmp_path, scripted.url)
    assert (left.state, scripted.seen) == ("in use", [])
    run.finish(timeout=0)
    (left,) = sync(tmp_path, scripted.url)
    assert (left.state, left.sent) == ("sent", 1)


def test_a_server_that_lost_the_run_is_told_its_layers_again(scripted: Scripted, tmp_path: Path) -> None:
    offline(tmp_path, 3000)
    told = []

    def script(method: str, body: bytes) -> Answer | None:
        if method == "POST" and len(scripted.batches) == 2 and not told:
            told.append(len(scripted.starts))
            return problem(404, "there is no run")
        return None

    scripted.script = script
    (left,) = sync(tmp_path, scripted.url)
    assert (left.sent, len(scripted.starts)) == (6000, 2)
    assert [layer.index for layer in scripted.batches[2].layers] == [0, 1]


def test_refused_records_are_kept_and_the_rest_goes_on(scripted: Scripted, tmp_path: Path) -> None:
    offline(tmp_path, 3000)
    scripted.script = lambda method, body: (
        problem(422, "no") if method == "POST" and len(scripted.batches) == 1 and b'"w"' not in body else None
    )
    first = scripted.script

    def once(method: str, body: bytes) -> Answer | None:
        answer = first(method, body)
        if answer is not None:
            scripted.script = lambda *_: None
        return answer

    scripted.script = once
    (left,) = sync(tmp_path, scripted.url)
    assert left.state == "sent"
    assert left.dropped["points (refused by the server)"] + left.sent == 6000
    assert left.kept is not None
    assert left.kept.exists()
    assert "the server answered 422: no" in (left.kept.parent / "refused.txt").read_text()
    assert [again.state for again in sync(tmp_path, scripted.url)] == ["sent"]


def test_a_damaged_spool_gives_what_is_whole_and_the_count(
    scripted: Scripted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("roundoff.delivery.collector.JOINED", 10**9)  # a record for each call
    offline(tmp_path, 100)
    (file,) = (path for path in tmp_path.rglob("*.spool") if path.stem.isdecimal())
    data = bytearray(file.read_bytes())
    at = data.find(MAGIC, len(data) // 2)
    data[at + 40] ^= 1
    file.write_bytes(data)
    (left,) = sync(tmp_path, scripted.url)
    assert (left.state, left.sent, left.dropped) == ("sent", 199, {"records (spool damaged)": 1})
    assert scripted.batches[-1].dropped["records (spool damaged)"] == 1


def test_the_command(scripted: Scripted, tmp_path: Path, nobody: str, capsys: Any) -> None:
    run = offline(tmp_path, 5)
    with pytest.raises(SystemExit) as failed:
        main(["sync", str(tmp_path), "--server", nobody, "--timeout", "0"])
    assert failed.value.code == 1
    assert "the rest waits: connection refused" in capsys.readouterr().out
    with pytest.raises(SystemExit) as worked:
        main(["sync", str(tmp_path), "--server", scripted.url, "--json"])
    assert worked.value.code == 0
    (one,) = json.loads(capsys.readouterr().out)["writers"]
    assert (one["run"], one["state"], one["sent"]) == (run.id, "sent", 10)
    with pytest.raises(SystemExit):
        main(["sync", str(tmp_path), "--server", scripted.url])
    assert "nothing is left in" in capsys.readouterr().out


def test_after_a_kill_at_any_moment_nothing_is_lost_or_doubled(scripted: Scripted, tmp_path: Path) -> None:
    program = f"""
        import time, roundoff
        run = roundoff.init("p", "n", server={scripted.url!r}, spool={str(tmp_path)!r})
        for step in range(100_000):
            run.log({{"loss": float(step)}}, step=step)
            time.sleep(0.0005)
    """
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)])
    while len(scripted.batches) < 3:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = len(scripted.scalars())
    (left,) = sync(tmp_path)
    assert left.state == "sent"
    found = [step for step, _, _ in scripted.scalars()]
    assert len(found) >= before
    assert found == list(range(len(found)))
    assert list(tmp_path.iterdir()) == []
