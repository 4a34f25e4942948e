"""Safetensors files without loading them: headers, and a writer that streams.

Format: eight bytes of little-endian header length, a JSON header, then the tensors' bytes back to back.
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metainfer.errors import InputError
from metainfer.files import open_regular, read_regular

WEIGHTS_NAME = "model.safetensors"
INDEX_NAME = "model.safetensors.index.json"
DTYPE_BYTES = {"F32": 4, "BF16": 2, "F16": 2, "I64": 8, "I32": 4, "I8": 1, "U8": 1}
_MAX_HEADER_BYTES = 100_000_000
_MAX_INDEX_BYTES = 100_000_000


@dataclass(frozen=True)
class TensorInfo:
    """One tensor of a model folder."""

    file: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.elements * DTYPE_BYTES.get(self.dtype, 0)


def tensor_index(folder: Path) -> dict[str, TensorInfo]:
    """Every tensor of a folder by name. One set of files counts: those of the index if there is one.

    Raises InputError if files are missing, a tensor stands twice, or the index and the files disagree.
    """
    index_path = folder / INDEX_NAME
    if not index_path.exists():
        return _read_header(folder / WEIGHTS_NAME)
    weight_map = _weight_map(index_path)
    tensors: dict[str, TensorInfo] = {}
    for file in sorted(set(weight_map.values())):
        if Path(file).name != file:
            raise InputError(f"{index_path}: {file!r} is not a file name in the same folder")
        for name, info in _read_header(folder / file).items():
            if weight_map.get(name) != file:
                place = f"the index says {weight_map[name]}" if name in weight_map else "the index lacks it"
                raise InputError(f"{index_path}: {name} lies in {file}, but {place}")
            tensors[name] = info
    if missing := weight_map.keys() - tensors.keys():
        raise InputError(f"{index_path}: {', '.join(sorted(missing)[:3])}: in the index, but in no file")
    return tensors


def _weight_map(path: Path) -> dict[str, str]:
    try:
        weight_map = json.loads(read_regular(path, _MAX_INDEX_BYTES))["weight_map"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"{path}: not an index: {error!r}") from error
    if not isinstance(weight_map, dict) or not weight_map or not all(isinstance(f, str) for f in weight_map.values()):
        raise InputError(f"{path}: not an index: weight_map must give each tensor its file's name")
    return weight_map


def _read_header(path: Path) -> dict[str, TensorInfo]:
    """The tensors of one file, which must fill it without gap or overlap, as the format demands."""
    try:
        with open_regular(path) as stream:
            size = path.stat().st_size
            (length,) = struct.unpack("<Q", stream.read(8))
            if length > min(size - 8, _MAX_HEADER_BYTES):
                raise InputError(f"{path}: damaged: the header claims {length:,} bytes of {size:,}")
            header = json.loads(stream.read(length), object_pairs_hook=_no_duplicates)
            if not isinstance(header, dict):
                raise ValueError("the header is no JSON object")
            entries = [(name, *_entry(name, entry, path)) for name, entry in header.items() if name != "__metadata__"]
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; the folder holds no complete set of safetensors") from error
    except (struct.error, ValueError, RecursionError) as error:
        raise InputError(f"{path}: not a safetensors file, or damaged: {error}") from error
    end = 0
    for name, _, (first, last) in sorted(entries, key=lambda entry: entry[2]):
        if first != end:
            raise InputError(f"{path}: damaged: {name} begins at byte {first:,} where {end:,} is due")
        end = last
    if 8 + length + end != size:
        raise InputError(f"{path}: damaged: {size:,} bytes where its header needs {8 + length + end:,}; cut off?")
    return {name: info for name, info, _ in entries}


def _entry(name: str, entry: Any, path: Path) -> tuple[TensorInfo, tuple[int, int]]:
    """One header entry and the bytes it covers. Raises ValueError."""
    if not isinstance(entry, dict) or not entry.keys() >= {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"{name} lacks a dtype, shape or data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or not _whole(shape) or not _whole(offsets) or len(offsets) != 2:
        raise ValueError(f"{name} has a dtype, shape or data_offsets of the wrong kind")
    info = TensorInfo(path.name, dtype, tuple(shape))
    first, last = offsets
    if first > last or (dtype in DTYPE_BYTES and last - first != info.nbytes):
        raise ValueError(f"{name} is {dtype} {shape}, which bytes {first:,} to {last:,} are not")
    return info, (first, last)


def _whole(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in value)


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands there twice")
    return found


def write_safetensors(
    path: Path, layout: Mapping[str, tuple[str, Sequence[int]]], chunks: Iterable[tuple[str, bytes | memoryview]]
) -> None:
    """Stream tensors into `path`, fsynced. `layout` gives name → (dtype, shape) in file order.

    `chunks` yields (name, bytes) in the same order; a tensor may come in several pieces. The file never holds more in
    memory than one piece. Raises ValueError if the pieces do not fill the layout exactly.
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    sizes: dict[str, int] = {}
    offset = 0
    for name, (dtype, shape) in layout.items():
        sizes[name] = math.prod(shape) * DTYPE_BYTES[dtype]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + sizes[name]]}
        offset += sizes[name]
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    order = iter(sizes)
    current, left = "", 0
    with path.open("wb") as stream:
        stream.write(struct.pack("<Q", len(encoded)) + encoded)
        for name, piece in chunks:
            length = memoryview(piece).nbytes
            while left == 0 and name != current:
                # Tensors without elements need no piece.
                if (following := next(order, None)) is None:
                    break
                current, left = following, sizes[following]
            if name != current or length > left:
                raise ValueError(f"{length} bytes of {name} where {left} of {current} were due")
            stream.write(piece)
            left -= length
        if left or any(sizes[name] for name in order):
            raise ValueError(f"{path}: tensors are missing after {current}")
        stream.flush()
        os.fsync(stream.fileno())
