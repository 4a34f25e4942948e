"""A real repository with this tree's knowledge and the tiny specs, and what jobs leave for each other."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from metainfer.ci.bundle import BundleRequest, read_bundle
from metainfer.ci.deployment import Deployment, deployment_at
from metainfer.ci.making import make_candidate
from metainfer.ci.report import write_report
from metainfer.ci.repository import Checkout
from metainfer.forge.evidence import REQUIRED_GATES
from metainfer.forge.local import LocalForge
from metainfer.forge.setup import create_local_forge
from metainfer.gates.report import Evidence, GateReport, make_evidence
from metainfer.progress import Silent

ROOT = Path(__file__).parents[2]
SPEC = "specs/tiny-qwen3.yaml"
ENGINE = "tiny-qwen3"
OWNER = "owner@example.org"


def git(folder: Path, *arguments: str) -> str:
    """Run git in a folder and return what it said."""
    done = subprocess.run(["git", "-C", str(folder), *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def commit(folder: Path, message: str) -> str:
    """Commit everything and return the commit."""
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--allow-empty", "-m", message)
    return git(folder, "rev-parse", "HEAD")


def make_repository(folder: Path, specs: tuple[str, ...] = ("tiny-qwen3", "tiny-qwen2")) -> Path:
    """A work tree with one commit on main."""
    (folder / "specs").mkdir(parents=True)
    shutil.copytree(ROOT / "ckb", folder / "ckb", ignore=shutil.ignore_patterns("__pycache__"))
    for name in specs:
        shutil.copyfile(ROOT / f"specs/{name}.yaml", folder / f"specs/{name}.yaml")
    (folder / ".gitignore").write_text(".metainfer/\n")
    git(folder, "init", "--quiet", "--initial-branch=main")
    git(folder, "config", "user.name", "Owner")
    git(folder, "config", "user.email", OWNER)
    commit(folder, "Start")
    return folder


@dataclass(frozen=True)
class Scene:
    """One engine on its way: the checkout, the forge, and the folder that the first job left."""

    work: Path
    forge_dir: Path
    cache: Path
    bundle: Path

    @property
    def forge(self) -> LocalForge:
        return LocalForge(self.forge_dir)

    @property
    def deployment(self) -> Deployment:
        checkout = Checkout(self.work)
        return deployment_at(checkout, checkout.commit("HEAD"), SPEC, self.work / ".metainfer")

    @property
    def request(self) -> BundleRequest:
        return read_bundle(self.bundle).request


def make_scene(folder: Path) -> Scene:
    """A repository, its local forge, and the bundle of its tiny engine. Seconds; made once and copied for each test."""
    work = make_repository(folder / "work")
    create_local_forge(work, folder / "forge.git", OWNER)
    scene = Scene(work, folder / "forge.git", folder / "cache", folder / "bundle")
    made = make_candidate(scene.deployment, scene.bundle, cache=scene.cache, progress=Silent(), forge=scene.forge)
    assert made.state == "made", made
    return scene


def copy_scene(scene: Scene, folder: Path) -> Scene:
    """The same in another place; the cache, which nothing changes, is shared."""
    shutil.copytree(scene.forge_dir, folder / "forge.git")
    shutil.copytree(scene.bundle, folder / "bundle")
    return Scene(scene.work, folder / "forge.git", scene.cache, folder / "bundle")


def green_evidence(input_hash: str, engine: str = ENGINE) -> Evidence:
    """What gates that found nothing would have written."""
    reports = [
        GateReport(
            gate=gate,
            verdict="passed",
            figures={"positions": 512},
            findings=[],
            seconds=1.5,
            reproduce=f"metainfer gate {gate} engines/{engine}",
        )
        for gate in REQUIRED_GATES
    ]
    return make_evidence(input_hash, reports)


def green_report(scene: Scene, folder: Path) -> Path:
    """A report for the scene's bundle, written as the judging job writes it."""
    write_report(folder, green_evidence(scene.request.input_hash), None)
    return folder
