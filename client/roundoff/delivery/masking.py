"""A run's configuration as it may leave this machine: plain JSON, with what looks secret masked."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from pydantic import JsonValue

MASK = "***"
MAX_TEXT = 10_000
MAX_DEPTH = 12

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_SECRET = frozenset(
    {
        "token",
        "secret",
        "password",
        "passwd",
        "passphrase",
        "pwd",
        "apikey",
        "credential",
        "credentials",
        "auth",
        "authorization",
        "cookie",
        "bearer",
    }
)
_SECRET_PAIRS = frozenset(
    {
        ("api", "key"),
        ("access", "key"),
        ("private", "key"),
        ("secret", "key"),
        ("signing", "key"),
        ("encryption", "key"),
        ("account", "key"),
        ("ssh", "key"),
    }
)
_VOCABULARY = frozenset(
    {
        "eos",
        "bos",
        "pad",
        "unk",
        "mask",
        "sep",
        "cls",
        "special",
        "stop",
        "start",
        "end",
        "image",
        "begin",
        "extra",
    }
)
"""`eos_token` and its like are words of a tokenizer."""
_SECRET_VALUE = re.compile(
    r"^(sk|pk|rk)-[\w-]{16,}$|^hf_\w{16,}$|^gh[pousr]_\w{16,}$|^github_pat_\w{16,}$|^glpat-[\w-]{16,}$"
    r"|^xox[abpr]-[\w-]{10,}$|^AKIA[0-9A-Z]{16}$|^eyJ[\w-]{10,}\.[\w-]{10,}\.|-----BEGIN [A-Z ]*PRIVATE KEY"
)
_URL_PASSWORD = re.compile(r"(?<=://)([^/\s:@]*):([^/\s@]+)@")


def presentable(config: object) -> dict[str, JsonValue]:
    """`config` (a mapping, a dataclass, a namespace, or None) as JSON data with secrets masked.

    A text is masked if its key has a word such as `token`, `secret`, `password` or `api_key`, or if it has
    the form of a known kind of key; numbers are kept (`max_tokens = 4096`). What is not JSON becomes text.
    """
    if config is None:
        return {}
    plain = _plain(config, "", 0)
    return plain if isinstance(plain, dict) else {"config": plain}


def looks_secret(key: str) -> bool:
    """Whether a key names something that must not be shown."""
    words = [word.lower() for word in _WORDS.findall(key)]
    for before, word in zip(["", *words], words, strict=False):
        if (word.removesuffix("s") in _SECRET or word in _SECRET) and before not in _VOCABULARY:
            return True
        if (before, word.removesuffix("s")) in _SECRET_PAIRS:
            return True
    return False


def _plain(value: object, key: str, depth: int) -> JsonValue:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value) if -(2**63) <= value < 2**63 else str(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, str):
        return _mask_text(value, key)
    if depth >= MAX_DEPTH:
        return "…"
    if (fields := _fields(value)) is not None:
        return {str(name)[:1024]: _plain(item, str(name), depth + 1) for name, item in fields.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item, key, depth + 1) for item in value]
    try:
        return _mask_text(str(value), key)
    except Exception:  # noqa: BLE001 - a stranger's __str__ may raise anything
        return f"<{type(value).__name__}>"


def _fields(value: object) -> Mapping[Any, Any] | None:
    if isinstance(value, Mapping):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if type(value).__name__ in ("Namespace", "SimpleNamespace"):
        return vars(value)
    return None


def _mask_text(text: str, key: str) -> str:
    if text and (looks_secret(key) or _SECRET_VALUE.search(text)):
        return MASK
    return _URL_PASSWORD.sub(rf"\1:{MASK}@", text)[:MAX_TEXT]
