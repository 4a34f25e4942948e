"""The rules on an engine's source, each on a line that a person can judge by eye."""

from __future__ import annotations

import ast

import pytest

from metainfer.gates.dead_code import check_path, unused_definitions
from metainfer.gates.source_rules import check_reach
from metainfer.gates.typed_in import check_cpp_literals, check_literals

CONFIG = {
    "VOCAB_SIZE": 151_936, "HIDDEN_SIZE": 896, "INTERMEDIATE_SIZE": 4864, "NUM_LAYERS": 24, "NUM_HEADS": 14,
    "NUM_KV_HEADS": 2, "HEAD_DIM": 64, "EOS_TOKEN_IDS": (151_645, 151_643), "MAX_MODEL_LEN": 4096,
    "ROPE_THETA": 1_000_000.0, "MODEL_DIGEST": "sha256:ab", "ENGINE_NAME": "demo",
}  # fmt: skip


@pytest.mark.parametrize(
    "line",
    [
        "import transformers",
        "import pickle",
        "import importlib",
        "import socket",
        "import subprocess",
        "import ctypes",
        "from ..other import x",
        "eval('1')",
        "exec('x = 1')",
        "__import__('os')",
        "compile('1', '', 'eval')",
        "import os\nos.system('ls')",
        "import os\nos.execv('/bin/ls', [])",
        "from os import system",
        "from os import environ",
        "import os\nos.environ['PYTEST_CURRENT_TEST']",
        "import os\nos.environ.get('FAST')",
        "import os\nos.getenv('CI')",
        "import os\nos.getenv(name)",
        "import os\ndict(os.environ)",
        "import os\nos.environ.items()",
        "import sys\nsys.modules['torch'] = None",
        "import sys\nsys.path.insert(0, 'x')",
        "import torch\ntorch.load('x')",
        "from torch import load",
        "import torch\ntorch.hub.load('x')",
        "getattr(object, name)()",
        "__builtins__",
    ],
)
def test_what_an_engine_may_not_reach(line: str) -> None:
    assert list(check_reach("engine", ast.parse(line)))


@pytest.mark.parametrize(
    "line",
    [
        "import torch",
        "from torch.nn import functional as F",
        "from .config import HEAD_DIM",
        "import asyncio, json, math",
        "import os\nos.environ.get('ENGINE_API_KEY')",
        "import os\nos.environ['METAINFER_MODELS']",
        "getattr(x, 'name', None)",
        "import re\nre.compile('x')",
        "from .kernels import load_kernels\nimport ctypes",
    ],
)
def test_what_an_engine_may_reach(line: str) -> None:
    assert not list(check_reach("engine", ast.parse(line)))


def test_only_the_kernel_module_runs_processes() -> None:
    assert not list(check_reach("kernels", ast.parse("import subprocess, ctypes")))


def test_only_the_command_line_may_try_an_address_and_nothing_may_connect() -> None:
    trying = "import socket\nsocket.create_server((host, port)).close()"
    assert not list(check_reach("__main__", ast.parse(trying)))
    for calling in ("socket.create_connection((host, port))", "socket.socket()", "socket.getaddrinfo(host, port)"):
        assert list(check_reach("__main__", ast.parse(f"import socket\n{calling}")))
    assert list(check_reach("__main__", ast.parse("from socket import create_connection")))


@pytest.mark.parametrize(
    "line",
    [
        "if S.qk_norm: pass",
        "x = S",
        "from .facts import S",
        "from .units import Linear",
        "if True: pass",
        "if 1 == 1: pass",
        "x = 1 if False else 2",
        "while False: pass",
        "y = x and True",
        "if NUM_KV_HEADS > 1: pass",
        "if config.MAX_MODEL_LEN < 5: pass",
        "x = a if not TIED else b",
        "assert BLOCK_SIZE == 16",
    ],
)
def test_branches_that_are_decided_already(line: str) -> None:
    assert list(check_path(ast.parse(line)))


@pytest.mark.parametrize(
    "line",
    ["while True: break", "if x > NUM_HEADS: pass", "if TYPE_CHECKING: pass", "y = x or None", "if x.ready: pass"],
)
def test_branches_that_run_time_decides(line: str) -> None:
    assert not list(check_path(ast.parse(line)))


def test_unused_private_definitions_are_named() -> None:
    trees = {
        "a": ast.parse("def _used(): ...\ndef _dead(): ...\n_DEAD = 1\nLIMIT = 2\nclass C:\n def _m(self): ...\n"),
        "b": ast.parse("from .a import _used\nprint(_used(), LIMIT)"),
    }
    found = sorted(message.split()[0] for _, _, message in unused_definitions(trees))
    assert found == ["_DEAD", "_dead", "_m"]


@pytest.mark.parametrize(
    "line",
    [
        "if token == 151645: pass",
        "EOS = (151645, 151643)",
        "x.view(-1, 14, 64)",
        "hidden = 896",
        "y = x[:, :4864]",
        "theta = 1000000.0",
        "if n in (64, 128): pass",
        "if n == 4096: pass",
        "MODEL = 'sha256:ab'",
        "IDS = [5, 7, 9, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61]",
    ],
)
def test_facts_of_the_model_that_are_typed_in(line: str) -> None:
    assert list(check_literals(ast.parse(line), CONFIG))


@pytest.mark.parametrize("line", ["x = 64 * n", "BUFFER = 4096", "parser.add(default=4096)", "x = y[2]", "n = 15"])
def test_numbers_that_mean_something_else(line: str) -> None:
    assert not list(check_literals(ast.parse(line), CONFIG))


def test_facts_typed_into_kernels_are_found_with_their_line() -> None:
    text = '// 896 in a comment\nint f() {\n  return 896; }\nconst char *s = "4864"; float g = 14.0f;\n'
    assert list(check_cpp_literals(text, CONFIG)) == [(3, "896 is HIDDEN_SIZE; take it from constants.h")]
