"""Safetensors files without loading them: headers, and a writer that streams.

Format: eight bytes of little-endian header length, a JSON header, then the tensors' bytes back to back.
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from metainfer.errors import InputError

WEIGHTS_NAME = "model.safetensors"
INDEX_NAME = "model.safetensors.index.json"
DTYPE_BYTES = {"F32": 4, "BF16": 2, "F16": 2, "I64": 8, "I32": 4, "I8": 1, "U8": 1}
_MAX_HEADER_BYTES = 100_000_000


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
        return dict(_read_header(folder / WEIGHTS_NAME))
    try:
        weight_map: dict[str, str] = json.loads(index_path.read_bytes())["weight_map"]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{index_path}: not an index: {error}") from error
    tensors: dict[str, TensorInfo] = {}
    for file in sorted(set(weight_map.values())):
        if Path(file).name != file:
            raise InputError(f"{index_path}: {file!r} is not a file name in the same folder")
        for name, info in _read_header(folder / file):
            if weight_map.get(name) != file:
                raise InputError(f"{index_path}: {name} lies in {file}, but the index says {weight_map.get(name)}")
            tensors[name] = info
    if missing := weight_map.keys() - tensors.keys():
        raise InputError(f"{index_path}: {', '.join(sorted(missing)[:3])}: in the index, but in no file")
    return tensors


def _read_header(path: Path) -> Iterator[tuple[str, TensorInfo]]:
    try:
        with path.open("rb") as stream:
            size = path.stat().st_size
            (length,) = struct.unpack("<Q", stream.read(8))
            if length > min(size - 8, _MAX_HEADER_BYTES):
                raise InputError(f"{path}: damaged: the header claims {length:,} bytes of {size:,}")
            header = json.loads(stream.read(length))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; the folder holds no complete set of safetensors") from error
    except (struct.error, ValueError) as error:
        raise InputError(f"{path}: not a safetensors file: {error}") from error
    for name, entry in header.items():
        if name != "__metadata__":
            yield name, TensorInfo(path.name, entry["dtype"], tuple(entry["shape"]))


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
            if left == 0:
                current = next(order)
                left = sizes[current]
            length = memoryview(piece).nbytes
            if name != current or length > left:
                raise ValueError(f"{length} bytes of {name} where {left} of {current} were due")
            stream.write(piece)
            left -= length
        if left or next(order, None) is not None:
            raise ValueError(f"{path}: tensors are missing after {current}")
        stream.flush()
        os.fsync(stream.fileno())
