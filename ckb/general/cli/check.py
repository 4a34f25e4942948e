"""The command line: help without weight, errors with a name, a model that arrives whole, figures as JSON."""

from __future__ import annotations

import contextlib
import io
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from metainfer.ckb.checks import Candidate, Finding

_COMMANDS = ("fetch", "serve", "generate", "bench")


def _run(c: Candidate, *argv: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of `main`."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = c.unit("main")(list(argv))
        except SystemExit as leave:
            code = leave.code if isinstance(leave.code, int) else 1
    return code, out.getvalue(), err.getvalue()


@contextmanager
def _replaced(c: Candidate, unit: str, stand_in: Any) -> Iterator[None]:
    """`unit` replaced in its own module, from where the command line takes it when it needs it."""
    module = c.module(c.modules[unit])
    original = getattr(module, unit)
    setattr(module, unit, stand_in)
    try:
        yield
    finally:
        setattr(module, unit, original)


@contextmanager
def _environment(**values: str) -> Iterator[None]:
    import os

    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def check_help_is_light(c: Candidate) -> Iterator[Finding]:
    """Help names every command and does not load torch, which takes seconds."""
    code = (
        f"import sys; sys.path.insert(0, {str(c.engine_dir)!r})\n"
        f"from {c.package.__name__}.__main__ import main\n"
        "try: main(['--help'])\n"
        "finally: print('LOADED', 'torch' in sys.modules, 'fastapi' in sys.modules)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    if missing := [command for command in _COMMANDS if command not in result.stdout]:
        yield Finding("check_help_is_light", f"help does not mention {', '.join(missing)}: {result.stderr[-300:]}")
    if "LOADED False False" not in result.stdout:
        yield Finding("check_help_is_light", "help loads torch or fastapi")
    for command in _COMMANDS:
        if _run(c, command, "--help")[0] != 0:
            yield Finding("check_help_is_light", f"{command} --help fails")


def check_errors_have_a_name(c: Candidate) -> Iterator[Finding]:
    """Wrong arguments and missing models end with code 2 and say on stderr what is wrong, without a traceback."""
    nowhere = str(c.tmp_path / "nowhere")
    for argv in (
        ("generate", "--model", nowhere, "hello"),
        ("bench", "--model", nowhere),
        ("serve", "--model", nowhere),
        ("fetch", "--from", nowhere),
        ("fly",),
        (),
        ("bench", "--requests", "many"),
    ):
        code, out, err = _run(c, *argv)
        if code != 2 or not err.strip() or out.strip():
            yield Finding("check_errors_have_a_name", f"{argv}: code {code}, stderr {err[-200:]!r}, stdout {out!r}")
        if nowhere in argv and nowhere not in err:
            yield Finding("check_errors_have_a_name", f"{argv}: the message does not name the folder: {err!r}")


def check_fetch_is_all_or_nothing(c: Candidate) -> Iterator[Finding]:
    """A folder that does not check out leaves nothing behind; one that does is in the cache, whole, also twice."""
    source = c.tmp_path / f"source-{c.rng.getrandbits(60)}"
    source.mkdir()
    (source / "config.json").write_text("{}", encoding="utf-8")
    (source / "model.safetensors").write_text("weights", encoding="utf-8")
    (source / ".hidden").write_text("x", encoding="utf-8")
    cache = c.tmp_path / f"cache-{c.rng.getrandbits(60)}"
    target = cache / c.config.MODEL_DIGEST.removeprefix("sha256:")
    checked: list[Path] = []

    def refuse(folder: Path, digest: str) -> None:
        raise ValueError("these are other weights")

    def refuse_copy(folder: Path, digest: str) -> None:
        if folder != source:
            refuse(folder, digest)

    def accept(folder: Path, digest: str) -> None:
        checked.append(folder)
        if digest != c.config.MODEL_DIGEST or not (folder / "config.json").is_file():
            raise ValueError("the wrong folder or digest is checked")

    with _environment(METAINFER_MODELS=str(cache)):
        for verdict in (refuse, refuse_copy):
            with _replaced(c, "load_weights", verdict):
                code, _, err = _run(c, "fetch", "--from", str(source))
            left = list(cache.iterdir()) if cache.exists() else []
            if code != 2 or "other weights" not in err or left:
                yield Finding("check_fetch_is_all_or_nothing", f"a bad folder: code {code}, {err!r}, leaves {left}")
        with _replaced(c, "load_weights", accept):
            for _ in range(2):
                code, out, err = _run(c, "fetch", "--from", str(source))
                if code != 0 or str(target) not in out or not (target / "config.json").is_file():
                    yield Finding("check_fetch_is_all_or_nothing", f"a good folder: code {code}, {out!r}, {err!r}")
        if not checked or list(cache.iterdir()) != [target] or (target / ".hidden").exists():
            left = list(cache.iterdir())
            yield Finding("check_fetch_is_all_or_nothing", f"not checked, or not alone in the cache: {left}")


def check_fetch_copies_the_model_only(c: Candidate) -> Iterator[Finding]:
    """Nothing is copied before it is known to be the model, and then only the files that its digest covers."""
    cache = c.tmp_path / f"cache-{c.rng.getrandbits(60)}"
    blob = c.tmp_path / f"blob-{c.rng.getrandbits(60)}"
    blob.write_text("weights", encoding="utf-8")
    source = c.tmp_path / f"source-{c.rng.getrandbits(60)}"
    (source / "below").mkdir(parents=True)
    (source / "below" / "file").write_text("x", encoding="utf-8")
    read: list[Path] = []
    with _environment(METAINFER_MODELS=str(cache)), _replaced(c, "load_weights", lambda folder, _: read.append(folder)):
        code, _, err = _run(c, "fetch", "--from", str(source))
        if code != 2 or str(source) not in err or read:
            yield Finding("check_fetch_copies_the_model_only", f"without weights: code {code}, {err!r}, read {read}")
        (source / "model.safetensors").symlink_to(blob)
        code, out, err = _run(c, "fetch", "--from", str(source))
    copied = sorted(entry.name for entry in Path(out.strip() or cache).iterdir())
    if code != 0 or copied != ["model.safetensors"]:
        yield Finding("check_fetch_copies_the_model_only", f"code {code}, {err!r}, copied {copied}")
    elif (Path(out.strip()) / "model.safetensors").is_symlink():
        yield Finding("check_fetch_copies_the_model_only", "the cache holds a link to where the model was")
    if read[:1] != [source]:
        yield Finding("check_fetch_copies_the_model_only", f"checked {read}: not the source, before anything is copied")


class _ToyEngine:
    """Stands for LLMEngine: answers every prompt with as many `z` as were asked for."""

    made: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})
    made_in: threading.Thread
    candidate: Candidate

    def __init__(self, *args: Any, **options: Any) -> None:
        type(self).made = (args, options)
        type(self).made_in = threading.current_thread()
        self.codec = self
        self.running: list[Any] = []
        self.prompts: list[list[int]] = []

    def encode(self, text: str) -> list[int]:
        return [3] * len(text)

    def encode_chat(self, messages: list[dict[str, str]]) -> list[int]:
        return [4] * len(messages[0]["content"])

    @property
    def has_work(self) -> bool:
        return bool(self.running)

    def add_request(self, prompt: list[int], params: Any) -> Any:
        if len(prompt) + params.max_tokens > self.candidate.config.MAX_MODEL_LEN:
            raise ValueError("max_tokens: is too large")
        seq = self.candidate.unit("Sequence")(len(self.prompts), prompt, params)
        self.prompts.append(prompt)
        self.running.append(seq)
        return seq

    def step(self) -> list[Any]:
        outputs = []
        for seq in list(self.running):
            seq.token_ids.append(5)
            ended = seq.num_generated == seq.params.max_tokens
            if ended:
                self.running.remove(seq)
            reason = self.candidate.unit("FinishReason").LENGTH if ended else None
            token = self.candidate.unit("SampledToken")(5)
            text = "c" if seq.token_ids[0] == 4 else "r"
            outputs.append(self.candidate.unit("StepOutput")(seq, token, text, reason))
        return outputs


@contextmanager
def _toy(c: Candidate) -> Iterator[type[_ToyEngine]]:
    toy = type("ToyEngine", (_ToyEngine,), {"candidate": c})
    with _replaced(c, "LLMEngine", toy):
        yield toy


def check_generate_prints_the_answer(c: Candidate) -> Iterator[Finding]:
    """The answer and nothing else, through the chat template where there is one, never beyond the model's length."""
    model = str(c.tmp_path)
    with _toy(c) as toy:
        code, out, err = _run(c, "generate", "--model", model, "--max-tokens", "7", "--threads", "1", "hello")
        expected = "c" * 7 if c.facts.chat else "r" * 7
        if (code, out) != (0, expected + "\n"):
            yield Finding("check_generate_prints_the_answer", f"code {code}, {out!r}, {err!r}; not {expected!r}")
        args, options = toy.made
        if Path(args[0] if args else "") != c.tmp_path or options.get("num_threads") != 1:
            yield Finding("check_generate_prints_the_answer", f"--model or --threads do not arrive: {args}, {options}")
        if c.facts.chat and _run(c, "generate", "--model", model, "--max-tokens", "3", "--raw", "hello")[1] != "rrr\n":
            yield Finding("check_generate_prints_the_answer", "--raw still uses the chat template")
        code, out, err = _run(c, "generate", "--model", model, "--max-tokens", str(10**9), "hi")
        if code != 0 or len(out.strip()) != c.config.MAX_MODEL_LEN - 2:
            yield Finding("check_generate_prints_the_answer", f"a large --max-tokens is not cut to the room: {err!r}")
        code, _, err = _run(c, "generate", "--model", model, "--temperature", "nan", "hi")
        if code != 2 or "temperature" not in err:
            yield Finding("check_generate_prints_the_answer", f"temperature nan: code {code}, {err!r}")


def check_serve_loads_in_a_thread_that_ends(c: Candidate) -> Iterator[Finding]:
    """The loading thread's OpenMP team is gone before requests are served by another thread's."""
    alive: list[bool] = []

    def look(engine: Any, **options: Any) -> None:
        alive.append(toy.made_in.is_alive())
        raise ValueError("seen enough")

    with _toy(c) as toy, _replaced(c, "create_app", look):
        code, _, err = _run(c, "serve", "--model", str(c.tmp_path), "--port", "0")
    if alive != [False] or code != 2:
        yield Finding(
            "check_serve_loads_in_a_thread_that_ends", f"loading threads alive: {alive}; code {code}, {err!r}"
        )


def check_serve_tells_a_taken_port_first(c: Candidate) -> Iterator[Finding]:
    """An address that another process has is an error that names it, and no model was loaded for it."""
    with _toy(c) as toy, socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with _replaced(c, "create_app", lambda *args, **options: sys.exit(9)):
            code, _, err = _run(c, "serve", "--model", str(c.tmp_path), "--port", port)
    if code != 2 or port not in err or toy.made != ((), {}):
        yield Finding("check_serve_tells_a_taken_port_first", f"code {code}, {err!r}, engine made: {toy.made}")


def check_bench_ends_with_json(c: Candidate) -> Iterator[Finding]:
    """The last line is JSON with the figures, consistent with what was asked for."""
    with _toy(c):
        argv = ("bench", "--model", str(c.tmp_path), "--requests", "3", "--prompt-tokens", "8", "--output-tokens", "4")
        code, out, err = _run(c, *argv)
    try:
        figures = json.loads(out.splitlines()[-1])
    except (ValueError, IndexError):
        yield Finding("check_bench_ends_with_json", f"code {code}, no JSON at the end of {out!r}; {err!r}")
        return
    asked = {"requests": 3, "prompt_tokens": 8, "output_tokens": 4}
    if asked.items() - figures.items():
        yield Finding("check_bench_ends_with_json", f"{figures} does not tell {asked}")
    for name in ("ttft_ms", "tpot_ms", "output_tokens_per_s"):
        if not isinstance(figures.get(name), float) or figures[name] < 0:
            yield Finding("check_bench_ends_with_json", f"{name} is {figures.get(name)!r}")


def check_model_comes_from_the_cache(c: Candidate) -> Iterator[Finding]:
    """Without --model the folder is $METAINFER_MODELS/<hex digest>."""
    cache = c.tmp_path / f"models-{c.rng.getrandbits(60)}"
    folder = cache / c.config.MODEL_DIGEST.removeprefix("sha256:")
    folder.mkdir(parents=True)
    with _environment(METAINFER_MODELS=str(cache)), _toy(c) as toy:
        code, _, err = _run(c, "generate", "--max-tokens", "2", "hi")
    if code != 0 or Path(toy.made[0][0]) != folder:
        yield Finding("check_model_comes_from_the_cache", f"code {code}, {err!r}, loaded {toy.made[0]}")
