"""Versions from what changed, and tags that are made once, for one tree, and never moved."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metainfer.errors import InputError
from metainfer.files import sha256_bytes
from metainfer.forge.evidence import EVIDENCE, MANIFEST, examine
from metainfer.forge.local import LocalForge
from metainfer.forge.markers import read_trailers
from metainfer.forge.plumbing import RefUpdate
from metainfer.generate.manifest import ContractRecord, ModelRecord
from metainfer.release import ReleaseRefusedError, Version, release, released_versions
from metainfer.release.versions import Level, compare, level_of, next_version
from tests.forge.conftest import forge, source_repo, template
from tests.forge.engines import ALICE, ENGINE, FOLDER, commit_on, engine_files, manifest, refs, request

__all__ = ["forge", "source_repo", "template"]
_numbers = st.integers(0, 99)
_versions = st.builds(Version, _numbers, _numbers, _numbers)


def merge(forge: LocalForge, input_hash: str = "sha256:aa", **parts: Any) -> str:
    number = forge.publish(request(forge, input_hash, **parts)).number
    assert number
    forge.approve(number, ALICE)
    return forge.merge(number, ALICE).commit


# Versions


def change(old: dict[str, Any] | None = None, new: dict[str, Any] | None = None) -> Level:
    before = examine(ENGINE, engine_files("sha256:aa", **(old or {})))
    after = examine(ENGINE, engine_files("sha256:bb", **(new or {})))
    return level_of(compare(before, after))


FACTS = {"chat": True, "completions": True, "platform": "cpu-x86-avx2", "weight_dtype": "bf16"}


def workload(**limits: int) -> dict[str, Any]:
    return {"spec": {"workload": {"max_model_len": 128, "max_concurrency": 4, **limits}}}


@pytest.mark.parametrize(
    ("new", "expected"),
    [
        ({}, Level.PATCH),
        ({"code": "print('faster')\n"}, Level.PATCH),
        ({"more": {"tests/test_x.py": b"x\n", "NOTES.md": b"x\n"}}, Level.PATCH),
        ({"spec": {**workload()["spec"], "goals": {"decode_mbu": 0.8}}}, Level.PATCH),
        ({"facts": FACTS | {"logprobs": True}}, Level.MINOR),
        ({"facts": FACTS | {"weight_dtype": "fp32"}}, Level.MINOR),
        (workload(max_model_len=256), Level.MINOR),
        ({"contracts": (ContractRecord(id="family/rmsnorm", version=2, digest="d"),)}, Level.MINOR),
        ({"dependencies": ("torch", "numpy")}, Level.MINOR),
        ({"spec": {**workload()["spec"], "parallel": {"tensor": 2}}}, Level.MINOR),
        ({"facts": FACTS | {"chat": False}}, Level.MAJOR),
        ({"facts": FACTS | {"platform": "cuda-sm90"}}, Level.MAJOR),
        (workload(max_concurrency=2), Level.MAJOR),
        ({"package": "other"}, Level.MAJOR),
        ({"model": ModelRecord(digest="sha256:n", source={}, licence="x", facts={})}, Level.MAJOR),
    ],
)
def test_a_change_is_as_large_as_it_is_to_whoever_deploys(new: dict[str, Any], expected: Level) -> None:
    assert change(new=new) is expected


def test_new_evidence_alone_is_a_patch() -> None:
    files = engine_files()
    again = {**files, EVIDENCE: files[EVIDENCE].replace(b"00:00:00Z", b"01:00:00Z")}
    reasons = compare(examine(ENGINE, files), examine(ENGINE, again))
    assert [(r.level, r.text) for r in reasons] == [(Level.PATCH, "only documentation, tests or evidence changed")]


def test_the_same_files_are_no_change() -> None:
    assert compare(examine(ENGINE, engine_files()), examine(ENGINE, engine_files())) == []


@given(_versions, st.sampled_from([Level.PATCH, Level.MINOR, Level.MAJOR]))
def test_the_next_version_is_above_and_resets_what_is_below(previous: Version, level: Level) -> None:
    after = next_version(previous, level)
    assert after > previous
    if previous.major == 0:
        assert after.major == 0  # 1.0.0 is only ever chosen by a person
    assert Version.parse(str(after)) == after


def test_examples_of_next_versions() -> None:
    assert str(next_version(None, Level.MAJOR)) == "0.1.0"
    assert str(next_version(Version(0, 1, 0), Level.PATCH)) == "0.1.1"
    assert str(next_version(Version(0, 1, 9), Level.MAJOR)) == "0.2.0"
    assert str(next_version(Version(1, 2, 3), Level.MINOR)) == "1.3.0"
    assert str(next_version(Version(1, 2, 3), Level.MAJOR)) == "2.0.0"


@pytest.mark.parametrize(
    "text", ["", "1", "1.2", "1.2.3.4", "01.2.3", "1.2.3-rc1", "v", "a.b.c", "1.2.3\n", "-1.0.0", "١.0.0"]
)
def test_what_is_not_a_version_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        Version.parse(text)


# Tags


def test_the_first_release_is_an_annotated_tag_on_the_merge_commit(forge: LocalForge) -> None:
    merged = merge(forge)
    commit_on(forge, "main", {"docs/later.md": b"x"})
    made = release(forge, ENGINE, ALICE)
    assert (made.tag, made.created, made.commit) == ("tiny-cpu/v0.1.0", True, merged)
    assert forge.repo.read("cat-file", "-t", "refs/tags/tiny-cpu/v0.1.0") == b"tag\n"
    assert forge.repo.commit_at("refs/tags/tiny-cpu/v0.1.0") == merged
    message = forge.repo.read("for-each-ref", "--format=%(contents)", "refs/tags").decode()
    assert "5 gates passed: spec, static, unit, numerics, serving." in message
    assert read_trailers(message) == {
        "Metainfer-Input-Hash": "sha256:aa",
        "Metainfer-Model-Digest": "sha256:m",
        "Metainfer-Manifest-Digest": f"sha256:{sha256_bytes(forge.read_file('main', FOLDER + MANIFEST) or b'')}",
        "Metainfer-Evidence-Digest": f"sha256:{sha256_bytes(forge.read_file('main', FOLDER + EVIDENCE) or b'')}",
    }


def test_releasing_twice_is_releasing_once(forge: LocalForge) -> None:
    merge(forge)
    first = release(forge, ENGINE, ALICE)
    before = refs(forge)
    again = release(forge, ENGINE, ALICE)
    assert (again.tag, again.created) == (first.tag, False)
    assert release(forge, ENGINE, ALICE, version="0.1.0").created is False
    assert refs(forge) == before


def test_the_next_release_says_what_changed(forge: LocalForge) -> None:
    merge(forge)
    release(forge, ENGINE, ALICE)
    merge(forge, "sha256:bb", facts=FACTS | {"chat": False})
    made = release(forge, ENGINE, ALICE)
    assert made.tag == "tiny-cpu/v0.2.0"
    assert made.reasons[0].text == "serves no chat any more"
    assert set(map(str, released_versions(forge, ENGINE))) == {"0.1.0", "0.2.0"}


def test_an_engine_that_is_not_on_the_base_is_not_released(forge: LocalForge) -> None:
    with pytest.raises(ReleaseRefusedError, match="not on main"):
        release(forge, ENGINE, ALICE)
    forge.publish(request(forge))
    with pytest.raises(ReleaseRefusedError, match="not on main"):
        release(forge, ENGINE, ALICE)


def test_the_refusal_names_the_engines_there_are_and_the_one_that_waits(forge: LocalForge) -> None:
    merge(forge)
    with pytest.raises(ReleaseRefusedError, match=f"nope is not on main; .* is merged. Engines on main: {ENGINE}$"):
        release(forge, "nope", ALICE)
    forge.publish(request(forge, engine="other-cpu"))
    with pytest.raises(ReleaseRefusedError, match="it waits in pull request #2: merge that first"):
        release(forge, "other-cpu", ALICE)


def test_an_engine_that_was_removed_is_not_released(forge: LocalForge) -> None:
    merge(forge)
    commit_on(forge, "main", dict.fromkeys(forge.read_tree("main", FOLDER)))
    with pytest.raises(ReleaseRefusedError, match="not on main"):
        release(forge, ENGINE, ALICE)


def _wrong_trees() -> Iterator[tuple[str, dict[str, bytes | None], str]]:
    good = engine_files()
    yield "no evidence", {EVIDENCE: None}, "evidence.json is missing"
    yield "no manifest", {MANIFEST: None}, "manifest.json is missing"
    yield "unreadable evidence", {EVIDENCE: b"{"}, "evidence.json cannot be read"
    yield (
        "evidence without gates",
        {EVIDENCE: b'{"input_hash": "sha256:aa", "gates": []}'},
        "evidence.json cannot be read",
    )
    yield "red evidence", {EVIDENCE: engine_files(verdicts={"unit": "failed"})[EVIDENCE]}, "gate unit: failed"
    yield "a missing gate", {EVIDENCE: engine_files(verdicts={"unit": "absent"})[EVIDENCE]}, "gate unit has no report"
    yield "a skipped gate", {EVIDENCE: engine_files(verdicts={"unit": "skipped"})[EVIDENCE]}, "gate unit: skipped"
    yield "evidence of other inputs", {EVIDENCE: engine_files("sha256:zz")[EVIDENCE]}, "is for another engine"
    yield "an edited file", {"tiny_cpu/model.py": b"by hand\n"}, "changed after it was generated"
    yield "a file too many", {"extra.py": b"x\n"}, "in the tree and not in the manifest"
    yield "a file too few", {"README.md": None}, "in the manifest and not in the tree"
    other = manifest(
        {path: data for path, data in good.items() if path not in (MANIFEST, EVIDENCE)}, engine="other-cpu"
    )
    yield "another engine's manifest", {MANIFEST: other.encode()}, "is of engine 'other-cpu'"


@pytest.mark.parametrize(
    ("files", "said"), [case[1:] for case in _wrong_trees()], ids=[case[0] for case in _wrong_trees()]
)
def test_what_does_not_hold_together_is_not_released(
    forge: LocalForge, files: dict[str, bytes | None], said: str
) -> None:
    merge(forge)
    commit_on(forge, "main", {FOLDER + path: data for path, data in files.items()})
    before = refs(forge)
    with pytest.raises(ReleaseRefusedError, match=said):
        release(forge, ENGINE, ALICE)
    assert refs(forge) == before


def test_a_version_that_exists_for_other_files_is_refused_and_not_moved(forge: LocalForge) -> None:
    merge(forge)
    release(forge, ENGINE, ALICE)
    merge(forge, "sha256:bb")
    before = refs(forge)
    with pytest.raises(ReleaseRefusedError, match="never moved"):
        release(forge, ENGINE, ALICE, version="v0.1.0")
    with pytest.raises(ReleaseRefusedError, match="not above the last release"):
        release(forge, ENGINE, ALICE, version="0.0.9")
    assert refs(forge) == before
    assert release(forge, ENGINE, ALICE, version="1.0.0").tag == "tiny-cpu/v1.0.0"


def test_the_same_files_get_no_second_version(forge: LocalForge) -> None:
    merge(forge)
    release(forge, ENGINE, ALICE)
    with pytest.raises(ReleaseRefusedError, match=r"already released as tiny-cpu/v0\.1\.0"):
        release(forge, ENGINE, ALICE, version="0.2.0")


def test_other_tags_and_other_engines_do_not_count(forge: LocalForge) -> None:
    merge(forge)
    for name in ("v9.9.9", "tiny-cpu/nightly", "tiny-cpu/v1.0.0-rc1", "tiny-cpu-2/v3.0.0"):
        assert forge.create_tag(name, forge.base_sha(), "x\n", ALICE)
    assert release(forge, ENGINE, ALICE).tag == "tiny-cpu/v0.1.0"


def test_versions_are_ordered_as_numbers(forge: LocalForge) -> None:
    merge(forge)
    for version in ("0.9.0", "0.10.0"):
        forge.create_tag(f"{ENGINE}/v{version}", forge.repo.commit_at("main~1") or "", "x\n", ALICE)
    assert max(released_versions(forge, ENGINE)) == Version(0, 10, 0)
    with pytest.raises(ReleaseRefusedError, match=r"not above the last release, 0\.10\.0"):
        release(forge, ENGINE, ALICE, version="0.9.1")


def test_a_tag_is_created_once_and_never_overwritten(forge: LocalForge) -> None:
    first = forge.base_sha()
    assert forge.create_tag("x/v1.0.0", first, "one\n", ALICE)
    other = commit_on(forge, "main", {"n": b"n"})
    assert not forge.create_tag("x/v1.0.0", other, "two\n", ALICE)
    assert forge.tags("x/") == {"x/v1.0.0": first}


def _release(start: Any, git_dir: Path) -> None:
    start.wait()
    release(LocalForge(git_dir), ENGINE, ALICE)


def test_concurrent_releases_make_one_tag(forge: LocalForge) -> None:
    merge(forge)
    context = multiprocessing.get_context("fork")
    start = context.Barrier(5)
    processes = [context.Process(target=_release, args=(start, forge.repo.git_dir)) for _ in range(5)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * 5
    assert list(forge.tags(f"{ENGINE}/")) == [f"{ENGINE}/v0.1.0"]


def test_a_release_after_a_revert_is_a_new_version(forge: LocalForge) -> None:
    merge(forge)
    release(forge, ENGINE, ALICE)
    merge(forge, "sha256:bb")
    release(forge, ENGINE, ALICE)
    tree = forge.repo.write_commit(f"{ENGINE}/v0.1.0^{{tree}}", [forge.base_sha()], "Go back\n", ALICE)
    forge.repo.move_refs([RefUpdate("refs/heads/main", tree, forge.base_sha())], "push")
    assert release(forge, ENGINE, ALICE).tag == "tiny-cpu/v0.1.2"
