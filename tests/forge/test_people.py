"""Who acts and what they write, as the command line hands it over: odd bytes are one message, never a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from metainfer.errors import ExitCode, InputError
from metainfer.forge.identity import identify
from metainfer.forge.local import LocalForge
from metainfer.forge.protocol import Identity
from metainfer.sandbox.bwrap import find_bwrap
from tests.forge.engines import ALICE, refs, request

AS_ALICE = ("--as", "Alice Example <alice@example.org>")
_MAIN = "from metainfer.cli import main; main()"


@pytest.fixture
def pull(forge: LocalForge, source_repo: Path) -> LocalForge:
    """A forge with an open pull request, number 1."""
    forge.publish(request(forge))
    return forge


def metainfer(
    forge: LocalForge, source_repo: Path, *arguments: str | bytes, before: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "METAINFER_FORGE": str(forge.repo.git_dir), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [*before, sys.executable, "-c", _MAIN, *arguments]
    return subprocess.run(command, cwd=source_repo, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "arguments",
    [
        ["pr", "comment", "1", b"caf\xe9", *AS_ALICE],
        ["pr", "comment", "1", "text", "--as", b"Ren\xe9 <rene@example.org>"],
        ["pr", "comment", "1", "text", "--as", b"ren\xe9@example.org"],
        ["pr", "comment", "1", "text", "--as", b"@ren\xe9"],
        ["pr", "close", "1", "--comment", b"caf\xe9", *AS_ALICE],
        ["pr", "comment", "1", "  \n", *AS_ALICE],
        ["pr", "comment", "1", "text", "--as", ". <a@b.c>"],
        ["release", b"caf\xe9", *AS_ALICE],
        ["serve", b"caf\xe9"],
        ["forge", "init", b"caf\xe9", "--owner", b"caf\xe9"],
    ],
)
def test_what_git_cannot_keep_is_one_message_and_changes_nothing(
    pull: LocalForge, source_repo: Path, arguments: list[str | bytes]
) -> None:
    before = refs(pull)
    result = metainfer(pull, source_repo, *arguments)
    assert result.returncode == ExitCode.BAD_INPUT
    assert result.stderr.startswith("error: ")
    assert len(result.stderr.splitlines()) == 1, result.stderr
    assert "fatal" not in result.stderr
    assert refs(pull) == before


@pytest.mark.parametrize("email", ["BOT@metainfer.invalid", "bot@METAINFER.invalid"])
@pytest.mark.parametrize("handle", [None, "@alice", "@octo/knowledge"])
def test_the_bot_may_not_approve_in_whatever_case_it_is_written(
    pull: LocalForge, email: str, handle: str | None
) -> None:
    with pytest.raises(InputError, match="the bot cannot approve"):
        pull.approve(1, Identity("A person?", email, handle))
    with pytest.raises(InputError, match="the bot cannot approve"):
        pull.approve(1, Identity("A person?", "a@example.org", email))


def test_a_forge_that_cannot_be_written_is_the_machines_fault(pull: LocalForge, source_repo: Path) -> None:
    folder = str(pull.repo.git_dir)
    read_only = [str(find_bwrap()), "--dev-bind", "/", "/", "--ro-bind", folder, folder, "--"]
    for arguments in (["approve", "1"], ["comment", "1", "text"], ["close", "1"]):
        result = metainfer(pull, source_repo, "pr", *arguments, *AS_ALICE, before=read_only)
        assert result.returncode == ExitCode.ENVIRONMENT, result.stderr
        assert f"{folder}: Git may not read or write there" in result.stderr
    assert metainfer(pull, source_repo, "pr", "show", "1", before=read_only).returncode == ExitCode.OK


def test_refs_that_cannot_be_written_are_no_lost_race(pull: LocalForge, source_repo: Path) -> None:
    folder = str(pull.repo.git_dir / "refs/metainfer")
    read_only = [str(find_bwrap()), "--dev-bind", "/", "/", "--ro-bind", folder, folder, "--"]
    result = metainfer(pull, source_repo, "pr", "approve", "1", *AS_ALICE, before=read_only)
    assert result.returncode == ExitCode.ENVIRONMENT, result.stderr


def test_without_an_identity_the_message_says_how_to_give_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", "/dev/null")
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    with pytest.raises(InputError, match=r"git config user.name .*git config user.email .*--as 'NAME <EMAIL>'"):
        identify(tmp_path)
    assert ALICE.label == identify(tmp_path, "Alice <alice@example.org>").label
