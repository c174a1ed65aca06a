"""What of a configuration leaves the machine."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from roundoff.delivery.masking import MASK, presentable
from roundoff.wire import RunStart


@pytest.mark.parametrize(
    "key",
    ["token", "hf_token", "HF_TOKEN", "apiKey", "api_key", "WANDB_API_KEY", "password", "db-password", "client_secret",
     "awsSecretAccessKey", "private_key", "credentials", "Authorization", "auth_tokens"],
)  # fmt: skip
def test_what_looks_secret_is_masked(key: str) -> None:
    assert presentable({key: "hunter2"}) == {key: MASK}


@pytest.mark.parametrize(
    ("key", "value"),
    [("max_tokens", 4096), ("tokenizer", "gpt2"), ("eos_token", "</s>"), ("pad_token_id", 0), ("author", "Ada"),
     ("monkey", "key"), ("key", "C major"), ("secret", 0.5), ("tokens_per_second", 1e5), ("api", "rest")],
)  # fmt: skip
def test_what_does_not_is_kept(key: str, value: object) -> None:
    assert presentable({key: value}) == {key: value}


def test_secrets_inside_and_by_their_form() -> None:
    shown = presentable(
        {
            "storage": {"password": "x", "host": "h", "list": [{"token": "y"}]},
            "passwords": ["a", "b"],
            "model": "hf_abcdefghijklmnopqrstuv",
            "database": "postgresql://ada:lovelace@host/db",
        }
    )
    assert shown == {
        "storage": {"password": MASK, "host": "h", "list": [{"token": MASK}]},
        "passwords": [MASK, MASK],
        "model": MASK,
        "database": f"postgresql://ada:{MASK}@host/db",
    }


@dataclass
class Hyper:
    lr: float
    api_key: str


class Rude:
    def __str__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("config", "shown"),
    [
        (None, {}),
        (Hyper(0.1, "x"), {"lr": 0.1, "api_key": MASK}),
        (argparse.Namespace(lr=0.1, token="x"), {"lr": 0.1, "token": MASK}),
        ({"path": Path("/data"), 3: {1}}, {"path": "/data", "3": [1]}),
        ({"rude": Rude()}, {"rude": "<Rude>"}),
        ("text", {"config": "text"}),
    ],
)
def test_every_form_becomes_json(config: Any, shown: object) -> None:
    assert presentable(config) == shown
    RunStart(project="p", name="n", token="t", config=presentable(config))


def test_a_configuration_that_holds_itself_ends() -> None:
    loop: dict[str, Any] = {}
    loop["again"] = loop
    text = RunStart(project="p", name="n", token="t", config=presentable(loop)).model_dump_json()
    assert '"again"' in text
