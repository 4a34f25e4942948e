"""The commits of one proposal: the engine's files, and knowledge in a commit of its own. Shared by all forges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from metainfer.forge import merging
from metainfer.forge.markers import ENGINE, INPUT_HASH, check_input_hash, with_marker, with_trailers
from metainfer.forge.paths import KNOWLEDGE, engine_folder, spelling_complaints
from metainfer.forge.plumbing import Repository
from metainfer.forge.protocol import BOT, PublishRefusedError, PublishRequest

MAX_BODY_CHARACTERS = 60_000


class Proposal:
    """One request as Git objects. They are built once, however often refs must be retried."""

    def __init__(self, repo: Repository, request: PublishRequest) -> None:
        self.repo = repo
        self.request = request
        self.body = with_marker(request.body, request.engine, check_input_hash(request.input_hash))
        if len(self.body) > MAX_BODY_CHARACTERS:
            raise PublishRefusedError(
                f"the pull request's body has {len(self.body)} characters, above the {MAX_BODY_CHARACTERS} allowed"
            )
        self._head: str | None = None

    def head(self) -> str:
        """The newest commit of the proposal: the engine's, or the one with knowledge after it. On no branch yet."""
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
            if self.brings_knowledge():
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

    def brings_knowledge(self) -> bool:
        """Whether the proposals differ from what the base has; refuses spellings that collide with the base's."""
        paths = sorted(self.request.proposal_files)
        base = self.repo.tree(self.request.base_sha, KNOWLEDGE)
        if complaints := spelling_complaints(paths, base):
            raise PublishRefusedError("refused to publish; nothing was written:\n" + "\n".join(complaints))
        known = self.repo.blobs([f"{self.request.base_sha}:{path}" for path in paths])
        return any(self.request.proposal_files[path] != data for path, data in zip(paths, known, strict=True))

    def base_problem(self, base_tip: str) -> str | None:
        """Why the proposal cannot stand on a base that is at `base_tip`; None if it can."""
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

    def changes_nothing(self) -> bool:
        """Whether the base commit already holds exactly these files."""
        return same_tree(self.repo, self.head(), self.request.base_sha)


def same_change(repo: Repository, base: str, one: str, other: str) -> bool:
    """Whether two heads bring the same files to `base`, wherever on it they were made from."""
    changes = [merging.read_change(repo, base, head) for head in (one, other)]
    return None not in changes and len({tuple(change.files.items()) for change in changes if change}) == 1


def same_tree(repo: Repository, one: str, other: str) -> bool:
    """Whether two commits hold the same files."""
    return repo.object_at(one, "") == repo.object_at(other, "")
