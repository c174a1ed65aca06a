"""Answers as strict JSON: non-finite floats as the strings NaN, Infinity, -Infinity."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel
from pydantic_core import to_json
from starlette.responses import Response

JSON = "application/json"


def answer(value: BaseModel | Sequence[BaseModel], status: int = 200) -> Response:
    """One answer, or a list of them."""
    if isinstance(value, BaseModel):
        return Response(value.model_dump_json(), status, media_type=JSON)
    return Response(to_json(list(value), inf_nan_mode="strings"), status, media_type=JSON)
