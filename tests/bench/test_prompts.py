"""Prompts never share a beginning, and texts are compared token by token."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metainfer.bench import prompts
from metainfer.bench.prompts import PromptMaker, agreeing_prefix
from metainfer.bench.subject import SubjectError
from tests.bench.conftest import VOCAB

BLOCK = 16
TEXT = Path(prompts.__file__).with_name("prompt_text.txt")


def decode_bytes(ids: list[int]) -> str:
    """A tokenizer of single bytes: a character outside ASCII needs several tokens."""
    return bytes(ids).decode("utf-8", errors="replace")


def test_no_two_prompts_share_their_first_block(tiny_model: Path) -> None:
    maker = PromptMaker(tiny_model, VOCAB, seed=0)
    taken = [maker.take(64) for _ in range(200)]
    assert maker.kind == "windows of a text"
    assert len({tuple(prompt[:BLOCK]) for prompt in taken}) == len(taken)
    assert all(len(prompt) == 64 for prompt in taken)


def test_equal_seeds_give_equal_prompts(tiny_model: Path) -> None:
    one, same, other = (PromptMaker(tiny_model, VOCAB, seed) for seed in (1, 1, 2))
    assert [one.take(32) for _ in range(5)] == [same.take(32) for _ in range(5)]
    assert one.take(32) != other.take(32)


def test_a_prompt_longer_than_the_text_goes_on_at_its_beginning(tiny_model: Path) -> None:
    maker = PromptMaker(tiny_model, VOCAB, seed=0)
    prompt = maker.take(20_000)
    period = next(at for at in range(1000, 10_000) if prompt[at : at + 64] == prompt[:64])
    assert prompt[period:] == prompt[:-period]


def test_without_a_tokenizer_prompts_are_random_ids_of_the_vocabulary(tmp_path: Path) -> None:
    maker = PromptMaker(tmp_path, 50, seed=0)
    assert maker.kind == "random token ids"
    assert set(maker.take(5000)) == set(range(50))
    assert maker.agreeing_prefix([1, 2], "text") is None


def test_a_vocabulary_smaller_than_the_tokenizers_gets_random_ids(tiny_model: Path) -> None:
    assert max(PromptMaker(tiny_model, 20, seed=0).take(1000)) < 20


def test_when_every_place_is_used_the_maker_says_so(tiny_model: Path) -> None:
    maker = PromptMaker(tiny_model, VOCAB, seed=0)
    places = len(TEXT.read_bytes())  # a token per byte
    for _ in range(places):
        maker.take(1)
    with pytest.raises(SubjectError, match=f"all {places} places"):
        maker.take(1)


@given(st.text(max_size=12), st.text(max_size=12))
def test_agreement_ends_where_the_texts_part(common: str, rest: str) -> None:
    ids = list((common + "\x00" + rest).encode())
    text = common + "\x01" + rest
    assert agreeing_prefix(ids, text, decode_bytes) == len(common.encode())


@given(st.text(max_size=30))
def test_equal_texts_agree_to_the_last_token(text: str) -> None:
    ids = list(text.encode())
    assert agreeing_prefix(ids, text, decode_bytes) == len(ids)


@given(st.text(min_size=1, max_size=30), st.data())
def test_a_text_that_ends_early_agrees_as_far_as_it_goes(text: str, data: st.DataObject) -> None:
    shown = text[: data.draw(st.integers(0, len(text) - 1))]
    agreed = agreeing_prefix(list(text.encode()), shown, decode_bytes)
    # The first bytes of the next character show nothing yet, so they cannot disagree.
    assert len(shown.encode()) <= agreed < len(shown.encode()) + 4
