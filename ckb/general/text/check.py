"""Text in and out, over tokenizers made on the spot: nothing half, nothing lost, nothing of a stop string."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from metainfer.ckb.checks import Candidate, Finding

_SPECIAL = ("<|end|>", "<|im_start|>", "<|im_end|>")
_TEMPLATE = """\
{%- if tools %}
    {{- raise_exception('no tools here') }}
{%- endif %}
{%- for message in messages %}
    {%- if message['role'] == 'system' and not loop.first %}
        {{- raise_exception('system must come first') }}
    {%- endif %}
    {%- if message.content == 'skip me' %}
        {%- continue %}
    {%- endif %}
    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + eos_token + '\\n' }}
{%- endfor %}
{% if add_generation_prompt %}
    {% set data = {'b': '<é>', 'a': 1} %}
{{ data | tojson }}
{{ strftime_now('%Y') }} {{ pad_token }} {{ bos_token is defined }}
<|im_start|>assistant
{% endif %}
"""


def _write_tokenizer(folder: Path, template: str | list[dict[str, str]] | None = _TEMPLATE) -> Path:
    """A byte-level BPE tokenizer: 3 special tokens, 256 bytes, and some merges, one of them half a character."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    folder.mkdir(parents=True, exist_ok=True)
    pieces = [*_SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    merges = [("a", "b"), ("ab", "a"), ("b", "b"), ("Ġ", "a"), ("â", "Ĥ"), ("ð", "Ł"), ("ðŁ", "ĺ")]
    pieces += [left + right for left, right in merges]
    tokenizer = Tokenizer(models.BPE(vocab={piece: i for i, piece in enumerate(pieces)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in _SPECIAL])
    # Left over from training; an engine that obeys it cuts prompts off.
    tokenizer.enable_truncation(5)
    tokenizer.enable_padding(length=8)
    tokenizer.save(str(folder / "tokenizer.json"))
    config: dict[str, Any] = {"eos_token": {"content": "<|im_end|>"}, "pad_token": "<|end|>"}
    if isinstance(template, str):
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    elif template is not None:
        config["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def _codec(c: Candidate) -> Any:
    return c.unit("TextCodec")(_write_tokenizer(c.tmp_path / f"text-{c.rng.getrandbits(60)}"))


def _detokenizer(c: Candidate, codec: Any, stop: Sequence[str] = ()) -> Any:
    return codec.detokenizer(tuple(stop)) if c.facts.stop else codec.detokenizer()


def _random_text(c: Candidate) -> str:
    alphabets = ("ab ", "aé€😀", "".join(map(chr, range(32, 1500))), "👩‍👩‍👧🇨🇭é\n")
    alphabet = c.rng.choice(alphabets)
    return "".join(c.rng.choice(alphabet) for _ in range(c.rng.randint(1, 40)))


def check_pieces_make_the_whole(c: Candidate) -> Iterator[Finding]:
    """Whatever the tokens, all pieces joined are the full decoding, and no piece is taken back later."""
    codec = _codec(c)
    for round_ in range(120):
        token_ids = [c.rng.randrange(266) for _ in range(c.rng.randint(0, 30))]  # mostly invalid UTF-8
        if round_ % 2:
            token_ids = codec.encode(_random_text(c))
        whole = codec.decode(token_ids)
        detokenizer = _detokenizer(c, codec)
        given = ""
        for token_id in token_ids:
            given += detokenizer.push(token_id)
            if not whole.startswith(given):
                yield Finding("check_pieces_make_the_whole", f"{token_ids}: {given!r} is no beginning of {whole!r}")
                return
        given += detokenizer.flush()
        if given != whole:
            yield Finding("check_pieces_make_the_whole", f"{token_ids}: the pieces make {given!r}, not {whole!r}")
            return


def check_text_comes_at_once(c: Candidate) -> Iterator[Finding]:
    """With no stop string in sight, a token that ends with a whole character is given out with all before it."""
    codec = _codec(c)
    for _ in range(30):
        text = _random_text(c)
        token_ids = codec.encode(text)
        detokenizer = _detokenizer(c, codec, ("\x00never",))
        given = ""
        for place, token_id in enumerate(token_ids):
            given += detokenizer.push(token_id)
            so_far = codec.decode(token_ids[: place + 1])
            if not so_far.endswith("\ufffd") and given != so_far:
                yield Finding("check_text_comes_at_once", f"{so_far!r} is decided, {given!r} is given")
                return


def _reference_stop(text: str, stops: Sequence[str]) -> tuple[str, bool]:
    """Character by character: the first stop string to be complete ends the text where it begins."""
    for end in range(1, len(text) + 1):
        done = [stop for stop in stops if text[:end].endswith(stop)]
        if done:
            return text[: end - max(map(len, done))], True
    return text, False


def check_stop_strings(c: Candidate) -> Iterator[Finding]:
    """Text ends before a stop string, however it is cut into tokens; what may be the start of one is held back."""
    if not c.facts.stop:
        return
    codec = _codec(c)
    for _ in range(300):
        stops = ["".join(c.rng.choice("ab é") for _ in range(c.rng.randint(1, 5))) for _ in range(c.rng.randint(1, 4))]
        token_ids = codec.encode("".join(c.rng.choice("aab é") for _ in range(c.rng.randint(1, 25))))
        detokenizer = _detokenizer(c, codec, stops)
        given = ""
        for place, token_id in enumerate(token_ids):
            given += detokenizer.push(token_id)
            so_far = codec.decode(token_ids[: place + 1]).rstrip("\ufffd")
            expected, stopped = _reference_stop(so_far, stops)
            if not stopped:
                starts = [stop[:n] for stop in stops for n in range(1, len(stop))]
                held = max((len(start) for start in starts if expected.endswith(start)), default=0)
                expected = expected[: len(expected) - held]
            if (given, detokenizer.stopped) != (expected, stopped):
                yield Finding(
                    "check_stop_strings",
                    f"of {so_far!r} with stops {stops}: {given!r} is given, stopped {detokenizer.stopped}; "
                    f"it should be {expected!r}, {stopped}",
                )
                return
            if stopped:
                break
        given += detokenizer.flush()
        if given != _reference_stop(codec.decode(token_ids[: place + 1]), stops)[0]:
            yield Finding("check_stop_strings", f"after flush {given!r} is given with stops {stops}")
            return


def check_round_trip(c: Candidate) -> Iterator[Finding]:
    """encode then decode is the identity on text, long text is not cut, special tokens leave no text."""
    codec = _codec(c)
    for _ in range(20):
        text = _random_text(c) * 3
        if codec.decode(codec.encode(text)) != text:
            yield Finding("check_round_trip", f"{text!r} comes back as {codec.decode(codec.encode(text))!r}")
            return
    if codec.decode([0, *codec.encode("a"), 2]) != "a":
        yield Finding("check_round_trip", "special tokens show in the text")
    if c.facts.logprobs and codec.token_text(2) != "<|im_end|>":
        yield Finding("check_round_trip", f"token_text of a special token is {codec.token_text(2)!r}")


def check_refuses_half_characters(c: Candidate) -> Iterator[Finding]:
    """Half a surrogate pair, which JSON can spell, is a ValueError that names the field."""
    codec = _codec(c)
    calls = {"prompt": lambda: codec.encode("a\ud800b")}
    if c.facts.chat:
        calls["messages"] = lambda: codec.encode_chat([{"role": "user", "content": "a\udfff"}])
    for field, call in calls.items():
        try:
            call()
        except ValueError as error:
            if not str(error).startswith(f"{field}: "):
                yield Finding("check_refuses_half_characters", f"the error does not begin with {field}: {error}")
        else:
            yield Finding("check_refuses_half_characters", f"{field} with half a character is accepted")


def check_chat_template(c: Candidate) -> Iterator[Finding]:
    """The template is rendered as models were trained: trimmed blocks, plain JSON, dates, loop controls."""
    if not c.facts.chat:
        return
    codec = _codec(c)
    messages = [
        {"role": "system", "content": "be <brief>"},
        {"role": "user", "content": "skip me"},
        {"role": "user", "content": " é 'quoted' & <b> "},
    ]
    expected = (
        "<|im_start|>system\nbe <brief><|im_end|>\n<|im_start|>user\n é 'quoted' & <b> <|im_end|>\n"
        '{"b": "<é>", "a": 1}\n'
        f"{datetime.datetime.now():%Y} <|end|> False\n<|im_start|>assistant\n"
    )
    token_ids = codec.encode_chat(messages)
    shown = _join(codec, token_ids)
    if shown != expected:
        yield Finding("check_chat_template", f"the conversation is rendered as {shown!r}, not {expected!r}")
    refused = [messages[2], messages[0]]
    try:
        codec.encode_chat(refused)
    except ValueError as error:
        if not str(error).startswith("messages: ") or "system must come first" not in str(error):
            yield Finding("check_chat_template", f"the template's own reason is lost: {error}")
    else:
        yield Finding("check_chat_template", "the template raises, and the conversation is accepted")
    picky = "{{ messages[0].content.index('?') }}"
    codec = c.unit("TextCodec")(_write_tokenizer(c.tmp_path / f"picky-{c.rng.getrandbits(60)}", picky))
    try:
        codec.encode_chat([{"role": "user", "content": "ab"}])
    except Exception as error:
        if not isinstance(error, ValueError) or not str(error).startswith("messages: "):
            yield Finding("check_chat_template", f"a template that fails by itself raises {error!r}")
    named = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "{{ messages[0].content }}!"}]
    codec = c.unit("TextCodec")(_write_tokenizer(c.tmp_path / f"named-{c.rng.getrandbits(60)}", named))
    if _join(codec, codec.encode_chat([{"role": "user", "content": "ab"}])) != "ab!":
        yield Finding("check_chat_template", "of several templates not the default one is used")
    try:
        c.unit("TextCodec")(_write_tokenizer(c.tmp_path / f"none-{c.rng.getrandbits(60)}", None))
    except ValueError:
        pass
    else:
        yield Finding("check_chat_template", "an engine with chat starts without a chat template")


def check_template_is_sandboxed(c: Candidate) -> Iterator[Finding]:
    """A template comes with the model and is not trusted: it reaches no Python internals and changes nothing."""
    if not c.facts.chat:
        return
    for escape in ("{{ messages.__class__.__mro__ }}", "{{ messages.append(1) }}", "{{ ''.__class__ }}"):
        codec = c.unit("TextCodec")(_write_tokenizer(c.tmp_path / f"escape-{c.rng.getrandbits(60)}", escape))
        try:
            shown = _join(codec, codec.encode_chat([{"role": "user", "content": "a"}]))
        except ValueError:
            continue
        if shown:
            yield Finding("check_template_is_sandboxed", f"{escape} is rendered as {shown!r}")


def _join(codec: Any, token_ids: list[int]) -> str:
    """Text with the special tokens shown, without help of the candidate's own special-token handling."""
    text = ""
    run: list[int] = []
    for token_id in [*token_ids, -1]:
        if token_id >= 3:
            run.append(token_id)
            continue
        text += codec.decode(run) if run else ""
        text += _SPECIAL[token_id] if token_id >= 0 else ""
        run = []
    return text
