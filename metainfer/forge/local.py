"""The local forge: pull requests in a bare Git repository, with no server and no state outside of Git.

Approval here is a workflow aid, not security. It says which head a person read, so that another is not merged by
mistake; who may write to the repository is decided by its file permissions alone.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, TypeVar

from metainfer.errors import ConflictError, InputError
from metainfer.forge import merging
from metainfer.forge.authorship import bot_made
from metainfer.forge.evidence import MANIFEST, input_hash_of
from metainfer.forge.identity import require_text
from metainfer.forge.labels import check_label
from metainfer.forge.lifecycle import Action, Decision, Situation, decide
from metainfer.forge.markers import INPUT_HASH, branch_of, read_marker
from metainfer.forge.paths import check_engine_name, check_request, engine_folder
from metainfer.forge.plumbing import RefUpdate, Repository
from metainfer.forge.protocol import (
    BOT,
    DEFAULT_BASE,
    Comment,
    Identity,
    LostRaceError,
    MergeOutcome,
    MergeRefusedError,
    NoSuchPullError,
    PublishOutcome,
    PublishRequest,
    PullRequest,
    Review,
    State,
)
from metainfer.forge.publishing import Publication
from metainfer.forge.records import PullStore, Recorded, now

ATTEMPTS = 12
Result = TypeVar("Result")


class LocalForge:
    """A `Forge` on the bare repository at `git_dir`. Any number of processes may use it at once."""

    def __init__(self, git_dir: Path) -> None:
        self.repo = Repository(git_dir)
        self.store = PullStore(self.repo)

    # Reading

    def address(self) -> str:
        return str(self.repo.git_dir.resolve())

    def base_sha(self, base: str = DEFAULT_BASE) -> str:
        sha = self.repo.commit_at(f"refs/heads/{base}")
        if sha is None:
            raise InputError(f"{self.repo.git_dir} has no branch {base!r}")
        return sha

    def read_file(self, ref: str, path: str) -> bytes | None:
        return self.repo.blobs([f"{ref}:{path}"])[0]

    def read_tree(self, ref: str, folder: str) -> dict[str, bytes]:
        sha = self.repo.commit_at(ref)
        if sha is None:
            raise InputError(f"{ref!r} names no commit in {self.repo.git_dir}")
        paths = sorted(self.repo.tree(sha, folder))
        contents = self.repo.blobs([f"{sha}:{path}" for path in paths])
        return {path: data for path, data in zip(paths, contents, strict=True) if data is not None}

    def read_link(self, ref: str, path: str) -> str | None:
        return self.repo.link_at(ref, path)

    def find_open(self, engine: str, base: str = DEFAULT_BASE) -> PullRequest | None:
        return next((pull for pull in self._of(engine, base) if self._settled(pull).state == "open"), None)

    def get(self, number: int) -> PullRequest:
        return self._settled(self._recorded(number).pull)

    def list(self, state: State | Literal["all"] = "open") -> Sequence[PullRequest]:
        pulls = [self._settled(recorded.pull) for recorded in self.store.all()]
        return [pull for pull in pulls if state in ("all", pull.state)]

    def diff(self, number: int) -> str:
        pull = self._recorded(number).pull
        options = ("--no-color", "--no-ext-diff", "--no-textconv", "--no-renames")
        return self.repo.read("diff-tree", "-p", *options, pull.base_sha, pull.head).decode("utf-8", "replace")

    def tags(self, prefix: str) -> dict[str, str]:
        names = [name.removeprefix("refs/tags/") for name in self.repo.refs("refs/tags")]
        found = {name: self.repo.commit_at(f"refs/tags/{name}") for name in names if name.startswith(prefix)}
        return {name: sha for name, sha in found.items() if sha}

    def last_change(self, ref: str, folder: str) -> str | None:
        tip = self.repo.commit_at(ref)
        if tip is None:
            return None
        return self.repo.read("rev-list", "-1", "--first-parent", tip, "--", folder).decode().strip() or None

    # Publishing

    def preview(self, engine: str, input_hash: str, base: str = DEFAULT_BASE) -> PublishOutcome:
        check_engine_name(engine)
        seen = self._situation(engine, base)[0]
        return decide(seen, input_hash, regenerate=seen.asked).outcome

    def publish(self, request: PublishRequest) -> PublishOutcome:
        check_request(request)
        publication = Publication(self.repo, self.store, request)
        seen_first: list[str | None] = []

        def attempt() -> PublishOutcome | None:
            self._record_merges()
            seen, recorded, base_tip = self._situation(request.engine, request.base)
            seen_first.append(seen.tip)
            # A person may have pushed between two attempts: what they asked to be replaced is what was there first.
            wanted = request.regenerate or seen.asked
            regenerate = wanted and (seen.tip == seen_first[0] or seen.tip_is_ours)
            decision = decide(seen, request.input_hash, regenerate=regenerate)
            current = _current(decision, recorded)
            updates, outcome = publication.carry_out(decision, seen, recorded, current, base_tip)
            if not updates or self.repo.move_refs(updates, f"metainfer: {outcome.status}"):
                return outcome
            return None

        return _retry(attempt, f"publishing {request.engine}")

    def _situation(self, engine: str, base: str) -> tuple[Situation, Sequence[Recorded], str]:
        """What there is of an engine now, with the chain commits and the base tip that it was read at."""
        base_tip = self.base_sha(base)
        recorded = self.store.all()
        pulls = [self._settled(r.pull) for r in recorded if _is_bots(r.pull, engine, base)]
        pull = next((p for p in reversed(pulls) if p.state == "open"), None)
        tip = self.repo.commit_at(f"refs/heads/{branch_of(engine)}")
        seen = Situation(
            pulls=pulls,
            tip=tip,
            tip_is_ours=tip is None or tip in {p.head for p in pulls} or bot_made(self.repo, base_tip, tip),
            base_input_hash=input_hash_of(self.read_file(base_tip, engine_folder(engine) + MANIFEST)),
            head_fits_base=pull is None or merging.fits(self.repo, pull.engine, base_tip, pull.head),
        )
        return seen, recorded, base_tip

    # Reviewing

    def comment(self, number: int, by: Identity, text: str) -> PullRequest:
        if not require_text(text, "the comment").strip():
            raise InputError("the comment is empty; write what you want to say")

        def add(pull: PullRequest) -> PullRequest:
            if pull.comments and (pull.comments[-1].by, pull.comments[-1].text) == (by.label, text):
                return pull
            note = Comment(by=by.label, at=now(), text=text, head=pull.head)
            return pull.model_copy(update={"comments": (*pull.comments, note), "updated": now()})

        return self._change(number, f"comment by {by.label}", by, add)

    def label(self, number: int, by: Identity, name: str, *, remove: bool = False) -> PullRequest:
        check_label(name)

        def change(pull: PullRequest) -> PullRequest:
            if (name in pull.labels) is not remove:
                return pull
            kept = tuple(label for label in pull.labels if label != name)
            return pull.model_copy(update={"labels": kept if remove else (*kept, name), "updated": now()})

        return self._change(number, f"label {name} {'taken off' if remove else 'put on'} by {by.label}", by, change)

    def approve(self, number: int, by: Identity, head: str | None = None) -> PullRequest:
        if by.is_same_person(BOT):
            raise InputError("the bot cannot approve its own pull requests; approve as a person")

        def add(pull: PullRequest) -> PullRequest:
            _must_be_open(pull)
            _must_be_head(pull, head)
            review = Review(by=by.label, name=by.name, head=pull.head, at=now())
            if any((old.by, old.head) == (review.by, review.head) for old in pull.reviews):
                return pull
            return pull.model_copy(update={"reviews": (*pull.reviews, review), "updated": now()})

        return self._change(number, f"approved by {by.label}", by, add)

    def close(self, number: int, by: Identity, comment: str | None = None) -> PullRequest:
        comment = require_text(comment, "the comment").strip() if comment else None

        def shut(pull: PullRequest) -> PullRequest:
            if pull.state == "closed":
                return pull
            _must_be_open(pull)
            notes = (Comment(by=by.label, at=now(), text=comment, head=pull.head),) if comment else ()
            news = {"state": "closed", "closed_by": by.label, "updated": now(), "comments": (*pull.comments, *notes)}
            return pull.model_copy(update=news)

        return self._change(number, f"closed by {by.label}", by, shut)

    def merge_blockers(self, number: int) -> Sequence[str]:
        pull = self.get(number)
        tip = self.repo.commit_at(f"refs/heads/{pull.branch}")
        return merging.blockers(self.repo, pull, self.base_sha(pull.base), tip)

    def merge(self, number: int, by: Identity, expected_head: str | None = None) -> MergeOutcome:
        def attempt() -> MergeOutcome | None:
            recorded = self._recorded(number)
            pull = self._settled(recorded.pull)
            if pull.state == "merged" and pull.merge_commit:
                return MergeOutcome(number, pull.merge_commit, pull.base)
            _must_be_head(pull, expected_head)
            base = self.base_sha(pull.base)
            tip = self.repo.commit_at(f"refs/heads/{pull.branch}")
            if reasons := merging.blockers(self.repo, pull, base, tip):
                raise MergeRefusedError(number, reasons)
            commit = self._merge_commit(pull, base, by)
            news = {"state": "merged", "merge_commit": commit, "updated": now()}
            moves = [
                RefUpdate(f"refs/heads/{pull.base}", commit, base),
                RefUpdate(f"refs/heads/{pull.branch}", None, pull.head),
                self.store.change(pull.model_copy(update=news), recorded.sha, f"merged by {by.label}", by),
            ]
            done = self.repo.move_refs(moves, f"metainfer: merge #{number}")
            return MergeOutcome(number, commit, pull.base) if done else None

        return _retry(attempt, f"merging pull request #{number}")

    def _merge_commit(self, pull: PullRequest, base: str, by: Identity) -> str:
        change = merging.read_change(self.repo, base, pull.head)
        assert change is not None  # blockers() refused it otherwise
        tree = merging.merged_tree(self.repo, base, change)
        approvers = dict.fromkeys(f"{r.name} <{r.by}>" for r in pull.reviews if r.head == pull.head)
        trailers = "".join(f"Reviewed-by: {who}\n" for who in approvers)
        message = f"Merge pull request #{pull.number}: {pull.title}\n\n{INPUT_HASH}: {pull.input_hash}\n{trailers}"
        return self.repo.write_commit(tree, [base, pull.head], message, by)

    # Releasing

    def create_tag(self, name: str, commit: str, message: str, tagger: Identity) -> bool:
        self.repo.read("check-ref-format", f"refs/tags/{name}")
        tag = self.repo.write_tag(name, commit, message, tagger, int(time.time()))
        return self.repo.move_refs([RefUpdate(f"refs/tags/{name}", tag, None)], f"metainfer: tag {name}")

    # Helpers

    def _of(self, engine: str, base: str) -> Sequence[PullRequest]:
        return [r.pull for r in self.store.all() if _is_bots(r.pull, engine, base)]

    def _recorded(self, number: int) -> Recorded:
        recorded = self.store.get(number)
        if recorded is None:
            raise NoSuchPullError(f"there is no pull request #{number} in {self.repo.git_dir}; see `metainfer pr list`")
        return recorded

    def _settled(self, pull: PullRequest) -> PullRequest:
        """A pull request as it is, where its record lags: somebody merged its head with Git alone."""
        if pull.state != "open" or not self.repo.is_ancestor(pull.head, self.base_sha(pull.base)):
            return pull
        return pull.model_copy(update={"state": "merged", "merge_commit": self.base_sha(pull.base)})

    def _record_merges(self) -> None:
        """Write down merges that were made with Git alone. Losing a race here is fine: the other one wrote it."""
        for recorded in self.store.all():
            settled = self._settled(recorded.pull)
            if settled != recorded.pull:
                move = self.store.change(settled, recorded.sha, "found merged on the base", BOT)
                self.repo.move_refs([move], "metainfer: found merged")

    def _change(
        self, number: int, what: str, by: Identity, change: Callable[[PullRequest], PullRequest]
    ) -> PullRequest:
        """Apply `change` to the newest state, again if another write came between."""

        def attempt() -> PullRequest | None:
            recorded = self._recorded(number)
            new = change(recorded.pull)
            if new == recorded.pull:
                return new
            moved = self.repo.move_refs([self.store.change(new, recorded.sha, what, by)], f"metainfer: {what}")
            return new if moved else None

        return _retry(attempt, f"changing pull request #{number}")


def _is_bots(pull: PullRequest, engine: str, base: str) -> bool:
    """Ours for this engine: by branch, base and the marker in the body, not by title or author."""
    return pull.branch == branch_of(engine) and pull.base == base and read_marker(pull.body).get("engine") == engine


def _current(decision: Decision, recorded: Sequence[Recorded]) -> Recorded | None:
    """The record of the pull request that a decision is about."""
    if decision.pull is None or decision.action is Action.CREATE:
        return None
    return next(r for r in recorded if r.pull.number == decision.pull.number)


def _must_be_open(pull: PullRequest) -> None:
    if pull.state != "open":
        raise ConflictError(f"pull request #{pull.number} is {pull.state}")


def _must_be_head(pull: PullRequest, head: str | None) -> None:
    if head is not None and not (len(head) >= 7 and pull.head.startswith(head)):
        raise ConflictError(
            f"pull request #{pull.number} has moved on: its head is {pull.head[:12]}, not {head[:12]}; look at it again"
        )


def _retry(attempt: Callable[[], Result | None], what: str) -> Result:
    """Run `attempt` until it returns something; None means that others moved first and it must look again."""
    for tries in range(ATTEMPTS):
        result = attempt()
        if result is not None:
            return result
        time.sleep(random.uniform(0.005, 0.02) * (tries + 1))
    raise LostRaceError(
        f"{what}: gave up after {ATTEMPTS} attempts. Others kept changing the same refs, or an interrupted process "
        "left a *.lock file in the repository's refs folder; if nothing else runs, remove it and try again"
    )
