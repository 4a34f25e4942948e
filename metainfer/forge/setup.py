"""Making a local forge, and finding the forge that a repository uses."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path

from metainfer.errors import InputError, MachineError
from metainfer.forge.codeowners import LOCATIONS
from metainfer.forge.github.address import is_github_address, parse_address
from metainfer.forge.identity import git_config
from metainfer.forge.local import LocalForge
from metainfer.forge.paths import engine_folder
from metainfer.forge.plumbing import RefUpdate, Repository, run_git
from metainfer.forge.protocol import BOT, DEFAULT_BASE, Forge, NoForgeError

CONFIG_KEY = "metainfer.forge"
ENVIRONMENT_VARIABLE = "METAINFER_FORGE"


def open_forge(repo_root: Path, override: str | None = None) -> Forge:
    """The forge to use: `override` (`--forge`), else $METAINFER_FORGE, else `git config metainfer.forge`.

    `github:owner/name` or a URL is a repository on GitHub, anything else the path of a bare one on this machine.
    Raises NoForgeError saying how to make one.
    """
    sources = (
        ("--forge", override),
        (f"${ENVIRONMENT_VARIABLE}", os.environ.get(ENVIRONMENT_VARIABLE)),
        (f"git config {CONFIG_KEY}", git_config(repo_root, CONFIG_KEY)),
    )
    for source, value in sources:
        if value:
            return _open(repo_root, value, source)
    raise NoForgeError(
        f"no forge is set for {repo_root}; make a local one with `metainfer forge init DIR`, "
        f"or name one with --forge or ${ENVIRONMENT_VARIABLE}"
    )


def pull_command(forge: Forge, base: str = DEFAULT_BASE) -> str:
    """The line that brings what is merged on the forge into the work tree where it is typed."""
    return f"git pull {shlex.quote(forge.address())} {shlex.quote(base)}"


def create_local_forge(
    source_repo: Path, dest: Path, owner: str | None = None, *, without_engines: Sequence[str] = ()
) -> LocalForge:
    """Make a bare repository whose main is what `source_repo` has checked out, and let the source use it.

    `owner` (an e-mail address or @handle), if given, becomes the owner of everything in a CODEOWNERS committed to
    main; in a scratch forge that is its creator. `without_engines` are removed from main, so that a run can be seen
    to make them. Commits that are not in HEAD, and changes that are not committed, are not taken over.
    """
    if dest.exists() and (not dest.is_dir() or any(dest.iterdir())):
        raise InputError(f"{dest} is there already and not empty; choose another folder")
    if run_git(["-C", str(source_repo), "rev-parse", "--verify", "--quiet", "HEAD^{commit}"]).returncode:
        raise InputError(f"{source_repo} is not a Git repository with a commit")
    existed = dest.exists()
    try:
        _clone(source_repo, dest)
        _prepare_base(Repository(dest), owner, without_engines)
    except BaseException:
        shutil.rmtree(dest, ignore_errors=True)
        if existed:
            dest.mkdir()
        raise
    _must(["-C", str(source_repo), "config", "--local", CONFIG_KEY, str(dest.resolve())])
    return LocalForge(dest)


def _clone(source_repo: Path, dest: Path) -> None:
    dest.mkdir(parents=True, exist_ok=True)
    _must(["init", "--quiet", "--bare", f"--initial-branch={DEFAULT_BASE}", str(dest)])
    # Nothing is pruned behind the pull requests' back while other processes write objects.
    _must([f"--git-dir={dest}", "config", "gc.auto", "0"])
    refs = [f"+HEAD:refs/heads/{DEFAULT_BASE}", "+refs/tags/*:refs/tags/*"]
    _must([f"--git-dir={dest}", "fetch", "--quiet", "--no-write-fetch-head", str(source_repo.resolve()), *refs])


def _prepare_base(repo: Repository, owner: str | None, without_engines: Sequence[str]) -> None:
    head = repo.commit_at(f"refs/heads/{DEFAULT_BASE}")
    assert head is not None  # just fetched
    files: dict[str, str | None] = {}
    for engine in without_engines:
        files |= dict.fromkeys(repo.tree(head, engine_folder(engine)))
    if owner is not None:
        if not re.fullmatch(r"@[\w.-]+(?:/[\w.-]+)?|[^@\s]+@[^@\s]+", owner):
            raise InputError(f"owner {owner!r}: give an e-mail address, an @user or an @org/team")
        text = f"# The creator of this scratch forge owns it.\n* {owner}\n"
        files[LOCATIONS[0]] = repo.write_blob(text.encode())
    if not files:
        return
    tree = repo.write_tree(head, files)
    commit = repo.write_commit(tree, [head], "Prepare the scratch forge\n", BOT)
    repo.move_refs([RefUpdate(f"refs/heads/{DEFAULT_BASE}", commit, head)], "metainfer: prepare")


def _open(repo_root: Path, value: str, source: str) -> Forge:
    if is_github_address(value):
        from metainfer.forge.github.forge import GitHubForge

        return GitHubForge.open(parse_address(value), repo_root / ".metainfer" / "forge")
    git_dir = (repo_root / Path(value).expanduser()).resolve()
    done = run_git([f"--git-dir={git_dir}", "rev-parse", "--is-bare-repository"])
    if done.returncode or done.stdout.strip() != b"true":
        raise NoForgeError(
            f"{git_dir} (from {source}) is not a bare Git repository; make one with `metainfer forge init DIR`"
        )
    return LocalForge(git_dir)


def _must(arguments: Sequence[str]) -> None:
    done = run_git(arguments)
    if done.returncode:
        raise MachineError(f"git {' '.join(arguments)}: {done.stderr.decode(errors='replace').strip()}")
