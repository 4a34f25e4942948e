"""Changes a YAML file where it must change and nowhere else, so that a proposal's diff shows the change alone."""

from __future__ import annotations

import re
import textwrap
from typing import Any

import yaml

from metainfer.spec.document import Document, DocumentError

_WIDTH = 120
_NUMBER = re.compile(r"[-+.]?[0-9][0-9a-fA-FxXoO_.:+-]*")


class _Dumper(yaml.SafeDumper):
    """Writes as people write contracts here: keys in their order, long texts as blocks, lists indented."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    # What looks like a number to any reader is quoted, whatever this library thinks of it.
    style = "|" if "\n" in text else "'" if _NUMBER.fullmatch(text) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


def to_yaml(data: Any) -> str:
    """`data` (mappings, lists, strings, numbers, booleans, None) as YAML that `Document` reads back as the same."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=_WIDTH)


def set_key(text: str, key: str, value: Any) -> str:
    """Give the top-level `key` a value; a key that is not there is added at the end."""
    expected = {**_data(text), key: value}
    lines = text.splitlines(keepends=True)
    span = _span(text, key)
    piece = to_yaml({key: value})
    edited = (
        text.rstrip("\n") + "\n" + piece if span is None else "".join([*lines[: span[0]], piece, *lines[span[1] :]])
    )
    return _kept_or_rewritten(edited, expected)


def append_item(text: str, key: str, item: Any) -> str:
    """Append to the top-level list `key`, leaving its other items as they are written."""
    data = _data(text)
    expected = {**data, key: [*(data.get(key) or []), item]}
    node = _nodes(text).get(key)
    span = _span(text, key)
    if span is None or node is None or not data.get(key) or node.flow_style:
        return set_key(text, key, expected[key])
    lines = text.splitlines(keepends=True)
    indent = " " * node.value[0].start_mark.column
    # The first item's mark stands after its dash.
    indent = indent[:-2] if len(indent) >= 2 else ""
    piece = textwrap.indent(to_yaml([item]), indent, lambda line: bool(line.strip()))
    return _kept_or_rewritten("".join([*lines[: span[1]], piece, *lines[span[1] :]]), expected)


def append_to_list(text: str, item: Any) -> str:
    """Append to a document that is a list, as `mutants.yaml` is."""
    data = Document.parse(text, "document").data or []
    edited = (text.rstrip("\n") + "\n" if data else "") + yaml.dump(
        [item], Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=_WIDTH
    )
    return edited if _reads_as(edited, [*data, item]) else to_yaml([*data, item])


def _kept_or_rewritten(edited: str, expected: Any) -> str:
    """The edit if it means what it should; else the whole document again, which loses comments but nothing else."""
    return edited if _reads_as(edited, expected) else to_yaml(expected)


def _reads_as(text: str, expected: Any) -> bool:
    try:
        return bool(Document.parse(text, "document").data == expected)
    except DocumentError:
        return False


def _data(text: str) -> dict[str, Any]:
    data = Document.parse(text, "document").data
    return dict(data) if isinstance(data, dict) else {}


def _nodes(text: str) -> dict[str, Any]:
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    return {key.value: value for key, value in root.value} if isinstance(root, yaml.MappingNode) else {}


def _span(text: str, key: str) -> tuple[int, int] | None:
    """First and one-past-last line of a top-level key and its value, without the blank lines and comments after it."""
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    pairs = root.value if isinstance(root, yaml.MappingNode) else []
    lines = text.splitlines()
    for index, (name, _) in enumerate(pairs):
        if name.value == key:
            start = name.start_mark.line
            end = pairs[index + 1][0].start_mark.line if index + 1 < len(pairs) else len(lines)
            while end > start + 1 and (not lines[end - 1].strip() or lines[end - 1].startswith("#")):
                end -= 1
            return start, end
    return None
