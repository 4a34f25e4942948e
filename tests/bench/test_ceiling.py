"""The ceilings' kernels read what they say they read. Rates themselves are not asserted: they are the machine's."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from metainfer.bench import ceiling
from metainfer.bench.ceiling import Ceiling, CeilingMeter, better, build_read_kernel, default_stream_bytes

SMALL = 1 << 20


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("METAINFER_CACHE", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("kernel", ["read_plain", "read_prefetch"])
def test_the_read_kernels_take_in_every_word(tmp_path: Path, kernel: str) -> None:
    words = np.random.default_rng(3).integers(0, 2**63, size=4 * 1024, dtype=np.uint64)
    memory = torch.from_numpy(words.copy())
    library = ctypes.CDLL(str(build_read_kernel(tmp_path)))
    function = getattr(library, kernel)
    function.argtypes, function.restype = (ctypes.c_void_p, ctypes.c_size_t), ctypes.c_uint64
    assert function(memory.data_ptr(), memory.nbytes) == np.bitwise_xor.reduce(words)


def test_a_built_kernel_is_built_once(tmp_path: Path) -> None:
    library = build_read_kernel(tmp_path / "kernels")
    built = library.stat().st_mtime_ns
    assert build_read_kernel(tmp_path / "kernels") == library
    assert library.stat().st_mtime_ns == built
    assert [path.name for path in library.parent.iterdir()] == [library.name]


@pytest.mark.parametrize("threads", [1, 2])
def test_a_reading_is_the_best_of_its_kernels(threads: int) -> None:
    before = torch.get_num_threads()
    with CeilingMeter(threads, stream_bytes=SMALL) as meter:
        reading = meter.take()
        assert meter.notes == []
    assert reading.memory_gb_s == max(reading.memory_kernels.values()) > 0
    assert reading.compute_gflop_s == max(reading.compute_shapes.values()) > 0
    assert len(reading.memory_kernels) == 5
    assert reading.streamed_bytes == SMALL
    assert torch.get_num_threads() == before


def test_without_a_compiler_the_reading_says_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceiling, "_COMPILE", ("no-such-compiler",))
    with CeilingMeter(1, stream_bytes=SMALL) as meter:
        assert any("C++" in note for note in meter.notes)
        assert meter.take().memory_gb_s > 0


def test_a_compiler_that_fails_is_an_error_not_a_broken_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ceiling, "_COMPILE", ("g++", "--no-such-option"))
    with pytest.raises(subprocess.CalledProcessError):
        build_read_kernel(tmp_path / "kernels")
    assert list((tmp_path / "kernels").iterdir()) == []


def test_a_pass_streams_ten_times_the_last_cache_and_half_a_gibibyte_at_least() -> None:
    assert default_stream_bytes(0) == 512 << 20
    assert default_stream_bytes(32 << 20) == 512 << 20
    assert default_stream_bytes(256 << 20) == 2560 << 20


def test_a_measurement_is_held_against_the_better_of_two_readings() -> None:
    def reading(memory: float, compute: float) -> Ceiling:
        return Ceiling(
            memory_gb_s=memory,
            compute_gflop_s=compute,
            memory_kernels={"k": memory},
            compute_shapes={"s": compute},
            streamed_bytes=SMALL,
            seconds=1.0,
        )

    assert better(reading(10, 90), reading(12, 80)) == (12, 90)
