"""`make demo`: the whole loop on a scratch forge, ended by asking the new engine for code over HTTP."""

from __future__ import annotations

import re
import shutil
import sys
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from metainfer.commands.context import Workspace, cache_root
from metainfer.commands.run import as_data, describe
from metainfer.console import Reporter, make_reporter
from metainfer.errors import ExitCode, InputError, MetainferError
from metainfer.files import write_atomic

if TYPE_CHECKING:
    from metainfer.pipeline.run import RunResult

QUESTION = "Write a Python function that checks whether a number is prime."
_OWNER = "demo@localhost"
_MARK = "metainfer-demo"


def run_demo(workspace: Workspace, spec: Path, folder: Path, *, allow_unsandboxed: bool) -> ExitCode:
    """Clone into `folder`, run `spec` there, ask the proposed engine, and say how to go on."""
    from metainfer.forge.setup import create_local_forge, pull_command
    from metainfer.pipeline.run import RunRequest
    from metainfer.pipeline.run import run as run_pipeline
    from metainfer.spec.load import load_spec, refuse_machine

    refuse_machine()
    engine = load_spec(spec).name
    clone = scratch_clone(workspace, folder)
    free_of_goals = drop_goals(clone, spec)
    with make_reporter(as_json=False) as reporter:
        forge = create_local_forge(clone, folder / "forge.git", _OWNER, without_engines=[engine])
        reporter.note(f"scratch clone {clone}, scratch forge {folder / 'forge.git'}")
        if free_of_goals:
            reporter.note("the demo sets no goals: a busy machine would miss them; the benchmark has the figures")
        request = RunRequest(
            spec_path=clone / spec,
            repo_root=clone.resolve(),
            state=clone / ".metainfer",
            cache=cache_root(),
            allow_unsandboxed=allow_unsandboxed,
        )
        result = run_pipeline(request, forge, reporter)
        reporter.result(describe(result), as_data(result))
        if result.status != "published" or result.outcome is None:
            return ExitCode.RED
        correct = _ask(result, clone, reporter, allow_unsandboxed=allow_unsandboxed)
    number = result.outcome.number
    activate = "" if shutil.which("metainfer") else f". {Path(sys.prefix, 'bin', 'activate')}; "
    print(
        f"next:  {activate}cd {clone}\n"
        f"       metainfer pr show {number}; metainfer pr approve {number}; metainfer pr merge {number}\n"
        f"       {pull_command(forge)}\n"
        f"       metainfer serve {engine}; metainfer release {engine}"
    )
    return ExitCode.OK if correct else ExitCode.RED


def scratch_clone(workspace: Workspace, folder: Path) -> Path:
    """A clone of what is committed here. An earlier demo's folder is emptied; any other folder is left alone."""
    import git

    _make_room(workspace, folder)
    source = git.Repo(workspace.root)
    if source.is_dirty(untracked_files=False):
        print("note: the demo uses what is committed; uncommitted changes are left out")
    clone = git.Repo.clone_from(str(workspace.root), str(folder / "work"), no_hardlinks=True)
    with clone.config_writer() as config:
        config.set_value("user", "name", "demo")
        config.set_value("user", "email", _OWNER)
    return folder / "work"


def drop_goals(clone: Path, spec: Path) -> bool:
    """Commit the clone's spec without its goals; whether it had any.

    Goals are held against figures of this machine, whose owner has other work for it: a red demo would say nothing
    about the engine.
    """
    import git
    import yaml

    file = clone / spec
    if not file.resolve().is_relative_to(clone.resolve()):
        return False
    text = file.read_text("utf-8")
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    pairs = node.value if isinstance(node, yaml.MappingNode) else []
    goals = next((pair for pair in pairs if pair[0].value == "goals"), None)
    if goals is None:
        return False
    key, value = goals
    lines = text.splitlines(keepends=True)
    del lines[key.start_mark.line : value.end_mark.line + (1 if value.end_mark.column else 0)]
    write_atomic(file, "".join(lines).encode())
    repository = git.Repo(clone)
    repository.index.add([str(spec)])
    repository.index.commit("Set no goals in the demo")
    return True


def _make_room(workspace: Workspace, folder: Path) -> None:
    """Empty an earlier demo's folder, but for forges that people merged into or released from."""
    mark = folder / _MARK
    if folder.exists() and any(folder.iterdir()) and not mark.exists():
        raise InputError(f"{folder} is not empty and not an earlier demo's; name another with --folder")
    folder.mkdir(parents=True, exist_ok=True)
    mark.touch()
    forge = folder / "forge.git"
    if forge.exists() and (holds := _worth_keeping(forge, workspace)):
        aside = next(path for n in count(1) if not (path := folder / f"forge-{n}.git").exists())
        forge.rename(aside)
        print(f"note: the earlier demo's forge holds {holds}; it is kept as {aside}, reach it with --forge")
    for entry in folder.iterdir():
        if entry != mark and not re.fullmatch(r"forge-\d+\.git", entry.name):
            shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()


def _worth_keeping(git_dir: Path, workspace: Workspace) -> str | None:
    """What people did in a scratch forge that is nowhere else, in words; None if there is nothing."""
    from metainfer.forge.local import LocalForge
    from metainfer.forge.plumbing import run_git

    forge = LocalForge(git_dir)
    try:
        merged = len(forge.list("merged"))
        came_with_it = run_git(["-C", str(workspace.root), "tag", "--list"]).stdout.decode().splitlines()
        tags = len(forge.tags("").keys() - set(came_with_it))
    except MetainferError:
        return "what cannot be read"
    counts = ((merged, "merged pull request"), (tags, "tag"))
    return " and ".join(f"{n} {what}{'' if n == 1 else 's'}" for n, what in counts if n) or None


def _ask(result: RunResult, clone: Path, reporter: Reporter, *, allow_unsandboxed: bool) -> bool:
    """Ask the engine for code over HTTP, hold it against transformers, and try the code. True if all is right."""
    from metainfer.commands.acceptance import ask_engine, matches_reference, prime_code_works
    from metainfer.sandbox.sandbox import Sandbox

    assert result.manifest is not None
    assert result.run_folder is not None
    model = cache_root() / "models" / result.manifest.model.digest.removeprefix("sha256:")
    sandbox = Sandbox(allow_unsandboxed=allow_unsandboxed)
    reporter.start("ask the engine")
    answer = ask_engine(result.run_folder / result.engine, result.manifest.package, model, QUESTION, sandbox)
    reporter.done("ask the engine", f"{answer.tokens} tokens, {answer.tokens / answer.seconds:.1f} tokens/s")
    print(f"\n> {QUESTION}\n{answer.text}\n")
    reporter.start("compare with transformers")
    same, compared = matches_reference(model, QUESTION, answer)
    verdict = "token for token the same" if same else "NOT the same tokens"
    reporter.done("compare with transformers", f"{compared} tokens in fp32: {verdict}")
    works, why = prime_code_works(answer.text, sandbox)
    reporter.note(f"the code it wrote: {why}")
    return same and works
