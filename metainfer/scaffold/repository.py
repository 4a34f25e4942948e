"""Everything that a repository needs, as one plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from metainfer.errors import InputError
from metainfer.forge.pinned import Pin
from metainfer.forge.plumbing import run_git
from metainfer.scaffold.additions import plan_gitignore, plan_pre_commit
from metainfer.scaffold.apply import apply_plan
from metainfer.scaffold.owners import plan_owners
from metainfer.scaffold.plan import Plan, Wanted, make_plan, read_record
from metainfer.scaffold.starting_set import EXAMPLE, example_spec, starting_knowledge
from metainfer.scaffold.submodule import current_pin, needs_pin, set_pin
from metainfer.spec.schema import schema_bytes

Knowledge = Literal["start", "submodule", "none"]


@dataclass(frozen=True)
class Wishes:
    """What a person chose."""

    knowledge: Knowledge | None = None
    """None: leave what is there; in a repository without ckb/, the same as none."""
    pin: Pin | None = None
    """With `submodule`."""
    owners: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Folder → owners."""
    workflows: Mapping[str, bytes] = field(default_factory=dict)
    """Callers of the reusable workflows, by path."""
    force: bool = False


@dataclass(frozen=True)
class RepositoryPlan:
    """The files, and the submodule if one is to be pinned."""

    root: Path
    files: Plan
    pin: Pin | None = None

    @property
    def is_empty(self) -> bool:
        return self.files.is_empty and self.pin is None

    def carry_out(self) -> None:
        """Do all of it, or leave the repository as it was."""
        if self.pin is not None:
            set_pin(self.root, self.pin)  # undoes itself; what can fail for outside reasons comes first
        apply_plan(self.root, self.files)


def require_repository(folder: Path) -> Path:
    """The root of the Git work tree at `folder`. InputError if it is none, or a folder within one."""
    done = run_git(["-C", str(folder), "rev-parse", "--show-toplevel"]) if folder.is_dir() else None
    if done is None or done.returncode:
        raise InputError(f"{folder} is no Git repository; make one with `git init {folder}` first")
    root = Path(done.stdout.decode().rstrip("\n"))
    if root.resolve() != folder.resolve():
        raise InputError(f"{folder} lies within the repository {root}; name that one")
    return folder.resolve()


def plan_repository(root: Path, wishes: Wishes) -> RepositoryPlan:
    """What `metainfer init` would do. Reads only. InputError for what a person has to decide or mend first."""
    pin, folders, notes = _plan_knowledge(root, wishes)
    submodule = pin is not None or current_pin(root) is not None
    ownership = plan_owners(root, wishes.owners, submodule=submodule)
    hooks, hook_notes = plan_pre_commit(root)
    merged = [file for file in (ownership.file, plan_gitignore(root), hooks) if file]
    wanted = [
        *merged,
        *_plan_specs(root),
        *(Wanted(path, content) for path, content in wishes.workflows.items()),
    ]
    files = make_plan(root, wanted, folders=folders, notes=[*ownership.notes, *hook_notes, *notes], force=wishes.force)
    return RepositoryPlan(root, files, pin)


def _plan_specs(root: Path) -> list[Wanted]:
    """The schema, and an example where there is no spec yet."""
    schema = Wanted("specs/schema.json", schema_bytes())
    known = EXAMPLE in read_record(root)
    specs = [path for pattern in ("*.yaml", "*.yml") for path in (root / "specs").glob(pattern)]
    return [schema] if specs and not known else [schema, Wanted(EXAMPLE, example_spec())]


def _plan_knowledge(root: Path, wishes: Wishes) -> tuple[Pin | None, dict[str, Mapping[str, bytes]], tuple[str, ...]]:
    if wishes.knowledge == "submodule":
        if wishes.pin is None:
            raise InputError("--ckb submodule needs --url URL and --ref TAG (or a full commit id)")
        return (wishes.pin if needs_pin(root, wishes.pin) else None), {}, ()
    place = root / "ckb"
    if place.is_symlink() or (place.exists() and not place.is_dir()):
        raise InputError(f"{place}: knowledge is kept in a folder; this is none")
    there = place.is_dir() and any(place.iterdir())
    if wishes.knowledge == "start" and not there:
        # Copied once: from then on the knowledge is this repository's own, and changes by review only.
        return None, {"ckb": starting_knowledge()}, ()
    if not there and current_pin(root) is None:
        return None, {}, ("there is no ckb/: nothing can be generated; choose --ckb start or --ckb submodule",)
    return None, {}, ()
