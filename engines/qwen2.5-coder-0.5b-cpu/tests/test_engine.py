"""The engine as installed: its files are those the generator wrote, and its accounting starts whole."""

import hashlib
import json
from pathlib import Path

from qwen2_5_coder_0_5b_cpu import config
from qwen2_5_coder_0_5b_cpu.block_manager import BlockManager

ENGINE = Path(__file__).parent.parent


def test_every_file_is_as_generated() -> None:
    files = json.loads((ENGINE / "manifest.json").read_text(encoding="utf-8"))["files"]
    changed = [
        name for name, digest in files.items() if hashlib.sha256((ENGINE / name).read_bytes()).hexdigest() != digest
    ]
    assert changed == []


def test_an_idle_pool_holds_every_block() -> None:
    blocks = BlockManager(config.NUM_KV_BLOCKS, config.BLOCK_SIZE)
    assert blocks.num_free + blocks.num_cached + blocks.num_used == config.NUM_KV_BLOCKS
    assert blocks.num_used == 0
