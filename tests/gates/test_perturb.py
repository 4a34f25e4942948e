"""An altered model folder differs in one block of one tensor, and in nothing else."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from metainfer.checkpoint.tensors import tensor_index
from metainfer.files import folder_digest
from metainfer.gates.perturb import EMBEDDING, choose_tensors, perturb
from tests.gates.engines import Tiny

PROMPT = [5, 9, 77]


@pytest.mark.parametrize("name", ["model.norm.weight", "model.layers.1.mlp.down_proj.weight", EMBEDDING])
def test_one_block_of_one_tensor_changes(name: str, qwen2: Tiny, tmp_path: Path) -> None:
    made = perturb(qwen2.model, name, PROMPT, 0, tmp_path / "altered")
    before, after = load_file(qwen2.model / "model.safetensors"), load_file(made.folder / "model.safetensors")
    assert {key for key in before if not torch.equal(before[key], after[key])} == {name}
    changed = before[name] != after[name]
    assert 0 < int(changed.sum()) < changed.numel()
    assert made.digest == folder_digest(made.folder) != folder_digest(qwen2.model)


def test_in_the_embedding_a_token_of_the_prompt_changes(qwen2: Tiny, tmp_path: Path) -> None:
    made = perturb(qwen2.model, EMBEDDING, PROMPT, 0, tmp_path / "altered")
    before, after = load_file(qwen2.model / "model.safetensors"), load_file(made.folder / "model.safetensors")
    rows = (before[EMBEDDING] != after[EMBEDDING]).any(dim=1).nonzero().flatten().tolist()
    assert rows == [77]


def test_the_original_is_untouched_and_other_files_are_shared(qwen2: Tiny, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(qwen2.model, model)
    digest = folder_digest(model)
    made = perturb(model, "model.norm.weight", PROMPT, 0, tmp_path / "altered")
    assert folder_digest(model) == digest
    assert os.path.samefile(model / "config.json", made.folder / "config.json")
    assert not os.path.samefile(model / "model.safetensors", made.folder / "model.safetensors")


def test_of_a_small_model_every_tensor_is_altered_in_turn(qwen2: Tiny, qwen3: Tiny) -> None:
    for tiny in (qwen2, qwen3):
        assert choose_tensors(tiny.model, 0) == sorted(tensor_index(tiny.model))


def test_of_a_large_model_a_seeded_few_are(qwen2: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metainfer.gates.perturb._FULL_MATRIX_BYTES", 0)
    few = [choose_tensors(qwen2.model, seed) for seed in range(8)]
    assert all(len(names) == 3 for names in few)
    assert len({name for names in few for name in names}) > 6
