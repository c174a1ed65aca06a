"""`roundoff doctor` on the server, its version and token, and on the spool."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import roundoff
from roundoff.cli import main
from roundoff.delivery.disk import network_type

NFS = """\
22 1 252:1 / / rw,relatime shared:1 - ext4 /dev/vda rw
31 22 0:26 / /home rw,relatime - nfs4 server:/home rw
40 31 0:33 / /home/me/scratch rw - xfs /dev/vdb rw
41 22 0:34 / /mnt/with\\040space rw shared:7 - fuse.sshfs me@there: rw
"""


def look(capsys: Any, *words: str) -> tuple[int, dict[str, Any]]:
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "--json", *words])
    return int(ended.value.code or 0), json.loads(capsys.readouterr().out)


@pytest.fixture
def closed_server(start_server: Any, tmp_path: Path) -> Iterator[str]:
    database = f"sqlite:///{tmp_path / 'closed.db'}"
    with start_server(database, ROUNDOFF_ADMIN_TOKEN="let-me-in-let-me-in") as running:
        yield running.url


def test_a_server_that_answers(server: str, capsys: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("ROUNDOFF_SPOOL", str(tmp_path / "spool"))
    run = roundoff.init("p", mode="offline")
    run.log({"loss": 1.0})
    run.finish()
    code, found = look(capsys, "--server", server)
    assert (code, found["server"]) == (
        0,
        {"address": server, "version": roundoff.__version__, "problem": None},
    )
    assert (found["spool"]["runs"], found["spool"]["writers"], found["spool"]["problem"]) == (1, 1, None)
    assert found["spool"]["bytes"] > 100
    with pytest.raises(SystemExit):
        main(["doctor", "--server", server])
    assert "send them with `roundoff sync`" in capsys.readouterr().out


def test_one_that_does_not(capsys: Any) -> None:
    code, found = look(capsys, "--server", "http://127.0.0.1:9")
    assert code == 1
    assert "no roundoff server answers" in found["server"]["problem"]


def test_a_token_that_is_missing_or_wrong(closed_server: str, capsys: Any) -> None:
    assert "asks for a token" in look(capsys, "--server", closed_server)[1]["server"]["problem"]
    wrong = look(capsys, "--server", closed_server, "--token", "no")[1]["server"]["problem"]
    assert "does not accept the token" in wrong
    assert look(capsys, "--server", closed_server, "--token", "let-me-in-let-me-in")[0] == 0


def test_a_server_of_another_version(server: str, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("roundoff.cli.doctor.WIRE_VERSION", 7)
    assert "speaks version 1, this client 7" in look(capsys, "--server", server)[1]["server"]["problem"]


def test_a_spool_that_cannot_be_written(capsys: Any, tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("ROUNDOFF_SPOOL", str(tmp_path / "file"))
    code, found = look(capsys)
    assert code == 1
    assert "cannot be written" in found["spool"]["problem"]


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/home/me/.local/state", "nfs4"),
        ("/home/me/scratch/spool", None),
        ("/var/spool", None),
        ("/mnt/with space/x", "fuse.sshfs"),
    ],
)
def test_network_file_systems_are_known(folder: str, kind: str | None) -> None:
    assert network_type(Path(folder), NFS) == kind


def test_a_spool_on_one_is_warned_of(monkeypatch: Any, tmp_path: Path, caplog: Any) -> None:
    monkeypatch.setattr("roundoff.delivery.opening.network_type", lambda folder: "nfs4")
    run = roundoff.init("p", mode="offline", spool=tmp_path)
    run.finish()
    assert caplog.text.count("on a network file system (nfs4)") == 1
