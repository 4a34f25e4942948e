"""GGUF files as they lie on disk: metadata and tensors read piece by piece, nothing mapped, nothing believed.

The `gguf` package names the types and knows the quantised blocks; its own reader takes 300 MB and many seconds for
the metadata of a large vocabulary.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn

from metainfer.errors import InputError

if TYPE_CHECKING:
    import numpy as np

_VERSIONS = (2, 3)
_ALIGNMENT_KEY = "general.alignment"
_MAX_DIMENSIONS = 4
_SCALARS = ("<B", "<b", "<H", "<h", "<I", "<i", "<f", "<?", None, None, "<Q", "<q", "<d")
"""Struct formats by GGUF's value type; strings (8) and arrays (9) have a length in front."""
_STRING, _ARRAY = 8, 9


class GgufDamagedError(InputError):
    """The file is cut off or is no GGUF; the message says at which byte it stopped making sense."""


@dataclass(frozen=True)
class GgufTensor:
    """One tensor as stored."""

    name: str
    type: str
    """The storage type's name in GGUF: F32, BF16, Q5_0, ..."""
    shape: tuple[int, ...]
    """Rows first, as in safetensors; the file stores it the other way round."""
    offset: int
    """Of the first byte, in the file."""
    row_bytes: int

    @property
    def rows(self) -> int:
        return math.prod(self.shape[:-1])

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


class GgufFile:
    """An open file: `fields` by key, `tensors` in file order. A context manager. Raises GgufDamagedError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stream: BinaryIO = path.open("rb")
        self._size = path.stat().st_size
        try:
            self.fields, self.tensors = self._read_all()
        except BaseException:
            self._stream.close()
            raise

    def __enter__(self) -> GgufFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.close()

    def values(self, tensor: GgufTensor, max_elements: int) -> Iterator[np.ndarray]:
        """The tensor's values [rows, columns] fp32, dequantised, at most about `max_elements` at a time.

        Raises NotImplementedError for a quantisation that the gguf package cannot undo.
        """
        import numpy as np
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize

        step = max(1, max_elements // tensor.shape[-1])
        for first in range(0, tensor.rows, step):
            rows = min(step, tensor.rows - first)
            self._stream.seek(tensor.offset + first * tensor.row_bytes)
            raw = np.frombuffer(self._take(rows * tensor.row_bytes), np.uint8).reshape(rows, tensor.row_bytes)
            yield dequantize(raw, GGMLQuantizationType[tensor.type]).reshape(rows, tensor.shape[-1])

    def _read_all(self) -> tuple[dict[str, Any], tuple[GgufTensor, ...]]:
        if self._take(4) != b"GGUF":
            raise GgufDamagedError(f"{self.path}: not a GGUF file: it does not begin with GGUF")
        version = self._number("<I")
        if version not in _VERSIONS:
            raise GgufDamagedError(f"{self.path}: GGUF version {version:#x}; little-endian versions 2 and 3 are read")
        tensor_count, field_count = self._number("<Q"), self._number("<Q")
        fields: dict[str, Any] = {}
        for _ in range(field_count):
            key = self._string()
            if key in fields:
                self._complain(f"the key {key} stands there twice")
            fields[key] = self._value(self._number("<I"))
        entries = [self._tensor_entry() for _ in range(self._count(tensor_count))]
        alignment = fields.get(_ALIGNMENT_KEY, 32)
        if not isinstance(alignment, int) or alignment < 1:
            self._complain(f"{_ALIGNMENT_KEY} is {alignment!r}")
        start = -(-self._stream.tell() // alignment) * alignment
        tensors = tuple(self._tensor(*entry, start) for entry in entries)
        if len({tensor.name for tensor in tensors}) != len(tensors):
            self._complain("a tensor stands there twice")
        return fields, tensors

    def _tensor_entry(self) -> tuple[str, tuple[int, ...], int, int]:
        name, dimensions = self._string(), self._number("<I")
        if not 1 <= dimensions <= _MAX_DIMENSIONS:
            self._complain(f"{name} has {dimensions} dimensions")
        shape = tuple(self._number("<Q") for _ in range(dimensions))
        return name, shape[::-1], self._number("<I"), self._number("<Q")

    def _tensor(self, name: str, shape: tuple[int, ...], type_: int, offset: int, start: int) -> GgufTensor:
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

        try:
            kind = GGMLQuantizationType(type_)
        except ValueError:
            self._complain(f"{name} has the unknown storage type {type_}")
        block, block_bytes = GGML_QUANT_SIZES[kind]
        if min(shape) < 1 or shape[-1] % block:
            self._complain(f"{name} is {[*shape]}: no whole number of {kind.name} blocks")
        tensor = GgufTensor(name, kind.name, shape, start + offset, shape[-1] // block * block_bytes)
        if tensor.offset + tensor.rows * tensor.row_bytes > self._size:
            self._complain(f"{name} ends behind the end of the file; it is cut off")
        return tensor

    def _value(self, type_: int) -> Any:
        if type_ == _STRING:
            return self._string()
        if type_ == _ARRAY:
            item, count = self._number("<I"), self._count(self._number("<Q"))
            if item == _STRING:
                return [self._string() for _ in range(count)]
            format_ = self._format(item)
            whole = f"<{count}{format_[1:]}"
            return list(struct.unpack(whole, self._take(struct.calcsize(whole))))
        return self._number(self._format(type_))

    def _format(self, type_: int) -> str:
        format_ = _SCALARS[type_] if type_ < len(_SCALARS) else None
        if format_ is None:
            self._complain(f"a value has the unknown type {type_}")
        return format_

    def _string(self) -> str:
        raw = self._take(self._number("<Q"))
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            self._complain("a text is not UTF-8")

    def _number(self, format_: str) -> Any:
        return struct.unpack(format_, self._take(struct.calcsize(format_)))[0]

    def _count(self, count: int) -> int:
        """A number of items, each of at least one byte, that the rest of the file can hold."""
        if count > self._size - self._stream.tell():
            self._complain(f"{count:,} items are announced; the file is too short for them")
        return count

    def _take(self, size: int) -> bytes:
        data = self._stream.read(size) if size <= self._size else b""
        if len(data) != size:
            self._complain(f"{size:,} bytes are missing; the file is cut off")
        return data

    def _complain(self, message: str) -> NoReturn:
        raise GgufDamagedError(f"{self.path}: damaged near byte {self._stream.tell():,}: {message}")
