"""Tiny models as a spec's random source makes them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from metainfer.checkpoint.random_model import make_random_model
from tests.checkpoint.saved_models import QWEN2, QWEN3


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def random_qwen2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Untied, fp32. Do not change the folder: tests share it."""
    folder = tmp_path_factory.mktemp("random-qwen2")
    make_random_model({**QWEN2, "dtype": "float32"}, 1, folder)
    return folder


@pytest.fixture(scope="session")
def random_qwen3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tied, bf16, in several shards. Do not change the folder: tests share it."""
    folder = tmp_path_factory.mktemp("random-qwen3")
    make_random_model({**QWEN3, "dtype": "bfloat16", "max_shard_size": "60KB"}, 2, folder)
    return folder
