"""The folder that goes from round to round of one run: replies, refusals, the ledger, and what the endpoint can do.

run.json            which run it is of
kept/               replies, by the digest of their request
refused/            why a request got none: no budget was left for it, or the endpoint would not, or could not, answer
ledger.jsonl        every call, booked and settled
transcript.jsonl    every call that was made, in words
endpoint.json       where the model is, and what it can
STOP                put there by a person: no call is made while it is there

Who asks writes it; who advances reads it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from metainfer.agents.brief import PROMPT_VERSION
from metainfer.agents.budget import STOP_FILE, BudgetError
from metainfer.agents.client import AnswerError, EndpointError
from metainfer.agents.messages import ChatRequest
from metainfer.agents.replies import ReplyStore
from metainfer.errors import InputError, MetainferError
from metainfer.files import canonical_json, pretty_json, read_regular, sha256_bytes, write_atomic
from metainfer.spec.models import Spec

MAX_WORDS = 600


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class RunId(_Model):
    """Which run a folder, or a file of requests, belongs to."""

    engine: str
    digest: str
    """Hex SHA-256 over the spec, budgets included, and the version of the prompts."""

    @classmethod
    def of(cls, spec: Spec) -> RunId:
        return cls(
            engine=spec.name, digest=sha256_bytes(canonical_json({"spec": spec.resolved(), "prompts": PROMPT_VERSION}))
        )


class Refusal(_Model):
    """Why a request has no reply, and will get none in this run."""

    kind: Literal["budget", "answer", "endpoint"]
    words: str

    @classmethod
    def of(cls, error: BudgetError | EndpointError) -> Refusal:
        """What a client raised."""
        if isinstance(error, BudgetError):
            return cls(kind="budget", words=str(error))
        return cls(kind="answer" if isinstance(error, AnswerError) else "endpoint", words=str(error))

    def error(self) -> MetainferError:
        """As the client raised it."""
        errors = {"budget": BudgetError, "answer": AnswerError, "endpoint": EndpointError}
        return errors[self.kind](self.words)


@dataclass(frozen=True)
class Correspondence:
    """The folder of one run."""

    folder: Path

    @property
    def replies(self) -> ReplyStore:
        return ReplyStore(self.folder / "kept")

    @property
    def ledger(self) -> Path:
        return self.folder / "ledger.jsonl"

    @property
    def transcript(self) -> Path:
        return self.folder / "transcript.jsonl"

    @property
    def endpoint(self) -> Path:
        return self.folder / "endpoint.json"

    @property
    def stop_file(self) -> Path:
        return self.folder / STOP_FILE

    def require(self, run: RunId) -> None:
        """Raise InputError if the folder is of another run, or holds links; an empty one is of any."""
        if odd := next((path for path in self.folder.rglob("*") if path.is_symlink()), None):
            raise InputError(f"{self.folder}: {ascii(odd.name)[:80]} is a symbolic link; restore the folder")
        file = self.folder / "run.json"
        try:
            found = RunId.model_validate_json(read_regular(file))
        except FileNotFoundError:
            if self.ledger.exists() or (self.folder / "refused").exists():
                raise InputError(f"{self.folder}: has a ledger and no run.json; name the folder of this run") from None
            return
        except ValidationError as error:
            raise InputError(f"{file}: does not say which run it is of; restore the folder") from error
        if found != run:
            raise InputError(
                f"{self.folder} is of a run of {found.engine[:64]!r} with another spec, budget or prompts; name an "
                "empty folder (its kept/ may be copied there: what was paid for is not paid twice)"
            )

    def begin(self, run: RunId) -> None:
        """The same, and let an empty folder be of this run."""
        self.require(run)
        write_atomic(self.folder / "run.json", pretty_json(run.model_dump(mode="json")))

    def refusal(self, request: ChatRequest) -> Refusal | None:
        try:
            return Refusal.model_validate_json(self._refusal(request).read_bytes())
        except (OSError, ValidationError):
            return None

    def refuse(self, request: ChatRequest, refusal: Refusal) -> None:
        short = refusal.model_copy(update={"words": refusal.words[:MAX_WORDS]})
        write_atomic(self._refusal(request), pretty_json(short.model_dump(mode="json")))

    def found_endpoint(self) -> dict[str, Any]:
        """What `endpoint.json` says; empty before the first question was asked."""
        try:
            found = json.loads(read_regular(self.endpoint))
        except (OSError, ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    def _refusal(self, request: ChatRequest) -> Path:
        digest = request.digest
        return self.folder / "refused" / digest[:2] / f"{digest}.json"
