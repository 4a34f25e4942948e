"""Commands are heard on the first line alone, as they are written in the manual and in no other way."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metainfer.review.orders import Order, is_meant, parse_order


@pytest.mark.parametrize(
    ("body", "order"),
    [
        ("/metainfer regenerate", Order("regenerate")),
        ("/metainfer retry\r\n\r\nThe runner was lost.", Order("retry")),
        ("/metainfer explain", Order("explain")),
        ("/metainfer explain ", Order("explain")),
        ("/metainfer explain engines/a/a/model.py:12", Order("explain", "engines/a/a/model.py", 12)),
    ],
)
def test_what_is_a_command(body: str, order: Order) -> None:
    assert parse_order(body) == order


@pytest.mark.parametrize(
    "body",
    [
        "",
        "please /metainfer regenerate",
        "> /metainfer regenerate",
        " /metainfer regenerate",
        "\n/metainfer regenerate",
        "/metainfer  regenerate",
        "/Metainfer regenerate",
        "/metainfer regenerate now",
        "/metainfer regenerate a.py:1",
        "/metainfer retry && rm -rf /",
        "/metainfer merge",
        "/metainfer explain a.py",
        "/metainfer explain a.py:0",
        "/metainfer explain a.py:1\u2028x",
        "/metainfer explain $(id):1",
        "/metainfer\u00a0regenerate",
        "/metainfer regenerate\u200b",
        "/metainfer explain a.py:" + "9" * 30,
    ],
)
def test_what_is_none(body: str) -> None:
    assert parse_order(body) is None


@given(st.text(max_size=60) | st.text(alphabet="/metainfr gly\n:1ps", max_size=40))
def test_nothing_but_the_three_words_is_ever_obeyed(body: str) -> None:
    order = parse_order(body)
    assert order is None or body.startswith(f"/metainfer {order.action}")
    assert parse_order("x" + body) is None


def test_a_slip_of_the_pen_is_told_from_a_talk_about_the_bot() -> None:
    assert is_meant("/metainfer regenrate")
    assert is_meant("/metainfer")
    assert not is_meant("/metainference is nice")
    assert not is_meant("I like /metainfer")
