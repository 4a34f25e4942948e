"""`metainfer init` on real repositories: what it writes, what it leaves alone, and that a second run does nothing."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from metainfer.errors import ExitCode
from metainfer.files import write_atomic
from metainfer.scaffold import apply
from metainfer.scaffold.apply import apply_plan
from metainfer.scaffold.plan import RECORD, Wanted, make_plan

ROOT = Path(__file__).parents[2]
SOURCE = "example/metainfer@" + "a" * 40


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), "-c", "user.name=A", "-c", "user.email=a@example.org", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def init(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "metainfer", "init", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)


def snapshot(root: Path) -> dict[str, bytes]:
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and ".git" not in path.relative_to(root).parts
    }


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    folder = tmp_path / "repo"
    git(tmp_path, "init", "--quiet", "--initial-branch=main", str(folder))
    return folder


READY = ("--ckb", "start", "--owner", "@org/team", "--workflows", SOURCE, "--yes")


def test_an_empty_repository_becomes_ready_and_the_second_run_has_nothing_to_do(repo: Path) -> None:
    first = init(repo, *READY)
    assert first.returncode == ExitCode.OK, first.stderr
    files = snapshot(repo)
    assert {"specs/tiny-qwen3.yaml", "specs/schema.json", "ckb/family/rmsnorm/check.py", ".gitignore"} <= set(files)
    assert {".github/CODEOWNERS", ".pre-commit-config.yaml"} <= set(files)
    for check in (["ckb", "check"], ["spec", "check", "specs/tiny-qwen3.yaml"]):
        done = subprocess.run([sys.executable, "-m", "metainfer", *check], cwd=repo, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    second = init(repo, *READY)
    assert (second.stdout, second.returncode) == ("nothing to do\n", ExitCode.OK)
    assert snapshot(repo) == files


@pytest.mark.parametrize("workflows", [SOURCE, "none"])
def test_a_second_run_remembers_which_workflows_were_chosen(workflows: str, repo: Path, tmp_path: Path) -> None:
    """In a copy of the package that is no checkout, and so knows no repository that it is from."""
    for part in ("metainfer", "specs"):
        shutil.copytree(ROOT / part, tmp_path / "site" / part, ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-P", "-m", "metainfer", "init", str(repo), "--yes"]

    def run(*more: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
        return subprocess.run([*command, *more], capture_output=True, text=True, env=environment, check=False)

    assert "--workflows OWNER/REPO@REF" in run("--owner", "@me").stderr
    first = run("--owner", "@me", "--workflows", workflows)
    assert first.returncode == ExitCode.OK, first.stderr
    assert any((repo / ".github/workflows").glob("*")) is (workflows != "none")
    second = run()
    assert second.stdout.endswith("nothing to do\n"), second.stdout + second.stderr


def test_what_to_do_next_is_for_the_forge_that_it_was_made_for(repo: Path) -> None:
    locally = init(repo, "--owner", "me@example.org", "--workflows", "none", "--yes").stdout.splitlines()[-1]
    assert "metainfer forge init DIR" in locally
    assert "doctor" not in locally
    on_github = init(repo, "--workflows", SOURCE, "--yes").stdout.splitlines()[-1]
    assert "git config metainfer.forge github:OWNER/NAME, and metainfer doctor --github" in on_github
    assert "forge init" not in on_github


def test_the_starting_set_is_this_repositorys_knowledge_byte_for_byte(repo: Path) -> None:
    init(repo, *READY)
    listed = git(ROOT, "ls-files", "-z", "--", "ckb").split("\0")
    assert {path for path in snapshot(repo) if path.startswith("ckb/")} == {path for path in listed if path}
    assert all((repo / path).read_bytes() == (ROOT / path).read_bytes() for path in listed if path)


def test_nothing_is_written_without_a_yes_and_the_diff_is_shown(repo: Path) -> None:
    shown = init(repo, *READY[:-1])
    assert shown.returncode == ExitCode.RED
    assert "+++ b/.github/CODEOWNERS\n@@ -0,0 +1,7 @@" in shown.stdout
    assert "+/ckb/          @org/team\n" in shown.stdout
    assert "--yes" in shown.stderr
    assert snapshot(repo) == {}


def test_what_a_person_edited_is_kept_and_shown_until_it_is_forced(repo: Path) -> None:
    init(repo, *READY)
    example = repo / "specs/tiny-qwen3.yaml"
    example.write_text(example.read_text().replace("max_concurrency: 8", "max_concurrency: 9"))
    edited = snapshot(repo)
    again = init(repo, *READY)
    assert "kept: specs/tiny-qwen3.yaml: edited" in again.stdout
    assert "  -  max_concurrency: 9\n  +  max_concurrency: 8" in again.stdout
    assert again.stdout.endswith("nothing to do\n")
    assert snapshot(repo) == edited
    assert init(repo, *READY, "--force").returncode == ExitCode.OK
    assert "max_concurrency: 8" in example.read_text()


def test_what_a_person_removed_stays_removed(repo: Path) -> None:
    init(repo, *READY)
    (repo / "specs/tiny-qwen3.yaml").unlink()
    again = init(repo, *READY)
    assert "kept: specs/tiny-qwen3.yaml: removed" in again.stdout
    assert not (repo / "specs/tiny-qwen3.yaml").exists()


def test_knowledge_that_is_there_is_never_touched(repo: Path) -> None:
    (repo / "ckb/general").mkdir(parents=True)
    (repo / "ckb/README").write_text("ours")
    init(repo, *READY, "--force")
    assert {path for path in snapshot(repo) if path.startswith("ckb/")} == {"ckb/README"}


def test_a_repository_that_has_everything_is_left_alone() -> None:
    """This one: its own files say all that is needed, but for the workflows that call its own."""
    done = init(ROOT, "--workflows", "none")
    assert done.stdout.splitlines()[-1] == "nothing to do", done.stdout


def test_a_newer_version_replaces_what_nobody_edited(tmp_path: Path) -> None:
    apply_plan(tmp_path, make_plan(tmp_path, [Wanted("a.yml", b"one\n"), Wanted("b.yml", b"one\n")]))
    (tmp_path / "b.yml").write_bytes(b"mine\n")
    plan = make_plan(tmp_path, [Wanted("a.yml", b"two\n"), Wanted("b.yml", b"two\n")])
    assert [change.path for change in plan.changes] == ["a.yml", RECORD]
    assert [(kept.path, kept.theirs) for kept in plan.kept] == [("b.yml", b"mine\n")]


def test_a_failure_half_way_leaves_everything_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "b.yml").write_bytes(b"old\n")
    before = snapshot(tmp_path)
    wanted = [Wanted("a/a.yml", b"new\n"), Wanted("b.yml", b"new\n", owned=False), Wanted("c.yml", b"new\n")]
    plan = make_plan(tmp_path, wanted, folders={"ckb": {"general/x": b"1"}})

    def full_disk(path: Path, data: bytes) -> None:
        if path.name == "c.yml" and data == b"new\n":
            raise OSError(28, "No space left on device")
        write_atomic(path, data)

    monkeypatch.setattr(apply, "write_atomic", full_disk)
    with pytest.raises(OSError, match="No space"):
        apply_plan(tmp_path, plan)
    assert snapshot(tmp_path) == before
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["b.yml"]


def test_a_link_is_not_followed_out_of_the_repository(repo: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (repo / ".github").symlink_to(tmp_path / "elsewhere")
    done = init(repo, *READY)
    assert done.returncode == ExitCode.BAD_INPUT
    assert "is a link" in done.stderr
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--ckb", "start"), "--owner"),
        (("--owner", "@a\n* @me"), "no code owner"),
        (("--ckb", "all", "--owner", "@a"), "start, submodule, none"),
        (("--url", "https://x.org/y", "--owner", "@a"), "--ckb submodule"),
        (("--ckb", "submodule", "--owner", "@a"), "--url"),
    ],
)
def test_what_a_person_has_to_decide_is_said(arguments: tuple[str, ...], words: str, repo: Path) -> None:
    done = init(repo, *arguments, "--workflows", "none")
    assert done.returncode == ExitCode.BAD_INPUT
    assert words in done.stderr
    assert snapshot(repo) == {}


def test_outside_of_a_repository_the_message_says_how_to_make_one(tmp_path: Path) -> None:
    done = init(tmp_path, *READY)
    assert done.returncode == ExitCode.BAD_INPUT
    assert "git init" in done.stderr


# A shared knowledge base


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository that is a knowledge base, with a tag, then one commit more."""
    folder = tmp_path_factory.mktemp("shared") / "knowledge"
    subprocess.run(["git", "init", "--quiet", "--initial-branch=main", str(folder)], check=True)
    for path in git(ROOT, "ls-files", "-z", "--", "ckb/family/rmsnorm", "ckb/family/linear").split("\0"):
        if path:
            target = folder / path.removeprefix("ckb/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes((ROOT / path).read_bytes())
    (folder / "README.md").write_text("Shared.\n")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "First")
    git(folder, "tag", "-a", "v1", "-m", "v1")
    (folder / "README.md").write_text("Shared, again.\n")
    git(folder, "commit", "--quiet", "-am", "Second")
    return folder


def pinned(url: Path, ref: str) -> tuple[str, ...]:
    options = ("--owner", "@org/team", "--workflows", "none", "--yes")
    return ("--ckb", "submodule", "--url", str(url), "--ref", ref, *options)


def test_a_shared_base_is_pinned_as_a_submodule_by_its_tag(repo: Path, shared: Path) -> None:
    done = init(repo, *pinned(shared, "v1"))
    assert done.returncode == ExitCode.OK, done.stderr
    commit = git(shared, "rev-parse", "v1^{commit}").strip()
    assert git(repo, "ls-files", "--stage", "ckb").split()[:2] == ["160000", commit]
    assert (repo / "ckb/family/rmsnorm/contract.yaml").is_file()
    assert (repo / "ckb/.git").is_file()
    assert "/ckb           @org/team" in (repo / ".github/CODEOWNERS").read_text()
    assert init(repo, *pinned(shared, "v1")).stdout == "nothing to do\n"


def test_the_pin_moves_when_it_is_told_to(repo: Path, shared: Path) -> None:
    init(repo, *pinned(shared, "v1"))
    git(repo, "add", ".")
    git(repo, "commit", "--quiet", "-m", "Ready")
    head = git(shared, "rev-parse", "main").strip()
    assert init(repo, *pinned(shared, head)).returncode == ExitCode.OK
    assert git(repo, "ls-files", "--stage", "ckb").split()[1] == head
    assert (repo / "ckb/README.md").read_text() == "Shared, again.\n"


@pytest.mark.parametrize(("ref", "words"), [("main", "is a branch"), ("v2", "no such tag"), ("--upload-pack=x", "tag")])
def test_only_what_does_not_move_can_be_pinned(ref: str, words: str, repo: Path, shared: Path) -> None:
    done = init(repo, "--ref=" + ref, "--ckb", "submodule", "--url", str(shared), "--owner", "@a", "--workflows=none")
    assert done.returncode == ExitCode.BAD_INPUT
    assert words in done.stderr


def test_a_repository_that_is_no_knowledge_base_is_refused(repo: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    git(tmp_path, "init", "--quiet", str(other))
    (other / "src").mkdir()
    (other / "src/a.py").write_text("")
    git(other, "add", ".")
    git(other, "commit", "--quiet", "-m", "x")
    done = init(repo, *pinned(other, git(other, "rev-parse", "HEAD").strip()))
    assert done.returncode == ExitCode.BAD_INPUT
    assert "no knowledge base" in done.stderr
    assert snapshot(repo) == {}


@pytest.mark.parametrize("url", ["https://me:secret@x.org/y", "ext::sh -c touch% /tmp/x", "-x", "../y", "a\nb"])
def test_a_url_cannot_hold_credentials_options_or_programs(url: str, repo: Path) -> None:
    options = ("--ckb", "submodule", f"--url={url}", "--ref", "v1", "--owner", "@a", "--workflows", "none", "--yes")
    done = init(repo, *options)
    assert done.returncode == ExitCode.BAD_INPUT
    assert "secret" not in done.stderr
    assert os.listdir(repo) == [".git"]


def at_a_terminal(answers: list[str], folder: Path, *arguments: str) -> str:
    """Run it at a pseudo-terminal, answer its questions in turn, and return what the screen showed."""
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "metainfer", "init", str(folder), *arguments]
    with subprocess.Popen(command, stdin=follower, stdout=follower, stderr=follower, close_fds=True):
        os.close(follower)
        shown = b""
        while True:
            try:
                piece = os.read(leader, 4096)
            except OSError:  # the other end is closed
                break
            shown += piece
            if piece.rstrip().endswith((b"[y/N]:", b"address)?:")):
                os.write(leader, answers.pop(0).encode() + b"\n")
    os.close(leader)
    return shown.decode()


def test_at_a_terminal_it_asks_and_a_no_writes_nothing(repo: Path) -> None:
    shown = at_a_terminal(["n"], repo, "--owner", "@org/team", "--workflows", "none", "--ckb", "start")
    assert "Write this? [y/N]:" in shown
    assert "nothing was written" in shown
    assert snapshot(repo) == {}


def test_at_a_terminal_a_yes_writes(repo: Path) -> None:
    shown = at_a_terminal(["y", "y"], repo, "--owner", "@org/team", "--workflows", "none")
    assert "Copy the knowledge base that ships with metainfer?" in shown
    assert "is ready" in shown
    assert (repo / "ckb/family/rmsnorm/contract.yaml").is_file()


def test_at_a_terminal_it_asks_who_owns_what_nobody_does(repo: Path) -> None:
    shown = at_a_terminal(["@me", "n"], repo, "--ckb", "none", "--workflows", "none")
    assert "Who owns what is unowned so far" in shown
    assert "/ckb/          @me" in shown
