"""What must hold of every workflow, read from the files: pins, rights, time-outs, and who runs what was generated."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.workflows.acting import ROOT, load, tool

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
FILES = {path.name: load(path) for path in WORKFLOWS}
ACTION = ROOT / "action.yml"
NAMES = ["ci", "ckb-review", "comment", "dashboard", "engine", "engines", "generate", "nightly", "publish", "release",
         "round", "rounds", "spec-pr", "validate"]  # fmt: skip

RUN_GENERATED = {"ci validate", "ci advance", "bench", "gate", "run", "submit", "serve", "demo", "eval", "bundle"}
"""Commands that run code that was generated, or a build over it (`bundle`)."""
RUN_REVIEWED = {"ci nightly", "ckb audit"}
"""Commands that run exemplars and checks of the knowledge base, in the sandbox."""
RUN_NONE = {
    "ci plan", "ci generate", "ci publish", "ci stopped", "ci stack", "ci ask-generate", "ci spec-report", "ci post",
    "ci release-plan", "ci ckb-review", "ci comment", "ci dashboard", "ci ask", "model fetch", "release", "spec check",
    "doctor",
}  # fmt: skip
"""Commands that read, compare, assemble and write, and run nothing of an engine."""

# What is not ours: jobs of ci.yml run the tests, and hold nothing but a token that may read.
Job = tuple[str, str, dict[str, Any]]


def jobs() -> Iterator[Job]:
    for name, workflow in FILES.items():
        for job, content in workflow["jobs"].items():
            yield name, job, content


def steps(job: dict[str, Any]) -> list[dict[str, Any]]:
    return list(job.get("steps", ()))


def commands(job: dict[str, Any]) -> set[str]:
    """The metainfer commands that a job runs, as `group name`."""
    found = set()
    for step in steps(job):
        script = step.get("run", "") + " " + str((step.get("with") or {}).get("command", ""))
        script = re.sub(r'"[^"]*"', '""', script)
        for words in re.findall(r"\bmetainfer ((?:[a-z][a-z-]*)(?: [a-z][a-z-]*)?)", script):
            group, _, name = words.partition(" ")
            found.add(words if group in ("ci", "ckb", "spec", "model", "pr", "forge", "runs", "skills") else group)
            assert name or group not in ("ci", "ckb", "spec", "model"), words
    return found


def may_write(job: dict[str, Any]) -> bool:
    permissions = job.get("permissions", {})
    return permissions == "write-all" or "write" in (permissions or {}).values()


def all_text(value: Any) -> str:
    if isinstance(value, dict):
        return "\n".join(f"{key}: {all_text(inner)}" for key, inner in value.items())
    if isinstance(value, list):
        return "\n".join(all_text(inner) for inner in value)
    return str(value)


def test_the_workflows_are_all_there() -> None:
    assert sorted(name.removesuffix(".yml") for name in FILES) == NAMES


@pytest.mark.parametrize("path", [*WORKFLOWS, ACTION], ids=lambda path: path.name)
def test_every_action_is_pinned_by_its_commit_and_says_its_version(path: Path) -> None:
    uses = re.findall(r"^\s*(?:- )?uses: *(.+)$", path.read_text(), re.MULTILINE)
    for use in uses:
        local = re.fullmatch(r"\./(?:\.github/workflows/[a-z-]+\.yml|\.metainfer/src)(?: #.*)?", use)
        assert local or re.fullmatch(r"[\w.-]+/[\w./-]+@[0-9a-f]{40} # v[0-9]+\.[0-9]+\.[0-9]+", use), use


def test_one_action_is_pinned_at_one_commit() -> None:
    text = "\n".join(path.read_text() for path in (*WORKFLOWS, ACTION))
    pins = set(re.findall(r"uses: ([\w.-]+/[\w./-]+@[0-9a-f]{40} # \S+)", text))
    assert len({pin.partition("@")[0] for pin in pins}) == len(pins)


@pytest.mark.parametrize(
    ("name", "job", "content"), list(jobs()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_every_job_says_its_rights_and_ends_in_time(name: str, job: str, content: dict[str, Any]) -> None:
    assert FILES[name]["permissions"] == {}
    assert isinstance(content["permissions"], dict)
    assert set(content["permissions"].values()) <= {"read", "write"}
    if "uses" not in content:
        assert 0 < content["timeout-minutes"] <= 180


def test_nothing_is_triggered_by_strangers_with_rights() -> None:
    for name, workflow in FILES.items():
        assert not {"pull_request_target", "workflow_run"} & set(workflow["on"]), name


def test_no_script_is_made_of_expressions() -> None:
    for path in (*WORKFLOWS, ACTION):
        data = load(path)
        found = data["jobs"].values() if "jobs" in data else [data["runs"]]
        for job in found:
            for step in steps(job):
                assert "${{" not in step.get("run", ""), (path.name, step.get("name"))


def test_no_checkout_leaves_its_credentials() -> None:
    for name, job, content in jobs():
        for step in steps(content):
            if str(step.get("uses", "")).startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] is False, (name, job)


def test_secrets_are_read_only_in_jobs_with_an_environment() -> None:
    readers = set()
    for name, job, content in jobs():
        if "secrets." not in all_text(content):
            continue
        if "uses" in content:  # hands them on, by name
            assert isinstance(content["secrets"], dict)
            assert "secrets." not in all_text({k: v for k, v in content.items() if k != "secrets"})
            continue
        # An environment for one branch would keep the check from pull requests, which is where it has to run. Its
        # secret may read who is in a team, and nothing else.
        assert content.get("environment") or (name, job) == ("ckb-review.yml", "review"), (name, job)
        readers.add((name, job))
    assert readers == {
        ("publish.yml", "publish"), ("release.yml", "release"), ("ckb-review.yml", "review"), ("round.yml", "ask")
    }  # fmt: skip


def test_one_job_holds_the_models_key_and_nothing_else() -> None:
    """In an environment of its own, with a token that may only read, and without an engine in its checkouts."""
    holders = {
        (name, job)
        for name, job, content in jobs()
        if "METAINFER_API_KEY" in all_text(content) and "uses" not in content
    }
    assert holders == {("round.yml", "ask")}
    ask = FILES["round.yml"]["jobs"]["ask"]
    assert ask["environment"] == "metainfer-model"
    assert set(re.findall(r"secrets\.(\w+)", all_text(ask))) == {"METAINFER_API_KEY"}
    assert ask["permissions"] == {"contents": "read", "pull-requests": "read"}
    assert commands(ask) == {"ci ask"}
    holding = [step["name"] for step in steps(ask) if "secrets." in all_text(step)]
    assert holding == ["Ask"]
    for step in steps(ask):
        if str(step.get("uses", "")).startswith("actions/checkout@"):
            assert set(step["with"]["sparse-checkout"].split()) <= {"ckb", "metainfer", "specs"}
    environments = [content.get("environment") for _, _, content in jobs()]
    assert environments.count("metainfer-model") == 1


def test_rounds_are_alike_and_each_goes_on_from_the_one_before() -> None:
    """A workflow has no loop: what is written twelve times must not differ by accident."""
    rounds = dict(FILES["rounds.yml"]["jobs"])
    end = rounds.pop("end")
    assert list(rounds) == [*(f"round-{number}" for number in range(1, 13)), "last"]
    before = None
    for number, (name, content) in enumerate(rounds.items(), start=1):
        given = dict(content["with"])
        assert given.pop("round") == str(number)
        assert given.pop("final", False) is (name == "last")
        if before is None:
            assert not {"needs", "if"} & set(content)
        else:
            assert (content["needs"], given.pop("after")) == (before, str(number - 1))
            assert given.pop("ledger") == f"${{{{ needs.{before}.outputs.ledger }}}}"
            assert content["if"] == f"${{{{ needs.{before}.outputs.ledger != '' }}}}"
        assert given == {key: value for key, value in rounds["round-1"]["with"].items() if key != "round"}
        for key in ("uses", "permissions", "secrets"):
            assert content[key] == rounds["round-1"][key], (name, key)
        before = name
    assert end["needs"] == list(rounds)
    assert re.findall(r"needs\.([\w-]+)\.outputs\.done", all_text(end)) == list(rounds)
    billed = re.findall(r"needs\.([\w-]+)\.outputs\.bill", all_text(end))
    assert billed == list(rounds)[-2::-1], "the last one that asked knows what all cost"


def test_generated_code_runs_without_the_runners_tokens() -> None:
    found = 0
    for name, job, content in jobs():
        for step in steps(content):
            if re.search(r"metainfer (ci (validate|advance)|bench) ", step.get("run", "")):
                found += 1
                assert "env -u ACTIONS_RUNTIME_TOKEN -u ACTIONS_ID_TOKEN_REQUEST_TOKEN" in step["run"], (name, job)
    assert found == 3


def test_every_command_is_known_to_run_generated_code_or_not() -> None:
    for name, job, content in jobs():
        unknown = commands(content) - RUN_GENERATED - RUN_REVIEWED - RUN_NONE
        assert not unknown, f"{name}: {job}: is code that was generated run by {unknown}? Add it to a table"


def test_jobs_that_run_generated_code_hold_no_secret_and_may_not_write() -> None:
    running = set()
    for name, job, content in jobs():
        if not commands(content) & (RUN_GENERATED | RUN_REVIEWED):
            continue
        running.add((name, job))
        text = all_text(content)
        assert "secrets." not in text, (name, job)
        assert "github.token" not in text, (name, job)
        assert "environment" not in content, (name, job)
        assert not may_write(content), (name, job)
        assert set(content["permissions"]) == {"contents"}, (name, job)
    assert running == {
        ("validate.yml", "validate"), ("release.yml", "build"), ("nightly.yml", "look"), ("nightly.yml", "benchmark"),
        ("round.yml", "advance"),
    }  # fmt: skip


def test_jobs_that_may_write_run_only_what_never_runs_generated_code() -> None:
    writing = {}
    for name, job, content in jobs():
        if "uses" not in content and (may_write(content) or content.get("environment")):
            writing[f"{name}: {job}"] = commands(content)
            assert commands(content) <= RUN_NONE, (name, job)
            for step in steps(content):
                words = re.findall(r"^\s*(\S+)", step.get("run", ""))
                assert set(words) <= {"metainfer"}, (name, job, "runs something else than metainfer")
    assert writing == {
        "ckb-review.yml: review": {"ci ckb-review"},
        "comment.yml: command": {"ci comment"},
        "dashboard.yml: dashboard": {"ci dashboard"},
        "publish.yml: publish": {"ci publish", "ci stopped"},
        "release.yml: release": {"release"},
        "round.yml: ask": {"ci ask"},
        "spec-pr.yml: comment": {"ci post"},
        "spec-pr.yml: stack": {"ci ask-generate"},
    }


def test_the_validating_workflow_is_handed_no_secret() -> None:
    for name, job, content in jobs():
        if str(content.get("uses", "")).endswith("/validate.yml"):
            assert "secrets" not in content, (name, job)
            assert content["permissions"] == {"contents": "read"}
    assert "secrets" not in FILES["validate.yml"]["on"]["workflow_call"]


def test_callers_give_what_is_asked_for_and_nothing_else() -> None:
    for name, job, content in jobs():
        if "uses" not in content:
            continue
        called = FILES[Path(content["uses"]).name]["on"]["workflow_call"]
        asked = called["inputs"]
        assert set(content["with"]) <= set(asked), (name, job)
        assert {key for key, value in asked.items() if value.get("required")} <= set(content["with"]), (name, job)
        assert set(content.get("secrets", {})) <= set(called.get("secrets", {})), (name, job)


def test_callers_hold_at_least_the_rights_of_what_they_call() -> None:
    """GitHub refuses a run in which a called job wants more than its caller has."""
    for name, job, content in jobs():
        if "uses" not in content:
            continue
        for called in FILES[Path(content["uses"]).name]["jobs"].values():
            for right, level in called["permissions"].items():
                mine = content["permissions"].get(right)
                assert mine == "write" or mine == level, (name, job, right)


def test_one_engines_failure_stops_no_other() -> None:
    for name, job, content in jobs():
        if "strategy" in content:
            assert content["strategy"]["fail-fast"] is False, (name, job)


def test_newer_inputs_cancel_generation_and_never_a_publication_or_release() -> None:
    cancels = {
        f"{name}: {job}": content["concurrency"]["cancel-in-progress"]
        for name, job, content in jobs()
        if "concurrency" in content
    }
    assert cancels == {
        "engine.yml: generate": True,
        "engine.yml: rounds": True,
        "publish.yml: publish": False,
        "release.yml: release": False,
        "validate.yml: validate": True,
    }
    for key in cancels:
        name, job = key.split(": ")
        assert re.search(r"\$\{\{ (inputs|matrix)\.engine \}\}", FILES[name]["jobs"][job]["concurrency"]["group"]), key


def test_no_command_waits_in_a_group_from_which_a_later_comment_would_push_it() -> None:
    """GitHub keeps one waiting run for each group, and every comment starts one, whoever wrote it."""
    assert FILES["comment.yml"]["concurrency"]["group"] == "comment-${{ github.event.comment.id }}"


def test_all_but_our_own_tests_can_be_called_from_another_repository() -> None:
    for name, workflow in FILES.items():
        assert ("workflow_call" in workflow["on"]) is (name != "ci.yml"), name


def test_what_a_workflow_calls_on_the_command_line_is_there() -> None:
    """Every command and option in a script exists. `ci ckb-review` and `ci comment` have tests of their own."""
    from typer.main import get_command

    from metainfer.cli import app

    root = get_command(app)
    for name, job, content in jobs():
        for step in steps(content):
            script = step.get("run", "").replace("\\\n", " ")
            for line in re.findall(r"\bmetainfer ([^\n|]+)", script):
                words = line.split()
                command: Any = root
                while words and hasattr(command, "commands") and words[0] in command.commands:
                    command = command.commands[words.pop(0)]
                if words and words[0] in ("ckb-review", "comment"):
                    continue
                assert not hasattr(command, "commands"), (name, job, line)
                options = {option for parameter in command.params for option in parameter.opts}
                used = set(re.findall(r"(--[a-z][a-z-]*)", line))
                assert used <= options, (name, job, used - options)


# Other people's linters


@pytest.mark.github
def test_zizmor_finds_nothing_that_is_not_justified_in_the_file() -> None:
    command = [tool("zizmor"), "--offline", "--persona=pedantic", "--no-progress", ".github", "action.yml"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for path in (*WORKFLOWS, ACTION):
        for line in path.read_text().splitlines():
            if "zizmor: ignore" in line:
                reason = line.partition("zizmor: ignore[")[2].partition("]")[2].strip()
                assert reason or "github-env" in line, f"{path.name}: says not why: {line.strip()}"


@pytest.mark.github
@pytest.mark.parametrize(
    ("schema", "paths"),
    [
        ("vendor.github-workflows", WORKFLOWS),
        ("vendor.github-actions", [ACTION]),
    ],
    ids=["workflows", "action"],
)
def test_files_meet_githubs_schema(schema: str, paths: list[Path]) -> None:
    command = [tool("check-jsonschema"), "--builtin-schema", schema, *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.github
def test_actionlint_finds_nothing() -> None:
    done = subprocess.run([tool("actionlint"), *map(str, WORKFLOWS)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.github
def test_jactionlint_finds_nothing() -> None:
    done = subprocess.run([tool("jactionlint"), *map(str, WORKFLOWS)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
