"""What a client may rely on: answers, streams, stops, counts, log-probabilities, seeds; each check is one promise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from metainfer.gates.conversation import Conversation, answer_of, chunks_of, text_of

Check = Callable[[Conversation], None]
_LOGPROB_BOUND = 1e-3
_STREAM_TOKENS = 24


def answers_about_itself(c: Conversation) -> None:
    """/v1/models, /health, /ready and /metrics answer; /v1 asks for the key."""
    with c.openai() as client:
        assert [model.id for model in client.models.list().data] == [c.model]
    with c.http(key=None) as raw:
        for path in ("/health", "/ready", "/metrics"):
            assert raw.get(path).status_code == 200, path
        assert raw.get("/v1/models").status_code == 401, "/v1/models without a key"
        assert raw.post(c.endpoint, json=c.body()).status_code == 401, "a request without a key"
    with c.http(key="another") as raw:
        assert raw.post(c.endpoint, json=c.body()).status_code == 401, "a request with another key"
    assert c.metrics()["kv_blocks_total"] >= 1


def chat_is_the_references(c: Conversation) -> None:
    """Greedy chat through the official client gives the reference's text, finish reason and counts."""
    expected, text = c.expected["chat"], c.expected["chat_text"]
    with c.openai() as client:
        answer = client.chat.completions.create(
            model=c.model,
            messages=[{"role": "user", "content": text}],
            temperature=0,
            max_tokens=max(1, len(expected["tokens"])),
        )
    choice = answer.choices[0]
    assert answer.object == "chat.completion"
    assert choice.message.role == "assistant"
    assert answer.usage is not None
    _compare_counts(answer.usage.model_dump(), expected)
    _compare_text(choice.message.content or "", choice.finish_reason, expected)


def completion_is_the_references(c: Conversation) -> None:
    """The same for a completion, with the prompt as text and as token ids."""
    expected, text = c.expected["completion"], c.expected["completion_text"]
    with c.openai() as client:
        for prompt in (text, expected["prompt"]):
            answer = client.completions.create(
                model=c.model, prompt=prompt, temperature=0, max_tokens=max(1, len(expected["tokens"]))
            )
            assert answer.object == "text_completion"
            assert answer.usage is not None
            _compare_counts(answer.usage.model_dump(), expected)
            _compare_text(answer.choices[0].text, answer.choices[0].finish_reason, expected)


def _compare_counts(usage: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    prompt, completion = usage["prompt_tokens"], usage["completion_tokens"]
    assert prompt == len(expected["prompt"]), f"{prompt} prompt tokens, the reference has {len(expected['prompt'])}"
    assert usage["total_tokens"] == prompt + completion, f"counts do not add up: {usage}"
    if expected["end"] != "tie":
        wanted = len(expected["tokens"])
        assert completion == wanted, f"{completion} completion tokens, the reference made {wanted}"


def _compare_text(text: str, reason: str | None, expected: Mapping[str, Any]) -> None:
    if expected["end"] != "tie":
        assert text == expected["text"], f"{text!r} is not the reference's {expected['text']!r}"
        assert reason == expected["end"], f"finish reason {reason}, the reference's is {expected['end']}"


def every_end_of_sequence_ends(c: Conversation) -> None:
    """Where the reference's first token ends the sequence, the answer is empty; with ignore_eos it goes on."""
    assert c.expected["endings"] or c.expected["natural_end"], "no prompt was found that ends by itself"
    for ending in c.expected["endings"]:
        prompt = {"prompt": ending["prompt"]} if c.features["completions"] else {"text": ending["text"]}
        answer = c.ask(max_tokens=5, **prompt)
        choice = answer["choices"][0]
        assert choice["finish_reason"] == "stop", f"token {ending['token']} ends with {choice['finish_reason']}"
        assert text_of(choice) == "", f"token {ending['token']} shows as {text_of(choice)!r}"
        assert answer["usage"]["completion_tokens"] <= 1, "tokens are made after the end"
        longer = c.ask(max_tokens=5, ignore_eos=True, **prompt)
        assert longer["choices"][0]["finish_reason"] == "length", "ignore_eos ends at the end of sequence"
        assert longer["usage"]["completion_tokens"] == 5, "ignore_eos makes fewer tokens than asked for"
    c.figures["ends_of_sequence_tried"] = len(c.expected["endings"])


def streams_say_the_same(c: Conversation) -> None:
    """Streamed text equals whole text; one finish reason, at the end; usage when asked for; one id."""
    whole = c.ask(max_tokens=_STREAM_TOKENS, ignore_eos=True)
    chunks = c.stream(max_tokens=_STREAM_TOKENS, ignore_eos=True, stream_options={"include_usage": True})
    assert len({chunk["id"] for chunk in chunks}) == 1, "chunks of one answer have several ids"
    usage = [chunk["usage"] for chunk in chunks if chunk.get("usage")]
    with_choices = [chunk["choices"][0] for chunk in chunks if chunk["choices"]]
    assert "".join(map(text_of, with_choices)) == text_of(whole["choices"][0]), "streamed and whole text differ"
    reasons = [choice.get("finish_reason") for choice in with_choices]
    assert reasons[-1] == whole["choices"][0]["finish_reason"] == "length", f"finish reasons {reasons[-1]}"
    assert not any(reasons[:-1]), "a finish reason before the end"
    assert len(usage) == 1, f"{len(usage)} chunks with usage"
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert usage[0][name] == whole["usage"][name], f"streamed and whole {name} differ"
    assert len(with_choices) > 2, "the stream comes in one piece"


def official_client_streams(c: Conversation) -> None:
    """The official client reads the stream of each endpoint."""
    with c.openai() as client:
        if c.features["chat"]:
            stream = client.chat.completions.create(
                model=c.model, messages=[{"role": "user", "content": "Hi"}], temperature=0, max_tokens=8, stream=True
            )
            chunks = list(stream)
            assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
            assert next(chunk.choices[0].delta.role for chunk in chunks if chunk.choices) == "assistant"
            assert chunks[-1].choices[0].finish_reason in ("stop", "length")
        if c.features["completions"]:
            pieces = list(
                client.completions.create(model=c.model, prompt="Hi", temperature=0, max_tokens=8, stream=True)
            )
            assert pieces[-1].choices[0].finish_reason in ("stop", "length")


def stop_strings_do_not_leak(c: Conversation) -> None:
    """A stop string over several tokens ends the answer, is not part of it, and is not streamed in part."""
    text, stop = _text_with_stop(c)
    wanted = text[: text.index(stop)]
    for given in (stop, ["\x01 never", stop]):
        choice = c.ask(max_tokens=48, ignore_eos=True, stop=given)["choices"][0]
        assert text_of(choice) == wanted, f"{text_of(choice)!r} is not what comes before {stop!r}: {wanted!r}"
        assert choice["finish_reason"] == "stop", f"finish reason {choice['finish_reason']} at a stop string"
    if c.features["streaming"]:
        chunks = c.stream(max_tokens=48, ignore_eos=True, stop=stop)
        streamed = "".join(text_of(chunk["choices"][0]) for chunk in chunks if chunk["choices"])
        assert streamed == wanted, f"streamed {streamed!r}, whole {wanted!r}"
    held = c.ask(max_tokens=48, ignore_eos=True, stop=stop + "\x01")["choices"][0]
    assert text_of(held) == text, "text that only resembles a stop string is lost"
    assert held["finish_reason"] == "length"


def _text_with_stop(c: Conversation) -> tuple[str, str]:
    """A greedy text, and a few characters of it that stand nowhere before: from near its middle, if it has such.

    A model that repeats itself has new text only at the beginning, which does as well: something comes before it.
    """
    text = c.text(max_tokens=48, ignore_eos=True)
    for size in (4, 3, 2):
        for start in sorted(range(1, len(text) - size), key=lambda at: abs(at - len(text) // 2)):
            stop = text[start : start + size]
            if "\ufffd" not in stop and text.index(stop) == start and stop.strip():
                return text, stop
    raise AssertionError(f"no stop string can be taken from {text!r}; try another seed")


def limits_are_kept(c: Conversation) -> None:
    """max_tokens counts exactly, 1 included, and a request may fill the context to its last token."""
    for count in (1, 3, 17):
        answer = c.ask(max_tokens=count, ignore_eos=True)
        assert answer["usage"]["completion_tokens"] == count, f"asked for {count}: {answer['usage']}"
        assert answer["choices"][0]["finish_reason"] == "length"


def logprobs_are_the_models(c: Conversation) -> None:
    """Log-probabilities are those of the tokens shown, at most 0, sorted, and the reference's."""
    name = "completion" if c.features["completions"] else "chat"
    expected = c.expected[name]
    asked: dict[str, Any] = {"max_tokens": max(1, len(expected["tokens"]))}
    if name == "completion":
        found = c.ask(text=c.expected["completion_text"], logprobs=3, **asked)["choices"][0]["logprobs"]
        values = found["token_logprobs"]
        # An object's members have no order, and parts of characters share one name: only whole ones can be told apart.
        whole = [text for text in found["tokens"] if text and "\ufffd" not in text]
        tops = [[top[text]] for text, top in zip(found["tokens"], found["top_logprobs"], strict=True) if text in whole]
        best = [value for text, value in zip(found["tokens"], values, strict=True) if text in whole]
    else:
        body = c.ask(text=c.expected["chat_text"], logprobs=True, top_logprobs=3, **asked)
        content = body["choices"][0]["logprobs"]["content"]
        values = best = [entry["logprob"] for entry in content]
        tops = [[top["logprob"] for top in entry["top_logprobs"]] for entry in content]
    assert values, "no log-probabilities"
    assert all(value <= 0 for value in values), "a log-probability above 0"
    assert all(top == sorted(top, reverse=True) for top in tops), "alternatives are not sorted"
    assert all(abs(top[0] - value) < 1e-6 for top, value in zip(tops, best, strict=True)), "greedy, and not the best"
    for own, theirs in zip(values, expected["logprobs"], strict=False):
        assert abs(own - theirs) < _LOGPROB_BOUND, f"log-probability {own}, the reference's is {theirs}"


def seeds_decide(c: Conversation) -> None:
    """The same seed gives the same text, alone and in company; other seeds give others."""
    from concurrent.futures import ThreadPoolExecutor

    def draw(seed: int) -> str:
        return c.text(max_tokens=12, temperature=1.0, ignore_eos=True, seed=seed)

    alone = [draw(seed) for seed in range(4)]
    assert len(set(alone)) > 1, "every seed gives the same text"
    assert draw(0) == alone[0], "a seed gives another text the second time"
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(draw, range(4)))
    assert together == alone, "neighbours change what a seed gives"


def choices_have_their_place(c: Conversation) -> None:
    """Several prompts in one request: a choice each, in order, equal to what each gives alone."""
    texts = ["One lamp", "Two ships and some more words", "3"]
    with c.http() as client:
        answer = answer_of(client.post(c.endpoint, json=c.body() | {"prompt": texts}))
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    alone = [c.ask(prompt=text) for text in texts]
    assert [text_of(choice) for choice in answer["choices"]] == [text_of(one["choices"][0]) for one in alone]
    assert answer["usage"]["total_tokens"] == sum(one["usage"]["total_tokens"] for one in alone), "usage is not the sum"


def chunks_are_valid_utf8(c: Conversation) -> None:
    """Every streamed piece is whole characters: together they are the whole answer's bytes."""
    for seed in range(2):
        fields: dict[str, Any] = {"max_tokens": 32, "ignore_eos": True, "text": f"Zeichen {seed}: äöü 灯台"}
        with c.http() as client:
            raw = client.post(c.endpoint, json=c.body(stream=True, **fields)).content
        pieces = [text_of(chunk["choices"][0]) for chunk in chunks_of(raw.decode("utf-8")) if chunk["choices"]]
        assert "".join(pieces) == c.text(**fields), "streamed characters differ from the whole answer's"


def checks(features: Mapping[str, bool]) -> list[Check]:
    """Those that the engine's features call for."""
    chosen: list[Check] = [answers_about_itself, limits_are_kept, every_end_of_sequence_ends]
    wanted: list[tuple[bool, Check]] = [
        (features["chat"], chat_is_the_references),
        (features["completions"], completion_is_the_references),
        (features["completions"], choices_have_their_place),
        (features["streaming"], streams_say_the_same),
        (features["streaming"], official_client_streams),
        (features["streaming"], chunks_are_valid_utf8),
        (features["stop"], stop_strings_do_not_leak),
        (features["logprobs"], logprobs_are_the_models),
        (features["seed"], seeds_decide),
    ]
    return chosen + [check for asked, check in wanted if asked]
