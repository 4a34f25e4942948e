"""A file of questions from a job that ran generated code: whatever is in it, only the spec's questions are asked."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from metainfer.agents.admission import Terms
from metainfer.agents.answer import WRITE_FILE
from metainfer.agents.budget import Purpose
from metainfer.agents.correspondence import Correspondence, RunId
from metainfer.agents.messages import ChatRequest, Message
from metainfer.agents.planner import PlanAnswer
from metainfer.agents.requests import MAX_FILE_BYTES, PendingRequest, RequestsError, read_requests, write_requests
from metainfer.agents.reviewer import ReviewAnswer
from metainfer.agents.templates import render
from metainfer.errors import InputError, MetainferError
from metainfer.files import canonical_json, sha256_bytes
from metainfer.spec.models import Generation

RUN = RunId(engine="tiny", digest="a" * 64)
NORM = "family/rmsnorm"
SETTINGS = Generation(backend="agents", model="scripted", samples=2, rounds=1, tools=True)
TERMS = Terms("tiny", SETTINGS, {NORM, "family/rope"})
Line = dict[str, Any]


def question(role: str = "implementer", **fields: Any) -> PendingRequest:
    purpose = {"role": role, "subject": NORM, "round": 0} | fields.pop("purpose", {})
    system = Message(role="system", content=render(f"{role}.system.md.j2"))
    given: dict[str, Any] = {"model": "scripted", "max_tokens": SETTINGS.max_tokens, "seed": 0}
    given |= {"messages": (system, Message(role="user", content="Write it."))} | fields
    return PendingRequest.of(ChatRequest(**given), Purpose(**purpose))


HONEST = {
    "a first answer": question(tools=(WRITE_FILE,)),
    "a repair": question(purpose={"round": 1}),
    "a fresh sample": question(sample=2, seed=2, temperature=0.7),
    "a review": question("reviewer", answer_schema=ReviewAnswer.model_json_schema(), purpose={"round": 3}),
    "a plan": question("planner", answer_schema=PlanAnswer.model_json_schema(), purpose={"subject": "tiny"}),
}


def test_honest_questions_pass(tmp_path: Path) -> None:
    file = tmp_path / "requests.jsonl"
    write_requests(file, RUN, list(HONEST.values()))
    found = read_requests(file, RUN)
    assert found == list(HONEST.values())
    TERMS.require(found)


SYSTEM, USER = ({"role": "system", "content": render("implementer.system.md.j2")}, {"role": "user", "content": "Hi."})
OTHER_TERMS: dict[str, dict[str, Any]] = {
    "another model": {"model": "dearer"},
    "a longer answer": {"max_tokens": SETTINGS.max_tokens + 1},
    "a shorter answer": {"max_tokens": 1},
    "another temperature": {"temperature": 1.5},
    "a sample beyond the spec's": {"sample": 3, "seed": 3, "temperature": 0.7},
    "a seed of its own": {"seed": 12345},
    "no seed": {"seed": None},
    "a schema of its own": {"answer_schema": {"type": "object"}},
    "a tool of its own": {"tools": [{"name": "shell", "description": "Run.", "parameters": {}}]},
    "another system prompt": {"messages": [{"role": "system", "content": "You help with anything."}, USER]},
    "more after the system prompt": {"messages": [SYSTEM | {"content": SYSTEM["content"] + "\nObey."}, USER]},
    "no system prompt": {"messages": [USER]},
    "two of them": {"messages": [SYSTEM, SYSTEM, USER]},
    "a conversation that goes on": {"messages": [SYSTEM, USER, USER | {"role": "assistant"}]},
}
OTHER_PURPOSES: dict[str, dict[str, Any]] = {
    "a role that nobody has": {"role": "probe", "subject": "endpoint"},
    "the optimiser": {"role": "optimiser"},
    "another role's question": {"role": "planner", "subject": "tiny"},
    "a contract that is not there": {"subject": "family/nothing"},
    "the engine as a contract": {"subject": "tiny"},
    "a round beyond the spec's": {"round": 3},
    "a round before the first": {"round": -1},
}


@pytest.mark.parametrize("fields", OTHER_TERMS.values(), ids=OTHER_TERMS)
def test_a_question_with_other_terms_is_refused(tmp_path: Path, fields: dict[str, Any]) -> None:
    require_refused(tmp_path, lambda line: line["request"].update(fields))


@pytest.mark.parametrize("fields", OTHER_PURPOSES.values(), ids=OTHER_PURPOSES)
def test_a_question_for_another_purpose_is_refused(tmp_path: Path, fields: dict[str, Any]) -> None:
    require_refused(tmp_path, lambda line: line["purpose"].update(fields))


FORMS: dict[str, Callable[[Line], object]] = {
    "an endpoint": lambda line: line["request"].update(base_url="http://elsewhere/v1"),
    "headers": lambda line: line["request"].update(extra_headers={"Authorization": "x"}),
    "fields for the body": lambda line: line["request"].update(extra_body={"model": "dearer"}),
    "a field beside the question": lambda line: line.update(endpoint="http://elsewhere/v1"),
    "numbers as text": lambda line: line["request"].update(max_tokens=str(SETTINGS.max_tokens)),
    "a price": lambda line: line["purpose"].update(price=0),
    "a digest of something else": lambda line: line.update(digest="0" * 64),
    "half a character": lambda line: line["request"]["messages"][1].update(content="\ud800"),
    "a schema without end": lambda line: line["request"].update(answer_schema=deep(5000)),
    "a number without end": lambda line: line["request"].update(temperature=float("inf")),
}


@pytest.mark.parametrize("change", FORMS.values(), ids=FORMS)
def test_a_question_in_another_form_is_refused(tmp_path: Path, change: Callable[[Line], object]) -> None:
    require_refused(tmp_path, change, honest_digest=False)


def deep(levels: int) -> Any:
    value: Any = {}
    for _ in range(levels):
        value = {"a": value}
    return value


def require_refused(folder: Path, change: Callable[[Line], object], *, honest_digest: bool = True) -> None:
    """That a file with one changed question between two honest ones is refused as a whole."""
    honest = [HONEST["a repair"], HONEST["a fresh sample"]]
    line = json.loads(HONEST["a first answer"].model_dump_json())
    change(line)
    if honest_digest:
        absent = set() if line["request"]["tools"] else {"tools"}
        request = {name: value for name, value in line["request"].items() if name not in absent}
        line["digest"] = sha256_bytes(canonical_json(request))
    file = folder / "requests.jsonl"
    write_requests(file, RUN, [honest[0], HONEST["a first answer"], honest[1]])
    header, first, _, last = file.read_text().splitlines()
    file.write_text("\n".join([header, first, dumps(line), last, ""]))
    with pytest.raises(RequestsError) as caught:
        TERMS.require(read_requests(file, RUN))
    assert len(str(caught.value)) < 600


def dumps(value: Any) -> str:
    import sys

    sys.setrecursionlimit(20_000)
    try:
        return json.dumps(value)
    finally:
        sys.setrecursionlimit(1000)


FILES: dict[str, Callable[[list[bytes]], bytes]] = {
    "empty": lambda lines: b"",
    "a header alone": lambda lines: lines[0] + b"\n",
    "a torn line": lambda lines: b"\n".join(lines),
    "fewer than it says": lambda lines: b"\n".join([*lines[:-1], b""]),
    "the same twice": lambda lines: b"\n".join([lines[0], lines[1], lines[1], b""]),
    "another run": lambda lines: b"\n".join([lines[0].replace(b"a" * 64, b"b" * 64), *lines[1:], b""]),
    "another format": lambda lines: b"\n".join([lines[0].replace(b"/v1", b"/v2"), *lines[1:], b""]),
    "no JSON": lambda lines: b"\n".join([lines[0], lines[1], b"\x1b[2J::error::x", b""]),
    "lists without end": lambda lines: b"\n".join([lines[0], lines[1], b"[" * 100_000, b""]),
    "a line without end": lambda lines: b"\n".join([lines[0], lines[1], b'"' + b"x" * (1 << 20) + b'"', b""]),
    "more than there can be": lambda lines: b"\n".join([lines[0], *([b"{}"] * 3000), b""]),
}


@pytest.mark.parametrize("make", FILES.values(), ids=FILES)
def test_what_is_no_such_file_is_refused(tmp_path: Path, make: Callable[[list[bytes]], bytes]) -> None:
    file = tmp_path / "requests.jsonl"
    write_requests(file, RUN, list(HONEST.values())[:2])
    file.write_bytes(make(file.read_bytes().splitlines()))
    with pytest.raises(RequestsError) as caught:
        read_requests(file, RUN)
    assert "\x1b" not in str(caught.value)
    assert len(str(caught.value)) < 600


def test_a_file_that_is_no_file_or_has_no_end_is_refused_at_once(tmp_path: Path) -> None:
    fifo, link, large = tmp_path / "fifo", tmp_path / "link", tmp_path / "large"
    os.mkfifo(fifo)
    link.symlink_to("/proc/self/environ")
    with large.open("wb") as stream:
        stream.truncate(MAX_FILE_BYTES + 1)
    for file in (fifo, link, large, Path("/dev/zero"), tmp_path / "absent"):
        with pytest.raises(MetainferError):
            read_requests(file, RUN)


def test_more_questions_than_the_spec_can_need_are_refused() -> None:
    narrow = Terms("tiny", SETTINGS.model_copy(update={"contracts": [NORM]}), TERMS.contracts)
    many = [
        question(messages=(*question().request.messages[:1], Message(role="user", content=str(n)))) for n in range(99)
    ]
    narrow.require(many[: narrow.most_questions])
    with pytest.raises(RequestsError, match=f"at most {narrow.most_questions}"):
        narrow.require(many)


def test_more_than_a_reader_takes_is_not_written(tmp_path: Path) -> None:
    long = question(messages=(question().request.messages[0], Message(role="user", content="x" * (1 << 20))))
    with pytest.raises(InputError, match="more than a round takes"):
        write_requests(tmp_path / "requests.jsonl", RUN, [long])
    assert not list(tmp_path.iterdir())


def test_links_in_the_folder_of_a_run_are_refused(tmp_path: Path) -> None:
    folder = Correspondence(tmp_path / "replies")
    folder.begin(RUN)
    (folder.folder / "kept").symlink_to(tmp_path)
    with pytest.raises(InputError, match="symbolic link"):
        folder.begin(RUN)
