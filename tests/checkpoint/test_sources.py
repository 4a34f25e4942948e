"""From a source to the cache: made once, whole or not at all, found again at once, healed when damaged."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from metainfer.checkpoint import sources
from metainfer.checkpoint.facts import ModelFacts
from metainfer.checkpoint.sources import ModelFolder, fetch_model, known_model
from metainfer.errors import InputError, MachineError, MetainferError, RefusedError
from metainfer.files import folder_digest, sha256_file
from metainfer.progress import Silent
from metainfer.spec.models import Source
from tests.checkpoint.gguf_files import Gguf, gguf
from tests.checkpoint.saved_models import QWEN2, edit_json

__all__ = ["gguf"]  # the fixture


class Spy(Silent):
    """Remembers the steps; calls `on_advance` with each."""

    def __init__(self, on_advance: Callable[[str], None] = lambda step: None) -> None:
        self.started: list[str] = []
        self.totals: dict[str, float | None] = {}
        self.advanced: dict[str, float] = {}
        self._on_advance = on_advance

    def start(self, step: str, total: float | None = None) -> None:
        self.started.append(step)
        self.totals[step], self.advanced[step] = total, 0.0

    def advance(self, step: str, amount: float) -> None:
        self.advanced[step] += amount
        self._on_advance(step)


def source_of(**kind: Any) -> Source:
    return Source.model_validate(kind)


def fetch(source: Source, tmp_path: Path, progress: Silent | None = None) -> ModelFolder:
    return fetch_model(source, cache=tmp_path / "cache", base_dir=tmp_path, progress=progress or Silent())


def leftovers(tmp_path: Path) -> list[str]:
    return [path.name for path in (tmp_path / "cache" / "models").iterdir() if path.name.startswith(".")]


@pytest.fixture
def local(random_qwen2: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(random_qwen2, tmp_path / "local"))


@pytest.fixture
def gguf_source(gguf: Gguf, tmp_path: Path) -> Source:
    path = gguf.write(tmp_path / "m.gguf")
    return source_of(gguf={"path": "m.gguf", "sha256": sha256_file(path)})


def test_a_folder_is_copied_to_its_digest_without_the_files_that_are_no_model(local: Path, tmp_path: Path) -> None:
    (local / "README.md").write_text("read me")
    (local / "pytorch_model.bin").write_bytes(b"weights again")
    model = fetch(source_of(path="local"), tmp_path)
    assert {path.name for path in model.path.iterdir()} == {
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert model.digest == folder_digest(model.path)
    assert model.path == tmp_path / "cache" / "models" / model.digest.removeprefix("sha256:")


def test_shards_come_with_their_index_and_consolidated_weights_beside_them_do_not(
    random_qwen2: Path, random_qwen3: Path, tmp_path: Path
) -> None:
    shutil.copytree(random_qwen3, tmp_path / "local")
    shutil.copyfile(random_qwen2 / "model.safetensors", tmp_path / "local" / "model.safetensors")
    model = fetch(source_of(path="local"), tmp_path)
    weights = sorted(path.name for path in model.path.glob("*.safetensors"))
    assert len(weights) > 1
    assert weights == sorted(path.name for path in random_qwen3.glob("*.safetensors"))
    assert (model.path / "model.safetensors.index.json").exists()
    assert model.facts.sharded


def test_a_second_look_does_no_work_and_another_source_of_the_same_bytes_gets_the_same_folder(
    local: Path, tmp_path: Path
) -> None:
    first = fetch(source_of(path="local"), tmp_path)
    spy = Spy()
    assert fetch(source_of(path="local"), tmp_path, spy) == first
    assert spy.started == []
    shutil.copytree(local, tmp_path / "mirror")
    assert fetch(source_of(path="mirror"), tmp_path) == first


def test_progress_ends_at_its_total(gguf_source: Source, local: Path, tmp_path: Path) -> None:
    for source in (gguf_source, source_of(path="local")):
        spy = Spy()
        fetch(source, tmp_path, spy)
        assert spy.started[-1] == "hash model"
        for step, total in spy.totals.items():
            assert total is None or spy.advanced[step] == total > 0


def test_a_changed_folder_is_another_model(local: Path, tmp_path: Path) -> None:
    first = fetch(source_of(path="local"), tmp_path)
    edit_json(local / "generation_config.json", lambda config: config.update(eos_token_id=[256]))
    second = fetch(source_of(path="local"), tmp_path)
    assert second.digest != first.digest
    assert second.facts.eos_token_ids[0] == 256


def test_random_sources_are_found_by_config_and_seed(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN2))
    inline = fetch(source_of(random={"config": QWEN2, "seed": 1}), tmp_path)
    assert fetch(source_of(random={"config": "config.json", "seed": 1}), tmp_path).digest == inline.digest
    assert fetch(source_of(random={"config": QWEN2, "seed": 2}), tmp_path).digest != inline.digest
    edit_json(tmp_path / "config.json", lambda config: config.update(num_hidden_layers=1))
    assert fetch(source_of(random={"config": "config.json", "seed": 1}), tmp_path).facts.num_hidden_layers == 1


def test_known_model_never_makes_one(local: Path, tmp_path: Path) -> None:
    source, cache = source_of(path="local"), tmp_path / "cache"
    assert known_model(source, cache=cache, base_dir=tmp_path) is None
    made = fetch(source, tmp_path)
    assert known_model(source, cache=cache, base_dir=tmp_path) == made


@pytest.mark.parametrize("damage", ["cut", "delete file", "delete folder", "stray file", "garble index"])
def test_a_damaged_cache_is_made_whole_again(damage: str, local: Path, tmp_path: Path) -> None:
    first = fetch(source_of(path="local"), tmp_path)
    weights = first.path / "model.safetensors"
    match damage:
        case "cut":
            os.truncate(weights, 1000)
        case "delete file":
            weights.unlink()
        case "delete folder":
            shutil.rmtree(first.path)
        case "stray file":
            (first.path / "notes.txt").write_text("note")
        case "garble index":
            (index,) = (tmp_path / "cache" / "sources").glob("*.json")
            index.write_bytes(b'["no index"]')
    assert fetch(source_of(path="local"), tmp_path) == first
    assert folder_digest(first.path) == first.digest


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_interrupted_conversion_leaves_nothing_and_the_next_run_completes(
    error: type[BaseException], gguf_source: Source, tmp_path: Path
) -> None:
    def stop(step: str) -> None:
        if step == "convert GGUF":
            raise error

    with pytest.raises(error):
        fetch(gguf_source, tmp_path, Spy(stop))
    assert leftovers(tmp_path) == []
    assert list((tmp_path / "cache" / "models").iterdir()) == []
    assert fetch(gguf_source, tmp_path).digest == folder_digest(fetch(gguf_source, tmp_path).path)


def test_a_killed_conversion_is_cleared_and_completed_by_the_next_run(
    gguf_source: Source, gguf: Gguf, tmp_path: Path
) -> None:
    script = textwrap.dedent(
        f"""
        import sys, time
        from pathlib import Path
        from metainfer.checkpoint.sources import fetch_model
        from metainfer.progress import Silent
        from metainfer.spec.models import Source

        class Stuck(Silent):
            def advance(self, step, amount):
                print("midway", flush=True)
                time.sleep(60)

        source = Source.model_validate_json({gguf_source.model_dump_json()!r})
        here = Path({str(tmp_path)!r})
        fetch_model(source, cache=here / "cache", base_dir=here, progress=Stuck())
        """
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "midway\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert len(leftovers(tmp_path)) == 1
    model = fetch(gguf_source, tmp_path)
    assert model.digest == folder_digest(model.path)
    assert leftovers(tmp_path) == []


def test_two_processes_at_once_make_one_folder(gguf_source: Source, tmp_path: Path) -> None:
    script = textwrap.dedent(
        f"""
        from pathlib import Path
        from metainfer.checkpoint.sources import fetch_model
        from metainfer.progress import Silent
        from metainfer.spec.models import Source

        class Counting(Silent):
            def start(self, step, total=None):
                print(step, flush=True)

        source = Source.model_validate_json({gguf_source.model_dump_json()!r})
        here = Path({str(tmp_path)!r})
        print(fetch_model(source, cache=here / "cache", base_dir=here, progress=Counting()).digest)
        """
    )
    command = [sys.executable, "-c", script]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    lines = [process.communicate()[0].splitlines() for process in both]
    assert lines[0][-1] == lines[1][-1]
    assert sorted(len(line) for line in lines) == [1, 3], "one converts and hashes, the other waits and finds"


def test_a_refused_checkpoint_leaves_nothing(local: Path, tmp_path: Path) -> None:
    edit_json(local / "config.json", lambda config: config.update(hidden_act="gelu"))
    with pytest.raises(RefusedError, match="gelu"):
        fetch(source_of(path="local"), tmp_path)
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"])
def test_a_folder_that_lacks_a_file_is_refused_by_the_files_name(missing: str, local: Path, tmp_path: Path) -> None:
    (local / missing).unlink()
    with pytest.raises(InputError, match=missing):
        fetch(source_of(path="local"), tmp_path)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (source_of(path="nowhere"), "nowhere: no such folder; paths in a spec are relative to the spec"),
        (source_of(gguf={"path": "nowhere.gguf", "sha256": "0" * 64}), "nowhere.gguf: no such file"),
        (source_of(random={"config": "nowhere.json", "seed": 1}), "nowhere.json: No such file"),
    ],
)
def test_a_path_that_leads_nowhere_is_named(source: Source, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        fetch(source, tmp_path)


def test_a_key_of_a_random_model_is_named_where_it_stands_in_the_spec(tmp_path: Path) -> None:
    spec = tmp_path / "wide.yaml"
    spec.write_text("model:\n  source:\n    random:\n      config:\n        hidden_size: -96\n")
    source = source_of(random={"config": {**QWEN2, "hidden_size": -96}, "seed": 1})
    with pytest.raises(InputError) as caught:
        fetch_model(source, cache=tmp_path / "cache", base_dir=tmp_path, progress=Silent(), spec_path=spec)
    assert str(caught.value) == (
        f"{spec}:5:9: model.source.random.config: hidden_size is -96; a positive whole number is needed"
    )


def test_a_key_of_a_random_models_file_is_named_by_the_file(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text(json.dumps({**QWEN2, "mlp_bias": True}))
    with pytest.raises(RefusedError, match=rf"^{tmp_path}/c\.json: mlp_bias = true: no knowledge"):
        fetch(source_of(random={"config": "c.json", "seed": 1}), tmp_path)


@pytest.mark.parametrize("content", ['{"a": NaN}', '{"a": "\\ud800"}', "[" * 100_000, "{"])
def test_a_random_models_file_that_is_no_json_is_an_error(content: str, tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text(content)
    with pytest.raises(InputError, match=r"c\.json: not JSON"):
        fetch(source_of(random={"config": "c.json", "seed": 1}), tmp_path)


def test_a_refused_folder_is_named_as_in_the_spec_and_not_copied(local: Path, tmp_path: Path) -> None:
    edit_json(local / "config.json", lambda config: config.update(hidden_size=-1))
    spy = Spy()
    with pytest.raises(InputError, match=f"^{local}/config.json: hidden_size is -1"):
        fetch(source_of(path="local"), tmp_path, spy)
    assert spy.started == []


def test_a_refused_gguf_is_named_and_not_the_folder_it_is_converted_in(gguf: Gguf, tmp_path: Path) -> None:
    gguf.fields["qwen2.attention.head_count_kv"] = 3
    path = gguf.write(tmp_path / "m.gguf")
    with pytest.raises(MetainferError) as caught:
        fetch(source_of(gguf={"path": "m.gguf", "sha256": sha256_file(path)}), tmp_path)
    assert ".making" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_model_that_is_not_admitted_is_not_copied(local: Path, tmp_path: Path) -> None:
    def refuse(facts: ModelFacts) -> None:
        raise RefusedError(f"{facts.hidden_size} is too wide")

    spy = Spy()
    with pytest.raises(RefusedError, match="48 is too wide"):
        fetch_model(source_of(path="local"), cache=tmp_path / "cache", base_dir=tmp_path, progress=spy, admit=refuse)
    assert spy.started == []


@pytest.mark.parametrize("kind", ["weights", "tokenizer"])
def test_a_disk_that_fills_up_under_a_random_model_is_said_as_what_it_is(kind: str, tmp_path: Path) -> None:
    small = {"hidden_size": 4, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 8}
    config = {**QWEN2, **small, "tie_word_embeddings": True} if kind == "tokenizer" else QWEN2
    limit = 5_000 if kind == "tokenizer" else 20_000  # bytes of any one file: the system's own refusal
    script = textwrap.dedent(
        f"""
        import resource
        from pathlib import Path
        from metainfer.checkpoint.sources import fetch_model
        from metainfer.errors import MachineError
        from metainfer.progress import Silent
        from metainfer.spec.models import Source

        here = Path({str(tmp_path)!r})
        source = Source.model_validate({{"random": {{"config": {config!r}, "seed": 1}}}})
        resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
        try:
            fetch_model(source, cache=here / "cache", base_dir=here, progress=Silent())
        except MachineError as error:
            print(error)
            print(error.__cause__.__cause__)
        """
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    told, cause = result.stdout.splitlines()
    assert told.startswith(f"{tmp_path}/cache: File too large. Models are kept there: it must be writable")
    assert cause.startswith("Error while serializing") == (kind == "weights"), "the other library is to fail"
    assert leftovers(tmp_path) == []


def test_a_gguf_with_another_hash_is_refused_before_anything_is_made(gguf: Gguf, tmp_path: Path) -> None:
    gguf.write(tmp_path / "m.gguf")
    with pytest.raises(InputError, match=r"m\.gguf: sha256 is [0-9a-f]{64}, but the spec says 0{64}"):
        fetch(source_of(gguf={"path": "m.gguf", "sha256": "0" * 64}), tmp_path)
    assert leftovers(tmp_path) == []


def test_a_full_disk_is_said_as_what_it_is(local: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(origin: Path, out: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(sources.shutil, "copyfile", full)
    with pytest.raises(MachineError, match=r"No space left on device.*METAINFER_CACHE names another folder"):
        fetch(source_of(path="local"), tmp_path)
    assert leftovers(tmp_path) == []


def test_a_second_look_reads_no_weights(local: Path, tmp_path: Path) -> None:
    model = fetch(source_of(path="local"), tmp_path)
    weights = model.path / "model.safetensors"
    with weights.open("r+b") as stream:  # garble the last tensor: only whoever reads it could notice
        stream.seek(-8, os.SEEK_END)
        stream.write(b"\xff" * 8)
    assert fetch(source_of(path="local"), tmp_path) == model
