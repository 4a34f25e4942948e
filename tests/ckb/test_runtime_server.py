"""The engine as a process: the server with the official client, raw HTTP and signals; the other commands."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from metainfer.files import folder_digest
from tests.ckb.test_runtime_engine import MAX_MODEL_LEN, Tiny, make_tiny

MODEL = "runtime-qwen3"
KEY = "a key"


@dataclass
class Server:
    process: subprocess.Popen[str]
    url: str

    def http(self) -> httpx.Client:
        headers = {"authorization": f"Bearer {KEY}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=60, trust_env=False)

    def metrics(self) -> dict[str, float]:
        lines = httpx.get(f"{self.url}/metrics", trust_env=False).text.splitlines()
        return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if not line.startswith("#")}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tiny]:
    with pytest.MonkeyPatch.context() as patch:
        if "METAINFER_KERNELS" not in os.environ:
            patch.setenv("METAINFER_KERNELS", str(tmp_path_factory.mktemp("kernels")))
        yield make_tiny("qwen3", tmp_path_factory.mktemp("served"))


def start(tiny: Tiny, *arguments: str) -> Server:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        tiny.command("serve", "--model", str(tiny.folder), "--port", str(port), "--threads", "1", *arguments),
        cwd=tiny.engine_dir,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "ENGINE_API_KEY": KEY},
    )
    # Its log must be read, or it blocks when the pipe is full.
    server = Server(process, f"http://127.0.0.1:{port}")
    try:
        _wait(lambda: _is_ready(server), "the server to be ready")
    except BaseException:
        process.kill()
        raise AssertionError(process.communicate()[1]) from None
    threading.Thread(target=process.stderr.read, daemon=True).start()  # type: ignore[union-attr]
    return server


def _is_ready(server: Server) -> bool:
    assert server.process.poll() is None, "the server has ended"
    try:
        return httpx.get(f"{server.url}/ready", trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


def _wait(condition: Callable[[], bool], what: str, timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout_s:g} s for {what}"
        time.sleep(0.02)


def stop(server: Server) -> int:
    server.process.send_signal(signal.SIGTERM)
    return server.process.wait(30)


@pytest.fixture(scope="module")
def server(tiny: Tiny) -> Iterator[Server]:
    server = start(tiny)
    yield server
    assert stop(server) == 0


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as client:
        yield client


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": "Tell me"}], "temperature": 0} | fields


def _is_idle(server: Server) -> bool:
    metrics = server.metrics()
    whole = metrics["kv_blocks_free"] + metrics["kv_blocks_cached"] == metrics["kv_blocks_total"]
    return whole and metrics["kv_blocks_used"] == metrics["requests_running"] == metrics["requests_waiting"] == 0


def test_the_official_client_gets_the_engines_answer(tiny: Tiny, client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(**chat(max_tokens=20))
    engine = tiny.load()
    prompt = engine.codec.encode_chat(chat()["messages"])
    seq = engine.generate([prompt], tiny.params(max_tokens=20))[0]
    text = engine.codec.decode(seq.generated_token_ids)
    assert answer.choices[0].message.content == text
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (len(prompt), seq.num_generated)
    stream = client.chat.completions.create(**chat(max_tokens=20), stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == text
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == seq.num_generated
    assert [model.id for model in client.models.list()] == [MODEL]


def test_the_official_client_accumulates_a_stream(client: openai.OpenAI) -> None:
    fields = chat(max_tokens=12)
    with pytest.raises(openai.LengthFinishReasonError) as end, client.chat.completions.stream(**fields) as stream:
        stream.get_final_completion()
    message = end.value.completion.choices[0].message
    assert message.role == "assistant"
    assert message.content == client.chat.completions.create(**fields).choices[0].message.content


def test_completions_take_several_prompts_and_seeds(client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {"model": MODEL, "max_tokens": 9, "temperature": 1.0, "seed": 5}
    both = client.completions.create(prompt=["one", "two"], **fields).choices
    alone = client.completions.create(prompt="two", **fields).choices
    assert [choice.index for choice in both] == [0, 1]
    assert both[1].text == alone[0].text


def test_logprobs_have_the_formats_of_both_endpoints(client: openai.OpenAI) -> None:
    report = client.chat.completions.create(**chat(max_tokens=3, logprobs=True, top_logprobs=2)).choices[0].logprobs
    assert report is not None
    assert report.content is not None
    assert [len(token.top_logprobs) for token in report.content] == [2, 2, 2]
    assert report.content[0].logprob == report.content[0].top_logprobs[0].logprob, "greedy takes the likeliest"
    old = (
        client.completions.create(model=MODEL, prompt="x", max_tokens=3, logprobs=2, temperature=0).choices[0].logprobs
    )
    assert old is not None
    assert old.tokens is not None
    assert len(old.tokens) == len(old.token_logprobs or []) == len(old.top_logprobs or []) == 3


def test_a_stop_string_ends_the_answer_and_is_not_in_it(client: openai.OpenAI) -> None:
    text = client.completions.create(model=MODEL, prompt="abc", max_tokens=40, temperature=0).choices[0].text
    stop = text[5:8]
    choice = client.completions.create(model=MODEL, prompt="abc", max_tokens=40, temperature=0, stop=[stop]).choices[0]
    assert choice.text == text[: text.index(stop)]
    assert choice.finish_reason == "stop"


def test_what_is_wrong_is_refused_by_name(client: openai.OpenAI) -> None:
    for fields, name in (
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": MAX_MODEL_LEN}, "max_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"n": 3}, "n"),
        ({"user": "me"}, "user"),
        ({"logit_bias": {"1": 2}}, "logit_bias"),
        ({"messages": []}, "messages"),
        ({"stop": [""]}, "stop"),
    ):
        with pytest.raises(openai.BadRequestError) as error:
            client.chat.completions.create(**chat(**fields))
        assert (error.value.param or "").split(".")[0] == name
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(**chat(model="another"))


def test_50_megabytes_and_other_nonsense_harm_nobody(server: Server) -> None:
    prompts: list[Any] = [[""], [[]], [[10**9]], [[-1]], "x" * 300]
    bodies = [json.dumps({"model": MODEL, "prompt": prompt}).encode() for prompt in prompts]
    bodies += [
        b"\xff\xfe",
        b"[" * 100_000,
        b"x" * 50_000_000,
        b'{"model": "' + MODEL.encode() + b'", "prompt": "\\ud800"}',
    ]
    with server.http() as http:
        for body in bodies:
            reply = http.post("/v1/completions", content=body, headers={"content-type": "application/json"})
            assert reply.status_code in (400, 413), body[:60]
            assert reply.json()["error"]["message"]
        assert http.post("/v1/completions", json={"model": MODEL, "prompt": "x", "max_tokens": 2}).status_code == 200


def test_the_key_is_asked_for(server: Server) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="another", max_retries=0) as client:
        with pytest.raises(openai.AuthenticationError):
            client.models.list()
        with pytest.raises(openai.AuthenticationError):
            client.chat.completions.create(**chat())


def test_a_client_that_goes_away_frees_its_blocks(server: Server) -> None:
    aborted = server.metrics().get('requests_total{reason="abort"}', 0)
    body = {"model": MODEL, "prompt": "x", "max_tokens": 250, "ignore_eos": True, "stream": True}
    with server.http() as http:
        for _ in range(3):
            with http.stream("POST", "/v1/completions", json=body) as reply:
                next(reply.iter_lines())
    _wait(lambda: _is_idle(server), "the blocks to come back")
    assert server.metrics()['requests_total{reason="abort"}'] == aborted + 3


def test_many_at_once_get_what_each_gets_alone(server: Server) -> None:
    bodies = [
        {"model": MODEL, "prompt": "p" * n, "max_tokens": 16, "temperature": 0.8, "seed": n} for n in range(1, 13)
    ]
    together: dict[int, str] = {}
    with server.http() as http:

        def ask(place: int) -> None:
            together[place] = http.post("/v1/completions", json=bodies[place]).json()["choices"][0]["text"]

        threads = [threading.Thread(target=ask, args=(place,)) for place in range(len(bodies))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        alone = [http.post("/v1/completions", json=body).json()["choices"][0]["text"] for body in bodies]
    assert [together[place] for place in range(len(bodies))] == alone
    _wait(lambda: _is_idle(server), "the server to be idle")


def test_a_signal_lets_running_requests_finish(tiny: Tiny) -> None:
    server = start(tiny)
    body = {"model": MODEL, "prompt": "x", "max_tokens": 250, "ignore_eos": True}
    replies: list[httpx.Response] = []
    try:
        with server.http() as http:
            thread = threading.Thread(target=lambda: replies.append(http.post("/v1/completions", json=body)))
            thread.start()
            _wait(lambda: server.metrics()["requests_running"] == 1 or bool(replies), "the request to run")
            server.process.send_signal(signal.SIGTERM)
            thread.join(60)
        assert replies[0].status_code == 200
        assert replies[0].json()["usage"]["completion_tokens"] == 250
        assert server.process.wait(30) == 0
    finally:
        server.process.kill()


@pytest.mark.parametrize(
    ("setting", "numbers"),
    [
        (("--kv-blocks", "15"), "15 blocks"),
        (("--kv-blocks", "1000000000000"), "bytes"),
        (("--max-concurrency", "0"), "0"),
    ],
)
def test_settings_that_cannot_work_are_refused_at_start(tiny: Tiny, setting: tuple[str, str], numbers: str) -> None:
    result = subprocess.run(
        tiny.command("serve", "--model", str(tiny.folder), *setting),
        cwd=tiny.engine_dir,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 2
    assert numbers in result.stderr
    assert "Traceback" not in result.stderr


def _run(tiny: Tiny, *arguments: str, models: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"} | ({"METAINFER_MODELS": str(models)} if models else {})
    return subprocess.run(
        tiny.command(*arguments), cwd=tiny.engine_dir, env=environment, capture_output=True, text=True, check=False
    )


def test_the_command_line_fetches_generates_and_measures(tiny: Tiny, tmp_path: Path) -> None:
    fetched = _run(tiny, "fetch", "--from", str(tiny.folder), models=tmp_path)
    assert fetched.returncode == 0, fetched.stderr
    assert [path.name for path in tmp_path.iterdir()] == [folder_digest(tiny.folder).removeprefix("sha256:")]
    answer = _run(tiny, "generate", "--max-tokens", "12", "Hello", models=tmp_path)
    engine = tiny.load()
    prompt = engine.codec.encode_chat([{"role": "user", "content": "Hello"}])
    expected = engine.generate([prompt], tiny.params(max_tokens=12))[0].generated_token_ids
    assert answer.stdout == engine.codec.decode(expected) + "\n", answer.stderr
    bench = _run(tiny, "bench", "--requests", "2", "--prompt-tokens", "9", "--output-tokens", "5", models=tmp_path)
    assert json.loads(bench.stdout.splitlines()[-1])["output_tokens_per_s"] > 0, bench.stderr


def test_fetch_refuses_another_model(tiny: Tiny, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for file in tiny.folder.iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    (other / "config.json").write_text("{}", encoding="utf-8")
    result = _run(tiny, "fetch", "--from", str(other), models=tmp_path / "models")
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "models").exists(), "something was copied before it was known to be the model"
