"""Lines of code are what a line counter says: blank lines, comments and docstrings left out."""

from __future__ import annotations

from metainfer.generate.lines import code_lines

PYTHON = '''\
"""A module."""

import os  # counted


def f(x):
    """Two lines
    of docstring."""
    # a comment
    text = """a string
that is code"""
    return text
'''


def test_python() -> None:
    assert code_lines("m.py", PYTHON) == 5


def test_cpp() -> None:
    assert (
        code_lines("k.cpp", "// c\n\n#include <x>\n/* long\n comment */\nint a;  // counted\n/* one */ int b;\n") == 3
    )
