"""Compile the C step while a wheel or an editable install is made; without a compiler the package is pure Python."""

from __future__ import annotations

import os
import runpy
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDER = Path("client", "roundoff", "kernels", "cpu")


class CompiledStep(BuildHookInterface):
    """One shared library per platform, for every Python version: its interface is plain C."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002
        if os.environ.get("ROUNDOFF_PURE"):
            return
        builder = runpy.run_path(str(Path(self.root, FOLDER, "build.py")))
        try:
            library: Path = builder["build"]()
        except builder["CannotBuildError"] as error:
            self.app.display_warning(f"roundoff without its C step, updates will be slower: {error}")
            return
        build_data["artifacts"].append(str(FOLDER / library.name))
        build_data["pure_python"] = False
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{platform}"
