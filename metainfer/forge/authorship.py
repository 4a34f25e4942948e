"""Which commits on a branch are the bot's. A workflow aid: whoever may push can also sign a commit as they like."""

from __future__ import annotations

from metainfer.forge.markers import INPUT_HASH, read_trailers
from metainfer.forge.plumbing import Repository
from metainfer.forge.protocol import BOT


def bot_made(repo: Repository, base: str, tip: str) -> bool:
    """Whether every commit that `tip` adds to `base` has the bot as committer and its trailer."""
    return newest_of_bot(repo, base, tip) == tip


def newest_of_bot(repo: Repository, base: str, tip: str) -> str | None:
    """The commit up to which a branch is the bot's alone; None if already the first one is not.

    It is `tip` when the bot made everything that the branch adds to `base`, nothing included.
    """
    out = repo.read("log", "-z", "--reverse", "--topo-order", "--format=%H %ce%n%B", f"{base}..{tip}")
    newest: str | None = None
    for commit in filter(None, out.decode("utf-8", "replace").split("\0")):
        head, _, message = commit.partition("\n")
        sha, _, email = head.partition(" ")
        if email != BOT.email or INPUT_HASH not in read_trailers(message):
            return newest
        newest = sha
    return tip
