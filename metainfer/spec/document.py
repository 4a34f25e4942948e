"""YAML files whose errors say file, line and column."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from metainfer.errors import InputError

Model = TypeVar("Model", bound=BaseModel)
Loc = tuple[int | str, ...]

_MAX_BYTES = 1 << 20
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class DocumentError(InputError):
    """A YAML file is wrong; `problems` are lines of `file:line:column: what, and what to do`."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(problems))


class Document:
    """A parsed YAML file that remembers where everything stands."""

    def __init__(self, path: str, data: Any, marks: Mapping[Loc, tuple[int, int]]) -> None:
        self.path = path
        self.data = data
        self._marks = marks

    @classmethod
    def read(cls, path: Path, name: str | None = None) -> Document:
        """Parse a file. `name` is what errors call it (default: the path as given). Raises DocumentError."""
        shown = name or str(path)
        try:
            raw = path.read_bytes()
        except OSError as error:
            raise DocumentError([f"{shown}: {error.strerror}"]) from error
        if len(raw) > _MAX_BYTES:
            raise DocumentError([f"{shown}: {len(raw):,} bytes; no file of this kind needs more than {_MAX_BYTES:,}"])
        try:
            return cls.parse(raw.decode("utf-8"), shown)
        except UnicodeDecodeError as error:
            raise DocumentError([f"{shown}: not UTF-8 at byte {error.start}; save it as UTF-8"]) from error

    @classmethod
    def parse(cls, text: str, path: str) -> Document:
        """Parse YAML text. Raises DocumentError for syntax, duplicate keys, aliases and tags."""
        try:
            node = yaml.compose(text, Loader=_LOADER)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            where = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else path
            raise DocumentError([f"{where}: {error.problem or error.context or 'not YAML'}"]) from error
        except yaml.YAMLError as error:
            raise DocumentError([f"{path}: not YAML: {error}"]) from error
        builder = _Builder(path)
        data = builder.build(node, ()) if node is not None else None
        if builder.problems:
            raise DocumentError(builder.problems)
        return cls(path, data, builder.marks)

    def where(self, loc: Iterable[int | str]) -> str:
        """`file:line:column` of the value at `loc`, or of the nearest thing around it that exists."""
        place = tuple(loc)
        while place and place not in self._marks:
            place = place[:-1]
        line, column = self._marks.get(place, (1, 1))
        return f"{self.path}:{line}:{column}"

    def validate(self, model: type[Model]) -> Model:
        """The document as `model`. Raises DocumentError with every problem, each at its place."""
        try:
            return model.model_validate(self.data)
        except ValidationError as error:
            raise DocumentError([self._explain(problem, model) for problem in error.errors()]) from error

    def _explain(self, problem: Any, model: type[BaseModel]) -> str:
        loc: Loc = tuple(problem["loc"])
        name = ".".join(map(str, loc)) or "the document"
        if problem["type"] == "extra_forbidden":
            near = difflib.get_close_matches(str(loc[-1]), _names_at(model, loc[:-1]), 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            return f"{self.where(loc)}: {name}: there is no such key{hint}"
        if problem["type"] == "missing":
            return f"{self.where(loc)}: {name}: is missing"
        message = str(problem["msg"]).removeprefix("Value error, ")
        given = problem.get("input")
        shown = f" (given: {given!r})" if isinstance(given, str | int | float | bool) else ""
        return f"{self.where(loc)}: {name}: {message[:1].lower()}{message[1:]}{shown}"


class _Builder:
    """Turns composed nodes into plain data, noting where each stands."""

    def __init__(self, path: str) -> None:
        self.marks: dict[Loc, tuple[int, int]] = {}
        self.problems: list[str] = []
        self._path = path
        self._seen: set[int] = set()

    def build(self, node: yaml.Node, loc: Loc) -> Any:
        mark = node.start_mark
        self.marks[loc] = (mark.line + 1, mark.column + 1)
        if id(node) in self._seen:
            self._complain(node, "aliases are not supported; write the value out")
            return None
        self._seen.add(id(node))
        match node:
            case yaml.MappingNode():
                return self._mapping(node, loc)
            case yaml.SequenceNode():
                return [self.build(item, (*loc, index)) for index, item in enumerate(node.value)]
        return self._scalar(node)

    def _mapping(self, node: yaml.MappingNode, loc: Loc) -> dict[str, Any]:
        data: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = str(key_node.value)
            if not isinstance(key_node, yaml.ScalarNode):
                self._complain(key_node, "a key must be a name")
                continue
            if key in data:
                self._complain(key_node, f"{key}: stands here twice")
            data[key] = self.build(value_node, (*loc, key))
            if value_node.start_mark.line != key_node.start_mark.line or isinstance(value_node, yaml.ScalarNode):
                mark = key_node.start_mark
                self.marks[(*loc, key)] = (mark.line + 1, mark.column + 1)
        return data

    def _scalar(self, node: yaml.Node) -> Any:
        text: str = node.value
        match node.tag.rpartition(":")[2]:
            case "str" | "timestamp":
                return text
            case "null":
                return None
            case "bool" if text.lower() in ("true", "false"):
                return text.lower() == "true"
            case "bool":
                # YAML 1.1 reads on, off, yes and no as booleans; whoever writes them may mean the word.
                self._complain(node, f"{text}: write true or false, or quote the word")
                return None
            case "int" if text.isascii() and text.lstrip("+-").isdigit() and not text.lstrip("+-").startswith("00"):
                return int(text)
            case "float":
                return float(text)
        self._complain(node, f"{text!r}: is read as {node.tag.rpartition(':')[2]}; write a plain number, or quote it")
        return None

    def _complain(self, node: yaml.Node, message: str) -> None:
        mark = node.start_mark
        self.problems.append(f"{self._path}:{mark.line + 1}:{mark.column + 1}: {message}")


def _names_at(model: type[BaseModel], loc: Loc) -> list[str]:
    """Field names of the model that stands at `loc` below `model`."""
    current: Any = model
    for part in loc:
        if isinstance(part, int):
            continue
        fields = getattr(current, "model_fields", {})
        if part not in fields:
            return []
        current = next((a for a in _models_in(fields[part].annotation)), None)
    return list(getattr(current, "model_fields", {}))


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in getattr(annotation, "__args__", ()) for model in _models_in(part)]
