"""Versions and tags of engines that are on the base branch."""

from __future__ import annotations

from metainfer.release.tag import Release, ReleaseRefusedError, release, released_versions
from metainfer.release.versions import Version

__all__ = ["Release", "ReleaseRefusedError", "Version", "release", "released_versions"]
