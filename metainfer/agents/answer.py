"""From a model's answer to a file of code, or to what is wrong with it, in words that the model can act on."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from metainfer.agents.messages import Reply, Tool, ToolCall, mended

if TYPE_CHECKING:
    from metainfer.ckb.models import UnitInterface

_FENCE = re.compile(r"[ ]{0,3}(`{3,}|~{3,})(.*)")
_Function = ast.FunctionDef | ast.AsyncFunctionDef

WRITE_FILE = Tool(
    name="write_file",
    description="Hand over the whole Python file that was asked for. Call it once.",
    parameters={
        "type": "object",
        "properties": {"code": {"type": "string", "description": "The file's text, from its first to its last line."}},
        "required": ["code"],
        "additionalProperties": False,
    },
)
"""For models that call tools; what it gets is read like a code block."""


@dataclass(frozen=True)
class Answer:
    """The code, or complaints about its form."""

    code: str = ""
    complaints: Sequence[str] = ()


def read_answer(reply: Reply, units: Sequence[UnitInterface]) -> Answer:
    """Take the code out of an answer and hold it against the interface."""
    if reply.is_cut_off:
        return Answer(complaints=["the answer was cut off at its limit before the file ended; write a shorter file"])
    if reply.calls and not _blocks(reply.text)[0]:
        return _read_calls(reply.calls, units)
    text = reply.text.replace("\r\n", "\n").replace("\r", "\n")
    code = _code(text, [unit.name for unit in units])
    if code is None:
        return Answer(complaints=["the answer must hold exactly one ```python code block with the whole file"])
    complaints = check_file(code, units)
    return Answer("" if _parsed(code) is None else code, complaints)


def said(reply: Reply) -> str:
    """An answer as text, for the next round of the conversation: what came by a tool call as a code block."""
    codes = [code for call in reply.calls if (code := _code_argument(call)) is not None]
    return (
        "\n\n".join([*filter(None, [reply.text]), *(f"```python\n{code.rstrip()}\n```" for code in codes)])
        or "(nothing)"
    )


def _read_calls(calls: Sequence[ToolCall], units: Sequence[UnitInterface]) -> Answer:
    """The file that one call of the tool hands over; everything else is told, so that the next answer can be better."""
    if unknown := sorted({call.name for call in calls} - {WRITE_FILE.name}):
        names = ", ".join(name[:60] or "(no name)" for name in unknown)
        return Answer(
            complaints=[f"there is no tool called {names}; call {WRITE_FILE.name}, or answer with a code block"]
        )
    if len(calls) != 1:
        return Answer(
            complaints=[f"{WRITE_FILE.name} was called {len(calls)} times; call it once, with the whole file"]
        )
    code = _code_argument(calls[0])
    if code is None:
        return Answer(
            complaints=[f"the arguments of {WRITE_FILE.name} must be a JSON object with the file's text as `code`"]
        )
    code = code.replace("\r\n", "\n").replace("\r", "\n")
    complaints = check_file(code, units)
    return Answer("" if _parsed(code) is None else code, complaints)


def _code_argument(call: ToolCall) -> str | None:
    try:
        arguments = json.loads(call.arguments)
    except (ValueError, RecursionError):
        return None
    code = arguments.get("code") if isinstance(arguments, dict) else None
    return mended(code) if isinstance(code, str) else None


def check_file(code: str, units: Sequence[UnitInterface]) -> list[str]:
    """What is wrong with the form of a file of units: it must be Python and define them as their interfaces say."""
    try:
        tree = ast.parse(code)
    except (RecursionError, MemoryError):
        return ["the file nests too deeply to be read"]
    except (SyntaxError, ValueError) as error:
        line = f" in line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        return [f"the file is not Python{line}: {getattr(error, 'msg', error)}"]
    return list(_interface_complaints(tree, units))


def _code(text: str, units: Sequence[str]) -> str | None:
    """The one block that defines all units; the only block; or the whole text if it is nothing but code."""
    blocks, is_open = _blocks(text)
    whole = [block for block in blocks if set(units) <= _defined(block)]
    chosen = whole or blocks
    if len(chosen) == 1:
        return chosen[0]
    if not blocks and not is_open and set(units) <= _defined(text):
        return text
    return None


def _blocks(text: str) -> tuple[list[str], bool]:
    """The fenced blocks of a text, and whether a last one was never closed. Each line is looked at once."""
    blocks: list[str] = []
    fence, lines = "", list[str]()
    for line in text.split("\n"):
        match = _FENCE.fullmatch(line.rstrip())
        if not fence:
            fence = match[1] if match else ""
            lines = []
        elif match and match[1].startswith(fence) and not match[2].strip():
            blocks.append("".join(f"{one}\n" for one in lines))
            fence = ""
        else:
            lines.append(line)
    return blocks, bool(fence)


def _parsed(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _defined(text: str) -> set[str]:
    tree = _parsed(text)
    if tree is None:
        return set()
    return {node.name for node in tree.body if isinstance(node, _Function | ast.ClassDef)}


def _interface_complaints(tree: ast.Module, units: Sequence[UnitInterface]) -> Iterator[str]:
    defined = {node.name: node for node in tree.body if isinstance(node, _Function | ast.ClassDef)}
    for unit in units:
        wanted = next(n for n in ast.parse(unit.signature).body if getattr(n, "name", None) == unit.name)
        given = defined.get(unit.name)
        if given is None:
            yield f"{unit.name} is not defined at the top of the file"
        elif isinstance(wanted, ast.ClassDef) != isinstance(given, ast.ClassDef):
            yield f"{unit.name} must be a {'class' if isinstance(wanted, ast.ClassDef) else 'function'}"
        elif isinstance(wanted, ast.ClassDef) and isinstance(given, ast.ClassDef):
            yield from _class_complaints(wanted, given)
        elif isinstance(wanted, _Function) and isinstance(given, _Function):
            yield from _parameter_complaints(wanted, given, unit.name)


def _class_complaints(wanted: ast.ClassDef, given: ast.ClassDef) -> Iterator[str]:
    """Methods that are missing or take other parameters. What a base class or a decorator adds is not looked for."""
    methods = {node.name: node for node in given.body if isinstance(node, _Function)}
    assigned = {
        target.id
        for node in given.body
        for target in (node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)])
        if isinstance(target, ast.Name)
    }
    for method in wanted.body:
        if not isinstance(method, _Function):
            continue
        if method.name in methods:
            yield from _parameter_complaints(method, methods[method.name], f"{wanted.name}.{method.name}")
        elif not given.bases and not given.decorator_list and method.name not in assigned:
            yield f"{wanted.name}.{method.name} is missing"


def _parameter_complaints(wanted: _Function, given: _Function, name: str) -> Iterator[str]:
    if _parameters(wanted) != _parameters(given):
        yield f"{name} must take ({', '.join(_parameters(wanted))}), not ({', '.join(_parameters(given))})"


def _parameters(function: _Function) -> list[str]:
    arguments = function.args
    names = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
    names += [f"*{arguments.vararg.arg}"] if arguments.vararg else ["*"] if arguments.kwonlyargs else []
    names += [argument.arg for argument in arguments.kwonlyargs]
    return names + ([f"**{arguments.kwarg.arg}"] if arguments.kwarg else [])
