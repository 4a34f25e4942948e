"""The model's facts stand in `config.py` and nowhere else: a literal elsewhere that repeats one is a typed-in fact."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from typing import Any

from metainfer.gates.source_rules import Complaint

# Each fact with the least value at which a literal is unlikely to mean something else.
_FACTS = {
    "VOCAB_SIZE": 17, "HIDDEN_SIZE": 17, "INTERMEDIATE_SIZE": 17, "EOS_TOKEN_IDS": 17, "MAX_MODEL_LEN": 17,
    "NUM_HEADS": 9, "NUM_KV_HEADS": 9, "NUM_LAYERS": 9, "HEAD_DIM": 17,
}  # fmt: skip
_SMALL = 64
"""Counts up to here are common numbers too: they are taken for facts only where a shape or an id would stand."""
_LONGEST_LIST = 16
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"", re.DOTALL)


def model_numbers(config: Mapping[str, Any]) -> dict[int | float | str, str]:
    """Values that belong in `config.py` alone, and the constant that holds each."""
    numbers: dict[int | float | str, str] = {}
    for name, least in _FACTS.items():
        value = config.get(name)
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, int) and number >= least:
                numbers.setdefault(number, name)
    for name, kind in (("MODEL_DIGEST", str), ("ENGINE_NAME", str), ("ROPE_THETA", float)):
        if isinstance(config.get(name), kind):
            numbers.setdefault(config[name], name)
    return numbers


def check_literals(tree: ast.Module, config: Mapping[str, Any]) -> Iterator[Complaint]:
    """Literals that repeat a fact. A round number counts only where it is compared or listed, a small one also as an
    argument.
    """
    numbers = model_numbers(config)
    telling = _children(tree, ast.Compare | ast.Tuple | ast.List | ast.Set)
    arguments = _children(tree, ast.Call)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float | str) and node.value is not True:
            name = numbers.get(node.value)
            common = _is_round(node.value) or (_is_small(node.value) and id(node) not in arguments)
            if name and (not common or id(node) in telling):
                yield node.lineno, f"{node.value!r} is {name}; import it from config.py"
        elif isinstance(node, ast.Tuple | ast.List | ast.Set):
            whole = [item for item in node.elts if isinstance(item, ast.Constant) and isinstance(item.value, int)]
            if len(whole) > _LONGEST_LIST:
                yield node.lineno, f"{len(whole)} numbers are typed in as a list"


def check_cpp_literals(text: str, config: Mapping[str, Any]) -> Iterator[Complaint]:
    """The same for C++, which has `constants.h`. Small numbers are tile sizes and strides there, and pass."""
    numbers = {
        str(value): name
        for value, name in model_numbers(config).items()
        if not _is_round(value) and not _is_small(value)
    }
    code = _COMMENT.sub(lambda match: "\n" * match.group().count("\n"), text)
    for line, words in enumerate(code.splitlines(), start=1):
        for word in re.findall(r"(?<![\w.])\d+(?:\.\d+)?", words):
            if word in numbers:
                yield line, f"{word} is {numbers[word]}; take it from constants.h"


def _children(tree: ast.Module, kinds: Any) -> set[int]:
    """Identities of the nodes directly below nodes of the given kinds."""
    return {id(child) for node in ast.walk(tree) if isinstance(node, kinds) for child in ast.iter_child_nodes(node)}


def _is_small(value: object) -> bool:
    return isinstance(value, int) and value <= _SMALL


def _is_round(value: object) -> bool:
    """Powers of two and of ten, which code uses for its own reasons too."""
    return isinstance(value, int) and (value & (value - 1) == 0 or str(value).strip("0") == "1")
