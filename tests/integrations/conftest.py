"""No hub, no telemetry, no other tracker; what frameworks warn about in themselves is theirs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Before anything loads the frameworks.
os.environ.update(
    HF_HUB_OFFLINE="1", WANDB_MODE="offline", WANDB_SILENT="true", MLFLOW_DISABLE_TELEMETRY="true"
)
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import pytest

THEIRS = (
    "ignore::DeprecationWarning",
    "ignore::FutureWarning",
    "ignore::PendingDeprecationWarning",
    "ignore::UserWarning:torch",
    "ignore::UserWarning:lightning",
    "ignore::UserWarning:pytorch_lightning",
    "ignore::UserWarning:transformers",
    "ignore::ResourceWarning",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            for pattern in THEIRS:
                item.add_marker(pytest.mark.filterwarnings(pattern))


@pytest.fixture(scope="module")
def shared_server(start_server: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a real server for tests that look at their own runs only."""
    with start_server(f"sqlite:///{tmp_path_factory.mktemp('shared') / 'served.db'}") as running:
        yield running.url
