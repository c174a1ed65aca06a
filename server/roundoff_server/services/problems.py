"""What a service refuses, in terms that a route can turn into a problem document."""

from __future__ import annotations


class FieldError(ValueError):
    """Input that does not fit; `field` is its path in the body or query."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message


class TakenError(FieldError):
    """Input that would fit, were it not for what is there already."""
