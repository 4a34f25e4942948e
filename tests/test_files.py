"""Files that somebody named: read in full if they are files, refused at once if they have no end."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from metainfer.checkpoint.facts import read_facts
from metainfer.checkpoint.sources import copy_model, fetch_model
from metainfer.ckb.proposals import read_proposal
from metainfer.ckb.store import KnowledgeBase
from metainfer.errors import InputError, MetainferError
from metainfer.files import open_regular, read_regular
from metainfer.generate.manifest import read_manifest
from metainfer.progress import Silent
from metainfer.spec.document import Document
from metainfer.spec.models import Source
from tests.ckb.builders import write_contract

KINDS = ["device", "FIFO", "folder"]


def put(kind: str, path: Path) -> Path:
    """Something at `path` that is no regular file."""
    path.unlink(missing_ok=True)
    match kind:
        case "device":
            path.symlink_to("/dev/zero")
        case "FIFO":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
    return path


def fetch_random(path: Path) -> object:
    source = Source.model_validate({"random": {"config": path.name, "seed": 1}})
    return fetch_model(source, cache=path.parent / "cache", base_dir=path.parent, progress=Silent())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "read", [read_regular, open_regular, Document.read, read_proposal, fetch_random], ids=lambda read: read.__name__
)
def test_what_is_no_regular_file_is_refused_in_a_line(read: object, kind: str, tmp_path: Path) -> None:
    path = put(kind, tmp_path / "named.yaml")
    with pytest.raises(InputError) as caught:
        read(path)  # type: ignore[operator]
    assert str(caught.value) == f"{path}: is a {kind}; name a regular file"


@pytest.mark.parametrize("kind", KINDS)
def test_an_engines_manifest_and_a_models_config_are_files(kind: str, tmp_path: Path) -> None:
    for name, read in (("manifest.json", read_manifest), ("config.json", read_facts)):
        path = put(kind, tmp_path / name)
        with pytest.raises(InputError, match=f"{name}: is a {kind}"):
            read(tmp_path)
        path.rmdir() if kind == "folder" else path.unlink()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "name",
    ["config.json", "tokenizer.json", "chat_template.jinja", "model.safetensors", "model.safetensors.index.json"],
)
def test_a_model_folder_is_made_of_files(name: str, kind: str, tmp_path: Path) -> None:
    origin, out = tmp_path / "origin", tmp_path / "out"
    origin.mkdir()
    out.mkdir()
    for needed in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (origin / needed).write_text("{}")
    put(kind, origin / name)
    with pytest.raises(InputError, match=name):
        copy_model(origin, out, Silent())
    assert list(out.iterdir()) == []


@pytest.mark.parametrize("kind", ["device", "FIFO"])
@pytest.mark.parametrize("name", ["contract.yaml", "check.py", "mutants.yaml", "exemplars/all.py", "exemplars/odd.py"])
def test_knowledge_is_made_of_files(name: str, kind: str, tmp_path: Path) -> None:
    put(kind, write_contract(tmp_path, "general/a", "A") / name)
    with pytest.raises(MetainferError, match="general/a"):
        KnowledgeBase.load(tmp_path)


def test_no_more_than_the_limit_is_read(tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_bytes(b"x" * 11)
    assert read_regular(path, 11) == b"x" * 11
    with pytest.raises(InputError, match=r"large: more than 10 bytes"):
        read_regular(path, 10)
    os.truncate(path, 1 << 40)  # sparse: there is no memory for it
    with pytest.raises(InputError, match="no file of this kind needs more"):
        Document.read(path)


def test_a_link_to_a_file_is_a_file_and_one_to_itself_is_not(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"text")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "loop").symlink_to("loop")
    assert read_regular(tmp_path / "link") == b"text"
    with pytest.raises(OSError, match="symbolic links"):
        read_regular(tmp_path / "loop")


def test_nothing_stays_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for kind in KINDS:
        with pytest.raises(InputError):
            open_regular(put(kind, tmp_path / kind))
    with open_regular(Path(__file__)) as stream:
        assert stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_spec_that_nobody_writes_to_is_refused_at_the_command_line(tmp_path: Path) -> None:
    spec = put("FIFO", tmp_path / "spec.yaml")
    command = [sys.executable, "-c", "from metainfer.cli import main; main()", "spec", "check", str(spec)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (result.returncode, result.stderr) == (2, f"{spec}: is a FIFO; name a regular file\n")
