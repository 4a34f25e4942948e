"""Transcripts keep what was said, and no secret."""

from __future__ import annotations

from pathlib import Path

import pytest

from metainfer.agents.budget import Purpose
from metainfer.agents.messages import Reply, Usage
from metainfer.agents.transcript import MAX_LINE_BYTES, Transcript, Turn, read_transcript, redact
from metainfer.errors import InputError
from tests.agents.conftest import question

UNIT = Purpose(role="implementer", subject="RMSNorm")


def turn(text: str) -> Turn:
    usage = Usage(prompt_tokens=1, completion_tokens=1)
    reply = Reply(text=text, finish_reason="stop", usage=usage, model="m")
    return Turn(purpose=UNIT, request=question(), reply=reply)


def unstamped(kept: Turn) -> Turn:
    assert kept.ended is not None
    return kept.model_copy(update={"ended": None})


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    transcript = Transcript(tmp_path / "t")
    turns = [turn("def f():\n    return 'é\u2028'\n"), turn("two")]
    for one in turns:
        transcript.add(one)
    assert [unstamped(one) for one in read_transcript(tmp_path / "t")] == turns


@pytest.mark.parametrize(
    "secret",
    [
        "sk-proj-abcdefghijklmnop1234",
        "ghp_" + "a1" * 18,
        "github_pat_" + "a1" * 20,
        "hf_" + "aB3" * 12,
        "AKIA" + "ABCDEFGH12345678",
        "glpat-" + "a1B2" * 5,
        "npm_" + "a1B2" * 9,
        "sk_live_" + "a1B2" * 6,
        "AIza" + "a1B2_" * 7,
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abcdefghijkl",
        "-----BEGIN RSA PRIVATE KEY-----\nMIIB\nabc\n-----END RSA PRIVATE KEY-----",
    ],
)
def test_what_looks_like_a_key_is_left_out(tmp_path: Path, secret: str) -> None:
    Transcript(tmp_path / "t").add(turn(f"the key is {secret}, keep it"))
    [kept] = read_transcript(tmp_path / "t")
    assert kept.reply is not None
    assert kept.reply.text == "the key is [redacted], keep it"


@pytest.mark.parametrize("before", ["\n", "\t", "API_KEY=", '{"code": "x\\n'], ids=["line", "tab", "value", "in JSON"])
def test_a_key_is_one_wherever_it_begins(tmp_path: Path, before: str) -> None:
    Transcript(tmp_path / "t").add(turn(f"{before}sk-proj-abcdefghijklmnop1234 is it"))
    [kept] = read_transcript(tmp_path / "t")
    assert kept.reply is not None
    assert kept.reply.text == f"{before}[redacted] is it"


def test_what_begins_in_a_question_and_ends_in_its_answer_is_no_key(tmp_path: Path) -> None:
    given = turn("-----END PRIVATE KEY-----").model_copy(update={"request": question("-----BEGIN PRIVATE KEY-----")})
    Transcript(tmp_path / "t").add(given)
    assert [unstamped(kept) for kept in read_transcript(tmp_path / "t")] == [given]


def test_a_given_secret_is_left_out_in_every_spelling(tmp_path: Path) -> None:
    secret = 'pa"ss\\wörd'
    Transcript(tmp_path / "t", [secret]).add(turn(f"it is {secret}."))
    [kept] = read_transcript(tmp_path / "t")
    assert kept.reply is not None
    assert kept.reply.text == "it is [redacted]."


@pytest.mark.parametrize("stand_in", ["", "e", "none", "token"])
def test_a_stand_in_for_a_key_changes_nothing(tmp_path: Path, stand_in: str) -> None:
    Transcript(tmp_path / "t", [stand_in]).add(turn("one token, none else"))
    [kept] = read_transcript(tmp_path / "t")
    assert unstamped(kept) == turn("one token, none else")
    assert redact("refused", [stand_in]) == "refused"


def test_code_is_not_taken_for_a_secret() -> None:
    code = "task-force-abcdefghijklmnop sk-short hf_hub = desk-aaaaaaaaaaaaaaaaaaaaaaaa"
    assert redact(code) == code


def test_a_turn_beyond_all_measure_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="more than is kept"):
        Transcript(tmp_path / "t").add(turn("x" * MAX_LINE_BYTES))


def test_a_torn_line_is_dropped_and_a_bad_one_named(tmp_path: Path) -> None:
    file = tmp_path / "t"
    Transcript(file).add(turn("one"))
    file.write_bytes(file.read_bytes() + b'{"purpose"')
    Transcript(file).add(turn("two"))
    assert len(list(read_transcript(file))) == 2
    file.write_bytes(b"{}\n")
    with pytest.raises(InputError, match="t:1: not a turn"):
        list(read_transcript(file))
