"""Prompts are files, versioned together and filled in here; texts from elsewhere pass a filter on their way in."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from metainfer.agents.hygiene import as_code, as_data

if TYPE_CHECKING:
    import jinja2

_PROMPTS = Path(__file__).parent / "prompts"


def render(template: str, **values: Any) -> str:
    """A file of `prompts/` with these values in it. In templates, `| data` is for texts and `| code` for code."""
    return _environment().get_template(template).render(**values)


@cache
def _environment() -> jinja2.Environment:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_PROMPTS),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["data"] = as_data
    environment.filters["code"] = as_code
    return environment
