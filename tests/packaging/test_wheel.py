"""The wheel, built and installed in an empty environment in another folder, serves pages without the internet."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(autouse=True)
def nothing_of_this_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even where the tests were told to find it."""
    monkeypatch.delenv("PYTHONPATH", raising=False)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--outdir", out, ROOT], check=True, capture_output=True
    )
    return next(out.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment that holds the wheel with the server, and nothing of this repository."""
    folder = tmp_path_factory.mktemp("empty")
    venv.create(folder / "venv")
    python = folder / "venv" / "bin" / "python"
    # This environment's pip fills it, and compiles nothing that is not imported: both take as long as the rest.
    command = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-compile"]
    command += ["--constraint", ROOT / "constraints.txt", f"{wheel}[server]"]
    subprocess.run(command, check=True, cwd=folder)
    return python


@pytest.fixture
def server(installed: Path, tmp_path: Path) -> Iterator[str]:
    command = [installed, "-m", "roundoff", "serve", "--port", "0", "--database", str(tmp_path / "r.db")]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        assert process.stdout is not None
        line = ""
        while "http://" not in line and (read := process.stdout.readline()):
            line += read
        yield "http://" + line.split("http://")[1].split()[0].rstrip("/.")
    finally:
        process.terminate()
        process.wait(10)
        assert process.stdout is not None
        process.stdout.close()


def test_the_wheel_holds_what_is_not_python(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for wanted in (
        "roundoff/py.typed",
        "roundoff_server/database/migrations/env.py",
        "roundoff_dashboards/templates/run.html",
        "roundoff_dashboards/static/app.js",
        "roundoff_dashboards/static/fonts/OFL.txt",
    ):
        assert wanted in names
    assert any(name.endswith(".woff2") for name in names)
    assert any("migrations/versions/" in name for name in names)


def test_the_wheel_holds_the_c_step_for_every_python_of_its_platform(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert "roundoff/kernels/cpu/source/step.c" in names, "so that a stale library is noticed"
    assert any(name.startswith("roundoff/kernels/cpu/_step.") for name in names)
    assert "-py3-none-" in wheel.name
    assert not wheel.name.endswith("-any.whl")


def test_without_a_compiler_the_wheel_is_pure_python(tmp_path: Path) -> None:
    source = tmp_path / "source"
    ignored = shutil.ignore_patterns(".*", "_step.*", "__pycache__", "tests", "node_modules", "results")
    shutil.copytree(ROOT, source, ignore=ignored)
    command = [sys.executable, "-m", "build", "--wheel", "--outdir", tmp_path, source]
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, env={**os.environ, "CC": "no-such-compiler"}
    )
    assert "without its C step" in done.stdout + done.stderr
    wheel = next(tmp_path.glob("*.whl"))
    assert wheel.name.endswith("-py3-none-any.whl")
    assert not any("/cpu/_step." in name for name in zipfile.ZipFile(wheel).namelist())


def test_it_serves_pages_without_torch(installed: Path, server: str) -> None:
    with httpx.Client(base_url=server, timeout=30) as client:
        assert client.get("/healthz").status_code == 200
        page = client.get("/")
        assert page.status_code == 200
        assert "roundoff" in page.text
        assert client.get("/api/v1/runs").json()["runs"] == []
        for path in ("/static/app.js", "/static/app.css", "/static/plotly.min.js"):
            assert client.get(path).status_code == 200, path
    code = "import roundoff, importlib.util; print(importlib.util.find_spec('torch'), roundoff.__file__)"
    done = subprocess.run([installed, "-c", code], capture_output=True, text=True, check=True, cwd="/")
    assert done.stdout.startswith("None ")
    assert str(ROOT) not in done.stdout


def test_without_torch_the_rest_says_plainly_what_is_missing(installed: Path) -> None:
    done = subprocess.run(
        [installed, "-c", "import roundoff; roundoff.CollageAdamW"],
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
    )
    assert done.returncode == 1
    assert "pip install 'roundoff[torch]'" in done.stderr


def test_the_command_line_works(installed: Path, tmp_path: Path) -> None:
    env = {**os.environ, "ROUNDOFF_DATABASE_URL": str(tmp_path / "none.db")}
    roundoff = installed.parent / "roundoff"
    version = subprocess.run(
        [roundoff, "version", "--json"], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert '"roundoff"' in version.stdout
    missing = subprocess.run(
        [roundoff, "runs", "--json"], capture_output=True, text=True, check=False, cwd=tmp_path, env=env
    )
    assert missing.returncode == 1
    assert "Traceback" not in missing.stderr
    assert "none.db" in missing.stderr
