"""What a model may look at besides the contracts: source from elsewhere, by a path that the spec names."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metainfer.agents.brief import implementer_prompt
from metainfer.agents.implementer import Effort, Outcome, implement
from metainfer.agents.leakage import leaks
from metainfer.errors import InputError
from metainfer.generate.inputs import EngineInputs
from metainfer.pipeline.agents import agent_settings, brief_of
from metainfer.pipeline.prepare import prepare
from metainfer.pipeline.reference import MAX_CHARACTERS, excerpt, read_sources, sources_digest
from metainfer.progress import Silent
from metainfer.spec.models import Generation
from tests.agents.conftest import Desk
from tests.agents.handwritten import RMSNORM, fenced, handwritten
from tests.agents.scripted_endpoint import says, scripted
from tests.agents.test_brief import CKB, contracts, exemplar_text, published
from tests.agents.test_tools import calls

ROOT = Path(__file__).parents[2]
WRITTEN = "tests/agents/handwritten"
SETTINGS = {"backend": "agents", "model": "scripted", "reference": f"source:{WRITTEN}"}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> EngineInputs:
    spec = ROOT / "specs" / "tiny-qwen3.yaml"
    return prepare(spec, CKB, ROOT, tmp_path_factory.mktemp("models"), Silent(), generation=SETTINGS).inputs


def test_a_prompt_shows_the_source_that_the_contract_speaks_of_and_nothing_of_ours(inputs: EngineInputs) -> None:
    settings = Generation.model_validate(SETTINGS)
    for contract in contracts(inputs):
        prompt = "\n".join(message.content for message in implementer_prompt(brief_of(inputs, contract, settings)))
        assert leaks(prompt, handwritten(contract), published(inputs)), contract
        shown = "\n".join(inputs.sources.values())
        assert leaks(prompt, exemplar_text(inputs, contract), [*published(inputs), shown]) == [], contract
        assert len(brief_of(inputs, contract, settings).reference) <= MAX_CHARACTERS


def test_other_source_is_another_question(inputs: EngineInputs, tmp_path: Path) -> None:
    settings = Generation.model_validate(SETTINGS)
    one = agent_settings(settings, inputs.sources)
    other = agent_settings(settings, {**inputs.sources, "more.py": "x = 1\n"})
    assert one["sources"] == sources_digest(inputs.sources)
    assert one != other
    assert "sources" not in agent_settings(settings)


def test_a_file_is_shown_whole_where_it_fits(inputs: EngineInputs) -> None:
    sources = read_sources(f"source:{WRITTEN}/family.rmsnorm.py", ROOT)
    [norm] = [contract for contract in inputs.routing.contracts if contract.id == "family/rmsnorm"]
    assert excerpt(sources, norm) == f"# family.rmsnorm.py\n{RMSNORM.strip()}"


@given(st.dictionaries(st.from_regex(r"[a-z]{1,8}\.(py|cpp)", fullmatch=True), st.text(max_size=400), max_size=6),
       st.integers(0, 600))  # fmt: skip
def test_whatever_the_source_the_limit_holds(inputs: EngineInputs, sources: dict[str, str], limit: int) -> None:
    for contract in inputs.routing.contracts:
        assert len(excerpt(sources, contract, limit)) <= limit
        assert excerpt(sources, contract, limit) == excerpt(dict(sources), contract, limit)


def test_other_policies_read_nothing(tmp_path: Path) -> None:
    assert read_sources("none", tmp_path) == read_sources("exemplars", tmp_path) == {}


def test_hidden_files_links_and_other_kinds_are_left_out(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "hook.py").write_text("secret = 1\n")
    (tmp_path / "token.env").write_text("KEY=1\n")
    (tmp_path / "link.py").symlink_to("/etc/passwd")
    (tmp_path / "model.py").write_text("x = 1\n")
    os.mkfifo(tmp_path / "pipe.py")
    assert read_sources("source:.", tmp_path) == {"model.py": "x = 1\n"}


def test_a_path_of_this_machine_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="relative to the repository"):
        read_sources(f"source:{tmp_path}", tmp_path)


@pytest.mark.parametrize(
    ("path", "words"),
    [("../keys", "leads out"), ("../keys/id.py", "leads out"), ("src/../../keys", "leads out"), ("out", "leads out"),
     ("out/id.py", "leads out"), ("src/link.py", "leads out"), ("loop", "leads out"), (".git", "is hidden"),
     ("src/.env.py", "is hidden"), ("token.txt", "no source file"), ("odd", r"\\udcff\.py: not UTF-8")],
)  # fmt: skip
def test_a_spec_cannot_send_what_is_no_source_of_the_repository(tmp_path: Path, path: str, words: str) -> None:
    keys, root = tmp_path / "keys", tmp_path / "repository"
    for folder in (keys, root / ".git", root / "src", root / "odd"):
        folder.mkdir(parents=True)
    for file in (keys / "id.py", root / ".git" / "hook.py", root / "src" / ".env.py", root / "token.txt"):
        file.write_text("KEY = 1\n")
    (root / "out").symlink_to(keys)
    (root / "src" / "link.py").symlink_to(keys / "id.py")
    (root / "loop").symlink_to("loop")
    Path(os.fsdecode(os.fsencode(root / "odd") + b"/\xff.py")).write_text("x = 1\n")
    with pytest.raises(InputError, match=words):
        read_sources(f"source:{path}", root)


@pytest.mark.parametrize("path", ["ckb", "ckb/family/rmsnorm", "ckb/family/rmsnorm/check.py", "link", "src/../ckb"])
def test_no_path_shows_a_check(tmp_path: Path, path: str) -> None:
    check = tmp_path / "ckb" / "family" / "rmsnorm" / "check.py"
    check.parent.mkdir(parents=True)
    check.write_text("def check_it(): ...\n")
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "model.py").write_text("x = 1\n")
    (tmp_path / "link").symlink_to("ckb")
    with pytest.raises(InputError, match="holds checks"):
        read_sources(f"source:{path}", tmp_path)
    assert read_sources("source:.", tmp_path) == {"src/model.py": "x = 1\n"}


def test_a_path_without_source_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="reference source:nowhere: nowhere is no source file"):
        read_sources("source:nowhere", tmp_path)
    (tmp_path / "odd.py").write_bytes(b"\xff")
    with pytest.raises(InputError, match=r"odd\.py: not UTF-8"):
        read_sources("source:odd.py", tmp_path)
    for number in range(201):
        (tmp_path / f"{number}.cpp").touch()
    with pytest.raises(InputError, match="202 files; name a folder with at most 200"):
        read_sources("source:.", tmp_path)


async def _fine(*_: object) -> list[str]:
    return []


def test_tool_calls_and_code_blocks_take_the_same_path(inputs: EngineInputs, desk: Desk) -> None:
    brief = brief_of(inputs, "family/rmsnorm", Generation(reference="none"))
    wrong, right = ("submit", "{}"), ("write_file", json.dumps({"code": RMSNORM}))

    async def ask(url: str) -> Outcome:
        async with desk.client(url) as client:
            return await implement(brief, client, "scripted", _fine, Effort(rounds=2, tools=True))

    with scripted(calls(wrong), calls(right)) as endpoint:
        outcome = asyncio.run(ask(endpoint.base_url))
    assert [attempt.passed for attempt in outcome.attempts] == [False, True]
    assert outcome.code == RMSNORM
    assert "there is no tool called submit" in endpoint.requests[1]["messages"][-1]["content"]
    desk.folder = desk.folder / "blocks"
    with scripted(says(fenced(RMSNORM))) as endpoint:
        assert asyncio.run(ask(endpoint.base_url)).code == RMSNORM.strip() + "\n"
