"""Safetensors headers and the streaming writer, held against the safetensors package in both directions."""

from __future__ import annotations

import json
import struct
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save, save_file

from metainfer.checkpoint.tensors import INDEX_NAME, WEIGHTS_NAME, TensorInfo, tensor_index, write_safetensors
from metainfer.errors import InputError

DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16, "I64": torch.int64, "U8": torch.uint8}
entries = st.dictionaries(
    st.text("abc.é\n", min_size=1, max_size=8),
    st.tuples(st.sampled_from(sorted(DTYPES)), st.lists(st.integers(0, 5), max_size=3)),
    max_size=5,
)


def random_tensors(layout: dict[str, tuple[str, list[int]]], seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randint(0, 100, shape, generator=generator).to(DTYPES[dtype])
        for name, (dtype, shape) in layout.items()
    }


def raw(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.contiguous().flatten().view(torch.uint8).numpy()) if tensor.numel() else b""


@settings(deadline=None, max_examples=40)
@given(layout=entries, seed=st.integers(0, 2**31), piece=st.integers(1, 40))
def test_what_is_written_in_pieces_loads_as_it_was(
    layout: dict[str, tuple[str, list[int]]], seed: int, piece: int
) -> None:
    tensors = random_tensors(layout, seed)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / WEIGHTS_NAME
        chunks = (
            (name, raw(tensor)[first : first + piece])
            for name, tensor in tensors.items()
            for first in range(0, max(1, len(raw(tensor))), piece)
        )
        write_safetensors(path, layout, chunks)
        loaded = load_file(path)
    assert loaded.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert loaded[name].dtype == tensor.dtype
        assert torch.equal(loaded[name], tensor)


@settings(deadline=None, max_examples=40)
@given(layout=entries, seed=st.integers(0, 2**31))
def test_headers_of_the_safetensors_package_are_read(layout: dict[str, tuple[str, list[int]]], seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / WEIGHTS_NAME).write_bytes(save(random_tensors(layout, seed), metadata={"format": "pt"}))
        index = tensor_index(Path(folder))
    assert index == {name: TensorInfo(WEIGHTS_NAME, dtype, tuple(shape)) for name, (dtype, shape) in layout.items()}


@pytest.mark.parametrize(
    "chunks",
    [
        [],
        [("a", b"1234")],
        [("a", b"12345678"), ("b", b"12")],
        [("b", b"1234"), ("a", b"12345678")],
        [("a", b"123456789"), ("b", b"1234")],
        [("a", b"1234"), ("b", b"1234"), ("a", b"1234")],
        [("a", b"12345678"), ("b", b"1234"), ("b", b"1")],
        [("a", b"12345678"), ("b", b"1234"), ("c", b"1")],
    ],
)
def test_pieces_that_do_not_fill_the_layout_are_refused(tmp_path: Path, chunks: list[tuple[str, bytes]]) -> None:
    with pytest.raises(ValueError, match=r"due|missing"):
        write_safetensors(tmp_path / "x", {"a": ("F32", [2]), "b": ("F32", [1])}, chunks)


def good(folder: Path) -> bytes:
    save_file({"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(4)}, folder / WEIGHTS_NAME)
    return (folder / WEIGHTS_NAME).read_bytes()


@pytest.mark.parametrize("cut", [0, 3, 7, 8, 20, -1, -16])
def test_a_file_that_is_cut_off_is_damaged(tmp_path: Path, cut: int) -> None:
    content = good(tmp_path)
    (tmp_path / WEIGHTS_NAME).write_bytes(content[:cut])
    with pytest.raises(InputError, match=WEIGHTS_NAME):
        tensor_index(tmp_path)


def test_bytes_behind_the_last_tensor_are_damage(tmp_path: Path) -> None:
    content = good(tmp_path)
    (tmp_path / WEIGHTS_NAME).write_bytes(content + b"\0")
    with pytest.raises(InputError, match=WEIGHTS_NAME):
        tensor_index(tmp_path)


def header_file(folder: Path, header: object, data: bytes = b"\0" * 8) -> None:
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    (folder / WEIGHTS_NAME).write_bytes(struct.pack("<Q", len(encoded)) + encoded + data)


@pytest.mark.parametrize(
    "header",
    [
        b"\xff{}",
        b"{",
        [],
        5,
        {"a": 5},
        {"a": {}},
        {"a": {"dtype": "F32", "shape": [2]}},
        {"a": {"dtype": "F32", "shape": "2", "data_offsets": [0, 8]}},
        {"a": {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}},
        {"a": {"dtype": "F32", "shape": [2.0], "data_offsets": [0, 8]}},
        {"a": {"dtype": 7, "shape": [2], "data_offsets": [0, 8]}},
        {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}},
        {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 800]}},
        {"a": {"dtype": "F32", "shape": [2], "data_offsets": [8, 16]}},
        b'{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}}',
        b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}',
    ],
)  # fmt: skip
def test_a_damaged_header_is_named_and_never_crashes(tmp_path: Path, header: object) -> None:
    header_file(tmp_path, header)
    with pytest.raises(InputError, match=WEIGHTS_NAME):
        tensor_index(tmp_path)


@settings(deadline=None, max_examples=40)
@given(content=st.binary(max_size=60), at=st.integers(0, 200), byte=st.integers(0, 255))
def test_any_bytes_give_tensors_or_an_input_error(content: bytes, at: int, byte: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        changed = bytearray(good(Path(folder)))
        changed[at % len(changed)] = byte
        for data in (content, bytes(changed)):
            (Path(folder) / WEIGHTS_NAME).write_bytes(data)
            try:
                tensor_index(Path(folder))
            except InputError as error:
                assert WEIGHTS_NAME in str(error)  # noqa: PT017


def shards(folder: Path, **weight_map: str) -> None:
    save_file({"a": torch.ones(2), "b": torch.ones(3)}, folder / "one.safetensors")
    save_file({"c": torch.ones(4)}, folder / "two.safetensors")
    (folder / INDEX_NAME).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def test_the_index_says_which_files_count(tmp_path: Path) -> None:
    shards(tmp_path, a="one.safetensors", b="one.safetensors", c="two.safetensors")
    save_file({"stray": torch.ones(1)}, tmp_path / WEIGHTS_NAME)
    index = tensor_index(tmp_path)
    assert {name: info.file for name, info in index.items()} == {
        "a": "one.safetensors",
        "b": "one.safetensors",
        "c": "two.safetensors",
    }


@pytest.mark.parametrize(
    ("weight_map", "named"),
    [
        ({"a": "one.safetensors", "c": "two.safetensors"}, "b lies in one"),
        ({"a": "one.safetensors", "b": "two.safetensors", "c": "two.safetensors"}, "b lies in one"),
        ({"a": "one.safetensors", "b": "one.safetensors", "d": "one.safetensors"}, "d: in the index"),
        ({"a": "one.safetensors", "b": "one.safetensors", "c": "three.safetensors"}, r"three\.safetensors"),
        ({"a": "../one.safetensors"}, "not a file name"),
        ({"a": 5}, INDEX_NAME),
        ({}, INDEX_NAME),
    ],
)
def test_an_index_that_disagrees_with_its_files_is_named(
    tmp_path: Path, weight_map: dict[str, str], named: str
) -> None:
    shards(tmp_path, **weight_map)
    with pytest.raises(InputError, match=named):
        tensor_index(tmp_path)


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"weight_map": []}', b'{"weight_map": 3}', b"\xff"])
def test_an_index_that_is_none_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / INDEX_NAME).write_bytes(content)
    with pytest.raises(InputError, match=INDEX_NAME):
        tensor_index(tmp_path)
