"""Checkpoints written by the real libraries, scanned as files."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from roundoff.cli import application
from roundoff.scan import CheckpointError, Finding, Scan, TensorFacts, scan, tensors as stored
from roundoff.scan.page import page

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


def model() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        "norm.weight": torch.ones(768, dtype=BF16),
        "head.weight": torch.randn(64, 32, generator=generator).to(BF16),
        "head.bias": torch.zeros(64, dtype=F16),
        "wide": torch.randn(100, generator=generator),
        "rounded": torch.randn(100, generator=generator).to(BF16).float(),
        "ids": torch.arange(20),
        "small": torch.randn(40, generator=generator).to(torch.float8_e4m3fn),
    }


def by_name(found: Scan) -> dict[str, TensorFacts]:
    return {facts.name: facts for facts in found.tensors}


def kinds(found: Scan) -> set[tuple[str, str]]:
    return {(finding.kind, name) for finding in found.findings for name in finding.tensors}


@pytest.fixture(params=["safetensors", "pt"])
def write(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    def write(tensors: dict[str, Tensor], name: str = "model") -> Path:
        path = tmp_path / f"{name}.{request.param}"
        if request.param == "pt":
            torch.save(tensors, path)
        else:
            save_file(tensors, path)
        return path

    return write


def test_counts_of_one_checkpoint(write: Any) -> None:
    tensors = model()
    tensors["head.weight"][0, :5] = 1.0
    tensors["head.weight"][1, :4] = -0.0
    tensors["wide"][:3] = torch.tensor([torch.nan, torch.inf, -1.0])
    found = scan(write(tensors))
    facts = by_name(found)
    assert set(facts) == set(tensors)
    assert facts["norm.weight"].ones == 768
    assert (facts["head.weight"].ones, facts["head.weight"].zeros) == (
        int((tensors["head.weight"] == 1).sum()),
        int((tensors["head.weight"] == 0).sum()),
    )
    assert facts["head.bias"].zeros == 64
    assert facts["wide"].nonfinite == 2
    assert (
        facts["wide"].narrow == int((tensors["wide"].to(BF16).float() == tensors["wide"]).sum()) + 1
    )  # the NaN
    assert facts["rounded"].narrow == 100
    assert (facts["ids"].ones, facts["ids"].same) == (0, None)
    assert facts["small"].dtype == "float8_e4m3fn"
    assert kinds(found) == {
        ("ones", "norm.weight"),
        ("zeros", "head.bias"),
        ("narrow", "rounded"),
        ("nonfinite", "wide"),
    }


def test_norm_weights_at_one_are_found_without_any_training(write: Any) -> None:
    """flame 47, speculators 765: RMSNorm weights that never moved in a whole pre-training."""
    found = scan(write({f"layers.{i}.norm.weight": torch.ones(64, dtype=BF16) for i in range(3)}))
    (finding,) = found.findings
    assert finding == Finding(
        "ones",
        ("layers.0.norm.weight", "layers.1.norm.weight", "layers.2.norm.weight"),
        "100 % of entries are exactly 1.0: never trained, or every step was rounded away (at 1.0 bfloat16 takes no "
        "step of less than 2^-9 down or 2^-8 up)",
        1.0,
    )


def test_the_smallest_steps_that_the_sentence_names_are_right() -> None:
    one = torch.ones((), dtype=F32)
    for dtype, p in ((BF16, 8), (F16, 11)):
        assert (one - 2.0 ** -(p + 1) * 1.001).to(dtype) < 1
        assert (one - 2.0 ** -(p + 1) * 0.999).to(dtype) == 1
        assert (one + 2.0**-p * 1.001).to(dtype) > 1
        assert (one + 2.0**-p * 0.999).to(dtype) == 1


def test_words_that_did_not_change_between_two_checkpoints(write: Any) -> None:
    before, after = model(), model()
    after["head.weight"][:16] += 1.0
    after["wide"] += 1.0
    after["ids"][3] = 7
    del after["small"]
    found = scan(write(before, "a"), write({**after, "new": torch.zeros(3)}, "b"))
    facts = by_name(found)
    assert facts["head.weight"].same == int((before["head.weight"] == after["head.weight"]).sum()) == 48 * 32
    assert facts["wide"].same == 0
    assert facts["ids"].same == 19
    assert facts["small"].same is None
    assert (found.only_here, found.only_there) == (("small",), ("new",))
    assert found.same_share == pytest.approx((768 + 48 * 32 + 64) / (768 + 64 * 32 + 64))
    assert ("unchanged", "head.weight") in kinds(found)
    assert found.findings[0].kind == "ones"
    (said,) = [one for one in found.findings if one.kind == "unchanged" and "head.weight" in one.tensors]
    assert said.tensors == ("head.bias", "head.weight", "norm.weight")
    assert said.says.startswith("75 % to 100 % of the words are bit for bit the same")
    assert said.share == 0.75
    assert ("unchanged", "wide") not in kinds(found)


@pytest.mark.parametrize(
    ("there", "why"),
    [(torch.zeros(4, 3), "has shape [4, 3] there"), (torch.zeros(3, 4, dtype=BF16), "is bfloat16 there")],
)
def test_tensors_that_cannot_be_compared_say_why(write: Any, there: Tensor, why: str) -> None:
    facts = by_name(scan(write({"w": torch.zeros(3, 4)}, "a"), write({"w": there}, "b")))
    assert (facts["w"].same, facts["w"].other) == (None, why)


def test_a_bit_is_a_difference_and_so_is_the_sign_of_zero(write: Any) -> None:
    one = torch.zeros(32, dtype=BF16)
    other = one.clone()
    other[0] = -0.0
    assert by_name(scan(write({"w": one}, "a"), write({"w": other}, "b")))["w"].same == 31


def test_pieces_of_a_tensor_add_up(write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = scan(write(model(), "a"), write(model(), "b"))
    monkeypatch.setattr(stored, "CHUNK_BYTES", 24)
    reported: list[tuple[int, int]] = []
    pieces = scan(write(model(), "a"), write(model(), "b"), progress=lambda *done: reported.append(done))
    assert pieces == whole
    assert len(reported) > 50
    assert reported[-1][0] == reported[-1][1]


def training(tmp_path: Path, step: Any, second: torch.dtype, beta2: float) -> Path:
    state = {"step": step, "exp_avg": torch.zeros(32), "exp_avg_sq": torch.rand(32).to(second)}
    path = tmp_path / "training.pt"
    groups = [{"lr": 1e-3, "betas": (0.9, beta2), "params": [0]}]
    torch.save(
        {"model": {"w": torch.randn(32)}, "optimizer": {"state": {0: state}, "param_groups": groups}}, path
    )
    return path


def test_state_of_an_optimizer(tmp_path: Path) -> None:
    """Optimisers.jl 215 and torchao 4915: β2 that rounds to 1, a step counter that stops."""
    found = scan(training(tmp_path, torch.tensor(256.0, dtype=BF16), BF16, 0.999))
    said = {finding.kind: finding for finding in found.findings}
    assert said["counter"].tensors == ("optimizer.state.0.step",)
    assert "stops at 256 (it stands at 256)" in said["counter"].says
    assert said["state"].tensors == ("optimizer.state.0.exp_avg_sq",)
    assert "β2 itself rounds to 1" in said["state"].says
    counter = torch.tensor(256.0, dtype=BF16)
    assert counter + 1 == counter


@pytest.mark.parametrize(
    ("second", "beta2", "sticks"), [(BF16, 0.95, False), (F32, 0.999, False), (F16, 0.9999, True)]
)
def test_a_second_moment_sticks_where_one_step_is_below_its_spacing(
    tmp_path: Path, second: torch.dtype, beta2: float, sticks: bool
) -> None:
    found = scan(training(tmp_path, torch.tensor(5.0), second, beta2))
    assert any(finding.kind == "state" for finding in found.findings) is sticks
    assert not any(finding.kind == "counter" for finding in found.findings)


def test_views_in_a_file_of_torch(tmp_path: Path) -> None:
    base = torch.arange(100.0)
    base[10:20] = 1.0
    saved = {
        "part": base[10:20],
        "turned": torch.ones(4, 5).t(),
        "gaps": base[::2],
        "repeated": torch.ones(1).expand(30),
        "nested": [{"deep": torch.zeros(3)}, "text", 4, None],
        "none": torch.zeros(0),
    }
    torch.save(saved, tmp_path / "x.pt")
    found = scan(tmp_path / "x.pt")
    facts = by_name(found)
    assert facts["part"].ones == 10
    assert facts["turned"].ones == 20
    assert facts["nested.0.deep"].zeros == 3
    assert facts["none"].numel == 0
    assert found.skipped == {
        "gaps": "a view with gaps or repetitions",
        "repeated": "a view with gaps or repetitions",
    }
    torch.save({**saved, "turned": torch.ones(5, 4)}, tmp_path / "y.pt")
    assert (
        by_name(scan(tmp_path / "x.pt", tmp_path / "y.pt"))["turned"].other == "lies in another order there"
    )


def sharded(folder: Path, *, extra: dict[str, str] | None = None) -> Path:
    folder.mkdir()
    tensors = model()
    names = list(tensors)
    weight_map = {}
    for number, some in enumerate((names[:3], names[3:])):
        file = f"model-{number}.safetensors"
        save_file({name: tensors[name] for name in some}, folder / file)
        weight_map.update(dict.fromkeys(some, file))
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": {**weight_map, **(extra or {})}}))
    return index


def test_shards_by_their_index_and_by_their_folder(tmp_path: Path) -> None:
    index = sharded(tmp_path / "sharded")
    save_file(model(), tmp_path / "whole.safetensors")
    whole = by_name(scan(tmp_path / "whole.safetensors"))
    assert by_name(scan(index)) == by_name(scan(tmp_path / "sharded")) == whole


class Trap:
    def __reduce__(self) -> Any:
        return os.system, ("touch trapped",)


def test_nothing_is_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"w": torch.zeros(3), "trap": Trap()}, "trap.pt")
    Path("plain.pt").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(CheckpointError, match="may run any code"):
        scan(Path("trap.pt"))
    with pytest.raises(CheckpointError, match=r"no file of torch\.save"):
        scan(Path("plain.pt"))
    assert not Path("trapped").exists()


def damaged(folder: Path, what: str) -> tuple[Path, Path | None]:
    """Files that are wrong in one way each."""
    good = folder / "good.safetensors"
    save_file(model(), good)
    content = good.read_bytes()
    path = folder / f"{what}.safetensors"
    other = None
    if what == "short":
        path.write_bytes(content[:5])
    elif what == "header":
        path.write_bytes((1 << 40).to_bytes(8, "little") + content[8:])
    elif what == "json":
        path.write_bytes((20).to_bytes(8, "little") + b"[" * 20)
    elif what == "cut":
        path.write_bytes(content[:-3])
    elif what == "shape":
        path.write_bytes(content.replace(b'"shape":[768]', b'"shape":[769]'))
    elif what == "ending":
        path = folder / "model.gguf"
        path.write_bytes(content)
    elif what == "empty folder":
        path = folder / "empty"
        path.mkdir()
    elif what == "outside":
        path = sharded(folder / "sharded", extra={"x": "../good.safetensors"})
    elif what == "promise":
        path = sharded(folder / "sharded", extra={"x": "model-0.safetensors"})
    elif what == "index":
        path = folder / "x.index.json"
        path.write_text("[]")
    elif what == "distributed":
        path = folder / "dcp"
        path.mkdir()
        (path / ".metadata").write_bytes(b"")
    elif what == "zip":
        path = folder / "cut.pt"
        torch.save(model(), path)
        path.write_bytes(path.read_bytes()[:-40])
    elif what == "nothing":
        path = folder / "nothing.pt"
        torch.save({"lr": 1.0}, path)
    elif what == "strangers":
        path, other = good, folder / "stranger.safetensors"
        save_file({"another": torch.zeros(3)}, other)
    return path, other


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("short", "cut off"),
        ("header", "its header does not fit"),
        ("json", "header cannot be read"),
        ("cut", "lies outside of it"),
        ("shape", "lies outside of it"),
        ("ending", "neither .safetensors nor"),
        ("empty folder", "name a file in it"),
        ("outside", "outside of its folder"),
        ("promise", "does not hold it"),
        ("index", "no weight_map"),
        ("distributed", "dcp_to_torch"),
        ("zip", "save it again"),
        ("nothing", "holds no tensors"),
        ("strangers", "no tensor in common"),
    ],
)
def test_files_that_are_wrong_say_how(tmp_path: Path, what: str, says: str) -> None:
    with pytest.raises(CheckpointError, match=says.replace(".", r"\.")):
        scan(*damaged(tmp_path, what))


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no"):
        scan(tmp_path / "nowhere.pt")


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tensors = model()
    save_file({**tensors, "<b>": torch.zeros(20)}, tmp_path / "a.safetensors")
    save_file({**tensors, "wide": tensors["wide"] + 1}, tmp_path / "b.safetensors")
    words = ["scan", str(tmp_path / "a.safetensors"), str(tmp_path / "b.safetensors")]

    def out(*more: str) -> str:
        with pytest.raises(SystemExit, match="0"):
            application.main([*words, *more])
        return capsys.readouterr().out

    shown = out("--html", str(tmp_path / "page.html"))
    assert "norm.weight" in shown
    assert "100 % of entries are exactly 1.0" in shown
    assert "8 tensors" in shown
    written = (tmp_path / "page.html").read_text()
    assert "&lt;b&gt;" in written
    assert "<b>" not in written
    document = json.loads(out("--json"))
    assert document["same_share"] == 1.0
    assert document["tensors"][0].keys() >= {"name", "ones", "zeros", "narrow", "same"}


def test_page_shows_every_tensor(tmp_path: Path) -> None:
    save_file(model(), tmp_path / "a.safetensors")
    found = scan(tmp_path / "a.safetensors")
    shown = page(found)
    assert all(f'<td class="name">{name}</td>' in shown for name in model())
    assert shown.count("<tr>") == len(model()) + 1


MEMORY = """
import sys
from pathlib import Path

def peak():
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])

from roundoff.scan import scan
before = peak()
scan(Path(sys.argv[1]))
print(before, peak())
"""


def memory_of_scanning(path: Path) -> tuple[int, int]:
    """Kilobytes at the most of a process, before it scans and afterwards."""
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, str(path)], capture_output=True, text=True, check=True
    )
    before, after = map(int, done.stdout.split())
    return before, after


def huge(path: Path, megabytes: int) -> Path:
    """A checkpoint of one large tensor, mostly a hole in the file."""
    if path.suffix == ".pt":
        torch.save({"w": torch.zeros(megabytes << 19, dtype=BF16)}, path)
        return path
    size = megabytes << 20
    header = json.dumps({"w": {"dtype": "BF16", "shape": [size // 2], "data_offsets": [0, size]}}).encode()
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + size)
    return path


needs_proc = pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="reads the peak of memory from /proc"
)


@needs_proc
@pytest.mark.parametrize("ending", ["safetensors", "pt"])
def test_memory_does_not_grow_with_the_file(tmp_path: Path, ending: str) -> None:
    before, after = memory_of_scanning(huge(tmp_path / f"large.{ending}", 192))
    assert after - before < 96_000


@needs_proc
@pytest.mark.scale
def test_two_gigabytes_in_half_a_gigabyte_of_memory(tmp_path: Path) -> None:
    _, after = memory_of_scanning(huge(tmp_path / "large.safetensors", 2048))
    assert after < 500_000
