"""How long an engine is: physical lines, and lines of code as line counters count them."""

from __future__ import annotations

import ast
import io
import tokenize

_SILENT = (
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
    tokenize.ENCODING,
)
_DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def code_lines(path: str, text: str) -> int:
    """Lines of `text` with code on them: no blank lines, comments or docstrings. Raises SyntaxError for bad Python."""
    return _python_lines(text) if path.endswith(".py") else _cpp_lines(text)


def _python_lines(text: str) -> int:
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _SILENT:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            docstring = node.body[0]
            lines.difference_update(range(docstring.lineno, (docstring.end_lineno or docstring.lineno) + 1))
    return len(lines)


def _cpp_lines(text: str) -> int:
    """Lines outside `//` and `/* */` comments. String literals with comment marks in them do not occur in kernels."""
    count, inside = 0, False
    for line in text.splitlines():
        code = line.strip()
        if inside:
            inside = "*/" not in code
            code = code.partition("*/")[2].strip()
        if code.startswith("/*"):
            inside = "*/" not in code
            code = code.partition("*/")[2].strip()
        count += bool(code) and not code.startswith("//")
    return count
