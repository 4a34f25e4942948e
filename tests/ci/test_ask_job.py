"""The two jobs as commands, each in a process of its own: who holds the key runs nothing, who runs code asks nobody."""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from metainfer.agents.answering import ledger_mark
from metainfer.agents.correspondence import Correspondence
from metainfer.agents.transcript import read_transcript
from metainfer.ci.making import Made, make_candidate
from metainfer.errors import InputError, RefusedError
from metainfer.forge.setup import open_forge
from metainfer.progress import Silent
from tests.agents.roles_at_work import by_role, plan
from tests.agents.roles_script import MLP, NORM
from tests.agents.scripted_endpoint import ScriptedEndpoint, answers, scripted
from tests.ci.repositories import ROOT, SPEC, commit, git
from tests.ci.rounds import Split

KEY = "a-key-of-the-tests"
GENERATION = {"reference": "none", "rounds": 0, "contracts": [NORM, MLP], "roles": ["planner"]}
PLANNER = answers(by_role(planner=lambda body: plan((MLP, 0, 0, False), (NORM, 0, 0, False))))
WATCHED = """
import json, sys
seen = {"connect": 0, "started": []}
def watch(event, arguments):
    if event == "socket.connect":
        seen["connect"] += 1
    if event == "subprocess.Popen":
        seen["started"].append(str(arguments[0]))
    if event in ("os.exec", "os.posix_spawn", "os.fork", "os.system"):
        seen["started"].append(event)
sys.addaudithook(watch)
from metainfer.cli import main
try:
    main()
finally:
    print(json.dumps(seen | {"modules": sorted(sys.modules)}), file=sys.stderr)
"""


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> Split:
    """A run of which the plan has been asked for."""
    made = Split(tmp_path_factory.mktemp("split"), GENERATION)
    assert made.advance().pending == 1
    return made


def command(
    split: Split, *arguments: str, **environment: str
) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    """What a command said, and what it imported, started and connected to."""
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "LANG")}
    kept |= {"PYTHONPATH": str(ROOT), "METAINFER_CACHE": str(split.folder / "cache")} | environment
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, "ci", *arguments, "--base", split.base],
        cwd=split.work,
        env=kept,
        capture_output=True,
        text=True,
        check=False,
    )
    *_, last = done.stderr.strip().splitlines()
    return done, json.loads(last)


def ask(split: Split, endpoint: ScriptedEndpoint, *more: str, **environment: str) -> Any:
    given = ["--requests", str(split.requests), "--replies", str(split.replies), "--base-url", endpoint.base_url]
    return command(split, "ask", SPEC, *given, *more, METAINFER_API_KEY=KEY, **environment)


def test_who_holds_the_key_imports_no_sandbox_and_no_gate_and_starts_nothing_but_git(
    split: Split, tmp_path: Path
) -> None:
    outputs, summary = tmp_path / "outputs", tmp_path / "summary"
    with scripted(PLANNER) as endpoint:
        done, seen = ask(split, endpoint, GITHUB_OUTPUT=str(outputs), GITHUB_STEP_SUMMARY=str(summary))
        assert endpoint.headers[0]["authorization"] == f"bearer {KEY}"
    assert done.returncode == 0, done.stderr
    assert "1 replies; the run so far: 2 calls" in done.stdout
    forbidden = ("metainfer.sandbox", "metainfer.gates", "metainfer.bench", "torch", "transformers", "numpy")
    assert [name for name in seen["modules"] if name.startswith(forbidden)] == []
    # The client says in each request what machine it is on, and Python asks `uname` for that.
    assert {Path(program).name for program in seen["started"]} <= {"git", "uname"}
    assert "openai" in seen["modules"], "the audit sees what is imported"
    assert KEY not in done.stdout + done.stderr + outputs.read_text() + summary.read_text()
    assert re.findall(r"^(\w+)<<", outputs.read_text(), re.MULTILINE) == ["ledger", "replies", "bill"]
    roles = [turn.purpose.role for turn in read_transcript(split.replies / "transcript.jsonl")]
    assert roles == ["probe", "planner"]


def test_who_runs_code_connects_nowhere_and_imports_no_client(split: Split) -> None:
    done, seen = command(
        split, "advance", SPEC, "--replies", str(split.replies), "--out", str(split.folder / "another"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "tiny-qwen3: pending. 2 questions of implementer" in done.stdout
    assert seen["connect"] == 0
    assert [name for name in seen["modules"] if name.startswith(("openai", "httpx"))] == []


def test_who_runs_code_is_refused_a_key(split: Split) -> None:
    done, _ = command(
        split, "advance", SPEC, "--replies", "x", "--out", "y", METAINFER_API_KEY=KEY,
    )  # fmt: skip
    assert done.returncode == 3
    assert "METAINFER_API_KEY" in done.stderr
    assert KEY not in done.stdout + done.stderr


def test_a_question_that_the_spec_does_not_ask_is_not_asked(split: Split) -> None:
    honest = split.requests.read_text()
    with scripted(PLANNER) as endpoint:
        split.requests.write_text(honest.replace('"model":"scripted"', '"model":"dearer"'))
        done, _ = ask(split, endpoint)
        split.requests.write_text(honest)
        assert done.returncode == 3
        assert "nothing was asked" in done.stderr or "digest" in done.stderr
        done, _ = ask(split, endpoint, "--ledger", f"0:{'0' * 64}")
        assert done.returncode == 3
        assert "forgets" in done.stderr
        assert endpoint.requests == []


def test_replies_of_another_run_or_of_a_round_before_are_refused_by_both(split: Split, tmp_path: Path) -> None:
    """Another spec's folder, and an earlier one that knows less of what was spent."""
    other, earlier = tmp_path / "other", tmp_path / "earlier"
    with scripted(PLANNER) as endpoint:
        done, _ = ask(split, endpoint)
        assert done.returncode == 0, done.stderr
        mark = ledger_mark(Correspondence(split.replies))
        for folder in (other, earlier):
            shutil.copytree(split.replies, folder)
        known = json.loads((other / "run.json").read_bytes())
        (other / "run.json").write_text(json.dumps(known | {"digest": "0" * 64}))
        whole = (earlier / "ledger.jsonl").read_bytes().splitlines(keepends=True)
        (earlier / "ledger.jsonl").write_bytes(b"".join(whole[:-2]))
        asked = len(endpoint.requests)
        for folder, code, words in ((other, 2, "another spec, budget or prompts"), (earlier, 3, "forgets")):
            given = ["--requests", str(split.requests), "--replies", str(folder), "--base-url", endpoint.base_url]
            done, _ = command(split, "ask", SPEC, *given, "--ledger", mark, METAINFER_API_KEY=KEY)
            assert (done.returncode, words in done.stderr) == (code, True), done.stderr
        assert len(endpoint.requests) == asked
    done, _ = command(split, "advance", SPEC, "--replies", str(other), "--out", str(tmp_path / "out"))
    assert done.returncode == 2
    assert "another spec, budget or prompts" in done.stderr


def test_who_keeps_the_key_says_what_a_spec_may_spend_at_most(split: Split) -> None:
    own = Split(split.folder / "dear", GENERATION | {"budget_usd": 50})
    assert own.advance().pending == 1
    with scripted(PLANNER) as endpoint:
        done, _ = ask(own, endpoint, METAINFER_MOST_USD="5")
        assert done.returncode == 3
        assert "generation.budget_usd is 50, and 5 is the most" in done.stderr
        assert endpoint.requests == []
        done, _ = ask(own, endpoint, METAINFER_MOST_USD="")  # as a variable that is not set comes
        assert done.returncode == 0, done.stderr


def test_who_asks_needs_no_more_of_the_repository_than_specs_and_knowledge(split: Split, tmp_path: Path) -> None:
    """A clone of the base commit alone, whose other files were never fetched and cannot be any more."""
    origin, clone = tmp_path / "origin", tmp_path / "clone"
    shutil.copytree(split.work, origin)
    (origin / "engines").mkdir()
    (origin / "engines/old.py").write_text("generated = True\n")
    base = commit(origin, "An engine")
    git(origin, "config", "uploadpack.allowFilter", "true")
    git(tmp_path, "clone", "-q", "--depth=1", "--filter=blob:none", "--sparse", f"file://{origin}", str(clone))
    git(clone, "sparse-checkout", "set", "--cone", "ckb", "specs")
    git(clone, "checkout", "-q", "--detach", base)
    git(clone, "remote", "remove", "origin")
    assert not (clone / "engines").exists()
    narrow = copy.copy(split)
    narrow.work, narrow.base = clone, base
    with scripted(PLANNER) as endpoint:
        done, seen = ask(narrow, endpoint)
    assert done.returncode == 0, done.stderr
    assert {Path(program).name for program in seen["started"]} <= {"git", "uname"}


def test_only_the_base_commits_spec_counts(split: Split) -> None:
    text = (split.work / SPEC).read_text()
    (split.work / SPEC).write_text(text.replace("model: scripted", "model: dearer"))
    with scripted(PLANNER) as endpoint:
        done, _ = ask(split, endpoint)
        (split.work / SPEC).write_text(text)
        assert done.returncode == 2
        assert "check it out again" in done.stderr
        assert endpoint.requests == []


def candidate(split: Split, **options: Any) -> Made:
    cache, out = split.folder / "cache", split.folder / "candidate"
    return make_candidate(split.deployment, out, cache=cache, progress=Silent(), **options)


def test_the_job_that_makes_candidates_leaves_them_to_rounds_where_a_model_writes(split: Split) -> None:
    made = candidate(split, forge=open_forge(split.work))
    assert (made.state, made.input_hash) == ("asks", split.advance().input_hash)
    assert not (split.folder / "candidate").exists()
    with pytest.raises(InputError, match="leave --propose out"):
        candidate(split, proposals=[split.work / "proposal.json"])


def test_what_replies_do_not_decide_is_refused_in_words(tmp_path: Path) -> None:
    split = Split(tmp_path, GENERATION | {"optimise": True})
    for refused in (split.advance, lambda: candidate(split)):
        with pytest.raises(RefusedError, match="what is faster is measured"):
            refused()
    split.set_generation({"backend": "specializer"})
    with pytest.raises(InputError, match="no model writes units"):
        split.advance()


def test_a_folder_with_something_else_in_it_is_left_alone(split: Split, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    from metainfer.pipeline.advance import _clear

    with pytest.raises(InputError, match=r"thesis\.tex"):
        _clear(tmp_path)
    assert (tmp_path / "thesis.tex").exists()
