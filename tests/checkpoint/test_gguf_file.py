"""Reading GGUF files: the same as the gguf package reads, and damage is always said and never believed."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import numpy as np
import pytest

from metainfer.checkpoint.gguf_file import GgufDamagedError, GgufFile
from metainfer.progress import Silent

from .gguf_files import Gguf, gguf

__all__ = ["gguf"]  # the fixture


def test_metadata_and_tensors_are_what_the_gguf_package_reads(gguf: Gguf, tmp_path: Path) -> None:
    from gguf import GGUFReader

    path = gguf.write(tmp_path / "m.gguf")
    reader = GGUFReader(path)
    with GgufFile(path) as file:
        theirs = {key: value.contents() for key, value in reader.fields.items() if not key.startswith("GGUF.")}
        assert file.fields == theirs
        assert [(t.name, t.type, list(t.shape), t.offset) for t in file.tensors] == [
            (t.name, t.tensor_type.name, [int(n) for n in reversed(t.shape)], t.data_offset) for t in reader.tensors
        ]


@pytest.mark.parametrize("max_elements", [1, 64, 100, 1 << 20])
def test_values_come_in_slices_and_are_those_of_the_whole_tensor(gguf: Gguf, tmp_path: Path, max_elements: int) -> None:
    gguf.quantise = lambda name, shape: "F32" if len(shape) == 1 else "Q6_K" if shape[1] == 256 else "Q5_0"
    with GgufFile(gguf.write(tmp_path / "m.gguf")) as file:
        for tensor in file.tensors:
            slices = list(file.values(tensor, max_elements))
            assert all(piece.shape[0] == 1 or piece.size <= max_elements for piece in slices)
            np.testing.assert_array_equal(np.concatenate(slices).reshape(tensor.shape), gguf.values[tensor.name])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "cut off"),
        (b"PK\3\4" + bytes(60), "does not begin with GGUF"),
        (b"GGUF" + struct.pack("<I", 1) + bytes(60), "version 0x1"),
        (b"GGUF" + struct.pack(">I", 3) + bytes(60), "version 0x3000000"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**63) + bytes(60), "damaged near byte"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**63, 0) + bytes(60), "items are announced"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 2**62) + bytes(60), "bytes are missing"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q1sI", 1, b"a", 77), "unknown type 77"),
        (
            b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q1sIIQ", 1, b"a", 9, 4, 2**60) + bytes(60),
            "items are announced",
        ),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + struct.pack("<Q1sIB", 1, b"a", 0, 1) * 2, "stands there twice"),
    ],
)
def test_what_is_no_gguf_is_refused_with_the_reason(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    with pytest.raises(GgufDamagedError, match=message):
        GgufFile(path)


def test_a_file_cut_anywhere_is_refused(gguf: Gguf, tmp_path: Path) -> None:
    whole = gguf.write(tmp_path / "m.gguf").read_bytes()
    path = tmp_path / "cut.gguf"
    for size in sorted({0, 3, 4, 8, 24, *range(24, len(whole) - 31, 4999)}):
        path.write_bytes(whole[:size])
        with pytest.raises(GgufDamagedError):
            GgufFile(path)


def test_random_damage_of_the_metadata_gives_a_file_or_an_error_and_nothing_else(gguf: Gguf, tmp_path: Path) -> None:
    from metainfer.checkpoint.gguf import convert
    from metainfer.errors import MetainferError

    gguf.tokens, gguf.types = gguf.tokens[250:], gguf.types[250:]
    gguf.merges = ["he llo"]
    whole = gguf.write(tmp_path / "m.gguf").read_bytes()
    with GgufFile(tmp_path / "m.gguf") as file:
        metadata_bytes = min(tensor.offset for tensor in file.tensors)
    rng = random.Random(0)
    path = tmp_path / "damaged.gguf"
    for trial in range(150):
        damaged = bytearray(whole)
        for _ in range(rng.choice((1, 1, 4, 32))):
            damaged[rng.randrange(metadata_bytes)] = rng.randrange(256)
        path.write_bytes(damaged)
        out = tmp_path / f"out{trial}"
        out.mkdir()
        try:
            convert(path, out, Silent())
        except MetainferError as error:
            assert str(path) in str(error)  # noqa: PT017  both outcomes are allowed
