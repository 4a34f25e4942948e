"""Git's own objects over the API: refs, tags, commits, trees, blobs."""

from __future__ import annotations

import base64
from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter
from pydantic import Field

from tests.github.bare import GitFailedError, Who
from tests.github.stub.access import Body, Here, at, page
from tests.github.stub.commit_shapes import git_commit_json, ref_json, tag_json
from tests.github.stub.refusals import Refusal, not_found
from tests.github.stub.rules import guard_pushes, rules_for
from tests.github.stub.shapes import node_id, repo_url
from tests.github.stub.world import now

routes = APIRouter(prefix="/repos/{owner}/{repo}")
Reads = Annotated[Here, at("contents")]
Writes = Annotated[Here, at("contents", "write", "write")]


class NewRef(Body):
    ref: str
    sha: str


class ChangedRef(Body):
    sha: str
    force: bool = False


class Person(Body):
    name: str
    email: str
    date: str | None = None


class NewTag(Body):
    tag: str
    message: str
    object: str
    type: Literal["commit", "tree", "blob"]
    tagger: Person | None = None


class NewBlob(Body):
    content: str
    encoding: Literal["utf-8", "base64"] = "utf-8"


class Entry(Body):
    path: str
    mode: Literal["100644", "100755", "040000", "160000", "120000"]
    type: Literal["blob", "tree", "commit"]
    sha: str | None = None
    content: str | None = None


class NewTree(Body):
    tree: list[Entry]
    base_tree: str | None = None


class NewCommit(Body):
    message: str
    tree: str
    parents: list[str] = Field(default_factory=list)
    author: Person | None = None
    committer: Person | None = None


# Refs


@routes.get("/git/ref/{ref:path}")
async def get_ref(here: Reads, ref: str) -> Any:
    if here.repo.bare.tip(f"refs/{ref}") is None:
        raise not_found()
    return ref_json(here.world, here.repo, f"refs/{ref}")


@routes.get("/git/matching-refs/{ref:path}")
async def matching_refs(here: Reads, ref: str) -> Any:
    names = sorted(f"refs/{name}" for name in here.repo.bare.branches("refs") if name.startswith(ref))
    return [ref_json(here.world, here.repo, name) for name in page(here, names)]


@routes.post("/git/refs", status_code=201)
async def create_ref(here: Writes, body: NewRef) -> Any:
    bare = here.repo.bare
    if not body.ref.startswith("refs/") or body.ref.count("/") < 2:
        raise Refusal(422, "Reference name must start with 'refs/' and have at least two slashes.")
    if bare.run("cat-file", "-e", body.sha).returncode:
        raise Refusal(422, "Object does not exist")
    if bare.tip(body.ref):
        raise Refusal(422, "Reference already exists")
    try:
        bare.set_ref(body.ref, body.sha)
    except GitFailedError as error:  # a name that Git does not take, or a folder where a file is
        raise Refusal(422, "Reference could not be created") from error
    guard_pushes(here.repo)
    return ref_json(here.world, here.repo, body.ref)


@routes.patch("/git/refs/{ref:path}")
async def change_ref(here: Writes, ref: str, body: ChangedRef) -> Any:
    bare, name = here.repo.bare, f"refs/{ref}"
    old = bare.tip(name)
    if old is None:
        raise Refusal(422, "Reference does not exist")
    if bare.commit_at(body.sha) is None:
        raise Refusal(422, "Object does not exist")
    _refuse_protected(here, ref)
    if not body.force and not bare.is_ancestor(old, body.sha):
        raise Refusal(422, "Update is not a fast forward")
    bare.set_ref(name, body.sha)
    return ref_json(here.world, here.repo, name)


@routes.delete("/git/refs/{ref:path}", status_code=204)
async def delete_ref(here: Writes, ref: str) -> None:
    if here.repo.bare.tip(f"refs/{ref}") is None:
        raise Refusal(422, "Reference does not exist")
    _refuse_protected(here, ref)
    here.repo.bare.set_ref(f"refs/{ref}", None)


def _refuse_protected(here: Here, ref: str) -> None:
    kind, _, branch = ref.partition("/")
    if kind == "heads":
        rules = rules_for(here.repo, branch)
        if rules.approvals is not None or rules.contexts:
            raise Refusal(422, "Repository rule violations found. Changes must be made through a pull request.")


# Objects


@routes.post("/git/tags", status_code=201)
async def create_tag(here: Writes, body: NewTag) -> Any:
    by = body.tagger or Person(name=here.user.name, email=here.user.email)
    seconds = int(datetime.fromisoformat(by.date or now()).timestamp())
    text = f"object {body.object}\ntype {body.type}\ntag {body.tag}\ntagger {by.name} <{by.email}> {seconds} +0000\n\n"
    try:
        sha = here.repo.bare.git("mktag", stdin=(text + body.message.rstrip() + "\n").encode())
    except GitFailedError as error:
        raise Refusal(422, "Sorry, that object could not be tagged") from error
    return tag_json(here.world, here.repo, sha)


@routes.get("/git/tags/{tag_sha}")
async def get_tag(here: Reads, tag_sha: str) -> Any:
    _of_kind(here, tag_sha, "tag")
    return tag_json(here.world, here.repo, tag_sha)


@routes.get("/git/commits/{commit_sha}")
async def get_git_commit(here: Reads, commit_sha: str) -> Any:
    _of_kind(here, commit_sha, "commit")
    return git_commit_json(here.world, here.repo, commit_sha)


@routes.post("/git/commits", status_code=201)
async def create_commit(here: Writes, body: NewCommit) -> Any:
    me = Person(name=here.user.name, email=here.user.email)
    author, committer = body.author or me, body.committer or body.author or me
    try:
        sha = here.repo.bare.commit_tree(
            body.tree, body.parents, body.message, Who(author.name, author.email), Who(committer.name, committer.email)
        )
    except GitFailedError as error:
        raise Refusal(422, "Tree SHA or a parent does not exist") from error
    return git_commit_json(here.world, here.repo, sha)


@routes.get("/git/trees/{tree_sha:path}")
async def get_tree(here: Reads, tree_sha: str, recursive: str | None = None) -> Any:
    sha = here.repo.bare.tip(f"{tree_sha}^{{tree}}") or here.repo.bare.tip(f"refs/heads/{tree_sha}^{{tree}}")
    if sha is None:
        raise not_found()
    return _tree(here, sha, recursive is not None)


@routes.post("/git/trees", status_code=201)
async def create_tree(here: Writes, body: NewTree) -> Any:
    bare = here.repo.bare
    files: dict[str, bytes | None] = {}
    for entry in body.tree:
        if entry.type != "blob" or entry.mode != "100644":
            raise NotImplementedError("the stub builds trees of plain files only")
        data = entry.content.encode() if entry.content is not None else None
        files[entry.path] = bare.raw("cat-file", "blob", entry.sha) if entry.sha else data
    return _tree(here, bare.tree(body.base_tree, files), False)


def _tree(here: Here, sha: str, recursive: bool) -> Any:
    lines = here.repo.bare.raw("ls-tree", "-z", "-l", *(["-r", "-t"] if recursive else []), sha).decode().split("\0")
    entries = []
    for line in filter(None, lines):
        meta, _, path = line.partition("\t")
        mode, kind, its, size = meta.split()
        entry = {"path": path, "mode": mode, "type": kind, "sha": its}
        entry["url"] = f"{repo_url(here.world, here.repo)}/git/{kind}s/{its}"
        entries.append(entry | ({"size": int(size)} if kind == "blob" else {}))
    url = f"{repo_url(here.world, here.repo)}/git/trees/{sha}"
    return {"sha": sha, "url": url, "tree": entries, "truncated": False}


@routes.post("/git/blobs", status_code=201)
async def create_blob(here: Writes, body: NewBlob) -> Any:
    data = base64.b64decode(body.content) if body.encoding == "base64" else body.content.encode()
    sha = here.repo.bare.git("hash-object", "-w", "--stdin", stdin=data)
    return {"sha": sha, "url": f"{repo_url(here.world, here.repo)}/git/blobs/{sha}"}


@routes.get("/git/blobs/{file_sha}")
async def get_blob(here: Reads, file_sha: str) -> Any:
    _of_kind(here, file_sha, "blob")
    data = here.repo.bare.raw("cat-file", "blob", file_sha)
    return {
        "sha": file_sha,
        "node_id": node_id("Blob", int(file_sha[:8], 16)),
        "size": len(data),
        "url": f"{repo_url(here.world, here.repo)}/git/blobs/{file_sha}",
        "content": base64.encodebytes(data).decode(),
        "encoding": "base64",
    }


def _of_kind(here: Here, sha: str, kind: str) -> None:
    if here.repo.bare.run("cat-file", "-t", sha).stdout.decode().strip() != kind:
        raise not_found()


@routes.get("/tags")
async def list_tags(here: Reads) -> Any:
    names = sorted(here.repo.bare.branches("refs/tags"), reverse=True)
    zipped = f"{repo_url(here.world, here.repo)}/{{}}/refs/tags/{{}}"
    found: list[dict[str, Any]] = []
    for name in page(here, names):
        sha = here.repo.bare.commit_at(f"refs/tags/{name}")
        commit = {"sha": sha, "url": f"{repo_url(here.world, here.repo)}/commits/{sha}"}
        found.append(
            {
                "name": name,
                "node_id": node_id("Tag", len(found)),
                "commit": commit,
                "zipball_url": zipped.format("zipball", name),
                "tarball_url": zipped.format("tarball", name),
            }
        )
    return found
