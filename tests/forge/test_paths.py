"""What may be published: a list of what is allowed, tried with everything that tends to get past such lists."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metainfer.errors import InputError
from metainfer.forge.local import LocalForge
from metainfer.forge.paths import (
    MAX_FILE_BYTES,
    MAX_FILES,
    check_engine_name,
    collect_files,
    engine_folder,
    path_complaints,
    spelling_complaints,
)
from metainfer.forge.protocol import PublishRefusedError
from tests.forge.engines import FOLDER, commit_on, refs, request

OUTSIDE = [
    "README.md",
    "engines/other-cpu/model.py",
    "engines/tiny-cpu",
    "engines/tiny-cpu-2/x.py",
    ".github/workflows/run.yml",
    "Engines/tiny-cpu/x.py",
    "/engines/tiny-cpu/x.py",
    "ckb/general/x/check.py",
]
WITHIN = [
    "../other-cpu/x.py",
    "../../.git/config",
    "./x.py",
    "a//b.py",
    "",
    "a/",
    ".git/config",
    ".GIT/config",
    "a/.Git/hooks/post-checkout",
    "git~1/config",
    ".git ",
    ".git.",
    "x.py ",
    "x.py.",
    ".g\u200cit/config",
    ".gitattributes",
    ".gitmodules",
    ".github/x.yml",
    "CODEOWNERS",
    "a\\..\\b.py",
    "C:x.py",
    "x.py::$DATA",
    "a\nb.py",
    "a\tb.py",
    "a\0b.py",
    "\u202ecod.py",
    "caf\u00e9.py",
    "CON",
    "aux.py",
    "x.lock",
    "-rf",
    "a" * 300,
]


@pytest.mark.parametrize("path", OUTSIDE + [FOLDER + path for path in WITHIN])
def test_an_engine_cannot_leave_its_folder_or_hide_in_it(forge: LocalForge, path: str) -> None:
    before = refs(forge)
    wanted = request(forge)
    wanted = type(wanted)(**{**_fields(wanted), "engine_files": {**wanted.engine_files, path: b"x\n"}})
    with pytest.raises(PublishRefusedError, match="nothing was written"):
        forge.publish(wanted)
    assert refs(forge) == before


@pytest.mark.parametrize("path", ["README.md", "ckb/../x", "ckb/.git/x", "engines/tiny-cpu/x.py", "CKB/x.yaml", "ckb"])
def test_proposals_stay_in_the_knowledge_base(forge: LocalForge, path: str) -> None:
    with pytest.raises(PublishRefusedError):
        forge.publish(request(forge, proposals={path: b"x\n"}))


def test_a_spelling_that_differs_from_the_bases_in_case_is_refused(forge: LocalForge) -> None:
    with pytest.raises(PublishRefusedError, match="differs only in case"):
        forge.publish(request(forge, proposals={"ckb/Family/other/contract.yaml": b"x\n"}))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"A.py": b"", "a.py": b""}, "differs only in case"),
        ({"Sub/a.py": b"", "sub/b.py": b""}, "differs only in case"),
        ({"sub": b"", "sub/b.py": b""}, "is a file"),
        ({"big.py": b"x" * (MAX_FILE_BYTES + 1)}, "above the"),
        ({f"f{n}.py": b"" for n in range(MAX_FILES + 1)}, "files, above"),
        ({f"f{n}.py": b"x" * MAX_FILE_BYTES for n in range(9)}, "bytes in all"),
        ({"lib.so": b"\x7fELF\0"}, "not text"),
        ({"latin.py": b"\xff\xfe"}, "not text"),
    ],
)
def test_collisions_size_and_binaries_are_refused(forge: LocalForge, more: dict[str, bytes], said: str) -> None:
    with pytest.raises(PublishRefusedError, match=said):
        forge.publish(request(forge, more=more))


def test_an_empty_engine_is_refused(forge: LocalForge) -> None:
    wanted = request(forge)
    with pytest.raises(PublishRefusedError, match="cannot be empty"):
        forge.publish(type(wanted)(**{**_fields(wanted), "engine_files": {}}))


@pytest.mark.parametrize(
    "name", ["", "..", "a..b", "-a", "a/", "a/b", "A", "a.lock", "a b", "a\n", "é", ".a", "a" * 101]
)
def test_names_that_cannot_be_a_branch_a_tag_and_a_folder_are_refused(name: str) -> None:
    with pytest.raises(InputError):
        check_engine_name(name)


def test_the_demo_engines_name_is_fine() -> None:
    assert engine_folder("qwen2.5-coder-0.5b-cpu") == "engines/qwen2.5-coder-0.5b-cpu/"


@given(st.text(max_size=40))
def test_what_is_accepted_is_plain_and_within(rest: str) -> None:
    path = FOLDER + rest
    if not path_complaints([path], [FOLDER]):
        assert path.isascii()
        assert os.path.normpath(path) == path
        assert not {".git", "..", "."} & set(path.casefold().split("/"))


def test_spelling_is_compared_folder_by_folder() -> None:
    assert spelling_complaints(["ckb/a/B/c"], ["ckb/a/b/d"])
    assert not spelling_complaints(["ckb/a/b/C2"], ["ckb/a/b/d"])


def test_a_folder_is_read_as_publishable_files(tmp_path: Path) -> None:
    (tmp_path / "pkg/__pycache__").mkdir(parents=True)
    (tmp_path / "pkg/__pycache__/x.pyc").write_bytes(b"\0")
    (tmp_path / "pkg/a.py").write_bytes(b"a\n")
    assert collect_files(tmp_path, FOLDER) == {f"{FOLDER}pkg/a.py": b"a\n"}


def test_links_pipes_and_executables_in_a_folder_are_refused(tmp_path: Path) -> None:
    (tmp_path / "link.py").symlink_to("/etc/passwd")
    (tmp_path / "dir").symlink_to("/etc")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "run.sh").write_text("x")
    (tmp_path / "run.sh").chmod(0o755)
    with pytest.raises(PublishRefusedError) as caught:
        collect_files(tmp_path, FOLDER)
    for name in ("link.py", "dir", "pipe", "run.sh"):
        assert name in str(caught.value)


def test_a_branch_named_like_our_folder_of_branches_is_an_error_that_says_so(forge: LocalForge) -> None:
    from metainfer.forge.plumbing import GitError, RefUpdate

    forge.repo.move_refs([RefUpdate("refs/heads/metainfer", commit_on(forge, "main", {"x": b"x"}), None)], "push")
    with pytest.raises(GitError, match="cannot create"):
        forge.publish(request(forge))


def _fields(wanted: object) -> dict[str, object]:
    return {name: getattr(wanted, name) for name in wanted.__dataclass_fields__}  # type: ignore[attr-defined]
