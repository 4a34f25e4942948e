"""Replies kept by the digest of their request: what was paid for once is never asked again."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from metainfer.agents.messages import ChatRequest, Reply
from metainfer.files import pretty_json, write_atomic


class ReplyStore:
    """A folder of replies, one file each; shared by all runs of a workspace."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def get(self, request: ChatRequest) -> Reply | None:
        """The kept reply. A file that is damaged counts as absent: asking again costs less than stopping."""
        try:
            return Reply.model_validate_json(self._file(request).read_bytes())
        except (OSError, ValidationError):
            return None

    def put(self, request: ChatRequest, reply: Reply) -> None:
        """Keep a reply, whole or not at all."""
        write_atomic(self._file(request), pretty_json(reply.model_dump(mode="json")))

    def _file(self, request: ChatRequest) -> Path:
        digest = request.digest
        return self.folder / digest[:2] / f"{digest}.json"
