"""What people do with a release: download its files, follow its notes in an environment of its own, ask the server."""

from __future__ import annotations

import email
import os
import re
import signal
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import Any

import httpx
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

_READY_S = 120


@dataclass(frozen=True)
class Machine:
    """A fresh folder with a fresh environment, in which there is nothing yet."""

    folder: Path

    @classmethod
    def fresh(cls, folder: Path) -> Machine:
        subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
        for name in ("home", "dist"):
            (folder / name).mkdir()
        return cls(folder)

    def stock(self, wheel: Path) -> None:
        """Put in what the wheel says that it needs, and what that needs: stands in for a package index.

        All of it is taken from the environment of the tests; what is not asked for cannot be imported.
        """
        with zipfile.ZipFile(wheel) as archive:
            [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
            asked = email.message_from_bytes(archive.read(name)).get_all("Requires-Dist") or []
        [site] = (self.folder / "venv/lib").glob("python*/site-packages")
        for dist in _closure(asked):
            tops = {file.parts[0] for file in dist.files or () if file.parts[0] not in ("..", "__pycache__")}
            for top in tops:
                link, target = site / top, Path(str(dist.locate_file(top)))
                if not link.exists():  # several share a namespace folder
                    link.symlink_to(target)

    @property
    def environment(self) -> dict[str, str]:
        path = f"{self.folder / 'venv/bin'}:{os.defpath}"
        pip = {"PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        return {"PATH": path, "HOME": str(self.folder / "home"), **pip}

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        """A line of shell where the files lie; whatever comes of it."""
        return subprocess.run(
            ["sh", "-c", command],
            cwd=self.folder / "dist",
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )

    @contextmanager
    def serving(self, command: str) -> Iterator[str]:
        """Run a `serve` line with a free port; gives its base URL once it is ready, and asks it to end afterwards."""
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        line = f"exec {command} --port {port}"
        log = (self.folder / "server.log").open("w+")
        process = subprocess.Popen(
            ["sh", "-c", line], cwd=self.folder / "dist", env=self.environment, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            url = f"http://127.0.0.1:{port}"
            _wait_until_ready(url, process, self.folder / "server.log")
            yield url
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)
            log.close()


def _closure(requirements: Sequence[str]) -> list[Distribution]:
    """The installed distributions that answer requirements, and those that these need in turn."""
    found: dict[str, Distribution] = {}
    waiting = [(Requirement(text), {""}) for text in requirements]
    while waiting:
        wanted, extras = waiting.pop()
        name = canonicalize_name(wanted.name)
        applies = wanted.marker is None or any(wanted.marker.evaluate({"extra": extra}) for extra in extras)
        if applies and name not in found:
            found[name] = distribution(wanted.name)
            waiting += [(Requirement(text), {"", *wanted.extras}) for text in found[name].requires or ()]
    return list(found.values())


def _wait_until_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + _READY_S
    while time.monotonic() < until:
        assert process.poll() is None, f"the server ended: {log.read_text()[-2000:]}"
        try:
            if httpx.get(f"{url}/ready").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    raise AssertionError(f"the server is not ready after {_READY_S} s: {log.read_text()[-2000:]}")


def commands_of(notes: str) -> list[str]:
    """The lines of the one block of commands in a release's notes, without the words behind them."""
    [block] = re.findall(r"^```\n(.*?)^```$", notes, re.DOTALL | re.MULTILINE)
    return [line.partition("#")[0].strip() for line in block.splitlines()]


@dataclass(frozen=True)
class Wanted:
    """What transformers makes of a prompt: greedy tokens, their text, and their log-probabilities."""

    prompt: Sequence[int]
    tokens: Sequence[int]
    text: str
    logprobs: Sequence[float]


def greedy(model: Path, text: str, count: int) -> Wanted:
    """By transformers' own `generate`, in fp32; it must not come to a tie, in which either token would be right."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(model, local_files_only=True)
    reference: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, local_files_only=True)
    ids = tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"]
    made = reference.generate(
        ids, max_new_tokens=count, do_sample=False, output_logits=True, return_dict_in_generate=True
    )
    tokens = made.sequences[0, ids.shape[1] :].tolist()
    rows = torch.stack(made.logits)[:, 0].double()
    best = rows.topk(2).values
    assert float((best[:, 0] - best[:, 1]).min()) > 1e-3, f"{text!r} comes to a tie; ask something else"
    logprobs = rows.log_softmax(-1).gather(1, torch.tensor(tokens)[:, None])[:, 0].tolist()
    shown = tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return Wanted(ids[0].tolist(), tokens, shown, logprobs)


def complete(url: str, prompt: str | Sequence[int], count: int) -> Mapping[str, Any]:
    """A greedy completion over HTTP, with log-probabilities."""
    model = httpx.get(f"{url}/v1/models").json()["data"][0]["id"]
    asked = {"model": model, "prompt": prompt, "max_tokens": count, "temperature": 0, "logprobs": 0}
    answer = httpx.post(f"{url}/v1/completions", json=asked, timeout=60)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found
