"""The ledger: nothing beyond a limit, nothing forgotten, whatever happens to the process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metainfer.agents.budget import BudgetError, Ledger, Limits, Price, Purpose, read_ledger
from metainfer.agents.messages import Usage
from metainfer.errors import InputError
from tests.agents.conftest import PRICE, Desk, question
from tests.agents.scripted_endpoint import says, scripted, silent

UNIT = Purpose(role="implementer", subject="RMSNorm")


def ledger(file: Path, limits: Limits, **options: object) -> Ledger:
    return Ledger(file, limits, price=PRICE, **options)  # type: ignore[arg-type]


def test_a_call_is_booked_at_its_most_and_settled_at_what_it_was(tmp_path: Path) -> None:
    book = ledger(tmp_path / "l", Limits())
    call = book.book(UNIT, 10, 100)
    assert (book.spent().usd, book.spent().tokens) == (210, 110)
    book.settle(call, Usage(prompt_tokens=9, completion_tokens=5), "stop")
    assert (book.spent().usd, book.spent().tokens) == (19, 14)


def test_a_call_in_flight_when_the_process_died_stays_booked(tmp_path: Path) -> None:
    ledger(tmp_path / "l", Limits()).book(UNIT, 10, 100)
    again = ledger(tmp_path / "l", Limits(tokens=200))
    assert again.spent().tokens == 110
    with pytest.raises(BudgetError, match="110 tokens of 200"):
        again.book(UNIT, 10, 100)


def test_two_runs_at_once_share_one_budget(tmp_path: Path) -> None:
    one, other = ledger(tmp_path / "l", Limits(tokens=200)), ledger(tmp_path / "l", Limits(tokens=200))
    first = one.book(UNIT, 10, 100)
    with pytest.raises(BudgetError, match="110 tokens of 200"):
        other.book(UNIT, 10, 100)
    one.settle(first, Usage(prompt_tokens=10, completion_tokens=1), "stop")
    assert other.book(UNIT, 10, 100) == first + 1
    assert one.spent().tokens == 11


def test_one_unit_cannot_use_up_what_is_there_for_all(tmp_path: Path) -> None:
    book = ledger(tmp_path / "l", Limits(tokens=1000), per_subject=Limits(tokens=120))
    book.book(UNIT, 10, 100)
    with pytest.raises(BudgetError, match="RMSNorm"):
        book.book(UNIT, 10, 100)
    book.book(Purpose(role="implementer", subject="Linear"), 10, 100)


def test_wall_time_goes_on_where_an_earlier_process_stopped(tmp_path: Path) -> None:
    now = [0.0]
    first = ledger(tmp_path / "l", Limits(wall_s=100), clock=lambda: now[0])
    now[0] = 70.0
    first.book(UNIT, 1, 1)
    later = ledger(tmp_path / "l", Limits(wall_s=100), clock=lambda: now[0])
    assert later.remaining_s == 30.0
    now[0] = 101.0
    with pytest.raises(BudgetError, match="wall_s"):
        later.book(UNIT, 1, 1)


@pytest.mark.parametrize("figure", [-1.0, float("nan"), float("inf")])
def test_a_price_that_is_none_is_refused(figure: float) -> None:
    with pytest.raises(ValueError, match="input_usd"):
        Price(input_usd=figure, output_usd=1.0)


def test_dollars_without_a_price_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="price"):
        Ledger(tmp_path / "l", Limits(usd=1.0))


def test_a_line_that_a_crash_cut_off_is_dropped_and_any_other_bad_one_is_named(tmp_path: Path) -> None:
    file = tmp_path / "l"
    book = ledger(file, Limits())
    book.settle(book.book(UNIT, 1, 1), None, "refused")
    whole = file.read_bytes()
    file.write_bytes(whole + b'{"event": "boo')
    ledger(file, Limits()).book(UNIT, 2, 2)
    assert [entry.call for entry in read_ledger(file)] == [1, 1, 2]
    file.write_bytes(b"nonsense\n" + whole)
    with pytest.raises(InputError, match=r"l:1: not a line"):
        list(read_ledger(file))


@pytest.mark.parametrize(
    "forged",
    [
        {"event": "settled", "call": 1, "usd": 0.0, "tokens": 0},
        {"event": "settled", "call": 2, "usd": 0.0, "tokens": 0},
        {"event": "booked", "call": 1, "usd": 0.0, "tokens": 0},
        {"event": "booked", "call": 3, "usd": 0.0, "tokens": 0},
        {"event": "booked", "call": 2, "usd": -100.0, "tokens": 0},
        {"event": "booked", "call": 2, "usd": 0.0, "tokens": -100},
        {"event": "booked", "call": 2, "usd": float("nan"), "tokens": 0},
    ],
    ids=[
        "settled twice",
        "never booked",
        "booked twice",
        "a number left out",
        "dollars back",
        "tokens back",
        "no figure",
    ],
)
def test_no_line_that_is_added_gives_anything_back(tmp_path: Path, forged: dict[str, object]) -> None:
    file = tmp_path / "l"
    book = ledger(file, Limits())
    book.settle(book.book(UNIT, 10, 100), Usage(prompt_tokens=10, completion_tokens=100), "stop")
    with file.open("a") as stream:
        stream.write(json.dumps(forged | {"purpose": UNIT.model_dump()}) + "\n")
    with pytest.raises(InputError, match="l:3: "):
        ledger(file, Limits())


@given(
    st.integers(0, 500),
    st.lists(st.tuples(st.integers(1, 50), st.integers(1, 50), st.sampled_from(["whole", "refused", "dies"]))),
)
def test_whatever_happens_no_limit_is_ever_passed(
    tmp_path_factory: pytest.TempPathFactory, limit: int, calls: list[tuple[int, int, str]]
) -> None:
    file = tmp_path_factory.mktemp("ledger") / "l"
    book = Ledger(file, Limits(usd=limit), price=Price(input_usd=1e6, output_usd=1e6))
    for prompt, most, fate in calls:
        try:
            call = book.book(UNIT, prompt, most)
        except BudgetError:
            assert book.spent().usd + prompt + most > limit
            continue
        if fate == "dies":
            book = Ledger(file, Limits(usd=limit), price=Price(input_usd=1e6, output_usd=1e6))
        else:
            used = None if fate == "refused" else Usage(prompt_tokens=prompt, completion_tokens=most)
            book.settle(call, used, fate)
        assert book.spent().usd <= limit


_ASK_TWICE = """
import sys
from pathlib import Path
from tests.agents.conftest import Desk, question
Desk(Path(sys.argv[1])).ask(sys.argv[2], question("first"), question("second"), concurrency=1, idle_s=60, total_s=60)
"""


def test_kill_9_loses_the_call_in_flight_and_nothing_else(desk: Desk) -> None:
    with scripted(says("one"), silent(60)) as endpoint:
        command = [sys.executable, "-c", _ASK_TWICE, str(desk.folder), endpoint.base_url]
        process = subprocess.Popen(command, env=os.environ | {"PYTHONPATH": os.getcwd()})
        deadline = time.monotonic() + 60
        while len(endpoint.requests) < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.wait(10)
    assert len(endpoint.requests) == 2
    with scripted(says("two")) as later:
        replies = desk.ask(later.base_url, question("first"), question("second"), concurrency=1)
    assert [reply.text for reply in replies] == ["one", "two"]
    assert [request["messages"][0]["content"] for request in later.requests] == ["second"]
    lines = [json.loads(line) for line in (desk.folder / "ledger.jsonl").read_text().splitlines()]
    assert [(line["event"], line["call"]) for line in lines] == [
        ("booked", 1), ("settled", 1), ("booked", 2), ("booked", 3), ("settled", 3),
    ]  # fmt: skip
