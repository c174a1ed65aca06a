"""Process groups that the distributed tests share: starting one takes seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from ranks import Ranks


@pytest.fixture(scope="session")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[int], Ranks]]:
    """`ranks(2)`: two processes that know each other, started when first asked for."""
    started: dict[int, Ranks] = {}

    def of(world: int) -> Ranks:
        if world not in started or not started[world].alive:
            started[world] = Ranks(world, tmp_path_factory.mktemp("ranks"))
        return started[world]

    yield of
    for group in started.values():
        group.close()
