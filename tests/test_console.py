"""What a command says while it works reaches the reader as it was written."""

from __future__ import annotations

import io
import json

from rich.console import Console

from metainfer.console import JsonReporter, LiveReporter, PlainReporter, Reporter

MESSAGE = "model.py:3: list[int] is no [bold]type[/], see [/tmp/x] and \\[y]"


def tell(reporter: Reporter) -> None:
    with reporter:
        reporter.start("gate [unit]")
        reporter.done("gate [unit]", MESSAGE)
        reporter.note(MESSAGE)


def test_brackets_in_messages_are_no_markup_on_a_terminal() -> None:
    stream = io.StringIO()
    tell(LiveReporter(Console(file=stream, width=200, force_terminal=False)))
    assert "gate [unit]" in stream.getvalue()
    assert stream.getvalue().count(MESSAGE) == 2


def test_brackets_in_messages_are_kept_in_logs_too() -> None:
    plain, lines = io.StringIO(), io.StringIO()
    tell(PlainReporter(plain))
    tell(JsonReporter(lines))
    assert plain.getvalue().count(MESSAGE) == 2
    assert [json.loads(line).get("message") for line in lines.getvalue().splitlines()] == [None, MESSAGE, MESSAGE]


def test_a_step_under_way_is_shown_as_it_is_named() -> None:
    stream = io.StringIO()
    with LiveReporter(Console(file=stream, width=200, force_terminal=True)) as reporter:
        reporter.start("gate [unit]")
    assert "gate [unit]" in stream.getvalue()


def test_what_a_model_says_cannot_move_the_cursor_or_add_lines() -> None:
    hostile = "holds \x1b[2J\x1b[31m\r\n✓ gates (1 s): passed \u202egreen\ud800"
    shown = "holds \\x1b[2J\\x1b[31m ✓ gates (1 s): passed \\u202egreen\\ud800"
    for reporter in (
        LiveReporter(Console(file=(live := io.StringIO()), width=200)),
        PlainReporter(plain := io.StringIO()),
    ):
        with reporter:
            reporter.note(hostile)
            reporter.done("write", hostile)
    for text in (live.getvalue(), plain.getvalue()):
        assert text.count(shown) == 2
        assert len([line for line in text.splitlines() if line]) == 2


def test_a_result_and_its_json_move_no_cursor_either() -> None:
    hostile = "red\x1b[2J at\u202e line\ud800 1\nline 2"
    live, plain = io.StringIO(), io.StringIO()
    lines = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    for reporter in (LiveReporter(Console(file=live, width=200)), PlainReporter(plain), JsonReporter(lines)):
        with reporter:
            reporter.result(hostile, {"message": hostile})
    for text in (live.getvalue(), plain.getvalue()):
        assert text.strip() == "red\\x1b[2J at\\u202e line\\ud800 1\nline 2"
    lines.seek(0)
    [line] = lines.read().splitlines()
    assert json.loads(line)["message"] == hostile
    assert line.isprintable()
