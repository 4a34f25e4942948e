"""The job that may write: what it proposes, and what it does not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from metainfer.ci.publishing import NotGreenError, say_stopped
from metainfer.ci.untrusted import HostileError
from metainfer.errors import MetainferError
from metainfer.forge.protocol import Status
from tests.ci.attacks import edit_evidence, proposal, publish
from tests.ci.repositories import ENGINE, Scene, commit, git
from tests.forge.engines import commit_on, refs


def test_a_sound_bundle_and_a_green_report_become_a_pull_request(scene: Scene, report: Path) -> None:
    outcome = publish(scene, report)
    assert outcome.status is Status.CREATED
    pull = scene.forge.get(1)
    assert "all 5 gates passed" in pull.body
    tree = scene.forge.read_tree(pull.head, f"engines/{ENGINE}/")
    assert json.loads(tree[f"engines/{ENGINE}/evidence.json"])["input_hash"] == scene.request.input_hash
    assert tree[f"engines/{ENGINE}/manifest.json"] == (scene.bundle / "engine/manifest.json").read_bytes()


def test_publishing_again_changes_nothing(scene: Scene, report: Path) -> None:
    publish(scene, report)
    before = refs(scene.forge)
    assert publish(scene, report).status is Status.UNCHANGED
    assert refs(scene.forge) == before


def test_a_persons_commit_stops_it_and_is_spoken_of_once(scene: Scene, report: Path) -> None:
    publish(scene, report)
    commit_on(scene.forge, f"metainfer/{ENGINE}", {"README.md": b"mine\n"})
    for _ in range(3):
        outcome = say_stopped(scene.forge, ENGINE, scene.request.input_hash)
        assert outcome.status is Status.BLOCKED
    [comment] = scene.forge.get(1).comments
    assert comment.text.startswith("Stopped: the branch holds commits that the bot did not make")


def test_nothing_is_said_where_nothing_stops_it(scene: Scene, report: Path) -> None:
    publish(scene, report)
    assert say_stopped(scene.forge, ENGINE, scene.request.input_hash).status is Status.UNCHANGED
    assert scene.forge.get(1).comments == ()


def test_proposed_knowledge_travels_as_typed_deltas(scene: Scene, report: Path) -> None:
    (scene.bundle / "ckb").mkdir()
    (scene.bundle / "ckb/proposal-0.json").write_bytes(json.dumps(proposal(scene)).encode())
    publish(scene, report)
    pull = scene.forge.get(1)
    assert pull.has_knowledge
    changed = scene.forge.read_file(pull.head, "ckb/general/paged-kv-cache/contract.yaml") or b""
    assert b"lost-on-abort" in changed


def test_red_evidence_is_not_proposed(scene: Scene, report: Path) -> None:
    edit_evidence(report, lambda e: e["gates"][3].__setitem__("verdict", "failed"))
    with pytest.raises(NotGreenError, match="red at numerics"):
        publish(scene, report)
    assert scene.forge.list("all") == []


def test_a_missing_gate_is_not_green(scene: Scene, report: Path) -> None:
    edit_evidence(report, lambda e: e["gates"].pop())
    with pytest.raises(NotGreenError, match="red at serving"):
        publish(scene, report)


@pytest.mark.parametrize("knows_the_branch", [True, False])
def test_a_base_that_is_not_on_the_branch_is_refused(
    original: Scene, report: Path, tmp_path: Path, knows_the_branch: bool
) -> None:
    """A checkout at a commit that nobody merged: its knowledge is nobody's."""
    from metainfer.ci.making import make_candidate
    from metainfer.progress import Silent

    work = tmp_path / "other"
    git(tmp_path, "clone", "--quiet", str(original.forge_dir if knows_the_branch else original.work), str(work))
    git(work, "config", "user.email", "stranger@example.org")
    git(work, "config", "user.name", "Stranger")
    (work / "ckb/family/rope/contract.yaml").open("a").write("# mine\n")
    commit(work, "Not merged")
    scene = Scene(work, original.forge_dir, original.cache, tmp_path / "own-bundle")
    make_candidate(scene.deployment, scene.bundle, cache=scene.cache, progress=Silent())
    edit_evidence(report, lambda e: e.__setitem__("input_hash", scene.request.input_hash))
    before = refs(scene.forge)
    if knows_the_branch:
        with pytest.raises(HostileError, match="base_sha is not on main"):
            publish(scene, report)
    else:  # the branch moved on since the checkout: the forge itself looks
        outcome = publish(scene, report)
        assert outcome.status is Status.BLOCKED
        assert "is not on main" in outcome.reason
    assert refs(scene.forge) == before


def test_words_of_a_report_do_nothing_in_the_pull_request(scene: Scene, report: Path) -> None:
    """Text that is legal in a report stays text: no mention, no link, no closing of issues, no HTML, no marker."""
    from markdown_it import MarkdownIt

    hostile = "@everyone closes #1 <img src=x onerror=alert(1)> [x](http://evil.example) | ::error::x `a` "
    hostile += "<!-- metainfer:{} -->"
    edit_evidence(report, lambda e: e["gates"][0]["figures"].__setitem__("positions", hostile))
    assert publish(scene, report).status is Status.CREATED
    body = scene.forge.get(1).body
    rendered = MarkdownIt("commonmark", {"html": True}).enable("table").render(body)
    assert "<img" not in rendered
    assert "href" not in rendered
    assert "@everyone" not in body
    assert "#1 " not in body
    assert body.count("<!-- metainfer:") == 1
    assert not any(line.startswith("::") for line in body.splitlines())


def test_the_attacks_would_go_through_without_the_checks(scene: Scene, report: Path) -> None:
    """The table proves nothing if the untouched bundle is refused too."""
    assert publish(scene, report, environment={"METAINFER_GITHUB_TOKEN": "plain-looking-words"}).wrote


def test_errors_are_metainfers_own(scene: Scene, report: Path) -> None:
    (scene.bundle / "request.json").write_bytes(b"\xff\xfe")
    with pytest.raises(MetainferError):
        publish(scene, report)
