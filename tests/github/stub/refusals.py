"""GitHub's ways to say no."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

DOCS = "https://docs.github.com/rest"


class Refusal(Exception):
    """An answer that is no success; `errors` go with a 422."""

    def __init__(
        self, status: int, message: str, errors: list[Any] | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body: dict[str, Any] = {"message": message, "documentation_url": DOCS, "status": str(status)}
        if errors is not None:
            self.body["errors"] = errors
        self.headers = dict(headers or {})


def not_found() -> Refusal:
    return Refusal(404, "Not Found")


def invalid(resource: str, field: str, code: str, message: str | None = None) -> Refusal:
    """A 422 about one field; code "custom" comes with a message."""
    error = {"resource": resource, "code": code, "field": field} | ({"message": message} if message else {})
    return Refusal(422, "Validation Failed", [error])


def custom(resource: str, message: str) -> Refusal:
    """A 422 that is about no single field."""
    return Refusal(422, "Validation Failed", [{"resource": resource, "code": "custom", "message": message}])


def check_length(resource: str, field: str, value: str | None, limit: int) -> None:
    """GitHub counts characters."""
    if value is not None and len(value) > limit:
        raise custom(resource, f"{field} is too long (maximum is {limit} characters)")
