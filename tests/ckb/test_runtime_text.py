"""Text in and out of an engine against transformers, over real templates and any string hypothesis thinks of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metainfer.checkpoint.random_model import write_byte_tokenizer
from metainfer.ckb.checks import Candidate, load_candidate
from metainfer.ckb.mutants import deployment
from metainfer.generate.scratch import assemble_scratch

CKB = Path(__file__).parents[2] / "ckb"
CONVERSATIONS: dict[str, list[dict[str, str]]] = {
    "user": [{"role": "user", "content": "What is 2 < 3 & 'é'?"}],
    "system": [{"role": "system", "content": " Be brief.\n"}, {"role": "user", "content": "Hi 😀"}],
    "turns": [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nb"},
        {"role": "user", "content": "c<|im_end|>"},
    ],
}
TEMPLATES = {
    "default system": """\
{%- if messages[0]['role'] == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
{%- else %}
    {{- '<|im_start|>system\\nYou are helpful.<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == "user" or message.role == "assistant" %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
""",
    "thinking": """\
{%- set ns = namespace(last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- if message.role == "user" %}{%- set ns.last = (messages|length - 1) - loop.index0 %}{% break %}{%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content %}
    {%- if message.role == "assistant" and '</think>' in content and loop.index0 < ns.last %}
        {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
    {%- endif %}
    {{- '<|im_start|>' ~ message.role ~ '\\n' ~ content|trim ~ eos_token ~ '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
""",
    "plain blocks": """\
{% for message in messages %}
  {% if loop.first %}
first {{ message | tojson }}
  {% endif %}
{{ message.role }}: {{ message.content }}
{% endfor %}
{{ tools is none }} {{ documents is none }} {{ bos_token is defined }} {{ pad_token }} {{ messages | tojson(indent=2) }}
""",
}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Candidate:
    where = deployment("qwen2", "fp32")
    out = tmp_path_factory.mktemp("engine")
    assemble_scratch(CKB, where.facts, where.model, out, folded=True, name="runtime-text")
    return load_candidate(out, tmp_path_factory.mktemp("checks"))


@pytest.fixture(scope="module")
def codec(engine: Candidate, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return engine.unit("TextCodec")(_folder(tmp_path_factory.mktemp("bytes")))


def _folder(folder: Path, template: str | None = None) -> Path:
    write_byte_tokenizer(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen2"}), encoding="utf-8")
    if template is not None:
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    return folder


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("conversation", CONVERSATIONS)
def test_a_conversation_is_what_transformers_makes_of_it(
    engine: Candidate, tmp_path: Path, template: str, conversation: str
) -> None:
    import transformers

    folder = _folder(tmp_path, TEMPLATES[template])
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    messages = CONVERSATIONS[conversation]
    expected = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert engine.unit("TextCodec")(folder).encode_chat(messages) == expected


def test_a_prompt_is_what_transformers_makes_of_it(engine: Candidate, tmp_path: Path) -> None:
    import transformers

    folder = _folder(tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    for text in ("", "Hello", "<|im_start|>x", " é😀\n\n"):
        assert engine.unit("TextCodec")(folder).encode(text) == tokenizer(text)["input_ids"]


@settings(max_examples=300, deadline=None)
@given(token_ids=st.lists(st.integers(0, 299), max_size=40))
def test_pieces_of_any_tokens_make_the_whole(codec: Any, token_ids: list[int]) -> None:
    detokenizer = codec.detokenizer()
    pieces = [detokenizer.push(token_id) for token_id in token_ids]
    given_out = "".join(pieces)
    assert codec.decode(token_ids).startswith(given_out)
    assert given_out + detokenizer.flush() == codec.decode(token_ids)


@settings(max_examples=300, deadline=None)
@given(text=st.text(alphabet="ab€", max_size=30), stops=st.lists(st.text("ab€", min_size=1, max_size=4), max_size=4))
def test_an_answer_ends_before_the_first_stop_string_that_is_complete(codec: Any, text: str, stops: list[str]) -> None:
    detokenizer = codec.detokenizer(tuple(stops))
    shown = ""
    for token_id in codec.encode(text):
        shown += detokenizer.push(token_id)
        if detokenizer.stopped:
            break
    shown += detokenizer.flush()
    ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
    if ends:
        end = min(ends)
        longest = max((stop for stop in stops if text[:end].endswith(stop)), key=len)
        assert shown == text[: end - len(longest)]
    else:
        assert shown == text
    assert detokenizer.stopped == bool(ends)


def test_a_stop_string_is_held_back_until_it_is_decided(codec: Any) -> None:
    detokenizer = codec.detokenizer(("END", "ENTRY"))
    pieces = [detokenizer.push(token_id) for token_id in codec.encode("anEN.ENTEND")]
    assert pieces == ["a", "n", "", "", "EN.", "", "", "", "ENT", "", ""]
    assert detokenizer.stopped
    assert detokenizer.flush() == ""


def test_an_emoji_comes_when_its_last_byte_does(codec: Any) -> None:
    detokenizer = codec.detokenizer()
    assert [detokenizer.push(byte) for byte in "😀!".encode()] == ["", "", "", "😀", "!"]
