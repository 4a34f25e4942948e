"""A forge that reads for real and only says what it would write."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from metainfer.forge.markers import branch_of
from metainfer.forge.paths import check_request
from metainfer.forge.protocol import (
    DEFAULT_BASE,
    Forge,
    Identity,
    MergeOutcome,
    MergeRefusedError,
    PublishOutcome,
    PublishRequest,
    PullRequest,
    State,
    Status,
)


class DryRun:
    """Wraps a forge. Reads pass through; each write is reported through `say` and leaves everything as it was."""

    def __init__(self, inner: Forge, say: Callable[[str], None] = print) -> None:
        self.inner = inner
        self.say = say

    def address(self) -> str:
        return self.inner.address()

    def base_sha(self, base: str = DEFAULT_BASE) -> str:
        return self.inner.base_sha(base)

    def read_file(self, ref: str, path: str) -> bytes | None:
        return self.inner.read_file(ref, path)

    def read_tree(self, ref: str, folder: str) -> dict[str, bytes]:
        return self.inner.read_tree(ref, folder)

    def read_link(self, ref: str, path: str) -> str | None:
        return self.inner.read_link(ref, path)

    def find_open(self, engine: str, base: str = DEFAULT_BASE) -> PullRequest | None:
        return self.inner.find_open(engine, base)

    def get(self, number: int) -> PullRequest:
        return self.inner.get(number)

    def list(self, state: State | Literal["all"] = "open") -> Sequence[PullRequest]:
        return self.inner.list(state)

    def diff(self, number: int) -> str:
        return self.inner.diff(number)

    def preview(self, engine: str, input_hash: str, base: str = DEFAULT_BASE) -> PublishOutcome:
        return self.inner.preview(engine, input_hash, base)

    def publish(self, request: PublishRequest) -> PublishOutcome:
        check_request(request)
        outcome = self.inner.preview(request.engine, request.input_hash, request.base)
        if request.regenerate and not outcome.wrote:
            status = Status.UPDATED if self.inner.find_open(request.engine, request.base) else Status.CREATED
            outcome = PublishOutcome(status, "regenerated on request", outcome.number)
        if not outcome.wrote:
            self.say(f"would leave everything as it is ({outcome.status}): {outcome.reason}")
            return outcome
        verb = "open a pull request" if outcome.status is Status.CREATED else f"update pull request #{outcome.number}"
        self.say(f"would {verb} on branch {branch_of(request.engine)}: {request.title}")
        self._say_files("engine commit", request.engine_files, request.base_sha)
        if request.proposal_files:
            self._say_files("knowledge commit", request.proposal_files, request.base_sha)
        return outcome

    def comment(self, number: int, by: Identity, text: str) -> PullRequest:
        self.say(f"would comment on pull request #{number} as {by.label}: {text}")
        return self.inner.get(number)

    def label(self, number: int, by: Identity, name: str, *, remove: bool = False) -> PullRequest:
        verb = "take the label {} off" if remove else "put the label {} on"
        self.say(f"would {verb.format(name)} pull request #{number} as {by.label}")
        return self.inner.get(number)

    def approve(self, number: int, by: Identity, head: str | None = None) -> PullRequest:
        pull = self.inner.get(number)
        self.say(f"would approve head {pull.head[:12]} of pull request #{number} as {by.label}")
        return pull

    def close(self, number: int, by: Identity, comment: str | None = None) -> PullRequest:
        self.say(f"would close pull request #{number} as {by.label}")
        return self.inner.get(number)

    def merge_blockers(self, number: int) -> Sequence[str]:
        return self.inner.merge_blockers(number)

    def merge(self, number: int, by: Identity, expected_head: str | None = None) -> MergeOutcome:
        pull = self.inner.get(number)
        if reasons := self.inner.merge_blockers(number):
            raise MergeRefusedError(number, reasons)
        self.say(f"would merge head {pull.head[:12]} of pull request #{number} into {pull.base} as {by.label}")
        return MergeOutcome(number, pull.head, pull.base)

    def tags(self, prefix: str) -> dict[str, str]:
        return self.inner.tags(prefix)

    def last_change(self, ref: str, folder: str) -> str | None:
        return self.inner.last_change(ref, folder)

    def create_tag(self, name: str, commit: str, message: str, tagger: Identity) -> bool:
        free = name not in self.inner.tags(name)
        self.say(f"would tag commit {commit[:12]} as {name}" if free else f"tag {name} is taken")
        return free

    def _say_files(self, what: str, files: Mapping[str, bytes], base_sha: str) -> None:
        for path, data in sorted(files.items()):
            known = self.inner.read_file(base_sha, path)
            if known != data:
                self.say(f"  {what}: {'add' if known is None else 'change'} {path} ({len(data)} bytes)")
