"""The transformers worker: greedy tokens by its own loop, streamed, in the dtype that the probe found faster."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from metainfer.bench.metrics import Timeline
from metainfer.bench.peers import transformers_peer
from metainfer.bench.peers.transformers_peer import TransformersPeer
from metainfer.bench.subject import SubjectError

PROMPT = [17, 3, 250, 99, 42, 7]


def argmax_continuation(folder: Path, prompt: list[int], tokens: int) -> list[int]:
    """Greedy without a cache: the whole sequence anew for every token."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    ids = list(prompt)
    with torch.inference_mode():
        for _ in range(tokens):
            ids.append(int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(prompt) :]


def test_the_worker_continues_greedily_past_any_end_token(tiny_model: Path) -> None:
    expected = argmax_continuation(tiny_model, PROMPT, 12)
    peer = TransformersPeer(tiny_model, threads=1, probe_prompt=PROMPT, dtype="fp32")
    peer.start()
    try:
        first, again = peer.run(PROMPT, 12), peer.run(PROMPT, 12)
        info = peer.info()
    finally:
        peer.stop()
    assert list(first.token_ids or ()) == expected
    assert again.token_ids == first.token_ids
    assert len(first.arrivals_ns) == first.output_tokens == 12
    assert first.prompt_tokens == len(PROMPT)
    assert (info.weight_dtype, info.kv_dtype, info.threads) == ("fp32", "fp32", 1)
    assert "transformers" in info.name
    assert "torch" in info.version


@pytest.mark.parametrize(("bf16_gap_ns", "faster"), [(10, "bf16"), (30, "fp32")])
def test_the_dtype_with_the_shorter_probe_is_kept(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, bf16_gap_ns: int, faster: str
) -> None:
    started: list[str] = []

    class RecordedWorker:
        """Stands for the process, to let the test choose how fast each dtype is."""

        pid = 0
        versions = {"transformers": "5", "torch": "2"}  # noqa: RUF012

        def __init__(self, python: str, folder: Path, dtype: str, threads: int) -> None:
            self.dtype = dtype
            started.append(dtype)

        def wait_until_ready(self) -> None: ...

        def stop(self) -> None: ...

        def run(self, prompt: list[int], tokens: int) -> Timeline:
            gap_ns = {"bf16": bf16_gap_ns, "fp32": 20}[self.dtype] * 1_000_000
            return Timeline(0, tuple(gap_ns * (place + 1) for place in range(tokens)), len(prompt), tokens)

    monkeypatch.setattr(transformers_peer, "Worker", RecordedWorker)
    peer = TransformersPeer(tiny_model, threads=1, probe_prompt=PROMPT)
    peer.start()
    info = peer.info()
    assert info.weight_dtype == faster
    assert "probe bf16" in info.mode
    assert "probe fp32: 50.00 tokens/s" in info.mode
    assert started == (["bf16", "fp32"] if faster == "fp32" else ["bf16", "fp32", "bf16"])


def test_a_folder_without_a_model_is_told_with_the_workers_last_words(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "no-such-architecture"}')
    peer = TransformersPeer(tmp_path, threads=1, probe_prompt=PROMPT, dtype="fp32")
    try:
        with pytest.raises(SubjectError, match="no-such-architecture"):
            peer.start()
    finally:
        peer.stop()


def test_a_peer_that_was_not_started_says_so(tiny_model: Path) -> None:
    peer = TransformersPeer(tiny_model, threads=1, probe_prompt=PROMPT)
    peer.stop()
    with pytest.raises(SubjectError, match="not started"):
        peer.run(PROMPT, 2)
