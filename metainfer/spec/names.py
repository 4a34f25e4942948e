"""Names of engines: what can be a folder, a branch, a tag, a package and a command at once, everywhere."""

from __future__ import annotations

import keyword
import re
import sys

MAX_CHARACTERS = 64
_NAME = re.compile(r"[a-z0-9]+(?:[._-][a-z0-9]+)*")
_DEVICES = frozenset(
    ["con", "prn", "aux", "nul", *(f"{port}{number}" for port in ("com", "lpt") for number in range(1, 10))]
)
# Files that change how Git or a forge behaves, whatever their content.
_GIT = frozenset({"git", "codeowners"})
_LIBRARIES = {
    "annotated_doc", "annotated_types", "anyio", "click", "fastapi", "filelock", "fsspec", "functorch", "h11",
    "hf_xet", "httpcore", "httpcore2", "httpx", "httpx2", "huggingface_hub", "idna", "isympy", "jinja2", "markupsafe",
    "mpmath", "networkx", "numpy", "opentelemetry", "packaging", "prometheus_client", "pydantic", "pydantic_core",
    "safetensors", "setuptools", "sniffio", "starlette", "sympy", "tokenizers", "torch", "torchgen", "tqdm", "triton",
    "truststore", "typing_extensions", "typing_inspection", "uvicorn", "yaml",
}  # fmt: skip
"""Top-level packages of what an engine depends on, and of what that depends on."""
_TOOLS = frozenset({"metainfer", "pytest", "ruff", "mypy", "transformers", "tests"})
"""What looks at an engine with its package on the path, and the folder beside the package."""


def package_name(engine: str) -> str:
    """Turn an engine's name into a valid Python package name.

    >>> package_name("qwen2.5-coder-0.5b-cpu")
    'qwen2_5_coder_0_5b_cpu'
    """
    name = re.sub(r"[^0-9a-zA-Z]+", "_", engine).strip("_").lower()
    return f"engine_{name}" if not name or name[0].isdigit() else name


def name_complaint(name: str) -> str | None:
    """Why `name` cannot be an engine's, or None."""
    if not _NAME.fullmatch(name) or len(name) > MAX_CHARACTERS:
        return f"use at most {MAX_CHARACTERS} lower-case letters and digits, with single . _ or - between them"
    stem, package = name.partition(".")[0], package_name(name)
    if stem in _DEVICES:
        return f"no folder can be called {stem} on Windows; add a word, as in {stem}-engine"
    if stem in _GIT:
        return f"files called {stem} mean something to Git; add a word, as in {stem}-engine"
    if name.endswith(".lock"):
        return "no branch can end in .lock, where Git keeps its locks; write -lock"
    if reason := _package_complaint(package):
        return f"the engine's package would be called {package}, {reason}; add a word, as in {name}-engine"
    return None


def _package_complaint(package: str) -> str | None:
    if keyword.iskeyword(package):
        return "which is a keyword of Python"
    if package in sys.stdlib_module_names:
        return "and hide the module of Python that has this name"
    if package in _LIBRARIES:
        return "and hide the library that has this name, which engines need"
    if package in _TOOLS:
        return "and hide what has this name beside the engine when it is tested"
    return None
