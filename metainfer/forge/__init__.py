"""Where pull requests live: one protocol, and a local forge in a bare Git repository that answers to it."""

from __future__ import annotations

from metainfer.forge.protocol import (
    BOT,
    Comment,
    Forge,
    Identity,
    MergeOutcome,
    MergeRefusedError,
    NoForgeError,
    NoSuchPullError,
    PublishOutcome,
    PublishRefusedError,
    PublishRequest,
    PullRequest,
    Review,
    Status,
)
from metainfer.forge.setup import create_local_forge, open_forge

__all__ = [
    "BOT",
    "Comment",
    "Forge",
    "Identity",
    "MergeOutcome",
    "MergeRefusedError",
    "NoForgeError",
    "NoSuchPullError",
    "PublishOutcome",
    "PublishRefusedError",
    "PublishRequest",
    "PullRequest",
    "Review",
    "Status",
    "create_local_forge",
    "open_forge",
]
