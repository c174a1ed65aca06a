"""Answers to draw, and the pages over them."""

from __future__ import annotations

import pytest
from memory_source import MemorySource
from page_client import PageClient

from simulated_training import Training, simulate


@pytest.fixture(scope="session")
def training() -> Training:
    """A plain bfloat16 training whose norm weights stall."""
    return simulate(blocks=2, steps=300, every=5)


@pytest.fixture
def source(training: Training) -> MemorySource:
    """One stalling run called `bf16` and one healthy run called `plus`."""
    source = MemorySource()
    source.add("bf16", training)
    source.add("plus", simulate(blocks=1, steps=100, strategy="plus"), state="finished")
    return source


@pytest.fixture
def client(source: MemorySource) -> PageClient:
    """The pages alone, without a server around them."""
    return PageClient(source)
