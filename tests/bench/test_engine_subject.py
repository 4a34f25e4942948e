"""An engine measured over real HTTP: counts are those of the answer, and an answer that lies is an error."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metainfer.bench.engine_subject import EngineSubject, timed_events
from metainfer.bench.metrics import itl_ms, tpot_ms, ttft_ms
from metainfer.bench.processes import process_tree, tree_memory
from metainfer.bench.servers import Launcher, subprocess_env, tcp_launcher
from metainfer.bench.subject import SubjectError

SERVER = Path(__file__).with_name("scripted_server.py")


def launcher(*options: str) -> Launcher:
    def command(port: int) -> Sequence[str]:
        return [sys.executable, str(SERVER), "--port", str(port), *options]

    return tcp_launcher(command, env=subprocess_env(1), timeout_s=30)


def engine(*options: str) -> EngineSubject:
    return EngineSubject("scripted", launcher(*options), threads=1)


def test_an_answer_is_counted_as_it_was_asked_for() -> None:
    subject = engine("--token-s", "0.002")
    subject.start()
    try:
        timeline = subject.run([5] * 40, 12)
    finally:
        subject.stop()
    assert (timeline.prompt_tokens, timeline.output_tokens) == (40, 12)
    assert len(timeline.arrivals_ns) == 12
    assert timeline.text == "".join(f" w{index}" for index in range(12))
    assert timeline.token_ids is None
    assert timeline.merged_tokens == 0


def test_a_wait_shows_where_the_server_waits() -> None:
    late_start, late_tokens = engine("--first-s", "0.4"), engine("--token-s", "0.08")
    for subject in (late_start, late_tokens):
        subject.start()
    try:
        waits, gaps = late_start.run([1], 4), late_tokens.run([1], 4)
    finally:
        late_start.stop()
        late_tokens.stop()
    assert ttft_ms(waits) > tpot_ms(waits)
    assert tpot_ms(gaps) > tpot_ms(waits)
    assert ttft_ms(waits) >= 400
    assert min(itl_ms(gaps)) > 0


def test_several_requests_at_once_overlap() -> None:
    subject = engine("--token-s", "0.06")
    subject.start()
    try:
        with ThreadPoolExecutor(4) as pool:
            timelines = list(pool.map(lambda _: subject.run([1, 2], 8), range(4)))
    finally:
        subject.stop()
    assert max(t.sent_ns for t in timelines) < min(t.arrivals_ns[-1] for t in timelines)


def test_tokens_that_share_a_chunk_are_counted_by_usage() -> None:
    subject = engine("--fault", "merge", "--token-s", "0.002")
    subject.start()
    try:
        timeline = subject.run([1], 10)
    finally:
        subject.stop()
    assert len(timeline.arrivals_ns) == 5
    assert timeline.output_tokens == 10
    assert timeline.merged_tokens == 5


def test_a_last_token_without_text_still_arrives() -> None:
    subject = engine("--fault", "silent-end", "--token-s", "0.002")
    subject.start()
    try:
        assert len(subject.run([1], 6).arrivals_ns) == 6
    finally:
        subject.stop()


@pytest.mark.parametrize(
    ("fault", "complaint"),
    [
        ("short", "asked for 6 tokens after 2"),
        ("no-usage", "usage says nothing"),
        ("cached", "16 tokens of the prompt came from the prefix cache"),
        ("error-event", "the engine failed"),
        ("refuse", "answered 400"),
        ("break-off", "broke off"),
        ("not-json", "not JSON"),
    ],
)
def test_an_answer_that_cannot_be_measured_is_an_error(fault: str, complaint: str) -> None:
    subject = engine("--fault", fault)
    subject.start()
    try:
        with pytest.raises(SubjectError, match=complaint):
            subject.run([1, 2], 6)
    finally:
        subject.stop()


def test_the_servers_memory_is_read_until_it_is_stopped() -> None:
    subject = engine()
    subject.start()
    pid = subject.pid
    memory = tree_memory(pid)
    subject.stop()
    subject.stop()
    assert memory is not None
    assert memory.peak_rss_bytes > 1 << 20
    assert process_tree(pid) == []
    with pytest.raises(SubjectError, match="not started"):
        subject.run([1], 2)


def test_a_server_that_ends_at_once_shows_its_last_words() -> None:
    def command(port: int) -> Sequence[str]:
        return [sys.executable, "-c", "import sys; sys.exit('no model here')"]

    subject = EngineSubject("broken", tcp_launcher(command, env=subprocess_env(1)), threads=1)
    with pytest.raises(SubjectError, match="no model here"):
        subject.start()


def test_a_server_that_is_never_ready_is_given_up() -> None:
    def command(port: int) -> Sequence[str]:
        return [sys.executable, "-c", "import time; time.sleep(60)"]

    subject = EngineSubject("idle", tcp_launcher(command, env=subprocess_env(1), timeout_s=0.3), threads=1)
    with pytest.raises(SubjectError, match="not ready within"):
        subject.start()


def test_subjects_get_few_variables_and_the_runs_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_TOKEN", "secret")
    env = subprocess_env(3, {"EXTRA": "1"})
    assert env["OMP_NUM_THREADS"] == "3"
    assert env["EXTRA"] == "1"
    assert "SOME_API_TOKEN" not in env


@given(
    st.lists(st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=8), max_size=6),
    st.data(),
)
def test_events_are_the_same_however_the_bytes_are_cut(texts: list[str], data: st.DataObject) -> None:
    stream = "".join(f"data: {text}\n\n" for text in texts).encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    pieces = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    events = list(timed_events(pieces))
    assert [text for _, text in events] == texts
    assert [at for at, _ in events] == sorted(at for at, _ in events)


def test_events_may_end_their_lines_as_http_does() -> None:
    pieces = [b": hello\r\n\r\ndata: a\r", b"\ndata: b\r\n\r\nevent: x\r\n\r\n"]
    assert [text for _, text in timed_events(pieces)] == ["a\nb"]
