"""Files that are there already keep every line, get what they lack, and need nothing more the second time."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from metainfer.errors import InputError
from metainfer.forge.codeowners import parse_codeowners
from metainfer.scaffold.additions import GITIGNORE, HOOKS, PRE_COMMIT, plan_gitignore, plan_pre_commit
from metainfer.scaffold.owners import FOLDERS, check_owner, plan_owners

OWNERS = dict.fromkeys(FOLDERS, ("@org/team",))
CODEOWNERS = ".github/CODEOWNERS"


def write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text, newline="")


def is_kept(old: str, new: str) -> bool:
    """Whether every line of `old` is in `new`, in the same order."""
    lines = iter(new.splitlines())
    return all(line in lines for line in old.splitlines())


# .gitignore


@given(st.text(alphabet=st.sampled_from("a/.#*! \n"), max_size=60) | st.sampled_from([".metainfer", "/.metainfer/\n"]))
def test_gitignore_keeps_its_lines_and_is_complete_after_one_run(text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write(root, GITIGNORE, text)
        wanted = plan_gitignore(root)
        assert wanted is not None or ".metainfer" in text
        if wanted:
            assert wanted.content.decode().startswith(text)
            write(root, GITIGNORE, wanted.content.decode())
        assert plan_gitignore(root) is None


def test_git_ignores_what_runs_leave_behind(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    wanted = plan_gitignore(tmp_path)
    assert wanted
    write(tmp_path, GITIGNORE, wanted.content.decode())
    write(tmp_path, ".metainfer/runs/1/record.json", "{}")
    status = subprocess.run(["git", "-C", str(tmp_path), "status", "--porcelain", "-uall"], capture_output=True)
    assert status.stdout == b"?? .gitignore\n"


# pre-commit

REPO = st.fixed_dictionaries(
    {
        "repo": st.sampled_from(["https://example.org/a", "local"]),
        "hooks": st.lists(
            st.fixed_dictionaries({"id": st.sampled_from(["ruff", "mypy", "x: y", "metainfer-spec"])}), max_size=3
        ),
    },
    optional={"rev": st.sampled_from(["v1", "1.0", "2024"])},
)
CONFIG = st.fixed_dictionaries(
    {}, optional={"repos": st.lists(REPO, max_size=3), "exclude": st.just("^docs/"), "fail_fast": st.booleans()}
)


@given(CONFIG, st.booleans(), st.sampled_from(["", "# a comment\n", "---\n"]), st.sampled_from(["", "# the end\n"]))
def test_the_hooks_are_added_once_and_all_else_means_what_it_meant(
    config: dict[str, object], flow: bool, head: str, tail: str
) -> None:
    text = head + (yaml.safe_dump(config, default_flow_style=flow, sort_keys=False) if config else "") + tail
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write(root, PRE_COMMIT, text)
        wanted, notes = plan_pre_commit(root)
        if wanted is None:
            present = [hook["id"] for repo in config.get("repos", []) for hook in repo["hooks"]]
            assert notes or {hook["id"] for hook in HOOKS} <= set(present)
            return
        new = wanted.content.decode()
        before, after = yaml.safe_load(text) or {}, yaml.safe_load(new)
        assert after.pop("repos")[:-1] == (before.pop("repos", None) or [])
        assert after == before
        assert tail in new
        write(root, PRE_COMMIT, new)
        assert plan_pre_commit(root) == (None, ())


def test_comments_and_indentation_of_a_configuration_stay(tmp_path: Path) -> None:
    text = "# ours\nrepos:\n- repo: https://x.org/y\n  rev: v1\n  hooks:\n  - id: a   # keep\n\n# below\nexclude: ^x\n"
    write(tmp_path, PRE_COMMIT, text)
    wanted, _ = plan_pre_commit(tmp_path)
    assert wanted
    assert is_kept(text, wanted.content.decode())


def test_hooks_that_come_from_elsewhere_count(tmp_path: Path) -> None:
    text = "repos:\n- repo: https://x.org/metainfer\n  rev: v1\n  hooks: [{id: metainfer-spec}, {id: metainfer-ckb}]\n"
    write(tmp_path, PRE_COMMIT, text)
    assert plan_pre_commit(tmp_path) == (None, ())


@pytest.mark.parametrize("text", ["repos: [{repo: local, hooks: []}]\n", "- a\n", "repos: {\n", "repos: 3\n"])
def test_what_cannot_be_added_to_is_left_with_a_note_of_what_to_add(text: str, tmp_path: Path) -> None:
    write(tmp_path, PRE_COMMIT, text)
    wanted, notes = plan_pre_commit(tmp_path)
    assert wanted is None
    assert "metainfer spec check" in notes[0]


# CODEOWNERS

_PATTERNS = ["*", "/ckb/", "ckb/general/", "/specs/*", "*.py", "/engines", "/.github/", "docs/", "!x", "ckb/**"]
LINE = st.one_of(
    st.builds(
        lambda pattern, owners: f"{pattern} {' '.join(owners)}".rstrip(),
        st.sampled_from(_PATTERNS),
        st.lists(st.sampled_from(["@a", "@org/b", "c@d.org"]), max_size=2),
    ),
    st.sampled_from(["", "# words", "   "]),
)


@given(st.lists(LINE, max_size=8).map("\n".join), st.booleans())
def test_owners_are_added_once_and_every_line_stays(text: str, newline: bool) -> None:
    text += "\n" if newline else ""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write(root, CODEOWNERS, text)
        first = plan_owners(root, OWNERS)
        if first.file:
            new = first.file.content.decode()
            assert is_kept(text, new)
            _nobody_lost(text, new)
            write(root, CODEOWNERS, new)
        second = plan_owners(root, OWNERS)
        assert second.file is None
        owners = parse_codeowners((root / CODEOWNERS).read_text())
        for name in FOLDERS:
            assert owners.owners(f"{name}/any/file") or any(name in note for note in second.notes)


def _nobody_lost(old: str, new: str) -> None:
    """Where a rule that speaks of a folder, or of a part of one, decided, it still does."""
    before, now = parse_codeowners(old), parse_codeowners(new)
    for path in [f"{name}/{rest}" for name in FOLDERS for rest in ("x", "x/y", "general/x", "x.py")]:
        rule = next((rule for rule in reversed(before.rules) if rule.matches.fullmatch(path)), None)
        if rule and rule.pattern.strip("/").split("/")[0] in FOLDERS:
            assert now.owners(path) == rule.owners, (rule, path, new)


def test_the_file_that_github_reads_is_the_one_that_is_changed(tmp_path: Path) -> None:
    write(tmp_path, "docs/CODEOWNERS", "* @all\n")
    planned = plan_owners(tmp_path, OWNERS)
    assert planned.file
    assert planned.file.path == "docs/CODEOWNERS"
    assert planned.file.content.startswith(b"* @all\n\n")


def test_whoever_owns_everything_keeps_it_when_nobody_is_named(tmp_path: Path) -> None:
    write(tmp_path, CODEOWNERS, "* @all\n")
    assert plan_owners(tmp_path, {}).file is None


def test_nobody_named_and_nobody_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--owner"):
        plan_owners(tmp_path, {})


def test_a_submodule_is_owned_as_the_one_entry_that_it_is(tmp_path: Path) -> None:
    planned = plan_owners(tmp_path, OWNERS, submodule=True)
    assert planned.file
    owners = parse_codeowners(planned.file.content.decode())
    assert owners.owners("ckb") == owners.owners(".gitmodules") == ("@org/team",)


@pytest.mark.parametrize("owner", ["org", "@", "@a b", "@x\n* @me", "a@b #", "@a/b/c", ""])
def test_an_owner_cannot_smuggle_in_a_line(owner: str) -> None:
    with pytest.raises(InputError):
        check_owner(owner)


@pytest.mark.parametrize("text", ["* @org/all\r\n/ckb/x @org/few\r\n", "# \x0c a\u2028b\r\n/docs/ @org/all", "\r\n"])
def test_codeowners_keeps_windows_line_ends_and_every_byte_of_its_lines(text: str, tmp_path: Path) -> None:
    write(tmp_path, CODEOWNERS, text)
    file = plan_owners(tmp_path, OWNERS).file
    assert file is not None
    lines = file.content.decode().split("\n")
    assert all(line.endswith("\r") for line in lines[:-1])
    left = iter(lines)
    assert all(line in left for line in text.removesuffix("\n").split("\n") if line.endswith("\r"))
    (tmp_path / CODEOWNERS).write_bytes(file.content)
    assert plan_owners(tmp_path, OWNERS).file is None


def test_a_configuration_with_a_date_that_there_is_not_is_left_to_a_person(tmp_path: Path) -> None:
    write(tmp_path, PRE_COMMIT, "repos: []\nsince: 2026-13-45\n")
    wanted, notes = plan_pre_commit(tmp_path)
    assert wanted is None
    assert "is not YAML" in notes[0]
