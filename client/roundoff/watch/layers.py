"""The watched layers: chosen by name, numbered as they were declared, and joined by those that appear later."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from torch import Tensor, nn
from torch.optim import Optimizer

from roundoff.wire import Layer

from .placement import placement
from .roster import Member, roster
from .shards import local
from .words import sampled_words

Patterns = str | Iterable[str]
"""Shell patterns for the full names of parameters; one that begins with `!` leaves out."""


@dataclass(frozen=True, slots=True)
class Watched:
    """One watched parameter: who it is, the number it was declared by, and its words when the watch began."""

    member: Member
    number: int
    start: Tensor
    sharded: bool

    @property
    def part(self) -> Tensor:
        """What this process holds of it, without its history of gradients."""
        return local(self.member.param.detach())

    def declared(self) -> Layer:
        """As it is declared to a server."""
        layer = self.member.declared(self.number)
        return layer.model_copy(update={"placement": "sharded"}) if self.sharded else layer


class Layers:
    """Every parameter of an optimizer that a watch measures. `patterns` None: all; `replica`: see `placement`."""

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, patterns: Patterns | None, replica: int
    ) -> None:
        self._model, self._replica = model, replica
        self._patterns = None if patterns is None else _listed(patterns)
        self.known: set[Tensor] = set()
        """Parameters that were looked at, watched or not."""
        self.watched: dict[Tensor, Watched] = {}
        self.names: dict[Tensor, str] = {}
        """Of those that are watched."""
        self._marks: dict[Tensor, str] = {}
        self._released: list[Layer] = []
        members = roster(model, optimizer)
        self._check(members)
        self._take(members)

    @property
    def sharded(self) -> bool:
        """Whether other ranks hold parts of what is measured here."""
        return any(one.sharded for one in self.watched.values())

    @property
    def declared(self) -> list[Layer]:
        """All of them as they are declared to a server; after `release` as they were."""
        return self._released or [self._declared(one) for one in self.watched.values()]

    def newcomers(self, optimizer: Optimizer) -> list[Watched]:
        """Take in what has appeared since: groups that were added, parameters that were thawed.

        Raises ValueError as `roster` does, once for each.
        """
        fresh = [
            param
            for group in optimizer.param_groups
            for param in group["params"]
            if param not in self.known and param.requires_grad
        ]
        if not fresh:
            return []
        self.known.update(fresh)
        new = set(fresh)
        return self._take([member for member in roster(self._model, optimizer) if member.param in new])

    def mark(self, marks: Mapping[Tensor, str]) -> list[Layer]:
        """Put a mark in front of the strategies of these, "" for none; returns those for which it is another one."""
        changed = [param for param, mark in marks.items() if self._marks.get(param, "") != mark]
        self._marks.update(marks)
        return [self._declared(self.watched[param]) for param in changed]

    def _declared(self, one: Watched) -> Layer:
        layer, mark = one.declared(), self._marks.get(one.member.param, "")
        return layer.model_copy(update={"strategy": f"{mark}{layer.strategy}"}) if mark else layer

    def release(self) -> None:
        """Let go of every tensor; what was declared can still be read."""
        self._released = self.declared
        self._model, self.watched, self.known = nn.Module(), {}, set()
        self._marks = {}
        self.names.clear()

    def _take(self, members: Sequence[Member]) -> list[Watched]:
        taken = []
        for member in members:
            self.known.add(member.param)
            how, here = placement(member.param, self._replica)
            if here and self._chosen(member.name):
                start = sampled_words(local(member.param.detach()))
                one = Watched(member, len(self.watched), start, how == "sharded")
                self.watched[member.param] = one
                self.names[member.param] = member.name
                taken.append(one)
        return taken

    def _chosen(self, name: str) -> bool:
        if self._patterns is None:
            return True
        wanted = [pattern for pattern in self._patterns if not pattern.startswith("!")]
        left_out = [pattern[1:] for pattern in self._patterns if pattern.startswith("!")]
        return (not wanted or _matches(name, wanted)) and not _matches(name, left_out)

    def _check(self, members: Sequence[Member]) -> None:
        if self._patterns is None or any(self._chosen(member.name) for member in members):
            return
        names = [member.name for member in members]
        near = difflib.get_close_matches(self._patterns[0].strip("*!"), names, n=3, cutoff=0.0) or names[:3]
        raise ValueError(
            f"layers={self._patterns} leaves none of the {len(names)} parameters; names are such as "
            f"{', '.join(near)}. Patterns are those of the shell: * matches dots as well"
        )


def _listed(patterns: Patterns) -> list[str]:
    listed = (
        [patterns] if isinstance(patterns, str) else list(patterns) if isinstance(patterns, Iterable) else []
    )
    if not listed or not all(isinstance(one, str) for one in listed):
        raise TypeError(f"layers must be a pattern or several, got {patterns!r}")
    return listed


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
