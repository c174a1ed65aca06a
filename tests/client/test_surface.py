"""The public names, and what importing them costs."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time

import pytest

import roundoff

EXPORTED = [
    "Client",
    "CollageAdamW",
    "Run",
    "__version__",
    "full_precision_state_dict",
    "init",
    "to_low_precision",
    "to_pandas",
    "to_polars",
    "watch",
]

WITHOUT_TORCH = """
    import sys
    from importlib.abc import MetaPathFinder

    class NoTorch(MetaPathFinder):
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] == "torch":
                raise ModuleNotFoundError("No module named 'torch'", name="torch")

    sys.meta_path.insert(0, NoTorch())
"""


def python(program: str) -> str:
    """What a program prints, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_public_names_are_these() -> None:
    assert roundoff.__all__ == EXPORTED
    assert set(EXPORTED) <= set(dir(roundoff))
    for name in EXPORTED:
        assert getattr(roundoff, name) is not None


def test_star_import_gives_them_all() -> None:
    names: dict[str, object] = {}
    exec("from roundoff import *", names)
    assert set(EXPORTED) <= set(names)


def test_watch_is_a_callable_and_the_package() -> None:
    assert callable(roundoff.watch)
    from roundoff.watch import measure

    assert roundoff.watch.measure is measure  # type: ignore[attr-defined]


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'CollageAdam'"):
        _ = roundoff.CollageAdam  # type: ignore[attr-defined]


def test_import_is_quick_and_loads_no_torch() -> None:
    program = "import sys, roundoff; print([m for m in ('torch', 'httpx', 'pydantic') if m in sys.modules])"
    took = []
    for _ in range(3):
        began = time.monotonic()
        assert python(program) == "[]"
        took.append(time.monotonic() - began)
    start = time.monotonic()
    python("")
    assert min(took) - (time.monotonic() - start) < 0.3


@pytest.mark.parametrize("name", ["CollageAdamW", "to_low_precision", "full_precision_state_dict", "watch"])
def test_without_torch_its_names_say_what_to_install(name: str) -> None:
    program = f"""
        try:
            from roundoff import {name}
        except ImportError as error:
            print(error)
    """
    said = python(textwrap.dedent(WITHOUT_TORCH) + textwrap.dedent(program))
    assert name in said
    assert "pip install 'roundoff[torch]'" in said


def test_without_torch_the_rest_works() -> None:
    program = """
        import roundoff, roundoff.metrics, roundoff.wire, roundoff.cli
        run = roundoff.init("p", mode="disabled")
        client = roundoff.Client("http://127.0.0.1:1")
        print(run.project, client.url, "torch" in sys.modules)
    """
    said = python(textwrap.dedent(WITHOUT_TORCH) + textwrap.dedent(program))
    assert said == "p http://127.0.0.1:1 False"
