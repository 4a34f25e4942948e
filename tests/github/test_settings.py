"""The examination of a repository: what is set, what is missing with its step, and what the token may not know."""

from __future__ import annotations

import base64
import copy
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from metainfer.errors import ExitCode, InputError
from metainfer.forge.github.settings.examine import examine
from metainfer.forge.github.settings.points import Point
from tests.github.answers import FORBIDDEN, NOT_FOUND, Answer, serving

REPOSITORY = Path(__file__).parents[2]
ROOT = "/repos/octo/engines"
OWNERS = "* @octo/all\n/ckb/ @octo/knowledge\n"
RUNNERS = {"cpu-x86-avx2": ["ubuntu-24.04"], "cuda-sm90": ["self-hosted", "gpu", "sm90"]}
CHECKS = [{"context": "ckb-review", "integration_id": 5}, {"context": "lint and test"}]
REVIEWS = {
    "required_approving_review_count": 1,
    "require_code_owner_review": True,
    "dismiss_stale_reviews_on_push": True,
    "require_last_push_approval": True,
}
RULES = [
    {"type": "pull_request", "parameters": REVIEWS},
    {"type": "required_status_checks", "parameters": {"required_status_checks": CHECKS}},
    {"type": "non_fast_forward"},
    {"type": "deletion"},
]
GPU = {"status": "online", "labels": [{"name": "self-hosted"}, {"name": "GPU"}, {"name": "sm90"}, {"name": "x"}]}


def well_set() -> dict[str, Answer]:
    """What GitHub answers to an administrator of a repository that is set as the manual says."""
    content = base64.b64encode(OWNERS.encode()).decode()
    repo = {"full_name": "octo/engines", "default_branch": "main", "private": False, "permissions": {"push": True}}
    answers: dict[str, Any] = {
        ROOT: repo,
        f"{ROOT}/rules/branches/main": RULES,
        f"{ROOT}/codeowners/errors": {"errors": []},
        f"{ROOT}/contents/.github/CODEOWNERS": {"content": content, "encoding": "base64"},
        f"{ROOT}/actions/organization-secrets": {"secrets": [{"name": "METAINFER_MEMBERS_TOKEN"}]},
        f"{ROOT}/actions/permissions": {"enabled": True, "allowed_actions": "all", "sha_pinning_required": True},
        f"{ROOT}/actions/permissions/workflow": {
            "default_workflow_permissions": "read",
            "can_approve_pull_request_reviews": False,
        },
        f"{ROOT}/actions/permissions/fork-pr-contributor-approval": {"approval_policy": "all_external_contributors"},
        f"{ROOT}/actions/variables/METAINFER_APP_ID": {"name": "METAINFER_APP_ID", "value": "5"},
        f"{ROOT}/actions/runners": {"total_count": 1, "runners": [GPU]},
        "/orgs/octo/actions/runners": {"total_count": 0, "runners": []},
        f"{ROOT}/environments": {"environments": [{"name": "metainfer-publish"}]},
        f"{ROOT}/environments/metainfer-publish": {"deployment_branch_policy": {"protected_branches": True}},
        f"{ROOT}/environments/metainfer-publish/secrets": {"secrets": [{"name": "METAINFER_APP_KEY"}]},
        f"{ROOT}/actions/secrets": {"secrets": [{"name": "OTHER"}]},
    }
    found: dict[str, Answer] = {path: (200, data) for path, data in answers.items()}
    return found | {f"{ROOT}/branches/main/protection": (404, {"message": "Branch not protected"})}


def points(answers: dict[str, Answer], headers: dict[str, str] | None = None) -> dict[str, Point]:
    with serving(answers, headers) as connection:
        return {point.what: point for _, point in examine(connection, RUNNERS)}


def states(found: dict[str, Point]) -> dict[str, list[str]]:
    by: dict[str, list[str]] = {}
    for what, point in found.items():
        by.setdefault(point.state, []).append(what)
    return by


def test_a_repository_that_is_set_as_the_manual_says_lacks_nothing() -> None:
    found = states(points(well_set()))
    assert found.keys() == {"ok", "unread"}
    assert found["unread"] == ["the token holds no more than it needs"]  # which no token can tell
    assert "the check ckb-review is required" in found["ok"]
    assert "cuda-sm90: a runner with the labels self-hosted, gpu, sm90" in found["ok"]


def test_a_fresh_repository_lacks_everything_and_each_has_its_step() -> None:
    answers = well_set()
    answers |= {
        f"{ROOT}/rules/branches/main": (200, []),
        f"{ROOT}/contents/.github/CODEOWNERS": NOT_FOUND,
        f"{ROOT}/actions/permissions/workflow": (
            200,
            {"default_workflow_permissions": "write", "can_approve_pull_request_reviews": True},
        ),
        f"{ROOT}/actions/runners": (200, {"runners": []}),
        f"{ROOT}/environments/metainfer-publish": NOT_FOUND,
    }
    found = points(answers)
    missing = [point for point in found.values() if point.state == "missing"]
    assert {
        "main is changed by pull request only",
        "code owners have to approve",
        "approvals end with a new push",
        "the check ckb-review is required",
        "CODEOWNERS is there",
        "the workflows' default token may only read",
        "workflows cannot approve pull requests, as an App opens them",
        "cuda-sm90: a runner with the labels self-hosted, gpu, sm90",
        "the environment metainfer-publish is for protected branches only",
    } <= {point.what for point in missing}
    assert all(point.step for point in missing)


def classic(**changes: Any) -> Answer:
    reviews = {
        "required_approving_review_count": 2,
        "require_code_owner_reviews": True,
        "dismiss_stale_reviews": True,
        "require_last_push_approval": False,
    }
    data = {
        "required_pull_request_reviews": reviews,
        "required_status_checks": {"contexts": ["ckb-review"], "checks": [{"context": "ckb-review", "app_id": None}]},
        "allow_force_pushes": {"enabled": False},
        "allow_deletions": {"enabled": True},
        **changes,
    }
    return 200, data


def test_classic_protection_counts_as_rulesets_do_and_both_are_put_together() -> None:
    answers = well_set() | {
        f"{ROOT}/rules/branches/main": (200, [{"type": "required_status_checks", "parameters": {
            "required_status_checks": [{"context": "build"}]}}]),
        f"{ROOT}/branches/main/protection": classic(),
    }  # fmt: skip
    found = points(answers)
    assert found["code owners have to approve"].state == "ok"
    assert found["the check ckb-review is required"].state == "ok"
    assert found["a check of the repository's own CI is required"].state == "ok"
    assert found["the branch cannot be deleted"].state == "advice"
    assert found["whoever pushed last does not approve alone"].state == "advice"
    assert found["ckb-review is taken from any source"].state == "advice"


@pytest.mark.parametrize("refusal", [NOT_FOUND, FORBIDDEN])
def test_protection_that_may_not_be_read_is_neither_fine_nor_missing(refusal: Answer) -> None:
    summary = {
        "name": "main",
        "protected": True,
        "protection": {"enabled": True, "required_status_checks": {"contexts": ["ckb-review"]}},
    }
    answers = well_set() | {
        f"{ROOT}/rules/branches/main": (200, []),
        f"{ROOT}/branches/main/protection": refusal,
        f"{ROOT}/branches/main": (200, summary),
    }
    found = points(answers)
    assert found["code owners have to approve"].state == "unread"
    assert "Administration: read" in found["code owners have to approve"].detail
    assert found["the check ckb-review is required"].state == "ok"  # that much everybody may see


def test_a_branch_that_everybody_can_see_to_be_unprotected_lacks_protection() -> None:
    answers = well_set() | {
        f"{ROOT}/rules/branches/main": (200, []),
        f"{ROOT}/branches/main/protection": FORBIDDEN,
        f"{ROOT}/branches/main": (200, {"name": "main", "protected": False}),
    }
    assert points(answers)["code owners have to approve"].state == "missing"


def test_whatever_is_refused_nothing_of_it_is_called_fine() -> None:
    """Each answer in turn is kept from the token: no point may become better by it."""
    best = points(well_set())
    for path in well_set():
        if path == ROOT:
            continue
        for refusal in (NOT_FOUND, FORBIDDEN):
            found = points(well_set() | {path: refusal})
            for what, point in found.items():
                if point.state == "ok":
                    assert what in best, f"{path} {refusal[0]}: {what}"
            assert states(found).get("ok") != states(best)["ok"] or path in _NEEDLESS, f"{path} {refusal[0]}"


_NEEDLESS = {
    f"{ROOT}/branches/main/protection",  # the rulesets ask for all of it
    "/orgs/octo/actions/runners",  # the repository's own runner serves
    f"{ROOT}/environments",  # asked only where the environment is not to be had
}


def test_errors_of_codeowners_and_owners_that_cannot_be_recognised() -> None:
    text = base64.b64encode(b"/ckb/ a@example.org @octo/knowledge\n/specs/ @a\n/.github/ @a\n").decode()
    errors = [{"line": 3, "kind": "Unknown owner", "message": "Unknown owner on line 3: make sure\n  /x @nobody"}]
    answers = well_set() | {
        f"{ROOT}/contents/.github/CODEOWNERS": (200, {"content": text}),
        f"{ROOT}/codeowners/errors": (200, {"errors": errors}),
        f"{ROOT}/actions/organization-secrets": (200, {"secrets": []}),
    }
    found = points(answers)
    assert found[".github/CODEOWNERS holds no errors"].detail == "line 3: Unknown owner on line 3: make sure"
    assert found["ckb/, specs/, engines/ and .github/ have owners"].detail == "nobody owns engines/"
    assert found["a@example.org, owner of ckb/, is an account or team"].state == "missing"
    team = found["the check can tell who is in @octo/knowledge"]
    assert (team.state, "Members: read" in team.step) == ("missing", True)


def test_without_an_app_workflows_must_be_allowed_to_open_pull_requests() -> None:
    answers = well_set() | {f"{ROOT}/actions/variables/METAINFER_APP_ID": NOT_FOUND}
    assert points(answers)["workflows may open pull requests, as no App does"].state == "missing"
    allowed = {"default_workflow_permissions": "read", "can_approve_pull_request_reviews": True}
    answers[f"{ROOT}/actions/permissions/workflow"] = (200, allowed)
    assert points(answers)["workflows may open pull requests, as no App does"].state == "ok"


def test_a_key_that_every_workflow_can_read_is_told() -> None:
    answers = well_set() | {f"{ROOT}/actions/secrets": (200, {"secrets": [{"name": "METAINFER_APP_KEY"}]})}
    assert points(answers)["METAINFER_APP_KEY lies in the environment alone"].state == "missing"


def test_the_models_key_for_every_workflow_to_spend_is_a_lack() -> None:
    answers = well_set() | {f"{ROOT}/actions/secrets": (200, {"secrets": [{"name": "METAINFER_API_KEY"}]})}
    point = points(answers)["METAINFER_API_KEY is no secret of the repository"]
    assert point.state == "missing"
    assert "Environments → metainfer-model" in point.step


@pytest.mark.parametrize(("policy", "state"), [(None, "missing"), ({"protected_branches": True}, "ok")])
def test_where_there_is_an_environment_for_the_models_key_it_is_for_protected_branches(
    policy: dict[str, bool] | None, state: str
) -> None:
    what, path = (
        "the environment metainfer-model is for protected branches only",
        f"{ROOT}/environments/metainfer-model",
    )
    assert what not in points(well_set() | {path: NOT_FOUND})
    assert points(well_set() | {path: (200, {"deployment_branch_policy": policy})})[what].state == state


def test_an_offline_runner_is_not_one() -> None:
    answers = well_set() | {
        f"{ROOT}/actions/runners": (200, {"runners": [{**copy.deepcopy(GPU), "status": "offline"}]})
    }
    point = points(answers)["cuda-sm90: a runner with the labels self-hosted, gpu, sm90"]
    assert (point.state, point.step) == ("missing", "start the runner")


@pytest.mark.parametrize(
    ("headers", "state"),
    [({"X-OAuth-Scopes": "repo, admin:org"}, "missing"), ({"X-OAuth-Scopes": "repo"}, "advice"), ({}, "unread")],
)
def test_a_token_that_can_do_more_than_it_needs(headers: dict[str, str], state: str) -> None:
    assert points(well_set(), headers)["the token holds no more than it needs"].state == state


def test_a_repository_that_is_not_to_be_seen_is_an_error() -> None:
    with pytest.raises(InputError, match="not found"):
        points({})


def test_a_private_repository_has_no_strangers() -> None:
    answers = well_set()
    answers[ROOT] = (200, {**answers[ROOT][1], "private": True})
    assert not any("strangers" in what for what in points(answers))


def doctor(answers: dict[str, Answer], tmp_path: Path) -> subprocess.CompletedProcess[str]:
    (tmp_path / ".git").mkdir()
    (tmp_path / "specs").mkdir()
    shutil.copy(REPOSITORY / "specs/tiny-qwen3.yaml", tmp_path / "specs")
    with serving(answers) as connection:
        url = connection.address.api
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(REPOSITORY),
            "METAINFER_GITHUB_API": url,
            "METAINFER_GITHUB_SERVER": url,
            "METAINFER_GITHUB_TOKEN": "t",
        }
        command = [sys.executable, "-m", "metainfer", "doctor", "--github", "--forge", "github:octo/engines"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment, check=False)


def test_the_command_tells_each_point_with_its_step_and_a_missing_one_is_red(tmp_path: Path) -> None:
    done = doctor(well_set() | {f"{ROOT}/rules/branches/main": (200, RULES[1:])}, tmp_path)
    assert done.returncode == ExitCode.RED, done.stderr
    assert "branch main:\n  missing main is changed by pull request only\n          do: Settings → Rules" in done.stdout
    assert "  ok      cpu-x86-avx2: jobs run on GitHub's own runner ubuntu-24.04" in done.stdout
    assert done.stderr == ""


def test_what_cannot_be_read_is_an_exit_code_of_its_own(tmp_path: Path) -> None:
    done = doctor(well_set() | {f"{ROOT}/actions/secrets": FORBIDDEN}, tmp_path)
    assert done.returncode == ExitCode.ENVIRONMENT, done.stderr
    assert "unread  METAINFER_APP_KEY lies in the environment alone: cannot be read with this token" in done.stdout
    assert done.stdout.endswith("0 missing, 3 could not be read, 0 advised\n")
    assert done.stderr == ""
