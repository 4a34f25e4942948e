"""The spec as JSON Schema, for editors: `python -m metainfer.spec.schema > specs/schema.json`."""

from __future__ import annotations

import sys
from typing import Any

from metainfer.files import pretty_json
from metainfer.spec.models import Spec


def json_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of a spec file."""
    schema = Spec.model_json_schema(by_alias=True)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "metainfer spec",
        "description": "The constraints of one deployment, from which metainfer generates one engine.",
        **{key: value for key, value in schema.items() if key not in ("title", "description")},
    }


def schema_bytes() -> bytes:
    """The content of `specs/schema.json`."""
    return pretty_json(json_schema())


if __name__ == "__main__":
    sys.stdout.buffer.write(schema_bytes())
