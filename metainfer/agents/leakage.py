"""Does a prompt hold code that its reference policy keeps back? Compared token by token, whatever the layout."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache

WINDOW = 10
"""Tokens in a row that nobody writes alike by chance."""
_WORD = re.compile(r"\w+|[^\w\s]")
_DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def leaks(prompt: str, secret: str, published: Iterable[str]) -> list[str]:
    """Runs of WINDOW tokens of the code `secret` that stand in `prompt` and in none of the `published` texts.

    `published`: what the prompt may hold anyway, such as the contract with its signatures.
    """
    there = _runs_of(prompt)
    known = [_runs_of(text) for text in published]
    kept_back = dict.fromkeys(_runs(code_words(secret)))
    return [" ".join(run) for run in kept_back if run in there and not any(run in runs for runs in known)]


@lru_cache(maxsize=64)  # a prompt is held against every exemplar, and an exemplar against every prompt
def _runs_of(text: str) -> frozenset[tuple[str, ...]]:
    return frozenset(_runs(_words(text)))


def code_words(code: str) -> list[str]:
    """The words of a Python file, without comments and docstrings: those may say what the contract says."""
    tree = ast.parse(code)
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return _words(ast.unparse(tree))


def _runs(words: list[str]) -> Iterator[tuple[str, ...]]:
    return (tuple(words[at : at + WINDOW]) for at in range(len(words) - WINDOW + 1))


def _words(text: str) -> list[str]:
    return _WORD.findall(text)
