"""A scan: all tensors of a checkpoint, alone or against an earlier one, and what they tell."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from roundoff.metrics import percent

from .checkpoint import open_checkpoint
from .findings import KINDS, SIXTEEN, Finding, findings_of
from .look import TensorFacts, look
from .tensors import Checkpoint, CheckpointError


@dataclass(frozen=True, slots=True)
class Scan:
    """What was found. `only_here`, `only_there`: names that one of two checkpoints lacks; `skipped`: not read, why."""

    path: Path
    other: Path | None
    tensors: tuple[TensorFacts, ...]
    findings: tuple[Finding, ...]
    only_here: tuple[str, ...]
    only_there: tuple[str, ...]
    skipped: dict[str, str]

    @property
    def same_share(self) -> float | None:
        """Share of all 16-bit words that are bit for bit the same in both; None without any to compare."""
        compared = [facts for facts in self.tensors if facts.same is not None and facts.dtype in SIXTEEN]
        words = sum(facts.numel for facts in compared)
        return sum(facts.same or 0 for facts in compared) / words if words else None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        document = asdict(self)
        document.update(
            path=str(self.path),
            other=None if self.other is None else str(self.other),
            same_share=self.same_share,
        )
        return document


def scan(
    path: Path, other: Path | None = None, *, progress: Callable[[int, int], None] = lambda *_: None
) -> Scan:
    """Scan a checkpoint, and compare it with another of the same model if there is one.

    Reads in pieces of a few megabytes. `progress` is told of bytes read and bytes in all. Raises FileNotFoundError
    and CheckpointError.
    """
    here = open_checkpoint(path)
    there = None if other is None else open_checkpoint(other)
    if not here.tensors:
        raise CheckpointError(f"{path} holds no tensors that can be read")
    if there is not None and not here.tensors.keys() & there.tensors.keys():
        raise CheckpointError(f"{path} and {other} have no tensor in common")
    total = here.nbytes + sum(there.tensors[n].nbytes for n in here.tensors if there and n in there.tensors)
    done = 0

    def read(count: int) -> None:
        nonlocal done
        done += count
        progress(done, total)

    facts = []
    for name, tensor in sorted(here.tensors.items(), key=lambda item: _natural(item[0])):
        facts.append(look(tensor, there.tensors.get(name) if there else None, read=read))
    return Scan(
        path,
        other,
        tuple(facts),
        tuple(_merged([found for one in facts for found in findings_of(one, here.numbers)])),
        _missing(here, there),
        _missing(there, here),
        {**here.skipped, **(there.skipped if there else {})},
    )


def _natural(name: str) -> list[tuple[int, str]]:
    """A key that puts layer 9 before layer 10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def _missing(one: Checkpoint | None, other: Checkpoint | None) -> tuple[str, ...]:
    if one is None or other is None:
        return ()
    return tuple(name for name in one.tensors if name not in other.tensors and name not in other.skipped)


def _merged(found: list[Finding]) -> Iterator[Finding]:
    """The same said of many tensors, once, what matters most first."""
    groups: dict[tuple[str, str], list[Finding]] = {}
    for one in sorted(found, key=lambda finding: KINDS.index(finding.kind)):
        groups.setdefault((one.kind, one.says.format(share="")), []).append(one)
    for alike in groups.values():
        shares = [one.share for one in alike if one.share is not None]
        said = dict.fromkeys(percent(share) for share in (min(shares), max(shares))) if shares else {}
        yield replace(
            alike[0],
            tensors=tuple(name for one in alike for name in one.tensors),
            says=alike[0].says.format(share=" to ".join(said)),
            share=min(shares, default=None),
        )
