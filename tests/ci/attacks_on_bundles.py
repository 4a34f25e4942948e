"""Bundles that a hostile engine could leave: files, manifests, requests and proposals."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from metainfer.generate.manifest import AgentRecord
from tests.ci.attacks import PACKAGE, TOKEN, attack, edit_manifest, edit_request, proposal, put
from tests.ci.repositories import Scene


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
