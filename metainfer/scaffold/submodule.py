"""Puts a shared knowledge base at `ckb/` as a Git submodule, or moves its pin."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from metainfer.ckb.store import KnowledgeBase
from metainfer.errors import InputError, MachineError
from metainfer.files import replace_folder
from metainfer.forge.pinned import Pin, read_pinned, submodule_url
from metainfer.forge.plumbing import run_git
from metainfer.scaffold.plan import read_present


def current_pin(root: Path) -> str | None:
    """The commit that `ckb` is pinned to in the index; None if it is no submodule."""
    done = run_git(["-C", str(root), "ls-files", "--stage", "-z", "--", "ckb"])
    entries = [line.partition("\t") for line in done.stdout.decode("utf-8", "replace").split("\0") if line]
    return next((meta.split(" ")[1] for meta, _, path in entries if path == "ckb" and meta.startswith("160000")), None)


def require_knowledge(pin: Pin) -> int:
    """The number of contracts at the pinned commit. InputError if its top level is no knowledge base."""
    files = read_pinned(pin)
    with tempfile.TemporaryDirectory(prefix="metainfer-pinned-") as scratch:
        folder = Path(scratch) / "ckb"
        # Beside its layers, a shared base has a README, a licence and the like at its top.
        replace_folder(folder, {path: data for path, data in files.items() if "/" in path})
        try:
            count = len(KnowledgeBase.load(folder).contracts)
        except InputError as error:
            raise InputError(
                f"{pin.url} at {pin.ref} is no knowledge base: its top folders must be layers with contracts\n"
                + str(error).replace(f"{folder}/", "")
            ) from error
    if not count:
        raise InputError(f"{pin.url} at {pin.ref} holds no contracts")
    return count


def needs_pin(root: Path, pin: Pin) -> bool:
    """Whether the index lacks this pin. InputError if something else is at `ckb`, or the submodule is another one."""
    present = current_pin(root)
    if present is None:
        place = root / "ckb"
        if place.exists() and (not place.is_dir() or any(place.iterdir())):
            raise InputError(f"{place} is there already; move it away before a shared knowledge base takes its place")
        return True
    url = submodule_url(read_present(root, ".gitmodules") or b"", "ckb")
    if url != pin.url:
        raise InputError(f"ckb/ is a submodule of {url} already; change .gitmodules first if it is to be another")
    return present != pin.commit


def set_pin(root: Path, pin: Pin) -> None:
    """Clone, check out and stage the submodule; whatever fails, the repository is as it was."""
    if current_pin(root) is not None:
        _move(root, pin)
        return
    modules = read_present(root, ".gitmodules")
    # The network comes first, beside the place where the clone will stand.
    with tempfile.TemporaryDirectory(prefix=".ckb-", dir=root) as scratch:
        clone = Path(scratch) / "ckb"
        _must(root, ["clone", "--quiet", "--no-checkout", "--", pin.url, str(clone)], pin.url)
        _must(clone, ["checkout", "--quiet", "--detach", pin.commit], pin.url)
        place = root / "ckb"
        if place.is_dir():
            place.rmdir()
        clone.rename(place)
    try:
        _must(root, ["submodule", "--quiet", "add", "--name", "ckb", "--", pin.url, "ckb"], "git submodule add")
        _must(root, ["submodule", "--quiet", "absorbgitdirs", "ckb"], "git submodule absorbgitdirs")
    except BaseException:
        run_git(["-C", str(root), "rm", "--quiet", "--cached", "-f", "--", "ckb"])
        run_git(["-C", str(root), "config", "--local", "--remove-section", "submodule.ckb"])
        shutil.rmtree(root / "ckb", ignore_errors=True)
        if modules is None:
            (root / ".gitmodules").unlink(missing_ok=True)
            run_git(["-C", str(root), "rm", "--quiet", "--cached", "--ignore-unmatch", "--", ".gitmodules"])
        raise


def _move(root: Path, pin: Pin) -> None:
    _must(root, ["submodule", "--quiet", "update", "--init", "--", "ckb"], "git submodule update")
    clone = root / "ckb"
    if run_git(["-C", str(clone), "status", "--porcelain"]).stdout.strip():
        raise InputError(f"{clone} has changes of its own; commit them there, or take them back, then move the pin")
    _must(clone, ["fetch", "--quiet", "--tags", "--", pin.url], pin.url)
    _must(clone, ["checkout", "--quiet", "--detach", pin.commit], pin.url)
    _must(root, ["add", "--", "ckb"], "git add")


def _must(folder: Path, arguments: Sequence[str], what: str) -> None:
    done = run_git(["-C", str(folder), *arguments])
    if done.returncode:
        said = " ".join(done.stderr.decode("utf-8", "replace").split())
        raise MachineError(f"{what}: {said or f'exit code {done.returncode}'}")
