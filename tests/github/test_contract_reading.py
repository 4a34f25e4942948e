"""What can be read of a repository, and the tags that are set on it."""

from __future__ import annotations

import subprocess

import pytest

from metainfer.errors import InputError
from metainfer.forge.protocol import BOT
from tests.forge.engines import ENGINE, FOLDER
from tests.github.bare import SOMEBODY
from tests.github.places import CONTRACT, Acting


def test_where_the_base_is(place: Acting) -> None:
    assert place.forge.base_sha() == place.base()
    with pytest.raises(InputError, match="no branch 'nowhere'"):
        place.forge.base_sha("nowhere")


def test_the_address_is_one_that_git_knows(place: Acting) -> None:
    done = subprocess.run(
        ["git", "ls-remote", place.forge.address(), "refs/heads/main"], capture_output=True, text=True
    )
    assert done.stdout.split() == [place.base(), "refs/heads/main"]


def test_files_are_read_at_a_commit_and_at_a_branch(place: Acting) -> None:
    first = place.base()
    place.push("main", {"data.bin": bytes(range(256)), "README.md": b"# second\n"})
    second = place.base()
    assert place.forge.read_file("main", "README.md") == b"# second\n"
    assert place.forge.read_file(first, "README.md") == b"# repository\n"
    assert place.forge.read_file(second, "data.bin") == bytes(range(256))
    assert place.forge.read_file(second, "absent") is None
    assert place.forge.read_file(second, "ckb") is None
    assert place.forge.read_file("0" * 40, "README.md") is None


def test_a_tree_is_read_with_its_paths_from_the_root(place: Acting) -> None:
    place.push("main", {"ckb/general/\u00e9 b.yaml": b"x"})
    assert place.forge.read_tree("main", "ckb/") == {
        CONTRACT: b"id: family/rmsnorm\nversion: 1\n",
        "ckb/general/\u00e9 b.yaml": b"x",
    }
    assert place.forge.read_tree("main", "absent/") == {}
    with pytest.raises(InputError, match="names no commit"):
        place.forge.read_tree("nowhere", "ckb/")


def test_a_submodules_pin_is_read(place: Acting) -> None:
    pin = "1234567890" * 4
    base, bare = place.base(), place.bare
    index = {"GIT_INDEX_FILE": str(bare.path / "index-for-a-pin")}
    bare.git("read-tree", base, extra=index)
    bare.git("update-index", "--add", "--cacheinfo", f"160000,{pin},shared", extra=index)
    tree = bare.git("write-tree", extra=index)
    bare.set_ref("refs/heads/main", bare.commit_tree(tree, [base], "Pin\n", SOMEBODY))
    assert place.forge.read_link("main", "shared") == pin
    assert place.forge.read_link("main", "README.md") is None
    assert place.forge.read_link(base, "shared") is None


def test_a_diff_is_against_the_commit_that_the_head_left_from(place: Acting) -> None:
    place.publish()
    place.push("main", {"docs/later.md": b"later\n"})
    text = place.forge.diff(1)
    assert f"+++ b/{FOLDER}README.md" in text
    assert "+# tiny" in text
    assert "later" not in text


def test_pull_requests_are_listed_by_state_in_the_order_of_their_numbers(place: Acting) -> None:
    for engine in ("a-cpu", "b-cpu", "c-cpu"):
        place.publish(engine=engine)
    place.close(1)
    place.merge(2)
    listed = {state: [pull.number for pull in place.forge.list(state)] for state in ("open", "closed", "merged", "all")}
    assert listed == {"open": [3], "closed": [1], "merged": [2], "all": [1, 2, 3]}
    assert [pull.engine for pull in place.forge.list("all")] == ["a-cpu", "b-cpu", "c-cpu"]


def test_only_the_engines_own_open_pull_request_is_found(place: Acting) -> None:
    place.publish()
    assert place.forge.find_open(ENGINE).number == 1
    assert place.forge.find_open("tiny-cpu2") is None
    assert place.forge.find_open("tiny") is None
    assert place.forge.find_open(ENGINE, base="other") is None


def test_the_last_change_of_a_folder_is_on_the_first_parents(place: Acting) -> None:
    first = place.base()
    place.publish()
    merged = place.merge()
    place.push("main", {"docs/x.md": b"x"})
    forge = place.another()
    assert forge.last_change("main", FOLDER) == merged
    assert forge.last_change("main", "ckb/") == first
    assert forge.last_change("main", "absent/") is None
    assert forge.last_change("nowhere", "ckb/") is None


def test_a_tag_is_set_once_and_never_moved(place: Acting) -> None:
    first = place.base()
    assert place.forge.create_tag("tiny-cpu/v1.0.0", first, "tiny-cpu 1.0.0\n", BOT) is True
    second = place.push("main", {"x": b"x"})
    assert place.forge.create_tag("tiny-cpu/v1.0.0", second, "another\n", BOT) is False
    assert place.another().create_tag("tiny-cpu/v1.0.0", first, "the same\n", BOT) is False
    assert place.bare.git("cat-file", "-t", "refs/tags/tiny-cpu/v1.0.0") == "tag"
    assert place.bare.commit_at("refs/tags/tiny-cpu/v1.0.0") == first


def test_tags_are_read_by_their_beginning_through_the_tag_object(place: Acting) -> None:
    base = place.base()
    for name in ("tiny-cpu/v1.0.0", "tiny-cpu/v1.1.0", "tiny-cpu2/v9.0.0"):
        place.forge.create_tag(name, base, "x\n", BOT)
    place.bare.set_ref("refs/tags/tiny-cpu/light", base)
    assert place.another().tags("tiny-cpu/") == dict.fromkeys(
        ("tiny-cpu/light", "tiny-cpu/v1.0.0", "tiny-cpu/v1.1.0"), base
    )
    assert place.forge.tags("absent/") == {}
