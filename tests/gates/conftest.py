"""Engines are made once and shared; tests that need a fault copy them."""

from __future__ import annotations

from pathlib import Path

import pytest

from metainfer.sandbox import Sandbox
from tests.gates.engines import QWEN2, QWEN3, Tiny, make_tiny


@pytest.fixture(scope="session")
def qwen2(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """Untied, with biases, bfloat16 weights."""
    return make_tiny(tmp_path_factory.mktemp("qwen2"), QWEN2, "bf16")


@pytest.fixture(scope="session")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """Tied, norms on queries and keys, head_dim ≠ hidden / heads, float32 weights."""
    return make_tiny(tmp_path_factory.mktemp("qwen3"), QWEN3, "fp32")


@pytest.fixture(scope="session")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built kernels, kept between the gates of one test run."""
    folder = tmp_path_factory.mktemp("kernels")
    folder.chmod(0o755)
    return folder


@pytest.fixture(scope="session")
def sandbox() -> Sandbox:
    return Sandbox()
