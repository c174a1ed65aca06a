"""The machine that figures were taken on, as far as it explains them."""

from __future__ import annotations

import os
import platform
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
from pydantic import BaseModel, ConfigDict


class Machine(BaseModel):
    """What a reader needs to compare figures with their own; sizes in bytes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cpu: str
    cores: int
    threads: int
    """`torch.get_num_threads()`."""
    instruction_set: str
    """The widest that PyTorch uses here."""
    memory: int
    gpu: str | None
    system: str
    python: str
    torch: str
    roundoff: str
    load_before: float | None
    """Processes that ran already, a minute's average; anything well above 0 spoils the figures."""

    @property
    def busy(self) -> bool:
        """Whether others want more than a tenth of it."""
        return self.load_before is not None and self.load_before > 0.1 * self.cores

    @property
    def sentence(self) -> str:
        """All of it on one line."""
        gpu = f", {self.gpu}" if self.gpu else ""
        return (
            f"{self.cpu}{gpu}, {self.cores} cores, {self.threads} threads, {self.instruction_set}, "
            f"{self.memory / 2**30:.0f} GiB, {self.system}, Python {self.python}, PyTorch {self.torch}, "
            f"roundoff {self.roundoff}"
        )


def this_machine(device: torch.device) -> Machine:
    """The one that this runs on, before anything is timed."""
    return Machine(
        cpu=_cpu_model(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        threads=torch.get_num_threads(),
        instruction_set=torch.backends.cpu.get_cpu_capability(),
        memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        gpu=torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        system=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        torch=torch.__version__,
        roundoff=version("roundoff"),
        load_before=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    )


def version_of(package: str) -> str | None:
    """The installed version of a distribution, None where it is absent."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu_model() -> str:
    """The model's name; families and steppings too where the name hides them, as virtual machines do."""
    try:
        facts = dict(re.findall(r"^([^\t:]+?)\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE))
    except OSError:
        facts = {}
    name = facts.get("model name") or platform.processor() or platform.machine()
    if "cpu family" not in facts:
        return name
    return f"{name} (family {facts['cpu family']}, model {facts.get('model', '?')})"
