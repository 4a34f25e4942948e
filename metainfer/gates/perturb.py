"""Copies of a model folder in which a block of one tensor is altered: engine and reference must both notice."""

from __future__ import annotations

import json
import os
import random
import shutil
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from metainfer.checkpoint.tensors import TensorInfo, tensor_index
from metainfer.errors import InputError
from metainfer.files import folder_digest

if TYPE_CHECKING:
    import numpy as np

    Values = np.ndarray[Any, np.dtype[Any]]

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
_FULL_MATRIX_BYTES = 256 << 20
"""Copies of the whole model that may be written, over all tensors. Beyond that a seeded few must do."""
_FEW = 3
_SCALE, _SHIFT = -1.75, 0.5
"""Negative: where one key has all the attention, a larger score changes nothing and an opposite one everything."""


@dataclass(frozen=True)
class Perturbation:
    """One altered folder."""

    tensor: str
    folder: Path
    digest: str


def choose_tensors(folder: Path, seed: int) -> list[str]:
    """All tensors of a small model; of a large one a norm or bias, a projection, and the embedding or head."""
    tensors = tensor_index(folder)
    total = sum(info.nbytes for info in tensors.values())
    if total * len(tensors) <= _FULL_MATRIX_BYTES:
        return sorted(tensors)
    rng = random.Random(f"tensors:{seed}")
    ends = {EMBEDDING, HEAD} & tensors.keys()
    vectors = sorted(name for name, info in tensors.items() if len(info.shape) == 1)
    matrices = sorted(name for name, info in tensors.items() if len(info.shape) > 1 and name not in ends)
    return [rng.choice(group) for group in (vectors, matrices, sorted(ends)) if group][:_FEW]


def perturb(folder: Path, tensor: str, prompt: Sequence[int], seed: int, out: Path) -> Perturbation:
    """Write `out`: `folder` with a block of `tensor` altered; hard links, where possible, for the other files.

    The block is half of a vector, half the rows of a matrix, or in the embedding the row of a token of `prompt`.
    """
    tensors = tensor_index(folder)
    names = [tensor]
    if tensor == EMBEDDING and HEAD in tensors and _is_tied(folder):
        names.append(HEAD)  # stored twice, and an engine may insist that both agree
    touched = {tensors[name].file for name in names}
    out.mkdir(parents=True)
    for path in folder.iterdir():
        if path.is_file():
            _copy(path, out / path.name, link=path.name not in touched)
    for name in names:
        _alter(out / tensors[name].file, name, tensors[name], prompt, seed)
    return Perturbation(tensor, out, folder_digest(out))


def _is_tied(folder: Path) -> bool:
    return bool(json.loads((folder / "config.json").read_bytes()).get("tie_word_embeddings"))


def _copy(source: Path, target: Path, *, link: bool) -> None:
    if link:
        try:
            os.link(source.resolve(), target)
        except OSError:
            pass  # another file system
        else:
            return
    shutil.copyfile(source, target)
    target.chmod(0o644)


def _alter(path: Path, name: str, info: TensorInfo, prompt: Sequence[int], seed: int) -> None:
    begin, stop = _block(name, info, prompt, seed)
    width = info.nbytes // info.elements
    with path.open("r+b") as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        offset = 8 + length + json.loads(stream.read(length))[name]["data_offsets"][0] + begin * width
        stream.seek(offset)
        values = _decode(stream.read((stop - begin) * width), info.dtype)
        scale = float(abs(values).mean()) or 1.0
        stream.seek(offset)
        stream.write(_encode(values * _SCALE + _SHIFT * scale, info.dtype))


def _block(name: str, info: TensorInfo, prompt: Sequence[int], seed: int) -> tuple[int, int]:
    """First and last element, flat, of what is altered."""
    rng = random.Random(f"{seed}:{name}")
    if len(info.shape) == 1:
        size = max(1, info.elements // 2)
        begin = rng.randrange(info.elements - size + 1)
        return begin, begin + size
    rows, columns = info.shape[0], info.elements // info.shape[0]
    if name == EMBEDDING:
        row = prompt[-1]
        return row * columns, (row + 1) * columns
    count = max(1, rows // 2)  # so that some head that matters is among them
    row = rng.randrange(rows - count + 1)
    return row * columns, (row + count) * columns


def _decode(data: bytes, dtype: str) -> Values:
    import numpy as np

    if dtype == "F32":
        return np.frombuffer(data, dtype="<f4").copy()
    if dtype == "F16":
        return np.frombuffer(data, dtype="<f2").astype(np.float32)
    if dtype == "BF16":
        return (np.frombuffer(data, dtype="<u2").astype(np.uint32) << 16).view(np.float32)
    raise InputError(f"a tensor in {dtype} cannot be perturbed; F32, F16 and BF16 can")


def _encode(values: Values, dtype: str) -> bytes:
    """Exact to within half a unit: both sides read what is written, so that rounding does not matter."""
    import numpy as np

    values = values.astype(np.float32)
    if dtype == "F32":
        return values.tobytes()
    if dtype == "F16":
        return values.astype("<f2").tobytes()
    return ((values.view(np.uint32) + 0x8000) >> 16).astype("<u2").tobytes()
