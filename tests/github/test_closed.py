"""Who closed a pull request is known to a job that may only read contents and pull requests."""

from __future__ import annotations

from pathlib import Path

from metainfer.forge.github.address import parse_address
from metainfer.forge.github.forge import GitHubForge
from tests.github.stub import Stub


def test_the_person_who_closed_it_last_is_told_to_a_job_that_may_only_read(
    stub: Stub, slug: str, tmp_path: Path
) -> None:
    repo = stub.repo(slug, ann="write", ben="write")
    repo.bare.commit("metainfer/tiny", {"engines/tiny/a": b"a\n"}, start=repo.bare.tip("refs/heads/main"))
    address = parse_address(
        f"github:{slug}", {"METAINFER_GITHUB_API": stub.api_url, "METAINFER_GITHUB_SERVER": stub.url}
    )

    def forge(token: str) -> GitHubForge:
        return GitHubForge.open(address, tmp_path, {"GITHUB_TOKEN": token})

    number = forge(stub.token("ann")).connection.repo.create_pull(base="main", head="metainfer/tiny", title="T").number
    reader = forge(stub.actions_token(slug, contents="read", pull_requests="read"))
    for login, state in (("ann", "closed"), ("ann", "open"), ("ben", "closed")):
        forge(stub.token(login)).connection.repo.get_pull(number).edit(state=state)
    for extra in range(100):  # on the second page of what happened
        forge(stub.token("ann")).conversation.put_label(number, f"label-{extra}")
    forge(stub.token("ben")).connection.repo.get_pull(number).edit(state="open")
    forge(stub.token("ann")).connection.repo.get_pull(number).edit(state="closed")
    assert reader.pulls.closer(reader.pulls.must(number)) == "@ann"
