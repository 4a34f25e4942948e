"""Turning a decision into Git objects and ref moves. Nothing becomes visible until the caller moves the refs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from metainfer.forge import merging
from metainfer.forge.lifecycle import Action, Decision, Situation
from metainfer.forge.markdown import inline
from metainfer.forge.markers import (
    ENGINE,
    INPUT_HASH,
    branch_of,
    check_input_hash,
    one_line,
    with_marker,
    with_trailers,
)
from metainfer.forge.paths import KNOWLEDGE, engine_folder, spelling_complaints
from metainfer.forge.plumbing import RefUpdate, Repository
from metainfer.forge.protocol import (
    BOT,
    Comment,
    PublishOutcome,
    PublishRefusedError,
    PublishRequest,
    PullRequest,
    Status,
)
from metainfer.forge.records import PullStore, Recorded, now

MAX_BODY_CHARACTERS = 60_000
Moves = Sequence[RefUpdate]


class Publication:
    """One request on its way into the repository; its commits are built once, however often refs must be retried."""

    def __init__(self, repo: Repository, store: PullStore, request: PublishRequest) -> None:
        self.repo = repo
        self.store = store
        self.request = request
        self.branch = f"refs/heads/{branch_of(request.engine)}"
        self.body = with_marker(request.body, request.engine, check_input_hash(request.input_hash))
        if len(self.body) > MAX_BODY_CHARACTERS:
            raise PublishRefusedError(
                f"the pull request's body has {len(self.body)} characters, above the {MAX_BODY_CHARACTERS} allowed"
            )
        self._head: str | None = None

    def carry_out(
        self,
        decision: Decision,
        seen: Situation,
        all_pulls: Sequence[Recorded],
        current: Recorded | None,
        base_tip: str,
    ) -> tuple[Moves, PublishOutcome]:
        """The ref moves that put a decision into effect, and the outcome once they are made."""
        outcome = decision.outcome
        if outcome.status is Status.BLOCKED:
            return self._say_blocked(current, outcome), outcome
        if decision.action is Action.REPAIR and current:
            return [RefUpdate(self.branch, current.pull.head, seen.tip)], outcome
        if decision.action is Action.RETIRE and current:
            return [self._retired(current)], outcome
        if decision.action in (Action.CREATE, Action.UPDATE):
            return self._propose(decision, seen, all_pulls, current, base_tip)
        return [], outcome

    def _propose(
        self,
        decision: Decision,
        seen: Situation,
        all_pulls: Sequence[Recorded],
        current: Recorded | None,
        base_tip: str,
    ) -> tuple[Moves, PublishOutcome]:
        if blocked := self._base_problem(base_tip):
            return [], PublishOutcome(Status.BLOCKED, blocked, current.pull.number if current else None)
        head = self._build_head()
        if self._same_tree(head, self.request.base_sha):
            reason = "the base already holds exactly these files, so there is nothing to propose"
            outcome = PublishOutcome(Status.UNCHANGED, reason, current.pull.number if current else None)
            return ([self._retired(current)] if current else []), outcome
        if current and self._already_proposed(head, current.pull, seen):
            reason = f"pull request #{current.pull.number} already proposes exactly these files"
            return [], PublishOutcome(Status.UNCHANGED, reason, current.pull.number, current.pull.head)
        branch_move = RefUpdate(self.branch, head, seen.tip)
        # A replaced branch stays reachable from the record, whoever made it.
        keep = [seen.tip] if seen.tip else []
        if current:
            record = self._updated(current, head, decision.outcome.reason, keep, seen)
            number = current.pull.number
        else:
            number = len(all_pulls) + 1
            record = self._created(number, head, decision.pull, keep)
        outcome = PublishOutcome(decision.outcome.status, decision.outcome.reason, number, head)
        return [branch_move, record], outcome

    # Commits

    def _build_head(self) -> str:
        if self._head is None:
            request, folder = self.request, engine_folder(self.request.engine)
            before = self.repo.tree(request.base_sha, folder)
            head = self._commit(
                request.base_sha,
                request.engine_files,
                removed=[path for path in before if path not in request.engine_files],
                subject=request.title,
                text=f"The files of {folder} as the pipeline made and measured them.",
            )
            if self._new_knowledge():
                head = self._commit(
                    head,
                    request.proposal_files,
                    removed=[],
                    subject=f"Propose knowledge found while generating {request.engine}",
                    text="For the next generation: the engine of the commit before does not rest on it.",
                )
            self._head = head
        return self._head

    def _commit(
        self, parent: str, files: Mapping[str, bytes], *, removed: Sequence[str], subject: str, text: str
    ) -> str:
        blobs: dict[str, str | None] = {path: self.repo.write_blob(data) for path, data in files.items()}
        tree = self.repo.write_tree(parent, blobs | dict.fromkeys(removed))
        if tree == self.repo.object_at(parent, ""):
            return parent  # e.g. new knowledge about an engine that stays as it is
        trailers = {INPUT_HASH: self.request.input_hash, ENGINE: self.request.engine}
        message = with_trailers(subject, text, {**self.request.trailers, **trailers})
        return self.repo.write_commit(tree, [parent], message, BOT)

    def _new_knowledge(self) -> bool:
        """Whether the proposals differ from what the base has; refuses spellings that collide with the base's."""
        paths = sorted(self.request.proposal_files)
        base = self.repo.tree(self.request.base_sha, KNOWLEDGE)
        if complaints := spelling_complaints(paths, base):
            raise PublishRefusedError("refused to publish; nothing was written:\n" + "\n".join(complaints))
        known = self.repo.blobs([f"{self.request.base_sha}:{path}" for path in paths])
        return any(self.request.proposal_files[path] != data for path, data in zip(paths, known, strict=True))

    def _base_problem(self, base_tip: str) -> str | None:
        request = self.request
        if not self.repo.commit_at(request.base_sha) or not self.repo.is_ancestor(request.base_sha, base_tip):
            return f"commit {request.base_sha[:12]}, which the engine was made from, is not on {request.base}"
        folder = engine_folder(request.engine)
        if self.repo.object_at(request.base_sha, folder) != self.repo.object_at(base_tip, folder):
            return f"{folder} changed on {request.base} while this engine was being made; run again"
        change = merging.Change(request.base_sha, dict.fromkeys(request.proposal_files))
        if moved := merging.conflicts(self.repo, request.engine, base_tip, change):
            return "; ".join(moved)
        return None

    def _same_tree(self, one: str, other: str) -> bool:
        return self.repo.object_at(one, "") == self.repo.object_at(other, "")

    def _already_proposed(self, head: str, pull: PullRequest, seen: Situation) -> bool:
        """The same files, for the same inputs, on a branch that is where it should be: keep head and approvals."""
        return (
            seen.tip == pull.head
            and seen.head_fits_base
            and pull.input_hash == self.request.input_hash
            and self._same_tree(head, pull.head)
        )

    # Records

    def _created(self, number: int, head: str, previous: PullRequest | None, keep: Sequence[str]) -> RefUpdate:
        body = self.body
        if previous:
            note = f"Follows #{previous.number}, which {inline(previous.closed_by or BOT.label)} closed.\n\n"
            body = note + body if len(note) + len(body) <= MAX_BODY_CHARACTERS else body
        at = now()
        pull = PullRequest(
            number=number,
            engine=self.request.engine,
            branch=branch_of(self.request.engine),
            base=self.request.base,
            state="open",
            created=at,
            follows=previous.number if previous else None,
            **{**self._proposal(head), "body": body, "updated": at},
        )
        return self.store.change(pull, None, "opened", BOT, keep)

    def _updated(self, current: Recorded, head: str, reason: str, keep: Sequence[str], seen: Situation) -> RefUpdate:
        news = {**self._proposal(head), "updated": now()}
        if seen.tip and not seen.tip_is_ours:
            text = f"Regenerated on request. The branch was at {seen.tip}, which this record keeps reachable."
            note = Comment(by=BOT.label, at=now(), text=text, head=head)
            news["comments"] = (*current.pull.comments, note)
        return self._changed(current, news, f"updated: {reason}", keep)

    def _proposal(self, head: str) -> dict[str, object]:
        return {
            "head": head,
            "title": one_line(self.request.title),
            "body": self.body,
            "base_sha": self.request.base_sha,
            "input_hash": self.request.input_hash,
            "has_knowledge": self._new_knowledge(),
        }

    def _retired(self, current: Recorded) -> RefUpdate:
        text = f"Closed: {self.request.base} already holds what this would bring."
        note = Comment(by=BOT.label, at=now(), text=text, head=current.pull.head)
        comments = (*current.pull.comments, note)
        news = {"state": "closed", "closed_by": BOT.label, "updated": now(), "comments": comments}
        return self._changed(current, news, "no longer needed")

    def _say_blocked(self, current: Recorded | None, outcome: PublishOutcome) -> Moves:
        """One comment, once for each head of the bot's that a person built upon."""
        if current is None or outcome.head is None:
            return []
        pull = current.pull
        if any(note.kind == "blocked" and note.head == pull.head for note in pull.comments):
            return []
        note = Comment(by=BOT.label, at=now(), text=f"Stopped: {outcome.reason}.", kind="blocked", head=pull.head)
        return [self._changed(current, {"comments": (*pull.comments, note), "updated": now()}, "blocked")]

    def _changed(self, current: Recorded, news: Mapping[str, object], what: str, keep: Sequence[str] = ()) -> RefUpdate:
        return self.store.change(current.pull.model_copy(update=news), current.sha, what, BOT, keep)
