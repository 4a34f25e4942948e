"""The serving gate: the real server in the sandbox, and its clients outside of it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from metainfer.errors import MetainferError
from metainfer.gates import serving_conformity, serving_load, serving_refusals
from metainfer.gates.conversation import API_KEY, Conversation
from metainfer.gates.numerics import TIE_MARGIN
from metainfer.gates.report import GateLog, GateReport, reproduction, run_gate
from metainfer.gates.serving_conformity import Check
from metainfer.gates.subject import Subject, clean_subject
from metainfer.sandbox import Limits, Room, Sandbox

CHAT_TEXT = "Write a Python function that checks whether a number is prime."
COMPLETION_TEXT = "def is_prime(n):\n"
_TOKENS = 24
_SMALL_BYTES = 64 << 20
_START_S = 300.0
_REFERENCE_S = 600.0


def serving_gate(
    engine_dir: Path, model_folder: Path, sandbox: Sandbox, *, seed: int = 0, kernels: Path | None = None
) -> GateReport:
    """Start the engine's server on `model_folder` and hold it to what clients may rely on.

    `kernels`: folder that keeps built kernels between gates.
    """

    def body(log: GateLog) -> None:
        with clean_subject(engine_dir) as subject:
            expected = reference_answers(subject, model_folder, seed)
            shown = {"engine": subject.folder, "model": model_folder}
            with sandbox.room(shown, shared={"kernels": kernels} if kernels else {}) as room:
                log.figure("sandbox", room.isolating)
                converse(log, room, subject, expected, all_checks(subject), seed=seed, has_kernels=bool(kernels))

    return run_gate("serving", reproduction("serving", engine_dir, seed), body)


def reference_answers(subject: Subject, model_folder: Path, seed: int) -> dict[str, Any]:
    """What the reference answers greedily to the gate's own questions, from a process of its own."""
    facts, config = subject.manifest.facts, subject.config
    small = _weight_bytes(model_folder) <= _SMALL_BYTES
    room = int(config["MAX_MODEL_LEN"]) // 2
    plan = {
        "model": str(model_folder),
        "threads": 1 if small else len(os.sched_getaffinity(0)),
        "seed": seed,
        "tie_margin": TIE_MARGIN,
        "vocab_size": config["VOCAB_SIZE"],
        "eos_token_ids": _eos_token_ids(model_folder),
        "chat": facts["chat"],
        "chat_text": CHAT_TEXT,
        "chat_tokens": min(_TOKENS, room),
        "completions": facts["completions"],
        "completion_text": COMPLETION_TEXT,
        "completion_tokens": min(_TOKENS, room),
        "search_endings": small,
    }
    with tempfile.TemporaryDirectory(prefix="metainfer-greedy-") as scratch:
        plan_file, out_file = Path(scratch, "plan.json"), Path(scratch, "out.json")
        plan_file.write_text(json.dumps(plan), encoding="utf-8")
        result = subprocess.run(
            [sys.executable, "-m", "metainfer.gates.greedy", str(plan_file), str(out_file)],
            env=os.environ | {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"},
            capture_output=True,
            text=True,
            check=False,
            timeout=_REFERENCE_S,
        )
        if result.returncode != 0:
            raise NoReferenceError(f"the reference gives no answers: {result.stderr.strip()[-600:]}")
        answers: dict[str, Any] = json.loads(out_file.read_bytes())
    return answers | {"chat_text": CHAT_TEXT, "completion_text": COMPLETION_TEXT, "natural_end": not small}


class NoReferenceError(MetainferError):
    """The reference could not say what the server should answer."""


def all_checks(subject: Subject) -> list[Check]:
    """What the engine's features call for, in an order in which the last check ends the server."""
    groups = (serving_conformity, serving_refusals, serving_load)
    return [check for group in groups for check in group.checks(subject.manifest.facts)]


def converse(
    log: GateLog,
    room: Room,
    subject: Subject,
    expected: Mapping[str, Any],
    checks: Sequence[Check],
    *,
    seed: int = 0,
    has_kernels: bool = False,
) -> None:
    """Start the server and run `checks` on it, one after the other; what they find goes to `log`."""
    port = 8000 if room.isolating else _free_port()
    command = [room.python, "-m", subject.package, "serve", "--model", room.path("model"), "--host", "127.0.0.1"]
    env = {"PYTHONPATH": room.path("engine"), "ENGINE_API_KEY": API_KEY}
    if int(subject.config["HIDDEN_SIZE"]) < 512:
        env["OMP_NUM_THREADS"] = "1"
    if has_kernels:
        env["METAINFER_KERNELS"] = room.path("kernels")
    with room.serve([*command, "--port", str(port)], port=port, env=env, limits=Limits()) as server:
        log.figure("ready_after_s", round(server.wait_until_ready(_START_S), 1))
        facts = subject.manifest.facts
        conversation = Conversation(
            server=server,
            model=subject.config["ENGINE_NAME"],
            features=facts,
            config=subject.config,
            expected=expected,
            seed=seed,
            vocab_size=int(subject.config["VOCAB_SIZE"]),
        )
        done = 0
        for check in checks:
            if check is serving_load.sigterm_drains:
                log.figure("rss_bytes", _resident_bytes(server.pid))
            if not _holds(log, check, conversation):
                log.find(f"the server ended during this check: {server.log[-400:]}", check.__name__)
                break
            done += 1
        log.figure("checks", done)
        for name, value in conversation.figures.items():
            log.figure(name, value)


def _holds(log: GateLog, check: Check, conversation: Conversation) -> bool:
    """Run one check and log what it finds; False if the server is gone and nothing more can be asked."""
    try:
        check(conversation)
    except AssertionError as finding:
        log.find(str(finding) or "does not hold", check.__name__)
    except Exception as problem:  # a client's exception is how a server's fault shows
        log.find(f"{type(problem).__name__}: {problem}", check.__name__)
    return conversation.server.alive or check is serving_load.sigterm_drains


def _resident_bytes(pid: int) -> int:
    """Memory of the server's process tree, seen from outside."""
    root = psutil.Process(pid)
    return sum(process.memory_info().rss for process in (root, *root.children(recursive=True)))


def _eos_token_ids(model_folder: Path) -> list[int]:
    from metainfer.checkpoint.facts import read_facts

    return list(read_facts(model_folder).eos_token_ids)


def _weight_bytes(model_folder: Path) -> int:
    from metainfer.checkpoint.tensors import tensor_index

    return sum(info.nbytes for info in tensor_index(model_folder).values())


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
