"""YAML files whose errors say file, line and column."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from metainfer.errors import InputError
from metainfer.files import read_regular

Model = TypeVar("Model", bound=BaseModel)
Loc = tuple[int | str, ...]
Place = tuple[int, int]
"""Line and column, from 1."""

_MAX_DEPTH = 64
_MAX_DIGITS = 300
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_REAL = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?([eE][-+]?[0-9]+)?")
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _before(text: str, position: int) -> str:
    """What stands before where reading stopped: libyaml counts bytes of UTF-8, PyYAML's own reader characters."""
    if _LOADER is yaml.SafeLoader:
        return text[:position]
    return text.encode("utf-8", "replace")[:position].decode("utf-8", "replace")


class DocumentError(InputError):
    """A YAML file is wrong; `problems` are lines of `file:line:column: what, and what to do`."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(problems))


class Document:
    """A parsed YAML file that remembers where everything stands."""

    def __init__(
        self, path: str, data: Any, marks: Mapping[Loc, Place], problems: Mapping[Loc, tuple[Place, str]] | None = None
    ) -> None:
        self.path = path
        self.data = data
        self._marks = marks
        self._problems = dict(problems or {})

    @classmethod
    def read(cls, path: Path, name: str | None = None, *, lenient: bool = False) -> Document:
        """Parse a file. `name` is what errors call it (default: the path as given). Raises DocumentError."""
        shown = name or str(path)
        try:
            raw = read_regular(path, name=shown)
        except OSError as error:
            raise DocumentError([f"{shown}: {error.strerror}"]) from error
        except InputError as error:
            raise DocumentError([str(error)]) from error
        try:
            return cls.parse(raw.decode("utf-8-sig"), shown, lenient=lenient)
        except UnicodeDecodeError as error:
            raise DocumentError([f"{shown}: not UTF-8 at byte {error.start}; save it as UTF-8"]) from error

    @classmethod
    def parse(cls, text: str, path: str, *, lenient: bool = False) -> Document:
        """Parse YAML text. Raises DocumentError for syntax, duplicate keys, aliases and tags.

        If `lenient`, only syntax raises here; `validate` reports the rest together with what it finds itself.
        """
        try:
            node = yaml.compose(text, Loader=_LOADER)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            place = (mark.line + 1, mark.column + 1) if mark else (1, 1)
            # The parser puts the end of a file that lacks its last newline on a line of its own.
            *before, last = f"{text}.".splitlines()
            line, column = min(place, (len(before) + 1, len(last)))
            where = f"{path}:{line}:{column}"
            raise DocumentError([f"{where}: {error.problem or error.context or 'not YAML'}"]) from error
        except yaml.reader.ReaderError as error:
            read = _before(text, error.position)
            line, column = read.count("\n") + 1, len(read) - read.rfind("\n")
            raise DocumentError([f"{path}:{line}:{column}: {error.reason}"]) from error
        except (yaml.YAMLError, RecursionError) as error:
            raise DocumentError([f"{path}: not YAML: {error}"]) from error
        builder = _Builder(path)
        data = builder.build(node, ()) if node is not None else None
        if builder.problems and not lenient:
            raise DocumentError(_in_order(builder.problems.values()))
        return cls(path, data, builder.marks, builder.problems)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing but comments in it."""
        return self.data is None and not self._problems

    def where(self, loc: Iterable[int | str]) -> str:
        """`file:line:column` of the value at `loc`, or of the nearest thing around it that exists."""
        line, column = self._place(tuple(loc))
        return f"{self.path}:{line}:{column}"

    def validate(self, model: type[Model]) -> Model:
        """The document as `model`. Raises DocumentError with every problem, each at its place."""
        found = list(self._problems.values())
        try:
            valid = model.model_validate(self.data)
        except ValidationError as error:
            found += [
                (self._place(loc), self._explain(problem, model, loc)) for loc, problem in self._unsaid(error).items()
            ]
        else:
            if not found:
                return valid
        raise DocumentError(_in_order(found))

    def _unsaid(self, error: ValidationError) -> dict[Loc, Any]:
        """Pydantic's problems by place, without those of values that the parser has already complained about."""
        unsaid: dict[Loc, Any] = {}
        for problem in error.errors():
            known = self._known(tuple(problem["loc"]))
            if known in self._problems:
                continue
            loc = tuple(problem["loc"]) if problem["type"] == "missing" else known
            if loc in unsaid:
                # The alternatives of a union complain one by one.
                unsaid[loc]["msg"] += " or " + problem["msg"].removeprefix("Input should be ")
            else:
                unsaid[loc] = dict(problem)
        return unsaid

    def _known(self, loc: Loc) -> Loc:
        """The longest beginning of `loc` that stands in the file."""
        while loc and loc not in self._marks:
            loc = loc[:-1]
        return loc

    def _place(self, loc: Loc) -> Place:
        return self._marks.get(self._known(loc), (1, 1))

    def _explain(self, problem: Any, model: type[BaseModel], loc: Loc) -> str:
        name = _plain(".".join(map(str, loc))) or "the document"
        if problem["type"] == "extra_forbidden":
            hint = _nearest(loc[-1], _names_at(model, loc[:-1]))
            return f"{self.where(loc)}: {name}: there is no such key{hint}"
        if problem["type"] == "missing":
            return f"{self.where(loc)}: {name}: is missing"
        message = str(problem["msg"]).removeprefix("Value error, ")
        given = problem.get("input")
        shown = f" (given: {_short(given)})" if isinstance(given, str | int | float | bool) else ""
        if problem["type"] == "literal_error":
            shown += _nearest(given, re.findall(r"'([^']*)'", problem["ctx"]["expected"]))
        if problem["type"] == "string_type" and isinstance(given, int | float):
            shown += "; quote it"
        return f"{self.where(loc)}: {name}: {message[:1].lower()}{message[1:]}{shown}"


def _in_order(problems: Iterable[tuple[Place, str]]) -> list[str]:
    return [message for _, message in sorted(problems, key=lambda problem: problem[0])]


def _nearest(given: object, names: Sequence[str]) -> str:
    near = difflib.get_close_matches(str(given), names, 1)
    return f"; did you mean {near[0]}?" if near else ""


def _plain(text: str) -> str:
    """`text` on one line: what cannot be printed is written as an escape."""
    return text if text.isprintable() else repr(text)[1:-1]


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


class _Builder:
    """Turns composed nodes into plain data, noting where each stands."""

    def __init__(self, path: str) -> None:
        self.marks: dict[Loc, Place] = {}
        self.problems: dict[Loc, tuple[Place, str]] = {}
        self._path = path
        self._seen: set[int] = set()

    def build(self, node: yaml.Node, loc: Loc) -> Any:
        mark = node.start_mark
        self.marks[loc] = (mark.line + 1, mark.column + 1)
        if id(node) in self._seen:
            return self._complain(node, loc, "aliases are not supported; write the value out")
        self._seen.add(id(node))
        if len(loc) > _MAX_DEPTH:
            return self._complain(node, loc, f"nested more than {_MAX_DEPTH} deep")
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, loc)
        if not node.tag.endswith((":map", ":seq")):
            return self._complain(node, loc, f"the tag {node.tag} is not supported; leave it out")
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, loc)
        return [self.build(item, (*loc, index)) for index, item in enumerate(node.value)]

    def _mapping(self, node: yaml.MappingNode, loc: Loc) -> dict[str, Any]:
        data: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = str(key_node.value)
            if not isinstance(key_node, yaml.ScalarNode):
                self._complain(key_node, (*loc, "?"), "a key must be a name")
                continue
            if key in data:
                self._complain(key_node, (*loc, key), f"{_plain('.'.join(map(str, (*loc, key))))}: stands here twice")
                continue
            data[key] = self.build(value_node, (*loc, key))
            if value_node.start_mark.line != key_node.start_mark.line or isinstance(value_node, yaml.ScalarNode):
                mark = key_node.start_mark
                self.marks[(*loc, key)] = (mark.line + 1, mark.column + 1)
        return data

    def _scalar(self, node: yaml.ScalarNode, loc: Loc) -> Any:
        """The value by the rules of YAML 1.2, refusing what YAML 1.1 reads otherwise than it looks."""
        text: str = node.value
        kind = node.tag.rpartition(":")[2]
        match kind:
            case "str" if not node.style and _REAL.fullmatch(text) and len(text) < 20:
                return self._real(node, loc)  # 1e3: a number to people and YAML 1.2, a word to YAML 1.1
            case "str" | "timestamp":
                return text
            case "null":
                return None
            case "bool" if text.lower() in ("true", "false"):
                return text.lower() == "true"
            case "bool":
                # YAML 1.1 reads on, off, yes and no as booleans; whoever writes them may mean the word.
                return self._complain(node, loc, f"{text}: write true or false, or quote the word")
            case "int" if _INTEGER.fullmatch(text) and len(text) <= _MAX_DIGITS:
                return int(text)
            case "float":
                return self._real(node, loc)
        return self._complain(node, loc, f"{_short(text)}: is read as {kind}; write a plain number, or quote it")

    def _real(self, node: yaml.ScalarNode, loc: Loc) -> float | None:
        text = node.value
        if not _REAL.fullmatch(text) and not (text.startswith(".") and text[1:].isdigit()):
            self._complain(node, loc, f"{_short(text)}: write a plain finite number, or quote it")
            return None
        if not math.isfinite(value := float(text)):
            self._complain(node, loc, f"{_short(text)}: is larger than any number here")
            return None
        return value

    def _complain(self, node: yaml.Node, loc: Loc, message: str) -> None:
        place = (node.start_mark.line + 1, node.start_mark.column + 1)
        self.problems[loc] = place, f"{self._path}:{place[0]}:{place[1]}: {message}"


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
