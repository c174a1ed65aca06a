"""Process groups that the distributed tests share, since starting one takes seconds; none outlives the folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from ranks import Ranks

_started: dict[int, Ranks] = {}


@pytest.fixture
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Ranks]:
    """`ranks(2)`: two processes that know each other, started when first asked for."""

    def of(world: int) -> Ranks:
        if world not in _started or not _started[world].alive:
            _started[world] = Ranks(world, tmp_path_factory.mktemp("ranks"))
        return _started[world]

    return of


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """End the processes after the last test of this folder."""
    if nextitem is None or Path(__file__).parent not in nextitem.path.parents:
        while _started:
            _started.popitem()[1].close()
