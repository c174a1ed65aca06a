"""Without its framework each integration says what to install; nothing else of roundoff asks for one."""

from __future__ import annotations

import subprocess
import sys

HIDING = """
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {hidden!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Hidden())
"""
EACH = """
from importlib import import_module
for name in ("transformers", "accelerate", "lightning", "dlfw_inspect"):
    try:
        import_module(f"roundoff.integrations.{name}")
    except ImportError as error:
        print(error)
import roundoff.integrations.mirror
"""
OLDER = """
from roundoff.integrations.lightning import RoundoffCallback
print(*[base.__module__ for base in RoundoffCallback.__mro__ if base.__name__ == "Callback"][1:])
"""
NOTHING = """
import roundoff.run, roundoff.watch, roundoff.cli
print(*[name for name in sys.modules if name.startswith("roundoff.integrations")])
"""
ALL = ("transformers", "accelerate", "lightning", "pytorch_lightning", "nvdlfw_inspect", "wandb", "mlflow")


def printed(code: str, *hidden: str) -> str:
    script = HIDING.format(hidden=hidden) + code
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_each_says_what_to_install() -> None:
    lines = printed(EACH, *ALL).splitlines()
    assert [line.split(" needs ")[0] for line in lines] == [
        f"roundoff.integrations.{name}"
        for name in ("transformers", "accelerate", "lightning", "dlfw_inspect")
    ]
    assert [line.split("pip install ")[1] for line in lines] == [
        "'transformers[torch]'", "accelerate", "lightning", "nvdlfw-inspect",
    ]  # fmt: skip


def test_lightning_is_used_under_the_name_that_is_installed() -> None:
    assert printed(OLDER, "lightning") == "pytorch_lightning.callbacks.callback\n"


def test_nothing_else_imports_an_integration() -> None:
    assert printed(NOTHING, *ALL) == "\n"
