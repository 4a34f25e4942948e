"""What an engine's Python may reach, judged from its syntax tree: no way to run, load or read what nobody sees."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator

Complaint = tuple[int, str]
"""Line and message."""

THIRD_PARTY = frozenset(
    (
        "fastapi", "jinja2", "numpy", "prometheus_client", "pydantic", "safetensors", "starlette", "tokenizers",
        "torch", "uvicorn",
    )
)  # fmt: skip
STANDARD_LIBRARY = frozenset(
    (
        "__future__", "abc", "argparse", "array", "asyncio", "base64", "bisect", "collections", "concurrent",
        "contextlib", "copy", "ctypes", "dataclasses", "datetime", "enum", "functools", "hashlib", "heapq", "hmac",
        "itertools", "json", "logging", "math", "operator", "os", "pathlib", "platform", "queue", "random", "re",
        "secrets", "shutil", "signal", "statistics", "string", "struct", "subprocess", "sys", "tempfile", "textwrap",
        "threading", "time", "types", "typing", "unicodedata", "uuid", "warnings", "weakref",
    )
)  # fmt: skip
KERNEL_MODULE = "kernels"
COMMAND_LINE = "__main__"
ENVIRONMENT = frozenset({"METAINFER_KERNELS", "METAINFER_MODELS", "ENGINE_API_KEY"})
"""Variables that an engine may read: where its files are, and its key. None may change what it computes."""

_CALLS = frozenset(
    {"eval", "exec", "compile", "__import__", "globals", "locals", "vars", "breakpoint", "input"}
)  # fmt: skip
_ATTRIBUTES = {
    "os": frozenset({"system", "popen", "fork", "forkpty", "putenv", "kill", "killpg", "abort", "_exit", "chmod"}),
    "sys": frozenset({"modules", "path", "meta_path", "path_hooks", "settrace", "setprofile", "_getframe"}),
    "torch": frozenset({"load", "save", "hub", "compile", "ops", "classes"}),
    "shutil": frozenset({"rmtree", "move", "chown"}),
    "socket": frozenset({"socket", "create_connection", "socketpair", "fromfd", "getaddrinfo", "gethostbyname"}),
}
_OS_PREFIXES = ("exec", "spawn", "posix_spawn")


def check_reach(module: str, tree: ast.Module) -> Iterator[Complaint]:
    """Complaints about imports, forbidden calls and attributes, and environment variables of one module."""
    yield from _check_imports(module, tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield from _check_call(node, node.func.id)
        elif isinstance(node, ast.Name) and node.id in ("__builtins__", "__loader__", "__spec__"):
            yield node.lineno, f"uses {node.id}"
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and _is_forbidden(node):
            yield node.lineno, f"uses {node.value.id}.{node.attr}"
        yield from _check_environment(node)


def _check_imports(module: str, tree: ast.Module) -> Iterator[Complaint]:
    calls_kernels = module == KERNEL_MODULE or any(
        isinstance(node, ast.ImportFrom) and node.level == 1 and node.module == KERNEL_MODULE for node in ast.walk(tree)
    )
    for line, name in _imported(tree):
        top = name.partition(".")[0]
        if name.startswith(".."):
            yield line, "imports from outside of its package"
        elif top == "socket" and module == COMMAND_LINE:
            continue  # to try the address it is to serve at; what could connect is forbidden below
        elif top not in THIRD_PARTY | STANDARD_LIBRARY:
            kind = "a module of the standard library" if top in sys.stdlib_module_names else "a package"
            yield line, f"imports {name}, {kind} that engines have no use for"
        elif top == "subprocess" and module != KERNEL_MODULE:
            yield line, f"imports subprocess; only {KERNEL_MODULE}.py may, to run the compiler"
        elif top == "ctypes" and not calls_kernels:
            yield line, "imports ctypes, but calls no kernel"


def _imported(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and dotted name of every import that is not from a sibling module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level != 1:
            yield node.lineno, "." * node.level + (node.module or "")


def _check_call(node: ast.Call, name: str) -> Iterator[Complaint]:
    if name in _CALLS:
        yield node.lineno, f"calls {name}()"
    computed = len(node.args) < 2 or not isinstance(node.args[1], ast.Constant)
    if name in ("getattr", "setattr", "delattr") and computed:
        yield node.lineno, f"calls {name}() with a computed name"


def _is_forbidden(node: ast.Attribute) -> bool:
    owner = node.value.id if isinstance(node.value, ast.Name) else ""
    return node.attr in _ATTRIBUTES.get(owner, ()) or (owner == "os" and node.attr.startswith(_OS_PREFIXES))


def _check_environment(node: ast.AST) -> Iterator[Complaint]:
    """`os.environ` may be read for a few names only; anything else could be a hidden switch."""
    if isinstance(node, ast.ImportFrom) and node.module in _ATTRIBUTES:
        hidden = _ATTRIBUTES[node.module] | {"environ", "environb", "getenv", "getenvb"}
        for alias in node.names:
            if alias.name in hidden:
                yield node.lineno, f"imports {alias.name} from {node.module}"
    for child in ast.iter_child_nodes(node):
        whole = isinstance(child, ast.Attribute) and ast.unparse(child) in ("os.environ", "os.environb")
        if whole and not isinstance(node, ast.Attribute | ast.Subscript):
            yield getattr(child, "lineno", 0), "passes the whole environment on"
    name = _environment_name(node)
    if name is not None and name not in ENVIRONMENT:
        allowed = ", ".join(sorted(ENVIRONMENT))
        yield getattr(node, "lineno", 0), f"reads {name or 'a computed name'} from the environment; allowed: {allowed}"


def _environment_name(node: ast.AST) -> str | None:
    """The variable that `node` reads; empty if it is computed; None if it reads none."""
    key: ast.expr | None
    if isinstance(node, ast.Subscript) and ast.unparse(node.value) in ("os.environ", "os.environb"):
        key = node.slice
    elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("os.environ.get", "os.getenv"):
        key = node.args[0] if node.args else None
    elif isinstance(node, ast.Attribute):
        owner = ast.unparse(node.value)
        hidden = (owner.startswith("os.environ") and node.attr != "get") or (owner == "os" and node.attr == "getenvb")
        return "" if hidden else None
    else:
        return None
    return key.value if isinstance(key, ast.Constant) and isinstance(key.value, str) else ""
