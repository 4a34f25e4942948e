"""GitHub as a `Forge`: the same rules as the local one, on what the API and Git say at the moment of asking."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from metainfer.errors import InputError
from metainfer.forge import merging
from metainfer.forge.authorship import bot_made
from metainfer.forge.evidence import MANIFEST, input_hash_of
from metainfer.forge.github.address import GitHubAddress
from metainfer.forge.github.connect import Connection, connect
from metainfer.forge.github.conversation import Conversation
from metainfer.forge.github.mirror import Mirror
from metainfer.forge.github.owners import Owners
from metainfer.forge.github.publication import Publication, say_blocked
from metainfer.forge.github.pulls import Pulls, state_of
from metainfer.forge.github.reviewing import Reviewing, with_base
from metainfer.forge.labels import check_label
from metainfer.forge.lifecycle import Decision, Situation, decide
from metainfer.forge.markers import branch_of
from metainfer.forge.paths import check_engine_name, check_request, engine_folder
from metainfer.forge.protocol import (
    DEFAULT_BASE,
    REGENERATE_LABEL,
    Comment,
    Identity,
    LostRaceError,
    MergeOutcome,
    PublishOutcome,
    PublishRequest,
    PullRequest,
    State,
    Status,
)

ATTEMPTS = 6


class GitHubForge:
    """A `Forge` on one GitHub repository.

    `connection` is how the API is asked, `mirror` a bare copy of the repository. The identities that callers give
    are passed over: on GitHub, who acts is whose token it is.
    """

    def __init__(self, connection: Connection, mirror: Mirror) -> None:
        self.connection = connection
        self.mirror = mirror
        self.pulls = Pulls(connection)
        self.conversation = Conversation(connection)
        self.reviewing = Reviewing(connection, mirror)
        self._fetched: set[str] = set()

    @classmethod
    def open(cls, address: GitHubAddress, folder: Path, environment: Mapping[str, str] | None = None) -> GitHubForge:
        """With the credentials of the environment; the mirror lies below `folder`. InputError without credentials."""
        connection = connect(address, environment)
        return cls(connection, Mirror(address, folder / f"{address.folder}.git", lambda: connection.git_token))

    # Reading

    def address(self) -> str:
        return self.connection.address.git_url

    def base_sha(self, base: str = DEFAULT_BASE) -> str:
        self._once(base)
        return self._base(base)

    def read_file(self, ref: str, path: str) -> bytes | None:
        self._once()
        return self.mirror.repo.blobs([f"{ref}:{path}"])[0]

    def read_tree(self, ref: str, folder: str) -> dict[str, bytes]:
        self._once()
        repo, sha = self.mirror.repo, self.mirror.repo.commit_at(ref)
        if sha is None:
            raise InputError(f"{ref!r} names no commit of {self.connection.address.slug}")
        paths = sorted(repo.tree(sha, folder))
        contents = repo.blobs([f"{sha}:{path}" for path in paths])
        return {path: data for path, data in zip(paths, contents, strict=True) if data is not None}

    def read_link(self, ref: str, path: str) -> str | None:
        self._once()
        return self.mirror.repo.link_at(ref, path)

    def find_open(self, engine: str, base: str = DEFAULT_BASE) -> PullRequest | None:
        found = (self.pulls.as_record(pull) for pull in self.pulls.of_engine(engine, base) if pull.state == "open")
        return next((pull for pull in found if pull.engine == engine), None)

    def get(self, number: int) -> PullRequest:
        pull = self.pulls.must(number)
        record = self._with_base(self.pulls.as_record(pull, reviews=self.pulls.standing(pull).approvals))
        said = self.conversation.remarks(number)
        comments = tuple(
            Comment(
                by=f"@{remark.login}",
                at=remark.at,
                text=remark.text,
                kind="blocked" if remark.key.startswith("blocked:") else "note",
                head=record.head,
            )
            for remark in said
        )
        return record.model_copy(update={"comments": comments, "closed_by": self.pulls.closer(pull)})

    def list(self, state: State | Literal["all"] = "open") -> Sequence[PullRequest]:
        asked = "closed" if state == "merged" else state
        found = (pull for pull in self.pulls.of_bot(asked) if state in ("all", state_of(pull)))
        return [self.pulls.as_record(pull) for pull in found]

    def diff(self, number: int) -> str:
        record = self._with_base(self.pulls.as_record(self.pulls.must(number)))
        options = ("--no-color", "--no-ext-diff", "--no-textconv", "--no-renames")
        return self.mirror.repo.read("diff-tree", "-p", *options, record.base_sha, record.head).decode(
            "utf-8", "replace"
        )

    def tags(self, prefix: str) -> dict[str, str]:
        self._refresh()
        names = [name.removeprefix("refs/tags/") for name in self.mirror.repo.refs("refs/tags")]
        found = {n: self.mirror.repo.commit_at(f"refs/tags/{n}") for n in names if n.startswith(prefix)}
        return {name: sha for name, sha in found.items() if sha}

    def last_change(self, ref: str, folder: str) -> str | None:
        self._once()
        repo, tip = self.mirror.repo, self.mirror.repo.commit_at(ref)
        if tip is None:
            return None
        return repo.read("rev-list", "-1", "--first-parent", tip, "--", folder).decode().strip() or None

    # Publishing

    def preview(self, engine: str, input_hash: str, base: str = DEFAULT_BASE) -> PublishOutcome:
        check_engine_name(engine)
        self._refresh(base)
        if taken := self._taken(engine, base):
            return taken
        seen = self._situation(engine, base)
        return self._decide(seen, input_hash, regenerate=seen.asked).outcome

    def publish(self, request: PublishRequest) -> PublishOutcome:
        check_request(request)
        self._refresh(request.base)
        publication = Publication(self.connection, self.mirror, request)
        seen_first: list[str | None] = []
        for attempt in range(ATTEMPTS):
            if taken := self._taken(request.engine, request.base):
                return taken
            seen = self._situation(request.engine, request.base)
            seen_first.append(seen.tip)
            # A person may have pushed between two attempts: what they asked to be replaced is what was there first.
            wanted = request.regenerate or seen.asked
            regenerate = wanted and (seen.tip == seen_first[0] or seen.tip_is_ours)
            decision = self._decide(seen, request.input_hash, regenerate=regenerate)
            outcome = publication.carry_out(decision, seen, self._base(request.base))
            if outcome is not None:
                return outcome
            time.sleep(random.uniform(0.05, 0.2) * (attempt + 1))
            self._refresh(request.base)
        raise LostRaceError(
            f"publishing {request.engine}: others kept moving {branch_of(request.engine)}; nothing of theirs was "
            "touched, run it again"
        )

    def say_blocked(self, engine: str, input_hash: str, base: str = DEFAULT_BASE) -> PublishOutcome:
        """What `publish` says where a person's commits stop it, by a job that has nothing to publish.

        Gives what `preview` does; nothing is said unless that is `blocked`.
        """
        check_engine_name(engine)
        self._refresh(base)
        if taken := self._taken(engine, base):
            return taken
        seen = self._situation(engine, base)
        decision = self._decide(seen, input_hash, regenerate=seen.asked)
        if decision.outcome.status is Status.BLOCKED:
            say_blocked(self.conversation, self.mirror.repo, decision, seen, self._base(base))
        return decision.outcome

    def _taken(self, engine: str, base: str) -> PublishOutcome | None:
        """Why nothing can be proposed to another base than main: the engine has one branch, and it is in use.

        A push for this base would put its commits, spec and all, under the pull request that is there. Main itself asks
        nobody: what is stacked on a branch that is gone or forgotten must not keep its engines back.
        """
        other = self.pulls.elsewhere(engine, base) if base != DEFAULT_BASE else None
        if other is None:
            return None
        reason = (
            f"{branch_of(engine)} is proposed to {other.base.ref} in pull request #{other.number}; merge or close that "
            f"before an engine for {base}"
        )
        return PublishOutcome(Status.BLOCKED, reason, int(other.number))

    def _situation(self, engine: str, base: str) -> Situation:
        """What there is of an engine: pull requests from the API, where its branch and its base are from Git."""
        repo, base_tip = self.mirror.repo, self._base(base)
        tip = repo.commit_at(f"refs/heads/{branch_of(engine)}")
        ours = tip is None or bot_made(repo, base_tip, tip) or self._is_stacked(engine, base, tip)
        pulls = []
        for pull in self.pulls.of_engine(engine, base):
            record = self.pulls.as_record(pull, tip if pull.state == "open" else None)
            if pull.state == "open" and REGENERATE_LABEL in record.labels and not self._may_ask(pull.number):
                kept = tuple(name for name in record.labels if name != REGENERATE_LABEL)
                record = record.model_copy(update={"labels": kept})
            if record.engine == engine:
                pulls.append(record)
            elif record.state == "open" and ours:
                # Opened by hand from the bot's branch, or its body was written over: taken back, not doubled.
                pulls.append(record.model_copy(update={"engine": engine, "input_hash": ""}))
        current = next((pull for pull in reversed(pulls) if pull.state == "open"), None)
        return Situation(
            pulls=pulls,
            tip=tip,
            tip_is_ours=ours,
            base_input_hash=input_hash_of(repo.blobs([f"{base_tip}:{engine_folder(engine)}{MANIFEST}"])[0]),
            head_fits_base=current is None or tip is None or merging.fits(repo, engine, base_tip, tip),
        )

    def _is_stacked(self, engine: str, base: str, tip: str) -> bool:
        """Whether all that is not the bot's on a branch belongs to the branch that its pull request is for."""
        other = self.pulls.elsewhere(engine, base)
        return other is not None and self.mirror.has(other.base.sha) and bot_made(self.mirror.repo, other.base.sha, tip)

    def _may_ask(self, number: int) -> bool:
        """Whether somebody who may write put the label on: who may only triage can too, over people's commits."""
        who = self.conversation.labelled_by(number, REGENERATE_LABEL)
        return bool(who) and Owners(self.connection).may_write(who)

    def _decide(self, seen: Situation, input_hash: str, *, regenerate: bool = False) -> Decision:
        """The shared rules; who closed a pull request is asked only where it can matter."""
        if seen.open is None:
            named = [
                pull.model_copy(update={"closed_by": self.pulls.closer(self.pulls.must(pull.number))})
                if pull.state == "closed" and (pull.input_hash == input_hash or pull is seen.pulls[-1])
                else pull
                for pull in seen.pulls
            ]
            seen = Situation(named, seen.tip, seen.tip_is_ours, seen.base_input_hash, seen.head_fits_base)
        return decide(seen, input_hash, regenerate=regenerate)

    # Reviewing

    def comment(self, number: int, by: Identity, text: str) -> PullRequest:
        self.reviewing.comment(number, text)
        return self.get(number)

    def label(self, number: int, by: Identity, name: str, *, remove: bool = False) -> PullRequest:
        check_label(name)
        self.pulls.must(number)
        if remove:
            self.conversation.take_label(number, name)
        else:
            self.conversation.put_label(number, name)
        return self.get(number)

    def approve(self, number: int, by: Identity, head: str | None = None) -> PullRequest:
        self.reviewing.approve(number, head)
        return self.get(number)

    def close(self, number: int, by: Identity, comment: str | None = None) -> PullRequest:
        self.reviewing.close(number, comment)
        return self.get(number)

    def merge_blockers(self, number: int) -> Sequence[str]:
        pull = self.pulls.must(number)
        self._refresh(pull.base.ref)
        return self.reviewing.blockers(pull, self._base(pull.base.ref))

    def merge(self, number: int, by: Identity, expected_head: str | None = None) -> MergeOutcome:
        base = self.pulls.must(number).base.ref
        self._refresh(base)
        outcome = self.reviewing.merge(number, self._base(base), expected_head)
        self._refresh(base)
        return outcome

    # Releasing

    def create_tag(self, name: str, commit: str, message: str, tagger: Identity) -> bool:
        self._once()
        self.mirror.repo.read("check-ref-format", f"refs/tags/{name}")
        if not self.mirror.has(commit):
            raise InputError(f"{commit!r} names no commit of {self.connection.address.slug}")
        tag = self.mirror.repo.write_tag(name, commit, message, tagger, int(time.time()))
        return self.mirror.push(f"refs/tags/{name}", tag, None)

    # Helpers

    def _with_base(self, record: PullRequest) -> PullRequest:
        self._once(record.base)
        return with_base(self.mirror, record, self._base(record.base))

    def _base(self, base: str) -> str:
        sha = self.mirror.repo.commit_at(f"refs/heads/{base}")
        if sha is None:
            raise InputError(f"{self.connection.address.slug} has no branch {base!r}")
        return sha

    def _once(self, base: str = DEFAULT_BASE) -> None:
        if base not in self._fetched:
            self._refresh(base)

    def _refresh(self, base: str = DEFAULT_BASE) -> None:
        self.mirror.fetch(base)
        self._fetched.add(base)
