"""Answers held against GitHub's own description of its API, and the requests that led to them too."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from tests.github.stub.app import Answer
from tests.github.tools import github_description

SWITCH = "METAINFER_TEST_OPENAPI"
"""Set to 1, every answer that the stub gives in any test is held against the description."""
_URI = "urn:github"
_ERRORS = ("basic-error", "validation-error", "validation-error-simple")


def checked_answers(answers: Sequence[Answer]) -> list[str]:
    """What is wrong with them; nothing is looked at unless the switch is set."""
    if os.environ.get(SWITCH) != "1":
        return []
    description = read_description(github_description())
    return [problem for answer in answers for problem in description.problems(answer)]


@cache
def read_description(path: Path) -> Description:
    """Reading 13 MB takes half a second: done once."""
    return Description(json.loads(path.read_text()))


class Description:
    """The parsed description."""

    def __init__(self, data: dict[str, Any]) -> None:
        from openapi_schema_validator import OAS30Validator
        from referencing import Registry, Resource
        from referencing.jsonschema import DRAFT4

        _loosen(data)
        self._paths = {_nameless(path): item for path, item in data["paths"].items()}
        self._components = data["components"]
        self._registry = Registry().with_resource(_URI, Resource(contents=data, specification=DRAFT4))
        self._validator = OAS30Validator
        self._seen: dict[tuple[str, str, int, bytes, bytes], list[str]] = {}

    def problems(self, answer: Answer) -> list[str]:
        """Where an answer, or a request that was taken, is not as described."""
        key = (answer.method, answer.route + answer.query, answer.status, answer.sent, answer.body)
        if key not in self._seen:
            self._seen[key] = [f"{answer}: {problem}" for problem in self._look(answer)]
        return self._seen[key]

    def _look(self, answer: Answer) -> Iterator[str]:
        operation = self._paths.get(_nameless(answer.route), {}).get(answer.method.lower())
        if operation is None:
            yield "GitHub has no such call"
            return
        yield from self._answer_problems(operation, answer)
        if answer.status < 400:
            yield from self._request_problems(operation, answer)

    def _answer_problems(self, operation: dict[str, Any], answer: Answer) -> Iterator[str]:
        described = self._follow(operation["responses"].get(str(answer.status)))
        if described is None:
            if answer.status < 400:
                yield "a status that GitHub does not describe"
            else:
                yield from self._error_problems(answer)
            return
        kinds = {name.partition(";")[0]: value for name, value in (described.get("content") or {}).items()}
        kind = answer.headers.get("content-type", "").partition(";")[0]
        if not answer.body:
            if "application/json" in kinds:
                yield "no content"
        elif kind == "application/json" and "application/json" in kinds:
            yield from self._against(kinds["application/json"]["schema"], json.loads(answer.body))
        elif kind == "application/json" and answer.status >= 400:
            yield from self._error_problems(answer)
        elif kind == "application/json":
            yield "content that GitHub does not describe"

    def _error_problems(self, answer: Answer) -> Iterator[str]:
        """One of the forms that refusals have; many calls do not describe all of theirs."""
        found = [
            list(self._against({"$ref": f"#/components/schemas/{name}"}, json.loads(answer.body))) for name in _ERRORS
        ]
        if all(found):
            yield from min(found, key=len)
        elif "message" not in json.loads(answer.body):
            yield "an error without a message"

    def _request_problems(self, operation: dict[str, Any], answer: Answer) -> Iterator[str]:
        named = [self._follow(parameter) or {} for parameter in operation.get("parameters", ())]
        known = {parameter["name"] for parameter in named if parameter.get("in") == "query"}
        for name, _ in parse_qsl(answer.query, keep_blank_values=True):
            if name not in known:
                yield f"the request has a parameter {name!r} that GitHub does not know"
        content = (operation.get("requestBody") or {}).get("content", {}).get("application/json")
        if content and answer.sent:
            for problem in self._against(content["schema"], json.loads(answer.sent)):
                yield f"the request: {problem}"

    def _against(self, schema: dict[str, Any], value: Any) -> Iterator[str]:
        validator = self._validator(_absolute(schema), registry=self._registry)
        for error in validator.iter_errors(value):
            yield f"{'/'.join(map(str, error.absolute_path)) or 'the whole'}: {error.message[:300]}"

    def _follow(self, item: dict[str, Any] | None) -> dict[str, Any] | None:
        if item is None or "$ref" not in item:
            return item
        found: Any = {"components": self._components}
        for part in item["$ref"].removeprefix("#/").split("/"):
            found = found[part]
        return dict(found)


def _loosen(data: dict[str, Any]) -> None:
    """Where the description is stricter than GitHub is.

    A field that may be null has null among its values only where the description says so again; and the labels in a
    list of pull requests have no description when nobody gave them one, as they do everywhere else.
    """
    labels = data["components"]["schemas"]["pull-request-simple"]["properties"]["labels"]
    labels["items"]["properties"]["description"]["nullable"] = True
    _let_null_be_a_value(data["components"])


def _let_null_be_a_value(schema: Any) -> None:
    if isinstance(schema, dict):
        if schema.get("nullable") is True and isinstance(schema.get("enum"), list) and None not in schema["enum"]:
            schema["enum"].append(None)
        for each in schema.values():
            _let_null_be_a_value(each)
    elif isinstance(schema, list):
        for each in schema:
            _let_null_be_a_value(each)


def _nameless(path: str) -> str:
    """A path with its parameters' names left out: `{ref}` and `{branch}` are the same place."""
    return "/".join("{}" if part.startswith("{") else part for part in path.split("/"))


def _absolute(schema: Any) -> Any:
    """References within the description, from a piece of it that was taken out; those of a discriminator too."""
    if isinstance(schema, dict):
        return {key: _absolute(value) for key, value in schema.items()}
    if isinstance(schema, list):
        return [_absolute(each) for each in schema]
    return f"{_URI}{schema}" if isinstance(schema, str) and schema.startswith("#/components/") else schema
